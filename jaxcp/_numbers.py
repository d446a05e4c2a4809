"""Arithmetic that rounds once, as on paper."""

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxcp._types import Number


def quotient(numerator: Number, divisor: Number) -> Array:
    """Returns numerator / divisor as the nearest float, also under jit.

    XLA divides many numbers by one, or one by a constant, as a product with a rounded
    inverse: 10 / 1000 would not be 0.01, nor 41 / 41 be 1. A choice that it cannot
    foresee gives each number a divisor of its own.
    """
    numerator = jnp.asarray(numerator)
    if not jnp.issubdtype(numerator.dtype, jnp.floating):
        numerator = numerator.astype(float)
    return numerator / jnp.where(numerator == numerator, divisor, numerator)


def mean(values: Array) -> Array:
    """Returns the mean over the first axis, in the dtype of floats; NaN for no rows."""
    values = jnp.asarray(values)
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    dtype = values.dtype if floating else jnp.asarray(0.0).dtype
    wide = values.astype(jnp.promote_types(dtype, jnp.float32))  # halves overflow
    return quotient(jnp.sum(wide, axis=0), len(values)).astype(dtype)


def positive(value: Number, dtype: DTypeLike) -> Array:
    """Returns a width above 0 in this type, in which it may have been rounded to 0."""
    return jnp.maximum(jnp.asarray(value, dtype), jnp.finfo(dtype).tiny)
