"""Histograms of p-values."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import (
    COVERED,
    MISSED,
    Axes,
    draw_legend,
    draw_once,
    fit_height,
    ink,
    name_axes,
)
from jaxcp.plotting._inputs import as_axes, as_numbers
from jaxcp.typing import ArrayLike


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
    p_values = as_numbers("p_values", p_values).ravel()
    _checks.check_uniforms("p_values", p_values)
    _checks.check_count("num_bins", num_bins, 1)
    filled = {"color": color, "alpha": 0.4, "histtype": "stepfilled"}
    parts = [(label, p_values, filled)]
    if is_nominal is not None:
        rows = _flags(is_nominal)
        _checks.check_shape("is_nominal", p_values.shape, rows.shape)
        outline = {"color": MISSED, "histtype": "step", "linewidth": 1.6}
        parts = [("nominal", p_values[rows], filled)]
        parts += [("outliers", p_values[~rows], outline)]
    ax = as_axes(ax)
    bins = np.linspace(0, 1, num_bins + 1).tolist()
    for name, part, look in parts:
        if part.size:
            look = look | {"label": f"{name} ({part.size:,})"} | kwargs
            ax.hist(part, bins=bins, density=True, **look)
    look = {"color": ink(), "linestyle": "--", "linewidth": 1, "label": "uniform"}
    draw_once(ax, "uniform", lambda: ax.axhline(1, **look))
    name_axes(ax, "p-value", "density")
    ax.set_xlim(0, 1)
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    return ax


def _flags(values):
    flags = as_numbers("is_nominal", values).ravel()
    expected = "is_nominal as True and False, or 1 and 0"
    _checks.check_values(lambda v: (v == 0) | (v == 1), expected, flags)
    return flags.astype(bool)
