"""Batches of rows that stay in the cache."""

from collections.abc import Callable

import jax
from jax import Array, lax

from jaxcp._types import PyTree

_BLOCK = 2**19  # numbers in a block: 2 MB in single precision, to fit a cache
_WIDE = 64  # numbers in a row from which passes over the row outweigh the loop


def map_rows(fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """Returns `jax.vmap(fn)(*rows)`, in blocks if the rows are wide and many.

    A function that passes over its row many times is then two to four times faster on a
    CPU; on other devices the blocks only bound the memory.
    """
    leaves: list[Array] = jax.tree.leaves(rows)
    num_rows = leaves[0].shape[0]
    width = sum(leaf.size for leaf in leaves) // max(num_rows, 1)
    if width < _WIDE or num_rows * width <= _BLOCK:
        return jax.vmap(fn)(*rows)
    return lax.map(lambda row: fn(*row), rows, batch_size=max(_BLOCK // width, 1))
