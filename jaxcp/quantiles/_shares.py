"""Levels of a loss: its bound, and alpha as a share of that, read exactly."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

from jax import Array

from jaxcp.quantiles.levels import Alpha, as_alpha, as_decimal, each_read


def as_bound(bound: Any) -> float:
    """Returns the most that a loss can be, a known number, or raises ValueError."""
    if isinstance(bound, bool) or not isinstance(bound, Real | Decimal):
        raise ValueError(f"expected bound as a number, got {bound!r}")
    if not 0 < (number := float(bound)) < math.inf:
        raise ValueError(f"expected a finite bound > 0, got {bound}")
    return number


def share_of(alpha: Any, bound: Any) -> Alpha:
    """Returns alpha / bound in (0, 1): Fractions, or a jax array of a jax array.

    `bound` is a number, and read like alpha.
    """
    try:
        if bound == 1:
            return as_alpha(alpha)
        if isinstance(alpha, Array):
            return as_alpha(alpha / float(bound))
        whole = as_decimal(bound)
        return as_alpha(each_read(lambda a: as_decimal(a) / whole, alpha))
    except (ValueError, TypeError) as error:
        if bound == 1 and "in (0, 1)" not in str(error):
            raise
        text = f"expected alpha in (0, {float(bound):g}), below the bound of the loss"
        raise ValueError(f"{text}, got {alpha!r}") from error
