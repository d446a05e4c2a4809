"""Tests of a grid of settings: which of them are proved to keep their risks.

Learn then test, Pareto testing, whose order comes from another part of the rows, and
answers given or withheld: the lowest confidence at which errors stay rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete, is_rounded
from jaxcp._numbers import as_float, at_least_single, quotient
from jaxcp.pvalues.multiple import as_starts, bonferroni, fixed_sequence, holm, runs
from jaxcp.quantiles import levels
from jaxcp.risk import bounds
from jaxcp.risk.bounds import binomial_tail, losses_and_rows, one_each
from jaxcp.typing import ArrayLike


class Counts(NamedTuple):
    """Errors among the rows that count, at each setting of a grid.

    `errors`, integers of shape (g,), among as many `trials`, integers of shape (g,).

    Guarantee:
      none: they are data.

    Assumption:
      Rows that are i.i.d., so that errors are binomial given the trials.

    Cost:
      Two integers for each setting.

    See also:
      risk.learn_then_test, risk.pareto_test

    Example:
      >>> Counts(jnp.array([2, 0]), jnp.array([100, 0])).trials.shape
      (2,)
    """

    errors: ArrayLike
    trials: ArrayLike


def _as_risks(name, losses):
    """Returns losses (n, g) or counts (g,) of each risk, and the number of settings."""
    several = isinstance(losses, tuple) and not isinstance(losses, Counts)
    risks = tuple(_as_risk(name, v) for v in (losses if several else (losses,)))
    g = jax.tree.leaves(risks)[0].shape[-1]  # of counts, and of losses by rows
    _checks.check_count("number of settings", g, 1)
    return risks, g


def _as_risk(name, value):
    if not isinstance(value, Counts):
        return as_array(name, value)
    errors, trials = (as_array(k, v) for k, v in value._asdict().items())
    _checks.check_vectors(errors=errors, trials=trials)
    _checks.check_shape("trials", errors.shape, trials.shape)
    for name, v in (("errors", errors), ("trials", trials)):
        if not jnp.issubdtype(v.dtype, jnp.integer):
            raise ValueError(f"expected {name} as integers, got {v.dtype}")
        _checks.check_values(lambda v: v >= 0, f"{name} >= 0", v)
    if is_concrete(errors, trials):
        within = lambda v: v <= np.asarray(trials)  # noqa: E731
        _checks.check_values(within, "errors of at most the trials", errors)
    return Counts(errors.astype(int), trials.astype(int))


def _p_values(risks, alpha, delta, p_value, where, bound):
    """Returns the largest p-value of each setting, (g,): its claim is a union."""
    given = {"alpha": alpha, "where": where, "bound": bound}
    each = [one_each(name, value, len(risks)) for name, value in given.items()]
    p = [_of_risk(p_value, delta, *risk) for risk in zip(risks, *each, strict=True)]
    if len(p) == 1:
        return p[0]
    dtype = jnp.result_type(*p)
    return jnp.max(jnp.stack([v.astype(dtype) for v in p]), axis=0)


def _of_risk(p_value, delta, risk, alpha, where, bound):
    """Returns the p-values of one risk, (g,)."""
    is_unit = is_concrete(bound) and bound == 1
    if isinstance(risk, Counts):
        own = p_value in (None, "binomial") and where is None and is_unit
        if not own:
            raise ValueError("expected counts without p_value, where and bound")
        return _of_counts(risk, alpha)
    # The exact law for errors, else what holds in any order of the rows.
    whole = not jnp.issubdtype(risk.dtype, jnp.floating)
    errors = risk.dtype == bool or (whole and is_unit)
    method = p_value or ("binomial" if errors else "hoeffding_bentkus")
    if method == "binomial" and is_concrete(risk, where, alpha):
        losses, where, _ = losses_and_rows(risk, where, bound, method)
        return _of_counts(_counted(losses, where), alpha)
    options = {"method": method, "delta": delta, "where": where, "bound": bound}
    return bounds.p_value(risk, alpha, **options)


@jax.jit
def _counted(losses, where):
    counts = jnp.ones_like(losses, bool) if where is None else where
    counts = counts if counts.ndim == 2 else counts[:, None]
    counts = jnp.broadcast_to(counts, losses.shape)
    return jnp.sum((losses != 0) & counts, axis=0), jnp.sum(counts, axis=0)


def _of_counts(counts, alpha):
    """Returns P(Bin(trials, alpha) <= errors): 1 where nothing counts."""
    _checks.share("alpha", alpha)
    alpha = alpha if isinstance(alpha, Array) else levels.as_alpha(alpha).item()
    if not is_concrete(counts, alpha):
        alpha = float(alpha) if isinstance(alpha, Fraction) else alpha
        return _traced_tails(*counts, as_float(alpha))
    exact = alpha if isinstance(alpha, Fraction) else Fraction(float(alpha))
    errors, trials = map(np.asarray, counts)
    return jax.device_put(levels.binomial_tails(trials, errors, exact))


@jax.jit
def _traced_tails(errors, trials, alpha):
    alpha = jnp.clip(at_least_single(alpha), 0, 1)
    trials = jnp.maximum(trials, 0)
    errors = jnp.clip(errors, 0, trials)
    given = errors.astype(alpha.dtype), trials.astype(alpha.dtype)
    p = jax.vmap(binomial_tail, (0, 0, None))(*given, alpha)
    return jnp.where(jnp.isnan(alpha), 1, p)


Procedure = Callable[[Array, ArrayLike], Array]


@_checks.by_labels
def learn_then_test(
    losses: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    alpha: ArrayLike | tuple[ArrayLike, ...],
    delta: ArrayLike,
    *,
    method: Literal["holm", "bonferroni", "fixed_sequence"] | Procedure = "holm",
    p_value: bounds.Method | None = None,
    where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    bound: ArrayLike | tuple[ArrayLike, ...] = 1.0,
    starts: Sequence[int] | ArrayLike = (0,),
) -> Array:
    """Returns which settings keep their mean loss at alpha, all of them at once.

    A p-value of the claim that the mean loss of a setting is above alpha, then a
    procedure of `pvalues` that makes no false rejection. The loss may be any function
    of the setting, monotone or not. Choose freely among the valid ones, by `best`.

    With `where`, the mean is that of the rows where it is True, which may differ
    between settings: the false share of what is selected is the error among the rows
    selected, abstention leaves the rows answered.

    Args:
      losses: Losses in [0, bound] of n rows at g settings, shape (n, g), bool for
        errors; or `Counts`; or a tuple of these, one a risk: a setting is valid if all
        its risks are kept.
      alpha: Level of the mean loss in (0, bound), shape (); a tuple for several risks.
      delta: Probability of any setting that is wrongly valid, in (0, 1), shape ().
      method: "holm", "bonferroni", "fixed_sequence" (from `starts` on, in the order of
        the grid), or a function (p_values, delta) -> (g,) bool, such as one with
        `pvalues.graphical`.
      p_value: A method of `risk.p_value`. Defaults to "binomial" for errors (bool, or
        integers with bound 1) and counts, else to "hoeffding_bentkus". Bets are made
        for the level that the first hypothesis is tested at.
      where: True where a row counts, shape (n, g) or (n,); a tuple for several risks.
      bound: Largest loss there can be, > 0, shape (); a tuple for several risks.
      starts: Settings at which a fixed sequence begins, as in
        `pvalues.fixed_sequence`.

    Returns:
      Valid settings, bool of shape (g,). A setting where no row counts is not valid.

    Raises:
      ValueError: if there is no setting, shapes do not fit, a concrete loss is outside
        [0, bound], `alpha` outside (0, bound) or `delta` outside (0, 1).

    Guarantee:
      P(all valid settings have means <= alpha) >= 1 - delta over the rows.

    Assumption:
      Independent rows with the same law, and a grid, an order, starts and a direction
      that do not depend on them: choose those on other rows.

    Cost:
      O(n g) time, and the procedure. Errors are counted in integers; their p-values are
      rounded from double precision where counts and `alpha` are known, otherwise as in
      `risk.p_value`.

    References:
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      risk.best, risk.pareto_test, risk.selective_threshold, risk.p_value, pvalues.holm

    Example:
      >>> errors = jnp.arange(200)[:, None] < jnp.array([[2, 8, 30]])
      >>> learn_then_test(errors, alpha=0.1, delta=0.1)
      Array([ True,  True, False], dtype=bool)
      >>> learn_then_test(Counts([2, 8, 0], [200, 40, 0]), alpha=0.1, delta=0.1)
      Array([ True, False, False], dtype=bool)
    """
    delta = _checks.share("delta", delta)
    risks, g = _as_risks("losses", losses)
    procedure, tests = _procedure(method, starts, g)
    p = _p_values(risks, alpha, delta / tests, p_value, where, bound)
    valid = jnp.asarray(procedure(p, delta))
    _checks.check_shape("rejections of method", (g,), valid.shape)
    if valid.dtype != bool:
        raise ValueError(f"expected bool rejections of method, got {valid.dtype}")
    return valid


def best(valid: ArrayLike, utility: ArrayLike) -> tuple[Array, Array]:
    """Returns the valid setting of the largest utility, and whether there is one.

    Args:
      valid: Settings to choose from, bool of shape (g,).
      utility: What to maximize, shape (g,), larger is better. NaN is never chosen.

    Returns:
      The index, int of shape (), the first of those that are equally good; and whether
      any was found, bool of shape (). The index is 0 where none was: do not use it.

    Raises:
      ValueError: if shapes differ, there is no setting, or `valid` holds no flags.

    Guarantee:
      That of `valid`: it holds for all settings at once, whatever the choice, also if
      the utility comes from the same rows.

    Assumption:
      none.

    Cost:
      O(g) time.

    See also:
      risk.learn_then_test, risk.pareto_test

    Example:
      >>> index, found = best(jnp.array([True, True, False]), jnp.arange(3))
      >>> index.item(), found.item()
      (1, True)
    """
    valid, utility = _checks.flags("valid", valid), as_array("utility", utility)
    _checks.check_vectors(valid=valid)
    _checks.check_shape("utility", valid.shape, utility.shape)
    return _best(valid, utility)


def _procedure(method, starts, g):
    """Returns a function (p, delta) -> rejections, and what it divides delta by."""
    if callable(method):
        return method, 1
    _checks.check_one_of("method", method, ["holm", "bonferroni", "fixed_sequence"])
    if method != "fixed_sequence":
        return {"holm": holm, "bonferroni": bonferroni}[method], g
    starts = as_starts(starts, g)
    return lambda p, d: fixed_sequence(p, d, starts=starts), len(starts)


@jax.jit
def _best(valid, utility):
    is_float = jnp.issubdtype(utility.dtype, jnp.floating)
    utility = utility if is_float else utility.astype(int)
    lowest = -jnp.inf if is_float else jnp.iinfo(utility.dtype).min
    eligible = valid & ~(utility != utility)
    largest = jnp.max(jnp.where(eligible, utility, lowest))
    return jnp.argmax(eligible & (utility == largest)), jnp.any(eligible)


def pareto_front(risks: ArrayLike, costs: ArrayLike) -> Array:
    """Returns which settings no other one beats in all risks and costs.

    Setting j beats i if it is nowhere larger and somewhere smaller: equal settings do
    not beat each other.

    Args:
      risks: Estimated risks, shape (g,) or (g, r).
      costs: What else to keep small, shape (g,) or (g, c).

    Returns:
      The front, bool of shape (g,). A setting with a NaN is not on it.

    Raises:
      ValueError: if numbers of settings differ.

    Guarantee:
      none: it is an estimate of which settings are worth a test.

    Assumption:
      none.

    Cost:
      O(g^2) time.

    References:
      Laufer-Goldenberg, Fisch, Barzilay, Jaakkola, Efficiently Controlling Multiple
      Risks with Pareto Testing, International Conference on Learning Representations,
      2023.

    See also:
      risk.pareto_test, risk.learn_then_test

    Example:
      >>> pareto_front(jnp.array([0.1, 0.2, 0.3]), jnp.array([3.0, 1.0, 2.0]))
      Array([ True,  True, False], dtype=bool)
    """
    return _front(_objectives(risks, costs))


def pareto_test(
    first: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    losses: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    costs: ArrayLike,
    alpha: ArrayLike | tuple[ArrayLike, ...],
    delta: ArrayLike,
    *,
    p_value: bounds.Method | None = None,
    where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    first_where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    bound: ArrayLike | tuple[ArrayLike, ...] = 1.0,
) -> Array:
    """Returns which settings keep their mean loss at alpha, the promising ones tested.

    On a first part of the rows: the front of the mean losses and the costs, in the
    order of the mean losses (of several risks the largest relative to alpha). On the
    rest: a fixed sequence of tests along it.

    Args:
      first: Losses of the first part, as `losses`.
      losses: Losses in [0, bound] of the rows to test on, shape (n, g), or `Counts`, or
        a tuple of these for several risks; as in `learn_then_test`.
      costs: What to keep small, free of the rows to test on, shape (g,) or (g, c).
      alpha: Level of the mean loss in (0, bound), shape (); a tuple for several risks.
      delta: Probability of any setting that is wrongly valid, in (0, 1), shape ().
      p_value: A method of `risk.p_value`, as in `learn_then_test`.
      where: True where a row counts, as in `learn_then_test`.
      first_where: The same for the first part.
      bound: Largest loss there can be, > 0, shape (); a tuple for several risks.

    Returns:
      Valid settings, bool of shape (g,), on the front.

    Raises:
      ValueError: as `learn_then_test`, or if numbers of settings differ.

    Guarantee:
      P(all valid settings have means <= alpha) >= 1 - delta over the rows to test on.

    Assumption:
      Independent rows with the same law, independent of those of the first part.

    Cost:
      O(n g + g^2) time.

    References:
      Laufer-Goldenberg, Fisch, Barzilay, Jaakkola, Efficiently Controlling Multiple
      Risks with Pareto Testing, International Conference on Learning Representations,
      2023.

    See also:
      risk.learn_then_test, risk.pareto_front, risk.best, pvalues.fixed_sequence

    Example:
      >>> errors = jnp.arange(200)[:, None] % jnp.array([[50, 25, 5]]) == 0
      >>> cost = jnp.array([3.0, 2.0, 1.0])
      >>> pareto_test(errors[:100], errors[100:], cost, alpha=0.1, delta=0.1)
      Array([ True,  True, False], dtype=bool)
    """
    delta = _checks.share("delta", delta)
    (begun, g), (risks, tested) = _as_risks("first", first), _as_risks("losses", losses)
    sizes = (len(begun), g), (len(risks), tested)
    _checks.check_shape("losses, by risks and settings like first,", *sizes)
    p = _p_values(risks, alpha, delta, p_value, where, bound)
    alphas = one_each("alpha", alpha, len(risks))
    wheres = one_each("first_where", first_where, len(risks))
    means = jnp.stack([_mean(*v) for v in zip(begun, wheres, strict=True)], axis=1)
    objectives = _objectives(means, costs)
    order, on_front = _order(means, objectives, _relative(alphas))
    valid = fixed_sequence(jnp.where(on_front[order], p[order], 1), delta)
    return jnp.zeros_like(valid).at[order].set(valid)


def _objectives(risks, costs):
    """Returns all that is to be kept small, shape (g, r + c)."""
    risks, costs = as_array("risks", risks), as_array("costs", costs)
    _checks.num_rows(risks=risks, costs=costs)
    columns = [v.reshape(len(v), -1) for v in map(as_float, (risks, costs))]
    return jnp.concatenate(columns, axis=1)


def _mean(risk, where):
    """Returns the mean loss of each setting over its rows; NaN without rows."""
    if isinstance(risk, Counts):
        return quotient(jnp.asarray(risk.errors), jnp.asarray(risk.trials))
    losses = at_least_single(as_float(risk))
    counts = jnp.ones_like(losses, bool)
    if where is not None:
        where = _checks.flags("where", where)
        counts = counts & (where if where.ndim == 2 else where[:, None])
    total = jnp.sum(jnp.where(counts, losses, 0), axis=0)
    return quotient(total, jnp.sum(counts, axis=0))


def _relative(alphas):
    """Returns what each risk is divided by: nothing if there is one."""
    if len(alphas) == 1:
        return jnp.ones(1)
    known = (a if isinstance(a, Array) else float(a) for a in alphas)
    return jnp.stack([jnp.asarray(a) for a in known])


@jax.jit
def _front(objectives):
    known = ~jnp.any(jnp.isnan(objectives), axis=1)
    values = jnp.where(known[:, None], objectives, jnp.inf)

    def is_beaten(mine):
        lower = jnp.any(values < mine[None], axis=1)
        return jnp.any(lower & jnp.all(values <= mine[None], axis=1))

    return known & ~jax.vmap(is_beaten)(values)


@jax.jit
def _order(means, objectives, scales):
    """Returns the settings by growing risk, those of the front first, and the front."""
    front = _front(objectives)
    largest = jnp.max(means / scales[None], axis=1)
    return jnp.argsort(jnp.where(front, largest, jnp.inf)), front


_ON_HOST = "; counts that pass are found on the host: write alpha=0.1"


def selective_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    alpha: float,
    delta: float,
    *,
    grid: ArrayLike,
    starts: Sequence[int] | ArrayLike = (0,),
) -> tuple[Array, Array]:
    """Returns the confidence from which to answer: at most alpha of answers are wrong.

    At a threshold t the rows with confidence >= t are answered, m of them, k wrongly;
    it passes if P(Bin(m, alpha) <= k) <= delta / j. From each of the j starts on the
    grid is gone down while thresholds pass. In integers: k against the largest count
    that passes among m answers.

    Begin where there is data. A start with m answers fails for sure unless (1 -
    alpha)^m <= delta / j, 22 answers for alpha = delta = 0.1, and at the highest
    thresholds nobody is answered. On other rows, such as those that the model was
    fitted on or a first part of these, find the highest threshold with, say, three
    times as many answers, scaled to n rows, and begin there: `grid` may end above it.
    Several starts, each with delta / j, are for when there are no such rows.

    Args:
      confidence: Confidence in an answer, shape (n,). NaN is not answered.
      correct: Whether the answer is right, bool of shape (n,).
      alpha: Share of errors among answers, a number in (0, 1).
      delta: Probability of a threshold that errs more often, a number in (0, 1).
      grid: Thresholds in decreasing order, shape (g,), chosen without these rows.
      starts: Indices of the grid to begin at, chosen without these rows, shape (j,).

    Returns:
      The smallest valid threshold, shape (), +inf if there is none: answer nobody; and
      the valid thresholds of the grid, bool of shape (g,). Where confidences or the
      grid have digits of double precision that are rounded here, the threshold is the
      float below the number on the grid: confidence >= threshold then means the same
      before rounding, as in numpy, and after, and is the rule that was tested.

    Raises:
      ValueError: if lengths differ, `grid` is empty or does not decrease, starts are no
        distinct indices of it, or `alpha` or `delta` are no numbers in (0, 1).

    Guarantee:
      P(P(wrong, given answered) <= alpha) >= 1 - delta over the rows, for all valid
      thresholds at once.

    Assumption:
      I.i.d. rows, and a grid and starts that do not depend on them, which no check can
      see: quantiles of `confidence` would be chosen by these rows.

    Cost:
      O(n log g) time, and a table of n counts on the host.

    References:
      Geifman, El-Yaniv, Selective Classification for Deep Neural Networks, Advances in
      Neural Information Processing Systems, 2017.
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      risk.learn_then_test, risk.critical_count, pvalues.fixed_sequence

    Example:
      >>> confidence = jnp.linspace(0.5, 1.0, 500)
      >>> correct = (jnp.arange(500) % 10 > 0) | (confidence > 0.8)
      >>> grid = jnp.array([1.0, 0.9, 0.8, 0.7, 0.6])
      >>> threshold, valid = selective_threshold(
      ...     confidence, correct, alpha=0.05, delta=0.1, grid=grid, starts=(1,)
      ... )
      >>> round(threshold.item(), 2), valid.tolist()
      (0.8, [False, True, True, False, False])
    """
    right = _checks.vector(correct)
    sure = _checks.vector(confidence)
    sure, correct = _checks.rows(confidence=sure, correct=right)
    if jnp.issubdtype(correct.dtype, jnp.inexact):
        raise ValueError(f"expected correct as bool, got {correct.dtype}")
    _checks.check_flags("correct as bool", correct)
    thresholds = as_float(as_array("grid", grid))
    _checks.check_vectors(grid=thresholds)
    falls = lambda v: np.append(True, v[1:] < v[:-1]) & ~np.isnan(v)  # noqa: E731
    cure = "; numpy.unique(grid)[::-1] is in this order"
    _checks.check_values(falls, "grid in decreasing order", thresholds, cure=cure)
    if is_rounded("confidence", confidence) or is_rounded("grid", grid):
        # A number that rounds to one of the grid is not below it before it is rounded.
        thresholds = jnp.nextafter(thresholds, -jnp.inf)
    starts = as_starts(starts, len(thresholds))
    level, share = levels.one_alpha(alpha, _ON_HOST), levels.as_delta(delta)
    table = levels.critical_counts(len(sure), level, share / len(starts))
    return _threshold(sure, correct != 0, thresholds, starts, table)


@jax.jit
def _threshold(confidence, correct, grid, starts, table):
    answered, errors = _counts(confidence, correct, grid)
    valid = runs(errors <= jnp.asarray(table)[answered], starts)
    # The grid decreases: the smallest threshold is the last.
    return jnp.min(jnp.where(valid, grid, jnp.inf)), valid


def _counts(confidence, correct, grid):
    """Returns how many rows are answered at each threshold, and how many wrongly."""
    g, dtype = len(grid), jnp.result_type(confidence, grid)
    # The first threshold at which a row is answered: g for none, as for NaN.
    above = jnp.searchsorted(-grid.astype(dtype), -confidence.astype(dtype))
    first = jnp.where(jnp.isnan(confidence), g, above)
    zero = jnp.zeros(g + 1, int)
    rows = jnp.cumsum(zero.at[first].add(1))[:g]
    return rows, jnp.cumsum(zero.at[first].add((~correct).astype(int)))[:g]
