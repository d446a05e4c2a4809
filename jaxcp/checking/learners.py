"""Whether a learner leaves out rows as it is told to, and treats the others alike.

A probe is a change of the data that no prediction may follow: other targets of rows
left out, another order of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import distance
from jaxcp._tree import classes_of, explained, functions_in, jit, known_at_once
from jaxcp.checking.captured import states_of
from jaxcp.learners import affine, general
from jaxcp.learners._hosting import check_untraced
from jaxcp.typing import ArrayLike, FitsOnHost, Learner, LeavesOneOut, PyTree

_EVERY = 5  # every fifth row is left out
_REMEMBERED = 256
_FAR = 10  # ranges of the targets by which some of them change
_FAR_ON_LINE = 2.0  # units of the targets by which one moves either way on a line
_REPEATS = 3  # fits that show how far a learner with noise of its own moves
_PASSED: dict[Any, None] = {}


class Probe(NamedTuple):
    """Data that must not move predictions, and what to say of a learner that they do.

    Args:
      sentence: What was expected, with kind, row and change to fill in.
      predict: From data to predictions.
      given: The data.
      others: Data that change what must not count.
      names: The row of each prediction that is looked at.
      at: Which predictions are looked at.
      again: From the data to such as may only differ in rounding.
    """

    sentence: str
    predict: Callable[[Any], PyTree]
    given: Any
    others: Iterable[Any]
    names: Any
    at: Any = slice(None)
    again: Callable[[Any], Any] = lambda given: given


@_checks.by_labels
def check(
    learner: Learner | FitsOnHost,
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
    if symmetric:
        general.check_refitted(learner)
        check_no_batches(learner)
    if isinstance(learner, FitsOnHost):
        check_untraced(learner, key, x, y)
        _checks.check_count("the number of rows", learner.num_rows(x), 2)
        weights = _all_but_some(learner.num_rows(x))[None]
        fits = learner.fit_all(key, x, y, weights)
        learner.predict_held_out(fits, x, weights == 0)
        return
    y, x = _checks.rows(y=y, x=x)
    _checks.check_count("the number of rows", len(y), 2)
    _checks.check_not_nan("y", y)
    general.check_learner(learner, x, y)
    for probes in (_left_out, _alike if symmetric else _on_line):
        _run(probes, learner, x, y, key)


def check_once(learner: Learner, x: PyTree, y: Array, key: Array) -> None:
    """Checks that a learner leaves rows out, unless it says so or has passed."""
    if len(y) >= 2 and not _declares(learner, "holds_out"):
        _run_once(_left_out, learner, x, y, key)


def check_symmetric_once(learner: Learner, x: PyTree, y: Array, key: Array) -> None:
    """Checks that a learner treats rows alike, unless it says so or has passed.

    Mini-batches are refused at once, also of traced data. An `Affine` must be affine.
    """
    check_no_batches(learner)
    if isinstance(learner, affine.Affine) or not _declares(learner, "symmetric"):
        _run_once(_alike, learner, x, y, key)


def check_no_batches(learner: Any) -> None:
    """Raises ValueError for mini-batches, which are drawn by position."""
    for part in _parts(learner):
        size = getattr(part, "batch_size", None)
        if isinstance(part, general.GradientLearner) and size is not None:
            raise ValueError(
                "expected a learner that treats all rows alike, got GradientLearner "
                f"with batch_size={size}, whose steps see some rows more often than "
                "others, by their positions; take batch_size=None, or split_conformal "
                "or cv_plus, which need no symmetry"
            )


def check_predictions(preds, x, mask, name="predictions", cure=""):
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


def _declares(learner, name):
    """Returns whether a learner and those inside of it say that they need no probe.

    Each class for itself: one that inherits may fit in another way.
    """
    return all(vars(type(part)).get(name) is True for part in _parts(learner))


def _parts(learner):
    """Yields a learner and the learners in its fields."""
    yield learner
    if dataclasses.is_dataclass(learner):
        for field in dataclasses.fields(learner):
            if isinstance(part := getattr(learner, field.name), Learner):
                yield from _parts(part)


def _run_once(probes, learner, x, y, key):
    """Runs probes of known values, unless a learner has passed for their shapes."""
    leaves, structure = jax.tree.flatten((learner, x, y))
    if not is_concrete(leaves, key):
        return
    shapes = tuple((np.shape(v), getattr(v, "dtype", type(v))) for v in leaves)
    # By what keeps nothing of the user's alive: neither functions nor what they hold.
    within = type(learner), *classes_of(learner), *functions_in((learner,), {})
    name = probes, str(structure), states_of(within), shapes
    if name in _PASSED:
        return
    _run(probes, learner, x, y, key)
    _PASSED[name] = None
    if len(_PASSED) > _REMEMBERED:
        del _PASSED[next(iter(_PASSED))]  # the oldest


def _run(probes, learner, x, y, key):
    """Raises ValueError where a prediction moves; of traced values shapes are checked.

    Data that are constants of a program are checked while it is traced.
    """
    with traceable(learner), known_at_once():
        for probe in probes(learner, x, y, key):
            if not is_concrete(learner, x, y, key):
                continue
            if (moved := _first_moved(probe)) is not None:
                row, change = probe.names[moved[0]], moved[1]
                kind = type(learner).__name__
                raise ValueError(probe.sentence.format(kind=kind, row=row, at=change))


def _first_moved(probe):
    """Returns where a prediction moves and how, or None.

    Some fits move by themselves, by noise of their own or because many steps blow up
    rounding: predictions may move ten times as far as they do by that.
    """
    before = probe.predict(probe.given)
    for other in probe.others:
        after = probe.predict(other)
        if _moved(before, after, [], probe.at) is None:
            continue
        again = [probe.predict(probe.again(probe.given)) for _ in range(_REPEATS)]
        if (moved := _moved(before, after, again, probe.at)) is not None:
            return moved
    return None


def _moved(before, after, again, at):
    """Returns the first row whose prediction moves by more than rounding, and how.

    A prediction that is no longer finite says nothing: few learners take any target.
    """
    trees = before, after, *again
    for leaves in zip(*(jax.tree.leaves(tree) for tree in trees), strict=True):
        a, b, *repeats = (np.asarray(leaf).astype(float) for leaf in leaves)
        noise = [_largest(distance(v, a)) for v in repeats]
        within = _rounding_of(a, leaves[0].dtype) + 10 * max(noise, default=0.0)
        a, b = a[at], b[at]
        moved = ~(distance(a, b) <= within) & np.isfinite(b)
        if moved.any():
            where = tuple(np.argwhere(moved)[0])
            return where[0], f"from {a[where]:.4g} to {b[where]:.4g}"
    return None


def _largest(values):
    return np.max(values, initial=0.0, where=np.isfinite(values))


def _rounding_of(values, dtype):
    """Returns how far rounding may move predictions, also of fits by differences."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    eps, finite = float(jnp.finfo(dtype).eps), values[np.isfinite(values)]
    spread = np.ptp(finite) if finite.size else 0.0
    return eps ** (1 / 3) * spread + 100 * eps * _largest(abs(finite))


