"""Balls of one norm, with volumes in closed form."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from jaxcp import _geometry, _soft
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp.sets._arithmetic import at_most, log_of_solid, over_batch
from jaxcp.sets._batches import Batch
from jaxcp.typing import Number


@pytree
class Ball(Batch):
    """The closed ball of all y with norm(y - center) <= radius.

    Args:
      center: Center, shape (d,), in units of the targets.
      radius: Shape (); +inf is the whole space, below 0 the set is empty.
      norm: 1 (the sum of the distances in each output), 2 (Euclidean) or `jnp.inf`
        (the largest of them).
      rounds: Whether targets beyond the radius by `rounding` are inside, as for
        `LevelSet`.

    See also:
      scores.Distance, sets.Balls, sets.Ellipsoid

    Example:
      >>> diamond = Ball(jnp.zeros(2), jnp.array(2.0), norm=1)
      >>> diamond.contains(jnp.array([1.5, 0.5])).item()
      True
      >>> round(diamond.size().item(), 4)
      8.0
    """

    center: Array
    radius: Array
    norm: float = static(default=2)
    rounds: bool = static(default=True)

    def __post_init__(self):
        _geometry.check_norm(self.norm)

    def contains(self, y: Array) -> Array:
        """Returns whether `y`, shape (d,), is in the ball, bool of shape ()."""
        return over_batch(Ball._contains, jnp.ndim(self.radius), self, y)

    def log_size(self) -> Array:
        """Returns the log of the volume, shape (); -inf if it is flat or empty."""
        d = jnp.shape(self.center)[-1]
        radius = as_float(self.radius)
        log_radius = jnp.log(jnp.where(radius > 0, radius, 1))
        log_volume = _geometry.log_unit_ball(d, self.norm) + d * log_radius
        return log_of_solid(log_volume, radius)

    def size(self) -> Array:
        """Returns the volume, shape (), in units of the targets to the power of d."""
        return self._size(as_float(self.radius))

    def soft_size(self, temperature: Number) -> Array:
        """Returns the volume at a soft radius, shape ()."""
        return self._size(_soft.positive_part(as_float(self.radius), temperature))

    def is_empty(self) -> Array:
        """Returns whether the radius is below 0, bool of shape ()."""
        return self.radius < 0

    def bounds(self) -> tuple[Array, Array]:
        """Returns corners (lower, upper) of the box around it, each of shape (d,)."""
        radius = jnp.asarray(self.radius)[..., None]
        return self.center - radius, self.center + radius

    def exact(self) -> Ball:
        """Returns the ball without targets beyond its radius by rounding."""
        return replace(self, rounds=False)

    def _batch(self):
        return jnp.shape(self.radius)

    def _size(self, radius):
        finite = jnp.isfinite(radius)
        ball = replace(self, radius=jnp.where(finite, radius, 0))
        without = jnp.where(radius < 0, 0, radius)  # +inf, or NaN
        return jnp.where(finite, jnp.exp(ball.log_size()), without)

    def _contains(self, y):
        distance = _geometry.distance(y, self.center, self.norm)
        return at_most(distance, self.radius, self.rounds)
