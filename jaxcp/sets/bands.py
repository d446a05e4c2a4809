"""Bands: sets of whole paths and fields."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, at_least_single
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

    @property
    def _ndim(self):  # type: ignore[override]
        return self.ndim

    def contains(self, y: Any) -> Array:
        """Returns whether enough points of `y` are within the ends, bool of shape ().

        `y` has the shape of one set; a batch takes one for each set, or one for all. It
        may be NaN where a point is left out.
        """
        y, shape, batch = as_array("y", y), self.target_shape(), self._batch()
        lead = y.shape[: max(y.ndim - self.ndim, 0)]
        pairs = zip(lead[::-1], batch[::-1], strict=False)
        fits = all(a == b or 1 in (a, b) for a, b in pairs)
        if y.shape != (*lead, *shape) or not fits:
            known = f"{shape}, one or {batch} of them" if batch else f"{shape}"
            raise ValueError(f"expected targets of shape {known}, got {y.shape}")
        return _contains(*self._pair(), y, self._axes(), self.fraction)

    def _seen(self, y):
        """Returns targets with 0 where they may be NaN, as the points are left out."""
        ends = self._pair()
        if not is_concrete(y, ends) or not _checks.has_nan(y):
            return y
        # Also of a set that is empty, whose infinite ends are crossed.
        return jnp.asarray(np.where(np.isinf(ends).all(axis=0), 0, y), y.dtype)

    def size(self) -> Array:
        """Returns the mean width of the points, shape (), in units of the targets.

        Of those that are not left out; +inf if all are. A crossed point has width 0.
        """
        return _mean_width(*map(as_float, self._pair()), self._axes())

    def is_empty(self) -> Array:
        """Returns whether too few points have ends that are not crossed, shape ()."""
        return ~self.contains(self.lower)

    def log_size(self) -> Array:
        """Raises ValueError: a product of so many widths says nothing of a field."""
        cure = "; its size is a mean width"
        raise ValueError(f"expected a set with a volume, got a Band{cure}")

    def _columns(self, names):
        if names is not None or self.ndim == 1:
            return super()._columns(names)
        places = np.ndindex(self.target_shape())
        return [
            "_".join(map(str, (e, *at))) for at in places for e in ("lower", "upper")
        ]

    def _axes(self):
        return tuple(range(-self.ndim, 0))

    def _pair(self):
        ends = tuple(as_array("ends", end) for end in (self.lower, self.upper))
        _checks.check_shape("upper", *(end.shape for end in ends))
        return ends


@pytree
class _PartialBand(Band):
    """A band of a share of the points: no set of all targets between two ends."""

    ends = with_ends = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("ends", "with_ends"):
            share = "of a share of the points, which has lower and upper"
            raise AttributeError(f"expected a set with {name}, got a Band {share}")
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return Band.__repr__(self).removeprefix("_Partial")


@jax.jit(static_argnames=("axes", "fraction"))
def _contains(lower, upper, y, axes, fraction):
    out, inside = left_out(lower, upper), (lower <= y) & (y <= upper)
    if fraction == 1:
        return jnp.all(inside | out, axis=axes)
    found, known = (jnp.sum(v, axis=axes, dtype=int) for v in (inside & ~out, ~out))
    return found >= counts_of(fraction, known)


@jax.jit(static_argnames="axes")
def _mean_width(lower, upper, axes):
    out = left_out(lower, upper)
    widths = at_least_single(jnp.where(out, 0, width(lower, upper)))
    for _ in axes:  # one by one, so that long sums do not lose digits
        widths = jnp.sum(widths, axis=-1)
    count = jnp.sum(~out, axis=axes, dtype=int)
    mean = widths / jnp.maximum(count, 1).astype(widths.dtype)
    return jnp.where(count > 0, mean, jnp.inf).astype(lower.dtype)


def left_out(lower: Any, upper: Any) -> Any:
    """Returns where a band says nothing: between infinite ends."""
    return (lower == -jnp.inf) & (upper == jnp.inf)
