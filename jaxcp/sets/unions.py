"""Unions of intervals, and pieces of the line: those that touch, those with votes."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _numbers
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree
from jaxcp.sets.basic import Interval, Pairs, check_bounds, clipped, log_volume
from jaxcp.sets.batches import over_batch, rows_of, without_axis
from jaxcp.typing import ArrayLike, Number

Ends = tuple[Array, Array]


def join(lower: Array, upper: Array) -> Ends:
    """Returns ends, each (l,), of pieces that do not meet; see `joined`."""
    size = len(lower)
    missing = jnp.isnan(lower) | jnp.isnan(upper)
    lower = jnp.where(missing, jnp.inf, lower)
    upper = jnp.where(missing, -jnp.inf, upper)
    exists = (lower <= upper) & (lower < jnp.inf) & (upper > -jnp.inf)
    furthest = _furthest(exists, lax.stop_gradient(upper))
    reach = jnp.where(furthest < 0, -jnp.inf, upper[furthest])
    reach_before = jnp.concatenate([jnp.full(1, -jnp.inf, upper.dtype), reach[:-1]])
    after_one = jnp.concatenate([jnp.zeros(1, bool), furthest[:-1] >= 0])
    begins = exists & ~(after_one & (lower <= reach_before))
    first = _places(begins)
    following = jnp.concatenate([first, jnp.full(1, size)])[1:]
    last = furthest[following - 1]  # the last before the next one
    found = first < size
    lower = jnp.where(found, lower.at[first].get(mode="clip"), jnp.inf)
    upper = jnp.where(found, upper[last], -jnp.inf)
    return whole_line_if(jnp.any(missing), lower, upper)


def sweep(first, last, between, words, suffice, size):
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
    lower = jnp.concatenate([-infinite, at]).at[_places(begins)[:size]].get(mode="clip")
    upper = jnp.concatenate([at, infinite]).at[_places(ends)[:size]].get(mode="clip")
    exists = jnp.arange(size) < jnp.sum(begins)
    return jnp.where(exists, lower, jnp.inf), jnp.where(exists, upper, -jnp.inf)


def whole_line_if(unknown: Array, lower: Array, upper: Array) -> Ends:
    """Returns ends, each (l,), or those of the whole line where nothing is known."""
    whole = jnp.where(jnp.arange(len(lower)) == 0, -jnp.inf, jnp.inf)
    return jnp.where(unknown, whole, lower), jnp.where(unknown, -whole, upper)


def _places(flags):
    """Returns the places of flags in order, and then the size for those left over.

    By one sort, a far smaller program than that of `jnp.nonzero`.
    """
    size = len(flags)
    return lax.sort(jnp.where(flags, jnp.arange(size), size))


def _furthest(exists, upper):
    """Returns which piece up to each one reaches furthest, shape (l,); -1 for none."""
    upper = jnp.where(exists, upper, -jnp.inf)
    reaches = exists & (upper >= lax.cummax(upper))
    return lax.cummax(jnp.where(reaches, jnp.arange(len(upper)), -1))


@pytree
class Intervals(Pairs):
    """A union of closed intervals that do not meet; crossed ones are empty.

    The number k of intervals is fixed, so that batches have one shape: there may be
    fewer pieces, and the places left over are empty, (inf, -inf). It has no two ends,
    and is no interval: `hull()` is one.

    Args:
      lower: Lower ends of the pieces, in increasing order, shape (k,), in units of the
        target; may be -inf.
      upper: Upper ends, shape (k,), each below the next lower one; may be +inf.

    See also:
      sets.LevelSet.intervals, sets.Interval

    Example:
      >>> two = Intervals(jnp.array([0.0, 5.0]), jnp.array([1.0, 7.0]))
      >>> two.contains(3.0).item(), two.contains(6.0).item(), two.size().item()
      (False, True, 3.0)
    """

    lower: Array
    upper: Array

    def contains(self, y: Number) -> Array:
        """Returns whether `y` is in a piece, bool of shape ().

        A batch with ends of shape (m, k) takes targets of shape (m,) or (m, 1), or one
        for all.
        """
        batch = np.shape(self.lower)[:-1]
        y = without_axis(as_array("y", y), len(batch))
        y = jnp.broadcast_to(y, jnp.broadcast_shapes(y.shape, batch))[..., None]
        return jnp.any((self.lower <= y) & (y <= self.upper), axis=-1)

    def size(self) -> Array:
        """Returns the sum of the widths, shape (), in units of the target."""
        return jnp.sum(Interval(self.lower, self.upper).size(), axis=-1)

    def log_size(self) -> Array:
        """Returns the log of the size, shape (); -inf for points or nothing."""
        return log_volume(self.size()[..., None])

    def soft_size(self, temperature: Number) -> Array:
        """Returns the sum of the widths with soft ends, shape ()."""
        return jnp.sum(_numbers.length(self.lower, self.upper, temperature), axis=-1)

    def is_empty(self) -> Array:
        """Returns whether there is no piece, bool of shape ()."""
        return jnp.all(self.lower > self.upper, axis=-1)

    def num_pieces(self) -> Array:
        """Returns how many pieces there are, int of shape ()."""
        return jnp.sum(self.lower <= self.upper, axis=-1)

    def pieces(self) -> tuple[Array, Array]:
        """Returns the (lower, upper) ends of the pieces, each of shape (k,)."""
        return self.lower, self.upper

    def hull(self) -> Interval:
        """Returns the smallest interval that holds all pieces; crossed for none."""
        exists = ~(self.lower > self.upper)
        lower = jnp.where(exists, self.lower, jnp.inf).min(axis=-1, initial=jnp.inf)
        upper = jnp.where(exists, self.upper, -jnp.inf).max(axis=-1, initial=-jnp.inf)
        return Interval(lower, upper)

    def clip(
        self, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Intervals:
        """Returns the part of the set between two bounds of the targets, shape ().

        None for no bound. Pieces beyond a bound are empty and come last; NaN stays.
        ValueError if a concrete bound is NaN, or lower > upper.
        """
        bounds = check_bounds(lower, upper, ())
        return _clipped(self, *bounds)

    def transform(self, function: Callable[[Array], ArrayLike]) -> Intervals:
        """Returns the unions of the mapped pieces in order, as `Interval.transform`."""
        found = super().transform(function)
        order = jnp.argsort(found.lower, axis=-1)
        ends = (jnp.take_along_axis(v, order, axis=-1) for v in found.pieces())
        return _clipped(Intervals(*ends), None, None)

    def trimmed(self) -> Intervals:
        """Returns the sets without the last places that are empty in all of them.

        At least one place is left. Where there are no values yet, inside of jit, the
        sets come back as they are.
        """
        if not is_concrete(self.lower, self.upper):
            return self
        held = ~(np.asarray(self.lower) > np.asarray(self.upper))
        used = np.flatnonzero(held.any(axis=tuple(range(held.ndim - 1))))
        size = used[-1] + 1 if used.size else 1
        return jax.tree.map(lambda v: rows_of(v, (..., slice(size))), self)

    def widths(self) -> Array:
        """Returns the size, of the shape of a target."""
        # By methods of arrays: those of numpy stay there, and jax compiles nothing.
        return (self.upper - self.lower).clip(0).sum(axis=-1)

    def target_shape(self) -> tuple[int, ...]:
        """Returns the shape of a target, ()."""
        return ()

    def _columns(self, names):
        return super()._columns(None) if names is None else list(names)


@jit
def _clipped(sets, lower, upper):
    ends = clipped(tuple(map(as_float, sets.pieces())), lower, upper)
    found = over_batch(join, ends[0].ndim - 1, *ends)
    unknown = jnp.any(jnp.isnan(ends[0]) | jnp.isnan(ends[1]), axis=-1, keepdims=True)
    # `join` makes the whole line of NaN.
    return Intervals(*(jnp.where(unknown, *v) for v in zip(ends, found, strict=True)))


def joined(lower: Array, upper: Array) -> Intervals:
    """Returns closed pieces, each (l,), as a union of pieces that do not meet.

    Pieces come in increasing order of their lower ends; crossed ones are empty, and
    those left out come last, as (inf, -inf). A NaN end makes the whole line.
    """
    return Intervals(*join(lower, upper))
