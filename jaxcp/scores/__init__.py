"""Nonconformity scores. Each describes one example and carries its own inverse."""

from jaxcp.scores import inputs
from jaxcp.scores.balls import CP2PCP, HDPCP, PCP
from jaxcp.scores.boxes import BoxOffset
from jaxcp.scores.cdf import CDF
from jaxcp.scores.checking import check
from jaxcp.scores.custom import Custom
from jaxcp.scores.generative import Density, Latent
from jaxcp.scores.labels import LAC, Labelwise, LogLAC
from jaxcp.scores.multilabel import MultiLabel
from jaxcp.scores.multioutput import Distance, Mahalanobis, Rectangle
from jaxcp.scores.ranked import APS, RAPS, TopK
from jaxcp.scores.regression import (
    CQR,
    Absolute,
    AsymmetricCQR,
    Gamma,
    Normalized,
    Signed,
)

__all__ = [
    "APS",
    "CDF",
    "CP2PCP",
    "CQR",
    "HDPCP",
    "LAC",
    "PCP",
    "RAPS",
    "Absolute",
    "AsymmetricCQR",
    "BoxOffset",
    "Custom",
    "Density",
    "Distance",
    "Gamma",
    "Labelwise",
    "Latent",
    "LogLAC",
    "Mahalanobis",
    "MultiLabel",
    "Normalized",
    "Rectangle",
    "Signed",
    "TopK",
    "check",
    "inputs",
]
__dir__ = __all__.copy
