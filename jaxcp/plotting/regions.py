"""Sets of two outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import (
    COVERED,
    Axes,
    draw_legend,
    draw_targets,
    name_axes,
    thinned,
    tidy,
)
from jaxcp.plotting._inputs import as_axes, as_targets
from jaxcp.sets import Box, membership
from jaxcp.typing import ArrayLike, HasBounds, HasEnds, Set


def plot_region(
    region: Set,
    bounds: Box | None = None,
    y: ArrayLike | None = None,
    *,
    num_points: int = 400,
    max_points: int = 1000,
    aspect: Any = None,
    label: str = "prediction set",
    color: Any = COVERED,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a set of two outputs, whatever its kind; crosses are misses.

    The set is shaded where the points of a grid are in it.

    Args:
      region: One set in the plane, without a leading axis.
      bounds: The part of the plane to show, a `Box`. Defaults to what holds a finite
        `Box`, `Ellipsoid` or `Balls`, or a set of your own with `bounds()`; sets known
        by membership alone need it.
      y: Targets, shape (m, 2), drawn as points.
      num_points: Points of the grid along each axis.
      max_points: Number of covered targets to draw at most; all misses are drawn.
      aspect: Aspect of the axes, as matplotlib's. Defaults to "equal", so that balls
        are round, unless one side is more than five times as long as the other.
      label: Name of the set in the legend.
      color: Color of the set and of covered targets.
      markersize: Size of the targets, in points. Defaults to less for more rows.
      legend: Whether to draw a legend, in the corner with least in it; or where, as
        matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.contourf`.

    Returns:
      The axes.

    Raises:
      ValueError: if there are no finite bounds, or the set is not one of two outputs.

    See also:
      sets.membership, volume

    Example:
      >>> from jaxcp.sets import Balls
      >>> balls = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> ax = plot_region(balls, y=jnp.array([[0.5, 0.5], [2.0, 0.0]]))
    """
    _checks.check_count("num_points", num_points, 2)
    _checks.check_count("max_points", max_points, 0)
    lower, upper = _corners(region, bounds)
    sides = [np.linspace(lower[j], upper[j], num_points) for j in range(2)]
    grid = np.stack(np.meshgrid(*sides), axis=-1)
    inside = np.asarray(membership(region, grid.reshape(-1, 2).astype(lower.dtype)))
    inside = inside.reshape(num_points, num_points)
    if y is not None:
        y = as_targets(y)
        _checks.check_shape("y", (len(y), 2), y.shape)
    ax = as_axes(ax)
    _shade(ax, sides, inside, color, label, kwargs)
    name_axes(ax, "first output", "second output")
    ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    width, height = upper - lower
    if aspect is None:
        aspect = "equal" if 0.2 <= width / height <= 5 else "auto"
    ax.set_aspect(aspect)  # type: ignore[arg-type]
    busy = grid[inside]
    if y is not None:
        weight = 1 + inside.size // (20 * max(len(y), 1))
        busy = np.concatenate([busy, np.repeat(y, weight, axis=0)])
        covered = np.asarray(membership(region, y))
        drawn = thinned(np.flatnonzero(covered), max_points)
        look = {"color": color, "markersize": markersize}
        draw_targets(ax, tuple(y.T), covered, drawn, **look)
    if legend is True:
        legend, covers = _corner(ax, busy, lower, upper)
        draw_legend(ax, legend, frameon=covers)
    else:
        draw_legend(ax, legend)
    tidy(ax)
    return ax


def _shade(ax, sides, inside, color, label, kwargs):
    look = {"levels": [0.5, 1.5], "colors": [color], "alpha": 0.3} | kwargs
    ax.contourf(*sides, inside, **look)
    if inside.any() and not inside.all():
        ax.contour(*sides, inside, levels=[0.5], colors=[color], linewidths=1)
    ax.fill([], [], color=color, alpha=look["alpha"], linewidth=0, label=label)


def _corner(ax, points, lower, upper):
    """Returns where a legend hides least, and whether it hides anything."""
    x, y = ((points - lower) / (upper - lower)).T
    names = {"upper right": (1 - x, 1 - y), "upper left": (x, 1 - y)}
    names |= {"lower right": (1 - x, y), "lower left": (x, y)}
    count = {k: np.sum((a < 0.4) & (b < 0.3)) for k, (a, b) in names.items()}
    best = min(count, key=lambda name: count[name])
    if count[best] == 0:
        return best, False
    return ("outside", False) if _has_room(ax) else (best, True)


def _has_room(ax):
    """Returns whether a legend has room beside the axes."""
    if ax.figure.get_layout_engine() is not None:
        return True
    ax.apply_aspect()
    draw_legend(ax, "outside")
    return ax.get_legend().get_window_extent().x1 <= ax.figure.bbox.width


def _corners(region, bounds):
    """Returns the corners of what to show of a set of two outputs."""
    shown = region if bounds is None else bounds
    if not isinstance(shown, HasEnds | HasBounds):
        kind = type(shown).__name__
        if bounds is not None:
            raise ValueError(f"expected bounds as a Box, got {kind}")
        raise ValueError(f"expected bounds, a Box, for a {kind} without bounds()")
    corners = shown.ends() if isinstance(shown, HasEnds) else shown.bounds()
    lower, upper = (np.asarray(v) for v in corners)
    _checks.check_shape("a set of two outputs, corners", (2,), lower.shape)
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise ValueError(
            f"expected finite bounds, lower < upper, got {lower} and {upper}; "
            "hand over bounds, a Box"
        )
    margin = 0.05 * (upper - lower) * (bounds is None)
    return lower - margin, upper + margin
