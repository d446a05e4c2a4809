"""Cells of a grid: rounded targets, a fit for each, and what is left of each cell."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._batching import map_blocks, map_evenly, widened
from jaxcp._numbers import rounding
from jaxcp._tracing import jit
from jaxcp.full import _grids
from jaxcp.full._refits import fitted
from jaxcp.pvalues.conformal import p_values_among
from jaxcp.quantiles.conformal import threshold_at
from jaxcp.sets import Intervals
from jaxcp.typing import PyTree

# Numbers of the fits of some cells of one test point: 64 MB in single precision.
_CELL_NUMBERS = 2**24
_FEW = 4  # eps that predictions of equal rows may be apart


@jit
def sets(cp: Any, x_new: PyTree, rank: Array, test_weights: Array | None) -> Intervals:
    """Returns the union of what is left of each cell, at each input."""
    lows, highs, valid = _grids.ends(cp.grid)
    y = _grids.rounded(cp.grid, cp.y)
    at_a_time = max(_CELL_NUMBERS // _numbers(cp), 1)

    def one(x, test_weight):
        def piece(target, low, high):
            pred, scores = _refit(cp, x, y, target)
            q = threshold_at(scores, rank, cp.mask, cp.weights, test_weight)
            return _within(cp.score.invert(pred, q), low, high)

        lower, upper = map_evenly(piece, cp.grid, lows, highs, at_a_time=at_a_time)
        return _grids.union(lower, upper, valid)

    return _at_each(cp, one, len(cp.grid), x_new, test_weights)


@jit
def p_values(
    cp: Any, x_new: PyTree, targets: Array, u: Array | None, test_weights: Array | None
) -> Array:
    """Returns the p-value of each example among the rows, shape (m,)."""
    valid, y = _grids.ends(cp.grid)[2], _grids.rounded(cp.grid, cp.y)
    masses = cp.mask if cp.weights is None else cp.weights

    def one(x, target, u, test_weight):
        fitted_with = _grids.rounded(cp.grid, target)
        pred, scores = _refit(cp, x, y, fitted_with, exact=u is not None)
        own = cp.score(*widened((pred, target)))
        own = jnp.where(jnp.isnan(own), -jnp.inf, own)  # says nothing against it
        p = p_values_among(scores, own[None], u, masses, test_weight)[0]
        return jnp.where(valid, p, 1)

    return _at_each(cp, one, 1, x_new, targets, u, test_weights)


def with_one_more(rows: PyTree) -> PyTree:
    """Returns the shapes of rows and a test point."""
    return jax.tree.map(
        lambda v: jax.ShapeDtypeStruct((len(v) + 1, *v.shape[1:]), v.dtype), rows
    )


def _refit(cp, x, y, target, *, exact=False):
    """Returns the prediction at x and the scores of the rows, under one fit on all."""
    everything = jax.tree.map(lambda v, new: jnp.append(v, new[None], 0), cp.x, x)
    y = jnp.append(y, target)
    preds = widened(fitted(cp.learner, cp.key, everything, y, cp.mask)[1])
    pred = jax.tree.map(lambda v: v[-1], preds)
    scores = _scores(cp, jax.tree.map(lambda v: v[:-1], preds), exact)
    return pred, scores


def _scores(cp, preds, exact):
    """Returns the scores of the rows, unless exact with room for rounding.

    A row equal to the test point ties with it on paper, but a product with many rows
    may round the last one otherwise.
    """
    y = widened(cp.y)
    scores = jax.vmap(cp.score)(preds, y)
    if exact:
        return scores
    apart = lambda v: v + _FEW * jnp.finfo(v.dtype).eps * v  # noqa: E731
    moved = jax.vmap(cp.score)(jax.tree.map(_if_float(apart), preds), y)
    room = jnp.abs(moved - scores)
    room = jnp.where(jnp.isfinite(room), room, 0) + rounding(scores)
    return scores + lax.stop_gradient(room)


def _if_float(function):
    """Returns a function of arrays of floats, which leaves others as they are."""
    floats = lambda v: jnp.issubdtype(v.dtype, jnp.floating)  # noqa: E731
    return lambda v: function(v) if floats(v) else v


def _within(region, low, high):
    """Returns the ends of what a set holds of a cell; all of it where they are NaN."""
    lower, upper = (jnp.reshape(end, low.shape) for end in region.ends())
    lower = jnp.where(jnp.isnan(lower), low, jnp.maximum(lower, low))
    return lower, jnp.where(jnp.isnan(upper), high, jnp.minimum(upper, high))


def _at_each(cp, one, num_cells, *rows):
    """Returns `one(*row)` of each test point, some points at a time."""
    if cp.batch_size is not None:
        return map_evenly(one, *rows, at_a_time=cp.batch_size)
    data = sum(leaf.size for leaf in jax.tree.leaves(cp.x))
    width = data + num_cells * _numbers(cp)
    return map_blocks(jax.vmap(one), *rows, width=width)


def _numbers(cp):
    """Returns how many numbers a fit, its predictions and scores are."""
    x, y = with_one_more((cp.x, cp.y))
    of_fit = jax.eval_shape(fitted, cp.learner, cp.key, x, y, cp.mask)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(of_fit))
    return max(numbers + cp.y.size * math.prod(cp.components), 1)
