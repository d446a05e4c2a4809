"""Many p-values at once: rejections of which not even one is false, with a bound."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, varying_like
from jaxcp.pvalues.multiple import as_p_values, in_order
from jaxcp.typing import ArrayLike


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
    return _bonferroni(*_check(p_values, delta))


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
    return _holm(*_check(p_values, delta))


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
    p_values, delta = _check(p_values, delta)
    starts = as_starts(starts, len(p_values))
    return _fixed_sequence(p_values, delta, starts)


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
    p_values, delta = _check(p_values, delta)
    weights, transitions = _check_graph(weights, transitions, len(p_values))
    return _graphical(p_values, delta, weights, transitions)


def as_starts(starts: Sequence[int] | ArrayLike, size: int) -> Array | np.ndarray:
    """Returns distinct positions in 0, ..., size - 1 as integers, checked."""
    if isinstance(starts, Array):
        _checks.check_labels("starts", starts, size)
    else:
        starts = np.asarray(starts if np.size(starts) else np.zeros(0, int))
        inside = lambda v: (v >= 0) & (v < size)  # noqa: E731
        if starts.dtype.kind not in "iu":
            raise ValueError(f"expected starts as integers, got {starts.dtype}")
        _checks.check_values(inside, f"starts in 0, ..., {size - 1}", starts)
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


def _check(p_values, delta):
    """Returns p-values without NaN and delta, as floats."""
    return as_p_values(p_values), as_float(_checks.share("delta", delta))


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


@jax.jit
def _graphical(p_values, delta, weights, transitions):
    eps = jnp.finfo(p_values.dtype).eps

    def may_reject(state):
        w, _, rejected = state
        # Each step rounds the shares a few times more.
        slack = 1 + 4 * eps * (1 + jnp.sum(rejected))
        return ~rejected & (w > 0) & (p_values <= w * delta * slack)

    def reject(state):
        w, g, rejected = state
        i = jnp.argmax(may_reject(state))
        others = ~(rejected | (jnp.arange(len(w)) == i))
        out, into = g[i], g[:, i]
        w = jnp.where(others, w + w[i] * out, 0)  # Bretz et al. 2009, algorithm 1
        loop = into * out
        kept = jnp.where(loop < 1, 1 - loop, 1)[:, None]
        passed = (g + into[:, None] * out[None]) / kept
        inside = others[:, None] & others[None] & ~jnp.eye(len(w), dtype=bool)
        g = jnp.where(inside & (loop < 1)[:, None], passed, 0)
        return w, g, rejected.at[i].set(True)

    start = weights, transitions, jnp.zeros(p_values.shape, bool)
    start = varying_like(start, (p_values, delta, weights, transitions))
    return lax.while_loop(lambda s: jnp.any(may_reject(s)), reject, start)[2]
