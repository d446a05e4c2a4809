"""The rank among draw scores W_(1) <= ... <= W_(K), as a continuous function.

Linear through (W_(i), i); above the last finite W linear with slope 1 / spread, below
the first exponential. Infinite draw scores are not joined by lines.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp.selection import at_least_single, kth_smallest


def rank(draws: Array, score: Array) -> Array:
    """Returns the extended rank of a score, shape (); +inf for +inf."""
    count = jnp.sum(draws <= score)
    lower, upper, below, above = _ends(draws, count)
    spread, finite = _spread(draws), jnp.isfinite(score)
    s = jnp.where(finite, score, 0)
    inside = (s - lower) / jnp.where(upper > lower, upper - lower, 1)
    beyond = (s - lower) / spread
    before = jnp.exp(jnp.minimum(s - upper, 0) / spread)
    anywhere = jax.nn.sigmoid(s)  # no draw score is finite
    share = _choose(below, above, inside, beyond, before, anywhere)
    share = jnp.where(finite, share, jnp.where(score > 0, jnp.inf, 0))
    return count.astype(at_least_single(draws).dtype) + share


def threshold(draws: Array, q: Array) -> Array:
    """Returns the last number whose extended rank is at most q, shape ()."""
    count = jnp.clip(jnp.floor(q), 0, jnp.sum(draws < jnp.inf)).astype(int)
    share = q - count
    safe = jnp.where(jnp.isfinite(share) & (share > 0), share, 0)
    lower, upper, below, above = _ends(draws, count)
    spread = _spread(draws)
    gap = upper - lower
    inside = jnp.where(gap > 0, lower + safe * gap, just_below(lower))
    log_share = jnp.log(jnp.where(safe > 0, safe, 1))
    before = jnp.where(safe > 0, upper + spread * log_share, -jnp.inf)
    eps = jnp.finfo(q.dtype).eps
    inner = jnp.clip(safe, eps, 1 - eps)
    anywhere = jnp.log(inner) - jnp.log1p(-inner)
    value = _choose(below, above, inside, lower + spread * safe, before, anywhere)
    value = jnp.where(q < 0, -jnp.inf, value)
    return jnp.where(q == jnp.inf, jnp.inf, value).astype(draws.dtype)


def just_below(x: Array) -> Array:
    """Returns the largest number below x; below 0 and +inf a normal, finite one."""
    at = lax.stop_gradient(x)
    lowest = jnp.full_like(at, -jnp.inf)
    below = jnp.where(at == 0, -jnp.finfo(at.dtype).tiny, jnp.nextafter(at, lowest))
    finite = jnp.isfinite(at)
    step = jnp.where(finite, below - jnp.where(finite, at, 0), 0)
    return jnp.where(finite, x + step, below)


def _ends(draws, count):
    """Returns W_(count), W_(count + 1) (0 if infinite), and which are finite."""
    lower, upper = kth_smallest(draws, jnp.stack([count, count + 1]))
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    return jnp.where(below, lower, 0), jnp.where(above, upper, 0), below, above


def _choose(below, above, inside, beyond, before, anywhere):
    only_below = jnp.where(below, beyond, anywhere)
    return jnp.where(above, jnp.where(below, inside, before), only_below)


def _spread(draws):
    """Returns W_(.9K) - W_(.5K), or what else says how far draw scores are apart."""
    k = len(draws)
    ranks = jnp.stack(
        [1, jnp.sum(jnp.isfinite(draws)), (k + 1) // 2, (9 * k + 9) // 10]
    )
    first, last, middle, high = kth_smallest(draws, ranks)
    spread = jnp.ones_like(first)
    for candidate in (jnp.abs(first), last - first, high - middle):
        usable = jnp.isfinite(candidate) & (candidate > 0)
        spread = jnp.where(usable, candidate, spread)
    return spread
