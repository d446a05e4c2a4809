"""Runs the notebooks from their sources: `python -m notebooks.build [NAME ...]`.

The percent scripts `NN_name.py` are what is written and reviewed; each is executed in
a kernel of its own and saved with its outputs as `NN_name.ipynb` beside it. Without
names every notebook is built, with `--stale` those whose source has changed since. The
sizes are the small ones of the tests where JAXCP_FAST=1.
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

from experiments import compiled

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
        "jaxcp": {"fast": os.environ.get("JAXCP_FAST", "") != ""},
    }
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"  # so that the same source gives the same file
    return notebook


def is_current(path: Path) -> bool:
    """Returns whether the notebook beside a script has its cells, executed in full."""
    beside = path.with_suffix(".ipynb")
    if not beside.exists() or beside.stat().st_size > BYTES:
        return False
    built = nbformat.read(beside, as_version=4)
    cells = [
        [(c.cell_type, c.source) for c in n.cells] for n in (read_source(path), built)
    ]
    if built.metadata.get("jaxcp", {}).get("fast", True):
        return False  # small sizes are for tests
    code = [cell for cell in built.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    return cells[0] == cells[1] and counts == list(range(1, len(code) + 1))


def execute(path: Path) -> NotebookNode:
    """Returns the notebook of a script with its outputs; raises what a cell raises."""
    notebook = read_source(path)
    where = {"metadata": {"path": str(FOLDER.parent)}}
    # Prints in a row are one output, however they came in.
    options = {"resources": where, "coalesce_streams": True}
    # What the kernel compiles is kept for the next build.
    env = {**os.environ, **compiled.settings()}
    NotebookClient(notebook, timeout=SECONDS, **options).execute(env=env)
    for cell in notebook.cells:
        cell.metadata = {}  # the times of execution change with every run
        cell.outputs = [_plain(out) for out in cell.get("outputs", [])]
        if cell.cell_type != "code":
            del cell["outputs"]
    return notebook


def build(path: Path, folder: Path = FOLDER) -> Path:
    """Executes a script and returns where the notebook is."""
    written = folder / path.with_suffix(".ipynb").name
    text = nbformat.writes(execute(path)) + "\n"
    written.write_text(text)
    if len(text) > BYTES:
        raise ValueError(f"expected at most {BYTES} bytes, got {len(text)}: {written}")
    return written


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
