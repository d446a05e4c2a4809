"""Frozen dataclasses that jit, vmap, grad and scan see through."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.tree_util import Partial

from jaxcp._tracing import classes_of, declare_ours

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
    declare_ours(cls, names)
    return cls


def _repr(value):
    """Returns the fields by name, large arrays by type and shape."""
    names = [field.name for field in dataclasses.fields(value)]
    fields = (f"{name}={_shown(getattr(value, name))}" for name in names)
    return f"{type(value).__name__}({', '.join(fields)})"


def _shown(value):
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k!r}: {_shown(v)}' for k, v in value.items())}}}"
    if type(value) in (list, tuple):
        start, end = "[]" if isinstance(value, list) else "()"
        end = "," + end if type(value) is tuple and len(value) == 1 else end
        return f"{start}{', '.join(map(_shown, value))}{end}"
    if hasattr(value, "dtype") and value.size > _FEW:
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
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
