"""The verbs of split conformal prediction: of all rows, of each group, of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, Self, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._tree import pytree, static
from jaxcp.calibration.joining import by_batches
from jaxcp.calibration.predictor import Predictor, at_labels, predictions, warm
from jaxcp.calibration.split import Calibration, GroupCalibration
from jaxcp.held import taking
from jaxcp.held.taking import are_labels, classes_of, coded, num_labels, scored
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, Number, Predict, PyTree, Score


class Calibrated:
    """A source of predictions with their calibration, which says the rest."""

    calibration: Any

    @property
    def scores(self) -> Array:
        """Scores of the rows that calibrate, shape (n,) or (n, c).

        +inf for a row that no fit left out.
        """
        return self.calibration.scores

    @property
    def mask(self) -> Array | None:
        """True where a row counts, shape (n,), or None."""
        return self.calibration.mask

    def compile(self, sizes: Iterable[int], x: PyTree, **context: Any) -> None:
        """Compiles the programs of so many inputs like `x`: `Calibration.compile`."""
        warm(self, sizes, x, context)

    def certificate(self, alpha: Any, *args: Any, **options: Any) -> Any:
        """Returns what coverage is sure at alpha: that of the calibration."""
        return self.calibration.certificate(alpha, *args, **options)


@pytree
class SplitConformal(Calibrated):
    """A prediction function with its calibration. Made by `split_conformal`.

    Args:
      predict: `(params, x) -> preds`, over the leading axis of x.
      params: Whatever `predict` takes, any pytree.
      calibration: The calibration of the score, of all rows or of each group.

    See also:
      split_conformal, split_conformal_fit, Calibration
    """

    predict: Predict = static()
    params: PyTree
    calibration: Calibration | GroupCalibration

    @_checks.with_alpha
    def __call__(self, x: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the prediction sets at inputs `x`, a pytree with leading axis m.

        `alpha`, context (such as `groups`, `delta`, `u` or `test_weights`), errors and
        guarantee are those of calling the calibration.
        """
        preds = predictions(self.predict, self.params, x)
        return self.calibration(preds, alpha, **context)

    @partial(_checks.with_alpha, place=0)
    def at(self, alpha: ArrayLike, *, delta: Number | None = None) -> Predictor:
        """Returns the sets at one level, of inputs, without rows: `Calibration.at`."""
        found = self.calibration.at(alpha, delta=delta)
        return dataclasses.replace(found, predict=self.predict, params=self.params)

    def quantile(self, alpha: ArrayLike, **context: Any) -> Array:
        """Returns the threshold at alpha, of each group: `Calibration.quantile`."""
        return self.calibration.quantile(alpha, **context)

    @_checks.by_labels
    def p_values(self, x: PyTree, y: ArrayLike | None = None, **context: Any) -> Array:
        """Returns how exceptional targets at inputs are: `Calibration.p_values`."""
        preds = predictions(self.predict, self.params, x)
        return self.calibration.p_values(preds, y, **context)

    @_checks.by_labels
    def extended(self, x: PyTree, y: ArrayLike, *groups: Any, **rows: Any) -> Self:
        """Returns the same with further rows of calibration: `Calibration.extended`.

        For inputs `x` and targets, with `groups` as a third argument or by name.
        """
        preds = predictions(self.predict, self.params, x)
        longer = self.calibration.extended(preds, y, *groups, **rows)
        return dataclasses.replace(self, calibration=longer)

    def latest(self, n: int) -> Self:
        """Returns the same with the newest n rows of calibration."""
        return dataclasses.replace(self, calibration=self.calibration.latest(n))


