"""What losses prove of their mean: upper bounds, and p-values of a level."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles import _binomial
from jaxcp.quantiles._crossings import moving
from jaxcp.quantiles._keys import bisect_keys, from_keys, key_type
from jaxcp.quantiles.levels import as_alpha
from jaxcp.risk._betting import largest_log_capital
from jaxcp.risk._tails import binomial_deviance, binomial_tail
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

    "binomial" is for losses of 0 or 1, where none is better than its bound (Clopper,
    Pearson). "betting" is for other losses: the less they vary, the closer it comes to
    their mean. It depends on the order of the rows, which must not be chosen by their
    losses. "hoeffding_bentkus" depends on the mean alone, and is wider.

    Args:
      losses: Losses in [0, bound], shape (n,) or (n, g) for g columns, each on its own;
        "binomial" takes flags, or integers 0 and 1.
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
        bound], `delta` outside (0, 1), `method` unknown, or "binomial" gets floats.

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
      0.1173
    """
    losses, where = _check(losses, where, bound, method)
    _checks.check_number("delta", delta, lambda d: (d > 0) & (d < 1), "in (0, 1)")
    return _upper_bounds(losses, where, delta, bound, method)


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
        "binomial" takes flags, or integers 0 and 1.
      alpha: Level of the mean in (0, bound), in units of the loss, shape ().
      method: "hoeffding_bentkus", "binomial" or "betting"; see `upper_bound`.
      delta: Probability in (0, 1) on which the bets depend, shape (), for "betting".
      where: True where a row counts, shape (n,) or (n, g). Defaults to all rows.
      bound: Largest loss there can be, > 0, shape ().

    Returns:
      p-value in [0, 1], shape () or (g,); 1 without rows. Tails of the binomial law are
      rounded from double precision if `alpha` is a number, all rows count and n <=
      16,384; otherwise they have the precision of the float type at the rounded `alpha`
      (1e-5 of their size, for 10^5 rows in single precision). NaN among traced losses
      counts as `bound`, a traced `alpha` outside [0, bound] as the nearer end.

    Raises:
      ValueError: if shapes do not fit, a concrete loss that counts is outside [0,
        bound], `alpha` outside (0, bound), `method` unknown, "binomial" gets floats, or
        "betting" no `delta`.

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
    losses, where = _check(losses, where, bound, method)
    if method == "betting" and delta is None:
        raise ValueError(
            'expected delta with method="betting", whose bets depend on it, got None'
        )
    if delta is not None:
        _checks.check_number("delta", delta, lambda d: (d > 0) & (d < 1), "in (0, 1)")
    alpha = _as_share(alpha, bound)
    tails = None
    if isinstance(alpha, Fraction):
        if method != "betting" and where is None and len(losses) <= _MOST:
            tails = _tails(len(losses), alpha)
        alpha = float(alpha)
    return _p_values(losses, where, alpha, delta, bound, tails, method)


def _check(losses, where, bound, method):
    """Returns losses and which rows count as arrays, or raises ValueError."""
    if method not in _P_VALUES:
        raise ValueError(f"expected a method of {sorted(_P_VALUES)}, got {method!r}")
    _checks.check_number("bound", bound, lambda b: (b > 0) & (b < np.inf), "> 0")
    losses = as_array("losses", losses)
    where = None if where is None else as_array("where", where).astype(bool)
    for name, value in (("losses", losses), ("where", where)):
        if value is not None and value.ndim not in (1, 2):
            raise ValueError(
                f"expected {name} of shape (n,) or (n, g), got {value.shape}"
            )
    _checks.num_rows(losses=losses, where=where)
    if where is not None and losses.ndim == where.ndim == 2:
        _checks.check_shape("where", losses.shape, where.shape)
    if method == "binomial":
        _check_binary(losses, bound)
    if losses.dtype != bool and is_concrete(losses, where, bound):
        _check_range(losses, where, bound)
    return losses, where


