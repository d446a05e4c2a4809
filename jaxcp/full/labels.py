"""Full conformal prediction of labels: one refit with each label of a test point."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks, _names
from jaxcp._batching import map_evenly, widened
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.checking import learners
from jaxcp.full import fitting
from jaxcp.held import taking
from jaxcp.scores import inputs
from jaxcp.sets import LabelSet
from jaxcp.typing import Learner, PyTree

# Numbers that fits see together: each takes hundreds of passes, best over a near cache.
_FIT_NUMBERS = {"cpu": 2**13}
_FIT_NUMBERS_ELSEWHERE = 2**26
_MOST_LABELS = 2**31 - 1


@pytree
class Refits:
    """A learner that is fitted anew with every label of a test point.

    Args:
      learner: The learner.
      key: Random key, the same in all fits.
      x: Inputs of the n rows, a pytree.
      y: Their labels, int, shape (n,).
      num_labels: Number of labels k.
    """

    learner: Learner
    key: Array
    x: PyTree
    y: Array
    num_labels: int = static()

    def check_new(self, x_new: PyTree) -> None:
        """Raises ValueError for inputs that are not like those of the rows."""
        _checks.check_like_rows("x_new", x_new, _checks.shapes_of_rows(self.x))


def refits(score, rows, names, check):
    """Returns `Refits` of fitted rows, after checks of labels and predictions."""
    if inputs.is_inclusive(score):
        kind = type(score).__name__
        raise ValueError(
            f"expected {kind} with inclusive=False, got inclusive sets: each label has "
            "a fit of its own, and none comes next"
        )
    rows = rows._replace(y=_as_labels(rows.y, _MOST_LABELS, rows.mask)).filled()
    learners.check_no_batches(rows.learner)
    k = _num_labels(score, rows)
    if names is not None:
        _names.check_count("classes", names, k)
    y = _as_labels(rows.y, k, rows.mask)
    rows.check_symmetric(check)
    return Refits(rows.learner, rows.key, rows.x, y, k)


def sets(cp, x_new, rank, context):
    """Returns the labels with p > alpha at each of m inputs.

    `rank` is that of the threshold; with weights alpha as a float.
    """
    with learners.traceable(cp.source.learner):
        return _sets(cp, x_new, rank, context)


def p_values(cp, x_new, y, u, context):
    """Returns the p-value of a label at each of m inputs, (m,), or (m, k) of all."""
    y = None if y is None else _as_labels(y, cp.source.num_labels)
    with learners.traceable(cp.source.learner):
        return _p_values(cp, x_new, y, u, context)


@jit
def _sets(cp, x_new, rank, context):
    """Returns {c : p_c > alpha} at each input."""
    labels = jnp.arange(cp.source.num_labels)

    def one(x_new, context):
        def keeps(label):
            own = _with_group(cp, context, label)
            return fitting.is_kept(cp, rank, own, *_of_label(cp, x_new, label))

        return jax.vmap(keeps)(labels)

    return LabelSet(_at_each(cp, one, x_new, context, num_fits=len(labels)))


@jit
def _p_values(cp, x_new, y, u, context):
    """Returns p_y at each input, of all labels where y is None."""
    labels = jnp.arange(cp.source.num_labels) if y is None else None

    def one(x_new, y, u, context):
        def of(label):
            own = _with_group(cp, context, label)
            return fitting.p_value(cp, u, own, *_of_label(cp, x_new, label))

        return of(y) if labels is None else jax.vmap(of)(labels)

    fits = 1 if labels is None else len(labels)
    return _at_each(cp, one, x_new, y, u, context, num_fits=fits)


def _with_group(cp, context, label):
    """Returns the context of a label, which is the group where none is given."""
    is_group = cp.groups is not None and context.group is None
    return context._replace(group=label) if is_group else context


def _of_label(cp, x_new, label):
    """Returns scores under the fit with a test point: S_i, S_n+1 and its slack."""
    of = cp.source
    join = lambda v, new: jnp.concatenate([v, new[None]])  # noqa: E731
    x, y = jax.tree.map(join, of.x, x_new), jnp.append(of.y, label)
    preds = fitting.fitted(of.learner, of.key, x, y, cp.mask)[1]
    scores = as_float(jax.vmap(cp.score)(widened(preds), y))
    slack = fitting.slack_of(scores[-1], jax.tree.map(lambda v: v[-1], preds))
    return scores[:-1], scores[-1], slack


def _at_each(cp, one, *rows, num_fits):
    """Returns `one` of each test point, in blocks; it makes so many fits."""
    most = _FIT_NUMBERS.get(jax.default_backend(), _FIT_NUMBERS_ELSEWHERE)
    # All labels of a test point share its inputs.
    of = cp.source
    shared, each = fitting.sizes_of_fit(of.learner, of.key, of.x, of.y)
    fits = most // (shared + num_fits * each + 1)
    return map_evenly(one, *rows, at_a_time=cp.batch_size or max(fits, 1))


def _num_labels(score, rows):
    """Returns for how many labels a fit predicts, after checks of predictions."""
    _, learner, x, y, _, mask = rows
    if not len(y):
        zero = lambda v: jnp.zeros((1, *v.shape[1:]), v.dtype)  # noqa: E731
        (x, y), mask = jax.tree.map(zero, (x, y)), None
    with learners.traceable(learner):
        preds = fitting.fitted(learner, rows.key, x, y, mask)[1]
    if inputs.is_randomized(score) and isinstance(preds, Array):
        kind = type(score).__name__
        raise ValueError(
            f"expected {kind} with randomized=False, or a learner that predicts pairs "
            "(p, u), got predictions p; put jaxcp.uniforms(key, n) into x as well, and "
            "predict (p, u)"
        )
    learners.check_predictions(preds, x, mask)
    inputs.check(score, preds, None, mask)
    k = taking.num_labels(score, preds)
    if k < 2:
        raise ValueError(
            "expected predictions with a column for each of at least two labels, got "
            "one column; jnp.stack([1 - p, p], axis=1) makes two of p"
        )
    return k


def _as_labels(y, num_labels, mask=None):
    """Returns labels as integers of the default type, after checks."""
    y = y.astype(int) if not y.size else y
    _checks.check_labels("y", y, num_labels, mask)
    return y.astype(int)
