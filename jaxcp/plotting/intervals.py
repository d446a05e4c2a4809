"""Intervals along an input.

Sets of two outputs.

Boxes on an image.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.metrics._sets import as_batch
from jaxcp.plotting._axes import (
    COVERED,
    MISSED,
    Axes,
    as_axes,
    as_numbers,
    as_places,
    as_targets,
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
from jaxcp.sets import BoundingBox, Box, membership
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasBounds, HasEnds, HasPieces, Set

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


_PREDICTED, _TRUE = "white", "#F0E442"


def plot_boxes(
    image: ArrayLike,
    sets: BoundingBox | None = None,
    *,
    preds: ArrayLike | None = None,
    true: ArrayLike | None = None,
    label: str | None = None,
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with an image and predicted, true and conformal boxes on it.

    Args:
      image: Pixels, shape (height, width), or (height, width, 3): floats in [0, 1],
        flags, or integers up to 255.
      sets: Conformal boxes with corners of shape (b, 2), outer or inner. With as many
        true boxes, in the same order, those that miss are in another color, with dots
        and dashes.
      preds: Predicted boxes (x_min, y_min, x_max, y_max), shape (b, 4): dashed.
      true: True boxes, shape (t, 4).
      label: Name of the conformal boxes. Defaults to "outer box" or "inner box".
      color: Color of the conformal boxes.
      legend: Whether to draw a legend below the image; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `matplotlib.patches.Rectangle` for the conformal boxes.

    Returns:
      The axes.

    Raises:
      ValueError: if boxes are not of shape (b, 4), the image has another shape, or sets
        are no boxes.

    See also:
      detection.calibrate_boxes, detection.match_images, sets.BoundingBox

    Example:
      >>> box = jnp.array([[2.0, 3.0, 10.0, 8.0]])
      >>> outer = BoundingBox(box[:, :2] - 1, box[:, 2:] + 1)
      >>> ax = plot_boxes(jnp.zeros((12, 16)), outer, preds=box, true=box + 0.5)
    """
    image = as_numbers("image", image)
    if image.ndim != 2 and not (image.ndim == 3 and image.shape[2] in (3, 4)):
        shapes = "(height, width) or (height, width, 3)"
        raise ValueError(f"expected image of shape {shapes}, got {image.shape}")
    if sets is not None:
        _checks.check_kind("sets of kind BoundingBox", sets, BoundingBox)
    ax = as_axes(ax)
    highest = 1 if image.dtype.kind in "fb" else 255
    ax.imshow(image, cmap="gray", vmin=0, vmax=highest)
    height, width = image.shape[:2]
    true = None if true is None else _boxes("true", true)
    if preds is not None:
        _draw(ax, _boxes("preds", preds), "predicted", _PREDICTED, linestyle="--")
    if true is not None:
        _draw(ax, true, "true", _TRUE)
    if sets is not None:
        _draw_sets(ax, sets, true, label, {"color": color, "linewidth": 2} | kwargs)
    ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    if legend is True and ax.get_legend_handles_labels()[0]:
        look: dict[str, Any] = {"ncols": 4, "fontsize": "small", "frameon": False}
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), **look)
    else:
        draw_legend(ax, legend)
    return ax


def _boxes(name, boxes):
    boxes = as_numbers(name, boxes).astype(float)
    boxes = boxes.reshape(0, 4) if boxes.size == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"expected {name} of shape (b, 4), got {boxes.shape}")
    return boxes


def _draw_sets(ax, sets, true, label, look):
    name = label or ("inner box" if sets.inner else "outer box")
    corners = _boxes("sets", sets.corners())
    hit = np.ones(len(corners), bool)
    if true is not None and len(true) == len(corners):
        hit = np.asarray(sets.contains(true))
    _draw(ax, corners[hit], name, **look)
    look |= {"color": MISSED, "linestyle": "-."}
    _draw(ax, corners[~hit], f"{name}, misses", **look)


def _draw(ax, boxes, label, color, **look):
    """Draws boxes, infinite sides outside of the frame; one of them has the label.

    Lines have a dark rim, so that they are seen on light images and pages, too.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    left, top, right, bottom = boxes.T
    boxes = boxes[(left <= right) & (top <= bottom)]
    far = 10 * np.max(np.abs([*ax.get_xlim(), *ax.get_ylim(), 1]))
    boxes = np.where(np.isinf(boxes), np.sign(boxes) * far, boxes)
    look = {"linewidth": 1.5} | look
    rim = Stroke(linewidth=look["linewidth"] + 1.2, foreground="black", alpha=0.6)
    for i, (left, top, right, bottom) in enumerate(boxes):
        size = right - left, bottom - top
        look |= {"edgecolor": color, "label": label if i == 0 else None}
        look |= {"path_effects": [rim, Normal()]}
        ax.add_patch(Rectangle((left, top), *size, fill=False, **look))
