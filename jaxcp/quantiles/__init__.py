"""Thresholds: alpha, ranks, and the one kernel that selects order statistics."""

from jaxcp.quantiles.conformal import (
    conformal_quantile,
    grouped_conformal_quantile,
    weighted_conformal_quantile,
)
from jaxcp.quantiles.empirical import empirical_quantile
from jaxcp.quantiles.levels import conformal_rank
from jaxcp.quantiles.selection import first_within, kth_smallest, weighted_select
from jaxcp.quantiles.sharded import sharded_conformal_quantile
from jaxcp.quantiles.soft import soft_conformal_quantile

__all__ = [
    "conformal_quantile",
    "conformal_rank",
    "empirical_quantile",
    "first_within",
    "grouped_conformal_quantile",
    "kth_smallest",
    "sharded_conformal_quantile",
    "soft_conformal_quantile",
    "weighted_conformal_quantile",
    "weighted_select",
]
