"""One fit on all rows and a test point, where rows off a mask are padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._tracing import jit
from jaxcp.typing import Learner, PyTree


@jit
def fitted(
    learner: Learner, key: Array, x: PyTree, y: Array, mask: Array | None
) -> tuple[PyTree, PyTree]:
    """Returns a fit and what it predicts for its rows; those after a mask count."""
    weights = jnp.ones(len(y))
    if mask is not None:
        weights = weights.at[: len(mask)].set(mask)
    params = learner.fit(jax.random.clone(key), x, y, weights)  # the key of every fit
    return params, learner.predict(params, x)


@jit
def filled(rows: PyTree, mask: Array | None) -> PyTree:
    """Returns rows with one that counts in the place of those off the mask.

    What padding holds, such as NaN, would be NaN times a weight of 0 too.
    """
    if mask is None or not len(mask):
        return rows
    one = jnp.argmax(mask)

    def fill(v):
        counts = mask.reshape(-1, *(1,) * (v.ndim - 1))
        return jnp.where(counts, v, v[one])

    return jax.tree.map(fill, rows)
