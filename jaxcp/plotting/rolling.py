"""Coverage along a stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import (
    Axes,
    draw_legend,
    draw_level,
    draw_once,
    end_at_one,
    fit_height,
    ink,
    name_axes,
    tidy,
)
from jaxcp.plotting._inputs import as_axes, as_curves, as_level, as_places
from jaxcp.typing import ArrayLike


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
