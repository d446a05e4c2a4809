"""Scores of whole paths and fields, and scales for them from other rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks, sets
from jaxcp._numbers import as_float, mean
from jaxcp._tree import pytree, static
from jaxcp.quantiles.levels import as_alpha, check_share, count_of, ranks
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import inputs
from jaxcp.scores.regression import in_targets, known_units, moved_out
from jaxcp.typing import ArrayLike


@pytree
class Band:
    """The largest error of a whole path or field, in units of the scale at its points.

    max over points t of abs(y_t - center_t) / scale_t. With a fraction f < 1 the
    ceil(f d)-th smallest of the d errors, at least the first: at least the share f of
    the points is in the band then, and the rest may be anywhere.

    `pred` is (center, scale). The center has the shape of a target, any: a path (t,), a
    field (h, w), a field of several channels (h, w, c). The scale has the same shape,
    or one that broadcasts to it. A scale of +inf leaves a point out, for padding and
    for fields that are seen in part: its score is 0, and its ends are infinite. So it
    is, where nothing can be checked, with a scale that is <= 0 or NaN. The score is
    +inf where a target is NaN. A scale must come from other rows than those calibrated
    on.

    Args:
      fraction: Share of the points, a number in (0, 1], read as a decimal: 0.95 of 40
        points are 38. Points that are left out count among those inside.

    Raises:
      ValueError: if `fraction` is no number in (0, 1].

    Guarantee:
      At least 1 - alpha that all points (that the share of the points) are in the band
      together, at a threshold from `calibrate`; exactly k / (n + 1) without ties.

    Assumption:
      Exchangeable paths or fields, and a model and scales fitted on other data. Points
      of one field may depend on each other in any way.

    Cost:
      O(d) time for a score and for a set.

    References:
      Diquigiovanni, Fontana, Vantini, Conformal Prediction Bands for Multivariate
      Functional Data, Journal of Multivariate Analysis, 2022.
      Ma, Pitt, Azizzadenesheli, Anandkumar, Calibrated Uncertainty Quantification for
      Operator Learning via Conformal Prediction, TMLR, 2024.

    See also:
      sets.Band, scores.root_mean_square, scores.envelope, scores.Normalized

    Example:
      >>> pred = jnp.zeros(4), jnp.array([1.0, 1.0, 2.0, jnp.inf])
      >>> path = jnp.array([1.0, -2.0, 3.0, 9.0])
      >>> Band()(pred, path), Band(0.75)(pred, path)
      (Array(2., dtype=float32), Array(1.5, dtype=float32))
      >>> Band().invert(pred, 2.0).upper
      Array([ 2.,  2.,  4., inf], dtype=float32)
    """

    fraction: float = static(default=1.0)

    takes = inputs.field()

    def __post_init__(self) -> None:
        check_share("fraction", self.fraction)

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns the largest error, or that of the share's last point, shape ()."""
        (center, scale), y = pred, as_float(y)
        _checks.check_shape("a center", y.shape, jnp.shape(center))
        errors = _errors(as_float(center), as_float(scale), y).ravel()
        if self.fraction == 1:
            return largest(errors)
        return kth_smallest(errors, count_of(self.fraction, errors.size))

    def invert(self, pred: tuple[Array, Array], q: Array) -> sets.Band:
        """Returns [center - q scale, center + q scale] at all points."""
        center, scale = jnp.broadcast_arrays(*map(as_float, pred))
        known, units = known_units(scale)
        half = in_targets(q, known, units)
        # Nothing scores less than 0, also where a point is left out.
        half = jnp.where(jnp.asarray(q) < 0, -jnp.abs(half), half)

        def inside(y):
            return _errors(center, scale, y) <= q

        lower, upper = (moved_out(center, v, half, inside, units) for v in (-1, 1))
        return sets.Band(lower, upper, center.ndim, self.fraction)


def _errors(center, scale, y):
    """Returns errors in units of the scale, 0 where it is not known, +inf of NaN."""
    known, units = known_units(scale)
    errors = jnp.where(known, jnp.abs(y - center) / units, 0)
    return jnp.where(jnp.isnan(errors) | jnp.isnan(y), jnp.inf, errors)


@jax.custom_jvp
def largest(values: Array) -> Array:
    """Returns the largest of values (d,), with the slope of the first that is."""
    return jnp.max(values)


@largest.defjvp
def _largest_jvp(primals, tangents):
    place = jnp.argmax(primals[0])
    return jnp.max(primals[0]), tangents[0][place]


def root_mean_square(residuals: ArrayLike) -> Array:
    """Returns the root mean square of the residuals at each point.

    A scale for `scores.Band`: bands are wide where residuals are large. The rows must
    be other ones than those that the band is calibrated on; the residuals of held-out
    rows, as those of the training rows may be too small.

    Args:
      residuals: y - center of other rows, shape (n, ...).

    Returns:
      Scales, shape residuals.shape[1:]; NaN for no rows, 0 where a point never errs.

    Raises:
      ValueError: if `residuals` has no leading axis, or is NaN somewhere.

    Guarantee:
      None of its own: that of the calibration, whatever the scale.

    Cost:
      O(n) time for each point.

    See also:
      scores.Band, scores.envelope, learners.MeanScale

    Example:
      >>> root_mean_square(jnp.array([[3.0, 1.0], [-4.0, 1.0]]))
      Array([3.5355339, 1.       ], dtype=float32)
    """
    return _root_mean_square(_rows(residuals))


def envelope(residuals: ArrayLike, alpha: float) -> Array:
    """Returns the largest residual at each point, of all curves but the most extreme.

    max abs(r_i) over the curves i whose largest residual max_t abs(r_it) is at most the
    conformal quantile of these maxima at alpha. All curves count where this is infinite
    (n < 1 / alpha - 1). A scale for `scores.Band`, from other rows than those that the
    band is calibrated on.

    Args:
      residuals: y - center of other rows, shape (n, ...).
      alpha: Miscoverage level of the band to come, a number in (0, 1).

    Returns:
      Scales, shape residuals.shape[1:]; 0 where a point never errs.

    Raises:
      ValueError: if `residuals` has no rows, or is NaN somewhere, or `alpha` is outside
        (0, 1).

    Guarantee:
      None of its own: that of the calibration, whatever the scale.

    Cost:
      O(n) time for each point.

    References:
      Diquigiovanni, Fontana, Vantini, Conformal Prediction Bands for Multivariate
      Functional Data, Journal of Multivariate Analysis, 2022.

    See also:
      scores.Band, scores.root_mean_square, conformal_quantile

    Example:
      >>> residuals = jnp.array([[1.0, -2.0], [2.0, 1.0], [0.0, 9.0]])
      >>> envelope(residuals, 0.5)  # the third is the most extreme
      Array([2., 2.], dtype=float32)
    """
    residuals = _rows(residuals)
    return _envelope(residuals, ranks(len(residuals), as_alpha(alpha)))


def _rows(residuals):
    residuals = _checks.rows(residuals=residuals)
    _checks.check_not_nan("residuals", residuals)
    return as_float(residuals)


@jax.jit
def _root_mean_square(residuals):
    return jnp.sqrt(mean(residuals**2))


@jax.jit
def _envelope(residuals, rank):
    sizes = jnp.abs(residuals)
    largest = jnp.max(sizes.reshape(len(sizes), -1), axis=1)
    kept = largest <= kth_smallest(largest, rank)
    kept = kept.reshape(-1, *(1,) * (sizes.ndim - 1))
    return jnp.max(jnp.where(kept, sizes, 0), axis=0)
