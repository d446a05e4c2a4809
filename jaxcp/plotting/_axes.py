"""The look of pictures, as matplotlib's settings.

Colors, new axes, legends, ticks, and targets.

Arguments of pictures: numbers, places along an axis, levels, axes.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NewType

import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_array, as_host_array, as_numpy
from jaxcp.quantiles.levels import as_alpha

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
      ValueError: for a setting that matplotlib does not have.

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
    for key, value in overrides.items():
        name = names.get(key.replace(".", "_"))
        if name is None:
            raise ValueError(
                f"expected settings that matplotlib has, got {key!r}; "
                "matplotlib.rcParams lists them"
            )
        look[name] = value
    return look


if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:  # only pictures import matplotlib
    Axes = NewType("Axes", object)

# Okabe, Ito 2008; vermillion late, as it means a miss, and yellow last, as it is light.
COVERED, MISSED = "#0072B2", "#D55E00"
_UPRIGHT, _INFINITE, _ABOVE = "upright level", "infinite", "above the data"
PALETTE = [COVERED, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", MISSED, "#F0E442"]


def pyplot() -> Any:
    """Returns matplotlib.pyplot; it is imported here."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "expected matplotlib to be installed for plots, got no such package: pip "
            "install matplotlib"
        ) from error
    return plt


def new_axes(*columns: int, height: float | None = None) -> Any:
    """Returns new axes, or as many beside each other as there are widths."""
    width, usual = pyplot().rcParams["figure.figsize"]
    size = width, usual if height is None else height
    look: dict[str, Any] = {"figsize": size, "layout": "constrained"}
    if columns:
        look |= {"sharey": True, "width_ratios": columns}
    return pyplot().subplots(1, max(len(columns), 1), **look)[1]


def ink() -> Any:
    """Returns the color of text, which lines that explain have, too."""
    return pyplot().rcParams["text.color"]


def draw_once(ax: Axes, name: str, draw: Any) -> None:
    """Draws a line of reference, unless the axes have it."""
    if not any(artist.get_gid() == name for artist in ax.get_children()):
        draw().set_gid(name)


def draw_level(ax: Axes, alpha: float, *, upright: bool = False) -> None:
    """Draws the line of coverage 1 - alpha, once."""
    draw = ax.axvline if upright else ax.axhline
    look = {"color": ink(), "linestyle": "--", "linewidth": 1, "zorder": 1.5}
    label = f"1 − α = {1 - alpha:.4g}"
    if label not in ax.get_legend_handles_labels()[1]:
        line = draw(1 - alpha, label=label, **look)
        line.set_gid(_UPRIGHT if upright else "level")


def draw_legend(
    ax: Axes, legend: bool | str, *, above: bool = False, frameon: bool = False
) -> None:
    """Draws a legend where it hides least, or at a place of matplotlib's.

    Above means within the axes, in room that is made above the data; "outside" is at
    the right.
    """
    if not legend or not ax.get_legend_handles_labels()[0]:
        return
    look: dict[str, Any] = {"frameon": frameon}
    if legend == "outside":
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), **look)
    elif isinstance(legend, str):
        ax.legend(**look, loc=legend)  # type: ignore[call-overload]
    elif above:
        _make_room(ax, look)
    else:
        ax.legend(loc="best", **look)


def _make_room(ax, look):
    look |= {"loc": "upper left", "columnspacing": 1, "borderaxespad": 0.2}
    # Axes get wider when they are laid out.
    room = ax.bbox.width * (1 if ax.figure.get_layout_engine() is None else 1.08)
    for columns in range(len(ax.get_legend_handles_labels()[0]), 0, -1):
        found = ax.legend(ncols=columns, **look)
        found.set_gid(_ABOVE)
        if found.get_window_extent().width <= room:
            break
    low, high = ax.get_ylim()
    share = legend_share(ax)
    ax.set_ylim(low, low + (high - low) / (1 - share))
    for line in ax.get_lines():
        if line.get_gid() == _UPRIGHT:
            line.set_ydata([0, 1 - share])
        elif line.get_gid() == _INFINITE:
            line.set_ydata(np.full(len(line.get_xdata()), 1 - share))


