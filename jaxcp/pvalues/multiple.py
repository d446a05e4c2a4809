"""Many p-values at once: which to reject, and whether any is false."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, at_least_single, varying_like
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.typing import ArrayLike, Number

_LARGE = 500  # p-values from which on a normal approximation is the more exact


def benjamini_hochberg(p_values: ArrayLike, level: ArrayLike) -> Array:
    """Returns which rows are discoveries, with a bound on the false ones among them.

    The p-values up to the largest p_(i) <= level i / m.

    Args:
      p_values: p-values, shape (m,). NaN is never a discovery.
      level: False discovery rate in (0, 1), shape ().

    Returns:
      Discoveries, bool of shape (m,).

    Raises:
      ValueError: if a concrete p-value is negative, or `level` outside (0, 1).

    Guarantee:
      The expected share of false discoveries is at most level times the share of
      nominal rows.

    Assumption:
      Independent p-values, or those of `outlier_p_values` without weights, which are
      positively dependent (PRDS).

    Cost:
      O(m log m) time: one sort.

    References:
      Benjamini, Hochberg, Controlling the False Discovery Rate: A Practical and
      Powerful Approach to Multiple Testing, Journal of the Royal Statistical Society B,
      1995.
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023, theorem 2.

    See also:
      pvalues.storey_benjamini_hochberg, outliers.outlier_p_values, pvalues.simes_test

    Example:
      >>> benjamini_hochberg(jnp.array([0.01, 0.5, 0.04]), level=0.1)
      Array([ True, False,  True], dtype=bool)
    """
    p_values, level = as_p_values(p_values), as_share("level", level)
    return step_up(p_values, level, jnp.ones((), p_values.dtype))


def storey_benjamini_hochberg(
    p_values: ArrayLike,
    level: ArrayLike,
    *,
    threshold: Number = 0.5,
    num_calibration: int | None = None,
) -> Array:
    """Returns which rows are discoveries, more of them where few rows are nominal.

    Benjamini-Hochberg at level / pi with the estimate pi = (1 + #{p > t}) / (m (1 - t))
    of the share of nominal rows, t = threshold, among the p-values up to t. For
    p-values that share n calibration rows 1 - t is replaced by (n - K) / (n + 1), K =
    floor(t (n + 1)): one of the n + 1 - K values above t is spent on sharing them.

    Args:
      p_values: p-values, shape (m,). NaN counts as nominal.
      level: False discovery rate in (0, 1), shape ().
      threshold: p-values above it are counted as nominal, in (0, 1), shape ().
      num_calibration: Number n of calibration rows that the p-values share, as those of
        `outlier_p_values` do. Defaults to None: independent p-values.

    Returns:
      Discoveries, bool of shape (m,).

    Raises:
      ValueError: if a concrete p-value is negative, `level` or `threshold` is outside
        (0, 1), or `threshold` is not below n / (n + 1) with n = `num_calibration`.

    Guarantee:
      The expected share of false discoveries is at most `level`.

    Assumption:
      Independent p-values; with `num_calibration`, those of `outlier_p_values` without
      weights and uniforms, of scores without ties. Without `num_calibration` these may
      exceed the level, up to (n + 1) (1 - t) / (n - K) times: 1.11 times for n = 19 and
      t = 0.5, any level for t >= n / (n + 1). Smooth ones may exceed it further.

    Cost:
      O(m log m) time: one sort.

    References:
      Storey, Taylor, Siegmund, Strong Control, Conservative Point Estimation and
      Simultaneous Conservative Consistency of False Discovery Rates: A Unified
      Approach, Journal of the Royal Statistical Society B, 2004.
      Marandon, Lei, Mary, Roquain, Adaptive Novelty Detection with False Discovery Rate
      Guarantee, Annals of Statistics, 2024.

    See also:
      pvalues.benjamini_hochberg, outliers.outlier_p_values

    Example:
      >>> p = jnp.array([0.01, 0.02, 0.03, 0.09, 0.5])
      >>> benjamini_hochberg(p, 0.1).sum().item()
      3
      >>> storey_benjamini_hochberg(p, 0.1).sum().item()
      4
    """
    p_values, level = as_p_values(p_values), as_share("level", level)
    threshold = as_share("threshold", threshold)
    if (n := num_calibration) is not None:
        _checks.check_count("num_calibration", n, 1)
        expected = f"threshold below {n} / {n + 1} with num_calibration={n}"
        cure = "; 1 is the only p-value above it"
        _checks.check_values(lambda t: _cells(t, n) < n, expected, threshold, cure=cure)
    return _storey(p_values, level, threshold, num_calibration)


def simes_test(p_values: ArrayLike) -> Array:
    """Returns one p-value for the claim that all rows are nominal: min_i m p_(i) / i.

    Args:
      p_values: p-values, shape (m,).

    Returns:
      p-value in [0, 1], shape (); 1 for no rows.

    Raises:
      ValueError: if a concrete p-value is negative.

    Guarantee:
      P(p <= t) <= t if all rows are nominal.

    Assumption:
      Independent p-values, or those of `outlier_p_values` without weights.

    Cost:
      O(m log m) time: one sort.

    References:
      Simes, An Improved Bonferroni Procedure for Multiple Tests of Significance,
      Biometrika, 1986.

    See also:
      pvalues.fisher_test, pvalues.benjamini_hochberg

    Example:
      >>> round(simes_test(jnp.array([0.04, 0.01, 0.5])).item(), 4)
      0.03
    """
    return _simes(as_p_values(p_values))


def fisher_test(p_values: ArrayLike) -> Array:
    """Returns one p-value for the claim that all rows are nominal, from their product.

    P(chi^2 with 2 m degrees of freedom >= -2 sum log p).

    Args:
      p_values: Independent p-values, shape (m,).

    Returns:
      p-value in [0, 1], shape (); 1 for no rows.

    Raises:
      ValueError: if a concrete p-value is negative.

    Guarantee:
      P(p <= t) <= t if all rows are nominal.

    Assumption:
      Independent p-values. Those of `outlier_p_values` share a calibration set and are
      not: with m of the order of n false alarms are frequent.
      `conditional_outlier_p_values` are, with probability 1 - delta.

    Cost:
      O(m) time.

    References:
      Fisher, Statistical Methods for Research Workers, Oliver and Boyd, 1925.
      Bates, Candes, Lei, Romano, Sesia, Testing for Outliers with Conformal p-values,
      Annals of Statistics, 2023, section 2.3.

    See also:
      pvalues.simes_test, outliers.conditional_outlier_p_values

    Example:
      >>> round(fisher_test(jnp.array([0.05, 0.1])).item(), 4)
      0.0315
    """
    return _fisher(as_p_values(p_values))


def as_p_values(p_values: ArrayLike, name: str = "p_values") -> Array:
    """Returns p-values as floats of shape (m,), checked."""
    p_values = at_least_single(as_float(as_array(name, p_values)))
    _checks.check_vectors(**{name: p_values})
    _checks.check_values(lambda p: ~(p < 0), f"{name} >= 0", p_values)
    return p_values


def as_share(name: str, value: Any) -> Array:
    """Returns one number as a float; raises ValueError where it is not in (0, 1)."""
    return as_float(_checks.share(name, value))


def in_order(p_values: Array) -> Array:
    """Returns p-values sorted, NaN last."""
    return from_keys(lax.sort(to_keys(p_values)), p_values.dtype)


@jax.jit
def step_up(p_values: Array, level: Array, limit: Array) -> Array:
    """Returns p up to the largest p_(i) <= level i / m, of those <= `limit`."""
    ordered, m = in_order(p_values), len(p_values)
    # Conformal p-values are fractions that may equal level i / m but for rounding.
    most = level * jnp.arange(1, m + 1) * _slack(ordered.dtype)
    fits = (m * ordered <= most) & (ordered <= limit)
    largest = jnp.max(jnp.where(fits, ordered, -1), initial=-1)
    return p_values <= largest


@jax.jit
def _storey(p_values, level, threshold, n):
    count = jnp.sum(~(p_values <= threshold))
    # Marandon et al. 2024, with the p-values of at least (K + 1) / (n + 1).
    above = 1 - threshold if n is None else (n - _cells(threshold, n)) / (n + 1)
    share = (1 + count) / (max(len(p_values), 1) * jnp.maximum(above, 0))
    return step_up(p_values, level / share, threshold)


def _cells(threshold, n):
    """Returns K, how many of i / (n + 1) are at most the threshold, if it is exact."""
    return jnp.floor(threshold * (n + 1) * (1 + 4 * jnp.finfo(threshold.dtype).eps))


@jax.jit
def _simes(p_values):
    ordered, m = in_order(p_values), len(p_values)
    return jnp.min(m * ordered / jnp.arange(1, m + 1), initial=1)


@jax.jit
def _fisher(p_values):
    m, positive = len(p_values), p_values > 0
    if m == 0:
        return jnp.ones((), p_values.dtype)
    logs = jnp.log(jnp.where(positive, jnp.minimum(p_values, 1), 1))
    if m < _LARGE:
        tail = jax.scipy.special.gammaincc(jnp.full((), m, logs.dtype), -jnp.sum(logs))
    else:  # the cube root of the statistic is nearly normal (Wilson, Hilferty 1931)
        excess = jnp.maximum(-jnp.sum(1 + logs) / m, -1)
        root = jnp.expm1(jnp.log1p(excess) / 3)
        tail = jax.scipy.special.erfc(3 * math.sqrt(m / 2) * (root + 1 / (9 * m))) / 2
    tail = jnp.where(jnp.any(p_values == 0), 0, tail)
    return jnp.where(jnp.any(jnp.isnan(p_values)), jnp.nan, tail)


def bonferroni(p_values: ArrayLike, delta: ArrayLike) -> Array:
    """Returns which hypotheses are rejected: those with p <= delta / g.

    `holm` rejects them too, and often more, at the same delta.

    Args:
      p_values: p-values, shape (g,). NaN counts as 1.
      delta: Probability of any false rejection, in (0, 1), shape ().

    Returns:
      Rejections, bool of shape (g,).

    Raises:
      ValueError: if a concrete p-value is negative, or `delta` outside (0, 1).

    Guarantee:
      P(any true hypothesis is rejected) <= delta.

    Assumption:
      P(p <= t) <= t for each true hypothesis; any dependence.

    Cost:
      O(g) time.

    References:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
      Journal of Statistics, 1979.

    See also:
      pvalues.holm, pvalues.fixed_sequence, risk.learn_then_test

    Example:
      >>> bonferroni(jnp.array([0.01, 0.04, jnp.nan]), delta=0.1)
      Array([ True, False, False], dtype=bool)
    """
    return _bonferroni(*checked(p_values, delta))


def holm(p_values: ArrayLike, delta: ArrayLike) -> Array:
    """Returns which hypotheses are rejected, in the order of their p-values.

    The ordered p_(i) <= delta / (g - i + 1), up to the first that is not.

    Args:
      p_values: p-values, shape (g,). NaN counts as 1.
      delta: Probability of any false rejection, in (0, 1), shape ().

    Returns:
      Rejections, bool of shape (g,): all those of `bonferroni`, and equal p-values
      together.

    Raises:
      ValueError: if a concrete p-value is negative, or `delta` outside (0, 1).

    Guarantee:
      P(any true hypothesis is rejected) <= delta.

    Assumption:
      P(p <= t) <= t for each true hypothesis; any dependence.

    Cost:
      O(g log g) time: one sort.

    References:
      Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
      Journal of Statistics, 1979.

    See also:
      pvalues.bonferroni, pvalues.fixed_sequence, pvalues.graphical,
      risk.learn_then_test

    Example:
      >>> holm(jnp.array([0.01, 0.04, jnp.nan]), delta=0.1)
      Array([ True,  True, False], dtype=bool)
    """
    return _holm(*checked(p_values, delta))


def fixed_sequence(
    p_values: ArrayLike, delta: ArrayLike, *, starts: Sequence[int] | ArrayLike = (0,)
) -> Array:
    """Returns which hypotheses are rejected, one after the other in their order.

    From each of j starts on while p <= delta / j: a start later in the order may begin
    anew after a failure.

    Args:
      p_values: p-values, shape (g,), in an order chosen without them: the likely
        rejections first. NaN counts as 1.
      delta: Probability of any false rejection, in (0, 1), shape ().
      starts: Positions to begin at, chosen without the p-values, shape (j,). Nothing
        before the first of them is rejected.

    Returns:
      Rejections, bool of shape (g,).

    Raises:
      ValueError: if a concrete p-value is negative, `delta` outside (0, 1), or starts
        are no distinct positions in 0, ..., g - 1.

    Guarantee:
      P(any true hypothesis is rejected) <= delta.

    Assumption:
      P(p <= t) <= t for each true hypothesis; any dependence. Order and starts that do
      not depend on the p-values, nor on the rows behind them.

    Cost:
      O(g) time.

    References:
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      pvalues.holm, pvalues.graphical, risk.learn_then_test, risk.pareto_test

    Example:
      >>> p = jnp.array([0.01, 0.04, 0.5, 0.02, 0.5])
      >>> fixed_sequence(p, delta=0.1)
      Array([ True,  True, False, False, False], dtype=bool)
      >>> fixed_sequence(p, delta=0.1, starts=(0, 3))
      Array([ True,  True, False,  True, False], dtype=bool)
    """
    p_values, delta = checked(p_values, delta)
    starts = as_starts(starts, len(p_values))
    return _fixed_sequence(p_values, delta, starts)


def as_starts(starts: Sequence[int] | ArrayLike, size: int) -> Array | np.ndarray:
    """Returns distinct positions in 0, ..., size - 1 as integers, checked."""
    if not isinstance(starts, Array):
        starts = np.asarray(starts if np.size(starts) else np.zeros(0, int))
    _checks.check_labels("starts", starts, size)
    if starts.ndim != 1 or not len(starts):
        raise ValueError(f"expected starts of shape (j,), got {starts.shape}")
    if is_concrete(starts) and len(np.unique(starts)) < len(starts):
        raise ValueError(f"expected starts without repetitions, got {starts.tolist()}")
    return starts


def runs(passes: Array, starts: Array | np.ndarray) -> Array:
    """Returns the positions from each start up to the first that does not pass."""
    positions = jnp.arange(len(passes))
    if len(starts) == 1:
        begin = jnp.asarray(starts)[0]
        failing = ~passes & (positions >= begin)
        end = jnp.min(jnp.where(failing, positions, len(passes)), initial=len(passes))
        return (positions >= begin) & (positions < end)
    begins = jnp.zeros_like(passes).at[jnp.asarray(starts)].set(True)

    def after(first, then):  # of two maps of a state s to made | (kept & s)
        return then[0] | (then[1] & first[0]), then[1] & first[1]

    return lax.associative_scan(after, (begins & passes, passes))[0]


def checked(p_values: ArrayLike, delta: ArrayLike) -> tuple[Array, Array]:
    """Returns p-values and delta as floats, or raises ValueError."""
    return as_p_values(p_values), as_share("delta", delta)


def _slack(dtype):
    """Returns the factor that lets p <= delta / g hold where only rounding speaks."""
    return 1 + 4 * jnp.finfo(dtype).eps


@jax.jit
def _bonferroni(p_values, delta):
    return len(p_values) * p_values <= delta * _slack(p_values.dtype)


@jax.jit
def _holm(p_values, delta):
    g = len(p_values)
    ordered = in_order(jnp.where(jnp.isnan(p_values), 1, p_values))
    left = g - jnp.arange(g)  # g - i + 1 hypotheses at step i
    fails = ~(left * ordered <= delta * _slack(ordered.dtype))
    first = jnp.min(jnp.where(fails, ordered, jnp.inf), initial=jnp.inf)
    # Equal p-values are tried at growing levels: the first of them decides for all.
    return p_values < first


@jax.jit
def _fixed_sequence(p_values, delta, starts):
    slack = _slack(p_values.dtype)
    return runs(len(starts) * p_values <= delta * slack, starts)


def graphical(
    p_values: ArrayLike, delta: ArrayLike, weights: ArrayLike, transitions: ArrayLike
) -> Array:
    """Returns which hypotheses are rejected, where a rejection passes its share on.

    Each hypothesis i with p_i <= w_i delta and w_i > 0 is rejected, and its share w_i
    goes to the others in the parts g_ij. Holm's procedure is the graph with weights
    1 / g and transitions 1 / (g - 1), a fixed sequence that with weight 1 on the first
    and i -> i + 1.

    Args:
      p_values: p-values, shape (g,). NaN counts as 1.
      delta: Probability of any false rejection, in (0, 1), shape ().
      weights: Shares of delta, shape (g,), at least 0 and at most 1 together.
      transitions: Parts g_ij of the share of i that j gets, shape (g, g): at least 0,
        rows of at most 1 together, 0 on the diagonal.

    Returns:
      Rejections, bool of shape (g,), whatever the order in which they are made.

    Raises:
      ValueError: if a concrete p-value is negative, `delta` outside (0, 1), or weights
        and transitions are not as above.

    Guarantee:
      P(any true hypothesis is rejected) <= delta.

    Assumption:
      P(p <= t) <= t for each true hypothesis; any dependence. Weights and transitions
      that do not depend on the p-values.

    Cost:
      O(g^2) time for each rejection.

    References:
      Bretz, Maurer, Brannath, Posch, A Graphical Approach to Sequentially Rejective
      Multiple Test Procedures, Statistics in Medicine, 2009.

    See also:
      pvalues.holm, pvalues.fixed_sequence, risk.learn_then_test

    Example:
      >>> p = jnp.array([0.04, 0.06, 0.01])
      >>> onwards = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
      >>> graphical(p, 0.1, jnp.array([0.5, 0.25, 0.25]), onwards)
      Array([ True,  True,  True], dtype=bool)
    """
    p_values, delta = checked(p_values, delta)
    weights, transitions = _check_graph(weights, transitions, len(p_values))
    return _graphical(p_values, delta, weights, transitions)


def _check_graph(weights, transitions, g):
    weights = as_float(as_array("weights", weights))
    transitions = as_float(as_array("transitions", transitions))
    _checks.check_shape("weights", (g,), weights.shape)
    _checks.check_shape("transitions", (g, g), transitions.shape)
    for name, values in (("weights", weights), ("transitions", transitions)):
        # Sums of rounded shares may exceed 1 by their rounding.
        most = 1 + max(g, 4) * float(jnp.finfo(values.dtype).eps)
        _checks.check_values(lambda v: v >= 0, f"{name} >= 0", values)
        total = lambda v, most=most: v.astype(float).sum(-1) <= most  # noqa: E731
        _checks.check_values(total, f"{name} of at most 1 together", values)
    diagonal = lambda v: ~np.eye(g, dtype=bool) | (v == 0)  # noqa: E731
    _checks.check_values(diagonal, "transitions with a diagonal of 0", transitions)
    return weights, transitions


@jax.jit
def _graphical(p_values, delta, weights, transitions):
    eps = jnp.finfo(p_values.dtype).eps

    def may_reject(state):
        w, _, rejected = state
        # Each step rounds the shares a few times more.
        slack = 1 + 4 * eps * (1 + jnp.sum(rejected))
        return ~rejected & (w > 0) & (p_values <= w * delta * slack)

    def reject(state):
        return _passed_on(state, jnp.argmax(may_reject(state)))

    start = weights, transitions, jnp.zeros(p_values.shape, bool)
    start = varying_like(start, (p_values, delta, weights, transitions))
    return lax.while_loop(lambda s: jnp.any(may_reject(s)), reject, start)[2]


def _passed_on(state, i):
    """Returns shares, transitions and rejections once i is rejected."""
    w, g, rejected = state
    # Bretz et al. 2009, algorithm 1: w_j + w_i g_ij, and
    # (g_jl + g_ji g_il) / (1 - g_ji g_ij), 0 where j and i pass all to each other.
    others = ~(rejected | (jnp.arange(len(w)) == i))
    out, into = g[i], g[:, i]
    loop = into * out
    kept = jnp.where(loop < 1, 1 - loop, 1)[:, None]
    inside = others[:, None] & others[None] & ~jnp.eye(len(w), dtype=bool)
    passed = (g + into[:, None] * out[None]) / kept
    g = jnp.where(inside & (loop < 1)[:, None], passed, 0)
    return jnp.where(others, w + w[i] * out, 0), g, rejected.at[i].set(True)
