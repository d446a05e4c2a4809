"""Fingerprints of functions and what they use: the same in any process.

What distinguishes one simulation from another, in any process.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxcp.checking.captured import LIBRARIES, SCALARS, held, is_library, names_read
from jaxcp.simulation._programs import checked, parts_of
from jaxcp.typing import PyTree

_ARRAYS = (np.ndarray, np.generic, jax.Array)
_SCRIPT = ("__main__", "__mp_main__")  # the second in workers of a process pool
_KIND_OF_FUNCTION = 0x3FF  # among the flags of code; a docstring has one beyond
_NOT_CODE = ("__doc__", "__firstlineno__", "__static_attributes__")  # of a class


def fingerprint(value: Any, cure: str) -> str:
    """Returns a text that distinguishes a function or an object from others.

    It depends on the code of functions, the values that they capture, and the
    functions, classes and constants that they name. Libraries count by name. Comments,
    docstrings, lines and files make no difference.
    """
    reader = _Reader(_package(value))
    try:
        whole = reader.digest(value)
        # The list grows while functions that are named name others.
        named = [f"{name} {reader.digest(found)}" for name, found in reader.named]
        return _hashed([whole, *sorted(named)])[:16]
    except Exception as error:
        name = getattr(value, "__qualname__", type(value).__qualname__)
        raise ValueError(
            "expected code and captured values that can be told from others, got "
            f"{module_of(value)}.{name} with a {type(reader.within[-1]).__name__}; "
            f"{cure}"
        ) from error


def module_of(value: Any) -> str:
    """Returns the module of a function or class, or of an object's; a script's name."""
    return _module_named(getattr(value, "__module__", None) or type(value).__module__)


def _module_named(name):
    if name not in _SCRIPT:
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return spec.name
    return Path(getattr(main, "__file__", None) or name).stem


def _hashed(parts):
    text = "\n".join(parts)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _package(value):
    """Returns the package that a function or an object is of."""
    while isinstance(value, functools.partial):
        value = value.func
    return module_of(value).partition(".")[0]


class _Reader:
    """Digests of values; a cycle ends where it comes back to one that is being read.

    Args:
      home: Package whose code counts, wherever it is installed.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self.within: list[Any] = []  # what is being read
        self.named: list[tuple[str, Any]] = []  # what code refers to by these names
        self._known: dict[int, tuple[Any, str]] = {}  # values, so that ids last

    def digest(self, value: Any) -> str:
        """Returns a digest of what a value is made of."""
        if id(value) in self._known:
            return self._known[id(value)][1]
        for steps, above in enumerate(reversed(self.within)):
            if above is value:
                return f"again {steps} above"
        self.within.append(value)
        found = _hashed(self._parts(value))
        self.within.pop()
        self._known[id(value)] = value, found
        return found

    def _parts(self, value: Any) -> Iterator[str]:
        """Yields texts and digests of all that a value is made of."""
        yield type(value).__name__
        if type(value) in SCALARS:
            yield repr(value)
        elif isinstance(value, ModuleType):
            yield value.__name__
        elif self._is_named(value):
            yield f"{value.__module__}.{value.__qualname__}"
        elif type(value) is np.ndarray or isinstance(value, np.generic | jax.Array):
            yield from self._array(value)
        elif isinstance(value, CodeType):
            yield from self._code(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, jax.tree_util.PyTreeDef):
            yield str(value)
        else:
            yield from map(self.digest, self._contents(value))

    def _contents(self, value):
        """Yields the parts of a container or an object, in an order of their own."""
        if type(value) in (list, tuple):
            yield from value
        elif type(value) in (set, frozenset):
            yield from sorted(map(self.digest, value))
        elif type(value) is dict:
            pairs = ((self.digest(k), self.digest(v)) for k, v in value.items())
            yield from sorted(map(" ".join, pairs))
        elif isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, property):
            yield from (value.fget, value.fset, value.fdel)
        elif _wraps(value):
            yield value.__wrapped__
            yield {k: v for k, v in vars(value).items() if k[0] != "_"}
        else:
            yield from _taken_apart(value)

    def _array(self, value):
        value, kind = parts_of(value)
        yield f"{kind} {value.dtype} {value.shape}"
        objects = value.dtype.kind == "O"
        content = value.tolist() if objects else value.tobytes()
        yield self.digest(content) if objects else hashlib.sha256(content).hexdigest()

    def _code(self, code):
        sizes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        yield f"{sizes} {code.co_flags & _KIND_OF_FUNCTION} {code.co_varnames}"
        yield code.co_exceptiontable.hex()
        for step in _steps(code):
            constant = step.opcode in dis.hasconst
            named = isinstance(step.argval, str) and not constant
            what = step.argval if named else step.arg
            yield f"{step.opname} {self.digest(step.argval) if constant else what}"

    def _function(self, fn):
        captured = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        yield self.digest({name: held(cell) for name, cell in captured})
        yield self.digest([fn.__defaults__, fn.__kwdefaults__])
        module = fn.__globals__.get("__name__", "")
        if self._is_library(module):  # it wraps what it has captured
            yield f"{module}.{fn.__code__.co_qualname}"
            return
        yield self.digest(fn.__code__)
        for name, value in _constants_named(fn).items():
            full = f"{_module_named(module)}.{name}"
            yield f"{name} {self._referred(full, value)}"

    def _referred(self, name, value):
        """Returns a digest, of functions and classes a name that is read later."""
        if not _is_code(value):
            return self.digest(value)
        if not any(known == name and found is value for known, found in self.named):
            self.named.append((name, value))
        return name

    def _class(self, cls):
        yield cls.__qualname__
        yield self.digest(cls.__bases__)
        own = vars(cls).items()
        constants = {k: v for k, v in own if k[:2] != "__" and _is_constant(v)}
        yield self.digest({k: v for k, v in own if k in constants or _is_code(v)})

    def _is_named(self, value):
        """Returns whether a value is one of a library that its name stands for."""
        module: Any = getattr(value, "__module__", None)
        name: Any = getattr(value, "__qualname__", None)
        named = isinstance(module, str) and isinstance(name, str)
        if not (named and self._is_library(module)):
            return False
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is value or isinstance(value, type)

    def _is_library(self, module):
        top = module.partition(".")[0]
        own = top in (self.home, *_SCRIPT) and top not in LIBRARIES
        return not own and is_library(module)


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    """Yields instructions; not those that store where a class is, and its docstring."""
    steps = list(dis.get_instructions(code))
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        stores = after if after and step.opname.startswith("LOAD") else step
        if not (stores.opname == "STORE_NAME" and stores.argval in _NOT_CODE):
            yield step


