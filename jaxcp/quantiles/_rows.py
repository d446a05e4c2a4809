"""Order statistics of rows: whatever is mapped over becomes rows, or ranks of one row.

Few numbers settle a bit of the answer with each count, as accelerators do with all;
many are counted in bytes. Of many ranks of one row, its integers are sorted.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp.quantiles import _bytes
from jaxcp.quantiles._keys import bisect_keys, to_keys

# Up to this many numbers the few operations of a bisection by bits take less time.
_FEW = 2**15
# From so many ranks of one array on, of few numbers and of many, one sort of its
# integers beats as many selections (`python -m experiments.kernel_speed` shows where).
_SORT_FEW, _SORT_MANY = 4, 32


@custom_vmap
def select_keys(x: Array, k: Array) -> Array:
    """Returns keys of order statistics of `x` (n,) at ranks `k` (a,), shape (a,).

    The lowest for k < 1 and the highest for k > n.
    """
    return _keys_of_row(x, k, x.size)


@select_keys.def_vmap
def _select_keys_of_rows(size, batched, x, k):
    if not batched[0]:  # more ranks of one array
        return select_keys(x, k.ravel()).reshape(k.shape), True
    if not _bytes.is_local():
        return _mapped(_keys_of_row, batched, x, k), True
    return _select_rows(x, to_all(k, batched[1], size)), True


@custom_vmap
def _select_rows(x, k):
    """Returns `select_keys` of rows of x (b, n) at k (b, a), shape (b, a)."""
    return _keys_of_rows(x, k, x.size)


@_select_rows.def_vmap
def _select_rows_of_rows(size, batched, x, k):
    if not batched[0]:  # (size, b, a)
        ranks = k.swapaxes(0, 1)
        found = _select_rows(x, ranks.reshape(ranks.shape[0], size * k.shape[2]))
        return found.reshape(ranks.shape).swapaxes(0, 1), True
    k = to_all(k, batched[1], size)
    found = _select_rows(*(as_rows(v) for v in (x, k)))
    return found.reshape(k.shape), True


def _mapped(select, batched, x, k):
    """Returns `select` mapped as it is: a reshape might gather rows that are spread."""
    axes = [0 if b else None for b in batched]
    return jax.vmap(lambda x_row, k_row: select(x_row, k_row, x.size), axes)(x, k)


def as_rows(values: Array) -> Array:
    """Returns values (b, c, n) as rows (b c, n); of no numbers too."""
    b, c, n = values.shape
    return values.reshape(b * c, n)


def to_all(values: Array, batched: bool, size: int) -> Array:
    """Returns values that are mapped over, or those of all as often as there are."""
    return values if batched else jnp.broadcast_to(values, (size, *values.shape))


def _keys_of_row(x, k, numbers):
    return _keys_of_rows(x[None], k[None], numbers)[0]


def _keys_of_rows(x, k, numbers):
    """Returns keys of rows, which are all of so many `numbers` or some of them."""
    few = is_few(numbers)
    if is_many(k.shape[1], _SORT_FEW if few else _SORT_MANY) and x.shape[1] > 0:
        return jax.vmap(_pick)(lax.sort(to_keys(x)), k)
    if few:
        return _by_bits(x, k)
    return lax.platform_dependent(x, k, cpu=_by_bytes, default=_by_bits)


def is_few(numbers: int) -> bool:
    """Returns whether bits are settled; also of numbers that an export leaves open."""
    return not isinstance(numbers, int) or numbers <= _FEW


def is_many(count: int, least: int) -> bool:
    """Returns whether there are so many; also of numbers that an export leaves open."""
    return not isinstance(count, int) or count >= least


def _pick(ordered, k):
    info = jnp.iinfo(ordered.dtype)
    value = ordered[jnp.clip(k - 1, 0, ordered.size - 1)]
    return jnp.where(k < 1, info.min, jnp.where(k > ordered.size, info.max, value))


def _by_bytes(x, k):
    if k.shape[1] == 1:
        return _bytes.row_keys(x, k[:, 0])[:, None]
    return lax.map(lambda rank: _bytes.row_keys(x, rank), k.T).T


def _by_bits(x, k):
    def find(keys, rank):
        falls_short = lambda key: _count_below(keys, key) < rank  # noqa: E731
        return bisect_keys(falls_short, keys.dtype)

    return jax.vmap(jax.vmap(find, (None, 0)))(to_keys(x), k)


def _count_below(keys, key):
    if is_many(keys.size, 2**24):
        return jnp.sum(keys < key)
    # As exact as a sum of integers, and faster: float32 counts to 2^24.
    return jnp.sum((keys < key).astype(jnp.float32)).astype(int)
