"""Which votes of rows suffice, decided as by the threshold of their scores."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float
from jaxcp.quantiles._masses import masses_of, spare_mass

Words = tuple[Array, ...]


def ballot(
    n: int,
    rank: Array,
    mask: Array | None = None,
    weights: Array | None = None,
    test_weight: Array | None = None,
) -> tuple[Words, Callable[..., Array]]:
    """Returns what each of n rows weighs, and whether sums of that suffice.

    The arguments are those of `threshold_at`: the rows suffice that are at or above the
    threshold iff a test point with the score of the least of them is in the set.
    """
    if weights is None:
        votes = jnp.ones(n, int) if mask is None else mask.astype(int)
        spare = jnp.sum(votes) - rank
        return (votes,), lambda kept: kept > spare  # iff all but these are below k
    # As `weighted_threshold` decides: the sum of those kept exceeds the spare mass.
    test_weight = as_float(1.0 if test_weight is None else test_weight)
    known = lax.stop_gradient((as_float(weights), as_float(rank), test_weight))
    weights, spare = spare_mass(*known)
    tiny = jnp.finfo(spare.dtype).tiny
    above = jnp.maximum(jnp.nextafter(spare, jnp.inf), tiny)
    target = jnp.where(spare < 0, 0, above)
    masses = masses_of(weights)

    def suffice(leading: Array, following: Array) -> Array:
        return ~masses.are_less(leading, following, target)

    return (masses.leading, masses.following), suffice
