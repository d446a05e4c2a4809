"""How many rows count: by numpy, which compiles nothing, where it can read them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._padding import on_host


def count_rows(x: Array, mask: Array | None = None) -> int | Array:
    """Returns how many rows of x count, shape (); traced where an export leaves it."""
    if mask is not None:
        return count_true(mask)
    return x.shape[0] if isinstance(x.shape[0], int) else jnp.asarray(x.shape[0])


def count_true(flags: Array) -> int | Array:
    """Returns how many flags are True, shape ()."""
    return int(np.sum(np.asarray(flags))) if on_host(flags) else jnp.sum(flags)


def count_groups(
    groups: Array, num_groups: int, mask: Array | None = None
) -> np.ndarray | Array:
    """Returns how many rows of each group count, shape (num_groups,)."""
    if not on_host(groups, mask):
        return _sums_of_members(groups, num_groups, mask)
    codes = np.asarray(groups).astype(int)
    counts = (codes >= 0) & (codes < num_groups)
    counts = counts if mask is None else counts & np.asarray(mask, bool)
    return np.bincount(codes[counts], minlength=num_groups)


def members_of(groups: Array, num_groups: int, mask: Array | None = None) -> Array:
    """Returns which rows are of each group and count, shape (num_groups, n)."""
    inside = groups[None] == jnp.arange(num_groups)[:, None]
    return inside if mask is None else inside & mask[None]


@partial(jax.jit, static_argnames="num_groups")
def _sums_of_members(groups, num_groups, mask):
    return jnp.sum(members_of(groups, num_groups, mask), axis=1)
