"""Prediction sets. Each describes one example; `jax.vmap` batches its methods."""

import jax.numpy as jnp
from jax import Array

from jaxcp._pytree import pytree
from jaxcp._types import PyTree, Score

__all__ = ["Box", "Interval", "LabelSet", "LevelSet"]


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
        raise ValueError(
            "expected a set with a closed-form size, got a LevelSet: give the score an "
            "inverse that returns an Interval, a Box or a LabelSet"
        )


def _width(lower, upper):
    # Not `upper - lower` at crossed ends: inf - inf would be NaN. NaN ends give NaN.
    return jnp.where(upper <= lower, 0, upper - jnp.where(upper <= lower, 0, lower))
