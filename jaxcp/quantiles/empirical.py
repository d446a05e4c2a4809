"""Quantiles of a sample, interpolated: descriptions of draws, not thresholds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, at_least_single
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike


def empirical_quantile(values: ArrayLike, level: ArrayLike) -> Array:
    """Returns a quantile of a sample, interpolated between its order statistics.

    With h = (l - 1) level it lies between order statistics floor(h) + 1 and floor(h) +
    2, linearly: type 7 of Hyndman and Fan, the default of numpy. It describes draws of
    a model; a conformal threshold is an order statistic (`conformal_quantile`).

    Args:
      values: Sample, shape (l, ...), quantiles along the first axis. NaN counts as
        +inf.
      level: Level in [0, 1], shape ().

    Returns:
      Quantiles, shape values.shape[1:], dtype of `values` (integers become floats).

    Raises:
      ValueError: if there are no values, or a concrete `level` is outside [0, 1].

    Cost:
      O(l) time for each column: two order statistics, without a sort.

    References:
      Hyndman, Fan, Sample Quantiles in Statistical Packages, The American Statistician,
      1996.

    See also:
      conformal_quantile, kth_smallest, simulation.Quantiles

    Example:
      >>> empirical_quantile(jnp.array([1.0, 2.0, 4.0]), 0.75)
      Array(3., dtype=float32)
    """
    values, level = as_arrays(values=values, level=level)
    if values.ndim == 0 or values.shape[0] == 0:
        raise ValueError(f"expected values of shape (l, ...), got {values.shape}")
    _checks.check_number("level", level, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
    return _empirical_quantile(as_float(values), as_float(level))


@jax.jit
def _empirical_quantile(values, level):
    level = level.astype(at_least_single(values).dtype)
    last = jnp.asarray(values.shape[0] - 1)
    position = jnp.clip(last * level, 0, last)
    below = jnp.floor(position).astype(int)
    share = (position - below).astype(values.dtype)
    ranks = jnp.stack([below + 1, jnp.minimum(below + 2, last + 1)])

    def between(column):
        lower, upper = kth_smallest(column, ranks)
        # Equal ends stay out of the product: inf - inf and 0 * inf are NaN.
        gap = jnp.where((upper > lower) & (share > 0), upper - lower, 0)
        return lower + share * gap

    columns = values.reshape(values.shape[0], -1).T
    return jax.vmap(between)(columns).reshape(values.shape[1:])
