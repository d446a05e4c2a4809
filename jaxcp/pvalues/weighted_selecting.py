"""Which test rows exceed a threshold, where their inputs follow another law."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp.pvalues.conformal import masses_of_keys, p_values_of_keys
from jaxcp.pvalues.multiple import as_share
from jaxcp.pvalues.selecting import checked_rows, keys_of_nulls
from jaxcp.quantiles._masses import times_power
from jaxcp.typing import ArrayLike

_PRUNINGS = ("heterogeneous", "homogeneous", "deterministic")


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
      Conformal p-values, arXiv 2307.09291, 2023.

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
        test_pred=_checks.required(_checks.vector(test_pred)),
        test_weights=_checks.weights(test_weights),
    )
    if pruning != "deterministic":
        _checks.check_key(key)
    rows = pred, *nulls, test_pred, weights, test_weights
    return _draw_and_select(key, rows, as_share("level", level), pruning)


@partial(jax.jit, static_argnames="pruning")
def _draw_and_select(key, rows, level, pruning):
    if pruning == "deterministic":
        return select(*rows, level, None)
    test_pred = rows[3]
    shape = test_pred.shape if pruning == "heterogeneous" else ()
    return select(*rows, level, jax.random.uniform(key, shape))


@jax.jit
def select(
    pred: Array,
    y: Array,
    threshold: Array,
    test_pred: Array,
    weights: Array,
    test_weights: Array,
    level: Array,
    xi: Array | None,
) -> Array:
    """Returns the selected rows, with uniforms `xi` of shape (m,) or (), or 1."""
    keys, test_keys = keys_of_nulls(pred, y, threshold, test_pred)
    weights, test_weights = (
        at_least_single(as_float(w)) for w in (weights, test_weights)
    )
    p = p_values_of_keys(keys, test_keys, 1.0, weights, test_weights)
    p = jnp.where(jnp.isnan(test_pred), 1, p)
    level = _with_slack(level, p.dtype)
    sizes = sizes_of_candidates(keys, test_keys, weights, test_weights, level)
    candidates = p * len(p) <= level * sizes
    return candidates & _kept(sizes, candidates, 1.0 if xi is None else xi)


def _with_slack(level, dtype):
    """Returns a level that p-values which equal it but for rounding do not exceed."""
    return level.astype(dtype) * (1 + 8 * jnp.finfo(dtype).eps)


def sizes_of_candidates(
    keys: Array, test_keys: Array, weights: Array, test_weights: Array, level: Array
) -> Array:
    """Returns how many rows BH rejects with row j among the calibration rows, (m,).

    The size s_j for the p-values aux_j = 0 and, of the other rows l, with V = -keys,
    aux_l = (sum_i w_i 1(V_i < V_l) + w_j 1(V_j < V_l)) / (sum_i w_i + w_j); of a row
    that is no candidate another number, with which it is none either.
    """
    # The auxiliary p-values of Jin, Candes 2023, in order of V_l, which is theirs but
    # for aux_j = 0. BH goes up to the last row l with m aux_l <= level rank_l.
    m = len(test_keys)
    unit = jnp.frexp(jnp.max(weights, initial=0))[1]
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
