"""Histograms of p-values."""

from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp.plotting._axes import COVERED, MISSED, TRUTH, Axes, new_axes
from jaxcp.typing import ArrayLike


def plot_p_values(
    p_values: ArrayLike,
    is_nominal: ArrayLike | None = None,
    *,
    num_bins: int = 20,
    ax: Axes | None = None,
) -> Axes:
    """Returns axes with a histogram of p-values; those of nominal rows are uniform.

    Args:
      p_values: p-values, shape (m,).
      is_nominal: True for nominal rows, bool of shape (m,), which are drawn apart.
      num_bins: Number of bins of [0, 1].
      ax: Axes to draw on. Defaults to new ones.

    Returns:
      The axes.

    Raises:
      ValueError: if lengths differ or a p-value is outside [0, 1].

    Example:
      >>> ax = plot_p_values(jax.random.uniform(jax.random.key(0), (500,)))
    """
    p_values = np.ravel(p_values)
    _checks.check_uniforms("p_values", p_values)
    _checks.check_count("num_bins", num_bins, 1)
    parts = {"all rows": (p_values, COVERED)}
    if is_nominal is not None:
        rows = np.asarray(is_nominal, bool)
        _checks.check_shape("is_nominal", p_values.shape, rows.shape)
        nominal, outliers = p_values[rows], p_values[~rows]
        parts = {"nominal": (nominal, COVERED), "outliers": (outliers, MISSED)}
    ax = ax or new_axes()
    bins = np.linspace(0, 1, num_bins + 1).tolist()
    for name, (part, color) in parts.items():
        if part.size:
            label = f"{name} ({part.size})"
            look: dict[str, Any] = {"color": color, "alpha": 0.4, "label": label}
            ax.hist(part, bins=bins, density=True, **look)
    ax.axhline(1, color=TRUTH, linestyle="--", linewidth=0.8, label="uniform")
    ax.set(xlabel="p-value", ylabel="density", xlim=(0, 1))
    ax.legend(frameon=False)
    return ax
