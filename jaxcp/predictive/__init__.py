"""Calibrated probabilities of events and of classes, from scores of any model."""

from jaxcp.predictive.probability import (
    cross_venn_abers,
    isotonic,
    merge_pairs,
    venn_abers,
    venn_abers_classes,
)

__all__ = [
    "cross_venn_abers",
    "isotonic",
    "merge_pairs",
    "venn_abers",
    "venn_abers_classes",
]
__dir__ = __all__.copy
