"""Coverage of sets of similar size: good sets are large where it is hard."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.metrics.average import (
    check_level,
    check_sets,
    is_covered,
    sizes_of,
    where_known,
)
from jaxcp.metrics.groups import rates_of
from jaxcp.quantiles.selection import to_keys
from jaxcp.typing import ArrayLike, HasLabels, Set


def size_stratified_coverage(
    sets: Set,
    y: ArrayLike,
    *,
    num_bins: int | None = None,
    num_ranges: int | None = None,
    edges: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns the coverage within strata of sets of similar size.

    Strata are given in one of three ways: `num_bins` runs of equally many rows in the
    order of size (rows of one size in their order; the first bins have one row more
    where it does not come out even), `num_ranges` runs of equally many sizes 0, ..., k
    of label sets, or `edges` between sizes. Without any of them label sets have a
    stratum for each size.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      num_bins: Number of strata g of equally many rows.
      num_ranges: Number of strata g of equally many numbers of labels.
      edges: Increasing sizes e_1 < ... < e_(g-1): strata size <= e_1, e_1 < size <=
        e_2, ..., size > e_(g-1), as in (1, 3, 10, 100).
      sizes: Sizes to go by, shape (m,), e.g. `mean_volume(key, sets).log_volumes` for
        sets without a closed-form size. Defaults to those of the sets.

    Returns:
      Coverage of each stratum, shape (g,), from small sets to large ones; NaN for an
      empty stratum.

    Raises:
      ValueError: as `coverage`; if more than one way is given, or none for sets that
        are not of labels; if edges do not increase.

    References:
      Angelopoulos, Bates, A Gentle Introduction to Conformal Prediction, 2021.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> size_stratified_coverage(sets, jnp.full(4, 1.5), num_bins=2)
      Array([0.5, 1. ], dtype=float32)
    """
    return _strata(sets, y, num_bins, num_ranges, edges, sizes)[0]


