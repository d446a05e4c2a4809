"""Rows in their own containers: frames, arrays, sparse matrices, lists, dicts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxcp._arrays import is_concrete, on_host
from jaxcp.typing import PyTree


def as_rows(name: str, value: Any) -> Any:
    """Returns rows as they are, arrays of jax as numpy's, after checks."""
    if isinstance(value, dict):
        return {key: as_rows(name, part) for key, part in value.items()}
    if isinstance(value, tuple) and any(map(_has_rows, value)):
        return tuple(as_rows(name, part) for part in value)
    if isinstance(value, jax.Array) and is_concrete(value):
        value = np.asarray(value)
    value = list(value) if isinstance(value, tuple) else value
    if not _has_rows(value):
        raise ValueError(f"expected {name} with rows, got {_kind(value)}")
    return value


def num_rows(name: str, x: Any) -> int:
    """Returns the number of rows, the same in each part of a dict or tuple."""
    if isinstance(x, dict | tuple):
        counts = {num_rows(name, part) for part in _parts(x)}
        if len(counts) != 1:
            raise ValueError(f"expected {name} of one length, got {sorted(counts)}")
        return counts.pop()
    return x.shape[0] if hasattr(x, "shape") else len(x)


def take(x: Any, rows: np.ndarray) -> Any:
    """Returns a copy of some of the rows, in a container of the same kind.

    It is a copy, because some models change their data in place.
    """
    if isinstance(x, dict):
        return {key: take(part, rows) for key, part in x.items()}
    if isinstance(x, tuple):
        return tuple(take(part, rows) for part in x)
    if isinstance(x, list):
        return [x[i] for i in rows]
    if hasattr(x, "iloc"):  # of pandas
        return x.iloc[rows].copy()  # which may be a view
    return (x.tocsr() if hasattr(x, "tocsr") else x)[rows]  # of scipy


def as_predictions(preds: PyTree, rows: int, fit: str) -> PyTree:
    """Returns predictions as numpy arrays, after checks; `fit` names the fit."""

    def convert(leaf):
        values = on_host("predictions", leaf)
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"expected predictions as numbers, got {values.dtype} of {fit}; a "
                "classifier needs predict_proba, and predict=(model, x) -> preds "
                "says what else to ask a model for"
            )
        if values.shape[:1] != (rows,):
            raise ValueError(
                f"expected predictions with a leading axis of {rows}, one for each "
                f"row of x, got shape {values.shape} of {fit}"
            )
        _check_not_nan(values, fit)
        return values

    return jax.tree.map(convert, preds, is_leaf=_is_array)


def _has_rows(value):
    if isinstance(value, str | bytes):
        return False
    shape = getattr(value, "shape", None)
    return bool(shape) if shape is not None else hasattr(value, "__len__")


def _parts(x):
    return x.values() if isinstance(x, dict) else x


def _kind(value):
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"shape {tuple(shape)}"


def _is_array(x):
    """Returns whether a prediction is one array: also a frame, and a list of rows."""
    return isinstance(x, list) or hasattr(x, "to_numpy") or hasattr(x, "detach")


def _check_not_nan(values, fit):
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = int(np.argwhere(np.isnan(values))[0][0])
        raise ValueError(
            f"expected predictions without NaN, got nan at row {row} of {fit}"
        )
