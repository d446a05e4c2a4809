"""Programs of jax as lines of NumPy.

A program is traced, and each of its operations becomes a line that calls the function
of its name in `served.txt`. There are those that any machine rounds alike.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array, export

from jaxcp.typing import PyTree

_SAME = ("stop_gradient", "copy", "optimization_barrier")
_OPEN = re.compile(r"\b([vx]\d+|m)\b")  # what a call gives to a program
_PRODUCTS = ("mul", "square", "integer_pow")
_SUMS = ("add", "sub", "reduce_sum", "cumsum")
_MOVES = (
    "neg", "reshape", "broadcast_in_dim", "squeeze", "transpose", "slice", "rev",
    "gather", "concatenate", "stack", "convert_element_type",
)  # fmt: skip
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def template() -> tuple[str, dict[str, Any]]:
    """Returns `served.txt`, and what stands in it by name."""
    text = Path(__file__).with_name("served.txt").read_text()
    names: dict[str, Any] = {"np": np}
    exec(text, names)
    return text, names


class Lines:
    """A function of NumPy as it is written, and the numbers in it by their text.

    Args:
      functions: What stands in `served.txt`, by name.
    """

    def __init__(self, functions: dict[str, Any]) -> None:
        self.numbers: dict[str, str] = {}
        self._functions, self._names, self._indent = functions, count(), 1
        self._lines: list[str] = []
        self._products: set[str] = set()

    def program(self, name: str, function: Callable[..., PyTree], rows: PyTree) -> str:
        """Returns `rows -> leaves of function(*rows)`, as text.

        Rows are arrays whose first axis m is left open. Raises ValueError with the name
        of an operation that is not in `served.txt`, and for a sum with a product.
        """
        (m,) = export.symbolic_shape("m")
        opened = lambda v: jax.ShapeDtypeStruct((m, *v.shape[1:]), v.dtype)  # noqa: E731
        shapes = jax.tree.map(opened, rows)
        traced = jax.make_jaxpr(lambda *v: jax.tree.leaves(function(*v)))(*shapes)
        given = [f"x{i}" for i in range(len(traced.in_avals))]
        self._lines = [f"def {name}({', '.join(given)}):", f"    m = len({given[0]})"]
        pairs = zip(self._inline(traced, given), traced.out_avals, strict=True)
        whole = [f"np.array(np.broadcast_to({v}, {a.shape}))" for v, a in pairs]
        return "\n".join([*self._lines, f"    return {', '.join(whole)},"])

    def number(self, value: Array | np.ndarray) -> str:
        """Returns the name of an array, which stands in the text."""
        v = np.asarray(value)
        text = f'np.array({v.tolist()}, "{v.dtype}").reshape({v.shape})[()]'
        return self._known(text)

    def _known(self, text):
        """Returns the name of a number that does not depend on rows."""
        name = self.numbers.setdefault(text, f"c{len(self.numbers)}")
        if name not in self._functions:
            self._functions[name] = eval(text, self._functions)
        return name

    def _inline(self, closed, args):
        """Writes the lines of a program, and returns the names of its results."""
        jaxpr, consts = closed.jaxpr, map(self.number, closed.consts)
        places = [*jaxpr.constvars, *jaxpr.invars]
        known = dict(zip(places, [*consts, *args], strict=True))

        def name(v):
            is_literal = hasattr(v, "val")
            return self.number(v.aval.dtype.type(v.val)) if is_literal else known[v]

        for eqn in jaxpr.eqns:
            found = self._operation(eqn, [*map(name, eqn.invars)])
            known |= zip(eqn.outvars, found, strict=True)
        return [*map(name, jaxpr.outvars)]

    def _operation(self, eqn, args):
        """Writes an operation, and returns the names of its results."""
        kind, params = eqn.primitive.name, eqn.params
        if kind in _SAME:
            return args
        if kind in _CALLS:
            return self._inline(params.get("jaxpr") or params["call_jaxpr"], args)
        names = [f"v{next(self._names)}" for _ in eqn.outvars]
        carried = args[params.get("num_consts", 0) :]
        if kind == "scan" and len(carried) == len(names) == params["num_carry"]:
            self._loop(params, args, names)
            return names
        call = self._call(kind, params, args)
        if len(names) == 1 and not _OPEN.search(call):
            return [self._known(call)]
        self._check_rounding(eqn, args, names)
        self._write(f"{', '.join(names)} = {call}")
        return names

    def _check_rounding(self, eqn, args, names):
        """Raises ValueError for a sum with a product, which XLA may round once."""
        kind, products = eqn.primitive.name, self._products.intersection(args)
        if not np.issubdtype(eqn.outvars[0].aval.dtype, np.floating):
            return
        if kind in _SUMS and products:
            raise ValueError("a sum with a product")
        known = [self._functions[v] for v in args if v in self._functions]
        exact = 0, 0.5, np.inf  # of powers of two, which round nothing
        is_exact = any(np.isin(abs(np.frexp(v)[0]), exact).all() for v in known)
        if products if kind in _MOVES else kind in _PRODUCTS and not is_exact:
            self._products.update(names)

    def _call(self, kind, params, args):
        """Returns the call of a function; its settings are those that it names."""
        function = self._functions.get(f"_{kind}")
        if function is None:
            raise ValueError(kind)
        own = inspect.isfunction(function) and inspect.signature(function).parameters
        options = [f"{k}={params[k]}" for k in own or () if k in params]
        return f"_{kind}({', '.join(args + options)})"

    def _loop(self, params, args, names):
        """Writes a loop that begins with the last arguments and keeps these names."""
        consts = args[: params["num_consts"]]
        self._assign(names, args[len(consts) :])
        self._write(f"for _ in range({params['length']}):")
        self._indent += 1
        self._assign(names, self._inline(params["jaxpr"], [*consts, *names]))
        self._indent -= 1

    def _assign(self, names, values):
        self._write(f"{', '.join(names)}, = {', '.join(values)},")

    def _write(self, line):
        self._lines.append("    " * self._indent + line)
