"""How strange test scores are among those of a calibration set, and p-values of it."""

from __future__ import annotations

import math
from functools import partial

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import count_true
from jaxcp._tree import known_at_once
from jaxcp.pvalues import conformal
from jaxcp.quantiles._keys import common_keys
from jaxcp.quantiles.levels import as_alpha, as_delta, log_simes_bounds, ranks
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.quantiles.thresholds import conformal_quantile
from jaxcp.typing import ArrayLike, Number

_CALIBRATING = "scores", "groups", "weights", "mask"
_TESTED = "test_scores", "test_groups", "test_weights", "u"


@partial(_checks.by_labels, only=_CALIBRATING)
def is_outlier(
    scores: ArrayLike,
    test_scores: ArrayLike,
    alpha: ArrayLike,
    *,
    delta: Number | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Returns which test scores lie above the conformal threshold.

    S > `conformal_quantile(scores, alpha)`, which is p <= alpha for the p-value of
    `outlier_p_values`. One such test for each row: among many rows false alarms add up,
    see `benjamini_hochberg`. With `delta` the threshold is the score of the rank
    `conformal_rank(n, alpha, delta)`.

    Args:
      scores: Anomaly scores of nominal rows that the detector was not fitted on, shape
        (n,); larger is stranger. A traced NaN counts as +inf.
      test_scores: Scores of the rows to judge, shape (m,). NaN counts as +inf.
      alpha: Level, shape (): the false positive rate.
      delta: Probability of a bad calibration set, in (0, 1), a number. Without it the
        false positive rate is alpha on average over calibration sets.
      mask: True where a calibration row counts, shape (n,).

    Returns:
      Whether each row is an outlier, bool of shape (m,); False for all of them if n is
      less than `certificates.smallest_size(alpha, delta)`.

    Raises:
      ValueError: if shapes do not fit, a concrete calibration score is NaN, or a number
        `alpha` or `delta` is outside (0, 1); with `delta` also for an alpha in a jax
        array or a traced mask.

    Guarantee:
      P(a nominal row is called an outlier) <= alpha. With `delta` also given the
      calibration rows, with probability 1 - delta over these.

    Assumption:
      Nominal rows are exchangeable with the calibration rows (with `delta` independent,
      too), and the detector was fitted on neither.

    Cost:
      O(n + m) time, without a sort.

    References:
      Laxhammar, Falkman, Conformal Prediction for Distribution-Independent Anomaly
      Detection in Streaming Vessel Data, International Workshop on Novel Data Stream
      Pattern Mining Techniques, 2010.
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      outliers.outlier_p_values, pvalues.benjamini_hochberg, conformal_quantile

    Example:
      >>> is_outlier(jnp.arange(9.0), jnp.array([7.5, 8.5]), alpha=0.1)
      Array([False,  True], dtype=bool)
    """
    scores, mask = _checks.rows(scores=_checks.scores(scores), mask=_checks.mask(mask))
    test_scores = _checks.rows(test_scores=_checks.vector(test_scores))
    alpha = as_alpha(alpha)
    _checks.check_scalars(alpha=alpha)
    if delta is None:
        return _exceeds(test_scores, conformal_quantile(scores, alpha, mask=mask))
    with known_at_once():
        count = len(scores) if mask is None else count_true(mask)
    rank = ranks(count, alpha, as_delta(delta))
    return _exceeds(test_scores, kth_smallest(scores, rank, where=mask))


@partial(_checks.by_labels, only=_CALIBRATING)
@partial(_checks.by_labels, only=_TESTED)
def outlier_p_values(
    scores: ArrayLike,
    test_scores: ArrayLike,
    *,
    u: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    test_weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Returns the conformal p-value of every test score; small means strange.

    p = (1 + #{S_i >= s}) / (n + 1), or smoothed by uniforms u: (#{S_i > s} + u (1 +
    #{S_i = s})) / (n + 1). With weights the counts are masses, and the 1 is the weight
    of the test row. One sort serves all test scores.

    Args:
      scores: Anomaly scores of nominal rows that the detector was not fitted on, shape
        (n,); larger is stranger. A traced NaN counts as +inf.
      test_scores: Scores of the rows to judge, shape (m,). NaN counts as +inf.
      u: Uniforms in [0, 1] for smoothed p-values, shape (m,).
      weights: Weights >= 0 of the calibration rows, shape (n,): likelihood ratios of
        test to calibration inputs.
      test_weights: Weights of the test rows, shape (m,). Defaults to 1, and no weight
        may then be larger.
      mask: True where a calibration row counts, shape (n,).

    Returns:
      p-values in [0, 1], shape (m,).

    Raises:
      ValueError: if shapes do not fit, a concrete calibration score is NaN, a weight is
        negative or not finite, a uniform is outside [0, 1], or test weights come
        without weights.

    Guarantee:
      P(p <= t) <= t for a nominal row, for all t, on average over calibration sets;
      smoothed, p is uniform. p-values of several rows share a calibration set and are
      dependent (without weights, positively). That is fine for `benjamini_hochberg`;
      bets on them (`pvalues.watch`) may alarm far too often, for 500 rows against 100
      in a quarter of quiet streams at 5 %, and tests of uniformity reject:
      `pvalues.sequential_p_values` are independent.

    Assumption:
      A nominal row is exchangeable with the calibration rows (with weights: these are
      the true likelihood ratios), and the detector was fitted on neither.

    Cost:
      O((n + m) log n) time: one sort serves all rows.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005.
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023.
      Jin, Candes, Model-Free Selective Inference Under Covariate Shift via Weighted
      Conformal p-values, Biometrika, 2026.

    See also:
      outliers.is_outlier, outliers.conditional_outlier_p_values,
      pvalues.benjamini_hochberg, pvalues.sequential_p_values

    Example:
      >>> outlier_p_values(jnp.arange(9.0), jnp.array([7.5, 8.5]))
      Array([0.2, 0.1], dtype=float32)
    """
    scores, weights, mask = _checks.rows(
        scores=_checks.scores(scores),
        weights=_checks.weights(weights),
        mask=_checks.mask(mask),
    )
    _checks.check_test_weights("test_weights", test_weights, weights, mask)
    test_scores, u, test_weights = _checks.rows(
        test_scores=_checks.vector(test_scores),
        u=_checks.uniforms(u),
        test_weights=_checks.weights(test_weights),
    )
    return _p_values(scores, test_scores, u, weights, test_weights, mask)


@partial(_checks.by_labels, only=_CALIBRATING)
@partial(_checks.by_labels, only=_TESTED)
def grouped_outlier_p_values(
    scores: ArrayLike,
    groups: ArrayLike,
    test_scores: ArrayLike,
    test_groups: ArrayLike,
    *,
    num_groups: int,
    u: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Returns p-values among the calibration rows of the same group (Mondrian).

    Args:
      scores: Anomaly scores of nominal rows, shape (n,); larger is stranger.
      groups: Their groups in 0, ..., num_groups - 1, int, shape (n,).
      test_scores: Scores of the rows to judge, shape (m,).
      test_groups: Their groups, int, shape (m,).
      num_groups: Number of groups.
      u: Uniforms in [0, 1] for smoothed p-values, shape (m,).
      mask: True where a calibration row counts, shape (n,).

    Returns:
      p-values in [0, 1], shape (m,); 1 (or u) in a group without calibration rows.

    Raises:
      ValueError: as `outlier_p_values`, or if a concrete group is out of range.

    Guarantee:
      P(p <= t) <= t for a nominal row within every group.

    Assumption:
      Nominal rows of a group are exchangeable.

    Cost:
      O((n + m) log(n + m)) time: one sort serves all groups.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      outliers.outlier_p_values, calibrate_groups

    Example:
      >>> scores, groups = jnp.array([1.0, 2.0, 10.0, 20.0]), jnp.array([0, 0, 1, 1])
      >>> test, test_groups = jnp.array([5.0, 5.0]), jnp.array([0, 1])
      >>> grouped_outlier_p_values(scores, groups, test, test_groups, num_groups=2)
      Array([0.33333334, 1.        ], dtype=float32)
    """
    scores, groups, mask = _checks.rows(
        scores=_checks.scores(scores),
        groups=_checks.groups(groups, num_groups),
        mask=_checks.mask(mask),
    )
    test_scores, test_groups, u = _checks.rows(
        test_scores=_checks.vector(test_scores),
        test_groups=_checks.groups(test_groups, num_groups),
        u=_checks.uniforms(u),
    )
    return conformal.p_values_in_groups(
        scores, groups, test_scores, test_groups, num_groups, u, mask
    )


@jax.jit
def _exceeds(test_scores, threshold):
    # As integers in the order of scores: comparisons take subnormal numbers for 0.
    keys, key = common_keys(test_scores, threshold)
    return keys > key


@jax.jit
def _p_values(scores, test_scores, u, weights, test_weights, mask):
    mass = conformal.mass_of(weights, mask)
    return conformal.p_values_among(scores, test_scores, u, mass, test_weights)


def conditional_outlier_p_values(
    scores: ArrayLike, test_scores: ArrayLike, delta: float, *, method: str = "simes"
) -> Array:
    """Returns p-values that are valid given the calibration set, for nearly every one.

    b_r with r = 1 + #{S_i >= s} and b_(n+1) = 1, where b_1 <= ... <= b_n bound the
    order statistics of n uniforms together with probability 1 - delta: by the
    generalized Simes inequality with n // 2 factors, tight for small p-values, or by
    that of Dvoretzky, Kiefer and Wolfowitz, b_r = r / n + sqrt(log(2 / delta) / (2 n)).

    Args:
      scores: Anomaly scores of nominal rows, shape (n,); larger is stranger.
      test_scores: Scores of the rows to judge, shape (m,).
      delta: Probability of a calibration set that is misleading, a number in (0, 1).
      method: "simes" or "dkw".

    Returns:
      p-values in [0, 1], shape (m,).

    Raises:
      ValueError: as `outlier_p_values`, if `delta` is not a number in (0, 1), or for
        another method.

    Guarantee:
      With probability >= 1 - delta over calibration sets, P(p <= t) <= t for all t
      given the set. Given the set, p-values of independent rows are independent:
      `fisher_test` may combine them.

    Assumption:
      Nominal rows that are i.i.d. with a continuous score.

    Cost:
      O((n + m) log n) time: one sort, and a table of n bounds.

    References:
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023.

    See also:
      outliers.outlier_p_values, pvalues.fisher_test, certificates.certificate

    Example:
      >>> scores, test = jnp.arange(999.0), jnp.array([998.5])
      >>> p = conditional_outlier_p_values(scores, test, delta=0.1)
      >>> round(p.item(), 4)  # 0.001 on average over calibration sets
      0.0046
    """
    scores = _checks.rows(scores=_checks.scores(scores))
    test_scores = _checks.rows(test_scores=_checks.vector(test_scores))
    bounds = {"simes": _simes_bounds, "dkw": _dkw_bounds}
    _checks.check_one_of("method", method, bounds)
    table = np.append(bounds[method](len(scores), float(as_delta(delta))), 1.0)
    return _look_up(scores, test_scores, jax.device_put(table))


@jax.jit
def _look_up(scores, test_scores, table):
    return table[conformal.masses_from(scores, test_scores)[0]]


def _simes_bounds(n, delta):
    """Returns b_1, ..., b_n; b_(n+1-i) = 1 - (delta prod_(j<k) (i-j) / (n-j))^(1/k)."""
    return -np.expm1(log_simes_bounds(n, delta))


def _dkw_bounds(n, delta):
    # b_r = r / n + sqrt(log(2 / delta) / (2 n))
    half_width = math.sqrt(math.log(2 / delta) / (2 * max(n, 1)))
    return np.minimum(np.arange(1, n + 1) / max(n, 1) + half_width, 1)
