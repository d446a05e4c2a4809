"""Many fits of one learner, and predictions for each row without its own target."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._batching import map_blocks, map_evenly
from jaxcp._numbers import as_float, mean
from jaxcp._pytree import pytree, static
from jaxcp.learners import _shared
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import Learner, PyTree

# Numbers of data that the fits of one program see: 256 MB in single precision.
_FIT_NUMBERS = 2**26


@pytree
class Fits:
    """b fits of a learner, and which rows each was fitted without.

    Args:
      learner: The learner.
      params: Parameters of the fits, leading axis b except in shared parts.
      fold: The one fit without each row, int of shape (n,), or None.
      held_out: True where a fit is without a row, shape (b, n), if `fold` is None.
      count: Number of fits b.
      aggregation: "mean" or "median" of the fits without a row.
    """

    learner: Learner
    params: PyTree
    fold: Any  # an Array, or None where `held_out` is one
    held_out: Any
    count: int = static()
    aggregation: str = static(default="mean")

    def predict(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        axes = _shared.axes(self.params), None
        predict = jax.vmap(self.learner.predict, axes, axis_size=self.count)
        return predict(self.params, x)

    def by_input(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (m, b)."""
        return jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), self.predict(x))

    def without_each(self, preds: PyTree) -> PyTree:
        """Returns predictions without each row, (b, ...) to (n, ...), at one input."""
        if self.fold is not None:
            return jax.tree.map(lambda v: v[self.fold], preds)
        return jax.vmap(self._aggregate, (None, 1))(preds, self.held_out)

    def of_rows(self, x: PyTree) -> PyTree:
        """Returns the prediction of every training row without it, leading axis n."""
        if self.fold is not None and self.count >= len(self.fold):
            # A fit for each row: n predictions, not n^2.
            each = _shared.take(self.params, self.fold)
            one = lambda params, row: self.learner.predict(params, _one_row(row))  # noqa: E731
            preds = jax.vmap(one, (_shared.axes(each), 0))(each, x)
            return jax.tree.map(lambda v: v[:, 0], preds)
        if self.fold is not None:
            index, pick = self.fold, lambda v, i: jax.tree.map(lambda p: p[i], v)
        else:
            index, pick = self.held_out.T, self._aggregate
        block = lambda rows, i: jax.vmap(pick)(self.by_input(rows), i)  # noqa: E731
        return map_blocks(block, x, index, width=self.count)

    def center(self, preds: PyTree) -> PyTree:
        """Returns the mean or median of `without_each`, (b, ...) to (...)."""
        if self.aggregation == "median":
            mask, each = self.mask, self.without_each(preds)
            mask = jnp.ones(len(self.fold), bool) if mask is None else mask
            return jax.tree.map(lambda v: _median(v, mask), each)
        if self.fold is not None:
            fits = jnp.arange(self.count)[None]
            shares = mean(self.fold[:, None] == fits)
        else:
            held = self.held_out / jnp.maximum(jnp.sum(self.held_out, axis=0), 1)[None]
            shares = jnp.sum(held, axis=1)
        return jax.tree.map(lambda v: _mean(v, shares), preds)

    @property
    def mask(self) -> Array | None:
        """True where some fit is without the row, shape (n,); None if for all."""
        return None if self.fold is not None else jnp.any(self.held_out, axis=0)

    def _aggregate(self, preds, held):
        combine = _mean if self.aggregation == "mean" else _median
        return jax.tree.map(lambda v: combine(v, held), preds)


def fit_all(
    learner: Learner,
    keys: Array,
    x: PyTree,
    y: Array,
    weights: Array,
    batch_size: int | None,
) -> PyTree:
    """Returns the parameters of a fit for each row of weights, in one program."""
    fit = lambda key, row: learner.fit(key, x, y, row)  # noqa: E731
    first = lambda keys, weights: fit(keys[0], weights[0])  # noqa: E731
    axes = _shared.axes(jax.eval_shape(first, keys, weights))
    together = partial(_with_shared_parts, jax.vmap(fit, out_axes=axes))
    width = sum(leaf.size for leaf in jax.tree.leaves((x, y))) or 1
    size = batch_size or max(_FIT_NUMBERS // width, 1)
    if size >= len(weights):
        return together(keys, weights)
    jax.eval_shape(together, keys, weights)

    def own(key, row):
        part = lambda p: None if _shared.is_shared(p) else p  # noqa: E731
        return jax.tree.map(part, fit(key, row), is_leaf=_shared.is_shared)

    params = map_evenly(own, keys, weights, at_a_time=size)
    # The shared parts of one fit; the rest of it is not computed.
    return jax.tree.map(
        lambda part, own: part if _shared.is_shared(part) else own,
        fit(keys[0], weights[0]),
        params,
        is_leaf=_shared.is_shared,
    )


def _with_shared_parts(fits, keys, weights):
    """Returns all fits; raises ValueError where a shared part differs between them."""
    try:
        return fits(keys, weights)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError(
            "expected parts of the parameters in learners.Shared to depend on x alone, "
            f"got one that varies with key, y or weights: {error}"
        ) from error


def _one_row(x):
    return jax.tree.map(lambda v: v[None], x)


def _mean(values, weights):
    """Returns the weighted mean over the leading axis; 0 without any weight."""
    values = as_float(values)
    total = jnp.sum(weights)
    shares = (weights / jnp.where(total > 0, total, 1)).astype(values.dtype)
    # A fit that diverged spoils only the rows that use it.
    used = (shares > 0).reshape(-1, *(1,) * (values.ndim - 1))
    values = jnp.where(used, values, 0)
    return jnp.tensordot(shares, values, 1, precision="highest")


def _median(values, held):
    """Returns the median over the leading axis of the fits in `held`; 0 of none."""
    values = as_float(values)
    count = jnp.sum(held)
    ranks = jnp.stack([(count + 1) // 2, count // 2 + 1])
    columns = values.reshape(len(values), -1).T
    middle = jax.vmap(lambda v: kth_smallest(v, ranks, where=held))(columns)
    middle = jnp.where(count > 0, middle, 0)
    return jnp.mean(middle, axis=1).reshape(values.shape[1:])
