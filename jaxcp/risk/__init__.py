"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.calibrating import calibrate_risk
from jaxcp.risk.control import RiskCalibration

__all__ = [
    "RiskCalibration",
    "calibrate_risk",
]
__dir__ = __all__.copy
