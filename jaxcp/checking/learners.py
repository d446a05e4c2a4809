"""Whether a learner leaves out rows as it is told to, and treats the others alike.

Other targets or another order of rows, and whether predictions move with them.

Whether a fit depends on the order of the rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import distance
from jaxcp._tree import (
    classes_of,
    explained,
    functions_in,
    jit,
    known_at_once,
)
from jaxcp.checking.captured import states_of
from jaxcp.learners import general
from jaxcp.learners._hosting import check_untraced
from jaxcp.learners.affine import Affine, check_line, rounding_of
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

_FAR = 10  # ranges of the targets by which some of them change
_REPEATS = 3  # fits that show how far a learner with noise of its own moves


def other_targets(y: Array, rows: np.ndarray) -> Iterator[Array]:
    """Yields the targets, and then those with others in `rows`.

    Labels become another label that occurs. Floats move to an end of their range, which
    a learner of bounded numbers accepts, and far away, which shows more.
    """
    yield y
    values = np.asarray(y)
    lowest, highest = values.min(axis=0), values.max(axis=0)
    held, end = values[rows], values.copy()
    at_highest = (held == highest).sum(axis=0) > (held == lowest).sum(axis=0)
    end[rows] = np.where(at_highest, lowest, highest)
    yield jnp.asarray(end)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        spread = highest.astype(float) - lowest
        far = values.astype(float)
        far[rows] += _FAR * np.where(spread > 0, spread, np.maximum(abs(highest), 1))
        with np.errstate(over="ignore"):  # of half precision
            yield jnp.asarray(far.astype(values.dtype))


def first_moved(
    predict: Callable[[Array], PyTree], targets: Iterator[Array], at: slice | int
) -> tuple[int, str] | None:
    """Returns where a prediction moves and how, or None."""
    y = next(targets)
    before = predict(y)
    for other in targets:
        after = predict(other)
        if _moved(before, after, [], at) is None:
            continue
        again = [predict(y) for _ in range(_REPEATS)]  # which may differ by itself
        if (moved := _moved(before, after, again, at)) is not None:
            return moved
    return None


def moved_by_order(
    predict: Callable[[PyTree], PyTree], rows: PyTree
) -> tuple[int, str] | None:
    """Returns where a prediction moves with the order of rows (x, y), or None.

    Many steps of a fit may blow up rounding: predictions may move ten times as far as
    with targets that are off by their last digits.
    """
    n, rng = len(rows[1]), np.random.default_rng(0)
    before = predict(rows)
    for order in (np.arange(n)[::-1], rng.permutation(n)):
        after = predict(jax.tree.map(lambda v, order=order: v[order], rows))
        if _moved(before, after, [], slice(None)) is None:
            continue
        again = [predict(_rounded_otherwise(rows, rng)) for _ in range(_REPEATS)]
        if (moved := _moved(before, after, again, slice(None))) is not None:
            return moved
    return None


def _rounded_otherwise(rows, rng):
    """Returns rows (x, y) with other last digits, of y or else of x."""

    def nudge(v):
        if not jnp.issubdtype(v.dtype, jnp.inexact):
            return v
        signs = jnp.asarray(rng.choice([-1, 1], v.shape), v.dtype)
        return v * (1 + jnp.finfo(v.dtype).eps * signs)

    x, y = rows
    if jnp.issubdtype(y.dtype, jnp.inexact):
        return x, nudge(y)
    return jax.tree.map(nudge, x), y


def _moved(before, after, again, at):
    """Returns the first row whose prediction moves by more than rounding, and how.

    A prediction that is no longer finite says nothing: few learners take any target.
    """
    trees = before, after, *again
    for leaves in zip(*(jax.tree.leaves(tree) for tree in trees), strict=True):
        a, b, *repeats = (np.asarray(leaf).astype(float) for leaf in leaves)
        noise = [_largest(distance(v, a)) for v in repeats]
        within = rounding_of(a, leaves[0].dtype) + 10 * max(noise, default=0.0)
        a, b = a[at], b[at]
        moved = ~(distance(a, b) <= within) & np.isfinite(b)
        if moved.any():
            where = tuple(np.argwhere(moved)[0])
            return (where or (0,))[0], f"from {a[where]:.4g} to {b[where]:.4g}"
    return None


def _largest(values):
    return np.max(values, initial=0.0, where=np.isfinite(values))


_SYMMETRIC = {GradientLearner, KernelRidge, NearestNeighbors, QuantileRidge, Ridge}
_CURE = (
    "let the fit use all rows alike, in the full batch and without draws for each row, "
    "or take split_conformal or cv_plus, which need no symmetry"
)


def is_symmetric(learner: Any) -> bool:
    """Returns whether a learner of the library treats rows alike by construction."""
    return all(type(part) in _SYMMETRIC for part in _parts(learner))


def check_no_batches(learner: Any) -> None:
    """Raises ValueError for mini-batches, which are drawn by position."""
    for part in _parts(learner):
        if type(part) is GradientLearner and part.batch_size is not None:
            raise ValueError(
                "expected a learner that treats all rows alike, got GradientLearner "
                f"with batch_size={part.batch_size}, whose steps see some rows more "
                "often than others, by their positions; take batch_size=None, or "
                "split_conformal or cv_plus, which need no symmetry"
            )


def check_order(learner: Any, x: PyTree, y: Array, key: Array) -> None:
    """Raises ValueError if predictions move with the order of the rows."""
    if len(y) < 2 or not is_concrete(learner, x, y, key):
        return
    moved = moved_by_order(lambda x_y: _predictions(learner, key, x_y, x), (x, y))
    if moved is not None:
        row, change = moved
        raise ValueError(
            f"expected {type(learner).__name__} to fit the same whatever the order of "
            f"the rows, got a prediction of row {row} that moves with it, {change}; "
            f"{_CURE}"
        )


def known_rows(x: PyTree, y: Array) -> tuple[PyTree, Array]:
    """Returns rows without NaN, which rows off a mask may hold."""
    if not is_concrete(x, y):
        return x, y
    floats = [
        v for v in jax.tree.leaves((x, y)) if jnp.issubdtype(v.dtype, jnp.inexact)
    ]
    known = np.ones(len(y), bool)
    for v in floats:
        known &= ~np.isnan(np.asarray(v)).any(axis=tuple(range(1, v.ndim)))
    return (x, y) if known.all() else jax.tree.map(lambda v: v[known], (x, y))


def _parts(learner):
    """Returns the learners that a learner of the library is made of."""
    if type(learner) is MeanScale:
        return [*_parts(learner.mean), *_parts(learner.scale)]
    return _parts(learner.learner) if type(learner) is Affine else [learner]


@jit
def _predictions(learner, key, rows, x):
    """Returns what a fit on some order of the rows predicts for them in the first."""
    key, weights = jax.random.clone(key), jnp.ones(len(rows[1]))
    return learner.predict(learner.fit(key, *rows, weights), x)


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
        check_no_batches(learner)
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
    check_no_batches(learner)
    if type(learner) is Affine or not is_symmetric(learner):
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
    x, y = known_rows(x, y)
    with traceable(learner), known_at_once():
        if type(learner) is Affine:
            check_line(learner, x, y, key)
        if symmetric:
            check_order(learner, x, y, key)


def _check_fit(learner, x, y, key):
    rows = np.arange(0, len(y), _EVERY)
    weights = np.ones(len(y))
    weights[rows] = 0
    shapes = jax.eval_shape(_predictions_of, learner, key, x, y, weights, rows)
    _check_leading("predictions", shapes, len(rows))
    if not is_concrete(learner, x, y, key):
        return
    predict = lambda y: _predictions_of(learner, key, x, y, weights, rows)  # noqa: E731
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
    parts = jax.tree.leaves(params, is_leaf=general.is_shared)
    own = [part for part in parts if not general.is_shared(part)]
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
def _predictions_of(learner, key, x, y, weights, rows):
    """Returns the predictions of a weighted fit for some of the rows."""
    params = learner.fit(jax.random.clone(key), x, y, weights)
    return learner.predict(params, jax.tree.map(lambda v: v[rows], x))


@jit
def _refits(learner, x, y):
    """Returns the prediction of each row by the closed form of leaving it out."""
    return general.predict_each(learner, learner.leave_one_out(x, y), x)


def _check_leading(name, tree, n):
    """Raises ValueError unless all leaves have a leading axis of n."""
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[:1] != (n,):
            raise ValueError(
                f"expected {name} with a leading axis of {n}, one for each input, got "
                f"shape {leaf.shape}"
            )
