"""Scores of several outputs together, from draws of the model: distances to them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks, _geometry
from jaxcp._numbers import as_float, at_least_single
from jaxcp._pytree import pytree
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.quantiles.empirical import empirical_quantile
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import inputs
from jaxcp.sets import Balls
from jaxcp.typing import ArrayLike


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
