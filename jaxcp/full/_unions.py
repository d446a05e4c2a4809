"""The exact set of full conformal prediction where it may have holes.

Row i keeps d, the test point's residual, iff its own score is no lower: |r_i - v_i d|
>= rho_i |d|. With |v_i| < rho_i that is a closed interval around 0, with |v_i| > rho_i
all but an open interval on one side of 0. A target is in the set iff the rows that keep
it weigh enough: a sweep over 2n breakpoints, in order.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp.quantiles._voting import ballot
from jaxcp.sets import Intervals
from jaxcp.sets._sweeping import sweep, whole_line_if

_ROUNDINGS = 16  # eps within which |v| and rho are the same


def exact_union(
    center: Array,
    spread: Array,
    residuals: Array,
    shares: Array,
    rho: Array,
    rank: Array,
    mask: Array | None = None,
    weights: Array | None = None,
    test_weight: Array | None = None,
) -> Intervals:
    """Returns the targets of one test point that enough of n rows keep.

    All y with #{i : |r_i - v_i d| < rho_i |d|} < k, where d = (y - center) / spread.
    Ends are of shape (n + 1,), disjoint, closed, in increasing order; empty pieces come
    last, as (inf, -inf). n + 1 are enough: d = 0 is kept by all, and going away from it
    each further piece begins where the hole of another row ends.

    Args:
      center: Prediction of the fit on n rows, shape (), in units of the target.
      spread: 1 + g, shape (); where it is infinite the set is the whole line.
      residuals: r, shape (n,). Rows that tie everywhere have r = v = rho = 0.
      shares: v, shape (n,).
      rho: What divides scores, (spread rest)^power, shape (n,).
      rank: Rank k, an integer, or alpha as a float where there are weights, shape ().
      mask: True for the rows that count, shape (n,); not with weights.
      weights: Weights of the rows, shape (n,).
      test_weight: Weight of the test point, shape (). Defaults to 1.
    """
    words, suffice = ballot(len(residuals), rank, mask, weights, test_weight)
    counts = words[0] > 0
    d = _kept(center, residuals, shares, rho, counts)
    first, last, between = _on_line(center, spread, *d)
    ends = sweep(first, last, between, words, suffice, len(residuals) + 1)
    unknown = ~(jnp.isfinite(center) & jnp.isfinite(spread))
    return Intervals(*whole_line_if(unknown, *ends))


def _kept(center, r, v, rho, counts):
    """Returns `first <= last`, each (n,), and whether rows keep what is between.

    The others keep all but what is between. Rows that tie everywhere keep all between
    -inf and inf.
    """
    known = jnp.isfinite(r) & jnp.isfinite(v) & jnp.isfinite(rho) & counts
    r, v, rho = (jnp.where(known, value, 0) for value in (r, v, rho))
    sum_, gap = jnp.abs(v) + rho, jnp.abs(v) - rho
    eps = jnp.finfo(r.dtype).eps
    tied = jnp.abs(gap) <= _ROUNDINGS * eps * sum_
    scale = jnp.abs(center) + jnp.max(jnp.abs(r), initial=0)
    nothing = jnp.abs(r) <= _ROUNDINGS * eps * scale
    r = jnp.where(v < 0, -r, r)
    near = r / jnp.where(sum_ > 0, sum_, 1)  # |r - v d| = rho |d|
    far = r / jnp.where(tied, 1, gap)
    far = jnp.where(tied, jnp.where(near > 0, -jnp.inf, jnp.inf), far)
    everywhere = tied & nothing | (sum_ == 0)
    first = jnp.where(everywhere, -jnp.inf, jnp.minimum(near, far))
    last = jnp.where(everywhere, jnp.inf, jnp.maximum(near, far))
    return first, last, tied | (gap < 0)


def _on_line(center, spread, first, last, between):
    """Returns the same of targets instead of residuals; holes are not empty."""

    def target(d):
        finite = jnp.isfinite(d)
        # Compilers do not fuse a choice with the sum that follows, so it rounds the
        # same in the program of p-values.
        return center + jnp.where(finite, spread * jnp.where(finite, d, 0), d)

    first, last = target(first), target(last)
    # A hole that rounding closes is kept; one without an end leaves a half line.
    closed = ~between & ~(first < last)
    below, above = ~between & (last == jnp.inf), ~between & (first == -jnp.inf)
    lower = jnp.where(closed | below, -jnp.inf, jnp.where(above, last, first))
    upper = jnp.where(closed | above, jnp.inf, jnp.where(below, first, last))
    return lower, upper, between | closed | below | above
