"""Coverage: its law, along levels, and in strata of size."""

import math

import numpy as np

from jaxcp import _checks, metrics
from jaxcp.certificates.laws import coverage_law
from jaxcp.metrics._sets import as_batch, closed_form_sizes
from jaxcp.plotting._axes import COVERED, MISSED, TRUTH, Axes, new_axes
from jaxcp.typing import ArrayLike, Set


def plot_coverage(
    samples: ArrayLike, n: int, alpha: float, *, ax: Axes | None = None
) -> Axes:
    """Returns axes with a histogram of coverages against their exact Beta law.

    Args:
      samples: Coverages of calibrated predictors, one a calibration set, shape (r,).
      n: Size of the calibration sets.
      alpha: Miscoverage level, a number in (0, 1).
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if `alpha` is outside (0, 1).

    Example:
      >>> samples = jax.random.beta(jax.random.key(0), 90, 10, (500,))
      >>> ax = plot_coverage(samples, 99, 0.1)
    """
    samples = np.ravel(samples)
    a, b = coverage_law(n, alpha)
    ax = ax or new_axes()
    ax.hist(samples, bins="auto", density=True, color=COVERED, alpha=0.4, label="seen")
    if b > 0:
        mean = a / (a + b)
        width = 5 * math.sqrt(a * b / (a + b + 1)) / (a + b)
        grid = np.linspace(max(mean - width, 1e-6), min(mean + width, 1 - 1e-6), 400)
        log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        density = np.exp(log_norm + (a - 1) * np.log(grid) + (b - 1) * np.log1p(-grid))
        ax.plot(grid, density, color=TRUTH, label=f"Beta({a}, {b})")
    ax.axvline(1 - alpha, color=MISSED, linestyle="--", label=r"$1 - \alpha$")
    ax.set(xlabel="coverage given the calibration set", ylabel="density")
    ax.legend(frameon=False)
    return ax


def plot_coverage_curve(
    alphas: ArrayLike,
    coverages: ArrayLike,
    *,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Returns axes with the coverage of sets against the level they were asked for.

    Args:
      alphas: Miscoverage levels, shape (a,).
      coverages: Coverage at each level, shape (a,), or (r, a) of r test sets, of which
        the mean is drawn with a band of two standard deviations.
      label: Name of the curve in the legend.
      ax: Axes to draw on, e.g. those of another curve. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ.

    Example:
      >>> alphas = jnp.linspace(0.05, 0.95, 19)
      >>> ax = plot_coverage_curve(alphas, 1 - alphas**1.1, label="split")
    """
    levels, coverages = 1 - np.ravel(alphas), np.asarray(coverages)
    _checks.check_shape("coverages", levels.shape, coverages.shape[-1:])
    if ax is None:
        ax = new_axes()
        ax.plot([0, 1], [0, 1], "--", color=TRUTH, linewidth=0.8, label="exact")
    order = np.argsort(levels)
    levels, rows = levels[order], np.atleast_2d(coverages)[:, order]
    mean, spread = rows.mean(axis=0), 2 * rows.std(axis=0)
    (line,) = ax.plot(levels, mean, ".-", label=label)
    if len(rows) > 1:
        color = line.get_color()
        ax.fill_between(levels, mean - spread, mean + spread, color=color, alpha=0.2)
    ax.set(xlabel=r"level $1 - \alpha$", ylabel="coverage")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)
    return ax


def plot_size_stratified_coverage(
    sets: Set, y: ArrayLike, alpha: float, *, num_bins: int = 5, ax: Axes | None = None
) -> Axes:
    """Returns axes with the coverage of sets of similar size, a bar for each stratum.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, a number in (0, 1).
      num_bins: Number of strata of equally many rows, as equal as can be.
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes; a bar is named by its mean size, and has an error bar of two standard
      errors of a coverage of 1 - alpha.

    Raises:
      ValueError: as `metrics.size_stratified_coverage`.

    Example:
      >>> from jaxcp.sets import Interval
      >>> y = jnp.linspace(-1.0, 1.0, 50)
      >>> ax = plot_size_stratified_coverage(Interval(y - y**2, y + y**2), y, 0.1)
    """
    _checks.check_uniforms("alpha", alpha)
    sets = as_batch(sets)
    rates = metrics.size_stratified_coverage(sets, y, num_bins=num_bins)
    sizes = np.sort(np.asarray(closed_form_sizes(sets)))
    strata = np.array_split(sizes, num_bins)
    counts = np.array([max(len(v), 1) for v in strata])
    names = [f"{v.mean():.3g}" if len(v) else "" for v in strata]
    error = 2 * np.sqrt(alpha * (1 - alpha) / counts)
    ax = ax or new_axes()
    ax.bar(range(num_bins), np.asarray(rates), yerr=error, color=COVERED, alpha=0.5)
    ax.axhline(1 - alpha, color=MISSED, linestyle="--", label=r"$1 - \alpha$")
    ax.set_xticks(range(num_bins), names)
    ax.set(xlabel="mean size of the sets of a stratum", ylabel="coverage", ylim=(0, 1))
    ax.legend(frameon=False, loc="lower right")
    return ax
