"""Binomial counts: how many errors still prove a risk of at most alpha.

On the host, in double precision and exact integers: the regularized beta function of
single precision errs by 1e-3 at a thousand rows and by 0.1 at 10^5.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from jaxcp.typing import ArrayLike

_E = Fraction("2.71828182845904523536028747135266249775724709369995")
_NEAR = 1e-11  # relative distance within which double precision decides nothing
_EXACT = 4 * 10**6  # n (k + 1) up to which a tail is summed in integers


@functools.lru_cache(maxsize=1024)
def critical_count(n: int, alpha: Fraction, delta: Fraction) -> int:
    """Returns max{k : P(Bin(n, alpha) <= k) <= delta}, -1 if there is none."""
    fits = lambda k: bool(_fits(np.array([n]), np.array([k]), alpha, delta)[0])  # noqa: E731
    low, high = (guess := _guess(n, alpha, delta)) - 1, guess + 1
    while not fits(low := max(low, -1)):
        low, high = 3 * low - 2 * high, low
    while fits(high := min(high, n)) and n:
        low, high = high, 3 * high - 2 * low
    return int(_between([n], [low], [high], alpha, delta)[0])


def critical_counts(n: int, alpha: Fraction, delta: Fraction) -> np.ndarray:
    """Returns the critical count of every number of rows 0, ..., n, shape (n + 1,)."""
    counts = np.full(n + 1, -1)
    counts[n] = critical_count(n, alpha, delta)
    for exponent in reversed(range(n.bit_length())):
        # The count never falls with the number of rows: it lies between its neighbors.
        middle = np.arange(1 << exponent, n, 2 << exponent)
        low = counts[middle - (1 << exponent)]
        high = counts[np.minimum(middle + (1 << exponent), n)] + 1
        counts[middle] = _between(middle, low, high, alpha, delta)
    return counts


def binomial_tails(n: ArrayLike, k: ArrayLike, alpha: Fraction) -> np.ndarray:
    """Returns P(Bin(n, alpha) <= k) of whole numbers 0 <= k <= n, numpy."""
    n, k = np.broadcast_arrays(n, k)
    inside = k < n
    tails = _tails(np.where(inside, n, 1), np.where(inside, k, 0), alpha)
    return np.where(inside, tails, 1.0)


@functools.lru_cache(maxsize=1024)
def hoeffding_bentkus_level(n: int, alpha: Fraction, delta: Fraction) -> float:
    """Returns the largest mean r with p_HB <= delta, -1 if there is none.

    p_HB = min(exp(-n h1(r, alpha)), e P(Bin(n, alpha) <= ceil(n r))) for r <= alpha.
    """
    # Bates et al. 2021, section 3.1: either of the two p-values may be the smaller.
    bentkus = critical_count(n, alpha, delta / _E)
    return max(bentkus / n if bentkus >= 0 else -1.0, _hoeffding_level(n, alpha, delta))


def _hoeffding_level(n, alpha, delta):
    """Returns the r in [0, alpha] with n h1(r, alpha) = log(1 / delta), or -1."""
    if critical_count(n, alpha, delta) < 0:  # exp(-n h1(0, alpha)) = (1 - alpha)^n
        return -1.0
    a, b, target = float(alpha), float(1 - alpha), -_log(delta) / n

    def fits(r):
        # h1(r, a) = r log(r / a) + (1 - r) log((1 - r) / (1 - a)).
        gap = r - a
        log_ratio = math.log1p(gap / a) if r > a / 2 else math.log(r / a)
        return r * log_ratio + (1 - r) * math.log1p(-gap / b) >= target

    lower, upper = 0.0, a
    while lower < (middle := (lower + upper) / 2) < upper:
        lower, upper = (middle, upper) if fits(middle) else (lower, middle)
    return lower


def _between(n, low, high, alpha, delta):
    """Returns critical counts in low, ..., high - 1, by bisection."""
    n, low, high = (np.array(v, np.int64) for v in (n, low, high))
    while (at := np.flatnonzero(high - low > 1)).size:
        middle = (low[at] + high[at]) // 2
        fits = _fits(n[at], middle, alpha, delta)
        low[at], high[at] = np.where(fits, (middle, high[at]), (low[at], middle))
    return low


def _guess(n, alpha, delta):
    """Returns the critical count of a normal law, corrected for skewness."""
    from scipy.special import ndtri_exp  # scipy comes with jax

    a, b = float(alpha), float(1 - alpha)
    z = ndtri_exp(_log(delta)) if delta <= 0.5 else -ndtri_exp(_log(1 - delta))
    # Cornish, Fisher 1938: the second term is skewness (z^2 - 1) / 6 deviations.
    x = n * a + z * math.sqrt(n * a * b) + (b - a) * (z * z - 1) / 6 - 0.5
    return min(max(math.floor(x), -1), n)


def _fits(n, k, alpha, delta):
    """Returns whether P(Bin(n, alpha) <= k) <= delta, -1 <= k <= n, exactly."""
    inside = (k >= 0) & (k < n)
    row, count = np.where(inside, n, 1), np.where(inside, k, 0)
    # The smaller side keeps its digits: P <= delta is 1 - P >= 1 - delta.
    if delta <= 0.5:
        excess = _tails(row, count, alpha) / float(delta) - 1
    else:
        excess = 1 - _tails(row, count, alpha, above=True) / float(1 - delta)
    fits = excess <= -_NEAR
    for i in np.flatnonzero(inside & (abs(excess) < _NEAR)):
        fits[i] = _fits_exactly(int(n[i]), int(k[i]), alpha, delta)
    return np.where(inside, fits, k < 0)


def _tails(n, k, alpha, above=False):
    """Returns P(Bin(n, alpha) <= k), or the rest of it above k, for 0 <= k < n."""
    from scipy.special import betainc, betaincc

    if alpha <= 0.5:
        return (betainc if above else betaincc)(k + 1.0, n - k, float(alpha))
    return (betaincc if above else betainc)(n - k, k + 1.0, float(1 - alpha))


def _fits_exactly(n, k, alpha, delta):
    """Returns the same in integers; False, not proved, where that would take long."""
    if n * (k + 1) > _EXACT:
        return False
    a, d = alpha.as_integer_ratio()
    b, total, choose, power = d - a, 0, 1, 1
    for j in range(k + 1):  # sum_j C(n, j) a^j b^(n - j), by Horner's rule in b
        total = total * b + choose * power
        choose, power = choose * (n - j) // (j + 1), power * a
    return total * b ** (n - k) * delta.denominator <= delta.numerator * d**n


def _log(fraction):
    """Returns the logarithm of a fraction, also of one below the smallest float."""
    return math.log(fraction.numerator) - math.log(fraction.denominator)
