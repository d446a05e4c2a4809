"""Scores of numbers, one component each, and of boxes around objects in images.

Ends of their sets hold the very target whose score rounds to the threshold.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import pytree, static
from jaxcp.scores import inputs
from jaxcp.sets import BoundingBox, Box, Interval


def known_units(units):
    """Returns where units are positive and finite, and units with 1 elsewhere."""
    known = (units > 0) & jnp.isfinite(units)
    return known, jnp.where(known, units, 1)


def in_targets(q, known, units):
    """Returns q units of the targets, +inf where the unit is not known."""
    # Infinite thresholds stay out of the product: its gradient would be NaN.
    finite = jnp.isfinite(q)
    length = jnp.where(finite, jnp.where(finite, q, 0) * units, q)
    return jnp.where(known, length, jnp.inf)


def moved_out(pred, side, step, inside, unit=1.0):
    """Returns pred + side step, moved out to its side by rounding where it must be.

    `mu + q` may round to below the very target whose score rounds to q.
    """
    end = pred + jnp.asarray(side, pred.dtype) * step
    return end_moved_out(end, side, jnp.abs(pred) + jnp.abs(step), inside, unit)


def end_moved_out(end, side, magnitude, inside, unit=1.0):
    """Returns an end, moved out to its side by rounding where it must be.

    By one number if the next target is still inside, and by the rounding error of
    numbers of this `magnitude`, of scores in this `unit`, if the one after it is too.
    """
    side = jnp.asarray(side, end.dtype)
    at, magnitude, unit = lax.stop_gradient((end, magnitude, unit))
    info = jnp.finfo(at.dtype)
    first = next_number(at, side)
    rounding = side * 2 * (info.eps * magnitude + _least(info) * (1 + unit))
    # Steps of the smallest numbers are flushed to 0, and those of 0 are not.
    least = side * jnp.maximum(jnp.abs(first - at), _least(info))
    step = jnp.where(inside(next_number(first, side)), rounding, least).astype(at.dtype)
    moves = inside(first) & jnp.isfinite(first) & jnp.isfinite(at)
    return end + jnp.where(moves, step, 0)


def next_number(at, side):
    """Returns the next number on a side; that of 0 is one that is not taken for 0."""
    following = jnp.nextafter(at, jnp.full_like(at, side * jnp.inf))
    return jnp.where(at == 0, side * _least(jnp.finfo(at.dtype)), following)


def _least(info):
    """Returns the smallest number that arithmetic does not flush to 0."""
    # Half precision is computed in single precision, which holds its subnormals.
    half = info.dtype == jnp.float16
    return (info.smallest_subnormal if half else info.tiny).astype(info.dtype)


@pytree
class Absolute:
    """The distance of the target from the prediction: abs(y - mu).

    `pred` is mu, shape () or (d,); with d outputs there are d components and the sets
    are boxes (family-wise: alpha is split over the outputs).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Papadopoulos, Proedrou, Vovk, Gammerman, Inductive Confidence Machines for
      Regression, ECML, 2002.
      Lei, G'Sell, Rinaldo, Tibshirani, Wasserman, Distribution-Free Predictive
      Inference for Regression, JASA, 2018.

    See also:
      scores.Normalized, scores.CQR, scores.Distance, scores.Signed

    Example:
      >>> Absolute()(jnp.asarray(1.0), jnp.asarray(3.0)).item()
      2.0
    """

    takes = inputs.numbers()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns abs(y - mu), shape () or (d,)."""
        y, mu = alike(y, pred)
        return jnp.abs(y - mu)

    def invert(self, pred: Array, q: Array) -> Interval | Box:
        """Returns [mu - q, mu + q]."""
        return CQR().invert((pred, pred), q)


