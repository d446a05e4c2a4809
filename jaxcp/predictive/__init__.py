"""Predictive distributions and calibrated probabilities."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.predictive.atoms import Atoms
    from jaxcp.predictive.probability import (
        cross_venn_abers,
        isotonic,
        merge_pairs,
        venn_abers,
        venn_abers_classes,
    )
    from jaxcp.predictive.systems import PredictiveSystem, calibrate_predictive

# fmt: off
__all__ = [
    "Atoms", "PredictiveSystem", "calibrate_predictive", "cross_venn_abers", "isotonic",
    "merge_pairs", "venn_abers", "venn_abers_classes",
]
# fmt: on
