"""Nonconformity scores. Each describes one example and carries its own inverse."""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.checking.scores import check
    from jaxcp.scores import inputs
    from jaxcp.scores.bands import Band, envelope, root_mean_square
    from jaxcp.scores.cdf import CDF
    from jaxcp.scores.claims import Claims
    from jaxcp.scores.custom import Custom, Density, Latent
    from jaxcp.scores.histograms import Binned, Interpolated
    from jaxcp.scores.increasing import (
        DCP,
        PredictedQuantiles,
        Residual,
        ScaledResidual,
        Signed,
        TwoSided,
    )
    from jaxcp.scores.labels import (
        APS,
        LAC,
        RAPS,
        SAPS,
        Entmax,
        Given,
        Labelwise,
        LogLAC,
        LogMargin,
        Margin,
        MultiLabel,
        TopK,
        Truncated,
    )
    from jaxcp.scores.multioutput import (
        CP2PCP,
        HDPCP,
        PCP,
        Distance,
        Mahalanobis,
        Rectangle,
    )
    from jaxcp.scores.rectified import Rectified
    from jaxcp.scores.regression import (
        CQR,
        Absolute,
        AsymmetricCQR,
        BoxOffset,
        Gamma,
        Normalized,
    )

# fmt: off
__all__ = [
    "APS", "CDF", "CP2PCP", "CQR", "DCP", "HDPCP", "LAC", "PCP", "RAPS", "SAPS",
    "Absolute", "AsymmetricCQR", "Band", "Binned", "BoxOffset", "Claims", "Custom",
    "Density", "Distance", "Entmax", "Gamma", "Given", "Interpolated", "Labelwise",
    "Latent", "LogLAC", "LogMargin", "Mahalanobis", "Margin", "MultiLabel",
    "Normalized", "PredictedQuantiles", "Rectangle", "Rectified", "Residual",
    "ScaledResidual", "Signed", "TopK", "Truncated", "TwoSided", "check",
    "envelope", "inputs", "root_mean_square",
]
# fmt: on
