"""Data for one output or a label, as pure functions of a key."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks


def linear(
    key: Array, n: int, *, num_features: int = 5, noise: float = 1.0
) -> tuple[Array, Array]:
    """Returns data from a linear model: y = sum_j x_j / sqrt(d) + noise * e.

    Args:
      key: Random key.
      n: Number of rows.
      num_features: Number of inputs d; x and e are standard normal.
      noise: Standard deviation of the errors.

    Returns:
      (x, y) of shapes (n, num_features) and (n,).

    Raises:
      ValueError: if `n` is not a count.

    Cost:
      O(n d) time and memory.

    See also:
      datasets.heteroscedastic, datasets.classes, learners.Ridge

    Example:
      >>> x, y = linear(jax.random.key(0), 10)
      >>> x.shape, y.shape
      ((10, 5), (10,))
    """
    _checks.check_count("n", n, 0)
    return _linear(key, n, num_features, noise)


@partial(jax.jit, static_argnames=("n", "num_features"))
def _linear(key, n, num_features, noise):
    key_x, key_y = jax.random.split(key)
    x = jax.random.normal(key_x, (n, num_features))
    mean = jnp.sum(x, axis=1) / jnp.sqrt(num_features)
    return x, mean + noise * jax.random.normal(key_y, (n,))


def heteroscedastic(key: Array, n: int) -> tuple[Array, Array]:
    """Returns data whose noise grows with the input: y = sin(2x) + (0.1 + x / 2) e.

    Args:
      key: Random key.
      n: Number of rows; x is uniform on [0, 2], e standard normal.

    Returns:
      (x, y) of shapes (n, 1) and (n,).

    Raises:
      ValueError: if `n` is not a count.

    Cost:
      O(n) time and memory.

    See also:
      datasets.linear, scores.CQR, scores.Normalized

    Example:
      >>> x, y = heteroscedastic(jax.random.key(0), 10)
      >>> x.shape, y.shape
      ((10, 1), (10,))
    """
    _checks.check_count("n", n, 0)
    return _heteroscedastic(key, n)


@partial(jax.jit, static_argnames="n")
def _heteroscedastic(key, n):
    key_x, key_y = jax.random.split(key)
    x = jax.random.uniform(key_x, (n, 1), maxval=2.0)
    noise = jax.random.normal(key_y, (n,))
    return x, jnp.sin(2 * x[:, 0]) + (0.1 + x[:, 0] / 2) * noise


def classes(
    key: Array, n: int, *, num_classes: int = 3, separation: float = 2.0
) -> tuple[Array, Array]:
    """Returns labeled points in the plane whose posterior is known.

    Labels are uniform; given label c, x is standard normal around a center on a circle
    of radius `separation`. `class_posterior` is the exact p(y | x).

    Args:
      key: Random key.
      n: Number of rows.
      num_classes: Number of classes k.
      separation: Radius of the circle of centers.

    Returns:
      (x, y) of shapes (n, 2) and (n,), y int in 0, ..., k - 1.

    Raises:
      ValueError: if `n` is not a count.

    Cost:
      O(n) time and memory.

    See also:
      datasets.class_posterior, scores.LAC

    Example:
      >>> x, y = classes(jax.random.key(0), 10)
      >>> x.shape, y.shape
      ((10, 2), (10,))
    """
    _checks.check_count("n", n, 0)
    return _classes(key, n, num_classes, separation)


@partial(jax.jit, static_argnames=("n", "num_classes"))
def _classes(key, n, num_classes, separation):
    key_y, key_x = jax.random.split(key)
    y = jax.random.randint(key_y, (n,), 0, num_classes)
    centers = _centers(num_classes, separation)
    return centers[y] + jax.random.normal(key_x, (n, 2)), y


def class_posterior(
    x: Array, *, num_classes: int = 3, separation: float = 2.0
) -> Array:
    """Returns the exact p(y | x) of `classes`.

    Args:
      x: Points, shape (n, 2).
      num_classes: Number of classes k, as in `classes`.
      separation: Radius of the circle of centers, as in `classes`.

    Returns:
      Probabilities, shape (n, k).

    Raises:
      ValueError: if `x` is not of shape (n, 2).

    Cost:
      O(n k) time and memory.

    See also:
      datasets.classes

    Example:
      >>> class_posterior(jnp.zeros((1, 2)), num_classes=2)
      Array([[0.5, 0.5]], dtype=float32)
    """
    if jnp.ndim(x) != 2 or x.shape[1] != 2:
        raise ValueError(f"expected x of shape (n, 2), got {jnp.shape(x)}")
    return _class_posterior(x, num_classes, separation)


@partial(jax.jit, static_argnames="num_classes")
def _class_posterior(x, num_classes, separation):
    # The norms of x and of the centers are the same for all classes and cancel.
    return jax.nn.softmax(x @ _centers(num_classes, separation).T)


def _centers(num_classes, separation):
    angle = 2 * jnp.pi * jnp.arange(num_classes) / num_classes
    return separation * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