def fit_height(ax: Axes) -> None:
    """Fits the y axis to its data, without the room of a legend, unless it is fixed."""
    if ax.get_autoscaley_on() or legend_share(ax):
        ax.autoscale(axis="y")


def end_at_one(ax: Axes) -> None:
    """Leaves ticks above a share of 1 out, where a legend may be."""
    from matplotlib.ticker import AutoLocator

    class UpToOne(AutoLocator):
        def __call__(self):
            return [tick for tick in super().__call__() if tick < 1 + 1e-6]

    ax.yaxis.set_major_locator(UpToOne())


def legend_share(ax: Axes) -> float:
    """Returns the share of the axes' height that a legend above the data takes."""
    legend = ax.get_legend()
    if legend is None or legend.get_gid() != _ABOVE:
        return 0.0
    gap = 8 * ax.figure.dpi / 72
    return min((legend.get_window_extent().height + gap) / ax.bbox.height, 0.6)


def data_limits(ax: Axes, values: np.ndarray) -> tuple[float, float]:
    """Returns where the y axis begins and ends for finite values and what is there."""
    values = values[np.isfinite(values)].astype(float)  # single ones overflow
    low, high = (values.min(), values.max()) if values.size else (-1.0, 1.0)
    pad = 0.05 * (high - low) or 1.0
    limits = [(low - pad, high + pad)]
    for other in ax.get_shared_y_axes().get_siblings(ax):
        if other.has_data():
            low, high = other.get_ylim()
            limits.append((low, high - legend_share(other) * (high - low)))
    return float(min(v[0] for v in limits)), float(max(v[1] for v in limits))


def draw_infinite(ax: Axes, x: np.ndarray, *, up: bool, color: Any) -> None:
    """Draws triangles at the frame, at some of the inputs with infinite ends."""
    if not x.size:
        return
    shown = thinned(x.size, 30)
    place = np.full(shown.size, 1 - legend_share(ax) if up else 0.0)
    look: dict[str, Any] = {"color": color, "ms": 6, "clip_on": False, "zorder": 4}
    look["gid"] = _INFINITE if up else None
    frame = ax.get_xaxis_transform()
    marker = "^" if up else "v"
    ax.plot(x[shown], place, marker, transform=frame, **look)


def next_color(ax: Axes) -> Any:
    """Returns the color that the axes have for what comes next."""
    (line,) = ax.plot([], [])
    line.remove()
    return line.get_color()


def thinned(rows: int | np.ndarray, most: int) -> np.ndarray:
    """Returns at most so many rows of those given, or of as many, evenly spaced."""
    rows = np.arange(rows) if isinstance(rows, int) else rows
    places = np.linspace(0, max(rows.size - 1, 0), min(rows.size, most))
    return rows[places.round().astype(int)]


def is_ordered(x: np.ndarray) -> bool:
    """Returns whether x increases, with few ties."""
    if x.size < 3:
        return False
    steps = x[1:] > x[:-1]
    return bool(np.all(x[1:] >= x[:-1]) and np.mean(steps) >= 0.8)


def name_axes(ax: Axes, x: str, y: str) -> None:
    """Names axes that have no name; of those that panels share the outer ones."""
    place = ax.get_subplotspec()
    shares_x, shares_y = (
        len(group.get_siblings(ax)) > 1
        for group in (ax.get_shared_x_axes(), ax.get_shared_y_axes())
    )
    if not ax.get_xlabel() and (not shares_x or place is None or place.is_last_row()):
        ax.set_xlabel(x)
    if not ax.get_ylabel() and (not shares_y or place is None or place.is_first_col()):
        ax.set_ylabel(y)


