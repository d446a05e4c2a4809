"""Checks, on the user's own rows, that the sets of a score belong to it.

Scores of rows with their rounding, and the thresholds to try on each.
"""

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


def find_gap(rows: Rows) -> Gap | None:
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


_ROWS = 1000
_LABELS = 6  # labels that are tried for a row


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
    # Data that are constants of a program are checked while it is traced.
    with _traceable(score), known_at_once():
        _check_shapes(score, preds, y)
        if not is_concrete(score, preds, y):
            return
        rows = scored(score, preds, y)
        _check_alone(rows)
        _check_sets(rows)
        _check_pieces(rows)
        if inputs.has_labels(score):
            _check_labels(rows)


def _traceable(score):
    return explained(
        f"expected a score of pure jax functions of one example, got "
        f"{type(score).__name__} with values that jax cannot trace; write it in "
        "jax.numpy, with jnp.where for a branch, or call other libraries by "
        "jax.pure_callback"
    )


def _check_shapes(score, preds, y):
    """Raises ValueError unless scores have shape () or (c,), and sets members."""
    shape = jax.eval_shape(evaluate_at_once, score, preds, y).shape[1:]
    thresholds = jax.ShapeDtypeStruct((1, len(y), *shape), float)
    found = jax.eval_shape(members_of, score, preds, thresholds, y).shape[2:]
    if found:
        raise ValueError(
            "expected invert(pred, q).contains(y) of shape (), got one of shape "
            f"{found}; a set is of one example"
        )


def _check_alone(rows):
    """Raises ValueError if the score of the first row depends on how it is called."""
    one = jax.tree.map(lambda v: v[:1], (rows.preds, rows.y))
    alone = np.asarray(evaluate_at_once(rows.score, *one)).astype(float).reshape(-1)
    ours = rows.scores[0]
    if (distance(alone, ours) > rows.rounding[0]).any():
        raise ValueError(
            "expected a score that depends on pred and y of its row alone, got "
            f"{_text(ours)} for row 0 in a batch and {_text(alone)} by itself; draws "
            "and other state belong in pred"
        )


def _check_sets(rows):
    """Raises ValueError unless sets hold the targets that score at most q."""
    wrong = contradiction(rows)
    if wrong is None:
        return
    should, row, q = wrong
    raise ValueError(
        f"expected invert(pred, q) to {should} the target of row {row}, whose score is "
        f"{_text(rows.scores[row])}, at q = {_text(q)}; the set has to be {{y : "
        "score(pred, y) <= q}, as that of scores.Custom(evaluate) without an inverse"
        + ("; " + gap if (gap := _gap(rows)) else "")
    )


def _check_pieces(rows):
    """Raises ValueError for intervals where level sets have several pieces."""
    gap = _gap(rows)
    if gap:
        raise ValueError(f"expected level sets of one piece for intervals; {gap}")


def _gap(rows):
    """Returns what to say of level sets of several pieces, of sets that have one."""
    gap = find_gap(rows)
    if gap is None:
        return ""
    first, between, last = (f"{v:.6g}" for v in gap.targets)
    return (
        f"level sets have several pieces: that of row {gap.row} at q = {_text(gap.q)} "
        f"holds {first} and {last}, but not {between} between them; "
        "LevelSet(score, pred, q).intervals(within) is a set of all pieces"
    )


def _check_labels(rows):
    """Raises ValueError unless labels have their scores, and no others one."""
    table = np.asarray(label_scores(rows.score, rows.preds)).astype(float)
    if table.ndim != 2:
        raise ValueError(f"expected labels(pred) of shape (k,), got {table.shape[1:]}")
    k = table.shape[1]
    for shift in range(min(k, _LABELS)):
        y = (jnp.asarray(rows.y) + shift) % k
        other = scored(rows.score, rows.preds, y)
        _check_table(other, np.take_along_axis(table, np.asarray(y)[:, None], axis=1))
        _check_sets(other)
    _check_out_of_range(rows, k)


def _check_table(rows, expected):
    """Raises ValueError unless the scores of labels are those of `labels`."""
    wrong = distance(rows.scores, expected) > rows.rounding
    if wrong.any():
        row = np.argwhere(wrong)[0, 0]
        raise ValueError(
            f"expected score(pred, y) to be labels(pred)[y], {expected[row, 0]:.6g} "
            f"for row {row} and label {rows.y[row]}, got {_text(rows.scores[row])}; "
            "compute one from the other"
        )


def _check_out_of_range(rows, k):
    """Raises ValueError unless values that are no labels score +inf."""
    for label in (-1, k):
        y = jnp.full(len(rows.y), label)
        found = np.asarray(evaluate_at_once(rows.score, rows.preds, y)).astype(float)
        if not (found == np.inf).all():
            row = np.argwhere(found != np.inf)[0, 0]
            raise ValueError(
                f"expected the score jnp.inf for label {label}, which is none of 0, "
                f"..., {k - 1}, got {_text(found[row])} for row {row}"
            )


def _text(values):
    """Returns a score, or all components of one."""
    values = [f"{v:.6g}" for v in np.atleast_1d(values)]
    return values[0] if len(values) == 1 else f"({', '.join(values)})"
