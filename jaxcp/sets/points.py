"""Membership of many points in one set."""

from __future__ import annotations

import jax
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import map_evenly
from jaxcp._tracing import jit
from jaxcp.typing import ArrayLike, Set

_POINTS_AT_A_TIME = 2**14


def membership(region: Set, points: ArrayLike) -> Array:
    """Returns which of many points are in one set.

    In blocks, so that a million points take little memory.

    Args:
      region: One set, without a leading axis.
      points: Candidate targets, shape (g, ...), each as the set's `contains` takes it.

    Returns:
      Membership of each point, bool of shape (g,).

    Raises:
      ValueError: if a concrete point is NaN, or does not fit the set.

    Cost:
      One membership for each of g points, in blocks.

    See also:
      volume, sets.LevelSet

    Example:
      >>> disc = jaxcp.sets.Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> membership(disc, jnp.array([[0.5, 0.5], [1.0, 1.0]]))
      Array([ True, False], dtype=bool)
    """
    region, points = as_arrays(region=region, points=points)
    _checks.num_rows(points=points)
    _checks.check_not_nan("points", points)
    found = jax.eval_shape(_membership, region, points).shape
    if found != points.shape[:1]:
        raise ValueError(
            f"expected one set, without a leading axis, got sets of shape {found[1:]}"
        )
    return _membership(region, points)


@jit
def _membership(region, points):
    return map_evenly(region.contains, points, at_a_time=_POINTS_AT_A_TIME)
