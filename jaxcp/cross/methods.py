"""The verbs: any resampling plan, jackknife+ and CV+.

The verbs that aggregate bootstrap fits: jackknife+-after-bootstrap and EnbPI.

The verbs of one fit: split, fit and calibrate; the predicted quantile of a score.

From rows and a plan (which fits leave which rows out) to held-out scores.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names, resampling
from jaxcp._arrays import as_arrays, as_numpy, count_groups, is_concrete
from jaxcp._tree import jit, pytree
from jaxcp.calibration.calibrating import SplitConformal, calibrated
from jaxcp.checking import learners
from jaxcp.cross import _votes, plans
from jaxcp.cross.predictions import CrossConformal, of_held_out
from jaxcp.held import taking
from jaxcp.learners import general
from jaxcp.learners._hosting import as_rows, num_rows
from jaxcp.learners.general import check_learner
from jaxcp.scores import inputs
from jaxcp.typing import (
    AnyLearner,
    ArrayLike,
    FitsOnHost,
    Learner,
    LeavesOneOut,
    PyTree,
    Score,
    Splitter,
)

_without_groups = partial(_checks.verb, refused={"groups": plans.check_alone})
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
    left_out: plans.OwnFit | plans.Ensemble
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
    key: Array, learner: AnyLearner, score: Score, x: PyTree, y: Any
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
    learners.check_untraced(learner, key, x, y)
    n = num_rows("y", as_rows(y))
    _checks.rows(y=np.zeros(n), x=np.zeros(learner.num_rows(x)))
    _checks.check_key(key)
    _checks.check_count("the number of rows", n, 1)
    values = as_numpy("y", y)
    if values.dtype.kind == "f":
        _checks.check_not_nan("y", values)
    return Rows(x, jax.device_put(np.arange(n)), y)


def plan_of(weights, aggregation, batch_size, check):
    """Returns the plan by which fits leave out the rows of weight 0."""
    held_out = (np.asarray(weights) if is_concrete(weights) else weights) == 0
    return Plan(weights, plans.left_out_by(held_out, aggregation), batch_size, check)


def carry_out(
    plan, key, learner, score, rows, weights, groups=taking.NO_GROUPS, clusters=None
):
    """Returns the fits of a plan with each row's score under those without it."""
    if plan.batch_size is not None:
        _checks.check_count("batch_size", plan.batch_size, 1)
    fit = _fit_on_host if isinstance(learner, FitsOnHost) else _fit
    fits, preds = fit(plan, key, learner, rows)
    classes = fits.classes if inputs.has_labels(score) else None
    with fits.keeping():
        given = plan.left_out, score, preds, rows.given, groups
        known = {"weights": weights, "classes": classes, "clusters": clusters}
        calibration = of_held_out(*given, bags=plan.bags, **known)
    return CrossConformal(fits, calibration)


def _fit_on_host(plan, key, learner, rows):
    """Returns fits of a model that is not of jax, and held-out predictions."""
    learners.check_untraced(learner, plan.weights)
    n = len(rows.y)
    weights = 1 - np.eye(n) if plan.weights is None else np.asarray(plan.weights)
    fitted = learner.fit_all(key, rows.x, rows.given, weights)
    preds = learner.predict_held_out(fitted, rows.x, weights == 0)
    own = _votes.held_out(plan.left_out, as_arrays(preds=preds))
    return plans.HostFits(learner, fitted), own


def _fit(plan, key, learner, rows):
    """Returns the fits, in one program, and held-out predictions."""
    if plan.check:
        learners.check_once(learner, rows.x, rows.y, key)
    with learners.traceable(learner):
        of = plan.weights, plan.left_out, plan.batch_size
        fits, preds = _fit_together(key, learner, rows.x, rows.y, *of)
    cure = _LOST if plan.weights is None else ""
    learners.check_predictions(preds, rows.x, plan.left_out.mask, cure=cure)
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
        params = plans.fit_all(learner, keys, x, y, everything, batch_size)
        full = general.take(params, -1)
        params = general.take(params, slice(count))
    fits = plans.Fits(learner, params, full, count)
    return fits, left_out.of_rows(fits, x)


