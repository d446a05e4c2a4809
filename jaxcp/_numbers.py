"""Arithmetic that rounds once, as on paper, and steps with finite gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp.typing import AxisName, Number, PyTree


def as_float(x: Number) -> Array:
    """Returns `x` as an array of floats: integers become the default float."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def at_least_single(x: Array) -> Array:
    """Returns floats to sum in: single precision, or the type of `x` if it is wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def quotient(numerator: Number, divisor: Number) -> Array:
    """Returns numerator / divisor as the nearest float, also under jit.

    XLA divides many numbers by one, or one by a constant, as a product with a rounded
    inverse: 10 / 1000 would not be 0.01, nor 41 / 41 be 1. A choice that it cannot
    foresee gives each number a divisor of its own.
    """
    numerator = as_float(numerator)
    return numerator / jnp.where(numerator == numerator, divisor, numerator)


def mean(values: Array, count: Array | None = None) -> Array:
    """Returns the mean over the first axis, in the dtype of floats; NaN for no rows.

    Of the first `count` rows, if it is given.
    """
    values = as_float(values)
    total = jnp.sum(kept(at_least_single(values), count), axis=0)  # halves overflow
    total = quotient(total, len(values) if count is None else count)
    return total.astype(values.dtype)


def counting(size: int, count: Array | None) -> Array | None:
    """Returns which of `size` rows are among the first `count`; None if all are."""
    return None if count is None else jnp.arange(size) < count


def kept(values: Array, count: Array | None, instead: Number = 0) -> Array:
    """Returns values with a number instead, after the first `count` rows."""
    counts = counting(len(values), count)
    if counts is None:
        return values
    return jnp.where(counts.reshape(-1, *(1,) * (values.ndim - 1)), values, instead)


def unit_of(sizes: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Returns the power of two next to the largest finite size, without a gradient.

    In such units squares neither overflow nor vanish, and no digit changes.
    """
    sizes = jnp.where(jnp.isfinite(sizes), jnp.abs(sizes), 0)
    largest = lax.stop_gradient(jnp.max(sizes, axis=axis, initial=0))
    info = jnp.finfo(largest.dtype)
    largest = jnp.where(largest > 0, largest, 1)
    largest = jnp.clip(largest, info.tiny, 1 / info.tiny)  # so that its inverse is one
    return lax.reduce_precision(largest, info.nexp, mantissa_bits=0)


def exponent_of(values: Array) -> Array:
    """Returns e with 2^(e - 1) <= v < 2^e of normal numbers v > 0; 0 of 0 and inf.

    `jnp.frexp(values)[1]` by the bits alone: a tenth of its operations.
    """
    info = jnp.finfo(values.dtype)
    bits = lax.bitcast_convert_type(values, f"int{info.bits}")
    is_normal = (values > 0) & (values < jnp.inf)
    return jnp.where(is_normal, (bits >> info.nmant) + info.minexp, 0)


def times_power(values: Array, exponent: Array) -> Array:
    """Returns values * 2^exponent, in two steps: each a normal power of two."""
    half = exponent // 2
    return values * _power_of_two(half, values) * _power_of_two(exponent - half, values)


def _power_of_two(exponent: Array, like: Array) -> Array:
    """Returns 2^exponent, a normal number of the type of `like`, by its bits."""
    info = jnp.finfo(like.dtype)
    biased = jnp.asarray(exponent, f"int{info.bits}") + (1 - info.minexp)
    return lax.bitcast_convert_type(biased << info.nmant, like.dtype)


def add_exactly(total: tuple[Array, Array], term: Array) -> tuple[Array, Array]:
    """Returns a sum with what its rounding has added: thousands of rows cost no digit.

    Kahan, Further Remarks on Reducing Truncation Errors, 1965.
    """
    rounded, excess = total
    term = term - excess
    grown = rounded + term
    return grown, (grown - rounded) - term


def positive(value: Number, dtype: DTypeLike) -> Array:
    """Returns a width above 0 in this type, which may have rounded it to 0."""
    return jnp.maximum(jnp.asarray(value, dtype), jnp.finfo(dtype).tiny)


def rounding(values: Array) -> Array:
    """Returns how far another program may round a score differently: 4 eps of it."""
    sizes = jnp.abs(jnp.where(jnp.isfinite(values), values, 0))
    return 4 * jnp.finfo(values.dtype).eps * lax.stop_gradient(sizes)


def with_rounding(values: Array) -> Array:
    """Returns values as floats, larger by their `rounding`."""
    values = as_float(values)
    return values + rounding(values)


def just_below(x: Array) -> Array:
    """Returns the largest number below x; below 0 and +inf a normal, finite one."""
    at = lax.stop_gradient(x)
    lowest = jnp.full_like(at, -jnp.inf)
    below = jnp.where(at == 0, -jnp.finfo(at.dtype).tiny, jnp.nextafter(at, lowest))
    finite = jnp.isfinite(at)
    step = jnp.where(finite, below - jnp.where(finite, at, 0), 0)
    return jnp.where(finite, x + step, below)


