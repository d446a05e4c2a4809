"""Split conformal prediction: a prediction function with its calibration."""

from jaxcp._pytree import pytree, static
from jaxcp._types import AnySet, ArrayLike, Predict, PyTree, Score
from jaxcp.calibration import Calibration, calibrate


@pytree
class SplitConformal:
    """A prediction function with its calibration. Made by `split_conformal`.

    Args:
      predict: `(params, x) -> preds`, over the leading axis of x.
      params: Whatever `predict` takes, any pytree.
      calibration: The calibration of the score.
    """

    predict: Predict = static()
    params: PyTree
    calibration: Calibration

    def __call__(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the prediction sets at inputs `x`, a pytree with leading axis m.

        `alpha`, `test_weights`, errors and guarantee are those of calling a
        `Calibration`.
        """
        preds = self.predict(self.params, x)
        return self.calibration(preds, alpha, test_weights=test_weights)


def split_conformal(
    predict: Predict,
    params: PyTree,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
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

    Returns:
      A `SplitConformal`: call it with inputs and alpha.

    Raises:
      ValueError: as `calibrate`.

    Guarantee:
      P(Y in set) >= 1 - alpha if calibration and test examples are exchangeable and the
      model was fitted on neither.

    References:
      Papadopoulos et al., Inductive Confidence Machines for Regression, 2002.
      Lei et al., Distribution-Free Predictive Inference for Regression, 2018.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> predict = lambda slope, x: slope * x
      >>> x, y = jnp.arange(9.0), 2 * jnp.arange(9.0) + 1
      >>> cp = split_conformal(predict, 2.0, Absolute(), x, y)
      >>> cp(jnp.array([3.0]), alpha=0.1).upper
      Array([7.], dtype=float32)
    """
    preds = predict(params, x)
    calibration = calibrate(score, preds, y, weights=weights, mask=mask)
    return SplitConformal(predict, params, calibration)
