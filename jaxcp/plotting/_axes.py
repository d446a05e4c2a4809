"""Colors, new axes, legends, ticks, and targets."""

from typing import TYPE_CHECKING, Any, NewType

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:  # only pictures import matplotlib
    Axes = NewType("Axes", object)

# Okabe, Ito 2008; vermillion late, as it means a miss, and yellow last, as it is light.
COVERED, MISSED = "#0072B2", "#D55E00"
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


def new_axes(*columns: int, height: float = 4) -> Any:
    """Returns new axes, or as many beside each other as there are widths."""
    look: dict[str, Any] = {"figsize": (6, height), "layout": "constrained"}
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
    name = f"level {alpha:.6g}"
    draw_once(ax, name, lambda: draw(1 - alpha, label=label, **look))


def draw_legend(ax: Axes, legend: bool | str, *, above: bool = False) -> None:
    """Draws a legend where it hides least, or at a place of matplotlib's.

    Above means within the axes, in room that is made above the data.
    """
    if not legend or not ax.get_legend_handles_labels()[0]:
        return
    look: dict[str, Any] = {"frameon": False}
    if isinstance(legend, str):
        ax.legend(loc=legend, **look)
    elif above:
        _make_room(ax, look)
    else:
        ax.legend(loc="best", **look)


def _make_room(ax, look):
    look |= {"loc": "upper left", "columnspacing": 1.2, "borderaxespad": 0.2}
    for columns in range(len(ax.get_legend_handles_labels()[0]), 0, -1):
        found = ax.legend(ncols=columns, **look)
        if found.get_window_extent().width <= ax.bbox.width:
            break
    low, high = ax.get_ylim()
    ax.set_ylim(low, low + (high - low) / (1 - legend_share(ax)))


def legend_share(ax: Axes) -> float:
    """Returns the share of the axes' height that a legend above the data takes."""
    legend = ax.get_legend()
    if legend is None or legend._loc != legend.codes["upper left"]:
        return 0.0
    return min(1.1 * legend.get_window_extent().height / ax.bbox.height, 0.6)


def data_limits(ax: Axes, values: np.ndarray) -> tuple[float, float]:
    """Returns where the y axis begins and ends for finite values and what is there."""
    values = values[np.isfinite(values)]
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
    frame = ax.get_xaxis_transform()
    marker = "^" if up else "v"
    ax.plot(x[shown], place, marker, transform=frame, **look)


def thinned(count: int, most: int) -> np.ndarray:
    """Returns at most so many indices out of 0, ..., count - 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def is_ordered(x: np.ndarray) -> bool:
    """Returns whether x increases, with few ties."""
    if x.size < 3:
        return False
    steps = x[1:] > x[:-1]
    return bool(np.all(x[1:] >= x[:-1]) and np.mean(steps) >= 0.8)


def tidy(ax: Axes) -> None:
    """Formats dates shortly, and numbers from 10,000 on with separators."""
    from matplotlib import dates, ticker

    for axis in (ax.xaxis, ax.yaxis):
        locator = axis.get_major_locator()
        if isinstance(locator, dates.AutoDateLocator):
            axis.set_major_formatter(dates.ConciseDateFormatter(locator))
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
    *,
    color: Any = COVERED,
    markersize: float | None = None,
    max_points: int | None = None,
) -> None:
    """Draws targets: dots, of many only some, and a cross for each that is missed."""
    size = markersize or np.clip(6.5 - np.log10(max(covered.size, 1)), 2.2, 5)
    hits, misses = np.flatnonzero(covered), np.flatnonzero(~covered)
    drawn = hits[thinned(hits.size, max_points or hits.size)] if hits.size else hits
    label = f"covered ({hits.size:,}"
    label += f"; {drawn.size:,} drawn)" if drawn.size < hits.size else ")"
    x, y = points
    look = {"ms": size, "color": color, "mew": 0, "zorder": 2.5, "label": label}
    ax.plot(x[drawn], y[drawn], "o", **look)
    look = {"ms": size + 0.5, "color": MISSED, "mew": 1.2, "zorder": 3}
    ax.plot(x[misses], y[misses], "x", label=f"missed ({misses.size:,})", **look)
