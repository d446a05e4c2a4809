"""Pytrees, and objects of the user inside of programs: classes, functions, errors.

Two classes under `jax.tree_util.register_dataclass` that have the same fields compare
equal in jax, whose caches may then run the program of the wrong one: the classes are
part of the key of every program that is kept. So is what functions of the user read.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, default_registry

from jaxcp.checking.captured import SCALARS, is_library, settle, states_of

# What a walk over a tree does at a value: go by, read what it has captured, stop, go
# on, or note its class too.
_LEAF, _READ, _OURS, _CONTAINER, _FOREIGN = range(5)
EXACT = (Fraction, Decimal)  # numbers that jax has no type for
_is_fork = False  # of a process in which jax had started
_kinds: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_own: dict[type, Callable[[Any], tuple]] = {}  # what is in values of the library
_plain: set[type] = {*SCALARS, np.ndarray}  # leaves, which need no look


class Untraceable(ValueError):
    """Raised where a function of the user needs values while jax traces it."""


def jit(function=None, *, static_argnames=()):
    """Returns `jax.jit` of a function of the user's objects.

    Programs are told apart by the classes of these, and by what their functions read.
    """
    if function is None:
        return functools.partial(jit, static_argnames=static_argnames)

    names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
    compiled = jax.jit(_with_key(function), static_argnames=(*names, "_key"))

    @functools.wraps(function)
    def call(*args, **kwargs):
        check_process()
        functions = functions_in(args, kwargs)
        key = classes_of(*args, *kwargs.values()), states_of(functions)
        with explained(
            "expected functions that jax can trace, of jax.numpy, got one that asks "
            "for values, as numpy, float() and if do; jax.pure_callback calls such a "
            "function, and predictions may come from any model"
        ):
            return compiled(*args, _key=key, **kwargs)

    return call


def check_process() -> None:
    """Raises RuntimeError in a process that was forked after jax had started.

    There jax waits for ever for threads that a fork leaves behind.
    """
    if _is_fork:
        raise RuntimeError(
            "expected a process that was not forked after jax had started, got a fork, "
            "in which jax hangs; start workers by 'spawn' or 'forkserver', as "
            "multiprocessing.get_context('spawn') does, or load and call in the worker "
            "alone"
        )


def _note_fork():
    global _is_fork
    backends = sys.modules.get("jax._src.xla_bridge")
    # jax has no public name for this; without it forks are not told apart.
    started = getattr(backends, "backends_are_initialized", None)
    _is_fork = _is_fork or (started is not None and started())


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_note_fork)


def _with_key(function):
    """Returns `function` with one more argument, by which its programs differ."""

    @functools.wraps(function)
    def program(*args, _key, **kwargs):
        result = function(*args, **kwargs)
        settle(functions_in(args, kwargs), _key[1])
        return result

    # Where jax looks for what static names are.
    own = inspect.signature(function)
    last = inspect.Parameter("_key", inspect.Parameter.KEYWORD_ONLY)
    program.__signature__ = own.replace(parameters=[*own.parameters.values(), last])  # type: ignore[attr-defined]
    return program


def functions_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns functions, classes of the user and other objects inside of arguments.

    All that is neither an array, which a program is given, nor compared by value.
    """
    found: list[Any] = []
    _look(args, found)
    _look([kwargs[name] for name in sorted(kwargs)], found)
    return found


def _look(values, found):
    for value in values:
        cls = type(value)
        if cls in _plain:
            continue
        if (inside := _own.get(cls)) is not None:
            _look(inside(value), found)
        elif cls in (list, tuple):
            if not _plain.issuperset(map(type, value)):
                _look(value, found)
        elif cls is dict:
            _look(default_registry.flatten_one_level(value)[0], found)
        elif (kind := _kind(cls)) == _READ:
            found.append(value)
        elif kind == _OURS:
            found.append(cls)
            _look([getattr(value, f.name) for f in dataclasses.fields(cls)], found)
        elif kind == _FOREIGN:
            inside, structure = default_registry.flatten_one_level(value) or ((), None)
            found += cls, structure
            _look(inside, found)
        elif kind == _CONTAINER:  # a function and what is bound to it
            _look((value.func, value.args, value.keywords), found)


