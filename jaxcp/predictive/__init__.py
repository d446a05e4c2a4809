"""Predictive distributions: atoms of one example, what they say, and how to draw."""

from jaxcp.predictive.atoms import Atoms

# fmt: off
__all__ = [
    "Atoms",
]
# fmt: on
__dir__ = __all__.copy
