"""Lower bounds of times that are censored: how long at least until an event."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.survival.bounds import (
        LowerCalibration,
        calibrate_lower,
        impute_censoring,
    )
    from jaxcp.survival.judging import CensoredCoverage, coverage

__all__ = [
    "CensoredCoverage",
    "LowerCalibration",
    "calibrate_lower",
    "coverage",
    "impute_censoring",
]
