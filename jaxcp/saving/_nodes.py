"""Settings that are text in a file.

Values taken apart: text that describes them, and arrays by the names of fields.

Values rebuilt from text, arrays, and what fills their holes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxcp._tree import is_ours
from jaxcp.saving import _classes
from jaxcp.saving._classes import is_of_functions
from jaxcp.saving._files import fraction, once, plain, stored_type, typed

_PLAIN = type(None), bool, int, str
_DTYPE = re.compile(r"[<>=|]?\w+(\[\w+\])?", re.ASCII)  # without fields


def as_dtype(text: str) -> np.dtype:
    """Returns a type without fields by its name, which is not run."""
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"expected a type by its name, got {text!r:.40}")
    return np.dtype(text)


# What JSON has no word for: its name in files, to text and back.
_TEXTS: dict[type, tuple[str, Any, Any]] = {
    float: ("float", repr, float),  # those that are not finite
    complex: ("complex", str, complex),
    Fraction: ("fraction", str, fraction),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    date: ("date", date.isoformat, date.fromisoformat),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    np.dtype: ("dtype", str, as_dtype),
}
_READERS = {name: read for name, _, read in _TEXTS.values()}


def is_plain(value: Any) -> bool:
    """Returns whether JSON holds a value as it is."""
    finite = type(value) is float and math.isfinite(value)
    return finite or type(value) in _PLAIN


def to_text(value: Any) -> dict[str, str] | None:
    """Returns a setting as text with the name of its type, None for other values.

    Raises ValueError for one that could not be read again.
    """
    cls = np.dtype if isinstance(value, np.dtype) else type(value)
    if cls not in _TEXTS:
        return None
    name, write, _ = _TEXTS[cls]
    node = {"is": name, "text": write(value)}
    from_text(node)
    return node


def from_text(node: dict[str, str]) -> Any:
    """Returns the setting that a text stands for; ValueError for other texts."""
    kind, text = node["is"], node["text"]
    try:
        return _READERS[kind](text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected a {kind} as text, got {text!r:.40}") from error


def is_text(name: str) -> bool:
    """Returns whether values of this name are settings as text."""
    return name in _READERS


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
            return jax.random.wrap_key_data(jax.device_put(array), impl=node["key"])
        return _weak(array) if node.get("weak") else jax.device_put(array)

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
