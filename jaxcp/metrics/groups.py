"""Coverage within groups and classes, and how far it is from its level."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import jax.numpy as jnp
from jax import Array

from jaxcp._batching import counted
from jaxcp._numbers import kept, quotient
from jaxcp._tree import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, HasLabels, Set


def group_coverage(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
) -> Array:
    """Returns the coverage within each group.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (m,), or its name.
      num_groups: Number of groups g. May be left out where groups have names.
      group_names: Names of the g groups as for `jaxcp.calibrate_groups`. Defaults to
        the distinct groups in order, unless groups are integers.

    Returns:
      Coverage of each group, shape (g,), in order of the names; NaN for an empty group,
      so take `jnp.nanmin` for the worst.

    Raises:
      ValueError: as `coverage`, and if a concrete group is out of range.

    Cost:
      O(m) time.

    See also:
      metrics.class_coverage, metrics.coverage_gap, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> group_coverage(sets, y, jnp.array([0, 0, 1]), num_groups=2)
      Array([0.5, 1. ], dtype=float32)
    """
    sets, y = _sets.check_sets(sets, y)
    groups, num_groups = _sets.check_groups(y, groups, num_groups, group_names)
    return counted(group_coverage_of, sets, y, groups, num_groups=num_groups)


def class_coverage(sets: HasLabels | ArrayLike, y: ArrayLike) -> Array:
    """Returns the coverage of each class: `group_coverage` with groups y.

    Args:
      sets: Label sets with a mask of shape (m, k).
      y: True labels 0, ..., k - 1, int, shape (m,), or by the names that the sets have.

    Returns:
      Coverage of each class, shape (k,), in order of the columns; NaN for a class
      without rows.

    Raises:
      ValueError: as `coverage`, and for sets of another kind.

    Cost:
      O(m) time.

    See also:
      metrics.group_coverage, metrics.coverage_gap, calibrate_groups

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> sets = LabelSet(jnp.array([[True, False], [True, True], [True, False]]))
      >>> class_coverage(sets, jnp.array([0, 1, 1]))
      Array([1. , 0.5], dtype=float32)
    """
    sets = _sets.as_label_sets(sets)
    sets, y = _sets.check_sets(sets, y)
    return counted(class_coverage_of, sets, y)


def coverage_gap(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    weighted: bool = False,
) -> Array:
    """Returns the mean distance of the coverage of groups from 1 - alpha: CovGap.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row, int or by name, shape (m,), as for `group_coverage`.
      alpha: Miscoverage level of the sets, shape ().
      num_groups: Number of groups; those without rows are left out.
      group_names: Names of the groups as for `group_coverage`.
      weighted: Whether a group counts by its rows, not as one.

    Returns:
      Gap in [0, 1], shape () (the paper's is 100 times as large); NaN for no rows.

    Raises:
      ValueError: as `group_coverage`, or if a number `alpha` is outside (0, 1).

    Cost:
      O(m) time.

    References:
      Ding, Angelopoulos, Bates, Jordan, Tibshirani, Class-Conditional Conformal
      Prediction with Many Classes, NeurIPS, 2023.

    See also:
      metrics.group_coverage, metrics.class_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> groups = jnp.array([0, 0, 1])
      >>> round(coverage_gap(sets, y, groups, 0.2, num_groups=2).item(), 4)
      0.25
    """
    sets, y = _sets.check_sets(sets, y)
    groups, num_groups = _sets.check_groups(y, groups, num_groups, group_names)
    alpha = _sets.check_level(alpha)
    rows = sets, y, groups
    return counted(
        coverage_gap_of, *rows, alpha=alpha, num_groups=num_groups, weighted=weighted
    )


def rates_of(
    covered: Array, groups: Array, num_groups: int, count: Array | None = None
) -> tuple[Array, Array]:
    """Returns the mean of `covered` within each group, and the number of its rows."""
    groups = kept(groups.astype(int), count, num_groups)
    groups = jnp.where(groups < 0, num_groups, groups)  # would count from the end
    # Floats would stop at 2^24 rows. Rows are missed, covered, or unknown: a NaN.
    kinds = jnp.where(jnp.isnan(covered), 2, (covered > 0).astype(int))
    counts = jnp.zeros(3 * num_groups, int).at[3 * groups + kinds].add(1, mode="drop")
    counts = counts.reshape(num_groups, 3)
    rows = jnp.sum(counts, axis=1)
    return jnp.where(counts[:, 2] > 0, jnp.nan, quotient(counts[:, 1], rows)), rows


@jit(static_argnames="num_groups")
def group_coverage_of(
    sets: Set, y: Array, groups: Array, count: Array | None, num_groups: int
) -> Array:
    """Returns `group_coverage` of the first `count` rows."""
    return rates_of(_sets.is_covered(sets, y), groups, num_groups, count)[0]


@jit
def class_coverage_of(sets: HasLabels, y: Array, count: Array | None = None) -> Array:
    """Returns `class_coverage` of the first `count` rows."""
    return group_coverage_of(sets, y, y, count, sets.members().shape[1])


@jit(static_argnames=("num_groups", "weighted"))
def coverage_gap_of(
    sets: Set,
    y: Array,
    groups: Array,
    count: Array | None,
    alpha: Array,
    num_groups: int,
    weighted: bool = False,
) -> Array:
    """Returns `coverage_gap` of the first `count` rows."""
    rates, counts = rates_of(_sets.is_covered(sets, y), groups, num_groups, count)
    gaps = jnp.where(counts > 0, jnp.abs(rates - (1 - alpha)), 0)
    shares = counts if weighted else counts > 0
    return jnp.sum(shares * gaps) / jnp.sum(shares)
