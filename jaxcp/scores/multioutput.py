"""Scores of several outputs together, from points, boxes, ellipsoids or draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks, _geometry
from jaxcp._arrays import as_arrays
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import pytree, static
from jaxcp.quantiles._keys import to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha
from jaxcp.quantiles.selection import empirical_quantile, kth_smallest
from jaxcp.scores import inputs
from jaxcp.scores.rectified import Rectified, ratio_of_distances
from jaxcp.scores.regression import CQR, Absolute, alike
from jaxcp.sets import Ball, Balls, Box, Ellipsoid, Interval
from jaxcp.typing import ArrayLike


@pytree
class Distance:
    """The distance of the target from the prediction: norm(y - mu).

    `pred` is mu, shape () or (d,); of one output all norms are `Absolute`. The sets are
    balls with volumes in closed form; those of the largest error are boxes. One
    threshold holds for all outputs, so they should be in like units.

    Args:
      norm: 1 (the sum of the errors of the outputs), 2 (Euclidean) or `jnp.inf` (the
        largest error), as `ord` of `jnp.linalg.norm`.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data. Small sets need outputs
      in like units.

    Cost:
      O(d) time for a score and for a set.

    References:
      Messoudi, Destercke, Rousseau, Copula-Based Conformal Prediction for Multi-Target
      Regression, Pattern Recognition, 2021, for the largest error.
      Johnstone, Cox, Conformal Uncertainty Sets for Robust Optimization, COPA, 2021.

    See also:
      scores.Absolute, scores.Mahalanobis, sets.Ball

    Example:
      >>> mu, y = jnp.zeros(2), jnp.array([3.0, -4.0])
      >>> [Distance(norm)(mu, y).item() for norm in (1, 2, jnp.inf)]
      [7.0, 5.0, 4.0]
      >>> round(Distance(1).invert(mu, 7.0).size().item(), 3)  # 2^d r^d / d!
      98.0
    """

    norm: float = static(default=2)

    takes = inputs.numbers()

    def __post_init__(self):
        _geometry.check_norm(self.norm)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns norm(y - mu), shape ()."""
        y, mu = alike(y, pred)
        return _geometry.distance(y, mu, self.norm)

    def invert(self, pred: Array, q: Array) -> Ball | Box | Interval:
        """Returns {y : norm(y - mu) <= q}."""
        mu = as_float(pred)
        if mu.ndim == 0 or self.norm == jnp.inf:
            return Absolute().invert(mu, q)
        return Ball(mu, q, self.norm, rounds=len(mu) > _geometry.UNROLLED)


@pytree
class Rectangle:
    """How far the target sticks out of a predicted box: M-CP.

    max_j max(lower_j - y_j, y_j - upper_j), negative inside. `pred` is (lower, upper),
    each of shape () or (d,): one threshold widens all sides alike, where `CQR` has one
    for each output. `Rectangle.bounds` makes such predictions from draws.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data. Small sets need outputs
      in like units.

    Cost:
      O(d) time for a score and for a set.

    References:
      Zhou, Lindemann, Sesia, Conformalized Adaptive Forecasting of Heterogeneous
      Trajectories, ICML, 2024.
      Dheur, Fontana, Estievenart, Desobry, Ben Taieb, A Unified Comparative Study with
      Generalized Conformity Scores for Multi-Output Conformal Regression, ICML, 2025.

    See also:
      scores.CQR, scores.Rectangle.bounds, draw, sets.Box

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
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; means and scales were fitted on other data.

    Cost:
      O(d) time for a score and for a set with standard deviations, O(d^2) with a
      triangular factor.

    References:
      Johnstone, Cox, Conformal Uncertainty Sets for Robust Optimization, COPA, 2021.
      Messoudi, Destercke, Rousseau, Ellipsoidal Conformal Inference for Multi-Target
      Regression, COPA, 2022.

    See also:
      scores.Distance, scores.Normalized, models.GaussianNetwork, sets.Ellipsoid

    Example:
      >>> pred = jnp.zeros(2), jnp.array([[2.0, 0.0], [0.0, 1.0]])
      >>> Mahalanobis()(pred, jnp.array([6.0, 4.0])).item()
      5.0
    """

    takes = inputs.location_scale()

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns norm(scale^-1 (y - mu)), shape ()."""
        mu, scale, y = map(as_float, (*pred, y))
        _checks.check_shape("mu", y.shape, mu.shape)
        _checks.check_shape("a scale", y.shape * scale.ndim, scale.shape)
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


def _check_alpha(self, preds, y=None, mask=None):
    """Raises ValueError for a level outside of (0, 1)."""
    _checks.share("alpha", self.alpha)


@pytree
class PCP:
    """The distance of the target from the nearest draw of the model: PCP.

    `pred` are draws from the predicted law, shape (l, d), in units of the targets. The
    sets are unions of l balls of one radius.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and draws that are fresh for
      every example.

    Cost:
      O(l d) time for a score; a set keeps the l draws.

    References:
      Wang, Gao, Yin, Zhou, Blei, Probabilistic Conformal Prediction Using Conditional
      Random Samples, AISTATS, 2023.

    See also:
      scores.HDPCP, scores.CP2PCP, scores.CDF, draw, volume

    Example:
      >>> draws = jnp.array([[0.0, 0.0], [10.0, 0.0]])
      >>> PCP()(draws, jnp.array([3.0, 4.0])).item()
      5.0
    """

    takes = inputs.draws()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns min_l norm(y - draw_l), shape ()."""
        return _geometry.nearest_distance(*_geometry.as_points(y, pred))

    def invert(self, pred: Array, q: Array) -> Balls:
        """Returns the balls of radius q around the draws."""
        return Balls(pred, q)


