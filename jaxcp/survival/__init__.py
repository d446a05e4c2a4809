"""Lower bounds of times that are censored: how long at least until an event."""

from jaxcp.survival.bounds import LowerCalibration, calibrate_lower, impute_censoring

__all__ = ["LowerCalibration", "calibrate_lower", "impute_censoring"]
__dir__ = __all__.copy
