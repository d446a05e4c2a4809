"""All metrics that apply to some sets in one dict, or those of groups in a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, KeysView
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names, _tree
from jaxcp._numbers import as_float, quotient
from jaxcp.metrics import _sets, intervals, losses, rates, size, strata
from jaxcp.metrics.dependence import hsic, known_median_distance
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, HasLabels, Set

if TYPE_CHECKING:
    import pandas as pd

_HSIC_ROWS = 20_000
_FEW_ROWS = 2**12  # whose sizes are sorted on the host
_ETA = 30.0  # the weight of the coverage in the criterion of coverage and width
_FEW = 20  # numbers of an array that are shown, and groups and classes of a metric
_MANY_FULL = 0.5
_ON_FULL_SETS = """
Most sets hold every label: the threshold is the largest score that a label can have.
That happens to deterministic APS by ties; APS(randomized=True), LAC() do not tie."""
_shaped_sizes = jax.jit(_sets.closed_form_sizes)  # traced once for sets of a shape
_OF_SIZES = size.mean_finite_size, rates.empty_rate, size.infinite_rate
_OF_INTERVALS = intervals.winkler_score, intervals.coverage_width_criterion
_OF_BOUNDS = intervals.mean_bound, intervals.pinball
_OF_LABELS = rates.full_rate, rates.singleton_rate, rates.class_coverage
_OF_GROUPS = rates.group_coverage, rates.coverage_gap


class Summary(dict[str, Any]):
    """A dict from names of metrics to numbers, in an order. Made by `summary`.

    A pytree, as dicts are, so that jit and vmap return one too, of arrays. It shows
    numbers, and so do `pandas.Series(found)` and `pandas.DataFrame([found, other])`.
    Groups and classes have a number each, such as `found["group_coverage[east]"]`.

    See also:
      metrics.summary
    """

    def __repr__(self) -> str:
        """Returns a line for each metric, and one on sets that hold every label.

        Of many groups and classes the first ones.
        """
        many = [name for name in self if name.endswith("]")][_FEW:]
        shown = {k: v for k, v in self.items() if k not in many}
        lines = [f"{name!r}: {_shown(value)}" for name, value in shown.items()]
        lines += [f"... ({len(many)} more)"] * bool(many)
        share = self.get("full_rate", 0.0)
        many = _arrays.is_concrete(share) and np.mean(share) > _MANY_FULL
        return "{" + ",\n ".join(lines) + "}" + (_ON_FULL_SETS if many else "")

    def tolist(self) -> dict[str, Any]:
        """Returns a plain dict of Python numbers and lists of them.

        JSON knows no infinite numbers: `pandas.Series(found).to_json()` has null.
        """
        return {name: np.asarray(value).tolist() for name, value in self.items()}


def _flatten(found):
    keys = (jax.tree_util.DictKey(name) for name in found)
    return tuple(zip(keys, found.values(), strict=True)), tuple(found)


def _unflatten(names, values):
    return Summary(zip(names, values, strict=True))


jax.tree_util.register_pytree_with_keys(Summary, _flatten, _unflatten)


@_checks.by_labels
def summary(
    sets: Set | ArrayLike,
    y: ArrayLike,
    alpha: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    num_bins: int = 5,
    side: str | None = None,
    loss: Callable | None = None,
    clusters: ArrayLike | None = None,
) -> Summary:
    """Returns all metrics that apply to the sets, by name.

    It sees sets and targets alone. Of times that may be censored, as those of
    `survival.calibrate_lower`, the observed ones are shorter, and so is the coverage
    here: `survival.coverage` estimates that of the times until the event.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      alpha: Miscoverage level of the sets, shape ().
      groups: Group of each row, int or by name, shape (m,); flags of groups that
        overlap, shape (m, g).
      num_groups: Number of groups. Defaults to the largest one of `groups` plus 1,
        which has to be known: give it inside jit.
      group_names: Names of the groups as for `group_coverage`.
      num_bins: Number of strata of size, of equally many rows (at most m); label sets
        have one for each size.
      side: "upper" or "lower" for intervals that are bounded on this side alone.
        Defaults to what known sets show, all of whose other ends are infinite; inside
        of jit and vmap to intervals with two ends.
      loss: A loss of one example, as for `mean_loss`.
      clusters: Cluster of each row, as for `coverage`, shape (m,). Defaults to none.

    Returns:
      A `Summary`, a dict from the name of a metric to its value, a number of Python
      (with the digits of its precision); inside of jit and vmap an array of jax of
      shape (). "coverage" always; "mean_size" (infinite if a set is), "median_size",
      "mean_finite_size", "empty_rate", "infinite_rate", "min_size_stratified_coverage",
      "size_stratified_coverage_violation" (of label sets: over those that are not
      empty) and "hsic" (median heuristic; up to 20,000 rows, for it takes O(m^2)) for
      sets with a size; "winkler_score" and "coverage_width_criterion" (eta = 30) for
      intervals, "mean_bound" and "pinball" in their place for those that are bounded on
      one side; "full_rate", "singleton_rate" and "class_coverage[cat]" for label sets,
      for each class by its name, or 0, ..., k - 1; "group_coverage[east]" of each group
      and "coverage_gap" with groups; "mean_loss" and "mean_loss_error" with a loss.
      With clusters, what `by_group` has too is as there, "coverage" with
      "coverage_error", "mean_size", "mean_finite_size", "infinite_rate", "mean_loss",
      and so are coverages of groups and their gap; the others count all rows the same.

    Raises:
      ValueError: as the metrics, or if the number of groups is not known.

    Cost:
      That of its metrics, in one program: O(m^2) time for sets with a size and at most
      20,000 rows (for `hsic`), else O(m log m). Sizes of up to 4,096 known rows are put
      in order before, on the host.

    See also:
      metrics.coverage, metrics.mean_size, metrics.by_group, metrics.mean_loss,
      survival.coverage

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
    own = None if loss is None else losses.mean_loss(loss, sets, y)
    classes = getattr(sets := _sets.as_sets(sets), "classes", None)
    (sets, y), alpha = _sets.check_sets(sets, y), _sets.check_level(alpha)
    by_size, has_labels = has_size(sets), issubclass(type(sets), HasLabels)
    names, given = {}, _names.Groups(None, None, None)
    if has_labels:
        names["class_coverage"] = classes or range(sets.members().shape[-1])
    if groups is not None:
        given = rates.named_groups(y, groups, num_groups, group_names)
        names["group_coverage"] = given.names
    options = {"alpha": alpha, "num_groups": given.count, "num_bins": None}
    if by_size and not has_labels:
        _checks.check_count("num_bins", num_bins, 1)
        options["num_bins"] = num_bins
    ends = as_intervals(sets) if side is None else intervals.check_intervals(sets)
    is_line = issubclass(type(ends), Interval)
    options["side"] = intervals.side_of(ends, side) if is_line else None
    rows = sets, y, given.codes
    options["by_size"] = by_size
    found = _batching.counted(_summary, *rows, by_pairs=by_size, **options)
    if own is not None:
        found["mean_loss"], found["mean_loss_error"] = own
    if clusters is not None:
        of_clusters = partial(by_group, sets, y, clusters=clusters)
        table = of_clusters(np.zeros(len(y), int), num_groups=1, loss=loss)
        common = {*found, "coverage_error"} & table.keys()
        found |= {name: table[name][0] for name in sorted(common)}
        if groups is not None:
            table = of_clusters(given.codes, num_groups=given.count)
            found["group_coverage"] = table["coverage"]
            gaps = _sets.distances(table["coverage"], alpha)
            found["coverage_gap"] = jnp.mean(gaps, where=table["n"] > 0)
    return _by_name(found, names)