@pytree
class Normalized:
    """The error in units of the predicted scale: abs(y - mu) / sigma.

    `pred` is (mu, sigma), each of shape () or (d,). Where sigma is not positive and
    finite, nothing is known about the scale: the score is -inf and the set the whole
    line.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; mu and sigma were fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Papadopoulos, Gammerman, Vovk, Normalized Nonconformity Measures for Regression
      Conformal Prediction, Artificial Intelligence and Applications, 2008.

    See also:
      learners.MeanScale, scores.CQR, scores.Absolute, scores.Mahalanobis

    Example:
      >>> Normalized()((jnp.asarray(1.0), jnp.asarray(4.0)), jnp.asarray(3.0)).item()
      0.5
    """

    takes = inputs.pair("mu", "sigma", positive="sigma")

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns abs(y - mu) / sigma, shape () or (d,)."""
        y, mu, sigma = alike(y, *pred)
        known, sigma = known_units(sigma)
        return jnp.where(known, jnp.abs(y - mu) / sigma, -jnp.inf)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Interval | Box:
        """Returns [mu - q sigma, mu + q sigma]."""
        mu, sigma = map(as_float, pred)
        known, sigma = known_units(sigma)
        half = in_targets(q, known, sigma)

        def inside(y):
            return self(pred, y) <= q

        ends = (moved_out(mu, side, half, inside, sigma) for side in (-1, 1))
        return between(*ends)


@pytree
class Gamma:
    """The error in units of the prediction: abs(y - mu) / mu, for mu > 0.

    `pred` is mu, shape () or (d,).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and positive predictions.

    Cost:
      O(d) time for a score and for a set.

    References:
      Cordier et al., Flexible and Systematic Uncertainty Estimation with Conformal
      Prediction via the MAPIE Library, COPA, 2023.

    See also:
      scores.Absolute, scores.Normalized

    Example:
      >>> Gamma()(jnp.asarray(2.0), jnp.asarray(3.0)).item()
      0.5
    """

    takes = inputs.numbers(positive=True)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns abs(y - mu) / mu, shape () or (d,)."""
        return Normalized()((pred, pred), y)

    def invert(self, pred: Array, q: Array) -> Interval | Box:
        """Returns [mu - q mu, mu + q mu]."""
        return Normalized().invert((pred, pred), q)


