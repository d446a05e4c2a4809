"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.calibrating import calibrate_risk
from jaxcp.risk.control import RiskCalibration
from jaxcp.risk.losses import (
    best_match,
    false_discovery_rate,
    false_negative_rate,
    false_positive_count,
    miscoverage,
    shortfall,
)

__all__ = [
    "RiskCalibration",
    "best_match",
    "calibrate_risk",
    "false_discovery_rate",
    "false_negative_rate",
    "false_positive_count",
    "miscoverage",
    "shortfall",
]
__dir__ = __all__.copy
