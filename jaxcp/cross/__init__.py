"""Calibration without a held-out set: jackknife+, CV+, bootstrap, EnbPI."""

from jaxcp.cross.conformal import CrossConformal
from jaxcp.cross.methods import (
    cross_conformal,
    cv_plus,
    enbpi,
    jackknife_plus,
    jackknife_plus_after_bootstrap,
)

__all__ = [
    "CrossConformal",
    "cross_conformal",
    "cv_plus",
    "enbpi",
    "jackknife_plus",
    "jackknife_plus_after_bootstrap",
]
