"""Level sets of scores on the line: the piece around a target, pieces met by a grid.

The boundary is the last float inside, by bisection; its slope is that of the root.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.quantiles._crossings import last_inside, moving
from jaxcp.sets._arithmetic import Shape, over_batch
from jaxcp.sets.basic import Interval
from jaxcp.sets.unions import Intervals

_THIRDS = 24  # times that a cell loses a third: to one part in 17,000


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
        filled = held[:-1] & held[1:]

        def excess(y):
            room = self.level - self._scores(self.fixed, y)
            return -jnp.min(jnp.where(jnp.isnan(room), -jnp.inf, room))

        def shrink(_, cells):
            low, high = cells
            third = (high - low) / 3
            left, right = low + third, high - third
            more = jax.vmap(excess)(right) - jax.vmap(excess)(left)
            to_left = jnp.where(filled, more <= 0, more >= 0)
            return jnp.where(to_left, low, left), jnp.where(to_left, right, high)

        low, high = lax.fori_loop(0, _THIRDS, shrink, (grid[:-1], grid[1:]))
        inner = jnp.clip(low + (high - low) / 2, grid[:-1], grid[1:])
        pairs = jnp.stack([grid[:-1], inner], axis=1)
        return jnp.append(pairs.reshape(-1), grid[-1:])

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
