"""Grids of candidate targets, and the cells around their points."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float
from jaxcp.sets import Intervals
from jaxcp.sets._joining import joined


def as_grid(grid: Any) -> Array:
    """Returns a grid of floats, or raises ValueError unless it increases."""
    _checks.check_given(grid=grid)
    grid = as_float(as_array("grid", grid))
    if grid.ndim != 1 or not len(grid):
        raise ValueError(
            f"expected grid of shape (g,), g >= 1, got {grid.shape}; "
            "numpy.linspace(lowest, highest, g) makes one"
        )
    _checks.check_values(np.isfinite, "grid of finite values", grid)
    if is_concrete(grid):
        values = np.asarray(grid)
        falls = np.flatnonzero(~(np.diff(values) > 0))
        if len(falls):
            at = int(falls[0])
            raise ValueError(
                f"expected grid to increase, got {values[at]} and then "
                f"{values[at + 1]} at {at + 1}; numpy.unique(grid) sorts it, without "
                "repetitions"
            )
    return grid


def cells(grid: Array, kept: Array) -> Intervals:
    """Returns the union of the cells around the points of a grid that are kept, (g,).

    They end half way between two points; the outer ones reach to infinity. The whole
    line for a traced grid that does not increase, which tells nothing.
    """
    between = grid[:-1] / 2 + grid[1:] / 2
    end = jnp.full(1, jnp.inf, between.dtype)
    lower = jnp.where(kept, jnp.concatenate([-end, between]), jnp.inf)
    upper = jnp.where(kept, jnp.concatenate([between, end]), -jnp.inf)
    valid = jnp.all(jnp.isfinite(grid)) & jnp.all(grid[:-1] < grid[1:])
    return joined(jnp.where(valid, lower, -jnp.inf), jnp.where(valid, upper, jnp.inf))
