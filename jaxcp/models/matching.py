"""Conditional flow matching."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.models._training import Fitted, Perceptron, Trained


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
