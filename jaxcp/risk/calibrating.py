"""The verb that calibrates the mean of a loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _checks, _named, _names
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float
from jaxcp._pytree import as_function
from jaxcp.calibration._rows import check_columns, coded, row_shapes
from jaxcp.risk._checking import check_losses, is_counted
from jaxcp.risk.control import RiskCalibration
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, HasSteps, PyTree, Score

_NO_GROUPS = _named.Groups(None, None, None)


def calibrate_risk(
    loss: Callable | tuple[Callable, ...],
    score: Score,
    preds: PyTree,
    y: PyTree,
    *,
    bound: float | tuple[float, ...] = 1.0,
    tail: float | tuple[float, ...] | None = None,
    monotone: bool = True,
    grid: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> RiskCalibration:
    """Returns a calibration whose sets have a mean loss of at most alpha."""
    inputs.check_score(score)
    several = type(loss) in (tuple, list)
    losses = tuple(map(_as_loss, loss if several else (loss,)))
    if not losses:
        raise ValueError("expected a loss, got an empty tuple")
    bounds = tuple(map(_as_bound, _each("bound", bound, len(losses))))
    tails = tuple(map(_as_tail, _each("tail", tail, len(losses))))
    if not monotone and grid is None and not issubclass(type(score), HasSteps):
        raise ValueError(
            "expected grid with monotone=False: the sets of "
            f"{type(score).__name__} may change at any threshold"
        )
    names = None
    if classes is not None:
        names = _names.as_names("classes", classes)
        check_columns(names, preds)
        y = coded(names, y, mask) if inputs.has_labels(score) else y
    named, codes = _NO_GROUPS, _checks.vector(None)
    if groups is not None:
        named = _named.as_groups(groups, num_groups, None, mask)
        codes = _checks.groups(named.codes, named.count)
    columns = {"weights": _checks.weights(weights), "mask": _checks.mask(mask)}
    rows = _checks.rows(preds=preds, y=y, groups=codes, **columns)
    preds, y, groups, weights, mask = rows
    inputs.check(score, preds, None, mask)
    _checks.check_not_nan("y", y, mask)
    if weights is not None and mask is not None:
        weights = jnp.where(mask, weights, 0)
    held = RiskCalibration(
        score,
        preds,
        y,
        losses,
        tails,
        mask,
        weights,
        groups,
        None if grid is None else _as_grid(grid),
        bounds,
        several=several,
        monotone=monotone,
        num_groups=named.count,
        row_shapes=row_shapes(preds),
        classes=names,
        group_names=named.names,
    )
    return _checked(held)


def _checked(held):
    """Returns the calibration with what its losses are, after checks."""
    risks = held.risks()
    flags = tuple(map(is_counted, risks))
    for flag, bound in zip(flags, held.bounds, strict=True):
        if flag and bound != 1:
            raise ValueError(f"expected bound=1 for a loss of flags, got {bound:g}")
    check_losses(risks, held.bounds, held.mask)
    pairs = zip(flags, held.tails, strict=True)
    counted = tuple(flag or tail is not None for flag, tail in pairs)
    return dataclasses.replace(held, counted=counted)


def _each(name, value, size):
    """Returns one value for each loss."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * size
    if len(values) != size:
        raise ValueError(f"expected {name} for {size} losses, got {len(values)}")
    return values


def _as_loss(loss):
    """Returns a loss as a pytree: functions become one."""
    leaves = jax.tree.leaves(loss)
    if len(leaves) == 1 and leaves[0] is loss:
        return as_function("loss", loss)
    if not callable(loss):
        raise ValueError(f"expected loss as a function, got {type(loss).__name__}")
    return loss


def _as_bound(bound):
    """Returns the most that a loss can be, a known number."""
    if not isinstance(bound, Real | Decimal | np.ndarray) or np.ndim(bound):
        raise ValueError(f"expected bound as a number, got {bound!r}")
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"expected a finite bound > 0, got {bound}")
    return float(bound)


def _as_tail(tail):
    """Returns what a loss is to stay within: a number, or None."""
    if tail is not None:
        _checks.check_number("tail", tail, lambda v: v >= 0, ">= 0")
    return tail


def _as_grid(grid):
    """Returns thresholds in increasing order, shape (t,)."""
    grid = as_float(as_array("grid", grid))
    if grid.ndim != 1 or not len(grid):
        raise ValueError(f"expected grid of shape (t,), t > 0, got {grid.shape}")
    if is_concrete(grid) and not np.all(np.diff(np.asarray(grid)) > 0):
        raise ValueError("expected grid of increasing thresholds, got others")
    return grid
