"""Lists of arrays, one for each image, as padded arrays with a mask; on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jaxcp import _checks, _geometry
from jaxcp._arrays import as_array, is_concrete


def padded_boxes(name: str, images: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns boxes of all images, (g, b, 4), and which are no padding, (g, b)."""
    arrays = _as_numpy(name, images, (0, 4))
    for i, boxes in enumerate(arrays):
        if boxes.ndim != 2:
            shape = boxes.shape
            raise ValueError(f"expected {name}[{i}] of shape (b, 4), got {shape}")
        _geometry.check_boxes(f"{name}[{i}]", boxes)
    lengths = np.array([len(v) for v in arrays], int)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    default = jax.dtypes.canonicalize_dtype(float)
    dtype = np.result_type(default, *(v.dtype for v in arrays))
    padded = np.tile(np.array([0, 0, 1, 1], dtype), (*mask.shape, 1))
    padded[mask] = np.concatenate([*arrays, np.zeros((0, 4), dtype)])
    return padded, mask


def padded_like(name: str, images: Any, mask: np.ndarray) -> np.ndarray:
    """Returns one number for every box, (g, b), 0 for padding."""
    arrays = _as_numpy(name, images, (0,))
    if len(arrays) != len(mask):
        raise ValueError(f"expected {name} of {len(mask)} images, got {len(arrays)}")
    for i, (values, count) in enumerate(zip(arrays, mask.sum(axis=1), strict=True)):
        if values.shape != (count,):
            expected = f"({count},), one for each box"
            raise ValueError(
                f"expected {name}[{i}] of shape {expected}, got {values.shape}"
            )
    dtypes = [v.dtype for v in arrays if v.size]  # an empty list has no type
    padded = np.zeros(mask.shape, np.result_type(bool, *dtypes))
    padded[mask] = np.concatenate([v for v in arrays if v.size] or [padded[mask]])
    _checks.check_not_nan(name, padded)
    return padded


def padded_labels(name: str, images: Any, mask: np.ndarray) -> np.ndarray:
    """Returns the class of every box, (g, b), 0 for padding."""
    labels = padded_like(name, images, mask)
    if mask.any() and not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"expected {name} of an integer type, got {labels.dtype}")
    return labels


def least_confidence(
    min_confidence: Any, labels: np.ndarray | None, mask: np.ndarray
) -> np.ndarray:
    """Returns the least confidence that counts for every box, shape () or (g, b)."""
    least = np.asarray(as_array("min_confidence", min_confidence))
    _checks.check_not_nan("min_confidence", least)
    if least.ndim == 0:
        return least
    if labels is None or least.ndim > 1:
        raise ValueError(
            "expected min_confidence of shape (), or (k,) with labels, "
            f"got {least.shape}"
        )
    _checks.check_labels("pred_labels", labels[mask], len(least))
    return least[np.where(mask, labels, 0)]


def _as_numpy(name, images, empty):
    if not isinstance(images, Iterable):
        kind = type(images).__name__
        raise ValueError(f"expected {name} as a list of arrays, got {kind}")
    images = list(images)
    if not is_concrete(images):
        raise ValueError(
            f"expected {name} known outside of jit, got traced arrays; inside use "
            "jax.vmap(match_boxes) on padded boxes"
        )
    whole = (np.asarray(v) if isinstance(v, list) else v for v in images)
    arrays = (np.asarray(as_array(name, v)) for v in whole)
    return [v if v.size else v.reshape(empty) for v in arrays]
