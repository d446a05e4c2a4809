"""The pages of results, from the tables that all experiments saved."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments import folder_of
from experiments.tools.bars import figure, judge, limit_of
from experiments.tools.claims import CLAIMS, LOSSES, Claim

PAGE, BARS_PAGE = "RESULTS.md", "tools/BARS.md"
FOR_READERS = """A bar is what a figure was asked to be before it was measured: the
exact value, what authors published, or a share of the time that something else takes.
A figure that is off is **missed**, and stays here with the reason.
"""
LONG, SHOWN = 100, 25  # rows beyond which a table is told in short, and rows shown
VERDICTS = {False: "**missed**", True: "met", None: "not measured"}  # sorted so
RUN_COLUMNS = ("experiment", "seconds", "peak GiB", "second run s")
WRITTEN = """Written by `python -m experiments.tools.results`, from the tables of every
experiment; do not edit. A ratio in which we lose is **bold**.
"""
ON = """Speed depends on the processor, for NumPy and XLA each in its own way: a ratio
is true of the processor that is named. Tables that end in `_avx2` are of the same
machine with both kept to AVX2. NumPy computes on one core, XLA on all: columns with
"CPU" add up the time of all cores.
"""


class Table(NamedTuple):
    """A table of an experiment: its rows, and its section in the page of a folder."""

    rows: list[dict]
    section: str
    folder: str
    processor: str


def report(out: Path) -> dict[str, str]:
    """Returns the pages on the tables in the folders of `out`, by path, as Markdown."""
    saved, runs = _read(out)
    tables = {
        name: Table(
            content["rows"],
            _section(name, content["rows"], content.get("settings", {})),
            folder_of(content["experiment"]),
            content["machine"].get("processor", ""),
        )
        for name, content in saved.items()
    }

    def about(folder: str | None) -> str:
        """Returns the commits and the machines of a folder, None for all."""
        mine = [
            [v for v in those if folder in (None, folder_of(v["experiment"]))]
            for those in (saved.values(), runs)
        ]
        return _about(*mine)

    rows = [{k: run.get(k) for k in RUN_COLUMNS} for run in runs]
    tables["runs"] = Table(rows, _section("runs", rows, {}), "tools", "")
    return pages(tables, about)


def pages(
    tables: dict[str, Table], about: Callable[[str | None], str]
) -> dict[str, str]:
    """Returns the pages by path: claims, the tables of each folder, and all bars.

    Args:
      tables: The tables by name.
      about: What tells the commit and the machine of a folder, None for all.
    """
    rows = {name: table.rows for name, table in tables.items()}
    bars = f"# Bars\n\n{WRITTEN}", about(None), _bars(rows), tables["runs"].section
    made = {PAGE: _page(tables), BARS_PAGE: "\n".join(bars)}
    for folder in sorted({table.folder for table in tables.values()} - {"tools"}):
        sections = [v.section for v in tables.values() if v.folder == folder]
        parts = [f"# Results of `{folder}`\n", WRITTEN, ON, about(folder), *sections]
        made[f"{folder}/{PAGE}"] = "\n".join(parts)
    return made


def write(made: dict[str, str], home: Path) -> None:
    """Writes pages into a folder."""
    for name, text in made.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)


def commits(out: Path) -> list[str]:
    """Returns the commits of all runs and tables in `out`; "unknown" is one of them."""
    saved, runs = _read(out)
    return _commits(saved.values(), runs)


def markdown(rows: list[dict]) -> str:
    """Returns a table, numbers to four digits, losing ratios bold."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    lines += [[_shown(name, row.get(name)) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table_of(text: str, name: str) -> list[dict]:
    """Returns the rows of a table of a report; what reads as a number is one.

    Args:
      text: The report, as `report` returns it.
      name: Name of the table.

    Raises:
      ValueError: if the report has no such table.
    """
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    if len(lines) < 2:
        raise ValueError(f"expected the table {name} in the report, got none")
    names, _, *rows = (line[2:-2].split(" | ") for line in lines)
    return [dict(zip(names, map(_read_cell, row), strict=True)) for row in rows]


def machines_of(text: str) -> list[dict[str, str]]:
    """Returns the machines that a report names, their properties by name."""
    parts = "processor|instructions|cores|memory|jax|jaxlib|numpy|python"
    lines = [v for v in text.splitlines() if v.startswith("- machine: ")]
    found = rf"(?:, |^)({parts}) (.*?)(?=, (?:{parts}) |$)"
    return [dict(re.findall(found, v.removeprefix("- machine: "))) for v in lines]


def is_loss(column: str, value: float) -> bool:
    """Returns whether a ratio says that something else is better than we are."""
    if column.startswith("jaxcp / "):
        return value > 1
    return column in ("times jaxcp", "sort / jaxcp", "it / jaxcp") and value < 1


def _shown(column, value):
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value).replace("|", "\\|")
    text = f"{value:.4g}"
    return f"**{text}**" if is_loss(column, value) else text


def _read_cell(text):
    text = text.strip("*")
    try:
        return float(text)
    except ValueError:
        return text.replace("\\|", "|")


