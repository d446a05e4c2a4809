"""Unions of intervals."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _soft
from jaxcp._arrays import as_array, is_concrete
from jaxcp._pytree import pytree
from jaxcp.sets._arithmetic import answer_shape, log_of_solid, without_axis
from jaxcp.sets._batches import Batch, named, on_host
from jaxcp.sets.basic import Interval
from jaxcp.typing import Number


@pytree
class Intervals(Batch):
    """A union of closed intervals that do not meet; crossed ones are empty.

    The number k of intervals is fixed, so that batches have one shape: there may be
    fewer pieces. Made by `LevelSet.intervals`.

    Args:
      lower: Lower ends of the pieces, in increasing order, shape (k,), in units of the
        target.
      upper: Upper ends, shape (k,), each below the next lower one.

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

    def hull(self) -> Interval:
        """Returns the smallest interval that holds all pieces."""
        exists = ~(self.lower > self.upper)
        lower = jnp.min(jnp.where(exists, self.lower, jnp.inf), axis=-1)
        upper = jnp.max(jnp.where(exists, self.upper, -jnp.inf), axis=-1)
        return Interval(lower, upper)

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
        return replace(self, lower=self.lower[..., :size], upper=self.upper[..., :size])

    def widths(self) -> Array:
        """Returns the size, of the shape of a target."""
        return self.size()

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
