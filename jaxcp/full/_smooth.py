"""Full conformal sets in closed form, of learners that are linear in the targets.

Each row has two ends; the k-th of n lower and of n upper ends are those of the set. The
p-value of a target counts the rows whose ends have it between them, so that both round
alike: a target is in the set iff its p-value exceeds alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import map_batches, map_blocks
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.full import _ends, _ranking, _unions
from jaxcp.learners import Augmented
from jaxcp.quantiles.conformal import threshold_at
from jaxcp.scores import Signed
from jaxcp.sets import Box, Interval, Intervals
from jaxcp.typing import AnySet, Augments, PyTree

_PASSES = 2  # arrays of n numbers that each test point makes at a time


@pytree
class Smoother:
    """A learner that is linear in the targets, with its fit on the rows.

    Args:
      learner: The learner.
      prepared: What it shares between test points.
    """

    learner: Augments
    prepared: PyTree

    def check_new(self, x_new: PyTree) -> None:
        """Raises ValueError for inputs that are NaN."""
        _checks.check_not_nan("x_new", x_new)

    def sets(
        self, cp: Any, x: PyTree, rank: Array, test_weights: Any, union: bool
    ) -> AnySet:
        """Returns the set at each input."""
        if not union:
            return _sets(cp, x, rank, test_weights)
        if cp.components:
            raise ValueError(
                "expected union=True with scores.Absolute() and one output, y of shape "
                f"(n,), got {type(cp.score).__name__} with {cp.components[0]} "
                "components"
            )
        return _union_sets(cp, x, rank, test_weights).trimmed()

    def p_values(
        self, cp: Any, x: PyTree, y: Array, u: Any, test_weights: Any
    ) -> Array:
        """Returns the p-value of a target at each input."""
        return _p_values(cp, x, as_float(y), u, test_weights)

    def predictive(self, cp: Any, x: PyTree) -> Array:
        """Returns the atoms of the predictive distribution at each input."""
        return _predictive(cp, x)


@jit
def _sets(cp, x, rank, test_weights):
    """Returns the interval or box at each input."""

    def of_output(found, ranks, weights):
        rows = _ends.rows_of(found, cp.residuals)
        below, above = _both_ends(cp, rows)
        lower = rows.center[:, 0] - _select(cp, below, ranks[0], weights)
        upper = rows.center[:, 0] + _select(cp, above, ranks[1], weights)
        nothing = rows.whole[:, 0] | jnp.isnan(lower) | jnp.isnan(upper)
        return jnp.where(nothing, -jnp.inf, lower), jnp.where(nothing, jnp.inf, upper)

    ranks = rank.reshape(2, *cp.target_shape) if _is_signed(cp) else (rank, rank)
    lower, upper = _at_each(cp, of_output, x, test_weights, ranks)
    ends = lower.astype(cp.dtype), upper.astype(cp.dtype)
    return Box(*ends) if cp.target_shape else Interval(*ends)


@jit
def _union_sets(cp, x, rank, test_weights):
    """Returns the exact set at each input, where it may have holes."""

    def of_output(found, _, weights):
        rows = _ends.rows_of(found, cp.residuals)
        # Rows that tie everywhere are told by zeros, and a whole line by its spread.
        r, v, rho = (
            jnp.where(rows.tied, 0, jnp.broadcast_to(value, rows.shares.shape))
            for value in (rows.residuals, rows.shares, rows.rho)
        )
        spread = jnp.where(rows.whole, jnp.inf, rows.spread)[:, 0]
        mask = cp.mask if cp.weights is None else None
        weights = jnp.ones(len(v)) if weights is None else weights
        axes = (0, 0, 0, 0, 0, None, None, None, 0)
        known = rank, mask, cp.weights, weights
        sets = jax.vmap(_unions.exact_union, axes)(
            rows.center[:, 0], spread, r, v, rho, *known
        )
        return sets.lower.astype(cp.dtype), sets.upper.astype(cp.dtype)

    return Intervals(*_at_each(cp, of_output, x, test_weights))


@jit
def _p_values(cp, x, y, u, test_weights):
    """Returns p-values; min(1, c times the smallest) of several components."""

    def of_output(found, _, weights, y, u):
        rows = _ends.rows_of(found, cp.residuals)
        weights = jnp.ones(len(u)) if weights is None else weights
        share = jax.vmap(_ranking.share, (0, 0, 0, None, 0))
        count = _ranking.Rows(cp.mask, cp.weights)
        compared = _compared(cp, rows, y)
        shares = [share(some, more, u, count, weights) for some, more in compared]
        p = len(shares) * jnp.min(jnp.stack(shares), axis=0)
        return jnp.where(jnp.isfinite(found.preds), p, len(shares))

    u = jnp.ones(len(y)) if u is None else u
    p = _at_each(cp, of_output, x, test_weights, None, y, u)
    if cp.target_shape:  # Bonferroni
        p = cp.target_shape[0] * jnp.min(p, axis=1)
    return jnp.minimum(p, 1)


@jit
def _predictive(cp, x):
    """Returns f + (1 + g) r_i / (rho_i + v_i), infinite for rows that tie."""

    def of_output(found, *_):
        rows = _ends.rows_of(found, cp.residuals)
        return (rows.center + _ends.sides(rows)[1]).astype(cp.dtype)

    return _at_each(cp, of_output, x, None)


def _is_signed(cp):
    return isinstance(cp.score, Signed)


def _both_ends(cp, rows):
    """Returns how far below and above f each row is as strange, (m, n) each."""
    if _is_signed(cp):
        return _ends.sides(rows)
    if cp.residuals == "studentized":  # |v_i| <= rho_i, Cauchy and Schwarz
        return _ends.halves(rows)
    return _ends.halves(_ends.without_holes(rows))


def _compared(cp, rows, y):
    """Returns for each component which rows are as strange as y, and which stranger."""
    y = y[:, None]
    if _is_signed(cp):
        below, above = (rows.center + v * end for v, end in _signs(_ends.sides(rows)))
        parts = [(y >= below, y > below), (y <= above, y < above)]
    else:
        parts = [_between(rows, y, jnp.less_equal), _between(rows, y, jnp.less)]
        parts = [tuple(parts)]
    # A row that ties is as strange as any target, and no stranger.
    return [(some | rows.tied, more & ~rows.tied) for some, more in parts]


def _signs(ends):
    return zip((-1, 1), ends, strict=True)


def _between(rows, y, less):
    """Returns whether y is between the ends of rows, or beyond their holes."""
    below, above = (rows.center + v * end for v, end in _signs(_ends.halves(rows)))
    beyond = _ends.beyond_holes(rows)
    lowest, highest = (rows.center + v * end for v, end in _signs(beyond))
    again = less(y, lowest) & (lowest > -jnp.inf) | less(highest, y) & (
        highest < jnp.inf
    )
    return less(below, y) & less(y, above) | again


def _select(cp, values, rank, weights):
    """Returns the value of a rank in each row of (m, n), shape (m,)."""
    if cp.weights is None:
        return jax.vmap(lambda v: threshold_at(v, rank, cp.mask, None))(values)
    pick = lambda v, w: threshold_at(v, rank, None, cp.weights, w)  # noqa: E731
    return jax.vmap(pick)(values, weights)


def _at_each(
    cp: Any,
    of_output: Callable[..., Any],
    x: PyTree,
    test_weights: Any,
    ranks: Any = None,
    y: Any = None,
    *rows: Any,
) -> Any:
    """Returns `of_output(found, ranks, weights, y, *rows)` of test points, in blocks.

    Several outputs are the last axis of predictions, residuals, ranks and targets.
    """

    def block(x, weights, y, *rows):
        found = cp.source.learner.augmented(cp.source.prepared, x)
        targets = () if y is None else (y, *rows)
        if not cp.target_shape:
            return of_output(found, ranks, weights, *targets)

        def one(preds, residuals, ranks, y):
            own = Augmented(preds, found.spread, residuals, found.shares, found.rest)
            return of_output(own, ranks, weights, *(targets and (y, *rows)))

        axes = (-1, -1, *(None if v is None else -1 for v in (ranks, y)))
        return jax.vmap(one, axes, -1)(found.preds, found.residuals, ranks, y)

    return _in_blocks(cp, block, x, test_weights, y, *rows)


def _in_blocks(cp, block, *rows):
    """Returns `block(*rows)` of all test points, some at a time."""
    if cp.batch_size is None:
        outputs = cp.target_shape[0] if cp.target_shape else 1
        return map_blocks(block, *rows, width=_PASSES * cp.num_rows * outputs)
    return map_batches(block, *rows, at_a_time=cp.batch_size)
