"""Boxes (x_min, y_min, x_max, y_max) in the plane."""

import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import quotient
from jaxcp._types import ArrayLike
from jaxcp.selection import as_float, at_least_single


def check_boxes(name: str, boxes: Array, mask: ArrayLike | None = None) -> None:
    """Raises ValueError unless boxes are of shape (..., 4), and ordered if concrete."""
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        raise ValueError(
            f"expected {name} of shape (..., 4), x_min, y_min, x_max, y_max, "
            f"got {boxes.shape}"
        )
    _checks.check_not_nan(name, boxes, mask)
    _checks.check_values(
        lambda v: (v[..., 0] <= v[..., 2]) & (v[..., 1] <= v[..., 3]),
        f"{name} with x_min <= x_max and y_min <= y_max",
        boxes,
        mask,
    )


def overlap(a: Array, b: Array) -> Array:
    """Returns the intersection over union of two boxes of shape (4,), 0 if infinite."""
    boxes = at_least_single(jnp.stack([as_float(a), as_float(b)])) / 2
    finite = jnp.all(jnp.isfinite(boxes))
    lower, upper = jnp.split(jnp.where(finite, boxes, 0), 2, axis=1)
    sides = jnp.maximum(upper - lower, 0)
    shared = jnp.minimum(*upper) - jnp.maximum(*lower)
    # In units of the larger sides no area overflows or vanishes.
    unit = lax.stop_gradient(jnp.max(sides, axis=0))
    unit = jnp.where(unit > 0, unit, 1)
    both = jnp.prod(quotient(jnp.maximum(shared, 0), unit))
    area, other = jnp.prod(quotient(sides, unit[None]), axis=1)
    either = area + other - both
    ratio = jnp.where(both > 0, both / jnp.where(both > 0, either, 1), 0)
    return jnp.where(jnp.any(jnp.isnan(boxes)), jnp.nan, ratio)
