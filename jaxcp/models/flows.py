"""Flows between noise and y given x: affine couplings, and flow matching."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from jaxcp._tree import jit, pytree, static
from jaxcp.models._training import Fitted, Perceptron, Trained

_LARGEST = 2.0  # of the log scale of one coupling


@pytree
class CouplingFlow(Trained):
    """A conditional normalizing flow: density, sampler, and inverse both ways.

    Each coupling shifts and scales every other output by functions of the rest and of
    x. With one output it is a Gaussian with a mean and a scale.

    Args:
      num_couplings: Number of couplings.
      num_hidden: Width of the two hidden layers of each.
      num_steps: Number of training steps.
      batch_size: Rows in a mini-batch, drawn with replacement.
      step_size: First step size of Adam, which falls to 0 along a cosine.

    Guarantee:
      None of its own; calibrate a score of the model.

    Assumption:
      None for coverage; small sets need a good fit.

    Cost:
      `num_steps` steps of Adam in one scan; O(`num_couplings`) networks for a density
      or a draw.

    References:
      Dinh, Sohl-Dickstein, Bengio, Density Estimation Using Real NVP, ICLR, 2017.
      Winkler, Worrall, Hoogeboom, Welling, Learning Likelihoods with Conditional
      Normalizing Flows, arXiv 1912.00042, 2019.

    See also:
      scores.Density, scores.Latent, models.FlowMatching, draw

    Example:
      >>> x = jnp.linspace(0.0, 1.0, 50)[:, None]
      >>> y = jnp.concatenate([x, x**2], axis=1)
      >>> flow = CouplingFlow(num_couplings=2, num_steps=5)
      >>> params = flow.fit(jax.random.key(0), x, y)
      >>> flow.sample(params, jax.random.key(1), x[0], 10).shape
      (10, 2)
    """

    num_couplings: int = static(default=8)
    num_hidden: int = static(default=32)
    num_steps: int = static(default=1500)
    batch_size: int = static(default=256)
    step_size: float = static(default=3e-3)

    def log_prob(self, params: Fitted, x: Array, y: Array) -> Array:
        """Returns the log density of y given x, shape ()."""
        inside = params.trained().log_prob(params.inputs(x), params.targets(y))
        return inside - params.log_scale()

    def to_latent(self, params: Fitted, x: Array, y: Array) -> Array:
        """Returns the latent code of y given x, shape (d,)."""
        return params.trained().inverse(params.inputs(x), params.targets(y))[0]

    def from_latent(self, params: Fitted, x: Array, z: Array) -> Array:
        """Returns the y whose code given x is z, shape (d,)."""
        return params.outputs(params.trained().forward(params.inputs(x), z))

    def network(self, rngs: nnx.Rngs, num_inputs: int, num_targets: int) -> nnx.Module:
        """Returns an untrained network on standardized data."""
        return _Couplings(num_inputs, num_targets, self, rngs)


class _Couplings(nnx.Module):
    def __init__(self, num_inputs, num_targets, sizes, rngs):
        width = num_targets + num_inputs, sizes.num_hidden, 2 * num_targets
        layers = [Perceptron(*width, rngs=rngs) for _ in range(sizes.num_couplings)]
        self.layers = nnx.List(layers)

    def inverse(self, x, y):
        """Returns the latent code and the log of the determinant on the way."""
        log_det = jnp.zeros((), y.dtype)
        for i, layer in enumerate(self.layers):
            shift, log_scale = _affine(layer, i, x, y)
            y = (y - shift) * jnp.exp(-log_scale)
            log_det -= jnp.sum(log_scale)
        return y, log_det

    def forward(self, x, z):
        for i, layer in reversed(list(enumerate(self.layers))):
            shift, log_scale = _affine(layer, i, x, z)
            z = z * jnp.exp(log_scale) + shift
        return z

    def log_prob(self, x, y):
        z, log_det = self.inverse(x, y)
        return jnp.sum(jax.scipy.stats.norm.logpdf(z)) + log_det

    def loss(self, key, x, y):
        return -self.log_prob(x, y)


def _affine(layer, i, x, y):
    """Returns shift and log scale, zero for the outputs that coupling i reads."""
    moves = jnp.arange(len(y)) % 2 == i % 2
    moves = moves if len(y) > 1 else jnp.ones(1, bool)
    out = layer(jnp.concatenate([jnp.where(moves, 0, y), x]))
    shift, log_scale = jnp.split(out, 2)
    log_scale = _LARGEST * jnp.tanh(log_scale / _LARGEST)
    return jnp.where(moves, shift, 0), jnp.where(moves, log_scale, 0)


@pytree
class FlowMatching(Trained):
    """A velocity field that carries N(0, I) to the law of y given x.

    A sampler and an inverse both ways, by fixed steps of the fourth-order Runge-Kutta
    method, but no density: it serves `PCP`, C-PCP and `Latent`, not `Density`.

    Args:
      num_hidden: Width of the two hidden layers.
      num_steps: Number of training steps.
      batch_size: Rows in a mini-batch, drawn with replacement.
      step_size: First step size of Adam, which falls to 0 along a cosine.
      num_stages: Runge-Kutta steps from noise to target or back.

    Guarantee:
      None of its own; calibrate a score of the model.

    Assumption:
      None for coverage; small sets need a good fit.

    Cost:
      `num_steps` steps of Adam in one scan; 4 `num_stages` networks for a draw or a
      latent code.

    References:
      Lipman, Chen, Ben-Hamu, Nickel, Le, Flow Matching for Generative Modeling, ICLR,
      2023.

    See also:
      scores.PCP, scores.CDF, scores.Latent, models.CouplingFlow

    Example:
      >>> x = jnp.linspace(0.0, 1.0, 50)[:, None]
      >>> y = jnp.concatenate([x, x**2], axis=1)
      >>> model = FlowMatching(num_steps=5)
      >>> params = model.fit(jax.random.key(0), x, y)
      >>> z = model.to_latent(params, x[0], y[0])
      >>> model.from_latent(params, x[0], z).shape
      (2,)
    """

    num_hidden: int = static(default=64)
    num_steps: int = static(default=3000)
    batch_size: int = static(default=256)
    step_size: float = static(default=3e-3)
    num_stages: int = static(default=16)

    def to_latent(self, params: Fitted, x: Array, y: Array) -> Array:
        """Returns the latent code of y given x, shape (d,)."""
        return _carried(self, params, x, params.targets(y), 1.0, 0.0)

    def from_latent(self, params: Fitted, x: Array, z: Array) -> Array:
        """Returns the y that code z is carried to given x, shape (d,)."""
        return params.outputs(_carried(self, params, x, z, 0.0, 1.0))

    def network(self, rngs: nnx.Rngs, num_inputs: int, num_targets: int) -> nnx.Module:
        """Returns an untrained network on standardized data."""
        return _Velocity(num_inputs, num_targets, self, rngs)


@jit(static_argnames=("t_start", "t_end"))
def _carried(model, params, x, start, t_start, t_end):
    """Returns where the flow carries a point from one time to another."""
    network, x = params.trained(), params.inputs(x)
    step = (t_end - t_start) / model.num_stages
    velocity = lambda t, v: network(t, v, x)  # noqa: E731

    def advance(v, t):
        k1 = velocity(t, v)
        k2 = velocity(t + step / 2, v + step / 2 * k1)
        k3 = velocity(t + step / 2, v + step / 2 * k2)
        k4 = velocity(t + step, v + step * k3)
        return v + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    times = t_start + step * jnp.arange(model.num_stages, dtype=start.dtype)
    return lax.scan(advance, start, times)[0]


class _Velocity(nnx.Module):
    def __init__(self, num_inputs, num_targets, sizes, rngs):
        width = num_targets + num_inputs + 3, sizes.num_hidden, num_targets
        self.body = Perceptron(*width, rngs=rngs)

    def __call__(self, t, y, x):
        angle = jnp.pi * jnp.asarray(t, y.dtype)
        time = jnp.stack([angle / jnp.pi, jnp.sin(angle), jnp.cos(angle)])
        return self.body(jnp.concatenate([y, x, time]))

    def loss(self, key, x, y):
        key_time, key_noise = jax.random.split(key)
        t = jax.random.uniform(key_time, (), y.dtype)
        z = jax.random.normal(key_noise, y.shape, y.dtype)
        return jnp.sum((self(t, (1 - t) * z + t * y, x) - (y - z)) ** 2)
