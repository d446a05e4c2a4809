"""Scores and their sets over the rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._padding import by_rows
from jaxcp._tracing import jit
from jaxcp.typing import AnySet, LabelScore, PyTree, Score

_BLOCK = 2**19  # numbers in a block: 2 MB in single precision, to fit a cache
_WIDE = 64  # numbers in a row from which passes over the row outweigh the loop


def map_rows(fn: Callable[..., PyTree], *rows: PyTree) -> PyTree:
    """Returns `jax.vmap(fn)(*rows)`, in blocks if the rows are wide and many.

    A function that passes over its row many times is then two to four times faster on a
    CPU; on other devices the blocks only bound the memory.
    """
    leaves: list[Array] = jax.tree.leaves(rows)
    num_rows = leaves[0].shape[0]
    width = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    if width < _WIDE or not isinstance(num_rows, int) or num_rows * width <= _BLOCK:
        return jax.vmap(fn)(*rows)
    return map_evenly(fn, *rows, at_a_time=max(_BLOCK // width, 1))


def map_evenly(fn: Callable[..., PyTree], *rows: PyTree, at_a_time: int) -> PyTree:
    """Returns `jax.vmap(fn)(*rows)`, in blocks of one size, at most `at_a_time`."""
    return _map_blocks(jax.vmap(fn), rows, at_a_time)


def map_batches(fn: Callable[..., PyTree], *rows: PyTree, at_a_time: int) -> PyTree:
    """Returns `fn(*rows)` of batches, in blocks of one size, at most `at_a_time`."""
    return _map_blocks(fn, rows, at_a_time)


def map_blocks(fn: Callable[..., PyTree], *rows: PyTree, width: int) -> PyTree:
    """Returns `fn(*rows)` of batches, in blocks so that memory stays small.

    Args:
      fn: Function of batches, row by row.
      *rows: Pytrees with one leading axis.
      width: Intermediate numbers that `fn` makes for each row.

    Returns:
      What `fn` returns for all rows.
    """
    return _map_blocks(fn, rows, max(_BLOCK // max(width, 1), 1))


def _map_blocks(fn, rows, at_most):
    """Returns `fn(*rows)` of batches, in blocks of one size.

    The last block is filled up with the first rows, whose results are dropped: what
    remains of even blocks would be another program, and take as long to compile.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    num_blocks = -(-num_rows // at_most)
    if not isinstance(num_rows, int) or num_blocks <= 1:  # an export may leave it open
        return fn(*rows)
    size = -(-num_rows // num_blocks)
    missing = num_blocks * size - num_rows

    def blocks(v):
        again = lax.stop_gradient(v[:missing])
        filled = jnp.concatenate([v, again]) if missing else v
        return filled.reshape(num_blocks, size, *v.shape[1:])

    out = lax.map(lambda block: fn(*block), jax.tree.map(blocks, rows))
    return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:])[:num_rows], out)


def score_of(score: Score, pred: PyTree, y: Array) -> Array:
    """Returns the score of one example; ValueError unless real, () or (c,)."""
    return _checked(score(pred, y), "score(pred, y) of shape () or (c,)", (0, 1))


def labels_of(score: LabelScore, pred: PyTree) -> Array:
    """Returns the scores of all labels of one example; ValueError unless (k,)."""
    return _checked(score.labels(pred), "labels(pred) of shape (k,)", (1,))


def _checked(found, expected, ndims):
    kind = None if found is None else type(found).__name__
    if hasattr(found, "dtype") or isinstance(found, Real):
        found = found if isinstance(found, Array) else jnp.asarray(found)
        is_complex = jnp.iscomplexobj(found)
        if found.ndim in ndims and found.size and not is_complex:
            return found
        kind = found.dtype if is_complex else found.shape
    raise ValueError(f"expected {expected}, got {kind}")


def evaluate(score: Score, preds: PyTree, y: Array) -> Array:
    """Returns the score of every row."""
    preds, y = widened((preds, y))
    if all(_on_one_device(leaf) for leaf in jax.tree.leaves((preds, y))):
        return by_rows(_evaluate_in_blocks, score, rows=(preds, y))
    return evaluate_at_once(score, preds, y)  # blocks would gather rows of many devices


def _on_one_device(leaf):
    return isinstance(leaf, jax.core.Tracer) or len(leaf.devices()) == 1


@jit
def evaluate_at_once(score: Score, preds: PyTree, y: Array) -> Array:
    """Returns the score of every row, without blocks."""
    return jax.vmap(partial(score_of, score))(preds, y)


@jit
def _evaluate_in_blocks(score, preds, y):
    return map_rows(partial(score_of, score), preds, y)


@jit
def label_scores(score: LabelScore, preds: PyTree) -> Array:
    """Returns the scores of all labels in every row, shape (n, k)."""
    return jax.vmap(partial(labels_of, score))(preds)


@jit
def invert(score: Score, preds: PyTree, q: Array) -> AnySet:
    """Returns the set of every row at one threshold."""
    return map_rows(lambda pred: score.invert(pred, q), widened(preds))


@jit
def invert_each(score: Score, preds: PyTree, q: Array) -> AnySet:
    """Returns the set of every row at a threshold of its own."""
    return map_rows(score.invert, widened(preds), q)


def widened(tree: PyTree) -> PyTree:
    """Returns narrow and unsigned integers as default ones, whose differences fit.

    As floats where default integers do not hold them all.
    """
    default = jax.dtypes.canonicalize_dtype(int)

    def widen(v):
        unsigned = jnp.issubdtype(v.dtype, jnp.unsignedinteger)
        narrow = jnp.issubdtype(v.dtype, jnp.integer) and v.dtype.itemsize < 4
        if not (unsigned or narrow):
            return v
        return v.astype(default if np.can_cast(v.dtype, default) else float)

    return jax.tree.map(widen, tree)
