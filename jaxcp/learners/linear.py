"""Linear models with a ridge penalty, and their fits on one more row.

With G = X'X + penalty I and W W' = G^-1 the rows become Z = X W and a test point W'x:
the residual of row i moves by v_i = z_i'z, and z'z is what the point adds to 1 + g. A
factor of the inverse loses as many digits as the design has, not twice as many. The
dual form, for at least as many features as rows and for kernels, factors (K + penalty
I)^-1 in the same way.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import pytree, static
from jaxcp.learners import _algebra
from jaxcp.learners._algebra import MARGIN, columns, dot, matrix
from jaxcp.typing import Number


@pytree
class Augmented:
    """Fits on n rows and a test point each, as functions of the test point's target y.

    For learners whose predictions are linear in the targets. Let d = (y - preds) /
    spread. The fit on all n + 1 rows has the residual d at the test point, and
    residuals_i - shares_i d at row i. Made by `augmented` of a learner.

    Args:
      preds: Predictions of the fit on n rows, f, shape (m,) or (m, d).
      spread: 1 + g >= 1, shape (m,); one over what the test point's own leverage leaves
        of its residual. +inf where the fit interpolates the test point.
      residuals: y_i - f(x_i) of the fit on n rows, shape (n,) or (n, d); (m, n) or
        (m, n, d) where they depend on the test point.
      shares: v, by how much d moves the residual of each row, shape (m, n).
      rest: 1 minus the leverages of the n rows in the fits on n + 1, shape (m, n) or
        (), or None where they are not known.

    See also:
      full_conformal, typing.Augments, learners.Ridge

    Example:
      >>> from jaxcp.learners import Ridge
      >>> learner = Ridge(0.0)
      >>> x, y = jnp.zeros((3, 0)), jnp.array([1.0, 2.0, 9.0])  # the mean of targets
      >>> of = learner.augmented(learner.prepare(x, y, None), x[:1])
      >>> round(of.preds.item(), 3), round(of.spread.item(), 3)
      (4.0, 1.333)
    """

    preds: Array
    spread: Array
    residuals: Array
    shares: Array
    rest: Array | None = None


_LEFT = 16  # roundings of 1 minus a leverage, for the root of each column
_TILT = 8  # times as many that the span of the rows may be off


@pytree
class Smoothed:
    """A fit on n rows, ready for one more.

    Args:
      centers: What is subtracted from inputs one after the other, or rows of a kernel.
      levels: What is added to predictions one after the other, shapes (d,).
      share: Leverage of the intercept, shape ().
      penalty: Price of the squared norm, shape ().
      coef: Coefficients of centered inputs, or of rows, shape (p, d).
      residuals: Residuals of the rows, shape (n, ...) as the targets.
      left: 1 minus the leverages of the rows, shape (n,).
      to: From inputs to whitened ones, shape (p, r).
      rows: The whitened rows, shape (n, r).
      size: Largest singular value of the rows, in these units, shape ().
      lost: Directions in which the rows say nothing, shape (p, r), or None.
      units: Lengths of the columns of inputs, shape (p,), or None.
    """

    centers: Any
    levels: tuple[Array, ...]
    share: Array
    penalty: Array
    coef: Array
    residuals: Array
    left: Array
    to: Array
    rows: Array
    size: Array
    lost: Array | None = None
    units: Array | None = None


def center(values, counts, intercept):
    """Returns rows about their mean, 0 where they do not count, and what was taken off.

    Twice: the mean of what is left is the rounding of the first mean, which far from
    zero is as large as small features.
    """
    sizes = jnp.max(jnp.abs(values), axis=0, initial=0)

    # A loop, or compilers compute the first mean anew, rounded otherwise than the one
    # that the second corrects.
    def take(values, _):
        mean = _algebra.centers(values, counts, intercept)
        return values - mean[None], mean

    values, means = lax.scan(take, values, length=2)
    values = jnp.where(counts[:, None] > 0, values, 0)
    # A column that is constant but for rounding is constant.
    spread = jnp.max(jnp.abs(values), axis=0, initial=0)
    noise = 4 * jnp.finfo(values.dtype).eps * lax.stop_gradient(sizes)
    return jnp.where((spread > noise)[None], values, 0), (means[0], means[1])


def is_dual(x: Array, intercept: bool) -> bool:
    """Returns whether there are at least as many features as rows to tell apart."""
    return x.shape[1] + intercept >= x.shape[0]


def prepare(x, y, mask, penalty, intercept):
    """Returns the ridge fit of rows x (n, p), ready for one more."""
    shape = y.shape
    ones = jnp.ones(len(x)) if mask is None else mask.astype(float)
    x, y, counts = _algebra.in_single(x, columns(y), ones)
    if mask is not None:
        x, y = (jnp.where(mask[:, None], v, 0) for v in (x, y))
    (x, centers), (y, levels) = (center(v, counts, intercept) for v in (x, y))
    total = jnp.sum(counts)
    share = jnp.where(total > 0, 1 / jnp.maximum(total, 1), 0) * intercept
    penalty = jnp.asarray(penalty, x.dtype)
    if is_dual(x, intercept):
        inner, outer = _turn(counts) if intercept else (_same, _same)
        design = inner(x).T
        units = _algebra.lengths(design, penalty, of_all=True)
        factor, to, free, size = _algebra.whiten(design, penalty, units)
        size = size * jnp.max(units, initial=0)
        parts = _dual(factor, free, inner(y), penalty, to, size, shape, outer)
    else:
        parts = _primal(x, y, penalty, share, shape)
    return Smoothed(centers, levels, share, penalty, *parts)


def prepare_kernel(x, y, gram, mask, penalty):
    """Returns the kernel ridge fit of rows x (n, p), ready for one more."""
    shape, penalty = y.shape, jnp.asarray(penalty, gram.dtype)
    y, share = columns(y).astype(gram.dtype), jnp.zeros((), gram.dtype)
    if mask is not None:
        gram = jnp.where(mask[:, None] & mask[None], gram, 0)
        y = jnp.where(mask[:, None], y, 0)
    factor, free, size = _algebra.whiten_gram(gram, penalty)
    if mask is not None:
        factor = jnp.where(mask[:, None], factor, 0)
    parts = _dual(factor, free, y, penalty, factor, size, shape)
    return Smoothed(x, (), share, penalty, *parts)


def _primal(x, y, penalty, share, shape):
    """Returns the parts of a fit, from its coefficients on."""
    units = _algebra.lengths(x, penalty)
    to, rows, lost, size = _algebra.whiten(x, penalty, units)
    coef = dot(to, dot(rows.T, y))
    # One step of refinement, for targets that are nearly linear in x.
    pull = dot(x.T, y - dot(x, coef)) - penalty * coef
    coef = coef + dot(to, dot(to.T, pull))
    left = 1 - share - jnp.sum(rows**2, axis=1)
    few = _LEFT * (MARGIN + rows.shape[1]) ** 0.5 * jnp.finfo(left.dtype).eps
    left = jnp.where(left > few, left, 0)  # not what is rounding alone
    residuals = (y - dot(x, coef)).reshape(shape)
    return coef, residuals, left, to, rows, size, lost, units


def _same(values):
    return values


def _dual(factor, free, y, penalty, to, size, shape, outer=_same):
    """Returns the parts of a fit by M = N N', with columns where `outer` puts them.

    The residuals are penalty M y, and 1 minus the leverages penalty M_ii. Where M is
    infinite, without a penalty, the residual is what the rows leave free.
    """
    along, rows = dot(factor.T, y), outer(factor)
    residuals = outer(dot(factor, penalty * along) + dot(free, dot(free.T, y)))
    left = penalty * jnp.sum(rows**2, axis=1) + jnp.sum(outer(free) ** 2, axis=1)
    return dot(to, along), residuals.reshape(shape), left, to, rows, size


def _turn(counts):
    """Returns maps from rows (n, ...) to contrasts (n - 1, ...) of them, and back.

    A reflection that takes the unit vector of the rows that count to the first axis:
    the rest are orthonormal contrasts, so no leverage of the intercept is subtracted.
    """
    total = jnp.sum(counts)
    unit = counts / _algebra.root(jnp.maximum(total, 1))
    normal = unit.at[:1].add(1)
    square = jnp.sum(normal**2)

    def reflect(v):
        along = dot(normal, v) * (2 / square)
        return v - normal.reshape(-1, 1) * along[None]

    def outer(v):
        padded = jnp.concatenate([jnp.zeros((1, v.shape[1]), v.dtype), v])
        return reflect(padded[: len(counts)])  # without rows there is no contrast

    return (lambda v: reflect(v)[1:]), outer


def augmented(fit: Smoothed, x: Array) -> Augmented:
    """Returns the fits on all rows and each of the test points x (m, p)."""
    x = x.astype(fit.coef.dtype)
    for taken in fit.centers:
        x = x - taken[None]
    white = dot(x, fit.to)
    if fit.lost is None or fit.units is None:
        # A - penalty = min_b |x - X'b|^2 + penalty |b|^2: a sum, which cancels nothing.
        beyond = jnp.sum((x - dot(white, fit.to.T)) ** 2, axis=1)
        return _added_dual(fit, x, white, beyond, jnp.sum(x**2, axis=1))
    own, added = x / fit.units[None], jnp.sum(white**2, axis=1)
    beyond = jnp.sum(dot(own, fit.lost) ** 2, axis=1)
    is_new = beyond > _noise(fit, jnp.sum(own**2, axis=1), added)
    return _added(fit, x, white, jnp.where(is_new, jnp.inf, added))


def augmented_kernel(fit: Smoothed, kernel: Array) -> Augmented:
    """Returns the fits on all rows and test points of kernels (m, n), 1 with itself."""
    white = dot(kernel, fit.to)
    norm = jnp.sum(dot(white, fit.rows.T) ** 2, axis=1)
    # kappa - k'Mk - penalty |Mk|^2, which is a squared distance.
    beyond = jnp.maximum(1 - jnp.sum(white**2, axis=1) - fit.penalty * norm, 0)
    return _added_dual(fit, kernel, white, beyond, jnp.ones_like(norm))


def _noise(fit, square, added):
    """Returns the square of what rounding may add to an input beyond the rows' span.

    The span is off by rounding in units of the largest singular value s_1, along a
    direction of a smaller one s_j by s_1 / s_j as much.
    """
    few = _TILT * (MARGIN + fit.to.shape[1]) * jnp.finfo(square.dtype).eps
    return lax.stop_gradient(few**2 * (square + fit.size**2 * added))


def _added_dual(fit, x, white, beyond, square):
    """Returns the fits from what each test point has beyond the span of the rows."""
    added, some = jnp.sum(dot(white, fit.rows.T) ** 2, axis=1), fit.penalty > 0
    is_new = beyond > _noise(fit, square, added)
    over = beyond / jnp.where(some, fit.penalty, 1)
    over = jnp.where(some, over, jnp.where(is_new, jnp.inf, 0))
    return _added(fit, x, white, added + over)


def _added(fit, x, white, added):
    preds = dot(x, fit.coef)
    for level in reversed(fit.levels):
        preds = preds + level[None]
    shares = fit.share + dot(white, fit.rows.T)
    spread = 1 + fit.share + added
    left = fit.left[None] + shares**2 / spread[:, None]  # 1 - h_i'
    preds = preds.reshape(-1, *fit.residuals.shape[1:])
    return Augmented(preds, spread, fit.residuals, shares, left)


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
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: Array, y: Array, weights: Array) -> LinearFit:
        """Returns the weighted fit; the key is not used."""
        x, targets, weights, center, level = self._centered(x, y, weights)
        if is_dual(x, self.intercept):
            inverse, u = self._dual(x, weights)
            coef, level = dot(x.T, dot(inverse, targets)), level + dot(u, targets)
        else:
            gram = _algebra.gram_of(x, self.penalty, weights)
            coef = _algebra.solve(gram, dot((weights[:, None] * x).T, targets))
        return linear_fit(coef, level - dot(center, coef), y)

    def predict(self, params: LinearFit, x: Array) -> Array:
        """Returns x @ coef + intercept, shape (m, ...)."""
        return predict(params, x)

    def leave_one_out(self, x: Array, y: Array) -> LinearFit:
        """Returns the n fits without one row each, stacked."""
        x, targets, ones, center, level = self._centered(x, y, jnp.ones(len(x)))
        # Without row i: errors R_i there, and coefficients b - moves_i R_i.
        if is_dual(x, self.intercept):
            inverse, u = self._dual(x, ones)
            own = dot(inverse, targets)
            errors = own / jnp.diag(inverse)[:, None]
            coef, moves = dot(x.T, own), dot(inverse, x)
        else:
            # Of centered rows the Gram matrix of (1, x) has two blocks.
            gram = _algebra.gram_of(x, self.penalty, ones)
            coef = _algebra.solve(gram, dot(x.T, targets))
            moves = _algebra.solve(gram, x.T).T
            u = jnp.full(len(x), self.intercept / len(x), x.dtype)
            left = 1 - u - jnp.sum(x * moves, axis=1)
            errors = (targets - dot(x, coef)) / left[:, None]
        coefs = coef[None] - moves[:, :, None] * errors[:, None]
        level = (level + dot(u, targets))[None] - u[:, None] * errors
        return jax.vmap(linear_fit, (0, 0, None))(coefs, level - dot(center, coefs), y)

    def prepare(self, x: Array, y: Array, mask: Array | None) -> Smoothed:
        """Returns the fit on the rows of the mask, ready for one more row."""
        return prepare(matrix(x), as_float(y), mask, self.penalty, self.intercept)

    def augmented(self, prepared: Smoothed, x_new: Array) -> Augmented:
        """Returns the fits with each test point as one more row."""
        return augmented(prepared, matrix(x_new, len(prepared.coef)))

    def check(self, x: Array, y: Array) -> None:
        """Raises ValueError for a negative penalty, or inputs not of shape (n, p)."""
        matrix(x)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)

    def _centered(self, x, y, weights):
        """Returns data about their weighted means, weights, and the means."""
        x, y, weights = _algebra.in_single(matrix(x), columns(as_float(y)), weights)
        center, level = (_algebra.centers(v, weights, self.intercept) for v in (x, y))
        return x - center[None], y - level[None], weights, center, level

    def _dual(self, x, weights):
        return _algebra.dual(dot(x, x.T), self.penalty, weights, self.intercept)


def predict(params, x):
    """Returns the predictions of a linear fit, shape (m,) or (m, d)."""
    x = matrix(x, len(params.coef))
    slopes = jnp.tensordot(x, params.coef, 1, precision="highest")
    return slopes + params.intercept[None]


def linear_fit(coef, intercept, y):
    """Returns the fit in the type and the shape of the targets."""
    dtype, shape = as_float(y).dtype, y.shape[1:]
    coef, intercept = coef.astype(dtype), intercept.astype(dtype)
    return LinearFit(coef.reshape(len(coef), *shape), intercept.reshape(shape))
