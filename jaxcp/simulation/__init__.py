"""Replicates of a trial at scale: statistics, checkpoints, grids of cells."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.simulation.grids import collect, run_grid
    from jaxcp.simulation.replicates import merge
    from jaxcp.simulation.statistics import Estimate, Moments, Quantiles, Total

# fmt: off
__all__ = [
    "Estimate", "Moments", "Quantiles", "Total", "collect", "merge", "run_grid",
]
# fmt: on
