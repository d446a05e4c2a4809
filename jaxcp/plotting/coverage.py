"""Coverage: its law, and along levels.

Coverage along a stream.

Methods beside each other: coverage and width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.certificates.laws import coverage_law
from jaxcp.plotting._axes import (
    COVERED,
    Axes,
    as_axes,
    as_curves,
    as_level,
    as_numbers,
    as_places,
    draw_legend,
    draw_level,
    draw_once,
    end_at_one,
    fit_height,
    ink,
    name_axes,
    new_axes,
    tidy,
)
from jaxcp.typing import ArrayLike

_FINEST = 100_000  # test rows, up to which coverages are known as fractions
_MOST_BINS = 40


def plot_coverage(
    samples: ArrayLike,
    n: int,
    alpha: float,
    *,
    bins: Any = None,
    num_test: int | None = None,
    label: str | None = None,
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a histogram of coverages against their exact law.

    The law of coverage given the calibration set is Beta(k, n + 1 - k), k the conformal
    rank. Coverage that was counted on `num_test` rows has the law BetaBinomial.

    Args:
      samples: Coverages of calibrated predictors, one a calibration set, shape (r,).
      n: Size of the calibration sets.
      alpha: Miscoverage level, a number in (0, 1).
      bins: Bins as for `Axes.hist`. Defaults to 40 at most; those of fractions
        of test rows all hold equally many fractions.
      num_test: Number of test rows of each coverage. Defaults to infinitely many.
      label: Name of the histogram. Defaults to the number of calibration sets.
      color: Color of the histogram.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.hist`.

    Returns:
      The axes.

    Raises:
      ValueError: if `alpha` is outside (0, 1), a coverage is outside [0, 1], or
        `num_test` is no int >= 1.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      coverage_law, simulate, certificates.coverage_test

    Example:
      >>> samples = jax.random.beta(jax.random.key(0), 90, 10, (500,))
      >>> ax = plot_coverage(samples, 99, 0.1)
    """
    samples = as_numbers("samples", samples).ravel().astype(float)
    _checks.check_uniforms("samples", samples)
    if num_test is not None:
        _checks.check_count("num_test", num_test, 1)
    a, b = coverage_law(n, alpha)
    ax = as_axes(ax)
    label = f"{samples.size:,} calibration sets" if label is None else label
    look = {"color": color, "alpha": 0.4, "histtype": "stepfilled"}  # no seams
    look |= {"label": label, "density": True} | kwargs
    if samples.size:
        ax.hist(samples, bins=_edges(samples) if bins is None else bins, **look)
    if b > 0:
        grid, density, name = _law(a, b, num_test)
        look = {"color": ink(), "linewidth": 1.2, "label": name}
        draw_once(ax, name, lambda: ax.plot(grid, density, **look)[0])
    draw_level(ax, as_level(alpha), upright=True)
    name_axes(ax, "coverage given the calibration set", "density")
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    return ax


