"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.levels import critical_count, hoeffding_bentkus_level

__all__ = [
    "critical_count",
    "hoeffding_bentkus_level",
]
__dir__ = __all__.copy
