"""Sets in several dimensions: balls and ellipsoids, level sets of scores, their ends.

The end of a level set on the line is the last float inside, by bisection; its slope is
that of the root.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks, _geometry, _numbers
from jaxcp._arrays import as_arrays
from jaxcp._batching import map_evenly, score_of
from jaxcp._numbers import as_float, at_least_single, unless_nan
from jaxcp._tree import jit, pytree, static
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.quantiles.selection import last_inside, moving
from jaxcp.sets.basic import Interval
from jaxcp.sets.batches import Batch, at_most, log_of_solid, over_batch
from jaxcp.sets.unions import Intervals
from jaxcp.typing import ArrayLike, EstimatesSets, HasEnds, Number, PyTree, Score, Set
from jaxcp.volumes.estimate import check_one, finite_ends, log_volume_of_balls

_NEAR = 4  # floats to each side of the least score that a search has found
_POINTS_AT_A_TIME = 2**14


class Region(Batch):
    """What sets have in common that are known by membership, not by numbers."""

    def contains(self, y: Array) -> Array:
        """Returns whether `y` is in the set, bool of shape ()."""
        return self._of_each("_contains", y)

    def size(self) -> Array:
        """Raises ValueError: there is no size in closed form."""
        raise ValueError(
            f"expected a set with a closed-form size, got {type(self).__name__}: "
            "estimate it with jaxcp.volume, or metrics.mean_volume(key, sets, "
            "within=...), a Box or an Interval, or give the score an inverse; on the "
            "line the interval(start) of a LevelSet has ends, as have sets of "
            "scores.Custom(evaluate, start=...)"
        )

    def to_numpy(self) -> np.ndarray:
        """Raises ValueError: these sets are not given by numbers of one kind."""
        raise ValueError(
            f"expected sets with ends or labels, got {type(self).__name__}: "
            "sets.contains(y) says what is in each; on the line the interval(start) of "
            "a LevelSet has ends, as have sets of scores.Custom(evaluate, start=...)"
        )

    def _of_each(self, method, *y):
        """Returns what a method of one set answers for each set of a batch."""
        answer = getattr(type(self), method)
        return over_batch(answer, len(self._batch()), self, *y)


class Round(Region):
    """What sets around centers have in common."""

    radius: Array

    def is_empty(self) -> Array:
        """Returns whether the radius is below 0, bool of shape ()."""
        return self.radius < 0

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of the box around it, each of shape (d,)."""
        return self._of_each("_bounds")

    def _batch(self):
        return jnp.shape(self.radius)


