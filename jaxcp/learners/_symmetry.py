"""Whether a fit depends on the order of the rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import is_concrete
from jaxcp._tracing import jit
from jaxcp.learners._probing import moved_by_order
from jaxcp.learners.affine import Affine
from jaxcp.learners.general import GradientLearner, MeanScale
from jaxcp.learners.linear import QuantileRidge, Ridge
from jaxcp.learners.neighbors import KernelRidge, NearestNeighbors
from jaxcp.typing import PyTree

_SYMMETRIC = {GradientLearner, KernelRidge, NearestNeighbors, QuantileRidge, Ridge}
_CURE = (
    "let the fit use all rows alike, in the full batch and without draws for each row, "
    "or take split_conformal or cv_plus, which need no symmetry"
)


def is_symmetric(learner: Any) -> bool:
    """Returns whether a learner of the library treats rows alike by construction."""
    return all(type(part) in _SYMMETRIC for part in _parts(learner))


def check_no_batches(learner: Any) -> None:
    """Raises ValueError for mini-batches, which are drawn by position."""
    for part in _parts(learner):
        if type(part) is GradientLearner and part.batch_size is not None:
            raise ValueError(
                "expected a learner that treats all rows alike, got GradientLearner "
                f"with batch_size={part.batch_size}, whose steps see some rows more "
                "often than others, by their positions; take batch_size=None, or "
                "split_conformal or cv_plus, which need no symmetry"
            )


def check_order(learner: Any, x: PyTree, y: Array, key: Array) -> None:
    """Raises ValueError if predictions move with the order of the rows."""
    if len(y) < 2 or not is_concrete(learner, x, y, key):
        return
    moved = moved_by_order(lambda x_y: _predictions(learner, key, x_y, x), (x, y))
    if moved is not None:
        row, change = moved
        raise ValueError(
            f"expected {type(learner).__name__} to fit the same whatever the order of "
            f"the rows, got a prediction of row {row} that moves with it, {change}; "
            f"{_CURE}"
        )


def known_rows(x: PyTree, y: Array) -> tuple[PyTree, Array]:
    """Returns rows without NaN, which rows off a mask may hold."""
    if not is_concrete(x, y):
        return x, y
    floats = [
        v for v in jax.tree.leaves((x, y)) if jnp.issubdtype(v.dtype, jnp.inexact)
    ]
    known = np.ones(len(y), bool)
    for v in floats:
        known &= ~np.isnan(np.asarray(v)).any(axis=tuple(range(1, v.ndim)))
    return (x, y) if known.all() else jax.tree.map(lambda v: v[known], (x, y))


def _parts(learner):
    """Returns the learners that a learner of the library is made of."""
    if type(learner) is MeanScale:
        return [*_parts(learner.mean), *_parts(learner.scale)]
    return _parts(learner.learner) if type(learner) is Affine else [learner]


@jit
def _predictions(learner, key, rows, x):
    """Returns what a fit on some order of the rows predicts for them in the first."""
    key, weights = jax.random.clone(key), jnp.ones(len(rows[1]))
    return learner.predict(learner.fit(key, *rows, weights), x)
