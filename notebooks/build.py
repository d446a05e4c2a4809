"""Runs the notebooks from their sources: `python -m notebooks.build [NAME ...]`.

The percent scripts `NN_name.py` are what is written and reviewed; each is executed in
a kernel of its own and saved with its outputs as `NN_name.ipynb` beside it. It is then
executed once more with the small sizes of the tests, and the notebook keeps what that
prints: a slow test compares it with what is printed later (`notebooks.prints`). Without
names every notebook is built, with `--stale` those whose source has changed since. The
sizes are the small ones alone where JAXCP_FAST=1.

The tags of a cell stand in its first line, `# %% tags=["thumbnail"]`: a `thumbnail` has
the picture of the gallery, and what a `not-compared` cell prints may change.
"""

import argparse
import os
import re
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from experiments.tools import compiled
from notebooks import prints

FOLDER = Path(__file__).parent
SECONDS = 300  # that one cell may take
BYTES = 200_000  # that a notebook may have


def sources() -> list[Path]:
    """Returns the scripts of all notebooks, in order."""
    return sorted(path for path in FOLDER.glob("*.py") if path.name[0].isdigit())


def read_source(path: Path) -> NotebookNode:
    """Returns the notebook that a percent script is, without outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
        "jaxcp": {"fast": _is_fast()},
    }
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"  # so that the same source gives the same file
        cell.metadata = _tags(cell)
    return notebook


def is_current(path: Path) -> bool:
    """Returns whether the notebook beside a script has its cells, executed in full."""
    beside = path.with_suffix(".ipynb")
    if not beside.exists() or beside.stat().st_size > BYTES:
        return False
    built = nbformat.read(beside, as_version=4)
    cells = [
        [(c.cell_type, c.source, _tags(c)) for c in n.cells]
        for n in (read_source(path), built)
    ]
    if built.metadata.get("jaxcp", {}).get("fast", True):
        return False  # small sizes are for tests
    code = [cell for cell in built.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    return cells[0] == cells[1] and counts == list(range(1, len(code) + 1))


def execute(path: Path, *, fast: bool = False) -> NotebookNode:
    """Returns the notebook of a script with its outputs; raises what a cell raises."""
    notebook = read_source(path)
    where = {"metadata": {"path": str(FOLDER.parent)}}
    # Prints in a row are one output, however they came in.
    options = {"resources": where, "coalesce_streams": True}
    # What the kernel compiles is kept for the next build.
    env = {**os.environ, **compiled.settings(), **({"JAXCP_FAST": "1"} if fast else {})}
    NotebookClient(notebook, timeout=SECONDS, **options).execute(env=env)
    for cell in notebook.cells:
        cell.metadata = _tags(cell)  # the times of execution change with every run
        cell.outputs = [_plain(out) for out in cell.get("outputs", [])]
        if cell.cell_type != "code":
            del cell["outputs"]
    return notebook


def build(path: Path, folder: Path = FOLDER) -> Path:
    """Executes a script and returns where the notebook is."""
    written = folder / path.with_suffix(".ipynb").name
    notebook = execute(path)
    small = notebook if _is_fast() else execute(path, fast=True)
    notebook.metadata["jaxcp"]["fast_prints"] = _prints(small)
    text = nbformat.writes(notebook) + "\n"
    written.write_text(text)
    if len(text) > BYTES:
        raise ValueError(f"expected at most {BYTES} bytes, got {len(text)}: {written}")
    return written


def _is_fast():
    return os.environ.get("JAXCP_FAST", "") != ""


def _tags(cell):
    """Returns the metadata of a cell that are of its source."""
    tags = cell.metadata.get("tags", [])
    return {"tags": list(tags)} if tags else {}


def _prints(notebook):
    """Returns what each cell of code has printed, if it is to be compared."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    streams = [
        [out.text for out in cell.outputs if out.get("name") == "stdout"]
        for cell in code
    ]
    left_out = [prints.NOT_COMPARED in cell.metadata.get("tags", []) for cell in code]
    pairs = zip(streams, left_out, strict=True)
    return ["" if out else "".join(parts) for parts, out in pairs]


def _plain(output):
    """Returns an output without addresses in memory, which change with every run."""
    data = output.get("data", {})
    if "text/plain" in data:
        data["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", data["text/plain"])
    return output


def main() -> None:
    """Builds the notebooks that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names, such as 01")
    parser.add_argument("--stale", action="store_true", help="only what has changed")
    args = parser.parse_args()
    for name in args.names:
        if not any(path.name.startswith(name) for path in sources()):
            parser.error(f"expected the beginning of a notebook's name, got {name!r}")
    for path in sources():
        named = not args.names or path.name.startswith(tuple(args.names))
        if named and not (args.stale and is_current(path)):
            start = time.perf_counter()
            written = build(path)
            seconds = time.perf_counter() - start
            size = written.stat().st_size // 1000
            print(f"{written.name}: {seconds:.0f} s, {size} kB", flush=True)


if __name__ == "__main__":
    main()
