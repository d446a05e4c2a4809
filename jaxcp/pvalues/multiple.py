"""Many p-values at once: which to reject, and whether any is false."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.typing import ArrayLike, Number

_LARGE = 500  # p-values from which on a normal approximation is the more exact


def benjamini_hochberg(p_values: ArrayLike, level: ArrayLike) -> Array:
    """Returns which rows are discoveries, with a bound on the false ones among them.

    The p-values up to the largest p_(i) <= level i / m.

    Args:
      p_values: p-values, shape (m,). NaN is never a discovery.
      level: False discovery rate in (0, 1), shape ().

    Returns:
      Discoveries, bool of shape (m,).

    Raises:
      ValueError: if a concrete p-value is negative, or `level` outside (0, 1).

    Guarantee:
      The expected share of false discoveries is at most level times the share of
      nominal rows.

    Assumption:
      Independent p-values, or those of `outlier_p_values` without weights, which are
      positively dependent (PRDS).

    Cost:
      O(m log m) time: one sort.

    References:
      Benjamini, Hochberg, Controlling the False Discovery Rate: A Practical and
      Powerful Approach to Multiple Testing, Journal of the Royal Statistical Society B,
      1995.
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023, theorem 2.

    See also:
      pvalues.storey_benjamini_hochberg, outliers.outlier_p_values, pvalues.simes_test

    Example:
      >>> benjamini_hochberg(jnp.array([0.01, 0.5, 0.04]), level=0.1)
      Array([ True, False,  True], dtype=bool)
    """
    p_values, level = as_p_values(p_values), as_share("level", level)
    return step_up(p_values, level, jnp.ones((), p_values.dtype))


def storey_benjamini_hochberg(
    p_values: ArrayLike,
    level: ArrayLike,
    *,
    threshold: Number = 0.5,
    num_calibration: int | None = None,
) -> Array:
    """Returns which rows are discoveries, more of them where few rows are nominal.

    Benjamini-Hochberg at level / pi with the estimate pi = (1 + #{p > t}) / (m (1 - t))
    of the share of nominal rows, t = threshold, among the p-values up to t. For
    p-values that share n calibration rows 1 - t is replaced by (n - K) / (n + 1), K =
    floor(t (n + 1)): one of the n + 1 - K values above t is spent on sharing them.

    Args:
      p_values: p-values, shape (m,). NaN counts as nominal.
      level: False discovery rate in (0, 1), shape ().
      threshold: p-values above it are counted as nominal, in (0, 1), shape ().
      num_calibration: Number n of calibration rows that the p-values share, as those of
        `outlier_p_values` do. Defaults to None: independent p-values.

    Returns:
      Discoveries, bool of shape (m,).

    Raises:
      ValueError: if a concrete p-value is negative, `level` or `threshold` is outside
        (0, 1), or `threshold` is not below n / (n + 1) with n = `num_calibration`.

    Guarantee:
      The expected share of false discoveries is at most `level`.

    Assumption:
      Independent p-values; with `num_calibration`, those of `outlier_p_values` without
      weights and uniforms, of scores without ties. Without `num_calibration` these may
      exceed the level, up to (n + 1) (1 - t) / (n - K) times: 1.11 times for n = 19 and
      t = 0.5, any level for t >= n / (n + 1). Smooth ones may exceed it further.

    Cost:
      O(m log m) time: one sort.

    References:
      Storey, Taylor, Siegmund, Strong Control, Conservative Point Estimation and
      Simultaneous Conservative Consistency of False Discovery Rates: A Unified
      Approach, Journal of the Royal Statistical Society B, 2004.
      Marandon, Lei, Mary, Roquain, Adaptive Novelty Detection with False Discovery Rate
      Guarantee, Annals of Statistics, 2024.

    See also:
      pvalues.benjamini_hochberg, outliers.outlier_p_values

    Example:
      >>> p = jnp.array([0.01, 0.02, 0.03, 0.09, 0.5])
      >>> benjamini_hochberg(p, 0.1).sum().item()
      3
      >>> storey_benjamini_hochberg(p, 0.1).sum().item()
      4
    """
    p_values, level = as_p_values(p_values), as_share("level", level)
    threshold = as_share("threshold", threshold)
    if (n := num_calibration) is not None:
        _checks.check_count("num_calibration", n, 1)
        expected = f"threshold below {n} / {n + 1} with num_calibration={n}"
        cure = "; 1 is the only p-value above it"
        _checks.check_values(lambda t: _cells(t, n) < n, expected, threshold, cure=cure)
    return _storey(p_values, level, threshold, num_calibration)


def simes_test(p_values: ArrayLike) -> Array:
    """Returns one p-value for the claim that all rows are nominal: min_i m p_(i) / i.

    Args:
      p_values: p-values, shape (m,).

    Returns:
      p-value in [0, 1], shape (); 1 for no rows.

    Raises:
      ValueError: if a concrete p-value is negative.

    Guarantee:
      P(p <= t) <= t if all rows are nominal.

    Assumption:
      Independent p-values, or those of `outlier_p_values` without weights.

    Cost:
      O(m log m) time: one sort.

    References:
      Simes, An Improved Bonferroni Procedure for Multiple Tests of Significance,
      Biometrika, 1986.

    See also:
      pvalues.fisher_test, pvalues.benjamini_hochberg

    Example:
      >>> round(simes_test(jnp.array([0.04, 0.01, 0.5])).item(), 4)
      0.03
    """
    return _simes(as_p_values(p_values))


def fisher_test(p_values: ArrayLike) -> Array:
    """Returns one p-value for the claim that all rows are nominal, from their product.

    P(chi^2 with 2 m degrees of freedom >= -2 sum log p).

    Args:
      p_values: Independent p-values, shape (m,).

    Returns:
      p-value in [0, 1], shape (); 1 for no rows.

    Raises:
      ValueError: if a concrete p-value is negative.

    Guarantee:
      P(p <= t) <= t if all rows are nominal.

    Assumption:
      Independent p-values. Those of `outlier_p_values` share a calibration set and are
      not: with m of the order of n false alarms are frequent.
      `conditional_outlier_p_values` are, with probability 1 - delta.

    Cost:
      O(m) time.

    References:
      Fisher, Statistical Methods for Research Workers, Oliver and Boyd, 1925.
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023, section 2.3.

    See also:
      pvalues.simes_test, outliers.conditional_outlier_p_values

    Example:
      >>> round(fisher_test(jnp.array([0.05, 0.1])).item(), 4)
      0.0315
    """
    return _fisher(as_p_values(p_values))


def as_p_values(p_values: ArrayLike) -> Array:
    """Returns p-values as floats of shape (m,), checked."""
    p_values = at_least_single(as_float(as_array("p_values", p_values)))
    _checks.check_vectors(p_values=p_values)
    _checks.check_values(lambda p: ~(p < 0), "p_values >= 0", p_values)
    return p_values


def as_share(name: str, value: Any) -> Array:
    """Returns one number as a float; raises ValueError where it is not in (0, 1)."""
    return as_float(_checks.share(name, value))


def in_order(p_values: Array) -> Array:
    """Returns p-values sorted, NaN last."""
    return from_keys(lax.sort(to_keys(p_values)), p_values.dtype)


@jax.jit
def step_up(p_values: Array, level: Array, limit: Array) -> Array:
    """Returns p up to the largest p_(i) <= level i / m, of those <= `limit`."""
    ordered, m = in_order(p_values), len(p_values)
    # Conformal p-values are fractions that may equal level i / m but for rounding.
    exact = 1 + 4 * jnp.finfo(ordered.dtype).eps
    fits = (m * ordered <= level * jnp.arange(1, m + 1) * exact) & (ordered <= limit)
    largest = jnp.max(jnp.where(fits, ordered, -1), initial=-1)
    return p_values <= largest


@jax.jit
def _storey(p_values, level, threshold, n):
    count = jnp.sum(~(p_values <= threshold))
    # Marandon et al. 2024, with the p-values of at least (K + 1) / (n + 1).
    above = 1 - threshold if n is None else (n - _cells(threshold, n)) / (n + 1)
    share = (1 + count) / (max(len(p_values), 1) * jnp.maximum(above, 0))
    return step_up(p_values, level / share, threshold)


def _cells(threshold, n):
    """Returns K, how many of i / (n + 1) are at most the threshold, if it is exact."""
    return jnp.floor(threshold * (n + 1) * (1 + 4 * jnp.finfo(threshold.dtype).eps))


@jax.jit
def _simes(p_values):
    ordered, m = in_order(p_values), len(p_values)
    return jnp.min(m * ordered / jnp.arange(1, m + 1), initial=1)


@jax.jit
def _fisher(p_values):
    m, positive = len(p_values), p_values > 0
    if m == 0:
        return jnp.ones((), p_values.dtype)
    logs = jnp.log(jnp.where(positive, jnp.minimum(p_values, 1), 1))
    if m < _LARGE:
        tail = jax.scipy.special.gammaincc(jnp.full((), m, logs.dtype), -jnp.sum(logs))
    else:  # the cube root of the statistic is nearly normal (Wilson, Hilferty 1931)
        excess = jnp.maximum(-jnp.sum(1 + logs) / m, -1)
        root = jnp.expm1(jnp.log1p(excess) / 3)
        tail = jax.scipy.special.erfc(3 * math.sqrt(m / 2) * (root + 1 / (9 * m))) / 2
    tail = jnp.where(jnp.any(p_values == 0), 0, tail)
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, tail)