@_without_groups
def cross_conformal(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    weights: ArrayLike,
    *,
    aggregation: plans.Aggregation = "mean",
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
    _checks.check_shape("weights", (len(weights), n), weights.shape)
    _checks.check_weights("weights", weights)
    plan = plan_of(weights, aggregation, batch_size, check)
    return carry_out(plan, key, learner, score, rows, calibration_weights)


@_checks.verb
def jackknife_plus(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    clusters: ArrayLike | Iterable[Hashable] | None = None,
    calibration_weights: ArrayLike | None = None,
    batch_size: int | None = None,
    check: bool = True,
) -> CrossConformal:
    """Returns the jackknife+: n fits, each without one row; or without one cluster.

    With K clusters of N_k rows each of K fits is without one of them, and a row weighs
    1/N_k: the upper end is min{v : sum_k #{i : f_-k(x) + R_ki > v}/N_k + 1 <= alpha
    (K + 1)}, for the test point an infinite atom of weight 1 at both ends; R_ki is the
    score of row i of cluster k under f_-k.

    A learner with `leave_one_out` (`Ridge`, `KernelRidge`, `NearestNeighbors`) has a
    closed form for the fits; those of others run as one program. With groups every fit
    is still on all rows but one, and only rows in the group of an input vote there.

    Args:
      key: Random key, split among the fits.
      learner: A learner.
      score: Nonconformity score of one example.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      groups: Group of each row, shape (n,), int in 0, ..., num_groups - 1 or by name,
        known before the targets. The groups of new inputs are given at the call.
      num_groups: Number of groups g, needed for groups that are integers.
      group_names: Names of the g groups, as for `calibrate_groups`.
      clusters: Cluster of each row, such as the patient it is of: hashable values known
        on the host, shape (n,); without groups and weights. One row a cluster is the
        jackknife+ of rows.
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`; `naive` gives the plain jackknife, `minmax` the third form.

    Raises:
      ValueError: as `cross_conformal`, if n is less than 2, if the closed form is lost
        to rounding, or if groups are out of range or their number is not known; with
      clusters if there are fewer than two, they are traced or missing, or beside groups
      or weights.

    Guarantee:
      1 - 2 alpha, or 1 - (2 f - 1) / (n + 1) with f = floor(alpha (n + 1)) >= 1, which
      `certificate` returns; about 1 - alpha for stable learners. With groups the same
      within each group, for its number of rows n: the tournament among the rows of the
      group and the test point, given all other rows. One with fewer than 1/alpha - 1
      has infinite sets. With clusters 1 - 2 alpha + 1 / (K + 1) for a row of a new
      cluster, and `minmax` 1 - alpha; there is no certificate by counts. With fewer
      than 1/alpha - 1 clusters sets are infinite.

    Assumption:
      The rows and test examples are exchangeable, with groups those of each group, and
      the learner treats rows alike. With clusters these are exchangeable, that of the
      test row included, and so are the rows within each.

    Cost:
      n + 1 fits in one program, or one closed form; with clusters K + 1 fits. Sets as
      `CrossConformal.__call__`.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021, theorem 1.
      Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data, ACM
      Journal of Data Science, 2026 (weights of clusters).

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
      >>> args = jax.random.key(1), learners.Ridge(1.0), scores.Absolute(), x, y
      >>> cp = jackknife_plus(*args, groups=["a", "b"] * 15)
      >>> cp(x[:2], alpha=0.2, groups=["a", "b"]).upper.shape
      (2,)
      >>> patients = [f"patient {i // 3}" for i in range(30)]
      >>> cp = jackknife_plus(*args, clusters=patients)  # 10 models
      >>> cp(x[:2], alpha=0.2).upper.shape
      (2,)
    """
    rows = check_data(key, learner, score, x, y)
    codes = plans.clusters_of(rows.y, clusters, calibration_weights, groups)
    n, of = len(rows.y), taking.groups_of(rows.y, groups, num_groups, group_names)
    _checks.check_count("the number of rows", n, 2)
    weights, own = None, jax.device_put(np.arange(n))
    if codes is not None:
        key, weights, own = _partition_by(key, codes, int(codes.max()) + 1)
    elif not isinstance(learner, LeavesOneOut):
        weights = resampling.leave_one_out(n)
    left_out = plans.OwnFit(own, n if weights is None else len(weights))
    plan, known = Plan(weights, left_out, batch_size, check), (calibration_weights, of)
    return carry_out(plan, key, learner, score, rows, *known, codes)


@_without_groups
def cv_plus(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_folds: int | None = None,
    folds: ArrayLike | Splitter | Iterable[tuple[ArrayLike, ArrayLike]] | None = None,
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
        K - 1 or a name, such as its group; or a splitter with `split(x, y)`, as of
        scikit-learn; or its K pairs (train, test) of row numbers, as of a splitter that
        needs groups. Traced folds need `num_folds`, too.
      calibration_weights: Weights of the rows' scores, shape (n,), as for
        `cross_conformal`.
      batch_size: Fits that run at a time.
      check: Whether a learner of your own is first tried by `learners.check`.

    Returns:
      A `CrossConformal`. No array of n times m numbers is made for its sets.

    Raises:
      ValueError: as `cross_conformal`, if `num_folds` is not in 2, ..., n, `num_folds`
        and `folds` are both missing, or a fold is empty. Of a splitter, or of pairs, if
        test parts overlap or leave rows out (`ShuffleSplit`, `TimeSeriesSplit`), or a
        train part is not all rows but those of its test part.

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
        counts = resampling.check_folds(len(rows.y), cast(int, num_folds))
        key_fits, weights, own = _partition(key, *counts)
    else:
        given = _given_folds(folds, rows, num_folds)
        key_fits, weights, own = _partition_by(key, *given)
    plan = Plan(weights, plans.OwnFit(own, len(weights)), batch_size, check)
    return carry_out(plan, key_fits, learner, score, rows, calibration_weights)


def _given_folds(
    folds: Any, rows: Rows, num_folds: int | None
) -> tuple[ArrayLike, int]:
    """Returns the fold of each row of a given partition, and their number K."""
    n = len(rows.y)
    if plans.are_splits(folds):
        folds = plans.folds_of_splits(folds, rows.x, rows.given, n)
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


def _numbered(folds: Any, n: int) -> Any:
    """Returns folds by name as 0, ..., K - 1, in the order of their rows."""
    if folds is None or isinstance(folds, Array) or not is_concrete(folds):
        return folds
    values = _names.on_host("folds", folds)
    if values.dtype.kind in "biufc":
        return folds
    try:
        if values.shape == (n,):
            return _names.cluster_codes(values, name="folds")
    except TypeError:  # some do not hash
        pass
    kind = f"{type(folds).__name__} of shape {values.shape}"
    raise ValueError(
        f"expected folds as the fold of each row, shape {(n,)}, a splitter, or a list "
        f"of pairs (train, test) of row numbers, got {kind}"
    )


@jax.jit(static_argnums=(1, 2))
def _partition(key, n, num_folds):
    """Returns the key of the fits, their weights (K, n), and the fit of each row."""
    key_folds, key_fits = jax.random.split(key)
    fold = resampling.random_folds(key_folds, n, num_folds)
    return key_fits, resampling.weights_of_folds(fold, num_folds), fold


@jax.jit(static_argnums=2)
def _partition_by(key, folds, num_folds):
    """Returns the same of given folds."""
    folds = jnp.clip(folds, 0, num_folds - 1)  # traced ones are some partition
    weights = resampling.weights_of_folds(folds, num_folds)
    return jax.random.split(key)[1], weights, folds.astype(int)


@_without_groups
def jackknife_plus_after_bootstrap(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    num_resamples: int,
    aggregation: plans.Aggregation = "mean",
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
    options: dict[str, Any] = {"batch_size": batch_size, "check": check}
    options |= {"aggregation": aggregation, "calibration_weights": calibration_weights}
    return enbpi(key, learner, score, x, y, num_resamples=num_resamples, **options)


@_without_groups
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
    aggregation: plans.Aggregation = "mean",
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


@jax.jit(static_argnums=(1, 2, 3, 4))
def _bags(key, n, num_resamples, block_size, moving):
    """Returns the key of the fits, and their training weights (b, n)."""
    key_bags, key_fits = jax.random.split(key)
    sizes = n, num_resamples, block_size
    return key_fits, resampling.block_bootstrap(key_bags, *sizes, moving=moving)


@pytree
class OneFit:
    """A learner with the parameters of one fit. Made by `split_conformal_fit`.

    Args:
      learner: The learner.
      params: Parameters of the fit.
    """

    learner: Learner
    params: PyTree


@_checks.verb
def split_conformal_fit(
    key: Array,
    learner: AnyLearner,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    share: float,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    min_size: int | None = None,
    clusters: ArrayLike | None = None,
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
      groups: Group of each row as for `calibrate_groups`, int or by name, shape (n,);
        the rows that calibrate have theirs. Those of new inputs are given in the call.
      num_groups: Number of groups g, as for `calibrate_groups`.
      group_names: Names of the groups, as for `calibrate_groups`.
      min_size: Rows that a group needs among those that calibrate for a threshold of
        its own, as for `calibrate_groups`.
      clusters: Cluster of each row, as for `calibrate`, shape (n,). Whole ones train,
        in random order, until `share` of the rows do; the last of these may go on
        beyond, and then the rest of its rows does not calibrate.

    Returns:
      A `SplitConformal`: call it with inputs and alpha. Its `params` hold the fit; for
      an `Estimator` that is `cp.params.models[0]`.

    Raises:
      ValueError: if there are fewer than 2 rows, `share` is not in (0, 1), lengths
        differ, or as `calibrate`, with groups as `calibrate_groups`.

    Guarantee:
      P(Y in set) >= 1 - alpha, with groups in each of them as for `calibrate_groups`;
      with clusters for a row of a new one: those behind the last that trains are as
      exchangeable with it as all are.

    Assumption:
      The rows and test examples are exchangeable, with clusters as for `calibrate`.

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
    of = taking.groups_of(rows.y, groups, num_groups, group_names)
    as_numpy = isinstance(learner, FitsOnHost)
    fit = _fit_on_host_splitting if as_numpy else _fit_splitting
    codes, known = None, {}
    if clusters is not None:
        codes = taking.codes_of_clusters(clusters, y=rows.y)
    fitted, preds, held = fit(key, learner, rows, num_train, codes)
    if codes is not None:  # whole ones alone calibrate
        whole = (count_groups(codes, n) == count_groups(codes[held], n))[codes[held]]
        known = {"clusters": codes[held], "mask": whole}
    named = as_numpy and inputs.has_labels(score)
    classes = fitted.classes if named else None
    own = None if groups is None else of._replace(codes=of.codes[held])
    data = score, preds, _targets(rows, held), own, of.count, None, min_size
    calibration = calibrated(*data, classes=classes, **known)
    predict = _predict_on_host if as_numpy else _predict
    return SplitConformal(predict, fitted, calibration)


def _num_train(share, n):
    share = _checks.share("share", share)
    return min(max(round(float(share) * n), 1), n - 1)


def _fit_splitting(key, learner, rows, num_train, codes):
    """Returns the fit, the rows that calibrate, and predictions for them."""
    with learners.traceable(learner):
        return _fit_part(key, learner, rows.x, rows.y, num_train, codes)


@jit(static_argnames="num_train")
def _fit_part(key, learner, x, y, num_train, codes):
    key_split, key_fit = jax.random.split(key)
    train, held = _split(key_split, len(y), num_train, codes)
    take = lambda rows: jax.tree.map(lambda v: v[rows], x)  # noqa: E731
    params = learner.fit(key_fit, take(train), y[train], jnp.ones(num_train))
    return OneFit(learner, params), learner.predict(params, take(held)), held


def _fit_on_host_splitting(key, learner, rows, num_train, codes):
    """Returns the fit, the rows that calibrate, and predictions for them."""
    learners.check_untraced(learner, key, rows.x, rows.given)
    key_split, key_fit = jax.random.split(key)
    n = len(rows.y)
    train, held = map(np.asarray, _split(key_split, n, num_train, codes))
    weights = np.zeros((1, n))
    weights[0, train] = 1
    fits = learner.fit_all(key_fit, rows.x, rows.given, weights)
    preds = learner.predict_held_out(fits, rows.x, weights == 0)
    own = jax.tree.map(lambda v: v[0][held], preds)
    return plans.HostFits(learner, fits), own, held


@jax.jit(static_argnums=(1, 2))
def _split(key, n, num_train, codes):
    """Returns the rows that train and those that calibrate, cluster by cluster."""
    order = jax.random.permutation(key, n)
    order = order if codes is None else jnp.argsort(order[codes])
    return order[:num_train], order[num_train:]


def _targets(rows: Rows, held: Array) -> ArrayLike:
    """Returns targets of some rows, as they were given: with all of their digits."""
    if not is_concrete(rows.y, held):
        return rows.y[held]
    return as_numpy("y", rows.given)[np.asarray(held)]


def _predict(fit, x):
    return plans.predict_once(fit.learner, fit.params, as_arrays(x=x))


def _predict_on_host(fits, x):
    return jax.tree.map(lambda v: v[0], fits.predict(x))


@pytree
class QuantileFit:
    """A predicted quantile of scores, a function of inputs. Made by `fit_quantile`.

    Args:
      fits: The learner with its fit, for scores with components one for each.
    """

    fits: plans.Fits | plans.HostFits | tuple[Any, ...]

    def __call__(self, x: PyTree) -> Array:
        """Returns tau at inputs, shape (m,), or (m, c) for c components."""
        if isinstance(self.fits, tuple):
            return jnp.stack([QuantileFit(fit)(x) for fit in self.fits], axis=1)
        source, x = self.fits.source(x)
        leaves = jax.tree.leaves(source.predict(x))
        if len(leaves) != 1:
            raise ValueError(f"expected a learner of one quantile, got {len(leaves)}")
        return leaves[0][0]


@_checks.by_labels
def fit_quantile(
    key: Array, learner: AnyLearner, score: Score, preds: PyTree, y: ArrayLike, x: Any
) -> QuantileFit:
    """Returns a predicted quantile of a score, tau(x), for `scores.Rectified`.

    The learner is fitted to the scores of rows that do not calibrate. With the 1 -
    alpha quantile, the sets of the rectified score cover about 1 - alpha at each x.

    Args:
      key: Random key, for the fit.
      learner: A learner of one quantile, such as `learners.QuantileRidge((0.9,), 0.0)`
        or an `Estimator` of any library.
      score: The base score.
      preds: Predictions for rows that do not calibrate and that the model was not
        fitted on, a pytree with leading axis n.
      y: Targets of these rows, shape (n, ...), as for `calibrate`.
      x: Inputs that tau depends on, whatever the learner takes, with leading axis n.

    Returns:
      A `QuantileFit`: call it with inputs for tau, shape (m,), or (m, c) where the
      score has c components.

    Raises:
      ValueError: if lengths differ, a score is infinite, or as `calibrate` and the
        learner.

    Guarantee:
      None of its own; sets of `scores.Rectified` cover at least 1 - alpha with any tau.

    Assumption:
      None for coverage; for coverage at each x, a learner that can express the
      quantile of the score.

    Cost:
      n scores, and one fit for each component.

    References:
      Plassier, Fishkov, Dheur, Guizani, Ben Taieb, Panov, Moulines, Rectifying
      Conformity Scores for Better Conditional Coverage, ICML, 2025.

    See also:
      scores.Rectified, learners.QuantileRidge, learners.Estimator

    Example:
      >>> from jaxcp import learners, scores
      >>> x = jnp.linspace(0.0, 2.0, 1000)[:, None]
      >>> y = (0.1 + x[:, 0]) * jax.random.normal(jax.random.key(0), (1000,))
      >>> base, ridge = scores.Absolute(), learners.QuantileRidge((0.9,), 0.0)
      >>> tau = fit_quantile(jax.random.key(1), ridge, base, 0 * y, y, x)
      >>> tau(jnp.array([[0.5], [1.7]])).round().tolist()
      [1.0, 3.0]
    """
    scores = taking.scored(score, preds, y)[0].values
    _checks.check_values(np.isfinite, "finite scores", scores)

    def fitted(scores):
        rows = check_data(key, learner, score, x, scores)
        if not isinstance(learner, FitsOnHost):
            return _fit_one(key, learner, rows.x, rows.y)
        fit = learner.fit_all(key, x, scores, np.ones((1, len(scores))))
        return plans.HostFits(learner, fit)

    each = scores.ndim > 1
    return QuantileFit(tuple(map(fitted, scores.T)) if each else fitted(scores))


@jit
def _fit_one(key, learner, x, y):
    params = plans.fit_all(learner, key[None], x, y, jnp.ones((1, len(y))), None)
    return plans.Fits(learner, params, None, 1)
