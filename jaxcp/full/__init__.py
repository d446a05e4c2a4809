"""Full conformal prediction: every row trains, and the test point with it."""

from jaxcp.full.bayes import ConformalBayes, conformal_bayes

__all__ = ["ConformalBayes", "conformal_bayes"]
