"""p-values that hold given the calibration set, not on average over such sets."""

from __future__ import annotations

import math
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp.pvalues.conformal import masses_from
from jaxcp.quantiles._simes import log_simes_bounds
from jaxcp.typing import ArrayLike


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
    judged = _checks.required(_checks.vector(test_scores))
    test_scores = _checks.rows(test_scores=judged)
    # A table is made of it outside of jit.
    _checks.check_kind("delta as a number", delta, Real)
    _checks.check_values(lambda v: (v > 0) & (v < 1), "delta in (0, 1)", delta)
    bounds = {"simes": _simes_bounds, "dkw": _dkw_bounds}
    _checks.check_one_of("method", method, bounds)
    table = np.append(bounds[method](len(scores), float(delta)), 1.0)
    return _look_up(scores, test_scores, jnp.asarray(table))


@jax.jit
def _look_up(scores, test_scores, table):
    return table[masses_from(scores, test_scores)[0]]


def _simes_bounds(n, delta):
    """Returns b_1, ..., b_n; b_(n+1-i) = 1 - (delta prod_(j<k) (i-j) / (n-j))^(1/k)."""
    return -np.expm1(log_simes_bounds(n, delta))


def _dkw_bounds(n, delta):
    # b_r = r / n + sqrt(log(2 / delta) / (2 n))
    half_width = math.sqrt(math.log(2 / delta) / (2 * max(n, 1)))
    return np.minimum(np.arange(1, n + 1) / max(n, 1) + half_width, 1)