class Solid(Round):
    """What sets around one center have in common, with volumes in closed form."""

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf if it is empty or flat."""
        return self._of_each("_log_size")

    def size(self) -> Array:
        """Returns the volume, shape (), in units of the targets to the power of d."""
        return self._size(as_float(self.radius))

    def exact(self) -> Self:
        """Returns the set without targets that are beyond its edge by rounding."""
        return replace(self, rounds=False)  # type: ignore[type-var]

    def soft_size(self, temperature: Number) -> Array:
        """Returns the volume at a soft radius, shape ()."""
        return self._size(_numbers.positive_part(as_float(self.radius), temperature))

    @jit
    def _size(self, radius):
        finite = jnp.isfinite(radius)
        solid = replace(self, radius=jnp.where(finite, radius, 0))  # type: ignore[type-var]
        without = jnp.where(radius < 0, 0, radius)  # +inf, or NaN
        return jnp.where(finite, jnp.exp(solid.log_size()), without)


@pytree
class Ball(Solid):
    """The closed ball of all y with norm(y - center) <= radius.

    Args:
      center: Center, shape (d,), in units of the targets.
      radius: Shape (); +inf is the whole space, below 0 the set is empty.
      norm: 1 (the sum of the distances in each output), 2 (Euclidean) or `jnp.inf`
        (the largest of them).
      rounds: Whether targets beyond the radius by `rounding` are inside, as for
        `LevelSet`.

    See also:
      scores.Distance, sets.Balls, sets.Ellipsoid

    Example:
      >>> diamond = Ball(jnp.zeros(2), jnp.array(2.0), norm=1)
      >>> diamond.contains(jnp.array([1.5, 0.5])).item()
      True
      >>> round(diamond.size().item(), 4)
      8.0
    """

    center: Array
    radius: Array
    norm: float = static(default=2)
    rounds: bool = static(default=True)

    def __post_init__(self):
        _geometry.check_norm(self.norm)

    def _contains(self, y):
        distance = _geometry.distance(y, self.center, self.norm)
        return at_most(distance, self.radius, self.rounds)

    def _bounds(self):
        return self.center - self.radius, self.center + self.radius

    def _log_size(self):
        radius = as_float(self.radius)
        logs = len(self.center) * jnp.log(jnp.where(radius > 0, radius, 1))
        log_unit = _geometry.log_unit_ball(len(self.center), self.norm)
        return log_of_solid(log_unit + logs, radius)


@pytree
class Balls(Round):
    """The union of l closed balls of one radius: y within it of some center.

    Args:
      centers: Centers, shape (l, d), in units of the targets; (l,) for numbers.
      radius: Radius, shape (); +inf is the whole space, below 0 the set is empty.

    See also:
      scores.PCP, sets.Ball, volume

    Example:
      >>> balls = Balls(jnp.array([[0.0, 0.0], [3.0, 0.0]]), jnp.array(1.0))
      >>> balls.contains(jnp.array([3.5, 0.0]))
      Array(True, dtype=bool)
    """

    centers: Array
    radius: Array

    def estimate_log_size(
        self, key: Array, num_samples: int, *, sobol: bool = False
    ) -> tuple[Array, Array]:
        """Returns the log of the volume and its standard error, each of shape ()."""
        check_one(self, jnp.ndim(self.radius))
        centers, radius = as_float(self.centers), as_float(self.radius)
        dtype = jnp.result_type(centers, radius)
        centers = at_least_single(centers.reshape(len(centers), -1))
        radius = radius.astype(centers.dtype)
        found = log_volume_of_balls(key, centers, radius, num_samples, sobol)
        return unless_nan(self, jax.tree.map(lambda v: v.astype(dtype), found))

    @property
    def rounds(self) -> bool:
        """Whether points beyond the radius by rounding are inside: in many dimensions.

        In few of them the sum over them is written out, and the same in any program.
        """
        shape = jnp.shape(self.centers)
        return len(shape) > 1 and shape[-1] > _geometry.UNROLLED

    def _contains(self, y):
        distance = _geometry.nearest_distance(*_geometry.as_points(y, self.centers))
        return at_most(distance, self.radius, self.rounds)

    def _bounds(self):
        lower, upper = jnp.min(self.centers, axis=0), jnp.max(self.centers, axis=0)
        return lower - self.radius, upper + self.radius


@pytree
class Ellipsoid(Solid):
    """The ellipsoid of all y with norm(scale^-1 (y - center)) <= radius.

    Args:
      center: Center, shape (d,), in units of the targets.
      scale: Half axes at radius 1, shape (d,), or a lower triangular factor of the
        matrix of the ellipsoid, shape (d, d), in units of the targets.
      radius: Shape (); +inf is the whole space, below 0 the set is empty.
      rounds: Whether targets beyond the radius by `rounding` are inside, as for
        `LevelSet`.

    See also:
      scores.Mahalanobis, sets.Ball, volume

    Example:
      >>> disc = Ellipsoid(jnp.zeros(2), jnp.ones(2), jnp.array(2.0))
      >>> round(disc.size().item(), 4)
      12.5664
    """

    center: Array
    scale: Array
    radius: Array
    rounds: bool = static(default=True)

    @jit
    def size(self) -> Array:
        """Returns the volume, shape (), in units of the targets to the power of d."""
        return jnp.exp(self.log_size())

    def _contains(self, y):
        _checks.check_shape("a target", self.center.shape, y.shape)
        z = _geometry.whiten(self.scale, y - self.center)
        return at_most(_geometry.norm(z), self.radius, self.rounds)

    def _bounds(self):
        rows = self.scale[:, None] if self.scale.ndim == 1 else self.scale
        half = self.radius * jax.vmap(_geometry.norm)(rows)
        return self.center - half, self.center + half

    def _log_size(self):
        axes = jnp.abs(_geometry.diagonal(self.scale))
        d = len(axes)
        least = jnp.minimum(self.radius, jnp.min(axes))
        radius = jnp.where(least > 0, self.radius, 1)
        logs = d * jnp.log(radius) + jnp.sum(jnp.log(jnp.where(least > 0, axes, 1)))
        return log_of_solid(_geometry.log_unit_ball(d) + logs, least)


@pytree
class LevelSet(Region):
    """The set {y : score(pred, y) <= level} of any score, known by membership alone.

    Scores that exceed the level by rounding are inside: the program that computed the
    level may have added up the same score in another order. On the line `interval`
    gives its ends, and `intervals` those of several pieces.

    Args:
      score: The nonconformity score.
      pred: The prediction that the score reads, any pytree.
      level: Threshold, shape () or (c,) for scores with components.
      level_ndim: Number of axes of one level. Defaults to that of `level`, which is
        then of a single set.
      rounds: Whether scores within `rounding` of the level are inside.

    See also:
      scores.Custom, scores.Density, sets.Intervals, volume

    Example:
      >>> from jaxcp.scores import Absolute
      >>> LevelSet(Absolute(), jnp.array(0.0), jnp.array(1.0)).contains(0.5)
      Array(True, dtype=bool)
    """

    score: Score
    pred: PyTree
    level: Array
    level_ndim: int | None = static(default=None)
    rounds: bool = static(default=True)

    def __post_init__(self):
        if self.level_ndim is None:
            object.__setattr__(self, "level_ndim", jnp.ndim(self.level))

    def estimate_log_size(
        self, key: Array, num_samples: int, *, sobol: bool = False
    ) -> tuple[Array, Array]:
        """Returns the log of the volume and its error, each of shape (), by the score.

        A `Density` that can `sample` and a `Latent` with its `forward` map know them.
        """
        check_one(self, jnp.ndim(self.level))
        if not isinstance(self.score, EstimatesSets):
            raise ValueError(
                "expected within, a Box, or the LevelSet of a score that has "
                f"estimate_log_size, as Density, got {type(self.score).__name__}"
            )
        estimate = partial(self.score.estimate_log_size, key, self.pred, self.level)
        return unless_nan(self.level, estimate(num_samples, sobol=sobol))

    def exact(self) -> LevelSet:
        """Returns the set without targets beyond the level by rounding."""
        return replace(self, rounds=False)

    def interval(self, start: ArrayLike) -> Interval:
        """Returns the piece of it around `start`, on the line, with ends to the float.

        The last numbers that are inside, by bisection; +inf or -inf where the score
        stays within the level. That is the whole set if the score falls up to `start`
        and rises from there on. Empty where `start` is not inside.

        Args:
          start: The target with the least score, such as the prediction, shape () or
            (1,) as the score takes targets; (m,) for a batch of m sets.
        """
        batch = self._batch()
        return _interval(self, _on_line(start, batch), ndim=len(batch))

    def intervals(
        self, within: HasEnds, *, num_points: int = 100, max_pieces: int = 4
    ) -> Intervals:
        """Returns the pieces of it in a bracket, on the line, with ends to the float.

        A piece is found where a point of a grid lies in it. Between neighboring points
        the least score finds a piece, and the largest one a gap if both are inside;
        that is sure if the score falls and then rises there (or rises and then falls),
        but for a piece of a few floats that lies closer to 0, and not at it, than a
        thousandth of the distance of points. A piece at an end of the bracket goes on
        beyond it, as in `interval`; other pieces beyond it are not found.

        Args:
          within: The bracket, an `Interval` with ends of shape (), or (m,) for a batch
            of m sets; finite.
          num_points: Points of the grid.
          max_pieces: Number of pieces that there is room for. If there are more, the
            last one spans all that follow, and the gaps between them.
        """
        _checks.check_count("num_points", num_points, 2)
        _checks.check_count("max_pieces", max_pieces, 1)
        batch = self._batch()
        bracket = (_on_line(end, batch) for end in finite_ends(within))
        sizes = {"num_points": int(num_points), "max_pieces": int(max_pieces)}
        return _intervals(self, *bracket, ndim=len(batch), **sizes)

    def _batch(self):
        shape = jnp.shape(self.level)
        return shape[: len(shape) - (self.level_ndim or 0)]

    def _contains(self, y):
        scores = score_of(self.score, self.pred, y)
        return jnp.all(at_most(scores, self.level, self.rounds))


def membership(region: Set, points: ArrayLike) -> Array:
    """Returns which of many points are in one set.

    In blocks, so that a million points take little memory.

    Args:
      region: One set, without a leading axis.
      points: Candidate targets, shape (g, ...), each as the set's `contains` takes it.

    Returns:
      Membership of each point, bool of shape (g,).

    Raises:
      ValueError: if a concrete point is NaN, or does not fit the set.

    Cost:
      One membership for each of g points, in blocks.

    See also:
      volume, sets.LevelSet

    Example:
      >>> disc = jaxcp.sets.Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> membership(disc, jnp.array([[0.5, 0.5], [1.0, 1.0]]))
      Array([ True, False], dtype=bool)
    """
    region, points = as_arrays(region=region, points=points)
    _checks.num_rows(points=points)
    _checks.check_not_nan("points", points)
    found = jax.eval_shape(_membership, region, points).shape
    if found != points.shape[:1]:
        raise ValueError(f"expected one set, got sets of shape {found[1:]}")
    return _membership(region, points)


@jit
def _membership(region, points):
    return map_evenly(region.contains, points, at_a_time=_POINTS_AT_A_TIME)


def _on_line(y, batch):
    """Returns a target of one number for each set, shape () or (1,) as it came."""
    y = as_arrays(y=y)
    one = (1,) if y.shape != batch and y.shape in ((1,), (*batch, 1)) else ()
    return jnp.broadcast_to(y, (*batch, *one))


@jit(static_argnames="ndim")
def _interval(region, start, ndim):
    return Interval(*over_batch(_ends_around, ndim, region, start))


@jit(static_argnames=("ndim", "num_points", "max_pieces"))
def _intervals(region, lower, upper, ndim, num_points, max_pieces):
    find = partial(_ends_within, num_points=num_points, max_pieces=max_pieces)
    return Intervals(*over_batch(find, ndim, region, lower, upper))


def _ends_around(region, start):
    """Returns the ends, of shape (), of the piece of one level set around a target."""
    line = _Line(region, start)
    sides = jnp.array([-1, 1], line.dtype)
    start = line.number(start)
    ends = jax.vmap(lambda side: line.end(start, side, side * jnp.inf))(sides)
    exists = line.inside(start)[None]
    lower, upper = line.closed(ends[:1], ends[1:], exists, jnp.isnan(start))
    return lower[0], upper[0]


def _ends_within(region, lower, upper, num_points, max_pieces):
    """Returns the ends, each (k,), of the pieces of one level set that a grid meets.

    The grid and, between its neighbors, the least score, or the largest one where both
    are inside. What is met at the bracket's own ends goes on beyond them. With more
    than k pieces the last one reaches to the end of all.
    """
    line = _Line(region, lower)
    grid = jnp.linspace(line.number(lower), line.number(upper), num_points)
    grid = line.with_extremes(grid)
    held = jax.vmap(line.inside)(grid)
    firsts, lasts = _runs(held, max_pieces)
    infinite = jnp.full(1, jnp.inf, grid.dtype)
    before = jnp.concatenate([-infinite, grid[:-1]])
    after = jnp.concatenate([grid[1:], infinite])
    end = jax.vmap(line.end, (0, None, 0))
    lower = end(grid[firsts], -1, before[firsts])
    upper = end(grid[lasts], 1, after[lasts])
    exists = jnp.arange(max_pieces) < _count(held)
    return line.closed(lower, upper, exists, jnp.any(jnp.isnan(grid)))


class _Line:
    """A level set with targets of one number, in an array of some shape of size 1."""

    def __init__(self, region, like):
        self.region, self.fixed = region, lax.stop_gradient(region)
        self.shape, self.level = like.shape, as_float(region.level)
        self.dtype = jnp.result_type(as_float(like), self.level)

    def number(self, y):
        return lax.stop_gradient(y).reshape(()).astype(self.dtype)

    def inside(self, y):
        return self.fixed.contains(y.reshape(self.shape))

    def with_extremes(self, grid):
        """Returns a grid with the least score, or the largest, between neighbors."""
        held = jax.vmap(self.inside)(grid)
        sign = jnp.where(held[:-1] & held[1:], -1, 1).astype(grid.dtype)
        heights = lambda y: sign * jax.vmap(self._excess)(y)  # noqa: E731
        low, high = grid[:-1], grid[1:]
        near = _lowest(heights, low, high)
        # A piece may be one float wide, and its place known to a few; 0 has too many.
        keys = to_keys(near)
        around = [from_keys(keys + i, grid.dtype) for i in range(-_NEAR, _NEAR + 1)]
        places = jnp.stack([*around, jnp.zeros_like(near)])
        places = jnp.clip(places, low[None], high[None])
        best = jnp.argmin(jax.vmap(heights)(places), axis=0)
        inner = jnp.take_along_axis(places, best[None], axis=0)[0]
        pairs = jnp.stack([low, inner], axis=1)
        return jnp.append(pairs.reshape(-1), grid[-1:])

    def _excess(self, y):
        room = self.level - self._scores(self.fixed, y)
        return -jnp.min(jnp.where(jnp.isnan(room), -jnp.inf, room))

    def end(self, start, side, stop):
        """Returns the last target inside from `start` on, with its slope."""
        side = jnp.asarray(side, self.dtype)
        found = last_inside(self.inside, start, side, stop)
        known = jnp.isfinite(found)
        return jnp.where(known, self._moving(jnp.where(known, found, start)), found)

    def _moving(self, at):
        """Returns an end that moves with the component that ends there."""
        scores = self._scores(self.fixed, at)
        level = jnp.broadcast_to(self.level, scores.shape)
        room = jnp.where(jnp.isfinite(level), level - scores, jnp.inf)
        ending = jnp.argmin(lax.stop_gradient(room))
        value = lambda y: self._scores(self.region, y)[ending]  # noqa: E731
        return moving(at, value, level[ending])

    def _scores(self, region, y):
        return as_float(region.score(region.pred, y.reshape(self.shape))).reshape(-1)

    def closed(self, lower, upper, exists, unknown):
        """Returns ends (k,) of the pieces that exist, and crossed ones; NaN of NaN."""
        whole = jnp.all(self.level == jnp.inf)
        exists = jnp.where(whole, jnp.arange(len(lower)) == 0, exists)
        unknown |= jnp.any(jnp.isnan(self.level))

        def ends(values, beyond):
            values = jnp.where(exists, jnp.where(whole, beyond, values), -beyond)
            return jnp.where(unknown, jnp.nan, values)

        return ends(lower, -jnp.inf), ends(upper, jnp.inf)


def _lowest(heights, low, high):
    """Returns about where functions that fall and then rise are lowest, by sections."""
    share = (5**0.5 - 1) / 2  # golden: one of two places serves the next section

    def shrink(_, state):
        low, left, right, high, at_left, at_right = state
        to_left = at_left <= at_right
        low, high = jnp.where(to_left, low, left), jnp.where(to_left, right, high)
        width = share * (high - low)
        new = jnp.where(to_left, high - width, low + width)
        at_new = heights(new)
        left, right = jnp.where(to_left, new, right), jnp.where(to_left, left, new)
        at = jnp.where(to_left, at_new, at_right), jnp.where(to_left, at_left, at_new)
        return low, left, right, high, *at

    width = share * (high - low)
    left, right = high - width, low + width
    start = low, left, right, high, heights(left), heights(right)
    num_rounds = round((jnp.finfo(low.dtype).nmant + 8) / -math.log2(share))
    _, left, right, _, at_left, at_right = lax.fori_loop(0, num_rounds, shrink, start)
    return jnp.where(at_left <= at_right, left, right)


def _count(held):
    """Returns the number of runs of True."""
    return jnp.sum(held[1:] & ~held[:-1]) + held[0]


def _runs(held, size):
    """Returns the first and last places of the runs of True, the last one to the end.

    Where there are fewer the last place of all stands for them.
    """
    edge, n = jnp.zeros(1, bool), len(held)
    places = jnp.arange(n)
    rises = held & ~jnp.concatenate([edge, held[:-1]])
    falls = held & ~jnp.concatenate([held[1:], edge])
    find = partial(jnp.nonzero, size=size, fill_value=n - 1)
    (first,), (last,) = find(rises), find(falls)
    end = jnp.max(jnp.where(held, places, 0))
    more = _count(held) > size
    return first, last.at[-1].set(jnp.where(more, end, last[-1]))
