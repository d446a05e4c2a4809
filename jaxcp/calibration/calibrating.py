"""Calibration: scores of a held-out set once, prediction sets at any level."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from jaxcp.calibration._rows import classes_of, scored
from jaxcp.calibration.split import Calibration
from jaxcp.typing import ArrayLike, PyTree, Score


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
    rows = scored(score, preds, y, weights, mask, classes=names)
    given = rows.weights, rows.mask, rows.row_shapes, names
    return Calibration(score, rows.scores, *given)
