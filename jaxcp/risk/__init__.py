"""Risk: a loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.risk.bounds import p_value, upper_bound
    from jaxcp.risk.calibrating import calibrate_risk
    from jaxcp.risk.control import RiskCalibration
    from jaxcp.risk.losses import (
        best_match,
        dice_loss,
        false_discovery_rate,
        false_negative_rate,
        false_positive_count,
        iou_loss,
        miscoverage,
        shortfall,
    )
    from jaxcp.risk.quantiles import (
        cdf_bounds,
        conditional_value_at_risk,
        critical_count,
        hoeffding_bentkus_level,
        value_at_risk,
    )
    from jaxcp.risk.testing import (
        Counts,
        best,
        learn_then_test,
        pareto_front,
        pareto_test,
        selective_threshold,
    )

# fmt: off
__all__ = [
    "Counts", "RiskCalibration", "best", "best_match", "calibrate_risk", "cdf_bounds",
    "conditional_value_at_risk", "critical_count", "dice_loss",
    "false_discovery_rate", "false_negative_rate", "false_positive_count",
    "hoeffding_bentkus_level", "iou_loss", "learn_then_test", "miscoverage", "p_value",
    "pareto_front", "pareto_test", "selective_threshold", "shortfall", "upper_bound",
    "value_at_risk",
]
# fmt: on
