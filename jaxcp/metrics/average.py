"""Shares of sets: how often they cover, are empty, or are sure."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import (
    as_array,
    as_arrays,
    as_groups,
    check_digits,
    is_concrete,
    is_rounded,
)
from jaxcp._numbers import mean
from jaxcp._tracing import jit
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.typing import (
    AnySet,
    ArrayLike,
    HasLabels,
    HasShapes,
    HasSize,
    HasWidths,
    MayBeEmpty,
    PyTree,
    Set,
)


def coverage(sets: Set, y: ArrayLike) -> Array:
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
    sets, y = check_sets(sets, y)
    return _coverage(sets, y)


def empty_rate(sets: Set) -> Array:
    """Returns the share of sets that are empty.

    Crossed intervals and boxes, label sets without a label, radii below 0. An interval
    of one point is not empty.

    Args:
      sets: Sets with leading axis m. A set of your own may have `is_empty()`; without
        it, it is empty where its `size()` is 0.

    Returns:
      Share in [0, 1], shape (); NaN for no sets, or if a set has a NaN.

    Raises:
      ValueError: for sets known by membership alone.

    Example:
      >>> from jaxcp.sets import Interval
      >>> empty_rate(Interval(jnp.zeros(2), jnp.array([0.0, -1.0])))
      Array(0.5, dtype=float32)
    """
    return _empty_rate(as_batch(sets))


def singleton_rate(sets: HasLabels) -> Array:
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
    check_label_sets(sets)
    return _singleton_rate(as_batch(sets))


def check_sets(sets: Set, y: ArrayLike) -> tuple[AnySet, Array]:
    """Returns sets and targets as arrays, one target shaped as each set takes it."""
    rounded = is_rounded("y", y)
    sets, y = as_batch(sets), as_array("y", y)
    _checks.num_rows(sets=sets, y=y)
    _checks.check_not_nan("y", y)
    # By the class: isinstance takes as long as a metric.
    has_shapes, has_labels = (issubclass(type(sets), v) for v in (HasShapes, HasLabels))
    expected = (len(y), *(sets.target_shape() if has_shapes else y.shape[1:]))
    if y.shape != expected and not y.size == math.prod(expected) == len(y):
        raise ValueError(f"expected y of shape {expected} like sets, got {y.shape}")
    y = y.reshape(expected)  # a single output may come with an axis or without
    if rounded:
        _check_digits(sets, y)
    if has_labels:
        y = as_groups("y", y)
        _checks.check_labels("y", y, sets.members().shape[-1])
    return sets, y


def _check_digits(sets, y):
    """Raises ValueError if sets are no wider than what targets lost on their way in."""
    if isinstance(sets, HasWidths) and is_concrete(sets, y):
        floats = np.asarray(y, jax.dtypes.canonicalize_dtype(float))
        check_digits("y", np.spacing(floats), sets.widths())


def as_batch(sets: Set) -> AnySet:
    """Returns sets as arrays with a leading axis, after checks."""
    if not issubclass(type(sets), Set):
        raise ValueError(f"expected sets with contains(y), got {type(sets).__name__}")
    sets = as_arrays(sets=sets)
    m = _checks.num_rows(sets=sets)
    return sets.checked(m) if issubclass(type(sets), HasShapes) else sets


def check_label_sets(sets: Set) -> None:
    """Raises ValueError for sets that are not of labels."""
    if not issubclass(type(sets), HasLabels):
        name = type(sets).__name__
        raise ValueError(f"expected sets of kind LabelSet, got {name}")


def is_covered(sets: Set, y: Array) -> Array:
    """Returns 1 or 0 for each row, NaN where the set or the target has a NaN."""
    return where_known(_contained(sets, y), (sets, y))


@jit
def _contained(sets, y):
    found = jax.vmap(lambda s, target: s.contains(target))(sets, y)
    if found.ndim > 1:
        raise ValueError(
            f"expected y with one target for each set, got {y.shape} for "
            f"{type(sets).__name__}"
        )
    return found


def check_level(alpha: ArrayLike) -> Array:
    """Returns one miscoverage level as a float, after checks."""
    alpha = as_alpha(alpha)
    _checks.check_scalars(alpha=alpha)
    return alpha_as_float(alpha)


def above_level(rates: Array, alpha: Array) -> Array:
    """Returns rates - (1 - alpha), 0 where they are the same but for rounding."""
    error = rates - (1 - alpha)
    return jnp.where(jnp.abs(error) < 4 * jnp.finfo(rates.dtype).eps, 0, error)


def sizes_of(sets: Set, sizes: ArrayLike | None) -> Array:
    """Returns the size of every set, or the sizes given for them, after checks."""
    if sizes is None:
        return closed_form_sizes(sets)
    sizes = as_array("sizes", sizes)
    _checks.num_rows(sets=sets, sizes=sizes)
    _checks.check_vectors(sizes=sizes)
    _checks.check_not_nan("sizes", sizes)
    return sizes


@jit
def closed_form_sizes(sets: Set) -> Array:
    """Returns the size of every set, shape (m,); ValueError where it has no formula."""
    if not isinstance(sets, HasSize):
        name = type(sets).__name__
        raise ValueError(f"expected sets with size(), got {name}: give it one")
    return jax.vmap(lambda s: s.size())(sets)


def where_known(values: Array, rows: PyTree) -> Array:
    """Returns `values`, shape (m,), as floats, NaN where a row of `rows` has a NaN."""
    values = values.astype(float) if values.dtype.kind in "biu" else values
    for leaf in jax.tree.leaves(rows):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            unknown = jnp.any(
                jnp.isnan(leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))), axis=1
            )
            values = jnp.where(unknown, jnp.nan, values)
    return values


@jit
def _coverage(sets, y):
    return mean(is_covered(sets, y))


@jit
def _empty_rate(sets):
    if isinstance(sets, MayBeEmpty):
        empty = jax.vmap(lambda s: s.is_empty())(sets)
    else:
        empty = closed_form_sizes(sets) == 0
    return mean(where_known(empty, sets))


@jit
def _singleton_rate(sets):
    return mean(jnp.sum(sets.members(), axis=1) == 1)
