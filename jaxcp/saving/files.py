"""Files that are whole or not there: the verbs that save and load values."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxcp.saving import _classes
from jaxcp.saving._nodes import ABOUT, Reader, Writer, filled, once
from jaxcp.typing import PyTree

_LONGEST = 2**24  # axis of an array without numbers
_FORMAT = 1


def save(path: str | os.PathLike, value: PyTree) -> None:
    """Writes a value to a file: its arrays and settings, no code.

    The file is one of `numpy.savez`: arrays under the names of their fields
    (`numpy.load(path)["scores"]`), and text that says what they belong to. It is
    written whole or not at all, and replaces an earlier one. Of a calibration it holds
    the score of every row, of a `RiskCalibration` the predictions and targets of every
    row; of `cp.at(alpha)` no rows, but thresholds.

    Args:
      path: Name of the file, used as it is; let it end in `.npz`.
      value: A calibration, predictor, score, set, learner, online method or state, or
        any other value of this library or a frozen dataclass of yours, or tuples, lists
        and dicts of them with arrays, numbers and text. Of functions the losses of
        `jaxcp.risk` are written by name. Others are not, nor other callables such as
        networks of torch, nor structures of other libraries such as flax's states: give
        them to `load` again.

    Returns:
      None.

    Raises:
      ValueError: for a value that no file can hold, such as a fitted scikit-learn
        model. (What jax and Python say of a traced array, of one that is spread over
        processes, and of a list that holds itself, is an error of theirs.)
      OSError: if the file cannot be written; one that was there before is kept.

    Cost:
      One copy of the arrays on the host; the file has their size, without compression.

    See also:
      load, pytree

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "cp.npz")
      >>> score = jaxcp.scores.Absolute()
      >>> cp = jaxcp.calibrate(score, jnp.zeros(9), jnp.arange(1.0, 10.0))
      >>> jaxcp.save(path, cp)
      >>> jaxcp.load(path).quantile(0.2)
      Array(8., dtype=float32)
    """
    write_whole(Path(path), to_bytes(value))


def load(
    path: str | os.PathLike, /, *, types: type | Sequence[type] = (), **functions: Any
) -> Any:
    """Returns the value that `save` wrote to a file, equal in every bit.

    Nothing that a file says is run or imported: classes are those of this library, or
    among `types`.

    Args:
      path: Name of the file.
      types: Class or classes of your own that occur in the value.
      **functions: The functions that the value had, by the names of their fields:
        `predict=` for `SplitConformal`, `evaluate=` for `Custom`, `losses=` for a loss
        of your own of a `RiskCalibration`; where several share a name, by the whole
        path: `**{"calibration.score.evaluate": f}`, `**{"losses.0": f}`. Give them
        without the arguments that `functools.partial` had bound to them: those are in
        the file. For a structure of another library, such as flax's states, give any
        value of the same structure: its arrays are replaced.

    Returns:
      The value, arrays on the default device; so are those that were spread over
      devices.

    Raises:
      ValueError: if the file was not written by `save`, is damaged or has another
        format, or holds more than the value; if a function or a class is missing, or
        none of that name is wanted; or if it has arrays of 64 bits and double precision
        is off.
      OSError: if there is no such file.

    Cost:
      One read of the file, whose entries are not compressed, and one copy of its arrays
      to the default device.

    See also:
      save

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "cp.npz")
      >>> predict, x = lambda slope, x: slope * x, jnp.arange(9.0)
      >>> score = jaxcp.scores.Absolute()
      >>> cp = jaxcp.split_conformal(predict, 2.0, score, x, 2 * x + 1)
      >>> jaxcp.save(path, cp)
      >>> jaxcp.load(path, predict=predict)(jnp.array([3.0]), alpha=0.1).upper
      Array([7.], dtype=float32)
    """
    with Path(path).open("rb") as file:
        return read(file, path, types, functions)


def to_bytes(value: PyTree) -> bytes:
    """Returns the file of a value."""
    writer = Writer()
    node = writer.node(value)
    about = {"format": _FORMAT, "jaxcp": import_module("jaxcp").__version__}
    about |= {"holes": writer.holes, "types": list(writer.types), "value": node}
    content = json.dumps(about, indent=1, allow_nan=False).encode()
    return npz({ABOUT: content, **writer.arrays})


def read(file: BinaryIO, path: Any, types: Any = (), functions: Any = None) -> Any:
    """Returns the value in a file, which messages name by its path."""
    try:
        arrays = read_npz(file)
        about = json.loads(arrays.pop(ABOUT), object_pairs_hook=once)
        version = about["jaxcp"]
    except Exception as error:
        raise ValueError(_unreadable(path, error)) from error
    try:
        if about["format"] != _FORMAT:
            raise LookupError(f"format {about['format']}, not {_FORMAT}")
        given = filled(about["holes"], functions or {}, path)
        yours = _yours(types, about["types"])
        classes = {"yours": yours, "value": _classes.named(json.dumps(about))}
        reader = Reader(path, arrays, given, classes, set())
        value = reader.value(about["value"])
        if unused := set(arrays) - reader.used:
            raise LookupError(f"{min(unused)} is no part of the value")
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"{_unreadable(path, error)}, which jaxcp {version} wrote"
        raise ValueError(f"{what}; load it there, or save it anew") from error
    return value


def _unreadable(path, error):
    reason = f"{type(error).__name__}: {error}"
    return f"expected a file of jaxcp.save, got {path} ({reason})"


def _yours(types, names):
    """Returns the user's classes by name; raises ValueError where one is missing."""
    types = [types] if isinstance(types, type) else list(types)
    found = [t for t in types if isinstance(t, type) and _classes.is_value(t)]
    known = {cls.__name__: cls for cls in found}
    if len(known) < len(types) or not set(names) <= set(known):
        wanted = ", ".join(names) or "none"
        given = ", ".join(getattr(t, "__name__", repr(t)) for t in types) or "none"
        raise ValueError(
            f"expected types as frozen dataclasses of yours, {wanted}, got {given}"
        )
    return known


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that exists only once it is on the disk whole.

    Raises:
      OSError: if it cannot be written; what was there before is kept.
    """
    draft = path.with_name(f".{uuid.uuid4().hex}.draft")  # of any length of name
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def npz(entries: Mapping[str, np.ndarray | bytes]) -> bytes:
    """Returns a file of numpy arrays by name, as `np.savez` does; bytes as they are."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, value in entries.items():
            if isinstance(value, bytes):
                archive.writestr(name, value)
                continue
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)
    return content.getvalue()


def read_npz(file: BinaryIO) -> dict[str, Any]:
    """Returns the entries of a file of `npz`, of which no other kind is read.

    Raises ValueError for entries that are compressed, or larger than the file: little
    would grow to fill the memory.
    """
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > size:
            raise ValueError("expected entries without compression, and not larger")
        pairs = [_entry(archive, entry.filename) for entry in entries]
    return once(pairs)


def _entry(archive, name):
    with archive.open(name) as entry:
        if not name.endswith(".npy"):
            return name, entry.read()
        value = np.lib.format.read_array(entry, allow_pickle=False)
    if not value.size and max(value.shape) > _LONGEST:  # jax takes long for it
        raise ValueError(f"expected axes up to 2^24 without numbers, got {value.shape}")
    return name.removesuffix(".npy"), value


def remove_drafts(folder: Path, older_than: float = 0) -> None:
    """Removes what killed processes left half written, from this age in seconds."""
    for draft in folder.glob(".*.draft"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime >= older_than:
                draft.unlink()


def _sync_folder(folder):
    """Makes the name of a new file last as well, where systems can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
