"""Rules that select test rows, and which rows may change places with a selected one.

R_j(y) are the calibration rows i for which place j is still selected after row i and
test row j, with the target y, have changed places. A target enters by y <= c alone.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._batching import widened
from jaxcp._numbers import as_float
from jaxcp._tree import keep_functions, pytree, static
from jaxcp.pvalues.conformal import masses_of_keys
from jaxcp.quantiles._keys import to_keys
from jaxcp.quantiles.levels import as_alpha, ranks
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike, Number, PyTree

By = Callable[[PyTree], ArrayLike] | None


class SelectionRule:
    """What rules share: a number of each prediction, and the rows above a cut."""

    by: By = None
    threshold: Any = None  # c, where targets enter by y <= c
    counts_others: ClassVar[bool] = True  # whether the number selected is, given one

    def __post_init__(self) -> None:
        keep_functions(self, "by")

    def numbers(self, preds: PyTree, extreme: float) -> Array:
        """Returns the number of each prediction, float (n,); NaN becomes `extreme`."""
        found, rows = widened(preds), len(jax.tree.leaves(preds)[0])
        found = found if self.by is None else jax.vmap(self.by)(found)
        if not isinstance(found, Array) or found.size != rows:
            raise ValueError(
                f"expected one number of each prediction to select by, got "
                f"{jax.tree.map(lambda v: v.shape[1:], found)}; name it, such as "
                "by=lambda pred: pred[1]"
            )
        found = as_float(found.reshape(rows))
        return jnp.where(jnp.isnan(found), extreme, found)

    def budget(self, count: Any, num_tests: int) -> Any:
        """Returns what the host knows of a level: integers, or None."""
        return None

    def chosen(self, numbers: Array, below: Any, test: Array, budget: Any) -> tuple:
        """Returns which test rows are selected, (m,), and what `reference` reads."""
        raise NotImplementedError

    def reference(self, state: Any, place: Array) -> Array:
        """Returns R_j of the row at a place, (n,), or (2, n): of y > c, of y <= c."""
        raise NotImplementedError

    def width(self, n: int, m: int) -> int:
        """Returns how many numbers `reference` makes for a place."""
        return 4 * (n + m)


def _keys(numbers, test, *others):
    """Returns integers in the order of numbers, as floats of one type."""
    dtype = jnp.result_type(numbers, test, *others)
    return [to_keys(jnp.asarray(v, dtype)) for v in (numbers, test, *others)]


@pytree
class Top(SelectionRule):
    """The rows with the k largest numbers. Made by `top`."""

    k: int = static()
    by: By = None

    def chosen(self, numbers, below, test, budget):
        m = len(test)
        keys, test, last = _keys(numbers, test, kth_smallest(test, m - self.k))
        left = self.k - jnp.sum(test > last)
        # j and row i tie with the first row that is left out: the lower index goes in.
        early = jnp.cumsum(test == last) <= left
        return (test > last) | ((test == last) & early), (keys, last + ~early)

    def reference(self, state, place):
        keys, cuts = state
        return keys >= cuts[place]


@pytree
class Above(SelectionRule):
    """The rows with a number above c. Made by `above`."""

    c: Number
    by: By = None

    def chosen(self, numbers, below, test, budget):
        keys, test, cut = _keys(numbers, test, self.c)
        return test > cut, keys > cut

    def reference(self, state, place):
        return state


@pytree
class ByPValues(SelectionRule):
    """The rows whose selection p-values are small. Made by `by_p_values`."""

    threshold: Number
    level: Any = None
    at_most: Any = None
    by: By = None
    counts_others: ClassVar[bool] = False

    def budget(self, count, num_tests):
        """Returns floor((n + 1) level r / m) for r = 0, ..., m; or floor((n + 1) t)."""
        level = as_alpha(self.at_most if self.level is None else self.level, "level")
        m = max(num_tests, 1)
        if self.level is None:
            shares: Any = level
        elif isinstance(level, Array):
            shares = level * jnp.arange(num_tests + 1) / m
        else:
            shares = level * np.array([Fraction(r, m) for r in range(num_tests + 1)])
        spent = count + 1 - ranks(count, shares)
        return jnp.broadcast_to(spent, (num_tests + 1,))

    def chosen(self, numbers, below, test, budget):
        keys, test = _keys(numbers, test)
        low, high = jnp.iinfo(keys.dtype).min, jnp.iinfo(keys.dtype).max
        values = jnp.concatenate([test, keys])
        # p-values are counts / (n + 1), and fall as the number v of a row rises: BH
        # selects v iff counts <= floor((n + 1) level r / m) at a value up to v, with r
        # the number of test rows from that value on.
        counts = 1 + masses_of_keys(jnp.where(below, keys, low), values)[0]
        r = masses_of_keys(test, values)[0]
        is_test = jnp.ones(len(test), bool)
        kinds = [jnp.concatenate([is_test, kind]) for kind in (~below, below)]
        kinds = [jnp.where(kind, values, high) for kind in kinds]
        first = jnp.min(kinds[0], where=counts <= budget[r], initial=high)
        state = keys, below, test, kinds, counts, budget[r], budget[r + 1]
        return test >= first, state

    def reference(self, state, place):
        keys, below, test, kinds, counts, at, later = state

        def cut(null, kind):
            # Row i, a null or not by its kind, has come to place j, and counts there in
            # r. Row j counts where i was, if it is a null, and down to its own number.
            own = test[place] >= kinds[kind]
            fits = counts - kind + null * own <= jnp.where(own, at, later)
            return jnp.min(kinds[kind], where=fits, initial=jnp.iinfo(keys.dtype).max)

        rows = lambda null: keys >= jnp.where(below, cut(null, 1), cut(null, 0))  # noqa: E731
        return jnp.stack([rows(0), rows(1)])


@pytree
class Swaps(SelectionRule):
    """The rows that a function flags. Made by `by_swaps`."""

    flags: Callable[[Array, Any, Array], Array]
    threshold: Any = None
    by: By = None
    counts_others: ClassVar[bool] = False

    def __post_init__(self):
        keep_functions(self, "flags", "by")

    def chosen(self, numbers, below, test, budget):
        selected = jnp.asarray(self.flags(numbers, below, test))
        _checks.check_shape("the flags of a rule", test.shape, selected.shape)
        return selected.astype(bool), (numbers, below, test)

    def reference(self, state, place):
        numbers, below, test = state

        def swapped(i, null):
            moved = numbers.at[i].set(test[place])
            marks = None if below is None else below.at[i].set(null)
            flags = self.flags(moved, marks, test.at[place].set(numbers[i]))
            return flags[place].astype(bool)

        each = jax.vmap(swapped, (0, None))
        rows = jnp.arange(len(numbers))
        if below is None:
            return each(rows, None)
        return jnp.stack([each(rows, False), each(rows, True)])

    def width(self, n, m):
        return 2 * n * (n + m)


def top(k: int, *, by: By = None) -> SelectionRule:
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


def above(c: Number, *, by: By = None) -> SelectionRule:
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
    level: ArrayLike | None = None,
    *,
    at_most: ArrayLike | None = None,
    by: By = None,
) -> SelectionRule:
    """Returns the rule that selects test rows by p-values of the claim y <= threshold.

    Those of `pvalues.selection_p_values`, p = (1 + #{i : y_i <= threshold, mu_i >= mu})
    / (n + 1): by Benjamini-Hochberg at a level, or those with p <= t. A target enters
    by y <= threshold alone, so that R_j(y) takes two values.

    Args:
      threshold: What targets must exceed, shape (). Labels are 0, ..., k - 1. Where it
        differs from row to row, take it off targets and predictions.
      level: False discovery rate in (0, 1), for Benjamini-Hochberg.
      at_most: In its place the largest p-value t that is selected, in (0, 1).
      by: Function of one prediction that returns the number mu. Defaults to the
        prediction, if it is a number.

    Returns:
      A rule for `calibrate_selected`.

    Raises:
      ValueError: if the threshold is NaN, `level` and `at_most` are both given or both
        left out, or outside (0, 1), or `by` is no function.

    Guarantee:
      That of `calibrate_selected`, and with `level` that of `benjamini_hochberg`: the
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
      >>> rows, rule = (jnp.arange(9.0), jnp.arange(9.0)), by_p_values(4.5, at_most=0.2)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
      >>> cp(jnp.array([5.0, 4.0]), alpha=0.4).selected
      Array([ True,  True], dtype=bool)
    """
    if (level is None) == (at_most is None):
        raise ValueError(
            f"expected either level or at_most, got {level} and {at_most}; level= is "
            "for Benjamini-Hochberg"
        )
    level, at_most = (_share(v) for v in (level, at_most))
    return ByPValues(_number("threshold", threshold), level, at_most, by)


def by_swaps(
    flags: Callable[[Array, Any, Array], Array],
    *,
    threshold: Number | None = None,
    by: By = None,
) -> SelectionRule:
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
      ValueError: if the threshold is NaN, or `flags` or `by` is no function.

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
      >>> rule = by_swaps(lambda mu, below, test: test > mu.mean())
      >>> rows = jnp.arange(9.0), jnp.arange(9.0)
      >>> cp = selection.calibrate_selected(Absolute(), *rows, rule=rule)
      >>> cp(jnp.array([5.0, 3.0]), alpha=0.4).selected
      Array([ True, False], dtype=bool)
    """
    return Swaps(
        flags, None if threshold is None else _number("threshold", threshold), by
    )


def _number(name, value):
    """Returns one number that is not NaN, or raises ValueError."""
    _checks.check_number(name, value, lambda v: v == v, "that is not NaN")
    return value


def _share(value):
    """Returns a level in (0, 1) as a leaf of a pytree, or None."""
    if value is None:
        return None
    one = as_alpha(value, "level")
    return one if isinstance(one, Array) else float(one.item())
