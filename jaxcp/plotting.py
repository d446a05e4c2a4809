"""Pictures of sets and of coverage. Axes in (or None), Axes out; needs matplotlib."""

import math
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike

from jaxcp._types import Set
from jaxcp.sets import Balls, Box, Ellipsoid, Interval, LabelSet, membership
from jaxcp.simulation import coverage_law

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_coverage", "plot_intervals", "plot_label_sets", "plot_region"]

_COVERED, _MISSED, _TRUTH = "tab:blue", "tab:red", "black"


def plot_intervals(
    x: ArrayLike,
    sets: Interval,
    y: ArrayLike | None = None,
    *,
    ax: "Axes | None" = None,
) -> "Axes":
    """Returns axes with intervals along one input; missed targets are red.

    Args:
      x: Position of each interval, shape (m,) or (m, 1).
      sets: Intervals with ends of shape (m,). Infinite ends reach the frame.
      y: Targets, shape (m,), drawn as points.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    Example:
      >>> ax = plot_intervals(jnp.arange(2.0), jaxcp.sets.Interval(jnp.zeros(2), jnp.ones(2)))
    """
    x, lower, upper = np.ravel(x), np.asarray(sets.lower), np.asarray(sets.upper)
    _check_shape("ends", (x.size,), lower.shape)
    ax = _new_axes() if ax is None else ax
    ends = np.concatenate([lower, upper] + ([] if y is None else [np.asarray(y)]))
    low, high = _frame(ends[np.isfinite(ends)])
    drawn = lower <= upper
    ax.vlines(
        x[drawn],
        np.maximum(lower[drawn], low),
        np.minimum(upper[drawn], high),
        color=_COVERED,
        alpha=0.4,
        linewidth=max(1.0, min(4.0, 300 / max(x.size, 1))),
        label="prediction interval",
    )
    if y is not None:
        y = np.asarray(y)
        _check_shape("y", x.shape, y.shape)
        inside = (lower <= y) & (y <= upper)
        ax.plot(x[inside], y[inside], ".", color=_TRUTH, ms=3, label="covered")
        ax.plot(x[~inside], y[~inside], ".", color=_MISSED, ms=5, label="missed")
    ax.set(xlabel="input", ylabel="target", ylim=(low, high))
    ax.legend(frameon=False)
    return ax


def plot_label_sets(
    sets: LabelSet, y: ArrayLike | None = None, *, ax: "Axes | None" = None
) -> "Axes":
    """Returns axes with a row of cells for each set; the true label is ringed.

    Args:
      sets: Label sets with a mask of shape (m, k).
      y: True labels, int of shape (m,); the ring is red where the set misses.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    Example:
      >>> ax = plot_label_sets(jaxcp.sets.LabelSet(jnp.eye(3, dtype=bool)), jnp.arange(3))
    """
    mask = np.asarray(sets.mask)
    m, k = mask.shape
    ax = _new_axes() if ax is None else ax
    ax.pcolormesh(mask, cmap="Blues", vmin=0, vmax=1.8, edgecolors="white", linewidth=1)
    if y is not None:
        y = np.asarray(y)
        _check_shape("y", (m,), y.shape)
        colors = np.where(mask[np.arange(m), y], _TRUTH, _MISSED)
        ax.scatter(
            y + 0.5, np.arange(m) + 0.5, 40, facecolors="none", edgecolors=colors
        )
    ax.set(xticks=np.arange(k) + 0.5, xticklabels=range(k), yticks=[])
    ax.set(xlabel="label", ylabel="example", ylim=(m, 0))
    return ax


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
      >>> balls = jaxcp.sets.Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> ax = plot_region(balls, y=jnp.array([[0.5, 0.5], [2.0, 0.0]]))
    """
    lower, upper = _corners(region, bounds)
    sides = [np.linspace(lower[j], upper[j], num_points) for j in range(2)]
    grid = np.stack(np.meshgrid(*sides), axis=-1)
    inside = np.asarray(membership(region, grid.reshape(-1, 2).astype(lower.dtype)))
    inside = inside.reshape(num_points, num_points)
    ax = _new_axes() if ax is None else ax
    ax.contourf(*sides, inside, levels=[0.5, 1.5], colors=[_COVERED], alpha=0.35)
    if inside.any() and not inside.all():
        ax.contour(*sides, inside, levels=[0.5], colors=[_COVERED], linewidths=0.8)
    if y is not None:
        y = np.asarray(y)
        _check_shape("y", (len(y), 2), y.shape)
        covered = np.asarray(membership(region, y))
        ax.plot(*y[covered].T, ".", color=_TRUTH, ms=3, label="covered")
        ax.plot(*y[~covered].T, ".", color=_MISSED, ms=5, label="missed")
        ax.legend(frameon=False)
    ax.set(xlabel="first output", ylabel="second output")
    ax.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    return ax


def plot_coverage(
    samples: ArrayLike, n: int, alpha: float, *, ax: "Axes | None" = None
) -> "Axes":
    """Returns axes with a histogram of coverages against their exact Beta law.

    Args:
      samples: Coverages of calibrated predictors, one a calibration set, shape (r,).
      n: Size of the calibration sets.
      alpha: Miscoverage level, a number in (0, 1).
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if `alpha` is outside (0, 1).

    Example:
      >>> samples = jax.random.beta(jax.random.key(0), 90, 10, (500,))
      >>> ax = plot_coverage(samples, 99, 0.1)
    """
    samples = np.ravel(samples)
    a, b = coverage_law(n, alpha)
    ax = _new_axes() if ax is None else ax
    ax.hist(samples, bins="auto", density=True, color=_COVERED, alpha=0.4, label="seen")
    if b > 0:
        mean = a / (a + b)
        width = 5 * math.sqrt(a * b / (a + b + 1)) / (a + b)
        grid = np.linspace(max(mean - width, 1e-6), min(mean + width, 1 - 1e-6), 400)
        log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        density = np.exp(log_norm + (a - 1) * np.log(grid) + (b - 1) * np.log1p(-grid))
        ax.plot(grid, density, color=_TRUTH, label=f"Beta({a}, {b})")
    ax.axvline(1 - alpha, color=_MISSED, linestyle="--", label=r"$1 - \alpha$")
    ax.set(xlabel="coverage given the calibration set", ylabel="density")
    ax.legend(frameon=False)
    return ax


def _new_axes():
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4), layout="constrained")[1]


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
    _check_shape("a set of two outputs, corners", (2,), lower.shape)
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise ValueError(f"expected finite bounds, got {lower} and {upper}")
    margin = 0.05 * (upper - lower) * (bounds is None)
    return lower - margin, upper + margin


def _frame(finite):
    if finite.size == 0:
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _check_shape(name, expected, got):
    if expected != got:
        raise ValueError(f"expected {name} of shape {expected}, got {got}")
