"""From rows and a plan, of which fits leave which rows out, to held-out scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete, is_rounded
from jaxcp._tracing import jit
from jaxcp.calibration._rows import check_digits_of_targets
from jaxcp.calibration.split import calibrate
from jaxcp.cross._fits import Ensemble, Fits, OwnFit, fit_all
from jaxcp.cross.conformal import CrossConformal
from jaxcp.learners import checking, shared
from jaxcp.learners.general import check_learner
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, Learner, PyTree, Score


class Plan(NamedTuple):
    """Which fits leave which rows out, and what becomes of them.

    Args:
      weights: Training weights, shape (b, n), 0 for a row that is left out; None for
        the learner's closed form of leaving out one row each.
      left_out: What predicts each row without it.
      batch_size: Fits that run at a time, or None.
      check: Whether a learner that is new is first tried by `learners.check`.
    """

    weights: Array | None
    left_out: OwnFit | Ensemble
    batch_size: int | None
    check: bool


class Rows(NamedTuple):
    """Training rows, after checks.

    Args:
      x: Inputs, a pytree of arrays with leading axis n.
      y: Targets, shape (n, ...).
      rounded: Whether targets lost digits on their way in.
    """

    x: PyTree
    y: Array
    rounded: bool


def check_data(
    key: Array, learner: Learner, score: Score, x: PyTree, y: ArrayLike
) -> Rows:
    """Returns inputs and targets as arrays, after checks."""
    inputs.check_score(score)
    rounded = is_rounded("y", y)
    y, x = _checks.rows(y=y, x=x)
    _checks.check_key(key)
    _checks.check_count("the number of rows", len(y), 1)
    _checks.check_not_nan("y", y)
    check_learner(learner, x, y)
    return Rows(x, y, rounded)


def left_out_by(weights: Array, aggregation: str) -> OwnFit | Ensemble:
    """Returns what predicts each row without it: the fits with weight 0 for it."""
    if aggregation not in ("mean", "median"):
        raise ValueError(f"expected aggregation mean or median, got {aggregation!r}")
    held_out = weights == 0
    once = jnp.sum(held_out, axis=0) == 1
    if is_concrete(once) and bool(jnp.all(once)):
        return OwnFit(jnp.argmax(held_out, axis=0), len(weights))
    return Ensemble(held_out, aggregation)


def carry_out(
    plan: Plan,
    key: Array,
    learner: Learner,
    score: Score,
    rows: Rows,
    calibration_weights: ArrayLike | None,
) -> CrossConformal:
    """Returns the fits of a plan with each row's score under those without it."""
    if plan.batch_size is not None:
        _checks.check_count("batch_size", plan.batch_size, 1)
    if plan.check:
        checking.check_once(learner, rows.x, rows.y, key)
    x, y = rows.x, rows.y
    with checking.traceable(learner):
        fits, full, preds = _fit(
            key, learner, x, y, plan.weights, plan.left_out, plan.batch_size
        )
    mask = _rows_left_out(fits)
    _check_preds(x, preds, mask)
    calibration = calibrate(score, preds, y, weights=calibration_weights, mask=mask)
    if rows.rounded:
        check_digits_of_targets(score, preds, y, calibration.scores, mask)
    return CrossConformal(fits, full, calibration)


def _check_preds(x, preds, mask):
    """Raises ValueError for predictions that are NaN, as of inputs that are."""
    try:
        _checks.check_not_nan("predictions of the learner", preds, mask)
    except ValueError:
        _checks.check_not_nan("x", x)
        raise


@jit(static_argnames="batch_size")
def _fit(key, learner, x, y, weights, left_out, batch_size):
    """Returns the fits, the fit on all rows and each row's held-out prediction."""
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
    fits = Fits(learner, params, left_out, count)
    return fits, full, left_out.of_rows(fits, x)


def _rows_left_out(fits):
    """Returns which rows have a score, None if all; raises ValueError if none has."""
    mask = fits.left_out.mask
    if mask is None or not is_concrete(mask):
        return mask
    if not bool(jnp.any(mask)):
        raise ValueError(
            "expected some row with weight 0 in a resample, got resamples that all "
            "hold every row"
        )
    return None if bool(jnp.all(mask)) else mask
