"""What sets between a lower and an upper end have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._tracing import jit
from jaxcp.sets._arithmetic import Shape
from jaxcp.sets._batches import Batch, on_host
from jaxcp.typing import ArrayLike

Bounds = tuple[Array | None, Array | None]


class Ends(Batch):
    """What sets between `lower` and `upper` have in common."""

    lower: Array
    upper: Array

    def ends(self) -> tuple[Array, Array]:
        """Returns (lower, upper), each of the shape of a target."""
        return self.lower, self.upper

    def with_ends(self, lower: Array, upper: Array) -> Self:
        """Returns the set of this kind with other ends."""
        return replace(self, lower=lower, upper=upper)  # type: ignore[type-var]

    def widths(self) -> Array:
        """Returns upper - lower, of the shape of a target."""
        return self.upper - self.lower

    def clip(
        self, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Self:
        """Returns the part of the set between two bounds of the targets.

        An end beyond a bound becomes the bound, so that targets within the bounds are
        covered as before; a set that lies outside is empty, and NaN stays.

        Args:
          lower: Least target, shape (), or one for each number of a target; None for
            no bound.
          upper: Largest target, likewise.

        Returns:
          The sets within the bounds.

        Raises:
          ValueError: if a concrete bound is NaN, or lower > upper.
        """
        shape = self.target_shape()  # type: ignore[attr-defined]
        bounds = check_bounds(lower, upper, shape)
        return self.with_ends(*clipped(self.ends(), *bounds))

    def to_numpy(self) -> np.ndarray:
        """Returns the ends, shape (m, 2) of intervals or (m, d, 2) of boxes."""
        return np.stack([on_host(self.lower), on_host(self.upper)], axis=-1)

    def _checked(self, shape: tuple[int, ...]) -> Self:
        shapes = np.shape(self.lower), np.shape(self.upper)
        if shapes != (shape, shape):
            got = f"{shapes[0]} and {shapes[1]}"
            raise ValueError(f"expected ends of shape {shape}, got {got}")
        return self


def check_bounds(lower: Any, upper: Any, shape: Shape) -> Bounds:
    """Returns bounds of targets of this shape; ValueError for NaN or crossed ones."""
    bounds = _as_bound("lower", lower, shape), _as_bound("upper", upper, shape)
    _check_order(*bounds)
    return bounds


def _as_bound(name, bound, shape):
    """Returns a bound of targets of this shape as an array, or None."""
    if bound is None:
        return None
    bound = as_array(name, bound)
    if bound.shape:
        _checks.check_shape(name, shape, bound.shape)
    _checks.check_not_nan(name, bound)
    return bound


def _check_order(lower, upper):
    if lower is None or upper is None or not is_concrete(lower, upper):
        return
    if np.any(np.asarray(lower) > np.asarray(upper)):
        raise ValueError(f"expected lower <= upper, got {lower} and {upper}")


@jit
def clipped(
    ends: tuple[Array, Array], lower: Array | None, upper: Array | None
) -> tuple[Array, Array]:
    """Returns ends no further out than bounds; a set outside of them is crossed."""
    low, high = ends
    if lower is not None:
        low = jnp.maximum(low, jnp.broadcast_to(lower, jnp.shape(low)))
    if upper is not None:
        high = jnp.minimum(high, jnp.broadcast_to(upper, jnp.shape(high)))
    return low, high
