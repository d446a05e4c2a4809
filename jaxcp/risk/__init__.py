"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.bounds import p_value, upper_bound
from jaxcp.risk.levels import critical_count, hoeffding_bentkus_level

__all__ = [
    "critical_count",
    "hoeffding_bentkus_level",
    "p_value",
    "upper_bound",
]
__dir__ = __all__.copy