def _constants_named(fn):
    """Returns the functions, classes and constants of its module that a function names.

    Lists and dicts, which code may change, are not among them, nor what it sets itself,
    nor `__name__` and the like, which differ where a script is read again.
    """
    names = [k for k in names_read(fn.__code__) if k not in fn.__code__.co_freevars]
    values = {k: fn.__globals__.get(k) for k in names}
    return {k: v for k, v in values.items() if _is_code(v) or _is_constant(v)}


def _is_code(value):
    code = FunctionType | ModuleType | type | property | functools.partial
    return isinstance(value, code) or _wraps(value)


def _wraps(value):
    """Returns whether a value is e.g. a jitted function or a static method."""
    return hasattr(value, "__wrapped__") and hasattr(value, "__dict__")


def _is_constant(value):
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    parameters = getattr(value, "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    return isinstance(value, (*SCALARS, *_ARRAYS)) or frozen


def _taken_apart(value):
    """Returns the parts from which pickle would rebuild an object."""
    parts = value.__reduce_ex__(4)
    if isinstance(parts, str):
        return [parts]
    make, arguments, state, items, pairs = (*parts, None, None, None)[:5]
    return [make, arguments, state, list(items or ()), dict(pairs or ())]


_FORMAT = 2  # of chunks and settings
# They change bits of results, and what a trial is as a program does not show all.
_FLAGS = ("enable_x64", "threefry_partitionable", "default_matmul_precision")
_CURE = "leave it out of the trial, or simulate without a checkpoint"


def settings_of(
    digest: str, key: Array, leaves: dict, statistics: list
) -> dict[str, Any]:
    """Returns what distinguishes one simulation from another, as JSON."""
    key_data, kind = parts_of(key)
    return {
        "format": _FORMAT,
        "key": key_data.tolist(),
        "kind of key": "legacy" if kind is None else str(kind),
        "results": {k: f"{v.dtype}{list(v.shape)}" for k, v in leaves.items()},
        "statistics": [_name_of(s) for s in statistics],
        "flags": {name: getattr(jax.config, f"jax_{name}", None) for name in _FLAGS},
        "trial": digest,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def _name_of(statistic):
    """Returns the name of a statistic's class, and what distinguishes it further."""
    module = module_of(statistic)
    if module.partition(".")[0] == "jaxcp":
        return repr(statistic)
    about = fingerprint(statistic, "make it of plain values")
    return f"{module}.{type(statistic).__qualname__} {about}"


def digest_of(trial: Callable[[Array], PyTree], key: Array) -> str:
    """Returns a fingerprint of the program that a trial is, and of its constants."""
    # Of a function made here: jax remembers how those that it knows were before.
    program = jax.make_jaxpr(lambda key: checked(trial(key)))(key)
    # Addresses of functions differ from one process to the next.
    text = re.sub(r"0x[0-9a-f]+", "", str(program))
    digest = hashlib.sha256(text.encode())
    for constant in _constants(program):
        value = np.asarray(constant)
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    for callback in _callbacks(program):
        digest.update(fingerprint(callback, _CURE).encode())
    return digest.hexdigest()


def _programs_in(program: Any) -> Iterator[Any]:
    """Yields a program and those inside of it."""
    yield program
    if isinstance(program, _core().ClosedJaxpr):
        program = program.jaxpr
    for equation in program.eqns:
        values = list(equation.params.values())
        for value in jax.tree.leaves(values, is_leaf=_is_program):
            if _is_program(value):
                yield from _programs_in(value)


def _constants(program):
    """Yields the arrays that a program and those inside of it have closed over."""
    for part in _programs_in(program):
        constants = getattr(part, "consts", ())
        yield from (parts_of(constant)[0] for constant in constants)
        for equation in part.eqns:
            literals = (v for v in equation.invars if isinstance(v, _core().Literal))
            yield from (v.val for v in literals)


def _callbacks(program):
    """Yields the functions of Python that a program calls on the host."""
    for part in _programs_in(program):
        found = (equation.params.get("callback") for equation in part.eqns)
        yield from (getattr(c, "callback_func", c) for c in found if c is not None)


def _is_program(value):
    return isinstance(value, _core().ClosedJaxpr | _core().Jaxpr)


def _core():
    """Returns jax's module of programs, which takes long to import."""
    from jax.extend import core

    return core
