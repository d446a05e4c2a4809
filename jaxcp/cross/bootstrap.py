"""The verbs that aggregate bootstrap fits: jackknife+-after-bootstrap and EnbPI."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from jaxcp import resampling
from jaxcp.cross._left_out import Aggregation
from jaxcp.cross._plans import carry_out, check_data, plan_of
from jaxcp.cross.conformal import CrossConformal
from jaxcp.typing import AnyLearner, ArrayLike, PyTree, Score


def jackknife_plus_after_bootstrap(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_resamples: int,
    aggregation: Aggregation = "mean",
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns the jackknife+ of a bagged learner, from one set of bootstrap fits.

    Row i is predicted by the mean (or median) of the bootstrap fits whose bag lacks it.
    A row that every bag holds has no prediction, and counts with the score +inf.

    Args:
      key: Random key, for the bags and the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      num_resamples: Number of bootstrap resamples b; a row is in every bag with
        probability about 0.63^b. Sets are infinite where alpha n rows or more are.
      aggregation: "mean" or "median".
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`.

    Raises:
      ValueError: as `cross_conformal`.

    Guarantee:
      1 - 2 alpha if the number of resamples is itself drawn, from Binomial(B, (1 - 1/(n
      + 1))^n); about 1 - alpha in practice.

    Assumption:
      The rows and test examples are exchangeable, and the learner treats rows alike.

    Cost:
      b + 1 fits, whatever n is, in one program; weights of shape (b, n). Sets as
      `CrossConformal.__call__`.

    References:
      Kim, Xu, Barber, Predictive Inference Is Free with the Jackknife+-after-Bootstrap,
      NeurIPS, 2020.

    See also:
      enbpi, jackknife_plus, cv_plus, resampling.bootstrap

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> key, ridge = jax.random.key(1), learners.Ridge(1.0)
      >>> cp = jackknife_plus_after_bootstrap(
      ...     key, ridge, scores.Absolute(), x, y, num_resamples=20
      ... )
      >>> cp.scores.shape
      (30,)
    """
    return enbpi(
        key,
        learner,
        score,
        x,
        y,
        num_resamples=num_resamples,
        aggregation=aggregation,
        calibration_weights=calibration_weights,
        batch_size=batch_size,
        check=check,
    )


def enbpi(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_resamples: int,
    block_size: int = 1,
    moving: bool = True,
    aggregation: Aggregation = "mean",
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns EnbPI's bootstrap ensemble of a time series with out-of-bag residuals.

    `cp.aggregate(x)` is the center at new inputs and `cp.scores` are the residuals in
    order of time: `cp.stream(every=)` returns an `online.SlidingWindow` of them, which
    replaces the `every` oldest residuals by the newest, and its state. With predictions
    (mu, sigma), as from `learners.MeanScale`, and the score `Normalized` this is
    adaptive EnbPI.

    Args:
      key: Random key, for the bags and the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs in order of time, a pytree with leading axis n.
      y: Targets, shape (n, ...).
      num_resamples: Number of bootstrap resamples b.
      block_size: Rows in a block of the bootstrap; more than 1 keeps dependence.
      moving: Whether blocks may start at any row, as for `resampling.block_bootstrap`.
      aggregation: "mean" or "median" of the fits whose bag lacks a row.
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`; calling it gives jackknife+-after-bootstrap sets. Rows that
      every bag holds have no residual for `stream`, and no part in `aggregate`.

    Raises:
      ValueError: as `cross_conformal`, and if `block_size` is not in 1, ..., n.

    Guarantee:
      Asymptotic, with the sliding window: conditional coverage tends to 1 - alpha. None
      in finite samples.

    Assumption:
      Strongly mixing errors and consistent predictions.

    Cost:
      b + 1 fits, whatever n is, in one program; weights of shape (b, n).

    References:
      Xu, Xie, Conformal Prediction Interval for Dynamic Time-Series, ICML, 2021.
      Xu, Xie, Conformal Prediction for Time Series, IEEE Transactions on Pattern
      Analysis and Machine Intelligence, 2023.

    See also:
      jackknife_plus_after_bootstrap, CrossConformal.stream, online.SlidingWindow,
      resampling.block_bootstrap

    Example:
      >>> from jaxcp import datasets, learners, online, scores
      >>> x, y = datasets.linear(jax.random.key(0), 60)
      >>> key, ridge, score = jax.random.key(1), learners.Ridge(1.0), scores.Absolute()
      >>> cp = enbpi(key, ridge, score, x[:40], y[:40], num_resamples=20)
      >>> method, state = cp.stream()
      >>> state, sets = online.run(method, state, cp.aggregate(x[40:]), y[40:], 0.1)
      >>> sets.lower.shape
      (20,)
    """
    rows = check_data(key, learner, score, x, y)
    sizes = resampling.check_blocks(len(rows.y), num_resamples, block_size)
    key_fits, bags = _bags(key, *sizes, bool(moving))
    plan = plan_of(bags, aggregation, batch_size, check)._replace(bags=True)
    return carry_out(plan, key_fits, learner, score, rows, calibration_weights)


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _bags(key, n, num_resamples, block_size, moving):
    """Returns the key of the fits, and their training weights (b, n)."""
    key_bags, key_fits = jax.random.split(key)
    sizes = n, num_resamples, block_size
    return key_fits, resampling.block_bootstrap(key_bags, *sizes, moving=moving)
