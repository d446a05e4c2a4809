"""Full conformal prediction: fits that know the test point, and hold no row out."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.full.bayes import ConformalBayes, conformal_bayes
    from jaxcp.full.cells import DiscretizedConformal, discretized_conformal
    from jaxcp.full.conformal import FullConformal, full_conformal
    from jaxcp.full.influence import InfluenceConformal, influence_conformal

# fmt: off
__all__ = [
    "ConformalBayes", "DiscretizedConformal", "FullConformal", "InfluenceConformal",
    "conformal_bayes", "discretized_conformal", "full_conformal", "influence_conformal",
]
# fmt: on
