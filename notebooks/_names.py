"""Public names of the package, as `__all__` lists them, and how they are called."""

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jaxcp

MEMBERS = ("__call__",)  # that are shown though their names start with _


@dataclasses.dataclass(frozen=True)
class Name:
    """One public name.

    Args:
      family: The module that lists it, such as "jaxcp.scores".
      name: What it is called there.
      value: The class, function or type.
      file: Its page, below `api`, without a suffix.
    """

    family: str
    name: str
    value: Any
    file: str

    @property
    def full(self) -> str:
        """Where it is imported from."""
        return f"{self.family}.{self.name}"

    @property
    def is_own(self) -> bool:
        """Whether it is a class or function of the package, and not a type."""
        is_code = isinstance(self.value, type) or inspect.isfunction(self.value)
        return is_code and self.value.__module__.startswith("jaxcp")

    @property
    def doc(self) -> str:
        """Its docstring, or what its line in the source says of a type."""
        if self.is_own:
            return inspect.getdoc(self.value) or ""
        return _comment(self.family, self.name)


def families(module: ModuleType = jaxcp) -> dict[str, ModuleType]:
    """Returns the modules that have public names, the package first, by name."""
    found = {module.__name__: module}
    for name in [*_listed(module), *(["models"] if module is jaxcp else [])]:
        if inspect.ismodule(getattr(module, name)):
            found |= families(getattr(module, name))
    return found


def public() -> list[Name]:
    """Returns every public name, family by family, in alphabetical order."""
    names, files = [], set()
    for family, module in families().items():
        for name in sorted(_listed(module), key=lambda n: (n.lower(), n)):
            value = getattr(module, name)
            if inspect.ismodule(value):
                continue
            file = f"{family}.{name}"
            if file.lower() in files:  # some file systems do not tell case apart
                file += "_" + ("class" if isinstance(value, type) else "function")
            files.add(file.lower())
            names.append(Name(family, name, value, file))
    return names


def source(name: Name) -> tuple[str, int]:
    """Returns the file of the repository that defines a name, and the line."""
    root = Path(jaxcp.__file__).parents[1]
    if name.is_own:
        value = inspect.unwrap(name.value)
        path, line = inspect.getsourcefile(value), inspect.getsourcelines(value)[1]
        return str(Path(path).relative_to(root)), line
    for path in _sources(name.family):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            if text.startswith(f"{name.name} = "):
                return str(path.relative_to(root)), line
    raise ValueError(f"expected a line that defines {name.full}")


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class with a docstring."""
    seen = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("jaxcp"):
            continue
        for name, value in vars(base).items():
            kinds = property | classmethod | staticmethod | functools.cached_property
            is_member = inspect.isfunction(value) or isinstance(value, kinds)
            is_public = not name.startswith("_") or name in MEMBERS
            is_new = name not in seen and getattr(value, "__doc__", None)
            if is_member and is_public and is_new:
                seen.add(name)
                yield name, value


def signature(value: Any, is_method: bool = False) -> str:
    """Returns the arguments of a function or class as the source writes them."""
    if isinstance(value, type):
        return _class_signature(value)
    if isinstance(value, property | functools.cached_property):
        return ""
    if is_method and isinstance(value, staticmethod):
        is_method = False
    value = inspect.unwrap(getattr(value, "__func__", value))
    node = _parsed(value)
    if is_method:
        del (node.args.posonlyargs or node.args.args)[:1]  # self
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}".replace("=None", " = None")


def _class_signature(cls: type) -> str:
    if getattr(cls, "_is_protocol", False) or "Made by" in (cls.__doc__ or ""):
        return ""
    if dataclasses.is_dataclass(cls):
        return f"({', '.join(_arguments(cls))})"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return f"({', '.join(cls._fields)})"
    init = cls.__init__
    own = inspect.isfunction(init) and init.__module__.startswith("jaxcp")
    return signature(init, True).removesuffix(" -> None") if own else "()"


def _arguments(cls: type) -> Iterator[str]:
    types = _types(cls)
    starred = False
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        if field.kw_only and not starred:
            starred = True
            yield "*"
        text = f"{field.name}: {types.get(field.name, 'Any')}"
        if field.default is not dataclasses.MISSING:
            default = getattr(field.default, "__name__", None) or repr(field.default)
            text += f" = {default if ' at 0x' not in default else '...'}"
        elif field.default_factory is not dataclasses.MISSING:
            text += " = ..."
        yield text


def _types(cls: type) -> dict[str, str]:
    """Returns the types of the fields of a class as the source writes them."""
    types = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("jaxcp"):
            for node in _parsed(base).body:
                if isinstance(node, ast.AnnAssign) and isinstance(
                    node.target, ast.Name
                ):
                    types[node.target.id] = ast.unparse(node.annotation)
    return types


def _parsed(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _listed(module: ModuleType) -> list[str]:
    """Returns what a module lists in `__all__`, or else the names that are its own."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
    ]


def _comment(family: str, name: str) -> str:
    """Returns the value and the comment of the line that a type is assigned in."""
    for path in _sources(family):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} = "):
                value, _, comment = line.partition(" = ")[2].partition("  # ")
                return f"`{value}`: {comment}." if comment else f"`{value}`."
    return ""


def _sources(family: str) -> list[Path]:
    folder = Path(inspect.getfile(families()[family])).parent
    return sorted(folder.glob("*.py"))