def _check_binary(losses, bound):
    if jnp.issubdtype(losses.dtype, jnp.floating):
        raise ValueError(
            'expected bool or integer losses with method="binomial", got '
            f"{losses.dtype}; losses.astype(bool) counts all that are not 0"
        )
    if not is_concrete(bound) or bound != 1:
        raise ValueError(f'expected bound=1 with method="binomial", got {bound}')


def _check_range(losses, where, bound):
    losses, top = np.asarray(losses), float(bound)
    if not losses.size or (losses.min() >= 0 and losses.max() <= top):
        return
    counts = np.ones(len(losses), bool) if where is None else np.asarray(where)
    if counts.ndim > losses.ndim:
        counts = counts.any(1)
    counts = counts.reshape(counts.shape + (1,) * (losses.ndim - counts.ndim))
    inside = lambda v: ~counts | ((v >= 0) & (v <= top))  # noqa: E731
    _checks.check_values(inside, f"losses in [0, {top:g}]", losses)


def _as_share(alpha, bound):
    """Returns alpha / bound: a Fraction where both are numbers, or an array."""
    inside = lambda a: (a > 0) & (a < bound)  # noqa: E731
    if is_concrete(bound):
        expected = f"in (0, {float(bound):g})"
        _checks.check_number("alpha", alpha, inside, expected)
    else:
        _checks.check_scalars(alpha=alpha)
    if isinstance(alpha, Array) or isinstance(bound, Array):
        return as_float(alpha) / bound
    exact = Fraction(str(alpha)) if alpha >= 1 else as_alpha(alpha).item()
    return exact / Fraction(str(bound))


@functools.lru_cache(maxsize=64)
def _tails(n, alpha):
    return _binomial.binomial_tails(n, alpha)


@functools.partial(jax.jit, static_argnames="method")
def _p_values(losses, where, share, delta, bound, tails, method):
    def of_column(losses, where):
        p = _P_VALUES[method](losses, where, delta, bound, tails)
        return p(_in_range(jnp.asarray(share).astype(_float_type(losses))))

    return _over_columns(of_column, losses, where)


@functools.partial(jax.jit, static_argnames="method")
def _upper_bounds(losses, where, delta, bound, method):
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
        return (risk <= 0) | ((risk <= 1) & (p(risk) > level))

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
    total, rows = _total(losses, where, bound)
    # ceil(n r) of the sum, never of n times a mean, which may lie above an integer.
    slack = max(1e-9, 4 * float(jnp.finfo(total.dtype).eps) * len(losses))
    count = jnp.minimum(jnp.ceil(lax.stop_gradient(total) - slack), rows)
    tail = _tail(tails)

    def p(risk):
        below = jnp.minimum(total, rows * risk)
        hoeffding = jnp.exp(-binomial_deviance(below, rows, risk))
        bentkus = np.e * tail(jnp.maximum(count, 0), rows, risk)
        return jnp.minimum(jnp.minimum(hoeffding, bentkus), 1)

    return p


def _binomial_counts(losses, where, delta, bound, tails):
    """Returns R -> P(Bin(n, R) <= number of errors)."""
    count, rows = _total(losses != 0, where, 1)
    return functools.partial(_tail(tails), count, rows)


def _betting(losses, where, delta, bound, tails):
    """Returns R -> 1 / the largest capital of bets against a mean above R."""
    x = _scaled(losses, where, bound)
    delta = jnp.asarray(delta).astype(x.dtype)
    delta = jnp.clip(jnp.where(delta > 0, delta, 0), 0, 1)
    return lambda risk: jnp.exp(-largest_log_capital(x, risk, delta, where))


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


def _total(losses, where, bound):
    """Returns the sum of losses / bound, and the number of rows, as floats."""
    dtype = _float_type(losses)
    rows = len(losses) if where is None else jnp.sum(where)
    rows = jnp.asarray(rows).astype(dtype)
    if losses.dtype == bool:
        counts = losses if where is None else losses & where
        return jnp.sum(counts, dtype=int).astype(dtype) / jnp.asarray(bound, dtype), rows
    x = _scaled(losses, where, bound)
    return jnp.dot(jnp.ones_like(x), x, precision=lax.Precision.HIGHEST), rows


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