def min_size_stratified_coverage(
    sets: Set,
    y: ArrayLike,
    *,
    num_bins: int | None = None,
    num_ranges: int | None = None,
    edges: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns the least coverage of a stratum of sets of similar size: SSC.

    min_j coverage_j over strata with rows. Where each number of labels is a stratum,
    numbers from 1 on count: an empty set covers nothing, and `empty_rate` tells how
    many there are.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      num_bins: As for `size_stratified_coverage`, like the next ones.
      num_ranges: Number of strata of equally many numbers of labels.
      edges: Increasing sizes between strata.
      sizes: Sizes to go by, shape (m,).

    Returns:
      Coverage, shape (); NaN where no stratum has rows.

    Raises:
      ValueError: as `size_stratified_coverage`.

    References:
      Angelopoulos, Bates, A Gentle Introduction to Conformal Prediction, 2021.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> min_size_stratified_coverage(sets, jnp.full(4, 1.5), num_bins=2).item()
      0.5
    """
    rates, counts = _not_empty(sets, y, num_bins, num_ranges, edges, sizes)
    return -_largest(-rates, counts)


def size_stratified_coverage_violation(
    sets: Set,
    y: ArrayLike,
    alpha: ArrayLike,
    *,
    num_bins: int | None = None,
    num_ranges: int | None = None,
    edges: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns how far a stratum of sets of similar size is from its level: SSCV.

    max_j abs(coverage_j - (1 - alpha)) over strata with rows. Where each number of
    labels is a stratum, numbers from 1 on count, as for `min_size_stratified_coverage`.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, shape ().
      num_bins: As for `size_stratified_coverage`, like the next ones.
      num_ranges: Number of strata of equally many numbers of labels.
      edges: Increasing sizes between strata.
      sizes: Sizes to go by, shape (m,).

    Returns:
      Largest distance, shape (); NaN where no stratum has rows.

    Raises:
      ValueError: as `size_stratified_coverage`, or if a number `alpha` is outside (0,
        1).

    References:
      Angelopoulos et al., Uncertainty Sets for Image Classifiers using Conformal
      Prediction, 2021.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 4.0, 2.0, 3.0]))
      >>> y = jnp.full(4, 1.5)
      >>> size_stratified_coverage_violation(sets, y, 0.25, num_bins=2).item()
      0.25
    """
    alpha = check_level(alpha)
    rates, counts = _not_empty(sets, y, num_bins, num_ranges, edges, sizes)
    return _largest(jnp.abs(rates - (1 - alpha)), counts)


def _not_empty(sets, y, num_bins, num_ranges, edges, sizes):
    """Returns `_strata`, without that of size 0 where each size has one."""
    strata = _strata(sets, y, num_bins, num_ranges, edges, sizes)
    if num_bins is None and num_ranges is None and edges is None:
        return [values[1:] for values in strata]
    return strata


def _strata(sets, y, num_bins, num_ranges, edges, sizes):
    """Returns the coverage and the number of rows of each stratum."""
    sets, y = check_sets(sets, y)
    sizes = sizes_of(sets, sizes)
    given = [v is not None for v in (num_bins, num_ranges, edges)]
    if sum(given) > 1 or not (any(given) or isinstance(sets, HasLabels)):
        raise ValueError(
            "expected one of num_bins, num_ranges and edges (or none, for label sets), "
            f"got {sum(given)} for {type(sets).__name__}"
        )
    if num_bins is not None:
        _checks.check_count("num_bins", num_bins, 1)
        return _rates_by_count(sets, y, sizes, num_bins)
    edges = _label_edges(sets, num_ranges) if edges is None else edges
    edges = as_float(as_array("edges", edges))
    _checks.check_not_nan("edges", edges)
    if edges.ndim != 1:
        raise ValueError(f"expected edges of shape (g - 1,), got {edges.shape}")
    increasing = "edges that increase"
    _checks.check_values(lambda step: step > 0, increasing, edges[1:] - edges[:-1])
    return _rates_by_edges(sets, y, sizes, edges)


def _label_edges(sets, num_ranges):
    """Returns the last size of each of `num_ranges` runs of 0, ..., k but the last."""
    if not isinstance(sets, HasLabels):
        raise ValueError(
            f"expected num_ranges only for label sets, got {type(sets).__name__}"
        )
    num_sizes = sets.members().shape[-1] + 1
    num_ranges = num_sizes if num_ranges is None else num_ranges
    _checks.check_count("num_ranges", num_ranges, 1)
    if num_ranges > num_sizes:
        raise ValueError(f"expected num_ranges <= {num_sizes}, got {num_ranges}")
    return _ends(num_sizes, num_ranges)[:-1] - 1


def _ends(count, num_runs):
    """Returns where runs of `count` places end; the first ones are longer by one."""
    length, longer = divmod(count, num_runs)
    return np.cumsum(length + (np.arange(num_runs) < longer))


@jit(static_argnames="num_bins")
def _rates_by_count(sets, y, sizes, num_bins):
    ends, places = _ends(len(sizes), num_bins), np.arange(len(sizes))
    strata = jnp.asarray(np.searchsorted(ends, places, side="right"))
    order = jnp.argsort(to_keys(sizes), stable=True)
    return rates_of(_covered(sets, y, sizes)[order], strata, num_bins)


@jit
def _rates_by_edges(sets, y, sizes, edges):
    strata = jnp.searchsorted(edges, sizes, side="left")
    return rates_of(_covered(sets, y, sizes), strata, len(edges) + 1)


def _covered(sets, y, sizes):
    return where_known(is_covered(sets, y), sizes)


@jit
def _largest(values, counts):
    """Returns the largest of `values` of strata with rows; NaN if one is, or none."""
    largest = jnp.max(jnp.where(counts > 0, values, -jnp.inf))
    return jnp.where(jnp.any(counts > 0), largest, jnp.nan)
