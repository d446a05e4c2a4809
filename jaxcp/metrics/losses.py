"""Losses of sets, as those that risk control keeps: their mean, with its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names, _tree
from jaxcp._numbers import as_float, mean, quotient, unit_of
from jaxcp.checking.losses import check_call
from jaxcp.metrics import _sets
from jaxcp.risk.thresholds import one_number
from jaxcp.typing import ArrayLike, PyTree, Set


class MeanLoss(NamedTuple):
    """The mean loss of some sets, with its error. Made by `mean_loss`.

    Args:
      mean: Mean loss, shape ().
      error: Its standard error, shape ().

    See also:
      metrics.mean_loss
    """

    mean: Array
    error: Array


@_checks.by_labels
def mean_loss(loss: Callable, sets: Set | ArrayLike, y: PyTree) -> MeanLoss:
    """Returns the mean loss of sets and targets, with its standard error.

    What `risk.calibrate_risk` keeps at alpha, on test rows: the mean of `loss(set, y)`,
    and the standard deviation of the losses over sqrt(m).

    Args:
      loss: Loss of one example, `loss(set, y) -> ()`: from `jaxcp.risk`, or of your
        own, of jax.numpy.
      sets: Sets with leading axis m.
      y: Targets of the loss, arrays with leading axis m; labels may come by the names
        that the sets have.

    Returns:
      A `MeanLoss`, a pair (mean, error), shape (), in units of the loss. NaN for no
      rows or a loss of NaN; the error is NaN for one row, too.

    Raises:
      ValueError: if lengths differ, a concrete target is NaN, or the loss is no
        function of a set and a target that returns a number.

    Cost:
      O(m) losses, in one program.

    See also:
      risk.calibrate_risk, metrics.MeanLoss, metrics.summary, risk.upper_bound

    Example:
      >>> from jaxcp import risk
      >>> from jaxcp.sets import LabelMask
      >>> sets = LabelMask(jnp.array([[True, False], [True, True], [False, True]]))
      >>> y = jnp.array([[1, 1], [1, 0], [0, 1]])
      >>> mean, error = mean_loss(risk.false_negative_rate, sets, y)
      >>> round(mean.item(), 3), round(error.item(), 3)
      (0.167, 0.167)
    """
    loss, sets = as_loss(loss), _sets.as_sets(sets)
    y = _arrays.as_arrays(y=_names.codes_of(sets, y))
    sets = _sets.as_batch(sets)
    _checks.num_rows(sets=sets, y=y)
    _checks.check_not_nan("y", y)
    return _batching.counted(_mean_loss, sets, y, loss=loss)


def as_loss(loss: Any) -> Any:
    """Returns a loss of one example as a pytree, after checks."""
    loss = _tree.as_callable("loss, such as risk.false_negative_rate,", loss)
    check_call(loss)
    return loss


def of_rows(loss: Callable, sets: Set, y: PyTree) -> Array:
    """Returns the loss of each row, shape (m,)."""

    def of_row(one_set: Any, target: Any) -> Array:
        return as_float(one_number(loss(one_set, target)))

    return jax.vmap(of_row)(sets, _batching.widened(y))


def with_errors(
    values: Array, num_rows: Any, means: Callable, groups: Array | None = None
) -> MeanLoss:
    """Returns means of numbers, with their standard errors, as `means` takes means."""
    center = means(values)

    def at_rows(numbers: Array) -> Array:
        if groups is None:
            return jnp.broadcast_to(numbers, values.shape)
        if groups.ndim == 1:
            return numbers[groups]
        return jnp.broadcast_to(numbers[:, None], (len(numbers), values.shape[-1]))

    # Of small numbers squares keep their digits. NaN is of groups without rows.
    origin = at_rows(jnp.nan_to_num(center))
    gaps = jnp.broadcast_to(values, origin.shape) - origin
    unit = unit_of(means(jnp.abs(gaps))[..., None], axis=-1)
    gaps = gaps / at_rows(unit)
    spread = jnp.maximum(means(gaps**2) - means(gaps) ** 2, 0)
    is_flat, is_known = spread == 0, num_rows > 1  # a root has no gradient at 0
    rest = jnp.where(is_known, num_rows - 1, 1)
    root = unit * jnp.sqrt(quotient(jnp.where(is_flat, 1, spread), rest))
    return MeanLoss(center, jnp.where(is_known, jnp.where(is_flat, 0, root), jnp.nan))


@_tree.jit
def _mean_loss(sets, y, count, loss):
    num_rows = jax.tree.leaves(y)[0].shape[0] if count is None else count
    values = of_rows(loss, sets, y)
    return with_errors(values, num_rows, lambda v: mean(v, count))
