"""Scores of whole paths and fields, and scales for them from other rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks, sets
from jaxcp._numbers import as_float, at_least_single, quotient, varying_like
from jaxcp._tree import pytree, static
from jaxcp.quantiles._keys import is_local
from jaxcp.quantiles.levels import as_alpha, check_share, counts_of, ranks
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import inputs
from jaxcp.scores.regression import in_targets, known_units, moved_out
from jaxcp.typing import ArrayLike


@pytree
class Band:
    """The largest error of a whole path or field, in units of the scale at its points.

    max over points t of abs(y_t - center_t) / scale_t. With a fraction f < 1 the
    ceil(f d)-th smallest of the d errors: at least the share f of the points is in the
    band then, and the rest may be anywhere.

    `pred` is (center, scale), any shape that targets have: a path (t,), a field (h, w),
    a field of several channels (h, w, c). The scale has it too, or one that broadcasts
    to it. A scale of +inf leaves a point out, for padding and for fields that are seen
    in part: it is none of the d points, its ends are infinite, and its target may be
    NaN. So it is, where nothing can be checked, with a scale that is <= 0 or NaN. The
    score is 0 if all points are left out, and +inf where another target is NaN.
    A scale must come from other rows than those calibrated on.

    Args:
      fraction: Share of the points, a number in (0, 1], read as a decimal: 0.95 of 40
        points are 38. Of the points that are not left out.

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
      >>> Band()(pred, path), Band(0.6)(pred, path)  # 0.6 of three points are two
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
        y = as_float(y)
        _checks.check_shape("a center", y.shape, jnp.shape(pred[0]))
        center, known, units = _parts(pred)
        errors = _errors(center, known, units, y).ravel()
        if self.fraction == 1:
            return jnp.max(errors)
        # Errors of points that are left out, 0, are the first.
        count = jnp.sum(known, dtype=int)
        rank = errors.size - count + counts_of(self.fraction, count)
        # Kept, for the kernel would compute them anew in each of its rounds.
        return kth_smallest(lax.optimization_barrier(errors), rank)

    def invert(self, pred: tuple[Array, Array], q: Array) -> sets.Band:
        """Returns [center - q scale, center + q scale] at all points."""
        center, known, units = _parts(pred)
        half = in_targets(q, known, units)
        # Nothing scores less than 0, also where a point is left out.
        half = jnp.where(jnp.asarray(q) < 0, -jnp.abs(half), half)
        middle = jnp.where(known, center, 0)

        def inside(y):
            return _errors(center, known, units, y) <= q

        lower, upper = (moved_out(middle, v, half, inside, units) for v in (-1, 1))
        # A point is left out by its scale, not by an end beyond all numbers.
        most = jnp.where(known & (q < jnp.inf), jnp.finfo(lower.dtype).max, jnp.inf)
        ends = jnp.maximum(lower, -most), jnp.minimum(upper, most)
        return sets.Band(*ends, center.ndim, self.fraction)


def _parts(pred):
    """Returns centers, where a scale is known, and scales, all of one shape."""
    center, scale = map(as_float, pred)
    return center, *known_units(jnp.broadcast_to(scale, center.shape))


def _errors(center, known, units, y):
    """Returns errors in units of the scale, 0 where it is not known, +inf of NaN."""
    away = jnp.where(known, y - center, 0)  # whose slope is 0 where y is NaN
    errors = jnp.where(known, jnp.abs(away) / units, 0)
    return jnp.where(jnp.isnan(errors), jnp.inf, errors)


def root_mean_square(residuals: ArrayLike) -> Array:
    """Returns the root mean square of the residuals at each point.

    A scale for `scores.Band`: bands are wide where residuals are large. The rows must
    be other ones than those that the band is calibrated on; the residuals of held-out
    rows, as those of the training rows may be too small.

    Args:
      residuals: y - center of other rows, shape (n, ...).

    Returns:
      Scales, shape residuals.shape[1:]; 0 where a point never errs, NaN for no rows.

    Raises:
      ValueError: if `residuals` has no leading axis, or is NaN somewhere.

    Guarantee:
      None of its own: that of the calibration, whatever the scale.

    Assumption:
      The rows are others than those that the band is calibrated on.

    Cost:
      O(n) time for each point.

    References:
      Diquigiovanni, Fontana, Vantini, Conformal Prediction Bands for Multivariate
      Functional Data, Journal of Multivariate Analysis, 2022.

    See also:
      scores.Band, scores.envelope, learners.MeanScale

    Example:
      >>> root_mean_square(jnp.array([[1.0, 2.0], [-7.0, 2.0]]))
      Array([5., 2.], dtype=float32)
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
      Scales, shape residuals.shape[1:]; 0 where a point never errs, or for no rows.

    Raises:
      ValueError: if `residuals` has no leading axis, or is NaN somewhere, or a known
        `alpha` is outside (0, 1).

    Guarantee:
      None of its own: that of the calibration, whatever the scale.

    Assumption:
      The rows are others than those that the band is calibrated on.

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
def _root_mean_square(residuals: Array) -> Array:
    total = jnp.sum(jnp.square(at_least_single(residuals)), axis=0)
    return jnp.sqrt(quotient(total, len(residuals))).astype(residuals.dtype)


@jax.jit
def _envelope(residuals: Array, rank: Array) -> Array:
    suprema = jnp.max(jnp.abs(residuals), axis=tuple(range(1, residuals.ndim)))
    is_kept = suprema <= kth_smallest(suprema, rank)
    largest = jnp.zeros(residuals.shape[1:], residuals.dtype)

    def step(largest: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        residual, is_kept = row
        size = jnp.where(is_kept, jnp.abs(residual), 0)
        return jnp.maximum(largest, size), None

    rows = residuals, is_kept
    if not is_local():  # the devices keep their rows
        return jnp.max(jax.vmap(step, (None, 0))(largest, rows)[0], axis=0, initial=0)
    # A reduction of the first axis of a field takes twice as long on a CPU.
    return lax.scan(step, varying_like(largest, rows), rows)[0]
