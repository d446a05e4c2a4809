"""Records of a simulation: exact sums, chunks as bytes, and the folder they are in.

Decisions that processes of one program share, and interrupts that wait for a chunk.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import threading
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcp.saving.files import read, remove_drafts, to_bytes, write_whole

_HUGE = 1e150  # beyond, squares overflow


def exact_moments(values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns exact sums of values and squares over the first axis, and their range.

    `sum` and `squares` are fractions as text. They leave out values that are not
    finite: of these `finite` tells, with `infinite` their own sum. Squares leave out
    values too large for them, too: of these `small` tells.
    """
    wide = values.astype(float)
    finite, small = np.isfinite(wide), np.abs(wide) < _HUGE
    if values.dtype.kind in "iu" and np.any(np.abs(wide) >= 2**26):
        whole = values.astype(object)  # doubles may not hold their squares
        total, squares = np.sum(whole, axis=0), np.sum(whole * whole, axis=0)
    else:
        total, squares = exact_sum(np.where(finite, wide, 0)), _squares(wide, small)
    with np.errstate(invalid="ignore"):
        infinite = np.sum(np.where(finite, 0, wide), axis=0)
    return {
        "count": np.asarray(len(values)),
        "sum": np.asarray(total, object).astype(str),
        "squares": np.asarray(squares, object).astype(str),
        "finite": finite.all(axis=0),
        "small": small.all(axis=0),
        "infinite": infinite,
        "minimum": wide.min(axis=0),
        "maximum": wide.max(axis=0),
    }


def _squares(values, small):
    """Returns the sum of squares: of two halves of the digits, whose are exact."""
    kept = np.where(small, values, 0)
    mantissas, exponents = np.frexp(kept)
    high = np.ldexp(np.rint(np.ldexp(mantissas, 26)), exponents - 26)
    low = kept - high
    squares = exact_sum(high * high)
    if low.any():
        squares = squares + exact_sum(2 * high * low) + exact_sum(low * low)
    return squares


def exact_sum(values: np.ndarray) -> np.ndarray:
    """Returns the sum of finite doubles over the first axis as an array of Fractions.

    Cuts the leading bits off all values, so few that their sum is exact, and goes on
    with the rest until nothing is left: two or three times for single precision.
    """
    rest = np.atleast_1d(values).reshape(len(values), -1)
    total = np.full(rest.shape[1], Fraction(0), object)
    bits = 52 - len(values).bit_length()
    while rest.any():
        unit = np.frexp(np.max(np.abs(rest), axis=0))[1] - bits
        leading = np.trunc(np.ldexp(rest, -unit))
        sums = leading.sum(axis=0)
        for i, (s, u) in enumerate(zip(sums.tolist(), unit.tolist(), strict=True)):
            total[i] += int(s) * Fraction(2) ** u
        rest = rest - np.ldexp(leading, unit)
    return total.reshape(values.shape[1:])


Span = tuple[int, int]
Statistics = list[dict[str, np.ndarray]]


def read_chunk(path: Path, origin: str) -> Statistics:
    """Returns the statistics in a file, if they are those of this origin."""
    try:
        with path.open("rb") as file:
            found, statistics = read(file, path)
        if found != origin:
            raise ValueError("it is of other replicates, or of another simulation")
        return statistics
    except Exception as error:
        raise ValueError(
            f"expected a chunk of a simulation in {path}, which cannot be read "
            f"({error}); without that file its replicates run again"
        ) from error


_SETTINGS, ABOUT = "simulation.json", "results.tree"
MAY_DIFFER = ("versions", "trials", "span")  # among the folders of one simulation
_MAY_CHANGE = (*MAY_DIFFER, "batch size")  # when a simulation goes on


