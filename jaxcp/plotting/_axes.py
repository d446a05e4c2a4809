"""Axes of pictures: their look, what is drawn on them, and how they are finished."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NewType

import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_array, as_host_array, as_numpy
from jaxcp.quantiles.levels import as_alpha

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:  # only pictures import matplotlib
    Axes = NewType("Axes", object)

# Okabe, Ito 2008; vermillion late, as it means a miss, and yellow last, as it is light.
COVERED, MISSED = "#0072B2", "#D55E00"
PALETTE = [COVERED, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", MISSED, "#F0E442"]
FILLED: dict[str, Any] = {"alpha": 0.4, "histtype": "stepfilled"}  # no seams
_ABOVE, _TO_TOP = "above the data", "up to the legend"
_BELOW = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "fontsize": "small"}
_OUTSIDE: dict[str, dict[str, Any]] = {
    "outside": {"loc": "center left", "bbox_to_anchor": (1, 0.5)},
    "below": _BELOW | {"ncols": 4},
}
_INK = "#757575"  # contrast 4.6 with white and 4.6 with black
_LOOK = {
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.formatter.use_mathtext": False,  # numbers in the font of the words
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "figure.facecolor": "none",
    "figure.figsize": (5.5, 3.6),
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,  # text in PDF stays text, its fonts come along
    "ps.fonttype": 42,
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",  # text in SVG stays text
    "svg.hashsalt": "jaxcp",  # names in SVG are the same each time
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
_INKED = (
    "axes.edgecolor",
    "axes.labelcolor",
    "boxplot.boxprops.color",
    "boxplot.capprops.color",
    "boxplot.flierprops.color",
    "boxplot.flierprops.markeredgecolor",
    "boxplot.whiskerprops.color",
    "grid.color",
    "text.color",
    "xtick.color",
    "ytick.color",
)


def style(*, ink: str | None = None, **overrides: Any) -> dict[str, Any]:
    """Returns matplotlib's settings for pictures in papers and on pages.

    Colors of Okabe and Ito, which color-blind readers tell apart; no frame on top and
    on the right; a transparent background, and an ink of text, axes and dashed lines.
    The default ink is a gray that reads on white and on black pages. Text stays text in
    SVG and PDF. Nothing is set: hand the dict to `plt.rcParams.update`,
    `plt.style.use` or `plt.rc_context`.

    Args:
      ink: A color of matplotlib. Defaults to a gray; "black" is for paper.
      overrides: Settings of your own, by matplotlib's name with underscores for dots
        (`font_size=11`), or as `**{"font.size": 11}`.

    Returns:
      A dict of rcParams.

    Raises:
      KeyError: for a setting that matplotlib does not have.

    References:
      Okabe, Ito, Color Universal Design, 2008.

    See also:
      plotting.plot_intervals

    Example:
      >>> import matplotlib.pyplot as plt
      >>> with plt.rc_context(style(ink="black", font_size=11)):
      ...     figure, ax = plt.subplots()
      >>> style()["svg.fonttype"]
      'none'
    """
    from cycler import cycler

    look: dict[str, Any] = _LOOK | dict.fromkeys(_INKED, ink or _INK)
    look["axes.prop_cycle"] = cycler(color=PALETTE)
    names = {name.replace(".", "_"): name for name in pyplot().rcParams}
    return look | {names[k.replace(".", "_")]: v for k, v in overrides.items()}


def pyplot():
    """Returns matplotlib.pyplot; it is imported here."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        error.add_note("pip install '.[plot]' in the checkout brings it")
        raise
    return plt


def new_axes(height=None, **look):
    """Returns new axes, or several as `plt.subplots` does."""
    width, usual = pyplot().rcParams["figure.figsize"]
    size = width, usual if height is None else height
    return pyplot().subplots(figsize=size, layout="constrained", **look)[1]


def ink():
    """Returns the color of text, which lines that explain have, too."""
    return pyplot().rcParams["text.color"]


def draw_once(ax, name, draw, *place, **look):
    """Draws what explains, dashed and in the color of text, unless the axes have it."""
    if not any(artist.get_gid() == name for artist in ax.get_children()):
        look = {"color": ink(), "linestyle": "--", "linewidth": 1} | look
        draw(*place, gid=name, **look)


