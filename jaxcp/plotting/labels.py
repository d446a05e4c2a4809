"""Label sets, a row of cells each.

Histograms of p-values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_groups
from jaxcp.metrics._sets import as_label_sets
from jaxcp.plotting._axes import (
    COVERED,
    MISSED,
    Axes,
    as_axes,
    as_numbers,
    draw_legend,
    draw_once,
    fit_height,
    ink,
    name_axes,
)
from jaxcp.typing import ArrayLike, HasLabels


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
    sets = as_label_sets(sets)
    mask = np.asarray(sets.members())
    if mask.ndim != 2 or not mask.shape[1]:
        raise ValueError(f"expected a mask of shape (m, k), k >= 1, got {mask.shape}")
    m, k = mask.shape
    classes = getattr(sets, "classes", None) or range(k)
    if y is not None:
        y = as_groups("y", getattr(sets, "codes", lambda v: v)(y)).ravel()
        _checks.check_shape("y", (m,), y.shape)
        _checks.check_labels("y", y, k)
    ax = as_axes(ax, height=np.clip(0.25 * m + 1.2, 2.5, 12))
    _cells(ax, mask, color, kwargs)
    ax.set(xticks=np.arange(k) + 0.5, xticklabels=classes, yticks=[])
    left = 0 if images is None else _images(ax, as_numbers("images", images), m)
    _turn_long_names(ax, classes)
    ax.set(xlim=(left, k), ylim=(max(m, 1), 0))
    name_axes(ax, "label", "example" if names is None else "")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if names is not None:
        _checks.check_shape("names", (m,), (len(names),))
        ax.set(yticks=np.arange(m) + 0.5, yticklabels=names)
    if y is not None:
        _marks(ax, mask, np.asarray(y), markersize)
    draw_legend(ax, legend, above=True)
    return ax


def _cells(ax, mask, color, kwargs):
    from matplotlib.colors import ListedColormap, to_rgba

    cells = ListedColormap([(0, 0, 0, 0), to_rgba(color, 0.55)])
    look = {"cmap": cells, "vmin": 0, "vmax": 1, "linewidth": 0.5}
    look |= {"edgecolors": to_rgba(ink(), 0.3)} | kwargs
    ax.pcolormesh(mask.astype(int), **look)
    ax.bar(0, 0, color=to_rgba(color, 0.55), label="in the set")


def _turn_long_names(ax, classes):
    """Turns names of classes that would touch."""
    shown = ax.xaxis.get_ticklabels()
    if not shown:  # those of the panel below
        return
    size = 0.6 * shown[0].get_fontsize()
    room = 72 * ax.bbox.width / ax.figure.dpi / (len(classes) + 1)
    if size * max(len(str(name)) for name in classes) > room:
        turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(ax.get_xticks(), [str(name) for name in classes], **turned)


def _images(ax, images, m):
    """Draws an image beside each row; returns where the axes begin."""
    _checks.check_shape("images, number", (m,), images.shape[:1])
    if images.ndim not in (3, 4):
        shapes = "(m, height, width) or (m, height, width, 3)"
        raise ValueError(f"expected images of shape {shapes}, got {images.shape}")
    for i, image in enumerate(images):
        inset = ax.inset_axes((-1.1, i + 0.04, 1, 0.92), transform=ax.transData)
        inset.imshow(image, cmap="gray")
        inset.set_axis_off()
    return -1.2


def _marks(ax, mask, y, markersize):
    m, k = mask.shape
    height = 72 * ax.bbox.height / ax.figure.dpi / (m + 1)
    width = 72 * ax.bbox.width / ax.figure.dpi / (k + 1)
    size = markersize or np.clip(0.55 * min(height, width), 3, 9)
    rows, hit = np.arange(m), mask[np.arange(m), y]
    look = {"ms": size, "mew": 1.3, "mfc": "white", "linestyle": ""}
    for rows_of, marker, color, name in (
        (rows[hit], "o", ink(), "true label"),
        (rows[~hit], "x", MISSED, "true label, missed"),
    ):
        if rows_of.size:
            look |= {"marker": marker, "color": color, "label": name}
            ax.plot(y[rows_of] + 0.5, rows_of + 0.5, **look)


def plot_p_values(
    p_values: ArrayLike,
    is_nominal: ArrayLike | None = None,
    *,
    num_bins: int = 20,
    label: str = "all rows",
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a histogram of p-values; those of nominal rows are uniform.

    Args:
      p_values: p-values, shape (m,).
      is_nominal: True for nominal rows, bool of shape (m,); outliers are drawn apart,
        as an outline.
      num_bins: Number of bins of [0, 1].
      label: Name of the rows, where it is not known which are nominal.
      color: Color of all rows, or of nominal ones.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.hist`.

    Returns:
      The axes; the legend counts the rows.

    Raises:
      ValueError: if lengths differ, a p-value is outside [0, 1], or `is_nominal` has
        other values than True and False, or 1 and 0.

    See also:
      outliers.outlier_p_values, pvalues.benjamini_hochberg

    Example:
      >>> ax = plot_p_values(jax.random.uniform(jax.random.key(0), (500,)))
    """
    p_values = as_numbers("p_values", p_values).ravel()
    _checks.check_uniforms("p_values", p_values)
    _checks.check_count("num_bins", num_bins, 1)
    filled = {"color": color, "alpha": 0.4, "histtype": "stepfilled"}
    parts = [(label, p_values, filled)]
    if is_nominal is not None:
        rows = _flags(is_nominal)
        _checks.check_shape("is_nominal", p_values.shape, rows.shape)
        outline = {"color": MISSED, "histtype": "step", "linewidth": 1.6}
        parts = [("nominal", p_values[rows], filled)]
        parts += [("outliers", p_values[~rows], outline)]
    ax = as_axes(ax)
    bins = np.linspace(0, 1, num_bins + 1).tolist()
    for name, part, look in parts:
        if part.size:
            look = look | {"label": f"{name} ({part.size:,})"} | kwargs
            ax.hist(part, bins=bins, density=True, **look)
    look = {"color": ink(), "linestyle": "--", "linewidth": 1, "label": "uniform"}
    draw_once(ax, "uniform", lambda: ax.axhline(1, **look))
    name_axes(ax, "p-value", "density")
    ax.set_xlim(0, 1)
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    return ax


def _flags(values):
    flags = as_numbers("is_nominal", values).ravel()
    expected = "is_nominal as True and False, or 1 and 0"
    _checks.check_values(lambda v: (v == 0) | (v == 1), expected, flags)
    return flags.astype(bool)
