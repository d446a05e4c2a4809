"""The verbs: any resampling plan, jackknife+ and CV+."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names, resampling
from jaxcp._arrays import as_arrays, is_concrete
from jaxcp.cross._left_out import Aggregation, OwnFit
from jaxcp.cross._plans import Plan, carry_out, check_data, plan_of
from jaxcp.cross.conformal import CrossConformal
from jaxcp.typing import AnyLearner, ArrayLike, LeavesOneOut, PyTree, Score


def cross_conformal(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    weights: ArrayLike,
    *,
    aggregation: Aggregation = "mean",
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns fits under any resampling plan, with each row's score without itself.

    Row i is predicted by the mean (or median) of the fits j with weights[j, i] = 0. A
    row that no fit leaves out does not count where fits leave out one fold each; where
    rows are left out by several, as by bags, it counts with the score +inf. All b fits,
    and one on all rows, run as one vmapped program.

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
        `calibrate`: ratios, with `test_weights`, or fixed ones, none above 1. They are
        normalized once over all rows, with an infinite atom for the test point at both
        ends.
      batch_size: Fits that run at a time. Defaults to all, or as many as use 256 MB of
        data together.
      check: Whether a learner of your own is first tried by `learners.check`, once for
        each learner and shapes of data; never on traced values.

    Returns:
      A `CrossConformal`: call it with inputs and alpha.

    Raises:
      ValueError: if lengths differ, weights are negative or not of shape (b, n), every
        row is in every resample, as `learners.check`, or as `calibrate`. Where the
        weights are traced and no row is left out the sets are infinite.

    Guarantee:
      As `cross_calibrate`: 1 - 2 alpha if each row is left out by one fit of its own
      (K folds of one size: minus a term below sqrt(2 / n)). Other plans have none but
      bags, as in `jackknife_plus_after_bootstrap`.

    Assumption:
      The rows and test examples are exchangeable, and the learner treats rows alike.

    Cost:
      b + 1 fits in one program, `batch_size` at a time, and n held-out predictions.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021.

    See also:
      jackknife_plus, cv_plus, cross_calibrate, resampling.k_fold, resampling.subsample

    Example:
      >>> from jaxcp import datasets, learners, resampling, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> weights = resampling.subsample(jax.random.key(1), 30, 20, 15)
      >>> ridge, key = learners.Ridge(1.0), jax.random.key(2)
      >>> cp = cross_conformal(key, ridge, scores.Absolute(), x, y, weights)
      >>> cp(x[:2], alpha=0.1).lower.shape
      (2,)
    """
    rows = check_data(key, learner, score, x, y)
    _checks.check_given(weights=weights)
    weights = as_arrays(weights=weights)
    n = len(rows.y)
    if weights.ndim != 2 or weights.shape[1] != n or not len(weights):
        raise ValueError(f"expected weights of shape (b, {n}), got {weights.shape}")
    _checks.check_weights("weights", weights)
    plan = plan_of(weights, aggregation, batch_size, check)
    return carry_out(plan, key, learner, score, rows, calibration_weights)


