"""Losses of sets, as those that risk control keeps: their mean, with its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _arrays, _batching, _checks, _names, _tree
from jaxcp._numbers import as_float, mean, quotient
from jaxcp.checking.losses import check_call
from jaxcp.metrics import _sets
from jaxcp.risk.thresholds import one_number
from jaxcp.typing import ArrayLike, PyTree, Set


@_tree.pytree
class MeanLoss:
    """The mean loss of some sets, with its error. Made by `mean_loss`.

    It unpacks: `mean, error = metrics.mean_loss(loss, sets, y)`.

    Args:
      mean: Mean loss, shape ().
      error: Its standard error, shape ().

    See also:
      metrics.mean_loss
    """

    mean: Array
    error: Array

    def __iter__(self) -> Iterator[Array]:
        """Returns an iterator over the mean and its error."""
        return iter((self.mean, self.error))

    def __str__(self) -> str:
        """Returns both as numbers."""
        if not _arrays.is_concrete(self.mean, self.error) or jnp.ndim(self.mean):
            return repr(self)
        return f"{float(self.mean):.4g} +- {float(self.error):.2g}"


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
      A `MeanLoss`: `mean` and `error`, shape (), in units of the loss. NaN for no rows
      or a loss of NaN; the error is NaN for one row, too.

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
      >>> print(mean_loss(risk.false_negative_rate, sets, y))
      0.1667 +- 0.17
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


def losses_of(loss, sets, y):
    """Returns the loss of each row, shape (m,)."""
    of = lambda one, target: as_float(one_number(loss(one, target)))  # noqa: E731
    return jax.vmap(of)(sets, _batching.widened(y))


@_tree.jit
def _mean_loss(sets, y, count, loss):
    losses = losses_of(loss, sets, y)
    center, n = mean(losses, count), len(losses) if count is None else count
    variance = quotient(mean((losses - center) ** 2, count), n - 1)
    return MeanLoss(center, jnp.sqrt(variance))
