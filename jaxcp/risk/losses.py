"""Losses of a prediction set and a target: what it misses, or how near it comes.

A loss is of one example, `loss(set, y) -> ()`: any function of jax.numpy, or a pytree
that is called. It may declare what its targets are, which is then checked, by an
attribute `targets`: "labels" for masks of true labels, flags or 0 and 1, or labels that
the score takes; "score" for the targets of the score, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, quotient
from jaxcp._tree import as_callable, pytree
from jaxcp.typing import ArrayLike, HasEnds, HasLabels, HasMarks, HasShapes, Number, Set

# Counts up to 2^24 are exact in single precision, whatever the order of the sum. On a
# CPU it is the faster type from some 64 labels on, and far slower for a few.
_IN_SINGLE = 64, 2**24
_Loss = TypeVar("_Loss", bound=Callable)


def _of(targets: str) -> Callable[[_Loss], _Loss]:
    """Returns a decorator for losses, which then say what their targets are."""

    def declare(loss: _Loss) -> _Loss:
        loss.targets = targets  # type: ignore[attr-defined]
        return loss

    return declare


@_of("score")
def miscoverage(set: Set, y: Array) -> Array:
    """Returns whether the set misses y, a bool: the loss of conformal prediction.

    Args:
      set: The set of one example, of any kind.
      y: Its target.

    Returns:
      1(y is not in the set), bool of shape ().

    Raises:
      ValueError: as `contains` of the set.

    Guarantee:
      Nonincreasing in the set: `risk.calibrate_risk` keeps its mean at alpha.

    Assumption:
      None of its own: that of the calibration.

    Cost:
      One membership.

    See also:
      risk.calibrate_risk, risk.false_negative_rate, calibrate

    Example:
      >>> from jaxcp.sets import Interval
      >>> miscoverage(Interval(0.0, 1.0), 2.0)
      Array(True, dtype=bool)
    """
    return ~jnp.asarray(set.contains(y))


@_of("labels")
def false_negative_rate(set: Set, y: Array) -> Array:
    """Returns the share of the true labels, or pixels, that the set misses.

    Args:
      set: A `sets.LabelMask`, or a set of labels of one example.
      y: True labels: a mask like the set, or one label, shape ().

    Returns:
      #{true and not in the set} / #{true}, shape (), in [0, 1]; 0 where there are no
      true labels.

    Raises:
      ValueError: for sets without labels, several sets, or a mask of another shape.

    Guarantee:
      Nonincreasing in the set: `risk.calibrate_risk` keeps its mean at alpha.

    Assumption:
      None of its own: that of the calibration.

    Cost:
      O(k) time for k labels or pixels.

    References:
      Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.

    See also:
      risk.calibrate_risk, scores.MultiLabel, risk.false_discovery_rate

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> kept = LabelMask(jnp.array([True, True, False]))
      >>> false_negative_rate(kept, jnp.array([True, False, True]))
      Array(0.5, dtype=float32)
    """
    marks, true = marks_of(set), as_array("y", y)
    if true.ndim == 0 and marks.ndim == 1:  # one label, which may be out of range
        return (~jnp.any(marks & _true_labels(marks, true))).astype(float)
    true = _mask_like(marks, true)
    return _share(true & ~marks, true)


@_of("labels")
def false_discovery_rate(set: Set, y: Array) -> Array:
    """Returns the share of the members of the set that are not true.

    It is not monotone: take it with `monotone=False`, or `risk.learn_then_test`.

    Args:
      set: A `sets.LabelMask`, or a set of labels of one example.
      y: True labels: a mask like the set, or one label, shape ().

    Returns:
      #{in the set and not true} / #{in the set}, shape (), in [0, 1]; 0 for the empty
      set.

    Raises:
      ValueError: for sets without labels, several sets, or a mask of another shape.

    Guarantee:
      None of its own: not monotone in the set.

    Assumption:
      None of its own: that of the calibration or the test.

    Cost:
      O(k) time for k labels or pixels.

    References:
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      risk.learn_then_test, risk.calibrate_risk, risk.false_negative_rate

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> kept = LabelMask(jnp.array([True, True, False]))
      >>> false_discovery_rate(kept, jnp.array([True, False, True]))
      Array(0.5, dtype=float32)
    """
    marks = marks_of(set)
    return _share(marks & ~_true_labels(marks, y), marks)


@_of("labels")
def dice_loss(set: Set, y: Array) -> Array:
    """Returns 1 - Dice: how little the set and the true labels, or pixels, agree.

    1 - 2 #{in the set and true} / (#{in the set} + #{true}), of all labels together,
    whatever the axes of the mask. The mean over k classes of masks (k, h, w) is a loss
    of your own: `jax.vmap(dice_loss)(LabelMask(set.mask, 2), y).mean()`. Both are not
    monotone: take them with `monotone=False`, or `risk.learn_then_test`.

    Args:
      set: A `sets.LabelMask`, or a set of labels of one example.
      y: True labels: a mask like the set, or one label, shape ().

    Returns:
      The loss, shape (), in [0, 1]; 0 where both are empty.

    Raises:
      ValueError: for sets without labels, several sets, or a mask of another shape.

    Guarantee:
      None of its own: not monotone in the set.

    Assumption:
      None of its own: that of the calibration or the test.

    Cost:
      O(k) time for k labels or pixels.

    References:
      Dice, Measures of the Amount of Ecologic Association Between Species, Ecology,
      1945.

    See also:
      risk.iou_loss, risk.learn_then_test, risk.false_negative_rate,
      plotting.plot_masks

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> kept = LabelMask(jnp.array([True, True, False]))
      >>> dice_loss(kept, jnp.array([True, False, True]))
      Array(0.5, dtype=float32)
    """
    # 1 - 2 |A and B| / (|A| + |B|), and |A| + |B| - 2 |A and B| = |A xor B|.
    marks = marks_of(set)
    true = _true_labels(marks, y)
    return _share(marks ^ true, jnp.stack([marks, true]))


@_of("labels")
def iou_loss(set: Set, y: Array) -> Array:
    """Returns 1 - IoU of the set and the true labels, or pixels: the Jaccard distance.

    1 - #{in the set and true} / #{in the set or true}, of all labels together, whatever
    the axes of the mask; the mean over classes as for `risk.dice_loss`. It is not
    monotone: take it with `monotone=False`, or `risk.learn_then_test`.

    Args:
      set: A `sets.LabelMask`, or a set of labels of one example.
      y: True labels: a mask like the set, or one label, shape ().

    Returns:
      The loss, shape (), in [0, 1]; 0 where both are empty.

    Raises:
      ValueError: for sets without labels, several sets, or a mask of another shape.

    Guarantee:
      None of its own: not monotone in the set.

    Assumption:
      None of its own: that of the calibration or the test.

    Cost:
      O(k) time for k labels or pixels.

    References:
      Jaccard, The Distribution of the Flora in the Alpine Zone, New Phytologist, 1912.

    See also:
      risk.dice_loss, risk.learn_then_test, metrics.iou

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> kept = LabelMask(jnp.array([True, True, False, False]))
      >>> iou_loss(kept, jnp.array([True, True, True, True]))
      Array(0.5, dtype=float32)
    """
    marks = marks_of(set)
    true = _true_labels(marks, y)
    return _share(marks ^ true, marks | true)


@_of("labels")
def false_positive_count(set: Set, y: Array) -> Array:
    """Returns how many labels are left out of the set although they are not true.

    For sets that hold what is not predicted, so that they grow as fewer labels are: of
    `scores.MultiLabel` with 1 - p for predictions. Its bound is the number of labels.

    Args:
      set: A `sets.LabelMask`, or a set of labels of one example.
      y: True labels: a mask like the set, or one label, shape ().

    Returns:
      #{not in the set and not true}, shape (), in [0, k], a float.

    Raises:
      ValueError: for sets without labels, several sets, or a mask of another shape.

    Guarantee:
      Nonincreasing in the set: `risk.calibrate_risk` keeps its mean at alpha.

    Assumption:
      None of its own: that of the calibration.

    Cost:
      O(k) time for k labels or pixels.

    See also:
      risk.calibrate_risk, risk.false_discovery_rate

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> not_predicted = LabelMask(jnp.array([True, False, False]))
      >>> false_positive_count(not_predicted, jnp.array([False, False, True]))
      Array(1., dtype=float32)
    """
    marks = marks_of(set)
    return jnp.sum(~marks & ~_true_labels(marks, y)).astype(float)


def marks_of(set: Any) -> Array:
    """Returns which labels or pixels are in a set; ValueError for other sets."""
    if isinstance(set, HasMarks):
        marks = jnp.asarray(set.marks())
        check_one(set, marks.shape)
        return marks
    cure = "; risk.miscoverage takes sets of any kind"
    _checks.check_kind("a set of labels or a mask of them", set, HasLabels, cure)
    members = jnp.asarray(set.members())
    check_one(set, members.shape[1:])  # a target is one label
    return members


def check_one(set: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError for a batch of sets: `shape` is that of one target."""
    if issubclass(type(set), HasShapes) and shape != set.target_shape():
        raise ValueError("expected one set, got several: jax.vmap(loss)(sets, y)")


def _true_labels(marks, y):
    """Returns the mask of the true labels: `y`, or that of one label `y`."""
    y = as_array("y", y)
    if y.ndim == 0 and marks.ndim == 1:
        return jnp.arange(len(marks)) == y
    return _mask_like(marks, y)


def _mask_like(marks, y):
    """Returns `y` as a mask, after checks."""
    _checks.check_shape("y as a mask", marks.shape, y.shape)
    return y != 0


def _share(part: Array, whole: Array) -> Array:
    """Returns #part / #whole, 0 for nothing of nothing."""
    return quotient(_count(part), jnp.maximum(_count(whole), 1))


def _count(marks: Array) -> Array:
    """Returns the number of true marks, of type float."""
    least, most = _IN_SINGLE
    dtype = jnp.float32 if least <= marks.size <= most else int
    return jnp.sum(marks, dtype=dtype).astype(float)


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
        _checks.check_shape("similarities", marks.shape, similarity.shape)
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
    _checks.check_shape("similarity", table.shape[:1] * 2, table.shape)
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
    return Shortfall(_checks.check_number("bound", bound, valid, "> 0, finite"))
