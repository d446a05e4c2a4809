"""p-values of the mean of a loss, and the largest mean that they do not reject."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles._crossings import moving
from jaxcp.quantiles._keys import bisect_keys, from_keys, key_type
from jaxcp.risk._betting import largest_log_capital
from jaxcp.risk._tails import binomial_deviance, binomial_tail
from jaxcp.typing import Number

_FEW = 2**20  # rows whose sum is as exact as it must be
_FORGIVEN = 0.25  # of a row: how far a sum may lie above an integer by rounding


@functools.partial(jax.jit, static_argnames="method")
def p_values(
    losses: Array,
    where: Array | None,
    share: Number,
    delta: Number | None,
    bound: Number,
    tails: np.ndarray | None,
    method: str,
) -> Array:
    """Returns p-values of columns for a mean above share * bound.

    `tails` are P(Bin(n, share) <= k) for k = 0, ..., n, where they are known.
    """

    def of_column(losses, where):
        p = _P_VALUES[method](losses, where, delta, bound, tails)
        risk = jnp.asarray(share).astype(_float_type(losses))
        return p(jnp.where(risk > 0, jnp.minimum(risk, 1), 0))  # 0 of NaN

    return _over_columns(of_column, losses, where)


@functools.partial(jax.jit, static_argnames="method")
def upper_bounds(
    losses: Array, where: Array | None, delta: Number, bound: Number, method: str
) -> Array:
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
        hoeffding = jnp.exp(-binomial_deviance(below, rows, risk))
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
