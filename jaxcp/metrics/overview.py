"""All metrics that apply to some sets, in one dict."""

from typing import Any

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_groups, is_concrete
from jaxcp._tracing import jit
from jaxcp.metrics.average import (
    check_level,
    check_sets,
    closed_form_sizes,
    coverage,
    empty_rate,
    singleton_rate,
)
from jaxcp.metrics.dependence import hsic
from jaxcp.metrics.groups import (
    check_groups,
    class_coverage,
    coverage_gap,
    group_coverage,
)
from jaxcp.metrics.intervals import coverage_width_criterion, winkler_score
from jaxcp.metrics.sizes import infinite_rate, mean_size, median_size
from jaxcp.metrics.strata import (
    min_size_stratified_coverage,
    size_stratified_coverage_violation,
)
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, Set

_HSIC_ROWS = 20_000
_ORDER = [
    "coverage",
    "mean_size",
    "median_size",
    "empty_rate",
    "infinite_rate",
    "min_size_stratified_coverage",
    "size_stratified_coverage_violation",
    "hsic",
    "winkler_score",
    "coverage_width_criterion",
    "singleton_rate",
    "class_coverage",
    "group_coverage",
    "coverage_gap",
]
_ETA = 30.0  # the weight of the coverage in the criterion of coverage and width


def summary(
    sets: Set,
    y: ArrayLike,
    alpha: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    num_groups: int | None = None,
    num_bins: int = 5,
) -> dict[str, Array]:
    """Returns all metrics that apply to the sets, by name.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, shape ().
      groups: Group of each row, int, shape (m,).
      num_groups: Number of groups. Defaults to the largest one of `groups` plus 1,
        which has to be known: give it inside jit.
      num_bins: Number of strata of size, of equally many rows (at most m); label sets
        have one for each size.

    Returns:
      A dict from the name of a metric to its value: "coverage" always; "mean_size",
      "median_size", "empty_rate", "infinite_rate", "min_size_stratified_coverage",
      "size_stratified_coverage_violation" (of label sets: over those that are not
      empty) and "hsic" (median heuristic; up to 20,000 rows, for it takes O(m^2)) for
      sets with a size; "winkler_score" and "coverage_width_criterion" (eta = 30) for
      intervals; "singleton_rate" and "class_coverage" for label sets; "group_coverage"
      and "coverage_gap" with groups.
      Values are of shape (), of classes (k,) and of groups (g,).

    Raises:
      ValueError: as the metrics, or if the number of groups is not known.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(4), jnp.ones(4)), jnp.array([0.1, 0.5, 2.0, 0.9])
      >>> found = summary(sets, y, alpha=0.2)
      >>> found["coverage"].item(), found["mean_size"].item()
      (0.75, 1.0)
    """
    (sets, y), alpha = check_sets(sets, y), check_level(alpha)
    if groups is None:
        num_groups = None
    else:
        groups = as_groups("groups", groups)
        num_groups = _count(groups) if num_groups is None else num_groups
        groups = check_groups(y, groups, num_groups)
    by_bins = _has_size(sets) and not issubclass(type(sets), HasLabels)
    if by_bins:
        _checks.check_count("num_bins", num_bins, 1)
    found = _summary(sets, y, alpha, groups, num_groups, num_bins if by_bins else None)
    return {name: found[name] for name in _ORDER if name in found}


@jit(static_argnames=("num_groups", "num_bins"))
def _summary(sets, y, alpha, groups, num_groups, num_bins):
    """Returns `summary` of checked arguments, in one program."""
    found = {"coverage": coverage(sets, y)}
    if _has_size(sets):
        bins = {"num_bins": num_bins}  # None for label sets: one for each size
        found["mean_size"] = mean_size(sets)
        found["median_size"] = median_size(sets)
        found["empty_rate"] = empty_rate(sets)
        found["infinite_rate"] = infinite_rate(sets)
        found["min_size_stratified_coverage"] = min_size_stratified_coverage(
            sets, y, **bins
        )
        found["size_stratified_coverage_violation"] = (
            size_stratified_coverage_violation(sets, y, alpha, **bins)
        )
        if len(y) <= _HSIC_ROWS:
            found["hsic"] = hsic(sets, y, bandwidths=None)
    if isinstance(as_intervals(sets), Interval):
        found["winkler_score"] = winkler_score(sets, y, alpha)
        found["coverage_width_criterion"] = coverage_width_criterion(
            sets, y, alpha, eta=_ETA
        )
    if isinstance(sets, HasLabels):
        found["singleton_rate"] = singleton_rate(sets)
        found["class_coverage"] = class_coverage(sets, y)
    if groups is not None:
        of = {"num_groups": num_groups}
        found["group_coverage"] = group_coverage(sets, y, groups, **of)
        found["coverage_gap"] = coverage_gap(sets, y, groups, alpha, **of)
    return found


def _has_size(sets: Any) -> bool:
    try:
        jax.eval_shape(closed_form_sizes, sets)
    except ValueError:
        return False
    return True


def _count(groups):
    if not is_concrete(groups):
        raise ValueError("expected num_groups with traced groups, got None")
    return int(np.max(np.asarray(groups), initial=0)) + 1
