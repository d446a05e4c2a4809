"""Ridge fits on n rows and one more: what all test points share, and each one adds.

With G = X'X + penalty I and W W' = G^-1 the rows become Z = X W and a test point W'x:
the residual of row i moves by v_i = z_i'z, and z'z is what the point adds to 1 + g. A
factor of the inverse loses as many digits as the design has, not twice as many. The
dual form, for at least as many features as rows and for kernels, factors (K + penalty
I)^-1 in the same way.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from jaxcp._pytree import pytree
from jaxcp.learners import _algebra
from jaxcp.learners._algebra import dot
from jaxcp.learners._whitening import (
    MARGIN,
    lengths,
    root,
    rounding,
    whiten,
    whiten_gram,
)
from jaxcp.learners.augmenting import Augmented
from jaxcp.typing import Number

_FINE = 0.01  # share of M that rounding may move: less than 1 % of a threshold
_LEFT = 16  # roundings of 1 minus a leverage, for the root of each column
_TILT = 8  # times as many that the span of the rows may be off


@pytree
class Smoothed:
    """A fit on n rows, ready for one more.

    Args:
      centers: What is subtracted from inputs one after the other, or rows of a kernel.
      coef: Coefficients of centered inputs, or of rows, shape (p, d).
      levels: What is added to predictions one after the other, shapes (d,).
      residuals: Residuals of the rows, shape (n, ...) as the targets.
      left: 1 minus the leverages of the rows, shape (n,).
      to: From inputs to whitened ones, shape (p, r).
      rows: The whitened rows, shape (n, r).
      lost: Directions in which the rows say nothing, shape (p, r), or None.
      units: Lengths of the columns of inputs, shape (p,), or None.
      size: Largest singular value of the rows, in these units, shape ().
      share: Leverage of the intercept, shape ().
      penalty: Price of the squared norm, shape ().
    """

    centers: Any
    coef: Array
    levels: tuple[Array, ...]
    residuals: Array
    left: Array
    to: Array
    rows: Array
    lost: Array | None
    units: Array | None
    size: Array
    share: Array
    penalty: Array


def center(values: Array, counts: Array, intercept: bool) -> tuple[Array, tuple]:
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


def prepare(
    x: Array, y: Array, mask: Array | None, penalty: Number, intercept: bool
) -> Smoothed:
    """Returns the ridge fit of rows x (n, p), ready for one more."""
    shape = y.shape
    ones = jnp.ones(len(x)) if mask is None else mask.astype(float)
    x, y, counts = _algebra.in_single(x, _algebra.columns(y), ones)
    if mask is not None:
        x, y = (jnp.where(mask[:, None], v, 0) for v in (x, y))
    (x, centers), (y, levels) = (center(v, counts, intercept) for v in (x, y))
    total = jnp.sum(counts)
    share = jnp.where(total > 0, 1 / jnp.maximum(total, 1), 0) * intercept
    penalty = jnp.asarray(penalty, x.dtype)
    form = _dual if is_dual(x, intercept) else _primal
    parts = form(x, y, counts, penalty, share, intercept)
    parts["residuals"] = parts["residuals"].reshape(shape)
    return Smoothed(centers, levels=levels, share=share, penalty=penalty, **parts)


def is_dual(x: Array, intercept: bool) -> bool:
    """Returns whether there are at least as many features as rows to tell apart."""
    return x.shape[1] + intercept >= x.shape[0]


def _primal(x, y, counts, penalty, share, intercept):
    del counts, intercept
    units = lengths(x, penalty)
    to, rows, lost, size = whiten(x, penalty, units)
    coef = dot(to, dot(rows.T, y))
    # One step of refinement, for targets that are nearly linear in x.
    pull = dot(x.T, y - dot(x, coef)) - penalty * coef
    coef = coef + dot(to, dot(to.T, pull))
    return {
        "coef": coef,
        "residuals": y - dot(x, coef),
        "left": _left(share, rows),
        "to": to,
        "rows": rows,
        "lost": lost,
        "units": units,
        "size": size,
    }


def _left(share, rows):
    """Returns 1 minus leverages, 0 where it is rounding alone."""
    left = 1 - share - jnp.sum(rows**2, axis=1)
    few = _LEFT * (MARGIN + rows.shape[1]) ** 0.5 * jnp.finfo(left.dtype).eps
    return jnp.where(left > few, left, 0)


def _dual(x, y, counts, penalty, share, intercept):
    del share
    inner, outer = _turn(counts) if intercept else (_same, _same)
    own, targets = inner(x), inner(y)
    units = lengths(own.T, penalty, of_all=True)
    factor, to, free, size = whiten(own.T, penalty, units)
    coef = dot(to, dot(factor.T, targets))
    return {
        "coef": coef,
        **_residuals(factor, free, outer, targets, penalty),
        "to": to,
        "rows": outer(factor),
        "lost": None,
        "units": None,
        "size": size * jnp.max(units, initial=0),
    }


def _residuals(factor, free, outer, y, penalty):
    """Returns residuals penalty M y and 1 minus leverages, penalty M_ii, of M = N N'.

    Where M is infinite, without a penalty, the residual is what the rows leave free.
    """
    bound = dot(factor, penalty * dot(factor.T, y))
    residuals = outer(bound + dot(free, dot(free.T, y)))
    left = penalty * jnp.sum(outer(factor) ** 2, axis=1)
    return {"residuals": residuals, "left": left + jnp.sum(outer(free) ** 2, axis=1)}


def _same(values):
    return values


def _turn(counts):
    """Returns maps from rows (n, ...) to contrasts (n - 1, ...) of them, and back.

    A reflection that takes the unit vector of the rows that count to the first axis:
    the rest are orthonormal contrasts, so no leverage of the intercept is subtracted.
    """
    total = jnp.sum(counts)
    unit = counts / root(jnp.maximum(total, 1))
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
    if fit.lost is not None and fit.units is not None:
        own = x / fit.units[None]
        beyond, added = dot(own, fit.lost), jnp.sum(white**2, axis=1)
        is_new = jnp.sum(beyond**2, axis=1) > _noise(
            fit, jnp.sum(own**2, axis=1), added
        )
        return _added(fit, x, white, jnp.where(is_new, jnp.inf, added))
    # A - penalty = min_b |x - X'b|^2 + penalty |b|^2: a sum, which cancels nothing.
    beyond = jnp.sum((x - dot(white, fit.to.T)) ** 2, axis=1)
    return _added_dual(fit, x, white, beyond, jnp.sum(x**2, axis=1))


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


def prepare_kernel(
    x: Array, y: Array, gram: Array, mask: Array | None, penalty: Number
) -> Smoothed:
    """Returns the kernel ridge fit of rows x (n, p), ready for one more."""
    shape, penalty = y.shape, jnp.asarray(penalty, gram.dtype)
    y = _algebra.columns(y).astype(gram.dtype)
    if mask is not None:
        gram = jnp.where(mask[:, None] & mask[None], gram, 0)
        y = jnp.where(mask[:, None], y, 0)
    factor, free, size = whiten_gram(gram, penalty)
    if mask is not None:
        factor = jnp.where(mask[:, None], factor, 0)
    parts = _residuals(factor, free, _same, y, penalty)
    parts["residuals"] = parts["residuals"].reshape(shape)
    coef, zero = dot(factor, dot(factor.T, y)), jnp.zeros((), gram.dtype)
    return Smoothed(
        x,
        coef,
        (),
        to=factor,
        rows=factor,
        lost=None,
        units=None,
        size=size,
        share=zero,
        penalty=penalty,
        **parts,
    )


def kernel_coefficients(
    gram: Array, y: Array, penalty: Number, weights: Array
) -> Array:
    """Returns the coefficients (n, d) of a weighted kernel ridge fit, 0 of weight 0."""
    sizes = jnp.sqrt(weights)[:, None]  # rows left out: no 0 / 0 either
    system = sizes * gram * sizes.T + jnp.diag((weights == 0).astype(gram.dtype))
    factor, _, _ = whiten_gram(system, jnp.asarray(penalty, gram.dtype))
    factor = sizes * factor
    return dot(factor, dot(factor.T, y))


def kernel_without_each(gram: Array, y: Array, penalty: Number) -> Array:
    """Returns the coefficients (n, n, d) of all leave-one-out fits.

    R_i = c_i / M_ii and c_-i = c - M_i R_i, whose i-th entry is 0. NaN where rounding
    may move R_i by a hundredth.
    """
    factor, free, _ = whiten_gram(gram, jnp.asarray(penalty, gram.dtype))
    inverse, coef = dot(factor, factor.T), dot(factor, dot(factor.T, y))
    known = (rounding(gram, factor) < _FINE) & ~jnp.any(free)
    held_out = jnp.where(known, coef / jnp.diag(inverse)[:, None], jnp.nan)
    return coef[None] - inverse[:, :, None] * held_out[:, None]


def augmented_kernel(fit: Smoothed, kernel: Array) -> Augmented:
    """Returns the fits on all rows and test points of kernels (m, n), 1 with itself."""
    white = dot(kernel, fit.to)
    shares = dot(white, fit.rows.T)
    norm = jnp.sum(shares**2, axis=1)
    # kappa - k'Mk - penalty |Mk|^2, which is a squared distance.
    beyond = jnp.maximum(1 - jnp.sum(white**2, axis=1) - fit.penalty * norm, 0)
    return _added_dual(fit, kernel, white, beyond, jnp.ones_like(norm))
