"""How strange a test point is among the rows that were fitted with it.

A refit is not symmetric in its rows to the last bit: scores that differ by rounding
alone are equal, so that repeated rows tie.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float, at_least_single
from jaxcp.pvalues.conformal import share_of
from jaxcp.quantiles._masses import unit_scale
from jaxcp.quantiles.conformal import weighted_threshold
from jaxcp.typing import PyTree

_FEW = 16  # eps that scores of equal rows may be apart


class Rows(NamedTuple):
    """How the n rows count in ranks.

    Args:
      mask: True where a row counts, shape (n,), or None.
      weights: Weights >= 0 of the rows, 0 off the mask, shape (n,), or None.
    """

    mask: Array | None
    weights: Array | None


def slack(own: Array, pred: PyTree) -> Array:
    """Returns how far rounding may move a score of a prediction."""
    leaves = [own, *map(as_float, jax.tree.leaves(pred))]
    eps = max(jnp.finfo(leaf.dtype).eps for leaf in leaves)
    sizes = [jnp.where(jnp.isfinite(v), jnp.abs(v), 0) for v in leaves]
    largest = sum(jnp.max(v, initial=0) for v in sizes)
    return lax.stop_gradient(_FEW * eps * largest).astype(own.dtype)


def kept(
    scores: Array, own: Array, slack: Array, rank: Array, rows: Rows, test_weight: Array
) -> Array:
    """Returns whether p > alpha: fewer than k scores are below the own one.

    With weights `rank` is alpha. Scores are of shape (n,); an own score that is NaN
    says nothing against its target.
    """
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    lowest = own - slack
    if rows.weights is None:
        below = scores < lowest
        below = below if rows.mask is None else below & rows.mask
        fits = jnp.sum(below) < rank  # #{S_i < S_n+1} < k
    else:
        q = weighted_threshold(
            scores, as_float(rows.weights), rank, as_float(test_weight)
        )
        fits = lowest <= q
    return fits | jnp.isnan(own)


def p_value(
    scores: Array, own: Array, slack: Array, u: Array, rows: Rows, test_weight: Array
) -> Array:
    """Returns (#{S_i > S_n+1} + u (1 + #{S_i = S_n+1}))/(n + 1), counts or masses."""
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    p = share(scores >= own - slack, scores > own + slack, u, rows, test_weight)
    return jnp.where(jnp.isnan(own), 1, p)


def share(
    at_least: Array, above: Array, u: Array, rows: Rows, test_weight: Array
) -> Array:
    """Returns the p-value where these rows are at least as strange, and stranger."""
    if rows.weights is None:
        n, test_weight = len(at_least), jnp.ones((), as_float(u).dtype)
        masses = jnp.ones(n, int) if rows.mask is None else rows.mask.astype(int)
    else:
        weights = at_least_single(as_float(rows.weights))
        test_weight = at_least_single(as_float(test_weight))
        masses, test_weight = unit_scale(weights, test_weight)
    most, more = (jnp.sum(jnp.where(v, masses, 0)) for v in (at_least, above))
    return share_of(more, most - more, jnp.sum(masses), as_float(u), test_weight)
