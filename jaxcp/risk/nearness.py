"""Losses of how near a set comes to a target: by similarity, or by distance."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float
from jaxcp._pytree import as_callable, pytree
from jaxcp.risk.losses import check_one, marks_of
from jaxcp.typing import ArrayLike, HasEnds, Number, Set


@pytree
class BestMatch:
    """What the best member of a set lacks in similarity to the truth.

    Args:
      similarity: As in `best_match`.

    See also:
      risk.best_match
    """

    similarity: Array | Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        if callable(self.similarity):
            function = as_callable("similarity", self.similarity)
            object.__setattr__(self, "similarity", function)

    def __call__(self, set: Set, y: Array) -> Array:
        """Returns 1 - max over members of the similarity, shape (); 1 without any."""
        marks, similarity = marks_of(set), self._of(y)
        if marks.shape != similarity.shape:
            raise ValueError(
                f"expected similarities of shape {marks.shape} like the set, got "
                f"{similarity.shape}"
            )
        return 1 - jnp.max(jnp.where(marks, similarity, 0), initial=0)

    def _of(self, y):
        """Returns the similarity of every label to the truth, shape (k,)."""
        if self.similarity is None:
            return as_float(y)
        if callable(self.similarity):
            return as_float(self.similarity(y))
        y = jnp.asarray(y).astype(int)
        row = as_float(self.similarity)[jnp.maximum(y, 0)]
        return jnp.where((y >= 0) & (y < len(self.similarity)), row, 0)


def best_match(
    similarity: ArrayLike | Callable[[Array], Array] | None = None,
) -> BestMatch:
    """Returns the loss 1 - max over members of a set of their similarity to the truth.

    Of sets of candidates, such as answers, where one good one is enough: monotone, for
    more members can but be better.

    Args:
      similarity: Array of shape (k, k), row y the similarities in [0, 1] of all labels
        to the label y; or a function `y -> (k,)`; or None where y itself holds them.

    Returns:
      A loss of a set of k labels and y: 1 for the empty set, 0 for one with a perfect
      match.

    Raises:
      ValueError: for a table that is not square, or known similarities outside [0, 1].

    Guarantee:
      Nonincreasing in the set: `risk.calibrate_risk` keeps its mean at alpha.

    Assumption:
      None of its own: that of the calibration.

    Cost:
      O(k) time.

    References:
      Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.

    See also:
      risk.calibrate_risk, risk.false_negative_rate, sets.LabelSet

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> pets = jnp.array([[1.0, 0.5], [0.5, 1.0]])
      >>> best_match(pets)(LabelSet(jnp.array([True, False])), 1)
      Array(0.5, dtype=float32)
    """
    if similarity is None or callable(similarity):
        return BestMatch(similarity)
    table = as_array("similarity", similarity)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(
            f"expected similarity as a table of shape (k, k), got {table.shape}"
        )
    valid = lambda v: (v >= 0) & (v <= 1)  # noqa: E731
    _checks.check_values(valid, "similarity in [0, 1]", table)
    return BestMatch(table)


@pytree
class Shortfall:
    """How far targets lie outside of their sets, at most a bound.

    Args:
      bound: The largest loss, > 0, in units of y.

    See also:
      risk.shortfall
    """

    bound: Number

    def __call__(self, set: HasEnds, y: Array) -> Array:
        """Returns the distance of y to the set, at most the bound, shape ()."""
        _checks.check_kind("sets with ends, as intervals and boxes", set, HasEnds)
        lower, upper = map(as_float, set.ends())
        check_one(set, lower.shape)
        outside = jnp.maximum(jnp.maximum(lower - y, y - upper), 0)
        return jnp.minimum(jnp.max(outside, initial=0), self.bound)


def shortfall(bound: Number) -> Shortfall:
    """Returns the loss of a target outside of its interval: how far, at most a bound.

    With several outputs that of the output which is farthest outside.

    Args:
      bound: The largest loss, > 0, in units of y: also the `bound` of the calibration.

    Returns:
      A loss of an interval or a box and y, in [0, bound].

    Raises:
      ValueError: if the bound is not above 0 and finite.

    Guarantee:
      Nonincreasing in the set: `risk.calibrate_risk` keeps its mean at alpha.

    Assumption:
      None of its own: that of the calibration.

    Cost:
      O(d) time.

    See also:
      risk.calibrate_risk, risk.miscoverage, sets.Interval

    Example:
      >>> from jaxcp.sets import Interval
      >>> shortfall(10.0)(Interval(0.0, 1.0), 3.0)
      Array(2., dtype=float32)
    """
    valid = lambda v: (v > 0) & np.isfinite(v)  # noqa: E731
    _checks.check_number("bound", bound, valid, "> 0, finite")
    return Shortfall(bound)
