"""Calibrations: a score and a rule that turns alpha into thresholds."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.calibration.calibrating import (
        SplitConformal,
        calibrate,
        calibrate_groups,
        split_conformal,
    )
    from jaxcp.calibration.conditional import (
        ConditionalCalibration,
        calibrate_conditional,
    )
    from jaxcp.calibration.joining import join
    from jaxcp.calibration.local import LocalCalibration, calibrate_local
    from jaxcp.calibration.masked import MaskedCalibration, calibrate_masked
    from jaxcp.calibration.predictor import Predictor
    from jaxcp.calibration.rule import Rule
    from jaxcp.calibration.split import Calibration, GroupCalibration

# fmt: off
__all__ = [
    "Calibration", "ConditionalCalibration", "GroupCalibration", "LocalCalibration",
    "MaskedCalibration", "Predictor", "Rule", "SplitConformal", "calibrate",
    "calibrate_conditional", "calibrate_groups", "calibrate_local", "calibrate_masked",
    "join", "split_conformal",
]
# fmt: on