@contextmanager
def explained(sentence: str) -> Iterator[None]:
    """Raises ValueError with `sentence` and the reason where jax cannot trace."""
    try:
        yield
    except Untraceable as error:  # the one around knows more of it
        raise Untraceable(sentence) from error.__cause__
    except Exception as error:
        if not _is_of_tracing(error):
            raise
        raise Untraceable(sentence) from error


def known_at_once() -> AbstractContextManager[None]:
    """Returns a context in which known values are computed while jax traces.

    Without it jax would compile a program for each operation on constants in functions
    under `jit`. Elsewhere it changes nothing.
    """
    is_traced = isinstance(jnp.zeros(()), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if is_traced else nullcontext()


def classes_of(*values: Any) -> tuple[type, ...]:
    """Returns the classes of pytree nodes in `values`, down to a `pytree` of ours.

    Its own structure holds the classes inside of it.
    """
    found: list[type] = []

    def is_ours_or_noted(value):
        kind = _kind(type(value))
        if kind == _FOREIGN:
            found.append(type(value))
        return kind == _OURS

    for value in values:
        cls = type(value)
        known = cls in _plain or cls in _own
        if not known and _kind(cls) in (_CONTAINER, _FOREIGN):
            jax.tree.flatten(value, is_leaf=is_ours_or_noted)
    return tuple(found)


def is_ours(cls: type) -> bool:
    """Returns whether `cls` is of the library, or of a user under its decorator."""
    return _kinds.get(cls) == _OURS


def _kind(cls):
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _kind_of_new(cls)
    return kind


def _kind_of_new(cls):
    if cls in (tuple, list, dict, Partial):
        return _CONTAINER
    if cls in _plain:
        return _LEAF
    if issubclass(cls, tuple) or default_registry.is_node(cls):
        return _FOREIGN
    is_number = issubclass(cls, int | float | complex) and is_library(cls.__module__)
    if is_number or issubclass(cls, jax.Array | jax.core.Tracer | np.generic):
        _plain.add(cls)  # they are few
        return _LEAF
    return _READ


def _is_of_tracing(error):
    """Returns whether an error is of jax, or of another library given a tracer."""
    if isinstance(error, jax.errors.KeyReuseError):
        return False
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return True
    names = "Tracer", "valid JAX type"
    return isinstance(error, TypeError) and any(n in str(error) for n in names)


_Class = TypeVar("_Class")
_FEW = 20  # numbers of an array that is shown in full


def static(**kwargs: Any) -> Any:
    """Returns a field of a `pytree` that is part of the structure, not a leaf.

    For functions, flags, names and sizes: a new value compiles anew.

    Args:
      **kwargs: Arguments of `dataclasses.field`, such as `default`.

    Returns:
      The field.

    Raises:
      TypeError: as `dataclasses.field`.

    Cost:
      A new value of the field compiles anew.

    See also:
      pytree

    Example:
      >>> @jaxcp.pytree
      ... class Power:
      ...     factor: float
      ...     exponent: int = jaxcp.static(default=2)
      >>> jax.tree.leaves(Power(3.0))
      [3.0]
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(static,))
def pytree(cls: type[_Class]) -> type[_Class]:
    """Returns `cls` as a frozen dataclass whose non-static fields are pytree leaves.

    The decorator for scores, learners, sets and online methods of your own: they then
    pass through jit, vmap, grad and scan, and never run the program of another class,
    however similar it is. Values compare and hash by identity.

    Args:
      cls: A class with annotated fields, as for `dataclasses.dataclass`.

    Returns:
      The class itself, with `__init__`, and a `__repr__` that names large arrays by
      type and shape.

    Raises:
      TypeError: as `dataclasses.dataclass`, for instance for a field without a default
        after one with a default.

    Cost:
      A new class compiles anew wherever it is used; new values of its leaves do not.

    See also:
      static, scores.Custom, online.Stream, Rule

    Example:
      >>> @jaxcp.pytree
      ... class Scaled:
      ...     factor: float
      ...     def __call__(self, pred, y):
      ...         return self.factor * jnp.abs(y - pred)
      ...     def invert(self, pred, q):
      ...         half = q / self.factor
      ...         return jaxcp.sets.Interval(pred - half, pred + half)
      >>> cp = jaxcp.calibrate(Scaled(2.0), jnp.zeros(9), jnp.arange(1.0, 10.0))
      >>> cp(jnp.zeros(1), alpha=0.2).upper
      Array([8.], dtype=float32)
    """
    _read_numbers_first(cls)
    cls = dataclasses.dataclass(frozen=True, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # a dataclass now
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))
    names = (*leaves, *statics)

    def flatten(value):
        children = tuple(getattr(value, name) for name in leaves)
        structure = tuple(getattr(value, name) for name in statics)
        return children, (structure, classes_of(*children))

    def flatten_with_keys(value):
        children, structure = flatten(value)
        keys = (jax.tree_util.GetAttrKey(name) for name in leaves)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure, children):
        # Past __init__: a transformation may put placeholders where arrays were.
        value = object.__new__(cls)
        for name, part in zip(names, (*children, *structure[0]), strict=True):
            object.__setattr__(value, name, part)
        return value

    if "__repr__" not in vars(cls):
        cls.__repr__ = _repr  # type: ignore[method-assign]
    # With keys, not `register_dataclass`: under that registration two classes with
    # the same fields compare equal, and jit may run the program of the wrong one.
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    _kinds[cls] = _OURS
    if is_library(cls.__module__):
        get = operator.attrgetter(*names) if names else lambda value: ()
        _own[cls] = get if len(names) != 1 else lambda value: (get(value),)
    return cls


def _read_numbers_first(cls: type) -> None:
    """Makes Fractions and Decimals in fields of arrays floats, before their checks."""
    check: Callable[..., None] | None = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any, *init_only: Any) -> None:
        for name, value in list(vars(self).items()):
            if type(value) in (*EXACT, tuple):
                metadata = self.__dataclass_fields__[name].metadata
                if not metadata.get("static"):
                    object.__setattr__(self, name, _with_floats(value))
        if check is not None:
            check(self, *init_only)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]


def _with_floats(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_with_floats, value))
    return float(value) if type(value) in EXACT else value


def _repr(value):
    """Returns the fields by name, large arrays by type and shape."""
    names = [field.name for field in dataclasses.fields(value)]
    fields = {name: _shown(getattr(value, name)) for name in names}
    if hasattr(value, "_described"):
        fields |= {name: repr(words) for name, words in value._described().items()}
    shown = ", ".join(f"{name}={text}" for name, text in fields.items())
    return f"{type(value).__name__}({shown})"


def _shown(value):
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_shown(v)}' for k, v in value.items())}}}"
    if type(value) in (list, tuple):
        start, end = "[]" if isinstance(value, list) else "()"
        end = "," + end if type(value) is tuple and len(value) == 1 else end
        return f"{start}{', '.join(map(_shown, value))}{end}"
    if isinstance(value, jax.Array | np.ndarray) and value.size > _FEW:
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if _kind(type(value)) == _FOREIGN and (leaves := jax.tree.leaves(value)):
        numbers = sum(map(np.size, leaves))
        if numbers > _FEW:  # as of a network, whose own repr prints them all
            kind = type(value).__name__
            return f"{kind}({len(leaves)} arrays of {numbers:,} numbers)"
    return repr(value)


def as_function(name: str, function: Callable) -> Partial:
    """Returns a function as a pytree: arrays bound by `partial` become leaves.

    If something else than arrays is bound, or an integer by itself, all is static.
    """
    if isinstance(function, Partial):
        return function
    if not callable(function):
        raise ValueError(f"expected {name} as a function, got {function!r}")
    if isinstance(function, functools.partial):
        bound = [*function.args, *function.keywords.values()]
        numeric = int, float, jax.Array, np.ndarray, np.generic
        arrays = all(isinstance(leaf, numeric) for leaf in jax.tree.leaves(bound))
        if arrays and not any(isinstance(v, int) for v in bound):  # an int is a size
            return Partial(function.func, *function.args, **function.keywords)
    return Partial(function)


def as_callable(name: str, function: Callable) -> Callable:
    """Returns a function as a pytree; a pytree that is called, as `risk.best_match`."""
    if not jax.tree_util.all_leaves([function]) and callable(function):
        return function
    return as_function(name, function)


def keep_functions(value: Any, *names: str) -> None:
    """Turns the fields with these names, of a new value, into pytrees or None."""
    for name in names:
        function = getattr(value, name)
        if function is not None:
            object.__setattr__(value, name, as_function(name, function))
