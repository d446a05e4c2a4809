"""Ends of sets that hold the very target whose score rounds to the threshold."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp.typing import Number

Members = Callable[[Array], Array]  # which targets are in a set


def known_units(units: Array) -> tuple[Array, Array]:
    """Returns where units are positive and finite, and units with 1 elsewhere."""
    known = (units > 0) & jnp.isfinite(units)
    return known, jnp.where(known, units, 1)


def in_targets(q: Array, known: Array, units: Array) -> Array:
    """Returns q units of the targets, +inf where the unit is not known."""
    # Infinite thresholds stay out of the product: its gradient would be NaN.
    finite = jnp.isfinite(q)
    length = jnp.where(finite, jnp.where(finite, q, 0) * units, q)
    return jnp.where(known, length, jnp.inf)


def moved_out(
    end: Array, away: Number, inside: Members, magnitude: Array, unit: Number = 1.0
) -> Array:
    """Returns `end`, moved towards `away` by rounding where it must be.

    `mu + q` may round to below the very target whose score rounds to q. An end moves by
    one number if the next target is still inside, and by the rounding error of numbers
    of `magnitude`, of scores in this `unit`, if the one after it is too.
    """
    at, magnitude, unit = jax.lax.stop_gradient((end, magnitude, unit))
    info, side = jnp.finfo(at.dtype), jnp.sign(away)
    first = _next(at, side)
    rounding = side * 2 * (info.eps * magnitude + _least(info) * (1 + unit))
    # Steps of the smallest numbers are flushed to 0, and those of 0 are not.
    least = side * jnp.maximum(jnp.abs(first - at), _least(info))
    step = jnp.where(inside(_next(first, side)), rounding, least).astype(at.dtype)
    moves = inside(first) & jnp.isfinite(first) & jnp.isfinite(at)
    return end + jnp.where(moves, step, 0)


def _next(at, side):
    """Returns the next number on a side; that of 0 is one that is not taken for 0."""
    following = jnp.nextafter(at, jnp.full_like(at, side * jnp.inf))
    return jnp.where(at == 0, side * _least(jnp.finfo(at.dtype)), following)


def _least(info):
    """Returns the smallest number that arithmetic does not flush to 0."""
    # Half precision is computed in single precision, which holds its subnormals.
    half = info.dtype == jnp.float16
    return (info.smallest_subnormal if half else info.tiny).astype(info.dtype)
