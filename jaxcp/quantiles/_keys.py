"""Integers of the same order as numbers, and bisection over them.

Floats are mapped to integers bit by bit, and an answer is built from its highest bit
down: a bit is set while what is below the candidate falls short.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp._numbers import as_float, varying_like


def bisect_keys(
    falls_short: Callable[[Array], Array],
    dtype: DTypeLike,
    *,
    bits: int | None = None,
    shape: tuple[int, ...] = (),
) -> Array:
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


def bisect_floats(falls_short: Callable[[Array], Array], dtype: DTypeLike) -> Array:
    """Returns `bisect_keys` for a function of floats of type `dtype`, as a float."""
    at_key = lambda key: falls_short(from_keys(key, dtype))  # noqa: E731
    return from_keys(bisect_keys(at_key, key_type(dtype)), dtype)


def first_float(
    fits: Callable[[Array], Array], dtype: DTypeLike, shape: tuple[int, ...] = ()
) -> Array:
    """Returns the first float that fits, as all later ones do, or +inf.

    -inf if that fits. Numbers below 0 that are smaller than the least normal one count
    as 0, as they do in the arithmetic of many devices.
    """
    infinity = _infinity(dtype)
    exceeds = lambda key: (key < infinity) & ~fits(from_keys(key, dtype))  # noqa: E731
    found = bisect_keys(exceeds, key_type(dtype), shape=shape) + 1
    least = np.array(np.finfo(dtype).tiny, dtype).view(key_type(dtype))
    return from_keys(jnp.where((found < 0) & (found > -least), 0, found), dtype)


def to_keys(x: Array) -> Array:
    """Returns integers ordered like `x`: NaN counts as +inf, -0.0 as 0.0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _integer_keys(x)
    key, infinity = key_type(x.dtype), _infinity(x.dtype)
    lowest, highest = jnp.iinfo(key).min, jnp.iinfo(key).max
    # XLA folds the bitcast of a constant wrongly if its axes are permuted. A choice
    # that it cannot foresee hides constants from it, and costs nothing.
    never = lax.optimization_barrier(jnp.zeros((), bool))
    bits = lax.bitcast_convert_type(jnp.where(never, 0, x), key)
    keys = jnp.where(bits < 0, lowest - bits, bits)  # sign and magnitude, negated
    return jnp.where((bits & highest) > infinity, infinity, keys)


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
