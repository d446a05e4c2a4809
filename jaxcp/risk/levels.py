"""Levels at which observed losses prove a risk of at most alpha."""

from __future__ import annotations

from typing import Any

from jaxcp import _checks
from jaxcp.quantiles import _binomial
from jaxcp.quantiles.levels import as_delta, one_alpha


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
    return _binomial.critical_count(*_read(n, alpha, delta))


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
    return _binomial.hoeffding_bentkus_level(*_read(n, alpha, delta))


def _read(n, alpha, delta):
    """Returns the arguments exactly, or raises ValueError."""
    _checks.check_count("n", n, 0)
    return int(n), one_alpha(alpha), as_delta(delta)