class Checkpoint:
    """The folder of a simulation, to be written by one process at a time.

    Where nothing is missing it is only read.

    Args:
      path: The folder, made if it is not there.
      settings: What must be the same when the simulation goes on, and the span.
      about: The file of what `merge` must know.
    """

    def __init__(self, path: Path, settings: dict[str, Any], about: bytes) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._lock: int | None = None
        path.mkdir(parents=True, exist_ok=True)
        if (path / _SETTINGS).exists() and self._is_complete():
            if not (path / ABOUT).exists():  # of an earlier version
                with suppress(OSError):
                    write_whole(path / ABOUT, about)
            return
        self._lock = _locked(path)
        try:
            remove_drafts(path)
            self._is_complete()  # raises where another process has begun meanwhile
            content = json.dumps(self._settings, indent=1).encode() + b"\n"
            write_whole(path / _SETTINGS, content)
            write_whole(path / ABOUT, about)
        except BaseException:
            self.close()
            raise

    def _is_complete(self):
        """Returns whether no replicate is missing, of this simulation and no more."""
        known, spans = self._is_known(), list(chunks_of(self.path))
        start, stop = self._settings["span"]
        if spans and not start <= spans[0][0] < spans[-1][1] <= stop:
            first, last = spans[0][0], spans[-1][1]
            raise ValueError(
                f"expected a span from {first} to {last}, or num_trials >= {last}, got "
                f"{(start, stop)}, fewer than in {self.path}; choose another folder"
            )
        return known and sum(b - a for a, b in spans) == stop - start

    def save(self, span: Span, statistics: Statistics) -> None:
        """Writes the statistics of the replicates start, ..., stop - 1."""
        content = to_bytes([_origin(self._settings, span), statistics])
        path = self.path / f"{span[0]:010d}-{span[1]:010d}.npz"
        try:
            write_whole(path, content)
        except OSError as error:
            error.add_note(f"From {self.path} the same call goes on at {span[0]}.")
            raise

    def close(self) -> None:
        """Lets other processes use the folder."""
        if self._lock is not None:
            os.close(self._lock)

    def _is_known(self):
        """Returns whether there are settings; raises if they are of something else."""
        before = read_settings(self.path)
        if before is None:
            strangers = [p.name for p in self.path.iterdir() if p.name[0] != "."]
            if strangers:
                found = f"{self.path} with {strangers[0]}"
                raise ValueError(f"expected checkpoint as a new folder, got {found}")
            return False
        # `merge` returns the bits of one batch size: spans keep theirs.
        is_whole = self._settings["span"] == [0, self._settings["trials"]]
        free = _MAY_CHANGE if is_whole else MAY_DIFFER
        cure = "; choose another folder"
        check_same(self.path, before, self._settings, free, cure)
        return True


def read_chunks(folder: Path, settings: dict[str, Any]) -> dict[Span, Statistics]:
    """Returns the statistics of all chunks in the folder of a simulation."""
    files = chunks_of(folder)
    return {s: read_chunk(path, _origin(settings, s)) for s, path in files.items()}


def chunks_of(folder: Path) -> dict[Span, Path]:
    """Returns the files of chunks by their spans, in order."""
    spans: dict[Span, Path] = {}
    before = 0
    named = []
    for path in folder.glob("*.npz"):
        if not (name := re.fullmatch(r"(\d+)-(\d+)", path.stem)):
            raise ValueError(
                f"expected no files but its own in the folder of a simulation, got "
                f"{path}; move it elsewhere"
            )
        named.append((int(name[1]), int(name[2]), path))
    for start, stop, path in sorted(named):
        if not before <= start < stop:
            raise ValueError(f"expected chunks that do not overlap, got {path}")
        spans[start, stop], before = path, stop
    return spans


