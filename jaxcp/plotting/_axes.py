"""Colors, new axes, and targets."""

from typing import TYPE_CHECKING, NewType

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:  # only pictures import matplotlib
    Axes = NewType("Axes", object)

COVERED, MISSED, TRUTH = "tab:blue", "tab:red", "black"


def new_axes() -> Axes:
    """Returns new axes; matplotlib is imported here."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "expected matplotlib to be installed for plots, got no such package: pip "
            "install matplotlib"
        ) from error

    return plt.subplots(figsize=(6, 4), layout="constrained")[1]


def draw_targets(ax: Axes, points: np.ndarray, covered: np.ndarray) -> None:
    """Draws targets, shape (m, 2), those that their sets miss in red."""
    ax.plot(*points[covered].T, ".", color=TRUTH, ms=3, label="covered")
    ax.plot(*points[~covered].T, ".", color=MISSED, ms=5, label="missed")
