"""Laws of two outputs given one input, as data and as models that know the truth.

A law draws data, `law.draw(key, n)`, and offers the functions of a model with `params`
None: `sample`, `log_prob`, `to_latent` and `from_latent`. Thus `Density.of(law, None)`
is the density score of the true law.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._mixtures import Mixture, MixtureModel
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp.typing import Number, PyTree


class _Law(MixtureModel):
    """Data of a law, from its mixture of Gaussians at x."""

    num_targets = 2
    support: tuple[float, float]  # of x

    def draw(self, key: Array, n: int) -> tuple[Array, Array]:
        """Returns (x, y) of shapes (n, 1) and (n, d)."""
        _checks.check_count("n", n, 0)
        return _draw(self, key, n)

    def targets(self, key: Array, x: Array) -> Array:
        """Returns a target for each input, shapes (n, 1) to (n, d)."""
        return _targets(self, key, x)


@partial(jax.jit, static_argnames="n")
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

    def mixture(self, params: PyTree, x: Array) -> Mixture:
        """Returns the law at x."""
        x = _number(x)
        scales = jnp.ones((1, self.num_targets), x.dtype) * self.noise * x**self.power
        return _mixture(x, jnp.zeros_like(scales), scales)


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

    def mixture(self, params: PyTree, x: Array) -> Mixture:
        """Returns the law at x."""
        x = _number(x)
        scale = x**self.power
        means = jnp.array([[4.0, 4.0], [-4.0, -4.0]])
        scales = jnp.stack([scale, 1 / scale])[:, None] * jnp.ones((1, 2))
        return _mixture(x, means, scales)


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

    def mixture(self, params: PyTree, x: Array) -> Mixture:
        """Returns the law at x."""
        angles = jnp.arange(100) * (jnp.pi / 99)
        arc = jnp.stack([jnp.cos(angles), 0.5 - jnp.sin(angles)], axis=1)
        x = _number(x)
        return _mixture(x, (1.3 - x) * arc, jnp.full((100, 2), 0.2))


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

    def mixture(self, params: PyTree, x: Array) -> Mixture:
        """Returns the law at x."""
        x = _number(x)
        scale = 1 + 1.5 * jnp.sin(0.5 * jnp.pi * x) ** 2
        return _mixture(x, jnp.stack([x, x**2])[None], scale * jnp.ones((1, 2)))


def _number(x):
    return _checks.as_vector("x", as_float(x), 1)[0]


def _mixture(x, means, scales):
    """Returns the mixture with equal weights, in the type of x."""
    means, scales = means.astype(x.dtype), scales.astype(x.dtype)
    return Mixture(jnp.zeros(len(means), x.dtype), means, scales)
