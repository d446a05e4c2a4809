"""Grids of independent cells: on any executor, resumable, with a record of each."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import distributions
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from jaxcp import _batching, _checks
from jaxcp.saving.files import remove_drafts, write_whole
from jaxcp.simulation._fingerprints import fingerprint, module_of
from jaxcp.simulation._storage import from_first

Record = dict[str, Any]
_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_LIBRARIES = ("jaxcp", "jax", "jaxlib", "numpy")
# Runs no program that a repository names, and takes no lock of it.
_GIT = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks")


def name_of(origin: Record, settings: Record) -> str:
    """Returns the name of a cell: of its function, revision and settings."""
    named = {name: origin[name] for name in ("module", "function", "revision")}
    return _hashed(named | {"settings": settings})[:20]


def _hashed(content):
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any, exact: bool = False) -> Any:
    """Returns what JSON can hold: arrays as lists, infinities and NaN as text.

    Raises ValueError for other values, and if `exact` for what would look like another.
    """
    if isinstance(value, Mapping):
        if exact and not all(isinstance(k, str) for k in value):
            raise ValueError(f"expected settings with text as keys, got {value!r}")
        return {str(k): plain(v, exact) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, exact) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return plain(np.asarray(value).tolist(), exact)
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if exact and isinstance(value, str) and value in _NOT_FINITE:
        raise ValueError(f"expected NaN and infinities as floats, got text {value!r}")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"expected what JSON can hold, got {value!r}")


def _numbers(value):
    """Returns JSON with its infinities and NaN as floats again."""
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def kept(out: Path | None, name: str, record: Record) -> Record:
    """Writes a record, a failure beside where its success will be."""
    if out is None:  # another process writes
        return _numbers(record)
    failed = out / f"{name}.failed.json"
    path = failed if record["status"] == "failed" else out / f"{name}.json"
    sealed = record | {"checksum": _hashed(record)}
    write_whole(path, json.dumps(sealed).encode() + b"\n")
    if path != failed:
        failed.unlink(missing_ok=True)
    return _numbers(record)


def finished(out: Path, origin: Record, settings: Record) -> Record | None:
    """Returns the record of a cell that has one, made by the same function.

    A revision that is a fingerprint stands for the function that has it.
    """
    record = _stored(out, origin, settings)
    if record is None and origin["revision"]:
        record = _stored(out, origin | {"revision": ""}, settings)
        same = record is not None and record["fingerprint"] == origin["revision"]
        return record if same else None
    if record is not None and record["fingerprint"] != origin["fingerprint"]:
        raise ValueError(
            f"expected {origin['module']}.{origin['function']} as it was when it made "
            f"the cells in {out} under Python {record['versions']['python']}, got it "
            "with other code or captured values; choose another folder, or give a "
            "revision: a new one to run all cells again, "
            f"{record['fingerprint']!r} to count the finished ones as good"
        )
    return record


def _stored(out, origin, settings):
    path = out / f"{name_of(origin, settings)}.json"
    return read(path) if path.exists() else None


def read(path: Path) -> Record:
    """Returns the record in a file, if it is as it was written."""
    try:
        record = json.loads(path.read_text())
        sealed = record.pop("checksum", None) == _hashed(record)
        name = name_of(record, record["settings"])
        if not sealed or path.name.partition(".")[0] != name:
            raise ValueError("it has been changed, or is of another cell or version")
        return _numbers(record)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"expected the record of a cell in {path}, which cannot be read ({error}); "
            "without that file the cell runs again"
        ) from error


def commit_of(fn: Callable) -> str | None:
    """Returns the git commit of the function's file, with a + if it has changed."""
    module = sys.modules.get(getattr(fn, "__module__", ""))
    file = getattr(module, "__file__", None)
    folder = Path(file).parent if file else Path.cwd()
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "-uno")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(folder, *command):
    """Returns what git says of a folder."""
    command = [*_GIT, "-C", str(folder), *command]
    quiet = subprocess.DEVNULL
    return subprocess.check_output(command, text=True, stderr=quiet, timeout=10).strip()


