"""Sets of pixels on their images: what is kept, what is missed, what is false."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, MISSED, Axes
from jaxcp.typing import ArrayLike, HasMarks, Set

# Dark blue, middle red, light yellow: also told apart without color, on paper.
_COLORS = {"kept": COVERED, "missed": MISSED, "false": "#F0E442"}


def plot_masks(
    images: ArrayLike | None,
    sets: Set | ArrayLike,
    y: ArrayLike | None = None,
    *,
    names: Iterable[Hashable] | None = None,
    num_columns: int = 4,
    legend: bool | str = True,
    ax: Axes | None = None,
) -> Axes:
    """Returns axes with images, and on each the pixels of its set by what they are.

    Blue pixels are kept (true and in the set), red ones are missed (true, and not in
    the set), and yellow ones are false (in the set, and not true). Below each image
    stands the share of its true pixels that is missed. Sets of several classes a pixel
    have a row of pictures, one a class.

    Args:
      images: What the sets are of, shape (m, height, width) or (m, height, width, 3):
        floats in [0, 1], flags, or integers up to 255. None for an empty background.
      sets: Sets of pixels, with masks of shape (m, height, width), or of k classes (m,
        k, height, width); or such masks, as `p >= 0.5`.
      y: True pixels, flags or 0 and 1, of the shape of the masks. Without them all
        pixels of a set are blue.
      names: Names of the m images, or of the k classes of a pixel, below the pictures.
      num_columns: Number of images in a row, of one class a pixel.
      legend: Whether to draw a legend below the images; or where, as matplotlib's
        `loc`.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if shapes or numbers of names differ, `y` is known to have other
        values than 0 and 1, or sets are no sets of pixels.

    References:
      Okabe, Ito, Color Universal Design, 2008.

    See also:
      sets.LabelMask, scores.MultiLabel, risk.calibrate_risk, risk.false_negative_rate

    Example:
      >>> from jaxcp.sets import LabelMask
      >>> y = jnp.zeros((2, 8, 8)).at[:, 2:6, 2:6].set(1)
      >>> kept = LabelMask(jnp.ones((2, 8, 8), bool), ndim=2)
      >>> ax = plot_masks(jnp.zeros((2, 8, 8)), kept, y)
    """
    masks, true = _as_masks(sets), None if y is None else _as_masks(y)
    m, k, height, width = masks.shape
    if true is not None:
        _checks.check_shape("y", masks.shape, true.shape)
    if images is not None:
        images = np.repeat(_axes.as_numbers("images", images), k, axis=0)
        _checks.check_shape("images, k each,", (m * k, height, width), images.shape[:3])
    words = _shares(masks, true)
    if names is not None:
        names = np.tile([*names], m if k > 1 else 1)
        words = [f"{name} {word}" for name, word in zip(names, words, strict=True)]
    columns = k if k > 1 else min(num_columns, max(m, 1))
    step, rows = np.array([1.06 * width, height + 0.2 * width]), -(-m * k // columns)
    if ax is None:
        inch = _axes.pyplot().rcParams["figure.figsize"][0] / columns
        ax = _axes.new_axes(max(rows, 1) * inch * step[1] / step[0] + 0.6)
    text = {"ha": "center", "va": "top", "fontsize": "small", "color": _axes.ink()}
    for i, colors in enumerate(_painted(masks, true, images)):
        left, top = step * (i % columns, i // columns)
        look: dict[str, Any] = {"extent": (left, left + width, top + height, top)}
        if images is not None:
            ax.imshow(images[i], **look, **_axes.gray(images))
        ax.imshow(colors, **look, interpolation="nearest")
        ax.text(left + width / 2, top + height + 0.03 * width, words[i], **text)
    kinds = {"in the set": COVERED} if true is None else _COLORS
    for name, color in kinds.items():
        ax.fill([], [], color=color, linewidth=0, label=name)
    ax.set(xlim=(0, step[0] * columns), xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_visible(False)
    limits = step[1] * max(rows, 1), -0.5
    return _axes.finish(ax, "below" if legend is True else legend, "", "", ylim=limits)


def _as_masks(sets):
    """Returns masks of sets, or of flags, shape (m, k, height, width)."""
    marks = sets.marks() if issubclass(type(sets), HasMarks) else sets
    masks = np.asarray(_checks.flags("masks", marks))
    if masks.ndim not in (3, 4):
        raise ValueError(f"expected masks (m, h, w) or (m, k, h, w), got {masks.shape}")
    return masks if masks.ndim == 4 else masks[:, None]


def _shares(masks, true):
    """Returns the share of true pixels that each mask misses, in words."""
    if true is None:
        return [""] * (masks.shape[0] * masks.shape[1])
    pairs = zip(*(v.sum((2, 3)).flat for v in (true & ~masks, true)), strict=True)
    return [f"misses {a / n:.0%}" if n else "nothing true" for a, n in pairs]


def _painted(masks, true, images):
    """Returns colors of pixels by what they are, shape (m k, height, width, 4)."""
    from matplotlib.colors import to_rgba

    true = masks if true is None else true
    colors = [(0.5, 0.5, 0.5, 0.15 * (images is None))]
    colors += (to_rgba(v, 0.7) for v in _COLORS.values())
    kinds = np.where(true, np.where(masks, 1, 2), np.where(masks, 3, 0))
    return np.array(colors)[kinds.reshape(-1, *kinds.shape[2:])]
