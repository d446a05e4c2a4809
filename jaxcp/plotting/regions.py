"""Sets of two outputs, boxes on an image, and label sets, a row of cells each."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _arrays, _checks
from jaxcp.metrics._sets import as_label_sets
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, MISSED, Axes
from jaxcp.sets import BoundingBox, Box, membership
from jaxcp.typing import ArrayLike, HasEnds, HasLabels, HasMarks, Set

_PREDICTED, _TRUE = "white", "#F0E442"


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
      legend: Whether to draw a legend, beside the axes where a layout makes room for
        it, else where it hides least; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.contourf`.

    Returns:
      The axes.

    Raises:
      ValueError: if bounds are not finite, or the set is not one of two outputs.
      AttributeError: if there are none, for a set known by membership alone.

    See also:
      sets.membership, volume

    Example:
      >>> from jaxcp.sets import Balls
      >>> balls = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
      >>> ax = plot_region(balls, y=jnp.array([[0.5, 0.5], [2.0, 0.0]]))
    """
    _checks.check_count("num_points", num_points, 2)
    _check_no_masks("a set in the plane", region)
    lower, upper = _corners(region, bounds)
    sides = [np.linspace(lower[j], upper[j], num_points) for j in range(2)]
    grid = np.stack(np.meshgrid(*sides), axis=-1)
    inside = np.asarray(membership(region, grid.reshape(-1, 2).astype(lower.dtype)))
    if y is not None:
        y = _axes.as_targets(y)
        _checks.check_shape("y", (len(y), 2), y.shape)
    ax = _axes.new_axes() if ax is None else ax
    _shade(ax, sides, inside.reshape(num_points, num_points), color, label, kwargs)
    if y is not None:
        covered = np.asarray(membership(region, y))
        drawn = _axes.thinned(np.flatnonzero(covered), max_points)
        _axes.draw_targets(ax, tuple(y.T), covered, drawn, color, markersize)
    width, height = upper - lower
    if aspect is None:
        aspect = "equal" if 0.2 <= width / height <= 5 else "auto"
    ax.set(xlim=(lower[0], upper[0]), aspect=aspect)
    if legend is True and ax.figure.get_layout_engine() is not None:
        legend = "outside"
    names = "first output", "second output"
    return _axes.finish(ax, legend, *names, ylim=(lower[1], upper[1]), above=False)


def _check_no_masks(expected, sets):
    if issubclass(type(sets), HasMarks):
        cure = "plot_masks draws sets of pixels, plot_label_sets(sets.mask) of labels"
        raise ValueError(f"expected {expected}, got {type(sets).__name__}; {cure}")


def _shade(ax, sides, inside, color, label, kwargs):
    look = {"levels": [0.5, 1.5], "colors": [color], "alpha": 0.3} | kwargs
    ax.contourf(*sides, inside, **look)
    if inside.any() and not inside.all():
        ax.contour(*sides, inside, levels=[0.5], colors=[color], linewidths=1)
    ax.fill([], [], color=color, alpha=look["alpha"], linewidth=0, label=label)