def _left_out(learner, x, y, key):
    """Yields probes by targets of rows that have weight 0, or by the closed form."""
    n, weights = len(y), _all_but_some(len(y))
    rows = np.flatnonzero(weights == 0)
    predict = lambda y: _predictions(learner, key, (x, y), weights, x, rows)  # noqa: E731
    _check_leading("predictions", jax.eval_shape(predict, y), len(rows))
    sentence = (
        "expected {kind} to leave out rows of weight 0, got a prediction of row {row} "
        "that moves with its own target, {at}; multiply each row's part of the fit by "
        "its weight, and keep no row of weight 0"
    )
    yield Probe(sentence, predict, y, _other_targets(y, rows), rows)
    if not isinstance(learner, LeavesOneOut):
        return
    params = jax.eval_shape(learner.leave_one_out, x, y)
    parts = jax.tree.leaves(params, is_leaf=general.is_shared)
    own = [part for part in parts if not general.is_shared(part)]
    _check_leading("parameters of leave_one_out", own, n)
    refit = lambda y: _refits(learner, x, y)  # noqa: E731
    _check_leading("predictions", jax.eval_shape(refit, y), n)
    sentence = (
        "expected {kind}.leave_one_out to fit without each row, got a prediction of "
        "row {row} that moves with its own target, {at}; row i of the parameters is "
        "the fit without row i"
    )
    for row in _some(n):
        yield Probe(sentence, refit, y, _other_targets(y, [row]), [row], [row])


