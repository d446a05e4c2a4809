"""What conditional coverage is asked for: features, kernels, groups."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.conditional.classes import bins, group_classes
    from jaxcp.conditional.features import fourier, indicators, polynomial
    from jaxcp.conditional.kernels import Gaussian, Within

__all__ = [
    "Gaussian",
    "Within",
    "bins",
    "fourier",
    "group_classes",
    "indicators",
    "polynomial",
]
