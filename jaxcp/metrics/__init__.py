"""How well prediction sets do: one function per metric, for every kind of set."""

from jaxcp.metrics.average import coverage, group_coverage, mean_size
from jaxcp.metrics.conditional import conditional_coverage_error, worst_slab_coverage
from jaxcp.metrics.volume import MeanVolume, mean_volume

__all__ = [
    "MeanVolume",
    "conditional_coverage_error",
    "coverage",
    "group_coverage",
    "mean_size",
    "mean_volume",
    "worst_slab_coverage",
]
