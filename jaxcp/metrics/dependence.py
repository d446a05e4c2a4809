"""Dependence between the size of a set and whether it covers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._batching import map_blocks
from jaxcp._numbers import as_float, at_least_single, kept, varying_like
from jaxcp._padding import counted
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.typing import ArrayLike, Set


def hsic(
    sets: Set | ArrayLike,
    y: ArrayLike,
    *,
    bandwidths: tuple[ArrayLike, ArrayLike] | None = (1.0, 1.0),
    rooted: bool = True,
    sizes: ArrayLike | None = None,
) -> Array:
    """Returns the Hilbert-Schmidt dependence of coverage on size; 0 if independent.

    sqrt(trace(K H L H)) / (m - 1) with Gaussian kernels K of sizes and L of coverage,
    exp(-d^2 / s), and H = I - 1/m. Coverage is 0 or 1, so that the trace is 2 (1 -
    exp(-1 / s_2)) c'Kc with c the centered coverage: O(m^2) time and O(m) memory.

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
      metrics.size_stratified_coverage, metrics.excess_coverage_risk, metrics.summary

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.zeros(4), jnp.array([1.0, 1.0, 9.0, 9.0]))
      >>> round(hsic(sets, jnp.full(4, 3.0)).item(), 4)
      0.53
    """
    sets, y = _sets.check_sets(sets, y)
    sizes = _sets.check_sizes(sets, sizes)
    if bandwidths is not None:
        if not isinstance(bandwidths, tuple | list) or len(bandwidths) != 2:
            raise ValueError(f"expected two bandwidths or None, got {bandwidths}")
        bandwidths = tuple(as_array("bandwidths", s) for s in bandwidths)
        for bandwidth in bandwidths:
            _checks.check_number("bandwidths", bandwidth, lambda s: s > 0, "> 0")
    rows = sets, y, sizes
    return counted(hsic_of, *rows, by_pairs=True, bandwidths=bandwidths, rooted=rooted)


@jit(static_argnames="rooted")
def hsic_of(
    sets: Set,
    y: Array,
    sizes: Array | None,
    count: Array | None,
    bandwidths: tuple | None,
    rooted: bool = True,
) -> Array:
    """Returns `hsic` of the first `count` rows."""
    sizes = at_least_single(as_float(_sets.sizes_of(sets, sizes)))
    covered = _sets.where_known(_sets.is_covered(sets, y), sizes).astype(sizes.dtype)
    if len(covered) < 2:
        return jnp.full((), jnp.nan, sizes.dtype)
    m = float(len(covered)) if count is None else count.astype(sizes.dtype)
    if bandwidths is None:
        known = kept(lax.stop_gradient(sizes), count, jnp.inf)
        median = _median_distance(known)
        sizes, bandwidths = sizes / median, (2.0, 2.0)  # no square that overflows
    centered = (m * covered - jnp.sum(kept(covered, count))) / m
    centered = kept(centered, count)  # 0 to the last bit if all are one
    form = _distance_form(sizes, centered, bandwidths[0])
    trace = -2 * jnp.expm1(-1 / bandwidths[1]) * jnp.maximum(form, 0)
    unrooted = trace / (m - 1) ** 2
    return _root(unrooted) if rooted else unrooted


def _distance_form(sizes, centered, bandwidth):
    """Returns sum_ij c_i c_j (K_ij - 1), in blocks: exactly 0 where all K are 1."""

    @jax.checkpoint
    def rows(size, c):
        equal = size[:, None] == sizes[None]
        away = jnp.where(equal, 0, size[:, None] - sizes[None])  # not inf - inf
        near = jnp.isfinite(away)
        square = jnp.where(near, away, 0) ** 2
        kernel = jnp.where(near, jnp.expm1(-square / bandwidth), -1)
        return c * jnp.sum(kernel * centered[None], axis=1)

    return jnp.sum(map_blocks(rows, sizes, centered, width=len(sizes)))


def _median_distance(sizes):
    """Returns the median distance of two different finite sizes, 1 if there is none.

    By bisection on the distance: pairs closer than it are counted in the sorted sizes
    (in floating point, so from 2^24 pairs on the rank is approximate).
    """
    ordered = lax.sort(sizes)
    finite = jnp.isfinite(ordered)
    place = lambda passed: _num_passed(passed, len(sizes))  # noqa: E731
    last, after = jnp.sum(finite), place(lambda at: ordered[at] <= ordered)

    total = jnp.sum(jnp.where(finite, last - after, 0.0))

    def falls_short(distance):
        end = place(lambda at: ordered[at] < ordered + distance)
        closer = jnp.where(finite, jnp.clip(end, after, last) - after, 0.0)
        return jnp.sum(closer) < total / 2

    return jnp.where(total > 0, bisect_floats(falls_short, sizes.dtype), 1)


def _num_passed(passed, num_places):
    """Returns for each of `num_places` rows how many places of a run it has passed.

    By steps of halving lengths: `jnp.searchsorted` takes longer, to compile and to run.
    """

    def move(place, step):
        after = place + step
        far = (after <= num_places) & passed(jnp.minimum(after, num_places) - 1)
        return jnp.where(far, after, place), None

    steps = 2 ** np.arange(num_places.bit_length())[::-1]
    start = jnp.zeros(num_places, int)
    start = varying_like(start, passed(start))
    return lax.scan(move, start, jnp.asarray(steps, start.dtype))[0]


def _root(square):
    positive = square > 0
    root = jnp.sqrt(jnp.where(positive, square, 1))
    return jnp.where(positive | jnp.isnan(square), root + 0 * square, 0)
