"""Conformal anomaly detection: p-values of scores, and what to conclude from them.

A score may come from any detector; larger means stranger.
"""

from jaxcp.outliers.conditional import conditional_outlier_p_values
from jaxcp.outliers.martingales import (
    MixtureMartingale,
    PowerMartingale,
    SimpleJumper,
    alarm_level,
    watch,
)
from jaxcp.outliers.scoring import (
    grouped_outlier_p_values,
    is_outlier,
    outlier_p_values,
)
from jaxcp.outliers.sequential import sequential_p_values
from jaxcp.outliers.testing import (
    benjamini_hochberg,
    fisher_test,
    simes_test,
    storey_benjamini_hochberg,
)

__all__ = [
    "MixtureMartingale",
    "PowerMartingale",
    "SimpleJumper",
    "alarm_level",
    "benjamini_hochberg",
    "conditional_outlier_p_values",
    "fisher_test",
    "grouped_outlier_p_values",
    "is_outlier",
    "outlier_p_values",
    "sequential_p_values",
    "simes_test",
    "storey_benjamini_hochberg",
    "watch",
]
