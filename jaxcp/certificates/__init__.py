"""Validity certificates: what coverage must be, and a test whether it is.

On the host, in integers and double precision: single precision gets the tails of a Beta
law with 10^7 calibration scores wrong. The laws hold for every predictor whose
threshold is a conformal quantile of continuous scores, of this library or another.
"""

from jaxcp.certificates.laws import Certificate, calibration_size, certificate
from jaxcp.certificates.testing import CoverageTest, test_coverage

__all__ = [
    "Certificate",
    "CoverageTest",
    "calibration_size",
    "certificate",
    "test_coverage",
]
