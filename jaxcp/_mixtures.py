"""Mixtures of Gaussians with diagonal covariances, and models that predict them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import log_ndtr, ndtri

from jaxcp import _checks
from jaxcp._pytree import pytree
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.typing import PyTree


@pytree
class Mixture:
    """The law with density sum_c w_c prod_j N(y_j; mean_cj, scale_cj^2).

    Args:
      log_weights: Logs of the weights, up to a constant, shape (c,).
      means: Shape (c, d).
      scales: Standard deviations, shape (c, d).
    """

    log_weights: Array
    means: Array
    scales: Array

    def log_prob(self, y: Array) -> Array:
        """Returns the log density at `y`, shape ()."""
        y = _checks.as_vector("y", y, self.means.shape[1])
        parts = _log_density(y[None], self.means, self.scales)
        logs = jax.nn.log_softmax(self.log_weights) + jnp.sum(parts, axis=1)
        return jax.nn.logsumexp(logs)

    def sample(self, key: Array, n: int) -> Array:
        """Returns n draws, shape (n, d)."""
        key_which, key_noise = jax.random.split(key)
        mass = jnp.cumsum(jax.nn.softmax(self.log_weights))
        u = jax.random.uniform(key_which, (n,), mass.dtype, maxval=mass[-1])
        which = jnp.searchsorted(mass, u, side="right")
        which = jnp.minimum(which, len(mass) - 1)
        noise = jax.random.normal(key_noise, (n, self.means.shape[1]), mass.dtype)
        return self.means[which] + self.scales[which] * noise

    def to_latent(self, y: Array) -> Array:
        """Returns the Knothe-Rosenblatt code of `y`, standard normal under the law."""

        def settle(log_weights, target, mean, scale):
            return target, _normal_score(log_weights, (target - mean) / scale)

        return self._scan(settle, _checks.as_vector("y", y, self.means.shape[1]))

    def from_latent(self, z: Array) -> Array:
        """Returns the `y` whose code is `z`, shape (d,), by bisection."""

        def settle(log_weights, code, mean, scale):
            target = _quantile(log_weights, mean, scale, code)
            return target, target

        return self._scan(settle, _checks.as_vector("z", z, self.means.shape[1]))

    def _scan(self, settle, values):
        """Returns the results of `settle` for the coordinates, one after the other."""

        def step(log_weights, inputs):
            target, result = settle(log_weights, *inputs)
            given = log_weights + _log_density(target, *inputs[1:])
            return jax.nn.log_softmax(given), result

        parts = self.log_weights, values, self.means.T, self.scales.T
        dtype = jnp.result_type(*parts)
        log_weights, *coordinates = (part.astype(dtype) for part in parts)
        return lax.scan(step, jax.nn.log_softmax(log_weights), tuple(coordinates))[1]


class MixtureModel:
    """The functions of a model whose law at x is `mixture(params, x)`."""

    mixture: Callable[[PyTree, Array], Mixture]

    def sample(self, params: PyTree, key: Array, x: Array, n: int) -> Array:
        """Returns n draws of y given x, shape (n, d)."""
        return self.mixture(params, x).sample(key, n)

    def log_prob(self, params: PyTree, x: Array, y: Array) -> Array:
        """Returns the log density of y given x, shape ()."""
        return self.mixture(params, x).log_prob(y)

    def to_latent(self, params: PyTree, x: Array, y: Array) -> Array:
        """Returns the Knothe-Rosenblatt code of y given x, shape (d,)."""
        return self.mixture(params, x).to_latent(y)

    def from_latent(self, params: PyTree, x: Array, z: Array) -> Array:
        """Returns the y whose code given x is z, shape (d,)."""
        return self.mixture(params, x).from_latent(z)


def _normal_score(log_weights, u):
    """Returns the normal quantile of sum_c w_c Phi(u_c), from the smaller tail."""
    if len(u) == 1:
        return u[0]
    below = jax.nn.logsumexp(log_weights + log_ndtr(u))
    above = jax.nn.logsumexp(log_weights + log_ndtr(-u))
    tail = _log_tail_quantile(jnp.minimum(below, above))
    return jnp.where(below < above, tail, -tail)


@jax.custom_jvp
def _log_tail_quantile(log_p):
    """Returns the z <= 0 with log Phi(z) = log_p, also where Phi(z) underflows."""
    z = ndtri(jnp.exp(jnp.maximum(log_p, -60)))

    far = (log_p < -60) & jnp.isfinite(log_p)
    start = -jnp.sqrt(-2 * jnp.where(far, log_p, -60))

    def newton(_, z):  # Phi / phi is 1 / |z| within one part in z^2
        return z + (log_ndtr(z) - jnp.where(far, log_p, -60)) / z

    beyond = lax.fori_loop(0, 4, newton, start)
    return jnp.where(far, beyond, jnp.where(log_p == -jnp.inf, -jnp.inf, z))


@_log_tail_quantile.defjvp
def _log_tail_quantile_jvp(primals, tangents):
    z = _log_tail_quantile(*primals)
    near = jnp.clip(z, -50, 0)
    ratio = jnp.exp(log_ndtr(near) - _log_density(near))  # Phi / phi
    return z, tangents[0] * jnp.where(z > -50, ratio, -1 / jnp.minimum(z, -1))


def _quantile(log_weights, mean, scale, code):
    """Returns the coordinate with this code, with its implicit derivatives."""
    if len(mean) == 1:
        return mean[0] + scale[0] * code
    fixed = lax.stop_gradient((log_weights, mean, scale, code))

    def falls_short(value):
        return _normal_score(fixed[0], (value - fixed[1]) / fixed[2]) < fixed[3]

    target = bisect_floats(falls_short, mean.dtype)
    gap = _normal_score(log_weights, (target - mean) / scale) - code
    density = jax.nn.logsumexp(fixed[0] + _log_density(target, *fixed[1:3]))
    slope = jnp.exp(_log_density(fixed[3]) - density)
    return target - slope * (gap - lax.stop_gradient(gap))


def _log_density(*args):
    """Returns the log density of a normal law; its module takes long to import."""
    return jax.scipy.stats.norm.logpdf(*args)
