"""Checkpoints: a folder with the settings of a simulation and a file for each chunk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from jaxcp._files import remove_drafts, write_whole
from jaxcp.simulation._chunks import Span, Statistics, read, to_bytes

_SETTINGS = "simulation.json"
_MAY_CHANGE = ("versions", "batch size", "trials")  # when a simulation goes on


class Checkpoint:
    """The folder of a simulation, to be written by one process at a time.

    Where nothing is missing it is only read.

    Args:
      path: The folder, made if it is not there.
      settings: What must be the same when the simulation goes on.
      num_trials: Number of replicates that are asked for.
    """

    def __init__(self, path: Path, settings: dict[str, Any], num_trials: int) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._lock: int | None = None
        path.mkdir(parents=True, exist_ok=True)
        if (path / _SETTINGS).exists() and self._is_complete(num_trials):
            return
        self._lock = _locked(path)
        try:
            remove_drafts(path)
            if not self._is_complete(num_trials):  # by another process meanwhile
                content = json.dumps(self._settings, indent=1).encode() + b"\n"
                write_whole(path / _SETTINGS, content)
        except BaseException:
            self.close()
            raise

    def _is_complete(self, num_trials):
        """Returns whether no replicate is missing, of this simulation and no more."""
        known, spans = self._is_known(), self._files()
        last = max((stop for _, stop in spans), default=0)
        if last > num_trials:
            raise ValueError(
                f"expected num_trials >= {last}, of which the checkpoint {self.path} "
                f"has results, got {num_trials}"
            )
        return known and sum(stop - start for start, stop in spans) == num_trials

    def save(self, span: Span, statistics: Statistics) -> None:
        """Writes the statistics of the replicates start, ..., stop - 1."""
        content = to_bytes(span, statistics, self._identity)
        path = self.path / f"{span[0]:010d}-{span[1]:010d}.npz"
        try:
            write_whole(path, content)
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
        files, about = self._files(), self._identity
        return {span: read(path, probes, span, about) for span, path in files.items()}

    def close(self) -> None:
        """Lets other processes use the folder."""
        if self._lock is not None:
            os.close(self._lock)

    @property
    def _identity(self) -> str:
        """The mark of chunks of this simulation alone."""
        fixed = {k: v for k, v in self._settings.items() if k not in _MAY_CHANGE}
        text = json.dumps(fixed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _files(self) -> dict[Span, Path]:
        spans, before = {}, 0
        for path in sorted(self.path.glob("*.npz")):
            digits = re.fullmatch(r"(\d{10})-(\d{10})", path.stem)
            if digits is None:
                raise ValueError(f"expected chunks of a simulation only, got {path}")
            start, stop = map(int, digits.groups())
            if not before <= start < stop:
                raise ValueError(f"expected chunks that do not overlap, got {path}")
            spans[start, stop], before = path, stop
        return spans

    def _is_known(self):
        """Returns whether there are settings; raises if they are of something else."""
        before = _read_settings(self.path)
        if before is None:
            strangers = [p.name for p in self.path.iterdir() if p.name[0] != "."]
            if strangers:
                raise ValueError(
                    f"expected checkpoint as a new folder or one of a simulation, got "
                    f"{self.path} with {strangers[0]}"
                )
            return False
        for name, value in self._settings.items():
            if before.get(name) != value and name not in _MAY_CHANGE:
                raise ValueError(_difference(self.path, name, before, self._settings))
        return True


def saved_width(path: Path, num_trials: int) -> int | None:
    """Returns the batch size of a simulation of this many trials in a folder."""
    before = _read_settings(path) or {}
    return before.get("batch size") if before.get("trials") == num_trials else None


def _difference(path, name, before, now):
    found = f"{name} {before.get(name)}", f"{name} {now[name]}"
    if name == "format":
        found = "files of an earlier version", "this version"
    if name == "trial":
        found = "another trial", "this one"
        if before.get("versions") != now["versions"]:
            found = f"another trial, or the same under {before['versions']}", "this one"
    return (
        f"expected the simulation that the checkpoint {path} holds, with {found[0]}, "
        f"got {found[1]}; choose another folder"
    )


def _locked(path):
    """Returns an open file that one process at a time, while it lives, can have."""
    file = _lock_file(path / ".lock")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # not on every system
    except OSError as error:  # others than these: some file systems have no locks
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(file)
            raise ValueError(
                f"expected a checkpoint that no process is using, got {path}, which "
                "another process is using; wait for it, or choose another folder"
            ) from None
    return file


def _lock_file(path):
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"expected {path} as a file, got a link to one; delete it"
        ) from None


def _read_settings(folder):
    """Returns the settings of the simulation in a folder, or None."""
    path = folder / _SETTINGS
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"expected the settings of a simulation in {path}") from error
