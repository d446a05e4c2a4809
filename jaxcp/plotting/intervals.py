"""Intervals along an input."""

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.metrics._sets import as_batch
from jaxcp.plotting._axes import (
    COVERED,
    Axes,
    data_limits,
    draw_infinite,
    draw_legend,
    draw_targets,
    is_ordered,
    legend_share,
    new_axes,
    thinned,
    tidy,
)
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasEnds, Set

_KINDS = "band", "bars"


def plot_intervals(
    x: ArrayLike,
    sets: Set | ArrayLike,
    y: ArrayLike | None = None,
    *,
    kind: str | None = None,
    max_points: int = 1000,
    max_bars: int = 200,
    label: str = "prediction interval",
    color: Any = COVERED,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with intervals along one input; crosses mark missed targets.

    Infinite ends reach the frame, where triangles mark them. All misses are drawn; the
    legend says how many targets and bars there are, and how many of them are drawn.

    Args:
      x: Position of each interval, shape (m,) or (m, 1): numbers or dates.
      sets: Intervals with ends of shape (m,), or an array of ends, shape (m, 2).
      y: Targets, shape (m,), drawn as points.
      kind: "band" or "bars". Defaults to a band where x increases with few ties, else
        to bars. A band is drawn in the order of x.
      max_points: Number of covered targets to draw at most, evenly spaced.
      max_bars: Number of bars to draw at most, evenly spaced in the order of x.
      label: Name of the intervals in the legend.
      color: Color of intervals and covered targets.
      markersize: Size of the targets, in points. Defaults to less for more rows.
      legend: Whether to draw a legend above the data; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.fill_between` for a band, of `Axes.vlines` for bars.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, sets are no intervals, or the kind is unknown.

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 6.0, 50)
      >>> sets = Interval(jnp.sin(x) - 1, jnp.sin(x) + 1)
      >>> ax = plot_intervals(x, sets, jnp.cos(x), legend="lower left")
    """
    x, y = np.ravel(x), None if y is None else np.ravel(y)
    lower, upper = _ends(sets)
    _checks.check_shape("ends", (x.size,), lower.shape)
    if y is not None:
        _checks.check_shape("y", x.shape, y.shape)
    if kind not in (None, *_KINDS):
        raise ValueError(f"expected kind as one of {_KINDS}, got {kind!r}")
    is_band = is_ordered(x) if kind is None else kind == "band"
    ax = ax or new_axes()
    limits = data_limits(ax, np.concatenate([lower, upper, [] if y is None else y]))
    far = 10 * (limits[1] - limits[0])
    ends = np.maximum(lower, limits[0] - far), np.minimum(upper, limits[1] + far)
    order = np.argsort(x, kind="stable")
    rows = x[order], *(end[order] for end in ends)
    look = {"color": color, "label": label} | kwargs
    main = _band(ax, rows, look) if is_band else _bars(ax, rows, look, max_bars)
    if y is not None:
        covered = (lower <= y) & (y <= upper)
        look = {"color": color, "markersize": markersize, "max_points": max_points}
        draw_targets(ax, (x, y), covered, **look)
    ax.set(xlabel="input", ylabel="target", ylim=limits)
    exists = lower <= upper
    _finish(
        ax,
        main,
        x[exists & np.isposinf(upper)],
        x[exists & np.isneginf(lower)],
        color,
        legend,
    )
    return ax


def _ends(sets):
    sets = as_batch(sets)
    found = as_intervals(sets)
    _checks.check_kind("sets of kind Interval", found, HasEnds)
    return tuple(np.asarray(end) for end in found.ends())


def _band(ax, rows, look):
    x, lower, upper = rows
    look = {"alpha": 0.3, "linewidth": 0} | look
    return ax.fill_between(x, lower, upper, where=lower <= upper, **look)


def _bars(ax, rows, look, max_bars):
    shown = thinned(rows[0].size, max_bars) if rows[0].size else slice(0)
    x, lower, upper = (v[shown] for v in rows)
    if x.size < rows[0].size:
        look["label"] = f"{look['label']} ({x.size:,} of {rows[0].size:,} drawn)"
    points = 72 * ax.bbox.width / ax.figure.dpi
    width = np.clip(0.5 * points / max(x.size, 1), 1, 4)
    look = {"alpha": 0.4, "linewidth": width} | look
    drawn = lower <= upper
    return ax.vlines(x[drawn], lower[drawn], upper[drawn], **look)


def _finish(ax, main, above, below, color, legend):
    """Draws legend and triangles; the ends stop at the frame, below the legend."""
    from matplotlib.patches import Rectangle

    if above.size or below.size:
        look = {"color": color, "marker": "^", "linestyle": "", "ms": 6}
        ax.plot([], [], label=f"infinite ({above.size + below.size:,} ends)", **look)
    draw_legend(ax, legend, above=True)
    share = legend_share(ax)
    main.set_clip_path(Rectangle((0, 0), 1, 1 - share, transform=ax.transAxes))
    draw_infinite(ax, above, up=True, color=color)
    draw_infinite(ax, below, up=False, color=color)
    tidy(ax)
