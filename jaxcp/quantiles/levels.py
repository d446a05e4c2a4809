"""Levels: alpha and delta read exactly, ranks in integers, and binomial counts.

Counts, how many errors still prove a risk of at most alpha, are found on the host, in
double precision and exact integers: the regularized beta function of single precision
errs by 1e-3 at a thousand rows and by 0.1 at 10^5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_numpy, check_countable, is_concrete
from jaxcp._batching import on_device
from jaxcp._numbers import as_float, varying_like
from jaxcp._tree import Untraceable
from jaxcp.typing import ArrayLike, Number

_E = Fraction("2.71828182845904523536028747135266249775724709369995")
_NEAR = 1e-11  # relative distance within which double precision decides nothing
_EXACT = 4 * 10**6  # n (k + 1) up to which a tail is summed in integers


@functools.lru_cache(maxsize=1024)
def critical_errors(n: int, alpha: Fraction, delta: Fraction) -> int:
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
    counts[n] = critical_errors(n, alpha, delta)
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
def critical_mean(n: int, alpha: Fraction, delta: Fraction) -> float:
    """Returns the largest mean r with p_HB <= delta, -1 if there is none.

    p_HB = min(exp(-n h1(r, alpha)), e P(Bin(n, alpha) <= ceil(n r))) for r <= alpha.
    """
    # Bates et al. 2021, section 3.1: either of the two p-values may be the smaller.
    bentkus = critical_errors(n, alpha, delta / _E)
    return max(bentkus / n if bentkus >= 0 else -1.0, _hoeffding_level(n, alpha, delta))


def _hoeffding_level(n, alpha, delta):
    """Returns the r in [0, alpha] with n h1(r, alpha) = log(1 / delta), or -1."""
    if critical_errors(n, alpha, delta) < 0:  # exp(-n h1(0, alpha)) = (1 - alpha)^n
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


def log_simes_bounds(n: int, delta: float) -> np.ndarray:
    """Returns log b_n, ..., log b_1, where U_(i) >= b_i for all i but with odds delta.

    b_i = (delta prod_(j<k) (i - j) / (n - j))^(1/k) with k = n // 2, 0 for i < k.
    """
    # Sarkar 2008, generalized Simes inequality; as in Bates et al. 2023, section 3.2
    if n == 0:
        return np.zeros(0)
    k = max(n // 2, 1)
    i = np.arange(n, k, -1.0)
    # From i to i - 1 the product shrinks by (i - k) / i; it is 0 for i < k.
    log_product = np.append(0.0, np.cumsum(np.log((i - k) / i)))
    return np.append((math.log(delta) + log_product) / k, np.full(k - 1, -np.inf))


Alpha = Array | np.ndarray  # a jax array of floats, or a numpy array of Fractions
_DIGITS = 6  # of a decimal that a float is taken for, within rounding
_FOR_ALPHA = "; 0.1 is for sets that cover 90 %"
_ON_HOST = "the rank is an integer that is found on the host"
_SMALLEST = Fraction(1, 10**300)  # delta: smaller tails leave the range of floats


def as_alpha(alpha: Any, name: str = "alpha", cure: str = _FOR_ALPHA) -> Alpha:
    """Returns alpha read exactly: numbers as the decimal they print as.

    A float within rounding of a decimal of at most 6 digits is that decimal, such as `1
    - 0.9`. Numbers become a numpy array of Fractions; jax arrays are taken as they are.
    Both must lie in (0, 1) where values are known; traced values are not checked.
    """
    if isinstance(alpha, Array):
        inside = lambda a: (a > 0) & (a < 1)  # noqa: E731
        _checks.check_values(inside, f"{name} in (0, 1)", alpha, cure=cure)
        return alpha
    return each_read(lambda value: _as_fraction(value, name, cure), alpha)


def one_alpha(alpha: Any, cure: str = "") -> Fraction:
    """Returns an alpha that is one number, exactly, or raises ValueError."""
    exact = as_alpha(alpha)
    if not isinstance(exact, np.ndarray):
        raise ValueError(f"expected alpha as a number, got a jax array{cure}")
    _checks.check_scalars(alpha=exact)
    return exact.item()


def as_delta(delta: Any) -> Fraction:
    """Returns the probability of a bad calibration set, read exactly like alpha.

    One number with a known value in (0, 1), at least 1e-300.
    """
    is_scalar = isinstance(delta, np.ndarray) and not delta.ndim
    value = delta.item() if is_scalar else delta
    exact = _as_fraction(value, "delta", "; 0.05 is for 95 % of calibration sets")
    if exact < _SMALLEST:
        raise ValueError(f"expected delta of at least 1e-300, got {delta}")
    return exact


def alpha_as_float(alpha: Alpha) -> Array:
    """Returns alpha as an array of floats."""
    return alpha if isinstance(alpha, Array) else on_device(np.asarray(alpha, float))


def split_alpha(alpha: Any, components: tuple[int, ...]) -> Alpha:
    """Returns alpha, read, for each of (c,) components: a scalar is shared out."""
    alpha = as_alpha(alpha)
    if not components:
        return alpha
    (c,) = components
    if alpha.shape not in ((), (c,)):
        raise ValueError(f"expected alpha of shape () or ({c},), got {alpha.shape}")
    if alpha.ndim:
        return alpha
    if isinstance(alpha, np.ndarray):
        return np.full(c, alpha.item() / c, object)
    return jnp.broadcast_to(alpha / c, (c,))


def conformal_rank(
    count: ArrayLike, alpha: ArrayLike, delta: Number | None = None
) -> Array:
    """Returns which order statistic of `count` scores is the conformal threshold.

    k = ceil((n + 1)(1 - alpha)) = n + 1 - floor(alpha (n + 1)), in [0, n + 1]. With
    `delta` k = n - max{c : P(Bin(n, alpha) <= c) <= delta}, or n + 1 if there is no c.

    An alpha that is a number (or a numpy array, Fraction or Decimal) is read as a
    decimal, and the rank is computed in integers. A float within rounding of a decimal
    of at most 6 digits is that decimal: `1 - 0.9` is 0.1. Any other float is what it
    prints. Write `Fraction(1, 3)` for a third. An alpha in a jax array has a rounding
    error, which `floor(alpha (n + 1) (1 + 3 eps))` undoes. In single precision that is
    exact for alphas of three decimals and n up to 2000, of two decimals up to 20,000,
    and for 0.1, 0.05 or 0.01 far beyond.

    Args:
      count: Number of scores n, int, any shape.
      alpha: Miscoverage level, broadcastable with `count`.
      delta: Probability of a bad calibration set, in (0, 1): a number, read like alpha.

    Returns:
      Rank, counted from 1, int. n + 1 means +inf: too few scores for this level. A
      traced `alpha` >= 1 gives 0 (-inf, the empty set), <= 0 or NaN gives n + 1.

    Raises:
      ValueError: if `count` is negative or not an integer, an `alpha` with a known
        value or `delta` is not in (0, 1), or `delta` comes with an alpha in a jax array
        or a traced count.

    Guarantee:
      P(S_{n+1} <= S_(k)) >= 1 - alpha for exchangeable scores. With `delta`: given
      S_1, ..., S_n this holds with probability 1 - delta, for independent scores.

    Cost:
      Integer arithmetic for each rank, whatever n. With `delta` 0.1 ms on the host for
      each number of scores that is new.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      conformal_quantile, kth_smallest, coverage_law, risk.critical_count

    Example:
      >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1)
      (Array(9, dtype=int32), Array(9, dtype=int32))
      >>> conformal_rank(99, 0.1), conformal_rank(99, 0.1, delta=0.1)
      (Array(90, dtype=int32), Array(94, dtype=int32))
    """
    count = count if isinstance(count, Array) else as_numpy("count", count)
    if not jnp.issubdtype(count.dtype, jnp.integer):
        raise ValueError(f"expected an integer count, got {count.dtype}")
    _checks.check_values(lambda n: n >= 0, "count >= 0", count)
    return ranks(count, as_alpha(alpha), None if delta is None else as_delta(delta))


def ranks(count: ArrayLike, alpha: Alpha, delta: Fraction | None = None) -> Array:
    """Returns `conformal_rank` of counts, int, and levels that are read exactly."""
    if delta is not None:
        count = _known_count(count, alpha)
    count = count if isinstance(count, Array) else np.asarray(count)
    if is_concrete(count):
        check_countable(int(np.max(np.asarray(count), initial=0)))
    count = count.astype(int)  # a narrow type may not hold n + 1
    if isinstance(alpha, Array):
        return rank_at_any_alpha(count, as_float(alpha))
    if isinstance(count, Array):
        return _integer_rank(count, *_integer_ratio(alpha, count.dtype))
    found = np.frompyfunc(lambda n, a: exact_rank(n, a, delta), nin=2, nout=1)
    return on_device(np.asarray(found(count.astype(object), alpha), int))


def _known_count(count, alpha):
    """Returns counts as numpy; ranks that cover with probability 1 - delta need it."""
    if isinstance(alpha, Array):
        raise ValueError(
            "expected alpha as a number where delta is given, got a jax array; "
            f"{_ON_HOST}: write alpha=0.1, or several in a list"
        )
    if not is_concrete(count):
        raise Untraceable(
            "expected known numbers of rows where delta is given, got a traced mask, "
            f"groups or count; {_ON_HOST}: make these constants of the program, such "
            "as by jax.jit(lambda preds: cp(preds, alpha, delta=delta))"
        )
    return np.asarray(count)


def exact_rank(n: int, alpha: Fraction, delta: Fraction | None = None) -> int:
    """Returns the conformal rank as a Python integer, also while jax traces."""
    if delta is None:
        return n + 1 - alpha.numerator * (n + 1) // alpha.denominator
    errors = critical_errors(n, alpha, delta)
    # Vovk 2012, proposition 2b: P(coverage < 1 - alpha) = P(Bin(n, alpha) <= n - k).
    return n - errors if errors >= 0 else n + 1


def _integer_ratio(alpha, dtype):
    """Returns numerators and denominators that give the same ranks, n + 1 < 2^30.

    Of integers of 64 bits < 2^62. Ranks of more are never too low.
    """
    exact = [_largest_below(a, 2 ** (8 * dtype.itemsize - 2)) for a in alpha.ravel()]
    ratios = np.array([a.as_integer_ratio() for a in exact], dtype)
    return ratios.T.reshape(2, *alpha.shape)


def _largest_below(alpha, limit):
    """Returns the largest fraction <= `alpha` with a denominator of at most `limit`."""
    near = alpha.limit_denominator(limit)
    if near <= alpha:
        return near
    # Its left neighbor c/d in the Farey sequence: a d - b c = 1 with the largest d.
    a, b = near.numerator, near.denominator
    inverse = pow(a, -1, b) if b > 1 else 0
    d = limit - (limit - inverse) % b
    return Fraction((a * d - 1) // b, d)


@jax.jit
def _integer_rank(count, numerator, denominator):
    """Returns n + 1 - floor((n + 1) a / b), by long division in 32 or 64 bits."""
    total, a, b = jnp.broadcast_arrays(count + 1, numerator, denominator)
    bits = 8 * total.dtype.itemsize
    total, a, b = (v.astype(f"uint{bits}") for v in (total, a, b))

    def take_bit(i, carry):
        # Of the leading bits t of n + 1: t a = floor b + rest, and then of 2 t + bit.
        floor, rest = carry
        rest = 2 * rest + ((total >> jnp.asarray(bits - 1 - i, a.dtype)) & 1) * a
        return 2 * floor + rest // b, rest % b

    start = varying_like((jnp.zeros_like(total),) * 2, total + a + b)
    floor, _ = lax.fori_loop(0, bits, take_bit, start)
    return (total - floor).astype(int)


@jax.jit
def rank_at_any_alpha(count: Array, alpha: Array) -> Array:
    """Returns the rank at an alpha that may leave (0, 1), known or not."""
    alpha = alpha.astype(jnp.promote_types(alpha.dtype, jnp.float32))
    total = (count + 1).astype(alpha.dtype)
    # k = n + 1 - floor(alpha (n + 1)). The representation of alpha and the two products
    # err by at most 1.5 eps.
    floor = jnp.floor(alpha * total * (1 + 3 * jnp.finfo(alpha.dtype).eps))
    floor = jnp.clip(jnp.where(jnp.isnan(floor), 0, floor), 0, total)
    return count + 1 - floor.astype(count.dtype)


def each_read(read: Callable[[Any], Fraction], values: Any) -> np.ndarray:
    """Returns a numpy array of what each of some numbers, of its type, is read as."""
    numeric = isinstance(values, np.ndarray | np.generic)
    values = as_numpy("alpha", values) if numeric else np.asarray(values, object)
    exact = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        exact[index] = read(values[index])
    return exact


def _as_fraction(value, name="alpha", cure=_FOR_ALPHA):
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real | Decimal):
        raise ValueError(f"expected {name} as a number, got {type(value).__name__}")
    finite = np.isfinite(float(value))
    exact = as_decimal(value) if finite else Fraction(-1)  # type: ignore[arg-type]
    if not 0 < exact < 1:
        raise ValueError(f"expected {name} in (0, 1), got {value}{cure}")
    return exact


@functools.lru_cache(maxsize=1024, typed=True)
def as_decimal(value: Any) -> Fraction:
    """Returns a number as the decimal near it, or the one that it prints as."""
    if isinstance(value, Fraction | Decimal | int | np.integer) or not 0 < value < 1:
        return Fraction(value if isinstance(value, Fraction) else str(value))
    stored, kind = Fraction(float(value)), type(value)
    for digits in range(1, _DIGITS + 1):
        short = round(stored, digits)
        # Some roundings of a short sum, or the one of c in 1 - c.
        ulp = 4 * np.spacing(kind(short)), np.spacing(kind(1 - short)) / 2
        if 0 < short < 1 and abs(stored - short) <= max(map(float, ulp)):
            return short
    return Fraction(str(value))


def check_share(name: str, share: Any) -> None:
    """Raises ValueError unless a share is a number in (0, 1], read like alpha."""
    if isinstance(share, bool) or share != 1:
        _as_fraction(share, name, "; 1 is all, 0.95 is 95 %")


def counts_of(share: Any, sizes: Array | int) -> Array:
    """Returns ceil(share size) of each size, of a share that is read like alpha."""
    # k - floor((1 - f) k), the rank of k - 1 scores at alpha = 1 - f.
    return ranks(sizes - 1, np.asarray(1 - as_decimal(share), object))


def as_bound(bound: Any) -> float:
    """Returns the most that a loss can be, a known number, or raises ValueError."""
    if isinstance(bound, bool) or not isinstance(bound, Real | Decimal):
        raise ValueError(f"expected bound as a number, got {bound!r}")
    if not 0 < (number := float(bound)) < math.inf:
        raise ValueError(f"expected a finite bound > 0, got {bound}")
    return number


def share_of(alpha: Any, bound: Any) -> Alpha:
    """Returns alpha / bound in (0, 1): Fractions, or a jax array of a jax array.

    `bound` is a number, and read like alpha.
    """
    if bound == 1:
        return as_alpha(alpha)
    try:
        if isinstance(alpha, Array):
            return as_alpha(alpha / float(bound))
        whole = as_decimal(bound)
        return as_alpha(each_read(lambda a: as_decimal(a) / whole, alpha))
    except ValueError as error:
        within = f"(0, {float(bound):g}), below the bound of the loss"
        raise ValueError(f"expected alpha in {within}, got {alpha!r}") from error
