"""Validity certificates: the law that coverage must have, and tests.

On the host, in integers and double precision: single precision gets the tails of a Beta
law with 10^7 calibration scores wrong. The laws hold for every predictor whose
sets are {score <= q}, q the conformal quantile of continuous scores with unit weights,
of this library or another.
"""

from __future__ import annotations

from typing import Any

from jaxcp._loading import lazily

with lazily(globals()) as _named:
    from jaxcp.certificates.laws import (
        Certificate,
        CrossCertificate,
        MarginalCertificate,
        RiskCertificate,
        calibration_size,
        certificate,
        smallest_size,
    )
    from jaxcp.certificates.testing import (
        CoverageTest,
        PITTest,
        coverage_test,
        pit_test,
    )

# fmt: off
__all__ = [
    "Certificate", "CoverageTest", "CrossCertificate", "MarginalCertificate",
    "PITTest", "RiskCertificate", "calibration_size", "certificate", "coverage_test",
    "pit_test", "smallest_size",
]
# fmt: on


def __getattr__(name: str) -> Any:
    # Its name in version 0.1, which pytest would collect.
    return _named("coverage_test" if name == "test_coverage" else name)
