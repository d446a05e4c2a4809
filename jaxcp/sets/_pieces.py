"""Level sets of scores on the line: the piece around a target, pieces met by a grid.

The boundary is the last float inside, by bisection; its slope is that of the root.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.quantiles._crossings import last_inside, moving
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.sets._arithmetic import Shape, over_batch
from jaxcp.sets.basic import Interval
from jaxcp.sets.unions import Intervals

_NEAR = 4  # floats to each side of the least score that a search has found


def interval_around(region: Any, batch: Shape, start: Array) -> Interval:
    """Returns the pieces around targets of level sets with this batch shape."""
    return _interval(region, _on_line("start", start, batch), ndim=len(batch))


def intervals_within(
    region: Any,
    batch: Shape,
    lower: Array,
    upper: Array,
    num_points: int,
    max_pieces: int,
) -> Intervals:
    """Returns the pieces of level sets with this batch shape in brackets."""
    _checks.check_count("num_points", num_points, 2)
    _checks.check_count("max_pieces", max_pieces, 1)
    bracket = (_on_line("within", v, batch) for v in (lower, upper))
    sizes = {"num_points": int(num_points), "max_pieces": int(max_pieces)}
    return _intervals(region, *bracket, ndim=len(batch), **sizes)


def _on_line(name, y, batch):
    """Returns a target of one number for each set."""
    for one in ((), (1,)):
        if y.shape in ((*batch, *one), one):
            return jnp.broadcast_to(y, (*batch, *one))
    expected = f"one number for each set, shape {batch}"
    raise ValueError(f"expected {name} as {expected}, got shape {y.shape}")


@jit(static_argnames="ndim")
def _interval(region, start, ndim):
    return Interval(*over_batch(_ends_around, ndim, region, start))


@jit(static_argnames=("ndim", "num_points", "max_pieces"))
def _intervals(region, lower, upper, ndim, num_points, max_pieces):
    find = partial(_ends_within, num_points=num_points, max_pieces=max_pieces)
    return Intervals(*over_batch(find, ndim, region, lower, upper))


def _ends_around(region, start):
    """Returns the ends, of shape (), of the piece of one level set around a target."""
    line = _Line(region, start)
    sides = jnp.array([-1, 1], line.dtype)
    start = line.number(start)
    ends = jax.vmap(lambda side: line.end(start, side, side * jnp.inf))(sides)
    exists = line.inside(start)[None]
    lower, upper = line.closed(ends[:1], ends[1:], exists, jnp.isnan(start))
    return lower[0], upper[0]


def _ends_within(region, lower, upper, num_points, max_pieces):
    """Returns the ends, each (k,), of the pieces of one level set that a grid meets.

    The grid and, between its neighbors, the least score, or the largest one where both
    are inside. What is met at the bracket's own ends goes on beyond them. With more
    than k pieces the last one reaches to the end of all.
    """
    line = _Line(region, lower)
    grid = jnp.linspace(line.number(lower), line.number(upper), num_points)
    grid = line.with_extremes(grid)
    held = jax.vmap(line.inside)(grid)
    firsts, lasts = _runs(held, max_pieces)
    infinite = jnp.full(1, jnp.inf, grid.dtype)
    before = jnp.concatenate([-infinite, grid[:-1]])
    after = jnp.concatenate([grid[1:], infinite])
    end = jax.vmap(line.end, (0, None, 0))
    lower = end(grid[firsts], -1, before[firsts])
    upper = end(grid[lasts], 1, after[lasts])
    exists = jnp.arange(max_pieces) < _count(held)
    return line.closed(lower, upper, exists, jnp.any(jnp.isnan(grid)))


class _Line:
    """A level set with targets of one number, in an array of some shape of size 1."""

    def __init__(self, region, like):
        self.region, self.fixed = region, lax.stop_gradient(region)
        self.shape, self.level = like.shape, as_float(region.level)
        self.dtype = jnp.result_type(as_float(like), self.level)

    def number(self, y):
        return lax.stop_gradient(y).reshape(()).astype(self.dtype)

    def inside(self, y):
        return self.fixed.contains(y.reshape(self.shape))

    def with_extremes(self, grid):
        """Returns a grid with the least score, or the largest, between neighbors."""
        held = jax.vmap(self.inside)(grid)
        sign = jnp.where(held[:-1] & held[1:], -1, 1).astype(grid.dtype)
        heights = lambda y: sign * jax.vmap(self._excess)(y)  # noqa: E731
        low, high = grid[:-1], grid[1:]
        near = _lowest(heights, low, high)
        # A piece may be one float wide, and its place known to a few; 0 has too many.
        keys = to_keys(near)
        around = [from_keys(keys + i, grid.dtype) for i in range(-_NEAR, _NEAR + 1)]
        places = jnp.stack([*around, jnp.zeros_like(near)])
        places = jnp.clip(places, low[None], high[None])
        best = jnp.argmin(jax.vmap(heights)(places), axis=0)
        inner = jnp.take_along_axis(places, best[None], axis=0)[0]
        pairs = jnp.stack([low, inner], axis=1)
        return jnp.append(pairs.reshape(-1), grid[-1:])

    def _excess(self, y):
        room = self.level - self._scores(self.fixed, y)
        return -jnp.min(jnp.where(jnp.isnan(room), -jnp.inf, room))

    def end(self, start, side, stop):
        """Returns the last target inside from `start` on, with its slope."""
        side = jnp.asarray(side, self.dtype)
        found = last_inside(self.inside, start, side, stop)
        known = jnp.isfinite(found)
        return jnp.where(known, self._moving(jnp.where(known, found, start)), found)

    def _moving(self, at):
        """Returns an end that moves with the component that ends there."""
        scores = self._scores(self.fixed, at)
        level = jnp.broadcast_to(self.level, scores.shape)
        room = jnp.where(jnp.isfinite(level), level - scores, jnp.inf)
        ending = jnp.argmin(lax.stop_gradient(room))
        value = lambda y: self._scores(self.region, y)[ending]  # noqa: E731
        return moving(at, value, level[ending])

    def _scores(self, region, y):
        return as_float(region.score(region.pred, y.reshape(self.shape))).reshape(-1)

    def closed(self, lower, upper, exists, unknown):
        """Returns ends (k,) of the pieces that exist, and crossed ones; NaN of NaN."""
        whole = jnp.all(self.level == jnp.inf)
        exists = jnp.where(whole, jnp.arange(len(lower)) == 0, exists)
        unknown |= jnp.any(jnp.isnan(self.level))

        def ends(values, beyond):
            values = jnp.where(exists, jnp.where(whole, beyond, values), -beyond)
            return jnp.where(unknown, jnp.nan, values)

        return ends(lower, -jnp.inf), ends(upper, jnp.inf)


def _lowest(heights, low, high):
    """Returns about where functions that fall and then rise are lowest, by sections."""
    share = (5**0.5 - 1) / 2  # golden: one of two places serves the next section

    def shrink(_, state):
        low, left, right, high, at_left, at_right = state
        to_left = at_left <= at_right
        low, high = jnp.where(to_left, low, left), jnp.where(to_left, right, high)
        width = share * (high - low)
        new = jnp.where(to_left, high - width, low + width)
        at_new = heights(new)
        left, right = jnp.where(to_left, new, right), jnp.where(to_left, left, new)
        at_left, at_right = (
            jnp.where(to_left, at_new, at_right),
            jnp.where(to_left, at_left, at_new),
        )
        return low, left, right, high, at_left, at_right

    width = share * (high - low)
    left, right = high - width, low + width
    start = low, left, right, high, heights(left), heights(right)
    num_rounds = round((jnp.finfo(low.dtype).nmant + 8) / -math.log2(share))
    _, left, right, _, at_left, at_right = lax.fori_loop(0, num_rounds, shrink, start)
    return jnp.where(at_left <= at_right, left, right)


def _count(held):
    """Returns the number of runs of True."""
    return jnp.sum(held[1:] & ~held[:-1]) + held[0]


def _runs(held, size):
    """Returns the first and last places of the runs of True, the last one to the end.

    Where there are fewer the last place of all stands for them.
    """
    edge, n = jnp.zeros(1, bool), len(held)
    places = jnp.arange(n)
    rises = held & ~jnp.concatenate([edge, held[:-1]])
    falls = held & ~jnp.concatenate([held[1:], edge])
    first, last = (
        jnp.nonzero(v, size=size, fill_value=n - 1)[0] for v in (rises, falls)
    )
    end = jnp.max(jnp.where(held, places, 0))
    more = _count(held) > size
    return first, last.at[-1].set(jnp.where(more, end, last[-1]))
