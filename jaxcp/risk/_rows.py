"""Losses of the rows of a calibration at a threshold, and their sums."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._batching import widened
from jaxcp._counting import count_groups, count_true, members_of
from jaxcp._numbers import as_float, at_least_single, over_shards
from jaxcp._pytree import pytree, static
from jaxcp.typing import AxisName, HasSteps, PyTree, Score


@pytree
class Rows:
    """One loss of the rows of a calibration, as a function of the threshold.

    Args:
      score: The score, whose sets the loss is of.
      loss: Function of a set and a target of one example, () in [0, bound].
      preds: Predictions, leading axis n.
      y: Targets, leading axis n.
      mass: Weights >= 0, shape (n,), or bool: which rows count; None for all.
      groups: Group of each row, shape (n,), or None.
      bound: What the loss is at most.
      tail: What the loss is to stay within; then it counts how often it does not.
      num_groups: Number of groups g, or None.
      grid: Thresholds in increasing order, shape (t,), or None for all floats.
      monotone: Whether the loss nowhere rises with the threshold.
      highest: Losses at the steps of each row, shape (n, k), for the running supremum.
    """

    score: Score
    loss: Any
    preds: PyTree
    y: PyTree
    mass: Array | None
    groups: Array | None
    grid: Array | None
    highest: Array | None = None
    tail: Any = None
    bound: float = static(default=1.0)
    num_groups: int | None = static(default=None)
    monotone: bool = static(default=True)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the thresholds: () or (g,)."""
        return () if self.num_groups is None else (self.num_groups,)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.mass is not None and self.mass.dtype != bool

    def dtype(self) -> Any:
        """Returns the type of the thresholds, at least single precision."""
        if issubclass(type(self.score), HasSteps):
            steps = jax.eval_shape(lambda: as_float(self.steps()))
            return jnp.promote_types(steps.dtype, jnp.float32)
        leaves = jax.tree.leaves((self.score, self.preds))
        kinds = [v.dtype for v in leaves if jnp.issubdtype(v.dtype, jnp.floating)]
        default = jax.dtypes.canonicalize_dtype(float)
        return jnp.result_type(*kinds, jnp.float32) if kinds else default

    def sum_dtype(self) -> Any:
        """Returns the type of sums of losses: integers of those that are counted."""
        q = jnp.zeros(self.shape, self.dtype())
        return jax.eval_shape(self.total, q).dtype

    def losses(self, q: Array) -> Array:
        """Returns the loss of each row at one threshold, or at one each, shape (n,)."""
        losses = self._raw(q)
        if self.highest is None:
            return losses
        later = self.steps() > jnp.reshape(q, (-1, 1))
        lowest = jnp.zeros((), self.highest.dtype)
        later = jnp.where(later, self.highest, lowest)
        return jnp.maximum(losses, jnp.max(later, axis=1, initial=lowest))

    def steps(self) -> Array:
        """Returns where the set of each row changes, shape (n, k)."""
        score = cast(HasSteps, self.score)
        steps = jax.vmap(score.steps)(widened(self.preds))
        return steps.reshape(len(steps), math.prod(steps.shape[1:]))

    def of_rows(self, q: Array) -> Array:
        """Returns the threshold of the group of each row, or the one of all."""
        if self.groups is None:
            return q
        return q[jnp.clip(self.groups.astype(int), 0, len(q) - 1)]

    def sums(self, losses: Array, axis_name: AxisName = None) -> Array:
        """Returns sums of numbers of rows that count, () or (g,); flags are counted."""
        if self.mass is None:
            values = losses
        elif self.weighted:
            values = jnp.where(self.mass > 0, self.mass * losses, 0)
        else:
            values = jnp.where(self.mass, losses, jnp.zeros((), losses.dtype))
        dtype = int if values.dtype == bool else at_least_single(values).dtype
        if self.groups is not None and self.num_groups is not None:
            inside = members_of(self.groups, self.num_groups)
            values = jnp.where(inside, values[None], jnp.zeros((), values.dtype))
        return over_shards(lax.psum, jnp.sum(values, axis=-1, dtype=dtype), axis_name)

    def total(self, q: Array, axis_name: AxisName = None) -> Array:
        """Returns the sum of losses at thresholds () or (g,), of the same shape."""
        return self.sums(self.losses(self.of_rows(q)), axis_name)

    def with_suprema(self) -> Rows:
        """Returns the loss as its supremum over larger thresholds, also on a grid."""
        if self.monotone or self.grid is not None:
            return self
        columns = lax.map(self._raw, self.steps().T)
        return dataclasses.replace(self, highest=columns.T)

    def own_losses(self, q: Array) -> Array:
        """Returns the loss of each row as the function gives it, shape (n,)."""
        axes = 0 if jnp.ndim(q) else None

        def of(pred: PyTree, y: PyTree, q: Array) -> Array:
            return one_number(self.loss(self.score.invert(pred, q), y))

        preds, y = widened((self.preds, self.y))
        losses = jax.vmap(of, (0, 0, axes))(preds, y, q)
        return losses if losses.dtype == bool else as_float(losses)

    def _raw(self, q):
        losses = self.own_losses(q)
        if self.tail is not None:
            return ~(losses <= self.tail)
        if losses.dtype == bool:
            return losses
        return jnp.where(jnp.isnan(losses), self.bound, losses)


def one_number(loss: Any) -> Array:
    """Returns the loss of one example as an array; ValueError unless it is a number."""
    found = type(loss).__name__
    if not isinstance(loss, str | dict | None):
        loss = jnp.asarray(loss)
        found = loss.shape if loss.shape else loss.dtype
        if not loss.shape and not jnp.iscomplexobj(loss):
            return loss
    raise ValueError(f"expected loss(set, y) of shape (), got {found}")


def count_rows(
    preds: PyTree,
    mask: Array | None,
    groups: Array | None,
    num_groups: int | None,
    axis_name: AxisName = None,
) -> Any:
    """Returns how many rows count, of all shards, () or (g,)."""
    if groups is not None and num_groups is not None:
        count = count_groups(groups, num_groups, mask)
    elif mask is not None:
        count = count_true(mask)
    else:
        count = len(jax.tree.leaves(preds)[0])
    return over_shards(lax.psum, count, axis_name)
