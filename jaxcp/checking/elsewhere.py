"""Names of other libraries, and what they are called here."""

from __future__ import annotations

from importlib import import_module

_PACKAGES = "scores", "predictive", "online", "metrics", "risk", "learners", "outliers"
_SPLIT = "jaxcp.split_conformal with a score of jaxcp.scores"
_PREDICTIVE = "jaxcp.predictive.calibrate_predictive"
# MAPIE, crepes, TorchCP, PUNCC; the guide has a page on each.
_CALLED = {
    "SplitConformalRegressor": _SPLIT,
    "SplitConformalClassifier": _SPLIT,
    "ConformalizedQuantileRegressor": "jaxcp.calibrate(scores.CQR(), ...)",
    "CrossConformalRegressor": "jaxcp.cv_plus",
    "CrossConformalClassifier": "jaxcp.cv_plus",
    "JackknifeAfterBootstrapRegressor": "jaxcp.jackknife_plus_after_bootstrap",
    "TimeSeriesRegressor": "jaxcp.enbpi",
    "MapieRegressor": "jaxcp.cv_plus",
    "MapieClassifier": _SPLIT,
    "WrapRegressor": _SPLIT,
    "WrapClassifier": _SPLIT,
    "ConformalPredictiveSystem": _PREDICTIVE,
    "ConformalPredictiveDistribution": _PREDICTIVE,
    "SplitPredictor": _SPLIT,
    "SplitCP": _SPLIT,
    "CVPlus": "jaxcp.cv_plus",
    "EnbPI": "jaxcp.enbpi",
    "THR": "jaxcp.scores.LAC",
    "TOPK": "jaxcp.scores.TopK",
    "ABS": "jaxcp.scores.Absolute",
    "AbsoluteConformityScore": "jaxcp.scores.Absolute",
    "GammaConformityScore": "jaxcp.scores.Gamma",
    "ece": "jaxcp.metrics.expected_calibration_error",
    "mean_width": "jaxcp.metrics.mean_size",
    "average_size": "jaxcp.metrics.mean_size",
    "coverage_rate": "jaxcp.metrics.coverage",
}


def absent(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have, with the name here."""
    message = f"module {module!r} has no attribute {name!r}"
    if here := _CALLED.get(name) or _place_of(name):
        message += f"; here it is {here}"
    return AttributeError(message)


def _place_of(name: str) -> str:
    """Returns a public name with its package, or nothing."""
    for package in (f"jaxcp.{name}" for name in _PACKAGES):
        if name in import_module(package).__all__:
            return f"{package}.{name}"
    return ""
