"""Intervals and their widths along an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp._tree import is_ours
from jaxcp.metrics._sets import as_batch
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, Axes
from jaxcp.plotting.sizes import size_name, sizes_of
from jaxcp.sets.basic import Interval, as_intervals
from jaxcp.typing import ArrayLike, HasEnds, HasPieces, Set

_PLACES = 5000  # of a band, several to a pixel


@_checks.by_labels
def plot_intervals(
    x: ArrayLike,
    sets: Set | ArrayLike,
    y: ArrayLike | None = None,
    *,
    kind: str | None = None,
    max_points: int = 1000,
    max_bars: int = 200,
    label: str = "prediction interval",
    color: Any = COVERED,
    markersize: float | None = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with intervals along one input; crosses mark missed targets.

    Infinite ends reach the frame, where triangles mark them. All misses are drawn; the
    legend says how many targets and bars there are, and how many of them are drawn. A
    band of more than 5000 intervals goes through as many of them, evenly spaced.

    Args:
      x: Position of each interval, shape (m,) or (m, 1): numbers or dates.
      sets: Intervals with ends of shape (m,), an array of ends, shape (m, 2), or unions
        of intervals, `sets.Intervals`.
      y: Targets, shape (m,), drawn as points.
      kind: "band" or "bars". Defaults to a band where x increases with few ties, else
        to bars, as for unions. A band is drawn in the order of x.
      max_points: Number of covered targets to draw at most, evenly spaced.
      max_bars: Number of bars to draw at most, evenly spaced in the order of x.
      label: Name of the intervals in the legend.
      color: Color of intervals and covered targets.
      markersize: Size of the targets, in points. Defaults to less for more rows.
      legend: Whether to draw a legend above the data; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.fill_between` for a band, of `Axes.vlines` for bars.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, sets are no intervals, a target is NaN or no
        number, or the kind is unknown.

    See also:
      plotting.plot_widths, plotting.plot_rolling_coverage, sets.Interval

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 6.0, 50)
      >>> sets = Interval(jnp.sin(x) - 1, jnp.sin(x) + 1)
      >>> ax = plot_intervals(x, sets, jnp.cos(x), legend="lower left")
    """
    _checks.check_one_of("kind", kind or "band", ("band", "bars"))
    x = _axes.as_places(x)
    lower, upper = _ends(sets, x.shape)
    order = np.argsort(x, kind="stable")
    values = [lower.ravel(), upper.ravel()]
    if y is not None:
        y = _axes.as_targets(y).ravel()
        _checks.check_shape("y", x.shape, y.shape)
        covered = ((lower <= y[:, None]) & (y[:, None] <= upper)).any(axis=1)
        drawn = _axes.thinned(order[covered[order]], max_points)
        values.append(y)
    ax = _axes.new_axes() if ax is None else ax
    limits = _axes.data_limits(ax, np.concatenate(values))
    far = 10 * (limits[1] - limits[0])  # outside of the frame, and finite
    ends = np.maximum(lower, limits[0] - far), np.minimum(upper, limits[1] + far)
    rows = tuple(v[order] for v in (x, *ends))
    look = {"color": color, "label": label} | kwargs
    is_line = lower.shape[1] == 1 and _axes.is_ordered(x)
    if kind == "band" or (kind is None and is_line):
        pieces = _draw_band(ax, rows, look)
    else:
        pieces = _draw_bars(ax, rows, look, max_bars)
    if y is not None:
        _axes.draw_targets(ax, (x, y), covered, drawn, color, markersize)
    above, below = (
        (v & (lower <= upper)).any(axis=1) for v in (upper == np.inf, lower == -np.inf)
    )
    if count := np.sum(above | below):
        ax.plot([], [], "^", color=color, ms=6, label=f"infinite ({count:,})")
    _axes.finish(ax, legend, "input", "target", ylim=limits)
    _axes.clip_below_legend(ax, pieces)
    _axes.draw_infinite(ax, x[above], up=True, color=color)
    _axes.draw_infinite(ax, x[below], up=False, color=color)
    return ax


def _ends(sets, shape):
    """Returns ends of the pieces of each set, shape (m, p)."""
    found = as_intervals(as_batch(sets))
    if isinstance(found, HasPieces):
        lower, upper = map(np.asarray, found.pieces())
    else:
        _checks.check_kind("sets of kind Interval or Intervals", found, HasEnds)
        lower, upper = (np.asarray(v)[..., None] for v in found.ends())
    _checks.check_shape("ends", shape, lower.shape[:-1])
    return lower, upper


def _draw_band(ax, rows, look):
    drawn = _axes.thinned(rows[0].size, _PLACES)
    x, lower, upper = (v[drawn] for v in rows)
    look = {"alpha": 0.33, "linewidth": 0} | look
    bands = []
    for low, high in zip(lower.T, upper.T, strict=True):
        bands.append(ax.fill_between(x, low, high, where=low <= high, **look))
        look["label"] = None
    return bands


