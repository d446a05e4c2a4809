"""Training of a network in one scan, on standardized data."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.typing import ArrayLike, PyTree


@pytree
class Fitted:
    """Parameters of a trained network. Made by the `fit` of a model.

    Args:
      structure: The graph definition of `nnx.split`.
      state: The weights.
      x_center, x_scale: Mean and standard deviation of the inputs, shape (p,).
      y_center, y_scale: Mean and standard deviation of the targets, shape (d,).
      losses: Loss at every training step, shape (num_steps,).
    """

    structure: nnx.GraphDef = static()
    state: PyTree
    x_center: Array
    x_scale: Array
    y_center: Array
    y_scale: Array
    losses: Array

    @property
    def num_targets(self) -> int:
        """Returns the number of outputs d."""
        return self.y_center.shape[-1]

    def trained(self) -> Any:
        """Returns the network with its weights."""
        return nnx.merge(self.structure, self.state)

    def inputs(self, x: Array) -> Array:
        """Returns an input on the scale of the network, shape (p,)."""
        x = _checks.as_vector("x", x, self.x_center.shape[-1])
        return (x - self.x_center) / self.x_scale

    def targets(self, y: Array) -> Array:
        """Returns a target on the scale of the network, shape (d,)."""
        y = _checks.as_vector("y", y, self.num_targets)
        return (y - self.y_center) / self.y_scale

    def outputs(self, v: Array) -> Array:
        """Returns values of the network in units of the targets."""
        return self.y_center + self.y_scale * v

    def log_scale(self) -> Array:
        """Returns the log density that standardizing takes away, shape ()."""
        return jnp.sum(jnp.log(self.y_scale))


class Perceptron(nnx.Module):
    """Two hidden layers; the last one starts at zero: training starts at N(0, I)."""

    def __init__(self, num_in: int, num_hidden: int, num_out: int, *, rngs: nnx.Rngs):
        self.first = nnx.Linear(num_in, num_hidden, rngs=rngs)
        self.second = nnx.Linear(num_hidden, num_hidden, rngs=rngs)
        zeros = nnx.initializers.zeros
        self.last = nnx.Linear(num_hidden, num_out, kernel_init=zeros, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        hidden = nnx.silu(self.first(x))
        return self.last(nnx.silu(self.second(hidden)))


class Trained:
    """What models have in common.

    A model has fields `num_steps`, `batch_size`, `step_size` and `num_hidden`, and a
    function `network(rngs, p, d)`. The network has `loss(key, x, y)` of one
    standardized example; the key is its own at every step.
    """

    def fit(self, key: Array, x: ArrayLike, y: ArrayLike) -> Fitted:
        """Returns parameters of a small mean loss; x (n, p) or (n,), y (n, d) or (n,).

        The key makes the initial weights and the mini-batches.
        """
        model: Any = self
        y, x = map(as_float, _checks.rows(y=y, x=x))
        _checks.check_key(key)
        _checks.check_count("the number of rows", len(y), 1)
        for field in dataclasses.fields(model):
            if field.name != "step_size":
                _checks.check_count(field.name, getattr(model, field.name), 1)
        positive = lambda v: (v > 0) & (v < np.inf)  # noqa: E731
        _checks.check_number("step_size", model.step_size, positive, "> 0")
        for name, values in (("x", x), ("y", y)):
            _checks.check_values(np.isfinite, f"finite {name}", values)
        x, y = (v[:, None] if v.ndim == 1 else v for v in (x, y))
        sizes = dataclasses.replace(model, step_size=1.0)  # a new step compiles nothing
        return _fit(key, x, y, float(model.step_size), sizes)

    def sample(self, params: Fitted, key: Array, x: Array, n: int) -> Array:
        """Returns n draws of y given x, shape (n, d)."""
        model: Any = self
        z = jax.random.normal(key, (n, params.num_targets), params.y_center.dtype)
        return jax.vmap(model.from_latent, (None, None, 0))(params, x, z)


@jit
def _fit(key, x, y, step_size, model):
    key_init, key_steps = jax.random.split(key)
    network = model.network(nnx.Rngs(key_init), x.shape[1], y.shape[1])
    structure, state = nnx.split(network)
    moments = *_moments(x), *_moments(y)
    scales = Fitted(structure, state, *moments, jnp.zeros(0))
    x, y = jax.vmap(scales.inputs)(x), jax.vmap(scales.targets)(y)
    keys = jax.random.split(key_steps, model.num_steps)
    schedule = optax.cosine_decay_schedule(step_size, len(keys))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def mean_loss(state, key):
        key_rows, key = jax.random.split(key)
        rows = jax.random.randint(key_rows, (model.batch_size,), 0, len(x))
        network = nnx.merge(structure, state)
        keys = jax.random.split(key, len(rows))
        return jnp.mean(jax.vmap(network.loss)(keys, x[rows], y[rows]))

    def step(carry, key):
        state, memory = carry
        value, slope = jax.value_and_grad(mean_loss)(state, key)
        updates, memory = optimizer.update(slope, memory, state)
        return (optax.apply_updates(state, updates), memory), value

    (state, _), losses = lax.scan(step, (state, optimizer.init(state)), keys)
    return Fitted(structure, state, *moments, losses)


def _moments(values: Array) -> tuple[Array, Array]:
    # From the first row: a constant column has no spread, not that of its rounding.
    scale = jnp.std(values - values[:1], axis=0)
    return jnp.mean(values, axis=0), jnp.where(scale > 0, scale, 1)
