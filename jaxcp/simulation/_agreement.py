"""Decisions that all processes of one program share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

_T = TypeVar("_T")


def largest(*values: float, together: bool) -> tuple[float, ...]:
    """Returns the largest of each value among the processes."""
    if not together:
        return values
    from jax.experimental import multihost_utils

    every = multihost_utils.process_allgather(np.asarray(values, np.float32))
    return tuple(float(v) for v in np.max(every, axis=0))


def _as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def from_first(
    make: Callable[[], _T],
    *,
    together: bool,
    pack: Callable[[_T], bytes] = _as_json,
    unpack: Callable[[bytes], _T] = json.loads,
) -> _T:
    """Returns the result of process 0 in every process, or raises its error there.

    It travels in the form of `pack`: JSON where that holds it.
    """
    if not together:
        return make()
    made, error, content = None, None, b""
    if jax.process_index() == 0:
        try:
            made = make()
            content = b"+" + pack(made)
        except (ValueError, OSError) as raised:
            error, content = raised, b"-" + _packed_error(raised)
    content = _broadcast(content)
    if content[:1] == b"-":
        raise error or _unpacked_error(content[1:])
    return unpack(content[1:]) if made is None else made


def _packed_error(error):
    """Returns an error as bytes: its arguments if they are those of a system's."""
    system = isinstance(error, OSError) and error.errno is not None
    parts = [error.errno, error.strerror, error.filename] if system else [str(error)]
    return json.dumps([isinstance(error, OSError), parts], default=str).encode()


def _unpacked_error(content):
    system, parts = json.loads(content)
    return OSError(*parts) if system else ValueError(*parts)


def _broadcast(content):
    """Returns the bytes of process 0."""
    from jax.experimental import multihost_utils

    mine = np.frombuffer(content, np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(mine.size)))
    mine = mine if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).tobytes()
