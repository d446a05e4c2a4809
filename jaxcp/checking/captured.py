"""What functions of the user read of the world: a change there asks for a new trace.

jax keeps programs by the identity of a function, and traces it once. What it captures
then stays as it was: a global, a cell, an array, an attribute of an object. Programs of
functions of the user are kept by the state of these values too.
"""

from __future__ import annotations

import collections
import dis
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...))
LIBRARIES = ("jaxcp", "jax", "jaxlib", "numpy")  # whatever is asked for
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF")
_WRITES = ("STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_ARRAYS = np.ndarray, np.generic
_UNCHANGING = jax.Array, CodeType
_LISTS = list, tuple, set, frozenset, collections.deque, bytearray
_MADE = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
_BUILTIN = {list, tuple, dict, MethodType, functools.partial, type}
_DICTS = dict, types.MappingProxyType
# Whose objects count by identity; those of the rest hold what is the user's.
_SILENT = sys.stdlib_module_names - {"types", "functools", "collections"}
_MISSING = "nothing by this name"
_MANY = 256  # functions that change what they read, and are remembered
_settled: dict[Hashable, Hashable] = {}  # states that tracing left, and those before


def states_of(functions: Iterable[Any]) -> tuple[Hashable, ...]:
    """Returns what each function, class or object of the user reads now, to compare.

    Numbers, texts, containers and NumPy arrays count by content, at the cost of reading
    them, and so do objects, by their attributes. By identity count arrays of jax, which
    never change, functions and classes of libraries, and objects of the standard
    library: a logger holds what the whole process does.
    """
    return tuple(_settled.get(s, s) for s in map(_state_of, functions))


def settle(functions: Iterable[Any], states: tuple[Hashable, ...]) -> None:
    """Notes that functions may have changed what they read while they were traced.

    As those do that count their calls: the program is then that of the new state too.
    """
    for function, state in zip(functions, states, strict=True):
        now = _state_of(function)
        if now != state:
            _settled[now] = state
    if len(_settled) > _MANY:
        _settled.clear()


def _state_of(value):
    reader = Reader()
    reader.read(value)
    return tuple(reader.found)


@functools.lru_cache(maxsize=1024)
def is_library(module: str) -> bool:
    """Returns whether a module is jax, of the standard library, or was installed."""
    top = module.partition(".")[0]
    if top in LIBRARIES or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return bool({"site-packages", "dist-packages"} & set(Path(file).parts))


class _Same:
    """Equal to itself alone, and, where Python allows, no reason to keep the value."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Any) -> None:
        self.hash = id(value)
        try:
            self.value: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.value = lambda: value

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self.hash != other.hash:
            return False
        value = self.value()
        return value is not None and value is other.value()


@functools.lru_cache(maxsize=4096)
def _names_read(code):
    """Returns the names that code reads and does not set, with attributes of each."""
    read: dict[str, list[list[str]]] = {}
    written: set[str] = set()
    codes = [code]
    for inner in codes:
        path: list[str] | None = None  # of attributes that are loaded of a name
        for step in dis.get_instructions(inner):
            is_cell = step.opname in _CELLS and step.argval in code.co_freevars
            if path is not None and step.opname in _ATTRIBUTES:
                path.append(step.argval)
            elif is_cell or step.opname in _READS:
                path = []
                read.setdefault(step.argval, []).append(path)
            else:
                path = None
            own = step.opname == "STORE_DEREF" and step.argval in inner.co_cellvars
            if step.opname in _WRITES and not own:
                written.add(step.argval)
        codes += [c for c in inner.co_consts if isinstance(c, CodeType)]
    kept = sorted(read.keys() - written)
    return {n: frozenset(map(tuple, read[n])) for n in kept if n[:2] != "__"}


class Reader:
    """A walk over values that notes what they are now."""

    made = frozenset(_MADE)  # methods that classes are known without

    def __init__(self) -> None:
        self.found: list[Hashable] = []
        self._seen: dict[int, tuple[int, Any]] = {}  # cycles end, and ids last
        self._todo: list[Any] = []  # not by recursion: chains may be long

    def read(self, value: Any) -> None:
        """Notes a value, and what is inside of it."""
        self._todo.append(value)
        while self._todo:
            self._note(self._todo.pop())

    def _note(self, value):
        kind: Any = type(value)
        if kind in SCALARS:
            # -0.0 is another number than 0.0, and NaN no other than itself.
            self.found.append(kind)
            self.found.append(repr(value) if kind in (float, complex) else value)
        elif isinstance(value, _ARRAYS) and value.dtype != object:
            self.found += value.dtype, value.shape, _digest(value)
        elif isinstance(value, _UNCHANGING):
            self.same(value)
        elif id(value) in self._seen:
            self.found.append(self._seen[id(value)][0])
        else:
            self._seen[id(value)] = len(self._seen), value
            if kind is FunctionType:
                self._function(value)
            elif kind in _BUILTIN:
                self.found.append(kind)
                self.inside(value)
            else:
                self.same(kind)
                self.inside(value)

    def is_library(self, module: str) -> bool:
        """Returns whether functions of a module count by identity."""
        return is_library(module)

    def same(self, value: Any) -> None:
        """Notes a value that counts by identity."""
        self.found.append(_Same(value))

    def code_of(self, fn: FunctionType, library: bool) -> None:
        """Notes the code of a function."""
        self.same(fn.__code__)

    def outside(self, *values: Any) -> None:
        """Notes what functions name outside of themselves, and parts of classes."""
        self.all(*values)

    def inside(self, value: Any) -> None:
        """Notes what is inside of a value."""
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, ModuleType):
            self.same(value)
            own = {} if self.is_library(value.__name__) else vars(value)
            self.outside(*(part for name, part in own.items() if name[:2] != "__"))
        elif isinstance(value, _DICTS):
            pairs = [part for pair in value.items() for part in pair]
            self.all(len(pairs), *pairs, *_attributes(value))
        elif isinstance(value, _LISTS):
            self.all(len(value), *value, *_attributes(value))
        elif isinstance(value, np.ndarray):
            self.all(value.shape, value.tolist())
        elif isinstance(value, MethodType):
            self.all(value.__func__, value.__self__)
        elif isinstance(value, staticmethod | classmethod):
            self.all(value.__func__)
        elif isinstance(value, functools.partial):
            self.all(value.func, value.args, value.keywords)
        elif isinstance(value, property):
            self.all(value.fget, value.fset, value.fdel)
        else:
            self.object(value)

    def all(self, *parts: Any) -> None:
        """Notes several values."""
        self._todo += reversed(parts)

    def _function(self, fn):
        code, home = fn.__code__, fn.__globals__
        library = self.is_library(home.get("__name__", ""))
        self.code_of(fn, library)
        if library and "<locals>" not in code.co_qualname:
            return
        self.all(fn.__defaults__, fn.__kwdefaults__)
        self.outside(*_attributes(fn))
        cells = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
        for name, paths in _names_read(code).items():
            if name in cells:
                self._named((held(cells[name]) or [_MISSING])[0], paths, self.all)
            elif not library:
                self._named(home.get(name, _MISSING), paths, self.outside)

    def _named(self, value, paths, note):
        """Notes a value that has a name; of a module only what is read of it."""
        if not isinstance(value, ModuleType) or () in paths:
            note(value)
        elif not self.is_library(value.__name__):
            self.same(value)
            for path in sorted(paths):
                part = getattr(value, path[0], _MISSING)
                self._named(part, [path[1:]], self.outside)

    def _class(self, cls):
        self.same(cls)
        if self.is_library(cls.__module__):
            return
        for name, value in vars(cls).items():
            method = isinstance(value, FunctionType) and name not in self.made
            if name[:2] != "__" or method:
                self.outside(value)
        self.all(*cls.__bases__)

    def object(self, value: Any) -> None:
        """Notes an object of another kind."""
        self.same(value)
        inside = getattr(value, "__dict__", None) or {}
        home = type(value).__module__
        if "__wrapped__" in inside and is_library(home):  # a jitted function
            self.all(inside["__wrapped__"])
            return
        if home.partition(".")[0] in _SILENT:
            return
        self.all(inside, type(value))
        slotted = (vars(cls) for cls in type(value).__mro__ if "__slots__" in vars(cls))
        for name, member in (pair for members in slotted for pair in members.items()):
            if isinstance(member, MemberDescriptorType):
                self.all(getattr(value, name, _MISSING))


def _attributes(value):
    """Returns the attributes of a value that seldom has some, in a list."""
    found = getattr(value, "__dict__", None)
    return [found] if found else []


def held(cell: types.CellType) -> list[Any]:
    """Returns what a cell of a closure holds, if it does by now."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _digest(value: np.ndarray | np.generic) -> bytes:
    content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return hashlib.sha256(content.data).digest()
