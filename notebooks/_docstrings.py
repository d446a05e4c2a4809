"""Docstrings as reStructuredText: they are plain text with sections, and stay so."""

import re
from collections.abc import Callable

Link = Callable[[str], str | None]  # from `words` to the full name of what they name

_SECTION = re.compile(r"([A-Z][A-Za-z]*(?: [a-z]+)?):")
_ITEM = re.compile(r"(\*{0,2}[\w., ]+?): +(\S.*)")
_CODE = re.compile(r"``(.+?)``|`([^`]+)`", re.DOTALL)
_ENUMERATOR = r"(?:\d+|[A-Za-z]|[ivxlcdmIVXLCDM]+)"
_MARKED = re.compile(rf"({_ENUMERATOR}[.)]|\({_ENUMERATOR}\)|[-+*#.:>])(?=[ :.>]|$)")
_LAST_OF_REFERENCE = re.compile(r"\d{4}[a-z]?\.$|\(\d{4}\)\.$|https?://\S+$")
_FIELDS = {"Args": "param", "Attributes": "param", "Raises": "raises"}


def to_rst(doc: str, link: Link) -> str:
    """Returns a docstring, without its indent, as reStructuredText.

    Args:
      doc: What `inspect.getdoc` returns.
      link: The public name that words in backticks are of, or None.
    """
    text, sections = split(doc)
    parts = [prose(text, link)]
    for title, body in sections:
        parts.append(_section(title, body, link))
    return "\n".join(part for part in parts if part)


def split(doc: str) -> tuple[str, list[tuple[str, str]]]:
    """Returns what comes before the sections, and each section's title and body."""
    text: list[str] = []
    sections: list[tuple[str, list[str]]] = []
    lines = doc.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if _SECTION.fullmatch(line) and after.startswith(" "):
            sections.append((line[:-1], []))
        elif sections and line and not line.startswith(" "):
            raise ValueError(f"expected an indent after a section, got {line!r}")
        else:
            (sections[-1][1] if sections else text).append(line)
    return "\n".join(text).strip(), [(t, _dedent(body)) for t, body in sections]


def first_line(doc: str) -> str:
    """Returns the first line of a docstring, which is a sentence."""
    return doc.strip().split("\n")[0]


def prose(text: str, link: Link) -> str:
    """Returns paragraphs, lists of lines that start with *, and examples."""
    return "\n".join(_block(lines, link) + "\n" for lines in _blocks(text))


def inline(text: str, link: Link) -> str:
    """Returns one paragraph: words in backticks are links or code, the rest text."""
    text = " ".join(text.split())
    parts, end = [], 0
    for found in _CODE.finditer(text):
        words = found[1] or found[2]
        before, after = text[end : found.start()], text[found.end() : found.end() + 1]
        parts.append(escape(before))
        if before[-1:].isalnum():
            parts.append("\\ ")
        target = link(words)
        parts.append(f":py:obj:`{words} <{target}>`" if target else f"``{words}``")
        if after.isalnum():
            parts.append("\\ ")
        end = found.end()
    result = "".join([*parts, escape(text[end:])])
    return "\\" + result if _MARKED.match(result) else result


def escape(text: str) -> str:
    """Returns text in which nothing is markup."""
    return re.sub(r"([\\*_`|])", r"\\\1", text).replace("::", ":\\:")


def indent(text: str, by: int = 3) -> str:
    """Returns text with every line moved to the right."""
    return "\n".join(" " * by + line if line else "" for line in text.splitlines())


def _dedent(lines: list[str]) -> str:
    depth = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
    return "\n".join(line[depth:] for line in lines).strip("\n")


def _blocks(text: str) -> list[list[str]]:
    """Returns the lines of each paragraph; a list after a line is one of its own."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip() or line.startswith("* "):  # an item is a block
            blocks.append([])
        if line.strip():
            blocks[-1].append(line)
    return [block for block in blocks if block]


def _block(lines: list[str], link: Link) -> str:
    if lines[0].lstrip().startswith(">>>"):
        return ".. code-block:: pycon\n\n" + indent(_dedent(lines))
    if lines[0].startswith("* "):
        return "* " + inline(" ".join([lines[0][2:], *lines[1:]]), link)
    if lines[0].startswith("  "):
        return "::\n\n" + indent(_dedent(lines))
    return inline(" ".join(lines), link)


def _section(title: str, body: str, link: Link) -> str:
    if title in ("Example", "Examples"):
        return f".. rubric:: {title}\n\n{prose(body, link)}"
    if title in _FIELDS:
        items = [_field(_FIELDS[title], *item, link) for item in _items(body)]
        return "\n".join(items)
    if title == "References":
        body = _list_of_references(body)
    if title == "See also" and "`" not in body:
        body = re.sub(r"[\w.]*\w", r"`\g<0>`", body)
    name = "returns" if title == "Returns" else title
    return f":{name}:\n{indent(prose(body, link))}\n"


def _items(body: str) -> list[tuple[str, str]]:
    """Returns names and texts of the items of a section, "" where there is no name."""
    items: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        found = _ITEM.fullmatch(line)
        if found and not line.startswith(" "):
            items.append((found[1], [found[2]]))
        elif items:
            items[-1][1].append(line)
        else:
            items.append(("", [line]))
    return [
        (name, "\n".join([text[0], _dedent(text[1:])]).strip()) for name, text in items
    ]


def _field(kind: str, name: str, text: str, link: Link) -> str:
    if not name:
        kind = kind.capitalize() if kind == "raises" else "Arguments"
        return f":{kind}:\n{indent(prose(text, link))}\n"
    return f":{kind} {escape(name)}:\n{indent(prose(text, link))}\n"


def _list_of_references(body: str) -> str:
    """Returns one item for each reference: each but the last ends with a year."""
    entries: list[list[str]] = [[]]
    for line in body.splitlines():
        entries[-1].append(line)
        if _LAST_OF_REFERENCE.search(line):
            entries.append([])
    entries = [entry for entry in entries if "".join(entry).strip()]
    if len(entries) == 1:
        return body
    return "\n".join("* " + "\n".join(entry).strip() for entry in entries)
