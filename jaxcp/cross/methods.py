"""The verbs: any resampling plan, jackknife+ and CV+."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks, resampling
from jaxcp._types import Learner, PyTree, Score
from jaxcp.calibration import calibrate
from jaxcp.cross._fits import Fits, fit_all
from jaxcp.cross.conformal import CrossConformal
from jaxcp.learners import _shared


def cross_conformal(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    weights: ArrayLike,
    *,
    aggregation: str = "mean",
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
) -> CrossConformal:
    """Returns fits under any resampling plan, with each row's score without itself.

    Row i is predicted by the mean (or median) of the fits j with weights[j, i] = 0. A
    row that no fit leaves out has no score: it is masked out, and does not count. All b
    fits, and one on all rows, run as one vmapped program.

    Args:
      key: Random key, split among the fits.
      learner: A learner, from `jaxcp.learners` or of your own.
      score: Nonconformity score of one example, from `jaxcp.scores`.
      x: Inputs, whatever the learner takes, a pytree with leading axis n.
      y: Targets, shape (n, ...), in their own units, or labels 0, ..., k - 1.
      weights: Training weights >= 0, shape (b, n), e.g. from `jaxcp.resampling`.
      aggregation: "mean" or "median" of the fits without a row. Medians of
        probabilities need not sum to 1: use the mean for labels.
      calibration_weights: Weights >= 0 of the rows' scores, shape (n,), as for
        `calibrate`. The sets are normalised once over all rows, with an infinite atom
        for the test point at both ends.
      batch_size: Fits that run at a time. Defaults to all, or as many as see 256 MB
        of data together.

    Returns:
      A `CrossConformal`: call it with inputs and alpha.

    Raises:
      ValueError: if lengths differ, weights are negative or not of shape (b, n), every
        row is in every resample, or as `calibrate`. Where the weights are traced and no
        row is left out the sets are infinite.

    Guarantee:
      As `CrossConformal.__call__`: 1 - 2 alpha where every row is left out by one fit.

    References:
      Barber et al., Predictive Inference with the Jackknife+, 2021.

    Example:
      >>> from jaxcp import datasets, learners, resampling, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> weights = resampling.subsample(jax.random.key(1), 30, 20, 15)
      >>> ridge, key = learners.Ridge(1.0), jax.random.key(2)
      >>> cp = cross_conformal(key, ridge, scores.Absolute(), x, y, weights)
      >>> cp(x[:2], alpha=0.1).lower.shape
      (2,)
    """
    x, y, n = check_data(key, learner, score, x, y)
    _checks.check_given(weights=weights)
    weights = _checks.as_arrays(weights)
    if weights.ndim != 2 or weights.shape[1] != n or not len(weights):
        raise ValueError(f"expected weights of shape (b, {n}), got {weights.shape}")
    _checks.check_weights("weights", weights)
    _check_options(aggregation, batch_size)
    fold, held_out = None, weights == 0
    if _checks.is_concrete(weights) and bool(jnp.all(jnp.sum(held_out, axis=0) == 1)):
        fold, held_out = jnp.argmax(held_out, axis=0), None
    fits, full, preds = _fit(
        key, learner, x, y, weights, fold, held_out, batch_size, aggregation
    )
    return _calibrated(fits, full, score, preds, y, calibration_weights)


def jackknife_plus(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
) -> CrossConformal:
    """Returns the jackknife+: n fits, each without one row.

    Of a learner that offers `leave_one_out` (`Ridge`, `KernelRidge`,
    `NearestNeighbors`) the fits come in closed form; of others they run as one program.

    Args:
      key: Random key, split among the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      calibration_weights: Weights of the rows' scores, shape (n,).
      batch_size: Fits that run at a time.

    Returns:
      A `CrossConformal`; `naive` gives the plain jackknife, `minmax` the third form.

    Raises:
      ValueError: as `cross_conformal`, and if n is less than 2.

    Guarantee:
      1 - 2 alpha for exchangeable rows; about 1 - alpha for stable learners.

    References:
      Barber et al., Predictive Inference with the Jackknife+, 2021, theorem 1.

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> def fit(penalty):
      ...     ridge = learners.Ridge(penalty)
      ...     return jackknife_plus(jax.random.key(1), ridge, scores.Absolute(), x, y)
      >>> paths = jax.vmap(fit)(jnp.logspace(-3, 3, 7))  # 7 * 30 models, one program
      >>> paths.scores.shape
      (7, 30)
    """
    x, y, n = check_data(key, learner, score, x, y)
    _checks.check_count("the number of rows", n, 2)
    _check_options("mean", batch_size)
    weights = None if hasattr(learner, "leave_one_out") else resampling.leave_one_out(n)
    fits, full, preds = _fit(
        key, learner, x, y, weights, jnp.arange(n), None, batch_size, "mean"
    )
    return _calibrated(fits, full, score, preds, y, calibration_weights)


def cv_plus(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_folds: int,
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
) -> CrossConformal:
    """Returns CV+: K fits, each without one fold of a random partition.

    Args:
      key: Random key, for the partition and the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      num_folds: Number of folds K, from 2 to n; their sizes differ by at most one.
      calibration_weights: Weights of the rows' scores, shape (n,).
      batch_size: Fits that run at a time.

    Returns:
      A `CrossConformal`. No array of n times m numbers is made for its sets.

    Raises:
      ValueError: as `cross_conformal`, and if `num_folds` is not in 2, ..., n.

    Guarantee:
      1 - 2 alpha - min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1)) for exchangeable
      rows; about 1 - alpha for stable learners.

    References:
      Barber et al., Predictive Inference with the Jackknife+, 2021, theorem 4.
      Vovk, Cross-Conformal Predictors, 2015 (the sets of labels).

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> key, bands = jax.random.key(1), learners.QuantileRidge((0.1, 0.9), 0.1)
      >>> cp = cv_plus(key, bands, scores.CQR(), x, y, num_folds=5)
      >>> cp(x[:2], alpha=0.1).upper.shape
      (2,)
    """
    x, y, n = check_data(key, learner, score, x, y)
    _check_options("mean", batch_size)
    key_folds, key_fits = jax.random.split(key)
    weights = resampling.k_fold(key_folds, n, num_folds)
    fold = jnp.argmin(weights, axis=0)
    fits, full, preds = _fit(
        key_fits, learner, x, y, weights, fold, None, batch_size, "mean"
    )
    return _calibrated(fits, full, score, preds, y, calibration_weights)


@partial(jax.jit, static_argnames=("batch_size", "aggregation"))
def _fit(key, learner, x, y, weights, fold, held_out, batch_size, aggregation):
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
        full = _shared.take(params, -1)
        params = _shared.take(params, slice(count))
    fits = Fits(learner, params, fold, held_out, count, aggregation)
    return fits, full, fits.of_rows(x)


def check_data(key, learner, score, x, y):
    """Returns inputs and targets as arrays, and the number of rows."""
    x, y = _checks.as_arrays((x, y))
    _checks.check_key(key)
    _checks.check_given(score=score, x=x, y=y)
    n = _checks.num_rows(y=y, x=x)
    _checks.check_count("the number of rows", n, 1)
    _checks.check_not_nan("y", y)
    _checks.check_learner(learner, x, y)
    return x, y, n


def _check_options(aggregation, batch_size):
    if aggregation not in ("mean", "median"):
        raise ValueError(f"expected aggregation mean or median, got {aggregation!r}")
    if batch_size is not None:
        _checks.check_count("batch_size", batch_size, 1)


def _calibrated(fits, full, score, preds, y, weights):
    """Returns the calibration of held-out predictions; rows without one are masked."""
    mask = fits.mask
    if mask is not None and _checks.is_concrete(mask):
        if not bool(jnp.any(mask)):
            raise ValueError(
                "expected some row with weight 0 in a resample, got resamples that "
                "all hold every row"
            )
        mask = None if bool(jnp.all(mask)) else mask
    calibration = calibrate(score, preds, y, weights=weights, mask=mask)
    return CrossConformal(fits, full, calibration)
