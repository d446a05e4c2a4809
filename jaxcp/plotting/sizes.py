"""Sizes of sets: how often each occurs, and beside the coverage, of several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.metrics._sets import as_batch, as_sets, closed_form_sizes
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import Axes
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, HasPieces, Set

_MOST_BARS = 30
_LABELS = "number of labels"


def plot_sizes(
    sets: Set | ArrayLike | Mapping[str, Set | ArrayLike],
    *,
    bins: int = 30,
    label: str | None = None,
    color: Any = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with how often sets have which size, with the mean in the legend.

    Bars for numbers of labels up to 30, else histograms, on the same bins.

    Args:
      sets: Sets with leading axis m, or such sets by name: {"LAC": ..., "APS": ...}.
      bins: Number of bins of a histogram.
      label: Name of the sets in the legend, if they have none.
      color: Color, or one for each name. Defaults to those of the axes' cycle.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.hist`.

    Returns:
      The axes.

    Raises:
      ValueError: if sets have no size, or some are of labels and others are not.

    See also:
      metrics.sizes, plotting.plot_widths

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> one, two = jnp.eye(3, dtype=bool), jnp.tri(3, dtype=bool)
      >>> ax = plot_sizes({"LAC": LabelSet(one), "APS": LabelSet(two)})
    """
    named = sets if isinstance(sets, Mapping) else {label or "": sets}
    kinds = sorted({size_name(each) for each in named.values()})
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise ValueError(f"expected sets with one kind of size, got {found}")
    _checks.check_count("bins", bins, 1)
    sizes = {name: sizes_of(each) for name, each in named.items()}
    ax = _axes.new_axes() if ax is None else ax
    finite = np.concatenate([v[np.isfinite(v)] for v in sizes.values()])
    is_counted = kinds == [_LABELS] and finite.max(initial=0) <= _MOST_BARS
    edges, width = _edges(finite, bins), 0.0
    if is_counted:
        edges, width = np.arange(finite.max(initial=0) + 2) - 0.5, 0.8 / len(sizes)
        if ax.get_xscale() == "linear":
            locator: Any = ax.xaxis.get_major_locator()
            locator.set_params(integer=True)
    colors = _colors(ax, color, len(sizes))
    for i, (name, values) in enumerate(sizes.items()):
        look = {"label": _named(name, values)} | _look(colors[i], width) | kwargs
        shown, beside = values[np.isfinite(values)], width * (i - (len(sizes) - 1) / 2)
        look["weights"] = np.full(shown.size, 1 / max(values.size, 1))
        ax.hist(shown + beside, (edges + beside).tolist(), **look)
    return _axes.finish(ax, legend, kinds[0], "share of rows", share=True)


def sizes_of(sets: Set | ArrayLike) -> np.ndarray:
    """Returns the size of each set, shape (m,)."""
    return np.asarray(closed_form_sizes(as_batch(sets)), float)


def size_name(sets: Set | ArrayLike) -> str:
    """Returns what the size of such sets is called."""
    sets = as_sets(sets)
    if isinstance(sets, HasLabels):
        return _LABELS
    return "width" if isinstance(as_intervals(sets), Interval | HasPieces) else "size"


def _colors(ax, color, count):
    """Returns a color for each of the sets."""
    from matplotlib.colors import is_color_like

    if color is None:
        return [_axes.next_color(ax) for _ in range(count)]
    return [color] * count if is_color_like(color) else color


def _named(name, sizes):
    """Returns a name for the legend, with the mean size."""
    finite = sizes[np.isfinite(sizes)]
    mean = f"{finite.mean():.3g}" if finite.size else "none"
    told = f"mean {mean}"
    if not sizes.size:
        told = "no sets"
    elif finite.size < sizes.size:
        share = 1 - finite.size / sizes.size
        told = f"{share:.2g} infinite, mean of others {mean}"
    return f"{name}, {told}" if name else told


def _look(color, width):
    """Returns the look of bars of this width, or of a histogram if it is 0."""
    from matplotlib.colors import to_rgba

    if width:
        return {"color": color, "rwidth": width}
    colors = {"facecolor": to_rgba(color, 0.4), "edgecolor": color}
    return {"histtype": "stepfilled"} | colors


def _edges(values, bins):
    """Returns edges of bins; of widths that are all the same, but for rounding, few."""
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    if high - low <= 1e-4 * abs(high):
        return np.linspace(low - 0.1 * abs(low or 1), high + 0.1 * abs(high or 1), 12)
    return np.linspace(low, high, bins + 1)


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
    alpha, names = _axes.as_level(alpha), list(map(str, names))
    panels = {"ncols": 2, "sharey": True, "width_ratios": (3, 2)}
    if ax is None:
        ax = _axes.new_axes(0.28 * len(names) + 1.3, **panels)
    left, right = np.ravel(ax)
    drawn, series = [v.get_text() for v in left.get_yticklabels()], len(left.containers)
    if series and drawn != names:
        drawn = ", ".join(drawn)
        raise ValueError(f"expected names as the axes have them, {drawn}, got {names}")
    rows = np.arange(len(names)) + 0.2 * series
    _axes.draw_level(left, alpha, upright=True)
    shown = _cut(left, rows, _axes.as_numbers("coverages", coverages).ravel(), lowest)
    look = {"fmt": "o", "ms": markersize, "linewidth": 1.2, "color": color} | kwargs
    bars = left.errorbar(shown, rows, xerr=coverage_errors, label=label, **look)
    shown = _written(right, rows, _axes.as_numbers("sizes", sizes).ravel())
    look["color"] = bars.lines[0].get_color()
    right.errorbar(shown, rows, xerr=size_errors, **look)
    left.set_yticks(np.arange(len(names)) + 0.1 * series, names, parse_math=False)
    for each in (left, right):
        each.tick_params(axis="y", length=0)
        each.autoscale(axis="x")
    if lowest is not None:
        left.set_xlim(left=lowest)
    low, high = right.get_xlim()
    right.set_xlim(min(low, 0.0), high + 0.03 * (high - min(low, 0.0)))
    ends = len(names) - 0.5 + 0.2 * series, -0.5
    _axes.finish(left, legend, "coverage", "", ylim=ends)
    _axes.finish(right, False, size_name, "", ylim=left.get_ylim())
    return np.array([left, right])


def _cut(ax, rows, values, lowest):
    """Returns the values to draw; an arrow at the frame is for those below."""
    if lowest is None:
        return values
    below = values < lowest
    frame = {"transform": ax.get_yaxis_transform(), "color": _axes.ink()}
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
            ax.text(0.98, row, name, fontsize="small", color=_axes.ink(), **place)
    return np.where(np.isfinite(sizes), sizes, np.nan)
