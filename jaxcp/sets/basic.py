"""Sets with ends or members: intervals, boxes, bounding boxes, labels."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxcp._arrays import as_array, as_arrays
from jaxcp._pytree import pytree, static
from jaxcp.typing import Number


@pytree
class Interval:
    """The closed interval [lower, upper]; empty where it is crossed, lower > upper.

    Args:
      lower: Lower end, shape (), in units of the target; may be -inf.
      upper: Upper end, shape (); may be +inf.

    Example:
      >>> Interval(jnp.asarray(0.0), jnp.asarray(2.0)).size().item()
      2.0
    """

    lower: Array
    upper: Array

    def contains(self, y: Number) -> Array:
        """Returns whether lower <= y <= upper, bool of shape ().

        A batch of shape (m,) takes targets of shape (m,) or (m, 1), or one for all.
        """
        y, ndim = as_array("y", y), jnp.ndim(self.lower)
        y = y[..., 0] if y.ndim == ndim + 1 and y.shape[-1] == 1 else y
        return (self.lower <= y) & (y <= self.upper)

    def size(self) -> Array:
        """Returns the width, shape (), in units of the target; 0 if crossed."""
        return _width(self.lower, self.upper)

    def is_empty(self) -> Array:
        """Returns whether the ends are crossed, bool of shape ()."""
        return self.lower > self.upper

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper), each of shape ()."""
        return self.lower, self.upper

    def with_ends(self, lower: Array, upper: Array) -> "Interval":
        """Returns the interval with other ends."""
        return Interval(lower, upper)


