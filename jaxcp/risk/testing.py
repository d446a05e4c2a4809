"""Learn then test: which settings of a grid are proved to keep their risks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp.pvalues.familywise import as_starts, bonferroni, fixed_sequence, holm
from jaxcp.risk import bounds
from jaxcp.risk.counting import Counts, as_risks, check_settings, risk_p_values
from jaxcp.typing import ArrayLike

Procedure = Callable[[Array, ArrayLike], Array]


def learn_then_test(
    losses: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    alpha: ArrayLike | tuple[ArrayLike, ...],
    delta: ArrayLike,
    *,
    method: Literal["holm", "bonferroni", "fixed_sequence"] | Procedure = "holm",
    p_value: bounds.Method | None = None,
    where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    bound: ArrayLike | tuple[ArrayLike, ...] = 1.0,
    starts: Sequence[int] | ArrayLike = (0,),
) -> Array:
    """Returns which settings keep their mean loss at alpha, all of them at once.

    A p-value of the claim that the mean loss of a setting is above alpha, then a
    procedure of `pvalues` that makes no false rejection. The loss may be any function
    of the setting, monotone or not. Choose freely among the valid ones, by `best`.

    With `where`, the mean is that of the rows where it is True, which may differ
    between settings: the false share of what is selected is the error among the rows
    selected, abstention leaves the rows answered.

    Args:
      losses: Losses in [0, bound] of n rows at g settings, shape (n, g), bool for
        errors; or `Counts`; or a tuple of these, one a risk: a setting is valid if all
        its risks are kept.
      alpha: Level of the mean loss in (0, bound), shape (); a tuple for several risks.
      delta: Probability of any setting that is wrongly valid, in (0, 1), shape ().
      method: "holm", "bonferroni", "fixed_sequence" (from `starts` on, in the order of
        the grid), or a function (p_values, delta) -> (g,) bool, such as one with
        `pvalues.graphical`.
      p_value: A method of `risk.p_value`. Defaults to "binomial" for errors (bool, or
        integers with bound 1) and counts, else to "hoeffding_bentkus". Bets are made
        for the level that the first hypothesis is tested at.
      where: True where a row counts, shape (n, g) or (n,); a tuple for several risks.
      bound: Largest loss there can be, > 0, shape (); a tuple for several risks.
      starts: Settings at which a fixed sequence begins, as in
        `pvalues.fixed_sequence`.

    Returns:
      Valid settings, bool of shape (g,). A setting where no row counts is not valid.

    Raises:
      ValueError: if there is no setting, shapes do not fit, a concrete loss is outside
        [0, bound], `alpha` outside (0, bound) or `delta` outside (0, 1).

    Guarantee:
      P(all valid settings have means <= alpha) >= 1 - delta over the rows.

    Assumption:
      Independent rows with the same law, and a grid, an order, starts and a direction
      that do not depend on them: choose those on other rows.

    Cost:
      O(n g) time, and the procedure. Errors are counted in integers; their p-values are
      rounded from double precision where counts and `alpha` are known, otherwise as in
      `risk.p_value`.

    References:
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      risk.best, risk.pareto_test, risk.selective_threshold, risk.p_value, pvalues.holm

    Example:
      >>> errors = jnp.arange(200)[:, None] < jnp.array([[2, 8, 30]])
      >>> learn_then_test(errors, alpha=0.1, delta=0.1)
      Array([ True,  True, False], dtype=bool)
      >>> learn_then_test(Counts([2, 8, 0], [200, 40, 0]), alpha=0.1, delta=0.1)
      Array([ True, False, False], dtype=bool)
    """
    delta = _checks.share("delta", delta)
    risks, g = as_risks("losses", losses)
    procedure, tests = _procedure(method, starts, g)
    p = risk_p_values(risks, alpha, delta, p_value, where, bound, tests)
    valid = jnp.asarray(procedure(p, delta))
    _checks.check_shape("rejections of method", (g,), valid.shape)
    if valid.dtype != bool:
        raise ValueError(f"expected bool rejections of method, got {valid.dtype}")
    return valid


def best(valid: ArrayLike, utility: ArrayLike) -> tuple[Array, Array]:
    """Returns the valid setting of the largest utility, and whether there is one.

    Args:
      valid: Settings to choose from, bool of shape (g,).
      utility: What to maximize, shape (g,), larger is better. NaN is never chosen.

    Returns:
      The index, int of shape (), the first of those that are equally good; and whether
      any was found, bool of shape (). The index is 0 where none was: do not use it.

    Raises:
      ValueError: if shapes differ, there is no setting, or `valid` is not bool.

    Guarantee:
      That of `valid`: it holds for all settings at once, whatever the choice, also if
      the utility comes from the same rows.

    Assumption:
      none.

    Cost:
      O(g) time.

    See also:
      risk.learn_then_test, risk.pareto_test

    Example:
      >>> index, found = best(jnp.array([True, True, False]), jnp.arange(3))
      >>> index.item(), found.item()
      (1, True)
    """
    valid, utility = as_array("valid", valid), as_array("utility", utility)
    _checks.check_vectors(valid=valid, utility=utility)
    _checks.check_shape("utility", valid.shape, utility.shape)
    if valid.dtype != bool:
        raise ValueError(f"expected valid as bool, got {valid.dtype}")
    check_settings(len(valid))
    return _best(valid, utility)


def _procedure(method, starts, g):
    """Returns a function (p, delta) -> rejections, and what it divides delta by."""
    if method == "fixed_sequence":
        starts = as_starts(starts, g)
        return lambda p, d: fixed_sequence(p, d, starts=starts), len(starts)
    known = {"holm": holm, "bonferroni": bonferroni}
    if isinstance(method, str) and method in known:
        return known[method], g
    if isinstance(method, str) or not callable(method):
        names = [*known, "fixed_sequence"]
        raise ValueError(f"expected method as one of {names}, got {method!r}")
    return method, None


@jax.jit
def _best(valid, utility):
    is_float = jnp.issubdtype(utility.dtype, jnp.floating)
    utility = utility if is_float else utility.astype(int)
    lowest = -jnp.inf if is_float else jnp.iinfo(utility.dtype).min
    eligible = valid & ~(utility != utility)
    largest = jnp.max(jnp.where(eligible, utility, lowest))
    return jnp.argmax(eligible & (utility == largest)), jnp.any(eligible)
