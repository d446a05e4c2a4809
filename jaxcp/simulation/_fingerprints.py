"""What distinguishes one function, and one simulation, from others, in any process."""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._batching import on_host
from jaxcp.checking.captured import LIBRARIES, SCALARS, Reader, is_library
from jaxcp.typing import PyTree

_SCRIPT = ("__main__", "__mp_main__")  # the second in workers of a process pool
_KIND_OF_FUNCTION = 0x3FF  # among the flags of code; a docstring has one beyond
_NOT_CODE = ("__doc__", "__firstlineno__", "__static_attributes__")  # of a class
_CODE = FunctionType | ModuleType | type | property | functools.partial
_CONSTANTS = (*SCALARS, np.ndarray, np.generic, jax.Array)
_WITH_DERIVATIVES = "custom_jvp_call", "custom_vjp_call"
_FORMAT = 3  # of chunks and settings
# They change bits of results, and what a trial is as a program does not show all.
_FLAGS = ("enable_x64", "threefry_partitionable", "default_matmul_precision")
_AROUND = "threefry_partitionable", "compute_type", "xla_metadata", "cur_abstract_mesh"
_MUCH_DATA = 2**20  # bytes of constants
_CURE = "leave it out of the trial, or simulate without a checkpoint"


def fingerprint(value: Any, cure: str, owner: Any = None) -> str:
    """Returns a text that distinguishes a function or an object from others.

    It is of the states by which programs are told apart, and of code in place of
    identities. Libraries count by name. Comments, docstrings, lines and files make no
    difference. `owner` is the function that a value is of, if not the value itself.
    """
    owner = value if owner is None else owner
    reader = _Lasting(owner)
    try:
        reader.read(value)
    except Exception as error:
        name = getattr(owner, "__qualname__", type(owner).__qualname__)
        raise ValueError(
            "expected code and captured values that can be told from others, got "
            f"{module_of(owner)}.{name} with a {type(reader.last).__name__}; {cure}"
        ) from error
    return hashlib.sha256(repr(reader.found).encode()).hexdigest()[:16]


def module_of(value: Any) -> str:
    """Returns the module of a function or class, or of an object's; a script's name."""
    name = getattr(value, "__module__", None) or type(value).__module__
    if name not in _SCRIPT:
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return spec.name
    return Path(getattr(main, "__file__", None) or name).stem


class _Lasting(Reader):
    """States that are the same in any process.

    Of what is outside of functions they leave out what code may change.

    Args:
      owner: Whose package counts, wherever it is installed.
    """

    made = frozenset[str]()

    def __init__(self, owner: Any) -> None:
        super().__init__()
        while isinstance(owner, functools.partial):
            owner = owner.func
        self.home = module_of(owner).partition(".")[0]
        self.last = owner  # what is being taken apart

    def is_library(self, module: str) -> bool:
        """Returns whether functions of a module count by name."""
        top = module.partition(".")[0]
        own = top in (self.home, *_SCRIPT) and top not in LIBRARIES
        return not own and is_library(module)

    def outside(self, *values: Any) -> None:
        """Notes functions, classes and constants."""
        for value in values:
            last = isinstance(value, _CODE) or _wraps(value) or _is_constant(value)
            self.all(value if last else "what may change")

    def code_of(self, fn: FunctionType, library: bool) -> None:
        """Notes the code of a function."""
        name = f"{fn.__globals__.get('__name__')}.{fn.__code__.co_qualname}"
        self.all(name if library else fn.__code__)

    def same(self, value: Any) -> None:
        """Notes the content of what counts by identity elsewhere, or its name."""
        if isinstance(value, CodeType):
            self.all(*_instructions(value))
        elif isinstance(value, jax.Array):
            numbers, kind = parts_of(value)
            self.all(jax.Array.__name__, str(kind), numbers)
        elif isinstance(value, ModuleType):
            self.all(value.__name__)
        else:
            self.all(f"{module_of(value)}.{value.__qualname__}")

    def inside(self, value: Any) -> None:
        """Notes what is inside of a value: of sets in an order of its own."""
        if isinstance(value, set | frozenset):
            self.all(*sorted(fingerprint(v, "", self.last) for v in value))
        else:
            super().inside(value)

    def object(self, value: Any) -> None:
        """Notes the parts from which pickle would rebuild an object."""
        self.last = value
        name = getattr(value, "__qualname__", "")
        self.all(f"{module_of(value)}.{name}")
        if name and self.is_library(module_of(value)) and _is_found(value, name):
            return
        if isinstance(value, PurePath | jax.tree_util.PyTreeDef):
            self.all(str(value))
        elif _wraps(value):
            public = {k: v for k, v in vars(value).items() if k[0] != "_"}
            self.all(value.__wrapped__, public)
        else:
            self.all(value.__reduce_ex__(4))