def draw_level(ax, alpha, upright=False):
    """Draws the line of coverage 1 - alpha, once."""
    label = f"1 − α = {1 - alpha:.4g}"
    name, draw = (_TO_TOP, ax.axvline) if upright else ("", ax.axhline)
    draw_once(ax, f"{name} {label}", draw, 1 - alpha, label=label, zorder=1.5)


def draw_infinite(ax, x, *, up, color):
    """Draws triangles at the frame, at some of the inputs with infinite ends."""
    if not x.size:
        return
    shown = thinned(x.size, 30)
    place = np.full(shown.size, 1 - _legend_share(ax) if up else 0.0)
    look = {"color": color, "ms": 6, "clip_on": False, "zorder": 4}
    look |= {"gid": _TO_TOP if up else None, "transform": ax.get_xaxis_transform()}
    ax.plot(x[shown], place, "^" if up else "v", **look)


def draw_targets(ax, points, covered, drawn, color, markersize):
    """Draws targets: dots, of the rows to draw alone, and a cross for every miss."""
    hits, misses = np.flatnonzero(covered), np.flatnonzero(~covered)
    drawn = np.intersect1d(drawn, hits)
    size = markersize or dot_size(covered.size, 2.2)
    label = f"covered ({hits.size:,}"
    label += f"; {drawn.size:,} drawn)" if drawn.size < hits.size else ")"
    x, y = points
    look = {"ms": size, "color": color, "mew": 0, "zorder": 2.5, "label": label}
    ax.plot(x[drawn], y[drawn], "o", **look)
    look = {"ms": size + 0.5, "color": MISSED, "mew": 1.2, "zorder": 3}
    ax.plot(x[misses], y[misses], "x", label=f"missed ({misses.size:,})", **look)


def dot_size(count, least):
    """Returns the size of dots, less for more of them."""
    return np.clip(6.5 - np.log10(count + 1), least, 5)


def finish(ax, legend, x, y, *, ylim=None, above=True, share=False):
    """Returns axes with names, limits, a legend and short ticks.

    Args:
      ax: Axes on which all is drawn.
      legend: Whether to draw a legend, or where.
      x: Name of the x axis, if it has none.
      y: Name of the y axis, if it has none.
      ylim: Limits of the y axis. Defaults to those of its data, unless they are fixed.
      above: Whether room is made for the legend above the data.
      share: Whether y is a share: there are no ticks above 1.
    """
    _name(ax, x, y)
    if ylim is not None:
        ax.set_ylim(*ylim)
    elif ax.get_autoscaley_on() or _legend_share(ax):
        ax.autoscale(axis="y")
    if share:
        ax.yaxis.set_major_locator(_ticks_up_to_one())
    _draw_legend(ax, legend, above)
    _tidy(ax)
    return ax


def _draw_legend(ax, legend, above):
    """Draws a legend: above the data, within the axes, or at a place of matplotlib's.

    "outside" is at the right, "below" for pictures without an x axis.
    """
    count = len(ax.get_legend_handles_labels()[0])
    if not legend or not count:
        return
    if legend is True and above:
        _make_room(ax, count)
    elif legend is True:
        ax.legend(loc="best")
    else:
        ax.legend(**{"loc": legend, "frameon": False} | _OUTSIDE.get(legend, {}))


def _make_room(ax, count):
    look = {"loc": "upper left", "columnspacing": 1, "borderaxespad": 0.2}
    # Axes get wider when they are laid out.
    room = ax.bbox.width * (1 if ax.figure.get_layout_engine() is None else 1.08)
    for columns in range(count, 0, -1):
        legend = ax.legend(ncols=columns, frameon=False, **look)
        if legend.get_window_extent().width <= room:
            break
    legend.set_gid(_ABOVE)
    low, high = ax.get_ylim()
    top = 1 - _legend_share(ax)
    ax.set_ylim(low, low + (high - low) / top)
    for line in ax.get_lines():
        if (line.get_gid() or "").startswith(_TO_TOP):
            line.set_ydata(np.where(np.asarray(line.get_ydata()) > 0, top, 0))


def _legend_share(ax):
    """Returns the share of the axes' height that a legend above the data takes."""
    legend = ax.get_legend()
    if legend is None or legend.get_gid() != _ABOVE:
        return 0.0
    gap = 8 * ax.figure.dpi / 72
    return min((legend.get_window_extent().height + gap) / ax.bbox.height, 0.6)


