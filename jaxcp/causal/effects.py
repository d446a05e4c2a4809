"""Sets of individual effects Y(1) - Y(0), with one outcome seen or none."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxcp import _checks
from jaxcp._tree import jit
from jaxcp.calibration.split import Calibration
from jaxcp.held import taking
from jaxcp.sets import Interval
from jaxcp.typing import ArrayLike, PyTree, Score


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
    flags = _checks.mask(treated)._replace(required=True)
    columns = {"y": _checks.scores(y), "treated": flags}
    return _effects(*_checks.rows(control=control, treatment=treatment, **columns))


@jit
def _effects(control, treatment, y, treated):
    lower = jnp.where(treated, y - control.upper, treatment.lower - y)
    upper = jnp.where(treated, y - control.lower, treatment.upper - y)
    return Interval(lower, upper)


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
      A `Calibration`: `cp(preds, alpha)` are the sets of new units. Its certificate and
      its predictor speak of the intervals C, and not of effects.

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
    return Calibration(score, scores, held.weights, held.mask, shapes)


@jit
def _largest(score, effects, preds, at_lower, at_upper):
    """Returns the largest score within each interval: sets have one piece."""
    sets = jax.eval_shape(jax.vmap(score.invert), preds, at_upper)
    _checks.check_kind("a score whose sets are intervals", sets, Interval)
    empty = (effects.lower > effects.upper).reshape(-1, *(1,) * (at_lower.ndim - 1))
    return jnp.where(empty, -jnp.inf, jnp.maximum(at_lower, at_upper))
