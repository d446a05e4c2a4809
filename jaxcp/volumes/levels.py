"""Volumes of density level sets and of images of latent balls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _geometry
from jaxcp._numbers import at_least_single
from jaxcp.typing import PyTree
from jaxcp.volumes import estimate

Maps = tuple[Callable[[Array], Array], Callable[[Array], Array]]  # inverse, forward


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
    known = fixed < jnp.inf
    top = _finite_max(jnp.where(known & (fixed <= level), fixed, -jnp.inf))
    # 1 / f = exp(score), on a scale that does not overflow
    weights = jnp.where(known, jnp.exp(jnp.minimum(fixed - top, 30)), 0)
    mean, error = _log_mean(weights * _inside(scores, fixed, level))
    log_volume = jnp.where(level == jnp.inf, jnp.inf, top + mean)
    return log_volume, jnp.where(jnp.isinf(level), 0, error)


def _inside(scores, fixed, level):
    """Returns 1(score <= level), with the gradient of a step as wide as n^(-1/3)."""
    known = fixed < jnp.inf
    spread = jnp.std(jnp.where(known, fixed, jnp.mean(fixed, where=known)))
    width = jnp.where(spread > 0, spread, 1) * len(fixed) ** (-1 / 3)
    finite_level = jnp.where(jnp.isfinite(level), level, 0)
    soft = jax.nn.sigmoid((finite_level - jnp.where(known, scores, 0)) / width)
    soft = jnp.where(known, soft, 0)
    return (known & (fixed <= level)) + soft - lax.stop_gradient(soft)


def log_volume_of_image(
    key: Array, maps: Maps, d: int, radius: Array, num_samples: int, sobol: bool
) -> tuple[Array, Array]:
    """Returns the log volume of the image of a ball and its standard error.

    Half of the points are images of uniform points of the ball, weighted by abs(det).
    Where the map stretches much their weights vary much, so the other half is uniform
    in a box around the image; both are weighted by the mixture of the two laws (the
    balance heuristic of Veach and Guibas, 1995), unbiased whatever the box. The
    gradient is that of the first half.
    """
    inverse, forward = maps
    key_box, key_ball, key_cube = jax.random.split(key, 3)
    radius = at_least_single(jnp.asarray(radius))
    solid = (radius > 0) & (radius < jnp.inf)
    r = jnp.where(solid, radius, 1)
    half, num_first = max(num_samples // 2, 1), max(num_samples // 4, 2)
    uniforms = partial(estimate.uniforms, dtype=r.dtype, sobol=sobol)
    stretch = jax.vmap(lambda z: _geometry.log_abs_det(jax.jacfwd(forward)(z)))

    z = r * estimate.in_ball(uniforms(key_ball, half, d + 1))
    first = r * estimate.in_ball(uniforms(key_box, num_first, d + 1))
    images = jax.vmap(forward)(jnp.concatenate([first, z]))  # one large program
    frame = _Frame.around(images[:num_first])
    codes = jax.vmap(inverse)(frame.points(uniforms(key_cube, half, d)))
    inside = jax.vmap(_geometry.norm)(codes) <= r
    codes = jnp.where(inside[:, None], codes, 0)

    log_ball = _geometry.log_unit_ball(d) + d * jnp.log(r)
    stretches = stretch(z)
    of_ball = frame.log_weights(log_ball + stretches, frame.holds(images[num_first:]))
    of_cube = frame.log_weights(log_ball + stretch(codes), True)
    of_cube = jnp.where(inside, of_cube, -jnp.inf)
    halves = lax.stop_gradient((of_ball, of_cube))
    top = _finite_max(jnp.stack(halves))
    mean, error = _log_mean(*(jnp.exp(v - top) for v in halves))
    # d log V: that of V_d r^d E abs(det), the pathwise gradient of the first half
    through = log_ball + jax.nn.logsumexp(stretches) - jnp.log(1.0 * half)
    value = top + mean + through - lax.stop_gradient(through)
    empty_or_all = jnp.where(radius > 0, jnp.inf, -jnp.inf)
    return jnp.where(solid, value, empty_or_all), jnp.where(solid, error, 0)


class _Frame(NamedTuple):
    """A box around the image."""

    lower: Array
    upper: Array

    @classmethod
    def around(cls, images):
        lower, upper = jnp.min(images, axis=0), jnp.max(images, axis=0)
        margin = (upper - lower) / 20  # what these points have missed
        return cls(*lax.stop_gradient((lower - margin, upper + margin)))

    def points(self, cube):
        return self.lower[None] + (self.upper - self.lower)[None] * cube

    def holds(self, points):
        inside = (self.lower[None] <= points) & (points <= self.upper[None])
        return jnp.all(inside, axis=1)

    def log_weights(self, log_cells, held):
        # 1 / w = (f + g) / 2: the density of images 1 / (V_ball abs(det)), that of the
        # box 1 / V_box in it. Veach and Guibas 1995, balance heuristic.
        log_size = jnp.sum(jnp.log(self.upper - self.lower))
        of_box = jnp.where(held, -log_size, -jnp.inf)
        return jnp.log(2.0) - jnp.logaddexp(-log_cells, of_box)


def _log_mean(*parts):
    """Returns the log of the mean of values >= 0 in equal parts, and its error."""
    mean = sum(map(jnp.mean, parts)) / len(parts)
    seen = mean > 0
    safe = jnp.where(seen, mean, 1)
    variance = sum(jnp.var(lax.stop_gradient(v)) for v in parts)
    error = jnp.sqrt(variance / (len(parts) ** 2 * len(parts[0]))) / safe
    return jnp.where(seen, jnp.log(safe), -jnp.inf), jnp.where(seen, error, jnp.inf)


def _finite_max(values):
    top = jnp.max(values, initial=-jnp.inf)
    return jnp.where(jnp.isfinite(top), top, 0)
