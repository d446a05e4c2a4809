"""Values taken apart and rebuilt: JSON that describes them, and arrays by names.

One table has the kinds of values: which these are, and how each is written and read.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from fractions import Fraction
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, keystr

from jaxcp import _tree
from jaxcp.saving import _classes

ABOUT = "jaxcp.json"  # the entry that is no array
_PLAIN = type(None), bool, int, str
_DTYPE = re.compile(r"[<>=|]?\w+(\[\w+\])?", re.ASCII)  # without fields
# Sums of 2^64 squares have at most 967 digits, and 647 below: 1e300 and 2^2148.
_FRACTION = re.compile("-?[0-9]{1,1000}(/[1-9][0-9]{0,999})?")
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
        if _is_plain(value):
            return value
        if id(value) not in self._known:  # with the value, whose id no other then has
            kind = next(kind for kind, known in KINDS.items() if known.has(value))
            node = {"is": kind} | KINDS[kind].write(self, value, name)
            self._known[id(value)] = value, node
        return self._known[id(value)][1]

    def nodes(self, values: Mapping[Any, Any], name: str) -> list[Node]:
        """Returns the values of several places."""
        return [self.node(v, f"{name}.{k}".lstrip(".")) for k, v in values.items()]

    def hole(self, name: str, what: str, is_function: bool) -> int:
        """Returns the number of a new hole."""
        self.holes.append({"name": name, "what": what, "is function": is_function})
        return len(self.holes) - 1


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

    def value(self, node: Node) -> Any:
        """Returns the value that JSON of a `Writer` stands for."""
        return node if _is_plain(node) else KINDS[node["is"]].read(self, node)

    def values(self, nodes: list[Node]) -> list[Any]:
        """Returns the values of several."""
        return [self.value(node) for node in nodes]


class Kind(NamedTuple):
    """A kind of values: which have it, how one is written, and how it is read."""

    has: Callable[[Any], bool]
    write: Callable[[Writer, Any, str], dict[str, Any]]
    read: Callable[[Reader, Any], Any]


def _is_plain(value):
    """Returns whether JSON holds a value as it is."""
    finite = type(value) is float and math.isfinite(value)
    return finite or type(value) in _PLAIN


def once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns pairs as a dict; ValueError for a name that comes twice."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected each name once, of {', '.join(map(str, found))}")
    return found


# Settings as text, which JSON has no word for.


def _text(name, cls, to_text, of_text):
    def write(writer, value, place):
        node = {"text": to_text(value)}
        read(None, node)  # or ValueError
        return node

    def read(reader, node):
        try:
            return of_text(node["text"])
        except (ValueError, TypeError) as error:
            text = node["text"]
            raise ValueError(f"expected a {name} as text, got {text!r:.40}") from error

    if cls is np.dtype:  # each type has a class of its own
        return Kind(lambda value: isinstance(value, cls), write, read)
    return Kind(lambda value: type(value) is cls, write, read)


def _as_dtype(text):
    """Returns a type without fields by its name, which is not run."""
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"expected a type by its name, got {text!r:.40}")
    return np.dtype(text)


def fraction(text: Any) -> Fraction:
    """Returns the number of one or two integers; of others, 1e9999999 takes minutes."""
    if not isinstance(text, str) or not _FRACTION.fullmatch(text):
        raise ValueError(f"expected a fraction of two integers, got {text!r:.40}")
    return Fraction(*map(int, text.split("/")))


# Arrays.


def _stored_type(dtype):
    """Returns the type that numpy files know; that of bits for bfloat16 etc."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def _write_array(writer, value, name):
    about: dict[str, Any] = {}
    if not isinstance(value, jax.Array):
        about["numpy"] = "scalar" if isinstance(value, np.generic) else "array"
    elif jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        about["key"] = str(jax.random.key_impl(value))
        value = jax.random.key_data(value)
    elif value.weak_type:
        about["weak"] = True
    is_numbers = type(value) is np.ndarray or not isinstance(value, np.ndarray)
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names or not is_numbers:
        kind = f"{type(value).__name__} of {array.dtype}"
        raise ValueError(f"expected arrays of numbers or text, got {kind} at {name}")
    entry = name or "value"
    fits = re.fullmatch(r"[\w.-]{1,200}", entry, re.ASCII)  # every system writes it
    if not fits or entry in writer.arrays or entry == ABOUT:
        entry = f"array {len(writer.arrays)}"
    writer.arrays[entry] = array.view(_stored_type(array.dtype))
    return about | {"type": str(array.dtype), "entry": entry}


