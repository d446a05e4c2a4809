"""The verbs of split conformal prediction: of all rows, of each group, of a model."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable
from types import FunctionType
from typing import Any, cast

from jax import Array

from jaxcp import _names
from jaxcp._tree import pytree, static
from jaxcp.calibration.split import Calibration, GroupCalibration
from jaxcp.held.taking import are_labels, classes_of, scored
from jaxcp.typing import AnySet, ArrayLike, Predict, PyTree, Score


class Predictor:
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

    def certificate(self, alpha: Any, *args: Any, **options: Any) -> Any:
        """Returns what coverage is sure at alpha: that of the calibration."""
        return self.calibration.certificate(alpha, *args, **options)


@pytree
class SplitConformal(Predictor):
    """A prediction function with its calibration. Made by `split_conformal`.

    Args:
      predict: `(params, x) -> preds`, over the leading axis of x.
      params: Whatever `predict` takes, any pytree.
      calibration: The calibration of the score.

    See also:
      split_conformal, split_conformal_fit, Calibration
    """

    predict: Predict = static()
    params: PyTree
    calibration: Calibration

    def __call__(self, x: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the prediction sets at inputs `x`, a pytree with leading axis m.

        `alpha`, context (such as `delta`, `u` or `test_weights`), errors and guarantee
        are those of calling the calibration.
        """
        preds = _predictions(self.predict, self.params, x)
        return self.calibration(preds, alpha, **context)

    def quantile(self, alpha: ArrayLike, **context: Any) -> Array:
        """Returns the threshold at alpha: `Calibration.quantile`."""
        return self.calibration.quantile(alpha, **context)

    def p_values(self, x: PyTree, y: ArrayLike, **context: Any) -> Array:
        """Returns how exceptional targets at inputs are: `Calibration.p_values`."""
        preds = _predictions(self.predict, self.params, x)
        return self.calibration.p_values(preds, y, **context)


