"""What goes into full conformal prediction on a grid: checked at the door."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete, is_rounded
from jaxcp._batching import evaluate, score_of, widened
from jaxcp._numbers import as_float
from jaxcp._tracing import jit
from jaxcp.calibration._rows import check_digits_of_targets
from jaxcp.full import _cells, _grids, _target_checks
from jaxcp.full._refits import filled, fitted
from jaxcp.learners import checking
from jaxcp.learners.general import check_learner, check_refitted
from jaxcp.scores import inputs
from jaxcp.typing import HasEnds, HasShapes, Learner, PyTree, Score

_MANY_OUTPUTS = (
    "; full_conformal takes d outputs at once, and here call it for each output, with "
    "alpha / d"
)


class Rows(NamedTuple):
    """Training rows and a grid, after checks, as fields of `DiscretizedConformal`."""

    x: PyTree
    y: Array
    grid: Array
    weights: Array | None
    mask: Array | None
    components: tuple[int, ...]


def checked(
    key: Array,
    learner: Learner,
    score: Score,
    x: PyTree,
    y: Any,
    grid: Any,
    weights: Any,
    mask: Any,
    check: bool,
) -> Rows:
    """Returns rows and a grid as arrays of one type, or raises ValueError."""
    _check_kinds(learner, score)
    given, mask = y, _checks.mask(mask)
    named = {"calibration_weights": _checks.weights(weights), "mask": mask}
    y, x, weights, mask = _checks.rows(y=y, x=x, **named)
    _checks.check_key(key)
    if y.ndim != 1:
        raise ValueError(f"expected y of shape (n,), got {y.shape}{_MANY_OUTPUTS}")
    _checks.check_not_nan("y", y, mask)
    grid = _grids.as_grid(grid)
    for value in (y, grid):
        _target_checks.check_real(value)
    dtype = jnp.promote_types(as_float(y).dtype, grid.dtype)
    y, grid = y.astype(dtype), grid.astype(dtype)
    check_learner(learner, x, y)
    x, y = filled((x, y), mask)
    if check:
        checking.check_symmetric_once(learner, x, y, key)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    components = _check_fit(key, learner, score, x, y, grid, mask, given)
    return Rows(x, y, grid, weights, mask, components)


def _check_kinds(learner, score):
    """Raises ValueError for models of other libraries, and scores not of numbers."""
    inputs.check_score(score)
    if inputs.has_labels(score):
        raise ValueError(
            f"expected a score of numbers, got {type(score).__name__}, which scores "
            "labels; full_conformal refits with each label"
        )
    check_refitted(learner)


def _check_fit(key, learner, score, x, y, grid, mask, given):
    """Returns the shape of a score; raises ValueError for predictions that do not fit.

    By a fit on the rows alone where there are values, and by shapes elsewhere.
    """
    known = is_concrete(learner, key, x, y, grid, mask) and len(y) > 0
    with checking.traceable(learner):
        if known:
            preds = _first_fit(learner, key, x, y, grid, mask)
        else:
            x, y = _cells.with_one_more((x, y))
            preds = jax.eval_shape(_first_fit, learner, key, x, y, grid, mask)
    _checks.num_rows(y=y, predictions=preds)
    if known:
        _check_first(score, preds, x, y, mask, given)
    one = lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype)  # noqa: E731
    pred, target = jax.tree.map(one, jax.eval_shape(widened, (preds, y)))
    level = jax.eval_shape(partial(score_of, score), pred, target)
    region = jax.eval_shape(score.invert, pred, level)
    is_line = isinstance(region, HasEnds) and isinstance(region, HasShapes)
    if not is_line or region.target_shape() not in ((), (1,)):
        raise ValueError(
            "expected a score whose sets are intervals, got "
            f"{type(region).__name__} from {type(score).__name__}; "
            "scores.Custom takes an inverse, or a start"
        )
    return level.shape


def _check_first(score, preds, x, y, mask, given):
    """Raises ValueError for predictions and targets that the score does not take."""
    checking.check_predictions(preds, x, mask)
    inputs.check(score, preds, y, mask)
    if is_rounded("y", given):
        scores = evaluate(score, preds, y)
        check_digits_of_targets(score, preds, y, scores, mask, (preds, given))


@jit
def _first_fit(learner, key, x, y, grid, mask):
    """Returns what a fit on the rows predicts for them."""
    return fitted(learner, key, x, _grids.rounded(grid, y), mask)[1]
