"""Losses, which of them count, and what is given for each loss, after checks."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_concrete
from jaxcp._numbers import as_float
from jaxcp.quantiles._shares import share_of
from jaxcp.typing import ArrayLike

_METHODS = "hoeffding_bentkus", "binomial", "betting"


def losses_and_rows(
    losses: ArrayLike, where: ArrayLike | None, bound: ArrayLike, method: str
) -> tuple[Array, Array | None]:
    """Returns losses and which rows count as arrays, or raises ValueError."""
    _checks.check_one_of("method", method, _METHODS)
    _checks.check_number("bound", bound, lambda b: (b > 0) & (b < np.inf), "> 0")
    losses = as_array("losses", losses)
    where = None if where is None else _checks.flags("where", where)
    for name, value in (("losses", losses), ("where", where)):
        if value is not None and value.ndim not in (1, 2):
            raise ValueError(
                f"expected {name} of shape (n,) or (n, g), got {value.shape}"
            )
    _checks.num_rows(losses=losses, where=where)
    if where is not None and losses.ndim == where.ndim == 2:
        _checks.check_shape("where", losses.shape, where.shape)
    if method == "binomial" and not (is_concrete(bound) and bound == 1):
        raise ValueError(f'expected bound=1 with method="binomial", got {bound}')
    if losses.dtype != bool and is_concrete(losses, where, bound):
        _check_range(losses, where, bound, method)
    return losses, where


def _check_range(losses, where, bound, method):
    losses, top = np.asarray(losses), float(bound)
    inside, expected = lambda v: (v >= 0) & (v <= top), f"losses in [0, {top:g}]"
    if method == "binomial":
        inside = lambda v: (v == 0) | (v == 1)  # noqa: E731
        expected = 'losses of 0 or 1 with method="binomial"'
    elif not losses.size or (losses.min() >= 0 and losses.max() <= top):
        return
    counts = np.ones(len(losses), bool) if where is None else np.asarray(where)
    if counts.ndim > losses.ndim:
        counts = counts.any(1)
    counts = counts.reshape(counts.shape + (1,) * (losses.ndim - counts.ndim))
    _checks.check_values(lambda v: ~counts | inside(v), expected, losses)


def as_real(value: Any) -> Any:
    """Returns a decimal as the fraction that it is, other values as they are."""
    return Fraction(value) if isinstance(value, Decimal) else value


def as_plain(value: Any) -> Any:
    """Returns a fraction or decimal as a float, other values as they are."""
    return float(value) if isinstance(value, Fraction | Decimal) else value


def as_share(alpha: Any, bound: Any) -> Fraction | Array:
    """Returns alpha / bound: a Fraction where both are numbers, or an array."""
    inside = lambda a: (a > 0) & (a < bound)  # noqa: E731
    alpha = as_real(alpha)
    if is_concrete(bound):
        expected = f"in (0, {float(bound):g})"
        _checks.check_number("alpha", alpha, inside, expected)
    else:
        _checks.check_scalars(alpha=alpha)
    if isinstance(alpha, Array) or isinstance(bound, Array):
        return as_float(alpha) / bound
    return share_of(alpha, np.asarray(bound)[()]).item()


def one_each(name: str, value: Any, size: int, kinds: Any = tuple) -> tuple[Any, ...]:
    """Returns a value for each loss: those given, or the same for all."""
    if not isinstance(value, kinds):
        return (value,) * size
    if len(value) != size:
        raise ValueError(f"expected {name} for {size} losses, got {len(value)} of them")
    return tuple(value)
