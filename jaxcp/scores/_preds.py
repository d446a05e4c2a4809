"""Predictions of several parts: tuples, and draws of a model."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._types import PyTree


def check_tuple(expected: str, preds: PyTree, length: int) -> tuple:
    """Returns `preds` if it is a tuple or list of `length` parts, raises otherwise."""
    if isinstance(preds, tuple | list) and len(preds) == length:
        return tuple(preds)
    shapes = jax.tree.map(jnp.shape, preds)
    raise ValueError(f"expected preds as a tuple {expected}, got {shapes}")


def of_each_part(num_arrays: int) -> tuple[bool, ...]:
    """Returns which arrays of predictions have draws on their first axis: all."""
    return (True,) * num_arrays


def check_draws(draws: Array, y: Array | None = None) -> None:
    """Raises ValueError unless there are draws for each row, shaped like targets."""
    shape = jax.tree.map(jnp.shape, draws)
    fits = hasattr(draws, "ndim") and draws.ndim > 1 and shape[1] > 0
    if y is not None and fits:  # a single output may have an axis or not
        inner = shape[2:], y.shape[1:]
        fits = inner[0] == inner[1] or math.prod(inner[0]) == 1 == math.prod(inner[1])
    if not fits:
        like = ["d"] if y is None else [str(v) for v in y.shape[1:]]
        expected = ", ".join(["n", "l", *like])
        raise ValueError(f"expected draws of shape ({expected}), l >= 1, got {shape}")
