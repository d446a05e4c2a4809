"""Conformal anomaly detection: how exceptional an example is among those of the past.

A score may come from any detector; larger means stranger. What to conclude from many
p-values, and from those of a stream, is in `jaxcp.pvalues`.
"""

from __future__ import annotations

from typing import Any

from jaxcp import pvalues
from jaxcp._loading import lazily

with lazily(globals()) as _named:
    from jaxcp.outliers.scoring import (
        conditional_outlier_p_values,
        grouped_outlier_p_values,
        is_outlier,
        outlier_p_values,
    )

# fmt: off
__all__ = [
    "conditional_outlier_p_values", "grouped_outlier_p_values", "is_outlier",
    "outlier_p_values",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name in pvalues.__all__:  # where tests and martingales were in version 0.1
        return getattr(pvalues, name)
    return _named(name)
