"""Rows off a mask, which may hold anything."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._tracing import jit


def emptied(mask: Array | None, rows: Any) -> Any:
    """Returns rows with zeros off the mask, for NaN times a weight of 0 is NaN."""
    return rows if mask is None else _emptied(mask, rows)


@jit
def _emptied(mask, rows):
    def on_mask(v):
        kept = mask.reshape(-1, *(1,) * (v.ndim - 1))
        return jnp.where(kept, v, jnp.zeros((), v.dtype))

    return jax.tree.map(on_mask, rows)
