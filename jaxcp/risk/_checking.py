"""Checks of losses: their type, their bounds, and that they fall as sets grow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._tracing import explained, jit
from jaxcp.risk._rows import Rows
from jaxcp.risk.losses import (
    false_discovery_rate,
    false_negative_rate,
    false_positive_count,
)

# Where losses are looked at, beside both infinities.
_PLACES = -1e3, -10, -1, -0.1, 0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1, 2, 10, 1e3


def is_counted(rows: Rows) -> bool:
    """Returns whether the loss of an example is a flag; ValueError if no number."""
    with explained(
        "expected a loss that jax can trace, of jax.numpy, got one that asks for values"
    ):
        found = jax.eval_shape(lambda: rows.own_losses(jnp.zeros((), rows.dtype())))
    return found.dtype == bool


def check_flags(losses: tuple[Any, ...], preds: Any, y: Any, mask: Any) -> None:
    """Raises ValueError for masks of true labels that are no flags, as -1 and 1."""
    of_labels = false_negative_rate, false_discovery_rate, false_positive_count
    if not isinstance(y, Array) or not isinstance(preds, Array):
        return
    is_mask = y.ndim > 1 and y.shape == preds.shape
    if is_mask and any(getattr(v, "func", v) in of_labels for v in losses):
        is_flag = lambda v: (v == 0) | (v == 1)  # noqa: E731
        expected = "y as flags or 0 and 1, true where a label holds"
        _checks.check_values(is_flag, expected, y, mask)


def check_losses(risks: list[Rows], bounds: tuple[float, ...], mask: Any) -> None:
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
            f"expected {_name(rows.loss)} in [0, {bound:g}], got {table[t, i]:g} of "
            f"row {i} at the threshold {places[t]:g}; bound= says how large it can be"
        )
    rising = np.diff(np.where(np.isnan(table), bound, table), axis=0) > rough
    if rows.monotone and rising.any():
        t, i = np.argwhere(rising)[0]
        raise ValueError(
            f"expected {_name(rows.loss)} that does not rise with the threshold, got "
            f"{table[t, i]:g} at {places[t]:g} and {table[t + 1, i]:g} at "
            f"{places[t + 1]:g} in row {i}; monotone=False takes the largest loss of "
            "all larger sets, and risk.learn_then_test takes any loss"
        )


def _name(loss):
    """Returns what a loss is called, of a function its name."""
    function = getattr(loss, "func", loss)
    name = getattr(function, "__name__", type(function).__name__)
    return f"a loss, {name},"


@jit
def _tables(risks, places):
    """Returns the losses as they are of all rows at each place, shape (t, n)."""
    return [jax.lax.map(v.own_losses, places) for v in risks]
