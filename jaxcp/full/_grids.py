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


def ends(grid: Array) -> tuple[Array, Array, Array]:
    """Returns lower and upper ends of cells, and whether the grid increases.

    They end half way between two points; the outer ones reach to infinity.
    """
    halfway = 0.5 * grid[:-1] + 0.5 * grid[1:]
    infinity = jnp.full(1, jnp.inf, grid.dtype)
    lower = jnp.concatenate([-infinity, halfway])
    upper = jnp.concatenate([halfway, infinity])
    valid = jnp.all(jnp.isfinite(grid)) & jnp.all(grid[:-1] < grid[1:])
    return lower, upper, valid


def rounded(grid: Array, y: Array) -> Array:
    """Returns the nearest value of the grid, the lower one of two."""
    # Compared with the very ends of the cells: y <= end belongs to the lower one.
    return grid[jnp.searchsorted(ends(grid)[0][1:], y, side="left")]


def union(lower: Array, upper: Array, valid: Array) -> Intervals:
    """Returns the union of a piece of each cell; the whole line if not valid.

    A traced grid that does not increase tells nothing.
    """
    lower = jnp.where(valid, lower, -jnp.inf)
    return joined(lower, jnp.where(valid, upper, jnp.inf))


def cells(grid: Array, kept: Array) -> Intervals:
    """Returns the union of the cells around points of a grid that are kept, (g,)."""
    lower, upper, valid = ends(grid)
    lower, upper = jnp.where(kept, lower, jnp.inf), jnp.where(kept, upper, -jnp.inf)
    return union(lower, upper, valid)
