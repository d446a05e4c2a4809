"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.levels import critical_count, hoeffding_bentkus_level
from jaxcp.risk.quantiles import (
    cdf_bounds,
    conditional_value_at_risk,
    value_at_risk,
)

__all__ = [
    "cdf_bounds",
    "conditional_value_at_risk",
    "critical_count",
    "hoeffding_bentkus_level",
    "value_at_risk",
]
__dir__ = __all__.copy
