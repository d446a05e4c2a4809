"""Tables of the results of a grid."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from jaxcp.simulation._records import read


def collect(out: str | Path, table: str | Path | None = None) -> list[dict[str, Any]]:
    """Returns all finished cells of a grid as the rows of one table.

    Args:
      out: Folder of `run_grid`.
      table: File to write the rows to, by its ending: .csv, or .parquet where polars or
        pyarrow is installed.

    Returns:
      A dict for each row, ordered by settings: the settings of the cell, its results
      (one that is named like a setting takes its place) and its seconds. Cells of
      several modules, functions, revisions or fingerprints (of one function, under
      other settings) come with columns that tell.

    Raises:
      ValueError: if there is no such folder, a file in it is no cell or has been
        changed, or the table has another ending.
      ImportError: for a Parquet table if neither library is installed.

    Cost:
      One read of each file.

    See also:
      simulation.run_grid

    Example:
      >>> import tempfile
      >>> from jaxcp.simulation import run_grid
      >>> with tempfile.TemporaryDirectory() as out:
      ...     square = lambda n: {"square": n**2}
      ...     _ = run_grid(square, [{"n": 3}, {"n": 2}], out, revision="a")
      ...     rows = collect(out)
      >>> [(row["n"], row["square"]) for row in rows]
      [(2, 4), (3, 9)]
    """
    out = Path(out).expanduser()
    if not out.is_dir():
        raise ValueError(f"expected the folder of a grid, got {out}")
    records = [read(path) for path in out.glob("*.json")]
    done = [r for r in records if r["status"] == "done"]
    varying = _varying(done)
    rows = [row for record in done for row in _rows(record, varying)]
    rows.sort(key=lambda row: [_sortable(v) for v in row.values()])
    if table is not None:
        _write_table(Path(table), rows)
    return rows


def _varying(records):
    """Returns the names of entries that distinguish the functions of records."""
    told = ("module", "function", "revision")
    varying = [name for name in told if len({r[name] for r in records}) > 1]
    functions = [tuple(record[name] for name in told) for record in records]
    codes = [record["fingerprint"] for record in records]
    several = len(set(zip(functions, codes, strict=True))) > len(set(functions))
    return varying + ["fingerprint"] * several


def _rows(record, varying):
    about = {name: record.get(name) for name in varying} | record["settings"]
    results = record["results"]
    for result in results if isinstance(results, list) else [results]:
        yield about | result | {"seconds": result.get("seconds", record["seconds"])}


def _sortable(value):
    number = isinstance(value, int | float)
    return (0, value, "") if number else (1, 0, json.dumps(value))


def _write_table(path, rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        _write_parquet(path, {name: [row.get(name) for row in rows] for name in names})
    else:
        raise ValueError(f"expected a table that ends in .csv or .parquet, got {path}")


def _write_parquet(path, columns):
    try:
        import polars

        polars.DataFrame(columns, strict=False).write_parquet(path)
    except ImportError:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), path)
