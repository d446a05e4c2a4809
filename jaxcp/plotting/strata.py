"""Coverage of parts of the rows: groups, classes, sets of similar size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcp import _checks, metrics
from jaxcp._arrays import as_host_array
from jaxcp.metrics._sets import as_batch, as_sets, closed_form_sizes
from jaxcp.plotting._axes import (
    COVERED,
    MISSED,
    Axes,
    draw_legend,
    draw_level,
    end_at_one,
    fit_height,
    name_axes,
)
from jaxcp.plotting._inputs import as_axes, as_level
from jaxcp.plotting.sizes import size_name
from jaxcp.typing import ArrayLike, Set


def plot_group_coverage(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: float,
    *,
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
    binomial law of the group's rows: Wilson's interval of two standard errors.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      groups: Group of each row, shape (m,), int or by name; for classes the labels.
      alpha: Miscoverage level of the sets, a number in (0, 1).
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
      ValueError: if lengths differ, `alpha` is outside (0, 1), or groups have no order,
        as where some are missing.

    References:
      Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
      1927.

    See also:
      metrics.group_coverage, metrics.class_coverage, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> y, groups = jnp.linspace(-1.0, 1.0, 60), jnp.arange(60) % 3
      >>> sets = Interval(jnp.full(60, -0.9), jnp.full(60, 0.9))
      >>> ax = plot_group_coverage(sets, y, groups, 0.1, names=["a", "b", "c"])
    """
    alpha = as_level(alpha)
    covered = np.asarray(metrics.covered(sets, y))
    groups = as_host_array("groups", groups).ravel()
    _checks.check_shape("groups", covered.shape, groups.shape)
    found, codes = _distinct(groups)
    names = found if names is None else names
    _checks.check_shape("names", found.shape, (len(names),))
    counts = np.bincount(codes)
    rates = np.bincount(codes, covered) / counts
    names = [f"{v} ({c:,})" for v, c in zip(names, counts, strict=True)]
    k = len(names)
    ax = as_axes(ax, height=max(min(0.26 * k, 4 + 0.13 * k) + 1.3, 2))
    draw_level(ax, alpha, upright=True)
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    _dots(ax, rates, counts, alpha, look, upright=True)
    ax.set_yticks(range(k), names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(max(k, 1) - 0.5, -0.5)
    name_axes(ax, "coverage", "")
    draw_legend(ax, legend, above=True)
    return ax


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
    alpha = as_level(alpha)
    sets = as_sets(sets)
    rates = metrics.size_stratified_coverage(sets, y, num_bins=num_bins)
    sizes = np.sort(np.asarray(closed_form_sizes(as_batch(sets))))
    strata = np.array_split(sizes, num_bins)
    counts = np.array([len(v) for v in strata])
    names = [f"{v.mean():.3g}" if len(v) else "" for v in strata]
    ax = as_axes(ax)
    draw_level(ax, alpha)
    look = {"ms": markersize, "color": color, "label": label} | kwargs
    _dots(ax, np.asarray(rates, float), counts, alpha, look)
    ax.set_xticks(range(num_bins), names, rotation=90 if num_bins > 10 else 0)
    name = size_name(sets)
    name_axes(ax, f"mean {name} of the stratum", "coverage")
    ax.set_xlim(-0.5, num_bins - 0.5)
    fit_height(ax)
    draw_legend(ax, legend, above=True)
    end_at_one(ax)
    return ax


def _distinct(groups):
    try:
        return np.unique(groups, return_inverse=True)
    except TypeError:
        kinds = ", ".join(sorted({type(group).__name__ for group in groups.tolist()}))
        raise ValueError(
            f"expected groups of one type, none missing, got {kinds}"
        ) from None


def _dots(ax, rates, counts, alpha, look, *, upright=False):
    """Draws a dot with errors for each part, those surely below 1 - alpha apart."""
    below, above = wilson(rates, counts)
    places = np.arange(len(rates))
    errors = np.stack([rates - below, above - rates])
    low = above < 1 - alpha
    kinds: Any = (
        (~low & (counts > 0), "o", {}),
        (low, "D", {"color": MISSED, "label": "clearly below 1 − α"}),
    )
    for rows, marker, own in kinds:
        if rows.any():
            style = {"fmt": marker, "elinewidth": 1.2} | look | own
            values = [places[rows], rates[rows]][:: -1 if upright else 1]
            side = "xerr" if upright else "yerr"
            ax.errorbar(*values, **{side: np.clip(errors[:, rows], 0, 1)}, **style)


def wilson(rates: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rates have the given ones within two standard errors."""
    n, z = np.maximum(counts, 1), 2.0
    center = (rates + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(rates * (1 - rates) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return center - half, center + half
