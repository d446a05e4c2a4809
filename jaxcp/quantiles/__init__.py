"""Thresholds: alpha, ranks, and the one kernel that selects order statistics."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.quantiles.levels import conformal_rank
    from jaxcp.quantiles.selection import (
        empirical_quantile,
        first_within,
        kth_smallest,
        weighted_select,
    )
    from jaxcp.quantiles.thresholds import (
        conformal_quantile,
        grouped_conformal_quantile,
        sharded_conformal_quantile,
        soft_conformal_quantile,
        weighted_conformal_quantile,
    )

# fmt: off
__all__ = [
    "conformal_quantile", "conformal_rank", "empirical_quantile", "first_within",
    "grouped_conformal_quantile", "kth_smallest", "sharded_conformal_quantile",
    "soft_conformal_quantile", "weighted_conformal_quantile", "weighted_select",
]
# fmt: on
