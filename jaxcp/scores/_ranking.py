"""Labels in order of falling probability, and the exact mass of the first of them.

Masses are added up in fixed point: integers, so that calibration and prediction agree
to the last bit whatever the order of the sum, the batch or the device.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxcp._numbers import at_least_single
from jaxcp.quantiles._keys import bisect_keys, to_keys


def before(p: Array, y: Array) -> Array:
    """Returns which labels rank before `y`: more probable, or as much and lower."""
    keys, label = to_keys(p), jnp.arange(len(p))
    return (keys > keys[y]) | ((keys == keys[y]) & (label < y))


def ranking(p: Array) -> Array:
    """Returns the labels from rank 1 to rank k, by one sort of integers."""
    return jnp.argsort(~to_keys(p), stable=True)  # ~ reverses without overflow


def ranks(p: Array) -> Array:
    """Returns the rank of every label, counted from 1."""
    return 1 + jnp.argsort(ranking(p))


def crossing(p: Array, fits: Callable[[Array, Array], Array]) -> Array:
    """Returns the first label by rank with which `fits(mass, members)` fails, or k."""
    keys, units, k = to_keys(p), to_units(p), len(p)
    label = jnp.arange(k, dtype=jnp.int16 if k < 2**15 else int)

    def all_fit(members):
        mass = jnp.sum(jnp.where(members, units, 0), dtype=units.dtype)
        return fits(mass, members)

    # max {v : the labels with keys >= v do not all fit}: the first one out is at v.
    level = bisect_keys(lambda key: ~all_fit(keys >= key), keys.dtype)
    above, tied = keys > level, keys == level
    first_out = bisect_keys(
        lambda y: all_fit(above | (tied & (label < y))),
        label.dtype,
        bits=k.bit_length(),
    )
    return jnp.minimum(first_out.astype(int), k)


@jax.custom_jvp
def mass_of(p: Array, u: Array, ranked_before: Array, y: Array) -> Array:
    """Returns the mass before `y` plus (1 - u) times its own, at most 1."""
    # sum of p_j over j before y, + (1 - u) p_y
    units = to_units(p)
    head = jnp.sum(jnp.where(ranked_before, units, 0), dtype=units.dtype)
    return _add_own(p, u, head, units[y])


@mass_of.defjvp
def _mass_of_jvp(primals, tangents):
    p, u, ranked_before, y = primals
    dp, du, *_ = tangents
    # sum of dp_j over j before y, + (1 - u) dp_y - p_y du
    slope = jnp.sum(jnp.where(ranked_before, dp, 0)) + (1 - u) * dp[y] - p[y] * du
    return mass_of(*primals), slope


@jax.custom_jvp
def masses(p: Array, u: Array) -> Array:
    """Returns `mass_of` every label, shape (k,), the same to the last bit."""
    units, order = to_units(p), ranking(p)
    through = jnp.cumsum(units[order], dtype=units.dtype)[jnp.argsort(order)]
    return _add_own(p, u, through - units, units)


@masses.defjvp
def _masses_jvp(primals, tangents):
    (p, u), (dp, du) = primals, tangents
    order = ranking(p)
    through = jnp.cumsum(dp[order])[jnp.argsort(order)]
    return masses(p, u), through - u * dp - p * du


def to_units(p: Array) -> Array:
    """Returns p in units of 2^-30 (2^-60 for float64), with the last rank up to 1."""
    dtype = jnp.int64 if p.dtype == jnp.float64 else jnp.int32
    p = at_least_single(p)
    # Traced rows may be no probabilities: their sum must not overflow.
    total = jnp.sum(p)
    p = jnp.where(total > 1.5, p / total, p)
    units = jnp.round(p * one(dtype)).astype(dtype)
    # What rounding leaves of 1 goes to the last rank, whose mass is then exactly 1.
    lacking = jnp.maximum(one(dtype) - jnp.sum(units, dtype=dtype), 0)
    last = len(p) - 1 - jnp.argmin(to_keys(p)[::-1])
    return units + jnp.where(jnp.arange(len(p)) == last, lacking, 0)


def from_units(mass: Array) -> Array:
    """Returns a mass in units as a float."""
    dtype = jnp.float64 if mass.dtype == jnp.int64 else jnp.float32
    return mass.astype(dtype) / one(mass.dtype)


def one(dtype: DTypeLike) -> int:
    """Returns the number of units in a mass of 1."""
    return 2**60 if dtype == jnp.int64 else 2**30


def _add_own(p, u, head, own):
    """Returns the mass `head` plus (1 - u) `own`, capped at 1, as a float."""
    head = jnp.minimum(head, one(head.dtype))
    own = jnp.minimum(own, one(head.dtype) - head)
    part = jnp.round(u * own).astype(head.dtype)
    # A NaN anywhere is the row's, not a zero among the probabilities.
    return jnp.where(jnp.any(jnp.isnan(p)), jnp.nan, from_units(head + own - part))
