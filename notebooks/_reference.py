"""The pages of the reference: every public name, by task, from its docstring."""

import functools
import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path

from notebooks import _docstrings, _links, _names, _tasks
from notebooks._names import Name

FEW = 12  # names that one table holds without headings
TITLE = "API: public names"
PICTURES = {  # of a family
    "jaxcp.plotting": "/notebooks/guide/howto/pictures/pictures.svg"
}
ORDER = ("howto/", "guide/", "")  # of pages that use a name


class Links:
    """What words in backticks are the names of.

    Args:
      names: All public names.
    """

    def __init__(self, names: list[Name]):
        self.families = set(_names.families())
        self.all = {name.full for name in names} | self.families
        self.ends: dict[str, set[str]] = defaultdict(set)
        for name in names:
            if isinstance(name.value, type):
                found = _names.members(name.value)
                self.all |= {f"{name.full}.{member}" for member, _ in found}
        self.named = self.all - self.families
        for full in self.named:
            self.ends[full.rpartition(".")[2]].add(full)

    def find(self, words: str, home: str, own: set[str], *, sure: bool = False):
        """Returns the full name of `words` in a docstring of `home`, or None.

        Args:
          words: What stands in backticks.
          home: The full name that the docstring is of.
          own: Names of its arguments, which are not links.
          sure: Whether the words are known to be of a public name.
        """
        words = words.removesuffix("()")
        if not re.fullmatch(r"[A-Za-z_][\w.]*", words) or words in own:
            return None
        family = home.rpartition(".")[0]
        near = [f"{place}.{words}" for place in (home, family, "jaxcp")]
        for full in [words, *near]:
            plain = "." not in words and full in self.families
            if full in self.all and full != home and not plain:
                return full
        is_class = words[0].isupper() or "." in words or sure
        last = words.rpartition(".")[2]
        ends = [full for full in self.ends[last] if full.endswith(f".{words}")]
        return ends[0] if is_class and len(ends) == 1 and ends[0] != home else None


def write(folder: Path, texts: dict[str, str], url: str = "") -> None:
    """Writes a page for every family and every public name.

    Args:
      folder: Where the pages go, `api` of the site.
      texts: Pages and notebooks that may use a name: path on the site, and text.
      url: Where the repository is on the web, or "": there are no links to sources.
    """
    folder.mkdir(parents=True)
    names = _names.public()
    links = Links(names)
    used = users(names, texts)
    for name in names:
        beside = [other for other in names if other.family == name.family]
        page = _page(name, links, used[name.full], beside, _source(name, url))
        (folder / f"{name.file}.rst").write_text(page)
    for family, module in _names.families().items():
        own = [name for name in names if name.family == family]
        page = _family(family, inspect.getdoc(module) or "", own, links)
        (folder / f"{family}.rst").write_text(page)
    (folder / "index.rst").write_text(_index(names, links))


