"""What a built site is held to: links that lead somewhere, nothing from elsewhere."""

import functools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "srcset"}
_COLORS = re.compile(r"</?span(?: class=\"[^\"]*\")?>")  # of code: most of all tags
_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    """Ids, links and what is loaded, of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(_COLORS.sub("", text))

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        relation = values.get("rel", "")
        if tag == "link" and relation not in ("canonical", "author"):
            self.loads.append(values.get("href", ""))
        if LOADS.get(tag) in values:
            self.loads.append(values[LOADS[tag]].split(" ")[0])


def problems(folder: Path) -> list[str]:
    """Returns what is wrong with the pages of a built site, each with its page."""
    folder = folder.resolve()
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    found = [
        f"{path.relative_to(folder)}: loads {url}"
        for path in sorted(folder.rglob("*.css"))
        for url in _STYLES.findall(path.read_text())
    ]

    @functools.cache  # the sidebar of each page has the same links
    def is_there(url: str, home: Path) -> bool:
        return _is_there(url, home, pages, folder)

    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: loads {url}" for url in page.loads if _is_remote(url)]
        inside = [url for url in (*page.links, *page.loads) if not _is_remote(url)]
        found += [
            f"{name}: leads to {url}"
            for url in dict.fromkeys(inside)
            if not is_there(url, path if url.startswith("#") else path.parent)
        ]
    return found


def _is_remote(url: str) -> bool:
    return url.startswith(("http:", "https:", "//"))


def _is_there(url: str, home: Path, pages: dict[Path, _Page], root: Path) -> bool:
    """Returns whether a link leads somewhere, from a page or the pages of a folder."""
    if url.startswith(("mailto:", "data:", "javascript:")):
        return True
    file, anchor = urldefrag(unquote(url))
    file = file.partition("?")[0]
    there = (home / file).resolve() if file else home
    there = there / "index.html" if there.is_dir() else there
    if there not in pages:
        return there.exists() and there.is_relative_to(root)
    return not anchor or anchor in pages[there].ids
