"""Replicates of a trial at scale: statistics, checkpoints, grids of cells."""

from jaxcp.simulation.replicates import simulate
from jaxcp.simulation.statistics import Estimate, Moments, Quantiles, Total

__all__ = ["Estimate", "Moments", "Quantiles", "Total", "simulate"]