@pytree
class CQR:
    """How far the target lies outside of two predicted quantiles.

    max(lower - y, y - upper), negative inside. `pred` is (lower, upper), each of shape
    () or (d,). A negative threshold narrows the band and may empty it.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever the levels of the two
      quantiles.

    Assumption:
      Exchangeable examples, and quantiles fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Romano, Patterson, Candes, Conformalized Quantile Regression, NeurIPS, 2019.

    See also:
      learners.QuantileRidge, scores.AsymmetricCQR, scores.Normalized, scores.Rectangle

    Example:
      >>> CQR()((jnp.asarray(0.0), jnp.asarray(2.0)), jnp.asarray(3.0)).item()
      1.0
    """

    takes = inputs.band()

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns max(lower - y, y - upper), shape () or (d,)."""
        y, lower, upper = alike(y, *pred)
        return jnp.maximum(lower - y, y - upper)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Interval | Box:
        """Returns [lower - q, upper + q]."""
        return _widened(*pred, (q, q))


@pytree
class AsymmetricCQR:
    """The two sides (lower - y, y - upper) of CQR, calibrated apart at alpha / 2 each.

    `pred` is (lower, upper), each of shape () or (d,), with 2 or 2 d components. Give
    `alpha` as a pair for other shares.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate` (union bound over the sides).

    Assumption:
      Exchangeable examples, and quantiles fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Romano, Patterson, Candes, Conformalized Quantile Regression, NeurIPS, 2019,
      theorem 2.

    See also:
      scores.CQR, scores.Signed

    Example:
      >>> pred = jnp.asarray(0.0), jnp.asarray(2.0)
      >>> AsymmetricCQR()(pred, jnp.asarray(3.0)).tolist()
      [-3.0, 1.0]
    """

    takes = inputs.band()

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns (lower - y, y - upper), shape (2,) or (2 d,)."""
        return _sides(*pred, y)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Interval | Box:
        """Returns [lower - q_0, upper + q_1]."""
        if jnp.size(q) == 1:
            return _widened(*pred, (q, q))
        q_lower, q_upper = jnp.reshape(q, (2, -1))  # of all outputs, or of each
        return _widened(*pred, (q_lower, q_upper))


def alike(y: Array, *preds: Array) -> tuple[Array, ...]:
    """Returns floats in the shape of `y`; a single output may come as () or (1,)."""
    y, *preds = map(as_float, (y, *preds))
    for pred in preds:
        if not pred.size == 1 == y.size:
            _checks.check_shape("a prediction", y.shape, pred.shape)
    return y, *(pred.reshape(y.shape) for pred in preds)


def between(lower, upper):
    """Returns the interval with these ends, or of several outputs the box.

    The one place where a single output with an axis of its own, () or (1,), loses it.
    """
    if jnp.size(lower) == 1 == jnp.size(upper):
        return Interval(jnp.reshape(lower, ()), jnp.reshape(upper, ()))
    return Box(lower, upper)


def _sides(lower, upper, y):
    y, lower, upper = alike(y, lower, upper)
    return jnp.concatenate([jnp.atleast_1d(lower - y), jnp.atleast_1d(y - upper)])


def _widened(lower: Array, upper: Array, q: tuple[Array, Array]) -> Interval | Box:
    """Returns [lower - q_0, upper + q_1], each q for all outputs or one for each."""
    lower, upper = alike(lower, upper)
    dtype = jnp.promote_types(lower.dtype, upper.dtype)
    ends = zip((lower, upper), (-1, 1), q, strict=True)
    return between(*(_end(pred.astype(dtype), side, own) for pred, side, own in ends))


def _end(pred: Array, side: int, q: Array) -> Array:
    """Returns pred + side q, moved out to its side.

    Each by itself: both in one array would be computed twice, as each is read.
    """
    own = jnp.reshape(q, pred.shape) if jnp.size(q) == pred.size else q
    own = jnp.broadcast_to(own, pred.shape)

    def inside(y):  # by this side alone, also where rounding lets the two cross
        return side * (y - pred) <= own

    return moved_out(pred, side, own, inside)


@pytree
class BoxOffset:
    """How far the true box sticks out of the predicted one, on each of four sides.

    `pred` and the target are (x_min, y_min, x_max, y_max), shape (4,). All margins
    point outward: the score is (pred - true) at the min sides and (true - pred) at the
    max sides, and the set is the predicted box grown by the thresholds. Four components
    are calibrated at alpha / 4 each; their maximum has one exact threshold.

    Args:
      relative: Whether margins are in units of the width and the height of the
        predicted box, not in pixels. A flat box has no unit, and its set has no ends.
      inner: Whether the set is a box that lies inside of the object, not around it:
        margins then say how far the prediction sticks out of the truth.
      maximum: Whether the score is the largest of the four margins, shape ().

    Guarantee:
      The outer box contains the true one (the true one contains the inner box) with
      probability >= 1 - alpha; exactly k / (n + 1) with `maximum` and no ties.

    Assumption:
      Matched objects are exchangeable.

    Cost:
      O(1) time for a score and for a set.

    References:
      Andeol, Fel, de Grancey, Mossina, Confident Object Detection via Conformal
      Prediction and Conformal Risk Control: An Application to Railway Signaling, COPA,
      2023 (with one sign for all sides, which shrinks the max sides).

    See also:
      detection.calibrate_boxes, detection.match_images, sets.BoundingBox

    Example:
      >>> pred, true = jnp.array([2.0, 2.0, 6.0, 6.0]), jnp.array([1.0, 3.0, 7.0, 5.0])
      >>> BoxOffset()(pred, true).tolist()
      [1.0, -1.0, 1.0, -1.0]
    """

    relative: bool = static(default=False)
    inner: bool = static(default=False)
    maximum: bool = static(default=False)

    takes = inputs.boxes()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the margins left, top, right and bottom, shape (4,), or the largest.

        Left and top are the sides of x_min and y_min.
        """
        margins = self._margins(as_float(pred), as_float(y))
        if not self.maximum:
            return margins
        return margins[jnp.argmax(lax.stop_gradient(margins))]

    def invert(self, pred: Array, q: Array) -> BoundingBox:
        """Returns the predicted box with its sides moved by q, shape () or (4,)."""
        pred = as_float(pred)
        (known, unit), signs = self._units(pred), self._signs()
        q = jnp.broadcast_to(q, (4,)).astype(jnp.result_type(q, unit))

        def inside(y):
            return self._margins(pred, y) <= q

        step = in_targets(q, known, unit)
        ends = moved_out(pred, signs, step, inside, unit)
        return BoundingBox(ends[:2], ends[2:], self.inner)

    def check(
        self, preds: Array, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for flat boxes, which have no unit, at calibration."""
        if self.relative and y is not None:
            valid = "preds with width and height > 0"
            sides = preds[:, 2:] - preds[:, :2]
            _checks.check_range(lambda v: v > 0, valid, sides, mask)

    def _margins(self, pred, y):
        known, unit = self._units(pred)
        return jnp.where(known, self._signs() * (y - pred) / unit, -jnp.inf)

    def _signs(self):
        """Returns the way out of the set, for each side."""
        outward = jnp.array([-1, -1, 1, 1])
        return -outward if self.inner else outward

    def _units(self, pred):
        """Returns where a side has a unit, and the unit."""
        if not self.relative:
            return jnp.ones(4, bool), jnp.ones_like(pred)
        return known_units(jnp.tile(pred[2:] - pred[:2], 2))
