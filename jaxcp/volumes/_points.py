"""Uniform points in the unit cube and the unit ball, random or scrambled Sobol."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import ndtri
from jax.typing import DTypeLike

from jaxcp import _geometry

_BITS = 30


def uniforms(key: Array, n: int, dim: int, dtype: DTypeLike, sobol: bool) -> Array:
    """Returns points in the open unit cube, shape (n, dim)."""
    if sobol:
        return _scrambled(key, n, dim).astype(dtype)
    lowest = jnp.finfo(dtype).eps / 2
    return jax.random.uniform(key, (n, dim), dtype, lowest, 1 - lowest)


def directions(u: Array) -> Array:
    """Returns points on the unit sphere from points in the cube, each (n, d)."""
    normal = ndtri(u)
    length = jax.vmap(_geometry.norm)(normal)
    return normal / jnp.where(length > 0, length, 1)[:, None]


def in_ball(u: Array) -> Array:
    """Returns points in the unit ball, (n, d), from points in the cube, (n, 1 + d)."""
    d = u.shape[1] - 1
    return u[:, :1] ** (1 / d) * directions(u[:, 1:])


def _scrambled(key, n, dim):
    """Returns Sobol points with a random linear matrix scramble and digital shift."""
    key_matrix, key_shift = jax.random.split(key)
    place = jnp.arange(_BITS, dtype=jnp.uint32)
    # Output bit i depends on input bit i and, at random, on the bits above it.
    above = (jnp.uint32(2**_BITS - 1) >> (place + 1)) ^ jnp.uint32(2**_BITS - 1)
    own = jnp.uint32(1) << (_BITS - 1 - place)
    above = above & ~own
    mixed = jax.random.bits(key_matrix, (dim, _BITS), jnp.uint32)
    rows = (mixed & above[None]) | own[None]
    points = jnp.asarray(_sobol(n, dim))
    bits = jax.lax.population_count(points[:, :, None] & rows[None]) & 1
    scrambled = jnp.sum(bits * own[None, None], axis=-1, dtype=jnp.uint32)
    shift = jax.random.bits(key_shift, (dim,), jnp.uint32) >> (32 - _BITS)
    # 23 bits and a half: never 0 or 1 in single precision.
    return ((scrambled ^ shift[None]) >> (_BITS - 23)) / 2**23 + 0.5**24


@lru_cache(maxsize=8)
def _sobol(n, dim):
    from scipy.stats import qmc

    exponent = max(n - 1, 1).bit_length()
    points = qmc.Sobol(dim, scramble=False, bits=_BITS).random_base2(exponent)[:n]
    return (points * 2**_BITS).astype(np.uint32)