def _read_array(reader, node):
    dtype, entry = _as_dtype(node["type"]), node["entry"]
    reader.used.add(entry)
    array = reader.arrays[entry]
    if array.dtype != _stored_type(dtype):
        raise LookupError(f"{entry} is of {array.dtype}, not {dtype}")
    array = array.view(dtype)
    if "numpy" in node:
        return array[()] if node["numpy"] == "scalar" else array
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f"expected double precision for {dtype}; set JAX_ENABLE_X64=1")
    if "key" in node:
        return jax.random.wrap_key_data(jax.device_put(array), impl=node["key"])
    if node.get("weak"):  # as Python numbers make
        zeros = jax.lax.full(array.shape, np.zeros((), array.dtype).item())
        if zeros.dtype == array.dtype:
            return zeros.at[...].set(array)
    return jax.device_put(array)


# Containers, and functions with arguments that are bound.


def _items(make):
    def write(writer, value, name):
        return {"items": writer.nodes(dict(enumerate(value)), name)}

    def read(reader, node):
        return make(reader.values(node["items"]))

    return Kind(lambda value: type(value) is make, write, read)


def _write_dict(writer, value, name):
    keys = [writer.node(key, name) for key in value]
    return {"keys": keys, "items": writer.nodes(value, name)}


def _read_dict(reader, node):
    keys, items = reader.values(node["keys"]), reader.values(node["items"])
    return once(zip(keys, items, strict=True))


def _write_partial(writer, value, name):
    return {
        "jax": type(value) is Partial,
        "function": writer.node(value.func, name),
        "arguments": writer.nodes(dict(enumerate(value.args)), name),
        "keywords": list(value.keywords),
        "values": writer.nodes(value.keywords, name),
    }


def _read_partial(reader, node):
    function = reader.value(node["function"])
    arguments, values = map(reader.values, (node["arguments"], node["values"]))
    if isinstance(function, functools.partial) and (arguments or values):
        raise ValueError(f"expected a function without bound arguments, got {function}")
    make = Partial if node["jax"] else functools.partial
    keywords = once(zip(node["keywords"], values, strict=True))
    return make(function, *arguments, **keywords)


# Values that are their fields.


def _is_of_fields(value):
    """Returns whether a value is its fields: not a structure of another library."""
    cls = type(value)
    own = _tree.is_ours(cls) or _classes.name_of(cls) is not None
    is_structure = not own and not jax.tree.leaves(value)
    is_value = _classes.is_value(cls) and not _is_of_functions(value)
    return is_value and not is_structure


def _is_of_library(value):
    return _is_of_fields(value) and _classes.name_of(type(value)) is not None


def _write_object(writer, value, name):
    cls, fields = type(value), _classes.fields_of(value)
    known = _classes.name_of(cls)
    if known is None and writer.types.setdefault(cls.__name__, cls) is not cls:
        raise ValueError(f"expected classes of other names, got two {cls.__name__}")
    about = {"class": known or cls.__name__, "fields": list(fields)}
    return about | {"items": writer.nodes(fields, name)}


def _read_object(reader, node):
    cls, items = reader.classes[node["is"]][node["class"]], reader.values(node["items"])
    return _classes.made(cls, once(zip(node["fields"], items, strict=True)))


# Functions by name, and public methods of values that a file can hold.


def _read_method(reader, node):
    owner, name = reader.value(node["of"]), node["name"]
    function = getattr(type(owner), name)
    if name.startswith("_") or type(function) is not FunctionType:
        raise KeyError(name)
    return MethodType(function, owner)


def _is_method(value):
    if type(value) is not MethodType or value.__name__.startswith("_"):
        return False
    cls, function = type(value.__self__), value.__func__
    is_own = getattr(cls, value.__name__, None) is function
    return is_own and type(function) is FunctionType and _classes.is_value(cls)


# Holes: other functions, and structures of other libraries.


def _is_of_functions(value):
    """Returns whether a value is a bundle of functions, e.g. an optax optimizer."""
    is_tuple = isinstance(value, tuple) and hasattr(value, "_fields")
    return is_tuple and len(value) > 0 and all(map(callable, value))


def _is_structure(value):
    return not jax.tree_util.all_leaves([value]) and not _is_of_functions(value)


def _write_like(writer, value, name):
    """Returns the leaves of a structure, to fill one like it."""
    places = jax.tree.leaves_with_path(value)
    kind = type(value).__name__
    what = f"another of class {kind}, whose arrays are replaced"
    about = {"hole": writer.hole(name, what, False), "class": kind}
    items = writer.nodes(dict(enumerate(leaf for _, leaf in places)), name)
    return about | {"items": items, "where": [keystr(place) for place, _ in places]}


