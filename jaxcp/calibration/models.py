"""Split conformal prediction: a prediction function with its calibration."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable
from types import FunctionType
from typing import Any

from jax import Array

from jaxcp._pytree import pytree, static
from jaxcp.calibration.calibrating import calibrate
from jaxcp.calibration.split import Calibration
from jaxcp.certificates import Certificate
from jaxcp.typing import AnySet, ArrayLike, Number, Predict, PyTree, Score


@pytree
class SplitConformal:
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

    @property
    def scores(self) -> Array:
        """Scores of the calibration set, shape (n,) or (n, c)."""
        return self.calibration.scores

    def quantile(self, alpha: ArrayLike, **context: Any) -> Array:
        """Returns the threshold at alpha: `Calibration.quantile`."""
        return self.calibration.quantile(alpha, **context)

    def certificate(self, alpha: Any, delta: Number | None = None) -> Certificate:
        """Returns the law of coverage at alpha: `Calibration.certificate`."""
        return self.calibration.certificate(alpha, delta)

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
