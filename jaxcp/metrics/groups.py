"""Coverage within groups and classes, and how far it is from its level."""

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.typing import ArrayLike, HasLabels, Set


def group_coverage(
    sets: Set | ArrayLike, y: ArrayLike, groups: ArrayLike, *, num_groups: int
) -> Array:
    """Returns the coverage within each group.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (m,).
      num_groups: Number of groups g.

    Returns:
      Coverage of each group, shape (g,); NaN for an empty group, so take
      `jnp.nanmin` for the worst.

    Raises:
      ValueError: as `coverage`, and if a concrete group is out of range.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> group_coverage(sets, y, jnp.array([0, 0, 1]), num_groups=2)
      Array([0.5, 1. ], dtype=float32)
    """
    sets, y = _sets.check_sets(sets, y)
    _, groups = _checks.rows(y=y, groups=_checks.groups(groups, num_groups))
    return _group_coverage(sets, y, groups, num_groups)


def class_coverage(sets: HasLabels | ArrayLike, y: ArrayLike) -> Array:
    """Returns the coverage of each class: `group_coverage` with groups y.

    Args:
      sets: Label sets with a mask of shape (m, k).
      y: True labels 0, ..., k - 1, int, shape (m,).

    Returns:
      Coverage of each class, shape (k,); NaN for a class without rows.

    Raises:
      ValueError: as `coverage`, and for sets of another kind.

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> sets = LabelSet(jnp.array([[True, False], [True, True], [True, False]]))
      >>> class_coverage(sets, jnp.array([0, 1, 1]))
      Array([1. , 0.5], dtype=float32)
    """
    sets = _sets.as_label_sets(sets)
    sets, y = _sets.check_sets(sets, y)
    return _group_coverage(sets, y, y, sets.members().shape[1])


def coverage_gap(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: ArrayLike,
    *,
    num_groups: int,
    weighted: bool = False,
) -> Array:
    """Returns the mean distance of the coverage of groups from 1 - alpha: CovGap.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (m,).
      alpha: Miscoverage level of the sets, shape ().
      num_groups: Number of groups; those without rows are left out.
      weighted: Whether a group counts by its rows, not as one.

    Returns:
      Gap in [0, 1], shape () (the paper's is 100 times as large); NaN for no rows.

    Raises:
      ValueError: as `group_coverage`, or if a number `alpha` is outside (0, 1).

    References:
      Ding et al., Class-Conditional Conformal Prediction with Many Classes, 2023.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> groups = jnp.array([0, 0, 1])
      >>> round(coverage_gap(sets, y, groups, 0.2, num_groups=2).item(), 4)
      0.25
    """
    sets, y = _sets.check_sets(sets, y)
    _, groups = _checks.rows(y=y, groups=_checks.groups(groups, num_groups))
    alpha = _sets.check_level(alpha)
    return _coverage_gap(sets, y, groups, num_groups, alpha, weighted)


def rates_of(covered: Array, groups: Array, num_groups: int) -> tuple[Array, Array]:
    """Returns the mean of `covered` within each group, and the number of its rows."""
    groups = groups.astype(int)
    groups = jnp.where(groups < 0, num_groups, groups)  # would count from the end
    totals = jnp.zeros((num_groups, 2), covered.dtype)
    rows = jnp.stack([covered, jnp.ones_like(covered)], axis=1)
    hits, counts = totals.at[groups].add(rows, mode="drop").T
    return hits / counts, counts


@jit(static_argnames="num_groups")
def _group_coverage(sets, y, groups, num_groups):
    return rates_of(_sets.is_covered(sets, y), groups, num_groups)[0]


@jit(static_argnames=("num_groups", "weighted"))
def _coverage_gap(sets, y, groups, num_groups, alpha, weighted):
    rates, counts = rates_of(_sets.is_covered(sets, y), groups, num_groups)
    gaps = jnp.where(counts > 0, jnp.abs(rates - (1 - alpha)), 0)
    shares = counts if weighted else counts > 0
    return jnp.sum(shares * gaps) / jnp.sum(shares)
