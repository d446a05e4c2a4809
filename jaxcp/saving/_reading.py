"""Values rebuilt from text, arrays, and what fills their holes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxcp._files import once, stored_type, typed
from jaxcp.saving import _classes
from jaxcp.saving._texts import as_dtype, from_text, is_plain, is_text


class Reader(NamedTuple):
    """The contents of a file, and what fills its holes.

    Args:
      path: The file, for messages.
      arrays: Arrays by the names of their entries.
      given: What each hole is filled with.
      classes: Classes by name, of this library and the user's.
      used: The entries that the value has used so far.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    given: Sequence[Any]
    classes: Mapping[str, Mapping[str, type]]
    used: set[str]

    def value(self, node: Any) -> Any:
        """Returns the value that JSON of a `Writer` stands for."""
        if is_plain(node):
            return node
        kind = node["is"]
        return from_text(node) if is_text(kind) else _KINDS[kind](self, node)

    def values(self, nodes: list[Any]) -> list[Any]:
        """Returns the values of several."""
        return [self.value(node) for node in nodes]

    def _array(self, node):
        dtype, entry = as_dtype(node["type"]), node["entry"]
        self.used.add(entry)
        if (found := self.arrays[entry].dtype) != stored_type(dtype):
            raise ValueError(f"expected {entry} in {self.path} as {dtype}, got {found}")
        array = typed(self.arrays[entry], dtype)
        if "numpy" in node:
            return array[()] if node["numpy"] == "scalar" else array
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(
                f"expected double precision as where {self.path} was saved, which has "
                f"{entry} of {dtype}; switch it on (JAX_ENABLE_X64=1)"
            )
        if "key" in node:
            return jax.random.wrap_key_data(jnp.asarray(array), impl=node["key"])
        return _weak(array) if node.get("weak") else jnp.asarray(array)

    def _dict(self, node):
        keys, items = self.values(node["keys"]), self.values(node["items"])
        return once(zip(keys, items, strict=True))

    def _partial(self, node):
        function = self.value(node["function"])
        arguments, values = self.values(node["arguments"]), self.values(node["values"])
        if isinstance(function, functools.partial) and (arguments or values):
            raise ValueError(
                "expected a function without the arguments that the file has bound to "
                f"it, got {function}"
            )
        make = Partial if node["jax"] else functools.partial
        keywords = once(zip(node["keywords"], values, strict=True))
        return make(function, *arguments, **keywords)

    def _object(self, node):
        cls = self.classes[node["is"]].get(node["class"])
        if cls is None:
            raise ValueError(
                f"expected classes of this version of jaxcp in {self.path}, got "
                f"{node['class']}; load it with the version that saved it"
            )
        items = self.values(node["items"])
        return _classes.made(cls, once(zip(node["fields"], items, strict=True)))

    def _function(self, node):
        function = _classes.functions().get(node["name"])
        if function is None:
            raise ValueError(
                f"expected functions of this version of jaxcp in {self.path}, got "
                f"{node['name']}; load it with the version that saved it"
            )
        return function

    def _method(self, node):
        owner, name = self.value(node["of"]), node["name"]
        function = getattr(type(owner), name)
        if name.startswith("_") or type(function) is not FunctionType:
            raise KeyError(name)
        return MethodType(function, owner)

    def _like(self, node):
        leaves, like = self.values(node["items"]), self.given[node["hole"]]
        places = jax.tree.leaves_with_path(like)
        where = [jax.tree_util.keystr(place) for place, _ in places]
        kinds, found = [_kind(v) for v in leaves], [_kind(v) for _, v in places]
        kind, expected = type(like).__name__, _listed(node["where"], kinds)
        if (kind, where, found) != (node["class"], node["where"], kinds):
            raise ValueError(
                f"expected {node['class']} with arrays like those in {self.path}, "
                f"{expected}, got {kind} with {_listed(where, found)}"
            )
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


_KINDS: dict[str, Callable[[Reader, Any], Any]] = {
    "array": Reader._array,
    "list": lambda reader, node: reader.values(node["items"]),
    "tuple": lambda reader, node: tuple(reader.values(node["items"])),
    "dict": Reader._dict,
    "partial": Reader._partial,
    "value": Reader._object,
    "yours": Reader._object,
    "function": Reader._function,
    "method": Reader._method,
    "given": lambda reader, node: reader.given[node["hole"]],
    "like": Reader._like,
}


def filled(
    holes: list[dict[str, Any]], given: Mapping[str, Any], path: Path
) -> list[Any]:
    """Returns what each hole is filled with, by its name or the end of it.

    Raises ValueError for holes that are left, names that fit none, or several.
    """
    names = [hole["name"] for hole in holes]
    places = {name: _places(name, names) for name in given}
    for name, found in places.items():
        if len(found) != 1:
            fit = f"several of {_told(names)}" if found else f"one of {_told(names)}"
            expected = "the whole name of" if found else "functions by name,"
            raise ValueError(f"expected {expected} {fit} in {path}, got {name}")
    owners = {found[0]: name for name, found in places.items()}
    left = [hole for i, hole in enumerate(holes) if i not in owners]
    if left:
        raise ValueError(_missing(left, given, path, names))
    values = [given[owners[i]] for i in range(len(holes))]
    for hole, value in zip(holes, values, strict=True):
        is_function = callable(value) or _classes.is_of_functions(value)
        if hole["is function"] and not is_function:
            raise ValueError(f"expected {hole['name']} as a function, got {value!r}")
    return values


def _places(name, names):
    """Returns the holes of this name, or else those whose name ends in it.

    A place in a tuple need not be told where it is the only one: `losses.0`.
    """
    whole = [i for i, known in enumerate(names) if known == name]
    ends = [i for i, known in enumerate(names) if f".{known}".endswith(f".{name}")]
    items = [
        i for i, known in enumerate(names) if f".{_field(known)}".endswith(f".{name}")
    ]
    return whole or ends or items


def _field(name):
    """Returns the name of a place without its index in a tuple."""
    return re.sub(r"(\.\d+)+$", "", name)


def _missing(holes, given, path, names):
    first = holes[0]["name"]
    ends = [_field(first).rpartition(".")[2], first]
    fits = [v for v in ends if v.isidentifier() and len(_places(v, names)) == 1]
    cure = f"{fits[0]}=..." if fits else f'**{{"{first}": ...}}'
    wanted = "; ".join(f"{hole['name']} ({hole['what']})" for hole in holes)
    return (
        f"expected what {path} cannot hold, {wanted}, got {_told(given)}; give it by "
        f"name: jaxcp.load(path, {cure})"
    )


def _told(names):
    return ", ".join(names) or "none"


def _listed(where, kinds):
    pairs = zip(where, kinds, strict=True)
    return _told([f"{kind} at {place}" for place, kind in pairs])


def _kind(leaf):
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{np.shape(leaf)}"


def _weak(array):
    """Returns a weakly typed array, as Python numbers make."""
    zeros = jax.lax.full(array.shape, np.zeros((), array.dtype).item())
    same = zeros.dtype == array.dtype
    return zeros.at[...].set(array) if same else jnp.asarray(array)
