"""Predictive distributions: systems that are calibrated, atoms of one example."""

from jaxcp.predictive.atoms import Atoms
from jaxcp.predictive.systems import PredictiveSystem, calibrate_predictive

# fmt: off
__all__ = [
    "Atoms", "PredictiveSystem", "calibrate_predictive",
]
# fmt: on
__dir__ = __all__.copy