@_checks.verb
def split_conformal(
    predict: Predict,
    params: PyTree,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    min_size: int | None = None,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> SplitConformal:
    """Returns a conformal predictor from a fitted model and a calibration set.

    Args:
      predict: Prediction function `(params, x) -> preds`, over the leading axis of x;
        it need not be jax.
      params: First argument of `predict`, any pytree (also None).
      score: Nonconformity score of one example.
      x: Inputs of the calibration set, whatever `predict` takes.
      y: Targets of the calibration set, shape (n, ...).
      groups: Group of each row as for `calibrate_groups`, int or by name, shape (n,).
        Those of new inputs are given in the call: `cp(x, alpha, groups=...)`.
      num_groups: Number of groups g, as for `calibrate_groups`.
      group_names: Names of the groups, as for `calibrate_groups`.
      min_size: Rows that a group needs for a threshold of its own, as for
        `calibrate_groups`.
      weights: Weights of the rows as for `calibrate`, shape (n,), or bounds of them.
      clusters: Cluster of each row as for `calibrate`, any hashable ids, shape (n,).
      mask: True where a row counts, shape (n,).
      classes: Names of the labels as for `calibrate`, such as `model.classes_`.

    Returns:
      A `SplitConformal`: call it with inputs and alpha.

    Raises:
      ValueError: as `calibrate`, with groups as `calibrate_groups`, and if `predict` is
        no function.

    Guarantee:
      P(Y in set) >= 1 - alpha, with groups in each of them as for `calibrate_groups`;
      with `delta` in the call given the calibration data, with probability 1 - delta
      over these.

    Assumption:
      Exchangeable calibration and test examples, and a model fitted on other data.

    Cost:
      One call of `predict` on the n inputs, then as `calibrate`.

    References:
      Papadopoulos, Proedrou, Vovk, Gammerman, Inductive Confidence Machines for
      Regression, ECML, 2002.
      Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, Distribution-Free Predictive
      Inference for Regression, JASA, 2018.

    See also:
      calibrate, split_conformal_fit, cv_plus, SplitConformal

    Example:
      >>> from jaxcp.scores import Absolute
      >>> predict = lambda slope, x: slope * x
      >>> x, y = jnp.arange(9.0), 2 * jnp.arange(9.0) + 1
      >>> cp = split_conformal(predict, 2.0, Absolute(), x, y)
      >>> cp(jnp.array([3.0]), alpha=0.1).upper
      Array([7.], dtype=float32)
      >>> sites = ["farm", "farm", "farm"] + 6 * ["zoo"]
      >>> cp = split_conformal(predict, 2.0, Absolute(), x, y, groups=sites)
      >>> cp(jnp.array([3.0]), alpha=0.25, groups=["zoo"]).upper
      Array([7.], dtype=float32)
    """
    preds = predicted(predict, params, x)
    known = num_groups, group_names, min_size
    rows = {"weights": weights, "mask": mask, "classes": classes, "clusters": clusters}
    calibration = calibrated(score, preds, y, groups, *known, **rows)
    return SplitConformal(predict, params, calibration)


def calibrated(score, preds, y, groups, num_groups, group_names, min_size, **rows):
    """Returns the calibration of all rows, or of groups where something says so."""
    own = {"num_groups": num_groups, "group_names": group_names, "min_size": min_size}
    given = {k: v for k, v in own.items() if v is not None}
    if groups is None and not given:
        return calibrate(score, preds, y, **rows)
    if groups is None:
        raise ValueError(f"expected groups with {', '.join(given)}, got None")
    return calibrate_groups(score, preds, y, groups, **given, **rows)


def predicted(predict: Predict, params: PyTree, x: PyTree) -> PyTree:
    """Returns the predictions of a function; ValueError for a model."""
    if not callable(predict):
        kind = type(predict).__name__
        raise ValueError(
            f"expected predict(params, x) as a function, got {kind}; for a fitted "
            "model write lambda _, x: model.predict(x), with params None"
        )
    return predictions(predict, params, x)


@_checks.verb
def calibrate(
    score: Score,
    preds: PyTree = None,
    y: ArrayLike | None = None,
    *,
    batches: Iterable[Any] | None = None,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> Calibration:
    """Returns the calibration of a score on held-out predictions and targets.

    Args:
      score: Nonconformity score of one example, from `jaxcp.scores` or of your own.
      preds: Predictions for the calibration set, a pytree with leading axis n. Arrays
        may be from jax, numpy, pandas or torch (CPU), or lists of numbers. Those in
        files (`numpy.memmap`, HDF5, zarr), and of dask, are read in blocks of rows.
      y: Targets, shape (n, ...), in their own units, or labels 0, ..., k - 1. Integers
        that are not labels become floats. A column (n, 1), of targets, predictions or
        both, is one output: its sets are intervals with ends of shape (m,).
      batches: In place of all rows an iterable of batches, pairs (preds, y) or mappings
        with these and maybe weights and mask by name, of any lengths. Their scores are
        kept, and predictions are dropped before the next batch is drawn: the result is
        the `join` of calibrations of the batches.
      weights: Weights >= 0 of the rows, shape (n,): likelihood ratios of test to
        calibration inputs, and the sets are asked for with `test_weights`; or fixed
        weights that fade with age (NexCP), none above 1, the weight of a test point.
        A tuple of two arrays (low, high), shape (n,) each, has bounds of ratios that
        are not known: sets are those of the worst ratios within them. (A pair of
        numbers is the weights of two rows.)
      clusters: Cluster of each row, such as its patient, shape (n,): any hashable ids,
        of text or pandas too. Each of the N_k rows of a cluster that count weighs 1 /
        N_k, and a test point 1. Traced ids are integers in 0, ..., n - 1, others do
        not count. With `batches` those of all rows, in their order.
      mask: True where a row counts, shape (n,), for padded data. Defaults to all rows.
      classes: Names of the k labels, one a column of the predictions: any distinct
        hashable values, such as `model.classes_` of scikit-learn. `y` is then given by
        name, and so are targets and labels of the sets. Names that are equal in Python
        are one (1, 1.0 and True). If a name is a number, names are compared with `y`,
        also where it is traced (a number that is no class then scores +inf). With other
        names, integers in `y` are still labels 0, ..., k - 1.

    Returns:
      A `Calibration`: call it with predictions and alpha.

    Raises:
      ValueError: if lengths differ, a concrete prediction, target or weight is NaN or
        negative where it may not be, labels are not integers in range or not among
        `classes`, the score cannot use the predictions, or targets in double precision
        would lose digits in single precision that their scores depend on. Of batches
        each is checked by itself, and a note of the error says which one it was; also
        if there are none, or they differ as `join` says.

    Guarantee:
      1 - alpha, on average over calibration sets; sets called with `delta` have it with
      probability 1 - delta over calibration sets. With bounds of weights 1 - alpha for
      every true ratio that is within them up to one factor, where they come from other
      rows. With fewer rows than
      `certificates.smallest_size` the sets are infinite: 1/alpha - 1 without `delta`.
      With `clusters` 1 - alpha for a row of a new cluster, and for all of its rows
      together by `Calibration.all_rows`.

    Assumption:
      Exchangeable calibration and test examples (with `delta` independent ones), and a
      model fitted on other data. With `clusters` these are exchangeable, and so are the
      rows within each.

    Cost:
      n scores, which are kept; one compilation for a score and shapes of data. Batches
      share programs as calls do: of one size, or of up to 2^14 rows and few columns.

    References:
      Papadopoulos, Proedrou, Vovk, Gammerman, Inductive Confidence Machines for
      Regression, ECML, 2002.
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.
      Park, Bastani, Matni, Lee, PAC Confidence Sets for Deep Neural Networks via
      Calibrated Prediction, ICLR, 2020.
      Dunn, Wasserman, Ramdas, Distribution-Free Prediction Sets for Two-Layer
      Hierarchical Models, JASA, 2023.
      Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data, ACM
      Journal of Data Science, 2026.
      Jin, Ren, Candes, Sensitivity Analysis of Individual Treatment Effects: A Robust
      Conformal Inference Approach, PNAS, 2023 (bounds of weights).

    See also:
      split_conformal, split_conformal_fit, calibrate_groups, cross_calibrate, join,
      Calibration.all_rows, Calibration.certificate, metrics.coverage

    Example:
      >>> from jaxcp.scores import Absolute
      >>> cp = calibrate(Absolute(), jnp.zeros(4), jnp.array([0.5, 1.0, 1.5, 2.0]))
      >>> cp(jnp.array([10.0]), alpha=0.25).lower
      Array([8.], dtype=float32)
      >>> from jaxcp.scores import LAC
      >>> p, pets = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), ["cat", "dog"]
      >>> cp = calibrate(LAC(), p, ["cat", "dog", "cat"], classes=pets)
      >>> cp(p[:2], alpha=0.4).labels()
      [['cat'], ['dog']]
      >>> days = ((0.0 * y, y) for y in (jnp.array([0.5, 1.0]), jnp.array([2.0])))
      >>> calibrate(Absolute(), batches=days).scores
      Array([0.5, 1. , 2. ], dtype=float32)
      >>> y, ids = jnp.array([1.0, 2.0, 9.0, 9.0, 9.0]), ["Al", "Bo", "Cy", "Cy", "Cy"]
      >>> calibrate(Absolute(), 0 * y, y, clusters=ids).quantile(0.5)
      Array(2., dtype=float32)
    """
    names = classes_of(score, classes)

    def of_rows(preds, y, weights=None, mask=None):
        held, shapes = scored(score, preds, y, weights, mask, classes=names)
        return Calibration(score, held.values, held.weights, held.mask, shapes, names)

    rows = {"preds": preds, "y": y, "weights": weights, "mask": mask}
    return taking.clustered(by_batches(of_rows, batches, **rows), clusters)


@_checks.verb
def calibrate_groups(
    score: Score,
    preds: PyTree = None,
    y: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    *,
    batches: Iterable[Any] | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    label_groups: ArrayLike | None = None,
    rare: str | None = None,
    min_size: int | None = None,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> GroupCalibration:
    """Returns the calibration of a score with one threshold a group (Mondrian).

    With `groups=y` for labels the sets are class-conditional; then predict without
    groups. Classes of few rows can share thresholds: `label_groups`, without `groups`.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (n,), or its name.
      batches: Batches as for `calibrate`, mappings with preds, y and groups, and with
        `num_groups` or `group_names` for all of them.
      num_groups: Number of groups g (of classes k, for class-conditional sets). May be
        left out where groups have names.
      group_names: Names of the g groups, distinct hashable values; numbers are treated
        as in `classes`. Defaults to the classes if the groups are the labels `y`, to
        the categories of groups from pandas, else to the distinct groups: sorted, or as
        they appear if they have no order. Groups that are integers need `num_groups`
        instead.
      label_groups: Group of each label in 0, ..., g - 1, or -1 for rare ones, int,
        shape (k,), from other rows than these (`conditional.group_classes`). Sets hold
        a label whose score is within the threshold of its group.
      rare: What threshold labels in no group have: "all", that of all rows, or
        "infinite". Needed where there are any.
      min_size: Rows that a group needs for a threshold of its own. Groups with fewer
        share one, of the rows of all groups with at most `min_size`. Defaults to None:
        each has its own. `threshold_names` of the result says which ones share.
      weights: Weights >= 0 of the rows, shape (n,), as for `calibrate`.
      clusters: Cluster of each row, shape (n,), as for `calibrate`; N_k is how many
        rows of the cluster count in the group.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the k labels, used in `y`, as for `calibrate`.

    Returns:
      A `GroupCalibration`: call it with predictions, alpha and groups.

    Raises:
      ValueError: as `calibrate`, and if a concrete group is out of range or none of the
        `group_names`, or their number is not known; if there are `groups` beside
        `label_groups`, or these are not of a score of labels, no integers of at least
        -1, or -1 without `rare`; if `min_size` is no int >= 1, or given with them; or
        clusters with one of these, whose groups share rows.

    Guarantee:
      1 - alpha within every group. A group with fewer than 1/alpha - 1 rows has
      infinite sets. With `label_groups` 1 - alpha over the rows with a label in each
      group, and for rare labels 1 if `rare="infinite"` and nothing if it is "all"; not
      in each class of a group.
      With `min_size` 1 - alpha in each group that has its own threshold, and over the
      test examples of all groups that share one, not in each of these. With `clusters`
      1 - alpha within every group for a row of a new cluster that has some there, drawn
      at random among its rows in that group: one drawn among all of its rows comes more
      often from clusters with many rows there, and may be covered less.

    Assumption:
      The calibration and test examples of a group are exchangeable, and groups are
      known at prediction; with `min_size` the examples of all groups are. With
      `clusters` as for `calibrate`, in each group.

    Cost:
      As `calibrate`; thresholds take O(n + g) for each alpha, with weights O(g n).

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.
      Ding, Angelopoulos, Bates, Jordan, Tibshirani, Class-Conditional Conformal
      Prediction with Many Classes, NeurIPS, 2023.

    See also:
      calibrate, conditional.group_classes, grouped_conformal_quantile,
      metrics.group_coverage, metrics.class_coverage

    Example:
      >>> from jaxcp.scores import LAC
      >>> p = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
      >>> y = jnp.array([0, 0, 1, 1])
      >>> cp = calibrate_groups(LAC(), p, y, y, num_groups=2)
      >>> cp(jnp.array([[0.85, 0.15]]), alpha=0.4).mask
      Array([[ True, False]], dtype=bool)
      >>> y, sites = ["cat", "cat", "dog", "dog"], ["zoo", "farm", "zoo", "farm"]
      >>> cp = calibrate_groups(LAC(), p, y, sites, classes=["cat", "dog"])
      >>> cp.group_names, cp(p[:1], alpha=0.5, groups=["zoo"]).labels()
      (('farm', 'zoo'), [['cat']])
      >>> known = {"classes": ["cat", "dog"], "min_size": 3}
      >>> calibrate_groups(LAC(), p, y, ["a", "a", "a", "b"], **known).threshold_names
      ('a', 'fewer than 3 rows')
    """
    names, whole = classes_of(score, classes), None
    if min_size is not None:
        _checks.check_count("min_size", min_size, 1)
    if clusters is not None and not (min_size is label_groups is None):
        raise ValueError("expected clusters without min_size or label_groups, got both")

    def named(groups, y, mask):
        own = group_names
        if own is None and num_groups is None and names is not None:
            own = names if are_labels(groups, y, names) else None
        return _names.as_groups(groups, num_groups, own, mask)

    if label_groups is not None or rare is not None:
        known = _known_label_groups(score, groups, min_size, label_groups, rare)
    elif batches is None:  # names of groups are those of all rows, not of a block
        whole = named(groups, y, mask)
        groups = whole.codes

    def of_rows(preds, y, groups=None, weights=None, mask=None):
        given = whole._replace(codes=groups) if whole else named(groups, y, mask)
        held, shapes = scored(score, preds, y, weights, mask, given, names)
        rows = held.values, cast(Array, held.groups), held.mask, given.count, shapes
        known = held.weights, names, given.names
        return GroupCalibration(score, *rows, *known, min_size=min_size)

    rows = {"preds": preds, "y": y, "groups": groups, "weights": weights, "mask": mask}
    if label_groups is not None:
        del rows["groups"]
        return by_batches(partial(_by_label, score, names, *known), batches, **rows)
    return taking.clustered(by_batches(of_rows, batches, **rows), clusters)


def _known_label_groups(score, groups, min_size, label_groups, rare):
    """Returns groups of labels, and what rare ones have."""
    given = "groups too" * (groups is not None) or "min_size too" * bool(min_size)
    if given or not inputs.has_labels(score):
        got = given or type(score).__name__
        raise ValueError(
            f"expected label_groups alone, of a score of labels, got {got}"
        )
    if label_groups is None or not _arrays.is_concrete(label_groups):
        got = "None" if label_groups is None else "a traced array"
        raise ValueError(f"expected label_groups with values, got {got}")
    known = _arrays.as_host_array("label_groups", label_groups)
    if known.ndim != 1 or known.dtype.kind != "i" or known.min(initial=0) < -1:
        raise ValueError(
            "expected label_groups as integers of at least -1, shape (k,), got "
            f"{known.dtype} {known}"
        )
    if rare is not None or known.min(initial=0) < 0:
        name = "rare, the threshold of labels in no group (-1),"
        _checks.check_one_of(name, rare, ("all", "infinite"))
    return known, rare


def _by_label(score, classes, label_groups, rare, preds, y, weights=None, mask=None):
    """Returns the calibration by groups of labels, rare ones in one of their own, g.

    It has no rows, or all rows, which then come twice.
    """
    held, shapes = scored(score, preds, y, weights, mask, classes=classes)
    k = num_labels(score, _checks.rows(preds=preds))
    if label_groups.shape != (k,):
        raise ValueError(
            f"expected label_groups of shape {(k,)}, one a column of preds, got "
            f"{label_groups.shape}; group_classes(..., num_classes={k}) has those of "
            "classes without rows"
        )
    g = int(label_groups.max(initial=-1)) + 1
    of_label = jnp.asarray(np.where(label_groups < 0, g, label_groups))
    groups = at_labels(of_label, _checks.rows(y=coded(classes, y, mask)))
    every = jnp.ones(len(groups), bool) if held.mask is None else held.mask
    counts = every & (groups >= 0) & (groups < g)
    groups = jnp.where(counts, groups, 0)
    held = dataclasses.replace(held, mask=counts, groups=groups, num_groups=g)
    held = held.twice(every) if rare == "all" else held
    rows = held.values, cast(Array, held.groups), held.mask, g + (rare is not None)
    names = classes, None, of_label, rare
    return GroupCalibration(score, *rows, shapes, held.weights, *names)
