"""A mixture density network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxcp._mixtures import Mixture, MixtureModel
from jaxcp._pytree import pytree, static
from jaxcp.models._training import Fitted, Perceptron, Trained

_LARGEST = 6.0  # of the log scales


@pytree
class MixtureNetwork(MixtureModel, Trained):
    """A network that predicts a mixture of Gaussians with diagonal covariances.

    It has a density, a sampler, and the Knothe-Rosenblatt map as an inverse both ways.

    Args:
      num_components: Number of components.
      num_hidden: Width of the two hidden layers.
      num_steps: Number of training steps.
      batch_size: Rows in a mini-batch, drawn with replacement.
      step_size: First step size of Adam, which falls to 0 along a cosine.

    Guarantee:
      None of its own; calibrate a score of the model.

    Assumption:
      None for coverage; small sets need a good fit.

    Cost:
      `num_steps` steps of Adam in one scan; one network for a density or a draw.
      `from_latent` bisects for each output.

    References:
      Bishop, Mixture Density Networks, Aston University, 1994.

    See also:
      scores.Density, scores.Latent, models.GaussianNetwork, draw

    Example:
      >>> x = jnp.linspace(0.0, 1.0, 50)[:, None]
      >>> y = jnp.concatenate([x, x**2], axis=1)
      >>> network = MixtureNetwork(num_components=3, num_steps=5)
      >>> params = network.fit(jax.random.key(0), x, y)
      >>> network.log_prob(params, x[0], y[0]).shape
      ()
    """

    num_components: int = static(default=10)
    num_hidden: int = static(default=64)
    num_steps: int = static(default=2000)
    batch_size: int = static(default=256)
    step_size: float = static(default=3e-3)

    def mixture(self, params: Fitted, x: Array) -> Mixture:
        """Returns the predicted law at x, in units of the targets."""
        law = params.trained()(params.inputs(x))
        means = jax.vmap(params.outputs)(law.means)
        scales = law.scales * params.y_scale[None]
        return Mixture(law.log_weights, means, scales)

    def network(self, rngs: nnx.Rngs, num_inputs: int, num_targets: int) -> nnx.Module:
        """Returns an untrained network on standardized data."""
        return _Mixtures(num_inputs, num_targets, self, rngs)


class _Mixtures(nnx.Module):
    def __init__(self, num_inputs, num_targets, sizes, rngs):
        c = sizes.num_components
        width = num_inputs, sizes.num_hidden, c * (1 + 2 * num_targets)
        self.body = Perceptron(*width, rngs=rngs)
        # Components that start alike would stay alike.
        dtype = self.body.last.kernel[...].dtype
        starts = jax.random.normal(rngs(), (c, num_targets), dtype)
        self.starts = nnx.Param(starts)

    def __call__(self, x):
        c, d = self.starts.shape
        out = self.body(x).reshape(c, 1 + 2 * d)
        means = self.starts + out[:, 1 : 1 + d]
        log_scales = _LARGEST * jnp.tanh(out[:, 1 + d :] / _LARGEST)
        return Mixture(out[:, 0], means, jnp.exp(log_scales))

    def loss(self, key, x, y):
        del key
        return -self(x).log_prob(y)
