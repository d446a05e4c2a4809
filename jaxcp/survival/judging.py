"""Coverage of lower bounds on rows whose times are censored, by inverse weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks
from jaxcp._numbers import as_float
from jaxcp._tree import as_callable, jit
from jaxcp.learners import KaplanMeier
from jaxcp.metrics import GroupSummary, Summary, _sets, intervals, rates
from jaxcp.metrics.overview import rated
from jaxcp.typing import ArrayLike, Set

_LAST = "; bounds beyond the last censoring time are not judged: take an earlier cutoff"


class CensoredCoverage(NamedTuple):
    """The coverage of bounds of censored times, with its error. Made by `coverage`.

    Args:
      coverage: Estimate of P(T >= bound), shape ().
      error: Its standard error, shape ().

    See also:
      survival.coverage
    """

    coverage: Array
    error: Array


@_checks.by_labels
def coverage(
    sets: Set | ArrayLike,
    time: ArrayLike,
    event: ArrayLike,
    censoring: Callable,
    *,
    clusters: ArrayLike | None = None,
) -> CensoredCoverage:
    """Returns the coverage of lower bounds of times that are censored, with its error.

    Of a time T only min(T, C) is seen. It is shorter, so that `metrics.coverage` of the
    observed times is too low. A miss, T < L, is seen where C >= T, with probability
    G(T) = P(C >= T), and then weighs 1 / G(T) for those that are not:

      coverage = 1 - (1/m) sum_i event_i 1(time_i < L_i) / G(time_i),

    whose mean is P(T >= L), for E[1(C >= T) 1(T < L) / G(T)] = P(T < L). The error is
    the standard deviation of the m terms over sqrt(m). The mean of 1(time >= L) / G(L)
    is right as well, and needs no events, but varies more where at each input at least
    half of the times are covered: these rows outnumber the misses, and weigh more, as
    G(L) <= G(T) for T < L.

    Args:
      sets: Intervals [L, +inf) with leading axis m, as `LowerCalibration` returns them.
      time: Observed times min(T, C) of these rows, shape (m,).
      event: True where the event was seen, T <= C, shape (m,).
      censoring: P(C >= t), with t itself: a function of the times, from (m,) to (m,),
        which may hold inputs of the rows, such as `lambda t: law(x, t)`; or a fitted
        `learners.KaplanMeier(reverse=True)`.
      clusters: Cluster of each row, as for `metrics.coverage`, shape (m,): the terms of
        a cluster are then one, their mean. Defaults to none.

    Returns:
      A `CensoredCoverage`, a pair (coverage, error), shape (). At most 1, and below 0
      where few misses weigh much. NaN for no rows, or where a bound is NaN; the error
      is NaN for one row, too. Of traced values NaN where a miss has G outside (0, 1].

    Raises:
      ValueError: if lengths differ, a time is NaN, a flag neither 0 nor 1, an upper end
        finite, the law of C no function or of another shape, or the time of a miss has
        a probability outside (0, 1].

    Guarantee:
      None: an estimate. It is unbiased with the true law of C, and approximately so
      with a fitted one, whose own error is not in the standard error.

    Assumption:
      Independent rows, or clusters, of one law; T and C independent given x; P(C >= t |
      x) above 0 up to each bound.

    Cost:
      O(m) time, and one call of the law of C.

    References:
      Robins, Rotnitzky, Recovery of Information and Adjustment for Dependent Censoring
      Using Surrogate Markers, AIDS Epidemiology, 1992.

    See also:
      survival.calibrate_lower, learners.KaplanMeier, metrics.coverage, report

    Example:
      >>> from jaxcp.sets import Interval
      >>> sets = Interval(jnp.full(4, 2.0), jnp.full(4, jnp.inf))
      >>> time, event = jnp.array([1.0, 1.5, 3.0, 4.0]), jnp.array([1, 0, 1, 0])
      >>> found = coverage(sets, time, event, lambda t: 1 - t / 5)  # P(C >= 1) = 0.8
      >>> round(found.coverage.item(), 4), round(found.error.item(), 4)
      (0.6875, 0.3125)
    """
    everyone = np.zeros(np.shape(time), int)
    rows = sets, time, everyone, event, censoring
    table = by_group(*rows, num_groups=1, clusters=clusters)
    return CensoredCoverage(table["coverage"][0], table["coverage_error"][0])


def by_group(
    sets: Set | ArrayLike,
    time: ArrayLike,
    groups: ArrayLike,
    event: ArrayLike,
    censoring: Callable,
    *,
    group_names: Iterable[Hashable] | None = None,
    num_groups: int | None = None,
    clusters: ArrayLike | None = None,
) -> GroupSummary:
    """Returns `coverage` within each group, as `metrics.by_group` has it."""
    sets = _sets.as_batch(intervals.check_intervals(sets))
    flags = _checks.mask(event)._replace(required=True)
    columns = {"time": _checks.scores(time), "event": flags}
    sets, time, event = _checks.rows(sets=sets, **columns)
    free = "sets [bound, inf), as censored times have no upper bounds"
    _checks.check_values(lambda upper: upper == np.inf, free, sets.upper)
    p = _arrays.as_array("censoring(time)", _law(censoring)(time))
    _checks.check_shape("censoring(time)", time.shape, p.shape)
    if _arrays.is_concrete(time, event, sets.lower):  # by numpy, which compiles nothing
        is_miss = np.asarray(event) & (np.asarray(time) < np.asarray(sets.lower))
        expected = "censoring(time), P(C >= time), in (0, 1] where an event is a miss"
        _checks.check_range(_is_probability, expected, p, is_miss, _LAST)
    named = rates.named_groups(time, groups, num_groups, group_names)
    clusters = _sets.check_clusters(clusters, time=time)
    rows = sets.lower, as_float(time), event, as_float(p), named.codes, clusters
    table = _batching.counted(_by_group, *rows, num_groups=named.count)
    return GroupSummary(table, named.names or ())


def check_law(model: Any) -> None:
    """Raises ValueError for a Kaplan-Meier curve of T where that of C is expected."""
    if not getattr(model, "reverse", True):
        raise ValueError("expected the law of C, KaplanMeier(reverse=True), got T's")


def _law(censoring: Any) -> Callable[[Array], ArrayLike]:
    """Returns P(C >= t) as a function of times t, after checks."""
    if isinstance(censoring, KaplanMeier):
        check_law(censoring)
        return partial(censoring, None)
    return as_callable("censoring, P(C >= t) of times t,", censoring)


def _is_probability(p: Any) -> Any:
    return (p > 0) & (p <= 1)


@partial(jit, static_argnames="num_groups")
def _by_group(
    bound: Array,
    time: Array,
    event: Array,
    p: Array,
    groups: Array,
    clusters: Array | None,
    count: Array | None,
    num_groups: int,
) -> Summary:
    """Returns `by_group` of checked arguments, in one program."""
    is_valid = _is_probability(p)
    weight = jnp.where(is_valid, 1 / jnp.where(is_valid, p, 1), jnp.nan)
    # A row covers 1 - event 1(time < L) / G(time), on average P(T >= L).
    covered = 1 - jnp.where(event & (time < bound), weight, 0)
    covered = _sets.where_known(covered, bound)
    table = rated(covered, groups, num_groups, count, clusters)
    bounds = rates.means_of(groups, num_groups, count, bound, clusters=clusters)
    table["mean_bound"] = bounds
    return table
