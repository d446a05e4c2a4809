"""From rows and a plan (which fits leave which rows out) to held-out scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_concrete, on_host
from jaxcp._tracing import jit
from jaxcp.cross import _programs
from jaxcp.cross._fits import Fits, HostFits, fit_all
from jaxcp.cross._left_out import Aggregation, Ensemble, OwnFit, left_out_by
from jaxcp.cross.calibrating import of_held_out
from jaxcp.cross.conformal import CrossConformal
from jaxcp.learners import checking, shared
from jaxcp.learners._rows import as_rows, num_rows
from jaxcp.learners.general import check_learner
from jaxcp.scores import inputs
from jaxcp.typing import AnyLearner, ArrayLike, FitsOnHost, PyTree, Score

_LOST = (
    "; digits of the data may not carry a closed form, as with a small penalty: take "
    "a larger one, or x and y in float64 with jax_enable_x64"
)


class Plan(NamedTuple):
    """Which fits leave which rows out, and how they run.

    Args:
      weights: Training weights, shape (b, n), 0 for a row that is left out; None for
        the learner's closed form of leaving out one row each.
      left_out: What predicts each row without it.
      batch_size: Fits that run at a time, or None.
      check: Whether a learner that is new is first tried by `learners.check`.
      bags: Whether rows that no fit leaves out count, with score +inf.
    """

    weights: Array | None
    left_out: OwnFit | Ensemble
    batch_size: int | None
    check: bool
    bags: bool = False


class Rows(NamedTuple):
    """Training rows, after checks.

    Args:
      x: Inputs, a pytree of arrays with leading axis n; as given for a model on the
        host.
      y: Targets, shape (n, ...); numbers of the rows for a model on the host.
      given: Targets as they were given.
    """

    x: PyTree
    y: Array
    given: Any


def check_data(
    key: Array, learner: AnyLearner, score: Score, x: PyTree, y: ArrayLike
) -> Rows:
    """Returns inputs and targets as arrays, after checks."""
    inputs.check_score(score)
    _checks.check_given(learner=learner)
    if isinstance(learner, FitsOnHost):
        return _rows_on_host(key, learner, x, y)
    found, x = _checks.rows(y=y, x=x)
    _checks.check_key(key)
    _checks.check_count("the number of rows", len(found), 1)
    _checks.check_not_nan("y", found)
    check_learner(learner, x, found)
    return Rows(x, found, y)


def _rows_on_host(key, learner, x, y):
    """Returns rows in the containers that they came in, after checks."""
    _checks.check_given(y=y, x=x)
    checking.check_untraced(learner, key, x, y)
    n = num_rows("y", as_rows("y", y))
    _checks.rows(y=np.zeros(n), x=np.zeros(learner.num_rows(x)))
    _checks.check_key(key)
    _checks.check_count("the number of rows", n, 1)
    values = on_host("y", y)
    if values.dtype.kind == "f":
        _checks.check_not_nan("y", values)
    return Rows(x, jnp.asarray(np.arange(n)), y)


def plan_of(
    weights: Array, aggregation: Aggregation, batch_size: int | None, check: bool
) -> Plan:
    """Returns the plan by which fits leave out the rows of weight 0."""
    held_out = (np.asarray(weights) if is_concrete(weights) else weights) == 0
    return Plan(weights, left_out_by(held_out, aggregation), batch_size, check)


def carry_out(
    plan: Plan,
    key: Array,
    learner: AnyLearner,
    score: Score,
    rows: Rows,
    calibration_weights: ArrayLike | None,
) -> CrossConformal:
    """Returns the fits of a plan with each row's score under those without it."""
    if plan.batch_size is not None:
        _checks.check_count("batch_size", plan.batch_size, 1)
    fit = _fit_on_host if isinstance(learner, FitsOnHost) else _fit
    fits, preds = fit(plan, key, learner, rows)
    classes = fits.classes if inputs.has_labels(score) else None
    with fits.keeping():
        calibration = of_held_out(
            plan.left_out,
            score,
            preds,
            rows.given,
            calibration_weights,
            classes,
            bags=plan.bags,
        )
    return CrossConformal(fits, calibration)


def _fit_on_host(plan, key, learner, rows):
    """Returns fits of a model that is not of jax, and held-out predictions."""
    checking.check_untraced(learner, plan.weights)
    n = len(rows.y)
    weights = 1 - np.eye(n) if plan.weights is None else np.asarray(plan.weights)
    fitted = learner.fit_all(key, rows.x, rows.given, weights)
    preds = learner.predict_held_out(fitted, rows.x, weights == 0)
    own = _programs.held_out(plan.left_out, as_arrays(preds=preds))
    return HostFits(learner, fitted), own


def _fit(plan, key, learner, rows):
    """Returns the fits, in one program, and held-out predictions."""
    if plan.check:
        checking.check_once(learner, rows.x, rows.y, key)
    with checking.traceable(learner):
        of = plan.weights, plan.left_out, plan.batch_size
        fits, preds = _fit_together(key, learner, rows.x, rows.y, *of)
    cure = _LOST if plan.weights is None else ""
    checking.check_predictions(preds, rows.x, plan.left_out.mask, cure=cure)
    return fits, preds


@jit(static_argnames="batch_size")
def _fit_together(key, learner, x, y, weights, left_out, batch_size):
    ones = jnp.ones((1, len(y)))
    if weights is None:
        params, count = learner.leave_one_out(x, y), len(y)
        full = learner.fit(key, x, y, ones[0])
    else:
        count = len(weights)
        keys, weights = jax.random.split(key, count + 1), weights.astype(ones.dtype)
        everything = jnp.concatenate([weights, ones])
        params = fit_all(learner, keys, x, y, everything, batch_size)
        full = shared.take(params, -1)
        params = shared.take(params, slice(count))
    fits = Fits(learner, params, full, count)
    return fits, left_out.of_rows(fits, x)
