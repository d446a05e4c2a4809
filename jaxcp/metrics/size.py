"""Sizes of sets: each, their mean, their median, and how often they are infinite."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import as_float, counting, mean
from jaxcp._padding import by_rows, counted
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike, Set


def sizes(sets: Set | ArrayLike) -> Array:
    """Returns the width, number of labels, or volume of each set.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Sizes, shape (m,), in units of the target (to the power of its dimension), or
      counts of labels; +inf for an infinite set, 0 for an empty one.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.mean_size, metrics.median_size, metrics.mean_volume

    Example:
      >>> from jaxcp.sets import Interval
      >>> sizes(Interval(jnp.zeros(2), jnp.array([1.0, 2.0])))
      Array([1., 2.], dtype=float32)
    """
    return by_rows(_sets.closed_form_sizes, rows=(_sets.as_batch(sets),))


def mean_size(sets: Set | ArrayLike) -> Array:
    """Returns the mean width, number of labels, or volume of sets.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Mean size, shape (), in units of the target (to the power of its dimension); +inf
      if a set is infinite, NaN for no sets.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.sizes, metrics.median_size, metrics.mean_volume

    Example:
      >>> from jaxcp.sets import Interval
      >>> mean_size(Interval(jnp.zeros(2), jnp.array([1.0, 2.0])))
      Array(1.5, dtype=float32)
    """
    return counted(mean_size_of, _sets.as_batch(sets))


def median_size(sets: Set | ArrayLike) -> Array:
    """Returns the median width, number of labels, or volume of sets.

    The mean of the order statistics of ranks floor((m + 1) / 2) and floor(m / 2) + 1: a
    few infinite sets hardly change it.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Median size, shape (), in units of the target (to the power of its dimension);
      +inf if half of the sets are infinite, NaN for no sets, or if a size is NaN.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form, and two order statistics, without a sort.

    See also:
      metrics.mean_size, metrics.infinite_rate

    Example:
      >>> from jaxcp.sets import Interval
      >>> median_size(Interval(jnp.zeros(3), jnp.array([1.0, 2.0, jnp.inf])))
      Array(2., dtype=float32)
    """
    return counted(median_size_of, _sets.as_batch(sets))


def infinite_rate(sets: Set | ArrayLike) -> Array:
    """Returns the share of sets of infinite size.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Share in [0, 1], shape (); NaN for no sets, or if a size is NaN.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.empty_rate, metrics.median_size

    Example:
      >>> from jaxcp.sets import Interval
      >>> infinite_rate(Interval(jnp.zeros(2), jnp.array([1.0, jnp.inf])))
      Array(0.5, dtype=float32)
    """
    return counted(infinite_rate_of, _sets.as_batch(sets))


@jit
def mean_size_of(sets: Set, count: Array | None = None) -> Array:
    """Returns `mean_size` of the first `count` rows."""
    return mean(_sets.closed_form_sizes(sets), count)


@jit
def median_size_of(sets: Set, count: Array | None = None) -> Array:
    """Returns `median_size` of the first `count` rows."""
    sizes = as_float(_sets.closed_form_sizes(sets))
    m = len(sizes) if count is None else count
    ranks = jnp.array([(m + 1) // 2, m // 2 + 1])
    unknown = jnp.any(jnp.isnan(sizes)) | (m == 0)
    middle = kth_smallest(sizes, ranks, where=counting(len(sizes), count))
    return jnp.where(unknown, jnp.nan, mean(middle))


@jit
def infinite_rate_of(sets: Set, count: Array | None = None) -> Array:
    """Returns `infinite_rate` of the first `count` rows."""
    sizes = _sets.closed_form_sizes(sets)
    return mean(_sets.where_known(sizes == jnp.inf, sizes), count)
