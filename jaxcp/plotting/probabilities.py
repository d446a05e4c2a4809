"""Predicted probabilities against what happens."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from jaxcp import _checks
from jaxcp.metrics.probabilities import bin_sums
from jaxcp.plotting import _axes
from jaxcp.plotting._axes import COVERED, MISSED, Axes
from jaxcp.plotting.coverage import wilson
from jaxcp.typing import ArrayLike


def plot_reliability(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    num_bins: int = 10,
    bins: Literal["width", "mass"] = "width",
    label: str = "rate, two standard errors",
    color: Any = COVERED,
    markersize: float = 6,
    legend: bool | str = True,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Axes:
    """Returns axes with the rate of an event against its predicted probability.

    A dot for each bin with rows: their mean probability, and the share of them where
    the event happened, with Wilson's interval of two standard errors. Bins whose
    interval misses the dashed diagonal, on which calibrated probabilities lie, are
    diamonds in another color; one of 22 does so by chance. Bars are the shares of rows,
    in bins of equal width. Call it again with `ax` to compare probabilities.

    Args:
      probs: Probabilities of one event, shape (m,).
      y: True where the event happened, shape (m,).
      num_bins: Number of bins.
      bins: "width" or "mass", as for `metrics.expected_calibration_error`.
      label: Name of the dots in the legend.
      color: Color of dots and bars.
      markersize: Size of the dots, in points.
      legend: Whether to draw a legend; or where, as matplotlib's `loc`.
      ax: Axes to draw on. Defaults to new ones.
      kwargs: Options of `Axes.errorbar`.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ, a probability is outside [0, 1], or `num_bins` is
        no int >= 1.

    References:
      Niculescu-Mizil, Caruana, Predicting Good Probabilities with Supervised Learning,
      ICML, 2005.
      Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
      1927.

    See also:
      metrics.expected_calibration_error, metrics.calibration_test

    Example:
      >>> probs = jax.random.uniform(jax.random.key(0), (1000,))
      >>> y = jax.random.bernoulli(jax.random.key(1), probs**2)
      >>> ax = plot_reliability(probs, y)
    """
    probs, y = _axes.as_numbers("probs", probs), _axes.as_numbers("y", y)
    _checks.num_rows(probs=probs, y=y)
    _checks.check_uniforms("probs", probs)
    _checks.check_count("num_bins", num_bins, 1)
    _checks.check_one_of("bins", bins, ("width", "mass"))
    happened = _checks.flags("y", y)
    ones = np.ones(len(probs), bool)
    sums = bin_sums(probs, [probs, happened, ones], ones, num_bins, bins)
    total, events, counts = (np.asarray(v, float) for v in sums)
    total, events, counts = (v[counts > 0] for v in (total, events, counts))
    places, rates = total / counts, events / counts
    ax = _axes.new_axes() if ax is None else ax
    _axes.draw_once(ax, "diagonal", ax.axline, (0, 0), slope=1, label="calibrated")
    below, above = wilson(rates, counts)
    errors = np.clip([rates - below, above - rates], 0, 1)
    look = {"ms": markersize, "elinewidth": 1.2, "color": color, "label": label}
    apart = {"color": MISSED, "label": "clearly off the diagonal"}
    off = (above < places) | (below > places)
    for rows, marker, own in ((~off, "o", {}), (off, "D", apart)):
        if rows.any():
            style = {"fmt": marker} | look | kwargs | own
            ax.errorbar(places[rows], rates[rows], yerr=errors[:, rows], **style)
    if bins == "width":
        strip: dict[str, Any] = {"color": color, "alpha": 0.25, "zorder": 0}
        ax.bar(places, counts / len(probs), 0.6 / num_bins, **strip)
    ax.set_xlim(0, 1)
    return _axes.finish(ax, legend, "predicted probability", "rate", share=True)
