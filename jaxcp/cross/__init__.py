"""Calibration without a held-out set: jackknife+, CV+, bootstrap, EnbPI."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.cross.methods import (
        cross_conformal,
        cv_plus,
        enbpi,
        fit_quantile,
        jackknife_plus,
        jackknife_plus_after_bootstrap,
        split_conformal_fit,
    )
    from jaxcp.cross.predictions import (
        CrossCalibration,
        CrossConformal,
        cross_calibrate,
    )

# fmt: off
__all__ = [
    "CrossCalibration", "CrossConformal", "cross_calibrate", "cross_conformal",
    "cv_plus", "enbpi", "fit_quantile", "jackknife_plus",
    "jackknife_plus_after_bootstrap", "split_conformal_fit",
]
# fmt: on
