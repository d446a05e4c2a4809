"""All metrics that apply to some sets, in one dict."""

from typing import Any

import jax
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_groups, is_concrete
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.metrics.dependence import hsic
from jaxcp.metrics.groups import class_coverage, coverage_gap, group_coverage
from jaxcp.metrics.intervals import coverage_width_criterion, winkler_score
from jaxcp.metrics.rates import coverage, empty_rate, full_rate, singleton_rate
from jaxcp.metrics.size import infinite_rate, mean_size, median_size
from jaxcp.metrics.strata import (
    min_size_stratified_coverage,
    size_stratified_coverage_violation,
)
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, Set

_HSIC_ROWS = 20_000
_ETA = 30.0  # the weight of the coverage in the criterion of coverage and width
_FEW = 20  # numbers of an array that are shown
_MANY_FULL = 0.5
_ON_FULL_SETS = """
Most sets hold every label: the threshold reaches the largest scores of labels, as that
of deterministic APS does by ties; APS(randomized=True) and LAC() do not tie there."""


class Summary(dict[str, Any]):
    """A dict from names of metrics to numbers, in an order. Made by `summary`.

    A pytree, as dicts are, so that jit and vmap return one too, of arrays. It shows
    numbers, and so do `pandas.Series(found)` and `pandas.DataFrame([found, other])`.
    """

    def __repr__(self) -> str:
        """Returns a line for each metric, and one on sets that hold every label."""
        lines = (f"{name!r}: {_shown(value)}" for name, value in self.items())
        share = self.get("full_rate", 0.0)
        many = is_concrete(share) and np.mean(share) > _MANY_FULL
        return "{" + ",\n ".join(lines) + "}" + (_ON_FULL_SETS if many else "")

    def tolist(self) -> dict[str, Any]:
        """Returns a plain dict of Python numbers and lists of them, e.g. for JSON."""
        return {name: np.asarray(value).tolist() for name, value in self.items()}


def _flatten(found):
    keys = (jax.tree_util.DictKey(name) for name in found)
    return tuple(zip(keys, found.values(), strict=True)), tuple(found)


def _unflatten(names, values):
    return Summary(zip(names, values, strict=True))


jax.tree_util.register_pytree_with_keys(Summary, _flatten, _unflatten)


def summary(
    sets: Set | ArrayLike,
    y: ArrayLike,
    alpha: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    num_groups: int | None = None,
    num_bins: int = 5,
) -> Summary:
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
      A `Summary`, a dict from the name of a metric to its value, a number of Python (in
      the digits that its precision has) or an array of numpy; inside of jit and vmap
      arrays of jax. `tolist` makes lists of the arrays, for JSON. "coverage" always;
      "mean_size", "median_size", "empty_rate", "infinite_rate",
      "min_size_stratified_coverage", "size_stratified_coverage_violation" (of label
      sets: over those that are not empty) and "hsic" (median heuristic; up to 20,000
      rows, for it takes O(m^2)) for sets with a size; "winkler_score" and
      "coverage_width_criterion" (eta = 30) for intervals; "full_rate", "singleton_rate"
      and "class_coverage" for label sets; "group_coverage" and "coverage_gap" with
      groups.
      Values are of shape (), of classes (k,) and of groups (g,).

    Raises:
      ValueError: as the metrics, or if the number of groups is not known.

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(4), jnp.ones(4)), jnp.array([0.1, 0.5, 2.0, 0.9])
      >>> found = summary(sets, y, alpha=0.2)
      >>> found["coverage"], found["mean_size"]
      (0.75, 1.0)
      >>> print(str(found)[:36])
      {'coverage': 0.75,
       'mean_size': 1.0
    """
    (sets, y), alpha = _sets.check_sets(sets, y), _sets.check_level(alpha)
    if groups is None:
        num_groups = None
    else:
        num_groups = _count(groups) if num_groups is None else num_groups
        _, groups = _checks.rows(y=y, groups=_checks.groups(groups, num_groups))
    by_bins = _has_size(sets) and not issubclass(type(sets), HasLabels)
    if by_bins:
        _checks.check_count("num_bins", num_bins, 1)
    num_bins = num_bins if by_bins else None
    found = _summary(sets, y, alpha, groups, num_groups, num_bins)
    if not is_concrete(*found.values()):
        return found
    return Summary({name: _as_plain(value) for name, value in found.items()})


@jit(static_argnames=("num_groups", "num_bins"))
def _summary(sets, y, alpha, groups, num_groups, num_bins):
    """Returns `summary` of checked arguments, in one program."""
    found = Summary(coverage=coverage(sets, y))

    def add(metric, *args, **options):
        found[metric.__name__] = metric(sets, *args, **options)

    if _has_size(sets):
        for metric in (mean_size, median_size, empty_rate, infinite_rate):
            add(metric)
        # Label sets have no bins: each size is a stratum.
        add(min_size_stratified_coverage, y, num_bins=num_bins)
        add(size_stratified_coverage_violation, y, alpha, num_bins=num_bins)
        if len(y) <= _HSIC_ROWS:
            add(hsic, y, bandwidths=None)
    if isinstance(as_intervals(sets), Interval):
        add(winkler_score, y, alpha)
        add(coverage_width_criterion, y, alpha, eta=_ETA)
    if isinstance(sets, HasLabels):
        add(full_rate)
        add(singleton_rate)
        add(class_coverage, y)
    if groups is not None:
        add(group_coverage, y, groups, num_groups=num_groups)
        add(coverage_gap, y, groups, alpha, num_groups=num_groups)
    return found


def _has_size(sets: Any) -> bool:
    try:
        jax.eval_shape(_sets.closed_form_sizes, sets)
    except ValueError:
        return False
    return True


def _as_plain(value):
    """Returns a number as Python's, in its own digits, or an array as numpy's."""
    value = np.asarray(value)
    if value.ndim:
        return value.copy()
    # 0.9 of single precision is 0.9, not 0.8999999761581421.
    return float(str(value[()])) if value.dtype.kind == "f" else value.item()


def _count(groups):
    groups = as_groups("groups", groups)
    if not is_concrete(groups):
        raise ValueError("expected num_groups with traced groups, got None")
    return int(np.max(np.asarray(groups), initial=0)) + 1


def _shown(value):
    if not is_concrete(value):
        return repr(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return str(array[()])
    return np.array2string(array, separator=", ", threshold=_FEW)
