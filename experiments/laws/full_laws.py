"""The data of Lei et al., 2018: settings A, B and C of their simulations.

As in the authors' code, all rows of a replicate, training and test, are drawn together:
the columns of x are centered and of norm 1 over all of them. The first ones of the rows
are the training rows. Columns are active with a coefficient of +-1, the noise is of
scale 1.

A: x normal; y is linear in 10 columns at random; normal noise.
B: x normal; y is a sum of cubic splines, four of each active column, with a knot at its
  median; noise of Student's t with two degrees of freedom over its median absolute
  deviation in the sample, times 1.4826.
C: each column normal, binary, or skewed normal (shape 5) at random, then, from left to
  right, replaced by a random convex combination of itself and the five before it, over
  their number; y linear; the noise of B, times 1 + 2 |mu|^3 / mean |mu|^3.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

NUM_ACTIVE = 10
LAGS, SHAPE = 5, 5.0
Law = Callable[[Array, int, int], tuple[Array, Array]]


def linear(key: Array, num_rows: int, num_features: int) -> tuple[Array, Array]:
    """Returns rows of setting A."""
    key_x, key_mean, key_noise = jax.random.split(key, 3)
    x = of_unit_norm(jax.random.normal(key_x, (num_rows, num_features)))
    mean = x @ active_signs(key_mean, num_features)
    return x, mean + jax.random.normal(key_noise, (num_rows,))


def additive(key: Array, num_rows: int, num_features: int) -> tuple[Array, Array]:
    """Returns rows of setting B."""
    key_x, key_active, key_signs, key_noise = jax.random.split(key, 4)
    x = of_unit_norm(jax.random.normal(key_x, (num_rows, num_features)))
    basis = jax.vmap(splines, 1, 1)(x)
    signs = jax.random.rademacher(key_signs, basis.shape[1:], x.dtype)
    chosen = jnp.abs(active_signs(key_active, num_features))
    mean = jnp.einsum("npb,pb,p->n", basis, signs, chosen)
    return x, mean + heavy_noise(key_noise, num_rows)


def correlated(key: Array, num_rows: int, num_features: int) -> tuple[Array, Array]:
    """Returns rows of setting C."""
    key_x, key_lags, key_mean, key_noise = jax.random.split(key, 4)
    x = mixed_columns(key_x, num_rows, num_features)
    x = of_unit_norm(with_lags(key_lags, x))
    mean = x @ active_signs(key_mean, num_features)
    strength = jnp.abs(mean) ** 3
    spread = 1 + 2 * strength / jnp.mean(strength)
    return x, mean + spread * heavy_noise(key_noise, num_rows)


def of_unit_norm(x: Array) -> Array:
    """Returns columns about their means, of norm 1."""
    x = x - jnp.mean(x, axis=0)[None]
    return x / jnp.linalg.norm(x, axis=0)[None]


def active_signs(key: Array, num_features: int) -> Array:
    """Returns +-1 for ten features at random, for all if there are fewer, else 0."""
    key_signs, key_order = jax.random.split(key)
    signs = jax.random.rademacher(key_signs, (num_features,), float)
    place = jax.random.permutation(key_order, num_features)
    return jnp.where(place < NUM_ACTIVE, signs, 0)


def heavy_noise(key: Array, num_rows: int) -> Array:
    """Returns Student noise of two degrees of freedom and spread 1 in the sample."""
    key_normal, key_scale = jax.random.split(key)
    # Half a chi-squared number of two degrees of freedom is exponential.
    scale = jnp.sqrt(jax.random.exponential(key_scale, (num_rows,)))
    noise = jax.random.normal(key_normal, (num_rows,)) / scale
    deviation = jnp.median(jnp.abs(noise - jnp.median(noise)))
    return noise / (1.4826 * deviation)


def mixed_columns(key: Array, num_rows: int, num_features: int) -> Array:
    """Returns columns of three kinds at random: normal, binary, skewed normal."""
    key_normal, key_other, key_kind = jax.random.split(key, 3)
    normal, other = (
        jax.random.normal(k, (num_rows, num_features)) for k in (key_normal, key_other)
    )
    delta = SHAPE / (1 + SHAPE**2) ** 0.5
    skewed = delta * jnp.abs(other) + (1 - delta**2) ** 0.5 * normal
    center = delta * (2 / jnp.pi) ** 0.5
    skewed = (skewed - center) / (1 - center**2) ** 0.5
    kind = jax.random.randint(key_kind, (num_features,), 0, 3)[None]
    return jnp.select([kind == 0, kind == 1], [normal, 1.0 * (normal > 0)], skewed)


def with_lags(key: Array, x: Array) -> Array:
    """Returns columns mixed with the five before them, which are mixed already."""
    num_features = x.shape[1]
    steps = jnp.arange(num_features)
    weights = jax.random.uniform(key, (num_features, num_features))

    def mix(x, j):
        near = (steps <= j) & (steps >= j - LAGS)
        share = jnp.where(near, weights[j], 0)
        column = x @ (share / jnp.sum(share)) / jnp.sum(near)
        return x.at[:, j].set(column), None

    return jax.lax.scan(mix, x, steps)[0]


def splines(x: Array) -> Array:
    """Returns four of the five cubic B-splines with a knot at the median, (n, 4).

    All but the first, which the others give up where there is an intercept.
    """
    low, middle, high = jnp.min(x), jnp.median(x), jnp.max(x)
    knots = [low] * 4 + [middle] + [high] * 4
    # de Boor 1978, the recursion in the degree; only two spans are not empty.
    basis = [jnp.zeros_like(x)] * 8
    basis[3], basis[4] = 1.0 * (x < middle), 1.0 * (x >= middle)
    for degree in (1, 2, 3):
        ramps = [_ramp(x, knots[i], knots[i + degree]) for i in range(len(basis))]
        basis = [
            ramps[i] * basis[i] + (1 - ramps[i + 1]) * basis[i + 1]
            for i in range(len(basis) - 1)
        ]
    return jnp.stack(basis[1:], axis=1)


def _ramp(x, begin, end):
    """Returns the line from 0 at one knot to 1 at the other; any where they are one."""
    width = end - begin
    return (x - begin) / jnp.where(width > 0, width, 1)
