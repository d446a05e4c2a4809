"""Values taken apart: text that describes them, and arrays by the names of fields."""

from __future__ import annotations

import functools
import re
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp._files import plain
from jaxcp._tracing import is_ours
from jaxcp.saving import _classes
from jaxcp.saving._classes import is_of_functions
from jaxcp.saving._texts import is_plain, to_text

ABOUT = "jaxcp.json"  # the entry that is no array
Node = Any  # of JSON


class Writer:
    """Collects the arrays of a value, and what a file cannot hold: its holes.

    A hole is a function, or a structure of another library. Its name is its place; one
    object in several places is one hole. `types` are the user's classes.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.holes: list[dict[str, Any]] = []
        self.types: dict[str, type] = {}
        self._known: dict[int, tuple[Any, Node]] = {}

    def node(self, value: Any, name: str = "") -> Node:
        """Returns a value as JSON that names arrays and holes; `name` is where it is.

        Raises ValueError for what neither a file nor code can hold.
        """
        if is_plain(value):
            return value
        if id(value) not in self._known:  # with the value, whose id no other then has
            self._known[id(value)] = value, to_text(value) or self._node(value, name)
        return self._known[id(value)][1]

    def _node(self, value, name):
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value, name)
        if type(value) in (list, tuple):
            return {"is": type(value).__name__, "items": self._items(value, name)}
        if type(value) is dict:
            keys = [self.node(key, name) for key in value]
            return {"is": "dict", "keys": keys, "items": self._named(value, name)}
        if type(value) in (functools.partial, jax.tree_util.Partial):
            return self._partial(value, name)
        if (known := _classes.name_of_function(value)) is not None:
            return {"is": "function", "name": known}
        if is_of_functions(value):
            return self._given(value, name)
        if _is_of_fields(value):
            return self._object(value, name)
        if _is_method(value):
            owner = self.node(value.__self__, name)
            return {"is": "method", "of": owner, "name": value.__name__}
        if not jax.tree_util.all_leaves([value]):
            return self._like(value, name)
        return self._given(value, name)

    def _items(self, values, name):
        return self._named(dict(enumerate(values)), name)

    def _named(self, values, name):
        return [self.node(v, f"{name}.{k}".lstrip(".")) for k, v in values.items()]

    def _array(self, value, name):
        about: dict[str, Any] = {"is": "array"}
        if isinstance(value, jax.Array):
            _check_here(value, name)
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                about["key"] = str(jax.random.key_impl(value))
                value = jax.random.key_data(value)
            elif value.weak_type:
                about["weak"] = True
        else:
            about["numpy"] = "scalar" if isinstance(value, np.generic) else "array"
        is_numbers = type(value) is np.ndarray or not isinstance(value, np.ndarray)
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.names or not is_numbers:
            kind = f"{type(value).__name__} of {array.dtype}"
            raise ValueError(
                f"expected arrays of numbers or text, got {kind} at {name}"
            )
        entry = self._entry(name)
        self.arrays[entry] = plain(array)
        return about | {"type": str(array.dtype), "entry": entry}

    def _entry(self, name):
        """Returns a new name for an array, which every system can write."""
        name = name or "value"
        taken = name in self.arrays or name == ABOUT
        fits = re.fullmatch(r"[\w.-]{1,200}", name, re.ASCII) and not taken
        return name if fits else f"array {len(self.arrays)}"

    def _partial(self, value, name):
        return {
            "is": "partial",
            "jax": type(value) is not functools.partial,
            "function": self.node(value.func, name),
            "arguments": self._items(value.args, name),
            "keywords": list(value.keywords),
            "values": self._named(value.keywords, name),
        }

    def _object(self, value, name):
        cls, fields = type(value), _classes.fields_of(value)
        known = _classes.name_of(cls)
        if known is None and self.types.setdefault(cls.__name__, cls) is not cls:
            raise ValueError(
                f"expected classes of different names, got two named {cls.__name__} at "
                f"{name}"
            )
        return {
            "is": "yours" if known is None else "value",
            "class": known or cls.__name__,
            "fields": list(fields),
            "items": self._named(fields, name),
        }

    def _like(self, value, name):
        """Returns the leaves of a structure of another library, to fill one like it."""
        leaves, _ = jax.tree.flatten(value)
        paths = [path for path, _ in jax.tree.leaves_with_path(value)]
        kind = type(value).__name__
        what = f"another of class {kind}, whose arrays are replaced"
        hole = self._hole(name, what, is_function=False)
        items, where = self._items(leaves, name), list(map(jax.tree_util.keystr, paths))
        about = {"is": "like", "hole": hole, "class": kind}
        return about | {"items": items, "where": where}

    def _given(self, value, name):
        """Returns the place of a function; raises ValueError for what is none."""
        if not (callable(value) or is_of_functions(value)) or not name:
            raise ValueError(_refusal(value, name))
        about = type(value).__name__, getattr(value, "__qualname__", "")
        return {"is": "given", "hole": self._hole(name, " ".join(about).strip())}

    def _hole(self, name, what, is_function=True):
        self.holes.append({"name": name, "what": what, "is function": is_function})
        return len(self.holes) - 1


def _check_here(value, name):
    """Raises ValueError for an array without values, or with some elsewhere."""
    if isinstance(value, jax.core.Tracer):
        raise ValueError(f"expected values, got a traced array at {name or 'value'}")
    if not value.is_fully_addressable:
        raise ValueError(
            f"expected arrays of this process, got one of several at {name or 'value'}"
            "; jax.experimental.multihost_utils.process_allgather collects it"
        )


def _is_of_fields(value):
    """Returns whether a value is its fields: not a structure of another library."""
    cls = type(value)
    of_library = is_ours(cls) or _classes.name_of(cls) is not None
    is_structure = not of_library and not jax.tree.leaves(value)
    return _classes.is_value(cls) and not is_structure


def _is_method(value):
    """Returns whether a value is a public method of a value that a file can hold."""
    if type(value) is not MethodType or value.__name__.startswith("_"):
        return False
    cls, function = type(value.__self__), value.__func__
    is_own = getattr(cls, value.__name__, None) is function
    return is_own and type(function) is FunctionType and _classes.is_value(cls)


def _refusal(value, name):
    if isinstance(value, Enum):
        return (
            f"expected numbers or text, got {value!r} at {name or 'value'}; its "
            f"value, {value.value!r}, or its name can be saved"
        )
    if not name and callable(value):
        kind = "a function"
    else:
        kind = f"{type(value).__name__} at {name}" if name else type(value).__name__
    return (
        "expected a value that a file can hold, made of arrays, numbers, text and "
        f"functions, got {kind}; save a fitted model in its own way (joblib, "
        "torch.save), and here the rest without it, e.g. cp.calibration"
    )