def split_conformal(
    predict: Predict,
    params: PyTree,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
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
      weights: Weights of the rows as for `calibrate`, shape (n,).
      mask: True where a row counts, shape (n,).
      classes: Names of the labels as for `calibrate`, such as `model.classes_`.

    Returns:
      A `SplitConformal`: call it with inputs and alpha.

    Raises:
      ValueError: as `calibrate`, and if `predict` is no function.

    Guarantee:
      P(Y in set) >= 1 - alpha; with `delta` in the call given the calibration data,
      with probability 1 - delta over these.

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
    """
    if not callable(predict):
        kind = type(predict).__name__
        raise ValueError(
            f"expected predict(params, x) as a function, got {kind}; for a fitted "
            "model write lambda _, x: model.predict(x), with params None"
        )
    preds = _predictions(predict, params, x)
    calibration = calibrate(
        score, preds, y, weights=weights, mask=mask, classes=classes
    )
    return SplitConformal(predict, params, calibration)


def _predictions(predict, params, x):
    """Returns predict(params, x); errors say how to pass methods and networks."""
    try:
        return predict(params, x)
    except Exception as error:
        is_own = isinstance(predict, FunctionType) and _takes_two(predict)
        if is_own or params is not None:
            raise
        kind = getattr(predict, "__qualname__", type(predict).__name__)
        raise ValueError(
            f"expected predict(params, x), got {kind}, which fails with two arguments; "
            "for a method write lambda _, x: model.predict(x), for a network lambda _, "
            "x: network(x), with params None"
        ) from error


def _takes_two(predict):
    """Returns whether a function takes two arguments."""
    try:
        inspect.signature(predict).bind(None, None)
    except TypeError:
        return False
    return True


def calibrate(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> Calibration:
    """Returns the calibration of a score on held-out predictions and targets.

    Args:
      score: Nonconformity score of one example, from `jaxcp.scores` or of your own.
      preds: Predictions for the calibration set, a pytree with leading axis n. Arrays
        may be from jax, numpy, pandas or torch (CPU), or lists of numbers.
      y: Targets, shape (n, ...), in their own units, or labels 0, ..., k - 1. Integers
        that are not labels become floats. A column (n, 1) is one of several outputs,
        whose sets are boxes: with `y.ravel()` and such predictions they are intervals.
      weights: Weights >= 0 of the rows, shape (n,): likelihood ratios of test to
        calibration inputs, and the sets are asked for with `test_weights`; or fixed
        weights that fade with age (NexCP), none above 1, the weight of a test point.
      mask: True where a row counts, shape (n,), for padded data. Defaults to all rows.
      classes: Names of the k labels, one a column of the predictions: any distinct
        hashable values, such as `model.classes_` of scikit-learn. `y` is then given by
        name, and so are targets and labels of the sets. If all names are numbers, they
        are compared with `y`, also where it is traced (a number that is no class then
        scores +inf). With other names, integers in `y` are still labels 0, ..., k - 1.

    Returns:
      A `Calibration`: call it with predictions and alpha.

    Raises:
      ValueError: if lengths differ, a concrete prediction, target or weight is NaN or
        negative where it may not be, labels are not integers in range or not among
        `classes`, the score cannot use the predictions, or targets in double precision
        would lose digits in single precision that their scores depend on.

    Guarantee:
      1 - alpha, on average over calibration sets; sets called with `delta` have it with
      probability 1 - delta over calibration sets. With fewer rows than
      `certificates.smallest_size` the sets are infinite: 1/alpha - 1 without `delta`.

    Assumption:
      Exchangeable calibration and test examples (with `delta` independent ones), and a
      model fitted on other data.

    Cost:
      n scores, which are kept; one compilation for a score and shapes of data.

    References:
      Papadopoulos, Proedrou, Vovk, Gammerman, Inductive Confidence Machines for
      Regression, ECML, 2002.
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.
      Park, Bastani, Matni, Lee, PAC Confidence Sets for Deep Neural Networks via
      Calibrated Prediction, ICLR, 2020.

    See also:
      split_conformal, split_conformal_fit, calibrate_groups, cross_calibrate,
      Calibration.certificate, metrics.coverage

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
    """
    names = classes_of(score, classes)
    held, shapes = scored(score, preds, y, weights, mask, classes=names)
    return Calibration(score, held.values, held.weights, held.mask, shapes, names)


def calibrate_groups(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> GroupCalibration:
    """Returns the calibration of a score with one threshold a group (Mondrian).

    With `groups=y` for labels the sets are class-conditional; then predict without
    groups.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (n,), or its name.
      num_groups: Number of groups g (of classes k, for class-conditional sets). May be
        left out where groups have names.
      group_names: Names of the g groups, distinct hashable values; numbers are treated
        as in `classes`. Defaults to the classes if the groups are the labels `y`, to
        the categories of groups from pandas, else to the distinct groups in order.
        Groups that are integers need `num_groups` instead.
      weights: Weights >= 0 of the rows, shape (n,), as for `calibrate`.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the k labels, used in `y`, as for `calibrate`.

    Returns:
      A `GroupCalibration`: call it with predictions, alpha and groups.

    Raises:
      ValueError: as `calibrate`, and if a concrete group is out of range or none of the
        `group_names`, or their number is not known.

    Guarantee:
      1 - alpha within every group. A group with fewer than 1/alpha - 1 rows has
      infinite sets.

    Assumption:
      The calibration and test examples of a group are exchangeable, and groups are
      known at prediction.

    Cost:
      As `calibrate`; thresholds take O(n + g) for each alpha, with weights O(g n).

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      calibrate, grouped_conformal_quantile, metrics.group_coverage,
      metrics.class_coverage

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
    """
    names = classes_of(score, classes)
    if group_names is None and num_groups is None and names is not None:
        group_names = names if are_labels(groups, y, names) else None
    given = _names.as_groups(groups, num_groups, group_names, mask)
    held, shapes = scored(score, preds, y, weights, mask, given, names)
    rows = held.values, cast(Array, held.groups), held.mask, given.count, shapes
    return GroupCalibration(score, *rows, held.weights, names, given.names)
