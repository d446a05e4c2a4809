"""Predictive distributions: their calibration, one of them, and many along an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.certificates.laws import log_beta_binomial
from jaxcp.certificates.testing import pit_counts
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, Axes
from jaxcp.plotting.intervals import plot_intervals
from jaxcp.typing import ArrayLike


def plot_pit(
    pit: ArrayLike,
    num_calibration: int,
    *,
    num_bins: int = 10,
    probability: float = 0.95,
    label: str | None = None,
    color: Any = COVERED,
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
      label: Name of the values. Defaults to their number.
      color: Color of the histogram.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.hist`.

    Returns:
      The axes.

    Raises:
      ValueError: as `certificates.pit_test`, or if `probability` is outside (0, 1).

    See also:
      certificates.pit_test, plotting.plot_p_values

    Example:
      >>> ax = plot_pit(jax.random.uniform(jax.random.key(0), (500,)), 99)
    """
    pit, cells, _ = pit_counts(pit, num_calibration, num_bins)
    edges = np.append(0, np.cumsum(cells)) / (num_calibration + 1)
    tail = (1 - _axes.as_level(probability)) / (2 * num_bins)  # Bonferroni
    ends = [_ends_of_count(c, num_calibration, pit.size, tail) for c in cells]
    density = np.array(ends) / (pit.size * np.diff(edges)[:, None])
    ax = _axes.new_axes() if ax is None else ax
    label = f"PIT of {pit.size:,} rows" if label is None else label
    look = {"color": color, "label": label, "density": True} | _axes.FILLED | kwargs
    ax.hist(pit, bins=edges.tolist(), **look)
    low, high = np.vstack([density, density[-1:]]).T
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
    values: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    test_weight: float = 1.0,
    label: str | None = None,
    color: Any = None,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the predictive distribution of one example, from its atoms.

    The strip reaches from Q(y, 0) to Q(y, 1), the line is Q(y, 1/2): Q(y, u) = (mass of
    atoms < y + u (mass at y + test weight)) / (mass of all + test weight). Infinite
    atoms lie at the frame. Call it again with `ax` for another example.

    Args:
      values: Atoms of the distribution, shape (n,), in units of the target.
      weights: Weights >= 0 of the atoms, shape (n,). Defaults to ones.
      test_weight: Weight of the test point, > 0.
      label: Name of the distribution in the legend.
      color: Color. Defaults to the next one of the axes.
      legend: Whether to draw a legend if there are labels; or where, as matplotlib's
        `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.step`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, an atom is NaN, or a weight is negative.

    See also:
      plotting.plot_fan, plotting.plot_pit, FullConformal.predictive

    Example:
      >>> ax = plot_cdf(jax.random.normal(jax.random.key(0), (19,)), label="row 1")
    """
    columns = {"values": _checks.scores(values), "weights": _checks.weights(weights)}
    found, given = _checks.rows(**columns)
    _checks.check_values(lambda w: w > 0, "test_weight > 0", test_weight)
    ax = _axes.new_axes() if ax is None else ax
    order, frame = np.argsort(found), _axes.padded(np.asarray(found))
    masses = (np.ones(order.size) if given is None else np.asarray(given))[order]
    x = np.clip(np.pad(np.asarray(found)[order], 1, constant_values=np.inf), *frame)
    x[0] = frame[0]
    below = np.cumsum(np.pad(masses, 1))
    total = below[-1] + test_weight
    low, middle, high = ((below + u * test_weight) / total for u in (0, 0.5, 1))
    look = {"where": "post", "color": color, "label": label} | kwargs
    (line,) = ax.step(x, middle, **look)
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
