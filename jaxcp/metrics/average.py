"""Averages over sets: coverage, size, coverage within groups."""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._types import Set
from jaxcp.sets import LabelSet


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
      ValueError: if lengths differ, a concrete target is NaN, or labels are not
        integers in the range of the sets.

    Example:
      >>> from jaxcp.sets import Interval
      >>> coverage(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array(0.5, dtype=float32)
    """
    sets, y = check_sets(sets, y)
    return _coverage(sets, y)


def mean_size(sets: Set) -> Array:
    """Returns the mean width, number of labels, or volume of sets.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Mean size, shape (), in units of the target (to the power of its dimension); +inf
      if a set is infinite, NaN for no sets.

    Raises:
      ValueError: if the sets have no size in closed form.

    Example:
      >>> from jaxcp.sets import Interval
      >>> mean_size(Interval(jnp.zeros(2), jnp.array([1.0, 2.0])))
      Array(1.5, dtype=float32)
    """
    return _mean_size(_checks.as_arrays(sets))


def group_coverage(
    sets: Set, y: ArrayLike, groups: ArrayLike, *, num_groups: int
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
    sets, y = check_sets(sets, y)
    groups = _checks.as_arrays(groups)
    _checks.num_rows(y=y, groups=groups)
    _checks.check_count("num_groups", num_groups, 1)
    _checks.check_labels("groups", groups, num_groups)
    return _group_coverage(sets, y, groups, jnp.arange(num_groups))


def check_sets(sets: Set, y: ArrayLike) -> tuple[Set, Array]:
    """Returns sets and targets as arrays, after checks."""
    sets, y = _checks.as_arrays((sets, y))
    _checks.num_rows(sets=sets, y=y)
    _checks.check_not_nan("y", y)
    inner = jnp.shape(y)[1:]
    ends = jnp.shape(sets.lower)[1:] if hasattr(sets, "lower") else inner
    if ends != inner and not math.prod(ends) == math.prod(inner) == 1:
        raise ValueError(f"expected y of shape (m, *{ends}) like sets, got {y.shape}")
    if isinstance(sets, LabelSet):
        _checks.check_labels("y", y, sets.mask.shape[-1])
    return sets, y


def is_covered(sets: Set, y: Array) -> Array:
    """Returns 1 or 0 for each row, NaN where the set or the target has a NaN."""

    def one(s, target):
        leaves = (jnp.asarray(leaf) for leaf in jax.tree.leaves((s, target)))
        floats = (leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating))
        unknown = sum(
            (jnp.any(jnp.isnan(leaf)) for leaf in floats), jnp.zeros((), bool)
        )
        return jnp.where(unknown, jnp.nan, s.contains(target))

    return jax.vmap(one)(sets, y)


@jax.jit
def _coverage(sets, y):
    return jnp.mean(is_covered(sets, y))


@jax.jit
def _mean_size(sets):
    return jnp.mean(jax.vmap(lambda s: s.size())(sets))


@jax.jit
def _group_coverage(sets, y, groups, names):
    members = groups.astype(int)[None] == names[:, None]
    covered = jnp.sum(jnp.where(members, is_covered(sets, y)[None], 0), axis=1)
    return covered / jnp.sum(members, axis=1)