def surroundings() -> Record:
    """Returns what a cell ran on."""
    versions: Record = {"python": platform.python_version()}
    for name in _LIBRARIES:
        versions[name] = next((of.version for of in distributions(name=name)), None)
    return {
        "versions": versions,
        "device": jax.devices()[0].device_kind,
        "host": f"{platform.node()}:{os.getpid()}",
    }


def run_grid(
    fn: Callable[..., Any],
    cells: Iterable[Mapping[str, Any]],
    out: str | Path,
    executor: futures.Executor | int | None = None,
    *,
    revision: str = "",
    progress: bool = False,
) -> list[Record]:
    """Returns the records of independent cells, each run once and kept in a file.

    `fn(**cell)` is called for every cell that has no file yet. A finished cell is one
    line of JSON in `out`, written whole or not at all: the run can be killed at any
    time, and the same call goes on. A cell that raises, or exits, is recorded with its
    traceback, the others finish, and it is tried again next time.

    Records carry a fingerprint of `fn`: of its code, the values that it captures, and
    the functions, classes and constants that it names, also through modules (those of
    libraries by name only; lists and dicts outside of it, not at all). Comments and
    docstrings make no difference. The call is refused where another function of that
    name has finished a cell. With a `revision` there is no fingerprint.

    Without an executor, all processes of one program (`jaxcp.distributed`) run each
    cell together. With a number, as many new processes share the cells. Otherwise any
    executor will do. Process pools must start their workers afresh, since a fork of a
    process that runs jax hangs: `ProcessPoolExecutor(mp_context=get_context("spawn"))`.
    With Dask the cells of a worker that dies run again: use
    `Client(n_workers=4).get_executor()` of `dask.distributed` on this machine, and the
    same with the clusters of dask-jobqueue on SLURM or of dask-kubernetes.

    Args:
      fn: Function of the settings of a cell, by name, that returns a dict of results
        (or a list of them: several rows of one cell): numbers, arrays, and text, of
        which "NaN", "Infinity" and "-Infinity" are read as numbers.
      cells: Settings of each cell: dicts of values that JSON can hold. A "seed" among
        them is recorded as such. Keys are text; infinities and NaN are floats, not
        text.
      out: Folder of the files, made if it is not there.
      executor: Where cells run: an executor, or a number of new processes of this
        machine, which import `fn`: a script then calls this under `if __name__ ==
        "__main__":`. Defaults to this process, one after the other.
      revision: A text that distinguishes this version of `fn` from others of the same
        name, in place of its fingerprint: records of one revision count, whatever the
        code. With the fingerprint of earlier records as revision these are still good.
      progress: Whether to show a progress bar (needs tqdm).

    Returns:
      A record for each cell, in order: "status" ("done" or "failed"), "settings",
      "results" or "error", "seconds", "finished", and where they come from ("module",
      "function", "revision", "fingerprint", "commit", "versions", "device"). Equal
      cells share one.

    Raises:
      ValueError: if a cell is no dict or holds values that JSON cannot; if another
        function of that name has finished a cell and there is no revision; if `fn` has
        no name or captures a value without a fingerprint (an open file); if a record is
        damaged, or is that of another cell or an earlier version; or if `executor` is
        neither an executor nor a number of at least 1.
      OSError: if `out` cannot be written. Finished cells are kept.
      RuntimeError: if the executor broke, as pools do when a worker is killed. Finished
        cells are kept.

    Cost:
      One call of `fn` and one file for each cell that has none yet.

    See also:
      simulation.collect, simulate

    Example:
      >>> import tempfile
      >>> def cell(n, alpha):
      ...     return {"coverage": jaxcp.certificates.certificate(n, alpha).coverage}
      >>> cells = [{"n": n, "alpha": 0.1} for n in (9, 19, 99)]
      >>> with tempfile.TemporaryDirectory() as out:
      ...     records = run_grid(cell, cells, out)
      >>> [record["results"]["coverage"] for record in records]
      [0.9, 0.9, 0.9]
    """
    origin = _origin(fn, revision)
    out = Path(out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    remove_drafts(out, older_than=3600)  # younger ones may be of another process
    given = [(dict(cell), plain(cell, exact=True)) for cell in cells]
    named = {name_of(origin, settings): cell for cell, settings in given}
    together = executor is None and jax.process_count() > 1
    records: dict[str, Any] = from_first(
        lambda: {name_of(origin, v): finished(out, origin, v) for _, v in given},
        together,
    )
    folder = out if not together or jax.process_index() == 0 else None
    todo = {name: cell for name, cell in named.items() if records[name] is None}
    origin["commit"] = commit_of(fn)
    shown = _batching.bar(len(records), len(records) - len(todo), "cell", progress)
    with shown as advance, _workers(executor) as workers:
        for name, record in _results(fn, todo, workers):
            records[name] = kept(folder, name, origin | record)
            advance(1)
            if record["status"] == "failed":
                last = record["error"].strip().splitlines()[-1]
                print(f"cell {todo[name]} failed: {last}", file=sys.stderr)
    return [records[name_of(origin, settings)] for _, settings in given]


def _origin(fn, revision):
    """Returns what distinguishes the records of a function from others."""
    function = getattr(fn, "__qualname__", "<lambda>")
    bound = not isinstance(getattr(fn, "__self__", None), ModuleType | None)
    if (function.endswith("<lambda>") or bound) and not revision:
        raise ValueError(f"expected fn with a name, or a revision, got {fn!r}")
    code = None if revision else fingerprint(fn, "give a revision in its place")
    about = {"module": module_of(fn), "function": function, "revision": revision}
    return about | {"fingerprint": code}


@contextmanager
def _workers(executor):
    """Returns an executor; of as many new processes where it is a number."""
    if executor is None or hasattr(executor, "submit"):
        yield executor
        return
    _checks.check_count("executor", executor, 1)
    with futures.ProcessPoolExecutor(
        executor, mp_context=get_context("spawn")
    ) as workers:
        yield workers


def _results(fn, todo, executor):
    """Yields names and records as cells finish, those of a broken executor as well."""
    if executor is None:
        yield from ((name, _run_cell(fn, cell)) for name, cell in todo.items())
        return
    names: dict[futures.Future, str] = {}
    broken = None
    try:
        try:
            for name, cell in todo.items():
                names[executor.submit(_run_cell, fn, cell)] = name
        except futures.BrokenExecutor as error:
            broken = error
        for future in futures.as_completed(names):
            try:
                record = future.result()
            except futures.BrokenExecutor as error:
                broken = error
                continue
            except (Exception, SystemExit) as error:  # it could not go or come back
                record = _record(todo[names[future]], _failure(error))
            yield names[future], record
    finally:
        for future in names:
            future.cancel()
    if broken is not None:
        raise RuntimeError("the executor broke; finished cells are kept") from broken


def _run_cell(fn, cell):
    """Returns the record of one cell; runs where the executor wants it to."""
    start, settings = time.perf_counter(), plain(cell)  # which `fn` may change
    try:
        results = fn(**cell)
        rows = results if isinstance(results, list) else [results]
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(f"expected dicts of results, got {type(results).__name__}")
        outcome = {"status": "done", "results": plain(results)}
    except (Exception, SystemExit) as error:
        outcome = _failure(error)
    return _record(settings, outcome | {"seconds": time.perf_counter() - start})


def _failure(error):
    text = "".join(traceback.format_exception(error))
    return {"status": "failed", "error": text}


def _record(settings, outcome):
    """Returns an outcome with its origin and surroundings."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"settings": plain(settings), "seed": plain(settings.get("seed"))}
    return {"seconds": None, **outcome, **about, "finished": finished, **surroundings()}


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
