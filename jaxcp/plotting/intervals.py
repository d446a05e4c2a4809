"""Intervals along an input, and label sets."""

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import COVERED, MISSED, TRUTH, Axes, draw_targets, new_axes
from jaxcp.sets import Interval, LabelSet
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike


def plot_intervals(
    x: ArrayLike, sets: Interval, y: ArrayLike | None = None, *, ax: Axes | None = None
) -> Axes:
    """Returns axes with intervals along one input; missed targets are red.

    Args:
      x: Position of each interval, shape (m,) or (m, 1).
      sets: Intervals with ends of shape (m,). Infinite ends reach the frame.
      y: Targets, shape (m,), drawn as points.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    Example:
      >>> ax = plot_intervals(jnp.arange(2.0), Interval(jnp.zeros(2), jnp.ones(2)))
    """
    x, y = np.ravel(x), None if y is None else np.ravel(y)
    lower, upper = (np.asarray(end) for end in as_intervals(sets).ends())
    _checks.check_shape("ends", (x.size,), lower.shape)
    low, high = _frame(np.concatenate([lower, upper, [] if y is None else y]))
    ax = ax or new_axes()
    width = max(1.0, min(4.0, 300 / max(x.size, 1)))
    look: dict[str, Any] = {"color": COVERED, "alpha": 0.4, "linewidth": width}
    drawn = lower <= upper
    ends = np.maximum(lower, low)[drawn], np.minimum(upper, high)[drawn]
    ax.vlines(x[drawn], *ends, label="prediction interval", **look)
    if y is not None:
        _checks.check_shape("y", x.shape, y.shape)
        draw_targets(ax, np.stack([x, y], axis=1), (lower <= y) & (y <= upper))
    ax.set(xlabel="input", ylabel="target", ylim=(low, high))
    ax.legend(frameon=False)
    return ax


def plot_label_sets(
    sets: LabelSet, y: ArrayLike | None = None, *, ax: Axes | None = None
) -> Axes:
    """Returns axes with a row of cells for each set; the true label is ringed.

    Args:
      sets: Label sets with a mask of shape (m, k).
      y: True labels, shape (m,), int or by the names that the sets have; the ring is
        red where the set misses.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    Example:
      >>> ax = plot_label_sets(LabelSet(jnp.eye(3, dtype=bool)), jnp.arange(3))
    """
    mask = np.asarray(sets.mask)
    m, k = mask.shape
    ax = ax or new_axes()
    ax.pcolormesh(mask, cmap="Blues", vmin=0, vmax=1.8, edgecolors="white", linewidth=1)
    if y is not None:
        y, rows = np.asarray(sets.codes(y)), np.arange(m)
        _checks.check_shape("y", (m,), y.shape)
        colors = np.where(mask[rows, y], TRUTH, MISSED).tolist()
        ax.scatter(y + 0.5, rows + 0.5, 40, facecolors="none", edgecolors=colors)
    ax.set(xticks=np.arange(k) + 0.5, xticklabels=sets.classes or range(k), yticks=[])
    ax.set(xlabel="label", ylabel="example", ylim=(m, 0))
    return ax


def _frame(values):
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad
