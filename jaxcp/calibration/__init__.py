"""Calibrations: a score and a rule that turns alpha into thresholds."""

from jaxcp.calibration.calibrating import calibrate
from jaxcp.calibration.grouping import calibrate_groups
from jaxcp.calibration.groups import GroupCalibration
from jaxcp.calibration.models import SplitConformal, split_conformal
from jaxcp.calibration.rule import Rule
from jaxcp.calibration.split import Calibration

__all__ = [
    "Calibration",
    "GroupCalibration",
    "Rule",
    "SplitConformal",
    "calibrate",
    "calibrate_groups",
    "split_conformal",
]
