"""Order statistics of all groups of rows at once, from counts of digits.

Each round settles a digit of the keys of all groups: it counts, in one pass over the
rows, the digits of those that share the digits found so far for their group. Rows of
shards are one group, whose counts are summed over devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._arrays import sums_of_groups
from jaxcp._numbers import at_least_single, over_shards, rounded_up
from jaxcp.quantiles._keys import from_keys, to_keys


def kth_of_groups(x: Array, k: Array, codes: Array) -> Array:
    """Returns `kth_smallest` of x (n,) for the ranks k (g,) of groups, from `codes`."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return _select(x if is_float else rounded_up(x), k, codes)


@jax.custom_jvp
def _select(x, k, codes):
    # Eight bits where groups have rows for as many counts; an export leaves n open.
    few = isinstance(x.size, int) and x.size < 256 * len(k)
    return from_keys(first_keys(to_keys(x), k, codes, 4 if few else 8), x.dtype)


@_select.defjvp
def _select_jvp(primals, tangents):
    """The mean tangent of the values equal to the result, or nearest to it."""
    x, k, codes = primals
    value = _select(*primals)
    distance = lax.stop_gradient(jnp.abs(x - value[codes]))
    distance = jnp.where(jnp.isfinite(distance), distance, jnp.inf)
    # Not 0: XLA may compute x anew and round it otherwise, and no value is equal.
    radius = jax.ops.segment_min(distance, codes, len(k))
    nearest = jnp.isfinite(distance) & (distance <= radius[codes])
    moves = at_least_single(jnp.where(nearest, tangents[0], 0))
    total = jnp.maximum(sums_of_groups(nearest.astype(int), codes, len(k)), 1)
    return value, (sums_of_groups(moves, codes, len(k)) / total).astype(x.dtype)


def first_keys(keys, k, codes, width, axis_name=None):
    """Returns the first key of each group up to which there are k, the highest if none.

    Digits have `width` bits. With codes 0 all rows are of one group.
    """
    bits, lowest = jnp.iinfo(keys.dtype).bits, jnp.iinfo(keys.dtype).min
    keys = lax.bitcast_convert_type(keys ^ lowest, jnp.dtype(f"uint{bits}"))
    found, below = jnp.zeros(k.shape, keys.dtype), jnp.zeros((), int)
    active, size = jnp.ones(keys.shape, int), 2**width
    for shift in range(bits - width, -1, -width):
        digits = ((keys >> shift) & (size - 1)).astype(int)
        # With one index: with two the additions take twice as long.
        counts = jnp.zeros(len(k) * size, int).at[codes * size + digits].add(active)
        counts = over_shards(lax.psum, counts, axis_name).reshape(-1, size)
        up_to = below + jnp.cumsum(counts, axis=1)
        digit = jnp.sum(up_to < k[:, None], axis=1, keepdims=True)
        digit = jnp.minimum(digit, size - 1)
        below = jnp.take_along_axis(up_to - counts, digit, axis=1)
        active &= digits == digit[codes, 0]
        found = (found << width) | digit[:, 0].astype(keys.dtype)
    return lax.bitcast_convert_type(found, keys.dtype.name[1:]) ^ lowest
