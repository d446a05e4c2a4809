"""Shapes of targets, and volumes of sets that may be flat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, rounding
from jaxcp.typing import Number

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


def over_batch(method: Callable[..., Any], ndim: int, region: Any, *y: Any) -> Any:
    """Returns `method(region, y)` of each set of a batch with `ndim` leading axes."""
    y = tuple(as_arrays(y=v) for v in y)
    for v in y:
        if v.ndim < ndim:
            raise ValueError(
                f"expected one set, or a target for each of several, got {v.shape}"
            )
    for _ in range(ndim):
        method = jax.vmap(method)
    return method(region, *y)


def at_most(score: Array, bound: Number, rounds: bool) -> Array:
    """Returns whether a score is at most a bound, or beyond it by rounding alone."""
    bound = as_float(bound)
    return score <= (bound + rounding(bound) if rounds else bound)
