"""Predictions of several parts: tuples, and draws of a model."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp._arrays import is_concrete
from jaxcp.typing import PyTree


def check_tuple(expected: str, preds: PyTree, length: int) -> tuple:
    """Returns `preds` if it is a tuple or list of `length` parts, raises otherwise."""
    if isinstance(preds, tuple | list) and len(preds) == length:
        return tuple(preds)
    shapes = jax.tree.map(jnp.shape, preds)
    raise ValueError(f"expected preds as a tuple {expected}, got {shapes}")


def of_each_part(num_arrays: int) -> tuple[bool, ...]:
    """Returns which arrays of predictions have draws on their first axis: all."""
    return (True,) * num_arrays


def check_numbers(preds: PyTree, y: Array | None = None) -> None:
    """Raises ValueError unless predictions are real numbers, and so are targets."""
    if isinstance(preds, dict):
        raise ValueError(f"expected preds as arrays, got a dict of {list(preds)}")
    for name, tree in {"preds": preds, "y": y}.items():
        for leaf in jax.tree.leaves(tree):
            if leaf.dtype == bool or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                cure = "; astype(int) makes numbers of flags" * (leaf.dtype == bool)
                raise ValueError(
                    f"expected {name} as real numbers, got {leaf.dtype}{cure}"
                )


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


def check_bands(preds: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless preds are pairs, lower <= upper in most rows."""
    lower, upper = check_pairs("(lower, upper)", preds, y)
    if not is_concrete(lower, upper, mask) or lower.shape != upper.shape:
        return
    rows = slice(None) if mask is None else np.asarray(mask)
    crossed = (np.asarray(lower) > np.asarray(upper))[rows]
    if not _are_most(crossed):
        return
    # Copies of one row are one.
    parts = [v for v in (lower, upper, y) if v is not None and is_concrete(v)]
    parts = [np.asarray(v, float)[rows].reshape(len(crossed), -1) for v in parts]
    distinct, d = np.unique(np.hstack(parts), axis=0), parts[0].shape[1]
    crossed = distinct[:, :d] > distinct[:, d : 2 * d]
    if not _are_most(crossed):
        return
    raise ValueError(
        "expected preds as (lower, upper), lower <= upper in most rows, got lower > "
        f"upper in {crossed.sum()} of {crossed.size}; swap the two"
    )


def _are_most(crossed):
    """Returns whether more bands are crossed than by chance, as those of width 0."""
    return crossed.sum() > crossed.size / 2 + crossed.size**0.5


def check_pairs(expected: str, preds: PyTree, y: Array | None) -> tuple[Array, Array]:
    """Returns the two halves of `preds`: a pair of arrays or an array (n, 2)."""
    check_numbers(preds, y)
    one = isinstance(preds, Array) and preds.ndim == 2 and preds.shape[1] == 2
    if not one:
        lower, upper = check_tuple(expected, preds, 2)
        return lower, upper
    if y is not None and y.shape == preds.shape:
        raise ValueError(
            f"expected preds as a pair {expected} of arrays {y.shape} like y, got one "
            "array; Absolute, Signed and Gamma take predictions of the targets"
        )
    return preds[:, 0], preds[:, 1]
