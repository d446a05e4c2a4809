"""Checkpoints: a folder with the settings of a simulation and a file for each chunk."""

import errno
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend import core

from jaxcp._files import remove_drafts, write_whole
from jaxcp._types import PyTree
from jaxcp.simulation._programs import parts_of

Span = tuple[int, int]
Statistics = list[dict[str, np.ndarray]]
_SETTINGS = "simulation.json"
_MAY_CHANGE = ("versions", "batch size", "trials")  # when a simulation goes on


class Checkpoint:
    """The folder of a simulation, to be written by one process at a time.

    Args:
      path: The folder, made if it is not there.
      settings: What must be the same when the simulation goes on.
      num_trials: Number of replicates that are asked for.
    """

    def __init__(self, path: Path, settings: dict[str, Any], num_trials: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        try:
            self._open(settings, num_trials)
        except BaseException:
            self.close()
            raise

    def _open(self, settings, num_trials):
        remove_drafts(self.path)
        self._compare(settings)
        last = max((stop for _, stop in self._files()), default=0)
        if last > num_trials:
            raise ValueError(
                f"expected num_trials >= {last}, of which the checkpoint {self.path} "
                f"has results, got {num_trials}"
            )

    def save(self, span: Span, statistics: Statistics) -> None:
        """Writes the statistics of the replicates start, ..., stop - 1."""
        names = {
            f"{i}.{name}": value
            for i, chunk in enumerate(statistics)
            for name, value in chunk.items()
        }
        content = io.BytesIO()
        np.savez(content, **{k: _plain(v) for k, v in names.items()})
        path = self.path / f"{span[0]:010d}-{span[1]:010d}.npz"
        try:
            write_whole(path, content.getvalue())
        except OSError as error:
            error.add_note(
                f"Replicates {span[0]} to {span[1] - 1} could not be saved; earlier "
                f"ones are kept in {self.path}, from where the same call goes on."
            )
            raise

    def load(self, probes: Statistics) -> dict[Span, Statistics]:
        """Returns the statistics of all chunks that were saved.

        `probes` are those of one replicate, to compare with.
        """
        files = self._files()
        return {span: _read(path, probes, span) for span, path in files.items()}

    def close(self) -> None:
        """Lets other processes use the folder."""
        self._lock.close()

    def _files(self) -> dict[Span, Path]:
        spans = {}
        for path in sorted(self.path.glob("*.npz")):
            digits = re.fullmatch(r"(\d{10})-(\d{10})", path.stem)
            if digits is None:
                raise ValueError(f"expected chunks of a simulation only, got {path}")
            spans[int(digits[1]), int(digits[2])] = path
        stops = [0, *(stop for _, stop in spans)]
        for (start, stop), before in zip(spans, stops, strict=False):
            if not before <= start < stop:
                path = spans[start, stop]
                raise ValueError(f"expected chunks that do not overlap, got {path}")
        return spans

    def _compare(self, settings):
        path = self.path / _SETTINGS
        settings = json.loads(json.dumps(settings))
        if not path.exists():
            strangers = [p.name for p in self.path.iterdir() if p.name[0] != "."]
            if strangers:
                raise ValueError(
                    f"expected checkpoint as a new folder or one of a simulation, got "
                    f"{self.path} with {strangers[0]}"
                )
            return self._write(settings)
        before = _read_settings(path)
        for name in settings:
            same = before.get(name) == settings[name]
            if not same and name not in _MAY_CHANGE:
                raise ValueError(_difference(self.path, name, before, settings))
        if before != settings:
            self._write(settings)

    def _write(self, settings):
        content = json.dumps(settings, indent=1).encode() + b"\n"
        write_whole(self.path / _SETTINGS, content)


def saved_width(path: Path, num_trials: int) -> int | None:
    """Returns the batch size of a simulation of so many trials in a folder, if any."""
    settings = path / _SETTINGS
    before = _read_settings(settings) if settings.exists() else {}
    return before.get("batch size") if before.get("trials") == num_trials else None


def settings_of(
    trial: Callable[[Array], PyTree], key: Array, leaves: dict, statistics: list
) -> dict[str, Any]:
    """Returns what tells one simulation from another, as JSON."""
    key_data, kind = parts_of(key)
    return {
        "key": key_data.tolist(),
        "kind of key": "legacy" if kind is None else str(kind),
        "results": {k: f"{v.dtype}{list(v.shape)}" for k, v in leaves.items()},
        "statistics": [repr(s) for s in statistics],
        "trial": _digest(trial, key),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }


def _difference(path, name, before, now):
    found = f"{name} {before.get(name)}", f"{name} {now[name]}"
    if name == "trial":
        found = "another trial", "this one"
        if before.get("versions") != now["versions"]:
            found = f"another trial, or the same under {before['versions']}", "this one"
    return (
        f"expected the simulation that the checkpoint {path} holds, with {found[0]}, "
        f"got {found[1]}; choose another folder"
    )


def _digest(trial, key):
    """Returns a fingerprint of the program that a trial is, and of its constants."""
    program = jax.make_jaxpr(trial)(key)
    # Addresses of functions differ from one process to the next.
    text = re.sub(r"0x[0-9a-f]+", "", str(program))
    digest = hashlib.sha256(text.encode())
    for constant in _constants(program):
        value = np.asarray(constant)
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    return digest.hexdigest()


def _constants(program):
    """Yields the arrays that a program and those inside of it have closed over."""
    if isinstance(program, core.ClosedJaxpr):
        yield from (c for c in program.consts if not _is_key(c))
        yield from (jax.random.key_data(c) for c in program.consts if _is_key(c))
        program = program.jaxpr
    for equation in program.eqns:
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=_is_program
        ):
            if _is_program(value):
                yield from _constants(value)
        yield from (v.val for v in equation.invars if isinstance(v, core.Literal))


def _is_program(value):
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


def _is_key(value):
    return jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def _locked(path):
    """Returns an open file that one process at a time, while it lives, can have."""
    file = (path / ".lock").open("w")
    try:
        import fcntl
    except ImportError:  # not on every system
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return file  # some file systems have no locks
        file.close()
        raise ValueError(
            f"expected a checkpoint that nobody writes, got {path}, which another "
            "process is using"
        ) from None
    return file


def _plain(value):
    """Returns an array of a type that numpy files know; others as bytes."""
    return value.view(f"u{value.itemsize}") if value.dtype.kind == "V" else value


def _read_settings(path):
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected the settings of a simulation in {path}") from error


def _read(path, probes, span):
    """Returns the statistics in a file, if they are of so many replicates."""
    size = span[1] - span[0]
    try:
        with np.load(path, allow_pickle=False) as file:
            return [
                {k: _like(k, v, file[f"{i}.{k}"], size) for k, v in probe.items()}
                for i, probe in enumerate(probes)
            ]
    except Exception as error:
        raise ValueError(
            f"expected a chunk of a simulation in {path}, which cannot be read; "
            "without that file its replicates run again"
        ) from error


def _like(name, probe, value, size):
    """Returns an array of a chunk, if it is like that of one replicate."""
    shape, same = probe.shape, True
    if name == "values":
        shape = (size, *probe.shape[1:])
        value = value.view(probe.dtype) if probe.dtype.kind == "V" else value
        same = value.dtype == probe.dtype
    if value.shape != shape or not same or (name == "count" and value != size):
        raise ValueError(f"{name} of {size} replicates, not {value.dtype}{value.shape}")
    return value
