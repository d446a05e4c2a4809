"""Sets in several dimensions that are given by distances or by scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _geometry, _soft
from jaxcp._arrays import as_arrays
from jaxcp._batching import score_of
from jaxcp._numbers import as_float, at_least_single, unless_nan
from jaxcp._pytree import pytree, static
from jaxcp.sets._arithmetic import at_most, log_of_solid, over_batch
from jaxcp.sets._batches import Batch
from jaxcp.sets._pieces import interval_around, intervals_within
from jaxcp.sets.basic import Interval
from jaxcp.sets.unions import Intervals
from jaxcp.typing import ArrayLike, EstimatesSets, HasEnds, Number, PyTree, Score
from jaxcp.volumes.balls import log_volume_of_balls
from jaxcp.volumes.estimate import check_one, finite_ends


@pytree
class Balls(Batch):
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

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in a ball, bool of shape ()."""
        return over_batch(Balls._contains, jnp.ndim(self.radius), self, y)

    def size(self) -> Array:
        """Raises ValueError: the volume of a union of balls has to be estimated."""
        raise ValueError(
            "expected a set with a closed-form size, got a union of Balls: estimate it "
            "with jaxcp.volume, or metrics.mean_volume of many"
        )

    def is_empty(self) -> Array:
        """Returns whether the radius is below 0, bool of shape ()."""
        return self.radius < 0

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

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of the box around it, each of shape (d,)."""
        return over_batch(Balls._bounds, jnp.ndim(self.radius), self)

    @property
    def rounds(self) -> bool:
        """Whether points beyond the radius by rounding are inside: in many dimensions.

        In few of them the sum over them is written out, and the same in any program.
        """
        shape = jnp.shape(self.centers)
        return len(shape) > 1 and shape[-1] > _geometry.UNROLLED

    def _batch(self):
        return jnp.shape(self.radius)

    def _contains(self, y):
        distance = _geometry.nearest_distance(*_geometry.as_points(y, self.centers))
        return at_most(distance, self.radius, self.rounds)

    def _bounds(self):
        lower, upper = jnp.min(self.centers, axis=0), jnp.max(self.centers, axis=0)
        return lower - self.radius, upper + self.radius


@pytree
class Ellipsoid(Batch):
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

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in the ellipsoid, bool of shape ()."""
        return over_batch(Ellipsoid._contains, jnp.ndim(self.radius), self, y)

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf if it is empty or flat."""
        return over_batch(Ellipsoid._log_size, jnp.ndim(self.radius), self)

    def size(self) -> Array:
        """Returns the volume, shape (), in units of the targets to the power of d."""
        return jnp.exp(self.log_size())

    def soft_size(self, temperature: Number) -> Array:
        """Returns the volume at a soft radius, shape ()."""
        radius = _soft.positive_part(self.radius, temperature)
        known = jnp.isfinite(radius)
        volume = replace(self, radius=jnp.where(known, radius, 0)).size()
        return jnp.where(known, volume, radius)

    def is_empty(self) -> Array:
        """Returns whether the radius is below 0, bool of shape ()."""
        return self.radius < 0

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of the box around it, each of shape (d,)."""
        return over_batch(Ellipsoid._bounds, jnp.ndim(self.radius), self)

    def exact(self) -> Ellipsoid:
        """Returns the ellipsoid without targets beyond its radius by rounding."""
        return replace(self, rounds=False)

    def _batch(self):
        return jnp.shape(self.radius)

    def _contains(self, y):
        _checks.check_shape("a target", self.center.shape, y.shape)
        z = _geometry.whiten(self.scale, y - self.center)
        return at_most(_geometry.norm(z), self.radius, self.rounds)

    def _bounds(self):
        square = self.scale**2
        half = self.radius * jnp.sqrt(square if square.ndim == 1 else square.sum(1))
        return self.center - half, self.center + half

    def _log_size(self):
        axes = jnp.abs(_geometry.diagonal(self.scale))
        d = len(axes)
        least = jnp.minimum(self.radius, jnp.min(axes))
        radius = jnp.where(least > 0, self.radius, 1)
        logs = d * jnp.log(radius) + jnp.sum(jnp.log(jnp.where(least > 0, axes, 1)))
        return log_of_solid(_geometry.log_unit_ball(d) + logs, least)


@pytree
class LevelSet(Batch):
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

    def contains(self, y: Array) -> Array:
        """Returns whether all(score(pred, y) <= level), bool of shape ()."""
        return over_batch(LevelSet._contains, len(self._batch()), self, y)

    def size(self) -> Array:
        """Raises ValueError: a level set has no size in closed form."""
        raise ValueError(
            "expected a set with a closed-form size, got a LevelSet: estimate it by "
            "metrics.mean_volume(key, sets, within=...), a Box or an Interval; on the "
            "line sets.interval(start) has ends, as has scores.Custom(evaluate, start="
            "...); or give the score an inverse that returns an Interval, a Box, an "
            "Ellipsoid or a LabelSet"
        )

    def estimate_log_size(
        self, key: Array, num_samples: int, *, sobol: bool = False
    ) -> tuple[Array, Array]:
        """Returns the log of the volume and its error, each of shape (), by the score.

        A `Density` that can `sample` and a `Latent` with its `forward` map know them.
        """
        check_one(self, jnp.ndim(self.level))
        if not isinstance(self.score, EstimatesSets):
            name = type(self.score).__name__
            raise ValueError(
                "expected within, a Box, or the LevelSet of a Density or Latent score, "
                "or of one with estimate_log_size of its sets, got LevelSet of the "
                f"score {name}"
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
        return interval_around(self, self._batch(), as_arrays(start=start))

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
        ends = finite_ends(within)
        return intervals_within(self, self._batch(), *ends, num_points, max_pieces)

    def to_numpy(self) -> np.ndarray:
        """Raises ValueError: a level set is not given by numbers."""
        raise ValueError(
            "expected sets with ends or labels for an array of them, got LevelSet: on "
            "the line sets.interval(start) has ends, as has scores.Custom(evaluate, "
            "start=...); elsewhere sets.contains(y) says what is in each"
        )

    def _batch(self):
        shape = jnp.shape(self.level)
        return shape[: len(shape) - (self.level_ndim or 0)]

    def _contains(self, y):
        return jnp.all(
            at_most(score_of(self.score, self.pred, y), self.level, self.rounds)
        )