def _draw_bars(ax, rows, look, most):
    drawn, count = _axes.thinned(rows[0].size, most), rows[0].size
    if drawn.size < count:
        look["label"] = f"{look['label']} ({drawn.size:,} of {count:,} drawn)"
    x, lower, upper = (v[drawn] for v in rows)
    points = 72 * ax.bbox.width / ax.figure.dpi
    width = np.clip(0.5 * points / max(x.size, 1), 1, 4)
    look = {"alpha": 0.5, "linewidth": width} | look
    row, piece = np.nonzero(lower <= upper)
    return [ax.vlines(x[row], lower[row, piece], upper[row, piece], **look)]


@_checks.by_labels
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
    _checks.check_one_of("kind", kind or "line", ("line", "dots"))
    x, sizes = _axes.as_places(x), sizes_of(sets)
    _checks.check_shape("sets, number", x.shape, sizes.shape)
    ax = _axes.new_axes() if ax is None else ax
    look: dict[str, Any] = {"label": label, "color": color}
    if kind == "dots" or (kind is None and not _axes.is_ordered(x)):
        size = markersize or _axes.dot_size(x.size, 2)
        look |= {"linestyle": "", "marker": "o", "mew": 0, "ms": size, "alpha": 0.6}
    order = np.argsort(x, kind="stable")
    shown = np.where(np.isfinite(sizes), sizes, np.nan)[order]
    (line,) = ax.plot(x[order], shown, **look | kwargs)
    ax.autoscale(axis="y")
    ends = ax.get_ylim() if ax.get_yscale() == "log" else (0, ax.get_ylim()[1])
    _axes.finish(ax, legend, "input", size_name(sets), ylim=ends)
    _axes.draw_infinite(ax, x[sizes == np.inf], up=True, color=line.get_color())
    return ax


def plot_sensitivity(
    gammas: ArrayLike,
    sets: Set | ArrayLike,
    finding: float = 0.0,
    *,
    label: str | None = None,
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with sets along how wrong weights may be, and where a finding fails.

    A finding says that a value, such as an effect of 0, is not in the set. A wider box
    of weights has a larger set, and the dotted line is at the first Gamma of those
    given at which the set holds the value.

    Args:
      gammas: Widths of the box, shape (g,): weights are within w / Gamma and w Gamma,
        or as you define it.
      sets: One set at each Gamma: intervals with ends of shape (g,), or an array of
        ends, shape (g, 2). Thresholds, shape (g,), hold all values up to them.
      finding: The value, a number in units of the sets.
      label: Name of the sets in the legend. Defaults to what they are.
      color: Color of the sets and the dotted line.
      legend: Whether to draw a legend above the data; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.fill_between`, of thresholds those of `Axes.plot`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, sets are no intervals, or `finding` is no number.

    References:
      Jin, Ren, Candes, Sensitivity Analysis of Individual Treatment Effects: A Robust
      Conformal Inference Approach, PNAS, 2023.

    See also:
      calibrate, plotting.plot_intervals

    Example:
      >>> gammas = jnp.linspace(1.0, 3.0, 5)
      >>> ends = jnp.stack([2 - gammas, 2 + gammas], axis=1)
      >>> ax = plot_sensitivity(gammas, ends)  # 0 is in from Gamma = 2 on
    """
    gammas = _axes.as_numbers("gammas", gammas).ravel()
    finding = _checks.check_number("finding", finding, lambda v: v == v, "without NaN")
    given: Any = sets
    if is_line := not is_ours(type(given)) and np.ndim(given) == 1:
        given = _axes.as_numbers("sets", given)
        given = Interval(np.full_like(given, -np.inf), given)
    ends = _ends(given, gammas.shape)
    held = np.any((ends[0] <= finding) & (finding <= ends[1]), axis=1)
    ax = _axes.new_axes() if ax is None else ax
    ax.set_ylim(*_axes.data_limits(ax, np.append(ends, finding)))
    _axes.draw_once(
        ax, f"finding {finding}", ax.axhline, finding, label=f"value {finding:g}"
    )
    if held.any():
        first = gammas[held].min()
        ax.axvline(first, color=color, ls=":", label=f"in from Γ = {first:.3g}")
    ax.set_xlabel(ax.get_xlabel() or "sensitivity Γ")
    if not is_line:
        known = {"kind": "band", "label": label or "set", "color": color}
        return plot_intervals(gammas, sets, **known, legend=legend, ax=ax, **kwargs)
    look, order = {"color": color, "label": label or "threshold"}, np.argsort(gammas)
    ax.plot(gammas[order], ends[1][order, 0], **look | kwargs)
    _axes.finish(ax, legend, "", "threshold", ylim=ax.get_ylim())
    _axes.draw_infinite(ax, gammas[ends[1][:, 0] == np.inf], up=True, color=color)
    return ax
