"""Which test rows exceed a threshold: p-values to select them by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp.pvalues.conformal import mass_of, p_values_of_keys
from jaxcp.quantiles._keys import common_keys
from jaxcp.typing import ArrayLike


def selection_p_values(
    pred: ArrayLike,
    y: ArrayLike,
    threshold: ArrayLike,
    test_pred: ArrayLike,
    *,
    u: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    test_weights: ArrayLike | None = None,
) -> Array:
    """Returns p-values for the claims y <= threshold of test rows, to select others by.

    p = (1 + #{i : y_i <= c_i, pred_i >= pred}) / (n + 1): among the calibration rows
    that do not exceed their threshold, how large is the prediction? Or smoothed by
    uniforms u, (#{null, pred_i > pred} + u (1 + #{null, pred_i = pred})) / (n + 1).
    `benjamini_hochberg` selects by them. Answers of a language model that are likely
    correct: `pred` is a confidence, `y` whether the answer is correct, the threshold
    1/2. Several conditions: `y` is whether all of them hold, the threshold 1/2.

    Args:
      pred: Predictions for the calibration rows, any number that tends to be larger
        where y > threshold, shape (n,). A traced NaN counts as +inf.
      y: Targets, shape (n,). A traced NaN does not exceed its threshold.
      threshold: What targets must exceed, shape () or (n,). Those of the test rows need
        not be known: where they differ, they belong into `pred` and `test_pred`, say as
        prediction minus threshold.
      test_pred: Predictions for the test rows, shape (m,). Of NaN the p-value is 1.
      u: Uniforms in [0, 1] for smoothed p-values, shape (m,).
      mask: True where a calibration row counts, shape (n,).
      weights: Weights >= 0 of the calibration rows, shape (n,): likelihood ratios of
        test to calibration inputs.
      test_weights: Weights of the test rows, shape (m,). Defaults to 1, and no weight
        may then be larger.

    Returns:
      p-values in [0, 1], shape (m,).

    Raises:
      ValueError: if shapes do not fit, a concrete calibration value is NaN, a weight is
        negative or not finite, a uniform is outside [0, 1], or test weights come
        without weights.

    Guarantee:
      P(p <= t and y <= threshold) <= t for a test row, for all t. Without weights,
      `benjamini_hochberg` selects rows among which the expected share with y <=
      threshold is at most its level. With weights that is not proved: see
      `weighted_selection`.

    Assumption:
      Test rows are exchangeable with the calibration rows (with weights: these are the
      true likelihood ratios), and the model was fitted on neither.

    Cost:
      O((n + m) log n) time: one sort serves all rows. No p-value is below 1 / (n + 1):
      where level (n + 1) is below m, a few strong rows alone are not selected.

    References:
      Jin, Candes, Selection by Prediction with Conformal p-values, Journal of Machine
      Learning Research, 2023.

    See also:
      pvalues.benjamini_hochberg, pvalues.weighted_selection, pvalues.e_values,
      outliers.outlier_p_values

    Example:
      >>> pred = y = jnp.arange(19.0)
      >>> p = selection_p_values(pred, y, 14.5, jnp.array([20.0, 14.0, 1.0]))
      >>> p
      Array([0.05, 0.1 , 0.75], dtype=float32)
      >>> jaxcp.pvalues.benjamini_hochberg(p, 0.2)
      Array([ True,  True, False], dtype=bool)
    """
    pred, nulls, mask, weights = checked_rows(pred, y, threshold, mask, weights)
    _checks.check_test_weights("test_weights", test_weights, weights, mask)
    test_pred, u, test_weights = _checks.rows(
        test_pred=_checks.required(_checks.vector(test_pred)),
        u=_checks.uniforms(u),
        test_weights=_checks.weights(test_weights),
    )
    rows = pred, *nulls, test_pred, u, mask, weights, test_weights
    return _selection_p_values(*rows)


def checked_rows(
    pred: ArrayLike,
    y: ArrayLike,
    threshold: ArrayLike,
    mask: ArrayLike | None,
    weights: ArrayLike | None,
) -> tuple[Array, tuple[Array, Array], Array | None, Array | None]:
    """Returns the calibration rows as arrays, after checks."""
    pred, y, mask, weights = _checks.rows(
        pred=_checks.scores(pred),
        y=_checks.scores(y),
        mask=_checks.mask(mask),
        weights=_checks.weights(weights),
    )
    _checks.check_given(threshold=threshold)
    threshold = as_array("threshold", threshold)
    if threshold.ndim:
        _checks.check_shape("threshold", y.shape, threshold.shape)
    _checks.check_not_nan("threshold", threshold, mask if threshold.ndim else None)
    return pred, (y, threshold), mask, weights


def keys_of_nulls(
    pred: Array, y: Array, threshold: Array, test_pred: Array
) -> tuple[Array, Array]:
    """Returns integers in the order of predictions, (n,) and (m,).

    The lowest of all for the calibration rows with y > threshold, which count as below
    every test row, also as below -inf.
    """
    test_pred = jnp.where(jnp.isnan(test_pred), -jnp.inf, test_pred)
    keys, test_keys = common_keys(pred, test_pred)
    key_y, key_c = common_keys(y, threshold)
    exceeds = (key_y > key_c) & ~jnp.isnan(y)
    return jnp.where(exceeds, jnp.iinfo(keys.dtype).min, keys), test_keys


@jax.jit
def _selection_p_values(pred, y, threshold, test_pred, u, mask, weights, test_weights):
    keys, test_keys = keys_of_nulls(pred, y, threshold, test_pred)
    u = 1.0 if u is None else u
    test_weights = 1.0 if test_weights is None else test_weights
    p = p_values_of_keys(keys, test_keys, u, mass_of(weights, mask), test_weights)
    return jnp.where(jnp.isnan(test_pred), 1, p)
