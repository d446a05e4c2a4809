"""Sets with ends: intervals, boxes, bounding boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _numbers
from jaxcp._arrays import as_array, as_arrays, is_concrete
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.sets.batches import Batch, Shape, log_of_solid, without_axis
from jaxcp.typing import ArrayLike, HasEnds, HasShapes, Number


class Pairs(Batch):
    """What sets with arrays of lower and upper ends have in common."""

    lower: Array
    upper: Array
    _ndim: ClassVar[int] = 1  # axes of the ends of one set

    def to_numpy(self) -> np.ndarray:
        """Returns the ends, shape (m, 2) of intervals, else (m, d, 2)."""
        return np.stack([np.asarray(self.lower), np.asarray(self.upper)], axis=-1)

    def to_dict(self) -> dict[str, Any]:
        """Returns the ends as lists, None for those that are infinite or NaN.

        What is empty has lower > upper also here: as the largest numbers where these
        ends are infinite. So have pieces that are not there.

        Example:
          >>> Interval(jnp.array([-jnp.inf, 1.0]), jnp.array([2.0, 0.0])).to_dict()
          {'lower': [None, 1.0], 'upper': [2.0, 0.0]}
        """
        ends = np.asarray(self.lower), np.asarray(self.upper)
        if not jnp.issubdtype(ends[0].dtype, jnp.floating):
            return super().to_dict()
        most = jnp.finfo(ends[0].dtype).max
        ends = np.minimum(ends[0], most), np.maximum(ends[1], -most)
        return Batch.to_dict(replace(self, lower=ends[0], upper=ends[1]))  # type: ignore[type-var]

    def checked(self, num_sets: int) -> Self:
        """Returns the sets if there are so many, with two ends each."""
        shapes = np.shape(self.lower), np.shape(self.upper)
        if shapes[0] != shapes[1]:
            raise ValueError(f"expected ends of one shape, got {shapes}")
        return super().checked(num_sets)

    def transform(self, function: Callable[[Array], ArrayLike]) -> Self:
        """Returns the sets of f(y) for the y in these sets, f monotone on each of them.

        Ends are mapped, and swapped where f falls: of sets of log(y), those of y are
        `sets.transform(jnp.exp)`. Infinite ends are mapped too (exp(-inf) is 0), and
        what is empty stays so, with ends (inf, -inf).

        Args:
          function: A function f of numbers, element by element, such as jnp.exp. It is
            given arrays of the shape of the ends.

        Returns:
          Sets of the same kind, in units of f(y).

        Raises:
          ValueError: if f has not one real number for each end, or where values are
            known: if f is NaN, or beyond f of both ends, at one of a few targets in a
            set. Of traced sets those with NaN for an end are everything.

        Guarantee:
          f(y) is in the new set where y is in the old one, up to the rounding of f, so
          that coverage is at least as before; the same if f is strictly monotone.

        Cost:
          Two evaluations of f, and 14 more where values are known.

        Example:
          >>> logs = Interval(jnp.array([-jnp.inf, 0.0]), jnp.zeros(2))
          >>> logs.transform(jnp.exp).lower.tolist()
          [0.0, 1.0]
          >>> Interval(jnp.ones(1), jnp.array([2.0])).transform(jnp.negative).to_numpy()
          array([[-2., -1.]], dtype=float32)
        """
        ends = tuple(map(as_float, as_arrays(ends=(self.lower, self.upper))))
        found = tuple(_at(function, end) for end in ends)
        if is_concrete(ends, found):
            _check_monotone(function, *map(np.asarray, (*ends, *found)))
        lower, upper = _mapped(ends, found)
        return replace(self, lower=lower, upper=upper)  # type: ignore[type-var]

    def _batch(self):
        shape = np.shape(self.lower)
        return shape[: len(shape) - self._ndim]

    def _columns(self, names):
        """Returns the names of both ends of each output."""
        shape = np.shape(self.lower)[len(self._batch()) :]
        at = np.ndindex(shape) if names is None else ((name,) for name in names)
        return ["_".join(map(str, (e, *i))) for i in at for e in ("lower", "upper")]


class Ends(Pairs):
    """What sets between `lower` and `upper` have in common."""

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper), each of the shape of a target."""
        return self.lower, self.upper

    def with_ends(self, lower: Array, upper: Array) -> Self:
        """Returns the set of this kind with other ends."""
        return replace(self, lower=lower, upper=upper)  # type: ignore[type-var]

    def widths(self) -> Array:
        """Returns upper - lower, of the shape of a target."""
        return self.upper - self.lower

    def target_shape(self) -> Shape:
        """Returns the shape of a target."""
        return np.shape(self.lower)[len(self._batch()) :]

    def clip(
        self, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Self:
        """Returns the part of the set between two bounds of the targets.

        An end beyond a bound becomes the bound, so that targets within the bounds are
        covered as before; a set that lies outside is empty, and NaN stays.

        Args:
          lower: Least target, shape (), or one for each number of a target; None for
            no bound.
          upper: Largest target, likewise.

        Returns:
          The sets within the bounds.

        Raises:
          ValueError: if a concrete bound is NaN, or lower > upper.
        """
        bounds = check_bounds(lower, upper, self.target_shape())
        low, high = clipped((self.lower, self.upper), *bounds)
        return replace(self, lower=low, upper=high)  # type: ignore[type-var]


# Where a function is looked at, and at shares of the way from end to end.
_PLACES, _SHARES = (-1e3, -10, -1, -0.1, 0, 0.1, 1, 10, 1e3), (0.1, 0.3, 0.5, 0.7, 0.9)


def _at(function, values):
    """Returns f of numbers, floats of their shape; ValueError for another shape."""
    if not callable(function):
        raise ValueError(f"expected f as a function such as jnp.exp, got {function!r}")
    found = as_array("f(ends)", function(values))
    _checks.check_shape("f(ends)", values.shape, found.shape)
    if jnp.iscomplexobj(found):
        raise ValueError(f"expected f of real numbers, got {found.dtype}")
    return as_float(found)


def _check_monotone(function, lower, upper, first, last):
    """Raises ValueError for f that is NaN, or not between f of the ends, in a set."""
    with np.errstate(all="ignore"):
        inner = (lower + share * (upper - lower) for share in _SHARES)
        for at in (*_PLACES, *inner):
            at = np.clip(np.where(np.isnan(at), lower, at), lower, upper)
            found = np.asarray(_at(function, jnp.asarray(at, lower.dtype)))
            nearest = np.clip(found, np.minimum(first, last), np.maximum(first, last))
            bad = (lower <= upper) & ~np.isclose(found, nearest)
            if bad.any():
                y, f, low, high = (v[bad][0] for v in (at, found, lower, upper))
                raise ValueError(
                    "expected f monotone on each set, a number at each target, got "
                    f"f({y:g}) = {f:g} on [{low:g}, {high:g}]; sets.clip(lower, upper) "
                    "first"
                )


@jit
def _mapped(ends, found):
    """Returns the ends of images, from f of both ends, in order."""
    (lower, upper), low, high = ends, jnp.minimum(*found), jnp.maximum(*found)
    empty, lost = lower > upper, jnp.isnan(low) & (lower <= upper)
    low, outer = jnp.where(lost, -jnp.inf, low), jnp.where(lost, jnp.inf, high)
    return jnp.where(empty, jnp.inf, low), jnp.where(empty, -jnp.inf, outer)


def check_bounds(lower, upper, shape):
    """Returns bounds of targets of this shape; ValueError for NaN or crossed ones."""
    lower, upper = _as_bound("lower", lower, shape), _as_bound("upper", upper, shape)
    known = lower is not None and upper is not None and is_concrete(lower, upper)
    if known and np.any(np.asarray(lower) > np.asarray(upper)):
        raise ValueError(f"expected lower <= upper, got {lower} and {upper}")
    return lower, upper


def _as_bound(name, bound, shape):
    """Returns a bound of targets of this shape as an array, or None."""
    if bound is None:
        return None
    bound = as_array(name, bound)
    if bound.shape:
        _checks.check_shape(name, shape, bound.shape)
    _checks.check_not_nan(name, bound)
    return bound


@jit
def clipped(ends, lower, upper):
    """Returns ends no further out than bounds; a set outside of them is crossed."""
    low, high = ends
    if lower is not None:
        low = jnp.maximum(low, jnp.broadcast_to(lower, jnp.shape(low)))
    if upper is not None:
        high = jnp.minimum(high, jnp.broadcast_to(upper, jnp.shape(high)))
    return low, high


@pytree
class Interval(Ends):
    """The closed interval [lower, upper]; empty where it is crossed, lower > upper.

    Args:
      lower: Lower end, shape (), in units of the target; may be -inf.
      upper: Upper end, shape (); may be +inf.

    See also:
      sets.Box, sets.Intervals, metrics.mean_size, metrics.interval_score

    Example:
      >>> Interval(jnp.asarray(0.0), jnp.asarray(2.0)).size().item()
      2.0
    """

    lower: Array
    upper: Array
    _ndim: ClassVar[int] = 0

    def contains(self, y: Number) -> Array:
        """Returns whether lower <= y <= upper, bool of shape ().

        A batch of shape (m,) takes targets of shape (m,) or (m, 1), or one for all.
        """
        y = without_axis(as_array("y", y), np.ndim(self.lower))
        return (self.lower <= y) & (y <= self.upper)

    def size(self) -> Array:
        """Returns the width, shape (), in units of the target; 0 if crossed."""
        return width(self.lower, self.upper)

    def log_size(self) -> Array:
        """Returns the log of the width, shape (); -inf for a point or nothing."""
        return log_volume(self.size()[..., None])

    def soft_size(self, temperature: Number) -> Array:
        """Returns the width with soft ends, shape (), in units of the target."""
        return _numbers.length(self.lower, self.upper, temperature)

    def is_empty(self) -> Array:
        """Returns whether the ends are crossed, bool of shape ()."""
        return self.lower > self.upper

    def checked(self, num_sets: int) -> Interval:
        """Returns intervals with ends of shape (m,), which may come as (m, 1)."""
        if np.shape(self.lower) == np.shape(self.upper) == (num_sets, 1):
            return self.with_ends(self.lower[:, 0], self.upper[:, 0])
        return super().checked(num_sets)

    def _columns(self, names):
        return ["lower", "upper"] if names is None else list(names)


@pytree
class Box(Ends):
    """The closed box of all y with lower_j <= y_j <= upper_j in every dimension j.

    Args:
      lower: Lower corner, shape (d,), in units of the targets; may have -inf.
      upper: Upper corner, shape (d,); may have +inf.

    See also:
      sets.Interval, sets.Ball, volume

    Example:
      >>> Box(jnp.zeros(2), jnp.array([2.0, 3.0])).size()
      Array(6., dtype=float32)
    """

    lower: Array
    upper: Array

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in the box, bool of shape ()."""
        y, shape = as_array("y", y), self.target_shape()
        if y.shape[-1:] != shape:
            raise ValueError(f"expected targets of shape {shape}, got {y.shape}")
        return jnp.all((self.lower <= y) & (y <= self.upper), axis=-1)

    @jit
    def size(self) -> Array:
        """Returns the volume, shape (); 0 if the box is crossed in any dimension."""
        widths = width(self.lower, self.upper)
        flat = widths == 0  # also with an infinite side: 0 * inf is 0 here
        volume = jnp.prod(jnp.where(flat, 1, widths), axis=-1)
        return jnp.where(jnp.any(flat, axis=-1), 0, volume)

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf if the box is flat or empty."""
        return log_volume(width(self.lower, self.upper))

    def soft_size(self, temperature: Number) -> Array:
        """Returns the volume with soft sides, shape ()."""
        return _numbers.product(_numbers.length(self.lower, self.upper, temperature))

    def is_empty(self) -> Array:
        """Returns whether the box is crossed in any dimension, bool of shape ()."""
        return jnp.any(self.lower > self.upper, axis=-1)


@pytree
class BoundingBox(Ends):
    """A set of boxes (x_min, y_min, x_max, y_max): those inside, or around, this one.

    An outer box holds every box that lies in it; an inner box, `inner=True`, holds
    every box that it lies in. Made by `scores.BoxOffset`.

    Args:
      lower: Corner (x_min, y_min), shape (2,), in pixels; may have -inf.
      upper: Corner (x_max, y_max), shape (2,), in pixels; may have +inf.
      inner: Whether the boxes of the set lie around this one, not in it.

    See also:
      scores.BoxOffset, metrics.iou, sets.Box

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
        return Box(*self.ends()).contains(y)

    def size(self) -> Array:
        """Returns the area, shape (), in square pixels; 0 if the box is crossed.

        A small outer box says much, and so does a large inner one.
        """
        return Box(self.lower, self.upper).size()

    def soft_size(self, temperature: Number) -> Array:
        """Returns the area with soft sides, shape (), in square pixels."""
        return Box(self.lower, self.upper).soft_size(temperature)

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

    def with_ends(self, lower: Array, upper: Array) -> BoundingBox:
        """Returns the set whose boxes lie between these numbers."""
        first, last = (upper, lower) if self.inner else (lower, upper)
        return BoundingBox(first[..., :2], last[..., 2:], self.inner)

    def widths(self) -> Array:
        """Returns width, height, width and height, shape (4,)."""
        sides = self.upper - self.lower
        return jnp.concatenate([sides, sides], axis=-1)

    def corners(self) -> Array:
        """Returns (x_min, y_min, x_max, y_max), shape (4,), or (m, 4) of a batch."""
        return jnp.concatenate([self.lower, self.upper], axis=-1)

    def target_shape(self) -> Shape:
        """Returns the shape of a target, (4,)."""
        return (4,)

    def clip(
        self, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> BoundingBox:
        """Returns the outer box within bounds, shape (2,), or () for both of x and y.

        An inner box has no part within bounds: ValueError.
        """
        self._check_outer("to clip")
        box = Box(self.lower, self.upper).clip(lower, upper)
        return replace(self, lower=box.lower, upper=box.upper)

    def transform(self, function: Callable[[Array], ArrayLike]) -> BoundingBox:
        """Returns outer boxes with mapped corners, each (2,), as `Interval.transform`.

        The corners of an inner box may be crossed: ValueError.
        """
        self._check_outer("to transform")
        return super().transform(function)

    def _check_outer(self, purpose):
        if self.inner:
            raise ValueError(f"expected outer boxes {purpose}, got inner ones")

    def to_numpy(self) -> np.ndarray:
        """Returns (x_min, y_min, x_max, y_max) of each, shape (m, 4)."""
        return np.array(self.corners())

    def _columns(self, names):
        return ["x_min", "y_min", "x_max", "y_max"] if names is None else list(names)


def as_intervals(sets: Any) -> Any:
    """Returns sets with ends of one output as intervals, and all others as they are."""
    if not (isinstance(sets, HasEnds) and isinstance(sets, HasShapes)):
        return sets
    if isinstance(sets, Interval) or sets.target_shape() not in ((), (1,)):
        return sets
    ends = as_arrays(ends=sets.ends())
    return Interval(*(v[..., 0] if sets.target_shape() else v for v in ends))


@jit
def width(lower: Array, upper: Array) -> Array:
    """Returns upper - lower, 0 where the ends are crossed."""
    # Not `upper - lower` at crossed ends: inf - inf would be NaN. NaN ends give NaN.
    return jnp.where(upper <= lower, 0, upper - jnp.where(upper <= lower, 0, lower))


def log_volume(widths: Array) -> Array:
    """Returns the sum of the logs of sides (..., d), -inf if one of them is 0."""
    least = jnp.min(widths, axis=-1)
    logs = jnp.log(jnp.where(least[..., None] > 0, widths, 1))
    return log_of_solid(jnp.sum(logs, axis=-1), least)
