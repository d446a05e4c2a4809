"""Frozen dataclasses that jit, vmap, grad and scan see through."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.tree_util import Partial

_Class = TypeVar("_Class")
_FEW = 20  # numbers of an array that is shown in full


def static(**kwargs: Any) -> Any:
    """Returns a dataclass field that is part of the structure, not a leaf."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls: type[_Class]) -> type[_Class]:
    """Returns `cls` as a frozen dataclass whose non-static fields are pytree leaves."""
    cls = dataclasses.dataclass(frozen=True, repr=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # a dataclass now
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(value):
        return (
            tuple(getattr(value, name) for name in leaves),
            tuple(getattr(value, name) for name in statics),
        )

    def flatten_with_keys(value):
        children, structure = flatten(value)
        keys = (jax.tree_util.GetAttrKey(name) for name in leaves)
        return tuple(zip(keys, children, strict=True)), structure

    def unflatten(structure, children):
        # Past __init__: a transformation may put placeholders where arrays were.
        value = object.__new__(cls)
        for name, child in zip(leaves, children, strict=True):
            object.__setattr__(value, name, child)
        for name, child in zip(statics, structure, strict=True):
            object.__setattr__(value, name, child)
        return value

    if "__repr__" not in vars(cls):
        cls.__repr__ = _repr  # type: ignore[method-assign]
    # With keys, not `register_dataclass`: under that registration two classes with
    # the same fields compare equal, and jit may run the program of the wrong one.
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
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
        return f"{start}{', '.join(map(_shown, value))}{end}"
    if getattr(value, "size", 0) > _FEW:
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


def keep_functions(value: Any, *names: str) -> None:
    """Turns the fields with these names, of a new value, into pytrees or None."""
    for name in names:
        function = getattr(value, name)
        if function is not None:
            object.__setattr__(value, name, as_function(name, function))
