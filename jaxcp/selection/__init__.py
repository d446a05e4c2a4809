"""Sets of the rows that a rule selects, such as those with the best predictions.

A set that covers 1 - alpha of all rows may cover far fewer of those that were picked by
what the model says of them. `calibrate_selected` takes the rule too.
"""

from jaxcp.selection.calibrating import (
    Selected,
    SelectedCalibration,
    calibrate_selected,
)
from jaxcp.selection.rules import above, by_p_values, by_swaps, top

__all__ = [
    "Selected",
    "SelectedCalibration",
    "above",
    "by_p_values",
    "by_swaps",
    "calibrate_selected",
    "top",
]
__dir__ = __all__.copy
