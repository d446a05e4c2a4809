"""Scores of several outputs together, from predicted boxes, ellipsoids and draws."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks, _geometry
from jaxcp._pytree import pytree
from jaxcp._types import PyTree
from jaxcp.empirical import empirical_quantile
from jaxcp.scores.regression import CQR
from jaxcp.selection import (
    as_float,
    at_least_single,
    bisect_keys,
    from_keys,
    kth_smallest,
    to_keys,
)
from jaxcp.sets import Balls, Box, Ellipsoid, Interval


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

    def check(self, preds: PyTree, y: Array | None = None, mask=None) -> None:
        """Raises ValueError unless preds are pairs."""
        CQR().check(preds, y, mask)

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
        draws = _checks.as_arrays(draws)
        _checks.check_draws(draws)
        alpha = _checks.alpha_as_float(_checks.as_alpha(alpha))
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
        mu, scale = pred
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
        mu, scale = pred
        known, scale = _known(scale)
        return Ellipsoid(mu, scale, jnp.where(known, q, jnp.inf))

    def check(self, preds: PyTree, y: Array | None = None, mask=None) -> None:
        """Raises ValueError unless preds are pairs with valid scales."""
        mu, scale = _checks.check_tuple("(mu, scale)", preds, 2)
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


@pytree
class PCP:
    """The distance of the target from the nearest draw of the model: PCP.

    `pred` are draws from the predicted law, shape (l, d), in units of the targets. The
    sets are unions of l balls of one radius.

    Guarantee:
      1 - alpha for exchangeable data and draws that are fresh for every example.

    References:
      Wang et al., Probabilistic Conformal Prediction Using Conditional Random Samples,
      2023.

    Example:
      >>> draws = jnp.array([[0.0, 0.0], [10.0, 0.0]])
      >>> PCP()(draws, jnp.array([3.0, 4.0])).item()
      5.0
    """

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns min_l norm(y - draw_l), shape ()."""
        return _geometry.nearest_distance(*_geometry.as_points(y, pred))

    def invert(self, pred: Array, q: Array) -> Balls:
        """Returns the balls of radius q around the draws."""
        return Balls(pred, q)

    def check(self, preds: Array, y: Array | None = None, mask=None) -> None:
        """Raises ValueError unless preds are draws of the shape of the targets."""
        _checks.check_draws(preds, y)


