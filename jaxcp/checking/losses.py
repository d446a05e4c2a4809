"""Detectors of losses that are none: their arguments, targets, bounds and order."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp._arrays import is_concrete
from jaxcp._tree import explained, functions_in, jit
from jaxcp.checking.captured import settle, states_of
from jaxcp.scores import inputs

# Where losses are looked at, beside both infinities.
_PLACES = -1e3, -10, -1, -0.1, 0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1, 2, 10, 1e3


def check_call(loss: Any) -> None:
    """Raises ValueError for a function that does not take a set and a target."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # of what is not written in Python
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise ValueError(
            f"expected loss(set, y), got {_name(loss)}({takes}); risk.best_match() "
            "and risk.shortfall(bound) return one"
        ) from error


def check_targets(found: tuple, score: Any, preds: Any, y: Any, mask: Any) -> None:
    """Raises ValueError for targets that losses of this package cannot have."""
    targets = {getattr(_function(loss), "targets", None) for loss in found}
    labels = "labels" in targets
    if labels and y.ndim > 1:
        inputs.check_flags(y, mask)
    if "score" in targets or (labels and y.ndim == 1 and inputs.has_labels(score)):
        inputs.check(score, preds, y, mask)


def is_counted(rows: Any) -> bool:
    """Returns whether the loss of an example is a flag; ValueError if no number."""
    with explained(
        "expected a loss that jax can trace, of jax.numpy, got one that asks for values"
    ):
        try:
            functions = functions_in((rows,), {})
            states = states_of(functions)
            found = jax.eval_shape(_own_losses(states), rows)
            settle(functions, states)
        except (IndexError, TypeError, ValueError) as error:
            error.add_note(f"in {_shown(rows.loss)} of one set and its y")
            raise
    return found.dtype == bool


def check_losses(risks: list[Any], bounds: tuple[float, ...], mask: Any) -> None:
    """Raises ValueError for losses beyond their bounds, or that rise with the sets.

    Where values are known, at a few thresholds.
    """
    if not is_concrete(risks, mask):
        return
    places = np.array([-np.inf, *_PLACES, np.inf])
    kept = True if mask is None else np.asarray(mask, bool)
    tables = _tables(risks, places)
    if not is_concrete(tables):  # losses of something that is traced
        return
    for rows, table, bound in zip(risks, tables, bounds, strict=True):
        table = np.where(kept, np.asarray(table, float), 0)
        _check_table(rows, table, bound, places)


def _check_table(rows, table, bound, places):
    """Raises ValueError for the losses of rows at thresholds, shape (t, n)."""
    rough = 8 * np.finfo(np.float32).eps * bound
    outside = (table < -rough) | (table > bound + rough)
    if outside.any():
        t, i = np.argwhere(outside)[0]
        raise ValueError(
            f"expected {_shown(rows.loss)} in [0, {bound:g}], got {table[t, i]:g} of "
            f"row {i} at the threshold {places[t]:g}; bound= says how large it can be"
        )
    rising = np.diff(np.where(np.isnan(table), bound, table), axis=0) > rough
    if rows.monotone and rising.any():
        t, i = np.argwhere(rising)[0]
        raise ValueError(
            f"expected {_shown(rows.loss)} that does not rise with the threshold, got "
            f"{table[t, i]:g} at {places[t]:g} and {table[t + 1, i]:g} at "
            f"{places[t + 1]:g} in row {i}; monotone=False takes the largest loss of "
            "all larger sets, and risk.learn_then_test takes any loss"
        )


def _function(loss):
    """Returns a loss without what is bound to it."""
    return getattr(loss, "func", loss)


def _name(loss):
    """Returns what a loss is called, of a function its name."""
    function = _function(loss)
    return getattr(function, "__name__", type(function).__name__)


def _shown(loss):
    return f"a loss, {_name(loss)},"


@functools.lru_cache(maxsize=64)
def _own_losses(states):
    """Returns a function of rows, their losses at 0: jax keeps the type by state."""
    return lambda rows: rows.own_losses(jnp.zeros((), rows.dtype()))


@jit
def _tables(risks, places):
    """Returns the losses as they are of all rows at each place, shape (t, n)."""
    return [jax.lax.map(v.own_losses, places) for v in risks]
