"""Bands: sets of whole paths and fields."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._tree import pytree, static
from jaxcp.quantiles.levels import check_share, counts_of
from jaxcp.sets.basic import Ends, width


@pytree
class Band(Ends):
    """All paths or fields with at least a share of their points between two ends.

    y is in the set if lower_t <= y_t <= upper_t at ceil(fraction d) or more of its d
    points t. Without ends, (-inf, inf), a point is left out: it is not among the d, and
    y_t may be anything there, NaN too. Made by `scores.Band`. (`clip` and `transform`
    give such points ends, and they count from then on.)

    A band of all points is a set with ends, as a `Box`; one of a share of them,
    fraction < 1, has none (it is no `typing.HasEnds`), for points outside of `lower`
    and `upper` are allowed.

    Args:
      lower: Lower ends, shape of a target, any, in units of the targets.
      upper: Upper ends, the same shape.
      ndim: How many axes a target has: 1 for a path, 2 for a field. Axes before these
        are those of a batch: with 1 the rows of an array (h, w) are h paths.
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

    def __new__(cls, lower=None, upper=None, ndim=1, fraction=1.0):  # copies give none
        """Returns a band without `ends` where a share of the points is enough."""
        return object.__new__(_PartialBand if cls is Band and fraction != 1 else cls)

    def __post_init__(self) -> None:
        _checks.check_count("ndim", self.ndim, 0)
        check_share("fraction", self.fraction)

    _ndim = property(lambda self: self.ndim)

    def contains(self, y: Any) -> Array:
        """Returns whether enough points of `y` are within the ends, bool of shape ().

        `y` has the shape of one set; a batch takes one for each set, or one for all. It
        may be NaN where a point is left out.
        """
        y, shape = as_array("y", y), self.target_shape()
        if y.shape[max(y.ndim - self.ndim, 0) :] != shape:
            raise ValueError(f"expected targets of shape {shape}, got {y.shape}")
        return _contains(self, y)

    def _seen(self, y):
        """Returns targets with 0 where they may be NaN, as the points are left out."""
        if not is_concrete(y, self) or not np.isnan(y).any():
            return y
        # Also of a set that is empty, whose infinite ends are crossed.
        out = np.isinf(self.lower) & np.isinf(self.upper)
        return jnp.asarray(np.where(out, 0, y), y.dtype)

    @jax.jit
    def size(self) -> Array:
        """Returns the mean width of the points, shape (), in units of the targets.

        Of those that are not left out; +inf if all are. A crossed point has width 0.
        """
        out, axes = self._left_out(), self._axes()
        counts = ~out | jnp.all(out, axis=axes, keepdims=True)
        return jnp.mean(width(self.lower, self.upper), axis=axes, where=counts)

    def is_empty(self) -> Array:
        """Returns whether too few points have ends that are not crossed, shape ()."""
        return ~self.contains(self.lower)

    def log_size(self) -> Array:
        """Raises ValueError: a product of so many widths says nothing of a field."""
        raise ValueError("expected a set with a volume, got a Band; its size is a mean")

    def _left_out(self):
        """Returns where it says nothing: between infinite ends."""
        return (self.lower == -jnp.inf) & (self.upper == jnp.inf)

    def _axes(self):
        return tuple(range(-self.ndim, 0))


@pytree
class _PartialBand(Band):
    """A band of a share of the points: no set of all targets between two ends."""

    ends = with_ends = None  # type: ignore[assignment]
    __repr__ = lambda self: Band.__repr__(self).removeprefix("_Partial")  # noqa: E731


@jax.jit
def _contains(band, y):
    out, axes = band._left_out(), band._axes()
    inside = (band.lower <= y) & (y <= band.upper)
    if band.fraction == 1:
        return jnp.all(inside | out, axis=axes)
    found, known = (jnp.sum(v, axis=axes, dtype=int) for v in (inside & ~out, ~out))
    return found >= counts_of(band.fraction, known)
