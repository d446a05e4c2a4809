"""The verb that splits, fits and calibrates in one call."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_concrete, on_host
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.calibration.calibrating import calibrate
from jaxcp.calibration.models import SplitConformal
from jaxcp.cross._fits import HostFits, predict_once
from jaxcp.cross._plans import Rows, check_data
from jaxcp.learners import checking
from jaxcp.scores import inputs
from jaxcp.typing import AnyLearner, ArrayLike, FitsOnHost, Learner, PyTree, Score


@pytree
class OneFit:
    """A learner with the parameters of one fit. Made by `split_conformal_fit`.

    Args:
      learner: The learner.
      params: Parameters of the fit.
    """

    learner: Learner
    params: PyTree


def split_conformal_fit(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    share: float,
) -> SplitConformal:
    """Returns split conformal prediction from data and a learner, in one call.

    A random part of the rows trains the learner, the others calibrate its score.

    Args:
      key: Random key, for the split and the fit.
      learner: A learner, also an `Estimator` of any library.
      score: Nonconformity score of one example, from `jaxcp.scores`.
      x: Inputs, whatever the learner takes, a pytree with leading axis n.
      y: Targets, shape (n, ...), in their own units, or labels 0, ..., k - 1; for an
        `Estimator` that predicts probabilities also labels by name, such as text.
      share: Share of the rows that train, in (0, 1): share * n of them, rounded, and at
        least one row on either side.

    Returns:
      A `SplitConformal`: call it with inputs and alpha. Its `params` hold the fit; for
      an `Estimator` that is `cp.params.models[0]`.

    Raises:
      ValueError: if there are fewer than 2 rows, `share` is not in (0, 1), lengths
        differ, or as `calibrate`.

    Guarantee:
      P(Y in set) >= 1 - alpha.

    Assumption:
      The rows and test examples are exchangeable.

    Cost:
      One fit on `share` of the rows; predictions and scores of the others.

    References:
      Papadopoulos, Proedrou, Vovk, Gammerman, Inductive Confidence Machines for
      Regression, ECML, 2002.
      Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, Distribution-Free Predictive
      Inference for Regression, JASA, 2018.

    See also:
      split_conformal, cv_plus, learners.Estimator

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 50)
      >>> key, ridge, score = jax.random.key(1), learners.Ridge(1.0), scores.Absolute()
      >>> cp = split_conformal_fit(key, ridge, score, x, y, share=0.6)
      >>> cp.scores.shape, cp(x[:2], alpha=0.1).upper.shape
      ((20,), (2,))
    """
    rows = check_data(key, learner, score, x, y)
    n = len(rows.y)
    _checks.check_count("the number of rows", n, 2)
    num_train = _num_train(share, n)
    on_host = isinstance(learner, FitsOnHost)
    fit = _fit_on_host if on_host else _fit
    fitted, preds, held = fit(key, learner, rows, num_train)
    named = on_host and inputs.has_labels(score)
    classes = fitted.classes if named else None
    calibration = calibrate(score, preds, _targets(rows, held), classes=classes)
    predict = _predict_on_host if on_host else _predict
    return SplitConformal(predict, fitted, calibration)


def _num_train(share, n):
    _checks.check_number("share", share, lambda s: (s > 0) & (s < 1), "in (0, 1)")
    if not is_concrete(share):
        raise ValueError("expected share as a number, got a traced value")
    return min(max(round(float(share) * n), 1), n - 1)


def _fit(key, learner, rows, num_train):
    """Returns the fit, the rows that calibrate, and predictions for them."""
    with checking.traceable(learner):
        return _fit_part(key, learner, rows.x, rows.y, num_train)


@jit(static_argnames="num_train")
def _fit_part(key, learner, x, y, num_train):
    key_split, key_fit = jax.random.split(key)
    train, held = _split(key_split, len(y), num_train)
    take = lambda rows: jax.tree.map(lambda v: v[rows], x)  # noqa: E731
    params = learner.fit(key_fit, take(train), y[train], jnp.ones(num_train))
    return OneFit(learner, params), learner.predict(params, take(held)), held


def _fit_on_host(key, learner, rows, num_train):
    """Returns the fit, the rows that calibrate, and predictions for them."""
    checking.check_untraced(learner, key, rows.x, rows.given)
    key_split, key_fit = jax.random.split(key)
    n = len(rows.y)
    train, held = map(np.asarray, _split(key_split, n, num_train))
    weights = np.zeros((1, n))
    weights[0, train] = 1
    fits = learner.fit_all(key_fit, rows.x, rows.given, weights)
    preds = learner.predict_held_out(fits, rows.x, weights == 0)
    own = jax.tree.map(lambda v: v[0][held], preds)
    return HostFits(learner, fits), own, held


@partial(jax.jit, static_argnums=(1, 2))
def _split(key, n, num_train):
    """Returns the rows that train and those that calibrate."""
    order = jax.random.permutation(key, n)
    return order[:num_train], order[num_train:]


def _targets(rows: Rows, held: Array) -> ArrayLike:
    """Returns targets of some rows, as they were given: with all of their digits."""
    if not is_concrete(rows.y, held):
        return rows.y[held]
    return on_host("y", rows.given)[np.asarray(held)]


def _predict(fit, x):
    return predict_once(fit.learner, fit.params, as_arrays(x=x))


def _predict_on_host(fits, x):
    return jax.tree.map(lambda v: v[0], fits.predict(x))
