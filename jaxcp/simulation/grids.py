"""Grids of independent cells: a file for each, on any executor, resumable."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jaxcp._checks import check_count
from jaxcp._files import remove_drafts
from jaxcp._progress import bar
from jaxcp.simulation import _records
from jaxcp.simulation._agreement import from_first
from jaxcp.simulation._fingerprints import fingerprint, module_of
from jaxcp.simulation._records import Record, plain


def run_grid(
    fn: Callable[..., Any],
    cells: Iterable[Mapping[str, Any]],
    out: str | Path,
    executor: Executor | int | None = None,
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
    the functions, classes and constants that it names (those of libraries, and what is
    reached through a module, by name only; lists and dicts outside of it, not at all).
    Comments and docstrings make no difference. The call is refused where another
    function of that name has finished a cell. With a `revision` there is no
    fingerprint.

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
    checked = map(_records.checked_cell, cells)
    named = [(_records.name_of(origin, cell), dict(cell)) for cell in checked]
    together = executor is None and jax.process_count() > 1
    records: dict[str, Any] = from_first(
        lambda: {name: _records.finished(out, origin, cell) for name, cell in named},
        together=together,
    )
    folder = out if not together or jax.process_index() == 0 else None
    todo = {name: cell for name, cell in named if records[name] is None}
    origin["commit"] = _records.commit_of(fn)
    shown = bar(len(records), len(records) - len(todo), "cell", progress)
    with shown as advance, _workers(executor) as workers:
        for name, record in _results(fn, todo, workers):
            records[name] = _records.kept(folder, name, origin | record)
            advance(1)
            if record["status"] == "failed":
                last = record["error"].strip().splitlines()[-1]
                print(f"cell {todo[name]} failed: {last}", file=sys.stderr)
    return [records[name] for name, _ in named]


def _origin(fn: Callable[..., Any], revision: str) -> Record:
    """Returns what distinguishes the records of a function from others."""
    function = getattr(fn, "__qualname__", "<lambda>")
    bound = not isinstance(getattr(fn, "__self__", None), ModuleType | None)
    if (function.endswith("<lambda>") or bound) and not revision:
        raise ValueError(
            "expected fn as a function with a name, or a revision to tell it from "
            f"others, got {fn!r}"
        )
    code = None if revision else fingerprint(fn, "give a revision in its place")
    about = {"module": module_of(fn), "function": function, "revision": revision}
    return about | {"fingerprint": code}


@contextmanager
def _workers(executor):
    """Returns an executor; of as many new processes where it is a number."""
    if executor is None or hasattr(executor, "submit"):
        yield executor
        return
    check_count("executor", executor, 1)
    with ProcessPoolExecutor(executor, mp_context=get_context("spawn")) as workers:
        yield workers


def _results(
    fn: Callable[..., Any], todo: dict[str, Any], executor: Executor | None
) -> Iterator[tuple[str, Record]]:
    """Yields names and records as cells finish, those of a broken executor as well."""
    if executor is None:
        yield from ((name, _run_cell(fn, cell)) for name, cell in todo.items())
        return
    futures: dict[Future, str] = {}
    try:
        broken = _submit(fn, todo, executor, futures)
        for future in as_completed(futures):
            try:
                yield futures[future], _result(future, todo[futures[future]])
            except BrokenExecutor as error:
                broken = error
    finally:
        for future in futures:
            future.cancel()
    if broken is not None:
        raise RuntimeError(
            "the executor broke, as pools do when a worker is killed; finished cells "
            "are kept, and the same call runs the others"
        ) from broken


def _submit(fn, todo, executor, futures):
    """Hands out cells and notes their futures; returns the error of one that breaks."""
    try:
        for name, cell in todo.items():
            futures[executor.submit(_run_cell, fn, cell)] = name
    except BrokenExecutor as error:
        return error
    return None


def _result(future: Future, settings: Mapping[str, Any]) -> Record:
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except (Exception, SystemExit) as error:  # did not arrive, or could not come back
        text = "".join(traceback.format_exception(error))
        return _record(settings, {"status": "failed", "error": text})


def _run_cell(fn: Callable[..., Any], cell: Mapping[str, Any]) -> Record:
    """Returns the record of one cell; runs where the executor wants it to."""
    start, settings = time.perf_counter(), plain(cell)
    try:
        results = fn(**cell)
        rows = results if isinstance(results, list) else [results]
        if not all(isinstance(row, Mapping) for row in rows):
            kind = type(results).__name__
            raise ValueError(
                f"expected a dict of results, or a list of them, got {kind}"
            )
        outcome = {"status": "done", "results": plain(results)}
    except (Exception, SystemExit):
        outcome = {"status": "failed", "error": traceback.format_exc()}
    return _record(settings, outcome | {"seconds": time.perf_counter() - start})


def _record(settings, outcome):
    """Returns an outcome with its origin and surroundings."""
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"settings": plain(settings), "seed": plain(settings.get("seed"))}
    about |= {"finished": finished} | _records.surroundings()
    return {"seconds": None} | outcome | about
