"""Boxes on an image."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import COVERED, MISSED, Axes, draw_legend
from jaxcp.plotting._inputs import as_axes, as_numbers
from jaxcp.sets import BoundingBox
from jaxcp.typing import ArrayLike

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
