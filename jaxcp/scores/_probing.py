"""Scores of rows with their rounding, and the thresholds to try on each."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.scores import inputs
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import PyTree, Score

_OTHERS = 12  # other rows whose scores are thresholds of a row
_SHAKES = 4  # times that predictions and targets move, to see what rounding does
_ULPS = 8  # by which they move
_GRID = 65  # targets between the smallest and the largest one that a row is tried with
_LEVELS = np.linspace(0.1, 0.9, 9)  # shares of scores below the thresholds of a grid
_OUTWARD = 1e-3  # of the range of the scores: what a set may hold beyond its threshold


class Rows(NamedTuple):
    """Rows with their scores, shape (n, c), and how far off rounding makes them."""

    score: Score
    preds: PyTree
    y: Array
    scores: np.ndarray
    rounding: np.ndarray
    eps: float  # of the coarsest type among predictions, targets and scores
    like: Array  # the scores as they came, shape (n,) or (n, c)


def scored(score: Score, preds: PyTree, y: Array) -> Rows:
    """Returns rows with their scores; raises ValueError for NaN."""
    found, moves = _moved(score, preds, y)
    as_rows = lambda v: np.asarray(v).astype(float).reshape(len(y), -1)  # noqa: E731
    scores, moves = as_rows(found), as_rows(moves)
    if np.isnan(scores).any():
        row = np.argwhere(np.isnan(scores))[0, 0]
        raise ValueError(
            f"expected scores without NaN, got nan for row {row}; return jnp.inf for "
            "what is stranger than anything"
        )
    eps = _coarsest((preds, y, found))
    rounding = 4 * moves + _rounding(eps, scores)
    return Rows(score, preds, y, scores, rounding, eps, found)


def contradiction(rows: Rows) -> tuple[str, int, np.ndarray] | None:
    """Returns what a set should do with the target of a row at a threshold, or None."""
    thresholds = _thresholds(rows)
    held = members_of(rows.score, rows.preds, thresholds, rows.y)
    # As they were rounded to the type of the scores.
    thresholds = np.asarray(thresholds).astype(float)
    thresholds = thresholds.reshape(-1, *rows.scores.shape)
    slack = rows.rounding[None] + _rounding(rows.eps, thresholds)
    beyond = slack + _OUTWARD * _range(rows.scores)
    inside = np.all(rows.scores[None] + slack <= thresholds, axis=2)
    outside = np.any(rows.scores[None] - beyond > thresholds, axis=2)
    if inputs.is_inclusive(rows.score):  # larger by one label, as promised
        outside = np.zeros_like(outside)
    held = np.asarray(held)
    for wrong, should in [(inside & ~held, "hold"), (outside & held, "leave out")]:
        if wrong.any():
            t, row = np.argwhere(wrong)[0]
            return should, row, thresholds[t, row]
    return None


class Gap(NamedTuple):
    """A target that scores above a threshold, between two that do not."""

    row: int
    q: np.ndarray  # shape (c,)
    targets: np.ndarray  # shape (3,), in order


def gap(rows: Rows) -> Gap | None:
    """Returns a gap in a level set of a row where all sets are intervals, or None."""
    if not _on_the_line(rows):
        return None
    grid = np.linspace(np.min(rows.y), np.max(rows.y), _GRID)
    found = _scores_on(rows.score, rows.preds, jnp.asarray(grid, rows.y.dtype), rows.y)
    scores = np.asarray(found).astype(float).reshape(_GRID, *rows.scores.shape)
    scores = np.where(np.isnan(scores), np.inf, scores)
    beyond = _rounding(rows.eps, scores) + _OUTWARD * _range(rows.scores)
    for q in _levels(rows.scores):
        inside = np.all(scores <= q, axis=2)
        outside = np.any(scores - _finite(beyond) > q, axis=2)
        before = np.logical_or.accumulate(inside)
        after = np.logical_or.accumulate(inside[::-1])[::-1]
        wrong = outside & before & after
        if wrong.any():
            row, place = np.argwhere(wrong.T)[0]
            held = np.flatnonzero(inside[:, row])
            three = held[held < place][-1], place, held[held > place][0]
            return Gap(row, q, grid[list(three)])
    return None


def _on_the_line(rows):
    """Returns whether targets are numbers and the sets of the score intervals."""
    one = lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype)  # noqa: E731
    preds, q = jax.tree.map(one, (rows.preds, rows.like))
    region = jax.eval_shape(rows.score.invert, preds, q)
    return rows.y.size == len(rows.y) and isinstance(as_intervals(region), Interval)


def _levels(scores):
    """Returns scores of some ranks, shape (t, c)."""
    order = np.sort(scores, axis=0)
    return order[(_LEVELS * (len(order) - 1)).round().astype(int)]


@jit
def _scores_on(score, preds, grid, y):
    """Returns the scores of every row for each number of a grid, shape (g, n, ...)."""
    alike = lambda number: jnp.full_like(y, number)  # noqa: E731
    return lax.map(lambda number: jax.vmap(score)(preds, alike(number)), grid)


def _thresholds(rows: Rows) -> Array:
    """Returns thresholds (t, n, ...): others' scores, around one's own, infinite."""
    scores = rows.scores
    n, c = scores.shape
    step = rows.rounding + _rounding(rows.eps, scores)
    above = scores + 2 * step
    below = scores - 2 * (step + _OUTWARD * _range(scores))
    turns = np.arange(n)[:, None] % c == np.arange(c)[None]  # one component for each
    others = [np.roll(scores, -i, axis=0) for i in range(1, min(n, _OTHERS + 1))]
    infinite = np.full_like(scores, np.inf)
    around = [above, below, np.where(turns, below, above)]
    alone = [np.where(turns, v, infinite) for v in (above, below)]
    each = np.stack([*others, *around, *alone, infinite, -infinite])
    return jnp.asarray(each.reshape(-1, *rows.like.shape), rows.like.dtype)


@jit
def _moved(score, preds, y):
    """Returns scores, and how far they move when their arguments are rounded."""
    eps = _coarsest((preds, y))
    keys = jax.random.split(jax.random.key(0), 1 + _SHAKES)
    size = jnp.append(0.0, jnp.full(_SHAKES, _ULPS * eps))

    def shaken(key, size):
        leaves, structure = jax.tree.flatten((preds, y))
        pairs = zip(leaves, jax.random.split(key, len(leaves)), strict=True)
        return jax.tree.unflatten(structure, [_shake(v, size, k) for v, k in pairs])

    # Traced once: a score that draws by itself draws the same for all.
    each = lax.map(lambda by: as_float(jax.vmap(score)(*shaken(*by))), (keys, size))
    scores, others = each[0], each[1:]
    moves = jnp.where(others == scores[None], 0, jnp.abs(others - scores[None]))
    return scores, jnp.max(jnp.where(jnp.isnan(moves), jnp.inf, moves), axis=0)


def _shake(v, size, key):
    """Returns floats times 1 + size or 1 - size, at random."""
    if not jnp.issubdtype(v.dtype, jnp.floating):
        return v
    signs = jax.random.rademacher(key, v.shape, int)
    return v * (1 + size * signs).astype(v.dtype)


@jit
def members_of(score, preds, thresholds, y):
    """Returns whether the sets hold the targets, shape (t, n, ...)."""

    def one(pred, q, y):
        region = score.invert(pred, q)
        if not hasattr(region, "contains"):
            raise ValueError(
                f"expected invert(pred, q) as a set with contains(y), got "
                f"{type(region).__name__}; jaxcp.sets has some"
            )
        return region.contains(y)

    return lax.map(lambda q: jax.vmap(one)(preds, q, y), thresholds)


def _rounding(eps, values):
    return 16 * eps * _finite(abs(values))


def _coarsest(tree):
    """Returns the largest eps of the floats in a tree, or that of the default type."""
    types = [v.dtype for v in jax.tree.leaves(tree)]
    floats = [d for d in types if jnp.issubdtype(d, jnp.floating)]
    return max(float(jnp.finfo(d).eps) for d in floats or [jnp.zeros(()).dtype])


def _finite(values):
    return np.where(np.isfinite(values), values, 0)


def _range(scores):
    """Returns the range of each component over its finite scores, shape (c,)."""
    finite = np.isfinite(scores)
    highest = np.max(scores, axis=0, initial=-np.inf, where=finite)
    lowest = np.min(scores, axis=0, initial=np.inf, where=finite)
    return np.maximum(_finite(highest - lowest), 0)