def users(names: list[Name], texts: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Returns the pages that use each name, as paths and titles."""
    titles = {path: title(text) for path, text in texts.items()}
    found = {}
    for name in names:
        short = name.full.removeprefix("jaxcp.")
        called = short if "." in short else f"jaxcp.{short}"
        pattern = re.compile(rf"(?<![\w.]){re.escape(called)}\b|jaxcp\.{short}\b")
        near = {path: text for path, text in texts.items() if called in text}
        paths = [path for path, text in near.items() if pattern.search(text)]
        found[name.full] = [(path, titles[path]) for path in paths]
    return found


def title(text: str) -> str:
    """Returns the heading of a page in Markdown."""
    found = re.search(r"^# +(.+)$", text, re.MULTILINE)
    return re.sub("[`<>]", "", found[1]).strip() if found else ""


def _heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def _page(name: Name, links: Links, used: list, beside: list[Name], source: str):
    """Returns the page of a name. Sidebars of hundreds of names would take minutes."""
    names = [_docstrings.escape(o.name) if o == name else _link(o) for o in beside]
    task = f":ref:`{_tasks.of(name)} <{_label(_tasks.of(name))}>`"
    above = f":doc:`API <index>` / :py:mod:`{name.family}` / {task}{source}"
    heading = _heading(_docstrings.escape(name.name))
    parts = [":orphan:\n", heading, _small(above), _entry(name, links)]
    if used:
        pages = " · ".join(f":doc:`{label} </{path}>`" for path, label in _sorted(used))
        count = f"{len(used)} page{'s' if len(used) > 1 else ''}"
        parts += [_folded(f"Used in {count}", pages)]
    parts += [_folded(f"{len(names)} names of {name.family}", ", ".join(names))]
    return "\n".join(parts)


def _sorted(used: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pages that use a name: how-tos, the rest of the guide, notebooks."""

    def rank(page: tuple[str, str]) -> int:
        return next(i for i, part in enumerate(ORDER) if part in page[0])

    return sorted(used, key=rank)


def _source(name: Name, url: str) -> str:
    """Returns a link to the line of the repository where a name is defined."""
    path, line = _names.source(name)
    address = _links.address(url, path, line)
    return f" / `source <{address}>`__" if address else ""


def _link(name: Name, label: str = "") -> str:
    return f":py:obj:`{label or name.name} <{name.full}>`"


def _small(text: str) -> str:
    return f".. rst-class:: used\n\n{text}\n"


def _folded(title: str, text: str) -> str:
    return f".. dropdown:: {title}\n\n{_docstrings.indent(text)}\n"


def _label(task: str) -> str:
    return "task-" + re.sub(r"\W+", "-", task.lower())


def _entry(name: Name, links: Links) -> str:
    if not name.is_own:
        text = _rst(name.doc, name.full, set(), links)
        return _directive("data", name.full, "", text)
    arguments = _names.signature(name.value)
    text = _rst(name.doc, name.full, _own(name.doc, arguments), links)
    if not isinstance(name.value, type):
        return _directive("function", name.full, arguments, text)
    for member, value in _names.members(name.value):
        text += "\n" + _member(name, member, value, links)
    kind = "exception" if issubclass(name.value, Exception) else "class"
    return _directive(kind, name.full, arguments, text)


def _member(name: Name, member: str, value, links: Links) -> str:
    doc = inspect.getdoc(value) or ""
    arguments = _names.signature(value, True)
    own = _own(doc, arguments) | _own(name.doc, "")
    text = _rst(doc, name.full, own, links)
    is_property = isinstance(value, property | functools.cached_property)
    kind = "property" if is_property else "method"
    return _directive(kind, f"{name.full}.{member}", arguments, text)


def _rst(doc: str, home: str, own: set[str], links: Links) -> str:
    try:
        text, see = doc, ""
        if "\nSee also:" in doc:
            text, _, see = doc.partition("\nSee also:")
            see, _, after = see.partition("\n\n")
            text += after
        rst = _docstrings.to_rst(text, lambda words: links.find(words, home, own))
        if see:
            find = functools.partial(links.find, home=home, own=set(), sure=True)
            rst += "\n" + _docstrings.to_rst("See also:" + see, find)
        return rst
    except ValueError as error:
        raise ValueError(f"{home}: {error}") from error


def _own(doc: str, arguments: str) -> set[str]:
    """Returns the names of arguments and fields, of which a docstring speaks."""
    return set(re.findall(r"(?:^|[(,]) *\*{0,2}(\w+) *:", arguments)) | set(
        re.findall(r"^ +\*{0,2}(\w+): ", doc, re.MULTILINE)
    )


def _directive(kind: str, full: str, arguments: str, text: str) -> str:
    return f".. py:{kind}:: {full}{arguments}\n\n{_docstrings.indent(text)}\n"


def _family(family: str, doc: str, names: list[Name], links: Links) -> str:
    inner = [f for f in _names.families() if f.rpartition(".")[0] == family]
    inner = inner if family != "jaxcp" else []
    entries = [f"   {module.rpartition('.')[2]} <{module}>" for module in inner]
    parts = [
        _heading(family),
        f".. py:module:: {family}\n",
        _rst(doc, family + ".", set(), links),
        *([f".. image:: {PICTURES[family]}\n"] if family in PICTURES else []),
        *_tables(family, names, links),
        *[f"See also :py:mod:`{module}`.\n" for module in inner],
    ]
    if entries:
        parts += [".. toctree::\n   :hidden:\n\n" + "\n".join(entries) + "\n"]
    return "\n".join(parts)


def _tables(family: str, names: list[Name], links: Links):
    """Yields a table of the names, or one with a heading for each part."""
    groups: dict[str, list[Name]] = defaultdict(list)
    for name in names:
        groups[_part(family, name) if len(names) > FEW else ""].append(name)
    if 2 * len(groups) > len(names):  # a heading for nearly each
        groups = {"": names}
    order = list(_tasks.TASKS) if family == "jaxcp" else list(groups)
    for heading in sorted(groups, key=order.index):
        if heading:
            yield _heading(_docstrings.escape(heading), "-")
        yield _table(groups[heading], links)


def _part(family: str, name: Name) -> str:
    module = getattr(name.value, "__module__", "")
    if family == "jaxcp":
        return _tasks.of(name)
    if not module.startswith(family):
        return "Types"
    line = _docstrings.first_line(sys.modules[module].__doc__ or "").rstrip(".")
    return re.split(":|, from ", line)[0]


def _table(names: list[Name], links: Links, *, full: bool = False) -> str:
    """Returns the first sentences of names, which may stand with their modules."""
    rows = []
    for name in names:
        line = _docstrings.first_line(_docstrings.split(name.doc)[0])
        label = name.full.removeprefix("jaxcp.") if full else ""
        rows.append((_link(name, label), _rst(line, name.full, set(), links).strip()))
    return _list_table(rows)


def _list_table(rows: list[tuple[str, str]]) -> str:
    head = ".. list-table::\n   :class: names\n   :widths: 36 64\n\n"
    return head + "\n".join(f"   * - {a}\n     - {b}" for a, b in rows) + "\n"


def _index(names: list[Name], links: Links) -> str:
    """Returns the page of all names: by task, and the modules below."""
    groups: dict[str, list[Name]] = {task: [] for task in _tasks.TASKS}
    for name in names:
        groups[_tasks.of(name)].append(name)
    tasks = [
        (f":ref:`{task} <{_label(task)}>`", line)
        for task, (line, _) in _tasks.TASKS.items()
    ]
    text = f"Every public name, {len(names)} in all, by what it is for.\n"
    parts = [_heading(TITLE), text, _list_table(tasks)]
    for task, group in groups.items():
        heading = _heading(task, "-")
        line = _tasks.TASKS[task][0]
        parts += [f".. _{_label(task)}:\n", heading, f"{line}\n"]
        parts.append(_table(group, links, full=True))
    return "\n".join([*parts, _heading("By module", "-"), _modules()])


def _modules() -> str:
    rows = [
        (
            f":py:mod:`{family}`",
            _docstrings.escape(_docstrings.first_line(module.__doc__ or "")),
        )
        for family, module in _names.families().items()
    ]
    shown = [f"   {family}" for family in _names.families() if family.count(".") < 2]
    tree = ".. toctree::\n   :hidden:\n\n" + "\n".join(shown) + "\n"
    return "\n".join([_list_table(rows), tree])
