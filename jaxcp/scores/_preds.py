"""Checks of batches of predictions, for each kind of `inputs`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _geometry
from jaxcp._arrays import is_concrete
from jaxcp._numbers import as_float
from jaxcp.typing import PyTree


def split(expected: str, preds: PyTree, length: int) -> tuple:
    """Returns `preds` if it is a tuple or list of `length` parts, raises otherwise."""
    if isinstance(preds, tuple | list) and len(preds) == length:
        return tuple(preds)
    uniforms = "; jaxcp.uniforms(key, n) draws them" * ("uniforms" in expected)
    raise ValueError(f"expected preds as {expected}, got {_shapes(preds)}{uniforms}")


def halves(names: str, preds: PyTree, y: Array | None) -> tuple[Array, Array]:
    """Returns the two halves of `preds`: a pair of arrays or an array (n, 2)."""
    check_real(preds, y)
    one = isinstance(preds, Array) and preds.ndim == 2 and preds.shape[1] == 2
    if not one:
        return split(f"a tuple {names}", preds, 2)
    if y is not None and y.shape == preds.shape:
        raise ValueError(
            f"expected preds as a pair {names} of arrays {y.shape} like y, got one "
            "array; Absolute, Signed and Gamma take predictions of the targets"
        )
    return preds[:, 0], preds[:, 1]


def check_real(preds: PyTree, y: Array | None) -> None:
    """Raises ValueError unless predictions are real numbers, and so are targets."""
    if isinstance(preds, dict):
        raise ValueError(f"expected preds as arrays, got a dict of {list(preds)}")
    for name, tree in {"preds": preds, "y": y}.items():
        for leaf in jax.tree.leaves(tree):
            if 0 in leaf.shape[1:]:
                raise ValueError(
                    f"expected {name} of at least one output, got {leaf.shape}"
                )
            if leaf.dtype == bool or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                cure = "; astype(int) turns flags into numbers" * (leaf.dtype == bool)
                raise ValueError(
                    f"expected {name} as real numbers, got {leaf.dtype}{cure}"
                )


def check_numbers(preds: PyTree, y: Array | None) -> None:
    """Raises ValueError unless predictions are one array of real numbers."""
    check_real(preds, y)
    if not isinstance(preds, Array):
        raise ValueError(f"expected preds as one array, got {_shapes(preds)}")


def check_order(
    lower: Array, upper: Array, y: Array | None, mask: Array | None
) -> None:
    """Raises ValueError unless lower <= upper in most concrete rows."""
    if not is_concrete(lower, upper, mask) or lower.shape != upper.shape:
        return
    rows = slice(None) if mask is None else np.asarray(mask)
    crossed = (np.asarray(lower) > np.asarray(upper))[rows]
    if not _are_most(crossed):
        return
    # Copies of one row are one.
    known = [v for v in (lower, upper, y) if v is not None and is_concrete(v)]
    columns = [np.asarray(v, float)[rows].reshape(len(crossed), -1) for v in known]
    distinct, d = np.unique(np.hstack(columns), axis=0), columns[0].shape[1]
    crossed = distinct[:, :d] > distinct[:, d : 2 * d]
    if _are_most(crossed):
        raise ValueError(
            "expected preds as (lower, upper), lower <= upper in most rows, got lower "
            f"> upper in {crossed.sum()} of {crossed.size}; swap the two"
        )


def _are_most(crossed):
    """Returns whether more bands are crossed than by chance, as those of width 0."""
    return crossed.sum() > crossed.size / 2 + crossed.size**0.5


def check_location_scale(preds: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless scales are vectors like mu or lower triangular."""
    check_real(preds, y)
    mu, scale = split("a tuple (mu, scale)", preds, 2)
    row, full = mu.shape[1:], scale.ndim == 3
    if mu.ndim != 2 or scale.shape[1:] not in (row, 2 * row):
        raise ValueError(
            "expected mu of shape (n, d) and scale of shape (n, d) or (n, d, d), "
            f"got {mu.shape} and {scale.shape}"
        )
    if full:
        expected = "a lower triangular scale (e.g. from a Cholesky decomposition)"
        _checks.check_values(lambda s: np.triu(s, 1) == 0, expected, scale, mask)
    if y is not None:
        diagonal = jnp.diagonal(scale, axis1=1, axis2=2) if full else scale
        _checks.check_values(lambda s: s > 0, "scales > 0", diagonal, mask)


