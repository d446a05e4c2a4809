"""Calibration for selected rows, and the sets of the test rows that a rule selects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.predictor import Scored
from jaxcp.calibration.rule import Rule
from jaxcp.calibration.split import Calibration
from jaxcp.held import taking
from jaxcp.held.rows import Held
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, ranks, split_alpha
from jaxcp.scores import inputs
from jaxcp.selection.rules import SelectionRule, Swaps
from jaxcp.sets.batches import rows_of, without_axis
from jaxcp.sets.unions import joined
from jaxcp.typing import AnySet, ArrayLike, HasEnds, HasPieces, PyTree, Score


@pytree
class Selected:
    """Which test rows a rule selects, and their sets.

    Args:
      selected: Whether each test row is selected, bool of shape (m,).
      indices: The test rows that the sets are of, int of shape (s,). Outside of `jit`
        the selected ones, in order. Inside, where their number is not known, all, and
        the sets of those that are not selected are infinite.
      sets: Their prediction sets, leading axis s.

    See also:
      selection.calibrate_selected

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import Absolute
      >>> rows = jnp.arange(9.0), 2 * jnp.arange(9.0)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=selection.top(1))
      >>> found = cp(jnp.array([7.0, 3.0]), alpha=0.25)
      >>> found.selected.tolist(), found.indices.tolist(), found.sets.upper.tolist()
      ([True, False], [0], [14.0])
    """

    selected: Array
    indices: Array
    sets: AnySet


@pytree
class _Halves:
    """A score whose thresholds for y > c and for y <= c are two."""

    score: Score
    c: Any

    def __call__(self, pred: PyTree, y: Array) -> Array:
        return self.score(pred, y)

    def invert(self, pred: PyTree, q: Array) -> AnySet:
        """Returns {s <= q_0 and y > c} or {s <= q_1 and y <= c}, q of shape (2,)."""
        if inputs.has_labels(self.score):
            k = len(_batching.labels_of(self.score, pred))
            return self.score.invert(pred, q[(jnp.arange(k) <= self.c).astype(int)])
        (lower, upper), (low, high) = (_pieces(self.score.invert(pred, v)) for v in q)
        c = jnp.asarray(self.c, lower.dtype)
        tiny = jnp.finfo(c.dtype).tiny  # below it, numbers count as 0
        after = jnp.where(
            (c >= 0) & (c < tiny), tiny, from_keys(to_keys(c) + 1, c.dtype)
        )
        # Where c is in the set, what lies above it goes on from there.
        after = jnp.where(jnp.any((low <= c) & (c <= high)), c, after)
        lower = jnp.concatenate([low, jnp.maximum(lower, after)])
        return joined(lower, jnp.concatenate([jnp.minimum(high, c), upper]))


def _pieces(found):
    """Returns the ends of the pieces of a set on the line, each (l,)."""
    if isinstance(found, HasPieces):
        return found.pieces()
    ends = found.ends() if isinstance(found, HasEnds) else ()
    if not ends or ends[0].size > 1:
        kind = type(found).__name__
        raise ValueError(
            f"expected a score whose sets are intervals, their unions or labels for a "
            f"rule with a threshold of y, got sets {kind}"
        )
    return tuple(jnp.ravel(end) for end in ends)


@pytree
class _OfRows(Rule):
    """The thresholds of selected rows, each from its own reference rows."""

    score: Score
    held: Held
    rule: SelectionRule
    selected: Array
    state: Any
    classes: tuple[Hashable, ...] | None = static(default=None)

    @property
    def components(self) -> tuple[int, ...]:
        return self.held.components

    def rank(self, alpha):
        """Returns the rank among r rows, for r = 0, ..., n: (n + 1,) or (n + 1, c)."""
        counts = jnp.arange(len(self.held.values) + 1)
        alpha = split_alpha(alpha, self.components)
        return ranks(counts[(..., *(None,) * len(self.components))], alpha)

    def flags(self, place):
        """Returns the reference rows of a test row, (n,) or (2, n)."""
        flags, counts = self.rule.reference(self.state, place), self.selected[place]
        counts = counts if self.held.mask is None else counts & self.held.mask
        return flags & jnp.broadcast_to(counts, flags.shape)

    def threshold(self, rank, place):
        def of(flags):
            rows = Held(self.held.values, mask=flags)
            return rows.threshold(rank[jnp.sum(flags)])

        flags = self.flags(place)
        return of(flags) if flags.ndim == 1 else jax.vmap(of)(flags)

    def _at_a_time(self, context):
        n, m = len(self.held.values), len(self.selected)
        return _batching.rows_at_a_time(self.rule.width(n, m))

    def _p_values_of_scores(self, scores, y, u, rounds, place):
        def one(place, score, y):
            flags, c = self.flags(place), self.rule.threshold
            flags = flags if c is None else flags[(y <= c).astype(int)]
            rows = Held(self.held.values, mask=flags)
            return rows.p_values(score[None], rounds=rounds)[0]

        p = self._each(one, place, scores, y)
        return jnp.where(self.selected[place], p, jnp.nan)


@jit
def _chosen(rule, numbers, below, preds, budget):
    test = rule.numbers(preds, -jnp.inf)
    selected, state = rule.chosen(numbers, below, test, budget)
    return selected, state


@pytree
class SelectedCalibration(Scored):
    """Scores of calibration rows, and what a selection reads of them.

    Made by `calibrate_selected`.

    Args:
      score: The nonconformity score.
      scores: Scores of the rows, shape (n,) or (n, c).
      numbers: The numbers of the rows that the rule goes by, shape (n,).
      below: Whether y <= threshold, shape (n,), or None for a rule without one.
      rule: The rule that selects.
      mask: True where a row counts, shape (n,), or None.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.

    See also:
      selection.calibrate_selected, selection.Selected, calibrate
    """

    score: Score
    scores: Array
    numbers: Array
    below: Array | None
    rule: SelectionRule
    mask: Array | None = None
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    @_checks.with_alpha
    def __call__(self, preds: PyTree, alpha: ArrayLike, *, delta: Any = None) -> Any:
        """Returns which of new rows are selected, and their prediction sets.

        Args:
          preds: Predictions of all m test rows among which the rule selects, a pytree
            with leading axis m, as at calibration.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components.
          delta: None: coverage given the calibration rows has no known law.

        Returns:
          `Selected`: flags (m,), the indices of the rows that are selected, and their
          sets. For a rule with a threshold of y sets of numbers are `Intervals`.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), predictions are not as at
            calibration or NaN, `delta` is given, or a score of numbers has no sets on
            the line where the rule has a threshold.

        Guarantee:
          P(Y_j in its set given that row j is selected) >= 1 - alpha, for each j.

        Assumption:
          Calibration and test rows are exchangeable, the model was fitted on others,
          and the rule does not depend on the order of the calibration rows.

        Cost:
          O(n + m) for each selected row, in blocks; by swaps n calls of the rule for
          each. Inside of `jit` that of all m rows.

        Example:
          >>> from jaxcp import selection
          >>> from jaxcp.scores import Absolute
          >>> x, y = jnp.arange(40.0), jnp.arange(40.0) + jnp.arange(40) % 3
          >>> rule = selection.by_p_values(20.0, 0.4)
          >>> cp = selection.calibrate_selected(Absolute(), x, y, rule=rule)
          >>> found = cp(jnp.array([35.0, 30.0, 5.0]), alpha=0.2)
          >>> found.indices.tolist(), found.sets.hull().lower.tolist()
          ([0, 1], [33.0, 28.0])
        """
        _check_lawless(delta)
        rows, preds = self._chosen(preds)
        if self.rule.threshold is not None:
            score: Any = _Halves(self.score, self.rule.threshold)
            rows = dataclasses.replace(rows, score=score)
        indices, preds = _of_selected(rows.selected, preds)
        return Selected(rows.selected, indices, rows(preds, alpha, place=indices))

    def adjusted(self, preds: PyTree, alpha: ArrayLike) -> Selected:
        """Returns the selected rows with sets at alpha |S| / m, from all rows.

        The expected share of the selected rows that their sets miss, the false coverage
        rate, is then at most alpha. The sets of this call are mostly smaller, and hold
        for each row.

        Args:
          preds: Predictions of all test rows, as for calling this.
          alpha: Miscoverage level, shape ().

        Returns:
          `Selected`, sets of the score as those of `calibrate`. Inside of `jit` also
          the rows that are not selected have sets of this level.

        Raises:
          ValueError: as calling this, and for rules by p-values or by swaps, for which
            no proof is known.

        Guarantee:
          E[share of selected rows not in their sets] <= alpha, 0 where none is.

        Assumption:
          As for calling this, and how many rows are selected, given that row j is, is a
          function of the other test rows: so it is of `top` and `above`.

        Cost:
          One threshold.

        References:
          Benjamini, Yekutieli, False Discovery Rate-Adjusted Multiple Confidence
          Intervals for Selected Parameters, Journal of the American Statistical
          Association, 2005.
        """
        if not self.rule.counts_others:
            raise ValueError(
                "expected a rule top or above, for which alpha |S| / m is proved, got "
                f"{type(self.rule).__name__}; call the calibration for sets of each row"
            )
        rows, preds = self._chosen(preds)
        m, (indices, preds) = len(rows.selected), _of_selected(rows.selected, preds)
        alpha = as_alpha(alpha)
        if isinstance(alpha, Array) or not _arrays.is_concrete(rows.selected):
            share: Any = jnp.maximum(jnp.sum(rows.selected), 1) / max(m, 1)
            alpha = alpha_as_float(alpha) * share
        else:
            alpha = alpha.item() * Fraction(max(len(indices), 1), max(m, 1))
        known = self.mask, self.row_shapes, self.classes
        cp = Calibration(self.score, self.scores, None, *known)
        return Selected(rows.selected, indices, cp(preds, alpha))

    def p_values(self, preds: PyTree, y: ArrayLike | None = None) -> Array:
        """Returns how exceptional targets are among the reference rows, shape (m,).

        (1 + #{i in R_j(y) : S_i >= S_j}) / (|R_j(y)| + 1); NaN where not selected.

        Args:
          preds: Predictions of all test rows, as for calling this.
          y: Targets or candidates, shape (m,). Left out, each label of a score of
            labels is a candidate.

        Returns:
          p-values, shape (m,), or (m, k) of all labels: y is in the set at alpha iff
          its p-value exceeds alpha, but for the rounding of ends.

        Raises:
          ValueError: as calling this, and if lengths differ.

        Guarantee:
          P(p <= alpha given that row j is selected) <= alpha.

        Assumption:
          As for calling this.

        Cost:
          As calling this inside of `jit`, and a sort of the rows for each test row.
        """
        rows, preds = self._chosen(preds)
        return rows.p_values(preds, y, place=jnp.arange(len(rows.selected)))

    def certificate(self, alpha: Any, delta: Any = None) -> Any:
        """Raises ValueError: coverage of selected rows has no known law."""
        _check_lawless("a certificate")

    def _chosen(self, preds):
        """Returns the thresholds of selected rows, and predictions, after checks."""
        preds, *_ = self._rows(preds, {})
        held = Held(self.scores, mask=self.mask)
        m = len(jax.tree.leaves(preds)[0])
        budget = self.rule.budget(held.counts(), m)
        found = _chosen(self.rule, self.numbers, self.below, preds, budget)
        return _OfRows(self.score, held, self.rule, *found, self.classes), preds


def _check_lawless(delta):
    if delta is not None:
        raise ValueError(
            "expected delta=None for selected rows, whose coverage given the "
            f"calibration rows has no known law, got {delta}; leave it out, or "
            "calibrate without a rule for all rows"
        )


def _of_selected(selected, preds):
    """Returns the rows that sets are of, and their predictions."""
    if not _arrays.is_concrete(selected, preds):
        return jnp.arange(len(selected)), preds
    places = np.flatnonzero(np.asarray(selected))
    preds = jax.tree.map(lambda v: rows_of(v, places), preds)
    return _batching.on_device(places), preds


def calibrate_selected(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    *,
    rule: SelectionRule | Callable,
    classes: Iterable[Hashable] | None = None,
    mask: ArrayLike | None = None,
) -> SelectedCalibration:
    """Returns the calibration of a score for the test rows that a rule selects.

    The set of a selected row j is {y : S(x_j, y) <= K_k}, K_k the k-th smallest of the
    scores of R_j(y), k = ceil((|R_j| + 1)(1 - alpha)), +inf if k > |R_j|: R_j(y) are
    the calibration rows i for which place j is still selected after row i and test row
    j, with the target y, have changed places.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      rule: `top`, `above`, `by_p_values` or `by_swaps` of `jaxcp.selection`; a function
        of numbers is `by_swaps` of it.
      classes: Names of the k labels, as for `calibrate`.
      mask: True where a row counts, shape (n,). Not for rules by swaps.

    Returns:
      A `SelectedCalibration`: call it with the predictions of all test rows and alpha.

    Raises:
      ValueError: as `calibrate`; for a prediction of several numbers where the rule has
        no `by`, NaN for a concrete number, targets that are no numbers or labels where
        the rule has a threshold, or a mask with a rule by swaps.

    Guarantee:
      P(Y_j in its set given that row j is selected) >= 1 - alpha. Without a selection,
      by `above(-inf)` or `top(m)`, the sets are those of `calibrate`.

    Assumption:
      Calibration and test rows are exchangeable, the model was fitted on others, and
      the rule does not depend on the order of the calibration rows.

    Cost:
      n scores, which are kept, and a number of each row.

    References:
      Jin, Ren, Confidence on the Focal: Conformal Prediction with Selection-Conditional
      Coverage, Journal of the Royal Statistical Society B, 2025.

    See also:
      selection.top, selection.by_p_values, pvalues.selection_p_values, calibrate

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import Absolute
      >>> preds, y = jnp.arange(19.0), 1.1 * jnp.arange(19.0)
      >>> cp = selection.calibrate_selected(Absolute(), preds, y, rule=selection.top(2))
      >>> found = cp(jnp.array([4.0, 16.0, 9.0, 13.0]), alpha=0.2)
      >>> found.indices.tolist(), found.sets.upper.round(1).tolist()
      ([1, 3], [17.8, 14.8])
    """
    if callable(rule) and not isinstance(rule, SelectionRule):
        rule = Swaps(rule)
    _checks.check_kind("a rule of jaxcp.selection", rule, SelectionRule)
    if isinstance(rule, Swaps) and mask is not None:
        raise ValueError("expected mask=None for a rule by swaps, got a mask")
    names = taking.classes_of(score, classes)
    held, shapes = taking.scored(score, preds, y, mask=mask, classes=names)
    rows = taking.held_rows(score, preds, y, None, mask, classes=names)
    preds, y = rows.values
    numbers, below = rule.numbers(preds, jnp.inf), None
    if rule.threshold is not None:
        below = without_axis(y, 1)
        _checks.check_vectors(y=below)
        below = ~(below > rule.threshold)
        below = below if mask is None else below & held.mask
    known = held.mask, shapes, names
    return SelectedCalibration(score, held.values, numbers, below, rule, *known)
