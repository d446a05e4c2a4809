"""Calibration without a held-out set: jackknife+, CV+, bootstrap, EnbPI."""

from jaxcp.cross.bootstrap import enbpi, jackknife_plus_after_bootstrap
from jaxcp.cross.calibrating import cross_calibrate
from jaxcp.cross.conformal import CrossConformal
from jaxcp.cross.methods import cross_conformal, cv_plus, jackknife_plus
from jaxcp.cross.predictions import CrossCalibration
from jaxcp.cross.splitting import split_conformal_fit

__all__ = [
    "CrossCalibration",
    "CrossConformal",
    "cross_calibrate",
    "cross_conformal",
    "cv_plus",
    "enbpi",
    "jackknife_plus",
    "jackknife_plus_after_bootstrap",
    "split_conformal_fit",
]
