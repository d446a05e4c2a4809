"""Files that are whole or not there, and hold no more than they show."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_LONGEST = 2**24  # axis of an array without numbers
# Sums of 2^32 squares have at most 957 digits, and 647 below: 1e300 and 2^2148.
_FRACTION = re.compile("-?[0-9]{1,1000}(/[1-9][0-9]{0,999})?")


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
            raise ValueError(
                "expected entries without compression, and no larger than the file"
            )
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


def once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns pairs as a dict; ValueError for a name that comes twice."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"expected each name once, of {', '.join(map(str, found))}")
    return found


def fraction(text: Any) -> Fraction:
    """Returns the number of one or two integers; of others, 1e9999999 takes minutes."""
    if not isinstance(text, str) or not _FRACTION.fullmatch(text):
        raise ValueError(f"expected a fraction of two integers, got {text!r:.40}")
    return Fraction(*map(int, text.split("/")))


def stored_type(dtype: np.dtype) -> np.dtype:
    """Returns the type that numpy files know; that of bits for bfloat16 etc."""
    return np.dtype(f"u{dtype.itemsize}") if dtype.kind == "V" else dtype


def plain(value: np.ndarray) -> np.ndarray:
    """Returns an array of the type that is stored."""
    return value.view(stored_type(value.dtype))


def typed(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns an array of `plain` with the type that it had."""
    return value.view(dtype) if dtype.kind == "V" else value


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
