"""Linear models: least squares and quantiles, both with a ridge penalty."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float, varying_like
from jaxcp._pytree import pytree, static
from jaxcp.learners import _algebra, _smoothing
from jaxcp.learners._algebra import columns, dot, matrix
from jaxcp.learners._smoothing import Smoothed
from jaxcp.learners.augmenting import Augmented
from jaxcp.typing import Number

_NUM_STEPS = 100  # of the majorization for quantiles
_ROUNDING = 1e-3  # width of the smoothed kink, in standard deviations of the target


@pytree
class LinearFit:
    """Coefficients of a linear model: x -> x @ coef + intercept.

    Made by `Ridge` and `QuantileRidge`.

    Args:
      coef: Coefficients, shape (p, ...).
      intercept: Intercept, shape (...).
    """

    coef: Array
    intercept: Array


@pytree
class Ridge:
    """Ridge regression: argmin sum_i w_i (y_i - a - x_i b)^2 + penalty |b|^2.

    `x` has shape (n, p), `y` (n,) or (n, d); predictions are like `y`. The intercept a
    is not penalized. With at least as many features as rows the dual form is solved,
    and a penalty of zero gives the least squares fit of minimum norm. A penalty of zero
    needs linearly independent rows then, and independent columns where there are fewer
    features, in every resample; otherwise the fit is left to rounding errors (or NaN).
    Resamples with fewer rows than features need a penalty above 0.

    Offers `leave_one_out`, all n refits from one solve, and `augmented`, the fits with
    one more row.

    Args:
      penalty: Price of the squared norm, >= 0, shape (); vmap or differentiate it.
      intercept: Whether there is an intercept.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      None for coverage; small sets need a target that is nearly linear in x.

    Cost:
      O(n p^2 + p^3) time for a fit, O(n^2 p + n^3) if p >= n; all n refits without one
      row are of the same order.

    References:
      Hoerl, Kennard, Ridge Regression: Biased Estimation for Nonorthogonal Problems,
      Technometrics, 1970.

    See also:
      learners.KernelRidge, learners.QuantileRidge, jackknife_plus

    Example:
      >>> x, y = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([1.0, 3.0, 5.0])
      >>> learner = Ridge(0.0)
      >>> params = learner.fit(jax.random.key(0), x, y, jnp.ones(3))
      >>> round(learner.predict(params, jnp.array([[3.0]])).item(), 3)
      7.0
    """

    penalty: Number
    intercept: bool = static(default=True)

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> LinearFit:
        """Returns the weighted fit; the key is not used."""
        del key
        x, targets, weights, center, level = self._centered(x, y, weights)
        if self._is_dual(x):
            gram = dot(x, x.T)
            inverse, u = _algebra.dual(gram, self.penalty, weights, self.intercept)
            coef, level = dot(x.T, dot(inverse, targets)), level + dot(u, targets)
        else:
            coef = _algebra.primal(x, targets, self.penalty, weights)
        return _linear_fit(coef, level - dot(center, coef), y)

    def predict(self, params: LinearFit, x: Array) -> Array:
        """Returns x @ coef + intercept, shape (m, ...)."""
        return _predict(params, x)

    def leave_one_out(self, x: Array, y: Array) -> LinearFit:
        """Returns the n fits without one row each, stacked."""
        x, targets, _, center, level = self._centered(x, y, jnp.ones(len(x)))
        options = targets, self.penalty, self.intercept
        if self._is_dual(x):
            duals, shifts = _algebra.dual_without_each(dot(x, x.T), *options)
            coefs = jnp.einsum("np,ind->ipd", x, duals, precision="highest")
        else:
            coefs, shifts = _algebra.primal_without_each(x, *options)
        levels = level[None] + shifts - dot(center, coefs)
        return jax.vmap(lambda c, a: _linear_fit(c, a, y))(coefs, levels)

    def prepare(self, x: Array, y: Array, mask: Array | None) -> Smoothed:
        """Returns the fit on the rows of the mask, ready for one more row."""
        rows = matrix(x), as_float(y)
        return _smoothing.prepare(*rows, mask, self.penalty, self.intercept)

    def augmented(self, prepared: Smoothed, x_new: Array) -> Augmented:
        """Returns the fits with each test point as one more row."""
        return _smoothing.augmented(prepared, matrix(x_new, len(prepared.coef)))

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for a negative penalty, or inputs not of shape (n, p)."""
        matrix(x)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)

    def _centered(self, x, y, weights):
        """Returns data about their weighted means, weights, and the means."""
        x, y, weights = _algebra.in_single(matrix(x), columns(as_float(y)), weights)
        center, level = (_algebra.centers(v, weights, self.intercept) for v in (x, y))
        return x - center[None], y - level[None], weights, center, level

    def _is_dual(self, x):
        return x.shape[1] + self.intercept >= x.shape[0]