def plot_coverage_curve(
    alphas: ArrayLike,
    coverages: ArrayLike,
    *,
    label: str | None = None,
    color: Any = None,
    markersize: float = 5,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the coverage of sets against the 1 - alpha that was asked for.

    The dashed diagonal is exact coverage.

    Args:
      alphas: Miscoverage levels, shape (a,).
      coverages: Coverage at each alpha, shape (a,), or (r, a) of r test sets, of which
        the mean is drawn with a band of two standard deviations.
      label: Name of the curve in the legend.
      color: Color. Defaults to the next one of the axes.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on, e.g. those of another curve. Defaults to new ones.
      kwargs: Options of `Axes.plot`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    See also:
      metrics.coverage, plotting.plot_coverage

    Example:
      >>> alphas = jnp.linspace(0.05, 0.95, 19)
      >>> ax = plot_coverage_curve(alphas, 1 - alphas**1.1, label="split")
    """
    levels = 1 - as_numbers("alphas", alphas).ravel()
    rows = as_curves("coverages", coverages, str(levels.size))
    _checks.check_shape("coverages", levels.shape, rows.shape[-1:])
    ax = as_axes(ax)
    look = {"color": ink(), "linestyle": "--", "linewidth": 1, "label": "exact"}
    draw_once(ax, "diagonal", lambda: ax.axline((0, 0), slope=1, **look))
    order = np.argsort(levels)
    levels, rows = levels[order], rows[:, order]
    mean, spread = rows.mean(axis=0), 2 * rows.std(axis=0)
    look = {"marker": "o", "ms": markersize, "mew": 0, "label": label, "color": color}
    (line,) = ax.plot(levels, mean, **look | kwargs)
    if len(rows) > 1:
        strip: dict[str, Any] = {"color": line.get_color()}
        strip |= {"alpha": 0.2, "linewidth": 0}
        ax.fill_between(levels, mean - spread, mean + spread, **strip)
    name_axes(ax, "1 − α", "coverage")
    draw_legend(ax, legend)
    return ax


def _law(a, b, num_test):
    """Returns where the law of coverage is, its density there, and its name."""
    mean = a / (a + b)
    variance = mean * (1 - mean) / (a + b + 1)
    variance += 0 if num_test is None else (mean * (1 - mean) - variance) / num_test
    low, high = (mean + sign * 5 * math.sqrt(variance) for sign in (-1, 1))
    if num_test is None:
        grid = np.linspace(max(low, 1e-6), min(high, 1 - 1e-6), 400)
        logs = (a - 1) * np.log(grid) + (b - 1) * np.log1p(-grid) - _log_beta(a, b)
        return grid, np.exp(logs), f"Beta({a:,}, {b:,}), exact"
    first, last = max(int(low * num_test), 0), min(int(high * num_test) + 1, num_test)
    hits = np.unique(np.linspace(first, last, 400).astype(int))
    logs = [_log_probability(int(h), num_test, a, b) for h in hits]
    density = num_test * np.exp(logs)
    return hits / num_test, density, f"BetaBinomial({num_test:,}, {a:,}, {b:,}), exact"


def _log_probability(hits, m, a, b):
    choose = -_log_beta(hits + 1, m - hits + 1) - math.log(m + 1)
    return choose + _log_beta(a + hits, b + m - hits) - _log_beta(a, b)


def _log_beta(a, b):
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _edges(samples):
    """Returns edges of bins: as many as rows allow, each with equally many values."""
    samples = samples[np.isfinite(samples)]
    low, high = (samples.min(), samples.max()) if samples.size else (0.0, 1.0)
    if not samples.size or high - low < 1e-9:
        return np.linspace(low - 0.05, high + 0.05, 12)
    lower, upper = np.percentile(samples, [25, 75])
    width = 2 * (upper - lower) / np.cbrt(samples.size)  # Freedman, Diaconis 1981
    width = max(width, (high - low) / _MOST_BINS)
    step = _step(samples)
    if step:
        width = step * max(round(width / step), 1)
        low = low - step / 2
    count = math.ceil((high - low) / width + 1e-6)
    return low + width * np.arange(count + 1)


def _step(samples):
    """Returns the step of the grid that fractions of test rows are on, or None."""
    distinct = np.unique(np.round(samples, 7))  # single precision
    gaps = np.diff(distinct)
    gaps = gaps[gaps > 1e-6]
    if not gaps.size or gaps.min() < 1 / _FINEST:
        return None
    count = round(1 / gaps.min())
    on_grid = np.abs(distinct * count - np.round(distinct * count)) < 0.01
    return 1 / count if on_grid.all() else None


def plot_rolling_coverage(
    covered: ArrayLike,
    alpha: float,
    *,
    window: int,
    x: ArrayLike | None = None,
    label: str | None = None,
    color: Any = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the coverage of the last steps, along a stream.

    Call it again with `ax` to compare methods. The gray strip is two standard errors of
    a window of independent steps wide, on both sides of 1 - alpha.

    Args:
      covered: Whether each step's set held its target, shape (t,), or (r, t) of r
        streams, of which the mean is drawn: `metrics.covered(sets, y)`.
      alpha: Miscoverage level, a number in (0, 1).
      window: Number of steps to average over; the first point is of the first full
        window, at its last step.
      x: Times of the steps, shape (t,): numbers or dates. Defaults to 0, ..., t - 1.
      label: Name of the curve in the legend.
      color: Color. Defaults to the next one of the axes.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.plot`.

    Returns:
      The axes.

    Raises:
      ValueError: if `window` is no int in 1, ..., t, lengths differ, `alpha` is outside
        (0, 1), or `covered` outside [0, 1].

    See also:
      metrics.covered, online.run

    Example:
      >>> covered = jax.random.bernoulli(jax.random.key(0), 0.9, (500,))
      >>> ax = plot_rolling_coverage(covered, 0.1, window=100, label="ACI")
    """
    rows = as_curves("covered", covered, "t").astype(float)
    _checks.check_uniforms("covered", rows)
    t = rows.shape[1]
    times = np.arange(t) if x is None else as_places(x)
    _checks.check_shape("x", (t,), times.shape)
    alpha = as_level(alpha)
    _checks.check_count("window", window, 1)
    if window > t:
        raise ValueError(f"expected window <= {t}, the number of steps, got {window}")
    sums = np.cumsum(np.pad(rows.mean(axis=0), (1, 0)))
    rates = (sums[window:] - sums[:-window]) / window
    ax = as_axes(ax)
    error = 2 * np.sqrt(alpha * (1 - alpha) / (window * len(rows)))
    strip = {"color": ink(), "alpha": 0.15, "linewidth": 0}
    strip["label"] = "two standard errors"
    ends = 1 - alpha - error, min(1 - alpha + error, 1)
    draw_once(ax, f"strip {window}", lambda: ax.axhspan(*ends, **strip))
    draw_level(ax, alpha)
    ax.plot(times[window - 1 :], rates, **{"label": label, "color": color} | kwargs)
    name_axes(ax, "step", f"coverage of the last {window:,}")
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    end_at_one(ax)
    tidy(ax)
    return ax


def plot_comparison(
    names: Sequence[str],
    coverages: ArrayLike,
    sizes: ArrayLike,
    alpha: float,
    *,
    coverage_errors: ArrayLike | None = None,
    size_errors: ArrayLike | None = None,
    lowest: float | None = None,
    size_name: str = "mean width",
    label: str | None = None,
    color: Any = None,
    markersize: float = 5,
    legend: bool | str = True,
    ax: Any = None,
    **kwargs: Any,
) -> np.ndarray:
    """Returns two axes with the coverage and the size of methods, a row for each.

    Call it again with `ax` and another `label` for other data: rows share their places.

    Args:
      names: Names of the methods, k of them, from top to bottom.
      coverages: Coverage of each, shape (k,).
      sizes: Mean width or size of each, shape (k,); +inf and NaN are written.
      alpha: Miscoverage level, a number in (0, 1).
      coverage_errors: Errors of the coverages on both sides, shape (k,), or (2, k)
        below and above, e.g. two standard errors.
      size_errors: Errors of the sizes, shape (k,) or (2, k).
      lowest: Where the axis of coverage begins; an arrow and its number mark what lies
        below. Defaults to showing all.
      size_name: Name of the axis of sizes.
      label: Name of the data in the legend.
      color: Color. Defaults to the next one of the axes.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend above the rows; or where, as matplotlib's `loc`.
      ax: Two axes to draw on, coverage first. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`.

    Returns:
      The two axes, shape (2,).

    Raises:
      ValueError: if lengths differ, `ax` is not two axes, or has rows of other names.

    See also:
      metrics.coverage, metrics.mean_size, plotting.plot_coverage

    Example:
      >>> ax = plot_comparison(
      ...     ["split", "CQR"], [0.9, 0.91], [2.0, 1.7], 0.1, coverage_errors=[0.01] * 2
      ... )
    """
    coverages = _column("coverages", coverages, names)
    sizes = _column("sizes", sizes, names)
    alpha = as_level(alpha)
    axes = _two_axes(ax, names)
    left, right = axes
    series = len(left.containers)
    rows = np.arange(len(names)) + 0.2 * series
    draw_level(left, alpha, upright=True)
    shown = _cut(left, rows, coverages, lowest)
    errors = _errors("coverage_errors", coverage_errors, shown)
    look = {"fmt": "o", "ms": markersize, "linewidth": 1.2, "color": color} | kwargs
    bars = left.errorbar(shown, rows, xerr=errors, label=label, **look)
    shown = _written(right, rows, sizes)
    errors = _errors("size_errors", size_errors, shown)
    look["color"] = bars.lines[0].get_color()
    right.errorbar(shown, rows, xerr=errors, **look)
    name_axes(left, "coverage", "")
    name_axes(right, size_name, "")
    _name_rows(axes, names, series)
    _finish(axes, legend, lowest)
    return axes


def _column(name, values, names):
    """Returns one number for each method."""
    values = as_numbers(name, values).ravel()
    _checks.check_shape(name, (len(names),), values.shape)
    return values


def _two_axes(ax, names):
    """Returns the axes that are given, or new ones with a row for each method."""
    height = 0.28 * len(names) + 1.3
    axes = new_axes(3, 2, height=height) if ax is None else np.ravel(ax)
    if len(axes) != 2:
        raise ValueError(f"expected ax as two axes, got {len(axes)}")
    _check_names(axes[0], names)
    return axes


def _check_names(ax, names):
    """Raises ValueError where axes already have rows with other names."""
    drawn = [text.get_text() for text in ax.get_yticklabels()]
    if ax.containers and drawn != [str(name) for name in names]:
        drawn = ", ".join(drawn)
        raise ValueError(f"expected names as the axes have them, {drawn}, got {names}")


def _errors(name, errors, values):
    """Returns errors for matplotlib, none where there is no value."""
    if errors is None:
        return None
    errors = as_numbers(name, errors).astype(float)
    if errors.shape not in (values.shape, (2, values.size)):
        shapes = f"{values.shape} or {(2, values.size)}"
        raise ValueError(f"expected {name} of shape {shapes}, got {errors.shape}")
    _checks.check_values(lambda v: ~(v < 0), f"{name} >= 0", errors)
    return np.where(np.isfinite(values), errors, np.nan)


def _cut(ax, rows, values, lowest):
    """Returns the values to draw; an arrow at the frame is for those below."""
    if lowest is None:
        return values
    below = values < lowest
    frame = {"transform": ax.get_yaxis_transform(), "color": ink()}
    ax.plot(np.full(below.sum(), 0.02), rows[below], "<", ms=5, **frame)
    for row, value in zip(rows[below], values[below], strict=True):
        ax.text(0.05, row, f"{value:.3g}", va="center", fontsize="small", **frame)
    return np.where(below, np.nan, values)


def _written(ax, rows, sizes):
    """Returns the sizes to draw; infinite and unknown ones are written at the right."""
    place = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
    for row, size in zip(rows, sizes, strict=True):
        if not np.isfinite(size):
            name = "infinite" if np.isinf(size) else "unknown"
            ax.text(0.98, row, name, fontsize="small", color=ink(), **place)
    return np.where(np.isfinite(sizes), sizes, np.nan)


def _name_rows(axes, names, series):
    """Names the rows; those of later series lie a little lower."""
    axes[0].set_yticks(np.arange(len(names)) + 0.1 * series, names)
    for each in axes:
        each.set_ylim(len(names) - 0.5 + 0.2 * series, -0.5)
        each.tick_params(axis="y", length=0)


def _finish(axes, legend, lowest):
    """Fits the axes: coverage from `lowest` on, sizes from 0 on."""
    left, right = axes
    for each in axes:
        each.autoscale(axis="x")
    if lowest is not None:
        left.set_xlim(left=lowest)
    low, high = right.get_xlim()
    low = min(low, 0.0)
    right.set_xlim(low, high + 0.03 * (high - low))
    draw_legend(left, legend, above=True)
    right.set_ylim(left.get_ylim())
    tidy(right)
