"""Shares of sets: that cover, within groups too, are empty, full, or have one label."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names
from jaxcp._arrays import group_codes, sums_of_groups
from jaxcp._numbers import as_float, at_least_single, counting, kept, mean, quotient
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import Count, metric
from jaxcp.typing import ArrayLike, HasLabels, MayBeEmpty, Set


def _of_targets(sets, y, *, clusters=None):
    sets, y = _sets.check_sets(sets, y)
    return (sets, y, _sets.check_clusters(clusters, y=y)), {}


@metric(_of_targets)
def coverage(
    count: Count,
    sets: Set | ArrayLike,
    y: ArrayLike,
    *,
    clusters: ArrayLike | None = None,
) -> Array:
    """Returns the share of targets that lie in their sets: mean 1(y in C).

    Ends are closed and infinite sets count like others. A NaN in a set or a target
    makes the result NaN; it never counts as "not covered".

    Where rows come in clusters, (1/K) sum_j (1/N_j) sum_i 1(y_ji in C_ji) over the K
    clusters of N_j rows: the coverage of a row of a new cluster, which is what
    `calibrate(..., clusters=)` promises. `by_group` has its error.

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have. Of times that are censored see `survival.coverage`.
      clusters: Cluster of each row, such as a patient, by ids of any kind, shape (m,);
        inside of jit integers. Defaults to none: all rows count the same.

    Returns:
      Coverage in [0, 1], shape (); NaN for no rows.

    Raises:
      ValueError: if lengths differ, a concrete target is NaN, labels are not integers
        in the range of the sets, or targets lose digits in single precision that the
        ends of their sets are about.

    Cost:
      O(m) time: one membership for each row; of clusters one sort.

    See also:
      metrics.covered, metrics.summary, certificates.coverage_test,
      metrics.group_coverage, survival.coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> coverage(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array(0.5, dtype=float32)
    """
    return mean_of(_sets.is_covered(sets, y), clusters, count)


@_checks.by_labels
def covered(sets: Set | ArrayLike, y: ArrayLike) -> Array:
    """Returns which targets lie in their sets: 1(y in C) for each row.

    The rows that `coverage` is the mean of, for averages of your own.

    Args:
      sets: Sets with leading axis m, as a predictor returns them.
      y: Targets, shape (m, ...), or labels, shape (m,), int or by the names
        that the sets have.

    Returns:
      1 or 0, shape (m,), a float; NaN where a set or a target has a NaN.

    Raises:
      ValueError: as `coverage`.

    Cost:
      O(m) time: one membership for each row.

    See also:
      metrics.coverage, certificates.coverage_test

    Example:
      >>> from jaxcp.sets import Interval
      >>> covered(Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([0.5, 2.0]))
      Array([1., 0.], dtype=float32)
    """
    return _batching.by_rows(_sets.is_covered, rows=_sets.check_sets(sets, y))


@metric(_sets.of_sets)
def empty_rate(count: Count, sets: Set | ArrayLike) -> Array:
    """Returns the share of sets that are empty.

    Crossed intervals and boxes, label sets without a label, radii below 0. An interval
    of one point is not empty.

    Args:
      sets: Sets with leading axis m. A set of your own may have `is_empty()`; without
        it, it is empty where its size is 0.

    Returns:
      Share in [0, 1], shape (); NaN for no sets, or if a set has a NaN.

    Raises:
      ValueError: for sets known by membership alone.

    Cost:
      O(m) time.

    See also:
      metrics.singleton_rate, metrics.full_rate, metrics.infinite_rate

    Example:
      >>> from jaxcp.sets import Interval
      >>> empty_rate(Interval(jnp.zeros(2), jnp.array([0.0, -1.0])))
      Array(0.5, dtype=float32)
    """
    if isinstance(sets, MayBeEmpty):
        empty = jax.vmap(lambda s: s.is_empty())(sets)
    else:
        empty = _sets.closed_form_sizes(sets) == 0
    return mean(_sets.where_known(empty, sets), count)


def _of_labels(sets):
    return _sets.of_sets(_sets.as_label_sets(sets))


def _of_classes(sets, y):
    return _sets.of_targets(_sets.as_label_sets(sets), y)


def _members(sets):
    return sets.members()


@metric(_of_labels)
def full_rate(count: Count, sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets that hold every label.

    These sets say nothing. There are many where the threshold is the largest score that
    a label can have. This happens to deterministic `scores.APS` with a confident
    network: the first label has nearly all of the mass, so that the true labels of all
    rows on which the network errs tie at a score of 1. If these rows are more than a
    share alpha, the threshold is 1 and sets keep every label. Take
    `APS(randomized=True)`, whose predictions are `(probs, jaxcp.uniforms(key, n))`, or
    `scores.LAC()`. At a small alpha full sets may be all that a poor network can give.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Cost:
      O(m k) time.

    See also:
      metrics.singleton_rate, metrics.empty_rate, scores.APS

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> full_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return mean(jnp.all(_members(sets), axis=1), count)


@metric(_of_labels)
def singleton_rate(count: Count, sets: HasLabels | ArrayLike) -> Array:
    """Returns the share of label sets with exactly one label.

    Args:
      sets: Label sets with a mask of shape (m, k).

    Returns:
      Share in [0, 1], shape (); NaN for no sets.

    Raises:
      ValueError: for sets of another kind.

    Cost:
      O(m k) time.

    See also:
      metrics.full_rate, metrics.empty_rate, metrics.mean_size

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> singleton_rate(LabelSet(jnp.array([[True, False], [True, True]])))
      Array(0.5, dtype=float32)
    """
    return mean(jnp.sum(_members(sets), axis=1) == 1, count)


def check_groups(
    y: Any, groups: Any, num_groups: Any, group_names: Any
) -> _names.Groups:
    """Returns groups as 0, ..., g - 1, one for each target, their number and names."""
    groups, names = _names.as_column(groups), group_names
    if names is not None:
        names = _names.as_names("group_names", names)
    columns = getattr(groups, "columns", None)
    is_text = columns is not None and groups.to_numpy().dtype == object
    if np.ndim(groups) == 2 and not is_text:  # flags of groups that may overlap
        flags = _checks.Column(groups, convert=_checks.flags, is_vector=False)
        y, flags = _checks.rows(y=y, groups=flags)
        count = flags.shape[1]
        for number in (num_groups, names and len(names)):
            if number not in (None, count):
                raise ValueError(
                    f"expected flags of {number} groups, got {count} columns"
                )
        if names is None and columns is not None:
            names = _names.as_names("columns of groups", columns)
        return _names.Groups(flags, count, names)
    coded = _names.as_groups(groups, num_groups, names)
    columns = _checks.groups(coded.codes, coded.count)
    return coded._replace(codes=_checks.rows(y=y, groups=columns)[1])


def named_groups(
    y: Any, groups: Any, num_groups: Any, group_names: Any
) -> _names.Groups:
    """Returns groups with a name each: integers are 0, ..., g - 1 up to the largest."""
    groups = _names.as_column(groups)
    if num_groups is None and group_names is None and np.ndim(groups) < 2:
        if not _arrays.is_concrete(groups):
            raise ValueError("expected num_groups with traced groups, got None")
        if _names.on_host("groups", groups).dtype.kind in "iu":
            codes = np.asarray(_arrays.as_groups("groups", groups))
            num_groups = int(np.max(codes, initial=0)) + 1
    coded = check_groups(y, groups, num_groups, group_names)
    return coded._replace(names=tuple(coded.names or range(coded.count)))


def _of_groups(
    sets, y, groups, alpha=None, *, num_groups=None, group_names=None, **options
):
    sets, y = _sets.check_sets(sets, y)
    given = check_groups(y, groups, num_groups, group_names)
    groups, options["num_groups"] = given.codes, given.count
    if alpha is not None:
        options["alpha"] = _sets.check_level(alpha)
    return (sets, y, groups), options


@metric(_of_groups)
def group_coverage(
    count: Count,
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
) -> Array:
    """Returns the coverage within each group.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (m,), or its name.
        Groups that overlap are flags, shape (m, g); tuples in a list are names.
      num_groups: Number of groups g. May be left out where groups have names.
      group_names: Names of the g groups as for `jaxcp.calibrate_groups`. Defaults to
        the distinct groups in order, unless groups are integers.

    Returns:
      Coverage of each group, shape (g,), in order of the names; NaN for an empty group,
      so take `jnp.nanmin` for the worst.

    Raises:
      ValueError: as `coverage`, and if a concrete group is out of range.

    Cost:
      O(m) time.

    See also:
      metrics.class_coverage, metrics.coverage_gap, calibrate_groups

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> group_coverage(sets, y, jnp.array([0, 0, 1]), num_groups=2)
      Array([0.5, 1. ], dtype=float32)
    """
    return rates_of(_sets.is_covered(sets, y), groups, num_groups, count)[0]


@metric(_of_classes)
def class_coverage(count: Count, sets: HasLabels | ArrayLike, y: ArrayLike) -> Array:
    """Returns the coverage of each class: `group_coverage` with groups y.

    Args:
      sets: Label sets with a mask of shape (m, k).
      y: True labels 0, ..., k - 1, int, shape (m,), or by the names that the sets have.

    Returns:
      Coverage of each class, shape (k,), in order of the columns; NaN for a class
      without rows.

    Raises:
      ValueError: as `coverage`, and for sets of another kind.

    Cost:
      O(m) time.

    See also:
      metrics.group_coverage, metrics.coverage_gap, calibrate_groups

    Example:
      >>> from jaxcp.sets import LabelSet
      >>> sets = LabelSet(jnp.array([[True, False], [True, True], [True, False]]))
      >>> class_coverage(sets, jnp.array([0, 1, 1]))
      Array([1. , 0.5], dtype=float32)
    """
    num_classes = _members(sets).shape[1]
    return rates_of(_sets.is_covered(sets, y), y, num_classes, count)[0]


@metric(_of_groups)
def coverage_gap(
    count: Count,
    sets: Set | ArrayLike,
    y: ArrayLike,
    groups: ArrayLike,
    alpha: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    weighted: bool = False,
) -> Array:
    """Returns the mean distance of the coverage of groups from 1 - alpha: CovGap.

    Args:
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...).
      groups: Group of each row, int or by name, shape (m,), as for `group_coverage`.
      alpha: Miscoverage level of the sets, shape ().
      num_groups: Number of groups; those without rows are left out.
      group_names: Names of the groups as for `group_coverage`.
      weighted: Whether a group counts by its rows, not as one.

    Returns:
      Gap in [0, 1], shape () (the paper's is 100 times as large); NaN for no rows.

    Raises:
      ValueError: as `group_coverage`, or if a number `alpha` is outside (0, 1).

    Cost:
      O(m) time.

    References:
      Ding, Angelopoulos, Bates, Jordan, Tibshirani, Class-Conditional Conformal
      Prediction with Many Classes, NeurIPS, 2023.

    See also:
      metrics.group_coverage, metrics.class_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets, y = Interval(jnp.zeros(3), jnp.ones(3)), jnp.array([0.5, 2.0, 0.1])
      >>> groups = jnp.array([0, 0, 1])
      >>> round(coverage_gap(sets, y, groups, 0.2, num_groups=2).item(), 4)
      0.25
    """
    rates, counts = rates_of(_sets.is_covered(sets, y), groups, num_groups, count)
    gaps = jnp.where(counts > 0, _sets.distances(rates, alpha), 0)
    shares = counts if weighted else counts > 0
    return jnp.sum(shares * gaps) / jnp.sum(shares)


def rates_of(covered, groups, num_groups, count=None):
    """Returns the mean of `covered` within each group, and the number of its rows."""
    known = counting(len(groups), count)
    # Floats would stop at 2^24 rows. Rows are missed, covered, or unknown: a NaN.
    kinds = jnp.where(jnp.isnan(covered), 2, (covered > 0).astype(int))
    if groups.ndim == 2:
        flags = groups if known is None else groups & known[:, None]
        of_kind = lambda kind: jnp.sum(flags & (kinds == kind)[:, None], axis=0)  # noqa: E731
        counts = jnp.stack([of_kind(kind) for kind in range(3)], axis=1)
    else:
        places = 3 * group_codes(groups, num_groups, known) + kinds
        counts = jnp.zeros(3 * num_groups, int).at[places].add(1, mode="drop")
        counts = counts.reshape(num_groups, 3)
    rows = jnp.sum(counts, axis=1)
    return jnp.where(counts[:, 2] > 0, jnp.nan, quotient(counts[:, 1], rows)), rows


def mean_of(values: Array, clusters: Any, count: Count) -> Array:
    """Returns the mean over rows, or over clusters of the means within."""
    if clusters is None:
        return mean(values, count)
    everyone = jnp.zeros(len(values), int)
    return means_of(everyone, 1, count, values, clusters=clusters)[0]


class Units(NamedTuple):
    """Numbers that count the same: the means of the rows of a cluster in a group.

    Values, (u,), with a group each, g where there is no unit; for groups that overlap
    values (g, u), with flags (u, g).
    """

    values: Array
    groups: Array


def units_of(
    values: Array,
    clusters: Array,
    groups: Array,
    num_groups: int,
    count: Count,
    where: Any = True,
) -> Units:
    """Returns the mean of the rows of each cluster, in each group with rows of it."""
    counts = kept(jnp.broadcast_to(where, clusters.shape), count, False)
    values = at_least_single(as_float(values))
    if groups.ndim == 1:
        codes = group_codes(groups, num_groups, counts)
        return _means_of_clusters(values, clusters, codes, num_groups)

    def of_column(flags: Array) -> Units:  # one group, 0, with all other rows in 1
        return _means_of_clusters(values, clusters, jnp.where(flags & counts, 0, 1), 1)

    units = jax.vmap(of_column, in_axes=1)(groups)
    return Units(units.values, (units.groups == 0).T)


def _means_of_clusters(
    values: Array, clusters: Array, groups: Array, num_groups: int
) -> Units:
    """Returns a unit for each pair of a group and a cluster: m_j = S_j / N_j."""
    m = len(values)
    order = jnp.lexsort((clusters, groups))  # the rows of a pair side by side
    values, clusters, groups = values[order], clusters[order], groups[order]
    is_next = (jnp.diff(groups) != 0) | (jnp.diff(clusters) != 0)
    pairs = jnp.cumsum(jnp.append(False, is_next))[:m]  # 0, ..., at most m - 1
    rows = sums_of_groups(jnp.ones(m, int), pairs, m)
    means = quotient(sums_of_groups(values, pairs, m), jnp.maximum(rows, 1))
    return Units(means, jnp.full(m, num_groups).at[pairs].set(groups))


def means_of(
    groups: Array,
    num_groups: int,
    count: Count,
    values: Array,
    where: Any = True,
    clusters: Array | None = None,
) -> Array:
    """Returns the mean of numbers, (m,) or (g, m), within each group, of some rows.

    Of rows in clusters, the mean over clusters of the means within.
    """
    if clusters is not None:
        units = units_of(values, clusters, groups, num_groups, count, where)
        return means_of(units.groups, num_groups, None, units.values)
    values = at_least_single(as_float(values))
    counts = kept(jnp.broadcast_to(where, groups.shape[:1]), count, False)
    if groups.ndim == 2:
        inside = (groups & counts[:, None]).T
        values = jnp.broadcast_to(values, inside.shape)
        total = jnp.sum(jnp.where(inside, values, 0), axis=1)
        number = jnp.sum(inside, axis=1)
    else:
        codes = group_codes(groups, num_groups, counts)
        number = sums_of_groups(counts.astype(int), codes, num_groups)
        total = sums_of_groups(values, codes, num_groups)
    means = quotient(total, jnp.maximum(number, 1))  # gradients are finite
    return jnp.where(number > 0, means, jnp.nan)


def wilson(rates: Any, counts: Any) -> tuple[Any, Any]:
    """Returns the ends of Wilson's interval of two standard errors, of numpy or jax.

    The rates p with abs(rate - p) <= 2 sqrt(p (1 - p) / n); [0, 1] for n = 0.
    """
    z = 2.0
    center = (counts * rates + z**2 / 2) / (counts + z**2)
    variance = counts * rates * (1 - rates) + z**2 / 4
    half = z * variance**0.5 / (counts + z**2)
    return center - half, center + half