def tidy(ax: Axes) -> None:
    """Formats dates shortly, and numbers from 10,000 on with separators."""
    from matplotlib import dates, ticker

    for axis in (ax.xaxis, ax.yaxis):
        locator = axis.get_major_locator()
        if isinstance(locator, dates.AutoDateLocator):
            short = dates.ConciseDateFormatter(locator, tz=locator.tz)
            axis.set_major_formatter(short)
        elif isinstance(axis.get_major_formatter(), ticker.ScalarFormatter) and (
            1e4 <= np.max(np.abs(axis.get_view_interval())) < 1e9
        ):
            axis.set_major_formatter(ticker.FuncFormatter(_with_separators))


def _with_separators(value, _):
    return f"{value:,.10g}".replace("-", "−")


def draw_targets(
    ax: Axes,
    points: tuple[np.ndarray, np.ndarray],
    covered: np.ndarray,
    drawn: np.ndarray,
    *,
    color: Any = COVERED,
    markersize: float | None = None,
) -> None:
    """Draws targets: dots, of the rows to draw alone, and a cross for every miss."""
    hits, misses = np.flatnonzero(covered), np.flatnonzero(~covered)
    drawn = np.intersect1d(drawn, hits)
    size = markersize or np.clip(6.5 - np.log10(covered.size + 1), 2.2, 5)
    label = f"covered ({hits.size:,}"
    label += f"; {drawn.size:,} drawn)" if drawn.size < hits.size else ")"
    x, y = points
    look = {"ms": size, "color": color, "mew": 0, "zorder": 2.5, "label": label}
    ax.plot(x[drawn], y[drawn], "o", **look)
    look = {"ms": size + 0.5, "color": MISSED, "mew": 1.2, "zorder": 3}
    ax.plot(x[misses], y[misses], "x", label=f"missed ({misses.size:,})", **look)


def as_axes(ax: Any, *, height: float | None = None) -> Axes:
    """Returns the axes that are given, or new ones; ValueError for what is none."""
    if ax is None:
        return new_axes(height=height)
    if not hasattr(ax, "get_ylim"):
        kind = type(ax).__name__
        cure = "; hand over one of its axes" if np.size(ax) > 1 else ""
        raise ValueError(f"expected ax as axes of matplotlib, got {kind}{cure}")
    return ax


def as_level(alpha: Any) -> float:
    """Returns alpha, one number in (0, 1)."""
    _checks.check_scalars(alpha=alpha)
    return float(as_alpha(alpha)[()])


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Returns numbers in their own type; ValueError for words and other objects."""
    found = as_numpy(name, values)
    return found if found.dtype.kind in "biuf" else np.asarray(as_array(name, found))


def as_curves(name: str, values: Any, length: str) -> np.ndarray:
    """Returns one curve or several, shape (r, length), as rows."""
    rows = np.atleast_2d(as_numbers(name, values))
    if rows.ndim > 2 or not len(rows):
        expected = f"({length},) or (r, {length}), r >= 1"
        raise ValueError(f"expected {name} of shape {expected}, got {rows.shape}")
    return rows


def as_targets(values: Any) -> np.ndarray:
    """Returns targets in the type that sets have, one for each row, without NaN."""
    found = np.asarray(as_array("y", values))
    _checks.check_not_nan("y", found)
    return found


def as_places(values: Any) -> np.ndarray:
    """Returns places along the x axis, shape (m,): numbers, dates or words."""
    from matplotlib.units import registry

    found = as_host_array("x", values)
    if found.ndim > 1 and found.size != len(found):
        raise ValueError(f"expected x of shape (m,) or (m, 1), got {found.shape}")
    found = found.ravel()
    if found.dtype != object or not found.size:
        return found
    if isinstance(found[0], Real):
        return as_numbers("x", found)
    if registry.get_converter(found) is None:
        kind = type(found[0]).__name__
        raise ValueError(f"expected x as numbers, dates or words, got {kind}")
    return found
