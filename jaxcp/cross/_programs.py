"""Programs from what b fits predict at new inputs to sets, in blocks of inputs.

A source makes the predictions: fits, of inputs, or `Recorded`, of predictions.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._tracing import jit
from jaxcp.cross import _folds, _votes
from jaxcp.quantiles.conformal import thresholds
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, HasEnds, HasShapes, PyTree

# Rows in a fold from which a binary search beats a pass over its scores.
_LONG_FOLDS = 64


@jit
def held_out(left_out: Any, preds: PyTree) -> PyTree:
    """Returns predictions of rows without them, (b, n, ...) to (n, ...)."""
    return left_out.of_recorded(preds)


@jit
def counted(
    scores: Array, held_out: Array, mask: Array | None, bags: Array
) -> tuple[Array, Array]:
    """Returns scores and which rows count, where some rows are in every fit.

    Such rows score +inf, as any default prediction of theirs does at worst (Kim, Xu,
    Barber 2020), unless fits left out one fold each: then they train alone.
    """
    fits = jnp.sum(held_out, axis=0)
    known, bags = fits > 0, bags | jnp.any(fits > 1)
    mask = (known | bags) & (True if mask is None else mask)
    known = known.reshape(-1, *(1,) * (scores.ndim - 1))
    return jnp.where(known, scores, jnp.inf), mask


@jit
def plus(cp: Any, source: Any, x: PyTree, rank: Array, test_weights: Any) -> AnySet:
    """Returns the "+" set at each input."""
    score, of, preds = cp.score, cp.calibration, _shapes(source, x)
    if _has_long_folds(cp, preds):
        return _plus_of_folds(cp, source, x, rank, preds)
    n, m = len(cp.scores), _num_inputs(preds)
    test_weights = jnp.ones(m) if test_weights is None else test_weights
    ranks = jnp.atleast_1d(rank)

    def one(preds, test_weight):
        ballot = _votes.Ballot(ranks, of.mask, of.weights, test_weight)
        preds = cp.left_out.without_each(preds)
        return _votes.plus(score, preds, _known(of.scores), ballot)

    return source.at_each(one, x, test_weights, width=n * _width(cp, preds))


@jit
def minmax(cp: Any, source: Any, x: PyTree, rank: Array, test_weights: Any) -> AnySet:
    """Returns the hull of the sets of all fits that vote, at each input."""
    of, voting, preds = cp.calibration, cp.left_out.voting, _shapes(source, x)
    q = of.threshold(rank)
    q = jnp.broadcast_to(q[None], (_num_inputs(preds), *q.shape))
    if test_weights is not None:
        q = jax.vmap(of.threshold, (None, 0))(rank, test_weights)

    def one(preds, q):
        return _votes.minmax(cp.score, cp.left_out.voters(preds), q, voting)

    return source.at_each(one, x, q, width=len(voting) * _width(cp, preds))


@jit
def center(cp: Any, source: Any, x: PyTree) -> PyTree:
    """Returns the aggregate of the predictions without each row, at each input."""
    width = len(cp.scores) * _width(cp, _shapes(source, x))
    return source.at_each(cp.left_out.center, x, width=width)


@jit
def upper_center(cp: Any, source: Any, x: PyTree, rank: Array) -> PyTree:
    """Returns the prediction of a rank among those without each row."""

    def one(preds):
        each = cp.left_out.without_each(preds)
        return jax.tree.map(lambda v: thresholds(v, rank, cp.mask), each)

    width = len(cp.scores) * _width(cp, _shapes(source, x))
    return source.at_each(one, x, width=width)


def _plus_of_folds(cp, source, x, rank, preds):
    score, fold, count = cp.score, cp.left_out.fold, cp.left_out.count
    folds = _folds.sort_folds(_known(cp.scores), fold, count)

    def one(preds):
        if inputs.has_labels(score):
            labels = jax.vmap(score.labels)(preds)
            return _folds.plus_labels(labels, jax.tree.map(lambda v: v[0], folds), rank)
        return _folds.plus_interval(score, preds, folds, jnp.atleast_1d(rank))

    return source.at_each(one, x, width=_LONG_FOLDS * count * _width(cp, preds))


def _shapes(source, x):
    """Returns the shapes of predictions, leading axes (b, m)."""
    return jax.eval_shape(source.predict, x)


def _num_inputs(preds):
    return jax.tree.leaves(preds)[0].shape[1]


def _width(cp, preds):
    """Returns how many numbers a set is made of for each fit: predictions, times c."""
    numbers = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(preds))
    return max(numbers, 1) * math.prod(cp.scores.shape[1:])


def _known(scores):
    """Returns scores with +inf for NaN: a row without a score excludes nothing."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _has_long_folds(cp, preds):
    """Returns whether the sorted scores of folds give the same sets faster."""
    score, of = cp.score, cp.calibration
    if cp.left_out.rows_per_fit < _LONG_FOLDS or of.weights is not None:
        return False
    if inputs.has_labels(score):
        return not inputs.is_inclusive(score)
    pred = jax.tree.map(lambda v: jnp.zeros(v.shape[2:], v.dtype), preds)
    kind = jax.eval_shape(score.invert, pred, of.scores[0])
    has_ends = isinstance(kind, HasEnds) and isinstance(kind, HasShapes)
    return has_ends and kind.target_shape() == ()
