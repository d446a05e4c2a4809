"""e-values: evidence that may be averaged over repetitions, and tested together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays
from jaxcp._numbers import as_float, at_least_single
from jaxcp.pvalues.conformal import masses_of_keys
from jaxcp.pvalues.multiple import as_share, step_up
from jaxcp.quantiles._keys import common_keys
from jaxcp.typing import ArrayLike


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
    if not scores.ndim or scores.ndim != test_scores.ndim:
        raise ValueError(
            "expected scores (..., n) and test_scores (..., m), got "
            f"{scores.shape} and {test_scores.shape}"
        )
    _check_repetitions(scores.shape[:-1], test_scores.shape[:-1])
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
    e_values = at_least_single(as_float(as_array("e_values", e_values)))
    _checks.check_vectors(e_values=e_values)
    _checks.check_values(lambda e: ~(e < 0), "e_values >= 0", e_values)
    return _e_step_up(e_values, as_share("level", level))


def _check_repetitions(expected, got):
    if expected != got:
        raise ValueError(
            f"expected test_scores of repetitions {expected} like scores, got {got}"
        )


@jax.jit
def _e_step_up(e_values, level):
    # e >= m / (level k) is 1 / e <= level k / m
    return step_up(1 / jnp.maximum(e_values, 0), level, jnp.ones((), e_values.dtype))


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
