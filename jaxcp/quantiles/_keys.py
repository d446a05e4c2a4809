"""Integers of the same order as numbers, and bisection over them.

Floats are mapped to integers bit by bit, and an answer is built from its highest bit
down: a bit is set while what is below the candidate falls short.

Order statistics in rounds of eight bits, counted in bytes: quick on processors.

A round maps 256 buckets of keys to bytes and bisects on these; the next one looks into
the bucket that was found. What is below it counts as its first byte and what is above
as its last, so that counts are of all keys. Keys are computed anew in each round, not
kept. On CPUs XLA fuses a sum with the comparison before it only if it adds up few
numbers: here at most 31, in bytes, then as many of these sums in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp._numbers import as_float, varying_like


def bisect_keys(falls_short, dtype, *, bits=None, shape=()):
    """Returns the largest key at which `falls_short` holds; it holds up to some key.

    `bits` restricts the search to keys in 0, ..., 2^bits - 1. Of a `shape`, each key is
    found for itself.
    """
    start, bits = (0, bits) if bits else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).bits)

    def settle_bit(i, key):
        # Adding the highest bit to the lowest key wraps around to 0, as it should.
        candidate = key + lax.shift_left(
            jnp.ones((), dtype), jnp.asarray(bits - 1 - i, dtype)
        )
        return jnp.where(falls_short(candidate), candidate, key)

    start = jnp.full(shape, start, dtype)
    if not jax.sharding.get_abstract_mesh().empty:  # within shard_map
        start = varying_like(start, falls_short(start))
    return lax.fori_loop(0, bits, settle_bit, start)


def bisect_floats(falls_short, dtype, shape=()):
    """Returns `bisect_keys` for a function of floats of type `dtype`, as floats."""
    at_key = lambda key: falls_short(from_keys(key, dtype))  # noqa: E731
    return from_keys(bisect_keys(at_key, key_type(dtype), shape=shape), dtype)


def first_float(fits, dtype, shape=()):
    """Returns the first float that fits, as all later ones do, or +inf.

    -inf if that fits. Numbers below 0 that are smaller than the least normal one count
    as 0, as they do in the arithmetic of many devices.
    """
    infinity = _infinity(dtype)
    exceeds = lambda key: (key < infinity) & ~fits(from_keys(key, dtype))  # noqa: E731
    found = bisect_keys(exceeds, key_type(dtype), shape=shape) + 1
    least = np.array(jnp.finfo(dtype).tiny, dtype).view(key_type(dtype))
    return from_keys(jnp.where((found < 0) & (found > -least), 0, found), dtype)


def num_passed(
    passed: Callable[[Array], Array], num_places: int, shape: tuple[int, ...]
) -> Array:
    """Returns how many of the places of a run are passed: the first ones, up to some.

    For each number of a `shape`, by steps of halving lengths: `jnp.searchsorted` takes
    longer, to compile and to run.
    """

    def move(place, step):
        after = place + step
        far = (after <= num_places) & passed(jnp.minimum(after, num_places) - 1)
        return jnp.where(far, after, place), None

    steps = 2 ** np.arange(num_places.bit_length())[::-1]
    start = jnp.zeros(shape, int)
    start = varying_like(start, passed(start))
    return lax.scan(move, start, jnp.asarray(steps, start.dtype))[0]


def num_below(keys: Array, test_keys: Array) -> Array:
    """Returns how many sorted keys (n,) are below each test key, of any shape."""
    if isinstance(n := keys.size, int) and n:
        return num_passed(lambda at: keys[at] < test_keys, n, test_keys.shape)
    columns = keys.reshape(-1, *(1 for _ in test_keys.shape))  # an export leaves n open
    return jnp.sum(columns < test_keys[None], axis=0)


def to_keys(x: Array) -> Array:
    """Returns integers ordered like `x`: NaN counts as +inf, -0.0 as 0.0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _integer_keys(x)
    # XLA folds the bitcast of a constant wrongly if its axes are permuted. A choice
    # that it cannot foresee hides constants from it, and costs nothing.
    never = lax.optimization_barrier(jnp.zeros((), bool))
    bits = lax.bitcast_convert_type(jnp.where(never, 0, x), key_type(x.dtype))
    return in_order(bits, x.dtype)


def in_order(bits, dtype, xp=jnp):
    """Returns `to_keys` of floats by their bits, signed integers of numpy or jax."""
    info, infinity = np.iinfo(bits.dtype), _infinity(dtype)
    keys = xp.where(bits < 0, info.min - bits, bits)  # sign and magnitude, negated
    return xp.where((bits & info.max) > infinity, infinity, keys)


