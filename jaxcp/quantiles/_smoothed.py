"""Thresholds of smoothed sets {s : p(s, u) > alpha}, with a uniform u for each.

p(s, u) = (mass{S_i > s} + u (mass{S_i = s} + w)) / (mass{all} + w) nowhere rises with
s, so that the set is {s <= q}, q the largest float in it. Let t be the least v with
mass{S > v} <= spare = alpha (mass{all} + w) - u w: all below t is in, and nothing above
it; t itself is in iff (1 - u) mass{S = t} < mass{S >= t} - spare. Else q is the next
float below.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._counting import count_true
from jaxcp._numbers import as_float, just_below
from jaxcp.quantiles._keys import common_keys
from jaxcp.quantiles._masses import total_mass, unit_scale
from jaxcp.quantiles.conformal import least_below_mass, thresholds


def smoothed_threshold(
    scores: Array,
    rank: Array,
    alpha: Array,
    u: Array,
    mask: Array | None = None,
    weights: Array | None = None,
    test_weight: Array | None = None,
) -> Array:
    """Returns the largest s whose smoothed p-value exceeds alpha, shape of `rank`.

    Of scores (n,), or (n, c) at ranks (c,). +inf where everything is in, -inf where at
    most scores of -inf are. Without weights `rank` is the conformal rank at alpha; with
    them only its shape counts. At u = 1 it is `threshold_at`.
    """
    # Nothing but the scores has a gradient: the bound is one of them, or next to it.
    given = alpha, u, weights, test_weight
    alpha, u, weights, test_weight = lax.stop_gradient(given)
    if weights is None:
        one = partial(_of_counts, u=u, mask=mask)
    else:
        own = as_float(1.0 if test_weight is None else test_weight)
        one = partial(_of_masses, u=u, weights=as_float(weights), test_weight=own)
    alpha = jnp.broadcast_to(alpha, rank.shape)
    if not rank.ndim:
        return one(scores, rank, alpha)
    return jax.vmap(one, (None if scores.ndim == 1 else 1, 0, 0))(scores, rank, alpha)


def _of_counts(scores, rank, alpha, u, mask):
    n = scores.shape[0] if mask is None else count_true(mask)
    floor, dtype = n + 1 - rank, jnp.promote_types(alpha.dtype, u.dtype)
    rest = alpha.astype(dtype) * (n + 1) - floor.astype(dtype)
    rest = jnp.clip(rest, 0, 1 - jnp.finfo(dtype).epsneg)
    # #{S > v} <= floor + rest - u for an integer: one of two ranks, and their passes
    # over the scores serve every u.
    both = thresholds(scores, jnp.stack([rank, rank - 1]), mask)
    counts = jnp.ones(scores.shape, int) if mask is None else mask.astype(int)
    above, equal = jax.vmap(_masses_at, (0, None, None))(both, scores, counts)
    excess = (above + equal - floor).astype(dtype) + (u - rest)
    return _in_or_below(both, equal, excess, u)[(u <= rest).astype(int)]


def _of_masses(scores, rank, alpha, u, weights, test_weight):
    del rank
    dtype = jnp.result_type(weights.dtype, alpha.dtype, u.dtype, jnp.float32)
    weights = jnp.where(weights > 0, weights, 0).astype(dtype)
    weights, own = unit_scale(weights, test_weight.astype(dtype))
    total = total_mass(weights) + own
    exact = 1 + 3 * jnp.finfo(dtype).eps  # undoes the rounding of alpha
    spare = jnp.where(total > 0, alpha.astype(dtype) * total * exact - u * own, -1)
    first = least_below_mass(as_float(scores), weights, spare)
    above, equal = _masses_at(first, scores, weights)
    return _in_or_below(first, equal, above + equal - spare, u)


def _masses_at(value, scores, masses):
    """Returns the mass of the scores above a value, and that of those equal to it."""
    keys, key = common_keys(scores, value)
    return tuple(jnp.sum(jnp.where(v, masses, 0)) for v in (keys > key, keys == key))


def _in_or_below(first, equal, excess, u):
    """Returns t if it is in, and else the next float below."""
    # There is an excess, for t is the least; rounding may not say otherwise.
    excess = jnp.maximum(excess, jnp.finfo(excess.dtype).tiny)
    is_out = (1 - u) * equal >= excess  # of NaN it is in
    return jnp.where(is_out, just_below(first), first)
