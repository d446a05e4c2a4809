"""Sums of weights that do not depend on their order, nor on how they are sharded.

Weights become integers of two words, a leading and a following one, whose sums are
exact. Of up to 2048 weights the words are floats, for their sums are fast: in single
precision they hold 33 bits of the total. Of more they are integers, and hold 60 -
log2(n). Padding with zeros changes the words only where it passes a power of two.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import over_shards
from jaxcp.quantiles._keys import bisect_keys
from jaxcp.typing import AxisName

_FEW = 11  # log2 of the number of weights up to which floats hold enough bits


class Masses(NamedTuple):
    """Weights w_i = 2^exponent (leading_i + following_i / 2^bits) / 2^word.

    The leading words sum to at most 2^word, and the following ones to 2^(word - 1): n
    <= 2^(word - bits) of them, each at most 2^(bits - 1).
    """

    leading: Array
    following: Array
    exponent: Array
    word: int
    bits: int

    def falls_short(self, counted: Array, target: Array, axis_name: AxisName) -> Array:
        """Returns whether the weights `counted`, bool (n,), are less than `target`."""
        words = self.leading, self.following
        leading, following = (_sum(jnp.where(counted, v, 0), axis_name) for v in words)
        return self.are_less(leading, following, target)

    def are_less(self, leading: Array, following: Array, target: Array) -> Array:
        """Returns whether sums of the words, floats or integers, are below `target`."""
        # sum w < target: leading + following / 2^bits < target 2^(word - exponent)
        target = jnp.ldexp(target, self.word - self.exponent)
        most = 1.5 * 2**self.word  # more than there is
        target = jnp.where(jnp.isnan(target), -1, jnp.clip(target, -1, most))
        whole = jnp.floor(target)
        part = jnp.ceil((target - whole) * 2**self.bits).astype(leading.dtype)
        carry = jnp.floor_divide(following - part, 2**self.bits)
        return leading - whole.astype(leading.dtype) + carry < 0


def masses_of(weights: Array, axis_name: AxisName = None) -> Masses:
    """Returns weights >= 0 of shape (n,), one shard of them, as integers.

    Infinite weights count as the largest float.
    """
    n = int(weights.size * lax.psum(1, axis_name or ()))
    return in_words(weights, *scales_of(weights, axis_name), n)


def scales_of(weights: Array, axis_name: AxisName = None) -> tuple[Array, Array]:
    """Returns powers of two: of the largest weight, and of the sum on that scale."""
    largest = jnp.max(weights, initial=0)
    largest = jnp.minimum(largest, jnp.finfo(weights.dtype).max)
    unit = jnp.frexp(over_shards(lax.pmax, largest, axis_name))[1]
    # Rounded sums of other orders have the same exponent, but near a power of two,
    # which totals often are: move those away from where it changes.
    total = _sum(_on_scale(weights, unit), axis_name)
    return unit, jnp.frexp(2**0.5 * total)[1]


def _on_scale(weights, unit):
    """Returns weights of at most 1: their sum does not overflow."""
    return times_power(jnp.minimum(weights, jnp.finfo(weights.dtype).max), -unit)


def in_words(weights: Array, unit: Array, exponent: Array, n: int) -> Masses:
    """Returns `masses_of` weights, of n a sum, that have these scales."""
    info = jnp.finfo(weights.dtype)
    log_n = max((n - 1).bit_length(), _FEW)
    few = log_n == _FEW
    word = info.nmant - 1 if few else info.bits - 2
    dtype = info.dtype if few else f"int{info.bits}"
    bits = word - log_n
    scaled = times_power(_on_scale(weights, unit), word - exponent)
    leading = jnp.round(scaled)
    following = jnp.round((scaled - leading) * 2.0**bits)
    words = leading.astype(dtype), following.astype(dtype)
    return Masses(*words, exponent + unit, word, bits)


def total_mass(weights: Array, axis_name: AxisName = None) -> Array:
    """Returns the sum of weights >= 0 of shape (n,), of all shards."""
    masses = masses_of(weights, axis_name)
    words = masses.leading, masses.following
    leading, following = (_sum(v, axis_name).astype(weights.dtype) for v in words)
    scale = masses.exponent - masses.word
    return times_power(leading, scale) + times_power(following, scale - masses.bits)


def times_power(values: Array, exponent: Array) -> Array:
    """Returns values * 2^exponent, in two steps that stay within range."""
    half, one = exponent // 2, jnp.ones((), values.dtype)
    return values * jnp.ldexp(one, half) * jnp.ldexp(one, exponent - half)


def _sum(values, axis_name):
    return over_shards(lax.psum, jnp.sum(values), axis_name)


def unit_scale(
    weights: Array, test_weight: Array, axis_name: AxisName = None
) -> tuple[Array, Array]:
    """Returns weights scaled by a power of two, exactly: the largest is about 1.

    Their sums neither overflow nor vanish. Test weights do not change the scale, so
    that many of them share the weights; those beyond all bounds come to an eighth of
    the largest float.
    """
    most, exact = jnp.finfo(weights.dtype).max, jnp.finfo(test_weight.dtype).max
    largest = over_shards(lax.pmax, jnp.max(weights, initial=0), axis_name)
    exponent = jnp.frexp(jnp.minimum(largest, most))[1]
    test_weight = times_power(test_weight, -exponent)
    return times_power(weights, -exponent), jnp.minimum(test_weight, exact / 8)


def spare_mass(
    weights: Array, alpha: Array, test_weight: Array, axis_name: AxisName = None
) -> tuple[Array, Array]:
    """Returns weights on their unit scale, and the mass allowed above the threshold.

    alpha (w_1 + ... + w_{n+1}) - w_{n+1}: negative where nothing may, as where there is
    no weight at all.
    """
    dtype = jnp.result_type(weights.dtype, alpha.dtype, jnp.float32)
    weights = jnp.where(weights > 0, weights, 0).astype(dtype)
    test_weight = test_weight.astype(dtype)
    weights, test_weight = unit_scale(weights, test_weight, axis_name)
    total = total_mass(weights, axis_name) + test_weight
    exact = 1 + 3 * jnp.finfo(dtype).eps  # undoes the rounding of alpha
    spare = alpha.astype(dtype) * total * exact - test_weight
    return weights, jnp.where(total > 0, spare, -1)


def weighted_key(
    keys: Array, weights: Array, target: Array, axis_name: AxisName = None
) -> Array:
    """Returns the first of `keys` up to which `weights` reach `target`.

    The lowest of its type where nothing need be reached, the highest where all falls
    short.
    """
    masses = masses_of(weights, axis_name)

    def falls_short(key):
        return masses.falls_short(keys < key, target, axis_name)

    return bisect_keys(falls_short, keys.dtype)
