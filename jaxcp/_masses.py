"""Sums of weights that do not depend on their order, nor on how they are sharded.

Weights become integers of two words, a leading and a following one, whose sums are
exact. The words are floats, for their sums are fast: in single precision they hold 44 -
log2(n) bits of the total. Of very many weights they are integers, with 60 - log2(n).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._types import AxisName

_MANY = 2**16  # weights from which on floats would hold too few bits


class Masses(NamedTuple):
    """Weights w_i = 2^exponent (leading_i + following_i / 2^bits) / 2^word."""

    leading: Array
    following: Array
    exponent: Array
    word: int
    bits: int

    def falls_short(self, counted: Array, target: Array, axis_name: AxisName) -> Array:
        """Returns whether what is `counted`, bool (n,), weighs less than `target`."""
        leading, following = (
            _sum(jnp.where(counted, v, 0), axis_name)
            for v in (self.leading, self.following)
        )
        target = jnp.ldexp(target, self.word - self.exponent)
        most = 1.5 * 2**self.word  # more than there is
        target = jnp.where(jnp.isnan(target), -1, jnp.clip(target, -1, most))
        whole = jnp.floor(target)
        part = jnp.ceil((target - whole) * 2**self.bits).astype(leading.dtype)
        carry = jnp.floor_divide(following - part, 2**self.bits)
        return leading - whole.astype(leading.dtype) + carry < 0


def masses_of(weights: Array, axis_name: AxisName = None) -> Masses:
    """Returns weights >= 0 of shape (n,), one shard of them, as integers.

    Weights beyond the largest float / 4n count as that.
    """
    info = jnp.finfo(weights.dtype)
    n = int(weights.size * (1 if axis_name is None else lax.psum(1, axis_name)))
    many = n >= _MANY
    word, dtype = (
        (info.bits, f"int{info.bits}") if many else (info.nmant + 1, info.dtype)
    )
    word -= 2
    bits = word - max(n - 1, 0).bit_length()
    weights = jnp.minimum(weights, info.max / (4 * max(n, 1)))
    # Rounded sums of other orders have the same exponent, but near a power of two,
    # which totals often are: move those away from where it changes.
    exponent = jnp.frexp(2**0.5 * _sum(weights, axis_name))[1]
    half = (word - exponent) // 2  # in two steps, of which none leaves the range
    scaled = weights * _power(half, weights) * _power(word - exponent - half, weights)
    leading = jnp.round(scaled)
    following = jnp.round((scaled - leading) * 2.0**bits)
    return Masses(leading.astype(dtype), following.astype(dtype), exponent, word, bits)


def total_mass(weights: Array, axis_name: AxisName = None) -> Array:
    """Returns the sum of weights >= 0 of shape (n,), of all shards."""
    masses = masses_of(weights, axis_name)
    leading, following = (
        _sum(v, axis_name).astype(weights.dtype)
        for v in (masses.leading, masses.following)
    )
    scale = masses.exponent - masses.word
    return jnp.ldexp(leading, scale) + jnp.ldexp(following, scale - masses.bits)


def _power(exponent, like):
    return jnp.ldexp(jnp.ones((), like.dtype), exponent)


def _sum(values, axis_name):
    total = jnp.sum(values)
    return total if axis_name is None else lax.psum(total, axis_name)