@pytree
class QuantileRidge:
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
      scores.CQR, learners.Ridge, metrics.pinball_score

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

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> LinearFit:
        """Returns the fits of all levels, stacked; the key is not used."""
        del key
        return _fit_levels(self, matrix(x), as_float(y), weights)

    def predict(self, params: LinearFit, x: Array) -> tuple[Array, ...]:
        """Returns the predicted quantiles, a tuple of arrays (m,)."""
        return tuple(jax.vmap(_predict, (0, None))(params, x))

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for levels outside (0, 1) or targets not of shape (n,)."""
        matrix(x)
        if not isinstance(self.levels, tuple | list) or not self.levels:
            raise ValueError(f"expected levels as a tuple, got {self.levels!r}")
        for level in self.levels:
            inside = lambda v: (v > 0) & (v < 1)  # noqa: E731
            _checks.check_values(inside, "levels in (0, 1)", level)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)
        _checks.check_vectors(y=y)

    def _fit_level(self, design, y, weights, level):
        width = _kink_width(y, weights)
        # Zero for the intercept, the last column; a trace keeps it invertible.
        price = jnp.full(design.shape[1], 2.0, y.dtype) * self.penalty
        price = price.at[-1].set(jnp.finfo(y.dtype).tiny) if self.intercept else price

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


@jax.jit
def _fit_levels(learner, x, y, weights):
    """Returns the fits of all levels of a `QuantileRidge`."""
    dtype = y.dtype
    x, y, weights = _algebra.in_single(x, y, weights)
    center = _algebra.centers(x, weights, learner.intercept)
    design = x - center[None]
    if learner.intercept:
        design = jnp.append(design, jnp.ones((len(x), 1), x.dtype), axis=1)
    levels = jnp.stack([jnp.asarray(level, y.dtype) for level in learner.levels])
    fit = lambda level: learner._fit_level(design, y, weights, level)  # noqa: E731
    coefs, level = jax.vmap(fit)(levels), jnp.zeros(len(levels), y.dtype)
    if learner.intercept:
        coefs, level = coefs[:, :-1], coefs[:, -1]
    level = level - dot(coefs, center)
    return LinearFit(coefs.astype(dtype), level.astype(dtype))


def _kink_width(y, weights):
    """Returns the width of the smoothed kink, in units of the targets, above 0."""
    total = jnp.sum(weights)
    total = jnp.where(total > 0, total, 1)
    spread = y - dot(weights, y) / total
    width = _ROUNDING * jnp.sqrt(dot(weights, spread**2) / total)
    # Also where the targets are constant, or all zero.
    eps, tiny = jnp.finfo(y.dtype).eps, jnp.finfo(y.dtype).tiny
    largest = jnp.max(jnp.where(weights > 0, jnp.abs(y), 0), initial=tiny**0.5)
    return jnp.maximum(width, eps**0.5 * largest)


def _solve_linear(linear, target):
    return _algebra.solve(jax.jacobian(linear)(target), target)


def _predict(params, x):
    x = matrix(x, len(params.coef))
    slopes = jnp.tensordot(x, params.coef, 1, precision="highest")
    return slopes + params.intercept[None]


def _linear_fit(coef, intercept, y):
    """Returns the fit in the type and the shape of the targets."""
    dtype, shape = as_float(y).dtype, y.shape[1:]
    coef, intercept = coef.astype(dtype), intercept.astype(dtype)
    return LinearFit(coef.reshape(len(coef), *shape), intercept.reshape(shape))
