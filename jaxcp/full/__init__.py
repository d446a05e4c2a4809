"""Full conformal prediction: fits that know the test point, and hold no row out."""

from jaxcp.full.conformal import FullConformal, full_conformal
from jaxcp.full.influence import InfluenceConformal, influence_conformal

__all__ = [
    "FullConformal",
    "InfluenceConformal",
    "full_conformal",
    "influence_conformal",
]
__dir__ = __all__.copy