def _read(out):
    """Returns the tables by name, and how their runs ended."""
    saved = {}
    for path in sorted(out.glob("*/*.json"), key=lambda path: path.stem):
        content = json.loads(path.read_text())
        if "rows" in content:
            saved[path.stem] = content | {"experiment": path.parent.name}
    return saved, [json.loads(p.read_text()) for p in sorted(out.glob("*/run.json"))]


def _about(tables, runs):
    """Returns the commits and the machines of tables and runs."""
    machines = {json.dumps(content["machine"]) for content in tables}
    total = sum(run["seconds"] + run.get("second run s", 0) for run in runs) / 60
    failed = [run["experiment"] for run in runs if run["status"]]
    told = ", ".join(_commits(tables, runs))
    lines = [f"- commit: {told}; {total:.0f} minutes in all"]
    for machine in sorted(machines):
        told = ", ".join(f"{k} {v}" for k, v in json.loads(machine).items())
        lines.append(f"- machine: {told}")
    lines += [f"- failed: {', '.join(failed)}"] if failed else []
    return "\n".join(lines) + "\n"


def _commits(tables, runs):
    return sorted({v["commit"] or "unknown" for v in [*tables, *runs]})


def _page(tables):
    """Returns the page of ten claims, of what we lose, and of where the tables are."""
    rows = {name: table.rows for name, table in tables.items()}
    figures = list(judge(rows))
    count = Counter(f.met for f in figures)
    counted = Counter(table.folder for table in tables.values())
    folders = [
        f"* [{folder}]({folder}/{PAGE}): {_many(counted[folder], 'table')}\n"
        for folder in sorted(counted.keys() - {"tools"})
    ]
    missed = f"{count[False]} of {_many(count.total(), 'bar')} are missed"
    missed += f", {count[None]} are not measured" if count[None] else ""
    return "\n".join(
        [
            f"# Results\n\n{FOR_READERS}",
            "## Ten claims\n",
            _claims(CLAIMS, rows, tables),
            "## Where we lose\n",
            f"{missed} ([all bars]({BARS_PAGE})). The largest losses:\n",
            _claims(LOSSES, rows, tables),
            "Every missed bar, and why:\n",
            _missed(figures),
            f"## All tables\n\n{ON}",
            "".join(folders),
            WRITTEN,
        ]
    )


def _missed(figures):
    """Returns a list of the missed bars, those with one reason together."""
    together: dict[tuple[str, str], list[str]] = {}
    for f in figures:
        if f.met is False:
            told = f"{f.row}, {f.column}: {_shown('', f.value)} (bar: {f.limit})"
            together.setdefault((f.table, f.why), []).append(told)
    lines = []
    for (table, why), told in together.items():
        reason = f". {why[0].upper()}{why[1:]}" if why else ""
        lines.append(f"* `{table}`: {'; '.join(told)}{reason}\n")
    return "".join(lines)


def _many(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _claims(claims: tuple[Claim, ...], rows, tables):
    """Returns claims beside their figures, their bars, and the processors."""
    lines = []
    for said, table, key, column in claims:
        found = figure(rows, table, key, column, limit_of(table, key, column))
        source = tables.get("showcase" if table == "runs" else table)
        shown = _shown(column, found.value) or VERDICTS[None]
        line = {"what": said, "figure": shown, "bar": found.limit, "verdict": ""}
        if found.met is not None:
            line["verdict"] = VERDICTS[found.met]
        lines.append(line | {"processor": source.processor if source else ""})
    return markdown(lines)


def _bars(tables):
    """Returns every figure beside its bar, the missed ones first."""
    figures = sorted(judge(tables), key=lambda f: VERDICTS[f.met])
    count = Counter(f.met for f in figures)
    rows = [
        {
            "experiment": f.table,
            "row": f.row,
            "figure": f.column,
            "bar": f.limit,
            "seen": f.value,
            "verdict": VERDICTS[f.met]
            + (f": {f.why}" if f.met is False and f.why else ""),
        }
        for f in figures
    ]
    told = f"{count[True]} met, {count[False]} missed, {count[None]} not measured"
    return f"## Bars: {told}\n\n{markdown(rows)}"


def _section(name, rows, settings):
    """Returns a table under its name and settings, a long one in short."""
    told = "; ".join(f"{key}: {value}" for key, value in settings.items())
    lines = [f"## {name}\n"] + ([f"{told}\n"] if told else [])
    if len(rows) > LONG and {"method", "coverage"} <= set(rows[0]):
        lines.append(f"{len(rows)} rows; by method, over all of them:\n")
        rows = list(_by_method(rows))
    elif len(rows) > LONG:
        lines.append(f"The first {SHOWN} of {len(rows)} rows:\n")
        rows = rows[:SHOWN]
    return "\n".join([*lines, markdown(rows)])


def _by_method(rows: list[dict]) -> Iterator[dict]:
    """Yields a row for each method and level: the range of coverages."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["method"], row.get("alpha")), []).append(row)
    for (method, alpha), mine in groups.items():
        coverages = [row["coverage"] for row in mine]
        tested = [row["p-value"] for row in mine if row.get("p-value") is not None]
        yield {
            "method": method,
            "alpha": alpha,
            "rows": len(mine),
            "least coverage": min(coverages),
            "largest coverage": max(coverages),
            "smallest p-value": min(tested, default=None),
        }
