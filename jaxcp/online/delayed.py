"""A state whose rows wait for their targets: a ring of the latest D of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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
      >>> [round(end, 1) for end in sets.upper.tolist()]  # two targets are known
      [8.0, 8.0, 8.0, 8.4]
      >>> state, _ = method.step(state, jnp.array(0.0), jnp.array(9.0), 0.2)
      >>> int(state.steps), round(state.state.quantile.item(), 1)
      (5, 9.2)
    """

    state: PyTree
    rows: tuple[PyTree, Array, Array]
    steps: Array

    def push(self, learn, row):
        """Returns the state after a row came, and the one D steps before was learned.

        `learn(state, pred, y, q)` is of the method; `row` is (pred, y, q).
        """
        delay = len(self.rows[-1])
        place, is_full = self.steps % delay, self.steps >= delay
        # The new row where there is none: what is learned of it is dropped, but finite.
        oldest = lambda old, new: jnp.where(is_full, old[place], new)  # noqa: E731
        late = learn(self.state, *jax.tree.map(oldest, self.rows, row))
        state = jax.tree.map(partial(jnp.where, is_full), late, self.state)
        put = lambda old, new: old.at[place].set(new)  # noqa: E731
        return Delayed(state, jax.tree.map(put, self.rows, row), self.steps + 1)


def start(state, like, delay):
    """Returns a state before the first row; `like` is one (pred, y, q)."""
    empty = lambda v: np.zeros((delay, *v.shape), v.dtype)  # noqa: E731
    return Delayed(state, jax.tree.map(empty, like), np.zeros((), np.asarray(0).dtype))


def learned(state):
    """Returns the state of the method, without the rows that wait."""
    return state.state if isinstance(state, Delayed) else state


def check_delay(state, delay):
    """Raises ValueError unless `delay` is None, a count, or that of the state."""
    if delay is None:
        return
    _checks.check_count("delay", delay, 0)
    if isinstance(state, Delayed) and delay != (own := len(state.rows[-1])):
        raise ValueError(
            f"expected the delay {own} of the state, got {delay}; {own} rows wait in "
            "it: leave delay out to go on, or start from state.state without them"
        )


def check_waits_for_none(state):
    """Raises ValueError for a state in which rows wait for their turn."""
    if isinstance(state, Delayed):
        raise ValueError(
            f"expected a state without a delay, got one of {len(state.rows[-1])} steps,"
            " which charges each target to its own threshold; use step, or state.state,"
            " without the rows that wait"
        )


def check_row(rows, row):
    """Raises ValueError for a row that is not like those that wait."""
    held = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), rows[:2])
    expected, got = _kinds(held), _kinds(row)
    if expected != got or jax.tree.structure(held) != jax.tree.structure(row):
        raise ValueError(
            f"expected a row like those that wait, {expected}, got {got}; pieces of a "
            "stream with a delay have the same shapes and types"
        )


def _kinds(tree):
    """Returns the type and shape of one row of each array of (preds, y)."""
    names = ("pred", "y")
    return ", ".join(
        f"{name} {[f'{v.dtype}{list(v.shape)}' for v in jax.tree.leaves(part)]}"
        for name, part in zip(names, tree, strict=True)
    )
