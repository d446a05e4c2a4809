"""Kernels: how much a row counts that is so far away, and draws of what is near."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _arrays, _checks
from jaxcp._geometry import sum_of
from jaxcp._numbers import as_float, positive
from jaxcp._tree import pytree
from jaxcp.typing import ArrayLike, Number


@pytree
class Gaussian:
    """A kernel that falls with the distance d of inputs: exp(-d^2 / (2 bandwidth^2)).

    A kernel of your own is any `jaxcp.pytree` with these two methods: `weight` of one
    pair of rows, and `draw` of a batch, from the density that is the weight but for a
    factor which is the same at every row.

    Args:
      bandwidth: Standard deviation of a draw > 0, shape (), in units of x; bring the
        columns of x to one scale first. Wider than all distances: every row counts 1.

    Raises:
      ValueError: if a concrete `bandwidth` is not above 0.

    Cost:
      O(d) for the weight of a pair of rows of d numbers, and for a draw.

    See also:
      calibrate_local, conditional.Within

    Example:
      >>> Gaussian(2.0).weight(jnp.zeros(2), jnp.zeros(2))
      Array(1., dtype=float32)
    """

    bandwidth: Number

    def __post_init__(self) -> None:
        _checks.check_values(lambda h: h > 0, "bandwidth > 0", self.bandwidth)

    def weight(self, x: Array, z: Array) -> Array:
        """Returns the weight of one row of inputs `x` for another one, shape ()."""
        return jnp.exp(-_square(x, z, self.bandwidth) / 2)

    def draw(self, key: Array, x: ArrayLike) -> Array:
        """Returns one random row near each row of `x`, shape (m, ...) like `x`."""
        x = as_float(_rows(key, x))
        return x + self.bandwidth * jax.random.normal(key, x.shape, x.dtype)


@pytree
class Within:
    """A kernel of a ball: 1 where the distance of inputs is at most a radius, else 0.

    Args:
      radius: Largest distance > 0, shape (), in units of x.

    Raises:
      ValueError: if a concrete `radius` is not above 0.

    Cost:
      O(d) for the weight of a pair of rows of d numbers, and for a draw.

    See also:
      calibrate_local, conditional.Gaussian

    Example:
      >>> Within(1.0).weight(jnp.zeros(2), jnp.array([0.0, 2.0]))
      Array(0., dtype=float32)
    """

    radius: Number

    def __post_init__(self) -> None:
        _checks.check_values(lambda r: r > 0, "radius > 0", self.radius)

    def weight(self, x: Array, z: Array) -> Array:
        """Returns the weight of one row of inputs `x` for another one, shape ()."""
        square = _square(x, z, self.radius)
        return (square <= 1).astype(square.dtype)

    def draw(self, key: Array, x: ArrayLike) -> Array:
        """Returns one uniform row in the ball around each row of `x`, like `x`."""
        x = as_float(_rows(key, x))
        flat = x.reshape(len(x), -1)
        ball = jax.random.ball(key, flat.shape[1], shape=(len(x),), dtype=x.dtype)
        return x + self.radius * ball.reshape(x.shape)


def _square(x, z, unit):
    """Returns the squared distance of two rows in this unit."""
    gap = as_float(x) - z
    return sum_of(jnp.ravel(gap / positive(unit, gap.dtype)) ** 2)


def _rows(key, x):
    """Returns inputs as an array with a leading axis, after checks."""
    _checks.check_key(key)
    return _checks.rows(x=_arrays.as_array("x", x))
