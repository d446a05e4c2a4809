"""Full conformal sets in closed form, of learners that are linear in the targets.

With the target y of a test point let d = (y - f) / (1 + g). The fit on all n + 1 rows
leaves d there and r_i - v_i d at row i, so that row i is at least as strange as the
test point while y is between two ends; the k-th of n ends is the end of the set.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._batching import map_blocks, map_evenly
from jaxcp._numbers import as_float, at_least_single
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.learners import Augmented
from jaxcp.pvalues.conformal import share_of
from jaxcp.quantiles._masses import unit_scale
from jaxcp.quantiles.conformal import threshold_at
from jaxcp.scores import Signed
from jaxcp.sets import Box, Interval
from jaxcp.typing import AnySet, Augments, PyTree

POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
_TIED = 128  # roundings within which a row ties with the test point
_WHOLE = 4  # roundings of 1 that a fit leaves of the test point's residual


@pytree
class Smoother:
    """A learner that is linear in the targets, with its fit on the rows.

    Args:
      learner: The learner.
      prepared: What it shares between test points.
    """

    learner: Augments
    prepared: PyTree

    def sets(
        self, cp: Any, x: PyTree, rank: Array, test_weights: Any, union: bool
    ) -> AnySet:
        """Returns the set at each input."""
        if union:
            raise NotImplementedError
        return _sets(cp, x, rank, test_weights)

    def p_values(self, cp: Any, x: PyTree, y: Array, u: Any, test_weights: Any) -> Array:
        """Returns the p-value of a target at each input."""
        return _p_values(cp, x, y, u, test_weights)

    def predictive(self, cp: Any, x: PyTree) -> Array:
        """Returns the atoms of the predictive distribution at each input."""
        return _predictive(cp, x)


class Rows(NamedTuple):
    """One output of n rows and m test points.

    Args:
      center: Predictions f, shape (m, 1).
      spread: 1 + g, shape (m, 1); 1 where nothing is known.
      residuals: r, shape (m, n) or (1, n).
      shares: v, shape (m, n).
      rho: What weighs the test point's residual, shape (m, n) or ().
      whole: Where the fit interpolates the test point, or is not finite, shape (m, 1).
      tied: Rows that are as strange as the test point whatever its target, (m, n).
    """

    center: Array
    spread: Array
    residuals: Array
    shares: Array
    rho: Array
    whole: Array
    tied: Array


def rows_of(found: Augmented, residuals: str) -> Rows:
    """Returns what one output's ends are made of: preds (m,), residuals (n,) or (m, n).

    Chen, Chun, Barber 2018 and Vovk et al. 2018 for ordinary and studentized residuals.
    """
    eps = jnp.finfo(found.shares.dtype).eps
    power, spread, shares = POWERS[residuals], found.spread[:, None], found.shares
    known = jnp.isfinite(found.preds)[:, None] & (spread * _WHOLE * eps < 1)
    spread = jnp.where(known, spread, 1)
    tied, rho = jnp.zeros_like(shares, bool), jnp.ones((), shares.dtype)
    if power:  # rho_i = ((1 + g)(1 - h_i'))^power
        assert found.rest is not None
        rest = jnp.broadcast_to(found.rest, shares.shape)
        tied = ~(rest > _TIED * eps)
        rho = jnp.where(tied, 1, spread * rest)
        rho = jnp.sqrt(rho) if power < 1 else rho
    tied |= jnp.abs(jnp.abs(shares) - rho) <= _TIED * eps * rho
    own = found.residuals if found.residuals.ndim > 1 else found.residuals[None]
    return Rows(found.preds[:, None], spread, own, shares, rho, ~known, tied)


def halves(rows: Rows) -> tuple[Array, Array]:
    """Returns how far below and above f row i is as strange, (m, n) each.

    Infinite where it is so arbitrarily far out.
    """
    sizes = jnp.abs(rows.residuals)
    turned = jnp.where(rows.residuals < 0, -rows.shares, rows.shares)
    # A row that is stranger again further out would make a hole: it counts as infinite.
    rows = rows._replace(tied=rows.tied | (jnp.abs(rows.shares) > rows.rho))
    below = _ratio(rows, sizes, rows.rho - turned)
    return below, _ratio(rows, sizes, rows.rho + turned)


def sides(rows: Rows) -> tuple[Array, Array]:
    """Returns the same of signed residuals: minus the atoms, and the atoms."""
    ends = rows.rho + rows.shares
    return _ratio(rows, -rows.residuals, ends), _ratio(rows, rows.residuals, ends)


def _ratio(rows, residuals, ends):
    free = rows.tied | rows.whole | ~(ends > 0)
    return jnp.where(free, jnp.inf, rows.spread * (residuals / jnp.where(free, 1, ends)))


@jit
def _sets(cp, x, rank, test_weights):
    signed = isinstance(cp.score, Signed)

    def one(preds, residuals, ranks, found, weights):
        rows = rows_of(_output(found, preds, residuals), cp.residuals)
        below, above = (sides if signed else halves)(rows)
        ranks = ranks if signed else (ranks, ranks)
        select = partial(_select, cp, weights=weights)
        lower = preds - select(below, ranks[0])
        upper = preds + select(above, ranks[1])
        return _known_ends(rows.whole[:, 0], lower, upper)

    def block(x, weights):
        found = cp.source.learner.augmented(cp.source.prepared, x)
        ranks = rank
        if signed:
            ranks = rank.reshape(2, *cp.target_shape)
        if not cp.target_shape:
            return one(found.preds, found.residuals, ranks, found, weights)
        each = jax.vmap(one, (-1, -1, -1, None, None), -1)
        return each(found.preds, found.residuals, ranks, found, weights)

    ends = in_blocks(cp, block, x, test_weights)
    ends = tuple(v.astype(cp.dtype) for v in ends)
    return Box(*ends) if cp.target_shape else Interval(*ends)


def _output(found, preds, residuals):
    return Augmented(preds, found.spread, residuals, found.shares, found.rest)


def _select(cp, values, rank, weights):
    """Returns the value of a rank in each row of (m, n), shape (m,)."""
    if cp.weights is None:
        return jax.vmap(lambda v: threshold_at(v, rank, cp.mask, None))(values)
    pick = lambda v, w: threshold_at(v, rank, cp.mask, cp.weights, w)  # noqa: E731
    return jax.vmap(pick)(values, weights)


def _known_ends(whole, lower, upper):
    """Returns ends, infinite where nothing is known."""
    nothing = whole | jnp.isnan(lower) | jnp.isnan(upper)
    return jnp.where(nothing, -jnp.inf, lower), jnp.where(nothing, jnp.inf, upper)


def in_blocks(cp: Any, block: Any, x: PyTree, *rows: Any) -> Any:
    """Returns `block(x, *rows)` of all test points, some at a time."""
    n = cp.num_rows * max(len(cp.target_shape) and cp.target_shape[0], 1)
    if cp.batch_size is None:
        return map_blocks(block, x, *rows, width=4 * n)
    one = lambda *row: jax.tree.map(  # noqa: E731
        lambda v: v[0], block(*jax.tree.map(lambda v: v[None], row))
    )
    return map_evenly(one, x, *rows, at_a_time=cp.batch_size)


@jit
def _p_values(cp, x, y, u, test_weights):
    raise NotImplementedError


@jit
def _predictive(cp, x):
    raise NotImplementedError
