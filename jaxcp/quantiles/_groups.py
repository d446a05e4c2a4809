"""Order statistics of all groups of rows at once, from counts of digits.

Each round settles a digit of the keys of all groups: it counts, in one pass over the
rows, the digits of those that share the digits found so far for their group.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._arrays import FEW_GROUPS
from jaxcp._numbers import at_least_single, rounded_up
from jaxcp.quantiles._keys import from_keys, to_keys

_FEW_ROWS = 2**10  # of which a selection for each group takes less time
_MANY_ROWS = 2**17  # up to which it does for twice as many groups


def at_a_time(num_rows, num_groups):
    """Returns how many groups are best gone through side by side, each with all rows.

    All of them where there are few rows. An export may leave the number of rows open.
    """
    if isinstance(num_rows, int) and num_rows <= _FEW_ROWS:
        return num_groups
    many = not isinstance(num_rows, int) or num_rows > _MANY_ROWS
    return min(num_groups, FEW_GROUPS if many else 2 * FEW_GROUPS)


def kth_of_groups(x: Array, k: Array, codes: Array) -> Array:
    """Returns `kth_smallest` of x (n,) for the ranks k (g,) of groups, from `codes`."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return _select(x if is_float else rounded_up(x), k, codes)


@jax.custom_jvp
def _select(x, k, codes):
    return from_keys(_first_keys(to_keys(x), k, codes), x.dtype)


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
    add_up = partial(jax.ops.segment_sum, segment_ids=codes, num_segments=len(k))
    total = jnp.maximum(add_up(nearest.astype(moves.dtype)), 1)
    return value, (add_up(moves) / total).astype(x.dtype)


def _first_keys(keys, k, codes):
    """Returns the first key of each group up to which there are k, the highest if none.

    Digits have eight bits where groups have rows for as many counts, and else four.
    """
    bits, lowest = jnp.iinfo(keys.dtype).bits, jnp.iinfo(keys.dtype).min
    few = isinstance(keys.size, int) and keys.size < 256 * len(k)
    width = 4 if few else 8
    keys = lax.bitcast_convert_type(keys ^ lowest, jnp.dtype(f"uint{bits}"))
    found, below = jnp.zeros(k.shape, keys.dtype), jnp.zeros((), int)
    for shift in range(bits - width, -1, -width):
        digits = ((keys >> shift) & (2**width - 1)).astype(int)
        if shift < bits - width:  # rows with other digits before this one
            other = (keys >> (shift + width)) != found[codes]
            digits = jnp.where(other, 2**width, digits)
        counts = jnp.zeros((len(k), 2**width), int).at[codes, digits].add(1)
        up_to = below + jnp.cumsum(counts, axis=1)
        digit = jnp.sum(up_to < k[:, None], axis=1, keepdims=True)
        digit = jnp.minimum(digit, 2**width - 1)
        below = jnp.take_along_axis(up_to - counts, digit, axis=1)
        found = (found << width) | digit[:, 0].astype(keys.dtype)
    return lax.bitcast_convert_type(found, keys.dtype.name[1:]) ^ lowest
