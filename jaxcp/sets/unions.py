"""Unions of intervals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _soft
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.sets._arithmetic import (
    answer_shape,
    log_of_solid,
    over_batch,
    without_axis,
)
from jaxcp.sets._batches import Batch, named, on_host, rows_of
from jaxcp.sets._ends import check_bounds, clipped
from jaxcp.sets._sweeping import join
from jaxcp.sets.basic import Interval
from jaxcp.typing import ArrayLike, Number


@pytree
class Intervals(Batch):
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
        y = jnp.broadcast_to(y, answer_shape(y.shape, batch))[..., None]
        return jnp.any((self.lower <= y) & (y <= self.upper), axis=-1)

    def size(self) -> Array:
        """Returns the sum of the widths, shape (), in units of the target."""
        return jnp.sum(Interval(self.lower, self.upper).size(), axis=-1)

    def log_size(self) -> Array:
        """Returns the log of the size, shape (); -inf for points or nothing."""
        size = self.size()
        return log_of_solid(jnp.log(jnp.where(size > 0, size, 1)), size)

    def soft_size(self, temperature: Number) -> Array:
        """Returns the sum of the widths with soft ends, shape ()."""
        return jnp.sum(_soft.length(self.lower, self.upper, temperature), axis=-1)

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
        lower = jnp.where(exists, self.lower, jnp.inf)
        upper = jnp.where(exists, self.upper, -jnp.inf)
        return Interval(
            jnp.min(lower, axis=-1, initial=jnp.inf),
            jnp.max(upper, axis=-1, initial=-jnp.inf),
        )

    def clip(
        self, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Intervals:
        """Returns the part of the set between two bounds of the targets, shape ().

        None for no bound. Pieces beyond a bound are empty and come last; NaN stays.
        ValueError if a concrete bound is NaN, or lower > upper.
        """
        bounds = check_bounds(lower, upper, ())
        return _clipped(self, *bounds)

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

    def checked(self, num_sets: int) -> Intervals:
        """Returns the sets if their ends are of shape (m, k)."""
        shapes = np.shape(self.lower), np.shape(self.upper)
        if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            got = (
                shapes[0] if shapes[0] == shapes[1] else f"{shapes[0]} and {shapes[1]}"
            )
            raise ValueError(f"expected ends of shape (m, k), got {got}")
        return self

    def to_numpy(self) -> np.ndarray:
        """Returns the ends of the pieces of each set, shape (m, k, 2)."""
        return np.stack([on_host(self.lower), on_host(self.upper)], axis=-1)

    def _batch(self):
        return np.shape(self.lower)[:-1]

    def _columns(self, count, names):
        ends = [f"{end}_{i}" for i in range(count // 2) for end in ("lower", "upper")]
        return named(ends if names is None else names, count)


@jit
def _clipped(sets, lower, upper):
    ends = clipped(tuple(map(as_float, sets.pieces())), lower, upper)
    found = over_batch(join, ends[0].ndim - 1, *ends)
    unknown = jnp.any(jnp.isnan(ends[0]) | jnp.isnan(ends[1]), axis=-1, keepdims=True)
    # `join` makes the whole line of NaN.
    return Intervals(*(jnp.where(unknown, *v) for v in zip(ends, found, strict=True)))