@pytree
class HDPCP:
    """The distance from the nearest draw of high density: HD-PCP.

    `PCP` with the max(1, floor((1 - alpha) l)) draws of highest density alone (of equal
    densities the first). `pred` is (draws, log densities), shapes (l, d) and (l,).

    Args:
      alpha: Share of the draws that is left out, in (0, 1), shape ().

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and draws that are fresh for
      every example.

    Cost:
      O(l d) time for a score, without a sort; a set keeps l centers.

    References:
      Wang, Gao, Yin, Zhou, Blei, Probabilistic Conformal Prediction Using Conditional
      Random Samples, AISTATS, 2023.

    See also:
      scores.PCP, scores.CP2PCP, draw

    Example:
      >>> pred = jnp.array([[0.0], [1.0], [5.0]]), jnp.array([-1.0, -2.0, -9.0])
      >>> HDPCP(0.3)(pred, jnp.array([5.0])).item()
      4.0
    """

    alpha: ArrayLike

    takes = inputs.draws(log_densities=True)
    check = _check_alpha

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns the distance from the nearest of the draws kept, shape ()."""
        return PCP()(self._kept(pred), y)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Balls:
        """Returns the balls of radius q around the draws kept."""
        return PCP().invert(self._kept(pred), q)

    def _kept(self, pred):
        """Returns the draws with copies of the densest in place of those left out."""
        draws, log_densities = pred
        _checks.check_shape("log densities", draws.shape[:1], log_densities.shape)
        strangeness = to_keys(-log_densities)
        count = jnp.maximum(len(draws) - _ceil(len(draws), self.alpha), 1)
        last = to_keys(kth_smallest(-log_densities, count))
        tied = strangeness == last
        room = count - jnp.sum(strangeness < last)
        keep = (strangeness < last) | (tied & (jnp.cumsum(tied) <= room))
        keep = keep.reshape(-1, *(1,) * (draws.ndim - 1))
        return jnp.where(keep, draws, draws[jnp.argmin(strangeness)])


_OF_DISTANCES = Rectified(PCP(), ratio_of_distances)


@pytree
class CP2PCP:
    """The distance from the nearest draw, in units of its predicted quantile: CP2-PCP.

    PCP(y) / quantile_(1 - alpha)(PCP(Y_k)), interpolated. `pred` is (reference draws,
    draws), shapes (l, d) and (k, d), independent of each other. The sets are unions of
    balls whose radius depends on the input.

    Args:
      alpha: Level of the quantile, in (0, 1), shape ().

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and draws that are fresh for
      every example.

    Cost:
      O(k l d) time for a score and for a set.

    References:
      Plassier, Fishkov, Guizani, Panov, Moulines, Probabilistic Conformal Prediction
      with Approximate Conditional Validity, ICLR, 2025.

    See also:
      scores.PCP, scores.CDF, draw

    Example:
      >>> pred = jnp.zeros((1, 1)), jnp.arange(1.0, 4.0)[:, None]
      >>> CP2PCP(0.5)(pred, jnp.array([5.0])).item()
      2.5
    """

    alpha: ArrayLike

    takes = inputs.parts(reference_draws=inputs.draws(), draws=inputs.draws())
    check = _check_alpha

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns PCP(y) / quantile_(1 - alpha)(PCP(Y_k)), shape ()."""
        return _OF_DISTANCES((pred[0], self._scale(pred)), y)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Balls:
        """Returns the balls of radius q quantile_(1 - alpha)(PCP(Y_k))."""
        return _OF_DISTANCES.invert((pred[0], self._scale(pred)), q)

    def _scale(self, pred):
        references, draws = pred
        distances = jax.vmap(PCP(), (None, 0))(references, draws)
        alpha = jnp.asarray(self.alpha, at_least_single(distances).dtype)
        return empirical_quantile(distances, 1 - alpha)


def _ceil(count, alpha):
    """Returns ceil(count alpha), as `conformal_rank` reads a level with rounding."""
    alpha = at_least_single(as_float(alpha))
    exact = 1 - 3 * jnp.finfo(alpha.dtype).eps
    return jnp.ceil(count * alpha * exact).astype(int)
