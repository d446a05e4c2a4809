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


def with_errors(loss, sets, y, num_rows, means, groups=None):
    """Returns means of losses, with their standard errors, as `means` takes means."""
    of = lambda one, target: as_float(one_number(loss(one, target)))  # noqa: E731
    losses = jax.vmap(of)(sets, _batching.widened(y))
    center = means(losses)

    def of_rows(values: Array) -> Array:
        if groups is None:
            return jnp.broadcast_to(values, losses.shape)
        if groups.ndim == 1:
            return values[groups]
        return jnp.broadcast_to(values[:, None], (len(values), len(losses)))

    # Of small numbers squares keep their digits. NaN is of groups without rows.
    origin = of_rows(jnp.nan_to_num(center))
    gaps = jnp.broadcast_to(losses, origin.shape) - origin
    unit = unit_of(means(jnp.abs(gaps))[..., None], axis=-1)
    gaps = gaps / of_rows(unit)
    spread = jnp.maximum(means(gaps**2) - means(gaps) ** 2, 0)
    flat, known = spread == 0, num_rows > 1  # a root has no gradient at 0
    rest = jnp.where(known, num_rows - 1, 1)
    root = unit * jnp.sqrt(quotient(jnp.where(flat, 1, spread), rest))
    return MeanLoss(center, jnp.where(known, jnp.where(flat, 0, root), jnp.nan))


@_tree.jit
def _mean_loss(sets, y, count, loss):
    num_rows = jax.tree.leaves(y)[0].shape[0] if count is None else count
    return with_errors(loss, sets, y, num_rows, lambda v: mean(v, count))
