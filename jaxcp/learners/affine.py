"""Learners whose predictions are affine in the targets."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._batching import map_blocks
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import pytree
from jaxcp.learners.general import check_learner, check_refitted
from jaxcp.learners.linear import Augmented
from jaxcp.typing import Augments, Learner, PyTree


@pytree
class AffineRows:
    """Training rows, and two targets for test points. Made by `Affine`.

    Args:
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n,).
      weights: One for rows that count, zero for others, shape (n,).
      origin: The first target: the mean of all, shape ().
      unit: Distance of the second target: the largest size of all, shape ().
    """

    x: PyTree
    y: Array
    weights: Array
    origin: Array
    unit: Array


@pytree
class Affine:
    """A learner declared to make predictions that are affine in the targets.

    Every prediction is a + B y for numbers a and B that do not depend on the targets y:
    linear smoothers, splines, kernel smoothers, Gaussian processes with fixed
    hyperparameters, gradient descent for a linear model and squared errors. Two refits
    with the test point among the rows, of two targets, then tell the fits of all
    targets, and `full_conformal(..., residuals="ordinary")` needs no grid.

    `y` has shape (n,). It fits and predicts as the learner that it holds.

    Args:
      learner: A learner of one number.
      key: Random key of the fits on test points, one for all. Defaults to the key that
        the verb is given.

    Guarantee:
      None of its own; the verb that takes the learner has one.

    Assumption:
      Predictions affine in each target. Four fits of known data check that, where the
      verb that takes the learner checks it, and raise ValueError otherwise.

    Cost:
      Two fits for each test point, in one program, in blocks of test points.

    References:
      Nouretdinov, Melluish, Vovk, Ridge Regression Confidence Machine, ICML, 2001.

    See also:
      full_conformal, learners.FunctionLearner, learners.Ridge, typing.Augments

    Example:
      >>> from jaxcp.learners import FunctionLearner
      >>> mean = FunctionLearner(
      ...     lambda key, x, y, weights: weights @ y / weights.sum(),
      ...     lambda params, x: jnp.full(len(x), params),
      ... )
      >>> learner = Affine(mean)
      >>> x, y = jnp.zeros((3, 1)), jnp.array([1.0, 2.0, 9.0])
      >>> of = learner.augmented(learner.prepare(x, y, None), x[:1])
      >>> round(of.preds.item(), 3), round(of.spread.item(), 3)
      (4.0, 1.333)
    """

    learner: Learner
    key: Array | None = None
    holds_out = symmetric = True  # see typing.Learner

    def fit(self, key: Array, x: PyTree, y: Array, weights: Array) -> PyTree:
        """Returns the fit of the learner."""
        return self.learner.fit(key, x, y, weights)

    def predict(self, params: PyTree, x: PyTree) -> PyTree:
        """Returns the predictions of the learner."""
        return self.learner.predict(params, x)

    def prepare(self, x: PyTree, y: Array, mask: Array | None) -> AffineRows:
        """Returns the rows, and the two targets that test points are given."""
        y = at_least_single(as_float(y))
        mask = jnp.ones(len(y), bool) if mask is None else mask
        # Rows off the mask may hold anything, which times a weight of 0 may be NaN.
        x, known = jax.tree.map(lambda v: _where(mask, v), (x, y))
        weights = mask.astype(y.dtype)
        total = jnp.sum(weights)
        unit = jnp.max(jnp.abs(known), initial=0)
        unit = lax.stop_gradient(jnp.where(unit > 0, unit, 1))
        origin = jnp.sum(known / unit) / jnp.where(total > 0, total, 1) * unit
        return AffineRows(x, known, weights, lax.stop_gradient(origin), unit)

    def augmented(self, prepared: AffineRows, x_new: PyTree) -> Augmented:
        """Returns two refits for each test point as functions of its target."""
        rows, key = prepared, jax.random.key(0) if self.key is None else self.key
        shapes = _checks.shapes_of_rows(rows.x)
        _checks.check_like_rows("x_new", x_new, shapes)

        def one(x_row):
            x = _with_row(rows.x, x_row)
            weights = jnp.append(rows.weights, jnp.ones((), rows.weights.dtype))

            def fitted(target):
                y = jnp.append(rows.y, target)
                return predictions(self.learner, key, x, y, weights)

            targets = jnp.stack([rows.origin, rows.origin + rows.unit])
            at_origin, at_unit = jax.vmap(fitted)(targets)
            slope = (at_unit - at_origin) / (targets[1] - targets[0])
            return _line(rows, at_origin, slope)

        width = sum(leaf.size for leaf in jax.tree.leaves(rows.x)) + len(rows.y)
        return map_blocks(jax.vmap(one), x_new, width=2 * width)

    def check(self, x: PyTree, y: Array) -> None:
        """Raises ValueError for several outputs, host models, or as the learner."""
        check_refitted(self.learner)
        check_learner(self.learner, x, y)
        _checks.check_vectors(y=y)


def with_key(learner: Augments, key: Array) -> Augments:
    """Returns the learner with a key for its fits, if it takes one and has none."""
    if type(learner) is not Affine or learner.key is not None:
        return learner
    return dataclasses.replace(learner, key=key)


def _line(rows, preds, slope):
    """Returns fits on n + 1 rows, the last the test point's: a line in its target."""
    left = 1 - slope[-1]
    # A test point that fits itself, to rounding of a refit, tells nothing.
    tells = left > jnp.finfo(slope.dtype).eps ** (2 / 3)
    left = jnp.where(tells, left, 1)
    # e(y) = (origin - preds) + left (y - origin) is zero at y = f.
    shift = (preds[-1] - rows.origin) / left
    residuals = rows.y - preds[:-1] - slope[:-1] * shift
    spread = jnp.where(tells, 1 / left, jnp.inf)
    return Augmented(rows.origin + shift, spread, residuals, slope[:-1] / left)


def _where(mask, values):
    """Returns rows on the mask, and zeros."""
    mask = mask.reshape(-1, *(1,) * (values.ndim - 1))
    return jnp.where(mask, values, jnp.zeros((), values.dtype))


def _with_row(x, row):
    """Returns rows and one more, a pytree."""
    join = lambda v, new: jnp.concatenate([v, new[None].astype(v.dtype)])  # noqa: E731
    return jax.tree.map(join, x, row)


def predictions(learner, key, x, y, weights):
    """Returns what a fit predicts for its own rows."""
    params = learner.fit(jax.random.clone(key), x, y, weights)
    preds = learner.predict(params, x)
    first, *others = jax.tree.leaves(preds)
    if others or first.shape != y.shape:
        raise ValueError(
            f"expected predictions of shape {y.shape} for Affine, one number a row, "
            f"got {jax.tree.map(jnp.shape, preds)}"
        )
    return first.astype(y.dtype)
