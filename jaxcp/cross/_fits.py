"""Many fits of one learner, and predictions for each row without its own target."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._batching import map_blocks, map_evenly
from jaxcp._numbers import as_float, mean
from jaxcp._pytree import pytree, static
from jaxcp.learners import shared
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import Learner, PyTree

# Numbers of data that the fits of one program see: 256 MB in single precision.
_FIT_NUMBERS = 2**26


@pytree
class OwnFit:
    """A fit for each row, the only one without it.

    Args:
      fold: The fit without each row, int of shape (n,).
      count: Number of fits b.
    """

    fold: Array
    count: int = static()
    mask = None  # every row has its fit

    @property
    def rows_per_fit(self) -> int:
        """Rows that a fit alone predicts, rounded down."""
        return len(self.fold) // self.count

    @property
    def voting(self) -> Array:
        """True for the fits that left a row out, shape (b,)."""
        return jnp.zeros(self.count, bool).at[self.fold].set(True)

    def voters(self, preds: PyTree) -> PyTree:
        """Returns the different predictions without a row at one input: those given."""
        return preds

    def without_each(self, preds: PyTree) -> PyTree:
        """Returns predictions without each row, (b, ...) to (n, ...), at one input."""
        return jax.tree.map(lambda v: v[self.fold], preds)

    def center(self, preds: PyTree) -> PyTree:
        """Returns the mean of `without_each`, (b, ...) to (...)."""
        shares = mean(self.fold[:, None] == jnp.arange(self.count)[None])
        return jax.tree.map(lambda v: _mean(v, shares), preds)

    def of_rows(self, fits: "Fits", x: PyTree) -> PyTree:
        """Returns the prediction of every training row without it, leading axis n."""
        if self.count < len(self.fold):
            pick = lambda preds, i: jax.tree.map(lambda v: v[i], preds)  # noqa: E731
            return fits.at_each(pick, x, self.fold, width=self.count)
        each = shared.take(fits.params, self.fold)  # n predictions, not n^2
        return shared.predict_each(fits.learner, each, x)


@pytree
class Ensemble:
    """An average, for each row, of the fits without it.

    Args:
      held_out: True where a fit is without a row, shape (b, n).
      aggregation: "mean" or "median" of these fits.
    """

    held_out: Array
    aggregation: str = static(default="mean")
    rows_per_fit = 0  # a fit alone predicts none

    @property
    def mask(self) -> Array:
        """True where some fit is without the row, shape (n,)."""
        return jnp.any(self.held_out, axis=0)

    voting = mask

    def voters(self, preds: PyTree) -> PyTree:
        """Returns the different predictions without a row at one input: n of them."""
        return self.without_each(preds)

    def without_each(self, preds: PyTree) -> PyTree:
        """Returns predictions without each row, (b, ...) to (n, ...), at one input."""
        return jax.vmap(self._average, (None, 1))(preds, self.held_out)

    def center(self, preds: PyTree) -> PyTree:
        """Returns the mean or median of `without_each`, (b, ...) to (...)."""
        if self.aggregation == "median":
            each = self.without_each(preds)
            return jax.tree.map(lambda v: _median(v, self.mask), each)
        counts = jnp.maximum(jnp.sum(self.held_out, axis=0), 1)
        shares = jnp.sum(self.held_out / counts[None], axis=1)
        return jax.tree.map(lambda v: _mean(v, shares), preds)

    def of_rows(self, fits: "Fits", x: PyTree) -> PyTree:
        """Returns the prediction of every training row without it, leading axis n."""
        own = self.held_out.T
        return fits.at_each(self._average, x, own, width=fits.count)

    def _average(self, preds, held):
        combine = _mean if self.aggregation == "mean" else _median
        return jax.tree.map(lambda v: combine(v, held), preds)


@pytree
class Fits:
    """b fits of a learner, and which rows each was fitted without.

    Args:
      learner: The learner.
      params: Parameters of the fits, leading axis b except in shared parts.
      left_out: What predicts each row without it.
      count: Number of fits b.
    """

    learner: Learner
    params: PyTree
    left_out: OwnFit | Ensemble
    count: int = static()

    def predict(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        axes = shared.axes(self.params), None
        predict = jax.vmap(self.learner.predict, axes, axis_size=self.count)
        return predict(self.params, x)

    def by_input(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (m, b)."""
        return jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), self.predict(x))

    def at_each(
        self, one: Callable[..., PyTree], x: PyTree, *rows: PyTree, width: int
    ) -> PyTree:
        """Returns `one(preds, *row)` of what all fits predict, (b, ...), at each input.

        `width` is how many numbers `one` makes on its way, as for `map_blocks`.
        """
        block = lambda x, *rows: jax.vmap(one)(self.by_input(x), *rows)  # noqa: E731
        return map_blocks(block, x, *rows, width=width)


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
    axes = shared.axes(jax.eval_shape(first, keys, weights))
    together = partial(_with_shared_parts, jax.vmap(fit, out_axes=axes))
    width = sum(leaf.size for leaf in jax.tree.leaves((x, y))) or 1
    size = batch_size or max(_FIT_NUMBERS // width, 1)
    if size >= len(weights):
        return together(keys, weights)
    jax.eval_shape(together, keys, weights)

    def own(key, row):
        part = lambda p: None if shared.is_shared(p) else p  # noqa: E731
        return jax.tree.map(part, fit(key, row), is_leaf=shared.is_shared)

    params = map_evenly(own, keys, weights, at_a_time=size)
    # The shared parts of one fit; the rest of it is not computed.
    return jax.tree.map(
        lambda part, own: part if shared.is_shared(part) else own,
        fit(keys[0], weights[0]),
        params,
        is_leaf=shared.is_shared,
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
