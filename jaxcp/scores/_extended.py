"""The rank r(s) among draw scores W_(1) <= ... <= W_(K), as a continuous function.

Linear through (W_(i), i); above the last finite W linear with slope 1 / spread, below
the first exponential. Infinite draw scores are not joined by lines.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import at_least_single, just_below, rounding
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import Number


class _Piece(NamedTuple):
    """The piece of the function between W_(place) and W_(place + 1)."""

    place: Array
    lower: Array  # 0 if infinite
    upper: Array
    below: Array  # whether lower is finite
    above: Array
    spread: Array

    def rank(self, score):
        """Returns the rank of a finite score of this piece."""
        gap = self.upper - self.lower
        # r(s) = i + (s - W_(i)) / (W_(i+1) - W_(i)) between W_(i) and W_(i+1),
        inside = (score - self.lower) / jnp.where(gap > 0, gap, 1)
        # K + (s - W_(K)) / spread above W_(K),
        beyond = (score - self.lower) / self.spread
        # exp((s - W_(1)) / spread) below W_(1),
        before = jnp.exp(jnp.minimum(score - self.upper, 0) / self.spread)
        anywhere = jax.nn.sigmoid(score)  # and 1 / (1 + exp(-s)) if no W is finite.
        return self.place + self._choose(inside, beyond, before, anywhere)

    def score(self, rank):
        """Returns the score of a rank, but for rounding."""
        share = rank - self.place
        share = jnp.where(jnp.isfinite(share) & (share > 0), share, 0)
        eps = jnp.finfo(share.dtype).eps
        inner = jnp.clip(share, eps, 1 - eps)
        before = self.upper + self.spread * jnp.log(inner)  # W_(1) + spread log r
        anywhere = jnp.log(inner) - jnp.log1p(-inner)  # log(r / (1 - r))
        inside = self.lower + share * (self.upper - self.lower)
        beyond = self.lower + share * self.spread
        return self._choose(inside, beyond, before, anywhere)

    def _choose(self, inside, beyond, before, anywhere):
        only_below = jnp.where(self.below, beyond, anywhere)
        between = jnp.where(self.below, inside, before)
        return jnp.where(self.above, between, only_below)


def rank(draws: Array, score: Array) -> Array:
    """Returns the extended rank of a score, shape (); +inf for +inf."""
    finite = jnp.isfinite(score)
    count = jnp.sum(draws <= score)
    value = _piece(draws, count).rank(jnp.where(finite, score, 0))
    at_infinity = jnp.where(score > 0, jnp.inf, count)
    return jnp.where(finite, value, at_infinity)


def threshold(draws: Array, q: Array) -> Array:
    """Returns the last number whose extended rank is at most q, shape ()."""
    count = jnp.clip(jnp.floor(q), 0, jnp.sum(draws < jnp.inf)).astype(int)
    piece = _piece(draws, count)
    # max {s : r(s) <= q} over the numbers of this type; its slope is that of r^-1(q).
    fixed, level = lax.stop_gradient((piece, q))
    end = jnp.where(fixed.above, fixed.upper, jnp.inf)

    def inside(key):
        score = from_keys(key, draws.dtype)
        return (score == -jnp.inf) | ((score < end) & (fixed.rank(score) <= level))

    found = from_keys(bisect_keys(inside, to_keys(draws).dtype), draws.dtype)
    moves = piece.score(q)
    moves = jnp.where(jnp.isfinite(moves) & jnp.isfinite(found), moves, 0)
    value = found + (moves - lax.stop_gradient(moves)).astype(draws.dtype)
    return jnp.where(q == jnp.inf, jnp.inf, value)


def with_rounding(draws: Array, value: Array) -> Array:
    """Returns a threshold with room for rounding, but not up to the next draw score.

    Its rank is a whole number more.
    """
    following = jnp.min(jnp.where(draws > value, draws, jnp.inf))
    rounded = jnp.minimum(value + rounding(value), just_below(following))
    return jnp.maximum(value, rounded)


def _piece(draws, count):
    lower, upper = kth_smallest(draws, jnp.stack([count, count + 1]))
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    ends = jnp.where(below, lower, 0), jnp.where(above, upper, 0)
    count = count.astype(at_least_single(draws).dtype)
    return _Piece(count, *ends, below, above, _spread(draws))


def _spread(draws):
    """Returns W_(.9K) - W_(.5K), or another measure of their distance."""
    k, count = len(draws), jnp.sum(jnp.isfinite(draws))
    ranks: list[Number] = [1, count, (k + 1) // 2, (9 * k + 9) // 10]
    first, last, middle, high = kth_smallest(draws, jnp.stack(ranks))
    spread = jnp.ones_like(first)
    for candidate in (jnp.abs(first), last - first, high - middle):
        usable = jnp.isfinite(candidate) & (candidate > 0)
        spread = jnp.where(usable, candidate, spread)
    return spread
