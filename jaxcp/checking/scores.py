"""Probes, on the user's own rows, of whether the sets of a score belong to it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._batching import evaluate_at_once, label_scores, widened
from jaxcp._numbers import as_float, distance
from jaxcp._tree import explained, jit, known_at_once
from jaxcp.scores import inputs
from jaxcp.sets import Interval
from jaxcp.sets.basic import as_intervals
from jaxcp.typing import ArrayLike, PyTree, Score

_ROWS = 1000
_LABELS = 6  # labels that are tried for a row
_OTHERS = 12  # other rows whose scores are thresholds of a row
_SHAKES = 4  # times that predictions and targets move, to see what rounding does
_ULPS = 8  # by which they move
_GRID = 65  # targets between the smallest and the largest one that a row is tried with
_LEVELS = np.linspace(0.1, 0.9, 9)  # shares of scores below the thresholds of a grid
_OUTWARD = 1e-3  # of the range of the scores: what a set may hold beyond its threshold


@_checks.by_labels
def check(score: Score, preds: PyTree, y: ArrayLike) -> None:
    """Returns None if a score and its sets belong together, and raises otherwise.

    For each row, `invert(pred, q)` must contain y exactly if score(pred, y) <= q: at
    the row's own score, just above and below it, at the scores of other rows and at
    +inf and -inf. Sets that are larger by rounding, or a thousandth of the range of the
    scores, pass. Where sets are intervals, the level sets of the score must have one
    piece, on a grid of targets. A score of labels must score y by `labels(pred)[y]`,
    and other labels by +inf. Looks at the first 1000 rows.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions, a pytree with leading axis n, as for `calibrate`.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.

    Returns:
      None. Of traced values only the shapes are checked.

    Raises:
      ValueError: if a set and a score contradict each other, intervals stand for level
        sets of several pieces, a score is NaN, not of shape () or (c,), or not that of
        the row by itself, or cannot be traced; or as `calibrate`.

    Guarantee:
      None: a score that passes may still break the law at other rows or thresholds.

    Assumption:
      Rows like those of calibration.

    Cost:
      Scores and sets of at most 1000 rows, at a few thresholds each; compiles programs
      for them.

    See also:
      calibrate, scores.Custom, scores.Labelwise

    Example:
      >>> from jaxcp.scores import Custom
      >>> from jaxcp.sets import Interval
      >>> relative = Custom(
      ...     lambda pred, y: abs(y - pred) / pred,
      ...     lambda pred, q: Interval(pred - q, pred + q),  # not in units of pred
      ... )
      >>> check(relative, jnp.array([2.0, 2.0, 2.0]), jnp.array([1.0, 3.0, 7.0]))
      Traceback (most recent call last):
      ...
      ValueError: expected invert(pred, q) to hold the target of row 0, whose score is
      0.5, at q = 0.500011; the set has to be {y : score(pred, y) <= q}, as that of
      scores.Custom(evaluate) without an inverse
    """
    inputs.check_score(score)
    preds, y = _checks.rows(preds=preds, y=y)
    _checks.check_count("the number of rows", len(y), 1)
    inputs.check(score, preds, y)
    preds, y = jax.tree.map(lambda v: v[:_ROWS], widened((preds, y)))
    sentence = (
        f"expected a score of pure jax functions of one example, got "
        f"{type(score).__name__} with values that jax cannot trace; write it in "
        "jax.numpy, with jnp.where for a branch, or call other libraries by "
        "jax.pure_callback"
    )
    # Data that are constants of a program are checked while it is traced.
    with explained(sentence), known_at_once():
        shape = jax.eval_shape(evaluate_at_once, score, preds, y).shape
        thresholds = jax.ShapeDtypeStruct((1, *shape), float)
        held = jax.eval_shape(_members, score, preds, thresholds, y)
        _checks.check_shape("invert(pred, q).contains(y)", (), held.shape[2:])
        if not is_concrete(score, preds, y):
            return
        rows = _scored(score, preds, y)
        for found in (wrong for probe in _PROBES for wrong in probe(rows)):
            raise ValueError(f"expected {found}")


class _Rows(NamedTuple):
    """Rows with their scores, shape (n, c), and how far off rounding makes them."""

    score: Score
    preds: PyTree
    y: Array
    scores: np.ndarray
    rounding: np.ndarray
    eps: float  # of the coarsest type among predictions, targets and scores
    like: Array  # the scores as they came, shape (n,) or (n, c)
    outward: np.ndarray  # what a set may hold beyond its threshold, shape (c,)


def _scored(score, preds, y):
    """Returns rows with their scores; raises ValueError for NaN."""
    found, moves = _moved(score, preds, y)
    scores, eps = _as_rows(found), _coarsest((preds, y, found))
    for row in np.flatnonzero(np.isnan(scores).any(axis=1)):
        raise ValueError(
            f"expected scores without NaN, got nan for row {row}; return jnp.inf for "
            "what is stranger than anything"
        )
    finite = np.isfinite(scores)
    highest = np.max(scores, axis=0, initial=-np.inf, where=finite)
    lowest = np.min(scores, axis=0, initial=np.inf, where=finite)
    outward = _OUTWARD * np.maximum(_finite(highest - lowest), 0)
    rounding = 4 * _as_rows(moves) + _rounding(eps, scores)
    return _Rows(score, preds, y, scores, rounding, eps, found, outward)


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


def _alone(rows):
    """Says if the score of the first row depends on how it is called."""
    one = jax.tree.map(lambda v: v[:1], (rows.preds, rows.y))
    alone, ours = _as_rows(evaluate_at_once(rows.score, *one))[0], rows.scores[0]
    if (distance(alone, ours) > rows.rounding[0]).any():
        yield (
            "a score that depends on pred and y of its row alone, got "
            f"{_text(ours)} for row 0 in a batch and {_text(alone)} by itself; draws "
            "and other state belong in pred"
        )


def _sets(rows):
    """Says which set does not hold exactly the targets that score at most q."""
    thresholds = _thresholds(rows)
    held = np.asarray(_members(rows.score, rows.preds, thresholds, rows.y))
    # As they were rounded to the type of the scores.
    thresholds = np.asarray(thresholds).astype(float).reshape(-1, *rows.scores.shape)
    slack = rows.rounding + _rounding(rows.eps, thresholds)
    inside = np.all(rows.scores + slack <= thresholds, axis=2)
    outside = np.any(rows.scores - slack - rows.outward > thresholds, axis=2)
    outside &= not inputs.is_inclusive(rows.score)  # larger by one label, as promised
    for wrong, should in [(inside & ~held, "hold"), (outside & held, "leave out")]:
        for t, row in np.argwhere(wrong):
            gap = next(_gaps(rows), "")
            yield (
                f"invert(pred, q) to {should} the target of row {row}, whose score is "
                f"{_text(rows.scores[row])}, at q = {_text(thresholds[t, row])}; the "
                "set has to be {y : score(pred, y) <= q}, as that of "
                f"scores.Custom(evaluate) without an inverse{gap and '; '}{gap}"
            )


def _pieces(rows):
    """Says which level set has several pieces where sets are intervals."""
    for gap in _gaps(rows):
        yield f"level sets of one piece for intervals; {gap}"


def _labels(rows):
    """Says which label has not its score, or what else has one."""
    if not inputs.has_labels(rows.score):
        return
    table = np.asarray(label_scores(rows.score, rows.preds)).astype(float)
    k = table.shape[1]
    for shift in range(min(k, _LABELS)):
        y = (jnp.asarray(rows.y) + shift) % k
        other = _scored(rows.score, rows.preds, y)
        expected = np.take_along_axis(table, np.asarray(y)[:, None], axis=1)
        wrong = distance(other.scores, expected) > other.rounding
        for row, _ in np.argwhere(wrong):
            yield (
                f"score(pred, y) to be labels(pred)[y], {expected[row, 0]:.6g} for row "
                f"{row} and label {y[row]}, got {_text(other.scores[row])}; compute "
                "one from the other"
            )
        yield from _sets(other)
    for label in (-1, k):
        y = jnp.full(len(rows.y), label)
        found = _as_rows(evaluate_at_once(rows.score, rows.preds, y))
        for row, _ in np.argwhere(found != np.inf):
            yield (
                f"the score jnp.inf for label {label}, which is none of 0, ..., "
                f"{k - 1}, got {_text(found[row])} for row {row}"
            )


_PROBES = _alone, _sets, _pieces, _labels  # each yields what it expected, and got


def _gaps(rows):
    """Yields sentences on targets that score above a threshold, between two others."""
    sets = jax.eval_shape(_intervals, rows.score, rows.preds, rows.like)
    if rows.y.size != len(rows.y) or not isinstance(sets, Interval):
        return
    grid = np.linspace(np.min(rows.y), np.max(rows.y), _GRID)
    found = _scores_on(rows.score, rows.preds, jnp.asarray(grid, rows.y.dtype), rows.y)
    scores = np.asarray(found).astype(float).reshape(_GRID, *rows.scores.shape)
    scores = np.where(np.isnan(scores), np.inf, scores)
    beyond = _rounding(rows.eps, scores) + rows.outward
    order = np.sort(rows.scores, axis=0)
    for q in order[(_LEVELS * (len(order) - 1)).round().astype(int)]:
        inside = np.all(scores <= q, axis=2)
        outside = np.any(scores - beyond > q, axis=2)
        before = np.logical_or.accumulate(inside)
        after = np.logical_or.accumulate(inside[::-1])[::-1]
        for row, place in np.argwhere((outside & before & after).T):
            held = np.flatnonzero(inside[:, row])
            first, last = grid[held[held < place][-1]], grid[held[held > place][0]]
            yield (
                f"level sets have several pieces: that of row {row} at q = {_text(q)} "
                f"holds {first:.6g} and {last:.6g}, but not {grid[place]:.6g} between "
                "them; LevelSet(score, pred, q).intervals(within) holds all pieces"
            )


def _intervals(score, preds, q):
    return as_intervals(jax.vmap(score.invert)(preds, q))


@jit
def _scores_on(score, preds, grid, y):
    """Returns the scores of every row for each number of a grid, shape (g, n, ...)."""
    return lax.map(lambda v: jax.vmap(score)(preds, jnp.full_like(y, v)), grid)


def _thresholds(rows):
    """Returns thresholds (t, n, ...): others' scores, around one's own, infinite."""
    scores = rows.scores
    n, c = scores.shape
    step = rows.rounding + _rounding(rows.eps, scores)
    above, below = scores + 2 * step, scores - 2 * (step + rows.outward)
    turns = np.arange(n)[:, None] % c == np.arange(c)[None]  # one component for each
    others = [np.roll(scores, -i, axis=0) for i in range(1, min(n, _OTHERS + 1))]
    infinite = np.full_like(scores, np.inf)
    around = [above, below, np.where(turns, below, above)]
    alone = [np.where(turns, v, infinite) for v in (above, below)]
    each = np.stack([*others, *around, *alone, infinite, -infinite])
    return jnp.asarray(each.reshape(-1, *rows.like.shape), rows.like.dtype)


@jit
def _members(score, preds, thresholds, y):
    """Returns whether the sets hold the targets, shape (t, n, ...)."""
    one = jax.vmap(lambda pred, q, y: score.invert(pred, q).contains(y))
    return lax.map(lambda q: one(preds, q, y), thresholds)


def _as_rows(scores):
    """Returns scores in double precision, shape (n, c)."""
    return np.asarray(scores).astype(float).reshape(len(scores), -1)


def _rounding(eps, values):
    return 16 * eps * _finite(abs(values))


def _coarsest(tree):
    """Returns the largest eps of the floats in a tree, or that of the default type."""
    types = [v.dtype for v in jax.tree.leaves(tree)]
    floats = [d for d in types if jnp.issubdtype(d, jnp.floating)]
    return max(float(jnp.finfo(d).eps) for d in floats or [jnp.zeros(()).dtype])


def _finite(values):
    return np.where(np.isfinite(values), values, 0)


def _text(values):
    """Returns a score, or all components of one."""
    values = [f"{v:.6g}" for v in values]
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