def clip_below_legend(ax, pieces):
    """Lets artists end at the frame, below the legend."""
    from matplotlib.patches import Rectangle

    for piece in pieces:
        size = 1, 1 - _legend_share(ax)
        piece.set_clip_path(Rectangle((0, 0), *size, transform=ax.transAxes))


def padded(values):
    """Returns ends a little beyond finite values."""
    values = values[np.isfinite(values)].astype(float)  # single ones overflow
    low, high = (values.min(), values.max()) if values.size else (-1.0, 1.0)
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def data_limits(ax, values):
    """Returns where the y axis begins and ends for finite values and what is there."""
    limits = [padded(values)]
    for other in ax.get_shared_y_axes().get_siblings(ax):
        if other.has_data():
            low, high = other.get_ylim()
            limits.append((low, high - _legend_share(other) * (high - low)))
    lows, highs = zip(*limits, strict=True)
    return min(lows), max(highs)


def _name(ax, x, y):
    """Names axes that have no name; of those that panels share the outer ones."""
    place = ax.get_subplotspec()
    shares_x, shares_y = (
        place is not None and len(group.get_siblings(ax)) > 1
        for group in (ax.get_shared_x_axes(), ax.get_shared_y_axes())
    )
    if not (ax.get_xlabel() or (shares_x and not place.is_last_row())):
        ax.set_xlabel(x)
    if not (ax.get_ylabel() or (shares_y and not place.is_first_col())):
        ax.set_ylabel(y)


def _ticks_up_to_one():
    """Returns ticks that leave room for a legend above a share of 1."""
    from matplotlib.ticker import AutoLocator

    class UpToOne(AutoLocator):
        def __call__(self):
            return [tick for tick in super().__call__() if tick < 1 + 1e-6]

    return UpToOne()


def _tidy(ax):
    """Formats dates shortly, and numbers from 10,000 on with separators."""
    from matplotlib import dates, ticker

    for axis in (ax.xaxis, ax.yaxis):
        locator, largest = axis.get_major_locator(), abs(axis.get_view_interval()).max()
        if isinstance(locator, dates.AutoDateLocator):
            short = dates.ConciseDateFormatter(locator, tz=locator.tz)
            axis.set_major_formatter(short)
        elif isinstance(axis.get_major_formatter(), ticker.ScalarFormatter) and (
            1e4 <= largest < 1e9
        ):
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.10g}"))


def next_color(ax):
    """Returns the color that the axes have for what comes next."""
    (line,) = ax.plot([], [])
    line.remove()
    return line.get_color()


def thinned(rows, most):
    """Returns at most so many rows of those given, or of as many, evenly spaced."""
    rows = np.arange(rows) if isinstance(rows, int) else rows
    places = np.linspace(0, max(rows.size - 1, 0), min(rows.size, most))
    return rows[places.round().astype(int)]


def is_ordered(x):
    """Returns whether x increases, with few ties."""
    if x.size < 3:
        return False
    return bool(np.all(x[1:] >= x[:-1]) and np.mean(x[1:] > x[:-1]) >= 0.8)


def as_level(alpha):
    """Returns alpha, one number in (0, 1)."""
    _checks.check_scalars(alpha=alpha)
    return float(as_alpha(alpha)[()])


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Returns numbers in their own type; ValueError for words and other objects."""
    found = as_numpy(name, values)
    return found if found.dtype.kind in "biuf" else np.asarray(as_array(name, found))


def gray(image):
    """Returns how an image looks: of floats, of flags, or of integers up to 255."""
    return {"cmap": "gray", "vmin": 0, "vmax": 1 if image.dtype.kind in "fb" else 255}


def as_curves(name, values, length=None):
    """Returns one curve or several, shape (r, length), as rows."""
    rows = np.atleast_2d(as_numbers(name, values))
    length = rows.shape[-1] if length is None else length
    _checks.check_shape(name, (max(len(rows), 1), length), rows.shape)
    return rows


def as_targets(values):
    """Returns targets in the type that sets have, one for each row, without NaN."""
    found = np.asarray(as_array("y", values))
    _checks.check_not_nan("y", found)
    return found


def as_places(values):
    """Returns places along the x axis, shape (m,): numbers, dates or words."""
    found = as_host_array("x", values).ravel()
    is_real = found.dtype == object and found.size and isinstance(found[0], Real)
    return as_numbers("x", found) if is_real else found
