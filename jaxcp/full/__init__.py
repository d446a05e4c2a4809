"""Full conformal prediction: fits that know the test point, and hold no row out."""

from jaxcp.full.conformal import FullConformal
from jaxcp.full.methods import full_conformal

__all__ = ["FullConformal", "full_conformal"]
__dir__ = __all__.copy
