"""Builds the site of the documentation: `python -m notebooks.site --out site`.

Its pages are a front page, the guide, the executed notebooks, the results, and the
reference, which is written from the docstrings of all public names. Nothing is executed
and nothing is loaded from the network. A warning of Sphinx, a link that leads nowhere
and a page that loads anything from elsewhere are errors, with the name of the page.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import jaxcp
from notebooks import _built, _gallery, _heads, _links, _names, _reference

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/RESULTS.md"
LEDGERS = "experiments/*/*.md"  # behind the results: tables, and all bars
HOME = "index.md"  # where the site has the front page, which stands for README.md
ICON = "notebooks/favicon.svg"
STATIC = ("site.css", "search.js")
_ORPHAN = "---\norphan: true\n---\n\n"  # a page that no sidebar lists
GUIDE = "notebooks/guide/"
LIST = ".files"  # of a built site
Cells = dict[str, list[tuple[str, str]]]  # kind and text of each, by the page's path


class SiteError(RuntimeError):
    """The site cannot be built as it should be."""


def pages(root: Path = ROOT) -> dict[str, str]:
    """Returns the pages: their paths in the repository, and on the site."""
    guide = sorted((root / GUIDE).rglob("*.md"))
    stories = sorted((root / "notebooks").glob("[0-9]*.ipynb"))
    paths = [str(path.relative_to(root)) for path in (*guide, *stories)]
    ledgers = sorted(str(path.relative_to(root)) for path in root.glob(LEDGERS))
    results = [RESULTS, *ledgers] if (root / RESULTS).exists() else []
    return {_heads.LANDING: HOME} | {path: path for path in (*paths, *results)}


def assemble(folder: Path, root: Path = ROOT) -> None:
    """Writes the sources of the site, in the layout of the repository.

    Args:
      folder: An empty folder.
      root: The repository.

    Raises:
      ValueError: if a page leads to a file that is not there, or a notebook has no
        picture, with the name of the page.
    """
    found = pages(root)
    cells = {path: _cells(root / path) for path in found}
    kept = found | {name: name for name in _shown(cells, root)}
    _write_pages(folder, cells, kept | {"README.md": HOME}, root)
    for path in kept.keys() - found.keys():
        _copy(root / path, folder / path)
    for path in _as_they_are(cells, root):
        _copy(root / path, folder / "extra" / path)
    stories = [root / path for path in found if _is_notebook(path)]
    _gallery.write(folder / "notebooks", {path: _read(path) for path in stories})
    _reference.write(folder / "api", _users(cells), _links.repository(root))
    _add_contents(folder, found)
    for name in STATIC:
        _copy(Path(__file__).with_name(name), folder / "_static" / name)
    _copy(Path(__file__).with_name("_conf.py"), folder / "conf.py")


def build(out: Path, root: Path = ROOT) -> None:
    """Builds the site.

    Args:
      out: The folder of the built pages: a new or an empty one, or one of a site that
        was built before, of which only the files of that site are replaced.
      root: The repository.

    Raises:
      ValueError: as `assemble`.
      SiteError: if `out` holds other files, Sphinx warns, or the built pages have links
        that lead nowhere or load anything from elsewhere.
    """
    _check_folder(out)
    with tempfile.TemporaryDirectory() as folder:
        sources, made = Path(folder, "sources"), Path(folder, "html")
        assemble(sources, root)
        _run_sphinx(sources, made, _settings(sources, root))
        wrong = _built.problems(made)
        if wrong:
            raise SiteError("\n".join(["the site has faults:", *wrong]))
        _replace(made, out)


def sections(index: str) -> dict[str, list[str]]:
    """Returns the pages that the index of the guide lists under each heading."""
    first, *rest = re.split(r"^## +", index, flags=re.MULTILINE)
    parts = [part.partition("\n")[::2] for part in rest]
    listed: dict[str, list[str]] = {}
    seen = set()
    for heading, text in [*parts, ("More", first)]:  # an introduction may name pages
        for name in re.findall(r"\]\(([\w/]+)\.md[)#]", text):
            if name not in seen:
                seen.add(name)
                listed.setdefault(heading.strip(), []).append(name)
    return listed


def _settings(sources: Path, root: Path) -> dict[str, str]:
    """Returns what differs between repositories, and between places of the site."""
    icon = sources / "extra" / ICON
    return {
        "version": jaxcp.__version__,
        "release": jaxcp.__version__,
        "html_title": f"jaxcp {jaxcp.__version__}",
        "html_baseurl": os.environ.get("READTHEDOCS_CANONICAL_URL", ""),
        "repository": _links.repository(root),
        "has_card": "yes" if (sources / "extra" / _heads.CARD).exists() else "",
        **({"html_favicon": str(icon.relative_to(sources))} if icon.exists() else {}),
    }


def _run_sphinx(sources: Path, made: Path, settings: dict[str, str]) -> None:
    """Runs in a process of its own, so that pages can be written by several."""
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    words += [f"-j{min(os.cpu_count() or 1, 4)}", "-d", str(made.parent / "doctrees")]
    words += [f"-D{key}={value}" for key, value in settings.items()]
    words += [str(sources), str(made)]
    run = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    if run.returncode:
        raise SiteError(f"{run.stdout}{run.stderr}".replace(f"{sources}/", ""))


def _check_folder(out: Path) -> None:
    """Raises SiteError for a folder with files that are not of a site."""
    if out.exists() and not (out.is_dir() and (_list(out) or not any(out.iterdir()))):
        raise SiteError(
            "expected out as a new or an empty folder, or that of a site built before, "
            f"got {out} with other files; name another one with --out"
        )


def _list(out: Path) -> list[str]:
    """Returns the files that the last build wrote, from its list among them."""
    listed = out / LIST
    return listed.read_text().splitlines() if listed.exists() else []


def _replace(made: Path, out: Path) -> None:
    """Copies the built pages; those of the last build go, and no other file."""
    (made / ".buildinfo").unlink(missing_ok=True)
    files = sorted(str(p.relative_to(made)) for p in made.rglob("*") if p.is_file())
    for name in set(_list(out)) - {LIST, *files}:
        (out / name).unlink(missing_ok=True)
    (made / LIST).write_text("\n".join([LIST, *files]))
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / LIST, out)  # first, so that a copy that stops can be repeated
    shutil.copytree(made, out, dirs_exist_ok=True)


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def _is_notebook(path: str) -> bool:
    return path.endswith(".ipynb")


def _read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def _cells(path: Path) -> list[tuple[str, str]]:
    """Returns kind and text of each cell; a page is one cell."""
    if not _is_notebook(path.name):
        return [("markdown", path.read_text())]
    return [(cell.cell_type, cell.source) for cell in _read(path).cells]


def _shown(cells: Cells, root: Path) -> set[str]:
    """Returns the pictures that pages show, and files of the guide beside its pages."""
    found = {
        name
        for path, texts in cells.items()
        for kind, text in texts
        if kind == "markdown"
        for name in _links.files(text, Path(path), root)
    }
    pictures = {name for name in found if name.endswith((".png", ".svg"))}
    beside = {name for name in found if name.startswith(GUIDE)}
    return (pictures | beside) - cells.keys()


def _as_they_are(cells: Cells, root: Path) -> list[str]:
    """Returns files that Sphinx does not read: notebooks to keep, card, and pictures.

    The pictures are those that a page shows in words of HTML.
    """
    notebooks = [path for path in cells if _is_notebook(path)]
    front = [
        picture
        for path, texts in cells.items()
        if not _is_notebook(path)
        for picture in _links.sources(texts[0][1], Path(path), root)
    ]
    others = [path for path in (ICON, _heads.CARD) if (root / path).exists()]
    return [*notebooks, *others, *dict.fromkeys(front)]


def _users(cells: Cells) -> dict[str, str]:
    """Returns the pages that are listed where they use a name: text, by their place."""
    others = (_heads.LANDING, "experiments/")
    pages = [path for path in cells if not path.startswith(others)]
    joined = {path: "\n\n".join(text for _, text in cells[path]) for path in pages}
    return {path.rpartition(".")[0]: text for path, text in joined.items()}


def _write_pages(folder: Path, cells: Cells, kept: dict[str, str], root: Path) -> None:
    """Writes pages and notebooks with their links as the site needs them."""
    broken, url = [], _links.repository(root)
    known = _reference.Links(_names.public()).named
    for path, texts in cells.items():
        target = folder / kept[path]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            new = [
                _links.add_names(
                    _links.rewrite(text, Path(path), kept, root, url), known
                )
                if kind == "markdown"
                else text
                for kind, text in texts
            ]
        except _links.BrokenLinkError as error:
            broken.append(str(error))
        else:
            hidden = _ORPHAN if Path(path).match(LEDGERS) else ""
            _write(root / path, target, [hidden + new[0], *new[1:]])
    if broken:
        raise _links.BrokenLinkError("\n".join(broken))


def _write(path: Path, target: Path, texts: list[str]) -> None:
    if not _is_notebook(path.name):
        target.write_text(texts[0])
        return
    notebook = _read(path)
    for cell, text in zip(notebook.cells, texts, strict=True):
        cell.source = text
    nbformat.write(notebook, target)


def _add_contents(folder: Path, found: dict[str, str]) -> None:
    """Adds what the sidebar lists to the first page."""
    index = folder / GUIDE / "index.md"
    listed = sections(index.read_text()) if index.exists() else {}
    trees = [_tree("", ["Guide <notebooks/guide/index>"])] if index.exists() else []
    for heading, names in listed.items():
        below = {name: str(Path(name).parent) for name in names}
        tops = [name for name in names if below[name] not in names]
        trees.append(_tree(heading, [f"{GUIDE}{name}" for name in tops]))
        for top in tops:
            entries = [f"/{GUIDE}{name}" for name in names if below[name] == top]
            _add_below(folder / GUIDE / f"{top}.md", entries)
    others = ["Notebooks <notebooks/gallery>", f"{_reference.TITLE} <api/index>"]
    if RESULTS in found:
        others.append("Results <experiments/RESULTS>")
    home = folder / HOME
    home.write_text("\n\n".join([home.read_text(), *trees, _tree("Look up", others)]))


def _add_below(page: Path, entries: list[str]) -> None:
    """Lists the pages of the folder that is named after a page below it."""
    if entries:
        page.write_text(f"{page.read_text()}\n\n{_tree('', entries)}")


def _tree(caption: str, entries: list[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```", ""])


def main() -> None:
    """Builds the site where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("site"), help="a folder")
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        build(args.out)
    except (SiteError, _links.BrokenLinkError) as error:
        sys.exit(str(error))
    count = len(list(args.out.rglob("*.html")))
    seconds = time.perf_counter() - start
    print(f"{args.out / 'index.html'}: {count} pages, {seconds:.0f} s")


if __name__ == "__main__":
    main()
