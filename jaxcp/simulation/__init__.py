"""Replicates of a trial at scale: statistics, checkpoints, grids of cells."""

from jaxcp.simulation.grids import collect, run_grid
from jaxcp.simulation.statistics import Estimate, Moments, Quantiles, Total

__all__ = [
    "Estimate",
    "Moments",
    "Quantiles",
    "Total",
    "collect",
    "run_grid",
]
__dir__ = __all__.copy
