"""Checks of predictions of many fits: one for each fit and row, without NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays, is_concrete
from jaxcp.calibration._rows import RowShapes, check_row_shapes
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, PyTree, Score


def check_held_out(
    held_out: ArrayLike, mask: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Returns which fits are without which rows that count, (b, n), and the mask."""
    _checks.check_given(held_out=held_out)
    held_out = as_array("held_out", held_out)
    if held_out.dtype != bool:
        raise ValueError(
            f"expected held_out of bool, True where a fit is without a row, got "
            f"{held_out.dtype}; for training weights it is weights == 0"
        )
    if held_out.ndim != 2 or not held_out.size:
        raise ValueError(f"expected held_out of shape (b, n), got {held_out.shape}")
    if mask is None:
        return held_out, None
    mask = _checks.rows(mask=_checks.mask(mask))
    _checks.check_shape("mask", held_out.shape[1:], mask.shape)
    return held_out & mask[None], mask


def known_preds(preds: PyTree, held_out: Array) -> PyTree:
    """Returns predictions of b fits for the n rows, after checks."""
    preds = _as_preds(preds, len(held_out))
    _check_shapes(preds, held_out.shape)
    _check_known(preds, held_out)
    return preds


def new_preds(
    score: Score, preds: PyTree, count: int, row_shapes: RowShapes | None
) -> PyTree:
    """Returns predictions of b fits at new inputs, after checks."""
    preds = _as_preds(preds, count)
    _check_shapes(preds, (count,))
    m = {leaf.shape[1] for leaf in jax.tree.leaves(preds)}
    if len(m) > 1:
        raise ValueError(f"expected preds for one number of inputs, got {sorted(m)}")
    _check_known(preds)
    rows = jax.tree.map(_as_rows, preds)
    check_row_shapes(score, rows, row_shapes)
    inputs.of(score).check(rows, None, None)
    return preds


def _as_rows(v):
    """Returns an array (b, m, ...) with one leading axis of b m."""
    shape = v.shape[0] * v.shape[1], *v.shape[2:]
    # Reshaping on the host compiles nothing.
    return (
        jnp.asarray(np.asarray(v).reshape(shape))
        if is_concrete(v)
        else v.reshape(shape)
    )


def _as_preds(preds, count):
    """Returns predictions as arrays; a list has those of one fit after the other."""
    _checks.check_given(preds=preds)
    preds = as_arrays(preds=preds)
    if not isinstance(preds, list):
        return preds
    if len(preds) != count:
        raise ValueError(
            f"expected preds of {count} fits, got a list of {len(preds)}; a list holds "
            "what each fit predicts, and a pair of arrays is a tuple"
        )
    host = is_concrete(preds)
    stack = (lambda *v: jnp.asarray(np.stack(v))) if host else lambda *v: jnp.stack(v)
    return jax.tree.map(stack, *preds)


def _check_shapes(preds, expected):
    """Raises ValueError unless all leaves have the leading axes (b, n) or (b,)."""
    leaves, letters = (
        jax.tree.leaves(preds),
        "(b, n)" if len(expected) > 1 else "b fits",
    )
    if not leaves:
        raise ValueError(f"expected preds as arrays, got {preds!r}")
    for leaf in leaves:
        found = leaf.shape[: len(expected)]
        if found != expected or leaf.ndim < 2:
            swapped = leaf.ndim > 1 and leaf.shape[1::-1][: len(expected)] == expected
            raise ValueError(
                f"expected preds with leading axes {letters} = {expected} like "
                f"held_out, got shape {leaf.shape}"
                + ("; preds.T puts the fits first" if swapped else "")
            )


def _check_known(preds, held_out=None):
    """Raises ValueError for a concrete NaN of a fit, at rows that it left out."""
    if not is_concrete(preds, held_out):
        return
    for leaf in jax.tree.leaves(preds):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        unknown = np.isnan(np.asarray(leaf))
        if not unknown.any():
            continue
        unknown = unknown.any(axis=tuple(range(2, leaf.ndim)))
        if held_out is not None:
            unknown &= np.asarray(held_out)
        if unknown.any():
            fit, row = np.argwhere(unknown)[0]
            where = "" if held_out is None else " where a fit left the row out"
            raise ValueError(
                f"expected preds without NaN{where}, got nan of fit {fit} at row {row}"
            )
