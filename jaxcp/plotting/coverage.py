"""Coverage: its law, along levels and streams, and of parts of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcp import _checks, _names, metrics
from jaxcp.certificates.laws import coverage_law, log_beta_binomial
from jaxcp.metrics.rates import wilson
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, MISSED, Axes
from jaxcp.plotting.sizes import size_name, sizes_of
from jaxcp.typing import ArrayLike, Set

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
    samples = _axes.as_numbers("samples", samples).ravel().astype(float)
    _checks.check_uniforms("samples", samples)
    if num_test is not None:
        _checks.check_count("num_test", num_test, 1)
    a, b = coverage_law(n, alpha)
    ax = _axes.new_axes() if ax is None else ax
    label = f"{samples.size:,} calibration sets" if label is None else label
    look = {"color": color, "label": label, "density": True} | _axes.FILLED | kwargs
    if samples.size:
        ax.hist(samples, bins=_edges(samples) if bins is None else bins, **look)
    if b > 0:
        *law, name = _law(a, b, num_test)
        look = {"linestyle": "-", "linewidth": 1.2, "label": name}
        _axes.draw_once(ax, name, ax.plot, *law, **look)
    _axes.draw_level(ax, _axes.as_level(alpha), upright=True)
    return _axes.finish(ax, legend, "coverage given the calibration set", "density")


def _law(a, b, num_test):
    """Returns where the law of coverage is, its density there, and its name."""
    mean = a / (a + b)
    variance = mean * (1 - mean) / (a + b + 1)
    variance += 0 if num_test is None else (mean * (1 - mean) - variance) / num_test
    low, high = (mean + sign * 5 * math.sqrt(variance) for sign in (-1, 1))
    if num_test is None:
        grid = np.linspace(max(low, 1e-6), min(high, 1 - 1e-6), 400)
        logs = (a - 1) * np.log(grid) + (b - 1) * np.log1p(-grid)
        logs += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        return grid, np.exp(logs), f"Beta({a:,}, {b:,}), exact"
    first, last = max(int(low * num_test), 0), min(int(high * num_test) + 1, num_test)
    hits = np.unique(np.linspace(first, last, 400).astype(int))
    density = num_test * np.exp(log_beta_binomial(a, b, num_test)[hits])
    return hits / num_test, density, f"BetaBinomial({num_test:,}, {a:,}, {b:,}), exact"


def _edges(samples):
    """Returns edges of bins: as many as rows allow, each with equally many values."""
    samples = samples[np.isfinite(samples)]
    low, high = (samples.min(), samples.max()) if samples.size else (0.0, 1.0)
    if high - low < 1e-9 or not samples.size:
        return np.linspace(low - 0.05, high + 0.05, 12)
    lower, upper = np.percentile(samples, [25, 75])
    width = 2 * (upper - lower) / np.cbrt(samples.size)  # Freedman, Diaconis 1981
    width = max(width, (high - low) / _MOST_BINS)
    if step := _step(samples):
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
    p_values = _axes.as_numbers("p_values", p_values).ravel()
    _checks.check_uniforms("p_values", p_values)
    _checks.check_count("num_bins", num_bins, 1)
    filled = {"color": color} | _axes.FILLED
    parts = [(label, p_values, filled)]
    if is_nominal is not None:
        rows = np.asarray(_checks.flags("is_nominal", is_nominal)).ravel()
        _checks.check_shape("is_nominal", p_values.shape, rows.shape)
        outline = {"color": MISSED, "histtype": "step", "linewidth": 1.6}
        parts = [("nominal", p_values[rows], filled)]
        parts += [("outliers", p_values[~rows], outline)]
    ax = _axes.new_axes() if ax is None else ax
    bins = np.linspace(0, 1, num_bins + 1).tolist()
    for name, part, look in parts:
        if part.size:
            look = look | {"label": f"{name} ({part.size:,})"} | kwargs
            ax.hist(part, bins=bins, density=True, **look)
    _axes.draw_once(ax, "uniform", ax.axhline, 1, label="uniform")
    ax.set_xlim(0, 1)
    return _axes.finish(ax, legend, "p-value", "density")


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
    levels = 1 - _axes.as_numbers("alphas", alphas).ravel()
    rows = _axes.as_curves("coverages", coverages, levels.size)
    ax = _axes.new_axes() if ax is None else ax
    _axes.draw_once(ax, "diagonal", ax.axline, (0, 0), slope=1, label="exact")
    order = np.argsort(levels)
    levels, rows = levels[order], rows[:, order]
    mean, spread = rows.mean(axis=0), 2 * rows.std(axis=0)
    look = {"marker": "o", "ms": markersize, "mew": 0, "label": label, "color": color}
    (line,) = ax.plot(levels, mean, **look | kwargs)
    if len(rows) > 1:
        strip: dict[str, Any] = {"color": line.get_color()}
        strip |= {"alpha": 0.2, "linewidth": 0}
        ax.fill_between(levels, mean - spread, mean + spread, **strip)
    return _axes.finish(ax, legend, "1 − α", "coverage", above=False)


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
    rows = _axes.as_curves("covered", covered).astype(float)
    _checks.check_uniforms("covered", rows)
    t = rows.shape[1]
    times = np.arange(t) if x is None else _axes.as_places(x)
    _checks.check_shape("x", (t,), times.shape)
    alpha = _axes.as_level(alpha)
    _checks.check_count("window", window, 1)
    if window > t:
        raise ValueError(f"expected window <= {t}, the number of steps, got {window}")
    sums = np.cumsum(np.pad(rows.mean(axis=0), (1, 0)))
    rates = (sums[window:] - sums[:-window]) / window
    ax = _axes.new_axes() if ax is None else ax
    error = 2 * np.sqrt(alpha * (1 - alpha) / (window * len(rows)))
    ends = 1 - alpha - error, min(1 - alpha + error, 1)
    strip = {"alpha": 0.15, "linewidth": 0, "label": "two standard errors"}
    _axes.draw_once(ax, f"strip {window}", ax.axhspan, *ends, **strip)
    _axes.draw_level(ax, alpha)
    ax.plot(times[window - 1 :], rates, **{"label": label, "color": color} | kwargs)
    name = f"coverage of the last {window:,}"
    return _axes.finish(ax, legend, "step", name, share=True)


def plot_monitor(
    log_capital: ArrayLike,
    alarm_level: float,
    *,
    losses: ArrayLike | None = None,
    limit: float | None = None,
    band: tuple[ArrayLike, ArrayLike] | None = None,
    x: ArrayLike | None = None,
    label: str | None = None,
    color: Any = None,
    legend: bool | str = True,
    ax: Any = None,
    **kwargs: Any,
) -> Any:
    """Returns axes with the capital of a monitor, its alarm line and its first alarm.

    With `losses`, axes above have their mean so far, its limit and its band. Call it
    again with `ax` to compare streams.

    Args:
      log_capital: Log of the capital after each step, shape (t,), from `monitor.run` or
        `pvalues.watch`.
      alarm_level: Log of the capital at which there is an alarm: `monitor.alarm_level`
        or `pvalues.alarm_level(delta)`.
      losses: Losses, shape (t,).
      limit: Limit of their mean.
      band: Ends from `online.confidence_sequence`, shape (t,) each.
      x: Times of the steps, shape (t,): numbers or dates. Defaults to 1, ..., t.
      label: Name of the curves in the legend.
      color: Color. Defaults to the next one of the axes.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on, two with `losses`. Defaults to new ones.
      kwargs: Options of `Axes.plot`.

    Returns:
      The axes: one, or two with `losses`, shape (2,).

    Raises:
      ValueError: if lengths differ, the capital is not of shape (t,), `limit` or `band`
        come without `losses`, or `ax` is not one axes, or two with `losses`.

    See also:
      online.RiskMonitor, online.ChangeMonitor, online.confidence_sequence,
      pvalues.watch

    Example:
      >>> from jaxcp import online
      >>> losses, monitor = jnp.arange(300) % 6 == 0, online.RiskMonitor(0.1, 0.05)
      >>> _, log_capital = monitor.run(losses)
      >>> ax = plot_monitor(log_capital, monitor.alarm_level, losses=losses, limit=0.1)
    """
    logs = _axes.as_numbers("log_capital", log_capital) / np.log(10)
    _checks.check_vectors(log_capital=logs)
    _checks.check_scalars(alarm_level=alarm_level)
    level, count = float(alarm_level) / np.log(10), np.size(ax)
    if losses is None and (limit is not None or band is not None):
        raise ValueError("expected losses with limit and band, got losses=None")
    if ax is not None and count != (expected := 1 + (losses is not None)):
        raise ValueError(f"expected ax as {expected} axes, got {count}")
    times = np.arange(1, logs.size + 1) if x is None else _axes.as_places(x)
    losses = losses if losses is None else _axes.as_numbers("losses", losses)
    _checks.num_rows(log_capital=logs, x=times, losses=losses, band=band)
    panels = {} if losses is None else {"height": 5, "nrows": 2, "sharex": True}
    ax = _axes.new_axes(**panels) if ax is None else ax
    *above, below = np.ravel(ax)
    look = {"label": label, "color": color} | kwargs
    own = {"color": below.plot(times, logs, **look)[0].get_color()}
    _draw_line(below, level, f"alarm at {10.0 ** min(level, 300):,.4g}")
    for i in np.flatnonzero(logs >= level)[:1]:
        named = f"first alarm: step {i + 1:,}"
        below.plot(times[i], logs[i], "o", color=MISSED, ms=6, label=named)
    _axes.finish(below, legend, "step", "log10 of the capital")
    for upper in above:
        means = np.cumsum(np.asarray(losses)) / np.arange(1, logs.size + 1)
        upper.plot(times, means, **look | own)
        if band is not None:
            ends, strip = map(np.asarray, band), {"alpha": 0.2, "linewidth": 0}
            upper.fill_between(times, *ends, label="confidence sequence", **strip | own)
        if limit is not None:
            _draw_line(upper, limit, f"limit = {limit:.4g}")
        _axes.finish(upper, legend, "step", "mean loss so far")
    return ax


def _draw_line(ax, y, name):
    _axes.draw_once(ax, name, ax.axhline, y, label=name)


@_checks.by_labels
def plot_group_coverage(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: float,
    *,
    clusters: ArrayLike | None = None,
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
    binomial law of the group's rows: Wilson's interval of two standard errors. Rows in
    clusters count as in `metrics.by_group`.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      groups: Group of each row, shape (m,), int or by name; for classes the labels.
      alpha: Miscoverage level of the sets, a number in (0, 1).
      clusters: Cluster of each row, as for `metrics.by_group`. Defaults to none.
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
      ValueError: if lengths differ, or `alpha` is outside (0, 1).
      TypeError: if groups have no order, as where some are missing.

    References:
      Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
      Journal of the American Statistical Association, 1927.

    See also:
      metrics.by_group, metrics.class_coverage, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> y, groups = jnp.linspace(-1.0, 1.0, 60), jnp.arange(60) % 3
      >>> sets = Interval(jnp.full(60, -0.9), jnp.full(60, 0.9))
      >>> ax = plot_group_coverage(sets, y, groups, 0.1, names=["a", "b", "c"])
    """
    alpha = _axes.as_level(alpha)
    covered = np.asarray(metrics.covered(sets, y))
    groups = _names.on_host("groups", groups).ravel()
    _checks.check_shape("groups", covered.shape, groups.shape)
    group_names = _names.as_names("groups", _names.distinct(groups)[0])
    group_names = _names.in_order(group_names)
    codes = _names.equal_places(group_names, groups)
    counts = np.bincount(codes)
    if clusters is None:
        rates = rates_of_counts(np.bincount(codes, covered) / counts, counts)
    else:
        k = len(counts)
        table = metrics.by_group(sets, y, codes, num_groups=k, clusters=clusters)
        rates = rates_of_table(table)
    names = group_names if names is None else names
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    return draw_groups(ax, names, counts, rates, alpha, look, legend)


