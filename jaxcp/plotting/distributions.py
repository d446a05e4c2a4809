"""Predictive distributions and probabilities: what they say, and what happens."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.certificates.laws import log_beta_binomial
from jaxcp.certificates.testing import pit_bounds
from jaxcp.metrics.probabilities import of_bins
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, Axes
from jaxcp.plotting.coverage import draw_rates, rates_of_counts
from jaxcp.plotting.intervals import plot_intervals
from jaxcp.predictive import Atoms
from jaxcp.typing import ArrayLike


def plot_pit(
    pit: ArrayLike,
    num_calibration: int,
    *,
    num_bins: int = 10,
    probability: float = 0.95,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with a histogram of PIT values and the band of right systems.

    The band is of the Dirichlet-multinomial law of values that share n calibration
    scores: it does not narrow to nothing with more test rows. A bin that ends
    outside of it speaks against the system.

    Args:
      pit: Values Q(y, u) of predictive distributions at m targets, shape (m,), in
        [0, 1].
      num_calibration: Number n of calibration scores.
      num_bins: Number of bins, unions of the n + 1 cells, from 2 to n + 1.
      probability: Probability, at least, that all bins of a right system end in the
        band, in (0, 1).
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.hist`, such as `color` and `label`.

    Returns:
      The axes.

    Raises:
      ValueError: as `certificates.pit_test`, or if `probability` is outside (0, 1).

    See also:
      certificates.pit_test, plotting.plot_p_values

    Example:
      >>> ax = plot_pit(jax.random.uniform(jax.random.key(0), (500,)), 99)
    """
    pit, bounds = pit_bounds(pit, num_calibration, num_bins)
    edges, m = bounds / (num_calibration + 1), pit.size
    tail = (1 - _axes.as_level(probability)) / (2 * num_bins)  # Bonferroni
    ends = [_ends_of_count(c, num_calibration, m, tail) for c in np.diff(bounds)]
    density = np.array(ends) / (m * np.diff(edges)[:, None])
    low, high = np.vstack([density, density[-1:]]).T
    ax = _axes.new_axes() if ax is None else ax
    look = {"color": COVERED, "label": f"PIT of {m:,} rows"} | _axes.FILLED | kwargs
    ax.hist(pit, bins=edges.tolist(), density=True, **look)
    strip: dict[str, Any] = {"color": _axes.ink(), "alpha": 0.2, "linewidth": 1}
    strip["label"] = f"band of all bins, {100 * probability:.4g} %"
    ax.fill_between(edges, low, high, step="post", **strip)
    _axes.draw_once(ax, "uniform", ax.axhline, 1, label="uniform")
    ax.set_xlim(0, 1)
    return _axes.finish(ax, legend, "PIT", "density")


def _ends_of_count(cells, n, m, tail):
    """Returns the counts beyond which a bin's is with probability <= tail a side."""
    law = np.exp(log_beta_binomial(int(cells), n + 1 - int(cells), m))
    return np.sum(np.cumsum(law) <= tail), m - np.sum(np.cumsum(law[::-1]) <= tail)


