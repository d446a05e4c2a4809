"""Sets of outcomes under one arm of a treatment, and of effects Y(1) - Y(0)."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._batching import by_rows
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.rule import WithSameRows
from jaxcp.calibration.split import Calibration
from jaxcp.held import taking
from jaxcp.held.rows import Held
from jaxcp.sets import Interval
from jaxcp.typing import ArrayLike, Number, PyTree, Score


@pytree
class OutcomeCalibration(WithSameRows):
    """Calibration scores of one arm, for sets of the outcome under this arm.

    Made by `calibrate_outcome`. It is called as `cp(preds, alpha, propensity=e)`, with
    the propensities of the new units; `quantile` and `effective_size` take that of one
    unit. A pair (low, high) in place of e is a box: sets and p-values are then those of
    the worst propensities within.

    Args:
      score: The nonconformity score.
      held: Scores of the rows, of which those of the arm count, and their weights.
      arm: Arm whose outcome the sets hold, 1 or 0.
      target: Units that the sets are for: "all", "treated" or "untreated".
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.

    See also:
      causal.calibrate_outcome, Rule, save
    """

    score: Score
    held: Held
    arm: int = static()
    target: str = static()
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    @property
    def components(self) -> tuple[int, ...]:
        """Shape of one score: () or (c,)."""
        return self.held.components

    @property
    def promise(self) -> str:
        """What sets keep to, in words with a place for {alpha}."""
        units = self.target if self.target != "all" else "treated and untreated"
        return f"P(Y({self.arm}) in set) >= 1 - {{alpha}} over {units} units"

    @property
    def assumption(self) -> str:
        """What that assumes, in words."""
        truth = (
            "the true propensity given x and this outcome is within the box"
            if isinstance(self.held.weights, tuple)
            else "treatment is independent of outcomes given x, propensities are true"
        )
        return (
            f"units are independent, each may be in either arm, {truth}, and the model "
            "and propensities come from other rows"
        )

    def weights_at(self, propensity: PyTree) -> tuple[PyTree, Array]:
        """Returns P(target | x) / P(arm | x) of the rows and, at most, of one unit."""
        own = _ratio(self.arm, self.target, propensity)
        return self.held.weights, own[1] if isinstance(own, tuple) else own

    def _declared(self, given, lead=1):
        columns = super()._declared(given, lead)
        return columns | {"propensity": _propensities(given["propensity"], lead)}


@partial(jit, static_argnames=("arm", "target"))
def _of_arm(arm, target, treated, propensity, mask):
    """Returns which rows count, and their weights."""
    own = (treated == bool(arm)) & (True if mask is None else mask)
    weights = _ratio(arm, target, propensity)
    return own, jax.tree.map(lambda w: jnp.where(own, w, 0), weights)


def _ratio(arm, target, propensity):
    """Returns P(target | x) / P(arm | x), of a box its bounds, from below and above."""
    if isinstance(propensity, tuple):
        low, high = (_ratio(arm, target, e) for e in propensity)
        return (high, low) if arm else (low, high)  # it falls with P(arm | x)
    share = {"all": 1, "treated": propensity, "untreated": 1 - propensity}[target]
    overlaps = (propensity > 0) & (propensity < 1)
    ratio = share / (propensity if arm else 1 - propensity)
    return jnp.where(overlaps, ratio, jnp.inf)


def _propensities(value, lead=1):
    """Returns propensities, or a box of them, as a column; of one unit for lead 0."""
    is_box = isinstance(value, tuple) and [np.ndim(v) for v in value] == [lead, lead]

    def convert(name, value):
        ends = value if is_box else (value,)
        found = tuple(as_float(_arrays.as_array(name, end)) for end in ends)
        return found if is_box else found[0]

    def check(name, found, mask):
        cure = "; units that are surely in one arm have no counterpart: leave them out"
        low, high = found if is_box else (found, found)
        for end in (low, high):
            (_checks.check_vectors if lead else _checks.check_scalars)(**{name: end})
            inside = lambda e: (e > 0) & (e < 1)  # noqa: E731
            _checks.check_range(inside, f"{name} in (0, 1)", end, mask, cure)
        if is_box and _arrays.is_concrete(found):
            ordered = f"{name} as (low, high) with high - low >= 0"
            gaps = np.asarray(high) - np.asarray(low)  # jax would compile
            _checks.check_values(lambda gap: gap >= 0, ordered, gaps, mask)

    return _checks.Column(value, check, convert, is_vector=False, required=True)


def propensity_box(propensity: ArrayLike, gamma: Number) -> tuple[Array, Array]:
    """Returns the propensities that a bound on unmeasured confounding leaves possible.

    Those whose odds e / (1 - e) are within a factor gamma of the odds given: the
    marginal sensitivity model. low = e / (1 + (gamma - 1)(1 - e)), high = gamma e / (1
    + (gamma - 1) e).

    Args:
      propensity: P(treated | x), shape (n,), or of one unit, shape ().
      gamma: Largest factor by which what is not measured changes the odds of being
        treated, in [1, inf), shape (). 1 means no unmeasured confounding.

    Returns:
      A pair (low, high), each like `propensity`.

    Raises:
      ValueError: if a concrete propensity is outside (0, 1), or gamma no number in [1,
        inf).

    Guarantee:
      None of its own: it says the same as the bound on the odds.

    Assumption:
      None.

    Cost:
      O(n).

    References:
      Tan, A Distributional Approach for Causal Inference Using Propensity Scores,
      Journal of the American Statistical Association, 2006.

    See also:
      causal.calibrate_outcome

    Example:
      >>> propensity_box(jnp.array([0.5, 0.75]), 3.0)  # odds 1 and 3
      (Array([0.25, 0.5 ], dtype=float32), Array([0.75, 0.9 ], dtype=float32))
    """
    bounded = lambda g: (g >= 1) & (g < np.inf)  # noqa: E731
    gamma = _checks.check_number("gamma", gamma, bounded, "in [1, inf)")
    column = _propensities(propensity, np.ndim(propensity))
    e = taking.one_row(propensity=column)["propensity"]
    return e / (1 + (gamma - 1) * (1 - e)), gamma * e / (1 + (gamma - 1) * e)


@_checks.verb
def calibrate_outcome(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    treated: ArrayLike,
    propensity: Any,
    *,
    arm: int = 1,
    target: str = "all",
    classes: Iterable[Hashable] | None = None,
    mask: ArrayLike | None = None,
) -> OutcomeCalibration:
    """Returns the calibration of a score for the outcome Y(arm) of new units.

    Rows of the arm have weights w(x) = P(target | x) / P(arm | x), and the new unit has
    the same function of its own propensity e: for arm 1 this is 1/e (all), (1 - e)/e
    (untreated), 1 (treated), for arm 0 1/(1 - e) (all), e/(1 - e) (treated), 1
    (untreated). The threshold is min{v : sum_{i : S_i > v} w_i + w <= alpha (sum_i w_i
    + w)}.

    Args:
      score: Nonconformity score of one example, also one of labels.
      preds: Predictions of the outcome under this arm, a pytree with leading axis n.
      y: Outcomes seen, shape (n, ...). Those of the other arm are not read, and may be
        NaN; of labels -1, or None by name.
      treated: Whether a row was treated, flags or 0 and 1, shape (n,).
      propensity: P(treated | x) of the rows, known or estimated on other rows, shape
        (n,), in (0, 1); or a box, a tuple of two such arrays, low <= high, where it is
        not known (`propensity_box`).
      arm: Arm whose outcome the sets hold: 1, treated, or 0, not treated.
      target: Units that the sets are for: "all", "treated" or "untreated".
      classes: Names of the k labels, as for `calibrate`.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      An `OutcomeCalibration`: call it with predictions under this arm, alpha, and the
      `propensity` (m,) of the new units, or a box of two arrays.

    Raises:
      ValueError: as `calibrate`; if `arm` or `target` is no such, `treated` is no flag,
        or a concrete propensity is outside (0, 1) or low above high. Traced, a new
        unit outside of (0, 1) has infinite sets, and a row of the arm there outweighs
        all others.

    Guarantee:
      P(Y(arm) in set) >= 1 - alpha over the units of the target, if the propensity is
      true; of a box if the true one, given x and Y(arm), is within it. With an estimate
      less by half the mean error of the weights, scaled to a mean of 1. Infinite where
      the rows weigh too little beside the new unit. For units of the arm itself these
      are the sets of `calibrate` with the other rows masked (at the same rank:
      `conformal_rank` says at which alpha weights and counts may differ).

    Assumption:
      Independent units; no unmeasured confounding: treatment is independent of the
      outcomes given x (for a box: but for what it allows); each unit may be in either
      arm; a model and propensities from other rows.

    Cost:
      O((n + m) log n) for m new units: one sort serves all of them, and
      another their p-values.

    References:
      Lei, Candes, Conformal Inference of Counterfactuals and Individual Treatment
      Effects, Journal of the Royal Statistical Society B, 2021.
      Jin, Ren, Candes, Sensitivity Analysis of Individual Treatment Effects: A Robust
      Conformal Inference Approach, Proceedings of the National Academy of Sciences,
      2023.

    See also:
      causal.effect_sets, causal.calibrate_effect, causal.propensity_box, calibrate,
      weighted_conformal_quantile

    Example:
      >>> from jaxcp.scores import Absolute
      >>> y, treated = jnp.array([1.0, 2, 3, 9, 9, 4]), jnp.array([1, 1, 1, 0, 0, 1])
      >>> e = jnp.array([0.5, 0.5, 0.25, 0.5, 0.5, 0.25])
      >>> cp = calibrate_outcome(Absolute(), jnp.zeros(6), y, treated, e)
      >>> new = jnp.array([0.5, 0.25])  # weights of the rows: 2, 2, 4, 4
      >>> cp(jnp.zeros(2), 0.45, propensity=new).upper
      Array([3., 4.], dtype=float32)
      >>> cp(jnp.zeros(2), 0.45, propensity=propensity_box(new, 3.0)).upper
      Array([ 4., inf], dtype=float32)
    """
    _checks.check_one_of("arm", arm, (0, 1))
    _checks.check_one_of("target", target, ("all", "treated", "untreated"))
    names = taking.classes_of(score, classes)
    flags = _checks.mask(treated)._replace(required=True)
    known = {"propensity": _propensities(propensity), "mask": _checks.mask(mask)}
    _, *rows = _checks.rows(preds=preds, treated=flags, **known)
    own, weights = by_rows(partial(_of_arm, int(arm), target), rows=tuple(rows))
    held, shapes = taking.scored(score, preds, y, mask=own, classes=names)
    held = dataclasses.replace(held, weights=weights)
    return OutcomeCalibration(score, held, int(arm), target, shapes, names)


@_checks.by_labels
def effect_sets(
    control: Interval, treatment: Interval, y: ArrayLike, treated: ArrayLike
) -> Interval:
    """Returns intervals of Y(1) - Y(0) for units with one outcome seen.

    With [lo, hi] the set of the outcome not seen: [y - hi, y - lo] for treated units,
    [lo - y, hi - y] for untreated ones.

    Args:
      control: Sets of Y(0), ends of shape (n,), read where a unit was treated: from
        `calibrate_outcome(..., arm=0, target="treated")`.
      treatment: Sets of Y(1), ends of shape (n,), read where it was not: from
        `calibrate_outcome(..., arm=1, target="untreated")`.
      y: Outcomes seen, shape (n,).
      treated: Whether a unit was treated, flags or 0 and 1, shape (n,).

    Returns:
      `Interval` with ends of shape (n,). Empty sets stay empty, infinite ends infinite.

    Raises:
      ValueError: if the sets are no intervals, lengths differ, a concrete `y` is NaN,
        or `treated` is no flag.

    Guarantee:
      P(Y(1) - Y(0) in set) >= 1 - alpha among treated and among untreated units, if the
      sets of the outcome not seen are at alpha.

    Assumption:
      Those of `calibrate_outcome`; the units are not among its rows.

    Cost:
      O(n).

    References:
      Lei, Candes, Conformal Inference of Counterfactuals and Individual Treatment
      Effects, Journal of the Royal Statistical Society B, 2021.

    See also:
      causal.calibrate_outcome, causal.calibrate_effect

    Example:
      >>> control = Interval(jnp.array([0.0, 0.0]), jnp.array([2.0, 2.0]))
      >>> treatment = Interval(jnp.array([3.0, 3.0]), jnp.array([4.0, 4.0]))
      >>> effect_sets(control, treatment, jnp.array([5.0, 1.0]), [1, 0]).to_numpy()
      array([[3., 5.],
             [2., 3.]], dtype=float32)
    """
    for name, sets in {"control": control, "treatment": treatment}.items():
        _checks.check_kind(f"{name} as an Interval", sets, Interval)
        _checks.check_vectors(**{f"ends of {name}": sets.lower})
    flags = _checks.mask(treated)._replace(required=True)
    columns = {"y": _checks.scores(y), "treated": flags}
    return _effects(*_checks.rows(control=control, treatment=treatment, **columns))


@jit
def _effects(control, treatment, y, treated):
    lower = jnp.where(treated, y - control.upper, treatment.lower - y)
    upper = jnp.where(treated, y - control.lower, treatment.upper - y)
    return Interval(lower, upper)


@_checks.verb
def calibrate_effect(
    score: Score,
    preds: PyTree,
    effects: Interval,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> Calibration:
    """Returns the calibration of a score for effects of units with no outcome seen.

    The nested method. Each row has an interval C_i = [a_i, b_i] in place of its effect
    (`effect_sets` at a level gamma), and its score is the largest within: S_i =
    max(score(pred_i, a_i), score(pred_i, b_i)), +inf for an infinite C_i, -inf for an
    empty one. With `scores.CQR()` and predicted ends (L, U) this is max(L - a_i, b_i -
    U), and sets are [L - q, U + q].

    Args:
      score: Nonconformity score whose sets are intervals: `scores.CQR()` of predicted
        ends, or `scores.Absolute()` of a predicted effect.
      preds: Predictions of effects, or of the ends of C, from a model that was fitted
        on rows of neither calibration; a pytree with leading axis n.
      effects: Intervals C of the rows, treated and untreated alike, ends (n,), as
        `effect_sets` gives for rows that the calibration of outcomes has not seen.
      weights: Weights >= 0 of the rows, shape (n,), for other units than all:
        propensities e for treated ones, 1 - e for untreated ones, asked for with
        `test_weights`.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      A `Calibration`: `cp(preds, alpha)` are the sets of new units. Its certificate
      speaks of the intervals C, and its promise of both.

    Raises:
      ValueError: as `calibrate`; if `effects` or sets of the score are no intervals.

    Guarantee:
      P(C in set) >= 1 - alpha, and so P(Y(1) - Y(0) in set) >= 1 - alpha - gamma, where
      each C holds its effect with probability 1 - gamma. Wide: it often covers far
      more. Without this step, the predicted ends of C alone, the inexact variant of the
      paper, have no guarantee.

    Assumption:
      Those of `calibrate_outcome`; three sets of rows: for the models, for the outcomes
      and for these.

    Cost:
      As `calibrate`, with two scores a row.

    References:
      Lei, Candes, Conformal Inference of Counterfactuals and Individual Treatment
      Effects, Journal of the Royal Statistical Society B, 2021.

    See also:
      causal.calibrate_outcome, causal.effect_sets, calibrate

    Example:
      >>> from jaxcp.scores import CQR
      >>> effects = Interval(jnp.array([0.0, 1.0, -1.0]), jnp.array([2.0, 4.0, 1.0]))
      >>> ends = jnp.zeros(3), jnp.full(3, 2.0)
      >>> cp = calibrate_effect(CQR(), ends, effects)
      >>> cp.scores, cp((jnp.zeros(1), jnp.ones(1)), 0.5).to_numpy()
      (Array([0., 2., 1.], dtype=float32), array([[-1.,  2.]], dtype=float32))
    """
    _checks.check_kind("effects as an Interval", effects, Interval)
    ends = taking.scored(score, preds, effects.lower, weights, mask)
    held, shapes = taking.scored(score, preds, effects.upper, weights, mask)
    rows = _checks.rows(preds=preds), ends[0].values, held.values
    scores = _largest(score, effects, *rows)
    return Calibration(
        score=score,
        scores=scores,
        weights=held.weights,
        mask=held.mask,
        row_shapes=shapes,
        promise="P(the interval of the effect in set) >= 1 - {alpha}, and so of the "
        "effect 1 - {alpha} - gamma",
        assumption="rows of calibration and new ones are {rows}, each interval holds "
        "its effect with probability 1 - gamma, and it and the model come from other "
        "rows",
    )


@jit
def _largest(score, effects, preds, at_lower, at_upper):
    """Returns the largest score within each interval: sets have one piece."""
    sets = jax.eval_shape(jax.vmap(score.invert), preds, at_upper)
    _checks.check_kind("a score whose sets are intervals", sets, Interval)
    empty = (effects.lower > effects.upper).reshape(-1, *(1,) * (at_lower.ndim - 1))
    return jnp.where(empty, -jnp.inf, jnp.maximum(at_lower, at_upper))