def _other_targets(y, rows):
    """Yields targets with others in some rows.

    Labels become another label that occurs. Floats move to an end of their range, which
    a learner of bounded numbers accepts, and far away, which shows more.
    """
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


def _alike(learner, x, y, key):
    """Yields probes by the order of the rows, and of the line of an `Affine`."""
    yield from _on_line(learner, x, y, key)
    if not is_concrete(x, y) or len(y) < 2:
        return
    rows, rng = _known_rows(x, y), np.random.default_rng(0)
    n = len(rows[1])
    of_all, orders = np.arange(n), (np.arange(n)[::-1], rng.permutation(n))
    others = (jax.tree.map(lambda v, o=o: v[o], rows) for o in orders)
    predict = lambda r: _predictions(learner, key, r, np.ones(n), rows[0], of_all)  # noqa: E731
    again = lambda rows: _rounded_otherwise(rows, rng)  # noqa: E731
    sentence = (
        "expected {kind} to fit the same whatever the order of the rows, got a "
        "prediction of row {row} that moves with it, {at}; let the fit use all rows "
        "alike, in the full batch and without draws for each row, or take "
        "split_conformal or cv_plus, which need no symmetry"
    )
    yield Probe(sentence, predict, rows, others, of_all, again=again)


def _known_rows(x, y):
    """Returns rows without NaN, which rows off a mask may hold."""
    known = np.ones(len(y), bool)
    for v in jax.tree.leaves((x, y)):
        if jnp.issubdtype(v.dtype, jnp.inexact):
            known &= ~np.isnan(np.asarray(v)).any(axis=tuple(range(1, v.ndim)))
    return (x, y) if known.all() else jax.tree.map(lambda v: v[known], (x, y))


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


def _on_line(learner, x, y, key):
    """Yields probes of the line on which predictions move with one target."""
    is_known = is_concrete(learner, x, y, key)
    if not isinstance(learner, affine.Affine) or not is_known or not len(y):
        return
    x, y = _known_rows(x, y)
    rows = learner.prepare(x, y, None)
    steps = np.array([-_FAR_ON_LINE, _FAR_ON_LINE, 0.0, 1.0])
    targets = rows.origin + rows.unit * jnp.asarray(steps, rows.y.dtype)
    kind = type(learner.learner).__name__
    sentence = (
        f"expected predictions that are affine in each target, got {kind} with "
        "predictions that leave a line as the target of row {row} moves, {at}; take "
        "discretized_conformal, which any learner can"
    )
    for row in _some(len(y)):
        found = np.asarray(_moving(learner, x, rows.y, key, row, targets))
        low, high = found[:2].astype(float)
        slope = (high - low) / (2 * _FAR_ON_LINE)
        line = low + slope * (steps + _FAR_ON_LINE)[:, None]
        # As finite numbers: predictions that are NaN leave every line.
        others = [np.nan_to_num(line)]
        yield Probe(sentence, lambda found: found, found, others, [row] * len(steps))


def _all_but_some(n):
    """Returns weights that leave out every fifth of n rows."""
    return (np.arange(n) % _EVERY > 0).astype(float)


def _some(n):
    """Returns three rows, or fewer."""
    return sorted({0, n // 2, n - 1})


@jit
def _predictions(learner, key, data, weights, x, rows):
    """Returns what a weighted fit to data (x, y) predicts for some rows of x."""
    params = learner.fit(jax.random.clone(key), *data, weights)
    return learner.predict(params, jax.tree.map(lambda v: v[rows], x))


@jit
def _refits(learner, x, y):
    """Returns the prediction of each row by the closed form of leaving it out."""
    return general.predict_each(learner, learner.leave_one_out(x, y), x)


@jit
def _moving(learner, x, y, key, row, targets):
    """Returns predictions of the fits of an `Affine` with each target at a row."""
    weights = jnp.ones(len(y), y.dtype)

    def fitted(target):
        moved = y.at[row].set(target)
        return affine.predictions(learner.learner, key, x, moved, weights)

    return jax.vmap(fitted)(targets)


def _check_leading(name, tree, n):
    """Raises ValueError unless all leaves have a leading axis of n."""
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[:1] != (n,):
            raise ValueError(
                f"expected {name} with a leading axis of {n}, one for each input, got "
                f"shape {leaf.shape}"
            )
