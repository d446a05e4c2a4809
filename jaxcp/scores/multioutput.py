"""Scores of several outputs together, from predicted boxes and ellipsoids."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks, _geometry
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.quantiles.empirical import empirical_quantile
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.scores._preds import check_bands, check_draws, check_numbers, check_tuple
from jaxcp.scores.regression import CQR
from jaxcp.sets import Box, Ellipsoid, Interval
from jaxcp.typing import ArrayLike, PyTree


@pytree
class Rectangle:
    """How far the target sticks out of a predicted box: M-CP.

    max_j max(lower_j - y_j, y_j - upper_j), negative inside. `pred` is (lower, upper),
    each of shape (d,): one threshold widens all sides alike, where `CQR` has one for
    each output. `Rectangle.bounds` makes such predictions of draws.

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

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns max_j max(lower_j - y_j, y_j - upper_j), shape ()."""
        sides = jnp.atleast_1d(CQR()(pred, y))
        return sides[jnp.argmax(lax.stop_gradient(sides))]

    def invert(self, pred: tuple[Array, Array], q: Array) -> Box | Interval:
        """Returns the box with corners lower - q and upper + q."""
        return CQR().invert(pred, q)

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless preds are pairs, in order in most rows."""
        check_bands(preds, y, mask)

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
        check_draws(draws)
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

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns norm(scale^-1 (y - mu)), shape ()."""
        mu, scale, y = map(as_float, (*pred, y))
        if mu.shape != y.shape or scale.shape not in ((len(y),), (len(y), len(y))):
            raise ValueError(
                f"expected (mu, scale) of shapes ({y.size},) and ({y.size}, {y.size}) "
                f"for a target of shape {y.shape}, got {mu.shape} and {scale.shape}"
            )
        known, scale = _known(scale)
        return jnp.where(
            known, _geometry.norm(_geometry.whiten(scale, y - mu)), -jnp.inf
        )

    def invert(self, pred: tuple[Array, Array], q: Array) -> Ellipsoid:
        """Returns the ellipsoid norm(scale^-1 (y - mu)) <= q."""
        mu, scale = map(as_float, pred)
        known, scale = _known(scale)
        return Ellipsoid(mu, scale, jnp.where(known, q, jnp.inf))

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless preds are pairs with valid scales."""
        check_numbers(preds, y)
        mu, scale = check_tuple("(mu, scale)", preds, 2)
        d = jnp.shape(mu)[-1]
        if jnp.ndim(mu) != 2 or jnp.shape(scale)[1:] not in ((d,), (d, d)):
            raise ValueError(
                "expected mu of shape (n, d) and scale of shape (n, d) or (n, d, d), "
                f"got {jnp.shape(mu)} and {jnp.shape(scale)}"
            )
        if jnp.ndim(scale) == 3:
            lower = lambda s: np.triu(s, 1) == 0  # noqa: E731
            expected = "a lower triangular scale (e.g. from a Cholesky decomposition)"
            _checks.check_values(lower, expected, scale, mask)
        if y is not None:
            full = jnp.ndim(scale) == 3
            diagonal = jnp.diagonal(scale, axis1=1, axis2=2) if full else scale
            _checks.check_values(lambda s: s > 0, "scales > 0", diagonal, mask)


def _known(scale):
    """Returns whether all scales are positive and finite, and `scale` or ones."""
    diagonal = _geometry.diagonal(scale)
    known = jnp.all((diagonal > 0) & jnp.isfinite(diagonal))
    unit = jnp.ones_like(scale) if scale.ndim == 1 else jnp.eye(len(scale))
    return known, jnp.where(known, scale, unit.astype(scale.dtype))
