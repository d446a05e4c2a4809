"""Links of pages: to where the site has what the repository has."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

_FENCE = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]+`)", re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)((?:\s+\"[^\"]*\")?)\)")
_HTML = re.compile(r"(<(?:img|source)\b[^>]*?\b(?:src|srcset)=\")([^\"]+)(\")")


class BrokenLinkError(ValueError):
    """A page leads to a file that is not there."""


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

    def link(found: re.Match) -> str:
        mark, label, target, about = found.groups()
        target = _target(target, page, pages, root, url)
        return f"{mark}[{label}]({target}{about})" if target else label

    def source(found: re.Match) -> str:
        target = _target(found[2], page, pages, root, url)
        return f"{found[1]}{target}{found[3]}"

    parts = _FENCE.split(text)
    # A link may have code for its label, so only blocks are left out.
    text = "".join(parts)
    blocks = re.split(r"(^ *```.*?^ *```)", text, flags=re.DOTALL | re.MULTILINE)
    for i in range(0, len(blocks), 2):
        blocks[i] = _HTML.sub(source, _LINK.sub(link, blocks[i]))
    return "".join(blocks)


def files(text: str, page: Path, root: Path) -> set[str]:
    """Returns the files of the repository that a page shows or leads to."""
    found = [match[3] for match in _LINK.finditer(text)]
    found += [match[2] for match in _HTML.finditer(text)]
    paths = [_path(link, page, root) for link in found if not _is_outside(link)]
    return {str(path) for path in paths if path and (root / path).is_file()}


def _is_outside(link: str) -> bool:
    return bool(re.match(r"[a-z]+:|#", link))


def _path(link: str, page: Path, root: Path) -> Path | None:
    """Returns the path from the root that a link leads to, None if beyond."""
    there = os.path.normpath(root / page.parent / unquote(link.partition("#")[0]))
    return Path(there).relative_to(root) if Path(there).is_relative_to(root) else None


def _target(link: str, page: Path, pages: dict[str, str], root: Path, url: str) -> str:
    if _is_outside(link):
        return link
    path = _path(link, page, root)
    if path is None or not (root / path).exists():
        raise BrokenLinkError(f"{page}: no file for the link {link}")
    heading = link.partition("#")[2]
    if str(path) in pages:
        here = pages[str(page)]
        there = os.path.relpath(pages[str(path)], os.path.dirname(here) or ".")
        return f"{there}#{heading}" if heading else there
    kind = "tree" if (root / path).is_dir() else "blob"
    return f"{url}/{kind}/main/{path}" if url else ""
