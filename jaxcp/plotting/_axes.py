"""Colours, new axes, and checks of what is drawn."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COVERED, MISSED, TRUTH = "tab:blue", "tab:red", "black"


def new_axes() -> "Axes":
    """Returns new axes; matplotlib is imported here."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4), layout="constrained")[1]


def check_shape(name: str, expected: tuple, got: tuple) -> None:
    """Raises ValueError unless the shapes are the same."""
    if expected != got:
        raise ValueError(f"expected {name} of shape {expected}, got {got}")
