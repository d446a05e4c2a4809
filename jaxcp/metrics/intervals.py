"""Scores of intervals and quantiles, and criteria of coverage and width together."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks, _tree
from jaxcp._numbers import as_float, kept, mean
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import Count, metric
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasPieces

_SIDES = "lower", "upper"


def _of_intervals(sets, y, alpha, **options):
    _checks.check_scalars(**options)
    sets, y = _sets.check_sets(check_intervals(sets), y)
    return (sets, as_float(y)), {"alpha": _sets.check_level(alpha)} | options


def check_intervals(sets):
    """Returns sets as intervals; ValueError for others."""
    sets = as_intervals(_sets.as_sets(sets))
    has_pieces = issubclass(type(sets), HasPieces)
    cure = "; sets.hull() is an interval around each" if has_pieces else ""
    _checks.check_kind("sets of kind Interval", sets, Interval, cure)
    return sets


def _of_bounds(sets, *, side=None):
    sets = _sets.as_batch(check_intervals(sets))
    side = side_of(sets, side)
    expected = "side, as sets are not known to be bounded on one alone,"
    _checks.check_one_of(expected, side, _SIDES)
    return (sets,), {"side": side}


def _of_bounds_and_targets(sets, y, alpha, *, side=None):
    rows, options = _of_intervals(sets, y, alpha)
    return rows, options | _of_bounds(rows[0], side=side)[1]


def side_of(sets, side=None):
    """Returns the only side that intervals are bounded on, as given or as seen."""
    if side is not None:
        _checks.check_one_of("side", side, _SIDES)
    if side is not None or not _arrays.is_concrete(sets):
        return side
    ends = zip(("upper", "lower"), sets.ends(), (-np.inf, np.inf), strict=True)
    bounded = [name for name, end, free in ends if np.all(np.asarray(end) == free)]
    return bounded[0] if len(bounded) == 1 else None


@_checks.by_labels
def interval_score(sets: Interval | ArrayLike, y: ArrayLike, alpha: ArrayLike) -> Array:
    """Returns the interval score of every row: width, and a fine for a miss.

    width + (2 / alpha) (lower - y)+ + (2 / alpha) (y - upper)+. It is proper: least, on
    average, for the alpha/2 and 1 - alpha/2 quantiles.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      y: Targets, shape (m,).
      alpha: Miscoverage level of the intervals, shape ().

    Returns:
      Scores, shape (m,), in units of the target; less is better, +inf for infinite
      intervals. A crossed interval has width 0 and pays for both ends.

    Raises:
      ValueError: as `coverage`, for sets of another kind, or if a number `alpha` is
        outside (0, 1).

    Cost:
      O(m) time.

    References:
      Gneiting, Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation,
      JASA, 2007.

    See also:
      metrics.winkler_score, metrics.pinball_score, metrics.sizes

    Example:
      >>> sets = Interval(jnp.zeros(2), jnp.ones(2))
      >>> interval_score(sets, jnp.array([0.5, 1.5]), alpha=0.5)
      Array([1., 3.], dtype=float32)
    """
    rows, options = _of_intervals(sets, y, alpha)
    return _batching.by_rows(_interval_score, options["alpha"], rows=rows)


@_tree.jit
def _interval_score(alpha, sets, y):
    below = jnp.where(y < sets.lower, sets.lower - y, 0)  # not inf - inf inside
    above = jnp.where(y > sets.upper, y - sets.upper, 0)
    scores = _sets.closed_form_sizes(sets) + 2 / alpha * (below + above)
    return _sets.where_known(scores, (sets, y))


@metric(_of_intervals)
def winkler_score(
    count: Count, sets: Interval | ArrayLike, y: ArrayLike, alpha: ArrayLike
) -> Array:
    """Returns the mean interval score: Winkler's, also MWI.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      y: Targets, shape (m,).
      alpha: Miscoverage level of the intervals, shape ().

    Returns:
      Mean of `interval_score`, shape (), in units of the target; less is better.

    Raises:
      ValueError: as `interval_score`.

    Cost:
      O(m) time.

    References:
      Winkler, A Decision-Theoretic Approach to Interval Estimation, JASA, 1972.

    See also:
      metrics.interval_score, metrics.coverage_width_criterion

    Example:
      >>> sets = Interval(jnp.zeros(2), jnp.ones(2))
      >>> winkler_score(sets, jnp.array([0.5, 1.5]), alpha=0.5)
      Array(2., dtype=float32)
    """
    return mean(_interval_score(alpha, sets, y), count)


@_checks.by_labels
def pinball_score(preds: ArrayLike, y: ArrayLike, level: ArrayLike) -> Array:
    """Returns the mean pinball loss of predicted quantiles.

    mean of max(level (y - q), (level - 1) (y - q)), least for the true quantile.

    Args:
      preds: Predicted quantiles, shape (m,), or (m, a) for several levels.
      y: Targets, shape (m,).
      level: Level of the quantiles in (0, 1), shape (), or (a,).

    Returns:
      Mean loss, shape () or (a,), in units of the target; less is better.

    Raises:
      ValueError: if lengths differ, a concrete value is NaN, or a number `level` is
        outside (0, 1).

    Cost:
      O(m) time for each level.

    References:
      Koenker, Bassett, Regression Quantiles, Econometrica, 1978.

    See also:
      metrics.interval_score, learners.QuantileRidge

    Example:
      >>> round(pinball_score(jnp.zeros(2), jnp.array([1.0, -1.0]), 0.9).item(), 6)
      0.5
    """
    preds, y = _arrays.as_array("preds", preds), _arrays.as_array("y", y)
    level = _arrays.as_array("level", level)
    m = _checks.num_rows(preds=preds, y=y)
    _checks.check_not_nan("preds", preds)
    _checks.check_not_nan("y", y)
    _checks.check_values(lambda v: (v > 0) & (v < 1), "level in (0, 1)", level)
    _checks.check_shape("y", (m,), y.shape)
    _checks.check_shape("preds", (m, *level.shape), preds.shape)
    return _pinball(as_float(preds), as_float(y), as_float(level))


@_tree.jit
def _pinball(preds, y, level, count=None):
    error = y.reshape(-1, *(1,) * level.ndim) - preds
    level = jnp.broadcast_to(level, error.shape)
    return mean(jnp.maximum(level * error, (level - 1) * error), count)


@metric(_of_bounds)
def mean_bound(
    count: Count, sets: Interval | ArrayLike, *, side: str | None = None
) -> Array:
    """Returns the mean bound of sets that are bounded on one side.

    What `mean_size` is for intervals: of upper bounds less is better, of lower ones
    more.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      side: Which end counts, "upper" or "lower". Defaults to the one that is finite, of
        sets whose other ends all are infinite; inside of jit it has to be given.

    Returns:
      Mean bound, shape (), in units of the target; infinite if one is.

    Raises:
      ValueError: for sets of another kind, and without `side` for those that are not
        bounded on one side alone, or not known.

    Cost:
      O(m) time.

    See also:
      metrics.pinball, metrics.mean_size, scores.Residual

    Example:
      >>> mean_bound(Interval(jnp.full(2, -jnp.inf), jnp.array([1.0, 3.0])))
      Array(2., dtype=float32)
    """
    return mean(_sets.where_known(getattr(sets, side or ""), sets), count)


@metric(_of_bounds_and_targets)
def pinball(
    count: Count,
    sets: Interval | ArrayLike,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    side: str | None = None,
) -> Array:
    """Returns the mean pinball loss of the bounds of sets with one finite end.

    mean of max((1 - alpha) e, -alpha e), e = y - upper or lower - y: how far a target
    lies outside, or inside. It is least, on average, for the true quantile, of level 1
    - alpha or alpha.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      y: Targets, shape (m,).
      alpha: Miscoverage level of the sets, shape ().
      side: Which end counts, as for `mean_bound`.

    Returns:
      Mean loss, shape (), in units of the target; less is better, +inf if a bound is
      infinite.

    Raises:
      ValueError: as `mean_bound` and `coverage`, or if a number `alpha` is outside (0,
        1).

    Cost:
      O(m) time.

    References:
      Koenker, Bassett, Regression Quantiles, Econometrica, 1978.

    See also:
      metrics.pinball_score, metrics.mean_bound, metrics.winkler_score

    Example:
      >>> sets = Interval(jnp.full(2, -jnp.inf), jnp.array([1.0, 3.0]))
      >>> round(pinball(sets, jnp.array([2.0, 2.0]), alpha=0.1).item(), 6)
      0.5
    """
    end, level = _end(sets, alpha, side)
    return _pinball(end, y, level, count)


def _end(sets, alpha, side):
    """Returns the end of sets on a side, and the level that it is a quantile of."""
    return as_float(getattr(sets, side)), alpha if side == "lower" else 1 - alpha


@metric(_of_intervals)
def coverage_width_criterion(
    count: Count,
    sets: Interval | ArrayLike,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    eta: ArrayLike,
) -> Array:
    """Returns a criterion that falls with the width and with the error of coverage.

    (1 - mean width / range(y)) exp(-eta (coverage - (1 - alpha))^2): CWC.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      y: Targets, shape (m,).
      alpha: Miscoverage level of the intervals, shape ().
      eta: Weight of the error of coverage, shape ().

    Returns:
      Criterion, shape (); more is better, 1 is the most. -inf where the mean width is
      infinite or, with widths above 0, all targets are the same.

    Raises:
      ValueError: as `interval_score`.

    Cost:
      O(m) time.

    References:
      Cordier et al., Flexible and Systematic Uncertainty Estimation with Conformal
      Prediction via the MAPIE Library, COPA, 2023.

    See also:
      metrics.khosravi_coverage_width_criterion, metrics.winkler_score

    Example:
      >>> sets = Interval(jnp.zeros(2), jnp.ones(2))
      >>> y = jnp.array([0.0, 4.0])
      >>> round(coverage_width_criterion(sets, y, 0.5, eta=10.0).item(), 6)
      0.75
    """
    width, error = _width_and_error(sets, y, count, alpha)
    finite = jnp.isfinite(width)
    value = (1 - jnp.where(finite, width, 0)) * jnp.exp(-(eta * error**2))
    return jnp.where(finite, value, -width)


@metric(_of_intervals)
def khosravi_coverage_width_criterion(
    count: Count,
    sets: Interval | ArrayLike,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    eta: ArrayLike,
) -> Array:
    """Returns a criterion that rises with the width and where coverage falls short.

    w (1 + 1(coverage < 1 - alpha) exp(-eta (coverage - (1 - alpha)))) with the mean
    width w in units of range(y): CWC with PINAW.

    Args:
      sets: Intervals with ends of shape (m,), or an array (m, 2) of their ends.
      y: Targets, shape (m,).
      alpha: Miscoverage level of the intervals, shape ().
      eta: Weight of missing coverage, shape (), e.g. 50.

    Returns:
      Criterion >= 0, shape (); less is better. +inf where the mean width is infinite
      or, with widths above 0, all targets are the same.

    Raises:
      ValueError: as `interval_score`.

    Cost:
      O(m) time.

    References:
      Khosravi, Nahavandi, Creighton, Atiya, Lower Upper Bound Estimation Method for
      Construction of Neural Network-Based Prediction Intervals, IEEE Transactions on
      Neural Networks, 2011.

    See also:
      metrics.coverage_width_criterion, metrics.winkler_score

    Example:
      >>> sets = Interval(jnp.zeros(2), jnp.ones(2))
      >>> y = jnp.array([0.0, 4.0])
      >>> khosravi_coverage_width_criterion(sets, y, 0.5, eta=50.0).item()
      0.25
    """
    width, error = _width_and_error(sets, y, count, alpha)
    fine = jnp.exp(-(eta * error.clip(max=0))) * (error < 0)
    return jnp.where(width > 0, width * (1 + fine), width)


def _width_and_error(sets, y, count, alpha):
    """Returns the mean width over the range of y, 0/0 is 0, and that of coverage."""
    rate = mean(_sets.is_covered(sets, y), count)
    width = mean(_sets.closed_form_sizes(sets), count)
    largest = jnp.max(kept(y, count, -jnp.inf), initial=-jnp.inf)
    span = largest - jnp.min(kept(y, count, jnp.inf), initial=jnp.inf)
    ratio = width / jnp.where(span > 0, span, 1)
    flat = jnp.where(width > 0, jnp.inf, width)
    return jnp.where(span > 0, ratio, flat), _sets.above_level(rate, alpha)
