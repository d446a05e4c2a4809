"""Many p-values at once, with a graph of what each rejection passes on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, varying_like
from jaxcp.pvalues.familywise import checked
from jaxcp.typing import ArrayLike


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
