"""From held-out scores to the state of an online method."""

from __future__ import annotations

from jax import Array

from jaxcp.calibration.split import Calibration
from jaxcp.online.windows import SlidingState, SlidingWindow


def sliding(
    calibration: Calibration, mask: Array | None, every: int, empirical: bool
) -> tuple[SlidingWindow, SlidingState]:
    """Returns the sliding window of a calibration's scores on a mask, and its state."""
    if calibration.weights is not None:
        raise ValueError(
            "expected scores without calibration_weights, which a window does not "
            "keep; online.NexCP weighs scores by their age"
        )
    method = SlidingWindow(calibration.score, every=every, empirical=empirical)
    # Every step is given its own alpha.
    return method, method.init(calibration.scores, 0.5, mask=mask)
