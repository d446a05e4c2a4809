"""Treatments: sets of the outcome under one arm, and of individual effects."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.causal.outcomes import (
        OutcomeCalibration,
        calibrate_effect,
        calibrate_outcome,
        effect_sets,
        propensity_box,
    )

__all__ = [
    "OutcomeCalibration",
    "calibrate_effect",
    "calibrate_outcome",
    "effect_sets",
    "propensity_box",
]
