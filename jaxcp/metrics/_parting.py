"""Sets parted by size into strata, and how often those of each cover."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, kept, varying_like
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.metrics.groups import rates_of
from jaxcp.quantiles._keys import bisect_keys, to_keys
from jaxcp.quantiles._rows import select_keys
from jaxcp.typing import ArrayLike, HasLabels, Set

# With more rows and no more strata, selecting where strata end beats sorting the rows.
_MANY_ROWS, _FEW_BINS = 2**14, 16


@pytree
class Way:
    """How sets are parted by size: into `num_bins`, or at `edges`.

    Strata from `first` on count: a stratum of empty sets does not.
    """

    edges: Array | None = None
    num_bins: int | None = static(default=None)
    first: int = static(default=0)


def parted_by(
    sets: Set,
    num_bins: int | None = None,
    num_ranges: int | None = None,
    edges: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> tuple[Array | None, Way]:
    """Returns sizes, if they are given, and how they part sets, after checks."""
    sizes = _sets.check_sizes(sets, sizes)
    given = [v is not None for v in (num_bins, num_ranges, edges)]
    if sum(given) > 1 or not (any(given) or isinstance(sets, HasLabels)):
        raise ValueError(
            "expected one of num_bins, num_ranges and edges (or none, for label sets), "
            f"got {sum(given)} for {type(sets).__name__}"
        )
    if num_bins is not None:
        _checks.check_count("num_bins", num_bins, 1)
        return sizes, Way(num_bins=num_bins)
    edges = _label_edges(sets, num_ranges) if edges is None else edges
    return sizes, Way(_check_edges(edges), first=int(not any(given)))


def _label_edges(sets, num_ranges):
    """Returns the last size of each of `num_ranges` runs of 0, ..., k but the last."""
    _checks.check_kind("num_ranges only for label sets", sets, HasLabels)
    num_sizes = sets.members().shape[-1] + 1
    num_ranges = num_sizes if num_ranges is None else num_ranges
    _checks.check_count("num_ranges", num_ranges, 1)
    if num_ranges > num_sizes:
        raise ValueError(f"expected num_ranges <= {num_sizes}, got {num_ranges}")
    return _ends(num_sizes, num_ranges)[:-1] - 1


def _check_edges(edges):
    edges = as_float(as_array("edges", edges))
    _checks.check_not_nan("edges", edges)
    if edges.ndim != 1:
        raise ValueError(f"expected edges of shape (g - 1,), got {edges.shape}")
    increases = lambda e: np.append(True, e[1:] > e[:-1])[: len(e)]  # noqa: E731
    _checks.check_values(increases, "edges that increase", edges)
    return edges


def _ends(count, num_runs):
    """Returns where runs of `count` places end; the first ones are longer by one."""
    length, longer = divmod(count, num_runs)
    runs = np.arange(1, num_runs + 1)
    return runs * length + runs - (runs - longer).clip(0)


@jit
def strata_rates(
    sets: Set, y: Array, sizes: Array | None, count: Array | None, way: Way
) -> tuple[Array, Array]:
    """Returns the coverage and the number of rows of each stratum.

    Of the first `count` rows, if it is given.
    """
    order, groups, sizes, num_groups = parted(sets, sizes, way, count)
    covered = _sets.where_known(_sets.is_covered(sets, y), sizes)
    return rates_of(covered[order], groups, num_groups)


def parted(
    sets: Set, sizes: Array | None, way: Way, count: Array | None = None
) -> tuple[Any, Array, Array, Any]:
    """Returns an order of rows, their strata in it, the sizes and the number of strata.

    Not the strata of the rows as they came: a scatter takes long to compile. Rows after
    the first `count` have a stratum of their own beyond the last.
    """
    sizes = _sets.sizes_of(sets, sizes)
    if way.num_bins is None:
        edges = jnp.asarray(way.edges)
        groups = jnp.searchsorted(edges, sizes, side="left")
        num_groups = len(edges) + 1
        return slice(None), kept(groups, count, num_groups), sizes, num_groups
    keys = to_keys(sizes)
    keys = kept(keys, count, jnp.iinfo(keys.dtype).max)
    ends = _ends(len(keys) if count is None else count, way.num_bins)
    if len(keys) > _MANY_ROWS and 1 < len(ends) <= _FEW_BINS:
        groups = kept(_groups_between(keys, ends[:-1]), count, len(ends))
        return slice(None), groups, sizes, way.num_bins
    places = np.arange(len(keys))
    if count is None:
        groups = jnp.asarray(np.searchsorted(ends, places, side="right"))
    else:
        groups = jnp.sum(places[:, None] >= ends[None], axis=1)
    return jnp.argsort(keys, stable=True), groups, sizes, way.num_bins


def _groups_between(keys, ends):
    """Returns how many runs of the sorted keys end before each key, as it comes.

    Equal keys are sorted by row: a run ends with one key, and one row of that key.
    """
    rows, ends = jnp.arange(len(keys)), jnp.asarray(ends, int)
    last_keys = select_keys(keys, ends)

    def last_row(key, end):
        equal, rank = keys == key, end - jnp.sum(keys < key)
        falls_short = lambda row: jnp.sum(equal & (rows < row)) < rank  # noqa: E731
        return bisect_keys(falls_short, rows.dtype, bits=len(keys).bit_length())

    above = sum((keys > key).astype(int) for key in last_keys)
    up_to = jnp.stack([jnp.sum(above <= i) for i in range(len(ends))])
    whole = varying_like(jnp.full(ends.shape, len(keys)), last_keys)
    last_rows = lax.cond(
        jnp.all(up_to == ends),  # no run ends among equal keys
        lambda: whole,
        lambda: lax.map(lambda v: last_row(*v), (last_keys, ends)),
    )
    for key, row in zip(last_keys, last_rows, strict=True):
        above += ((keys == key) & (rows > row)).astype(int)
    return above


@jit(static_argnames="first")
def least_rate(strata: tuple[Array, Array], first: int) -> Array:
    """Returns the least rate of strata with rows, from `first` on."""
    rates, counts = strata
    return -_largest(-rates[first:], counts[first:])


@jit(static_argnames="first")
def largest_violation(strata: tuple[Array, Array], first: int, alpha: Array) -> Array:
    """Returns the largest distance from 1 - alpha of strata with rows."""
    rates, counts = strata
    return _largest(jnp.abs(rates - (1 - alpha))[first:], counts[first:])


def _largest(values, counts):
    """Returns the largest of `values` of strata with rows; NaN if one is, or none."""
    largest = jnp.max(jnp.where(counts > 0, values, -jnp.inf))
    return jnp.where(jnp.any(counts > 0), largest, jnp.nan)
