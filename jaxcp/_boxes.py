"""Boxes (x_min, y_min, x_max, y_max) in the plane."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp.selection import as_float


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
    """Returns the intersection over union of two boxes of shape (4,)."""
    a, b = as_float(a), as_float(b)
    lower, upper = jnp.maximum(a[:2], b[:2]), jnp.minimum(a[2:], b[2:])
    both = jnp.prod(jnp.maximum(upper - lower, 0))
    either = _area(a) + _area(b) - both
    some = (both > 0) & (either < jnp.inf)
    return jnp.where(some, both / jnp.where(some, either, 1), 0)


def _area(box):
    return jnp.prod(jnp.maximum(box[2:] - box[:2], 0))