@pytree
class HDPCP:
    """The distance from the nearest draw of high density: HD-PCP.

    `PCP` with the max(1, floor((1 - alpha) l)) draws of highest density alone (of equal
    densities the first). `pred` is (draws, log densities), shapes (l, d) and (l,).

    Args:
      alpha: Share of the draws that is left out, in (0, 1), shape ().

    Guarantee:
      1 - alpha for exchangeable data and draws that are fresh for every example.

    References:
      Wang et al., Probabilistic Conformal Prediction Using Conditional Random Samples,
      2023.

    Example:
      >>> pred = jnp.array([[0.0], [1.0], [5.0]]), jnp.array([-1.0, -2.0, -9.0])
      >>> HDPCP(0.3)(pred, jnp.array([5.0])).item()
      4.0
    """

    alpha: ArrayLike

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns the distance from the nearest of the draws kept, shape ()."""
        return PCP()(self._kept(pred), y)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Balls:
        """Returns the balls of radius q around the draws kept."""
        return PCP().invert(self._kept(pred), q)

    def check(self, preds: PyTree, y: Array | None = None, mask=None) -> None:
        """Raises ValueError unless preds are draws with a log density each."""
        draws, log_densities = _checks.check_tuple("(draws, log densities)", preds, 2)
        _checks.check_draws(draws, y)
        _check_alpha(self.alpha)
        if log_densities.shape != draws.shape[:2]:
            raise ValueError(
                f"expected log densities of shape {draws.shape[:2]} like the draws, "
                f"got {log_densities.shape}"
            )

    def _kept(self, pred):
        """Returns the draws with copies of the densest in place of those left out."""
        draws, log_densities = pred
        strangeness = to_keys(-log_densities)
        count = jnp.maximum(len(draws) - _ceil(len(draws), self.alpha), 1)
        last = to_keys(kth_smallest(-log_densities, count))
        tied = strangeness == last
        room = count - jnp.sum(strangeness < last)
        keep = (strangeness < last) | (tied & (jnp.cumsum(tied) <= room))
        keep = keep.reshape(-1, *(1,) * (draws.ndim - 1))
        return jnp.where(keep, draws, draws[jnp.argmin(strangeness)])


@pytree
class CP2PCP:
    """The distance from the nearest draw, in units of its predicted quantile: CP2-PCP.

    PCP(y) / quantile_(1 - alpha)(PCP(Y_k)), interpolated. `pred` is (reference draws,
    draws), shapes (l, d) and (k, d), independent of each other. The sets are unions of
    balls whose radius depends on the input.

    Args:
      alpha: Level of the quantile, in (0, 1), shape ().

    Guarantee:
      1 - alpha for exchangeable data and draws that are fresh for every example.

    References:
      Plassier et al., Probabilistic Conformal Prediction with Approximate Conditional
      Validity, 2025.

    Example:
      >>> pred = jnp.zeros((1, 1)), jnp.arange(1.0, 4.0)[:, None]
      >>> CP2PCP(0.5)(pred, jnp.array([5.0])).item()
      2.5
    """

    alpha: ArrayLike

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns PCP(y) / quantile_(1 - alpha)(PCP(Y_k)), shape ()."""
        return _ratio(PCP()(pred[0], y), self._scale(pred))

    def invert(self, pred: tuple[Array, Array], q: Array) -> Balls:
        """Returns the balls of radius q quantile_(1 - alpha)(PCP(Y_k))."""
        scale = self._scale(pred)
        fixed = lax.stop_gradient((scale, jnp.asarray(q, scale.dtype)))

        def inside(key):  # the product q scale may round to below a distance inside
            return _ratio(from_keys(key, scale.dtype), fixed[0]) <= fixed[1]

        radius = from_keys(bisect_keys(inside, to_keys(scale).dtype), scale.dtype)
        finite = jnp.isfinite(q) & jnp.isfinite(scale) & jnp.isfinite(radius)
        product = jnp.where(finite, q, 0) * jnp.where(finite, scale, 0)
        finite &= jnp.isfinite(product)
        slope = jnp.where(finite, product - lax.stop_gradient(product), 0)
        return Balls(pred[0], radius + slope)

    def check(self, preds: PyTree, y: Array | None = None, mask=None) -> None:
        """Raises ValueError unless preds are two sets of draws."""
        references, draws = _checks.check_tuple("(reference draws, draws)", preds, 2)
        _checks.check_draws(references, y)
        _checks.check_draws(draws, y)
        _check_alpha(self.alpha)

    def _scale(self, pred):
        references, draws = pred
        distances = jax.vmap(PCP(), (None, 0))(references, draws)
        alpha = jnp.asarray(self.alpha, at_least_single(distances).dtype)
        return empirical_quantile(distances, 1 - alpha)


def _ratio(distance, scale):
    ratio = distance / jnp.where(scale > 0, scale, 1)
    return jnp.where(scale > 0, ratio, jnp.where(distance > 0, jnp.inf, 0))


def _ceil(count, alpha):
    """Returns ceil(count alpha), as `conformal_rank` reads a level with rounding."""
    alpha = at_least_single(as_float(alpha))
    exact = 1 - 3 * jnp.finfo(alpha.dtype).eps
    return jnp.ceil(count * alpha * exact).astype(int)


def _known(scale):
    """Returns whether all scales are positive and finite, and `scale` or ones."""
    diagonal = _geometry.diagonal(scale)
    known = jnp.all((diagonal > 0) & jnp.isfinite(diagonal))
    unit = jnp.ones_like(scale) if scale.ndim == 1 else jnp.eye(len(scale))
    return known, jnp.where(known, scale, unit.astype(scale.dtype))


def _check_alpha(alpha):
    _checks.check_scalars(alpha=alpha)
    _checks.check_values(lambda a: (a > 0) & (a < 1), "alpha in (0, 1)", alpha)