class Rates(NamedTuple):
    """Rates with the ends of their intervals, of numpy, shape (g,)."""

    rate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def rates_of_counts(rate: np.ndarray, counts: np.ndarray) -> Rates:
    """Returns rates of so many independent rows."""
    low, high = wilson(rate, counts)
    return Rates(rate, low, high)


def rates_of_table(table: metrics.GroupSummary) -> Rates:
    """Returns the coverage of groups as `metrics.by_group` has it."""
    rate, low, high = (np.asarray(table[k]) for k in ("coverage", "low", "high"))
    return Rates(rate, low, high)


def draw_groups(ax, names, counts, rates, alpha, look, legend=True):
    """Draws a row for each group, with its name and the number of its rows."""
    names = [f"{name} ({n:,})" for name, n in zip(names, counts, strict=True)]
    k = len(names)
    height = max(min(0.26 * k, 4 + 0.13 * k) + 1.3, 2)
    ax = _axes.new_axes(height) if ax is None else ax
    _dots(ax, rates, alpha, look, upright=True)
    ax.set_yticks(range(k), names, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ends = max(k, 1) - 0.5, -0.5
    return _axes.finish(ax, legend, "coverage", "", ylim=ends)


@_checks.by_labels
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
    alpha = _axes.as_level(alpha)
    rates = metrics.size_stratified_coverage(sets, y, num_bins=num_bins)
    strata = np.array_split(np.sort(sizes_of(sets)), num_bins)
    counts = np.array([len(v) for v in strata])
    names = [f"{v.mean():.3g}" if len(v) else "" for v in strata]
    ax = _axes.new_axes() if ax is None else ax
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    _dots(ax, rates_of_counts(np.asarray(rates, float), counts), alpha, look)
    ax.set_xticks(range(num_bins), names, rotation=90 if num_bins > 10 else 0)
    ax.set_xlim(-0.5, num_bins - 0.5)
    name = f"mean {size_name(sets)} of the stratum"
    return _axes.finish(ax, legend, name, "coverage", share=True)


def _dots(
    ax: Axes, rates: Rates, alpha: float, look: dict[str, Any], upright: bool = False
) -> None:
    """Draws a dot with errors for each part, those surely below 1 - alpha apart."""
    _axes.draw_level(ax, alpha, upright)
    places, is_low = np.arange(len(rates.rate)), rates.high < 1 - alpha
    draw_rates(ax, places, rates, is_low, "clearly below 1 − α", look, upright)


def draw_rates(ax, places, rates, apart, name, look, upright=False):
    """Draws a dot with errors for each rate that is known, some of them apart."""
    values, is_known = rates.rate, ~np.isnan(rates.rate)
    errors = np.clip([values - rates.low, rates.high - values], 0, 1)
    named = {"color": MISSED, "label": name}
    for rows, marker, own in ((~apart & is_known, "o", {}), (apart, "D", named)):
        if rows.any():
            style = {"fmt": marker, "elinewidth": 1.2} | look | own
            dots = [places[rows], values[rows]][:: -1 if upright else 1]
            side = "xerr" if upright else "yerr"
            ax.errorbar(*dots, **{side: errors[:, rows]}, **style)
