"""Bands: a path within its fan, or a field, and the points that are missed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, MISSED, Axes
from jaxcp.plotting.intervals import plot_intervals
from jaxcp.sets import Band
from jaxcp.typing import ArrayLike, Set


def plot_band(
    sets: Set | list[Set],
    y: ArrayLike | None = None,
    *,
    x: ArrayLike | None = None,
    label: str | None = None,
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a path in its band, or with a field, and with what they miss.

    Paths have dots at points in the band and crosses at those outside. Several bands of
    one path, such as those of several alphas, are drawn over one another as a fan; a
    miss is then outside of the widest. Of a field the picture is the field in gray, or
    the width of its band where there is no `y`, and red at points that are missed.
    Points that are left out, with infinite ends, are triangles at the frame of a path
    and blue in a field.

    Args:
      sets: One band of a path (d,) or of a field (height, width), which may come as a
        batch of one; or a list of bands of one path. Row 0 of a field is at the top, as
        in an image; `origin="lower"` puts it at the bottom.
      y: The true path or field, of the shape of the band; of a field it may be NaN
        where points are left out.
      x: Places of the points of a path, shape (d,): numbers or dates. Defaults to 0,
        ..., d - 1.
      label: Name of the band, or of the field, in the legend.
      color: Color of bands and of points inside.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.fill_between` for paths, of `Axes.imshow` for fields.

    Returns:
      The axes.

    Raises:
      ValueError: if a set is no band, there are several bands of fields, or shapes
        differ.

    References:
      Okabe, Ito, Color Universal Design, 2008.

    See also:
      scores.Band, sets.Band, plotting.plot_intervals, plotting.plot_masks

    Example:
      >>> from jaxcp.sets import Band
      >>> t = jnp.linspace(0.0, 6.0, 24)
      >>> ax = plot_band(Band(jnp.sin(t) - 1, jnp.sin(t) + 1), jnp.cos(t), x=t)
    """
    bands = [_one(band) for band in (sets if isinstance(sets, list) else [sets])]
    shape = bands[0].target_shape()
    if len(shape) != 1 and (len(shape) != 2 or len(bands) > 1):
        expected = "bands of one path (d,), or one of a field (height, width)"
        raise ValueError(f"expected {expected}, got {len(bands)} of shape {shape}")
    if y is not None:
        y = np.asarray(as_array("y", y))
        _checks.check_shape("y", shape, y.shape)
    if len(shape) == 2:
        return _draw_field(bands[0], y, label, legend, ax, kwargs)
    x = np.arange(shape[0]) if x is None else x
    look = {"kind": "band", "color": color, "label": "_", "legend": False} | kwargs
    *others, widest = sorted(bands, key=lambda band: float(band.size()))
    for band in others:  # the widest alone shows what is left out
        ends = band.lower, band.upper
        ends = np.where(band._left_out(), [[np.inf], [-np.inf]], ends)
        ax = plot_intervals(x, ends.T, ax=ax, **look)
    look |= {"label": label or "band", "legend": legend}
    ends = np.stack([widest.lower, widest.upper], axis=1)
    return plot_intervals(x, ends, y, ax=ax, **look)


def _one(band):
    """Returns one band with ends as numpy."""
    _checks.check_kind("sets of kind Band", band, Band)
    return jax.tree.map(np.asarray, band.checked(1)[0] if band._batch() else band)


def _draw_field(band, y, label, legend, ax, look):
    """Draws what is known of a field, and what is missed."""
    from matplotlib.colors import to_rgba

    ax, out = _axes.new_axes() if ax is None else ax, band._left_out()
    shown = np.where(out, np.nan, band.upper - band.lower if y is None else y)
    picture = ax.imshow(shown, **{"cmap": "gray"} | look)
    name = label or ("width of the band" if y is None else "target")
    # As high as the field, whatever its aspect.
    ax.figure.colorbar(picture, cax=ax.inset_axes((1.03, 0, 0.04, 1)), label=name)
    limits = picture.get_extent()
    if out.any():
        ax.set_facecolor("lightsteelblue")
        ax.fill(
            [], [], color="lightsteelblue", lw=0, label=f"left out ({np.sum(out):,})"
        )
    if y is not None:
        missed = ~((band.lower <= y) & (y <= band.upper) | out)
        colors = np.where(missed[..., None], to_rgba(MISSED), 0)
        place = {"extent": limits, "origin": picture.origin, "aspect": ax.get_aspect()}
        ax.imshow(colors, interpolation="nearest", **place)
        ax.fill([], [], color=MISSED, lw=0, label=f"missed ({np.sum(missed):,})")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.xaxis.labelpad = 20  # below the legend
    look = {"legend": "below" if legend is True else legend, "ylim": limits[2:]}
    return _axes.finish(ax, x="", y="", **look)
