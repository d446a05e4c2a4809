"""What goes into full conformal prediction on a grid: checked at the door."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete, is_rounded
from jaxcp._batching import evaluate, widened
from jaxcp._tracing import jit
from jaxcp.calibration._rows import check_digits_of_targets
from jaxcp.full import _cells, _masked, _target_checks
from jaxcp.learners import checking
from jaxcp.learners.general import check_learner
from jaxcp.scores import inputs
from jaxcp.typing import FitsOnHost, HasEnds, HasShapes, Learner, PyTree, Score

_MANY_OUTPUTS = (
    "; full_conformal has closed forms for several outputs, and here each output has "
    "sets of its own at its share of alpha"
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
    grid = _check_grid(grid)
    for value in (y, grid):
        _target_checks.check_real(value)
    x, y = _masked.emptied(mask, (x, y))
    dtype = jnp.promote_types(_float_type(y), _float_type(grid))
    y, grid = y.astype(dtype), grid.astype(dtype)
    check_learner(learner, x, y)
    if check:
        checking.check_symmetric_once(learner, x, y, key)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    components = _check_fit(key, learner, score, x, y, grid, mask, given)
    return Rows(x, y, grid, weights, mask, components)


def check_like_rows(x: PyTree, x_new: PyTree) -> None:
    """Raises ValueError for inputs of other shapes than those of the rows."""
    shapes = [jax.tree.map(lambda v: v.shape[1:], tree) for tree in (x, x_new)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"expected x_new with rows of shape {shapes[0]} like x, got {shapes[1]}"
        )


def _check_kinds(learner, score):
    """Raises ValueError for models of the host, and scores that are not of numbers."""
    inputs.check_score(score)
    if inputs.has_labels(score):
        raise ValueError(
            f"expected a score of numbers, got {type(score).__name__}, which scores "
            "labels; full_conformal refits with each label"
        )
    _checks.check_given(learner=learner)
    if isinstance(learner, FitsOnHost):
        raise ValueError(
            f"expected a learner of jax, got {type(learner).__name__}, whose models "
            "would be refitted for each test point and cell on the host; take "
            "split_conformal or cv_plus for it"
        )


def _check_grid(grid):
    """Returns a grid as an array, or raises ValueError unless it increases."""
    _checks.check_given(grid=grid)
    grid = as_array("grid", grid)
    if grid.ndim != 1 or not len(grid):
        raise ValueError(
            f"expected grid of shape (g,), g >= 1, got {grid.shape}; "
            "numpy.linspace(lowest, highest, g) makes one"
        )
    _checks.check_values(np.isfinite, "grid of finite values", grid)
    if is_concrete(grid):
        steps = np.diff(np.asarray(grid))
        if not np.all(steps > 0):
            at = int(np.argmin(steps > 0))
            raise ValueError(
                f"expected grid to increase, got {grid[at]} and then {grid[at + 1]} "
                f"at {at + 1}; numpy.unique(grid) sorts it, without repetitions"
            )
    return grid


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
    level = jax.eval_shape(score, pred, target)
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
    try:
        _checks.check_not_nan("predictions of the learner", preds, mask)
    except ValueError:
        _checks.check_not_nan("x", x, mask)
        raise
    inputs.check(score, preds, y, mask)
    if is_rounded("y", given):
        scores = evaluate(score, preds, y)
        check_digits_of_targets(score, preds, y, scores, mask)


@jit
def _first_fit(learner, key, x, y, grid, mask):
    """Returns what a fit on the rows predicts for them."""
    return _cells.fitted(learner, key, x, _cells.rounded(grid, y), mask)[1]


def _float_type(x):
    floats = jnp.issubdtype(x.dtype, jnp.floating)
    return x.dtype if floats else jax.dtypes.canonicalize_dtype(float)
