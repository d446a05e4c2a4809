"""What losses prove of their mean: upper bounds, and p-values of a level."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Literal

import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp.quantiles import _binomial
from jaxcp.risk import _inputs, _p_values
from jaxcp.typing import ArrayLike

Method = Literal["hoeffding_bentkus", "binomial", "betting"]
_MOST = 2**14  # rows up to which the host tabulates binomial tails


def upper_bound(
    losses: ArrayLike,
    delta: ArrayLike,
    *,
    method: Method = "hoeffding_bentkus",
    where: ArrayLike | None = None,
    bound: ArrayLike = 1.0,
) -> Array:
    """Returns what the mean of a loss exceeds with probability at most delta.

    sup{R : p(R) > delta} with the p-value `p_value` of a mean above R.

    "binomial" is for losses of 0 or 1, where no bound that rises with the number of
    errors, and draws no random number, is smaller (Clopper, Pearson). "betting" is for
    other losses: the less they vary, the closer it comes to their mean. It depends on
    the order of the rows, which must not be chosen by their losses. "hoeffding_bentkus"
    depends on the mean alone, and is wider.

    Args:
      losses: Losses in [0, bound], shape (n,) or (n, g) for g columns, each on its own;
        "binomial" takes flags, or 0 and 1.
      delta: Probability of a mean above its bound in (0, 1), shape ().
      method: "hoeffding_bentkus", "binomial" or "betting".
      where: True where a row counts, shape (n,) or (n, g). Defaults to all rows.
      bound: Largest loss there can be, > 0, shape ().

    Returns:
      Upper bound in [0, bound], shape () or (g,), in units of the loss: the largest
      float that is not rejected, with slopes of the root. `bound` without rows. NaN
      among traced losses counts as `bound`.

    Raises:
      ValueError: if shapes do not fit, a concrete loss that counts is outside [0,
        bound], `delta` outside (0, 1), `method` unknown, or "binomial" gets losses
        other than 0 and 1.

    Guarantee:
      P(mean > upper bound) <= delta, for each column.

    Assumption:
      Independent rows with the same mean; "betting" holds where the mean of each row,
      given those before it, is the same.

    Cost:
      32 or 64 p-values, by their float type.

    References:
      Hoeffding, Probability Inequalities for Sums of Bounded Random Variables, Journal
      of the American Statistical Association, 1963.
      Bentkus, On Hoeffding's Inequalities, Annals of Probability, 2004.
      Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
      Prediction Sets, Journal of the ACM, 2021.
      Waudby-Smith, Ramdas, Estimating Means of Bounded Random Variables by Betting,
      Journal of the Royal Statistical Society B, 2024.
      Clopper, Pearson, The Use of Confidence or Fiducial Limits Illustrated in the Case
      of the Binomial, Biometrika, 1934.

    See also:
      risk.p_value, risk.hoeffding_bentkus_level

    Example:
      >>> errors = jnp.arange(100) % 20 == 0
      >>> round(upper_bound(errors, 0.1, method="binomial").item(), 4)
      0.0908
      >>> round(upper_bound(errors, 0.1).item(), 4)
      0.107
    """
    bound = _inputs.as_plain(bound)
    losses, where = _inputs.losses_and_rows(losses, where, bound, method)
    delta = _checks.share("delta", delta)
    return _p_values.upper_bounds(losses, where, delta, bound, method)


def p_value(
    losses: ArrayLike,
    alpha: ArrayLike,
    *,
    method: Method = "hoeffding_bentkus",
    delta: ArrayLike | None = None,
    where: ArrayLike | None = None,
    bound: ArrayLike = 1.0,
) -> Array:
    """Returns a p-value of the claim that the mean of a loss is above alpha.

    With the mean r, the sum k and a level of a = alpha, bound = 1:

    - "hoeffding_bentkus": min(exp(-n h(min(r, a), a)), e P(Bin(n, a) <= ceil(k))), h(r,
      a) = r log(r / a) + (1 - r) log((1 - r) / (1 - a)).
    - "binomial", for losses of 0 or 1: P(Bin(n, a) <= k), k counted in integers.
    - "betting": 1 / max_i prod_(j <= i) (1 - nu_j (x_j - a)), one capital for all rows,
      in their order, nu_j = min(1, sqrt(2 log(1 / delta) / (n v_(j-1)))) with the
      variance v_(j-1) of the rows before j. It is at its best where it is compared with
      `delta`, and holds everywhere.

    Args:
      losses: Losses in [0, bound], shape (n,) or (n, g) for g columns, each on its own;
        "binomial" takes flags, or 0 and 1.
      alpha: Level of the mean in (0, bound), in units of the loss, shape ().
      method: "hoeffding_bentkus", "binomial" or "betting"; see `upper_bound`.
      delta: Probability in (0, 1) on which the bets depend, shape (), for "betting".
      where: True where a row counts, shape (n,) or (n, g). Defaults to all rows.
      bound: Largest loss there can be, > 0, shape ().

    Returns:
      p-value in [0, 1], shape () or (g,); 1 without rows. Tails of the binomial law are
      rounded from double precision if `alpha` is a number, all rows count and n <=
      16,384; otherwise they have the precision of the float type at the rounded `alpha`
      (1e-4 of their size, for 10^5 rows in single precision). Compare arrays, or
      numbers of its type: 0.3 in single precision is above 0.3 as a Python float. A sum
      k may lie above an integer by its rounding, at most 1/4, and is not rounded up for
      that; sums of flags and integers are exact. NaN among traced losses counts as
      `bound`, a traced one that is not 0 as an error for "binomial", a traced `alpha`
      outside [0, bound] as the nearer end.

    Raises:
      ValueError: if shapes do not fit, a concrete loss that counts is outside [0,
        bound], `alpha` outside (0, bound), `method` unknown, "binomial" gets losses
        other than 0 and 1, or "betting" no `delta`.

    Guarantee:
      P(p <= t) <= t for each t in [0, 1] if the mean is above alpha.

    Assumption:
      Independent rows with the same mean; "betting" holds where the mean of each row,
      given those before it, is the same.

    Cost:
      O(n) time for each column, and some sqrt(n) terms of a binomial tail.

    References:
      Hoeffding, Probability Inequalities for Sums of Bounded Random Variables, Journal
      of the American Statistical Association, 1963.
      Bentkus, On Hoeffding's Inequalities, Annals of Probability, 2004.
      Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
      Prediction Sets, Journal of the ACM, 2021.
      Waudby-Smith, Ramdas, Estimating Means of Bounded Random Variables by Betting,
      Journal of the Royal Statistical Society B, 2024.

    See also:
      risk.upper_bound, risk.critical_count

    Example:
      >>> errors = jnp.arange(100) % 20 == 0
      >>> round(p_value(errors, 0.1, method="binomial").item(), 4)
      0.0576
    """
    bound = _inputs.as_plain(bound)
    losses, where = _inputs.losses_and_rows(losses, where, bound, method)
    if method == "betting" and delta is None:
        raise ValueError(
            'expected delta with method="betting", whose bets depend on it, got None'
        )
    if delta is not None:
        delta = _checks.share("delta", delta)
    alpha = _inputs.as_share(alpha, bound)
    tails = None
    if isinstance(alpha, Fraction):
        if method != "betting" and where is None and len(losses) <= _MOST:
            tails = _tails(len(losses), alpha)
        alpha = float(alpha)
    return _p_values.p_values(losses, where, alpha, delta, bound, tails, method)


@functools.lru_cache(maxsize=64)
def _tails(n, alpha):
    return _binomial.binomial_tails(n, np.arange(n + 1), alpha)