def _read_like(reader, node):
    leaves, like = reader.values(node["items"]), reader.given[node["hole"]]
    places = jax.tree.leaves_with_path(like)
    found = _told([(keystr(place), leaf) for place, leaf in places])
    expected = _told(list(zip(node["where"], leaves, strict=True)))
    kind = type(like).__name__
    if (kind, found) != (node["class"], expected):
        raise ValueError(
            f"expected {node['class']} with arrays like those in {reader.path}, "
            f"{expected}, got {kind} with {found}"
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _told(places):
    kinds = [(getattr(v, "dtype", type(v).__name__), np.shape(v)) for _, v in places]
    pairs = zip(kinds, places, strict=True)
    return ", ".join(f"{k}{shape} at {at}" for (k, shape), (at, _) in pairs) or "none"


def _write_given(writer, value, name):
    """Returns the place of a function; raises ValueError for what is none."""
    if name and (callable(value) or _is_of_functions(value)):
        what = f"{type(value).__name__} {getattr(value, '__qualname__', '')}".strip()
        return {"hole": writer.hole(name, what, True)}
    kind = "function" if callable(value) else type(value).__name__
    raise ValueError(
        "expected a value that a file can hold, made of arrays, numbers, text and "
        f"functions, got {kind}{f' at {name}' if name else ''}; save a fitted model in "
        "its own way (joblib, torch.save), and here the rest, e.g. cp.calibration"
    )


_TEXTS = {
    "float": (float, repr, float),  # those that are not finite
    "complex": (complex, str, complex),
    "fraction": (Fraction, str, fraction),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "date": (date, date.isoformat, date.fromisoformat),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "dtype": (np.dtype, str, _as_dtype),
}
# The first that has a value writes it.
KINDS: dict[str, Kind] = {name: _text(name, *how) for name, how in _TEXTS.items()} | {
    "array": Kind(
        lambda v: isinstance(v, jax.Array | np.ndarray | np.generic),
        _write_array,
        _read_array,
    ),
    "list": _items(list),
    "tuple": _items(tuple),
    "dict": Kind(lambda v: type(v) is dict, _write_dict, _read_dict),
    "partial": Kind(
        lambda v: type(v) in (functools.partial, Partial), _write_partial, _read_partial
    ),
    "function": Kind(
        lambda v: _classes.name_of_function(v) is not None,
        lambda writer, v, name: {"name": _classes.name_of_function(v)},
        lambda reader, node: _classes.functions()[node["name"]],
    ),
    "value": Kind(_is_of_library, _write_object, _read_object),
    "yours": Kind(_is_of_fields, _write_object, _read_object),
    "method": Kind(
        _is_method,
        lambda w, v, name: {"of": w.node(v.__self__, name), "name": v.__name__},
        _read_method,
    ),
    "like": Kind(_is_structure, _write_like, _read_like),
    "given": Kind(
        lambda v: True, _write_given, lambda reader, node: reader.given[node["hole"]]
    ),
}


def filled(holes, given, path):
    """Returns what each hole is filled with, by its name or that of its field.

    Raises ValueError for holes that are left, names that fit none, or several.
    """
    names = [hole["name"] for hole in holes]
    places = {name: _places(name, names) for name in given}
    if sorted(places.values()) != [[i] for i in range(len(names))]:
        wanted = "; ".join(f"{hole['name']} ({hole['what']})" for hole in holes)
        raise ValueError(
            f"expected what {path} cannot hold, {wanted or 'nothing'}, got "
            f"{', '.join(given) or 'none'}; give it by name: jaxcp.load(path"
            f"{''.join(f', {_argument(name, names)}' for name in names)})"
        )
    values = [given[name] for name in sorted(given, key=places.__getitem__)]
    for hole, value in zip(holes, values, strict=True):
        is_function = callable(value) or _is_of_functions(value)
        if hole["is function"] and not is_function:
            raise ValueError(f"expected {hole['name']} as a function, got {value!r}")
    return values


def _places(name, names):
    """Returns the holes of this name, or else those of a field of this name."""
    whole = [i for i, known in enumerate(names) if known == name]
    return whole or [i for i, known in enumerate(names) if _field(known) == name]


def _field(name):
    """Returns the field of a place, which may be inside of a tuple: `losses.0`."""
    return re.sub(r"(\.\d+)+$", "", name).rpartition(".")[2]


def _argument(name, names):
    field = _field(name)
    unique = field.isidentifier() and _places(field, names) == [names.index(name)]
    return f"{field}=..." if unique else f'**{{"{name}": ...}}'
