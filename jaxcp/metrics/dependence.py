"""Dependence between the size of a set and whether it covers."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _batching, _checks, _tree
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, kept, quotient, unless_nan
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import Count, metric
from jaxcp.quantiles._keys import bisect_floats, key_type, num_passed
from jaxcp.typing import ArrayLike, Set

_PERMUTATIONS = 64  # at a time, for which kernels are computed once


def _of_sizes(sets, y, *, sizes=None, bandwidths=(1.0, 1.0), **options):
    sets, y = _sets.check_sets(sets, y)
    sizes = _sets.check_sizes(sets, sizes)
    if bandwidths is not None:
        s_1, s_2 = bandwidths = tuple(as_array("bandwidths", s) for s in bandwidths)
        _checks.check_number("bandwidths", s_1, lambda s: s > 0, "> 0")
        _checks.check_number("bandwidths", s_2, lambda s: s > 0, "> 0")
    return (sets, y, sizes), {"bandwidths": bandwidths} | options


@metric(_of_sizes, by_pairs=True)
def hsic(
    count: Count,
    sets: Set | ArrayLike,
    y: ArrayLike,
    *,
    bandwidths: tuple[ArrayLike, ArrayLike] | None = (1.0, 1.0),
    rooted: bool = True,
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns the Hilbert-Schmidt dependence of coverage on size.

    sqrt(trace(K H L H)) / (m - 1) with Gaussian kernels K of sizes and L of coverage,
    exp(-d^2 / s), and H = I - 1/m. Coverage is 0 or 1, so that the trace is 2 (1 -
    exp(-1 / s_2)) c'Kc with c the centered coverage: O(m^2) time and O(m) memory. It
    estimates a value that is 0 if and only if coverage and size are independent. The
    estimate is positive then too: `hsic_null` is its mean, `hsic_test` says whether
    what is seen may be chance.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      bandwidths: (s_1, s_2) > 0 for sizes, in their units squared, and for coverage.
        None takes twice the squared median distance between different values (the
        median heuristic), so that the units do not matter; gradients take it as given.
      rooted: Whether to take the root; without it the value is trace / (m - 1)^2.
      sizes: Sizes to go by, shape (m,). Defaults to those of the sets.

    Returns:
      HSIC >= 0, shape (); exactly 0 if all sets cover, none does, or all have one size.
      An infinite size is far from every finite one. NaN for fewer than two rows.

    Raises:
      ValueError: as `coverage`, or if a concrete bandwidth is not positive.

    Cost:
      O(m^2) time and O(m) memory.

    References:
      Gretton, Bousquet, Smola, Scholkopf, Measuring Statistical Dependence with
      Hilbert-Schmidt Norms, Algorithmic Learning Theory, 2005.
      Feldman, Bates, Romano, Improving Conditional Coverage via Orthogonal Quantile
      Regression, NeurIPS, 2021.

    See also:
      metrics.hsic_null, metrics.hsic_test, metrics.size_stratified_coverage,
      metrics.summary

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 1.0, 9.0, 9.0]))
      >>> round(hsic(sets, jnp.full(4, 3.0)).item(), 4)
      0.53
    """
    sizes, covered, m, (s_1, s_2) = _measured(sets, y, sizes, count, bandwidths)
    form = _distance_form(sizes, _centered(covered, m, count), s_1)
    square = -2 * jnp.expm1(-1 / s_2) * jnp.maximum(form, 0) / (m - 1) ** 2
    if not rooted:
        return square
    positive = square > 0
    root = jnp.sqrt(jnp.where(positive, square, 1))
    return jnp.where(positive | jnp.isnan(square), root + 0 * square, 0)


