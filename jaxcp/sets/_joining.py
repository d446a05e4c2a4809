"""Pieces of the line that touch, as one."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jaxcp.sets.unions import Intervals


def joined(lower: Array, upper: Array) -> Intervals:
    """Returns closed pieces, each (l,), as a union of pieces that do not meet.

    Pieces come in increasing order of their lower ends; crossed ones are empty, and
    those left out come last, as (inf, -inf). A NaN end makes the whole line.
    """
    size = len(lower)
    lower, upper, unknown = _known(lower, upper)
    exists = (lower <= upper) & (lower < jnp.inf) & (upper > -jnp.inf)
    furthest = _furthest(exists, lax.stop_gradient(upper))
    reach = jnp.where(furthest < 0, -jnp.inf, upper[furthest])
    reach_before = jnp.concatenate([jnp.full(1, -jnp.inf, upper.dtype), reach[:-1]])
    after_one = jnp.concatenate([jnp.zeros(1, bool), furthest[:-1] >= 0])
    begins = exists & ~(after_one & (lower <= reach_before))
    (place,) = jnp.nonzero(begins, size=size + 1, fill_value=size)
    first, last = place[:-1], furthest[place[1:] - 1]  # the last before the next one
    found = first < size
    lower = jnp.where(found, lower.at[first].get(mode="clip"), jnp.inf)
    upper = jnp.where(found, upper[last], -jnp.inf)
    alone = jnp.arange(size) == 0
    whole = jnp.where(alone, -jnp.inf, jnp.inf)
    return Intervals(
        jnp.where(unknown, whole, lower), jnp.where(unknown, -whole, upper)
    )


def _known(lower, upper):
    """Returns ends without NaN, and whether there was one."""
    missing = jnp.isnan(lower) | jnp.isnan(upper)
    lower = jnp.where(missing, jnp.inf, lower)
    return lower, jnp.where(missing, -jnp.inf, upper), jnp.any(missing)


def _furthest(exists, upper):
    """Returns which piece up to each one reaches furthest, shape (l,); -1 for none."""
    upper = jnp.where(exists, upper, -jnp.inf)
    reaches = exists & (upper >= lax.cummax(upper))
    return lax.cummax(jnp.where(reaches, jnp.arange(len(upper)), -1))