def _origin(settings, span):
    """Returns the mark of chunks of these replicates of a simulation."""
    fixed = {k: v for k, v in settings.items() if k not in _MAY_CHANGE}
    text = json.dumps([fixed, span], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_same(path, before, settings, may_differ, more):
    """Raises ValueError for a setting that is not that of the folder."""
    for name, value in settings.items():
        if before.get(name) != value and name not in may_differ:
            raise ValueError(
                f"expected the simulation in {path}, with {name} {before.get(name)}, "
                f"got {name} {value}{more}"
            )


def saved_width(path: Path, num_trials: int) -> int | None:
    """Returns the batch size of a simulation of this many trials in a folder."""
    before = read_settings(path) or {}
    return before.get("batch size") if before.get("trials") == num_trials else None


def _locked(path):
    """Returns an open file that one process at a time, while it lives, can have."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = os.open(path / ".lock", flags, 0o666)
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(file)
        raise ValueError(
            f"expected a checkpoint that no other process is using, got {path}"
        ) from None
    except (ImportError, OSError):
        pass  # some systems and file systems have no locks
    return file


def is_of_span(folder: Path) -> bool:
    """Returns whether a folder has what `merge` reads."""
    return all((folder / name).exists() for name in (_SETTINGS, ABOUT))


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Returns the settings of the simulation in a folder, or None."""
    path = folder / _SETTINGS
    if not path.exists():
        return None
    with suppress(json.JSONDecodeError):
        settings = json.loads(path.read_text())
        is_whole = isinstance(settings, dict) and isinstance(
            settings.get("trials"), int
        )
        if is_whole and np.shape(settings.get("span", (0, 0))) == (2,):
            return settings
    raise ValueError(
        f"expected the settings of a simulation in {path}, got a file that is damaged; "
        "take another folder"
    )


def largest(values, together):
    """Returns the largest of each value among the processes."""
    if not together:
        return values
    from jax.experimental import multihost_utils

    every = multihost_utils.process_allgather(np.asarray(values, np.float32))
    return np.max(every, axis=0).tolist()


def from_first(make, together):
    """Returns the result of process 0 in every process, or raises its error there.

    It travels in the form of files: arrays, numbers and text, no code.
    """
    if not together:
        return make()
    error, content = None, b""
    if jax.process_index() == 0:
        try:
            content = to_bytes([make(), None])
        except (ValueError, OSError) as raised:
            error, content = raised, to_bytes([None, told(raised)])
    found, failure = read(io.BytesIO(_broadcast(content)), "process 0")
    if failure is not None:
        raise error or retold(*failure)
    return found


def told(error: Exception) -> tuple[bool, list[Any]]:
    """Returns an error as values: its arguments if they are those of a system's."""
    if isinstance(error, OSError) and error.errno is not None:
        return True, [error.errno, error.strerror, str(error.filename)]
    return isinstance(error, OSError), [str(error)]


def retold(system: bool, parts: list[Any]) -> Exception:
    """Returns the error that was told."""
    return OSError(*parts) if system else ValueError(*parts)


def _broadcast(content):
    """Returns the bytes of process 0."""
    from jax.experimental import multihost_utils

    mine = np.frombuffer(content, np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(mine.size)))
    mine = mine if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).tobytes()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PatientStop:
    """Context in which Ctrl-C and SIGTERM are noted; a second one acts at once.

    Handlers are a matter of the main thread: in others nothing is noted.

    Args:
      notes: Whether signals are noted at all.
    """

    def __init__(self, notes: bool = True) -> None:
        main = threading.current_thread() is threading.main_thread()
        self.signal = 0
        self._noted = _SIGNALS if notes and main else ()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> PatientStop:
        self._handlers = {n: signal.signal(n, self._note) for n in self._noted}
        return self

    def __exit__(self, *error: object) -> None:
        self.deliver()

    def deliver(self, number: int = 0) -> None:
        """Lets a noted signal, of this process or another, take effect, once."""
        self._restore()
        number, self.signal = number or self.signal, 0
        if number:
            signal.raise_signal(signal.Signals(number))

    def _note(self, number, frame):
        self.signal = number
        self._restore()

    def _restore(self):
        for number, handler in self._handlers.items():
            # None: a handler that is not of Python, and cannot be put back.
            signal.signal(number, handler or signal.SIG_DFL)
        self._handlers = {}
