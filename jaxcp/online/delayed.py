"""A state whose rows wait for their targets: a ring of the latest D of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._tree import pytree
from jaxcp.typing import PyTree


@pytree
class Delayed:
    """A state of a method of `jaxcp.online`, and the latest D rows, not learned yet.

    `run(method, state, preds, y, alpha, delay=D)` returns it. `run`, `step`, `update`,
    `predict` and `quantile` take it in place of the method's own state, and go on with
    the same delay: step t learns row t - D, at the threshold that was issued for it.

    Args:
      state: The state of the method, which has learned all rows but the latest D.
      rows: (preds, y, thresholds) of the latest D rows, each with leading axis D; row
        t is at place t mod D. Arbitrary where there was no row yet.
      steps: Number of rows so far, int of shape ().

    Guarantee:
      None of its own: that of the method with a delay.

    Assumption:
      That of the method.

    Cost:
      O(D) memory, whatever the length of the stream.

    See also:
      online.run, online.Queue

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.PID(scores.Absolute(), step_size=0.5)
      >>> state, y = method.init(jnp.arange(1.0, 10.0), 0.2), jnp.full(4, 9.0)
      >>> state, sets = online.run(method, state, jnp.zeros(4), y, 0.2, delay=2)
      >>> [round(end, 1) for end in sets.upper.tolist()]  # the first target came
      [8.0, 8.0, 8.0, 8.4]
      >>> state, _ = method.step(state, jnp.array(0.0), jnp.array(9.0), 0.2)
      >>> int(state.steps), round(state.state.quantile.item(), 1)
      (5, 9.2)
    """

    state: PyTree
    rows: tuple[PyTree, Array, Array]
    steps: Array


def learn(method, state, pred, y, rank, q):
    """Returns the state after a row; with a delay it has learned the one D before."""
    if not isinstance(state, Delayed):
        return method.learn(state, pred, y, rank, q)
    delay = len(state.rows[-1])
    place, is_full = state.steps % delay, state.steps >= delay
    # Before that the new row itself, real numbers, of which nothing is kept.
    oldest = lambda old, new: jnp.where(is_full, old[place], new)  # noqa: E731
    *late, issued = jax.tree.map(oldest, state.rows, (pred, y, q))
    after = lambda: method.learn(state.state, *late, rank, issued)  # noqa: E731
    if jax.sharding.get_abstract_mesh().empty:
        later = lax.cond(is_full, after, lambda: state.state)
    else:  # within shard_map jax 0.10 fails where such a choice is mapped
        choose = partial(jnp.where, is_full)
        later = jax.tree.map(choose, after(), state.state)
    put = lambda old, new: old.at[place].set(new)  # noqa: E731
    rows = jax.tree.map(put, state.rows, (pred, y, q))
    return Delayed(later, rows, state.steps + 1)


def method_of(method, state):
    """Returns the method, for the delay of the state if it has one."""
    return method._late(len(state.rows[-1])) if isinstance(state, Delayed) else method


def learned(state):
    """Returns the state of the method, without the rows that wait."""
    return state.state if isinstance(state, Delayed) else state


def check_delay(state, delay):
    """Raises ValueError unless `delay` is None, a count, or that of the state."""
    if delay is not None:
        _checks.check_count("delay", delay, 0)
    if isinstance(state, Delayed) and delay not in (None, own := len(state.rows[-1])):
        cure = "leave it out to go on, or start from state.state"
        raise ValueError(f"expected the delay {own} of the state, got {delay}; {cure}")


def check_waits_for_none(state):
    """Raises ValueError for a state that keeps thresholds itself."""
    if isinstance(state, Delayed):
        cure = "use step, or state.state"
        raise ValueError(f"expected a state without a delay, got Delayed; {cure}")


def check_row(rows, row):
    """Raises ValueError for a row (pred, y) that is not like those that wait."""
    expected, got = _kinds(rows[:2], 1), _kinds(row, 0)
    if jax.tree.flatten(expected) != jax.tree.flatten(got):
        raise ValueError(f"expected rows like those that wait, {expected}, got {got}")


def _kinds(tree, first):
    """Returns type and shape of each array in words, from an axis on."""
    return jax.tree.map(lambda v: f"{v.dtype}{list(v.shape[first:])}", tree)
