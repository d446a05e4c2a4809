"""Pictures of sets and of coverage. Axes in (or None), Axes out; needs matplotlib."""

from jaxcp.plotting.boxes import plot_boxes
from jaxcp.plotting.coverage import (
    plot_coverage,
    plot_coverage_curve,
    plot_size_stratified_coverage,
)
from jaxcp.plotting.intervals import plot_intervals, plot_label_sets
from jaxcp.plotting.outliers import plot_p_values
from jaxcp.plotting.regions import plot_region

__all__ = [
    "plot_boxes",
    "plot_coverage",
    "plot_coverage_curve",
    "plot_intervals",
    "plot_label_sets",
    "plot_p_values",
    "plot_region",
    "plot_size_stratified_coverage",
]
__dir__ = __all__.copy
