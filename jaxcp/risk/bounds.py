"""What losses prove of their mean: p-values of a level, and upper bounds.

From binomial tails of any number of rows, as exact as the float type, or from the
capital of bets that the mean is below a level, one for all rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import add_exactly, as_float, at_least_single, varying_like
from jaxcp.quantiles import levels
from jaxcp.quantiles._keys import bisect_keys, from_keys, key_type
from jaxcp.quantiles.levels import share_of
from jaxcp.quantiles.selection import moving
from jaxcp.typing import ArrayLike

_MOST = 2**14  # rows up to which the host tabulates binomial tails
_FEW = 2**20  # rows whose sum is as exact as it must be
_FORGIVEN = 0.25  # of a row: how far a sum may lie above an integer by rounding
Method = Literal["hoeffding_bentkus", "binomial", "betting"]


def losses_and_rows(losses, where, bound, method):
    """Returns losses, which rows count and the bound, or raises ValueError."""
    _checks.check_one_of("method", method, _P_VALUES)
    bound = _checks.check_number(
        "bound", bound, lambda b: (b > 0) & (b < np.inf), "> 0"
    )
    losses = as_array("losses", losses)
    if jnp.iscomplexobj(losses):
        raise ValueError(f"expected losses as real numbers, got {losses.dtype}")
    where = None if where is None else _checks.flags("where", where)
    for name, value in (("losses", losses), ("where", where)):
        if value is not None and value.ndim not in (1, 2):
            got = value.shape
            raise ValueError(f"expected {name} of shape (n,) or (n, g), got {got}")
    _checks.num_rows(losses=losses, where=where)
    if where is not None and losses.ndim == where.ndim == 2:
        _checks.check_shape("where", losses.shape, where.shape)
    if method == "binomial" and not (is_concrete(bound) and bound == 1):
        raise ValueError(f'expected bound=1 with method="binomial", got {bound}')
    if losses.dtype != bool and is_concrete(losses, where, bound):
        _check_range(losses, where, float(bound), method)
    return losses, where, bound


def _check_range(losses, where, top, method):
    inside, expected = lambda v: (v >= 0) & (v <= top), f"losses in [0, {top:g}]"
    cure = "; bound= is the largest loss, a row whose loss is not known is left out"
    if method == "binomial":
        inside = lambda v: (v == 0) | (v == 1)  # noqa: E731
        expected, cure = 'losses of 0 or 1 with method="binomial"', ""
    if where is not None and where.ndim > losses.ndim:
        where = np.asarray(where).any(axis=1)
    if where is None or where.ndim < losses.ndim:
        _checks.check_values(inside, expected, losses, where, cure)
    else:
        ignored = ~np.asarray(where)
        _checks.check_values(
            lambda v: ignored | inside(v), expected, losses, None, cure
        )


def _as_share(alpha, bound):
    """Returns alpha / bound: a Fraction where both are numbers, or an array."""
    alpha = Fraction(alpha) if isinstance(alpha, Decimal) else alpha
    if is_concrete(bound):
        inside = lambda a: (a > 0) & (a < bound)  # noqa: E731
        _checks.check_number("alpha", alpha, inside, f"in (0, {float(bound):g})")
    _checks.check_scalars(alpha=alpha)
    if isinstance(alpha, Array) or isinstance(bound, Array):
        return as_float(alpha if isinstance(alpha, Array) else float(alpha)) / bound
    return share_of(alpha, np.asarray(bound)[()]).item()


def one_each(name: str, value: Any, size: int, kinds: Any = tuple) -> tuple[Any, ...]:
    """Returns a value for each loss: those given, or the same for all."""
    if not isinstance(value, kinds):
        return (value,) * size
    if len(value) != size:
        raise ValueError(f"expected {name} for {size} losses, got {len(value)} of them")
    return tuple(value)


_UNROLL = 4  # rows of a step of the loop, whose own time is that of a row


def _largest_log_capital(losses, risk, delta, where):
    """Returns log max_i K_i(risk) of losses in [0, 1], shape (n,), with K_0 = 1.

    Rows outside `where` are skipped: neither the capital nor the bets move.
    """
    counts = jnp.ones(len(losses), bool) if where is None else where
    counts = counts.astype(losses.dtype)
    rows = len(losses) if where is None else jnp.maximum(jnp.sum(counts), 1)
    scale = -2 * jnp.log(delta) / rows
    lost = jnp.finfo(losses.dtype).eps - 1

    def step(state, row):
        i, total, squares, capital, best = state
        x, counts = row
        # Bates et al. 2021, section 3.1.3: nu_i is known before row i.
        variance = (0.25 + squares[0]) / (1 + i)
        nu = jnp.minimum(1, jnp.sqrt(scale / variance))
        # K_i = prod_(j <= i) (1 - nu_j (x_j - R)); a factor of 0 needs R = 0.
        growth = jnp.log1p(jnp.maximum(nu * (risk - x), lost))
        capital = add_exactly(capital, counts * growth)
        total, i = add_exactly(total, counts * x), i + counts
        # m_i = (1/2 + sum x) / (1 + i)
        gap = x - (0.5 + total[0]) / (1 + i)
        squares = add_exactly(squares, counts * gap * gap)
        return (i, total, squares, capital, jnp.maximum(best, capital[0])), None

    zero = jnp.zeros((), losses.dtype)
    start = zero, (zero, zero), (zero, zero), (zero, zero), zero
    start = varying_like(start, (losses, counts, risk, scale))
    return lax.scan(step, start, (losses, counts), unroll=_UNROLL)[0][-1]


_SMALL = 16  # counts below it take the error of Stirling's formula from a table
_ERRORS = np.array(
    [0.0]
    + [
        math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2
        for k in range(1, _SMALL)
    ]
)
_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188]
_ATANH = [1 / (2 * j + 1) for j in range(1, 9)]


@jax.custom_jvp
def binomial_tail(count: Array, rows: Array, mean: Array) -> Array:
    """Returns P(Bin(rows, mean) <= count) of whole floats 0 <= count <= rows."""
    certain = (count >= rows) | (mean <= 0)
    usual = ~certain & (mean < 1)
    count, mean = jnp.where(usual, count, 0), jnp.where(usual, mean, 0.5)
    rows = jnp.where(usual, rows, 1)
    # The side of the count that the mean is not on has the smaller sum.
    below = count <= rows * mean
    odds = mean / (1 - mean)
    terms = _sum_of_ratios(
        jnp.where(below, count, rows - count),
        jnp.where(below, rows - count + 1, count + 1),
        jnp.where(below, 1 / odds, odds),
    )
    mass = _binomial_mass(count, rows, mean)
    tail = jnp.where(below, mass * (1 + terms), 1 - mass * terms)
    return jnp.where(usual, tail, jnp.where(certain, 1, 0).astype(tail.dtype))


@binomial_tail.defjvp
def _binomial_tail_jvp(primals, tangents):
    count, rows, mean = primals
    # d/da P(Bin(n, a) <= k) = -(n - k) P(Bin(n, a) = k) / (1 - a).
    inside = (count < rows) & (mean > 0) & (mean < 1)
    safe = jnp.where(inside, mean, 0.5)
    mass = _binomial_mass(jnp.minimum(count, rows), rows, safe)
    slope = jnp.where(inside, -(rows - count) * mass / (1 - safe), 0)
    return binomial_tail(*primals), slope * tangents[2]


def _binomial_deviance(count, rows, mean):
    """Returns n h1(r, a), r = count / n: r log(r / a) + (1-r) log((1-r) / (1-a))."""
    # Each of two terms that are not negative has the gap between the counts: there is
    # no difference of numbers that are nearly the same (Loader 2000).
    gap = count - rows * mean
    return _deviance(count, rows * mean, gap) + _deviance(
        rows - count, rows * (1 - mean), -gap
    )


def _deviance(count, mean, gap):
    """Returns count log(count / mean) - gap, gap = count - mean."""
    positive = (count > 0) & (mean > 0)
    safe, safe_mean = jnp.where(positive, count, 1), jnp.where(positive, mean, 1)
    # log(count / mean) = 2 atanh(v), v = gap / (count + mean).
    v = jnp.where(positive, gap, 0) / (safe + safe_mean)
    near = gap * v + 2 * count * v**3 * _series(_ATANH, v * v)
    far = count * jnp.log(safe / safe_mean) - gap
    usual = jnp.where(jnp.abs(v) < 0.1, near, far)
    impossible = jnp.where(count > 0, jnp.inf, -gap)
    return jnp.where(positive, usual, impossible)


def _binomial_mass(count, rows, mean):
    """Returns P(Bin(rows, mean) = count)."""
    # Loader, Fast and Accurate Computation of Binomial Probabilities, 2000.
    rest = rows - count
    inner = (count > 0) & (rest > 0)
    spread = jnp.where(inner, 2 * math.pi * count * (rest / jnp.maximum(rows, 1)), 1)
    errors = _stirling_error(rows) - _stirling_error(count) - _stirling_error(rest)
    log_mass = jnp.where(inner, errors, 0) - _binomial_deviance(count, rows, mean)
    return jnp.exp(log_mass) / jnp.sqrt(spread)


def _stirling_error(count):
    """Returns log(count!) - log(sqrt(2 pi count) (count / e)^count), 0 of 0."""
    index = jnp.minimum(count, _SMALL - 1).astype(int)
    small = jnp.asarray(_ERRORS, count.dtype)[index]
    inverse = 1 / jnp.maximum(count, _SMALL)
    series = inverse * _series(_STIRLING, inverse * inverse)
    return jnp.where(count < _SMALL, small, series)


def _sum_of_ratios(count, rest, odds):
    """Returns sum_(j >= 1) prod_(i < j) odds (count - i) / (rest + i)."""

    def goes_on(state):
        _, term, total = state
        return term > 1e-3 * jnp.finfo(term.dtype).eps * total

    def add(state):
        i, term, total = state
        term = term * (odds * ((count - i) / (rest + i)))
        return i + 1, term, total + term

    zero = jnp.zeros_like(odds)
    start = varying_like((zero, zero + 1, zero), count + rest + odds)
    return lax.while_loop(goes_on, add, start)[-1]


def _series(coefficients, x):
    """Returns c_0 + c_1 x + c_2 x^2 + ..."""
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))


@jax.jit(static_argnames="method")
def _p_values(losses, where, share, delta, bound, tails, method):
    """Returns p-values of columns for a mean above share * bound.

    `tails` are P(Bin(n, share) <= k) for k = 0, ..., n, where they are known.
    """

    def of_column(losses, where):
        p = _P_VALUES[method](losses, where, delta, bound, tails)
        risk = jnp.asarray(share).astype(_float_type(losses))
        return p(jnp.where(risk > 0, jnp.minimum(risk, 1), 0))  # 0 of NaN

    return _over_columns(of_column, losses, where)


@jax.jit(static_argnames="method")
def _upper_bounds(losses, where, delta, bound, method):
    """Returns the largest mean with a p-value above delta, of each column."""

    def of_column(losses, where):
        dtype = _float_type(losses)
        level = jnp.asarray(delta).astype(dtype)
        level = jnp.where(level > 0, level, 0)  # NaN proves nothing
        p = _P_VALUES[method](losses, where, level, bound, None)
        return jnp.asarray(bound, dtype) * _last_above(p, level, dtype)

    return _over_columns(of_column, losses, where)


def _last_above(p, level, dtype):
    """Returns the largest R in [0, 1] with p(R) > level, p falls with R."""
    key = key_type(dtype)

    def falls_short(candidate):
        risk = from_keys(candidate, dtype)
        rejected = (p(risk) <= level) & (level > 0)  # tails of 0 are rounded
        return (risk <= 0) | ((risk <= 1) & ~rejected)

    # The keys of all floats in [0, 2) are below 2^30, of 64 bits below 2^62.
    found = bisect_keys(falls_short, key, bits=jnp.iinfo(key).bits - 2)
    end = lax.stop_gradient(from_keys(found, dtype))
    inside = (end > 0) & (end < 1)
    return jnp.where(inside, moving(jnp.where(inside, end, 0.5), p, level), end)


def _over_columns(function, losses, where):
    """Returns a function of one column, of each column where there are several."""
    axes = tuple(1 if v is not None and v.ndim == 2 else None for v in (losses, where))
    if axes == (None, None):
        return function(losses, where)
    return jax.vmap(function, axes)(losses, where)


def _hoeffding_bentkus(losses, where, delta, bound, tails):
    """Returns R -> p: Hoeffding 1963, theorem 1; Bentkus 2004; Bates et al. 2021."""
    rows = _num_rows(losses, where)
    whole, rest = _total(losses, where, bound)
    total = whole.astype(rest.dtype) + rest
    # ceil(n r) of the sum, never of n times a mean, which may lie above an integer.
    # Rounding may lift a sum above one too: less than 1 is forgiven, 1/4 of the least
    # step of a sum of integers, so that these are exact.
    floating = jnp.issubdtype(losses.dtype, jnp.floating)
    most = _FORGIVEN / (1 if floating else jnp.asarray(bound, rest.dtype))
    slack = jnp.minimum(4 * jnp.finfo(rest.dtype).eps * total, most)
    count = whole + jnp.ceil(lax.stop_gradient(rest - slack)).astype(int)
    count = jnp.minimum(count.astype(rest.dtype), rows)
    tail = _tail(tails)

    def p(risk):
        below = jnp.minimum(total, rows * risk)
        hoeffding = jnp.exp(-_binomial_deviance(below, rows, risk))
        bentkus = np.e * tail(jnp.maximum(count, 0), rows, risk)
        return jnp.minimum(jnp.minimum(hoeffding, bentkus), 1)

    return p


def _binomial_counts(losses, where, delta, bound, tails):
    """Returns R -> P(Bin(n, R) <= number of errors)."""
    count = _count(losses != 0, where).astype(_float_type(losses))
    return functools.partial(_tail(tails), count, _num_rows(losses, where))


def _betting(losses, where, delta, bound, tails):
    """Returns R -> 1 / the largest capital of bets against a mean above R."""
    x = _scaled(losses, where, bound)
    delta = jnp.asarray(delta).astype(x.dtype)
    delta = jnp.clip(jnp.where(delta > 0, delta, 0), 0, 1)
    return lambda risk: jnp.exp(-_largest_log_capital(x, risk, delta, where))


_P_VALUES: dict[str, Callable[..., Any]] = {
    "hoeffding_bentkus": _hoeffding_bentkus,
    "binomial": _binomial_counts,
    "betting": _betting,
}


def _tail(tails):
    """Returns P(Bin(n, a) <= count), from a table where there is one."""
    if tails is None:
        return binomial_tail
    return lambda count, rows, risk: tails.astype(risk.dtype)[count.astype(int)]


def _num_rows(losses, where):
    """Returns how many rows count, as a float."""
    rows = len(losses) if where is None else jnp.sum(where)
    return jnp.asarray(rows).astype(_float_type(losses))


def _count(flags, where):
    return jnp.sum(flags if where is None else flags & where, dtype=int)


def _total(losses, where, bound):
    """Returns the sum of losses / bound in two words, an integer and a float."""
    if losses.dtype == bool:
        total = _count(losses, where) / jnp.asarray(bound, _float_type(losses))
    else:
        x = _scaled(losses, where, bound)
        total = jnp.sum(x)
        if len(x) > _FEW:  # a float has no digits left for parts of a row
            bits = max(30 - len(x).bit_length(), 0)
            center = jnp.round(lax.stop_gradient(total) / len(x) * 2**bits)
            whole = center.astype(int) * len(x)
            rest = (whole & (2**bits - 1)).astype(x.dtype) / 2**bits
            return whole >> bits, rest + jnp.sum(x - center / 2**bits)
    whole = jnp.floor(lax.stop_gradient(total))
    return whole.astype(int), total - whole


def _scaled(losses, where, bound):
    """Returns losses / bound in [0, 1], 0 where they do not count."""
    dtype = _float_type(losses)
    x = _in_range(losses.astype(dtype) / jnp.asarray(bound, dtype))
    return x if where is None else jnp.where(where, x, 0)


def _in_range(x):
    """Returns the nearest number in [0, 1], 1 of NaN; slopes at the ends are kept."""
    return jnp.where((x >= 0) & (x <= 1), x, jnp.where(x < 0, 0, 1).astype(x.dtype))


def _float_type(losses):
    return at_least_single(as_float(losses[:0])).dtype


@_checks.by_labels
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
    losses, where, bound = losses_and_rows(losses, where, bound, method)
    delta = _checks.share("delta", delta)
    return _upper_bounds(losses, where, delta, bound, method)


@_checks.by_labels
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
    losses, where, bound = losses_and_rows(losses, where, bound, method)
    if method == "betting" or delta is not None:
        delta = _checks.share("delta", delta)
    alpha, tails = _as_share(alpha, bound), None
    if isinstance(alpha, Fraction):
        if method != "betting" and where is None and len(losses) <= _MOST:
            tails = _tails(len(losses), alpha)
        alpha = float(alpha)
    return _p_values(losses, where, alpha, delta, bound, tails, method)


@functools.lru_cache(maxsize=64)
def _tails(n, alpha):
    return levels.binomial_tails(n, np.arange(n + 1), alpha)
