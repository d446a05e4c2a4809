"""Full conformal prediction: fits that know the test point, and hold no row out."""

from jaxcp.full.conformal import FullConformal
from jaxcp.full.influence import InfluenceConformal, influence_conformal
from jaxcp.full.methods import full_conformal

__all__ = [
    "FullConformal",
    "InfluenceConformal",
    "full_conformal",
    "influence_conformal",
]
__dir__ = __all__.copy
