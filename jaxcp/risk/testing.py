"""Learn then test: which settings of a grid are proved to keep their risks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float, at_least_single
from jaxcp.pvalues.familywise import as_starts, bonferroni, fixed_sequence, holm
from jaxcp.quantiles.levels import as_alpha
from jaxcp.risk import bounds
from jaxcp.risk._inputs import losses_and_rows
from jaxcp.risk._tails import binomial_tail
from jaxcp.typing import ArrayLike

Procedure = Callable[[Array, ArrayLike], Array]


class Counts(NamedTuple):
    """Errors among the rows that count, at each setting of a grid.

    Attributes:
      errors: Number of errors, int of shape (g,).
      trials: Number of rows that count at each setting, int of shape (g,).

    Guarantee:
      none: they are data.

    Assumption:
      Rows that are i.i.d., so that errors are binomial given the trials.

    Cost:
      Two integers for each setting.

    See also:
      risk.learn_then_test, risk.pareto_test

    Example:
      >>> Counts(jnp.array([2, 0]), jnp.array([100, 0])).trials.shape
      (2,)
    """

    errors: ArrayLike
    trials: ArrayLike


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
      >>> errors = jnp.arange(200)[:, None] < jnp.array([2, 8, 30])
      >>> learn_then_test(errors, alpha=0.1, delta=0.1)
      Array([ True,  True, False], dtype=bool)
      >>> learn_then_test(Counts([2, 8, 0], [200, 40, 0]), alpha=0.1, delta=0.1)
      Array([ True, False, False], dtype=bool)
    """
    _checks.check_number("delta", delta, lambda d: (d > 0) & (d < 1), "in (0, 1)")
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
    _check_settings(len(valid))
    return _best(valid, utility)


def as_risks(name: str, losses: Any) -> tuple[tuple[Array | Counts, ...], int]:
    """Returns losses (n, g) or counts (g,) of each risk, and the number of settings."""
    several = isinstance(losses, tuple) and not isinstance(losses, Counts)
    risks = tuple(_as_risk(name, v) for v in (losses if several else (losses,)))
    if not risks:
        raise ValueError(f"expected {name} of at least one risk, got ()")
    g = _settings(risks[0])
    for other in risks:
        if _settings(other) != g:
            raise ValueError(
                f"expected {name} with {g} settings for each risk, got "
                f"{_settings(other)}"
            )
    _check_settings(g)
    return risks, g


def risk_p_values(
    risks: tuple[Array | Counts, ...],
    alpha: Any,
    delta: ArrayLike,
    p_value: bounds.Method | None,
    where: Any,
    bound: Any,
    tests: int | None,
) -> Array:
    """Returns the largest p-value of each setting, (g,): its claim is a union."""
    r = len(risks)
    each = zip(
        risks,
        one_each("alpha", alpha, r),
        one_each("where", where, r),
        one_each("bound", bound, r),
        strict=True,
    )
    level = delta / (tests or 1)
    p = [_p_values(*risk, p_value, level) for risk in each]
    dtype = jnp.result_type(*p)
    return jnp.max(jnp.stack([v.astype(dtype) for v in p]), axis=0)


def one_each(name: str, value: Any, r: int) -> tuple[Any, ...]:
    """Returns a tuple of r values: the one given for each, or the same for all."""
    if not isinstance(value, tuple):
        return (value,) * r
    if len(value) != r:
        raise ValueError(f"expected {name} of {r} risks, got {len(value)}")
    return value


def _as_risk(name, value):
    if isinstance(value, Counts):
        return Counts(*_check_counts(value))
    value = as_array(name, value)
    if value.ndim != 2:
        raise ValueError(f"expected {name} of shape (n, g), got {value.shape}")
    return value


def _check_counts(counts):
    """Returns errors and trials as integers of shape (g,)."""
    errors, trials = (as_array(k, v) for k, v in counts._asdict().items())
    _checks.check_vectors(errors=errors, trials=trials)
    _checks.check_shape("trials", errors.shape, trials.shape)
    for name, value in (("errors", errors), ("trials", trials)):
        if value.size and not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"expected {name} as integers, got {value.dtype}")
        _checks.check_values(lambda v: v >= 0, f"{name} >= 0", value)
    if is_concrete(errors, trials):
        within = lambda v: v <= np.asarray(trials)  # noqa: E731
        _checks.check_values(within, "errors of at most the trials", errors)
    return errors.astype(int), trials.astype(int)


