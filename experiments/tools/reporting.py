"""Side-by-side times, tables on the terminal, and results on disk."""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import jaxcp
from experiments import folder_of
from experiments.tools import compiled
from experiments.tools.machines import (
    MASKED,
    can_be_masked,
    is_masked,
    machine,
    masked_environment,
)
from experiments.tools.timing import in_turns
from jaxcp import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
UNDATED = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
FORMATS, DPI = tuple(UNDATED), 160


def arguments(
    doc: str, *, compiles: bool = False, times: bool = False, draws: bool = False
) -> argparse.ArgumentParser:
    """Returns the options of an experiment: the folder of its results, to start with.

    Called where an experiment starts: its programs are kept for the next run, and take
    less time to compile than those of users, unless it measures these.

    Args:
      doc: The docstring of its module, whose first line says what it is.
      compiles: Whether it measures compilation, and so compiles everything anew.
      times: Whether it, or what it starts, measures how fast programs of users are.
      draws: Whether it draws figures, then in the style of the library.
    """
    compiled.compile_anew() if compiles else compiled.keep_programs()
    if not (compiles or times):
        compiled.compile_quickly()
    if draws:
        use_style()
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    return parser


def median_seconds(calls: dict[str, Callable], repeats: int = 15) -> dict[str, float]:
    """Returns the median seconds of each call, taken in turns after a warm-up."""
    times = in_turns(calls, repeats)
    return {name: seconds.median for name, seconds in times.items()}


def format_row(row: dict, widths: dict[str, int]) -> str:
    """Returns one line of a table: text to the left, numbers to the right."""
    cells = []
    for name, width in widths.items():
        text = "" if row.get(name) is None else str(row[name])
        cells.append(
            text.ljust(width) if name == next(iter(widths)) else text.rjust(width)
        )
    return "  ".join(cells).rstrip()


def print_table(title: str, rows: list[dict]) -> None:
    """Prints rows under their column names."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [{k: _shorten(v) for k, v in row.items()} for row in rows]
    widths = {n: max(len(n), *(len(str(r.get(n, ""))) for r in shown)) for n in names}
    print(f"\n{title}")
    print(format_row({name: name for name in names}, widths))
    for row in shown:
        print(format_row(row, widths))


def print_summary(title: str, summary: dict) -> None:
    """Prints the metrics of some sets, as `metrics.summary` returns them."""
    rows = [
        {"metric": name, "value": "  ".join(f"{v:.4g}" for v in np.ravel(value))}
        for name, value in summary.items()
    ]
    print_table(title, rows)


def save_results(out: Path, name: str, rows: list[dict], settings: dict) -> None:
    """Writes `name.csv` and `name.json`, the latter with settings and versions."""
    out.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(key for row in rows for key in row))
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    about = {"settings": settings, "machine": machine(), "commit": commit()}
    about |= {"rows": rows}
    (out / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")


def run_tables(
    out: Path,
    prefix: str,
    tables: dict[str, Callable],
    settings: dict,
    masked: tuple[str, ...] = (),
) -> None:
    """Measures, prints and saves one table after the other.

    Args:
      out: Folder of the results.
      prefix: Name of the experiment, with which names of its tables begin.
      tables: What measures the rows of each table.
      settings: What is saved beside them.
      masked: Tables that are measured again as `NAME_avx2`, in a process of its own
        that is kept to AVX2, where the processor has AVX-512.
    """
    if masked and is_masked():
        tables = {f"{name}_avx2": tables[name] for name in masked}
        settings = settings | {"instructions": MASKED}
    for name, measure in tables.items():
        rows = measure()
        print_table(f"{name} (medians after compilation)", rows)
        save_results(out, f"{prefix}_{name}", rows, settings)
    if masked and can_be_masked():
        module = f"experiments.{folder_of(prefix)}.{prefix}"
        words = [sys.executable, "-m", module, "--out", str(out)]
        subprocess.run(words, env=masked_environment(), check=True)


def use_style(**options: object) -> None:
    """Gives the figures of this process the style of the library, with no display.

    Args:
      **options: As those of `plotting.style`.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(plotting.style(**options))


def save_figure(
    figure: "Figure", out: Path, name: str, formats: tuple[str, ...] = FORMATS
) -> None:
    """Writes `name.png`, `name.svg` and `name.pdf`, and prints where they are.

    The same figure gives the same bytes: no dates, no random names.
    """
    import matplotlib

    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for kind in formats:
            figure.savefig(out / f"{name}.{kind}", dpi=DPI, metadata=UNDATED[kind])
    kinds = ",".join(formats)
    print(f"figure: {out / name}.{f'{{{kinds}}}' if formats[1:] else kinds}")


def commit() -> str | None:
    """Returns the commit of the code that runs, with "+" if files differ from it.

    None outside of a checkout, or where the package that is imported is another one.
    """
    if Path(jaxcp.__file__).parent.parent != ROOT:
        return None
    name = _git("rev-parse", "--short=10", "HEAD")
    changed = _git("status", "--porcelain", "--", "jaxcp", "experiments/*.py")
    return f"{name}+" if name and changed else name


def _git(*words):
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _shorten(value):
    return f"{value:.4g}" if isinstance(value, float) else value
