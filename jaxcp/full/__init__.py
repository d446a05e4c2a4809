"""Full conformal prediction: every row trains, and the test point with it."""

from jaxcp.full.discretized import DiscretizedConformal, discretized_conformal

__all__ = ["DiscretizedConformal", "discretized_conformal"]
