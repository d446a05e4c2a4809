"""Replicates of a trial at scale: statistics, checkpoints, grids of cells."""

from jaxcp.simulation.grids import run_grid
from jaxcp.simulation.statistics import Estimate, Moments, Quantiles, Total
from jaxcp.simulation.tables import collect

__all__ = [
    "Estimate",
    "Moments",
    "Quantiles",
    "Total",
    "collect",
    "run_grid",
]
__dir__ = __all__.copy