def jackknife_plus(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns the jackknife+: n fits, each without one row.

    A learner with `leave_one_out` (`Ridge`, `KernelRidge`, `NearestNeighbors`) has a
    closed form for the fits; those of others run as one program.

    Args:
      key: Random key, split among the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`; `naive` gives the plain jackknife, `minmax` the third form.

    Raises:
      ValueError: as `cross_conformal`, if n is less than 2, or if the closed form is
        lost to rounding.

    Guarantee:
      1 - 2 alpha, or 1 - (2 f - 1) / (n + 1) with f = floor(alpha (n + 1)) >= 1, which
      `certificate` returns; about 1 - alpha for stable learners.

    Assumption:
      The rows and test examples are exchangeable, and the learner treats rows alike.

    Cost:
      n + 1 fits in one program, or one closed form. Sets as `CrossConformal.__call__`.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021, theorem 1.

    See also:
      cv_plus, jackknife_plus_after_bootstrap, CrossConformal.minmax

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
    rows = check_data(key, learner, score, x, y)
    n = len(rows.y)
    _checks.check_count("the number of rows", n, 2)
    closed = isinstance(learner, LeavesOneOut)
    weights = None if closed else resampling.leave_one_out(n)
    own = OwnFit(jnp.asarray(np.arange(n)), n)  # numpy's compiles nothing
    plan = Plan(weights, own, batch_size, check)
    return carry_out(plan, key, learner, score, rows, calibration_weights)


def cv_plus(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_folds: int | None = None,
    folds: ArrayLike | None = None,
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns CV+: K fits, each without one fold of a partition, random or given.

    Args:
      key: Random key, for the partition and the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      num_folds: Number of folds K of a random partition, from 2 to n; their sizes
        differ by at most one. The theorem is for equal ones: n a multiple of K.
      folds: A given partition instead: the fold of each row, shape (n,), int in 0, ...,
        K - 1 or a name, such as its group. Traced folds need `num_folds`, too.
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`. No array of n times m numbers is made for its sets.

    Raises:
      ValueError: as `cross_conformal`, if `num_folds` is not in 2, ..., n, `num_folds`
        and `folds` are both missing, or a fold is empty.

    Guarantee:
      1 - 2 alpha - min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1)) for folds of one
      size, the last term once for each score component; `certificate` is sharper.
      About 1 - alpha for stable learners. None of its own for folds of unlike sizes, or
      chosen by looking at the targets.

    Assumption:
      The rows and test examples are exchangeable, and the learner treats rows alike.

    Cost:
      K + 1 fits in one program. Sets as `CrossConformal.__call__`.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021, theorem 4.
      Vovk, Cross-Conformal Predictors, Annals of Mathematics and Artificial
      Intelligence, 2015 (the sets of labels).

    See also:
      jackknife_plus, split_conformal_fit, cross_calibrate, resampling.k_fold

    Example:
      >>> from jaxcp import datasets, learners, scores
      >>> x, y = datasets.linear(jax.random.key(0), 30)
      >>> key, bands = jax.random.key(1), learners.QuantileRidge((0.1, 0.9), 0.1)
      >>> cp = cv_plus(key, bands, scores.CQR(), x, y, num_folds=5)
      >>> cp(x[:2], alpha=0.1).upper.shape
      (2,)
    """
    rows = check_data(key, learner, score, x, y)
    if folds is None:
        if num_folds is None:
            raise ValueError("expected num_folds or folds, got neither")
        counts = resampling.check_folds(len(rows.y), num_folds)
        key_fits, weights, own = _partition(key, *counts)
    else:
        given = _given_folds(folds, len(rows.y), num_folds)
        key_fits, weights, own = _partition_by(key, *given)
    plan = Plan(weights, OwnFit(own, len(weights)), batch_size, check)
    return carry_out(plan, key_fits, learner, score, rows, calibration_weights)


def _given_folds(folds, n, num_folds):
    """Returns the fold of each row of a given partition, and their number K."""
    folds = _checks.rows(folds=_checks.vector(_numbered(folds, n)))
    _checks.check_shape("folds", (n,), folds.shape)
    if num_folds is None:
        if not is_concrete(folds):
            raise ValueError("expected num_folds beside traced folds, got None")
        num_folds = max(int(np.max(np.asarray(folds), initial=0)) + 1, 2)
    _checks.check_count("num_folds", num_folds, 2)
    _checks.check_labels("folds", folds, num_folds)
    if is_concrete(folds):
        missing = np.setdiff1d(np.arange(num_folds), np.asarray(folds))
        if missing.size:
            raise ValueError(
                f"expected folds that use each of 0, ..., {num_folds - 1}, got no row "
                f"in {missing[0]}; numpy.unique(folds, return_inverse=True)[1] "
                "numbers the folds that occur"
            )
    return folds, int(num_folds)


def _numbered(folds, n):
    """Returns folds by name as 0, ..., K - 1, in the order of their rows."""
    if folds is None or isinstance(folds, Array) or not is_concrete(folds):
        return folds
    values = _names.on_host("folds", folds)
    if values.dtype.kind in "biufc":
        return folds
    try:
        if values.shape == (n,):
            found = _names.as_names("folds", [*dict.fromkeys(values.tolist())])
            return _names.places(found, "folds", values)
    except TypeError:  # some do not hash
        pass
    kind = f"{type(folds).__name__} of shape {values.shape}"
    raise ValueError(
        f"expected folds as the fold of each row, shape {(n,)}, got {kind}; for those "
        "of a splitter: for j, (_, rows) in enumerate(splitter.split(x)): folds[rows] "
        "= j"
    )


@partial(jax.jit, static_argnums=(1, 2))
def _partition(key, n, num_folds):
    """Returns the key of the fits, their weights (K, n), and the fit of each row."""
    key_folds, key_fits = jax.random.split(key)
    weights = resampling.k_fold(key_folds, n, num_folds)
    return key_fits, weights, jnp.argmin(weights, axis=0)


@partial(jax.jit, static_argnums=2)
def _partition_by(key, folds, num_folds):
    """Returns the same of given folds."""
    folds = jnp.clip(folds, 0, num_folds - 1)  # traced ones are some partition
    weights = (folds[None] != jnp.arange(num_folds)[:, None]).astype(float)
    return jax.random.split(key)[1], weights, jnp.argmin(weights, axis=0)
