"""Scores of several outputs together, from predicted boxes and ellipsoids."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks, _geometry
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.quantiles.empirical import empirical_quantile
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.scores import inputs
from jaxcp.scores.regression import CQR
from jaxcp.sets import Box, Ellipsoid, Interval
from jaxcp.typing import ArrayLike


@pytree
class Rectangle:
    """How far the target sticks out of a predicted box: M-CP.

    max_j max(lower_j - y_j, y_j - upper_j), negative inside. `pred` is (lower, upper),
    each of shape () or (d,): one threshold widens all sides alike, where `CQR` has one
    for each output. `Rectangle.bounds` makes such predictions of draws.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Zhou et al., Conformalized Adaptive Forecasting of Heterogeneous Trajectories,
      2024.
      Dheur et al., A Unified Comparative Study with Generalized Conformity Scores for
      Multi-Output Conformal Regression, 2025.

    Example:
      >>> pred = jnp.zeros(2), jnp.ones(2)
      >>> Rectangle()(pred, jnp.array([0.5, 3.0])).item()
      2.0
    """

    takes = inputs.band()

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns max_j max(lower_j - y_j, y_j - upper_j), shape ()."""
        sides = jnp.atleast_1d(CQR()(pred, y))
        return sides[jnp.argmax(lax.stop_gradient(sides))]

    def invert(self, pred: tuple[Array, Array], q: Array) -> Box | Interval:
        """Returns the box with corners lower - q and upper + q."""
        return CQR().invert(pred, q)

    @staticmethod
    def bounds(draws: ArrayLike, alpha: ArrayLike) -> tuple[Array, Array]:
        """Returns predictions from draws: the alpha/2 and 1 - alpha/2 quantiles.

        Args:
          draws: Draws of a model at each input, shape (n, l, d).
          alpha: Miscoverage level in (0, 1), shape ().

        Returns:
          (lower, upper), each of shape (n, d), quantiles of each output apart,
          interpolated.

        Raises:
          ValueError: if `draws` has another number of axes or alpha is outside (0, 1).
        """
        draws = as_arrays(draws=draws)
        inputs.draws().check(draws, None, None)
        alpha = alpha_as_float(as_alpha(alpha))
        _checks.check_scalars(alpha=alpha)
        each = jax.vmap(empirical_quantile, (0, None))
        return each(draws, alpha / 2), each(draws, 1 - alpha / 2)


@pytree
class Mahalanobis:
    """The error in units of the predicted scale: norm(scale^-1 (y - mu)).

    `pred` is (mu, scale): the mean, shape (d,), and standard deviations, shape (d,), or
    a lower triangular factor of the covariance, shape (d, d). Where the diagonal is not
    positive and finite the score is -inf and the set the whole space.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Johnstone, Cox, Conformal Uncertainty Sets for Robust Optimization, 2021.
      Messoudi, Destercke, Rousseau, Ellipsoidal Conformal Inference for Multi-Target
      Regression, 2022.

    Example:
      >>> pred = jnp.zeros(2), jnp.array([[2.0, 0.0], [0.0, 1.0]])
      >>> Mahalanobis()(pred, jnp.array([6.0, 4.0])).item()
      5.0
    """

    takes = inputs.location_scale()

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns norm(scale^-1 (y - mu)), shape ()."""
        mu, scale, y = map(as_float, (*pred, y))
        if mu.shape != y.shape or scale.shape not in ((len(y),), (len(y), len(y))):
            raise ValueError(
                f"expected (mu, scale) of shapes ({y.size},) and ({y.size}, {y.size}) "
                f"for a target of shape {y.shape}, got {mu.shape} and {scale.shape}"
            )
        known, scale = _known(scale)
        distance = _geometry.norm(_geometry.whiten(scale, y - mu))
        return jnp.where(known, distance, -jnp.inf)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Ellipsoid:
        """Returns the ellipsoid norm(scale^-1 (y - mu)) <= q."""
        mu, scale = map(as_float, pred)
        known, scale = _known(scale)
        return Ellipsoid(mu, scale, jnp.where(known, q, jnp.inf))


def _known(scale):
    """Returns whether all scales are positive and finite, and `scale` or ones."""
    diagonal = _geometry.diagonal(scale)
    known = jnp.all((diagonal > 0) & jnp.isfinite(diagonal))
    unit = jnp.ones_like(scale) if scale.ndim == 1 else jnp.eye(len(scale))
    return known, jnp.where(known, scale, unit.astype(scale.dtype))