def check_columns(preds: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless labels, if given, are in range of the columns."""
    if not isinstance(preds, Array) or preds.ndim != 2 or preds.shape[1] == 0:
        cure = "; of the pixels of an image take one, or flags: scores.MultiLabel"
        cure *= isinstance(preds, Array) and preds.ndim > 2
        raise ValueError(
            "expected preds of shape (n, k), one column a label, got "
            f"{_shapes(preds)}{cure}"
        )
    if y is not None:
        _checks.check_vectors(y=y)
        cure = "; calibrate(..., classes=model.classes_) takes labels of any kind"
        _checks.check_labels("y", y, preds.shape[1], mask, cure)


def check_probabilities(p: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless columns are >= 0 and sum to 1 where they are known."""
    check_columns(p, y, mask)
    expected = "probabilities >= 0 (of logits: jax.nn.softmax)"
    _checks.check_values(lambda v: v >= 0, expected, p, mask)
    if is_concrete(p):
        rounding = max(1e-3, 8 * float(jnp.finfo(as_float(p).dtype).eps))
        sums = np.asarray(p).sum(axis=1, dtype=float)
        expected = "probabilities that sum to 1 in each row"
        _checks.check_values(lambda s: abs(s - 1) <= rounding, expected, sums, mask)


def check_multilabel(p: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless there are probabilities, and flags of their shape."""
    if not isinstance(p, Array) or p.dtype.kind == "c":
        raise ValueError(
            "expected preds as one array of a probability for each label or pixel, got "
            f"{_shapes(p)}"
        )
    expected = "probabilities in [0, 1] (of logits: jax.nn.sigmoid)"
    _checks.check_values(lambda v: (v >= 0) & (v <= 1), expected, p, mask)
    if y is None:
        return
    if y.shape != p.shape:
        labels = y.ndim == 1 and p.ndim == 2 and y.dtype.kind in "iu"
        cure = f"; of one label a row: jax.nn.one_hot(y, {p.shape[-1]}) > 0" * labels
        raise ValueError(
            f"expected y as a mask of shape {p.shape} like preds, true where a label "
            f"holds, got {y.shape}{cure}"
        )
    check_flags(y, mask)


def check_flags(y: Array, mask: Array | None = None) -> None:
    """Raises ValueError unless known targets are flags, or 0 and 1."""
    expected = "y as flags or 0 and 1, true where a label holds"
    cure = "; of 0 and 255, or -1 and 1: y > 0"
    _checks.check_flags(expected, y, mask, cure)


def check_draws(draws: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless there are draws for each row, shaped like targets."""
    shape = _shapes(draws)
    fits = isinstance(draws, Array) and draws.ndim > 1 and shape[1] > 0
    if y is not None and fits:  # a single output may have an axis or not
        inner = shape[2:], y.shape[1:]
        fits = inner[0] == inner[1] or math.prod(inner[0]) == 1 == math.prod(inner[1])
    if not fits:
        like = ["d"] if y is None else [str(v) for v in y.shape[1:]]
        expected = ", ".join(["n", "l", *like])
        raise ValueError(f"expected draws of shape ({expected}), l >= 1, got {shape}")


def check_densities(preds: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless there are draws, and a log density of each."""
    draws, log_densities = split("a tuple (draws, log densities)", preds, 2)
    check_draws(draws, y, mask)
    if log_densities.shape != draws.shape[:2]:
        raise ValueError(
            f"expected log densities of shape {draws.shape[:2]} like the draws, got "
            f"{log_densities.shape}"
        )


def check_boxes(preds: PyTree, y: Array | None, mask: Array | None) -> None:
    """Raises ValueError unless boxes are of shape (n, 4), and ordered if concrete."""
    for name, boxes in [("preds", preds), ("y", y)][: 1 + (y is not None)]:
        if not isinstance(boxes, Array) or boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(
                f"expected {name} of shape (n, 4), x_min, y_min, x_max, y_max, got "
                f"{_shapes(boxes)}"
            )
        _geometry.check_boxes(name, boxes, mask)


def _shapes(tree):
    return jax.tree.map(jnp.shape, tree)
