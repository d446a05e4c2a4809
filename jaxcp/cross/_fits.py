"""Many fits of one learner, and their predictions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._batching import map_blocks, map_evenly
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.learners import shared
from jaxcp.learners._hosting import ModelFits, keeping
from jaxcp.typing import FitsOnHost, Learner, PyTree

# Numbers of data that the fits of one program see: 256 MB in single precision.
_FIT_NUMBERS = 2**26


@pytree
class Recorded:
    """Fits known by their predictions alone, which take the place of inputs."""

    def rows(self, preds: PyTree) -> PyTree:
        """Returns something with a row for each input."""
        return jax.tree.leaves(preds)[0][0]

    def predict(self, preds: PyTree) -> PyTree:
        """Returns the predictions, leading axes (b, m)."""
        return preds

    def at_each(
        self, one: Callable[..., PyTree], preds: PyTree, *rows: PyTree, width: int
    ) -> PyTree:
        """Returns `one(preds, *row)` of the predictions (b, ...) at each input."""
        return map_blocks(jax.vmap(one), _by_input(preds), *rows, width=width)


@pytree
class HostFits:
    """Fits of a model outside of jax; the fit on all rows is made on demand.

    Args:
      learner: The learner.
      fitted: Its fits, on the host.
    """

    learner: FitsOnHost
    fitted: Any = static()

    @property
    def models(self) -> list:
        """The b fitted models."""
        return self.fitted.models

    @property
    def classes(self) -> Any:
        """Names of the labels that columns of probabilities stand for, or None."""
        return self.fitted.classes

    def keeping(self) -> AbstractContextManager[None]:
        """Attaches the fits to an error, for they may have taken long."""
        known = isinstance(self.fitted, ModelFits)
        return keeping(self.fitted) if known else nullcontext()

    def predict(self, x: Any) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        return as_arrays(preds=self.learner.predict_all(self.fitted, x))

    def predict_full(self, x: Any) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m."""
        return as_arrays(preds=self.learner.predict_full(self.fitted, x))

    def source(self, x: Any) -> tuple[Recorded, PyTree]:
        """Returns a source of predictions and its input: recorded predictions."""
        return Recorded(), self.predict(x)


@pytree
class Fits:
    """b fits of a learner, and one on all rows.

    Args:
      learner: The learner.
      params: Parameters of the fits, leading axis b except in shared parts.
      full: Parameters of the fit on all rows.
      count: Number of fits b.
    """

    learner: Learner
    params: PyTree
    full: PyTree
    count: int = static()
    classes = None  # labels are 0, ..., k - 1

    def keeping(self) -> AbstractContextManager[None]:
        """Keeps nothing when there is an error."""
        return nullcontext()

    def predict(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (b, m)."""
        # One program, as in those for sets: single operations round otherwise.
        return _predict_all(self, x)

    def predict_full(self, x: PyTree) -> PyTree:
        """Returns predictions of the fit on all rows, leading axis m."""
        _checks.check_given(x=x)
        x = as_arrays(x=x)
        return predict_once(self.learner, self.full, x)

    def rows(self, x: PyTree) -> PyTree:
        """Returns something with a row for each input: the inputs."""
        return x

    def source(self, x: PyTree) -> tuple[Fits, PyTree]:
        """Returns a source of predictions and its input: these fits, and inputs."""
        return self, _checks.rows(x=x)

    def by_input(self, x: PyTree) -> PyTree:
        """Returns predictions of all fits, leading axes (m, b)."""
        return _by_input(self.predict(x))

    def at_each(
        self, one: Callable[..., PyTree], x: PyTree, *rows: PyTree, width: int
    ) -> PyTree:
        """Returns `one(preds, *row)` of what all fits predict, (b, ...), at each input.

        `width` is how many intermediate numbers `one` makes, as for `map_blocks`.
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


def _by_input(preds):
    """Returns predictions with leading axes (m, b) in place of (b, m)."""
    return jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), preds)


@jit
def predict_once(learner: Learner, params: PyTree, x: PyTree) -> PyTree:
    """Returns predictions of one fit, leading axis m."""
    return learner.predict(params, x)


@jit
def _predict_all(fits, x):
    axes = shared.axes(fits.params), None
    predict = jax.vmap(fits.learner.predict, axes, axis_size=fits.count)
    return predict(fits.params, x)
