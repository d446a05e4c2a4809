"""Steps and lengths with soft edges, whose gradients are finite everywhere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import at_least_single, positive
from jaxcp.typing import Number

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
