"""Weighted order statistics of rows: whatever is mapped over becomes rows, or targets.

Few numbers settle a bit of the answer with each sum, as accelerators do with all; many
are summed in bytes. For many targets of one row it is sorted. The sums are of the
integers that `Masses` makes of weights, so that all ways give the same keys.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp._numbers import varying_like
from jaxcp.quantiles import _bytes
from jaxcp.quantiles._keys import bisect_keys, to_keys
from jaxcp.quantiles._masses import in_words, masses_of, scales_of, weighted_key
from jaxcp.quantiles._rows import as_rows, is_few, to_all

_WIDTH, _DEEP = 32, 31  # numbers side by side in a sum, and on top of one another
# From so many targets of one row on, of few numbers and of many, one sort is faster.
_SORT_FEW, _SORT_MANY = 16, 64


@custom_vmap
def weighted_keys(x: Array, weights: Array, targets: Array) -> Array:
    """Returns `weighted_key` of x and weights (n,) at targets (a,), shape (a,)."""
    return _keys_of_row(x, weights, targets, x.size)


@weighted_keys.def_vmap
def _weighted_keys_of_rows(size, batched, x, weights, targets):
    if not any(batched[:2]):  # more targets of one array
        return weighted_keys(x, weights, targets.ravel()).reshape(targets.shape), True
    if not _bytes.is_local():  # a reshape might gather rows that are spread
        numbers, axes = size * x.shape[-1], [0 if has else None for has in batched]
        each = lambda x, w, t: _keys_of_row(x, w, t, numbers)  # noqa: E731
        return jax.vmap(each, axes)(x, weights, targets), True
    pairs = zip((x, weights), batched[:2], strict=True)
    x, weights = (v if has else v[None] for v, has in pairs)
    return _select_rows(x, weights, to_all(targets, batched[2], size)), True


@custom_vmap
def _select_rows(x, weights, targets):
    """Returns keys (b, a) of x and weights (b, n) at targets (b, a).

    A single row of x, or of weights, is that of all.
    """
    return _keys_of_rows(x, weights, targets, targets.shape[0] * x.shape[1])


@_select_rows.def_vmap
def _select_rows_of_rows(size, batched, x, weights, targets):
    if not any(batched[:2]):  # (size, b, a)
        each = targets.swapaxes(0, 1)
        b, _, a = each.shape
        found = _select_rows(x, weights, each.reshape(b, size * a))
        return found.reshape(each.shape).swapaxes(0, 1), True
    targets = to_all(targets, batched[2], size)
    pairs = zip((x, weights), batched[:2], strict=True)
    x, weights = (_flat(v, has, size, targets.shape[1]) for v, has in pairs)
    found = _select_rows(x, weights, as_rows(targets))
    return found.reshape(targets.shape), True


def _flat(values, batched, size, rows):
    """Returns rows of all maps, or the one row of all."""
    if not batched and values.shape[0] == 1:
        return values
    n = values.shape[-1]
    values = to_all(values, batched, size)
    return as_rows(jnp.broadcast_to(values, (size, rows, n)))


def _keys_of_row(x, weights, targets, numbers):
    return _keys_of_rows(x[None], weights[None], targets[None], numbers)[0]


def _keys_of_rows(x, weights, targets, numbers):
    """Returns keys of rows, which are all of so many `numbers` or some of them."""
    arrays = x, weights, varying_like(targets, (x, weights))
    few = is_few(numbers)
    if targets.shape[1] >= (_SORT_FEW if few else _SORT_MANY):
        return _by_sort(*arrays)
    if few:
        return _by_bits(*arrays)
    return lax.platform_dependent(*arrays, cpu=_by_bytes, default=_by_bits)


def _by_sort(x, weights, targets):
    return _map_rows(_search, to_keys(x), weights, targets)


def _search(keys, weights, targets):
    """Returns `weighted_key` at targets (a,), found among sums in the order of keys."""
    masses, info, n = masses_of(weights), jnp.iinfo(keys.dtype), keys.size
    ordered, *words = lax.sort((keys, masses.leading, masses.following), num_keys=1)
    sums = [
        jnp.append(jnp.zeros(1, v.dtype), jnp.cumsum(v, dtype=v.dtype)) for v in words
    ]

    def falls_short(place):  # what is before it, of as many as there are
        before = (v[jnp.minimum(place, n + 1) - 1] for v in sums)
        return (place <= n + 1) & masses.are_less(*before, targets)

    bits = (n + 1).bit_length()
    place = bisect_keys(falls_short, jnp.int32, bits=bits, shape=targets.shape)
    low, high = (jnp.full(1, v, keys.dtype) for v in (info.min, info.max))
    return jnp.concatenate([low, ordered, high])[place]


def _by_bits(x, weights, targets):
    find = jax.vmap(weighted_key, (None, None, 0))
    return _map_rows(find, to_keys(x), weights, targets)


def _by_bytes(x, weights, targets):
    n = x.shape[1]
    if not _bytes.is_local():  # neither groups nor blocks: the devices keep their rows
        return _map_rows(_one_row, x, weights, targets)
    rows, lanes = (_short_rows, _WIDTH) if n < _bytes.SHORT else (_long_rows, 1)
    return _bytes.in_blocks(rows, lanes, x, weights, targets)


def _map_rows(function, x, weights, targets):
    """Returns the function of each row, where a single one is that of all."""
    b = targets.shape[0]
    axes = tuple(0 if v.shape[0] == b else None for v in (x, weights))
    x, weights = (v if v.shape[0] == b else v[0] for v in (x, weights))
    return jax.vmap(function, (*axes, 0))(x, weights, targets)


def _one_row(x, weights, targets):
    return _long_rows(x[None], weights[None], targets[None])[0]


def _long_rows(x, weights, targets):
    """Returns keys of rows that each lie in parts of at most 31 x 32 numbers."""
    n = x.shape[1]
    parts = -(-n // (_DEEP * _WIDTH))
    deep = -(-n // (parts * _WIDTH))
    pad = (0, 0), (0, parts * deep * _WIDTH - n)

    def rows(values):
        return jnp.pad(values, pad).reshape(-1, parts, deep, _WIDTH)

    def each(values):
        return values.reshape(-1, 1, 1, 1)

    def total(sums):
        return jnp.sum(sums, axis=(1, 3), dtype=sums.dtype, keepdims=True)

    return _settle(x, weights, targets, rows, each, total)


def _short_rows(x, weights, targets):
    """Returns keys of rows of fewer than `SHORT` numbers, which lie side by side."""
    b, n = len(targets), x.shape[1]
    lanes = min(_WIDTH, b)
    missing = -b % lanes  # some rows are in two groups
    parts = n // _DEEP + 1
    deep = n // parts + 1
    # Padded at least by one, or XLA transposes anew in each round.
    pad = (0, 0), (0, parts * deep - n), (0, 0)

    def side_by_side(values):
        if len(values) < b:
            return values[:, :, None]
        values = jnp.concatenate([values, values[:missing]]) if missing else values
        return values.reshape(-1, lanes, values.shape[1]).swapaxes(1, 2)

    def rows(values):
        values = jnp.pad(side_by_side(values), pad)
        return values.reshape(len(values), parts, deep, -1)

    def each(values):
        return side_by_side(values[:, None])[:, None]

    def total(sums):
        return sum(sums[:, i : i + 1] for i in range(parts))

    return _settle(x, weights, targets, rows, each, total)[:b]


def _settle(x, weights, targets, rows, each, total):
    """Returns keys (b, a) of arrays that `rows` and `each` spread over four axes."""
    unit, exponent = map(each, jax.vmap(scales_of)(weights))
    weights = lax.optimization_barrier(rows(weights))
    masses = in_words(weights, unit, exponent, x.shape[1])
    integer = jnp.dtype(f"int{8 * weights.dtype.itemsize}")
    # As many following words as are summed at once, each at most 2^(bits - 1).
    narrow = jnp.int16 if _DEEP * 2**masses.bits < 2**16 else integer
    words = masses.leading.astype(integer), masses.following.astype(narrow)
    x, *words = lax.optimization_barrier((rows(x), *words))

    def add_up(values):
        sums = jnp.sum(values, axis=2, dtype=values.dtype, keepdims=True)
        # Or XLA makes one sum of it all, which does not fuse with what is before it.
        return total(lax.optimization_barrier(sums).astype(integer))

    def find(target):
        target = each(target)

        def falls_short(codes, byte):
            counted = codes < byte
            leading, following = (add_up(jnp.where(counted, v, 0)) for v in words)
            return masses.are_less(leading, following, target)

        return _bytes.bisect_bytes(lambda: to_keys(x), falls_short, target).ravel()

    if targets.shape[1] == 1:
        return find(targets[:, 0])[:, None]
    return lax.map(find, targets.T).T
