"""Packages that load a module when one of its names is first asked for.

`import jaxcp` then takes what jax takes, and a program loads the methods that it uses.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

_one_at_a_time = threading.RLock()


class Place(NamedTuple):
    """Where a public name comes from: that of a module, and its name there."""

    module: str
    name: str


@contextmanager
def lazily(namespace: dict[str, Any]) -> Iterator[Callable[[str], Any]]:
    """Notes the imports of a package, and does each when its name is first used.

    They stay the only list of where names are: readers, type checkers and editors see
    imports. The namespace gets the `__getattr__` that this yields, which loads a name
    and sets it, so that it is an attribute from then on; and a `__dir__` of `__all__`.

    Args:
      namespace: `globals()` of the package.
    """
    package = namespace["__name__"]
    places: dict[str, Place] = {}

    def note(
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if globals is not namespace:  # in another thread
            return do_import(name, globals, locals, fromlist, level)
        return SimpleNamespace(**{public: Place(name, public) for public in fromlist})

    def __getattr__(name: str) -> Any:
        place = places.get(name, Place(package, name))
        if place.module == package:
            value = _submodule(package, place.name)
        else:
            value = getattr(import_module(place.module), place.name)
        namespace[name] = value
        return value

    # An import statement calls `__import__`, which a while notes what it would do.
    with _one_at_a_time:
        do_import = builtins.__import__
        builtins.__import__ = note  # type: ignore[assignment]
        try:
            yield __getattr__
        finally:
            builtins.__import__ = do_import
    places |= {k: v for k, v in namespace.items() if isinstance(v, Place)}
    for name in places:
        del namespace[name]
    namespace["__getattr__"] = __getattr__
    namespace["__dir__"] = lambda: list(namespace["__all__"])


def _submodule(package: str, name: str) -> Any:
    """Returns a module of a package; raises AttributeError where there is none."""
    module_name = f"{package}.{name}"
    if not name.startswith("__"):
        try:
            return import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name:  # it needs one that is not installed
                raise
    raise import_module("jaxcp.checking.elsewhere").absent(package, name)
