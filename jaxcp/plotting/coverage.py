"""Coverage: its law, and along levels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.certificates.laws import coverage_law
from jaxcp.plotting._axes import (
    COVERED,
    Axes,
    draw_legend,
    draw_level,
    draw_once,
    fit_height,
    ink,
    name_axes,
)
from jaxcp.plotting._inputs import as_axes, as_curves, as_level, as_numbers
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
