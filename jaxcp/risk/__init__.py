"""Risk: any loss of a set kept at alpha, on average or with high probability."""

from __future__ import annotations

from jaxcp.risk.bounds import p_value, upper_bound
from jaxcp.risk.counting import Counts
from jaxcp.risk.levels import critical_count, hoeffding_bentkus_level
from jaxcp.risk.pareto import pareto_front, pareto_test
from jaxcp.risk.selective import selective_threshold
from jaxcp.risk.testing import best, learn_then_test

__all__ = [
    "Counts",
    "best",
    "critical_count",
    "hoeffding_bentkus_level",
    "learn_then_test",
    "p_value",
    "pareto_front",
    "pareto_test",
    "selective_threshold",
    "upper_bound",
]
__dir__ = __all__.copy
