"""Nonconformity scores. Each describes one example and carries its own inverse."""

from jaxcp.scores.classification import APS, LAC, RAPS, TopK
from jaxcp.scores.custom import Custom
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
    "CQR",
    "LAC",
    "RAPS",
    "Absolute",
    "AsymmetricCQR",
    "Custom",
    "Gamma",
    "Normalized",
    "Signed",
    "TopK",
]
