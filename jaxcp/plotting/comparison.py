"""Methods beside each other: coverage and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import draw_legend, draw_level, ink, name_axes, new_axes, tidy
from jaxcp.plotting._inputs import as_level, as_numbers
from jaxcp.typing import ArrayLike


def plot_comparison(
    names: Sequence[str],
    coverages: ArrayLike,
    sizes: ArrayLike,
    alpha: float,
    *,
    coverage_errors: ArrayLike | None = None,
    size_errors: ArrayLike | None = None,
    lowest: float | None = None,
    size_name: str = "mean width",
    label: str | None = None,
    color: Any = None,
    markersize: float = 5,
    legend: bool | str = True,
    ax: Any = None,
    **kwargs: Any,
) -> np.ndarray:
    """Returns two axes with the coverage and the size of methods, a row for each.

    Call it again with `ax` and another `label` for other data: rows share their places.

    Args:
      names: Names of the methods, k of them, from top to bottom.
      coverages: Coverage of each, shape (k,).
      sizes: Mean width or size of each, shape (k,); +inf and NaN are written.
      alpha: Miscoverage level, a number in (0, 1).
      coverage_errors: Errors of the coverages on both sides, shape (k,), or (2, k)
        below and above, e.g. two standard errors.
      size_errors: Errors of the sizes, shape (k,) or (2, k).
      lowest: Where the axis of coverage begins; an arrow and its number mark what lies
        below. Defaults to showing all.
      size_name: Name of the axis of sizes.
      label: Name of the data in the legend.
      color: Color. Defaults to the next one of the axes.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend above the rows; or where, as matplotlib's `loc`.
      ax: Two axes to draw on, coverage first. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`.

    Returns:
      The two axes, shape (2,).

    Raises:
      ValueError: if lengths differ, `ax` is not two axes, or has rows of other names.

    See also:
      metrics.coverage, metrics.mean_size, plotting.plot_coverage

    Example:
      >>> ax = plot_comparison(
      ...     ["split", "CQR"], [0.9, 0.91], [2.0, 1.7], 0.1, coverage_errors=[0.01] * 2
      ... )
    """
    coverages = _column("coverages", coverages, names)
    sizes = _column("sizes", sizes, names)
    alpha = as_level(alpha)
    axes = _two_axes(ax, names)
    left, right = axes
    series = len(left.containers)
    rows = np.arange(len(names)) + 0.2 * series
    draw_level(left, alpha, upright=True)
    shown = _cut(left, rows, coverages, lowest)
    errors = _errors("coverage_errors", coverage_errors, shown)
    look = {"fmt": "o", "ms": markersize, "linewidth": 1.2, "color": color} | kwargs
    bars = left.errorbar(shown, rows, xerr=errors, label=label, **look)
    shown = _written(right, rows, sizes)
    errors = _errors("size_errors", size_errors, shown)
    look["color"] = bars.lines[0].get_color()
    right.errorbar(shown, rows, xerr=errors, **look)
    name_axes(left, "coverage", "")
    name_axes(right, size_name, "")
    _name_rows(axes, names, series)
    _finish(axes, legend, lowest)
    return axes


def _column(name, values, names):
    """Returns one number for each method."""
    values = as_numbers(name, values).ravel()
    _checks.check_shape(name, (len(names),), values.shape)
    return values


def _two_axes(ax, names):
    """Returns the axes that are given, or new ones with a row for each method."""
    height = 0.28 * len(names) + 1.3
    axes = new_axes(3, 2, height=height) if ax is None else np.ravel(ax)
    if len(axes) != 2:
        raise ValueError(f"expected ax as two axes, got {len(axes)}")
    _check_names(axes[0], names)
    return axes


def _check_names(ax, names):
    """Raises ValueError where axes already have rows with other names."""
    drawn = [text.get_text() for text in ax.get_yticklabels()]
    if ax.containers and drawn != [str(name) for name in names]:
        drawn = ", ".join(drawn)
        raise ValueError(f"expected names as the axes have them, {drawn}, got {names}")


def _errors(name, errors, values):
    """Returns errors for matplotlib, none where there is no value."""
    if errors is None:
        return None
    errors = as_numbers(name, errors).astype(float)
    if errors.shape not in (values.shape, (2, values.size)):
        shapes = f"{values.shape} or {(2, values.size)}"
        raise ValueError(f"expected {name} of shape {shapes}, got {errors.shape}")
    _checks.check_values(lambda v: ~(v < 0), f"{name} >= 0", errors)
    return np.where(np.isfinite(values), errors, np.nan)


def _cut(ax, rows, values, lowest):
    """Returns the values to draw; an arrow at the frame is for those below."""
    if lowest is None:
        return values
    below = values < lowest
    frame = {"transform": ax.get_yaxis_transform(), "color": ink()}
    ax.plot(np.full(below.sum(), 0.02), rows[below], "<", ms=5, **frame)
    for row, value in zip(rows[below], values[below], strict=True):
        ax.text(0.05, row, f"{value:.3g}", va="center", fontsize="small", **frame)
    return np.where(below, np.nan, values)


def _written(ax, rows, sizes):
    """Returns the sizes to draw; infinite and unknown ones are written at the right."""
    place = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
    for row, size in zip(rows, sizes, strict=True):
        if not np.isfinite(size):
            name = "infinite" if np.isinf(size) else "unknown"
            ax.text(0.98, row, name, fontsize="small", color=ink(), **place)
    return np.where(np.isfinite(sizes), sizes, np.nan)


def _name_rows(axes, names, series):
    """Names the rows; those of later series lie a little lower."""
    axes[0].set_yticks(np.arange(len(names)) + 0.1 * series, names)
    for each in axes:
        each.set_ylim(len(names) - 0.5 + 0.2 * series, -0.5)
        each.tick_params(axis="y", length=0)


def _finish(axes, legend, lowest):
    """Fits the axes: coverage from `lowest` on, sizes from 0 on."""
    left, right = axes
    for each in axes:
        each.autoscale(axis="x")
    if lowest is not None:
        left.set_xlim(left=lowest)
    low, high = right.get_xlim()
    low = min(low, 0.0)
    right.set_xlim(low, high + 0.03 * (high - low))
    draw_legend(left, legend, above=True)
    right.set_ylim(left.get_ylim())
    tidy(right)
