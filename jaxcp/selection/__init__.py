"""Sets of the rows that a rule selects, such as those with the best predictions.

Sets that cover 1 - alpha of all rows may cover far fewer of those that were picked by
what the model says of them. `calibrate_selected` is told the rule.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.selection.selected import (
        Selected,
        SelectedCalibration,
        Swaps,
        above,
        by_p_values,
        calibrate_selected,
        top,
    )

# fmt: off
__all__ = [
    "Selected", "SelectedCalibration", "Swaps", "above", "by_p_values",
    "calibrate_selected", "top",
]
# fmt: on
