"""Linear quantile regression: with a ridge penalty, and at the vertex."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float, varying_like
from jaxcp._tree import pytree, static
from jaxcp.learners import _algebra
from jaxcp.learners._algebra import dot, matrix
from jaxcp.learners.linear import LinearFit, linear_fit, predict
from jaxcp.quantiles import _regression
from jaxcp.typing import Number

_NUM_STEPS = 100  # of the majorization for quantiles
_ROUNDING = 1e-3  # width of the smoothed kink, in standard deviations of the target


class _Levels:
    """What quantile regressions at several levels share."""

    levels: tuple[Number, ...]

    def predict(self, params: LinearFit, x: Array) -> tuple[Array, ...]:
        """Returns the predicted quantiles, a tuple of arrays (m,)."""
        return tuple(jax.vmap(predict, (0, None))(params, x))

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for levels outside (0, 1) or targets not of shape (n,)."""
        matrix(x)
        _checks.check_kind("levels as a tuple, (0.9,)", self.levels, Sequence)
        inside = lambda v: (v > 0) & (v < 1)  # noqa: E731
        _checks.check_values(inside, "levels in (0, 1)", self.levels)
        _checks.check_vectors(y=y)


@pytree
class QuantileRidge(_Levels):
    """Quantile regression: argmin sum_i w_i rho(y_i - a - x_i b) + penalty |b|^2.

    rho is the pinball loss at each level, smoothed at its kink over a thousandth of the
    target's standard deviation; solved by majorization: a hundred weighted least
    squares fits.

    `x` has shape (n, p) and `y` (n,). Predictions are a tuple with an array (m,) for
    each level: with two levels a pair (lower, upper), as `CQR` reads it.

    Args:
      levels: Quantile levels in (0, 1), a tuple of numbers.
      penalty: Price of the squared norm, >= 0, shape ().
      intercept: Whether there is an intercept, which is not penalized.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; small sets need quantiles that are nearly linear in x.

    Cost:
      100 steps of O(n p^2 + p^3) time for each level.

    References:
      Koenker, Bassett, Regression Quantiles, Econometrica, 1978.
      Hunter, Lange, Quantile Regression via an MM Algorithm, Journal of Computational
      and Graphical Statistics, 2000.

    See also:
      learners.QuantileRegression, scores.CQR, learners.Ridge, metrics.pinball_score

    Example:
      >>> x, y = jnp.zeros((5, 1)), jnp.array([1.0, 2.0, 3.0, 4.0, 9.0])
      >>> learner = QuantileRidge((0.5,), 1.0)
      >>> params = learner.fit(jax.random.key(0), x, y, jnp.ones(5))
      >>> round(learner.predict(params, x[:1])[0].item(), 1)
      3.0
    """

    levels: tuple[Number, ...]
    penalty: Number
    intercept: bool = static(default=True)
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> LinearFit:
        """Returns the fits of all levels, stacked; the key is not used."""
        return _fit_levels(self, matrix(x), as_float(y), weights)

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError as all regressions do, and for a negative penalty."""
        super().check(x, y)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)


@jax.jit
def _fit_levels(learner, x, y, weights):
    """Returns the fits of all levels of a `QuantileRidge`."""
    targets = y
    x, y, weights = _algebra.in_single(x, y, weights)
    center = _algebra.centers(x, weights, learner.intercept)
    design, width = x - center[None], _kink_width(y, weights)
    price = jnp.full(x.shape[1], 2.0, y.dtype) * learner.penalty
    if learner.intercept:  # which costs nothing; a trace keeps it invertible
        design = jnp.append(design, jnp.ones((len(x), 1), x.dtype), axis=1)
        price = jnp.append(price, jnp.finfo(y.dtype).tiny)

    def fit(level):
        def curvature(coef):
            return weights / (2 * (width + jnp.abs(y - dot(design, coef))))

        def slope(coef):  # of the smoothed objective: 0 at the solution
            push = curvature(coef) * (y - dot(design, coef)) + weights * (level - 0.5)
            return price * coef - dot(design.T, push)

        def improve(coef, _):
            # |r| / 2 <= r^2 / (4 |r_0|) + |r_0| / 4 around the last residual r_0.
            bend = curvature(coef)
            gram = dot((bend[:, None] * design).T, design) + jnp.diag(price)
            pull = dot(design.T, bend * y + weights * (level - 0.5))
            return _algebra.solve(gram, pull), None

        def iterate(_, start):
            start = varying_like(start, slope(start))
            return lax.scan(improve, start, length=_NUM_STEPS)[0]

        # Differentiated as the root that it is, not through the iterations.
        start = jnp.zeros(design.shape[1], y.dtype)
        return lax.custom_root(slope, start, iterate, _solve_linear)

    levels = jnp.stack([jnp.asarray(level, y.dtype) for level in learner.levels])
    coefs, level = jax.vmap(fit)(levels), jnp.zeros(len(levels), y.dtype)
    if learner.intercept:
        coefs, level = coefs[:, :-1], coefs[:, -1]
    level = level - dot(coefs, center)
    return jax.vmap(linear_fit, (0, 0, None))(coefs, level, targets)


def _kink_width(y, weights):
    """Returns the width of the smoothed kink, in units of the targets, above 0."""
    spread = y - _algebra.centers(y, weights, True)
    width = _ROUNDING * jnp.sqrt(_algebra.centers(spread**2, weights, True))
    # Also where the targets are constant, or all zero.
    eps, tiny = jnp.finfo(y.dtype).eps, jnp.finfo(y.dtype).tiny
    largest = jnp.max(jnp.where(weights > 0, jnp.abs(y), 0), initial=tiny**0.5)
    return jnp.maximum(width, eps**0.5 * largest)


def _solve_linear(linear, target):
    return _algebra.solve(jax.jacobian(linear)(target), target)


@pytree
class QuantileRegression(_Levels):
    """Quantile regression: argmin sum_i w_i rho(y_i - a - x_i b), found exactly.

    rho is the pinball loss at each level. The solution is a vertex, through as many
    rows as it has coefficients; of several it is that of the levels just below.

    `x` has shape (n, p) and `y` (n,). Predictions are a tuple with an array (m,) for
    each level: with two levels a pair (lower, upper), as `CQR` reads it.

    Args:
      levels: Quantile levels in (0, 1), a tuple of numbers.
      intercept: Whether there is an intercept.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; small sets need quantiles that are nearly linear in x, and more
      rows than features (else `QuantileRidge`).

    Cost:
      Some tens of pivots of O(n p) for each level.

    References:
      Koenker, Bassett, Regression Quantiles, Econometrica, 1978.

    See also:
      learners.QuantileRidge, scores.CQR, scores.Rectified, calibrate_conditional

    Example:
      >>> x, y = jnp.zeros((5, 1)), jnp.array([1.0, 2.0, 3.0, 4.0, 9.0])
      >>> learner = QuantileRegression((0.5, 0.9))
      >>> params = learner.fit(jax.random.key(0), x, y, jnp.ones(5))
      >>> [v.item() for v in learner.predict(params, x[:1])]
      [3.0, 9.0]
    """

    levels: tuple[Number, ...]
    intercept: bool = static(default=True)
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> LinearFit:
        """Returns the fits of all levels, stacked; the key is not used."""
        return _vertices(self, matrix(x), as_float(y), weights)


@jax.jit
def _vertices(learner, x, targets, weights):
    """Returns the fits of all levels of a `QuantileRegression`."""
    x, y, weights = _algebra.in_single(x, targets, weights)
    design = jnp.append(jnp.ones((len(x), int(learner.intercept))), x, axis=1)
    # w rho(y - x b) = rho(w y - w x b); what does not count may be of any size.
    count = lambda v, w: jnp.where(w > 0, w * v, 0).astype(x.dtype)  # noqa: E731
    rows = count(y, weights), count(design, weights[:, None])
    fit = lambda level: _regression.coefficients(*rows, level)  # noqa: E731
    levels = jnp.stack([jnp.asarray(level, x.dtype) for level in learner.levels])
    coefs = jax.vmap(fit)(levels)
    parts = (coefs[:, 1:], coefs[:, 0]) if learner.intercept else (coefs, 0 * levels)
    return jax.vmap(linear_fit, (0, 0, None))(*parts, targets)
