"""Sizes of sets: along an input, and how often each occurs.

Coverage of parts of the rows: groups, classes, sets of similar size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcp import _checks, metrics
from jaxcp._arrays import as_host_array
from jaxcp.metrics._sets import as_batch, as_sets, closed_form_sizes
from jaxcp.plotting._axes import (
    COVERED,
    MISSED,
    Axes,
    as_axes,
    as_level,
    as_places,
    draw_infinite,
    draw_legend,
    draw_level,
    end_at_one,
    fit_height,
    is_ordered,
    name_axes,
    next_color,
    tidy,
)
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, HasPieces, Set

_MOST_BARS = 30
_LABELS = "number of labels"


def plot_widths(
    x: ArrayLike,
    sets: Set | ArrayLike,
    *,
    kind: str | None = None,
    label: str | None = None,
    color: Any = None,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the widths of sets along one input.

    Call it again with `ax` to compare methods. Triangles at the frame mark infinite
    widths. Sets that are no intervals show their size.

    Args:
      x: Position of each set, shape (m,) or (m, 1): numbers or dates.
      sets: Sets with leading axis m.
      kind: "line" or "dots". Defaults to a line where x increases with few ties.
      label: Name of the sets in the legend.
      color: Color. Defaults to the next one of the axes.
      markersize: Size of the dots, in points. Defaults to less for more rows.
      legend: Whether to draw a legend if there are labels; or where, as matplotlib's
        `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.plot`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, sets have no size, or the kind is unknown.

    See also:
      metrics.sizes, plotting.plot_intervals, plotting.plot_sizes

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 20)
      >>> ax = plot_widths(x, Interval(-x, x), label="normalized")
      >>> ax = plot_widths(x, Interval(0 * x, 0 * x + 1), label="split", ax=ax)
    """
    x, sizes = as_places(x), sizes_of(sets)
    _checks.check_shape("sets, number", (x.size,), sizes.shape)
    if kind not in (None, "line", "dots"):
        raise ValueError(f"expected kind as one of 'line', 'dots', got {kind!r}")
    is_line = is_ordered(x) if kind is None else kind == "line"
    ax = as_axes(ax)
    order = np.argsort(x, kind="stable")
    shown = np.where(np.isfinite(sizes), sizes, np.nan)[order]
    size = markersize or np.clip(6.5 - np.log10(max(x.size, 1)), 2, 5)
    dots: dict[str, Any] = {
        "linestyle": "",
        "marker": "o",
        "mew": 0,
        "ms": size,
        "alpha": 0.6,
    }
    look: dict[str, Any] = {"label": label, "color": color}
    look = ({} if is_line else dots) | look | kwargs
    (line,) = ax.plot(x[order], shown, **look)
    infinite = x[np.isposinf(sizes)]
    name_axes(ax, "input", size_name(sets))
    fit_height(ax)
    if ax.get_yscale() != "log":
        ax.set_ylim(bottom=0)
    draw_legend(ax, legend, above=True)
    draw_infinite(ax, infinite, up=True, color=line.get_color())
    tidy(ax)
    return ax


