"""Levels at which losses prove a risk, and bounds of quantiles of a loss."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles import levels
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike, Number

_METHODS = "simes", "dkw"


def critical_count(n: int, alpha: Any, delta: Any) -> int:
    """Returns how many errors among n rows still prove a risk of at most alpha.

    The largest c with P(Bin(n, alpha) <= c) <= delta. A rate of errors above alpha
    shows so few of them with probability at most delta.

    Args:
      n: Number of rows.
      alpha: Level of the risk in (0, 1), a number, read as the decimal it prints as.
      delta: Probability of a wrong proof in (0, 1), a number, read in the same way.

    Returns:
      Number of errors; -1 where even none proves nothing: (1 - alpha)^n > delta.

    Raises:
      ValueError: if n is negative, or `alpha` or `delta` is no number in (0, 1).

    Guarantee:
      P(errors <= c) <= delta wherever P(error) >= alpha. Exact: close calls are decided
      in integers up to n (c + 1) = 4 million, and beyond in favor of the smaller count.

    Assumption:
      Independent rows.

    Cost:
      A dozen values of the incomplete beta function on the host, whatever n.

    References:
      Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
      Prediction Sets, Journal of the ACM, 2021.

    See also:
      conformal_rank, risk.hoeffding_bentkus_level

    Example:
      >>> critical_count(99, 0.1, 0.1), critical_count(21, 0.1, 0.1)
      (5, -1)
    """
    return levels.critical_errors(*_read(n, alpha, delta))


def hoeffding_bentkus_level(n: int, alpha: Any, delta: Any) -> float:
    """Returns the largest mean loss of n rows that proves a risk of at most alpha.

    The largest r with min(exp(-n h(r, alpha)), e P(Bin(n, alpha) <= ceil(n r))) <=
    delta, h(r, a) = r log(r / a) + (1 - r) log((1 - r) / (1 - a)).

    Args:
      n: Number of rows, each with a loss in [0, 1].
      alpha: Level of the risk in (0, 1), a number, read as the decimal it prints as.
      delta: Probability of a wrong proof in (0, 1), a number, read in the same way.

    Returns:
      Mean loss; -1 where even a mean of 0 proves nothing.

    Raises:
      ValueError: if n is negative, or `alpha` or `delta` is no number in (0, 1).

    Guarantee:
      P(mean <= level) <= delta wherever the expected loss is at least alpha.

    Assumption:
      Independent rows.

    Cost:
      That of `critical_count`, twice, and a bisection on the host.

    References:
      Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
      Prediction Sets, Journal of the ACM, 2021.

    See also:
      risk.critical_count

    Example:
      >>> round(hoeffding_bentkus_level(1000, 0.1, 0.1), 4)
      0.082
    """
    return levels.critical_mean(*_read(n, alpha, delta))


def _read(n, alpha, delta):
    """Returns the arguments exactly, or raises ValueError."""
    _checks.check_count("n", n, 0)
    return int(n), levels.one_alpha(alpha), levels.as_delta(delta)


def cdf_bounds(n: int, delta: float, method: str = "simes") -> np.ndarray:
    """Returns lower bounds of a distribution at the order statistics of n draws.

    b_1 <= ... <= b_n, such that F(x_(i)) >= b_i for all i together. By the generalized
    Simes inequality, b_i = (delta prod_(j<k) (i - j) / (n - j))^(1/k) with k = n // 2,
    exact and tight for high quantiles; or by that of Dvoretzky, Kiefer, Wolfowitz and
    Massart, b_i = i / n - sqrt(log(1 / delta) / (2 n)).

    Args:
      n: Number of draws.
      delta: Probability of draws that mislead, a number in (0, 1); up to 1/2 for "dkw".
      method: "simes" or "dkw".

    Returns:
      Bounds in [0, 1), numpy, shape (n,), in double precision.

    Raises:
      ValueError: if `n` is no count, `delta` is not a known number in its range, or for
        another method.

    Guarantee:
      With probability >= 1 - delta over the draws, F(x_(i)) >= b_i for all i. With
      "simes" it is 1 - delta for a continuous F.

    Assumption:
      I.i.d. draws.

    Cost:
      O(n) time, on the host.

    References:
      Snell, Zollo, Deng, Pitassi, Zemel, Quantile Risk Control: A Flexible Framework
      for Bounding the Probability of High-Loss Predictions, International Conference on
      Learning Representations, 2023.

    See also:
      risk.value_at_risk, risk.conditional_value_at_risk,
      outliers.conditional_outlier_p_values

    Example:
      >>> cdf_bounds(4, delta=0.1).round(3).tolist()
      [0.0, 0.129, 0.224, 0.316]
    """
    _checks.check_count("n", n, 0)
    delta = float(levels.as_delta(delta))
    _checks.check_one_of("method", method, _METHODS)
    if method == "simes":
        return np.exp(levels.log_simes_bounds(n, delta))[::-1]
    # Massart 1990: P(sup F_n - F > e) <= exp(-2 n e^2) where that is at most 1/2.
    _checks.check_values(lambda d: d <= 0.5, "delta in (0, 0.5] for dkw", delta)
    half_width = math.sqrt(math.log(1 / delta) / (2 * max(n, 1)))
    return np.maximum(np.arange(1, n + 1) / max(n, 1) - half_width, 0)


def value_at_risk(
    losses: ArrayLike,
    beta: float,
    delta: float,
    *,
    bound: Number = 1.0,
    method: str = "simes",
) -> Array:
    """Returns an upper bound of the beta quantile of a loss.

    x_(i) for the smallest i with b_i >= beta, of the bounds b_i of `cdf_bounds`; or, of
    one quantile alone, for the smallest i with P(Bin(n, beta) <= i - 1) >= 1 - delta.
    `bound` where there is none.

    Args:
      losses: Losses of n rows, shape (n,); NaN that is traced counts as `bound`.
      beta: Share of the rows with a smaller loss, a number in (0, 1).
      delta: Probability of rows that mislead, a number in (0, 1).
      bound: Largest loss that there can be, shape (); may be infinite.
      method: "simes" or "dkw", for all beta together, or "single", which is sharper.

    Returns:
      Upper bound, shape (), dtype of `losses`.

    Raises:
      ValueError: if `losses` is not of shape (n,), a concrete loss is NaN or above
        `bound`, `beta` or `delta` is not a known number in (0, 1), or for another
        method.

    Guarantee:
      With probability >= 1 - delta over the rows, at least a share beta of all losses
      is at most this; with "simes" and "dkw" for all beta, and all means beyond
      quantiles, of these rows at once.

    Assumption:
      I.i.d. rows, losses of at most `bound`.

    Cost:
      O(n) time and no sort; the rank is computed on the host.

    References:
      Snell, Zollo, Deng, Pitassi, Zemel, Quantile Risk Control: A Flexible Framework
      for Bounding the Probability of High-Loss Predictions, International Conference on
      Learning Representations, 2023.

    See also:
      risk.conditional_value_at_risk, risk.cdf_bounds, risk.critical_count

    Example:
      >>> losses = jnp.arange(100) / 100
      >>> round(value_at_risk(losses, 0.8, delta=0.1).item(), 4)
      0.88
      >>> round(value_at_risk(losses, 0.8, delta=0.1, method="single").item(), 4)
      0.85
    """
    losses, bound = _checked(losses, bound)
    share = _as_fraction(beta, lambda b: (b > 0) & (b < 1), "in (0, 1)")
    _checks.check_one_of("method", method, [*_METHODS, "single"])
    n = len(losses)
    if method == "single":
        # P(Bin(n, beta) >= i) = P(Bin(n, 1 - beta) <= n - i) <= delta
        rank = n - levels.critical_errors(n, 1 - share, levels.as_delta(delta))
    else:
        bounds = cdf_bounds(n, delta, method)
        rank = 1 + int(np.searchsorted(bounds, float(share)))
    return _at_rank(losses, rank, bound)


def conditional_value_at_risk(
    losses: ArrayLike,
    beta: float,
    delta: float,
    *,
    bound: Number = 1.0,
    method: str = "simes",
) -> Array:
    """Returns an upper bound of the mean of the largest 1 - beta share of losses.

    The mean of the quantiles beyond beta, each bounded by `value_at_risk`: 1 / (1 -
    beta) times the integral over u from beta to 1 of x_(i) for the smallest i with b_i
    >= u, and of `bound` beyond b_n. With beta = 0 it bounds the mean.

    Args:
      losses: Losses of n rows, shape (n,); NaN that is traced counts as `bound`.
      beta: Share of the rows with a smaller loss, a number in [0, 1).
      delta: Probability of rows that mislead, a number in (0, 1).
      bound: Largest loss that there can be, shape ().
      method: "simes" or "dkw".

    Returns:
      Upper bound, shape (), dtype of `losses`.

    Raises:
      ValueError: if `losses` is not of shape (n,), a concrete loss is NaN or above
        `bound`, `beta` or `delta` is not a known number in its range, or for another
        method.

    Guarantee:
      With probability >= 1 - delta over the rows, the mean of the largest share 1 -
      beta of all losses is at most this, for all beta of these rows at once.

    Assumption:
      I.i.d. rows, losses of at most `bound`.

    Cost:
      O(n log n) time: one sort.

    References:
      Snell, Zollo, Deng, Pitassi, Zemel, Quantile Risk Control: A Flexible Framework
      for Bounding the Probability of High-Loss Predictions, International Conference on
      Learning Representations, 2023.

    See also:
      risk.value_at_risk, risk.cdf_bounds

    Example:
      >>> losses = jnp.arange(100) / 100
      >>> round(conditional_value_at_risk(losses, 0.8, delta=0.1).item(), 4)
      0.9505
    """
    losses, bound = _checked(losses, bound)
    share = float(_as_fraction(beta, lambda b: (b >= 0) & (b < 1), "in [0, 1)"))
    bounds = np.maximum(cdf_bounds(len(losses), delta, method), share)
    # 1 / (1 - beta) int_beta^1 Q(u) du, Q(u) = x_(i) for u in (b_(i-1), b_i]
    shares = np.diff(bounds, prepend=share, append=1) / (1 - share)
    return _weighted(losses, jnp.asarray(shares), bound)


def _checked(losses, bound):
    """Returns losses as floats, and their bound as a float of the same type."""
    losses = as_float(_checks.rows(losses=_checks.scores(losses)))
    bound = _checks.check_number(
        "bound", bound, lambda b: ~np.isnan(b), "that is not NaN"
    )
    bound = jnp.asarray(bound, losses.dtype)
    if is_concrete(losses, bound):
        most = np.asarray(bound)
        valid = lambda v: ~(v > most)  # noqa: E731
        _checks.check_values(valid, f"losses of at most {most}", losses)
    return losses, bound


def _as_fraction(beta, valid, bounds):
    beta = Fraction(beta) if isinstance(beta, Decimal) else beta
    _checks.check_kind("beta as a number", beta, Real, "; ranks are found on the host")
    _checks.check_values(valid, f"beta {bounds}", float(beta))
    return Fraction(0) if beta == 0 else levels.as_alpha(beta).item()


@jax.jit
def _at_rank(losses, rank, bound):
    # Beyond the last loss, and for NaN, whose rank is the highest.
    return jnp.minimum(kth_smallest(losses, rank), bound)


@jax.jit
def _weighted(losses, shares, bound):
    known = at_least_single(jnp.where(jnp.isnan(losses), bound, losses))
    quantiles = jnp.append(jnp.sort(known), bound.astype(known.dtype))
    # 0 inf is not 0
    terms = jnp.where(shares > 0, quantiles, 0) * shares.astype(known.dtype)
    return jnp.sum(terms).astype(losses.dtype)
