"""Coverage of sets of similar size: good sets are large where it is hard."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _arrays, _checks, _numbers, _tree
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import metric
from jaxcp.metrics.rates import rates_of
from jaxcp.quantiles._keys import bisect_keys, to_keys
from jaxcp.quantiles._rows import select_keys
from jaxcp.typing import ArrayLike, HasLabels, Set

# With more rows and no more strata, selecting where strata end beats sorting the rows.
_MANY_ROWS, _FEW_BINS = 2**14, 16
_FEW_EDGES = 32  # with which each size is compared: a search takes long to compile


@_tree.pytree
class Way:
    """How sets are parted by size: into `num_bins`, or at `edges`.

    Strata from `first` on count: a stratum of empty sets does not.
    """

    edges: Array | None = None
    num_bins: int | None = _tree.static(default=None)
    first: int = _tree.static(default=0)


def parted_by(sets, num_bins=None, num_ranges=None, edges=None):
    """Returns how sets are parted by size, after checks."""
    given = [v is not None for v in (num_bins, num_ranges, edges)]
    if sum(given) > 1 or not (any(given) or isinstance(sets, HasLabels)):
        found = f"{sum(given)} for {type(sets).__name__}"
        raise ValueError(f"expected one of num_bins, num_ranges, edges, got {found}")
    if num_bins is not None:
        _checks.check_count("num_bins", num_bins, 1)
        return Way(num_bins=num_bins)
    if edges is None:
        edges = _label_edges(sets, num_ranges)
    edges = _numbers.as_float(_arrays.as_array("edges", edges))
    _checks.check_vectors(edges=edges)
    _checks.check_not_nan("edges", edges)
    increases = lambda e: np.append(True, e[1:] > e[:-1])[: len(e)]  # noqa: E731
    _checks.check_values(increases, "edges that increase", edges)
    return Way(edges, first=int(not any(given)))


def _label_edges(sets, num_ranges):
    """Returns the last size of each of `num_ranges` runs of 0, ..., k but the last."""
    _checks.check_kind("num_ranges only for label sets", sets, HasLabels)
    num_sizes = sets.members().shape[-1] + 1
    num_ranges = num_sizes if num_ranges is None else num_ranges
    _checks.check_count("num_ranges", num_ranges, 1)
    if num_ranges > num_sizes:
        raise ValueError(f"expected num_ranges <= {num_sizes}, got {num_ranges}")
    return _ends(num_sizes, num_ranges)[:-1] - 1


def _of_strata(sets, y, *, sizes=None, **options):
    sets, y = _sets.check_sets(sets, y)
    way = parted_by(sets, **options)
    return (sets, y, _sets.check_sizes(sets, sizes)), {"way": way}


def _ends(count, num_runs):
    """Returns where runs of `count` places end; the first ones are longer by one."""
    length, longer = divmod(count, num_runs)
    runs = np.arange(1, num_runs + 1)
    return runs * length + runs - (runs - longer).clip(0)


def strata_rates(count, sets, y, sizes, way, groups=None):
    """Returns the coverage of each stratum, and its number of rows if it counts."""
    order, groups, sizes, num_groups = _parted(sets, sizes, way, count, groups)
    covered = _sets.where_known(_sets.is_covered(sets, y), sizes)
    rates, counts = rates_of(covered[order], groups, num_groups)
    return rates, jnp.where(jnp.arange(num_groups) < way.first, 0, counts)


_rates = metric(_of_strata)(strata_rates)


def _parted(sets, sizes, way, count=None, groups=None):
    """Returns an order of rows, their strata in it, the sizes and the number of strata.

    Not the strata of the rows as they came, unless `groups` are known: a scatter takes
    long to compile. Rows after the first `count` have a stratum of their own beyond the
    last.
    """
    sizes = _sets.closed_form_sizes(sets) if sizes is None else sizes
    num_groups = way.num_bins or len(way.edges) + 1
    if groups is None and way.num_bins is None:
        method = "compare_all" if num_groups <= _FEW_EDGES else "scan"
        groups = jnp.searchsorted(jnp.asarray(way.edges), sizes, method=method)
    if groups is not None:
        return slice(None), _numbers.kept(groups, count, num_groups), sizes, num_groups
    keys = to_keys(sizes)
    keys = _numbers.kept(keys, count, jnp.iinfo(keys.dtype).max)
    ends = _ends(len(keys) if count is None else count, way.num_bins)
    if len(keys) > _MANY_ROWS and 1 < len(ends) <= _FEW_BINS:
        groups = _numbers.kept(_groups_between(keys, ends[:-1]), count, len(ends))
        return slice(None), groups, sizes, way.num_bins
    places = np.arange(len(keys))
    if count is None:
        groups = jnp.asarray(np.searchsorted(ends, places, side="right"))
    else:
        groups = jnp.sum(places[:, None] >= ends[None], axis=1)
    return jnp.argsort(keys, stable=True), groups, sizes, way.num_bins


def known_groups(sizes: np.ndarray, num_bins: int) -> np.ndarray:
    """Returns the stratum of each row, in bins, on the host: NaN counts as +inf."""
    order = np.argsort(np.fmin(sizes, np.inf), kind="stable")
    groups = np.empty(len(sizes), np.int32)
    ends = _ends(len(sizes), num_bins)
    groups[order] = np.searchsorted(ends, np.arange(len(sizes)), side="right")
    return groups


def _groups_between(keys, ends):
    """Returns how many runs of the sorted keys end before each key, as it comes.

    Equal keys are sorted by row: a run ends with one key, and one row of that key.
    """
    rows, ends = jnp.arange(len(keys)), jnp.asarray(ends, int)
    last_keys = select_keys(keys, None, ends)

    def last_row(key, end):
        equal, rank = keys == key, end - jnp.sum(keys < key)
        falls_short = lambda row: jnp.sum(equal & (rows < row)) < rank  # noqa: E731
        return bisect_keys(falls_short, rows.dtype, bits=len(keys).bit_length())

    above = sum((keys > key).astype(int) for key in last_keys)
    up_to = jnp.stack([jnp.sum(above <= i) for i in range(len(ends))])
    whole = _numbers.varying_like(jnp.full(ends.shape, len(keys)), last_keys)
    last_rows = lax.cond(
        jnp.all(up_to == ends),  # no run ends among equal keys
        lambda: whole,
        lambda: lax.map(lambda v: last_row(*v), (last_keys, ends)),
    )
    for key, row in zip(last_keys, last_rows, strict=True):
        above += ((keys == key) & (rows > row)).astype(int)
    return above


@_tree.jit
def least_rate(rates, counts):
    """Returns the least rate of strata with rows."""
    return -_largest(-rates, counts)


@_tree.jit
def largest_violation(rates, counts, alpha):
    """Returns the largest distance from 1 - alpha of rates of strata with rows."""
    return _largest(_sets.distances(rates, alpha), counts)


def _largest(values, counts):
    """Returns the largest of `values` of strata with rows; NaN if one is, or none."""
    largest = jnp.max(jnp.where(counts > 0, values, -jnp.inf))
    return jnp.where(jnp.any(counts > 0), largest, jnp.nan)


@_tree.pytree
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
    num_groups: int = _tree.static()


@_checks.by_labels
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
    sizes = _sets.check_sizes(sets, sizes)
    return _strata(sets, sizes, parted_by(sets, num_bins, num_ranges, edges))


@_tree.jit
def _strata(sets, sizes, way):
    order, groups, sizes, num_groups = _parted(sets, sizes, way)
    groups = jnp.zeros_like(groups).at[order].set(groups)
    return SizeStrata(groups, sizes, num_groups)


@_checks.by_labels
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
    return _rates(sets, y, **strata)[0]


@_checks.by_labels
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
    return least_rate(*_rates(sets, y, **strata))


@_checks.by_labels
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
    return largest_violation(*_rates(sets, y, **strata), alpha)