def varying_like(start: PyTree, results: PyTree) -> PyTree:
    """Returns the start of a loop, varying over a mesh like all of `results`.

    Inside shard_map a carry must vary over the mesh like the result of the step.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return start
    nothing = [jnp.sum(jnp.ravel(v)[:0]) for v in jax.tree.leaves(results)]
    zero = sum(nothing, jnp.zeros((), int))  # varies, and takes no value of theirs
    return jax.tree.map(lambda v: v + zero.astype(v.dtype), start)


def over_shards(combine: Callable, values: PyTree, axis_name: AxisName) -> PyTree:
    """Returns `values` of all shards, as `lax.psum` combines them, if there are any."""
    return values if axis_name is None else combine(values, axis_name)


def rounded_up(integers: Any, dtype: DTypeLike | None = None) -> Any:
    """Returns integers, of numpy or jax, as floats that are not smaller."""
    xp: Any = jnp if isinstance(integers, Array) else np
    values = integers.astype(dtype or jax.dtypes.canonicalize_dtype(float))
    dtype = integers.dtype
    if integers.dtype == bool or jnp.iinfo(dtype).bits <= jnp.finfo(values.dtype).nmant:
        return values
    # A float beyond the largest integer is larger, and does not convert back.
    beyond = values >= float(jnp.iinfo(dtype).max) + 1
    below = xp.where(beyond, 0, values).astype(dtype) < integers
    return xp.where(below & ~beyond, xp.nextafter(values, xp.inf), values)


def floats_above(x: Array) -> Array:
    """Returns `x` as floats that are not smaller, and so are thresholds among them."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else rounded_up(x)


def unless_nan(tree: PyTree, values: PyTree) -> PyTree:
    """Returns `values`, or NaN if there is one in `tree`."""
    leaves = (jnp.any(jnp.isnan(as_float(leaf))) for leaf in jax.tree.leaves(tree))
    unknown = functools.reduce(lambda a, b: a | b, leaves, jnp.zeros((), bool))
    return jax.tree.map(lambda v: jnp.where(unknown, jnp.nan, v), values)


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns abs(a - b), 0 of two NaN or two equal infinities."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return abs(np.where(same, 0, a) - np.where(same, 0, b))


_FAR = 50.0  # temperatures from which on a sigmoid is 0 or 1, as is its slope


def step(score: Array, q: Array, temperature: Number) -> Array:
    """Returns sigmoid((q - score) / temperature), the hard step where it is 0 or 1."""
    known = jnp.isfinite(score) & jnp.isfinite(q)
    gap = jnp.where(known, q, 0) - jnp.where(known, score, 0)
    near, ratio = _near(gap, known, temperature)
    hard = jnp.where(jnp.isnan(score) | jnp.isnan(q), jnp.nan, score <= q)
    return jnp.where(near, jax.nn.sigmoid(ratio).astype(gap.dtype), hard)


def length(lower: Array, upper: Array, temperature: Number) -> Array:
    """Returns the soft distance of ends, +inf or 0 where one of them is infinite."""
    known = jnp.isfinite(lower) & jnp.isfinite(upper)
    distance = jnp.where(known, upper, 0) - jnp.where(known, lower, 0)
    # Ends that are infinite and crossed hold nothing. NaN stays NaN.
    hard = jnp.where(lower <= upper, jnp.inf, jnp.where(lower > upper, 0, jnp.nan))
    return jnp.where(known, positive_part(distance, temperature), hard)


def positive_part(value: Array, temperature: Number) -> Array:
    """Returns temperature * log(1 + exp(value / temperature))."""
    near, ratio = _near(value, jnp.isfinite(value), temperature)
    # Not the softplus of value / temperature, which may overflow.
    soft = temperature * jnp.log1p(jnp.exp(-jnp.abs(ratio)))
    return jnp.maximum(value, 0) + jnp.where(near, soft, 0).astype(value.dtype)


def product(sides: Array) -> Array:
    """Returns the product of (..., d), +inf with zero gradient if one of them is."""
    known = jnp.all(jnp.isfinite(sides), axis=-1)
    hard = jnp.where(jnp.any(sides == 0, axis=-1), 0, jnp.inf)  # crossed at infinity
    hard = jnp.where(jnp.any(jnp.isnan(sides), axis=-1), jnp.nan, hard)
    finite = jnp.where(known[..., None], sides, 1)
    return jnp.where(known, jnp.prod(finite, axis=-1), hard)


def _near(value, known, temperature):
    """Returns where a value is near 0, and its ratio to the temperature there."""
    wide = at_least_single(value)
    temperature = positive(temperature, wide.dtype)
    near = known & (jnp.abs(wide) < _FAR * temperature)
    return near, jnp.where(near, wide, 0) / jnp.where(near, temperature, 1)


def apart(product: Array) -> Array:
    """Returns a finite product that is rounded before it is added.

    The bounds change nothing; between them and the sum XLA fuses nothing on CPUs. The
    law: streams of groups have the bits of each stream alone.
    """
    most = jnp.finfo(product.dtype).max
    return jnp.clip(product, -most, most)
