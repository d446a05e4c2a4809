"""Data with known laws: one output, a label, or two outputs given one input.

A law of two outputs draws data, `law.draw(key, n)`, and offers the functions of a model
with `params` None: `sample`, `log_prob`, `to_latent` and `from_latent`. Thus
`Density.of(law, None)` is the density score of the true law.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._geometry import Mixture, MixtureModel
from jaxcp._numbers import as_float
from jaxcp._tree import pytree, static
from jaxcp.typing import Number, PyTree


class _Law(MixtureModel):
    """Data of a law, from its mixture of Gaussians at x."""

    num_targets = 2
    support: tuple[float, float]  # of x
    _gaussians: Callable[..., tuple[Array, Array]]  # means and scales at x

    def mixture(self, params: PyTree, x: Array) -> Mixture:
        """Returns the law at x."""
        x = _checks.as_vector("x", as_float(x), 1)[0]
        means, scales = (v.astype(x.dtype) for v in self._gaussians(x))
        return Mixture(jnp.zeros(len(means), x.dtype), means, scales)

    def draw(self, key: Array, n: int) -> tuple[Array, Array]:
        """Returns (x, y) of shapes (n, 1) and (n, d)."""
        _checks.check_count("n", n, 0)
        return _draw(self, key, n)

    def targets(self, key: Array, x: Array) -> Array:
        """Returns a target for each input, shapes (n, 1) to (n, d)."""
        return _targets(self, key, x)


@jax.jit(static_argnames="n")
def _draw(law, key, n):
    key_x, key_y = jax.random.split(key)
    low, high = law.support
    x = jax.random.uniform(key_x, (n, 1), minval=low, maxval=high)
    return x, _targets(law, key_y, x)


@jax.jit
def _targets(law, key, x):
    one = lambda k, v: law.sample(None, k, v, 1)[0]  # noqa: E731
    return jax.vmap(one)(jax.random.split(key, len(x)), x)


@pytree
class Unimodal(_Law):
    """y ~ noise N(0, x^(2 power) I_d), x ~ U(0.5, 2).

    Args:
      power: How the spread changes with x, shape ().
      noise: Factor of the spread, shape (): 1/2 makes a model that is too sure.
      num_targets: Number of outputs d.

    See also:
      datasets.Bimodal, datasets.OneMoon, datasets.DelBarrio, scores.Density.of

    Example:
      >>> x, y = Unimodal().draw(jax.random.key(0), 10)
      >>> x.shape, y.shape
      ((10, 1), (10, 2))
    """

    power: Number = 1.0
    noise: Number = 1.0
    num_targets: int = static(default=2)
    support = (0.5, 2.0)

    def _gaussians(self, x):
        scales = jnp.ones((1, self.num_targets), x.dtype) * self.noise * x**self.power
        return jnp.zeros_like(scales), scales


@pytree
class Bimodal(_Law):
    """y ~ 1/2 N((4, 4), x^(2 p) I) + 1/2 N((-4, -4), x^(-2 p) I), x ~ U(0.5, 2).

    Args:
      power: How the spreads change with x, p, shape ().

    See also:
      datasets.Unimodal, datasets.OneMoon, datasets.DelBarrio, scores.Density.of

    Example:
      >>> Bimodal().draw(jax.random.key(0), 10)[1].shape
      (10, 2)
    """

    power: Number = 1.0
    support = (0.5, 2.0)

    def _gaussians(self, x):
        scale = x**self.power
        means = jnp.array([[4.0, 4.0], [-4.0, -4.0]])
        scales = jnp.stack([scale, 1 / scale])[:, None] * jnp.ones((1, 2))
        return means, scales


@pytree
class OneMoon(_Law):
    """A moon that shrinks with x ~ U(0, 1): 100 Gaussians along an arc.

    With angles a_i = i pi / 99 their centers are (1.3 - x) (cos a_i, 0.5 - sin a_i) and
    their standard deviation is 0.2.

    See also:
      datasets.Unimodal, datasets.Bimodal, datasets.DelBarrio, scores.Density.of

    Example:
      >>> OneMoon().draw(jax.random.key(0), 10)[1].shape
      (10, 2)
    """

    support = (0.0, 1.0)

    def _gaussians(self, x):
        angles = jnp.arange(100) * (jnp.pi / 99)
        arc = jnp.stack([jnp.cos(angles), 0.5 - jnp.sin(angles)], axis=1)
        return (1.3 - x) * arc, jnp.full((100, 2), 0.2)


@pytree
class DelBarrio(_Law):
    """y = (x, x^2) + (1 + 1.5 sin^2(pi x / 2)) e, x ~ U(-2, 2), e ~ N(0, I).

    References:
      del Barrio, Gonzalez Sanz, Hallin, Nonparametric Multiple-Output Center-Outward
      Quantile Regression, JASA, 2024.

    See also:
      datasets.Unimodal, datasets.Bimodal, datasets.OneMoon, scores.Density.of

    Example:
      >>> DelBarrio().draw(jax.random.key(0), 10)[1].shape
      (10, 2)
    """

    support = (-2.0, 2.0)

    def _gaussians(self, x):
        scale = 1 + 1.5 * jnp.sin(0.5 * jnp.pi * x) ** 2
        return jnp.stack([x, x**2])[None], scale * jnp.ones((1, 2))


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
    return _linear(key, n, num_features, _checks.check_number("noise", noise))


@jax.jit(static_argnames=("n", "num_features"))
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


@jax.jit(static_argnames="n")
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
    separation = _checks.check_number("separation", separation)
    return _classes(key, n, num_classes, separation)


@jax.jit(static_argnames=("n", "num_classes"))
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
      TypeError: if `x` is not of shape (n, 2).

    Cost:
      O(n k) time and memory.

    See also:
      datasets.classes

    Example:
      >>> class_posterior(jnp.zeros((1, 2)), num_classes=2)
      Array([[0.5, 0.5]], dtype=float32)
    """
    separation = _checks.check_number("separation", separation)
    return _class_posterior(x, num_classes, separation)


@jax.jit(static_argnames="num_classes")
def _class_posterior(x, num_classes, separation):
    # The norms of x and of the centers are the same for all classes and cancel.
    return jax.nn.softmax(x @ _centers(num_classes, separation).T)


def _centers(num_classes, separation):
    angle = 2 * jnp.pi * jnp.arange(num_classes) / num_classes
    return separation * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
