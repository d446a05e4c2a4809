"""What all processes of one program must decide alike."""

import pickle
from collections.abc import Callable
from typing import TypeVar

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


def from_first(make: Callable[[], _T], *, together: bool) -> _T:
    """Returns what process 0 makes, on all of them, or raises its error on all."""
    if not together:
        return make()
    made, error = None, None
    if jax.process_index() == 0:
        try:
            made = make()
        except (ValueError, OSError) as raised:
            error = raised
    made, error = _broadcast((made, error))
    if error is not None:
        raise error
    return made


def _broadcast(value):
    from jax.experimental import multihost_utils

    content = np.frombuffer(pickle.dumps(value), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(content.size)))
    mine = content if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return pickle.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(mine))))