def plot_cdf(
    atoms: Atoms,
    *,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the predictive distribution of one example, from its atoms.

    The strip reaches from Q(y, 0) to Q(y, 1), the line is Q(y, 1/2), as `Atoms.cdf`
    returns them. Infinite atoms lie at the frame. Call it again with `ax` for another
    example.

    Args:
      atoms: A predictive distribution of one example, such as `Atoms(values)`.
      legend: Whether to draw a legend if there are labels; or where, as matplotlib's
        `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.step`, such as `color` and `label`.

    Returns:
      The axes.

    Raises:
      ValueError: for anything but atoms of one example, and as `Atoms.cdf`.

    See also:
      predictive.Atoms, plotting.plot_fan, plotting.plot_pit

    Example:
      >>> from jaxcp.predictive import Atoms
      >>> values = jax.random.normal(jax.random.key(0), (19,))
      >>> ax = plot_cdf(Atoms(values), label="row 1")
    """
    _checks.check_kind("atoms of kind Atoms", atoms, Atoms)
    _checks.check_vectors(values=atoms.values)
    ends = np.pad(np.sort(atoms.values), 1, constant_values=(-np.inf, np.inf))
    low, high = atoms.cdf(ends[1:], u=0.0), atoms.cdf(ends[:-1], u=1.0)
    low, high = (np.append(v, v[-1]) for v in (low, high))
    x = np.clip(ends, *_axes.padded(ends))
    ax = _axes.new_axes() if ax is None else ax
    (line,) = ax.step(x, (low + high) / 2, **{"where": "post"} | kwargs)
    strip: dict[str, Any] = {"color": line.get_color(), "alpha": 0.3, "linewidth": 0}
    ax.fill_between(x, low, high, step="post", **strip)
    return _axes.finish(ax, legend, "target", "probability", share=True)


def plot_fan(
    x: ArrayLike,
    quantiles: ArrayLike,
    levels: ArrayLike,
    y: ArrayLike | None = None,
    *,
    color: Any = COVERED,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with quantiles along one input, as bands within each other.

    The first level and the last one bound the widest band, and so on; with an odd
    number of levels the one in the middle is a line. Crosses mark targets beyond the
    widest band. Infinite ends reach the frame, as in `plot_intervals`.

    Args:
      x: Position of each row, shape (m,): numbers or dates.
      quantiles: Quantiles of each row, shape (m, l), in units of the target.
      levels: Their levels, increasing in (0, 1), shape (l,), l >= 2.
      y: Targets, shape (m,), drawn as points.
      color: Color of bands and targets.
      legend: Whether to draw a legend above the data; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `plot_intervals`, such as `max_points` and `markersize`, or of
        `Axes.fill_between`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, levels do not increase, there is one alone, or a
        target is NaN.

    See also:
      plotting.plot_intervals, plotting.plot_cdf

    Example:
      >>> x, levels = jnp.linspace(0.0, 1.0, 30), jnp.array([0.05, 0.5, 0.95])
      >>> quantiles = x[:, None] * jax.scipy.stats.norm.ppf(levels)[None]
      >>> ax = plot_fan(x, quantiles, levels)
    """
    x, levels = _axes.as_places(x), _axes.as_numbers("levels", levels).ravel()
    rises = lambda v: (v > np.append(0, v[:-1])) & (v < 1)  # noqa: E731
    _checks.check_values(rises, "levels that increase in (0, 1)", levels)
    quantiles = _axes.as_numbers("quantiles", quantiles)
    _checks.check_shape("quantiles", (x.size, max(levels.size, 2)), quantiles.shape)
    ax = _axes.new_axes() if ax is None else ax
    half, names = levels.size // 2, [f"{level:.4g}" for level in levels]
    if levels.size % 2:
        order = np.argsort(x, kind="stable")
        ax.plot(x[order], quantiles[order, half], color=color, label=names[half])
    for i in range(half)[::-1]:  # the widest band last, with targets and the legend
        look = {"kind": "band", "color": color, "alpha": 0.3 + 0.4 * i / half} | kwargs
        look |= {"label": f"{names[i]} to {names[-1 - i]}", "legend": i == 0 and legend}
        ends = quantiles[:, [i, -1 - i]]
        plot_intervals(x, ends, y if i == 0 else None, ax=ax, **look)
    return ax


@_checks.by_labels
def plot_reliability(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    num_bins: int = 10,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the rate of an event against its predicted probability.

    A dot for each bin with rows: their mean probability, and the share of them where
    the event happened, with Wilson's interval of two standard errors. Bins whose
    interval misses the dashed diagonal, on which calibrated probabilities lie, are
    diamonds in another color; one of 22 does so by chance. Bars are the shares of rows.
    Call it again with `ax` to compare probabilities.

    Args:
      probs: Probabilities of one event, shape (m,).
      y: True where the event happened, shape (m,).
      num_bins: Number of bins (a, b] of equal width.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`, such as `color`, `label` and `markersize`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, a probability is outside [0, 1], or `num_bins` is
        no int >= 1.

    References:
      Niculescu-Mizil, Caruana, Predicting Good Probabilities with Supervised Learning,
      ICML, 2005.
      Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
      Journal of the American Statistical Association, 1927.

    See also:
      metrics.expected_calibration_error, metrics.calibration_test

    Example:
      >>> probs = jax.random.uniform(jax.random.key(0), (1000,))
      >>> y = jax.random.bernoulli(jax.random.key(1), probs**2)
      >>> ax = plot_reliability(probs, y)
    """
    probs, y = map(np.asarray, of_bins(probs, y, num_bins=num_bins)[0])
    edges = np.linspace(0, 1, num_bins + 1, dtype=probs.dtype)[1:-1]
    place = np.digitize(probs, edges, right=True)
    columns = probs, y, np.ones(y.shape)
    sums = np.array([np.bincount(place, v, num_bins) for v in columns])
    total, events, counts = sums[:, sums[-1] > 0]
    places = total / counts
    ax = _axes.new_axes() if ax is None else ax
    _axes.draw_once(ax, "diagonal", ax.axline, (0, 0), slope=1, label="calibrated")
    rates = rates_of_counts(events / counts, counts)
    off = (rates.high < places) | (rates.low > places)
    look = {"color": COVERED, "label": "rate, two standard errors"} | kwargs
    draw_rates(ax, places, rates, off, "clearly off the diagonal", look)
    strip: dict[str, Any] = {"color": look["color"], "alpha": 0.25, "zorder": 0}
    ax.bar(places, counts / y.size, 0.6 / num_bins, **strip)
    ax.set_xlim(0, 1)
    return _axes.finish(ax, legend, "predicted probability", "rate", share=True)
