"""Chunks of a simulation as bytes: of a file, and to other processes."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from jaxcp._files import is_fraction, npz, plain, read_npz, typed

Span = tuple[int, int]
Statistics = list[dict[str, np.ndarray]]


def to_bytes(span: Span, statistics: Statistics, simulation: str) -> bytes:
    """Returns the file of a chunk: which replicates, of what, and their statistics."""
    arrays = _named(statistics)
    arrays |= {"span": np.asarray(span), "simulation": np.asarray(simulation)}
    return npz(arrays | {"checksum": np.asarray(_checksum(arrays))})


def read(path: Path, probes: Statistics, span: Span, simulation: str) -> Statistics:
    """Returns the statistics in a file, if they are those of its replicates.

    `probes` are those of one replicate, to compare with.
    """
    try:
        with path.open("rb") as file:
            arrays = read_npz(file)
        _check_origin(arrays, span, simulation)
        size = span[1] - span[0]
        return [
            {k: _like(k, v, arrays[f"{i}.{k}"], size) for k, v in probe.items()}
            for i, probe in enumerate(probes)
        ]
    except Exception as error:
        raise ValueError(
            f"expected a chunk of a simulation in {path}, which cannot be read "
            f"({error}); without that file its replicates run again"
        ) from error


def pack(done: dict[Span, Statistics]) -> bytes:
    """Returns the statistics of many chunks for another process."""
    arrays = {"spans": np.asarray(list(done), int).reshape(-1, 2)}
    for n, statistics in enumerate(done.values()):
        arrays |= _named(statistics, f"{n}.")
    return npz(arrays)


def unpack(content: bytes, probes: Statistics) -> dict[Span, Statistics]:
    """Returns what was packed."""
    arrays = read_npz(io.BytesIO(content))
    return {
        (start, stop): [
            {k: typed(arrays[f"{n}.{i}.{k}"], v.dtype) for k, v in probe.items()}
            for i, probe in enumerate(probes)
        ]
        for n, (start, stop) in enumerate(arrays["spans"].tolist())
    }


def _named(statistics, prefix=""):
    return {
        f"{prefix}{i}.{name}": plain(np.asarray(value))
        for i, chunk in enumerate(statistics)
        for name, value in chunk.items()
    }


def _checksum(arrays):
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _check_origin(arrays, span, simulation):
    checksum = arrays.pop("checksum", None)
    if checksum is None or str(checksum) != _checksum(arrays):
        raise ValueError("it has been changed, or is of an earlier version")
    if str(arrays["simulation"]) != simulation:
        raise ValueError("it is of another simulation")
    start, stop = arrays["span"].tolist()
    if (start, stop) != span:
        raise ValueError(f"it is of replicates {start} to {stop - 1}")


def _like(name, probe, value, size):
    """Returns an array of a chunk, if it is like that of one replicate."""
    shape, same, value = probe.shape, True, typed(value, probe.dtype)
    if name == "values":
        shape = (size, *probe.shape[1:])
        same = value.dtype == probe.dtype
    if value.shape != shape or not same or (name == "count" and value != size):
        raise ValueError(f"{name} of {size} replicates, not {value.dtype}{value.shape}")
    if name in ("sum", "squares") and probe.dtype.kind == "U":
        strange = [text for text in value.flat if not is_fraction(text)]
        if strange:
            raise ValueError(f"expected {name} as a fraction, got {strange[0]!r:.40}")
    return value
