"""Scores of a number, or of several numbers with one component each."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.scores import inputs
from jaxcp.scores._rounding import in_targets, known_units, moved_out
from jaxcp.sets import Box, Interval


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
        mu = as_float(pred)
        ends = mu - q, mu + q
        return _closed(ends, lambda y: self(mu, y) <= q, jnp.abs(mu) + jnp.abs(q))


@pytree
class Signed:
    """The two signed errors (mu - y, y - mu), calibrated apart at alpha / 2 each.

    `pred` is mu, shape () or (d,), with 2 or 2 d components. For skewed errors the
    interval [mu - q_0, mu + q_1] is not symmetric.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate` (union bound over the sides).

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(d) time for a score and for a set.

    References:
      Linusson, Johansson, Lofstrom, Signed-Error Conformal Regression, Pacific-Asia
      Conference on Knowledge Discovery and Data Mining, 2014.

    See also:
      scores.Absolute, scores.AsymmetricCQR

    Example:
      >>> Signed()(jnp.asarray(1.0), jnp.asarray(3.0)).tolist()
      [-2.0, 2.0]
    """

    takes = inputs.numbers()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns (mu - y, y - mu), shape (2,) or (2 d,)."""
        return _sides(pred, pred, y)

    def invert(self, pred: Array, q: Array) -> Interval | Box:
        """Returns [mu - q_0, mu + q_1]."""
        return _widened(pred, pred, q)


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
        ends, rounding = (mu - half, mu + half), jnp.abs(mu) + jnp.abs(half)
        return _closed(ends, lambda y: self(pred, y) <= q, rounding, sigma)


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
        return _widened(*pred, jnp.stack([jnp.asarray(q)] * 2))


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
        return _widened(*pred, q)


def alike(y: Array, *preds: Array) -> tuple[Array, ...]:
    """Returns floats in the shape of `y`; a single output may come as () or (1,)."""
    y, *preds = map(as_float, (y, *preds))
    for pred in preds:
        if pred.shape != y.shape and not pred.size == 1 == y.size:
            raise ValueError(
                f"expected a prediction of shape {y.shape} for each target, like y, "
                f"got {pred.shape}"
            )
    return y, *(pred.reshape(y.shape) for pred in preds)


def _closed(ends, inside, magnitude, unit=1.0):
    """Returns [lower, upper] with ends moved out by rounding where they must be.

    `inside` says which targets belong, `magnitude` is that of the numbers added; pairs
    are of each end. `unit` is that of the score.
    """
    inside = inside if isinstance(inside, tuple) else (inside, inside)
    magnitude = magnitude if isinstance(magnitude, tuple) else (magnitude, magnitude)
    lower = moved_out(ends[0], -jnp.inf, inside[0], magnitude[0], unit)
    upper = moved_out(ends[1], jnp.inf, inside[1], magnitude[1], unit)
    return Interval(lower, upper) if jnp.ndim(lower) == 0 else Box(lower, upper)


def _sides(lower, upper, y):
    y, lower, upper = alike(y, lower, upper)
    return jnp.concatenate([jnp.atleast_1d(lower - y), jnp.atleast_1d(y - upper)])


def _widened(lower, upper, q):
    lower, upper = as_float(lower), as_float(upper)
    shape = (2, *lower.shape)
    # One number, or two, of each side; of each output, or for all of them.
    q = jnp.reshape(q, (2, *shape[1:]) if jnp.size(q) > 2 else (-1, *[1] * lower.ndim))
    q = jnp.broadcast_to(q, shape)
    # Each end by its own side, also where rounding lets the two cross.
    inside = lambda y: lower - y <= q[0], lambda y: y - upper <= q[1]
    rounding = jnp.abs(lower) + jnp.abs(q[0]), jnp.abs(upper) + jnp.abs(q[1])
    return _closed((lower - q[0], upper + q[1]), inside, rounding)
