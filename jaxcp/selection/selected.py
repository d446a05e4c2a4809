"""Sets of the test rows that a rule selects, each from its own reference rows.

R_j(y) are the calibration rows i for which place j is still selected after row i and
test row j, with the target y, have changed places. In a rule with a threshold c targets
enter by y <= c alone, so that R_j(y) takes two values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from jaxcp import _arrays, _batching, _checks, _names
from jaxcp._numbers import as_float
from jaxcp._tree import jit, keep_functions, pytree, static
from jaxcp.calibration.rule import Rule
from jaxcp.calibration.split import Calibration
from jaxcp.held import taking
from jaxcp.held.rows import Held
from jaxcp.pvalues.conformal import masses_of_keys
from jaxcp.quantiles._keys import first_float, to_keys
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, ranks, split_alpha
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import inputs
from jaxcp.scores.custom import Custom
from jaxcp.sets.batches import rows_of, without_axis
from jaxcp.sets.unions import joined
from jaxcp.typing import AnySet, ArrayLike, HasEnds, HasPieces, Number, PyTree, Score

if TYPE_CHECKING:
    import pandas as pd

_FEW_RANKS = 2**10  # which take less time on the host than to call a program


class SelectionRule:
    """What rules share: the number of a prediction that they go by.

    `chosen` returns which test rows are selected, (m,), and what `reference` reads, for
    the flags of R_j: of the row at a place, for y <= c if `null`, else for y > c.
    """

    by: Callable | None = None
    flags: Any = None
    threshold: Any = None

    def __post_init__(self) -> None:
        keep_functions(self, "by", "flags")

    def numbers(self, preds: PyTree) -> Array:
        """Returns the number of each prediction, float (n,); NaN comes last."""
        found = _batching.widened(preds)
        found = found if self.by is None else jax.vmap(self.by)(found)
        first, *others = jax.tree.leaves(found)
        if others or first.size != (n := len(first)):
            numbers = sum(leaf[:1].size for leaf in [first, *others])
            cure = "say which, as by=lambda pred: pred[1]"
            raise ValueError(
                f"expected one number a row to select by, got {numbers}; {cure}"
            )
        return _with_nan_last(as_float(first.reshape(n)))

    def budget(self, n: Any, m: int) -> Any:
        """Returns what the host knows of a level, or None."""

    def reference(self, state: Any, place: Array, null: Any) -> Array:
        """Returns the rows from a cut on."""
        keys, cuts = state
        return keys >= cuts[place]


@jit
def _with_nan_last(numbers):
    return jnp.where(jnp.isnan(numbers), -jnp.inf, numbers)


def _keys(*numbers):
    """Returns integers in the order of numbers, as floats of one type."""
    dtype = jnp.result_type(*numbers)
    return [to_keys(jnp.asarray(v, dtype)) for v in numbers]


@pytree
class Top(SelectionRule):
    """The rows with the k largest numbers. Made by `top`."""

    k: int = static()
    by: Callable | None = None

    def chosen(self, numbers, below, test, budget):
        last = kth_smallest(test, len(test) - self.k)  # the first that is left out
        keys, test, last = _keys(numbers, test, last)
        # Of those that tie with it the lower index goes first, as does row i at j.
        places = jnp.arange(len(test))  # no sum up to each: it takes long to compile
        ties = jnp.where(test == last, places, len(test))
        early = places < kth_smallest(ties, self.k - jnp.sum(test > last) + 1)
        return (test > last) | ((test == last) & early), (keys, last + ~early)


@pytree
class Above(SelectionRule):
    """The rows with a number above c. Made by `above`."""

    c: Number
    by: Callable | None = None

    def chosen(self, numbers, below, test, budget):
        keys, test, cut = _keys(numbers, test, self.c)
        return test > cut, (keys, jnp.full_like(test, cut + 1))


@pytree
class ByPValues(SelectionRule):
    """The rows whose selection p-values are small. Made by `by_p_values`."""

    threshold: Number
    level: Any = None
    stepwise: bool = static(default=True)
    by: Callable | None = None

    def budget(self, n, m):
        """Returns floor((n + 1) level r / m) for r = 0, ..., m; or floor((n + 1) t)."""
        level = as_alpha(self.level, "level")
        kind = float if isinstance(level, Array) else object
        steps = range(m + 1) if self.stepwise else [m] * (m + 1)
        shares = np.array([Fraction(r, max(m, 1)) for r in steps], kind)
        return n + 1 - ranks(n, level * shares)

    def chosen(self, numbers, below, test, budget):
        keys, test = _keys(numbers, test)
        low, high = jnp.iinfo(keys.dtype).min, jnp.iinfo(keys.dtype).max
        values = jnp.concatenate([test, keys])
        # p-values are counts / (n + 1), and fall as the number v of a row rises: BH
        # selects v iff counts <= floor((n + 1) level r / m) at a value up to v, with r
        # the number of test rows from that value on.
        counts = 1 + masses_of_keys(jnp.where(below, keys, low), values)[0]
        r = masses_of_keys(test, values)[0]
        kinds = [jnp.where(kind, keys, high) for kind in (~below, below)]
        kinds = [jnp.concatenate([test, kind]) for kind in kinds]
        first = jnp.min(kinds[0], where=counts <= budget[r], initial=high)
        state = keys, below, test, kinds, counts, budget[r], budget[r + 1]
        return test >= first, state

    def reference(self, state, place, null):
        keys, below, test, kinds, counts, at, later = state

        def cut(kind):
            # Row i, a null or not by its kind, has come to place j, and counts there in
            # r. Row j counts where i was, if it is a null, and down to its own number.
            own = test[place] >= kinds[kind]
            fits = counts - kind + null * own <= jnp.where(own, at, later)
            return jnp.min(kinds[kind], where=fits, initial=jnp.iinfo(keys.dtype).max)

        return keys >= jnp.where(below, cut(1), cut(0))


@pytree
class Swaps(SelectionRule):
    """Returns the rule that a function of your own is: test rows that it flags.

    R_j(y) by its definition: row i and test row j change places, and the function is
    called again.

    Args:
      flags: `(mu (n,), below (n,), test_mu (m,)) -> (m,)`, bool: the numbers of the
        calibration rows, whether y <= threshold there (None without a threshold), and
        the numbers of the test rows. It must not depend on the order of the calibration
        rows, and jax can trace it.
      threshold: The number c where the rule reads targets, by y <= c.
      by: Function of one prediction that returns the number mu. Defaults to the
        prediction, if it is a number.

    Returns:
      A rule for `calibrate_selected`.

    Raises:
      ValueError: if `flags` or `by` is no function; from `calibrate_selected` if the
        threshold is no number, or NaN.

    Guarantee:
      That of `calibrate_selected`.

    Assumption:
      Those of `calibrate_selected`; the function treats calibration rows alike.

    Cost:
      n calls of the function for each selected row, 2 n with a threshold.

    References:
      Jin, Ren, Confidence on the Focal: Conformal Prediction with Selection-Conditional
      Coverage, Journal of the Royal Statistical Society B, 2025.

    See also:
      selection.calibrate_selected, selection.by_p_values

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import Absolute
      >>> rule = selection.Swaps(lambda mu, below, test: test > mu.mean())
      >>> rows = jnp.arange(9.0), jnp.arange(9.0)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
      >>> cp(jnp.array([5.0, 3.0]), alpha=0.4).selected
      Array([ True, False], dtype=bool)
    """

    flags: Callable
    threshold: Any = None
    by: Callable | None = None

    def chosen(self, numbers, below, test, budget):
        selected = jnp.asarray(self.flags(numbers, below, test), bool)
        _checks.check_shape("flags(mu, below, test_mu)", test.shape, selected.shape)
        return selected, (numbers, below, test)

    def reference(self, state, place, null):
        numbers, below, test = state

        def swapped(i):
            moved = numbers.at[i].set(test[place])
            marks = None if below is None else below.at[i].set(null)
            found = self.flags(moved, marks, test.at[place].set(numbers[i]))
            return jnp.asarray(found, bool)[place]

        width = _batching.rows_at_a_time(len(numbers) + len(test))
        return _batching.map_evenly(swapped, jnp.arange(len(numbers)), at_a_time=width)


@pytree
class Selected:
    """Which test rows a rule selects, and their sets. Made by `SelectedCalibration`.

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
      ([True, False], [0], [15.0])
    """

    selected: Array
    indices: Array
    sets: AnySet

    def to_pandas(self, index: Any = None) -> pd.DataFrame:
        """Returns a frame of the sets, by the number of their test rows.

        Args:
          index: Index of all m test rows, or a frame or series that has it.
        """
        rows = np.asarray(self.indices)
        if index is None:
            return self.sets.to_pandas(rows)
        return self.sets.to_pandas(np.asarray(getattr(index, "index", index))[rows])


def _halves(score, c, pred, q):
    """Returns {s <= q_0 and y > c} or {s <= q_1 and y <= c}, q of shape (2,)."""
    if inputs.has_labels(score):
        k = len(_batching.labels_of(score, pred))
        return score.invert(pred, q[(jnp.arange(k) <= c).astype(int)])
    (lower, upper), (low, high) = (_pieces(score.invert(pred, v)) for v in q)
    c = jnp.asarray(c, lower.dtype)
    # Where c is in the set, what lies above it goes on from there.
    after = first_float(lambda v: v > c, c.dtype)
    after = jnp.where(jnp.any((low <= c) & (c <= high)), c, after)
    lower = jnp.concatenate([low, jnp.maximum(lower, after)])
    return joined(lower, jnp.concatenate([jnp.minimum(high, c), upper]))


def _pieces(found):
    """Returns the ends of the pieces of a set on the line, each (l,)."""
    kinds = "sets that are intervals, unions of them or labels, as the rule reads y"
    if not (has_pieces := isinstance(found, HasPieces)):
        _checks.check_kind(kinds, found, HasEnds)
    return [jnp.ravel(end) for end in (found.pieces if has_pieces else found.ends)()]


@pytree
class SelectedCalibration(Rule):
    """Scores of calibration rows, and what a selection reads of them.

    Made by `calibrate_selected`.

    Args:
      score: The nonconformity score.
      held: The rows: scores, shape (n,) or (n, c), and their mask.
      numbers: The numbers of the rows that the rule goes by, shape (n,).
      below: Whether y <= threshold, shape (n,), or None for a rule without one.
      rule: The rule that selects.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.
      chosen: What a call knows of test rows: which are selected, and more; else None.

    See also:
      selection.calibrate_selected, selection.Selected, calibrate
    """

    score: Score
    held: Held
    numbers: Array
    below: Array | None
    rule: SelectionRule
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    chosen: Any = None
    promise = "P(Y in set given that its row is selected) >= 1 - {alpha}"
    assumption = (
        "rows of calibration and test rows are exchangeable, the model saw neither, "
        "and the rule does not depend on the order of the former"
    )
    _weighs: ClassVar[bool] = True  # p-values count rows

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    @property
    def components(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one score: () or (c,)."""
        return self.held.components

    @_checks.with_alpha
    def __call__(
        self, preds: PyTree, alpha: ArrayLike, *, delta: None = None
    ) -> Selected:
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
          >>> rule = selection.by_p_values(20.0, 0.2)
          >>> cp = selection.calibrate_selected(Absolute(), x, y, rule=rule)
          >>> found = cp(jnp.array([35.0, 30.0, 5.0]), alpha=0.2)
          >>> found.indices.tolist(), found.sets.hull().lower.tolist()
          ([0, 1], [33.0, 28.0])
        """
        rows, indices, preds = self._of_selected(preds)
        if (c := self.rule.threshold) is not None:
            inverse = Partial(_halves, self.score, c)  # what sets ask alone
            rows = dataclasses.replace(rows, score=Custom(inverse, inverse))
        sets = Rule.__call__(rows, preds, alpha, place=indices, delta=delta)
        return Selected(rows.chosen[0], indices, sets)

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

        Example:
          >>> from jaxcp import selection
          >>> from jaxcp.scores import Absolute
          >>> rows, rule = (jnp.arange(19.0), 2 * jnp.arange(19.0)), selection.top(1)
          >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
          >>> cp.adjusted(jnp.array([4.0, 9.0]), alpha=0.4).sets.upper  # split at 0.2
          Array([24.], dtype=float32)
        """
        if not isinstance(self.rule, Top | Above):
            raise ValueError(
                "expected a rule top or above, for which alpha |S| / m is proved, got "
                f"{type(self.rule).__name__}; call the calibration for sets of each row"
            )
        rows, indices, preds = self._of_selected(preds)
        selected, known = rows.chosen[0], (self.row_shapes, self.classes)
        share = jnp.maximum(jnp.sum(selected), 1) / max(len(selected), 1)
        cp = Calibration(self.score, self.held.values, None, self.held.mask, *known)
        sets = cp(preds, alpha_as_float(as_alpha(alpha)) * share)
        return Selected(selected, indices, sets)

    @_checks.by_labels
    def p_values(self, preds: PyTree, y: ArrayLike) -> Array:  # type: ignore[override]
        """Returns how exceptional targets are among the reference rows, shape (m,).

        (1 + #{i in R_j(y) : S_i >= S_j}) / (|R_j(y)| + 1); NaN where not selected.

        Args:
          preds: Predictions of all test rows, as for calling this.
          y: Targets or candidates, shape (m,), or labels by name.

        Returns:
          p-values, shape (m,): y is in the set at alpha iff its p-value exceeds alpha,
          but for the rounding of ends.

        Raises:
          ValueError: as calling this, and if lengths differ.

        Guarantee:
          P(p <= alpha given that row j is selected) <= alpha.

        Assumption:
          As for calling this.

        Cost:
          As calling this inside of `jit`, and a sort of the rows for each test row.
        """
        rows, _, _ = self._of_selected(preds)
        y = taking.coded(self.classes, y)
        null = None if self.below is None else _is_null(self.rule, _checks.rows(y=y))
        known = {"place": jnp.arange(len(rows.chosen[0])), "null": null}
        p = Rule.p_values(rows, preds, y, **known)
        return jnp.where(rows.chosen[0], p, jnp.nan)

    def certificate(self, alpha: Any, delta: Any = None) -> Any:
        """Raises ValueError: the coverage of selected rows has no known law."""
        raise ValueError(
            "expected a calibration of all rows, whose coverage has a known law, got "
            "SelectedCalibration; calibrate(score, preds, y) has a certificate"
        )

    def rank(self, alpha: ArrayLike) -> Array:
        """Returns the rank among r rows, for r = 0, ..., n: (n + 1,) or (n + 1, c)."""
        counts = np.arange(len(self.held.values) + 1)
        counts = counts.reshape(-1, *(1 for _ in self.components))
        if len(counts) > _FEW_RANKS:
            counts = _batching.on_device(counts)
        return ranks(counts, split_alpha(alpha, self.components))

    def weights_at(self, place, null=False):
        """Returns the reference rows of a test row, and what it weighs, 1."""
        selected, state = self.chosen
        if not len(selected):  # there is no place
            return jnp.zeros(len(self.numbers)), 1.0
        flags = self.rule.reference(state, place, null) & selected[place]
        return flags.astype(float), 1.0

    def threshold(self, rank, place):  # type: ignore[override]
        """Returns the threshold of a test row, or both, for y > c and y <= c."""

        def of(null):
            rows = self._at({"place": place, "null": null})[0].weights > 0
            return Held(self.held.values, mask=rows).threshold(rank[jnp.sum(rows)])

        both = jnp.array([False, True])
        return of(False) if self.below is None else jax.vmap(of)(both)

    def _declared(self, given, lead=1):
        if self.chosen is None:
            raise ValueError(
                "expected all test rows, which together decide what each one refers "
                "to, got at most one; call cp(preds, alpha)"
            )
        return super()._declared(given, lead)

    def _of_selected(self, preds):
        """Returns what a call knows of test rows, and those that sets are of."""
        preds, *_ = self._rows(preds, {})
        budget = self.rule.budget(self.held.counts(), len(jax.tree.leaves(preds)[0]))
        chosen = _chosen(self.rule, self.numbers, self.below, preds, budget)
        places = np.arange(len(chosen[0]))
        if _arrays.is_concrete(chosen, preds):
            places = np.flatnonzero(np.asarray(chosen[0]))
            preds = jax.tree.map(lambda v: rows_of(v, places), preds)
        places = _batching.on_device(places)
        return dataclasses.replace(self, chosen=chosen), places, preds


