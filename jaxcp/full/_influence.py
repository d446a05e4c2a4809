"""Influence functions: what one row more does to the losses of a fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from jaxcp import _checks
from jaxcp._batching import map_blocks, map_evenly
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.full import _ranking
from jaxcp.full._grids import cells
from jaxcp.learners._algebra import dot
from jaxcp.learners.general import GradientLearner
from jaxcp.sets import LabelSet
from jaxcp.typing import Number, PyTree

_BLOCK = 2**19  # numbers in a block: 2 MB in single precision, to fit a cache


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

    @property
    def num_rows(self) -> int:
        """Number of rows n."""
        return len(self.losses)

    def check_new(self, x: PyTree) -> None:
        """Raises ValueError for inputs that are not like those of the rows."""
        _checks.check_like_rows("x", x, self.row_shapes)

    def of_candidate(self, x: PyTree, y: Array) -> tuple[Array, Array, Array]:
        """Returns S_i, the score of (x, y) and its slack."""
        theta, restore = ravel_pytree(self.params)
        loss = lambda theta: loss_of(self.learner, restore(theta), x, y)  # noqa: E731
        own, g = jax.value_and_grad(loss)(theta)
        # Abad Martinez et al. 2023: S_i = l_i - g_i' H^-1 g_z / n.
        moves = dot(g, self.influences)
        if self.inverse is not None:
            own = own - dot(g, dot(self.inverse, g))
        return self.losses - moves, own, _ranking.slack(own, moves)


@jit(static_argnames="deleted")
def influence(
    key: Array,
    learner: GradientLearner,
    x: PyTree,
    y: Array,
    mask: Array | None,
    damping: Number,
    deleted: bool,
) -> Influence:
    """Returns one fit, with the influence of its rows."""
    counts = jnp.ones(len(y)) if mask is None else mask.astype(float)
    params = learner.fit(key, x, y, counts)
    theta, restore = ravel_pytree(params)
    counts = counts.astype(theta.dtype)
    mean = lambda v: learner._mean_loss(restore(v), x, y, counts, None)  # noqa: E731
    hessian = _hessian(mean, theta, width=_count(x) + _count(y))
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
def sets(cp: Any, x: PyTree, rank: Array) -> Any:
    """Returns the candidates with p > alpha: labels, or cells of a grid."""
    labels = cp.grid is None
    candidates = jnp.arange(cp.num_labels) if labels else cp.grid
    rows = _ranking.Rows(cp.mask, None)

    def one(x):
        def keeps(y):
            scores, own, slack = cp.fit.of_candidate(x, y)
            return _ranking.kept(scores, own, slack, rank, rows, jnp.ones(()))

        return jax.vmap(keeps)(candidates)

    kept = _in_blocks(cp, one, x, width=len(candidates))
    return LabelSet(kept) if labels else jax.vmap(cells, (None, 0))(cp.grid, kept)


@jit
def p_values(cp: Any, x: PyTree, y: Array) -> Array:
    """Returns (1 + #{S_i >= S_n+1}) / (n + 1) for a target at each input."""
    rows = _ranking.Rows(cp.mask, None)

    def one(x, y):
        scores, own, slack = cp.fit.of_candidate(x, y)
        one = jnp.ones((), own.dtype)
        return _ranking.p_value(scores, own, slack, one, rows, one)

    return _in_blocks(cp, one, x, y, width=1)


def loss_of(learner: GradientLearner, params: PyTree, x: PyTree, y: Array) -> Array:
    """Returns the loss of one example, shape ()."""
    pred = learner.predict(params, jax.tree.map(lambda v: v[None], x))
    return as_float(learner.loss(jax.tree.map(lambda v: v[0], pred), y))


def _in_blocks(cp, one, *rows, width):
    """Returns `one` of each row, in blocks; it makes scores of so many candidates."""
    width = max(width * (sum(cp.fit.influences.shape) + 1), 1)
    size = cp.batch_size or max(_BLOCK // width, 1)
    return map_evenly(one, *rows, at_a_time=size)


def _of_rows(learner, theta, restore, x, y):
    """Returns the loss of each row, (n,), and its gradient, (n, p)."""

    def one(x, y):
        loss = lambda theta: loss_of(learner, restore(theta), x, y)  # noqa: E731
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


def _count(tree):
    """Returns how many numbers there are in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
