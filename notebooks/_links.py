"""Links of pages: to where the site has what the repository has."""

import os
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

_BLOCK = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)
# Code and formulas that only look like a link, or a link: its label may have code or
# a picture.
_LINK = re.compile(
    r"(?P<code>`[^`\n]+`|\$[^\s$`](?:[^$`\n]*[^\s$`])?\$(?!\d))"
    r"|(?P<mark>!?)\[(?P<label>(?:[^\[\]]|!?\[[^\]]*\](?:\([^)]*\))?)*)\]"
    r"\((?P<target>[^)\s]+)(?P<about>(?:\s+\"[^\"]*\")?)\)"
)
_HEADING = re.compile(r"(^#.*$)", re.MULTILINE)
# A name, also where it is called: with its module, or none that is a plain word.
_NAME = re.compile(r"((?:[a-z_]+\.)+\w+|[a-z]+_\w+)(?:\([^<>|\\]*\))?")
_HTML = re.compile(r"(<(?:img|source)\b[^>]*?\b(?:src|srcset)=\")([^\"]+)(\")")


class BrokenLinkError(ValueError):
    """A page leads to a file that is not there."""


def repository(root: Path) -> str:
    """Returns the address of the repository in pyproject.toml, or ""."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    urls = {key.lower(): value for key, value in project.get("urls", {}).items()}
    found = [urls[key] for key in ("repository", "source", "homepage") if key in urls]
    return found[0].rstrip("/") if found else ""


def address(url: str, path: str, line: int = 0) -> str:
    """Returns where the repository at `url` shows a file or a line, "" if nowhere."""
    place = f"#L{line}" if line else ""
    return f"{url}/blob/main/{path}{place}" if url else ""


def rewrite(text: str, page: Path, pages: dict[str, str], root: Path, url: str) -> str:
    """Returns a page of the repository with the links that the site needs.

    Args:
      text: The page, in Markdown.
      page: Its path in the repository.
      pages: Where the site has files of the repository: both paths from the root.
      root: The repository.
      url: Where the repository is on the web, or "": files that the site does not have
        are then no links.

    Raises:
      BrokenLinkError: if a file is not there, with the names of page and link.
    """

    broken = []

    def target(link: str) -> str:
        if _is_broken(link, page, root):
            broken.append(f"{page}: no file for the link {link}")
            return link
        return _target(link, page, pages, root, url)

    def link(found: re.Match) -> str:
        if found["code"]:
            return found[0]
        label = _LINK.sub(link, found["label"])  # a picture may be one
        there = target(found["target"])
        about = found["about"]
        return f"{found['mark']}[{label}]({there}{about})" if there else label

    def source(found: re.Match) -> str:
        return f"{found[1]}{target(found[2])}{found[3]}"

    parts = _BLOCK.split(text)
    parts[::2] = [_HTML.sub(source, _LINK.sub(link, part)) for part in parts[::2]]
    if broken:
        raise BrokenLinkError("\n".join(broken))
    return "".join(parts)


def add_names(text: str, known: set[str]) -> str:
    """Returns a page whose public names in backticks lead to the pages of these.

    Args:
      text: The page, in Markdown. Headings, blocks and labels of links stay.
      known: The full names that have a page.
    """

    def name(found: re.Match) -> str:
        match = _NAME.fullmatch((found["code"] or "").strip("`"))
        full = "jaxcp." + match[1].removeprefix("jaxcp.") if match else ""
        code = found[0].strip("`")
        return f"{{py:obj}}`{code} <{full}>`" if full in known else found[0]

    parts = _BLOCK.split(text)
    for i in range(0, len(parts), 2):
        lines = _HEADING.split(parts[i])
        lines[::2] = [_LINK.sub(name, line) for line in lines[::2]]
        parts[i] = "".join(lines)
    return "".join(parts)


def files(text: str, page: Path, root: Path) -> set[str]:
    """Returns the files of the repository that a page shows or leads to."""
    links = []
    for part in _BLOCK.split(text)[::2]:
        links += _links(part) + [found[2] for found in _HTML.finditer(part)]
    paths = [_path(link, page, root) for link in links if not _is_outside(link)]
    return {str(path) for path in paths if path and (root / path).is_file()}


def sources(text: str, page: Path, root: Path) -> list[str]:
    """Returns the files of the pictures that a page shows in words of HTML."""
    return [str(_path(found[2], page, root)) for found in _HTML.finditer(text)]


def _links(text: str) -> list[str]:
    found = [match for match in _LINK.finditer(text) if not match["code"]]
    inner = [link for match in found for link in _links(match["label"])]
    return [match["target"] for match in found] + inner


def _is_outside(link: str) -> bool:
    return bool(re.match(r"[a-z]+:|#", link))


def _is_broken(link: str, page: Path, root: Path) -> bool:
    path = None if _is_outside(link) else _path(link, page, root)
    return not _is_outside(link) and (path is None or not (root / path).exists())


def _path(link: str, page: Path, root: Path) -> Path | None:
    """Returns the path from the root that a link leads to, or None if beyond."""
    there = os.path.normpath(root / page.parent / unquote(link.partition("#")[0]))
    return Path(there).relative_to(root) if Path(there).is_relative_to(root) else None


def _target(link: str, page: Path, pages: dict[str, str], root: Path, url: str) -> str:
    if _is_outside(link):
        return link
    path = _path(link, page, root)
    heading = link.partition("#")[2]
    if str(path) in pages:
        here = pages[str(page)]
        there = os.path.relpath(pages[str(path)], os.path.dirname(here) or ".")
        return f"{there}#{heading}" if heading else there
    file = address(url, str(path))
    return file.replace("/blob/", "/tree/", 1) if (root / path).is_dir() else file
