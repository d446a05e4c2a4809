"""Full conformal prediction: fits that know the test point, and hold no row out."""

from jaxcp.full.bayes import ConformalBayes, conformal_bayes
from jaxcp.full.conformal import FullConformal, full_conformal

__all__ = [
    "ConformalBayes",
    "FullConformal",
    "conformal_bayes",
    "full_conformal",
]
