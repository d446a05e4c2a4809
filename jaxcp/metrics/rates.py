"""Shares of sets: how often they cover, are empty, or are sure."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import mean
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, HasLabels, MayBeEmpty, Set


def coverage(sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns the share of targets that lie in their sets: mean 1(y in C).

    Ends are closed and infinite sets count like others. A NaN in a set or a target
    makes the result NaN: it is never silently "not covered".

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, int of shape (m,).

    Returns:
      Coverage in [0, 1], shape (); NaN for no rows.

    Raises:
      ValueError: if lengths differ, a concrete target is NaN, labels are not integers
        in the range of the sets, or targets lose digits in single precision that the
        ends of their sets are about.

    Example:
      >>> from jaxcp.sets import Interval
      >>> coverage(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array(0.5, dtype=float32)
    """
    return _coverage(*_sets.check_sets(sets, y))


def covered(sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns which targets lie in their sets: 1(y in C) for each row.

    The rows that `coverage` is the mean of, for averages of your own.

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, int of shape (m,).

    Returns:
      1 or 0, shape (m,), a float; NaN where a set or a target has a NaN.

    Raises:
      ValueError: as `coverage`.

    Example:
      >>> from jaxcp.sets import Interval
      >>> covered(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array([1., 0.], dtype=float32)
    """
    return _sets.is_covered(*_sets.check_sets(sets, y))


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

    Example:
      >>> from jaxcp.sets import Interval
      >>> empty_rate(Interval(jnp.zeros(2), jnp.array([0.0, -1.0])))
      Array(0.5, dtype=float32)
    """
    return _empty_rate(_sets.as_batch(sets))


def full_rate(sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets that hold every label.

    These sets say nothing, and there are many where the threshold reaches the largest
    score that a label can have. So does that of deterministic `scores.APS` for a
    confident network: the label on top holds nearly all of the mass, so that the true
    labels of more than a share alpha of the rows, those on which the network errs, tie
    at a mass of 1, and sets at that threshold keep every label. Take
    `APS(randomized=True)`, whose predictions are `(probs, jaxcp.uniforms(key, n))`, or
    `scores.LAC()`. At a small alpha full sets may be all that a poor network can give.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> full_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return _full_rate(_sets.as_batch(_sets.as_label_sets(sets)))


def singleton_rate(sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets with exactly one label.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> singleton_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return _singleton_rate(_sets.as_batch(_sets.as_label_sets(sets)))


@jit
def _coverage(sets, y):
    return mean(_sets.is_covered(sets, y))


@jit
def _empty_rate(sets):
    if isinstance(sets, MayBeEmpty):
        empty = jax.vmap(lambda s: s.is_empty())(sets)
    else:
        empty = _sets.closed_form_sizes(sets) == 0
    return mean(_sets.where_known(empty, sets))


@jit
def _singleton_rate(sets):
    return mean(jnp.sum(sets.members(), axis=1) == 1)


@jit
def _full_rate(sets):
    return mean(jnp.all(sets.members(), axis=1))
