"""Sets of two outputs."""

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import COVERED, Axes, draw_targets, new_axes
from jaxcp.sets import Box, membership
from jaxcp.typing import ArrayLike, HasBounds, HasEnds, Set


def plot_region(
    region: Set,
    bounds: Box | None = None,
    y: ArrayLike | None = None,
    *,
    num_points: int = 400,
    ax: Axes | None = None,
) -> Axes:
    """Returns axes with a set of two outputs, whatever its kind; misses are red.

    The set is shaded where the points of a grid are in it.

    Args:
      region: One set in the plane, without a leading axis.
      bounds: The part of the plane to show, a `Box`. Defaults to what holds a finite
        `Box`, `Ellipsoid` or `Balls`, or a set of your own with `bounds()`; sets known
        by membership alone need it.
      y: Targets, shape (m, 2), drawn as points.
      num_points: Points of the grid along each axis.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if there are no finite bounds, or the set is not one of two outputs.

    Example:
      >>> from jaxcp.sets import Balls
      >>> balls = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> ax = plot_region(balls, y=jnp.array([[0.5, 0.5], [2.0, 0.0]]))
    """
    lower, upper = _corners(region, bounds)
    sides = [np.linspace(lower[j], upper[j], num_points) for j in range(2)]
    grid = np.stack(np.meshgrid(*sides), axis=-1)
    inside = np.asarray(membership(region, grid.reshape(-1, 2).astype(lower.dtype)))
    inside = inside.reshape(num_points, num_points)
    ax = ax or new_axes()
    ax.contourf(*sides, inside, levels=[0.5, 1.5], colors=[COVERED], alpha=0.35)
    if inside.any() and not inside.all():
        ax.contour(*sides, inside, levels=[0.5], colors=[COVERED], linewidths=0.8)
    if y is not None:
        y = np.asarray(y)
        _checks.check_shape("y", (len(y), 2), y.shape)
        draw_targets(ax, y, np.asarray(membership(region, y)))
        ax.legend(frameon=False)
    ax.set(xlabel="first output", ylabel="second output")
    ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    return ax


def _corners(region, bounds):
    """Returns the corners of what to show of a set of two outputs."""
    shown = region if bounds is None else bounds
    if not isinstance(shown, HasEnds | HasBounds):
        region = f"a {type(shown).__name__} without bounds()"
        raise ValueError(f"expected bounds, a Box, for {region}, got {bounds}")
    corners = shown.ends() if isinstance(shown, HasEnds) else shown.bounds()
    lower, upper = (np.asarray(v) for v in corners)
    _checks.check_shape("a set of two outputs, corners", (2,), lower.shape)
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise ValueError(f"expected finite bounds, got {lower} and {upper}")
    margin = 0.05 * (upper - lower) * (bounds is None)
    return lower - margin, upper + margin