def common_keys(x: Array, other: Array) -> tuple[Array, Array]:
    """Returns the keys of both as floats of one type, to compare them."""
    x, other = as_float(x), as_float(other)
    dtype = jnp.promote_types(x.dtype, other.dtype)
    return to_keys(x.astype(dtype)), to_keys(other.astype(dtype))


def from_keys(keys: Array, dtype: DTypeLike) -> Array:
    """Returns the values of type `dtype` with these keys, infinite beyond infinity."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return _from_integer_keys(keys, dtype)
    key, infinity = key_type(dtype), _infinity(dtype)
    keys = jnp.clip(keys, -infinity, infinity)
    bits = jnp.where(keys < 0, jnp.iinfo(key).min - keys, keys)
    return lax.bitcast_convert_type(bits, dtype)


def key_type(dtype: DTypeLike) -> np.dtype:
    """Returns the signed integer type of the keys of numbers of type `dtype`."""
    return np.dtype(f"int{8 * jnp.dtype(dtype).itemsize}")


def _infinity(dtype):
    return np.array(np.inf, dtype).view(key_type(dtype))


def _integer_keys(x):
    x = x.astype(jnp.int8) if x.dtype == bool else x
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return x
    signed = key_type(x.dtype)
    return lax.bitcast_convert_type(x, signed) ^ jnp.iinfo(signed).min


def _from_integer_keys(keys, dtype):
    if not jnp.issubdtype(dtype, jnp.unsignedinteger):
        return keys
    return lax.bitcast_convert_type(keys ^ jnp.iinfo(keys.dtype).min, dtype)


SHORT = 128  # rows of fewer numbers lie side by side
_LANES, _FEW = 512, 26  # of them, and numbers on top of one another
_WIDTH, _DEEP = 32, 31  # numbers side by side in a sum, and on top of one another
_BLOCK = 2**20  # numbers at once: their bytes stay in the cache
_ROLLED = 2**18  # numbers up to which the rounds are a loop


def row_keys(x: Array, k: Array) -> Array:
    """Returns the key of the k-th smallest of each row, of x (b, n) and k (b,).

    The lowest for k < 1 and the highest for k > n.
    """
    n = x.shape[1]
    if not is_local():  # neither groups nor blocks: the devices keep their rows
        return _long_rows(x, k)
    rows, lanes = (_short_rows, _LANES) if n < SHORT else (_long_rows, 1)
    return in_blocks(rows, lanes, x, k)


def is_local() -> bool:
    """Returns whether no array of the program that is traced is spread over devices."""
    mesh = jax.sharding.get_abstract_mesh()  # of shard_map, if within one
    return jax.device_count() == 1 or (not mesh.empty and mesh.are_all_axes_manual)


def in_blocks(rows, lanes, x, *others):
    """Returns `rows` of whole lanes of rows at a time: their bytes stay in the cache.

    Keys of x, in the shape of the last array; a single row is that of all.
    """
    like = others[-1]
    b, n = len(like), x.shape[1]
    size = -(-max(1, _BLOCK // n) // lanes) * lanes  # rows of a block
    if b < 2 * size:
        return rows(x, *others)

    def settle_block(i, found):
        start = jnp.minimum(i * size, b - size)  # the last one overlaps
        block = (
            lax.dynamic_slice_in_dim(v, start, size) if len(v) == b else v
            for v in (x, *others)
        )
        return lax.dynamic_update_slice_in_dim(found, rows(*block), start, 0)

    start = varying_like(jnp.zeros(like.shape, key_type(x.dtype)), (x, others))
    return lax.fori_loop(0, -(-b // size), settle_block, start)


def _long_rows(x, k):
    def one_row(x, k, numbers=x.size):
        falls_short = lambda codes, byte: _count_below(codes, byte) < k  # noqa: E731
        return bisect_bytes(lambda: to_keys(x), falls_short, k, numbers)

    return jax.vmap(one_row)(x, k)


def _short_rows(x, k):
    """Returns keys of rows of fewer than `SHORT` numbers, which lie side by side."""
    b, n = x.shape
    lanes = min(_LANES, b)
    groups = -(-b // lanes)
    missing = groups * lanes - b
    if missing:  # some rows are in two groups
        x, k = (jnp.concatenate([v, v[:missing]]) for v in (x, k))
    parts = n // _FEW + 1
    deep = n // parts + 1
    # Padded at least by one, or XLA transposes anew in each round.
    pad = (0, 0), (0, parts * deep - n), (0, 0)
    keys = to_keys(x).reshape(groups, lanes, n).swapaxes(1, 2)
    keys = jnp.pad(keys, pad, constant_values=jnp.iinfo(keys.dtype).max)
    keys = keys.reshape(groups, parts, deep, lanes)
    k = k.reshape(groups, 1, 1, lanes)

    def falls_short(codes, byte):
        flags = (codes < byte).astype(jnp.int8)
        sums = jnp.sum(flags, axis=2, dtype=jnp.int8, keepdims=True)
        return sum(sums[:, i : i + 1].astype(int) for i in range(parts)) < k

    return bisect_bytes(lambda: keys, falls_short, k, keys.size).ravel()[:b]


def bisect_bytes(keys_of, falls_short, like, numbers):
    """Returns the largest key at which `falls_short` holds; it holds up to some key.

    Args:
      keys_of: Computes the keys, signed integers.
      falls_short: Of their codes, int8, and a code: whether what is below that one
        falls short.
      like: An array of the shape of the result, which broadcasts with that of the keys.
      numbers: How many keys there are, those of mapped rows together.
    """
    keys = keys_of()
    bits, lowest = jnp.iinfo(keys.dtype).bits, jnp.iinfo(keys.dtype).min

    def settle_byte(shift, found):
        codes = lax.optimization_barrier(_to_bytes(keys_of(), found, shift))

        def settle_bit(i, byte):
            candidate = (byte.astype(jnp.int32) + (128 >> i)).astype(jnp.int8)
            return jnp.where(falls_short(codes, candidate), candidate, byte)

        byte = varying_like(jnp.full(like.shape, -128, jnp.int8), (codes, like))
        byte = lax.fori_loop(0, 8, settle_bit, byte)
        return found + ((byte.astype(keys.dtype) + 128) << shift)

    found = varying_like(jnp.full(like.shape, lowest, keys.dtype), (like, keys))
    # A fourth of the program, and as fast; an export may leave the number open.
    if isinstance(numbers, int) and numbers <= _ROLLED:
        shifts = jnp.arange(bits - 8, -1, -8, keys.dtype)
        at_round = lambda i, found: settle_byte(shifts[i], found)  # noqa: E731
        return lax.fori_loop(0, len(shifts), at_round, found)
    for shift in range(bits - 8, -1, -8):
        found = settle_byte(shift, found)
    return found


def _to_bytes(keys, found, shift):
    """Returns codes -128, ..., 127 of buckets of 2^shift keys, from `found` on."""
    if isinstance(shift, int) and shift == jnp.iinfo(keys.dtype).bits - 8:
        return (keys >> shift).astype(jnp.int8)
    # In signed integers: a loop with unsigned ones takes ten times as long.
    first = found >> shift
    near = jnp.clip(keys >> shift, first, first + 255)
    return (near - (first + 128)).astype(jnp.int8)


def _count_below(codes, byte):
    """Returns the number of `codes`, int8 (n,), below a byte."""
    n, total = codes.size, jnp.zeros((), int)
    deep = min(n // _WIDTH, _DEEP)
    many = n // (deep * _WIDTH) if deep else 0
    whole = many * deep * _WIDTH
    if whole:
        flags = (codes[:whole].reshape(many, deep, _WIDTH) < byte).astype(jnp.int8)
        total += _total(jnp.sum(flags, axis=1, dtype=jnp.int8))
    if whole < n:  # fewer than 31 x 32
        rest = (codes[whole:] < byte).astype(jnp.int16)
        total += jnp.sum(rest, dtype=jnp.int16).astype(int)
    return total


def _total(sums):
    """Returns the total of sums of at most 31 each, int8 (many, width)."""
    total, fewer = jnp.zeros((), int), len(sums) // _DEEP
    if fewer > 1:
        first, sums = sums[: fewer * _DEEP], sums[fewer * _DEEP :]
        first = first.reshape(fewer, _DEEP, _WIDTH).astype(jnp.int16)
        total += jnp.sum(jnp.sum(first, axis=1, dtype=jnp.int16).astype(int))
    word = jnp.int16 if sums.size * _DEEP < 2**15 else int
    return total + jnp.sum(sums.astype(word), dtype=word).astype(int)
