"""A test of whether observed coverage is valid."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

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
