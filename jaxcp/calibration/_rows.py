"""Rows at the door of a calibration: as long as before, and with digits enough."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import as_arrays, check_digits, is_concrete, some_rows
from jaxcp._batching import evaluate
from jaxcp.scores import inputs
from jaxcp.typing import PyTree, Score

RowShapes = tuple[tuple[int, ...], ...]
_PAIR: RowShapes = ((2,),)


def row_shapes(preds: PyTree) -> RowShapes:
    """Returns the shape of one row of every array of predictions."""
    return tuple(leaf.shape[1:] for leaf in jax.tree.leaves(preds))


def check_row_shapes(score: Score, preds: PyTree, expected: RowShapes | None) -> None:
    """Raises ValueError for predictions of other shapes than those at calibration.

    Only the number of draws may differ, the first axis of what takes draws.
    """
    found = row_shapes(preds)
    if expected is None or _split(found) == _split(expected):
        return
    free = inputs.of(score).free_axes(len(found))
    if len(found) != len(expected) or not all(map(_fits, expected, found, free)):
        shapes = ", ".join(map(str, expected)), ", ".join(map(str, found))
        raise ValueError(
            f"expected preds with rows of shape {shapes[0]} as at calibration, got "
            f"{shapes[1]}"
        )


def check_digits_of_targets(
    score: Score,
    preds: PyTree,
    y: Array,
    scores: Array,
    mask: Array | None = None,
    given: tuple[PyTree, PyTree] | None = None,
) -> None:
    """Raises ValueError if targets have lost the digits that their scores are about.

    Of targets that were rounded on their way in. Labels have no digits to lose, and
    predictions that are exactly right have lost none: `given` are predictions and
    targets as they came.
    """
    if inputs.has_labels(score) or not is_concrete(preds, y, scores, mask):
        return
    some = some_rows(len(y))
    if some.step > 1:
        cut = jax.tree.map(lambda v: v[some], (preds, y, scores, mask))
        preds, y, scores, mask = cut
    floats = np.asarray(y, jax.dtypes.canonicalize_dtype(float))
    moved = evaluate(score, preds, jnp.asarray(np.nextafter(floats, np.inf)))
    rows = slice(None) if mask is None else np.asarray(mask)
    scores, moved = (np.asarray(v, float)[rows] for v in (scores, moved))
    try:
        with np.errstate(invalid="ignore"):
            check_digits("y", moved - scores, scores)
    except ValueError:
        if given is None or not _are_exact(score, given, scores, some, rows):
            raise


def _are_exact(score, given, scores, some, rows):
    """Returns whether most scores are what double precision makes of their rows."""
    with jax.enable_x64(True):
        preds, y = as_arrays(preds=given[0], y=given[1])
        exact = np.asarray(evaluate(score, preds, y.astype(float)))[some][rows]
    return bool(np.all(np.mean(exact == scores, axis=0) > 0.5))


def _fits(known, new, free):
    return len(known) == len(new) and known[free:] == new[free:]


def _split(shapes):
    """Returns shapes with two numbers in place of an array of a pair."""
    return ((), ()) if shapes == _PAIR else shapes