@metric(_of_sizes, by_pairs=True)
def hsic_null(
    count: Count,
    sets: Set | ArrayLike,
    y: ArrayLike,
    *,
    bandwidths: tuple[ArrayLike, ArrayLike] | None = (1.0, 1.0),
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns the mean of `hsic` without a root where misses fall on any rows alike.

    Over all permutations of the coverage of the rows, of which a share p is covered:
    2 (1 - exp(-1 / s_2)) m p (1 - p) (m - sum_ij K_ij / m) / (m - 1)^3. The floor to
    compare `hsic(..., rooted=False)` with.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      bandwidths: (s_1, s_2) as for `hsic`.
      sizes: Sizes to go by, shape (m,). Defaults to those of the sets.

    Returns:
      Mean >= 0, shape (); exactly 0 if all sets cover, none does, or all have one size.
      NaN for fewer than two rows.

    Raises:
      ValueError: as `hsic`.

    Cost:
      O(m^2) time and O(m) memory.

    See also:
      metrics.hsic, metrics.hsic_test

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 1.0, 9.0, 9.0]))
      >>> round(hsic(sets, jnp.full(4, 3.0), rooted=False).item(), 4)
      0.2809
      >>> round(hsic_null(sets, jnp.full(4, 3.0)).item(), 4)
      0.0936
    """
    sizes, covered, m, (s_1, s_2) = _measured(sets, y, sizes, count, bandwidths)
    # sum_i c_i^2 = m p (1 - p), and c_i c_j is -p (1 - p) / (m - 1) on average.
    squares = jnp.sum(_centered(covered, m, count) ** 2)
    apart = -_distance_form(sizes, kept(jnp.ones_like(sizes), count), s_1) / m
    return -2 * jnp.expm1(-1 / s_2) * squares * apart / (m - 1) ** 3


@_checks.by_labels
def hsic_test(
    key: Array,
    sets: Set | ArrayLike,
    y: ArrayLike,
    *,
    num_permutations: int = 999,
    bandwidths: tuple[ArrayLike, ArrayLike] | None = (1.0, 1.0),
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns a p-value of the claim that coverage does not depend on size.

    (1 + #{HSIC of permuted coverage >= that of the rows}) / (1 + b) over b random
    permutations of the rows. Values that differ by rounding are equal.

    Args:
      key: Random key of the permutations.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      num_permutations: Number b of permutations; the p-value is at least 1 / (1 + b).
      bandwidths: (s_1, s_2) as for `hsic`.
      sizes: Sizes to go by, shape (m,). Defaults to those of the sets.

    Returns:
      p-value in (0, 1], shape (); NaN for fewer than two rows.

    Raises:
      ValueError: as `hsic`, or if `num_permutations` is not a positive int.

    Guarantee:
      P(p <= t) <= t for all t if coverage and size are independent.

    Assumption:
      I.i.d. rows, given the calibration rows.

    Cost:
      O(b m^2) time, about a second for 2000 rows, and O(m) memory.

    References:
      Gretton, Fukumizu, Teo, Song, Scholkopf, Smola, A Kernel Statistical Test of
      Independence, NeurIPS, 2007.

    See also:
      metrics.hsic, metrics.hsic_null, certificates.coverage_test

    Example:
      >>> from jaxcp.sets import Interval
      >>> y = jax.random.normal(jax.random.key(0), (40,))
      >>> widths = jnp.where(jnp.arange(40) < 20, 1.0, 4.0)  # narrow, then wide
      >>> sets = Interval(-widths / 2, widths / 2)
      >>> hsic_test(jax.random.key(1), sets, y).item() < 0.01
      True
    """
    rows, options = _of_sizes(sets, y, sizes=sizes, bandwidths=bandwidths)
    _checks.check_key(key)
    _checks.check_count("num_permutations", num_permutations, 1)
    return _test(key, *rows, options["bandwidths"], num_permutations)


@_tree.jit(static_argnames="num_permutations")
def _test(key, sets, y, sizes, bandwidths, num_permutations):
    sizes, covered, m, (s_1, _) = _measured(sets, y, sizes, None, bandwidths)
    centered = _centered(covered, m, None)
    found = _distance_form(sizes, centered, s_1)
    # Permutations that are as far from independence may differ in the last digits.
    rounding = jnp.finfo(sizes.dtype).eps * _distance_form(sizes, abs(centered), s_1)
    least = found + 4 * rounding  # of terms that are at most 0

    def reaches(i):
        permuted = jax.random.permutation(jax.random.fold_in(key, i), centered)
        return _distance_form(sizes, permuted, s_1) >= least

    places = jnp.arange(num_permutations)
    count = jnp.sum(_batching.map_evenly(reaches, places, at_a_time=_PERMUTATIONS))
    return unless_nan((found, m), quotient(1 + count, 1 + num_permutations))


