"""Pieces of the line as arrays of their ends: those that touch, those with votes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

Ends = tuple[Array, Array]


def join(lower: Array, upper: Array) -> Ends:
    """Returns ends, each (l,), of pieces that do not meet; see `joined`."""
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
    return whole_line_if(unknown, lower, upper)


def sweep(
    first: Array,
    last: Array,
    between: Array,
    words: tuple[Array, ...],
    suffice: Callable[..., Array],
    size: int,
) -> Ends:
    """Returns the ends, each (size,), of the pieces with enough votes.

    Args:
      first: Where votes begin or stop, shape (p,).
      last: The next place where they stop or begin again, >= first, shape (p,).
      between: Whether votes are for the closed piece between these, or for all but the
        open piece between, shape (p,).
      words: What each weighs, arrays (p,) whose sums are exact.
      suffice: Returns whether sums of the words are enough.
      size: At least the number of pieces that there may be.
    """
    rises, falls = jnp.where(between, first, last), jnp.where(between, last, first)
    at = jnp.concatenate([rises, falls])
    # Stable, so that at a point votes begin before others stop: pieces are closed.
    order = jnp.argsort(lax.stop_gradient(at), stable=True)
    at, infinite = at[order], jnp.full(1, jnp.inf, at.dtype)

    def sums(word):
        start = jnp.sum(jnp.where(between, 0, word))[None]
        changes = jnp.concatenate([word, -word])[order]
        return jnp.concatenate([start, start + jnp.cumsum(changes)])

    held = suffice(*map(sums, words))
    begins = jnp.concatenate([held[:1], held[1:] & ~held[:-1]])
    ends = jnp.concatenate([held[:-1] & ~held[1:], held[-1:]])
    lower = jnp.concatenate([-infinite, at])[_places(begins, size)]
    upper = jnp.concatenate([at, infinite])[_places(ends, size)]
    exists = jnp.arange(size) < jnp.sum(begins)
    return jnp.where(exists, lower, jnp.inf), jnp.where(exists, upper, -jnp.inf)


def whole_line_if(unknown: Array, lower: Array, upper: Array) -> Ends:
    """Returns ends, each (l,), or those of the whole line where nothing is known."""
    whole = jnp.where(jnp.arange(len(lower)) == 0, -jnp.inf, jnp.inf)
    return jnp.where(unknown, whole, lower), jnp.where(unknown, -whole, upper)


def _places(flags, size):
    return jnp.nonzero(flags, size=size, fill_value=0)[0]


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
