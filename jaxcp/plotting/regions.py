"""Sets of two outputs."""

from typing import TYPE_CHECKING

import numpy as np

from jaxcp.plotting._axes import COVERED, MISSED, TRUTH, check_shape, new_axes
from jaxcp.sets import Balls, Box, Ellipsoid, membership
from jaxcp.typing import ArrayLike, Set

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_region(
    region: Set,
    bounds: Box | None = None,
    y: ArrayLike | None = None,
    *,
    num_points: int = 400,
    ax: "Axes | None" = None,
) -> "Axes":
    """Returns axes with a set of two outputs, whatever its kind; misses are red.

    The set is shaded where the points of a grid are in it.

    Args:
      region: One set in the plane, without a leading axis.
      bounds: The part of the plane to show, a `Box`. Defaults to what holds a finite
        `Box`, `Ellipsoid` or `Balls`; sets known by membership alone need it.
      y: Targets, shape (m, 2), drawn as points.
      num_points: Points of the grid along each axis.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if there are no finite bounds, or the set is not one of two outputs.

    Example:
      >>> balls = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> ax = plot_region(balls, y=jnp.array([[0.5, 0.5], [2.0, 0.0]]))
    """
    lower, upper = _corners(region, bounds)
    sides = [np.linspace(lower[j], upper[j], num_points) for j in range(2)]
    grid = np.stack(np.meshgrid(*sides), axis=-1)
    inside = np.asarray(membership(region, grid.reshape(-1, 2).astype(lower.dtype)))
    inside = inside.reshape(num_points, num_points)
    ax = new_axes() if ax is None else ax
    ax.contourf(*sides, inside, levels=[0.5, 1.5], colors=[COVERED], alpha=0.35)
    if inside.any() and not inside.all():
        ax.contour(*sides, inside, levels=[0.5], colors=[COVERED], linewidths=0.8)
    if y is not None:
        y = np.asarray(y)
        check_shape("y", (len(y), 2), y.shape)
        covered = np.asarray(membership(region, y))
        ax.plot(*y[covered].T, ".", color=TRUTH, ms=3, label="covered")
        ax.plot(*y[~covered].T, ".", color=MISSED, ms=5, label="missed")
        ax.legend(frameon=False)
    ax.set(xlabel="first output", ylabel="second output")
    ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    return ax


def _corners(region, bounds):
    """Returns the corners of what to show of a set of two outputs."""
    shown = region if bounds is None else bounds
    if isinstance(shown, Box):
        lower, upper = np.asarray(shown.lower), np.asarray(shown.upper)
    elif isinstance(shown, Balls):
        centers, radius = np.asarray(shown.centers), np.asarray(shown.radius)
        lower, upper = centers.min(axis=0) - radius, centers.max(axis=0) + radius
    elif isinstance(shown, Ellipsoid):
        center, scale = np.asarray(shown.center), np.asarray(shown.scale)
        rows = np.abs(scale) if scale.ndim == 1 else np.linalg.norm(scale, axis=1)
        half = np.asarray(shown.radius) * rows
        lower, upper = center - half, center + half
    else:
        name = type(shown).__name__
        raise ValueError(f"expected bounds, a Box, for a {name}, got {bounds}")
    check_shape("a set of two outputs, corners", (2,), lower.shape)
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise ValueError(f"expected finite bounds, got {lower} and {upper}")
    margin = 0.05 * (upper - lower) * (bounds is None)
    return lower - margin, upper + margin
