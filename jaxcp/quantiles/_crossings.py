"""Where a growing function on a line crosses a level: to the float, with its slope."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.typing import Number


def last_inside(
    inside: Callable[[Array], Array], start: Array, side: Number, stop: Array
) -> Array:
    """Returns the last number that is inside, going from `start` towards `stop`.

    `start` counts as inside. `inside` holds from there up to some number before `stop`,
    which lies on the `side` 1 or -1; if it is infinite and all are inside, so is the
    result.
    """
    side = jnp.asarray(side, start.dtype)
    first, end = to_keys(side * start), to_keys(side * stop)

    def holds(key):
        y = side * from_keys(key, start.dtype)
        return (key <= first) | ((key < end) & inside(y))

    found = bisect_keys(holds, first.dtype)
    everything = jnp.isinf(stop) & (found == end - 1)
    return jnp.where(everything, stop, side * from_keys(found, start.dtype))


def moving(end: Array, value: Callable[[Array], Array], level: Array) -> Array:
    """Returns a finite `end` with the slopes of the root of value(end) = level.

    By the implicit function theorem; no slope where the value is flat.
    """
    at = lax.stop_gradient(end)
    # Of functions that have no derivative, as jax.pure_callback, the slope is NaN.
    return _moving(at, level - value(at), lax.stop_gradient(_slope(value, at)))


def _slope(value, at):
    try:
        slope = jax.jvp(lambda y: as_float(value(y)), (at,), (jnp.ones_like(at),))[1]
    except ValueError:
        slope = jnp.full_like(at, jnp.nan)
    return slope


@jax.custom_jvp
def _moving(end, gap, slope):
    del gap, slope  # only the tangent depends on them
    return end


@_moving.defjvp
def _moving_jvp(primals, tangents):
    end, _, slope = primals
    # d end = (d level - d value) / value'
    steep = slope != 0
    tangent = tangents[1] / jnp.where(steep, slope, 1)
    return end, jnp.where(steep, tangent, 0).astype(end.dtype)
