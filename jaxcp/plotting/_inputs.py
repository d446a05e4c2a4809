"""Arguments of pictures: numbers, places along an axis, levels, axes."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from jaxcp import _checks
from jaxcp._arrays import as_array, as_host_array, on_host
from jaxcp.plotting._axes import Axes, new_axes
from jaxcp.quantiles.levels import as_alpha


def as_axes(ax: Any, *, height: float | None = None) -> Axes:
    """Returns the axes that are given, or new ones; ValueError for what is none."""
    if ax is None:
        return new_axes(height=height)
    if not hasattr(ax, "get_ylim"):
        kind = type(ax).__name__
        cure = "; hand over one of its axes" if np.size(ax) > 1 else ""
        raise ValueError(f"expected ax as axes of matplotlib, got {kind}{cure}")
    return ax


def as_level(alpha: Any) -> float:
    """Returns alpha, one number in (0, 1)."""
    _checks.check_scalars(alpha=alpha)
    return float(as_alpha(alpha)[()])


def as_numbers(name: str, values: Any) -> np.ndarray:
    """Returns numbers in their own type; ValueError for words and other objects."""
    found = on_host(name, values)
    return found if found.dtype.kind in "biuf" else np.asarray(as_array(name, found))


def as_curves(name: str, values: Any, length: str) -> np.ndarray:
    """Returns one curve or several, shape (r, length), as rows."""
    rows = np.atleast_2d(as_numbers(name, values))
    if rows.ndim > 2 or not len(rows):
        expected = f"({length},) or (r, {length}), r >= 1"
        raise ValueError(f"expected {name} of shape {expected}, got {rows.shape}")
    return rows


def as_targets(values: Any) -> np.ndarray:
    """Returns targets in the type that sets have, one for each row, without NaN."""
    found = np.asarray(as_array("y", values))
    _checks.check_not_nan("y", found)
    return found


def as_places(values: Any) -> np.ndarray:
    """Returns places along the x axis, shape (m,): numbers, dates or words."""
    from matplotlib.units import registry

    found = as_host_array("x", values)
    if found.ndim > 1 and found.size != len(found):
        raise ValueError(f"expected x of shape (m,) or (m, 1), got {found.shape}")
    found = found.ravel()
    if found.dtype != object or not found.size:
        return found
    if isinstance(found[0], Real):
        return as_numbers("x", found)
    if registry.get_converter(found) is None:
        kind = type(found[0]).__name__
        raise ValueError(f"expected x as numbers, dates or words, got {kind}")
    return found