def _by_name(found, names):
    """Returns metrics with a number for each group and class, plain where known."""
    known, flat = _arrays.is_concrete(*found.values()), Summary()
    for metric, value in found.items():
        value = np.asarray(value) if known else value
        told = enumerate(_names.told(names.get(metric, ())))
        each = {f"{metric}[{name}]": value[i] for i, name in told}
        flat |= each or {metric: value}
    return jax.tree.map(_as_plain, flat) if known else flat


class _Ordered(NamedTuple):
    """What sizes in order tell: strata, the two in the middle, the median distance.

    Found on the host for few rows that are known: what sorts takes long to compile.
    """

    strata: np.ndarray | None = None
    middle: np.ndarray | None = None
    distance: np.ndarray | None = None


@_tree.jit
def _float_sizes(sets):
    return as_float(_sets.closed_form_sizes(sets))


def _summary(sets, y, groups, count, by_size, num_bins, **options):
    """Returns `summary` of checked arguments."""
    ordered, m = _Ordered(), len(y) if count is None else int(count)
    few = by_size and 0 < m <= _FEW_ROWS
    if few and _batching.on_host(sizes := _float_sizes(sets)):
        sizes = np.asarray(sizes)[:m]
        # Without bins, of label sets, each size is a stratum.
        by_row = sizes if num_bins is None else strata.known_groups(sizes, num_bins)
        ordered = _Ordered(
            strata=_batching.repeated(by_row, len(y)),
            middle=np.sort(sizes)[[(m - 1) // 2, m // 2]],
            distance=known_median_distance(sizes),
        )
    return _in_one(sets, y, groups, count, ordered, num_bins=num_bins, **options)


@_tree.jit(static_argnames=("num_groups", "num_bins", "side"))
def _in_one(sets, y, groups, count, ordered, alpha, num_groups, num_bins, side):
    """Returns `summary` of checked arguments, in one program."""
    known = {"count": count, "sets": sets, "y": y, "alpha": alpha, "eta": _ETA}
    known |= {"groups": groups, "num_groups": num_groups, "bandwidths": None}
    known["side"] = side
    found = Summary(_found(known, rates.coverage))
    if has_size(sets):
        way = strata.parted_by(sets, num_bins)  # of label sets, each size is a stratum
        by_size = strata.strata_rates(count, sets, y, None, way, ordered.strata)
        least = strata.least_rate(*by_size)
        violation = strata.largest_violation(*by_size, alpha)
        found |= _found(known, size.mean_size)
        of_hsic = known
        if ordered.middle is None:
            found |= _found(known, size.median_size)
        else:
            sizes = _float_sizes(sets)
            found["median_size"] = size.mean_of_middle(sizes, ordered.middle)
            in_distances = {"sizes": sizes / ordered.distance, "bandwidths": (2.0, 2.0)}
            of_hsic = known | in_distances
        found |= _found(known, *_OF_SIZES)
        found["min_size_stratified_coverage"] = least
        found["size_stratified_coverage_violation"] = violation
        if len(y) <= _HSIC_ROWS:
            found |= _found(of_hsic, hsic)
    ends = as_intervals(sets)
    if isinstance(ends, Interval):
        of = _OF_INTERVALS if side is None else _OF_BOUNDS
        targets = as_float(y).reshape(ends.lower.shape)
        found |= _found(known | {"sets": ends, "y": targets}, *of)
    if isinstance(sets, HasLabels):
        found |= _found(known, *_OF_LABELS)
    if groups is not None:
        found |= _found(known, *_OF_GROUPS)
    return found


def _found(known, *metrics):
    """Returns what formulas give, by their names, of the arguments that they take."""
    found = {}
    for formula in map(inspect.unwrap, metrics):
        takes = inspect.signature(formula).parameters
        given = {name: v for name, v in known.items() if name in takes}
        found[formula.__name__] = formula(**given)
    return found


def has_size(sets: Any) -> bool:
    """Returns whether sets have a size in closed form."""
    try:
        _shaped_sizes.eval_shape(sets)
    except ValueError:
        return False
    return True


def _as_plain(value):
    """Returns a number as Python's, in its own digits."""
    value = np.asarray(value)
    # 0.9 of single precision is 0.9, not 0.8999999761581421.
    return float(str(value[()])) if value.dtype.kind == "f" else value.item()


def _worded(value):
    return f"{value:,}" if isinstance(value, np.integer) else f"{value:.4g}"


def _shown(value):
    if not _arrays.is_concrete(value):
        return repr(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return str(array[()])
    return np.array2string(array, separator=", ", threshold=_FEW)


@_tree.pytree
class GroupSummary:
    """A table of metrics of groups: arrays by name, and the names of the groups.

    Made by `by_group`. `found["coverage"]` is a column, `dict(found)` has all of them,
    and it prints as a table.

    Args:
      columns: A `Summary` of arrays with an entry for each of g groups.
      names: Names of the groups.

    See also:
      metrics.by_group, metrics.Summary
    """

    columns: Summary
    names: tuple[Hashable, ...] = _tree.static()

    def __getitem__(self, name: str) -> Any:
        """Returns a column by its name."""
        return self.columns[name]

    def keys(self) -> KeysView[str]:
        """Returns the names of the columns."""
        return self.columns.keys()

    def to_pandas(self) -> pd.DataFrame:
        """Returns a frame with a row for each group, by its name."""
        import pandas as pd

        columns = {name: np.asarray(value) for name, value in self.columns.items()}
        for name, value in columns.items():
            if value.dtype.kind == "f":  # with its digits: 0.9 of a half is not rounded
                columns[name] = value.astype(float)
        index = pd.Index(self.names, name="group", tupleize_cols=False)
        return pd.DataFrame(columns, index)

    def rows(self) -> list[tuple[str, ...]]:
        """Returns the table in words: a row of heads, and one for each group."""
        names, found = _names.told(self.names), self.columns.items()
        columns = ((name, *map(_worded, np.asarray(v))) for name, v in found)
        return [*zip(("group", *names), *columns, strict=True)]

    def __repr__(self) -> str:
        """Returns the table; of several levels, and while traced, the arrays."""
        if not _arrays.is_concrete(self.columns) or np.ndim(self["n"]) != 1:
            return repr(self.columns)
        widths = [max(map(len, column)) for column in zip(*self.rows(), strict=True)]
        lines = [map(str.rjust, row, widths) for row in self.rows()]
        return "\n".join(map("  ".join, lines))


@_checks.by_labels
def by_group(
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    group_names: Iterable[Hashable] | None = None,
    num_groups: int | None = None,
    loss: Callable | None = None,
    clusters: ArrayLike | None = None,
) -> GroupSummary:
    """Returns coverage and sizes within each group, with the names of the groups.

    The coverage c of n rows has the standard error sqrt(c (1 - c) / n) if the rows are
    independent. Rows of one patient, or of one series, are not: say which belong
    together by `clusters`. Then c = (1/K) sum_j m_j over the K clusters with rows in
    the group, m_j the share of these rows that are covered, which is the coverage of a
    row of a new cluster; its error is sqrt(sum_j (m_j - c)^2 / (K (K - 1))). All other
    means are over clusters, too.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      groups: Group of each row, int or by name, shape (m,); flags of groups that
        overlap, shape (m, g), which may be a frame with their names.
      group_names: Names of the groups as for `group_coverage`.
      num_groups: Number of groups. Defaults to the largest one of `groups` plus 1,
        which has to be known: give it inside jit.
      loss: A loss of one example, as for `mean_loss`.
      clusters: Cluster of each row, as for `coverage`, shape (m,). Defaults to none.

    Returns:
      A `GroupSummary`, arrays of shape (g,) by name: "n", the number of rows,
      "clusters", that of clusters, with clusters, and "coverage" with "coverage_error",
      its standard error, and "low" and "high", Wilson's interval of two standard errors
      (about 95 %), always: of n rows, or with clusters of as many as have the error e,
      c (1 - c) / e^2 (at most n, and K where all m_j are equal), times (K - 3) / (K -
      1), so that it is [0, 1] of up to 3 clusters. Where few clusters differ much it is
      too short: 20 whose rows were nearly all covered or missed together had 91 %.
      "mean_size" for sets with a size, and, unless they are of labels,
      "mean_finite_size" and "infinite_rate"; for intervals the shares of targets that
      lie below and above, "missed_below" and "missed_above", for others "missed"; with
      a loss "mean_loss" and "mean_loss_error". NaN for groups without rows.
      `to_pandas()` makes a frame, and `names` are the groups.

    Raises:
      ValueError: as `group_coverage` and `mean_loss`, or if the number of groups is not
        known.

    Cost:
      O(m) time, in one program; O(m g) for flags. With clusters one sort of the rows.

    See also:
      metrics.group_coverage, metrics.summary, metrics.GroupSummary,
      plotting.plot_group_coverage, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> found = by_group(sets, y, ["north", "north", "south"])
      >>> found.names, found["coverage"].tolist()
      (('north', 'south'), [0.5, 1.0])
    """
    sets, y = _sets.check_sets(sets, y)
    given = rates.named_groups(y, groups, num_groups, group_names)
    loss = None if loss is None else losses.as_loss(loss)
    rows = sets, y, given.codes, _sets.check_clusters(clusters, y=y)
    options = {"loss": loss, "num_groups": given.count}
    found = _batching.counted(_by_group, *rows, **options)
    return GroupSummary(found, given.names or ())


@_tree.jit(static_argnames="num_groups")
def _by_group(sets, y, groups, clusters, count, loss, num_groups):
    """Returns `by_group` of checked arguments, in one program."""
    parts = groups, num_groups, count
    means = partial(rates.means_of, *parts, clusters=clusters)
    covered = _sets.is_covered(sets, y)
    if clusters is None:
        rate, n = rates.rates_of(covered, *parts)
        low, high = rates.wilson(rate, n)
        found = Summary(n=n, coverage=rate)
        found["coverage_error"] = jnp.sqrt(quotient(rate * (1 - rate), n))
        found |= {"low": low, "high": high}
    else:
        found = rated(covered, *parts, clusters)
    if has_size(sets):
        sizes = as_float(_sets.closed_form_sizes(sets))
        found["mean_size"] = means(sizes)
        if not isinstance(sets, HasLabels):
            infinite = sizes == jnp.inf
            found["mean_finite_size"] = means(sizes, ~infinite)
            found["infinite_rate"] = means(_sets.where_known(infinite, sizes))
    ends = as_intervals(sets)
    if isinstance(ends, Interval):
        below = _sets.where_known(y.reshape(covered.shape) < ends.lower, covered)
        found["missed_below"] = means(below)
        found["missed_above"] = means(1 - covered - below)
    else:
        found["missed"] = means(1 - covered)
    if loss is not None:
        values = losses.of_rows(loss, sets, y)
        lost = _with_errors(values, *parts, clusters)[0]
        found["mean_loss"], found["mean_loss_error"] = lost
    return found


def _with_errors(
    values: Array, groups: Array, num_groups: int, count: Any, clusters: Array | None
) -> tuple[losses.MeanLoss, Array]:
    """Returns the mean of rows, or of clusters, in each group, and their number."""
    if clusters is not None:
        values, groups = rates.units_of(values, clusters, groups, num_groups, count)
        count = None
    means = partial(rates.means_of, groups, num_groups, count)
    number = rates.rates_of(jnp.zeros(len(groups)), groups, num_groups, count)[1]
    return losses.with_errors(values, number, means, groups), number


def rated(
    values: Array, groups: Array, num_groups: int, count: Any, clusters: Array | None
) -> Summary:
    """Returns the columns of a coverage that is the mean of numbers of rows."""
    (rate, error), units = _with_errors(values, groups, num_groups, count, clusters)
    n = rates.rates_of(jnp.zeros(len(groups)), groups, num_groups, count)[1]
    found = Summary(n=n) if clusters is None else Summary(n=n, clusters=units)
    # Independent rows have e^2 = c (1 - c) / n: as many as have this error.
    share, varies = jnp.clip(rate, 0, 1), error > 0
    worth = share * (1 - share) / jnp.where(varies, error, 1) ** 2
    worth = jnp.where(varies, jnp.minimum(worth, n), units)
    # The error is estimated: by 1 / Var(t), of Student's t with K - 1 degrees.
    worth = worth * jnp.maximum(units - 3, 0) / jnp.maximum(units - 1, 1)
    low, high = rates.wilson(share, worth)
    found |= {"coverage": rate, "coverage_error": error, "low": low, "high": high}
    return found
