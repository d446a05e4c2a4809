"""What conditional coverage is asked for: kernels of inputs that are near."""

from jaxcp.conditional.kernels import Gaussian, Within

__all__ = ["Gaussian", "Within"]
