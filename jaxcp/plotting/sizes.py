"""Sizes of sets: along an input, and how often each occurs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.metrics._sets import as_batch, as_sets, closed_form_sizes
from jaxcp.plotting._axes import (
    Axes,
    draw_infinite,
    draw_legend,
    end_at_one,
    fit_height,
    is_ordered,
    name_axes,
    next_color,
    tidy,
)
from jaxcp.plotting._inputs import as_axes, as_places
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, HasPieces, Set

_MOST_BARS = 30
_LABELS = "number of labels"


def plot_widths(
    x: ArrayLike,
    sets: Set | ArrayLike,
    *,
    kind: str | None = None,
    label: str | None = None,
    color: Any = None,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the widths of sets along one input.

    Call it again with `ax` to compare methods. Triangles at the frame mark infinite
    widths. Sets that are no intervals show their size.

    Args:
      x: Position of each set, shape (m,) or (m, 1): numbers or dates.
      sets: Sets with leading axis m.
      kind: "line" or "dots". Defaults to a line where x increases with few ties.
      label: Name of the sets in the legend.
      color: Color. Defaults to the next one of the axes.
      markersize: Size of the dots, in points. Defaults to less for more rows.
      legend: Whether to draw a legend if there are labels; or where, as matplotlib's
        `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.plot`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, sets have no size, or the kind is unknown.

    See also:
      metrics.sizes, plotting.plot_intervals, plotting.plot_sizes

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 20)
      >>> ax = plot_widths(x, Interval(-x, x), label="normalized")
      >>> ax = plot_widths(x, Interval(0 * x, 0 * x + 1), label="split", ax=ax)
    """
    x, sizes = as_places(x), sizes_of(sets)
    _checks.check_shape("sets, number", (x.size,), sizes.shape)
    if kind not in (None, "line", "dots"):
        raise ValueError(f"expected kind as one of 'line', 'dots', got {kind!r}")
    is_line = is_ordered(x) if kind is None else kind == "line"
    ax = as_axes(ax)
    order = np.argsort(x, kind="stable")
    shown = np.where(np.isfinite(sizes), sizes, np.nan)[order]
    size = markersize or np.clip(6.5 - np.log10(max(x.size, 1)), 2, 5)
    dots: dict[str, Any] = {
        "linestyle": "",
        "marker": "o",
        "mew": 0,
        "ms": size,
        "alpha": 0.6,
    }
    look: dict[str, Any] = {"label": label, "color": color}
    look = ({} if is_line else dots) | look | kwargs
    (line,) = ax.plot(x[order], shown, **look)
    infinite = x[np.isposinf(sizes)]
    name_axes(ax, "input", size_name(sets))
    fit_height(ax)
    if ax.get_yscale() != "log":
        ax.set_ylim(bottom=0)
    draw_legend(ax, legend, above=True)
    draw_infinite(ax, infinite, up=True, color=line.get_color())
    tidy(ax)
    return ax


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
      kwargs: Options of `Axes.bar`, or of `Axes.hist` for a histogram.

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
    kind = _kind_of_size(named.values())
    _checks.check_count("bins", bins, 1)
    sizes = {name: sizes_of(each) for name, each in named.items()}
    ax = as_axes(ax)
    colors = _colors(ax, color, len(sizes))
    most = max((v[np.isfinite(v)].max(initial=0) for v in sizes.values()), default=0)
    is_counted = kind == _LABELS and most <= _MOST_BARS
    draw = _counts if is_counted else _histograms
    draw(ax, sizes, colors, bins, kwargs)
    name_axes(ax, kind, "share of rows")
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    end_at_one(ax)
    tidy(ax)
    return ax


def sizes_of(sets: Set | ArrayLike) -> np.ndarray:
    """Returns the size of each set, shape (m,)."""
    return np.asarray(closed_form_sizes(as_batch(sets)), float)


def size_name(sets: Set | ArrayLike) -> str:
    """Returns what the size of such sets is called."""
    sets = as_sets(sets)
    if _is_labels(sets):
        return _LABELS
    return "width" if isinstance(as_intervals(sets), Interval | HasPieces) else "size"


def _kind_of_size(many):
    """Returns what the sizes of many sets are called, which is to be the same."""
    kinds = sorted({size_name(sets) for sets in many})
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise ValueError(f"expected sets with one kind of size, got {found}")
    return kinds[0]


def _colors(ax, color, count):
    """Returns a color for each of the sets."""
    from matplotlib.colors import is_color_like

    if color is None:
        return [next_color(ax) for _ in range(count)]
    colors = [color] * count if is_color_like(color) else list(color)
    _checks.check_shape("color, number", (count,), (len(colors),))
    return colors


def _is_labels(sets):
    return isinstance(as_sets(sets), HasLabels)


def _named(name, sizes):
    """Returns a name for the legend, with the mean size."""
    infinite = np.isinf(sizes)
    if not sizes.size:
        return f"{name}, no sets" if name else "no sets"
    mean = f"mean {sizes.mean():.3g}"
    if infinite.any():
        mean = f"{infinite.mean():.2g} infinite, mean of others "
        mean += f"{sizes[~infinite].mean():.3g}" if not infinite.all() else "none"
    return f"{name}, {mean}" if name else mean


def _counts(ax, sizes, colors, _, kwargs):
    most = int(max(v.max(initial=0) for v in sizes.values()))
    width = 0.8 / len(sizes)
    for i, (name, values) in enumerate(sizes.items()):
        shares = np.bincount(values.astype(int), minlength=most + 1) / max(
            len(values), 1
        )
        place = np.arange(most + 1) + (i - (len(sizes) - 1) / 2) * width
        look = {"color": colors[i], "label": _named(name, values)} | kwargs
        ax.bar(place, shares, width, **look)
    if ax.get_xscale() == "linear":
        ax.xaxis.get_major_locator().set_params(integer=True)


def _histograms(ax, sizes, colors, bins, kwargs):
    from matplotlib.colors import to_rgba

    every = np.concatenate([v[np.isfinite(v)] for v in sizes.values()])
    edges = _edges(every, bins)
    for color, (name, values) in zip(colors, sizes.items(), strict=True):
        finite = values[np.isfinite(values)]
        weights = np.full(finite.size, 1 / max(values.size, 1))
        look = {"facecolor": to_rgba(color, 0.4), "edgecolor": color}
        look |= {"histtype": "stepfilled", "label": _named(name, values)} | kwargs
        ax.hist(finite, edges, weights=weights, **look)


def _edges(values, bins):
    """Returns edges of bins; of widths that are all the same, but for rounding, few."""
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    if high - low <= 1e-4 * abs(high):
        return np.linspace(low - 0.1 * abs(low or 1), high + 0.1 * abs(high or 1), 12)
    return np.linspace(low, high, bins + 1)
