"""Bands: sets of whole paths and fields."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import at_least_single
from jaxcp._tree import pytree, static
from jaxcp.quantiles.levels import check_share, count_of
from jaxcp.sets.basic import Ends, width


@pytree
class Band(Ends):
    """All paths or fields with at least a share of their points between two ends.

    y is in the set if lower_t <= y_t <= upper_t at ceil(fraction d) or more of its d
    points t, at least one. Without ends, (-inf, inf), a point is left out: any number
    counts as inside there. Made by `scores.Band`.

    A band of all points is a set with ends, as a `Box`; one of a share of them,
    fraction < 1, has none (it is no `typing.HasEnds`), for points outside of `lower`
    and `upper` are allowed.

    Args:
      lower: Lower ends, shape of a target, any, in units of the targets.
      upper: Upper ends, the same shape.
      ndim: How many axes a target has: 1 for a path, 2 for a field.
      fraction: Share of the points, a number in (0, 1], read as a decimal: 0.95 of 40
        points are 38.

    Raises:
      ValueError: if `ndim` is no int >= 0, or `fraction` no number in (0, 1].

    See also:
      scores.Band, sets.Box, plotting.plot_band

    Example:
      >>> lower, upper = jnp.zeros(4), jnp.ones(4)
      >>> path = jnp.array([0.5, 0.2, 2.0, 0.9])
      >>> bool(Band(lower, upper).contains(path))
      False
      >>> bool(Band(lower, upper, fraction=0.75).contains(path))
      True
    """

    lower: Array
    upper: Array
    ndim: int = static(default=1)
    fraction: float = static(default=1.0)

    def __new__(
        cls, lower: Array, upper: Array, ndim: int = 1, fraction: float = 1.0
    ) -> Band:
        """Returns a band without `ends` where a share of the points is enough."""
        return object.__new__(_PartialBand if cls is Band and fraction != 1 else cls)

    def __post_init__(self) -> None:
        _checks.check_count("ndim", self.ndim, 0)
        check_share("fraction", self.fraction)

    @property
    def _ndim(self):  # type: ignore[override]
        return self.ndim

    def contains(self, y: Any) -> Array:
        """Returns whether enough points of `y` are within the ends, bool of shape ().

        `y` has the shape of one set; a batch takes one for each set, or one for all.
        """
        y, shape = as_array("y", y), self.target_shape()
        if y.shape[max(y.ndim - self.ndim, 0) :] != shape:
            raise ValueError(f"expected targets of shape {shape}, got {y.shape}")
        y, lower, upper = jnp.broadcast_arrays(y, self.lower, self.upper)
        return self._are_enough((lower <= y) & (y <= upper))

    def size(self) -> Array:
        """Returns the mean width of the points, shape (), in units of the targets.

        Of those that are not left out; +inf if all are. A crossed point has width 0.
        """
        return _mean_width(self.lower, self.upper, self._axes())

    def is_empty(self) -> Array:
        """Returns whether too few points have ends that are not crossed, shape ()."""
        return ~self._are_enough(~(self.lower > self.upper))

    def log_size(self) -> Array:
        """Raises ValueError: a product of so many widths says nothing of a field."""
        raise ValueError(
            "expected a set with a volume, got a Band; its size() is the mean width of "
            "its points, for metrics.mean_size"
        )

    def _columns(self, names):
        if names is not None or self.ndim == 1:
            return super()._columns(names)
        places = [tuple(map(str, at)) for at in np.ndindex(self.target_shape())]
        return ["_".join((end, *at)) for at in places for end in ("lower", "upper")]

    def _axes(self):
        return tuple(range(-self.ndim, 0))

    def _are_enough(self, points):
        """Returns whether enough points are flagged, of flags (..., *target)."""
        if self.fraction == 1:
            return jnp.all(points, axis=self._axes())
        needed = count_of(self.fraction, int(np.prod(self.target_shape())))
        return jnp.sum(points, axis=self._axes(), dtype=int) >= needed


@pytree
class _PartialBand(Band):
    """A band of a share of the points: no set of all targets between two ends."""

    ends = with_ends = None  # type: ignore[assignment]


@partial(jax.jit, static_argnames="axes")
def _mean_width(lower, upper, axes):
    out = (lower == -jnp.inf) & (upper == jnp.inf)
    widths = at_least_single(jnp.where(out, 0, width(lower, upper)))
    total, count = jnp.sum(widths, axis=axes), jnp.sum(~out, axis=axes, dtype=int)
    mean = total / jnp.maximum(count, 1).astype(total.dtype)
    return jnp.where(count > 0, mean, jnp.inf).astype(lower.dtype)