@pytree
class Box:
    """The closed box of all y with lower_j <= y_j <= upper_j in every dimension j.

    Args:
      lower: Lower corner, shape (d,), in units of the targets; may have -inf.
      upper: Upper corner, shape (d,); may have +inf.

    Example:
      >>> Box(jnp.zeros(2), jnp.array([2.0, 3.0])).size()
      Array(6., dtype=float32)
    """

    lower: Array
    upper: Array

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in the box, bool of shape ()."""
        y = as_array("y", y)
        _check_outputs(y, jnp.shape(self.lower)[-1])
        return jnp.all((self.lower <= y) & (y <= self.upper), axis=-1)

    def size(self) -> Array:
        """Returns the volume, shape (); 0 if the box is crossed in any dimension."""
        widths = _width(self.lower, self.upper)
        flat = widths == 0  # also with an infinite side: 0 * inf is 0 here
        volume = jnp.prod(jnp.where(flat, 1, widths), axis=-1)
        return jnp.where(jnp.any(flat, axis=-1), 0, volume)

    def is_empty(self) -> Array:
        """Returns whether the box is crossed in any dimension, bool of shape ()."""
        return jnp.any(self.lower > self.upper, axis=-1)

    def ends(self) -> tuple[Array, Array]:
        """Returns the corners (lower, upper), each of shape (d,)."""
        return self.lower, self.upper

    def with_ends(self, lower: Array, upper: Array) -> "Box":
        """Returns the box with other corners."""
        return Box(lower, upper)


@pytree
class BoundingBox:
    """A set of boxes (x_min, y_min, x_max, y_max): those inside, or around, this one.

    An outer box holds every box that lies in it; an inner box, `inner=True`, holds
    every box that it lies in. Made by `scores.BoxOffset`.

    Args:
      lower: Corner (x_min, y_min), shape (2,), in pixels; may have -inf.
      upper: Corner (x_max, y_max), shape (2,), in pixels; may have +inf.
      inner: Whether the boxes of the set lie around this one, not in it.

    Example:
      >>> outer = BoundingBox(jnp.zeros(2), jnp.array([4.0, 3.0]))
      >>> outer.contains(jnp.array([1.0, 1.0, 4.0, 2.0])).item(), outer.size().item()
      (True, 12.0)
    """

    lower: Array
    upper: Array
    inner: bool = static(default=False)

    def contains(self, y: Array) -> Array:
        """Returns whether the box `y`, shape (4,), is in the set, bool of shape ()."""
        y = as_array("y", y)
        _check_outputs(y, 4)
        lower, upper = y[..., :2], y[..., 2:]
        if self.inner:
            inside = (lower <= self.lower) & (self.upper <= upper)
        else:
            inside = (self.lower <= lower) & (upper <= self.upper)
        return jnp.all(inside, axis=-1)

    def size(self) -> Array:
        """Returns the area, shape (), in square pixels; 0 if the box is crossed.

        A small outer box says much, and so does a large inner one.
        """
        return Box(self.lower, self.upper).size()

    def is_empty(self) -> Array:
        """Returns whether no box is in the set, bool of shape ()."""
        empty = Box(self.lower, self.upper).is_empty()
        # Whatever the corners of an inner box, some boxes are around it.
        return jnp.zeros_like(empty) if self.inner else empty

    def ends(self) -> tuple[Array, Array]:
        """Returns between which numbers the four of a box of the set lie, each (4,)."""
        free = jnp.full_like(self.lower, jnp.inf)
        if self.inner:
            low, high = (-free, self.upper), (self.lower, free)
        else:
            low, high = (self.lower, -free), (free, self.upper)
        return jnp.concatenate(low, axis=-1), jnp.concatenate(high, axis=-1)

    def with_ends(self, lower: Array, upper: Array) -> "BoundingBox":
        """Returns the set whose boxes lie between these numbers."""
        first, last = (upper, lower) if self.inner else (lower, upper)
        return BoundingBox(first[..., :2], last[..., 2:], self.inner)

    def corners(self) -> Array:
        """Returns (x_min, y_min, x_max, y_max), shape (4,), or (m, 4) of a batch."""
        return jnp.concatenate([self.lower, self.upper], axis=-1)


@pytree
class LabelSet:
    """A set of labels out of 0, ..., k - 1; it may be empty.

    Args:
      mask: True for the labels in the set, bool of shape (k,).

    Example:
      >>> LabelSet(jnp.array([True, False, True])).contains(2)
      Array(True, dtype=bool)
    """

    mask: Array

    def contains(self, y: Number) -> Array:
        """Returns whether label `y` is in the set; labels out of range are not.

        A batch with a mask of shape (m, k) takes labels of shape (m,) or (m, 1), or one
        for all.
        """
        y = as_array("y", y).astype(int)  # a narrow type may not hold every label
        mask = as_array("mask", self.mask)
        k = mask.shape[-1]
        y = y[..., 0] if y.ndim == mask.ndim > 1 and y.shape[-1] == 1 else y
        if mask.ndim == 1:
            inside = mask.at[y].get(mode="fill", fill_value=False)
        else:
            batch = jnp.broadcast_shapes(y.shape, mask.shape[:-1])
            mask = jnp.broadcast_to(mask, (*batch, k))
            place = jnp.broadcast_to(jnp.clip(y, 0, k - 1), batch)
            inside = jnp.take_along_axis(mask, place[..., None], axis=-1)[..., 0]
        return inside & (y >= 0) & (y < k)

    def size(self) -> Array:
        """Returns the number of labels, int of shape ()."""
        return jnp.sum(self.mask, axis=-1)

    def is_empty(self) -> Array:
        """Returns whether there is no label in the set, bool of shape ()."""
        return ~jnp.any(self.mask, axis=-1)


def as_intervals(sets: Any) -> Any:
    """Returns boxes of one output as intervals, and all other sets as they are."""
    if isinstance(sets, Box) and jnp.shape(sets.lower)[-1:] == (1,):
        lower, upper = as_arrays(lower=sets.lower, upper=sets.upper)
        return Interval(lower[..., 0], upper[..., 0])
    return sets


def _check_outputs(y, d):
    if jnp.shape(y)[-1:] != (d,):
        raise ValueError(f"expected targets of shape ({d},), got {jnp.shape(y)}")


def _width(lower, upper):
    # Not `upper - lower` at crossed ends: inf - inf would be NaN. NaN ends give NaN.
    return jnp.where(upper <= lower, 0, upper - jnp.where(upper <= lower, 0, lower))
