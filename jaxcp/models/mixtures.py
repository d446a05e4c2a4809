"""Networks of Gaussians: one with a full scale, and a mixture of several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jaxcp import _checks, _geometry
from jaxcp._geometry import Mixture, MixtureModel
from jaxcp._tree import pytree, static
from jaxcp.models._training import Fitted, Perceptron, Trained


@pytree
class GaussianNetwork(Trained):
    """A network that predicts N(mu, scale scale'): `scores.Mahalanobis` reads these.

    Args:
      num_hidden: Width of the two hidden layers.
      num_steps: Number of training steps.
      batch_size: Rows in a mini-batch, drawn with replacement.
      step_size: First step size of Adam, which falls to 0 along a cosine.

    Guarantee:
      None of its own; calibrate a score of the model.

    Assumption:
      None for coverage; small sets need errors that are nearly Gaussian given x.

    Cost:
      `num_steps` steps of Adam in one scan; one network for a prediction.

    References:
      Dorta, Vicente, Agapito, Campbell, Simpson, Structured Uncertainty Prediction
      Networks, CVPR, 2018.

    See also:
      scores.Mahalanobis, scores.Density, models.MixtureNetwork

    Example:
      >>> x = jnp.linspace(0.0, 1.0, 50)[:, None]
      >>> y = jnp.concatenate([x, x**2], axis=1)
      >>> network = GaussianNetwork(num_steps=5)
      >>> mu, scale = network.predict(network.fit(jax.random.key(0), x, y), x)
      >>> mu.shape, scale.shape
      ((50, 2), (50, 2, 2))
    """

    num_hidden: int = static(default=64)
    num_steps: int = static(default=1500)
    batch_size: int = static(default=256)
    step_size: float = static(default=3e-3)

    def predict(self, params: Fitted, x: Array) -> tuple[Array, Array]:
        """Returns (mu, scale) of many inputs, shapes (m, d) and (m, d, d)."""
        return jax.vmap(self._at, (None, 0))(params, x)

    def log_prob(self, params: Fitted, x: Array, y: Array) -> Array:
        """Returns the log density of y given x, shape ()."""
        scale = self._at(params, x)[1]
        z = self.to_latent(params, x, y)
        logs = jnp.sum(jnp.log(jnp.diagonal(scale)))
        return jnp.sum(jax.scipy.stats.norm.logpdf(z)) - logs

    def to_latent(self, params: Fitted, x: Array, y: Array) -> Array:
        """Returns scale^-1 (y - mu), shape (d,)."""
        mu, scale = self._at(params, x)
        return _geometry.whiten(scale, _checks.as_vector("y", y, len(mu)) - mu)

    def from_latent(self, params: Fitted, x: Array, z: Array) -> Array:
        """Returns mu + scale z, shape (d,)."""
        mu, scale = self._at(params, x)
        return mu + jnp.sum(scale * z[None], axis=1)

    def _at(self, params, x):
        mu, scale = params.trained()(params.inputs(x))
        return params.outputs(mu), params.y_scale[:, None] * scale

    def network(self, rngs: nnx.Rngs, num_inputs: int, num_targets: int) -> nnx.Module:
        """Returns an untrained network on standardized data."""
        return _MeanAndScale(num_inputs, num_targets, self, rngs)


class _MeanAndScale(nnx.Module):
    def __init__(self, num_inputs, num_targets, sizes, rngs):
        self.num_targets = num_targets
        width = num_inputs, sizes.num_hidden, num_targets * (1 + num_targets)
        self.body = Perceptron(*width, rngs=rngs)

    def __call__(self, x):
        d = self.num_targets
        out = self.body(x)
        square = out[d:].reshape(d, d)
        diagonal = jnp.exp(6 * jnp.tanh(jnp.diagonal(square) / 6))
        scale = jnp.where(jnp.eye(d, dtype=bool), diagonal, jnp.tril(square, -1))
        return out[:d], scale

    def loss(self, key, x, y):
        mu, scale = self(x)
        z = _geometry.whiten(scale, y - mu)
        return 0.5 * jnp.sum(z**2) + jnp.sum(jnp.log(jnp.diagonal(scale)))


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
        return -self(x).log_prob(y)
