"""Level sets of scores on the line: the piece around a target, pieces met by a grid.

The boundary is the last float inside, by bisection; its slope is that of the root.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float
from jaxcp.quantiles._crossings import last_inside, moving

Ends = tuple[Array, Array]


def ends_around(region: Any, start: Array) -> Ends:
    """Returns the ends, of shape (), of the piece of one level set around a target."""
    line = _Line(region, start)
    sides = jnp.array([-1, 1], line.dtype)
    start = line.number(start)
    ends = jax.vmap(lambda side: line.end(start, side, side * jnp.inf))(sides)
    exists = line.inside(start)[None]
    lower, upper = line.closed(ends[:1], ends[1:], exists, jnp.isnan(start))
    return lower[0], upper[0]


def ends_within(
    region: Any, lower: Array, upper: Array, num_points: int, max_pieces: int
) -> Ends:
    """Returns the ends, each (k,), of the pieces of one level set that a grid meets.

    What it meets at its own ends goes on beyond them. With more than k pieces the last
    one reaches to the end of all.
    """
    line = _Line(region, lower)
    grid = jnp.linspace(line.number(lower), line.number(upper), num_points)
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