def _measured(sets, y, sizes, count, bandwidths):
    """Returns sizes, coverage, the number of rows, NaN of fewer than 2, and widths."""
    sizes = _sets.closed_form_sizes(sets) if sizes is None else sizes
    sizes = at_least_single(as_float(sizes))
    covered = _sets.where_known(_sets.is_covered(sets, y), sizes).astype(sizes.dtype)
    several = len(covered) > 1
    m = float(len(covered)) if count is None else count.astype(sizes.dtype)
    if bandwidths is None:
        known = kept(lax.stop_gradient(sizes), count, jnp.inf)
        median = _median_distance(known) if several else 1.0
        sizes, bandwidths = sizes / median, (2.0, 2.0)  # no square that overflows
    return sizes, covered, m if several else jnp.nan, bandwidths


def _centered(covered, m, count):
    """Returns coverage minus its mean, exactly 0 if all are one."""
    return kept((m * covered - jnp.sum(kept(covered, count))) / m, count)


def _distance_form(sizes, centered, bandwidth):
    """Returns sum_ij c_i c_j (K_ij - 1), in blocks: exactly 0 where all K are 1."""

    @jax.checkpoint
    def rows(size, c):
        equal = size[:, None] == sizes[None]
        away = jnp.where(equal, 0, size[:, None] - sizes[None])  # not inf - inf
        near = jnp.isfinite(away)
        square = jnp.where(near, away, 0) ** 2
        kernel = jnp.where(near, jnp.expm1(-square / bandwidth), -1)
        return c * jnp.dot(kernel, centered, precision=lax.Precision.HIGHEST)

    return jnp.sum(_batching.map_blocks(rows, sizes, centered, width=len(sizes)))


def _median_distance(sizes):
    """Returns the median distance of two different finite sizes, 1 if there is none.

    By bisection on the distance: pairs closer than it are counted in the sorted sizes
    (in floating point, so from 2^24 pairs on the rank is approximate).
    """
    ordered = lax.sort(sizes)
    finite = jnp.isfinite(ordered)
    place = partial(num_passed, num_places=len(sizes), shape=sizes.shape)
    last, after = jnp.sum(finite), place(lambda at: ordered[at] <= ordered)

    total = jnp.sum(jnp.where(finite, last - after, 0.0))

    def falls_short(distance):
        end = place(lambda at: ordered[at] < ordered + distance)
        closer = jnp.where(finite, jnp.clip(end, after, last) - after, 0.0)
        return jnp.sum(closer) < total / 2

    return jnp.where(total > 0, bisect_floats(falls_short, sizes.dtype), 1)


def known_median_distance(sizes: np.ndarray) -> np.ndarray:
    """Returns `_median_distance` on the host, of fewer than 2^24 pairs to the last bit.

    It takes a third of the time to compile of a summary.
    """
    dtype = np.promote_types(sizes.dtype, np.float32)
    key_dtype = key_type(dtype)
    ordered = np.sort(sizes[np.isfinite(sizes)].astype(dtype))
    after = ordered.searchsorted(ordered, side="right")
    passed = after.sum()  # pairs that are no larger: the others are `total`
    total = len(ordered) ** 2 - passed

    def distance(key: int) -> np.ndarray:
        return np.array(key, key_dtype).view(dtype)

    def reaches(key: int) -> bool:
        end = ordered.searchsorted(ordered + distance(key))
        return np.maximum(end, after).sum() - passed >= total / 2

    infinity = np.array(np.inf, dtype).view(key_dtype).item()
    with np.errstate(over="ignore"):
        key = bisect_left(range(infinity), True, key=reaches)
    return distance(key - 1) if total else np.ones((), dtype)
