"""Programs of jax as lines of NumPy that compute the same bits.

A program is traced, and each of its operations becomes a line that calls the function
of its name in `served.txt`. Refused is what machines may round in unlike ways: XLA and
NumPy have their own exp, log and powers, and add up floats in their own order; XLA may
round a product and its sum with another number at once (a fused multiply-add), and
divides many numbers by one through its inverse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export

from jaxcp.typing import PyTree

_SAME = ("stop_gradient", "copy", "optimization_barrier")
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")
_PRODUCTS = ("mul", "square", "integer_pow")
_VIEWS = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "rev", "neg")


class _Value(NamedTuple):
    """A value in the lines: its name, or its number, and how it was made."""

    name: str = ""
    known: np.ndarray | None = None
    is_product: bool = False  # of floats, and rounded
    is_spread: bool = False  # fewer numbers in many places


def module(
    function: Callable[..., PyTree],
    known: PyTree,
    rows: Mapping[str, tuple | None],
    settings: Mapping[str, Any],
    idle: Collection[str],
    what: str,
) -> str:
    """Returns a file of NumPy: `served.txt`, settings and programs.

    Args:
      function: `(known, *rows) -> arrays`, of jax.
      known: Values that become numbers of the file.
      rows: Arrays for each program, by its name; None for a program that is not there.
      settings: Values by name.
      idle: Names of functions of jax that return such rows as come in.
      what: What is refused, in words, if an operation is.

    Returns:
      The text.

    Raises:
      ValueError: for an operation that may be rounded in another way.
    """
    body = Path(__file__).with_name("served.txt").read_text()
    names: dict[str, Any] = {"np": np}
    exec(body, names)
    (m,) = export.symbolic_shape("m")
    lines, programs = Lines(names, idle), []
    opened = lambda v: jax.ShapeDtypeStruct((m, *v.shape[1:]), v.dtype)  # noqa: E731
    try:
        for name, given in rows.items():
            if given is None:
                programs.append(f"{name} = None")
                continue
            shapes = jax.tree.map(opened, given)
            programs.append(lines.program(name, function, known, shapes))
    except Unwritten as error:
        raise ValueError(refusal(what, error)) from None
    version = import_module("jaxcp").__version__
    head = f'"""Prediction sets in NumPy alone, written by jaxcp {version}."""'
    said = [f"{k} = {v!r}" for k, v in settings.items()]
    numbers = [f"{name} = {text}" for text, name in lines.numbers.items()]
    parts = [head, "import numpy as np", "\n".join(said), body]
    return "\n\n".join([*parts, "\n".join(numbers), *programs, ""])


def refusal(what: str, reason: Any) -> str:
    """Returns why something is not written as NumPy, and what to do."""
    return (
        f"expected sets that NumPy computes to the same bits, got {what}, which takes "
        f"{reason}; keep this predictor where jax is, by jaxcp.save, or take a score "
        "without, such as scores.LAC of the softmax for scores of logits"
    )


class Unwritten(Exception):
    """Raised for an operation that has no line of the same bits."""


class Lines:
    """Functions of NumPy, as they are written, and the numbers that they share.

    Args:
      functions: What stands in `served.txt`, by name.
      idle: Names of functions of jax that return such rows as come in.
    """

    def __init__(self, functions: Mapping[str, Any], idle: Collection[str]) -> None:
        self.numbers: dict[str, str] = {}
        self._functions, self._idle, self._names = functions, idle, count()
        self._lines: list[str] = []
        self._indent = 1

    def program(self, name: str, function: Callable, known: PyTree, rows: tuple) -> str:
        """Returns `rows -> leaves of function(known, *rows)` of NumPy, as text.

        Rows are shapes and types of arrays, whose first axis m is left open. Raises
        Unwritten for an operation that may be rounded in another way.
        """
        traced = jax.make_jaxpr(lambda *v: jax.tree.leaves(function(*v)))(known, *rows)
        given = [f"x{i}" for i, _ in enumerate(jax.tree.leaves(rows))]
        numbers = [_Value(known=np.asarray(v)) for v in jax.tree.leaves(known)]
        self._lines = [f"def {name}({', '.join(given)}):"]
        self._write(f"m = len({given[0]})")
        found = self._inline(traced, [*numbers, *map(_Value, given)])
        pairs = zip(map(self._shown, found), traced.out_avals, strict=True)
        whole = [f"np.array(np.broadcast_to({v}, {a.shape}))" for v, a in pairs]
        self._write(f"return {', '.join(whole)},")
        return "\n".join(self._lines)

    def _inline(self, closed, args):
        """Writes the lines of a program, and returns its results."""
        jaxpr = closed.jaxpr
        consts = [_Value(known=np.asarray(v)) for v in closed.consts]
        variables = [*jaxpr.constvars, *jaxpr.invars]
        known = dict(zip(variables, [*consts, *args], strict=True))

        def read(v):
            if not hasattr(v, "val"):
                return known[v]
            return _Value(known=np.asarray(v.val, v.aval.dtype))  # a literal

        for eqn in jaxpr.eqns:
            found = self._equation(eqn, [*map(read, eqn.invars)])
            known |= zip(eqn.outvars, found, strict=True)
        return [*map(read, jaxpr.outvars)]

    def _equation(self, eqn, args):
        """Writes one operation, and returns its results."""
        kind, params = eqn.primitive.name, eqn.params
        if kind in _SAME or params.get("name") in self._idle:
            return args
        if kind in _CALLS:
            return self._inline(params.get("jaxpr") or params["call_jaxpr"], args)
        function = self._functions.get(f"_{kind}")
        if reason := _reason(eqn, args, function):
            raise Unwritten(reason)
        if kind == "scan":
            return self._loop(params, args)
        options = _options(function, params)
        is_open = any(map(export.is_symbolic_dim, jax.tree.leaves(options)))
        numbers = [v.known for v in args if v.known is not None]
        if len(numbers) == len(args) and not is_open and len(eqn.outvars) == 1:
            found = function(*numbers, **options)  # type: ignore[misc]
            return [_Value(known=np.asarray(found, eqn.outvars[0].aval.dtype))]
        names = [f"v{next(self._names)}" for _ in eqn.outvars]
        texts = [*map(self._shown, args), *(f"{k}={v!r}" for k, v in options.items())]
        self._write(f"{', '.join(names)} = _{kind}({', '.join(texts)})")
        return [_made(eqn, args)._replace(name=name) for name in names]

    def _loop(self, params, args):
        """Writes a loop of as many steps as are known, and returns what it carries."""
        consts, carry = args[: params["num_consts"]], args[params["num_consts"] :]
        names = [f"v{next(self._names)}" for _ in carry]
        self._write(f"{', '.join(names)}, = {', '.join(map(self._shown, carry))},")
        self._write(f"for _ in range({params['length']}):")
        self._indent += 1
        found = self._inline(params["jaxpr"], [*consts, *map(_Value, names)])
        self._write(f"{', '.join(names)}, = {', '.join(map(self._shown, found))},")
        self._indent -= 1
        return [*map(_Value, names)]

    def _write(self, line):
        self._lines.append("    " * self._indent + line)

    def _shown(self, value):
        """Returns the name of a value, which its number is given."""
        if value.known is None:
            return value.name
        v = value.known
        text = f'np.array({v.tolist()}, "{v.dtype}")'
        text += f".reshape({v.shape})" if not v.size else "[()]" if not v.ndim else ""
        return self.numbers.setdefault(text, f"c{len(self.numbers)}")


def _options(function, params):
    """Returns what a function of `served.txt` reads of the settings of an operation."""
    if not inspect.isfunction(function):
        return {}
    found = {
        k: params[k] for k in inspect.signature(function).parameters if k in params
    }
    plain = lambda v: v.name if isinstance(v, Enum) else v  # noqa: E731
    return {
        k: tuple(v) if hasattr(v, "_fields") else plain(v) for k, v in found.items()
    }


def _reason(eqn, args, function):
    """Returns why an operation has no line of the same bits, or nothing."""
    kind, params, out = eqn.primitive.name, eqn.params, eqn.outvars[0].aval
    is_float = np.issubdtype(out.dtype, np.floating)
    if kind == "scan":
        over_rows = {len(args) - params["num_consts"], len(eqn.outvars)}
        return "a loop over rows" if over_rows != {params["num_carry"]} else ""
    rounding = getattr(params.get("rounding_method"), "name", "TO_NEAREST_EVEN")
    is_other = {
        "round": rounding != "TO_NEAREST_EVEN",
        "select_n": len(args) > 3,
        "integer_pow": params.get("y") != 2,
        "div": not is_float,
    }
    if function is None or is_other.get(kind, False):
        return kind
    if kind in ("reduce_sum", "cumsum") and is_float:
        return "a sum of floats"
    if kind in ("add", "sub") and any(v.is_product for v in args):
        return "a product and its sum with another number, rounded at once"
    if kind == "div" and not _divides_each(args[1]):
        return "a division of many numbers by one"
    return ""


def _made(eqn, args):
    """Returns how the result of an operation was made, still without a name."""
    kind, out = eqn.primitive.name, eqn.outvars[0].aval
    is_view = kind in _VIEWS
    rounds = kind in _PRODUCTS and np.issubdtype(out.dtype, np.floating)
    is_product = rounds and not any(map(_is_exact, args))
    is_spread = kind == "broadcast_in_dim" and _axes(eqn.invars[0].aval) < _axes(out)
    is_product |= is_view and args[0].is_product
    return _Value("", None, is_product, is_spread or (is_view and args[0].is_spread))


def _divides_each(value):
    """Returns whether numbers are divided by one each, or by powers of 2."""
    return not value.is_spread if value.known is None else _is_exact(value)


def _is_exact(value):
    """Returns whether a product with a value is exact: with powers of 2 and 0."""
    known = value.known
    return known is not None and bool(np.isin(abs(np.frexp(known)[0]), (0, 0.5)).all())


def _axes(aval):
    """Returns how many axes of an array are longer than 1."""
    return sum(1 for n in aval.shape if export.is_symbolic_dim(n) or n != 1)
