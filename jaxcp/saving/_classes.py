"""Classes of values: their names in files, and their fields; functions by name."""

from __future__ import annotations

import dataclasses
import functools
import sys
from importlib import import_module
from pkgutil import iter_modules
from types import FunctionType
from typing import Any


def name_of(cls: type) -> str | None:
    """Returns the name of a class of this library; None for one of the user.

    It names the family, not the module: `jaxcp.scores.CQR`.
    """
    parts = cls.__module__.split(".")
    home = vars(sys.modules.get(cls.__module__, object))
    if parts[0] != "jaxcp" or home.get(cls.__name__) is not cls:
        return None
    library = sys.modules["jaxcp"]
    is_listed = cls.__name__ in library.__all__
    is_private = parts[1].startswith("_")
    if is_private or (is_listed and getattr(library, cls.__name__) is cls):
        return f"jaxcp.{cls.__name__}"
    return f"jaxcp.{parts[1]}.{cls.__name__}"


def named(text: str) -> dict[str, type]:
    """Returns the classes of values of this library by their names.

    All of the families that a text names, whose modules are loaded, and more.
    """
    library = sys.modules["jaxcp"]
    for name in library.__all__:
        if f'"jaxcp.{name}"' in text:
            getattr(library, name)
    for family in _modules_in("jaxcp"):
        if family.startswith("jaxcp._") or f"{family}." in text:
            for module in _modules_in(family):
                import_module(module)
    modules = [m for k, m in list(sys.modules.items()) if k.split(".")[0] == "jaxcp"]
    values = [v for module in modules for v in vars(module).values()]
    classes = {v for v in values if isinstance(v, type) and is_value(v)}
    return {name: cls for cls in classes if (name := name_of(cls))}


@functools.cache
def _modules_in(name: str) -> list[str]:
    """Returns the names of the modules in a package; none of another module."""
    folder = getattr(import_module(name), "__path__", [])
    return [module.name for module in iter_modules(folder, f"{name}.")]


def name_of_function(value: Any) -> str | None:
    """Returns the name of a function that files name, None of others."""
    if type(value) is not FunctionType or "jaxcp.risk." not in str(value.__module__):
        return None  # most values, for which no risk is loaded
    return next((k for k, found in functions().items() if found is value), None)


def functions() -> dict[str, FunctionType]:
    """Returns the public functions of `jaxcp.risk` by their names.

    They are pure, and write and read nothing.
    """
    risk = import_module("jaxcp.risk")
    public = {f"jaxcp.risk.{name}": getattr(risk, name) for name in risk.__all__}
    return {k: v for k, v in public.items() if type(v) is FunctionType}


def is_value(cls: type) -> bool:
    """Returns whether values of a class are their fields, and nothing else."""
    if _is_container(cls):
        return name_of(cls) is not None
    if issubclass(cls, tuple):
        return hasattr(cls, "_fields")
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a value by their names."""
    if _is_container(type(value)):
        return dict(value if isinstance(value, dict) else enumerate(value))
    return {name: getattr(value, name) for name in _names(type(value))}


def made(cls: type, fields: dict[str, Any]) -> Any:
    """Returns the value of a class with these fields, or their defaults; runs no code.

    Raises LookupError for fields that the class does not have, or that are missing.
    """
    if _is_container(cls):
        is_dict = issubclass(cls, dict)
        return cls(fields) if is_dict else tuple.__new__(cls, fields.values())
    complete = _defaults(cls) | fields
    if set(complete) != set(_names(cls)):
        raise LookupError(f"{cls.__name__} of other fields, {', '.join(fields)}")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [complete[name] for name in _names(cls)])
    # Without __init__, which may expect arguments, not the fields made of them.
    value = object.__new__(cls)
    for name in _names(cls):
        object.__setattr__(value, name, complete[name])
    return value


def _is_container(cls):
    """Returns whether a class is a dict or tuple with methods of its own."""
    return issubclass(cls, dict | tuple) and not hasattr(cls, "_fields")


def _names(cls):
    if issubclass(cls, tuple):
        return cls._fields
    return [field.name for field in dataclasses.fields(cls)]


def _defaults(cls):
    """Returns the defaults of fields that older files do not have."""
    if issubclass(cls, tuple):
        return dict(cls._field_defaults)
    fields = dataclasses.fields(cls)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
