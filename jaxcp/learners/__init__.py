"""Models that are fitted with weights, many at once in one program."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.checking.learners import check
    from jaxcp.learners._hosting import FitError
    from jaxcp.learners.affine import Affine
    from jaxcp.learners.difficulty import Difficulty
    from jaxcp.learners.estimators import Estimator
    from jaxcp.learners.general import (
        FunctionLearner,
        GradientLearner,
        MeanScale,
        Shared,
    )
    from jaxcp.learners.linear import Augmented, Ridge
    from jaxcp.learners.neighbors import KernelRidge, NearestNeighbors
    from jaxcp.learners.quantiles import QuantileRegression, QuantileRidge
    from jaxcp.learners.ratios import density_ratio, label_ratio
    from jaxcp.learners.survival import KaplanMeier

# fmt: off
__all__ = [
    "Affine", "Augmented", "Difficulty", "Estimator", "FitError", "FunctionLearner",
    "GradientLearner", "KaplanMeier", "KernelRidge", "MeanScale", "NearestNeighbors",
    "QuantileRegression", "QuantileRidge", "Ridge", "Shared", "check", "density_ratio",
    "label_ratio",
]
# fmt: on
