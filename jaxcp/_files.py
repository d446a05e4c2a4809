"""Files that are whole or not there, whenever the process is killed."""

from __future__ import annotations

import contextlib
import io
import os
import time
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that exists only once it is on the disk whole.

    Raises:
      OSError: if it cannot be written; what was there before is kept.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.draft")
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


def plain(value: np.ndarray) -> np.ndarray:
    """Returns an array of a type that numpy files know; bfloat16 etc. as bits."""
    return value.view(f"u{value.itemsize}") if value.dtype.kind == "V" else value


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