@jit
def _chosen(rule, numbers, below, preds, budget):
    return rule.chosen(numbers, below, rule.numbers(preds), budget)


def _is_null(rule, y):
    """Returns whether y <= c, as of a NaN, shape (n,)."""
    _number("threshold", rule.threshold)
    _checks.check_vectors(y=(y := without_axis(y, 1)))
    return ~(y > rule.threshold)


def _number(name: str, value: Any) -> Any:
    return _checks.check_number(name, value, lambda v: v == v, "that is not NaN")


@_checks.verb
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
      rule: `top`, `above`, `by_p_values` or `Swaps` of `jaxcp.selection`; a function of
        numbers is `Swaps` of it. Rows whose number `by` is NaN come last.
      classes: Names of the k labels, as for `calibrate`.
      mask: True where a row counts, shape (n,). Not for rules by swaps.

    Returns:
      A `SelectedCalibration`: call it with the predictions of all test rows and alpha.

    Raises:
      ValueError: as `calibrate`; for a prediction of several numbers where the rule has
        no `by`, targets that are no numbers or labels where the rule has a threshold,
        or a mask with a rule by swaps.

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
      >>> preds, y = jnp.arange(19.0), 1.5 * jnp.arange(19.0)
      >>> cp = selection.calibrate_selected(Absolute(), preds, y, rule=selection.top(2))
      >>> found = cp(jnp.array([4.0, 16.0, 9.0, 13.0]), alpha=0.2)
      >>> found.indices.tolist(), found.sets.upper.tolist()
      ([1, 3], [24.5, 21.5])
    """
    if callable(rule) and rule not in (top, above, by_p_values):
        rule = Swaps(rule)
    _checks.check_kind("rule such as selection.top(20)", rule, SelectionRule)
    rule = cast(SelectionRule, rule)
    if isinstance(rule, Swaps) and mask is not None:
        raise ValueError("expected mask=None for a rule by swaps, got a mask")
    names = taking.classes_of(score, classes)
    held, shapes = taking.scored(score, preds, y, mask=mask, classes=names)
    preds, y = taking.held_rows(score, preds, y, None, mask, classes=names).values
    below = None if rule.threshold is None else _is_null(rule, y)
    if below is not None and mask is not None:
        below &= held.mask
    numbers = rule.numbers(preds)
    return SelectedCalibration(score, held, numbers, below, rule, shapes, names)


def top(k: int, *, by: Callable | None = None) -> SelectionRule:
    """Returns the rule that selects the k test rows with the largest numbers.

    Of rows that tie the lower index goes first: R_j = {i : #{l != j : mu_l > mu_i or
    (mu_l = mu_i and l < j)} < k}.

    Args:
      k: How many rows, an int >= 1; all where there are no more.
      by: Function of one prediction that returns the number mu. Defaults to the
        prediction, if it is a number.

    Returns:
      A rule for `calibrate_selected`.

    Raises:
      ValueError: if k is no int >= 1, or `by` no function.

    Guarantee:
      That of `calibrate_selected`.

    Assumption:
      Those of `calibrate_selected`.

    Cost:
      O(m) to select; O(n) for each selected row.

    References:
      Jin, Ren, Confidence on the Focal: Conformal Prediction with Selection-Conditional
      Coverage, Journal of the Royal Statistical Society B, 2025.

    See also:
      selection.calibrate_selected, selection.above, selection.by_p_values

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import LAC
      >>> p = jnp.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])
      >>> rule = selection.top(1, by=lambda pred: pred[1])
      >>> cp = selection.calibrate_selected(LAC(), p, jnp.array([0, 1, 1]), rule=rule)
      >>> cp(p[:2], alpha=0.4).indices
      Array([1], dtype=int32)
    """
    _checks.check_count("k", k, 1)
    return Top(int(k), by)


def above(c: Number, *, by: Callable | None = None) -> SelectionRule:
    """Returns the rule that selects the test rows with a number above c.

    R_j = {i : mu_i > c}, the calibration rows that it would select.

    Args:
      c: A number, strictly below the numbers of the rows that are selected, shape ().
      by: Function of one prediction that returns the number mu. Defaults to the
        prediction, if it is a number.

    Returns:
      A rule for `calibrate_selected`.

    Raises:
      ValueError: if c is no number, or NaN, or `by` no function.

    Guarantee:
      That of `calibrate_selected`.

    Assumption:
      Those of `calibrate_selected`; c does not depend on the calibration rows.

    Cost:
      O(m) to select; O(n) for each selected row.

    References:
      Jin, Ren, Confidence on the Focal: Conformal Prediction with Selection-Conditional
      Coverage, Journal of the Royal Statistical Society B, 2025.

    See also:
      selection.calibrate_selected, selection.top, calibrate_groups

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import Absolute
      >>> rows, rule = (jnp.arange(9.0), jnp.arange(9.0)), selection.above(4.0)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
      >>> cp(jnp.array([5.0, 4.0]), alpha=0.4).selected
      Array([ True, False], dtype=bool)
    """
    return Above(_number("c", c), by)


def by_p_values(
    threshold: Number,
    level: ArrayLike,
    *,
    stepwise: bool = True,
    by: Callable | None = None,
) -> SelectionRule:
    """Returns the rule that selects test rows by p-values of the claim y <= threshold.

    Those of `pvalues.selection_p_values`, p = (1 + #{i : y_i <= threshold, mu_i >= mu})
    / (n + 1): by Benjamini-Hochberg at a level, or those with p <= level. Targets enter
    by y <= threshold alone, so that R_j(y) takes two values.

    Args:
      threshold: What targets must exceed, shape (). Labels are 0, ..., k - 1. Where it
        differs from row to row, take it off targets and predictions.
      level: False discovery rate in (0, 1), for Benjamini-Hochberg.
      stepwise: False for the rows with p <= level instead, each for itself.
      by: Function of one prediction that returns the number mu. Defaults to the
        prediction, if it is a number.

    Returns:
      A rule for `calibrate_selected`.

    Raises:
      ValueError: if the threshold is NaN, the level outside (0, 1), or `by` is no
        function.

    Guarantee:
      That of `calibrate_selected`, and that of `benjamini_hochberg` if `stepwise`: the
      expected share of selected rows with y <= threshold is at most the level.

    Assumption:
      Those of `calibrate_selected`.

    Cost:
      Two sorts to select; O(n + m) for each selected row. Levels that are numbers are
      compared in integers.

    References:
      Jin, Candes, Selection by Prediction with Conformal p-values, Journal of Machine
      Learning Research, 2023.
      Jin, Ren, Confidence on the Focal: Conformal Prediction with Selection-Conditional
      Coverage, Journal of the Royal Statistical Society B, 2025.

    See also:
      selection.calibrate_selected, pvalues.selection_p_values,
      pvalues.benjamini_hochberg

    Example:
      >>> from jaxcp import selection
      >>> from jaxcp.scores import Absolute
      >>> rows, rule = (jnp.arange(9.0), jnp.arange(9.0)), by_p_values(4.5, 0.5)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
      >>> cp(jnp.array([5.0, 4.0]), alpha=0.4).selected
      Array([ True,  True], dtype=bool)
    """
    threshold = _number("threshold", threshold)
    _checks.check_scalars(level=(level := as_alpha(level, "level")))
    if not isinstance(level, Array):  # a third is the next float above it
        near = float(level.item())
        level = near if as_alpha(near) >= level else math.nextafter(near, 1)
    return ByPValues(threshold, level, stepwise, by)
