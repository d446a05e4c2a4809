"""Records of cells: one line of JSON each, with where it comes from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcp._files import write_whole

Record = dict[str, Any]
_NOT_FINITE = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
_LIBRARIES = ("jaxcp", "jax", "jaxlib", "numpy")
# Runs no program that a repository names, and takes no lock of it.
_GIT = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks")


def name_of(origin: Record, cell: Mapping[str, Any]) -> str:
    """Returns the name of a cell: of its function, revision and settings."""
    named = {name: origin[name] for name in ("module", "function", "revision")}
    return _hashed(named | {"settings": plain(cell)})[:20]


def checked_cell(cell: Any) -> Mapping[str, Any]:
    """Returns settings that a file can tell from all others."""
    if not isinstance(cell, Mapping) or not all(isinstance(k, str) for k in cell):
        raise ValueError(f"expected cells as dicts of settings by name, got {cell!r}")
    _check_setting(cell)
    return cell


def _check_setting(value):
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(
                    f"expected settings with text as keys, got {name!r} in {value!r}"
                )
        value = list(value.values())
    if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
        value = value.tolist()
    if isinstance(value, list | tuple):
        for inner in value:
            _check_setting(inner)
    elif isinstance(value, str) and value in _NOT_FINITE:
        raise ValueError(
            f"expected NaN and infinities in settings as floats, got the text {value!r}"
        )


def _hashed(content):
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """Returns what JSON can hold: arrays as lists, infinities and NaN as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"expected what JSON can hold, got {type(value).__name__}: {value!r}"
    )


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


def finished(out: Path, origin: Record, cell: Mapping[str, Any]) -> Record | None:
    """Returns the record of a cell that has one, made by the same function.

    A revision that is a fingerprint stands for the function that has it.
    """
    record = _stored(out, origin, cell)
    if record is None and origin["revision"]:
        record = _stored(out, origin | {"revision": ""}, cell)
        same = record is not None and record["fingerprint"] == origin["revision"]
        return record if same else None
    if record is not None and record["fingerprint"] != origin["fingerprint"]:
        raise ValueError(_difference(out, origin, record))
    return record


def _difference(out, origin, record):
    before = record["versions"]["python"]
    same = before == platform.python_version()
    compiled = "" if same else f" (or compiled by another Python than {before})"
    return (
        f"expected {origin['module']}.{origin['function']} as it was when it made the "
        f"cells in {out}, got it with other code or captured values{compiled}; choose "
        "another folder, or give a revision: a new one to run all cells again, "
        f"{record['fingerprint']!r} to count the finished ones as good"
    )


def _stored(out, origin, cell):
    path = out / f"{name_of(origin, cell)}.json"
    return read(path) if path.exists() else None


def read(path: Path) -> Record:
    """Returns the record in a file, if it is as it was written."""
    try:
        record = json.loads(path.read_text())
        if record["status"] not in ("done", "failed"):
            raise ValueError(f"its status is {record['status']!r}")
        if record.pop("checksum", None) != _hashed(record):
            raise ValueError("it has been changed, or is of an earlier version")
        if path.name.partition(".")[0] != name_of(record, record["settings"]):
            raise ValueError("it is that of another cell")
        return _numbers(record)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
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
    return {
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in _LIBRARIES},
        "device": jax.devices()[0].device_kind,
        "host": f"{platform.node()}:{os.getpid()}",
    }


def _version(library):
    return next((found.version for found in distributions(name=library)), None)
