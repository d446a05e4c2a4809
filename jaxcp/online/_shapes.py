"""Checks of a stream's arguments against the shapes of its state."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._batching import score_of
from jaxcp.typing import PyTree


def check_example(
    method: Any, state: PyTree, pred: PyTree, y: Array | None, rank: PyTree
) -> None:
    """Raises ValueError for a batch, or past scores of another score, by their shapes.

    Without a target, which may have any shape, only for what must be a batch.
    """
    past = jax.eval_shape(method.threshold, state, rank).shape
    if past in _score_shapes(method.score, pred, y):
        return
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves((pred, y))}
    is_batch = len(sizes) == 1 and sizes != {()}
    if is_batch and past in _score_shapes(method.score, *one_row((pred, y))):
        (size,) = sizes.pop()
        raise ValueError(
            f"expected one example, got a batch of {size}; online.run takes a batch"
        )
    if y is not None:
        check_past(method, state, pred, y, rank)


def check_past(
    method: Any, state: PyTree, pred: PyTree, y: Array, rank: PyTree
) -> None:
    """Raises ValueError, while tracing, if the past scores are of another score."""
    past = jax.eval_shape(method.threshold, state, rank).shape
    scores = jax.eval_shape(partial(score_of, method.score), pred, y).shape
    if scores != past:
        raise ValueError(
            f"expected past scores with components {scores}, as from preds and y, got "
            f"{past} in the state"
        )


def one_row(tree: PyTree) -> PyTree:
    """Returns the shapes and types of one row of a batch."""
    return jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), tree)


def _score_shapes(score, pred, y):
    """Returns the shape of a score, or those that it has for some target."""
    shapes = set()
    for target in _targets(pred) if y is None else [y]:
        try:
            shapes.add(jax.eval_shape(score, pred, target).shape)
        except Exception:  # of a target that does not fit: any error of the score
            continue
    return shapes


def _targets(pred):
    """Returns targets that a prediction may be of: a number, or like its parts."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(pred)]
    each = {(), *shapes, *(shape[1:] for shape in shapes)}
    kinds = float, int
    return [jax.ShapeDtypeStruct(s, kind) for s in sorted(each) for kind in kinds]
