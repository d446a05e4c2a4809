"""Intervals along an input."""

from __future__ import annotations

from functools import partial
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
    name_axes,
    thinned,
    tidy,
)
from jaxcp.plotting._inputs import as_axes, as_places, as_targets
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasEnds, HasPieces, Set

_KINDS = "band", "bars"
_PLACES = 5000  # of a band, several to a pixel


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
    legend says how many targets and bars there are, and how many of them are drawn. A
    band of more than 5000 intervals goes through as many of them, evenly spaced.

    Args:
      x: Position of each interval, shape (m,) or (m, 1): numbers or dates.
      sets: Intervals with ends of shape (m,), an array of ends, shape (m, 2), or unions
        of intervals, `sets.Intervals`.
      y: Targets, shape (m,), drawn as points.
      kind: "band" or "bars". Defaults to a band where x increases with few ties, else
        to bars, as for unions. A band is drawn in the order of x.
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
      ValueError: if lengths differ, sets are no intervals, a target is NaN or no
        number, or the kind is unknown.

    See also:
      plotting.plot_widths, plotting.plot_rolling_coverage, sets.Interval

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 6.0, 50)
      >>> sets = Interval(jnp.sin(x) - 1, jnp.sin(x) + 1)
      >>> ax = plot_intervals(x, sets, jnp.cos(x), legend="lower left")
    """
    x, y = as_places(x), None if y is None else as_targets(y).ravel()
    lower, upper = _ends(sets)
    _checks.check_shape("ends", (x.size,), lower.shape[:1])
    if y is not None:
        _checks.check_shape("y", x.shape, y.shape)
    _checks.check_count("max_points", max_points, 0)
    _checks.check_count("max_bars", max_bars, 0)
    ax = as_axes(ax)
    heights = [lower.ravel(), upper.ravel(), *([] if y is None else [y])]
    limits = data_limits(ax, np.concatenate(heights))
    order = np.argsort(x, kind="stable")
    rows = x[order], *_cut(lower[order], upper[order], limits)
    look = {"color": color, "label": label} | kwargs
    is_band = _is_band(kind, x, lower.shape[1])
    draw = _draw_band if is_band else partial(_draw_bars, most=max_bars)
    pieces = draw(ax, rows, look)
    if y is not None:
        covered = ((lower <= y[:, None]) & (y[:, None] <= upper)).any(axis=1)
        drawn = thinned(order[covered[order]], max_points)
        look = {"color": color, "markersize": markersize}
        draw_targets(ax, (x, y), covered, drawn, **look)
    name_axes(ax, "input", "target")
    ax.set_ylim(limits)
    infinite = np.isposinf(upper), np.isneginf(lower)
    infinite = [(v & (lower <= upper)).any(axis=1) for v in infinite]
    _finish(ax, pieces, x, infinite, color, legend)
    return ax


def _ends(sets):
    """Returns ends of the pieces of each set, shape (m, p)."""
    found = as_intervals(as_batch(sets))
    if isinstance(found, HasPieces):
        lower, upper = map(np.asarray, found.pieces())
        return lower, upper
    _checks.check_kind("sets of kind Interval or Intervals", found, HasEnds)
    ends = [np.asarray(end) for end in found.ends()]
    if ends[0].ndim != 1:
        raise ValueError(f"expected ends of shape (m,), got {ends[0].shape}")
    return tuple(end[:, None] for end in ends)


def _is_band(kind, x, num_pieces):
    if kind not in (None, *_KINDS):
        raise ValueError(f"expected kind as one of {_KINDS}, got {kind!r}")
    return num_pieces == 1 and is_ordered(x) if kind is None else kind == "band"


def _cut(lower, upper, limits):
    """Returns ends that are finite, those that were not far outside of the frame."""
    far = 10 * (limits[1] - limits[0])
    return np.maximum(lower, limits[0] - far), np.minimum(upper, limits[1] + far)


def _draw_band(ax, rows, look):
    drawn = thinned(rows[0].size, _PLACES)
    x, lower, upper = (v[drawn] for v in rows)
    look = {"alpha": 0.33, "linewidth": 0} | look
    bands = []
    for low, high in zip(lower.T, upper.T, strict=True):
        bands.append(ax.fill_between(x, low, high, where=low <= high, **look))
        look["label"] = None
    return bands


def _draw_bars(ax, rows, look, most):
    drawn, count = thinned(rows[0].size, most), rows[0].size
    if drawn.size < count:
        look["label"] = f"{look['label']} ({drawn.size:,} of {count:,} drawn)"
    x, lower, upper = (v[drawn] for v in rows)
    points = 72 * ax.bbox.width / ax.figure.dpi
    width = np.clip(0.5 * points / max(x.size, 1), 1, 4)
    look = {"alpha": 0.5, "linewidth": width} | look
    row, piece = np.nonzero(lower <= upper)
    return [ax.vlines(x[row], lower[row, piece], upper[row, piece], **look)]


def _finish(ax, pieces, x, infinite, color, legend):
    """Draws legend and triangles; the ends stop at the frame, below the legend."""
    from matplotlib.patches import Rectangle

    above, below = infinite
    if count := np.sum(above | below):
        look = {"color": color, "marker": "^", "linestyle": "", "ms": 6}
        ax.plot([], [], label=f"infinite ({count:,})", **look)
    draw_legend(ax, legend, above=True)
    share = legend_share(ax)
    for piece in pieces:
        piece.set_clip_path(Rectangle((0, 0), 1, 1 - share, transform=ax.transAxes))
    draw_infinite(ax, x[above], up=True, color=color)
    draw_infinite(ax, x[below], up=False, color=color)
    tidy(ax)