def _instructions(code: CodeType) -> Iterator[Any]:
    """Yields what code does; not where a class is, and its docstring."""
    yield code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    yield from (code.co_flags & _KIND_OF_FUNCTION, code.co_varnames)
    yield code.co_exceptiontable
    steps = list(dis.get_instructions(code))
    for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True):
        stores = after if step.opname.startswith("LOAD") else step
        if not (stores.opname == "STORE_NAME" and stores.argval in _NOT_CODE):
            told = step.opcode in dis.hasconst or isinstance(step.argval, str)
            yield from (step.opname, step.argval if told else step.arg)


def _is_found(value, name):
    """Returns whether a value is what a name stands for in its module."""
    found = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _wraps(value):
    """Returns whether a value is e.g. a jitted function or a static method."""
    return hasattr(value, "__wrapped__") and hasattr(value, "__dict__")


def _is_constant(value):
    """Returns whether nothing changes a value."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    parameters = getattr(value, "__dataclass_params__", None)
    frozen = parameters is not None and parameters.frozen
    return frozen or isinstance(value, _CONSTANTS)


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
    if is_library(type(statistic).__module__):
        return repr(statistic)
    about = fingerprint(statistic, "make it of plain values")
    return f"{type(statistic).__qualname__} {about}"


def digest_of(trial: Callable[[Array], PyTree], key: Array) -> str:
    """Returns a fingerprint of the program that a trial is, and of its constants."""
    # Of a function made here: jax remembers how those that it knows were before.
    program = jax.make_jaxpr(lambda key: checked(trial(key)))(key)
    # Addresses of functions differ from one process to the next.
    text = re.sub(r"0x[0-9a-f]+", "", str(program))
    return fingerprint([text, *_captured(program)], _CURE, trial)


def content_of(program: Any) -> tuple[Hashable, ...] | None:
    """Returns what distinguishes a program from others of this process.

    Arrays count by content, what jax compares by value does so here, and other objects
    and functions of libraries by identity. None if functions of the user are in it,
    such as callbacks, or arrays of NumPy, for these may change; or much data, which
    a program that is kept would hold.
    """
    constants = [*_constants(program)]
    if not all(isinstance(v, jax.Array) for v in constants):
        return None
    if sum(v.nbytes for v in constants) > _MUCH_DATA:
        return None
    text = re.sub(r"0x[0-9a-f]+", "", str(program))
    reader = Reader()
    for part in _parts(program):
        if hasattr(part, "__array__"):
            readable = isinstance(part.dtype, np.dtype) and on_host(part)
            reader.read(np.asarray(part)) if readable else reader.same(part)
        elif callable(part) and not _is_lasting(part):
            return None
        elif type(part).__eq__ is object.__eq__ or not isinstance(part, Hashable):
            reader.same(part)
        else:
            reader.found.append(part)
    flags = tuple(getattr(jax.config, f"jax_{name}", None) for name in _FLAGS)
    return hashlib.sha256(text.encode()).hexdigest(), flags, *reader.found


def _is_lasting(function: Any) -> bool:
    """Returns whether a function is of a library, and holds nothing of the user."""
    is_inner = "<locals>" in getattr(function, "__qualname__", "")
    return is_library(module_of(function)) and not is_inner


def _parts(program: Any) -> Iterator[Any]:
    """Yields constants of a program, and all that its operations are told."""
    yield from getattr(program, "consts", ())
    for equation in program.eqns:
        yield from (np.asarray(v.val) for v in equation.invars if hasattr(v, "val"))
        # What surrounded it, which no text shows; of another jax it is never the same.
        yield tuple(repr(getattr(equation.ctx, name, equation.ctx)) for name in _AROUND)
        differentiates = equation.primitive.name in _WITH_DERIVATIVES
        for part in jax.tree.leaves([*equation.params.values()], is_leaf=_is_program):
            if _is_program(part):
                yield from _parts(part)
            elif not differentiates:  # derivatives are taken before
                yield getattr(part, "callback_func", getattr(part, "rule", part))


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants of a program and of those inside of it."""
    yield from getattr(program, "consts", ())
    for equation in program.eqns:
        for part in _programs_in(equation):
            yield from _constants(part)


def _captured(program: Any) -> Iterator[Any]:
    """Yields the constants of a program, and functions that it calls on the host."""
    yield from getattr(program, "consts", ())
    for equation in program.eqns:
        yield from (np.asarray(v.val) for v in equation.invars if hasattr(v, "val"))
        callback = equation.params.get("callback")
        yield getattr(callback, "callback_func", callback)
        for part in _programs_in(equation):
            yield from _captured(part)


def _programs_in(equation: Any) -> Iterator[Any]:
    """Yields the programs that an operation runs, with their constants."""
    parts = jax.tree.leaves([*equation.params.values()], is_leaf=_is_program)
    return filter(_is_program, parts)


def _is_program(value):
    return hasattr(value, "eqns")


def parts_of(key: Array) -> tuple[np.ndarray, Any]:
    """Returns a key as numbers, which every process can pass, and its kind, if any."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return np.asarray(key), None
    return np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)


def checked(results: PyTree) -> PyTree:
    """Returns the results of a trial, if there are some."""
    if not jax.tree.leaves(results):
        raise ValueError(f"expected a trial that returns arrays, got {results!r}")
    return results
