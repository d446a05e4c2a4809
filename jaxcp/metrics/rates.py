"""Shares of sets: how often they cover, are empty, or are sure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import mean
from jaxcp._padding import by_rows, counted
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, HasLabels, MayBeEmpty, Set


def coverage(sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns the share of targets that lie in their sets: mean 1(y in C).

    Ends are closed and infinite sets count like others. A NaN in a set or a target
    makes the result NaN; it never counts as "not covered".

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have.

    Returns:
      Coverage in [0, 1], shape (); NaN for no rows.

    Raises:
      ValueError: if lengths differ, a concrete target is NaN, labels are not integers
        in the range of the sets, or targets lose digits in single precision that the
        ends of their sets are about.

    Cost:
      O(m) time: one membership for each row.

    See also:
      metrics.covered, metrics.summary, certificates.coverage_test,
      metrics.group_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> coverage(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array(0.5, dtype=float32)
    """
    return counted(coverage_of, *_sets.check_sets(sets, y))


def covered(sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns which targets lie in their sets: 1(y in C) for each row.

    The rows that `coverage` is the mean of, for averages of your own.

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have.

    Returns:
      1 or 0, shape (m,), a float; NaN where a set or a target has a NaN.

    Raises:
      ValueError: as `coverage`.

    Cost:
      O(m) time: one membership for each row.

    See also:
      metrics.coverage, certificates.coverage_test

    Example:
      >>> from jaxcp.sets import Interval
      >>> covered(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array([1., 0.], dtype=float32)
    """
    return by_rows(_sets.is_covered, rows=_sets.check_sets(sets, y))


def empty_rate(sets: Set | ArrayLike) -> Array:
    """Returns the share of sets that are empty.

    Crossed intervals and boxes, label sets without a label, radii below 0. An interval
    of one point is not empty.

    Args:
      sets: Sets with leading axis m. A set of your own may have `is_empty()`; without
        it, it is empty where its size is 0.

    Returns:
      Share in [0, 1], shape (); NaN for no sets, or if a set has a NaN.

    Raises:
      ValueError: for sets known by membership alone.

    Cost:
      O(m) time.

    See also:
      metrics.singleton_rate, metrics.full_rate, metrics.infinite_rate

    Example:
      >>> from jaxcp.sets import Interval
      >>> empty_rate(Interval(jnp.zeros(2), jnp.array([0.0, -1.0])))
      Array(0.5, dtype=float32)
    """
    return counted(empty_rate_of, _sets.as_batch(sets))


def full_rate(sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets that hold every label.

    These sets say nothing. There are many where the threshold is the largest score that
    a label can have. This happens to deterministic `scores.APS` with a confident
    network: the first label has nearly all of the mass, so that the true labels of all
    rows on which the network errs tie at a score of 1. If these rows are more than a
    share alpha, the threshold is 1 and sets keep every label. Take
    `APS(randomized=True)`, whose predictions are `(probs, jaxcp.uniforms(key, n))`, or
    `scores.LAC()`. At a small alpha full sets may be all that a poor network can give.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Cost:
      O(m k) time.

    See also:
      metrics.singleton_rate, metrics.empty_rate, scores.APS

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> full_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return counted(full_rate_of, _sets.as_batch(_sets.as_label_sets(sets)))


def singleton_rate(sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets with exactly one label.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Cost:
      O(m k) time.

    See also:
      metrics.full_rate, metrics.empty_rate, metrics.mean_size

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> singleton_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return counted(singleton_rate_of, _sets.as_batch(_sets.as_label_sets(sets)))


@jit
def coverage_of(sets: Set, y: Array, count: Array | None = None) -> Array:
    """Returns `coverage` of the first `count` rows."""
    return mean(_sets.is_covered(sets, y), count)


@jit
def empty_rate_of(sets: Set, count: Array | None = None) -> Array:
    """Returns `empty_rate` of the first `count` rows."""
    if isinstance(sets, MayBeEmpty):
        empty = jax.vmap(lambda s: s.is_empty())(sets)
    else:
        empty = _sets.closed_form_sizes(sets) == 0
    return mean(_sets.where_known(empty, sets), count)


@jit
def singleton_rate_of(sets: HasLabels, count: Array | None = None) -> Array:
    """Returns `singleton_rate` of the first `count` rows."""
    return mean(jnp.sum(sets.members(), axis=1) == 1, count)


@jit
def full_rate_of(sets: HasLabels, count: Array | None = None) -> Array:
    """Returns `full_rate` of the first `count` rows."""
    return mean(jnp.all(sets.members(), axis=1), count)
