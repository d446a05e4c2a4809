"""Volumes of density level sets and of images of latent balls."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _geometry
from jaxcp._numbers import at_least_single
from jaxcp.typing import PyTree
from jaxcp.volumes import _points


def log_volume_by_density(
    key: Array, score: PyTree, pred: PyTree, level: Array, num_samples: int
) -> tuple[Array, Array]:
    """Returns the log of E[1(score(Y) <= level) / f(Y)], Y drawn from f, and its error.

    The gradient is that of the indicator smoothed over scores near the level.
    """
    draws = lax.stop_gradient(score.sample(key, pred, num_samples))
    scores = jax.vmap(score, (None, 0))(pred, draws)
    scores = jnp.where(jnp.isfinite(scores), scores, jnp.inf)
    fixed = lax.stop_gradient(scores)
    known = jnp.isfinite(fixed)
    inside = known & (fixed <= level)
    # 1 / f = exp(score), on a scale that does not overflow
    top = jnp.max(jnp.where(inside, fixed, -jnp.inf), initial=-jnp.inf)
    top = jnp.where(jnp.isfinite(top), top, 0)
    weights = jnp.where(known, jnp.exp(jnp.minimum(fixed - top, 30)), 0)
    spread = jnp.std(jnp.where(known, fixed, jnp.mean(fixed, where=known)))
    width = jnp.where(spread > 0, spread, 1) * num_samples ** (-1 / 3)
    finite_level = jnp.where(jnp.isfinite(level), level, 0)
    soft = jax.nn.sigmoid((finite_level - jnp.where(known, scores, 0)) / width)
    soft = jnp.where(known, soft, 0)
    share = weights * (inside + soft - lax.stop_gradient(soft))
    mean, error = _log_mean(share)
    whole, empty = level == jnp.inf, level == -jnp.inf
    return (
        jnp.where(whole, jnp.inf, top + mean),
        jnp.where(whole | empty, 0, error),
    )


def log_volume_of_image(
    key: Array,
    inverse: Callable[[Array], Array],
    forward: Callable[[Array], Array],
    d: int,
    radius: Array,
    num_samples: int,
    sobol: bool,
) -> tuple[Array, Array]:
    """Returns the log volume of the image of a ball and its standard error.

    Half of the points are images of uniform points of the ball, weighted by abs(det).
    Where the map stretches much their weights vary much, so the other half is uniform
    in a box around the image; both are weighted by the mixture of the two laws (the
    balance heuristic of Veach and Guibas, 1995), unbiased whatever the box. The
    gradient is that of the first half.
    """
    key_box, key_ball, key_cube = jax.random.split(key, 3)
    radius = at_least_single(jnp.asarray(radius))
    solid = (radius > 0) & (radius < jnp.inf)
    r = jnp.where(solid, radius, 1)
    half = max(num_samples // 2, 1)

    def stretch(z):
        return _geometry.log_abs_det(jax.jacfwd(forward)(z))

    def latent(key, n):
        u = _points.uniforms(key, n, d + 1, r.dtype, sobol)
        return r * _points.in_ball(u)

    z = latent(key_ball, half)
    stretches = jax.vmap(stretch)(z)
    first = latent(key_box, max(num_samples // 4, 2))
    images = jax.vmap(forward)(jnp.concatenate([first, z]))  # one large program
    around = images[: len(first)]
    lower, upper = jnp.min(around, axis=0), jnp.max(around, axis=0)
    margin = (upper - lower) / 20  # what the first points have missed
    lower, upper = lax.stop_gradient((lower - margin, upper + margin))
    cube = _points.uniforms(key_cube, half, d, r.dtype, sobol)
    y = lower[None] + (upper - lower)[None] * cube
    codes = jax.vmap(inverse)(y)
    inside = jax.vmap(_geometry.norm)(codes) <= r
    codes = jnp.where(inside[:, None], codes, 0)
    log_ball = _geometry.log_unit_ball(d) + d * jnp.log(r)
    log_box = jnp.sum(jnp.log(upper - lower))
    in_box = jax.vmap(lambda v: jnp.all((lower <= v) & (v <= upper)))

    def log_weights(stretches, boxed):
        of_box = jnp.where(boxed, -log_box, -jnp.inf)
        return jnp.log(2.0) - jnp.logaddexp(-log_ball - stretches, of_box)

    of_ball = log_weights(stretches, in_box(images[len(first) :]))
    of_cube = log_weights(jax.vmap(stretch)(codes), True)
    of_cube = jnp.where(inside, of_cube, -jnp.inf)
    value, error = _log_mean_of_halves(*lax.stop_gradient((of_ball, of_cube)))
    through = log_ball + jax.nn.logsumexp(stretches) - jnp.log(1.0 * half)
    value = value + through - lax.stop_gradient(through)
    empty_or_all = jnp.where(radius > 0, jnp.inf, -jnp.inf)
    return jnp.where(solid, value, empty_or_all), jnp.where(solid, error, 0)


def _log_mean(values):
    """Returns the log of the mean of values >= 0 and its standard error, inf for 0."""
    mean = jnp.mean(values)
    seen = mean > 0
    safe = jnp.where(seen, mean, 1)
    error = jnp.std(lax.stop_gradient(values)) / safe / jnp.sqrt(len(values))
    return jnp.where(seen, jnp.log(safe), -jnp.inf), jnp.where(seen, error, jnp.inf)


def _log_mean_of_halves(first, second):
    top = jnp.maximum(jnp.max(first), jnp.max(second))
    top = jnp.where(jnp.isfinite(top), top, 0)
    first, second = jnp.exp(first - top), jnp.exp(second - top)
    mean = (jnp.mean(first) + jnp.mean(second)) / 2
    seen = mean > 0
    safe = jnp.where(seen, mean, 1)
    variance = (jnp.var(first) + jnp.var(second)) / (4 * len(first))
    log_mean = jnp.where(seen, top + jnp.log(safe), -jnp.inf)
    return log_mean, jnp.where(seen, jnp.sqrt(variance) / safe, jnp.inf)
