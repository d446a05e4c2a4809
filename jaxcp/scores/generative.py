"""Scores that ask the model: its density, or its latent code, of a target."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from jaxcp import _geometry
from jaxcp._pytree import keep_functions, pytree, static
from jaxcp.sets import LevelSet
from jaxcp.typing import PyTree


@pytree
class Density:
    """Minus the log density of the target: DR-CP. Sets are density level sets.

    `pred` is whatever the functions take, such as the input x itself. Give parameters
    by `functools.partial(log_prob, params)`: they are then leaves of the score, so that
    new ones compile nothing and all is differentiable in them; every set carries them.
    `Density.of(model, params)` does that for a model with `log_prob(params, x, y)`. A
    function that closes over its parameters makes them constants of the program.

    Args:
      log_prob: `(pred, y) -> ()`, the log density at `y`; -inf and NaN are the worst.
      sample: `(key, pred, n) -> (n, d)`, draws of the same law, or None. The volume of
        a set is estimated with them.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers with Bounded Error
      Levels, 2019.
      Dheur et al., Distribution-Free Conformal Joint Prediction Regions for Neural
      Marked Temporal Point Processes, 2024.

    Example:
      >>> normal = Density(lambda pred, y: -0.5 * jnp.sum((y - pred) ** 2))
      >>> normal(jnp.zeros(2), jnp.array([1.0, 1.0])).item()
      1.0
    """

    log_prob: Callable[[PyTree, Array], Array]
    sample: Callable[[Array, PyTree, int], Array] | None = None

    def __post_init__(self):
        keep_functions(self, "log_prob", "sample")

    @classmethod
    def of(cls, model: Any, params: PyTree) -> "Density":
        """Returns the score of a model with `log_prob(params, x, y)`; `pred` is x."""
        log_prob = _function(model, "log_prob", "a density score")
        sample = getattr(model, "sample", None)
        sample = None if sample is None else Partial(sample, params)
        return cls(Partial(log_prob, params), sample)

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns -log f(y), shape (); +inf where the density is 0 or NaN."""
        log_prob = self.log_prob(pred, y)
        if jnp.ndim(log_prob):
            raise ValueError(
                f"expected log_prob(pred, y) of shape (), got {jnp.shape(log_prob)}"
            )
        unknown = jnp.isnan(log_prob)
        return jnp.where(unknown, jnp.inf, -jnp.where(unknown, 0, log_prob))

    def invert(self, pred: PyTree, q: Array) -> LevelSet:
        """Returns {y : log f(y) >= -q}."""
        return LevelSet(self, pred, q)


@pytree
class Latent:
    """The norm of the target's latent code: L-CP. Sets are images of a latent ball.

    norm(inverse(pred, y)), of any model that maps a standard normal z to y and back: a
    normalizing flow, or flow matching by its differential equation; no density is
    needed. `pred` and parameters are as for `Density`.

    Args:
      inverse: `(pred, y) -> (d,)`, the latent code of `y`.
      forward: `(pred, z) -> (d,)`, its inverse, or None. The volume of a set is
        estimated with its Jacobian.
      dim: Number of outputs d, or None; volumes need it.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Feldman, Bates, Romano, Calibrated Multiple-Output Quantile Regression with
      Representation Learning, 2023.
      Dheur et al., A Unified Comparative Study with Generalized Conformity Scores for
      Multi-Output Conformal Regression, 2025.

    Example:
      >>> shifted = Latent(lambda pred, y: y - pred)
      >>> shifted(jnp.ones(2), jnp.array([4.0, 5.0])).item()
      5.0
    """

    inverse: Callable[[PyTree, Array], Array]
    forward: Callable[[PyTree, Array], Array] | None = None
    dim: int | None = static(default=None)

    def __post_init__(self):
        keep_functions(self, "inverse", "forward")

    @classmethod
    def of(cls, model: Any, params: PyTree, *, dim: int | None = None) -> "Latent":
        """Returns the score of a model with `to_latent(params, x, y)`; `pred` is x.

        For volumes, `dim` is the number of outputs d, by default `num_targets` of the
        parameters or the model, and the model needs `from_latent(params, x, z)`.
        """
        inverse = _function(model, "to_latent", "a latent score")
        forward = getattr(model, "from_latent", None)
        forward = None if forward is None else Partial(forward, params)
        if dim is None:
            known = getattr(model, "num_targets", None)
            dim = getattr(params, "num_targets", known)
        return cls(Partial(inverse, params), forward, dim)

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns norm(inverse(pred, y)), shape (); +inf where the code is NaN."""
        z = jnp.atleast_1d(self.inverse(pred, y))
        unknown = jnp.any(jnp.isnan(z))
        return jnp.where(unknown, jnp.inf, _geometry.norm(jnp.where(unknown, 0, z)))

    def invert(self, pred: PyTree, q: Array) -> LevelSet:
        """Returns {y : norm(inverse(pred, y)) <= q}."""
        return LevelSet(self, pred, q)


def _function(model, name, purpose):
    if hasattr(model, name):
        return getattr(model, name)
    known = ["sample", "log_prob", "to_latent", "from_latent"]
    offered = [other for other in known if hasattr(model, other)]
    raise ValueError(
        f"expected a model with {name} for {purpose}, got {type(model).__name__} with "
        f"{', '.join(offered) or 'none of ' + ', '.join(known)}"
    )
