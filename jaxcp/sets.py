"""Prediction sets. Each describes one example; `jax.vmap` batches its methods."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks, _geometry
from jaxcp._pytree import pytree
from jaxcp._types import PyTree, Score, Set

__all__ = [
    "Balls",
    "Box",
    "Ellipsoid",
    "Interval",
    "LabelSet",
    "LevelSet",
    "membership",
]

_POINTS_AT_A_TIME = 2**14


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

    def contains(self, y: Array) -> Array:
        """Returns whether lower <= y <= upper, bool of shape ()."""
        return (self.lower <= y) & (y <= self.upper)

    def size(self) -> Array:
        """Returns the width, shape (), in units of the target; 0 if crossed."""
        return _width(self.lower, self.upper)


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
        return jnp.all((self.lower <= y) & (y <= self.upper))

    def size(self) -> Array:
        """Returns the volume, shape (); 0 if the box is crossed in any dimension."""
        widths = _width(self.lower, self.upper)
        flat = widths == 0  # also with an infinite side: 0 * inf is 0 here
        return jnp.where(jnp.any(flat), 0, jnp.prod(jnp.where(flat, 1, widths)))


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

    def contains(self, y: Array) -> Array:
        """Returns whether label `y` is in the set; labels out of range are not."""
        y = jnp.asarray(y).astype(int)  # a narrow type may not hold every label
        inside = self.mask.at[y].get(mode="fill", fill_value=False)
        return inside & (y >= 0)  # a negative index would count from the end

    def size(self) -> Array:
        """Returns the number of labels, int of shape ()."""
        return jnp.sum(self.mask)


@pytree
class Balls:
    """The union of l closed balls of one radius: y within it of some centre.

    Args:
      centers: Centres, shape (l, d), in units of the targets; (l,) for numbers.
      radius: Radius, shape (); +inf is the whole space, below 0 the set is empty.

    Example:
      >>> balls = Balls(jnp.array([[0.0, 0.0], [3.0, 0.0]]), jnp.array(1.0))
      >>> balls.contains(jnp.array([3.5, 0.0]))
      Array(True, dtype=bool)
    """

    centers: Array
    radius: Array

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in a ball, bool of shape ()."""
        distance = _geometry.nearest_distance(*_geometry.as_points(y, self.centers))
        return distance <= self.radius

    def size(self) -> Array:
        """Raises ValueError: the volume of a union of balls has to be estimated."""
        raise ValueError(_no_size("a union of Balls"))


@pytree
class Ellipsoid:
    """The ellipsoid of all y with norm(scale^-1 (y - center)) <= radius.

    Args:
      center: Centre, shape (d,), in units of the targets.
      scale: Half axes at radius 1, shape (d,), or a lower triangular factor of the
        matrix of the ellipsoid, shape (d, d), in units of the targets.
      radius: Shape (); +inf is the whole space, below 0 the set is empty.

    Example:
      >>> disc = Ellipsoid(jnp.zeros(2), jnp.ones(2), jnp.array(2.0))
      >>> round(disc.size().item(), 4)
      12.5664
    """

    center: Array
    scale: Array
    radius: Array

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in the ellipsoid, bool of shape ()."""
        if jnp.shape(y) != self.center.shape:
            raise ValueError(
                f"expected a target of shape {self.center.shape}, got {jnp.shape(y)}"
            )
        z = _geometry.whiten(self.scale, y - self.center)
        return _geometry.norm(z) <= self.radius

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf if it is empty or flat."""
        axes = jnp.abs(_geometry.diagonal(self.scale))
        d = len(axes)
        solid = (self.radius > 0) & jnp.all(axes > 0)
        radius = jnp.where(solid, self.radius, 1)
        logs = d * jnp.log(radius) + jnp.sum(jnp.log(jnp.where(solid, axes, 1)))
        return jnp.where(solid, _geometry.log_unit_ball(d) + logs, -jnp.inf)

    def size(self) -> Array:
        """Returns the volume, shape (), in units of the targets to the power of d."""
        return jnp.exp(self.log_size())


@pytree
class LevelSet:
    """The set {y : score(pred, y) <= level} of any score, known by membership alone.

    Args:
      score: The nonconformity score.
      pred: The prediction that the score reads, any pytree.
      level: Threshold, shape () or (c,) for scores with components.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> LevelSet(Absolute(), jnp.array(0.0), jnp.array(1.0)).contains(0.5)
      Array(True, dtype=bool)
    """

    score: Score
    pred: PyTree
    level: Array

    def contains(self, y: Array) -> Array:
        """Returns whether all(score(pred, y) <= level), bool of shape ()."""
        return jnp.all(self.score(self.pred, y) <= self.level)

    def size(self) -> Array:
        """Raises ValueError: a level set has no size in closed form."""
        raise ValueError(_no_size("a LevelSet"))


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

    Example:
      >>> disc = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> membership(disc, jnp.array([[0.5, 0.5], [1.0, 1.0]]))
      Array([ True, False], dtype=bool)
    """
    region, points = _checks.as_arrays((region, points))
    _checks.num_rows(points=points)
    _checks.check_not_nan("points", points)
    found = jax.eval_shape(_membership, region, points).shape
    if found != points.shape[:1]:
        raise ValueError(
            f"expected one set, without a leading axis, got sets of shape {found[1:]}"
        )
    return _membership(region, points)


@jax.jit
def _membership(region, points):
    return lax.map(region.contains, points, batch_size=_POINTS_AT_A_TIME)


def _no_size(what):
    return (
        f"expected a set with a closed-form size, got {what}: estimate it with "
        "jaxcp.volume, or give the score an inverse that returns an Interval, a Box, "
        "an Ellipsoid or a LabelSet"
    )


def _width(lower, upper):
    # Not `upper - lower` at crossed ends: inf - inf would be NaN. NaN ends give NaN.
    return jnp.where(upper <= lower, 0, upper - jnp.where(upper <= lower, 0, lower))
