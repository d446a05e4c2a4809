"""Approximate full conformal prediction: refits by influence functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from jaxcp import _checks
from jaxcp._batching import map_blocks
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.certificates.promises import Promised
from jaxcp.checking import learners
from jaxcp.full import fitting
from jaxcp.full.cells import as_grid, cells
from jaxcp.held.rows import Context, Held
from jaxcp.learners._algebra import dot
from jaxcp.learners.general import GradientLearner
from jaxcp.quantiles.levels import as_alpha
from jaxcp.sets import Intervals, LabelSet
from jaxcp.typing import ArrayLike, Number, PyTree


@pytree
class Influence:
    """A fit, the losses of its n rows, and their influences on p parameters.

    Args:
      learner: The learner.
      params: Its parameters, the fit on the n rows.
      losses: l_i, or l_i + g_i' H^-1 g_i / n of fits without a row, shape (n,).
      influences: H^-1 g_i / n, the columns, shape (p, n).
      inverse: H^-1 / n if scores are those of fits with all rows, shape (p, p).
      row_shapes: Shapes of one input.
    """

    learner: GradientLearner
    params: PyTree
    losses: Array
    influences: Array
    inverse: Array | None
    row_shapes: Any = static()

    def of_candidate(self, x: PyTree, y: Array) -> tuple[Array, Array, Array]:
        """Returns S_i, the score of (x, y) and its slack."""
        theta, restore = ravel_pytree(self.params)
        loss = lambda theta: _loss_of(self.learner, restore(theta), x, y)  # noqa: E731
        own, g = jax.value_and_grad(loss)(theta)
        # Abad Martinez et al. 2023: S_i = l_i - g_i' H^-1 g_z / n.
        moves = dot(g, self.influences)
        if self.inverse is not None:
            own = own - dot(g, dot(self.inverse, g))
        return self.losses - moves, own, fitting.slack_of(own, moves)


@jit(static_argnames="deleted")
def _influence(key, learner, x, y, mask, damping, deleted):
    """Returns one fit, with the influence of its rows."""
    counts = jnp.ones(len(y)) if mask is None else mask.astype(float)
    params = learner.fit(key, x, y, counts)
    theta, restore = ravel_pytree(params)
    counts = counts.astype(theta.dtype)
    mean = lambda v: learner._mean_loss(restore(v), x, y, counts, None)  # noqa: E731
    hessian = _hessian(mean, theta, width=fitting.size_of((x, y)))
    vectors, inverses = _inverse(hessian, jnp.asarray(damping, theta.dtype))
    losses, gradients = _of_rows(learner, theta, restore, x, y)
    n = jnp.maximum(jnp.sum(counts), 1)
    influences = dot(vectors, inverses[:, None] * dot(vectors.T, gradients.T)) / n
    inverse = None
    if deleted:
        losses = losses + jnp.sum(gradients * influences.T, axis=1)
    else:
        inverse = dot(vectors * inverses[None], vectors.T) / n
    shapes = _checks.shapes_of_rows(x)
    return Influence(learner, params, losses, influences, inverse, shapes)


@jit
def _sets(cp, x, rank):
    """Returns the candidates with p > alpha: labels, or cells of a grid."""
    candidates = jnp.arange(cp.num_labels) if cp.grid is None else cp.grid

    def one(x):
        def keeps(y):
            return fitting.is_kept(cp, rank, Context(), *cp.fit.of_candidate(x, y))

        return jax.vmap(keeps)(candidates)

    kept = _in_blocks(cp, one, x, width=len(candidates))
    if cp.grid is None:
        return LabelSet(kept)
    return jax.vmap(cells, (None, 0))(cp.grid, kept)


@jit
def _p_values(cp, x, y):
    """Returns (1 + #{S_i >= S_n+1}) / (n + 1) for a target at each input."""

    def one(x, y):
        scores, own, slack = cp.fit.of_candidate(x, y)
        known = jnp.ones((), own.dtype), Context(), scores, own, slack
        return fitting.p_value(cp, *known)

    return _in_blocks(cp, one, x, y, width=1)


def _loss_of(learner, params, x, y):
    """Returns the loss of one example, shape ()."""
    pred = learner.predict(params, jax.tree.map(lambda v: v[None], x))
    return as_float(learner.loss(jax.tree.map(lambda v: v[0], pred), y))


def _in_blocks(cp, one, *rows, width):
    """Returns `one` of each row, in blocks; it makes scores of so many candidates."""
    width = width * (sum(cp.fit.influences.shape) + 1)
    return fitting.in_blocks(cp, jax.vmap(one), *rows, width=width)


def _of_rows(learner, theta, restore, x, y):
    """Returns the loss of each row, (n,), and its gradient, (n, p)."""

    def one(x, y):
        loss = lambda theta: _loss_of(learner, restore(theta), x, y)  # noqa: E731
        return jax.value_and_grad(loss)(theta)

    if not len(y):
        return jnp.zeros(0, theta.dtype), jnp.zeros((0, theta.size), theta.dtype)
    return map_blocks(jax.vmap(one), x, y, width=theta.size)


def _hessian(function, theta, width):
    """Returns the Hessian of a function of a vector, columns in blocks."""
    along = lambda v: jax.jvp(jax.grad(function), (theta,), (v,))[1]  # noqa: E731
    columns = jnp.eye(theta.size, dtype=theta.dtype)
    half = map_blocks(jax.vmap(along), columns, width=theta.size + width)
    return (half + half.T) / 2


def _inverse(hessian, damping):
    """Returns V, (p, p), and s, (p,): V s V' is the inverse of a damped Hessian.

    Where it curves down, far from a minimum, it counts as flat: a step along its
    inverse would lead away from the refit. Directions with neither curvature nor
    damping do not move, for no loss depends on them.
    """
    curvature, vectors = _eigh(lax.stop_gradient(hessian))
    total = jnp.maximum(curvature, 0) + damping
    least = len(total) * jnp.finfo(total.dtype).eps * jnp.max(total, initial=0)
    flat = total <= least  # not where it is NaN
    return vectors, jnp.where(flat, 0, 1 / jnp.where(flat, 1, total))


# One by one under vmap, as `learners._algebra.solve` says.
_eigh = jax.custom_batching.sequential_vmap(lambda h: tuple(jnp.linalg.eigh(h)))


@pytree
class InfluenceConformal(Promised):
    """One fit, and how one row more moves its losses. Made by `influence_conformal`.

    Args:
      fit: The fit on the n rows, and the influence of each row.
      grid: Candidates that are numbers, shape (g,), or None.
      mask: True where a row counts, shape (n,), or None.
      num_labels: Number of labels, or None.
      batch_size: Test points at a time, or None.

    See also:
      influence_conformal, learners.GradientLearner
    """

    fit: Influence
    grid: Array | None
    mask: Array | None
    num_labels: int | None = static(default=None)
    batch_size: int | None = static(default=None)
    promise = "P(Y in set) is about 1 - {alpha}, without a bound"
    assumption = "all rows are {rows}, and a row moves the fit about as one step does"
    _over = "training sets"

    @_checks.with_alpha
    def __call__(self, x: PyTree, alpha: ArrayLike) -> LabelSet | Intervals:
        """Returns the prediction sets at new inputs.

        A candidate is kept iff its p-value exceeds alpha.

        Args:
          x: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape ().

        Returns:
          A `LabelSet` of m sets, or `Intervals` of cells of the grid: each point stands
          for all targets that it is nearest to. The outer cells reach to infinity, so
          that an infinite set tells of a grid that is too short.

        Raises:
          ValueError: if there are neither labels nor a grid, inputs are not like those
            of the rows, or a number `alpha` is outside (0, 1).

        Guarantee:
          None in finite samples: that of `influence_conformal`.

        Cost:
          A gradient for each candidate of each input, and the product of all with those
          of the n rows, in blocks.
        """
        if self.grid is None:
            _checks.check_given(num_labels=self.num_labels)
        x = _checks.rows(x=x)
        _checks.check_like_rows("x", x, self.fit.row_shapes)
        _checks.check_scalars(alpha=as_alpha(alpha))
        rank = self.held.rank(alpha)
        with learners.traceable(self.fit.learner):
            return _sets(self, x, rank)

    @property
    def held(self) -> Held:
        """The rows, which all count alike."""
        return Held(self.fit.losses, mask=self.mask)

    @_checks.by_labels
    def p_values(self, x: PyTree, y: ArrayLike) -> Array:
        """Returns how exceptional targets at inputs are, shape (m,).

        p = (1 + #{S_i >= S_n+1}) / (n + 1), scores within rounding taken as equal.

        Args:
          x: Inputs, a pytree with leading axis m.
          y: Targets of any value, shape (m, ...), or labels 0, ..., k - 1.

        Returns:
          p-values in (0, 1], shape (m,).

        Raises:
          ValueError: if lengths differ, or a label is out of range.

        Guarantee:
          None in finite samples: that of `influence_conformal`.

        Cost:
          A gradient for each input, and its product with those of the n rows.
        """
        x, y = _checks.rows(x=x, y=y)
        _checks.check_not_nan("y", y)
        _checks.check_like_rows("x", x, self.fit.row_shapes)
        y = _targets(y, self.num_labels, self.grid)
        with learners.traceable(self.fit.learner):
            return _p_values(self, x, y)


@_checks.verb
def influence_conformal(
    key: Array,
    learner: GradientLearner,
    x: PyTree,
    y: ArrayLike,
    *,
    num_labels: int | None = None,
    grid: ArrayLike | None = None,
    deleted: bool = True,
    damping: Number = 1e-3,
    mask: ArrayLike | None = None,
    batch_size: int | None = None,
) -> InfluenceConformal:
    """Returns approximate full conformal prediction: one fit stands for all refits.

    The score is the learner's loss l. With gradients g_i of the losses and the mean
    Hessian H at the fit on the n rows, a candidate z = (x, y) is compared by S_i = l_i
    - g_i' H^-1 (g_z - g_i) / n with l_z, each row's loss without itself; or, with
    `deleted=False`, by S_i = l_i - g_i' H^-1 g_z / n with l_z - g_z' H^-1 g_z / n.

    Args:
      key: Random key of the fit.
      learner: A `learners.GradientLearner`, whose loss is twice differentiable. One
        with mini-batches will do: it is fitted once.
      x: Inputs, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      num_labels: Number of labels k, for sets of labels.
      grid: Candidates in increasing order for targets that are numbers, shape (g,), for
        sets of cells around them.
      deleted: Whether each loss is that of a fit without its own row.
      damping: Added to the curvatures of H, >= 0, shape (), in units of the loss for
        squared parameters: the factor of a penalty on them, if the optimizer has one.
        Where H curves down, far from a minimum, it counts as flat; directions without
        curvature or damping do not move.
      mask: True for rows that are fitted and count, shape (n,). Defaults to all.
      batch_size: Test points at a time. Defaults to as many as fit a cache.

    Returns:
      An `InfluenceConformal`: call it with inputs and alpha.

    Raises:
      ValueError: if the learner has no loss, both candidates are given, labels are out
        of range, the grid does not increase, or lengths differ.

    Guarantee:
      No finite-sample guarantee: the refits are approximated. About 1 - alpha where
      one row more moves the parameters little. A network that has all but memorized its
      rows may cover half as often as it says with `deleted`: penalize it. Where a score
      is NaN the candidate is kept.

    Assumption:
      Exchangeable rows and test examples, and a fit near a minimum of the mean loss.

    Cost:
      One fit, n gradients, p products with the Hessian and its eigenvectors in
      O(p^3), for p parameters, some thousands at most; then O(p n) for each candidate.

    References:
      Abad Martinez, Bhatt, Weller, Cherubin, Approximating Full Conformal Prediction at
      Scale via Influence Functions, AAAI, 2023.

    See also:
      full_conformal, discretized_conformal, learners.GradientLearner

    Example:
      >>> import optax
      >>> from jaxcp import learners
      >>> learner = learners.GradientLearner(
      ...     init=lambda key: jnp.zeros(2),
      ...     predict=lambda params, x: x @ params,
      ...     loss=lambda pred, y: jnp.logaddexp(0, jnp.where(y == 1, -pred, pred)),
      ...     optimizer=optax.adam(0.1),
      ...     num_steps=100,
      ... )
      >>> x = jax.random.normal(jax.random.key(0), (40, 2))
      >>> y = (x[:, 0] > 0).astype(int)
      >>> cp = influence_conformal(jax.random.key(1), learner, x, y, num_labels=2)
      >>> cp(jnp.array([[2.0, 0.0], [-2.0, 0.0]]), alpha=0.1).labels()
      [[1], [0]]
    """
    cure = "; discretized_conformal refits any learner, full_conformal any of labels"
    expected = "a learners.GradientLearner, whose loss is the score"
    _checks.check_kind(expected, learner, GradientLearner, cure)
    rows = fitting.fitted_rows(key, learner, x, y, None, mask, batch_size)
    damping = _checks.check_number("damping", damping, lambda v: v >= 0, ">= 0")
    if num_labels is not None:
        _checks.check_count("num_labels", num_labels, 2)
        if grid is not None:
            raise ValueError("expected num_labels or grid, got both")
    grid = None if grid is None else as_grid(grid)
    y = _targets(rows.y, num_labels, grid, rows.mask)
    _, _, x, y, _, mask = rows._replace(y=y).filled()
    with learners.traceable(learner):
        fit = _influence(key, learner, x, y, mask, damping, deleted)
    learners.check_predictions(fit.losses, x, mask, "losses")
    return InfluenceConformal(fit, grid, mask, num_labels, batch_size)


def _targets(y, num_labels, grid, mask=None):
    """Returns targets as labels or as numbers, after checks."""
    if num_labels is not None:
        _checks.check_vectors(y=y)
        _checks.check_labels("y", y, num_labels, mask)
        return y.astype(int)
    if grid is None:
        return y
    _checks.check_vectors(y=y)
    return as_float(y)