def _corners(region, bounds):
    """Returns the corners of what to show of a set of two outputs."""
    shown = region if bounds is None else bounds
    corners = shown.ends() if isinstance(shown, HasEnds) else shown.bounds()
    lower, upper = (np.asarray(v) for v in corners)
    _checks.check_shape("a set of two outputs, corners", (2,), lower.shape)
    if not (np.all(np.isfinite([lower, upper])) and np.all(lower < upper)):
        raise ValueError(f"expected finite bounds, a Box, got {lower} and {upper}")
    margin = 0.05 * (upper - lower) * (bounds is None)
    return lower - margin, upper + margin


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
      ValueError: if boxes are not of shape (b, 4).
      TypeError: if the image has another shape.

    See also:
      detection.calibrate_boxes, detection.match_images, sets.BoundingBox

    Example:
      >>> box = jnp.array([[2.0, 3.0, 10.0, 8.0]])
      >>> outer = BoundingBox(box[:, :2] - 1, box[:, 2:] + 1)
      >>> ax = plot_boxes(jnp.zeros((12, 16)), outer, preds=box, true=box + 0.5)
    """
    image = _axes.as_numbers("image", image)
    ax = _axes.new_axes() if ax is None else ax
    ax.imshow(image, **_axes.gray(image))
    height, width = image.shape[:2]
    if preds is not None:
        _draw(ax, _boxes("preds", preds), "predicted", _PREDICTED, linestyle="--")
    if true is not None:
        true = _boxes("true", true)
        _draw(ax, true, "true", _TRUE)
    if sets is not None:
        corners, look = _boxes("sets", sets.corners()), {"linewidth": 2} | kwargs
        hit = np.ones(len(corners), bool)
        if true is not None and len(true) == len(corners):
            hit = np.asarray(sets.contains(true))
        name = label or ("inner box" if sets.inner else "outer box")
        _draw(ax, corners[hit], name, color, **look)
        look["linestyle"] = "-."
        _draw(ax, corners[~hit], f"{name}, misses", MISSED, **look)
    ax.set(xlim=(-0.5, width - 0.5), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    place = "below" if legend is True else legend
    return _axes.finish(ax, place, "", "", ylim=(height - 0.5, -0.5))


def _boxes(name, boxes):
    boxes = _axes.as_numbers(name, boxes).astype(float)
    return boxes if boxes.size else boxes.reshape(0, 4)


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
    look = {"linewidth": 1.5, "edgecolor": color, "label": label} | look
    rim = Stroke(linewidth=look["linewidth"] + 1.2, foreground="black", alpha=0.6)
    look["path_effects"] = [rim, Normal()]
    for left, top, right, bottom in boxes:
        size = right - left, bottom - top
        ax.add_patch(Rectangle((left, top), *size, fill=False, **look))
        look["label"] = None


@_checks.by_labels
def plot_label_sets(
    sets: HasLabels | ArrayLike,
    y: ArrayLike | None = None,
    *,
    images: ArrayLike | None = None,
    names: Any = None,
    color: Any = COVERED,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a row of cells for each set, and a mark on the true label.

    Cells of labels in the set are filled. A ring marks a true label in its set, a cross
    one that its set misses.

    Args:
      sets: Label sets with a mask of shape (m, k), or such a mask.
      y: True labels, shape (m,), int or by the names that the sets have.
      images: What the sets are of, shape (m, height, width) or (m, height, width, 3),
        drawn small at the left of the rows, dark pixels on light ones as they are.
      names: Names of the rows, m of them.
      color: Color of the labels in the sets.
      markersize: Size of the marks, in points. Defaults to what fits in the cells.
      legend: Whether to draw a legend above the rows; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.pcolormesh`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, a label is unknown, or sets are no label sets.

    See also:
      plotting.plot_sizes, sets.LabelSet

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> sets = LabelSet(jnp.eye(3, dtype=bool), classes=("cat", "dog", "bird"))
      >>> ax = plot_label_sets(sets, ["cat", "dog", "dog"], images=jnp.ones((3, 8, 8)))
    """
    _check_no_masks("label sets", sets)
    sets = as_label_sets(sets)
    mask = np.asarray(sets.members())
    m, k = mask.shape
    classes = getattr(sets, "classes", None) or range(k)
    if y is not None:
        y = _arrays.as_groups("y", getattr(sets, "codes", lambda v: v)(y)).ravel()
        _checks.check_shape("y", (m,), y.shape)
        _checks.check_labels("y", y, k)
    ax = _axes.new_axes(np.clip(0.25 * m + 1.2, 2.5, 12)) if ax is None else ax
    _draw_cells(ax, mask, color, kwargs)
    room = 72 * ax.bbox.width / ax.figure.dpi / (k + 1)
    touch = 5 * max((len(str(name)) for name in classes), default=0) > room
    look: dict[str, Any] = {"ha": "right", "rotation": 45, "rotation_mode": "anchor"}
    shown = [str(name) for name in classes]
    look = look if touch else {}
    ax.set_xticks(np.arange(k) + 0.5, shown, parse_math=False, **look)
    ax.set_yticks([])
    if images is not None:
        _draw_images(ax, _axes.as_numbers("images", images), m)
    ax.set_xlim(0 if images is None else -1.2, max(k, 1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if names is not None:
        ax.set_yticks(np.arange(m) + 0.5, names, parse_math=False)
    if y is not None:
        _draw_marks(ax, mask, np.asarray(y), markersize)
    name = "example" if names is None else ""
    return _axes.finish(ax, legend, "label", name, ylim=(max(m, 1), 0))


def _draw_cells(ax, mask, color, kwargs):
    from matplotlib.colors import ListedColormap, to_rgba

    cells = ListedColormap([(0, 0, 0, 0), to_rgba(color, 0.55)])
    look = {"cmap": cells, "vmin": 0, "vmax": 1, "linewidth": 0.5}
    look |= {"edgecolors": to_rgba(_axes.ink(), 0.3)} | kwargs
    ax.pcolormesh(mask.astype(int), **look)
    ax.bar(0, 0, color=to_rgba(color, 0.55), label="in the set")


def _draw_images(ax, images, m):
    """Draws an image beside each row."""
    _checks.check_shape("images, number", (m,), images.shape[:1])
    for i, image in enumerate(images):
        inset = ax.inset_axes((-1.1, i + 0.04, 1, 0.92), transform=ax.transData)
        inset.imshow(image, cmap="gray")
        inset.set_axis_off()


def _draw_marks(ax, mask, y, markersize):
    (m, k), dpi = mask.shape, ax.figure.dpi / 72
    room = min(ax.bbox.height / (m + 1), ax.bbox.width / (k + 1)) / dpi
    look = {"ms": markersize or np.clip(0.55 * room, 3, 9), "mew": 1.3, "mfc": "white"}
    rows = np.arange(m)
    hit = mask[rows, y]
    for shown, marker, color, name in (
        (rows[hit], "o", _axes.ink(), "true label"),
        (rows[~hit], "x", MISSED, "true label, missed"),
    ):
        if shown.size:
            ax.plot(
                y[shown] + 0.5, shown + 0.5, marker, color=color, label=name, **look
            )
