"""Pareto testing: an order of settings from one part of the rows, tests on the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float, at_least_single, quotient
from jaxcp.pvalues.familywise import fixed_sequence
from jaxcp.risk import bounds
from jaxcp.risk._inputs import one_each
from jaxcp.risk.counting import Counts, as_risks, risk_p_values
from jaxcp.typing import ArrayLike


def pareto_front(risks: ArrayLike, costs: ArrayLike) -> Array:
    """Returns which settings no other one beats in all risks and costs.

    Setting j beats i if it is nowhere larger and somewhere smaller: equal settings do
    not beat each other.

    Args:
      risks: Estimated risks, shape (g,) or (g, r).
      costs: What else to keep small, shape (g,) or (g, c).

    Returns:
      The front, bool of shape (g,). A setting with a NaN is not on it.

    Raises:
      ValueError: if numbers of settings differ.

    Guarantee:
      none: it is an estimate of which settings are worth a test.

    Assumption:
      none.

    Cost:
      O(g^2) time.

    References:
      Laufer-Goldenberg, Fisch, Barzilay, Jaakkola, Efficiently Controlling Multiple
      Risks with Pareto Testing, International Conference on Learning Representations,
      2023.

    See also:
      risk.pareto_test, risk.learn_then_test

    Example:
      >>> pareto_front(jnp.array([0.1, 0.2, 0.3]), jnp.array([3.0, 1.0, 2.0]))
      Array([ True,  True, False], dtype=bool)
    """
    return _front(_objectives(risks, costs))


def pareto_test(
    first: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    losses: ArrayLike | Counts | tuple[ArrayLike | Counts, ...],
    costs: ArrayLike,
    alpha: ArrayLike | tuple[ArrayLike, ...],
    delta: ArrayLike,
    *,
    p_value: bounds.Method | None = None,
    where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    first_where: ArrayLike | tuple[ArrayLike | None, ...] | None = None,
    bound: ArrayLike | tuple[ArrayLike, ...] = 1.0,
) -> Array:
    """Returns which settings keep their mean loss at alpha, the promising ones tested.

    On a first part of the rows: the front of the mean losses and the costs, in the
    order of the mean losses (of several risks the largest relative to alpha). On the
    rest: a fixed sequence of tests along it.

    Args:
      first: Losses of the first part, as `losses`.
      losses: Losses in [0, bound] of the rows to test on, shape (n, g), or `Counts`, or
        a tuple of these for several risks; as in `learn_then_test`.
      costs: What to keep small, free of the rows to test on, shape (g,) or (g, c).
      alpha: Level of the mean loss in (0, bound), shape (); a tuple for several risks.
      delta: Probability of any setting that is wrongly valid, in (0, 1), shape ().
      p_value: A method of `risk.p_value`, as in `learn_then_test`.
      where: True where a row counts, as in `learn_then_test`.
      first_where: The same for the first part.
      bound: Largest loss there can be, > 0, shape (); a tuple for several risks.

    Returns:
      Valid settings, bool of shape (g,), on the front.

    Raises:
      ValueError: as `learn_then_test`, or if numbers of settings differ.

    Guarantee:
      P(all valid settings have means <= alpha) >= 1 - delta over the rows to test on.

    Assumption:
      Independent rows with the same law, independent of those of the first part.

    Cost:
      O(n g + g^2) time.

    References:
      Laufer-Goldenberg, Fisch, Barzilay, Jaakkola, Efficiently Controlling Multiple
      Risks with Pareto Testing, International Conference on Learning Representations,
      2023.

    See also:
      risk.learn_then_test, risk.pareto_front, risk.best, pvalues.fixed_sequence

    Example:
      >>> errors = jnp.arange(200)[:, None] % jnp.array([[50, 25, 5]]) == 0
      >>> cost = jnp.array([3.0, 2.0, 1.0])
      >>> pareto_test(errors[:100], errors[100:], cost, alpha=0.1, delta=0.1)
      Array([ True,  True, False], dtype=bool)
    """
    delta = _checks.share("delta", delta)
    (begun, g), (risks, tested) = as_risks("first", first), as_risks("losses", losses)
    if g != tested or len(begun) != len(risks):
        raise ValueError(
            f"expected losses of {len(begun)} risks and {g} settings like first, got "
            f"{len(risks)} and {tested}"
        )
    p = risk_p_values(risks, alpha, delta, p_value, where, bound, 1)
    alphas = one_each("alpha", alpha, len(risks))
    wheres = one_each("first_where", first_where, len(risks))
    means = jnp.stack([_mean(*v) for v in zip(begun, wheres, strict=True)], axis=1)
    objectives = _objectives(means, costs)
    order, on_front = _order(means, objectives, _relative(alphas))
    valid = fixed_sequence(jnp.where(on_front[order], p[order], 1), delta)
    return jnp.zeros_like(valid).at[order].set(valid)


def _objectives(risks, costs):
    """Returns all that is to be kept small, shape (g, r + c)."""
    risks, costs = as_array("risks", risks), as_array("costs", costs)
    _checks.num_rows(risks=risks, costs=costs)
    columns = [v.reshape(len(v), -1) for v in map(as_float, (risks, costs))]
    return jnp.concatenate(columns, axis=1)


def _mean(risk: Any, where: Any) -> Array:
    """Returns the mean loss of each setting over its rows; NaN without rows."""
    if isinstance(risk, Counts):
        return quotient(jnp.asarray(risk.errors), jnp.asarray(risk.trials))
    losses = at_least_single(as_float(risk))
    counts = jnp.ones_like(losses, bool)
    if where is not None:
        where = _checks.flags("where", where)
        counts = counts & (where if where.ndim == 2 else where[:, None])
    total = jnp.sum(jnp.where(counts, losses, 0), axis=0)
    return quotient(total, jnp.sum(counts, axis=0))


def _relative(alphas):
    """Returns what each risk is divided by: nothing if there is one."""
    if len(alphas) == 1:
        return jnp.ones(1)
    known = (a if isinstance(a, Array) else float(a) for a in alphas)
    return jnp.stack([jnp.asarray(a) for a in known])


@jax.jit
def _front(objectives):
    known = ~jnp.any(jnp.isnan(objectives), axis=1)
    values = jnp.where(known[:, None], objectives, jnp.inf)

    def is_beaten(mine):
        lower = jnp.any(values < mine[None], axis=1)
        return jnp.any(lower & jnp.all(values <= mine[None], axis=1))

    return known & ~jax.vmap(is_beaten)(values)


@jax.jit
def _order(means, objectives, scales):
    """Returns the settings by growing risk, those of the front first, and the front."""
    front = _front(objectives)
    largest = jnp.max(means / scales[None], axis=1)
    return jnp.argsort(jnp.where(front, largest, jnp.inf)), front
