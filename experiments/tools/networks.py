"""Small flax networks as pure functions, trained in one scan."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

PyTree = Any


class MLP(nnx.Module):
    """A perceptron with one hidden layer."""

    def __init__(self, num_in: int, num_hidden: int, num_out: int, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(num_in, num_hidden, rngs=rngs)
        self.out = nnx.Linear(num_hidden, num_out, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.out(nnx.tanh(self.hidden(x)))


def train(
    key: Array,
    loss: Callable[[Array, Array], Array],
    x: Array,
    y: Array,
    *,
    num_out: int,
    num_hidden: int = 32,
    num_steps: int = 600,
    step_size: float = 1e-2,
    decay: float = 1e-3,
) -> Callable[[Array], Array]:
    """Returns `outputs(x)`, shape (n, num_out), of a network with a small mean loss."""
    seed = jax.random.bits(key)
    network = MLP(x.shape[1], num_hidden, num_out, rngs=nnx.Rngs(int(seed)))
    structure, params = nnx.split(network)

    def outputs(params, x):
        return nnx.merge(structure, params)(x)

    def mean_loss(params, _):
        return jnp.mean(loss(outputs(params, x), y))

    steps = jnp.arange(num_steps)
    fit = jax.jit(lambda p: minimize(mean_loss, p, steps, step_size, decay))
    trained = fit(params)
    return jax.jit(lambda x: outputs(trained, x))


def minimize(
    loss: Callable[[PyTree, Array], Array],
    params: PyTree,
    steps: Array,
    step_size: float,
    decay: float = 0.0,
) -> PyTree:
    """Returns parameters after Adam's steps, each on `loss(params, steps[i])`."""
    schedule = optax.cosine_decay_schedule(step_size, len(steps))
    optimizer = optax.adamw(schedule, weight_decay=decay)

    def take(carry, step):
        params, state = carry
        slope = jax.grad(loss)(params, step)
        updates, state = optimizer.update(slope, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(take, (params, optimizer.init(params)), steps)[0][0]


def gaussian_loss(out: Array, y: Array) -> Array:
    """Returns the negative log density of N(mean, exp(log scale)^2), shape (n,)."""
    mean, log_scale = out[:, 0], out[:, 1]
    return log_scale + 0.5 * ((y - mean) * jnp.exp(-log_scale)) ** 2


def pinball_loss(levels: tuple[float, ...]) -> Callable[[Array, Array], Array]:
    """Returns the loss whose minimizers are the quantiles at `levels`."""

    def loss(out, y):
        error = y[:, None] - out
        tau = jnp.asarray(levels)[None]
        return jnp.sum(jnp.maximum(tau * error, (tau - 1) * error), axis=1)

    return loss


def label_loss(out: Array, y: Array) -> Array:
    """Returns the cross-entropy of logits, shape (n,)."""
    return optax.softmax_cross_entropy_with_integer_labels(out, y)
