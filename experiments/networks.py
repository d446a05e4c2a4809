"""Small flax networks as pure functions, trained in one scan."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array


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
    optimizer = optax.adamw(
        optax.cosine_decay_schedule(step_size, num_steps), weight_decay=decay
    )

    def outputs(params, x):
        return nnx.merge(structure, params)(x)

    @jax.jit
    def fit(params):
        def step(carry, _):
            params, state = carry
            slope = jax.grad(lambda p: jnp.mean(loss(outputs(p, x), y)))(params)
            updates, state = optimizer.update(slope, state, params)
            return (optax.apply_updates(params, updates), state), None

        carry = params, optimizer.init(params)
        return jax.lax.scan(step, carry, length=num_steps)[0][0]

    trained = fit(params)
    return jax.jit(lambda x: outputs(trained, x))


def gaussian_loss(out: Array, y: Array) -> Array:
    """Returns the negative log density of N(mean, exp(log scale)^2), shape (n,)."""
    mean, log_scale = out[:, 0], out[:, 1]
    return log_scale + 0.5 * ((y - mean) * jnp.exp(-log_scale)) ** 2


def pinball_loss(levels: tuple[float, ...]) -> Callable[[Array, Array], Array]:
    """Returns the loss whose minimisers are the quantiles at `levels`."""

    def loss(out, y):
        error = y[:, None] - out
        tau = jnp.asarray(levels)[None]
        return jnp.sum(jnp.maximum(tau * error, (tau - 1) * error), axis=1)

    return loss


def label_loss(out: Array, y: Array) -> Array:
    """Returns the cross-entropy of logits, shape (n,)."""
    return optax.softmax_cross_entropy_with_integer_labels(out, y)
