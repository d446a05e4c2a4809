"""Generated data with known laws."""

from jaxcp.datasets.generated import class_posterior, classes, heteroscedastic, linear
from jaxcp.datasets.laws import Bimodal, DelBarrio, OneMoon, Unimodal

__all__ = [
    "Bimodal",
    "DelBarrio",
    "OneMoon",
    "Unimodal",
    "class_posterior",
    "classes",
    "heteroscedastic",
    "linear",
]
