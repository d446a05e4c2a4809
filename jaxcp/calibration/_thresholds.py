"""From levels to thresholds, sets and p-values, for scores, weights and a mask."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import invert, invert_each, widened
from jaxcp._numbers import as_float, rounding
from jaxcp._tracing import jit
from jaxcp.pvalues.conformal import p_values_among
from jaxcp.quantiles.conformal import weighted_conformal_quantile
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, conformal_rank, split_alpha
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, PyTree


def level_of(calibration: Any, alpha: ArrayLike) -> Array:
    """Returns what a level comes to: ranks, or floats where there are weights."""
    alpha = split_alpha(as_alpha(alpha), calibration.scores)
    if calibration.weights is not None:
        return alpha_as_float(alpha)
    mask = calibration.mask
    count = len(calibration.scores) if mask is None else jnp.sum(mask)
    return conformal_rank(count, alpha)


def set_level_of(calibration: Any, alpha: ArrayLike) -> Array:
    """Returns `level_of` for sets, which have one level (or one a component)."""
    level = level_of(calibration, alpha)
    expected = calibration.scores.shape[1:]
    if level.ndim > len(expected):
        shapes = f"{expected} or ()" if expected else "()"
        raise ValueError(
            f"expected alpha of shape {shapes}, got {level.shape}; use jax.vmap for "
            "sets at several levels"
        )
    return level


def check_test_weights(
    calibration: Any, test_weights: ArrayLike | None, name: str = "test_weights"
) -> None:
    """Raises ValueError for weights of test points that do not fit."""
    if test_weights is None:
        return
    if calibration.weights is None:
        raise ValueError(f"expected {name} only with calibration weights")
    _checks.check_weights(name, test_weights)


@jit
def threshold(calibration: Any, level: Array, test_weight: Array | None) -> Array:
    """Returns the threshold at what `level_of` made of a level, shape () or (c,)."""
    scores, weights = calibration.scores, calibration.weights

    def select(column, level):
        if weights is None:
            return kth_smallest(column, level, where=calibration.mask)
        return weighted_conformal_quantile(
            column,
            weights,
            level,
            test_weight=1.0 if test_weight is None else test_weight,
        )

    if scores.ndim == 1:
        return (
            select(scores, level)
            if weights is None
            else jnp.vectorize(lambda v: select(scores, v))(level)
        )
    return jax.vmap(select)(scores.T, level)


@jit
def sets_of(
    calibration: Any, preds: PyTree, level: Array, test_weights: Array | None
) -> AnySet:
    """Returns the sets of a batch of predictions."""
    if test_weights is None:
        q = threshold(calibration, level, None)
        return invert(calibration.score, preds, q)
    q = jax.vmap(threshold, (None, None, 0))(calibration, level, test_weights)
    return invert_each(calibration.score, preds, q)


@jit
def p_values_of(
    calibration: Any, preds: PyTree, y: Array, u: Array | None, test_weights: Array
) -> Array:
    """Returns the p-values of a batch, shape (m,); conservative ones without `u`."""
    known = as_float(calibration.scores)
    if u is None and _sets_round(calibration, preds):
        known = known + rounding(known)
    u = 1.0 if u is None else u
    weights = calibration.weights
    if weights is None and calibration.mask is not None:
        weights = calibration.mask
    scores = jax.vmap(calibration.score)(*widened((preds, y)))
    if scores.ndim == 1:
        return p_values_among(known, scores, u, weights, test_weights)
    columns = jax.vmap(p_values_among, (1, 1, None, None, None), 1)
    p = columns(known, scores, u, weights, test_weights)
    return jnp.minimum(1, scores.shape[1] * jnp.min(p, axis=1))


def _sets_round(calibration, preds):
    """Returns whether sets hold targets that exceed the threshold by rounding alone."""
    one = lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype)  # noqa: E731
    pred, q = jax.tree.map(one, (widened(preds), calibration.scores))
    region = jax.eval_shape(calibration.score.invert, pred, q)
    extended = inputs.is_extended(calibration.score)  # rounds at its threshold
    return getattr(region, "rounds", False) or extended
