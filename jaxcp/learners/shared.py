"""Parts of the parameters that all fits have in common."""

from __future__ import annotations

import jax
from jax import Array

from jaxcp._pytree import pytree
from jaxcp.typing import Learner, PyTree


@pytree
class Shared:
    """A part of a learner's parameters that depends on the inputs x alone.

    A learner that keeps its training inputs wraps them: n refits then keep them once,
    and compute once what depends on them alone (a kernel matrix). A part that varies
    with the key or the weights raises ValueError; targets may vary where one learner is
    fitted to the errors of another, as in `MeanScale`.

    Args:
      value: Any pytree computed from x.

    See also:
      typing.Learner, learners.KernelRidge

    Example:
      >>> Shared(jnp.zeros(3)).value.shape
      (3,)
    """

    value: PyTree


def axes(params: PyTree) -> PyTree:
    """Returns the axis of the fits for each part: None for what they share."""
    axis = lambda part: None if is_shared(part) else 0  # noqa: E731
    return jax.tree.map(axis, params, is_leaf=is_shared)


def take(params: PyTree, index: Array | int | slice) -> PyTree:
    """Returns the parameters of the fits `index`, shared parts as they are."""
    taken = lambda part: part if is_shared(part) else part[index]  # noqa: E731
    return jax.tree.map(taken, params, is_leaf=is_shared)


def predict_each(learner: Learner, params: PyTree, x: PyTree) -> PyTree:
    """Returns the prediction of each fit for its own row of x, leading axis n."""

    def predict(params, row):
        return learner.predict(params, jax.tree.map(lambda v: v[None], row))

    preds = jax.vmap(predict, (axes(params), 0))(params, x)
    return jax.tree.map(lambda v: v[:, 0], preds)


def is_shared(part: PyTree) -> bool:
    """Returns whether a part of the parameters is shared."""
    return isinstance(part, Shared)
