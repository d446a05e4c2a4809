"""Tests of whether observed coverage, and distributions, are valid."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_numpy
from jaxcp.certificates import laws
from jaxcp.certificates.laws import certificate
from jaxcp.typing import ArrayLike, Number


class CoverageTest(NamedTuple):
    """How well observed coverage fits its law. Made by `coverage_test`.

    Args:
      p_value: Probability of counts as extreme, if coverage follows the law.
      coverage: Share of covered test points.
      expected: Exact coverage k / (n + 1).
      standard_error: Standard deviation of `coverage`, if it follows the law.

    See also:
      certificates.coverage_test
    """

    p_value: float
    coverage: float
    expected: float
    standard_error: float


def coverage_test(
    covered: ArrayLike,
    n: int,
    alpha: Any,
    *,
    delta: Number | None = None,
    num_test: int | None = None,
    alternative: Literal["two-sided", "less", "greater"] = "two-sided",
) -> CoverageTest:
    """Returns a test of whether observed coverage is that of split calibration.

    Given their calibration set, sets {score <= q} with one threshold from unit weights
    cover a share of test points with the law Beta(k, n + 1 - k), and a number of m test
    points with the law BetaBinomial(m, k, n + 1 - k). The test compares the number over
    all r calibration sets with its exact law.

    It sees counts alone. Other valid sets have another law for m > 1, and the test
    rejects them: full conformal sets, jackknife+ and CV+, groups together, weights,
    thresholds that depend on the test point, several components, larger sets. Of those
    that cover exactly k / (n + 1) on average, such as full conformal sets, take one new
    row for each of r training sets, `num_test=1`: its counts are binomial. Of those
    that cover at least as much take `alternative="less"` as well.

    Args:
      covered: True where a set covered its target, bool of shape (r, m): m test points
        for each of r independent calibration sets; (m,) for one calibration set. Or,
        with `num_test`, how many were covered, int of shape (r,) or ().
      n: Number of scores of each calibration set.
      alpha: Miscoverage level in (0, 1), a number.
      delta: Probability of a bad calibration set, if the sets were made with one.
      num_test: Number of test points m of each calibration set, if `covered` counts.
      alternative: "two-sided"; or "less", which only sees coverage that is too low and
        is the one to use where scores tie or a certificate is not `exact`; or
        "greater".

    Returns:
      `CoverageTest(p_value, coverage, expected, standard_error)`, floats; a p-value is
      at least 1e-300.

    Raises:
      ValueError: if `covered` has another shape or type, holds counts outside of
        0, ..., m, or there is nothing to test; or if `alpha` or `delta` is outside
        (0, 1).

    Guarantee:
      P(p_value <= t) <= t for these sets, with "less" also for larger ones. With one
      new row for each training set (m = 1) for all sets that cover k / (n + 1) on
      average, with "less" for all that cover at least that.

    Assumption:
      I.i.d. data, and scores that do not tie (with "less" they may).

    Cost:
      On the host, in double precision: one Fourier transform of the law of the counts.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      certificates.certificate, metrics.coverage, simulate

    Example:
      >>> scores = jax.random.normal(jax.random.key(0), (500, 101))
      >>> quantile = jax.vmap(jaxcp.conformal_quantile, (0, None))
      >>> q = quantile(scores[:, :100], jnp.array([0.1, 0.2]))
      >>> right, wrong = scores[:, 100:] <= q[:, :1], scores[:, 100:] <= q[:, 1:]
      >>> coverage_test(right, 100, 0.1).p_value > 0.01
      True
      >>> coverage_test(wrong, 100, 0.1).p_value < 1e-6
      True
    """
    proof = certificate(n, alpha, delta)
    counts, m = _as_counts(covered, num_test)
    below, above = laws.tails(*proof.law, m, len(counts), int(counts.sum()))
    sides = {"two-sided": 2 * min(below, above), "less": below, "greater": above}
    _checks.check_one_of("alternative", alternative, sides)
    p_value = float(np.clip(sides[alternative], 1e-300, 1))
    points, mean = m * len(counts), proof.coverage
    spread = mean * (1 - mean) * (proof.n + 1 + m) / (proof.n + 2)
    error = (spread / points) ** 0.5
    return CoverageTest(p_value, float(counts.sum() / points), mean, error)


def _as_counts(covered, num_test):
    """Returns how many of m test points each calibration set covered, and m."""
    covered = as_numpy("covered", covered)
    found = f"got {covered.dtype}{covered.shape}"
    if num_test is None:
        if covered.dtype != bool or covered.ndim not in (1, 2) or not covered.size:
            flags = "flags of shape (r, m) or (m,), or counts with num_test"
            raise ValueError(f"expected covered as {flags}, {found}")
        rows = np.atleast_2d(covered)
        return rows.sum(axis=1), rows.shape[1]
    _checks.check_count("num_test", num_test, 1)
    if covered.dtype.kind not in "iu" or covered.ndim > 1 or not covered.size:
        raise ValueError(f"expected covered as counts of shape (r,) or (), {found}")
    expected = f"counts in 0, ..., {num_test}"
    _checks.check_values(lambda v: (v >= 0) & (v <= num_test), expected, covered)
    return np.atleast_1d(covered).astype(np.int64), int(num_test)


class PITTest(NamedTuple):
    """How well probability integral transforms fit their law. Made by `pit_test`.

    Args:
      p_value: Probability of a statistic as large, if they follow the law.
      statistic: Pearson's or Kolmogorov's, in units of the law that it tends to.
      counts: How many values lie in each bin, shape (b,).
      expected: How many are expected, shape (b,).

    See also:
      certificates.pit_test
    """

    p_value: float
    statistic: float
    counts: np.ndarray
    expected: np.ndarray


def pit_test(
    pit: ArrayLike,
    num_calibration: int,
    *,
    num_bins: int = 10,
    kind: Literal["pearson", "kolmogorov"] = "pearson",
    key: Array | None = None,
    num_draws: int = 999,
) -> PITTest:
    """Returns a test of whether predictive distributions are calibrated.

    The probability integral transform (PIT) of a target is the smoothed rank of its
    score among the n calibration scores, Q(y, u) = (#{S_i < s} + u (1 + #{S_i = s})) /
    (n + 1). One is uniform; those of m test rows are not independent, for they share
    the calibration rows. Counts in bins that are unions of c_b of the n + 1 cells
    [i / (n + 1), (i + 1) / (n + 1)] follow DirichletMultinomial(m; c), and spread (m +
    n + 1) / (n + 2) times as far as those of independent values: a test against the
    uniform law alone rejects right systems.

    With a key the statistic is compared with that of `num_draws` draws from its law.
    Without one its asymptotic law is used.

    * Pearson: (n + 2) / (m + n + 1) sum (N_b - E_b)^2 / E_b, chi-squared with b - 1
      degrees of freedom;
    * Kolmogorov: sqrt(n m / (n + m)) max abs(F_m(t) - t), F_m the empirical law.

    Args:
      pit: Values of Q at the targets of m test rows, each with its own uniform u, shape
        (m,), in [0, 1].
      num_calibration: Number n of calibration scores, at least 1.
      num_bins: Number of bins, as equal as unions of cells can be; from 2 to n + 1. Of
        "kolmogorov", which returns their counts alone, n + 1 where it is more.
      kind: "pearson" for the counts, or "kolmogorov", which sees shifts of all better
        and needs no bins.
      key: A random key, for draws from the law.
      num_draws: Number of draws with a key. P-values are then multiples of 1 /
        (num_draws + 1).

    Returns:
      `PITTest(p_value, statistic, counts, expected)`.

    Raises:
      ValueError: if a value is outside [0, 1], there are none, or `num_bins` is out of
        range.

    Guarantee:
      With a key P(p_value <= t) <= t, for all n and m. Without one asymptotic, as n and
      m grow: at 5 % Pearson's test rejects about 5 % of right systems, Kolmogorov's at
      most that, with few scores far less.

    Assumption:
      I.i.d. calibration and test rows, a model fitted on others; scores with unit
      weights, of one group, that do not tie; uniforms that are fresh for each row.

    Cost:
      O(m log m) on the host, in double precision; as much again for each draw.

    References:
      Vovk, Shen, Manokhin, Xie, Nonparametric Predictive Distributions Based on
      Conformal Prediction, Machine Learning, 2019.

    See also:
      plotting.plot_pit, certificates.coverage_test, conformal_p_value

    Example:
      >>> key_s, key_u = jax.random.split(jax.random.key(0))
      >>> s, u = jax.random.normal(key_s, (199,)), jax.random.uniform(key_u, (100,))
      >>> q = jax.vmap(lambda t, u: jaxcp.conformal_p_value(s[:99], t, u=u))
      >>> pit_test(q(s[99:], u), 99).p_value > 0.01  # 1 - q is uniform if q is
      True
      >>> pit_test(q(s[99:] + 1, u), 99).p_value < 0.01
      True
    """
    from scipy.special import chdtrc, kolmogorov  # scipy comes with jax

    _checks.check_one_of("kind", kind, ("pearson", "kolmogorov"))
    if kind == "kolmogorov":  # its counts are for the eye
        num_bins = min(num_bins, num_calibration + 1)
    pit, bounds = pit_bounds(pit, num_calibration, num_bins)
    tails = {"pearson": partial(chdtrc, num_bins - 1), "kolmogorov": kolmogorov}
    n, m, steps = num_calibration, pit.size, np.arange(pit.size + 1) / pit.size
    counts_of = lambda v: np.histogram(v, bounds / (n + 1))[0]  # noqa: E731
    expected = m * np.diff(bounds) / (n + 1)

    def statistic(v):
        if kind == "pearson":
            squares = (counts_of(v) - expected) ** 2
            return (n + 2) / (m + n + 1) * np.sum(squares / expected)
        v = np.sort(v)
        distance = max(np.max(steps[1:] - v), np.max(v - steps[:-1]))
        return (n * m / (n + m)) ** 0.5 * distance

    found = statistic(pit)
    p_value = tails[kind](found)
    if key is not None:
        _checks.check_key(key)
        _checks.check_count("num_draws", num_draws, 1)
        rng = np.random.default_rng(np.ravel(jax.random.key_data(key)))
        least = found * (1 - 1e-9)  # equal statistics may round apart
        above = sum(statistic(_draw(rng, n, m)) >= least for _ in range(num_draws))
        p_value = (1 + above) / (num_draws + 1)
    return PITTest(float(p_value), float(found), counts_of(pit), expected)


def pit_bounds(pit, n, num_bins):
    """Returns values in double precision, and the cells at which bins end."""
    pit = as_numpy("pit", pit).astype(float)
    _checks.check_shape("pit", (max(pit.size, 1),), pit.shape)
    _checks.check_uniforms("pit", pit)
    _checks.check_count("num_calibration", n, 1)
    _checks.check_count("num_bins", num_bins, 2)
    if num_bins > n + 1:
        raise ValueError(f"expected num_bins <= {n + 1}, one a cell, got {num_bins}")
    return pit, np.rint(np.arange(num_bins + 1) * ((n + 1) / num_bins))


def _draw(rng, n, m):
    """Returns m values of a right system: smoothed ranks among n scores."""
    ranks = np.searchsorted(np.sort(rng.random(n)), rng.random(m))
    return (ranks + rng.random(m)) / (n + 1)
