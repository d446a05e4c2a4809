"""Ends of sets that hold the very target whose score rounds to the threshold."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._types import Number


def moved_out(
    end: Array, away: Number, inside: Callable[[Array], Array], magnitude: Array
) -> Array:
    """Returns `end`, moved towards `away` by rounding where it must be.

    `mu + q` may round to below the very target whose score rounds to q. An end moves by
    one number if the next target is still inside, and by the rounding error of numbers
    of `magnitude` if the one after it is too.
    """
    at, magnitude = jax.lax.stop_gradient((end, magnitude))
    first = jnp.nextafter(at, jnp.full_like(at, away))
    second = jnp.nextafter(first, jnp.full_like(at, away))
    rounding = 2 * jnp.finfo(at.dtype).eps * magnitude * jnp.sign(away)
    step = jnp.where(inside(second), rounding, first - at).astype(at.dtype)
    return end + jnp.where(inside(first) & jnp.isfinite(first) & (at != 0), step, 0)
