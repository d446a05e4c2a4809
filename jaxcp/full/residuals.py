"""Full conformal sets in closed form, of learners that are linear in the targets.

With d = (y - f) / (1 + g) the fit on all n + 1 rows leaves d at the test point and r_i
- v_i d at row i, whose score is |r_i - v_i d| against rho_i |d|: row i is at least as
strange while y - f is between -(1 + g) |r_i| / (rho_i - s_i v_i) and (1 + g) |r_i| /
(rho_i + s_i v_i), s_i the sign of r_i. A row with |v_i| > rho_i is so again further
out, which makes a hole: the exact set is then a sweep over 2n breakpoints, in order.

The k-th of n lower and of n upper ends are those of the set. The p-value of a target
counts the rows whose ends have it between them, so that both round alike: a target is
in the set iff its p-value exceeds alpha.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree
from jaxcp.full.fitting import in_blocks, share_above
from jaxcp.learners import Augmented
from jaxcp.predictive.atoms import atoms_of
from jaxcp.quantiles.selection import ballot
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.scores import Signed
from jaxcp.scores.regression import between
from jaxcp.sets import Intervals
from jaxcp.sets.unions import sweep, whole_line_if
from jaxcp.typing import Augments, PyTree

POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
_TIED = 128  # roundings within which a row ties with the test point
_FREE = 16  # roundings of 1 that a fit leaves of a row's residual
_WHOLE = 4  # roundings of 1 that a fit leaves of the test point's residual
_ROUNDINGS = 16  # eps within which |v| and rho are the same
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


class Rows(NamedTuple):
    """n rows beside m test points, of one output.

    Args:
      center: Predictions f, shape (m, 1); 0 where nothing is known.
      spread: 1 + g, shape (m, 1); 1 where nothing is known.
      residuals: r, shape (m, n) or (1, n).
      shares: v, shape (m, n).
      rho: What weighs the residual of the test point, shape (m, n) or ().
      whole: Where nothing is known of the test point, shape (m, 1).
      tied: Rows as strange as the test point whatever its target, shape (m, n).
    """

    center: Array
    spread: Array
    residuals: Array
    shares: Array
    rho: Array
    whole: Array
    tied: Array


def _rows_of(found, residuals):
    """Returns the rows of one output: `preds` (m,), `residuals` (n,) or (m, n)."""
    power, eps = POWERS[residuals], jnp.finfo(found.shares.dtype).eps
    center, spread, shares = found.preds[:, None], found.spread[:, None], found.shares
    # A fit that goes through its test point leaves no residual at any row either.
    known = jnp.isfinite(center) & (spread * (_WHOLE * eps) < 1)
    center, spread = jnp.where(known, center, 0), jnp.where(known, spread, 1)
    tied = ~known | jnp.zeros_like(shares, bool)
    rho = jnp.ones((), shares.dtype)
    if power and found.rest is not None:
        rest = jnp.broadcast_to(found.rest, shares.shape)
        tied |= ~(rest > _FREE * eps)
        if power < 1:  # then rho_i = |v_i| where 1 - h_i = 0
            tied |= ~(rest - shares**2 / spread > _FREE * eps)
        rho = jnp.where(tied, 1, spread * rest)  # ((1 + g)(1 - h_i'))^power
        rho = jnp.sqrt(rho) if power < 1 else rho
    slack = _TIED * eps * rho + (_FREE * eps * spread if power == 1 else 0)
    tied |= jnp.abs(jnp.abs(shares) - rho) <= slack
    own = found.residuals if found.residuals.ndim > 1 else found.residuals[None]
    return Rows(center, spread, own, shares, rho, ~known, tied)


def _halves(rows):
    """Returns how far below and above f each row is as strange, shape (m, n).

    Infinite where rows tie, or where they are as strange however far out.
    """
    sizes, turned = jnp.abs(rows.residuals), _turned(rows)
    below = _ratio(rows, sizes, rows.rho - turned)
    return below, _ratio(rows, sizes, rows.rho + turned)


def _without_holes(rows):
    """Returns rows that count as infinite where they would make a hole."""
    return rows._replace(tied=rows.tied | (jnp.abs(rows.shares) > rows.rho))


def _beyond_holes(rows):
    """Returns from how far below and above f rows are as strange again, (m, n).

    Infinite where that is never so.
    """
    gap, turned = jnp.abs(rows.shares) - rows.rho, _turned(rows)
    again = _ratio(rows, jnp.abs(rows.residuals), gap)
    below, above = turned < 0, turned > 0
    return jnp.where(below, again, jnp.inf), jnp.where(above, again, jnp.inf)


def _sides(rows):
    """Returns minus atoms and atoms about f, of signed residuals, shape (m, n).

    Row i has a residual at least as large while y is at most its atom, f + (1 + g) r_i
    / (rho_i + v_i): Vovk et al. 2019, the least squares prediction machine.
    """
    width = rows.rho + rows.shares
    return _ratio(rows, -rows.residuals, width), _ratio(rows, rows.residuals, width)


def _turned(rows):
    """Returns s_i v_i, where 0 has the sign of 1."""
    return jnp.where(rows.residuals < 0, -rows.shares, rows.shares)


def _ratio(rows, residuals, width):
    """Returns (1 + g) residuals / width, +inf without a width above 0, or for NaN."""
    free = rows.tied | ~(width > 0) | jnp.isnan(residuals)
    # Compilers do not fuse a choice with the sum that follows, so it rounds the same
    # in the program of sets and in that of p-values.
    ratio = jnp.where(free, 0, residuals) / jnp.where(free, 1, width)
    return jnp.where(free, jnp.inf, rows.spread * ratio)


def exact_union(
    center, spread, residuals, shares, rho, rank, mask=None, weights=None, own=None
):
    """Returns the targets of one test point that enough of n rows keep.

    All y with #{i : |r_i - v_i d| < rho_i |d|} < k, where d = (y - center) / spread.
    Ends are of shape (n + 1,), disjoint, closed, in increasing order; empty pieces come
    last, as (inf, -inf). n + 1 are enough: d = 0 is kept by all, and going away from it
    each further piece begins where the hole of another row ends. Row i keeps d iff its
    own score is no lower: with |v_i| < rho_i in a closed interval around 0, with |v_i|
    > rho_i everywhere but in an open interval on one side of 0.

    Args:
      center: Prediction of the fit on n rows, shape (), in units of the target.
      spread: 1 + g, shape (); where it is infinite the set is the whole line.
      residuals: r, shape (n,). Rows that tie everywhere have r = v = rho = 0.
      shares: v, shape (n,).
      rho: What divides scores, (spread rest)^power, shape (n,).
      rank: Rank k, an integer, or alpha as a float where there are weights, shape ().
      mask: True for the rows that count, shape (n,); not with weights.
      weights: Weights of the rows, shape (n,).
      own: Weight of the test point, shape (). Defaults to 1.
    """
    words, suffice = ballot(len(residuals), rank, mask, weights, own)
    counts = words[0] > 0
    d = _kept(center, residuals, shares, rho, counts)
    first, last, between = _on_line(center, spread, *d)
    ends = sweep(first, last, between, words, suffice, len(residuals) + 1)
    unknown = ~(jnp.isfinite(center) & jnp.isfinite(spread))
    return Intervals(*whole_line_if(unknown, *ends))


def _kept(center, r, v, rho, counts):
    """Returns `first <= last`, each (n,), and whether rows keep what is between.

    The others keep all but what is between. Rows that tie everywhere keep all between
    -inf and inf.
    """
    known = jnp.isfinite(r) & jnp.isfinite(v) & jnp.isfinite(rho) & counts
    r, v, rho = (jnp.where(known, value, 0) for value in (r, v, rho))
    sum_, gap = jnp.abs(v) + rho, jnp.abs(v) - rho
    eps = jnp.finfo(r.dtype).eps
    tied = jnp.abs(gap) <= _ROUNDINGS * eps * sum_
    scale = jnp.abs(center) + jnp.max(jnp.abs(r), initial=0)
    nothing = jnp.abs(r) <= _ROUNDINGS * eps * scale
    r = jnp.where(v < 0, -r, r)
    near = r / jnp.where(sum_ > 0, sum_, 1)  # |r - v d| = rho |d|
    far = r / jnp.where(tied, 1, gap)
    far = jnp.where(tied, jnp.where(near > 0, -jnp.inf, jnp.inf), far)
    everywhere = tied & nothing | (sum_ == 0)
    first = jnp.where(everywhere, -jnp.inf, jnp.minimum(near, far))
    last = jnp.where(everywhere, jnp.inf, jnp.maximum(near, far))
    return first, last, tied | (gap < 0)


def _on_line(center, spread, first, last, between):
    """Returns the same of targets instead of residuals; holes are not empty."""

    def target(d):
        finite = jnp.isfinite(d)
        # Compilers do not fuse a choice with the sum that follows, so it rounds the
        # same in the program of p-values.
        return center + jnp.where(finite, spread * jnp.where(finite, d, 0), d)

    first, last = target(first), target(last)
    # A hole that rounding closes is kept; one without an end leaves a half line.
    closed = ~between & ~(first < last)
    below, above = ~between & (last == jnp.inf), ~between & (first == -jnp.inf)
    lower = jnp.where(closed | below, -jnp.inf, jnp.where(above, last, first))
    upper = jnp.where(closed | above, jnp.inf, jnp.where(below, first, last))
    return lower, upper, between | closed | below | above


@jit
def sets(cp, x, rank, context):
    """Returns the interval or box at each input."""

    def of_output(found, ranks, context):
        rows = _rows_of(found, cp.residuals)
        below, above = _both_ends(cp, rows)
        reach = _select(cp, jnp.stack([below, above], 1), ranks, context)
        lower, upper = rows.center[:, 0] - reach[:, 0], rows.center[:, 0] + reach[:, 1]
        nothing = rows.whole[:, 0] | jnp.isnan(lower) | jnp.isnan(upper)
        return jnp.where(nothing, -jnp.inf, lower), jnp.where(nothing, jnp.inf, upper)

    # Of both ends, shape (*groups, 2, *target): one selection for the two.
    side = len(cp.held.shape)
    if _is_signed(cp):
        ranks = rank.reshape(*rank.shape[:side], 2, *cp.target_shape)
    else:
        ranks = jnp.stack([rank, rank], side)
    lower, upper = _at_each(cp, of_output, x, context, ranks)
    ends = lower.astype(cp.dtype), upper.astype(cp.dtype)
    return jax.vmap(between)(*ends)


@jit
def union_sets(cp, x, rank, context):
    """Returns the exact set at each input, where it may have holes."""

    def one(context, *own):
        return exact_union(*own, *cp.held.at(context, rank))

    def of_output(found, _, context):
        rows = _rows_of(found, cp.residuals)
        # Rows that tie everywhere are told by zeros, and a whole line by its spread.
        r, v, rho = (
            jnp.where(rows.tied, 0, jnp.broadcast_to(value, rows.shares.shape))
            for value in (rows.residuals, rows.shares, rows.rho)
        )
        spread = jnp.where(rows.whole, jnp.inf, rows.spread)[:, 0]
        sets = jax.vmap(one)(context, rows.center[:, 0], spread, r, v, rho)
        return sets.lower.astype(cp.dtype), sets.upper.astype(cp.dtype)

    return Intervals(*_at_each(cp, of_output, x, context))


@jit
def p_values(cp, x, y, u, context):
    """Returns p-values; min(1, c times the smallest) of several components."""

    def of_output(found, _, context, y, u):
        rows = _rows_of(found, cp.residuals)
        share = jax.vmap(partial(share_above, cp))
        shares = [share(u, context, *v) for v in _compared(cp, rows, y)]
        p = len(shares) * jnp.min(jnp.stack(shares), axis=0)
        return jnp.where(jnp.isfinite(found.preds), p, len(shares))

    p = _at_each(cp, of_output, x, context, None, as_float(y), u)
    if cp.target_shape:  # Bonferroni
        p = cp.target_shape[0] * jnp.min(p, axis=1)
    return jnp.minimum(p, 1)


@jit
def atoms(cp, x, context):
    """Returns atoms f + (1 + g) r_i / (rho_i + v_i), infinite for rows that tie."""

    def of_output(found, *_):
        rows = _rows_of(found, cp.residuals)
        return (rows.center + _sides(rows)[1]).astype(cp.dtype)

    values = jnp.moveaxis(_at_each(cp, of_output, x, None), 1, -1)
    return atoms_of(values, cp.held.mass_at(context.group), context.weight)


def _is_signed(cp):
    return isinstance(cp.score, Signed)


def _both_ends(cp, rows):
    """Returns how far below and above f each row is as strange, (m, n) each."""
    if _is_signed(cp):
        return _sides(rows)
    if cp.residuals == "studentized":  # |v_i| <= rho_i, Cauchy and Schwarz
        return _halves(rows)
    return _halves(_without_holes(rows))


def _compared(cp, rows, y):
    """Returns for each component which rows are as strange as y, and which stranger."""
    y = y[:, None]
    if _is_signed(cp):
        below, above = (rows.center + v * end for v, end in _signs(_sides(rows)))
        parts = [(y >= below, y > below), (y <= above, y < above)]
    else:
        parts = [tuple(_between(rows, y, v) for v in (jnp.less_equal, jnp.less))]
    # A row that ties is as strange as any target, and no stranger.
    return [(some | rows.tied, more & ~rows.tied) for some, more in parts]


def _signs(ends):
    return zip((-1, 1), ends, strict=True)


def _between(rows, y, less):
    """Returns whether y is between the ends of rows, or beyond their holes."""
    below, above = (rows.center + v * end for v, end in _signs(_halves(rows)))
    beyond = _beyond_holes(rows)
    lowest, highest = (rows.center + v * end for v, end in _signs(beyond))
    again = less(y, lowest) & (lowest > -jnp.inf) | less(highest, y) & (
        highest < jnp.inf
    )
    return less(below, y) & less(y, above) | again


def _select(cp, values, rank, context):
    """Returns the values of the ranks of both ends, of (m, 2, n): shape (m, 2)."""
    pick = lambda v, own: threshold_at(v.T, *cp.held.at(own, rank))  # noqa: E731
    return jax.vmap(pick)(values, context)


def _at_each(cp, of_output, x, context, ranks=None, y=None, *rows):
    """Returns `of_output(found, ranks, context, y, *rows)` of test points, in blocks.

    Several outputs are the last axis of predictions, residuals, ranks and targets.
    """

    def block(x, context, y, *rows):
        found = cp.source.learner.augmented(cp.source.prepared, x)
        targets = () if y is None else (y, *rows)
        if not cp.target_shape:
            return of_output(found, ranks, context, *targets)

        def one(preds, residuals, ranks, y):
            own = Augmented(preds, found.spread, residuals, found.shares, found.rest)
            return of_output(own, ranks, context, *(targets and (y, *rows)))

        axes = (-1, -1, *(None if v is None else -1 for v in (ranks, y)))
        return jax.vmap(one, axes, -1)(found.preds, found.residuals, ranks, y)

    width = _PASSES * cp.num_rows * math.prod(cp.target_shape)
    return in_blocks(cp, block, x, context, y, *rows, width=width)
