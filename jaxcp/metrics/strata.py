"""Coverage of sets of similar size: good sets are large where it is hard."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxcp._padding import counted
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.metrics._parting import (
    largest_violation,
    least_rate,
    parted,
    parted_by,
    strata_rates,
)
from jaxcp.typing import ArrayLike, Set


@pytree
class SizeStrata:
    """Strata of sets of similar size. Made by `size_strata`.

    Args:
      groups: Stratum of each set in 0, ..., num_groups - 1, from small sets to large
        ones, int, shape (m,).
      sizes: Size of each set, shape (m,).
      num_groups: Number of strata g.

    See also:
      metrics.size_strata
    """

    groups: Array
    sizes: Array
    num_groups: int = static()


def size_strata(
    sets: Set | ArrayLike,
    *,
    num_bins: int | None = None,
    num_ranges: int | None = None,
    edges: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> SizeStrata:
    """Returns the stratum of each set among sets of similar size.

    Strata are given in one of three ways: `num_bins` runs of equally many rows in the
    order of size (rows of equal size in their order; the first bins have one row more
    if m is not a multiple of g), `num_ranges` runs of equally many sizes 0, ..., k of
    label sets, or `edges` between sizes. Without any of them label sets have a stratum
    for each size.

    Args:
      sets: Sets with leading axis m.
      num_bins: Number of strata g of equally many rows.
      num_ranges: Number of strata g of equally many numbers of labels.
      edges: Increasing sizes e_1 < ... < e_(g-1): strata size <= e_1, e_1 < size <=
        e_2, ..., size > e_(g-1), as in (1, 3, 10, 100).
      sizes: Sizes to go by, shape (m,), e.g. `mean_volume(key, sets).log_volumes` for
        sets without a closed-form size. Defaults to those of the sets.

    Returns:
      A `SizeStrata`: `groups` and `num_groups`, as `group_coverage` and `coverage_gap`
      take them, and the `sizes`.

    Raises:
      ValueError: if more than one way is given, or none for sets that are not of
        labels; if edges do not increase, or the sets have no size in closed form.

    Cost:
      O(m log m) time: at most one sort.

    See also:
      metrics.size_stratified_coverage, metrics.group_coverage, metrics.coverage_gap

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> size_strata(sets, num_bins=2).groups
      Array([0, 1, 0, 1], dtype=int32)
    """
    sets = _sets.as_batch(sets)
    return _strata(sets, *parted_by(sets, num_bins, num_ranges, edges, sizes))


def size_stratified_coverage(
    sets: Set | ArrayLike, y: ArrayLike, **strata: Any
) -> Array:
    """Returns the coverage within strata of sets of similar size.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      **strata: Options of `size_strata`: one of `num_bins`, `num_ranges` and `edges`
        (or none, for label sets), and `sizes`.

    Returns:
      Coverage of each stratum, shape (g,), from small sets to large ones; NaN for an
      empty stratum.

    Raises:
      ValueError: as `coverage` and `size_strata`.

    Cost:
      O(m log m) time: at most one sort.

    References:
      Angelopoulos, Bates, Conformal Prediction: A Gentle Introduction, Foundations and
      Trends in Machine Learning, 2023.

    See also:
      metrics.size_strata, metrics.min_size_stratified_coverage, metrics.hsic

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> size_stratified_coverage(sets, jnp.full(4, 1.5), num_bins=2)
      Array([0.5, 1. ], dtype=float32)
    """
    sets, y = _sets.check_sets(sets, y)
    return _rates(sets, y, strata)[0][0]


def min_size_stratified_coverage(
    sets: Set | ArrayLike, y: ArrayLike, **strata: Any
) -> Array:
    """Returns the least coverage of a stratum of sets of similar size: SSC.

    min_j coverage_j over strata with rows. Where each number of labels is a stratum,
    numbers from 1 on count: an empty set covers nothing, and `empty_rate` tells how
    many there are. The minimum is too low on average: 0.84 over 20 strata of 100 rows
    that all cover 0.9.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      **strata: Options of `size_strata`.

    Returns:
      Coverage, shape (); NaN where no stratum has rows.

    Raises:
      ValueError: as `coverage` and `size_strata`.

    Cost:
      O(m log m) time: at most one sort.

    References:
      Angelopoulos, Bates, Conformal Prediction: A Gentle Introduction, Foundations and
      Trends in Machine Learning, 2023.

    See also:
      metrics.size_stratified_coverage, metrics.size_stratified_coverage_violation

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> min_size_stratified_coverage(sets, jnp.full(4, 1.5), num_bins=2).item()
      0.5
    """
    sets, y = _sets.check_sets(sets, y)
    return least_rate(*_rates(sets, y, strata))


def size_stratified_coverage_violation(
    sets: Set | ArrayLike, y: ArrayLike, alpha: ArrayLike, **strata: Any
) -> Array:
    """Returns how far a stratum of sets of similar size is from its level: SSCV.

    max_j abs(coverage_j - (1 - alpha)) over strata with rows. Where each number of
    labels is a stratum, numbers from 1 on count, as for `min_size_stratified_coverage`.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, shape ().
      **strata: Options of `size_strata`.

    Returns:
      Largest distance, shape (); NaN where no stratum has rows.

    Raises:
      ValueError: as `coverage` and `size_strata`, or if a number `alpha` is outside (0,
        1).

    Cost:
      O(m log m) time: at most one sort.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, ICLR, 2021.

    See also:
      metrics.min_size_stratified_coverage, metrics.size_stratified_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> y = jnp.full(4, 1.5)
      >>> size_stratified_coverage_violation(sets, y, 0.25, num_bins=2).item()
      0.25
    """
    alpha = _sets.check_level(alpha)
    sets, y = _sets.check_sets(sets, y)
    return largest_violation(*_rates(sets, y, strata), alpha)


@jit
def _strata(sets, sizes, way):
    order, groups, sizes, num_groups = parted(sets, sizes, way)
    groups = jnp.zeros_like(groups).at[order].set(groups)
    return SizeStrata(groups, sizes, num_groups)


def _rates(sets, y, strata):
    """Returns `strata_rates` for options of `size_strata`, and which counts."""
    sizes, way = parted_by(sets, **strata)
    return counted(strata_rates, sets, y, sizes, way=way), way.first
