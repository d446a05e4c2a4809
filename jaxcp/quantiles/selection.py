"""The one kernel: the smallest value at which a monotone mass reaches a target.

Floats are mapped to integers of the same order and the answer is built from its highest
bit down: a bit is set while the mass below the candidate falls short of the target. No
sort, no copy beyond the integers, ties and infinities kept, and the mass can be
anything monotone: a count, a masked count, a sum of weights, a sum over shards.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, at_least_single, rounded_up, varying_like
from jaxcp.quantiles._masses import masses_of
from jaxcp.typing import ArrayLike, AxisName, Number

# From this many ranks of one array on, one sort of its integers beats as many
# bisections (`python -m experiments.kernel_speed` prints the crossover).
_SORT_LEVELS = 8
# Bits settled by one histogram of sharded scores: wide, for a sum over processes takes
# as long for 65536 numbers as for one.
_DIGIT = 16


def kth_smallest(
    x: ArrayLike,
    k: ArrayLike,
    *,
    where: ArrayLike | None = None,
    axis_name: AxisName = None,
    nearest: int = 1,
) -> Array:
    """Returns the k-th smallest value of `x`, exactly.

    min{v : #{i : x_i <= v} >= k}, -inf for k < 1 and +inf for k > n. Batch with
    `jax.vmap`; `k` may be traced, so that one compilation serves every rank.

    Args:
      x: Values, shape (n,): any float or integer type. NaN counts as +inf.
      k: Rank, counted from 1, int of shape () or (a,) for several ranks of one array.
      where: True where an entry counts, shape (n,). Defaults to all.
      axis_name: Mapped axis over which `x` is sharded. The result is the order
        statistic of all shards together, the same on each.
      nearest: The tangent is the mean tangent of this many values nearest to the
        result (1: those equal to it). The value itself does not depend on it.

    Returns:
      Order statistics, the shape of `k`, the dtype of `x` (integers become floats).

    Raises:
      ValueError: if `x` is not of shape (n,), `where` has another shape, `k` is not an
        integer or `nearest` is not positive.

    Example:
      >>> kth_smallest(jnp.array([3.0, 1.0, 2.0]), 2)
      Array(2., dtype=float32)
    """
    x, k, where = as_arrays(x=x, k=k, where=where)
    _check_vector(x, "where", where)
    if not jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.kind not in "iub":
        raise ValueError(f"expected x of real numbers, got {x.dtype}")
    if not jnp.issubdtype(k.dtype, jnp.integer) or k.ndim > 1:
        kind = f"{k.dtype}{k.shape}"
        raise ValueError(f"expected an integer k of shape () or (a,), got {kind}")
    if nearest < 1:
        raise ValueError(f"expected nearest >= 1, got {nearest}")
    where = None if where is None else where.astype(bool)
    return _kth_smallest(x, k.astype(int), where, axis_name, nearest)


def weighted_select(
    x: ArrayLike, weights: ArrayLike, target: Number, *, axis_name: AxisName = None
) -> Array:
    """Returns the smallest value of `x` at which the weight up to it reaches `target`.

    min{v : sum_i w_i 1(x_i <= v) >= target}, -inf for target <= 0 and +inf where all
    the weight together falls short. The tangent is the weighted mean tangent of the
    values equal to the result.

    Args:
      x: Values, shape (n,), floats. NaN counts as +inf.
      weights: Weight of each value, shape (n,). Weights below 0 and NaN count as 0.
      target: Mass to reach, shape (), in units of the weights.
      axis_name: Mapped axis over which `x` and `weights` are sharded.

    Returns:
      The weighted order statistic, shape (), dtype of `x` (integers become floats).

    Raises:
      ValueError: if `x` and `weights` are not of one shape (n,).

    Example:
      >>> weighted_select(jnp.array([3.0, 1.0, 2.0]), jnp.array([0.2, 0.5, 0.3]), 0.6)
      Array(2., dtype=float32)
    """
    x, weights, target = as_arrays(x=x, weights=weights, target=target)
    x, weights = as_float(x), as_float(weights)
    _check_vector(x, "weights", weights)
    if jnp.ndim(target):
        raise ValueError(f"expected target of shape (), got {jnp.shape(target)}")
    return _weighted_select(x, weights, target, axis_name)


def bisect_keys(
    falls_short: Callable[[Array], Array], dtype: DTypeLike, *, bits: int | None = None
) -> Array:
    """Returns the largest key at which `falls_short` holds; it holds up to some key.

    `bits` restricts the search to keys in 0, ..., 2^bits - 1.
    """
    start, bits = (0, bits) if bits else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).bits)

    def settle_bit(i, key):
        # Adding the highest bit to the lowest key wraps around to 0, as it should.
        candidate = key + lax.shift_left(
            jnp.ones((), dtype), jnp.asarray(bits - 1 - i, dtype)
        )
        return jnp.where(falls_short(candidate), candidate, key)

    start = jnp.full((), start, dtype)
    start = varying_like(start, falls_short(start))
    return lax.fori_loop(0, bits, settle_bit, start)


def bisect_floats(falls_short: Callable[[Array], Array], dtype: DTypeLike) -> Array:
    """Returns `bisect_keys` for a function of floats of type `dtype`, as a float."""
    at_key = lambda key: falls_short(from_keys(key, dtype))  # noqa: E731
    return from_keys(bisect_keys(at_key, _key_type(dtype)[0]), dtype)


def to_keys(x: Array) -> Array:
    """Returns integers ordered like `x`: NaN counts as +inf, -0.0 as 0.0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _integer_keys(x)
    key, infinity = _key_type(x.dtype)
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
    key, infinity = _key_type(dtype)
    keys = jnp.clip(keys, -infinity, infinity)
    bits = jnp.where(keys < 0, jnp.iinfo(key).min - keys, keys)
    return lax.bitcast_convert_type(bits, dtype)


def _check_vector(x, name, mass):
    if x.ndim != 1:
        raise ValueError(f"expected x of shape (n,), got {x.shape}; batch with vmap")
    if mass is not None and mass.shape != x.shape:
        raise ValueError(f"expected {name} of shape {x.shape}, got {mass.shape}")


@partial(jax.jit, static_argnames=("axis_name", "nearest"))
def _kth_smallest(x, k, where, axis_name, nearest):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _select(x, where, k, axis_name, nearest)
    # Integers have no infinite keys, so compare the rank with the count.
    count = lax.psum(x.size if where is None else jnp.sum(where), axis_name or ())
    value = rounded_up(from_keys(_find(to_keys(x), where, k, axis_name), x.dtype))
    return jnp.where(k < 1, -jnp.inf, jnp.where(k > count, jnp.inf, value))


@partial(jax.jit, static_argnames="axis_name")
def _weighted_select(x, weights, target, axis_name):
    weights = at_least_single(jnp.where(weights > 0, weights, 0))
    return _select(x, weights, jnp.asarray(target, weights.dtype), axis_name, 1)


@partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _select(x, mass, target, axis_name, nearest):
    del nearest  # only the tangent depends on it
    return from_keys(_find(to_keys(x), mass, target, axis_name), x.dtype)


@_select.defjvp
def _select_jvp(axis_name, nearest, primals, tangents):
    value = _select(*primals, axis_name, nearest)
    x, mass, _ = primals
    mean = partial(_mean_tangent, x, mass, tangents[0], axis_name, nearest)
    return value, mean(value) if value.ndim == 0 else jax.vmap(mean)(value)


def _mean_tangent(x, mass, dx, axis_name, nearest, value):
    """Returns the mean of `dx` over the `nearest` finite values around `value`."""
    x, value = lax.stop_gradient((x, value))
    counts = jnp.isfinite(x) & jnp.isfinite(value)
    counts = counts if mass is None else counts & (mass > 0)
    distance = jnp.where(counts, jnp.abs(x - value), jnp.inf)
    rank = jnp.asarray(nearest)
    radius = 0 if nearest == 1 else _select(distance, None, rank, axis_name, 1)
    counts &= distance <= radius
    weights = counts if mass is None else jnp.where(counts, mass, 0)
    weights = weights.astype(at_least_single(x).dtype)
    sums = jnp.sum(weights), jnp.sum(weights * jnp.where(counts, dx, 0))
    total, moment = lax.psum(sums, axis_name or ())
    return (moment / jnp.where(total > 0, total, 1)).astype(x.dtype)


def _find(keys, mass, target, axis_name):
    """Returns the first key whose mass reaches `target`, the highest if none does."""
    if mass is not None and mass.dtype == bool:
        keys, mass = jnp.where(mass, keys, jnp.iinfo(keys.dtype).max), None
    if axis_name is not None and mass is None:
        find = partial(_find_by_digits, keys, axis_name=axis_name)
    elif mass is None and target.size >= _SORT_LEVELS and keys.size > 0:
        find = partial(_pick, lax.sort(keys))
    else:
        find = partial(_find_by_bits, keys, mass, axis_name)
    return find(target) if target.ndim == 0 else jax.vmap(find)(target)


def _find_by_bits(keys, mass, axis_name, target):
    masses = None if mass is None else masses_of(mass, axis_name)

    def falls_short(key):
        if masses is None:
            return _count_below(keys, key) < target
        return masses.falls_short(keys < key, target, axis_name)

    return bisect_keys(falls_short, keys.dtype)


def _count_below(keys, key):
    if keys.size >= 2**24:
        return jnp.sum(keys < key)
    # As exact as a sum of integers, and faster: float32 counts to 2^24.
    return jnp.sum((keys < key).astype(jnp.float32)).astype(int)


def _find_by_digits(keys, target, *, axis_name):
    """Settles a digit of the key with each histogram, which is summed over shards."""
    lowest, bits = jnp.iinfo(keys.dtype).min, jnp.iinfo(keys.dtype).bits
    width = min(bits, _DIGIT)
    codes = lax.bitcast_convert_type(keys ^ lowest, jnp.dtype(f"uint{bits}"))
    found, below = jnp.zeros((), codes.dtype), jnp.zeros((), int)
    active = jnp.ones(keys.shape, bool)
    for shift in range(bits - width, -1, -width):
        digits = ((codes >> shift) & (2**width - 1)).astype(int)
        histogram = jnp.zeros(2**width, int).at[digits]
        histogram = lax.psum(histogram.add(active.astype(int)), axis_name)
        up_to = below + jnp.cumsum(histogram)
        digit = jnp.minimum(jnp.sum(up_to < target), 2**width - 1)
        below = jnp.where(digit > 0, up_to[digit - 1], below)
        active &= digits == digit
        found = (found << width) | digit.astype(codes.dtype)
    return lax.bitcast_convert_type(found, keys.dtype) ^ lowest


def _pick(ordered, k):
    info = jnp.iinfo(ordered.dtype)
    value = ordered[jnp.clip(k - 1, 0, ordered.size - 1)]
    return jnp.where(k < 1, info.min, jnp.where(k > ordered.size, info.max, value))


def _key_type(dtype):
    """Returns the integer type as wide as `dtype` and the key of +inf in it."""
    key = np.dtype(f"int{8 * jnp.dtype(dtype).itemsize}")
    return key, np.array(np.inf, dtype).view(key)


def _integer_keys(x):
    x = x.astype(jnp.int8) if x.dtype == bool else x
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return x
    signed = jnp.dtype(f"int{jnp.iinfo(x.dtype).bits}")
    return lax.bitcast_convert_type(x, signed) ^ jnp.iinfo(signed).min


def _from_integer_keys(keys, dtype):
    if not jnp.issubdtype(dtype, jnp.unsignedinteger):
        return keys
    return lax.bitcast_convert_type(keys ^ jnp.iinfo(keys.dtype).min, dtype)
