"""One fit on all rows and a test point, where rows off a mask are padding.

Full conformal prediction of labels: one refit with each label of a test point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks, _names
from jaxcp._batching import label_scores, map_evenly, widened
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.checking import learners
from jaxcp.full import residuals
from jaxcp.held.taking import coded
from jaxcp.learners.general import check_learner
from jaxcp.scores import inputs
from jaxcp.sets import LabelSet
from jaxcp.typing import ArrayLike, LabelScore, Learner, PyTree


@jit
def fitted(
    learner: Learner, key: Array, x: PyTree, y: Array, mask: Array | None
) -> tuple[PyTree, PyTree]:
    """Returns a fit and what it predicts for its rows; those after a mask count."""
    weights = jnp.ones(len(y))
    if mask is not None:
        weights = weights.at[: len(mask)].set(mask)
    params = learner.fit(jax.random.clone(key), x, y, weights)  # the key of every fit
    return params, learner.predict(params, x)


@jit
def filled(rows: PyTree, mask: Array | None) -> PyTree:
    """Returns rows with one that counts in the place of those off the mask.

    What padding holds, such as NaN, would be NaN times a weight of 0 too.
    """
    if mask is None or not len(mask):
        return rows
    one = jnp.argmax(mask)

    def fill(v):
        counts = mask.reshape(-1, *(1,) * (v.ndim - 1))
        return jnp.where(counts, v, v[one])

    return jax.tree.map(fill, rows)


# Numbers that fits see together: each takes hundreds of passes, best over a near cache.
_FIT_NUMBERS = {"cpu": 2**13}
_FIT_NUMBERS_ELSEWHERE = 2**26
_MOST_LABELS = 2**31 - 1


class Labels(NamedTuple):
    """What full conformal prediction of labels is made of, after checks.

    Args:
      source: The refits.
      weights: Weights >= 0 of the rows in ranks, shape (n,), or None.
      mask: True for rows that are fitted and count, shape (n,), or None.
    """

    source: Refits
    weights: Array | None
    mask: Array | None


@pytree
class Refits:
    """A learner that is fitted anew with every label of a test point.

    Methods take the `FullConformal` that they serve: its score, mask and weights.

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

    def sets(
        self,
        cp: Any,
        x_new: PyTree,
        rank: Array,
        test_weights: Array | None = None,
        union: bool = False,
    ) -> LabelSet:
        """Returns the labels with p > alpha at each of m inputs.

        `rank` is that of the threshold; with weights alpha as a float.
        """
        if union:
            raise ValueError(
                f"expected union=False for {type(cp.score).__name__}, a score of "
                "labels, whose sets are exact as they are, got True"
            )
        with learners.traceable(self.learner):
            return _sets(self, cp, x_new, rank, test_weights)

    def p_values(
        self,
        cp: Any,
        x_new: PyTree,
        y: Array,
        u: Array | None = None,
        test_weights: Array | None = None,
    ) -> Array:
        """Returns the p-value of a label at each of m inputs, shape (m,)."""
        y = _as_labels(y, self.num_labels)
        with learners.traceable(self.learner):
            return _p_values(self, cp, x_new, y, u, test_weights)

    def predictive(self, cp: Any, x_new: PyTree) -> Array:
        """Raises ValueError: labels have no order."""
        raise ValueError(
            "expected a score of numbers for a predictive distribution, got "
            f"{type(cp.score).__name__}, a score of labels"
        )

    def check_new(self, x_new: PyTree) -> None:
        """Raises ValueError for inputs that are not like those of the rows."""
        _checks.check_like_rows("x_new", x_new, _checks.shapes_of_rows(self.x))

    def of_label(
        self, cp: Any, x_new: PyTree, label: Array
    ) -> tuple[Array, Array, Array]:
        """Returns scores under the fit with a test point: S_i, S_n+1 and its slack."""
        join = lambda v, new: jnp.concatenate([v, new[None]])  # noqa: E731
        x, y = jax.tree.map(join, self.x, x_new), jnp.append(self.y, label)
        preds = fitted(self.learner, self.key, x, y, cp.mask)[1]
        scores = as_float(jax.vmap(cp.score)(widened(preds), y))
        slack = residuals.slack(scores[-1], jax.tree.map(lambda v: v[-1], preds))
        return scores[:-1], scores[-1], slack

    def at_each(
        self, cp: Any, one: Callable[..., Array], *rows: PyTree, num_fits: int
    ) -> Array:
        """Returns `one` of each test point, in blocks; it makes so many fits."""
        most = _FIT_NUMBERS.get(jax.default_backend(), _FIT_NUMBERS_ELSEWHERE)
        size = cp.batch_size or max(most // self._width(num_fits), 1)
        return map_evenly(one, *rows, at_a_time=size)

    def _width(self, num_fits):
        """Returns how many numbers the fits with one test point see."""
        some = _some_rows(self.x, self.y)
        params, preds = jax.eval_shape(fitted, self.learner, self.key, *some, None)
        n, rows = len(self.y) + 1, len(some[1])
        # All labels of a test point share its inputs.
        inputs, preds = (n * (_count(v) // rows) for v in (some[0], preds))
        return inputs + num_fits * (preds + _count(params)) + 1


def labels(
    key: Array,
    learner: Learner,
    score: LabelScore,
    x: PyTree,
    y: Any,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    names: _names.Names | None = None,
    *,
    check: bool = True,
) -> Labels:
    """Returns the refits of a learner for labels, after checks."""
    _check_score(score)
    _checks.check_given(y=y)
    y, x, weights, mask = _checks.rows(
        y=_checks.vector(coded(names, y, mask)),
        x=x,
        calibration_weights=_checks.weights(weights),
        mask=_checks.mask(mask),
    )
    _checks.check_key(key)
    y = _as_labels(y, _MOST_LABELS, mask)
    check_learner(learner, x, y)
    x, y = filled((x, y), mask)
    learners.check_no_batches(learner)
    k = _num_labels(key, learner, score, x, y, mask)
    if names is not None:
        _names.check_count("classes", names, k)
    y = _as_labels(y, k, mask)
    if check:
        learners.check_symmetric_once(learner, x, y, key)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    return Labels(Refits(learner, key, x, y, k), weights, mask)


@jit
def _sets(refits, cp, x_new, rank, test_weights):
    """Returns {c : p_c > alpha} at each input."""
    labels, rows = jnp.arange(refits.num_labels), residuals.Held(cp.mask, cp.weights)

    def one(x_new, test_weight):
        def keeps(label):
            scores, own, slack = refits.of_label(cp, x_new, label)
            return residuals.kept(scores, own, slack, rank, rows, test_weight)

        return jax.vmap(keeps)(labels)

    weights = _ones_like(x_new) if test_weights is None else test_weights
    return LabelSet(refits.at_each(cp, one, x_new, weights, num_fits=len(labels)))


@jit
def _p_values(refits, cp, x_new, y, u, test_weights):
    """Returns p_y at each input."""
    rows = residuals.Held(cp.mask, cp.weights)

    def one(x_new, y, u, test_weight):
        scores, own, slack = refits.of_label(cp, x_new, y)
        return residuals.p_value(scores, own, slack, u, rows, test_weight)

    ones = _ones_like(x_new)
    u, weights = (ones if v is None else v for v in (u, test_weights))
    return refits.at_each(cp, one, x_new, y, u, weights, num_fits=1)


def _check_score(score):
    """Raises ValueError for a score whose labels are not refitted one by one."""
    if inputs.is_inclusive(score):
        kind = type(score).__name__
        raise ValueError(
            f"expected {kind} with inclusive=False, got inclusive sets: each label has "
            "a fit of its own, and none comes next"
        )


def _num_labels(key, learner, score, x, y, mask):
    """Returns for how many labels a fit predicts, after checks of predictions."""
    if not len(y):
        x, y = _some_rows(x, y)
        mask = None
    with learners.traceable(learner):
        preds = fitted(learner, key, x, y, mask)[1]
    if inputs.is_randomized(score) and isinstance(preds, Array):
        kind = type(score).__name__
        raise ValueError(
            f"expected {kind} with randomized=False, or a learner that predicts pairs "
            "(p, u), got predictions p; put jaxcp.uniforms(key, n) into x as well, and "
            "predict (p, u)"
        )
    _check_preds(score, x, preds, mask)
    k = jax.eval_shape(label_scores, score, preds).shape[1]
    if k < 2:
        raise ValueError(
            "expected predictions with a column for each of at least two labels, got "
            "one column; jnp.stack([1 - p, p], axis=1) makes two of p"
        )
    return k


def _check_preds(score, x, preds, mask):
    """Raises ValueError for predictions that the score does not take."""
    learners.check_predictions(preds, x, mask)
    inputs.check(score, preds, None, mask)


def _as_labels(y, num_labels, mask=None):
    """Returns labels as integers of the default type, after checks."""
    y = y.astype(int) if not y.size else y
    _checks.check_labels("y", y, num_labels, mask)
    return y.astype(int)


def _some_rows(x, y):
    """Returns rows like those given, at least one."""
    if len(y):
        return x, y
    zero = lambda v: jnp.zeros((1, *v.shape[1:]), v.dtype)  # noqa: E731
    return jax.tree.map(zero, (x, y))


def _ones_like(x_new):
    """Returns a 1 for each input."""
    return jnp.ones(len(jax.tree.leaves(x_new)[0]))


def _count(tree):
    """Returns how many numbers there are in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
