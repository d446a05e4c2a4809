"""Which test rows exceed a threshold: p-values to select them by, or a selection."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, exponent_of, times_power
from jaxcp.pvalues.conformal import mass_of, masses_of_keys, p_values_of_keys
from jaxcp.pvalues.multiple import as_share
from jaxcp.quantiles._keys import common_keys
from jaxcp.typing import ArrayLike

_CALIBRATING = "pred", "y", "mask", "weights"
_TESTED = "test_pred", "u", "test_weights"


@partial(_checks.by_labels, only=_CALIBRATING)
@partial(_checks.by_labels, only=_TESTED)
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
        test_pred=_checks.vector(test_pred),
        u=_checks.uniforms(u),
        test_weights=_checks.weights(test_weights),
    )
    rows = pred, *nulls, test_pred, u, mask, weights, test_weights
    return _selection_p_values(*rows)


def checked_rows(pred, y, threshold, mask, weights):
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


def keys_of_nulls(pred, y, threshold, test_pred):
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
    p = p_values_of_keys(keys, test_keys, u, mass_of(weights, mask), test_weights)
    return jnp.where(jnp.isnan(test_pred), 1, p)


_PRUNINGS = ("heterogeneous", "homogeneous", "deterministic")


@partial(_checks.by_labels, only=_CALIBRATING)
@partial(_checks.by_labels, only=_TESTED)
def weighted_selection(
    key: Array | None,
    pred: ArrayLike,
    y: ArrayLike,
    threshold: ArrayLike,
    test_pred: ArrayLike,
    weights: ArrayLike,
    test_weights: ArrayLike,
    level: ArrayLike,
    *,
    pruning: str = "heterogeneous",
) -> Array:
    """Returns which test rows exceed a threshold, with a bound on the false ones.

    Under covariate shift, where Benjamini-Hochberg on weighted p-values has no
    guarantee. For each row j, s_j rows are rejected by Benjamini-Hochberg on p-values
    that see row j as one of the calibration rows; j is a candidate if p_j <= level s_j
    / m. Of the candidates those with xi_j s_j <= r are kept, for the largest r such
    that there are at least r of them.

    Args:
      key: Random key of the uniforms xi; may be None if `pruning` is "deterministic".
      pred: Predictions for the calibration rows, any number that tends to be larger
        where y > threshold, shape (n,). A traced NaN counts as +inf.
      y: Targets, shape (n,). A traced NaN does not exceed its threshold.
      threshold: What targets must exceed, shape () or (n,), as in
        `selection_p_values`.
      test_pred: Predictions for the test rows, shape (m,). NaN is never selected.
      weights: Weights >= 0 of the calibration rows, shape (n,): likelihood ratios of
        test to calibration inputs. 0 for a row that does not count.
      test_weights: Weights of the test rows, on the same scale, shape (m,).
      level: False discovery rate in (0, 1), shape ().
      pruning: What xi is: "heterogeneous", a uniform for each row; "homogeneous", one
        for all; "deterministic", 1, which selects fewer rows.

    Returns:
      Selected rows, bool of shape (m,).

    Raises:
      ValueError: if shapes do not fit, a concrete calibration value is NaN, a weight is
        negative or not finite, `level` is outside (0, 1), or for another pruning.

    Guarantee:
      The expected share of selected rows with y <= threshold is at most `level`.

    Assumption:
      Calibration rows are i.i.d., test rows too, with another law of x and the same law
      of y given x; weights are the true likelihood ratios up to one factor, and the
      model was fitted on neither.

    Cost:
      O((n + m) log(n + m)) time, O(n + m) memory: the sizes s_j of all rows come from
      two sorts and one running maximum, not from a sort for each row.

    References:
      Jin, Candes, Model-Free Selective Inference Under Covariate Shift via Weighted
      Conformal p-values, Biometrika, 2026.

    See also:
      pvalues.selection_p_values, pvalues.benjamini_hochberg, outliers.outlier_p_values

    Example:
      >>> pred, test = jnp.arange(19.0), jnp.array([20.0, 19.0, 1.0])
      >>> w, test_w = jnp.exp(pred / 20), jnp.exp(test / 20)
      >>> weighted_selection(
      ...     jax.random.key(0), pred, pred, 14.5, test, w, test_w, level=0.3
      ... )
      Array([ True,  True, False], dtype=bool)
    """
    _checks.check_one_of("pruning", pruning, _PRUNINGS)
    _checks.check_given(weights=weights, test_weights=test_weights)
    pred, nulls, _, weights = checked_rows(pred, y, threshold, None, weights)
    test_pred, test_weights = _checks.rows(
        test_pred=_checks.vector(test_pred), test_weights=_checks.weights(test_weights)
    )
    rows = pred, *nulls, test_pred, weights, test_weights, as_share("level", level)
    if pruning == "deterministic":
        return select(*rows, None)
    _checks.check_key(key)
    shape = test_pred.shape if pruning == "heterogeneous" else ()
    return select(*rows, jax.random.uniform(key, shape))  # type: ignore[arg-type]


@jax.jit
def select(pred, y, threshold, test_pred, weights, test_weights, level, xi):
    """Returns the selected rows, with uniforms `xi` of shape (m,) or (), or 1."""
    keys, test_keys = keys_of_nulls(pred, y, threshold, test_pred)
    weights, test_weights = (
        at_least_single(as_float(w)) for w in (weights, test_weights)
    )
    p = p_values_of_keys(keys, test_keys, None, weights, test_weights)
    p = jnp.where(jnp.isnan(test_pred), 1, p)
    # p-values that equal the level but for rounding do not exceed it.
    level = level.astype(p.dtype) * (1 + 8 * jnp.finfo(p.dtype).eps)
    sizes = sizes_of_candidates(keys, test_keys, weights, test_weights, level)
    candidates = p * len(p) <= level * sizes
    return candidates & _kept(sizes, candidates, 1.0 if xi is None else xi)


def sizes_of_candidates(keys, test_keys, weights, test_weights, level):
    """Returns how many rows BH rejects with row j among the calibration rows, (m,).

    The size s_j for the p-values aux_j = 0 and, of the other rows l, with V = -keys,
    aux_l = (sum_i w_i 1(V_i < V_l) + w_j 1(V_j < V_l)) / (sum_i w_i + w_j); of a row
    that is no candidate another number, with which it is none either.
    """
    # The auxiliary p-values of Jin, Candes 2023, in order of V_l, which is theirs but
    # for aux_j = 0. BH goes up to the last row l with m aux_l <= level rank_l.
    m = len(test_keys)
    unit = exponent_of(jnp.max(weights, initial=0))
    weights, own = (times_power(w, -unit) for w in (weights, test_weights))
    ordered = lax.sort(~test_keys)  # integers of the opposite order
    _, stronger, total = masses_of_keys(keys, ~ordered, weights)
    rank = jnp.arange(1, m + 1, dtype=own.dtype)
    # After j, with A_l = sum_i w_i 1(V_i < V_l) and W = sum_i w_i, this bounds w_j:
    # m (A_l + w_j) <= level rank_l (W + w_j)
    spare = m - level * rank
    most = (level * rank * total - m * stronger) / jnp.where(spare > 0, spare, 1)
    most = jnp.where(spare > 0, most, jnp.inf)
    # If none is after j, BH goes up to j and its ties, or less far: then
    # m A_j > level rank_j (W + w_j), so that p_j > level rank_j / m: no candidate.
    return jnp.searchsorted(-lax.cummax(most, reverse=True), -own, side="right")


def _kept(sizes, candidates, xi):
    """Returns where xi s <= max{r : #{candidates with xi s <= r} >= r}."""
    m = len(sizes)
    least = jnp.ceil(xi * sizes).astype(int)  # the least whole r that it fits
    counts = jnp.zeros(m + 1, int).at[jnp.where(candidates, least, m + 1)].add(1)
    r = jnp.arange(m + 1)
    return least <= jnp.max(jnp.where(jnp.cumsum(counts) >= r, r, 0))
