"""Checks, on the user's own rows, that the sets of a score belong to it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._batching import evaluate_at_once, label_scores, widened
from jaxcp._numbers import distance
from jaxcp._tracing import explained, known_at_once
from jaxcp.scores import _probing, inputs
from jaxcp.typing import ArrayLike, PyTree, Score

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
        rows = _probing.scored(score, preds, y)
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
    found = jax.eval_shape(_probing.members_of, score, preds, thresholds, y).shape[2:]
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
    wrong = _probing.contradiction(rows)
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
    gap = _probing.gap(rows)
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
        other = _probing.scored(rows.score, rows.preds, y)
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
