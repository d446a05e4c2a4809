"""Whether a learner leaves out rows as it is told to, and treats the others alike."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._captured import states_of
from jaxcp._tracing import (
    Untraceable,
    classes_of,
    explained,
    functions_in,
    jit,
    known_at_once,
)
from jaxcp.learners import _symmetry, shared
from jaxcp.learners._probing import first_moved, other_targets
from jaxcp.learners.affine import Affine, check_line
from jaxcp.learners.general import GradientLearner, MeanScale, check_learner
from jaxcp.learners.linear import QuantileRidge, Ridge
from jaxcp.learners.neighbors import KernelRidge, NearestNeighbors
from jaxcp.typing import (
    AnyLearner,
    ArrayLike,
    FitsOnHost,
    Learner,
    LeavesOneOut,
    PyTree,
)

_EVERY = 5  # every fifth row is left out
_REMEMBERED = 256

_HOLD_OUT = {GradientLearner, KernelRidge, NearestNeighbors, QuantileRidge, Ridge}
_PASSED: OrderedDict[Any, None] = OrderedDict()


def check(
    learner: AnyLearner,
    x: PyTree,
    y: ArrayLike,
    *,
    key: Array | None = None,
    symmetric: bool = False,
) -> None:
    """Returns None if a learner leaves out rows of weight 0, and raises otherwise.

    The learner is fitted with weight 0 for every fifth row, and again with other
    targets there: at an end of their range and far away, or another label. Its
    predictions for these rows must not change. The fits of a learner's own
    `leave_one_out` are checked in the same way, for three rows. The cross-conformal
    verbs run this once for each learner of your own. An `Estimator` leaves rows out by
    itself: only one fit and its predictions are checked. Those of an `Affine` must be
    affine in the targets.

    Full conformal prediction asks for more: with `symmetric=True` the fits on the rows
    in two other orders, with the same key, must predict the same to rounding. Batches
    and draws by position, as of dropout or a validation split, do not pass.

    Args:
      learner: A learner.
      x: Inputs, a pytree with leading axis n, at least 2 rows.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      key: Random key of the fits. Defaults to a fixed one.
      symmetric: Whether fits must not depend on the order of the rows.

    Returns:
      None. Of traced values only the shapes are checked.

    Raises:
      ValueError: if a prediction moves with the target of a row left out, or with the
        order of the rows, or leaves the line of an `Affine`, predictions do not have
        the leading axis of the inputs, or the learner cannot be traced.

    Guarantee:
      None: a learner that passes may still leak where these data do not show it.

    Assumption:
      Rows like those of the fit.

    Cost:
      A few fits: one for each of the targets that are tried, and more where there is
      a `leave_one_out`. An `Estimator` is fitted once. Three more fits for the order.

    See also:
      learners.FunctionLearner, cross_conformal, full_conformal, typing.Learner

    Example:
      >>> from jaxcp.learners import FunctionLearner
      >>> def nearest(params, x):  # keeps all rows, whatever their weight
      ...     return params[1][jnp.argmin(abs(x - params[0].T), axis=1)]
      >>> cheat = FunctionLearner(lambda key, x, y, weights: (x, y), nearest)
      >>> x = jnp.arange(10.0)[:, None]
      >>> check(cheat, x, x[:, 0] ** 2)
      Traceback (most recent call last):
      ...
      ValueError: expected FunctionLearner to leave out rows of weight 0, got a
      prediction of row 0 that moves with its own target, from 0 to 81; multiply each
      row's part of the fit by its weight, and keep no row of weight 0
    """
    key = jax.random.key(0) if key is None else key
    _checks.check_key(key)
    _checks.check_given(learner=learner, x=x, y=y)
    if isinstance(learner, FitsOnHost):
        if symmetric:
            raise ValueError(
                f"expected symmetric=False with {type(learner).__name__}, whose models "
                "full conformal prediction does not fit; split_conformal and cv_plus "
                "take them and need no symmetry"
            )
        return _check_on_host(learner, x, y, key)
    y, x = _checks.rows(y=y, x=x)
    _checks.check_count("the number of rows", len(y), 2)
    _checks.check_not_nan("y", y)
    check_learner(learner, x, y)
    if symmetric:
        _symmetry.check_no_batches(learner)
    _check(learner, x, y, key)
    _check_alike(learner, x, y, key, symmetric)


def check_once(learner: Learner, x: PyTree, y: Array, key: Array) -> None:
    """Checks a learner that is neither of the library nor known to have passed."""
    if len(y) >= 2 and not _is_own(learner):
        _once(_check, learner, x, y, key)


def check_symmetric_once(learner: Learner, x: PyTree, y: Array, key: Array) -> None:
    """Checks that a learner treats rows alike, unless it is known to.

    Mini-batches are refused at once, also of traced data. An `Affine` must be affine.
    """
    _symmetry.check_no_batches(learner)
    if type(learner) is Affine or not _symmetry.is_symmetric(learner):
        _once(_check_alike, learner, x, y, key)


def _once(verify, learner, x, y, key):
    """Runs a check of known values, unless it has passed for their shapes."""
    leaves, structure = jax.tree.flatten((learner, x, y))
    if not is_concrete(leaves, key):
        return
    shapes = tuple((np.shape(v), getattr(v, "dtype", type(v))) for v in leaves)
    # By what keeps nothing of the user's alive: neither functions nor what they hold.
    within = type(learner), *classes_of(learner), *functions_in((learner,), {})
    kinds = states_of(within)
    name = verify, str(structure), kinds, shapes
    if name in _PASSED:
        return
    verify(learner, x, y, key)
    _PASSED[name] = None
    if len(_PASSED) > _REMEMBERED:
        _PASSED.popitem(last=False)


def check_predictions(
    preds: PyTree,
    x: PyTree,
    mask: Array | None,
    name: str = "predictions",
    cure: str = "",
) -> None:
    """Raises ValueError for predictions that are NaN, or inputs that cause them."""
    try:
        _checks.check_not_nan(f"{name} of the learner", preds, mask, cure)
    except ValueError:
        _checks.check_not_nan("x", x)
        raise


def traceable(learner: Learner) -> AbstractContextManager[None]:
    """Raises ValueError, inside of this context, for a learner that is not of jax."""
    return explained(
        f"expected a learner of pure jax functions of arrays, got "
        f"{type(learner).__name__} with values that jax cannot trace; write it in "
        "jax.numpy or call it by jax.pure_callback; a model of another library is a "
        "learners.Estimator(model), and recorded predictions go into "
        "jaxcp.cross_calibrate"
    )


def check_untraced(learner: FitsOnHost, *values: PyTree) -> None:
    """Raises ValueError for traced values, which models of the host cannot see."""
    if not is_concrete(values):
        raise Untraceable(
            f"expected {type(learner).__name__} outside of jit, vmap and grad, for its "
            "models fit and predict on the host; record their predictions first, and "
            "give those to jaxcp.cross_calibrate"
        )


def _is_own(learner):
    """Returns whether a learner of the library holds rows out by construction."""
    if type(learner) is MeanScale:
        return _is_own(learner.mean) and _is_own(learner.scale)
    if type(learner) is Affine:
        return _is_own(learner.learner)
    return type(learner) in _HOLD_OUT


def _check_on_host(learner, x, y, key):
    check_untraced(learner, key, x, y)
    n = learner.num_rows(x)
    _checks.check_count("the number of rows", n, 2)
    weights = np.ones((1, n))
    weights[0, ::_EVERY] = 0
    fits = learner.fit_all(key, x, y, weights)
    learner.predict_held_out(fits, x, weights == 0)


def _check(learner, x, y, key):
    # Data that are constants of a program are checked while it is traced.
    with traceable(learner), known_at_once():
        _check_fit(learner, x, y, key)
        if isinstance(learner, LeavesOneOut):
            _check_leave_one_out(learner, x, y)


def _check_alike(learner, x, y, key, symmetric=True):
    x, y = _symmetry.known_rows(x, y)
    with traceable(learner), known_at_once():
        if type(learner) is Affine:
            check_line(learner, x, y, key)
        if symmetric:
            _symmetry.check_order(learner, x, y, key)


def _check_fit(learner, x, y, key):
    rows = np.arange(0, len(y), _EVERY)
    weights = np.ones(len(y))
    weights[rows] = 0
    shapes = jax.eval_shape(_predictions, learner, key, x, y, weights, rows)
    _check_leading("predictions", shapes, len(rows))
    if not is_concrete(learner, x, y, key):
        return
    predict = lambda y: _predictions(learner, key, x, y, weights, rows)  # noqa: E731
    moved = first_moved(predict, other_targets(y, rows), slice(None))
    if moved is not None:
        i, change = moved
        raise ValueError(
            f"expected {type(learner).__name__} to leave out rows of weight 0, got a "
            f"prediction of row {rows[i]} that moves with its own target, {change}; "
            "multiply each row's part of the fit by its weight, and keep no row of "
            "weight 0"
        )


def _check_leave_one_out(learner, x, y):
    n = len(y)
    params = jax.eval_shape(learner.leave_one_out, x, y)
    parts = jax.tree.leaves(params, is_leaf=shared.is_shared)
    own = [part for part in parts if not shared.is_shared(part)]
    _check_leading("parameters of leave_one_out", own, n)
    _check_leading("predictions", jax.eval_shape(_refits, learner, x, y), n)
    if not is_concrete(learner, x, y):
        return
    for row in sorted({0, n // 2, n - 1}):
        targets = other_targets(y, np.array([row]))
        moved = first_moved(lambda y: _refits(learner, x, y), targets, row)
        if moved is not None:
            raise ValueError(
                f"expected {type(learner).__name__}.leave_one_out to fit without each "
                f"row, got a prediction of row {row} that moves with its own target, "
                f"{moved[1]}; row i of the parameters is the fit without row i"
            )


@jit
def _predictions(learner, key, x, y, weights, rows):
    """Returns the predictions of a weighted fit for some of the rows."""
    params = learner.fit(jax.random.clone(key), x, y, weights)
    return learner.predict(params, jax.tree.map(lambda v: v[rows], x))


@jit
def _refits(learner, x, y):
    """Returns the prediction of each row by the closed form of leaving it out."""
    return shared.predict_each(learner, learner.leave_one_out(x, y), x)


def _check_leading(name, tree, n):
    """Raises ValueError unless all leaves have a leading axis of n."""
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[:1] != (n,):
            raise ValueError(
                f"expected {name} with a leading axis of {n}, one for each input, got "
                f"shape {leaf.shape}"
            )
