"""Conformal p-values, and e-values that may be averaged over repetitions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays, group_codes
from jaxcp._numbers import as_float, at_least_single, quotient
from jaxcp.pvalues.multiple import as_p_values, as_share, step_up
from jaxcp.quantiles._keys import common_keys, num_below, to_keys
from jaxcp.quantiles._rows import bounds_of, unit_scale
from jaxcp.quantiles.thresholds import masses_at, weight_of_test
from jaxcp.typing import ArrayLike


@_checks.by_labels
def conformal_p_value(
    scores: ArrayLike,
    score: ArrayLike,
    *,
    u: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
    test_weight: ArrayLike | None = None,
) -> Array:
    """Returns how exceptional a score is among calibration scores.

    p = (#{S_i > s} + u (1 + #{S_i = s})) / (n + 1); with weights, the counts are masses
    and the 1 is the weight of the test point.

    Args:
      scores: Nonconformity scores, shape (n,). NaN counts as +inf.
      score: Score of the test point, shape (). NaN counts as +inf.
      u: 1 for the conservative p-value, a uniform number in [0, 1] for the smoothed
        one, shape ().
      weights: Weights >= 0 of the calibration scores, shape (n,): likelihood ratios, or
        fixed weights, none above the test weight. Defaults to ones.
      test_weight: Weight of the test point, shape (), with weights. Defaults to 1.

    Returns:
      p-value in [0, 1], shape (), a float.

    Raises:
      ValueError: if `scores` is not of shape (n,), `weights` has another shape, a
        concrete `u` or weight is out of range, a weight is above 1 where `test_weight`
        is left out, or `test_weight` comes without weights.

    Guarantee:
      P(p <= alpha) <= alpha; with a uniform `u`, p is uniform on [0, 1], ties or not.

    Assumption:
      All n + 1 scores are exchangeable; with weights examples are independent, and the
      weights are their true likelihood ratios.

    Cost:
      O(n) time and no sort.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005.

    See also:
      Calibration.p_values, outliers.outlier_p_values, pvalues.sequential_p_values

    Example:
      >>> round(conformal_p_value(jnp.arange(1.0, 10.0), 8.5).item(), 6)
      0.2
    """
    scores, weights = _checks.rows(
        scores=_checks.vector(scores), weights=_checks.weights(weights)
    )
    own = weight_of_test(test_weight, weights)
    score, u = as_arrays(score=score, u=u)
    _checks.check_scalars(score=score, u=u)
    _checks.check_uniforms("u", u)
    return _p_value(as_float(scores), as_float(score), u, weights, own)


def p_values_among(scores, test_scores, u=None, weights=None, test_weights=None):
    """Returns the p-value of each of many scores, shape (m,), from one sort.

    `scores` are of shape (n,), `test_scores` (m,), or (n, c) and (m, c): then it is c
    times the smallest of the components. `weights` are of shape (n,) and may be a mask,
    `u` and `test_weights` () or (m,), each 1 by default. Weights may be bounds.
    """
    if scores.ndim > 1:
        each = lambda s, t: p_values_among(s, t, u, weights, test_weights)  # noqa: E731
        return _of_components(each, scores, test_scores)
    keys, test_keys = common_keys(scores, test_scores)
    return p_values_of_keys(keys, test_keys, u, weights, test_weights)


def _of_components(p_values_of, scores, test_scores):
    p = jax.vmap(p_values_of, 1, 1)(scores, test_scores)
    return jnp.minimum(1, scores.shape[1] * jnp.min(p, axis=1))  # Bonferroni


def p_values_of_keys(keys, test_keys, u, weights, test_weights):
    """Returns `p_values_among` scores for integers in their order, shape (m,)."""
    weights, test_weights = _on_unit_scale(weights, test_weights)
    low, high = bounds_of(weights)
    at_least, above, total = masses_of_keys(keys, test_keys, high)
    if low is not high:  # the worst weights: high from the score on, low below it
        least, _, total = masses_of_keys(keys, test_keys, low)
        total += at_least - least
    return share_of(above, at_least - above, total, u, test_weights)


def _on_unit_scale(weights, test_weights):
    test_weights = 1.0 if test_weights is None else test_weights
    test_weights = at_least_single(as_float(test_weights))
    if weights is None or bounds_of(weights)[0].dtype == bool:
        return weights, test_weights
    weights = jax.tree.map(lambda w: at_least_single(as_float(w)), weights)
    return unit_scale(weights, test_weights)


@jax.jit(static_argnames="num_groups")
def p_values_in_groups(scores, groups, test_scores, test_groups, num_groups, u, mask):
    """Returns `p_values_among` the rows of the same group, from one sort for all.

    1 for test rows of a group out of range.
    """
    if scores.ndim > 1:
        fixed = test_groups, num_groups, u, mask
        each = lambda s, t: p_values_in_groups(s, groups, t, *fixed)  # noqa: E731
        return _of_components(each, scores, test_scores)
    n, beyond = scores.size, num_groups  # where rows that do not count come to lie
    groups = group_codes(groups, beyond, mask)
    groups = jnp.append(groups, group_codes(test_groups, beyond))
    ranks = _ranks_in_order(groups, jnp.append(scores, test_scores))
    at_least, above, _ = masses_of_keys(ranks[:n], ranks[n:])
    rows = jnp.zeros(beyond + 1, int).at[groups[:n]].add(1)
    in_later_groups = (jnp.sum(rows) - jnp.cumsum(rows))[groups[n:]]
    above, equal = above - in_later_groups, at_least - above
    p = share_of(above, equal, rows[groups[n:]], u, jnp.ones(()))
    return jnp.where(groups[n:] < beyond, p, 1)


def masses_from(scores, test_scores, weights=None):
    """Returns the mass of scores >= and > each test score, (m,), and of all, ().

    Counts, int, without weights.
    """
    return masses_of_keys(*common_keys(scores, test_scores), weights)


def mass_of(weights: Any, mask: Array | None) -> Any:
    """Returns what each row counts: its weight, a flag, or None for 1."""
    if mask is None or weights is None:
        return weights if mask is None else mask
    return jax.tree.map(lambda w: jnp.where(mask, w, 0), weights)


def masses_of_keys(keys, test_keys, weights=None):
    """Returns `masses_from` for integers in the order of scores."""
    if weights is not None and weights.dtype == bool:  # rows below all do not count
        counted = jnp.where(weights, keys, jnp.iinfo(keys.dtype).min)
        return *masses_of_keys(counted, test_keys)[:2], jnp.sum(weights)
    # Integers up to k are those below k + 1.
    test_keys = jnp.stack([test_keys, test_keys + 1])
    if weights is None:
        at_least, above = keys.size - num_below(lax.sort(keys), test_keys)
        return at_least, above, keys.size
    keys, weights = lax.sort((keys, weights), num_keys=1)
    mass = jnp.append(jnp.cumsum(weights[::-1])[::-1], 0)
    mass = lax.cummin(mass)  # a sum may round to more than one of more terms
    at_least, above = mass[num_below(keys, test_keys)]
    return at_least, above, mass[0]


def share_of(above, equal, total, u, test_weight):
    """Returns the p-value of a test score with these masses above and equal to it.

    Smoothed by `u`, 1 by default.
    """
    u, total = as_float(1.0 if u is None else u), total + test_weight
    # p = (mass{S_i > s} + u (mass{S_i = s} + w)) / (mass{all} + w)
    p = quotient(above + u * (equal + test_weight), jnp.where(total > 0, total, 1))
    # No weight at all is no evidence.
    return jnp.where(total > 0, jnp.minimum(p, 1), 1)


@jax.jit
def _p_value(scores, score, u, weights, test_weight):
    weights = jnp.ones(scores.shape, bool) if weights is None else weights
    weights, test_weight = _on_unit_scale(weights, test_weight)
    above, equal = masses_at(score, scores, weights)
    return share_of(above, equal, jnp.sum(weights), u, test_weight)


def _ranks_in_order(groups, scores):
    """Returns ranks by group and then by score, the same for the same score."""
    keys, places = to_keys(as_float(scores)), jnp.arange(groups.size)
    groups, keys, places = lax.sort((groups, keys, places), num_keys=2)
    changes = (jnp.diff(groups, prepend=-1) != 0) | (jnp.diff(keys, prepend=0) != 0)
    return jnp.zeros_like(places).at[places].set(jnp.cumsum(changes))


def e_values(scores: ArrayLike, test_scores: ArrayLike, level: ArrayLike) -> Array:
    """Returns the conformal e-value of every test score; large means strange.

    (n + 1) 1(s >= t) / (1 + #{S_i >= t}) for the smallest threshold t with m (1 + #{S_i
    >= t}) / ((n + 1) max(1, #{test scores >= t})) <= level. Random splits, trainings or
    draws give the same rows other scores: the mean of their e-values is an e-value, and
    `e_benjamini_hochberg` finds with it what does not depend on one draw. For rows
    with y > threshold, scores are `pred` where y <= threshold and -inf elsewhere.

    Args:
      scores: Anomaly scores of nominal rows that the detector was not fitted on, shape
        (n,), or (..., n) for repetitions; larger is stranger. A traced NaN counts as
        +inf.
      test_scores: Scores of the rows to judge, shape (m,) or (..., m). NaN counts as
        +inf.
      level: Level in (0, 1) at which each repetition looks for discoveries, shape ():
        often half of the level of `e_benjamini_hochberg`.

    Returns:
      e-values >= 0, the shape of `test_scores`.

    Raises:
      ValueError: if shapes do not fit, a concrete calibration score is NaN, or `level`
        is outside (0, 1).

    Guarantee:
      The expected sum over nominal rows is at most m: all that `e_benjamini_hochberg`
      needs. One repetition at its level finds what `benjamini_hochberg` finds with
      `outlier_p_values`. The inverse of a p-value is no e-value.

    Assumption:
      Nominal rows are exchangeable with the calibration rows, and the detector was
      fitted on neither.

    Cost:
      O((n + m) log(n + m)) time for each repetition.

    References:
      Bashari, Epstein, Romano, Sesia, Derandomized Novelty Detection with FDR Control
      via Conformal E-values, Advances in Neural Information Processing Systems, 2023.

    See also:
      pvalues.e_benjamini_hochberg, outliers.outlier_p_values,
      pvalues.selection_p_values

    Example:
      >>> scores, test = jnp.arange(99.0), jnp.array([120.0, 98.5, 50.0, 3.0])
      >>> e_values(scores, test, 0.1)
      Array([20., 20.,  0.,  0.], dtype=float32)
    """
    scores, test_scores = as_arrays(scores=scores, test_scores=test_scores)
    repetitions = scores.shape[:-1], test_scores.shape[:-1]
    _checks.check_shape("repetitions of test_scores", *repetitions)
    _checks.check_not_nan("scores", scores)
    return _e_values(scores, test_scores, as_share("level", level))


def e_benjamini_hochberg(e_values: ArrayLike, level: ArrayLike) -> Array:
    """Returns which rows are discoveries by e-values, however these depend.

    The e-values e >= m / (level k) for the largest k with e_(k) >= m / (level k), e_(1)
    being the largest.

    Args:
      e_values: e-values >= 0, shape (m,). NaN is never a discovery.
      level: False discovery rate in (0, 1), shape ().

    Returns:
      Discoveries, bool of shape (m,).

    Raises:
      ValueError: if a concrete e-value is negative, or `level` outside (0, 1).

    Guarantee:
      The expected share of false discoveries is at most level times the expected sum of
      the e-values of nominal rows over m: at most `level`.

    Assumption:
      That sum is at most m in expectation, as where each e-value has a mean of at most
      1 if its row is nominal. Inverse p-values do not.

    Cost:
      O(m log m) time: one sort.

    References:
      Wang, Ramdas, False Discovery Rate Control with E-values, Journal of the Royal
      Statistical Society B, 2022.

    See also:
      pvalues.e_values, pvalues.benjamini_hochberg

    Example:
      >>> e_benjamini_hochberg(jnp.array([25.0, 1.0, 16.0]), level=0.1)
      Array([ True, False,  True], dtype=bool)
    """
    e_values = as_p_values(e_values, "e_values")
    # e >= m / (level k) is 1 / e <= level k / m
    p_values, one = 1 / jnp.maximum(e_values, 0), jnp.ones((), e_values.dtype)
    return step_up(p_values, as_share("level", level), one)


@jax.jit
def _e_values(scores, test_scores, level):
    if scores.ndim > 1:
        return jax.vmap(_e_values, (0, 0, None))(scores, test_scores, level)
    keys, test_keys = common_keys(scores, test_scores)
    thresholds, n, m = jnp.append(keys, test_keys), len(keys), len(test_keys)
    above, test_above = (masses_of_keys(k, thresholds)[0] for k in (keys, test_keys))
    # Bashari et al. 2023: m (1 + #{S_i >= t}) <= level (n + 1) max(1, #{test >= t})
    dtype = at_least_single(as_float(level)).dtype
    found = jnp.maximum(test_above, 1).astype(dtype)
    exact = 1 + 4 * jnp.finfo(dtype).eps
    fits = m * (1 + above).astype(dtype) <= level * (n + 1) * found * exact
    highest = jnp.iinfo(thresholds.dtype).max
    smallest = jnp.min(jnp.where(fits, thresholds, highest), initial=highest)
    count = 1 + jnp.sum(keys >= smallest)
    return jnp.where(test_keys >= smallest, (n + 1) / count.astype(dtype), 0)