def plot_sizes(
    sets: Set | ArrayLike | Mapping[str, Set | ArrayLike],
    *,
    bins: int = 30,
    label: str | None = None,
    color: Any = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with how often sets have which size, with the mean in the legend.

    Bars for numbers of labels up to 30, else histograms, on the same bins.

    Args:
      sets: Sets with leading axis m, or such sets by name: {"LAC": ..., "APS": ...}.
      bins: Number of bins of a histogram.
      label: Name of the sets in the legend, if they have none.
      color: Color, or one for each name. Defaults to those of the axes' cycle.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.bar`, or of `Axes.hist` for a histogram.

    Returns:
      The axes.

    Raises:
      ValueError: if sets have no size, or some are of labels and others are not.

    See also:
      metrics.sizes, plotting.plot_widths

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> one, two = jnp.eye(3, dtype=bool), jnp.tri(3, dtype=bool)
      >>> ax = plot_sizes({"LAC": LabelSet(one), "APS": LabelSet(two)})
    """
    named = sets if isinstance(sets, Mapping) else {label or "": sets}
    kind = _kind_of_size(named.values())
    _checks.check_count("bins", bins, 1)
    sizes = {name: sizes_of(each) for name, each in named.items()}
    ax = as_axes(ax)
    colors = _colors(ax, color, len(sizes))
    most = max((v[np.isfinite(v)].max(initial=0) for v in sizes.values()), default=0)
    is_counted = kind == _LABELS and most <= _MOST_BARS
    draw = _counts if is_counted else _histograms
    draw(ax, sizes, colors, bins, kwargs)
    name_axes(ax, kind, "share of rows")
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    end_at_one(ax)
    tidy(ax)
    return ax


def sizes_of(sets: Set | ArrayLike) -> np.ndarray:
    """Returns the size of each set, shape (m,)."""
    return np.asarray(closed_form_sizes(as_batch(sets)), float)


def size_name(sets: Set | ArrayLike) -> str:
    """Returns what the size of such sets is called."""
    sets = as_sets(sets)
    if _is_labels(sets):
        return _LABELS
    return "width" if isinstance(as_intervals(sets), Interval | HasPieces) else "size"


def _kind_of_size(many):
    """Returns what the sizes of many sets are called, which is to be the same."""
    kinds = sorted({size_name(sets) for sets in many})
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise ValueError(f"expected sets with one kind of size, got {found}")
    return kinds[0]


def _colors(ax, color, count):
    """Returns a color for each of the sets."""
    from matplotlib.colors import is_color_like

    if color is None:
        return [next_color(ax) for _ in range(count)]
    colors = [color] * count if is_color_like(color) else list(color)
    _checks.check_shape("color, number", (count,), (len(colors),))
    return colors


def _is_labels(sets):
    return isinstance(as_sets(sets), HasLabels)


def _named(name, sizes):
    """Returns a name for the legend, with the mean size."""
    infinite = np.isinf(sizes)
    if not sizes.size:
        return f"{name}, no sets" if name else "no sets"
    mean = f"mean {sizes.mean():.3g}"
    if infinite.any():
        mean = f"{infinite.mean():.2g} infinite, mean of others "
        mean += f"{sizes[~infinite].mean():.3g}" if not infinite.all() else "none"
    return f"{name}, {mean}" if name else mean


def _counts(ax, sizes, colors, _, kwargs):
    most = int(max(v.max(initial=0) for v in sizes.values()))
    width = 0.8 / len(sizes)
    for i, (name, values) in enumerate(sizes.items()):
        shares = np.bincount(values.astype(int), minlength=most + 1) / max(
            len(values), 1
        )
        place = np.arange(most + 1) + (i - (len(sizes) - 1) / 2) * width
        look = {"color": colors[i], "label": _named(name, values)} | kwargs
        ax.bar(place, shares, width, **look)
    if ax.get_xscale() == "linear":
        ax.xaxis.get_major_locator().set_params(integer=True)


def _histograms(ax, sizes, colors, bins, kwargs):
    from matplotlib.colors import to_rgba

    every = np.concatenate([v[np.isfinite(v)] for v in sizes.values()])
    edges = _edges(every, bins)
    for color, (name, values) in zip(colors, sizes.items(), strict=True):
        finite = values[np.isfinite(values)]
        weights = np.full(finite.size, 1 / max(values.size, 1))
        look = {"facecolor": to_rgba(color, 0.4), "edgecolor": color}
        look |= {"histtype": "stepfilled", "label": _named(name, values)} | kwargs
        ax.hist(finite, edges, weights=weights, **look)


def _edges(values, bins):
    """Returns edges of bins; of widths that are all the same, but for rounding, few."""
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    if high - low <= 1e-4 * abs(high):
        return np.linspace(low - 0.1 * abs(low or 1), high + 0.1 * abs(high or 1), 12)
    return np.linspace(low, high, bins + 1)


def plot_group_coverage(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: float,
    *,
    names: Sequence[str] | None = None,
    label: str = "coverage, two standard errors",
    color: Any = COVERED,
    markersize: float = 6,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the coverage of each group or class, with its errors.

    A group whose errors end below 1 - alpha is a diamond in another color; one of 44
    does so by chance where coverage is exact and there are many rows. Errors are of the
    binomial law of the group's rows: Wilson's interval of two standard errors.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      groups: Group of each row, shape (m,), int or by name; for classes the labels.
      alpha: Miscoverage level of the sets, a number in (0, 1).
      names: Names of the distinct groups, in sorted order. Defaults to the groups.
      label: Name of the dots in the legend.
      color: Color of groups that reach 1 - alpha.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend above the rows; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`.

    Returns:
      The axes; behind each name is the number of its rows.

    Raises:
      ValueError: if lengths differ, `alpha` is outside (0, 1), or groups have no order,
        as where some are missing.

    References:
      Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
      1927.

    See also:
      metrics.group_coverage, metrics.class_coverage, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> y, groups = jnp.linspace(-1.0, 1.0, 60), jnp.arange(60) % 3
      >>> sets = Interval(jnp.full(60, -0.9), jnp.full(60, 0.9))
      >>> ax = plot_group_coverage(sets, y, groups, 0.1, names=["a", "b", "c"])
    """
    alpha = as_level(alpha)
    covered = np.asarray(metrics.covered(sets, y))
    groups = as_host_array("groups", groups).ravel()
    _checks.check_shape("groups", covered.shape, groups.shape)
    found, codes = _distinct(groups)
    names = found if names is None else names
    _checks.check_shape("names", found.shape, (len(names),))
    counts = np.bincount(codes)
    rates = np.bincount(codes, covered) / counts
    names = [f"{v} ({c:,})" for v, c in zip(names, counts, strict=True)]
    k = len(names)
    ax = as_axes(ax, height=max(min(0.26 * k, 4 + 0.13 * k) + 1.3, 2))
    draw_level(ax, alpha, upright=True)
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    _dots(ax, rates, counts, alpha, look, upright=True)
    ax.set_yticks(range(k), names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max(k, 1) - 0.5, -0.5)
    name_axes(ax, "coverage", "")
    draw_legend(ax, legend, above=True)
    return ax


def plot_size_stratified_coverage(
    sets: Set | ArrayLike,
    y: ArrayLike,
    alpha: float,
    *,
    num_bins: int = 5,
    label: str = "coverage, two standard errors",
    color: Any = COVERED,
    markersize: float = 6,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the coverage of sets of similar size, with its errors.

    Errors and marks are those of `plot_group_coverage`.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, a number in (0, 1).
      num_bins: Number of strata of equally many rows, as equal as can be.
      label: Name of the dots in the legend.
      color: Color of strata that reach 1 - alpha.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`.

    Returns:
      The axes; a stratum is named by the mean size of its sets.

    Raises:
      ValueError: as `metrics.size_stratified_coverage`.

    See also:
      metrics.size_stratified_coverage, metrics.hsic

    Example:
      >>> from jaxcp.sets import Interval
      >>> y = jnp.linspace(-1.0, 1.0, 50)
      >>> ax = plot_size_stratified_coverage(Interval(y - y**2, y + y**2), y, 0.1)
    """
    alpha = as_level(alpha)
    sets = as_sets(sets)
    rates = metrics.size_stratified_coverage(sets, y, num_bins=num_bins)
    sizes = np.sort(np.asarray(closed_form_sizes(as_batch(sets))))
    strata = np.array_split(sizes, num_bins)
    counts = np.array([len(v) for v in strata])
    names = [f"{v.mean():.3g}" if len(v) else "" for v in strata]
    ax = as_axes(ax)
    draw_level(ax, alpha)
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    _dots(ax, np.asarray(rates, float), counts, alpha, look)
    ax.set_xticks(range(num_bins), names, rotation=90 if num_bins > 10 else 0)
    name = size_name(sets)
    name_axes(ax, f"mean {name} of the stratum", "coverage")
    ax.set_xlim(-0.5, num_bins - 0.5)
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    end_at_one(ax)
    return ax


def _distinct(groups):
    try:
        return np.unique(groups, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(group).__name__ for group in groups.tolist()}))
        raise ValueError(
            f"expected groups of one type, none missing, got {kinds}"
        ) from None


def _dots(ax, rates, counts, alpha, look, *, upright=False):
    """Draws a dot with errors for each part, those surely below 1 - alpha apart."""
    below, above = wilson(rates, counts)
    places = np.arange(len(rates))
    errors = np.stack([rates - below, above - rates])
    low = above < 1 - alpha
    kinds: Any = (
        (~low & (counts > 0), "o", {}),
        (low, "D", {"color": MISSED, "label": "clearly below 1 − α"}),
    )
    for rows, marker, own in kinds:
        if rows.any():
            style = {"fmt": marker, "elinewidth": 1.2} | look | own
            values = [places[rows], rates[rows]][:: -1 if upright else 1]
            side = "xerr" if upright else "yerr"
            ax.errorbar(*values, **{side: np.clip(errors[:, rows], 0, 1)}, **style)


def wilson(rates: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rates have the given ones within two standard errors."""
    n, z = np.maximum(counts, 1), 2.0
    center = (rates + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(rates * (1 - rates) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return center - half, center + half
