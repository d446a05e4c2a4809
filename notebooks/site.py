"""Builds the site of the documentation: `python -m notebooks.site --out site`.

Its pages are README, the guide, the executed notebooks, the results, and the reference,
which is written from the docstrings of all public names. Nothing is executed and
nothing is loaded from the network. A warning of Sphinx, a link that leads nowhere and
a page that loads anything from elsewhere are errors, with the name of the page.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import nbformat

import jaxcp
from notebooks import _built, _gallery, _links, _reference

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/RESULTS.md"
HOME = "index.md"  # where the site has README.md
GUIDE = "notebooks/guide/"


class SiteError(RuntimeError):
    """The site cannot be built as it should be."""


def pages(root: Path = ROOT) -> dict[str, str]:
    """Returns the pages: their paths in the repository, and on the site."""
    guide = sorted((root / GUIDE).rglob("*.md"))
    stories = sorted((root / "notebooks").glob("[0-9]*.ipynb"))
    paths = [str(path.relative_to(root)) for path in (*guide, *stories)]
    results = [RESULTS] if (root / RESULTS).exists() else []
    return {"README.md": HOME} | {path: path for path in (*paths, *results)}


def assemble(folder: Path, root: Path = ROOT) -> None:
    """Writes the sources of the site, in the layout of the repository.

    Args:
      folder: An empty folder.
      root: The repository.

    Raises:
      ValueError: if a page leads to a file that is not there, or a notebook has no
        picture, with the name of the page.
    """
    found, url = pages(root), repository(root)
    texts, notebooks = {}, {}
    shown = set(found)
    for path, place in found.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".ipynb"):
            notebook = nbformat.read(root / path, as_version=4)
            notebooks[Path(path).stem] = notebook
            text, code = _told(notebook)
        else:
            text = code = (root / path).read_text()
        shown |= {name for name in _links.files(text, Path(path), root) if _kept(name)}
        if path not in ("README.md", RESULTS):  # which name nearly everything
            texts[place.rpartition(".")[0]] = code
    kept = found | {name: name for name in shown - set(found)}
    broken = []
    for path, place in found.items():
        try:
            _write(root / path, folder / place, kept, root, url)
        except _links.BrokenLinkError as error:
            broken.append(str(error))
    if broken:
        raise _links.BrokenLinkError("\n".join(broken))
    for path in shown - set(found):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / path, folder / path)
    _gallery.write(folder / "notebooks", notebooks)
    _reference.write(folder / "api", texts)
    _add_contents(folder, found)
    (folder / "_static").mkdir()
    shutil.copy(Path(__file__).with_name("site.css"), folder / "_static")
    shutil.copy(Path(__file__).with_name("_conf.py"), folder / "conf.py")


def build(out: Path, root: Path = ROOT) -> None:
    """Builds the site.

    Args:
      out: The folder of the built pages; one that is there is replaced.
      root: The repository.

    Raises:
      ValueError: as `assemble`.
      SiteError: if Sphinx warns, or the built pages have links that lead nowhere or
        load anything from elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        sources, made = Path(folder, "sources"), Path(folder, "html")
        assemble(sources, root)
        _run_sphinx(sources, made)
        wrong = _built.problems(made)
        if wrong:
            raise SiteError("\n".join(["the site has faults:", *wrong]))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out, ignore=shutil.ignore_patterns(".buildinfo"))


def repository(root: Path = ROOT) -> str:
    """Returns the address of the repository in pyproject.toml, or ""."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    urls = {key.lower(): value for key, value in project.get("urls", {}).items()}
    found = [urls[key] for key in ("repository", "source", "homepage") if key in urls]
    return found[0].rstrip("/") if found else ""


def sections(index: str) -> dict[str, list[str]]:
    """Returns the pages that the index of the guide lists under each heading."""
    listed: dict[str, list[str]] = {}
    seen = set()
    heading = ""
    for line in index.splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
        for name in re.findall(r"\]\(([\w/]+)\.md[)#]", line):
            if name not in seen:
                seen.add(name)
                listed.setdefault(heading or "Guide", []).append(name)
    return listed


def _run_sphinx(sources: Path, made: Path) -> None:
    """Runs in a process of its own, so that pages can be written by several."""
    settings = {
        "version": jaxcp.__version__,
        "release": jaxcp.__version__,
        "html_title": f"jaxcp {jaxcp.__version__}",
    }
    words = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    words += [f"-j{min(os.cpu_count() or 1, 4)}", "-d", str(made.parent / "doctrees")]
    words += [f"-D{key}={value}" for key, value in settings.items()]
    words += [str(sources), str(made)]
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode:
        raise SiteError(f"{run.stdout}{run.stderr}".replace(f"{sources}/", ""))


def _kept(path: str) -> bool:
    """Whether the site has a file that a page shows or leads to."""
    is_picture = path.endswith((".png", ".svg"))
    return is_picture or (path.startswith(GUIDE) and not path.endswith(".py"))


def _told(notebook) -> tuple[str, str]:
    """Returns the Markdown of a notebook, and all that it says."""
    cells = notebook.cells
    told = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return told, "\n\n".join(cell.source for cell in cells)


def _write(path: Path, target: Path, kept, root: Path, url: str) -> None:
    """Writes a page with its links as the site needs them."""
    page = path.relative_to(root)
    if path.suffix != ".ipynb":
        target.write_text(_links.rewrite(path.read_text(), page, kept, root, url))
        return
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _links.rewrite(cell.source, page, kept, root, url)
    nbformat.write(notebook, target)


def _add_contents(folder: Path, found: dict[str, str]) -> None:
    """Adds what the sidebar lists to the first page."""
    index = folder / GUIDE / "index.md"
    listed = sections(index.read_text()) if index.exists() else {}
    trees = [_tree("", ["Guide <notebooks/guide/index>"])] if index.exists() else []
    for heading, names in listed.items():
        trees.append(_tree(heading, [f"{GUIDE}{name}" for name in names]))
    others = ["Notebooks <notebooks/gallery>", "Reference <api/index>"]
    if RESULTS in found:
        others.append("Results <experiments/RESULTS>")
    home = folder / HOME
    home.write_text("\n\n".join([home.read_text(), *trees, _tree("Look up", others)]))


def _tree(caption: str, entries: list[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *entries, "```", ""])


def main() -> None:
    """Builds the site where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("site"), help="a folder")
    args = parser.parse_args()
    start = time.perf_counter()
    build(args.out)
    count = len(list(args.out.rglob("*.html")))
    seconds = time.perf_counter() - start
    print(f"{args.out / 'index.html'}: {count} pages, {seconds:.0f} s")


if __name__ == "__main__":
    main()
