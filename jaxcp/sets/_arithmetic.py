"""Shapes of targets, and volumes of sets that may be flat."""

import jax.numpy as jnp
import numpy as np
from jax import Array

Shape = tuple[int, ...]


def without_axis(y: Array, ndim: int) -> Array:
    """Returns targets of one number each, which may come with an axis of their own."""
    return y[..., 0] if y.ndim == ndim + 1 and y.shape[-1] == 1 else y


def answer_shape(targets: Shape, sets: Shape) -> Shape:
    """Returns the shape of the answers of a batch of sets to a batch of targets."""
    try:
        return np.broadcast_shapes(targets, sets)
    except ValueError:
        raise ValueError(
            "expected one target for each set or one for all, got targets of shape "
            f"{targets} for sets of shape {sets}"
        ) from None


def log_of_solid(log_volume: Array, least: Array) -> Array:
    """Returns a log volume where the least side is above 0; -inf at 0, NaN at NaN."""
    flat = jnp.where(least <= 0, -jnp.inf, jnp.nan)
    return jnp.where(least > 0, log_volume, flat)
