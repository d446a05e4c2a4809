"""For which targets of a test point a row is at least as strange: between two ends.

With d = (y - f) / (1 + g) the fit on all n + 1 rows leaves d at the test point and r_i
- v_i d at row i, whose score is |r_i - v_i d| against rho_i |d|: row i is at least as
strange while y - f is between -(1 + g) |r_i| / (rho_i - s_i v_i) and (1 + g) |r_i| /
(rho_i + s_i v_i), s_i the sign of r_i. A row with |v_i| > rho_i is so again further
out, which makes a hole.

The exact set of full conformal prediction where it may have holes.

Row i keeps d, the test point's residual, iff its own score is no lower: |r_i - v_i d|
>= rho_i |d|. With |v_i| < rho_i that is a closed interval around 0, with |v_i| > rho_i
all but an open interval on one side of 0. A target is in the set iff the rows that keep
it weigh enough: a sweep over 2n breakpoints, in order.

How strange a test point is among the rows that were fitted with it.

A refit is not symmetric in its rows to the last bit: scores that differ by rounding
alone are equal, so that repeated rows tie.

Full conformal sets in closed form, of learners that are linear in the targets.

Each row has two ends; the k-th of n lower and of n upper ends are those of the set. The
p-value of a target counts the rows whose ends have it between them, so that both round
alike: a target is in the set iff its p-value exceeds alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._batching import map_batches, map_blocks
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit, pytree
from jaxcp.learners import Augmented
from jaxcp.pvalues.conformal import share_of
from jaxcp.quantiles._rows import unit_scale
from jaxcp.quantiles.selection import ballot
from jaxcp.quantiles.thresholds import threshold_at, weighted_threshold
from jaxcp.scores import Signed
from jaxcp.sets import Box, Interval, Intervals
from jaxcp.sets.unions import sweep, whole_line_if
from jaxcp.typing import AnySet, Augments, PyTree

POWERS = {"ordinary": 0, "studentized": 0.5, "deleted": 1}
_TIED = 128  # roundings within which a row ties with the test point
_FREE = 16  # roundings of 1 that a fit leaves of a row's residual
_WHOLE = 4  # roundings of 1 that a fit leaves of the test point's residual


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


def rows_of(found: Augmented, residuals: str) -> Rows:
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


def halves(rows: Rows) -> tuple[Array, Array]:
    """Returns how far below and above f each row is as strange, shape (m, n).

    Infinite where rows tie, or where they are as strange however far out.
    """
    sizes, turned = jnp.abs(rows.residuals), _turned(rows)
    below = _ratio(rows, sizes, rows.rho - turned)
    return below, _ratio(rows, sizes, rows.rho + turned)


def without_holes(rows: Rows) -> Rows:
    """Returns rows that count as infinite where they would make a hole."""
    return rows._replace(tied=rows.tied | (jnp.abs(rows.shares) > rows.rho))


def beyond_holes(rows: Rows) -> tuple[Array, Array]:
    """Returns from how far below and above f rows are as strange again, (m, n).

    Infinite where that is never so.
    """
    gap, turned = jnp.abs(rows.shares) - rows.rho, _turned(rows)
    again = _ratio(rows, jnp.abs(rows.residuals), gap)
    below, above = turned < 0, turned > 0
    return jnp.where(below, again, jnp.inf), jnp.where(above, again, jnp.inf)


def sides(rows: Rows) -> tuple[Array, Array]:
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


_ROUNDINGS = 16  # eps within which |v| and rho are the same


def exact_union(
    center: Array,
    spread: Array,
    residuals: Array,
    shares: Array,
    rho: Array,
    rank: Array,
    mask: Array | None = None,
    weights: Array | None = None,
    test_weight: Array | None = None,
) -> Intervals:
    """Returns the targets of one test point that enough of n rows keep.

    All y with #{i : |r_i - v_i d| < rho_i |d|} < k, where d = (y - center) / spread.
    Ends are of shape (n + 1,), disjoint, closed, in increasing order; empty pieces come
    last, as (inf, -inf). n + 1 are enough: d = 0 is kept by all, and going away from it
    each further piece begins where the hole of another row ends.

    Args:
      center: Prediction of the fit on n rows, shape (), in units of the target.
      spread: 1 + g, shape (); where it is infinite the set is the whole line.
      residuals: r, shape (n,). Rows that tie everywhere have r = v = rho = 0.
      shares: v, shape (n,).
      rho: What divides scores, (spread rest)^power, shape (n,).
      rank: Rank k, an integer, or alpha as a float where there are weights, shape ().
      mask: True for the rows that count, shape (n,); not with weights.
      weights: Weights of the rows, shape (n,).
      test_weight: Weight of the test point, shape (). Defaults to 1.
    """
    words, suffice = ballot(len(residuals), rank, mask, weights, test_weight)
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


_FEW = 16  # eps that scores of equal rows may be apart


class Held(NamedTuple):
    """How the n rows count in ranks.

    Args:
      mask: True where a row counts, shape (n,), or None.
      weights: Weights >= 0 of the rows, 0 off the mask, shape (n,), or None.
    """

    mask: Array | None
    weights: Array | None


def slack(own: Array, pred: PyTree) -> Array:
    """Returns how far rounding may move a score of a prediction."""
    leaves = [own, *map(as_float, jax.tree.leaves(pred))]
    eps = max(jnp.finfo(leaf.dtype).eps for leaf in leaves)
    sizes = [jnp.where(jnp.isfinite(v), jnp.abs(v), 0) for v in leaves]
    largest = sum(jnp.max(v, initial=0) for v in sizes)
    return lax.stop_gradient(_FEW * eps * largest).astype(own.dtype)


def kept(
    scores: Array, own: Array, slack: Array, rank: Array, rows: Held, test_weight: Array
) -> Array:
    """Returns whether p > alpha: fewer than k scores are below the own one.

    With weights `rank` is alpha. Scores are of shape (n,); an own score that is NaN
    says nothing against its target.
    """
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    lowest = own - slack
    if rows.weights is None:
        below = scores < lowest
        below = below if rows.mask is None else below & rows.mask
        fits = jnp.sum(below) < rank  # #{S_i < S_n+1} < k
    else:
        q = weighted_threshold(
            scores, as_float(rows.weights), rank, as_float(test_weight)
        )
        fits = lowest <= q
    return fits | jnp.isnan(own)


def p_value(
    scores: Array, own: Array, slack: Array, u: Array, rows: Held, test_weight: Array
) -> Array:
    """Returns (#{S_i > S_n+1} + u (1 + #{S_i = S_n+1}))/(n + 1), counts or masses."""
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    p = share_above(scores >= own - slack, scores > own + slack, u, rows, test_weight)
    return jnp.where(jnp.isnan(own), 1, p)


def share_above(
    at_least: Array, above: Array, u: Array, rows: Held, test_weight: Array
) -> Array:
    """Returns the p-value where these rows are at least as strange, and stranger."""
    if rows.weights is None:
        n, test_weight = len(at_least), jnp.ones((), as_float(u).dtype)
        masses = jnp.ones(n, int) if rows.mask is None else rows.mask.astype(int)
    else:
        weights = at_least_single(as_float(rows.weights))
        test_weight = at_least_single(as_float(test_weight))
        masses, test_weight = unit_scale(weights, test_weight)
    most, more = (jnp.sum(jnp.where(v, masses, 0)) for v in (at_least, above))
    return share_of(more, most - more, jnp.sum(masses), as_float(u), test_weight)


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
        rows = rows_of(found, cp.residuals)
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
        rows = rows_of(found, cp.residuals)
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
        sets = jax.vmap(exact_union, axes)(rows.center[:, 0], spread, r, v, rho, *known)
        return sets.lower.astype(cp.dtype), sets.upper.astype(cp.dtype)

    return Intervals(*_at_each(cp, of_output, x, test_weights))


@jit
def _p_values(cp, x, y, u, test_weights):
    """Returns p-values; min(1, c times the smallest) of several components."""

    def of_output(found, _, weights, y, u):
        rows = rows_of(found, cp.residuals)
        weights = jnp.ones(len(u)) if weights is None else weights
        share = jax.vmap(share_above, (0, 0, 0, None, 0))
        count = Held(cp.mask, cp.weights)
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
        rows = rows_of(found, cp.residuals)
        return (rows.center + sides(rows)[1]).astype(cp.dtype)

    return _at_each(cp, of_output, x, None)


def _is_signed(cp):
    return isinstance(cp.score, Signed)


def _both_ends(cp, rows):
    """Returns how far below and above f each row is as strange, (m, n) each."""
    if _is_signed(cp):
        return sides(rows)
    if cp.residuals == "studentized":  # |v_i| <= rho_i, Cauchy and Schwarz
        return halves(rows)
    return halves(without_holes(rows))


def _compared(cp, rows, y):
    """Returns for each component which rows are as strange as y, and which stranger."""
    y = y[:, None]
    if _is_signed(cp):
        below, above = (rows.center + v * end for v, end in _signs(sides(rows)))
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
    below, above = (rows.center + v * end for v, end in _signs(halves(rows)))
    beyond = beyond_holes(rows)
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
