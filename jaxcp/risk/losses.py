"""Losses of what a prediction set misses, or holds wrongly, of a target.

A loss is of one example, `loss(set, y) -> ()`: any function of jax.numpy, or a pytree
that is called.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import quotient
from jaxcp.typing import HasLabels, HasMarks, HasShapes, Set

# Counts up to 2^24 are exact in single precision, whatever the order of the sum. On a
# CPU it is the faster type from some 64 labels on, and far slower for a few.
_IN_SINGLE = 64, 2**24


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
    if y.shape != marks.shape:
        raise ValueError(
            f"expected y as a mask of shape {marks.shape} like the set, got {y.shape}; "
            "a loss is of one example"
        )
    return y != 0


def _share(part: Array, whole: Array) -> Array:
    """Returns #part / #whole, 0 for nothing of nothing."""
    return quotient(_count(part), jnp.maximum(_count(whole), 1))


def _count(marks: Array) -> Array:
    """Returns the number of true marks, of type float."""
    least, most = _IN_SINGLE
    dtype = jnp.float32 if least <= marks.size <= most else int
    return jnp.sum(marks, dtype=dtype).astype(float)