def _settings(risk):
    return risk.errors.shape[0] if isinstance(risk, Counts) else risk.shape[1]


def _check_settings(g):
    if g == 0:
        raise ValueError("expected a grid of at least one setting, got none")


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


def _p_values(risk, alpha, where, bound, p_value, delta):
    counted = isinstance(risk, Counts)
    if p_value is None:
        whole = counted or not jnp.issubdtype(risk.dtype, jnp.floating)
        unit = counted or (is_concrete(bound) and bound == 1)
        errors = not counted and risk.dtype == bool
        p_value = "binomial" if whole and (unit or errors) else "hoeffding_bentkus"
    if counted:
        if p_value != "binomial" or where is not None or np.any(bound != 1):
            raise ValueError("expected counts without p_value, where and bound")
        return _of_counts(risk, alpha)
    known = is_concrete(risk, where, alpha)
    if p_value == "binomial" and known:
        return _of_counts(_counted(risk, where, bound), alpha)
    return bounds.p_value(
        risk, alpha, method=p_value, delta=delta, where=where, bound=bound
    )


def _counted(losses, where, bound):
    """Returns the counts of 0/1 losses with known values, after the checks of them."""
    losses, where = losses_and_rows(losses, where, bound, "binomial")
    return Counts(*_count(losses, where))


@jax.jit
def _count(losses, where):
    counts = jnp.ones_like(losses, bool) if where is None else where
    counts = counts if counts.ndim == 2 else counts[:, None]
    counts = jnp.broadcast_to(counts, losses.shape)
    return jnp.sum((losses != 0) & counts, axis=0), jnp.sum(counts, axis=0)


def _of_counts(counts, alpha):
    """Returns P(Bin(trials, alpha) <= errors): 1 where nothing counts."""
    inside = lambda a: (a > 0) & (a < 1)  # noqa: E731
    _checks.check_number("alpha", alpha, inside, "in (0, 1)")
    if is_concrete(counts, alpha):
        share = alpha if isinstance(alpha, Array) else as_alpha(alpha).item()
        return _on_host(np.asarray(counts.errors), np.asarray(counts.trials), share)
    return _traced_tails(*counts, as_float(float_of(alpha)))


def float_of(alpha: Any) -> Any:
    """Returns a number as the float of its decimal; arrays as they are."""
    return alpha if isinstance(alpha, Array) else float(as_alpha(alpha).item())


def _on_host(errors, trials, alpha: Array | Fraction):
    from scipy.special import betainc, betaincc  # scipy comes with jax

    a, open_ = float(alpha), errors < trials
    k, rest = np.where(open_, errors, 0), np.where(open_, trials - errors, 1)
    # The smaller of alpha and 1 - alpha keeps its digits.
    low = betaincc(k + 1.0, rest, a) if a <= 0.5 else betainc(rest, k + 1.0, 1 - a)
    return jnp.asarray(np.where(open_, low, 1.0))


@jax.jit
def _traced_tails(errors, trials, alpha):
    alpha = jnp.clip(at_least_single(alpha), 0, 1)
    trials = jnp.maximum(trials, 0)
    errors = jnp.clip(errors, 0, trials)
    of_one = lambda k, n: binomial_tail(  # noqa: E731
        k.astype(alpha.dtype), n.astype(alpha.dtype), alpha
    )
    p = jax.vmap(of_one)(errors, trials)
    return jnp.where(jnp.isnan(alpha), 1, p)


@jax.jit
def _best(valid, utility):
    is_float = jnp.issubdtype(utility.dtype, jnp.floating)
    utility = utility if is_float else utility.astype(int)
    lowest = -jnp.inf if is_float else jnp.iinfo(utility.dtype).min
    eligible = valid & ~(utility != utility)
    largest = jnp.max(jnp.where(eligible, utility, lowest))
    return jnp.argmax(eligible & (utility == largest)), jnp.any(eligible)
