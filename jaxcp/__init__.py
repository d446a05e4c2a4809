"""Exact conformal prediction as JAX programs."""

from __future__ import annotations

from jaxcp._loading import lazily
from jaxcp._tree import pytree, static  # which notices forks from now on

with lazily(globals()):
    from jaxcp import (
        causal,
        certificates,
        conditional,
        datasets,
        detection,
        distributed,
        frames,
        learners,
        metrics,
        online,
        outliers,
        plotting,
        predictive,
        pvalues,
        resampling,
        risk,
        scores,
        selection,
        sets,
        simulation,
        survival,
        training,
        typing,
    )
    from jaxcp import models as models  # not in __all__: a star would load flax
    from jaxcp.calibration import (
        Calibration,
        ConditionalCalibration,
        GroupCalibration,
        LocalCalibration,
        MaskedCalibration,
        Predictor,
        Rule,
        SplitConformal,
        calibrate,
        calibrate_conditional,
        calibrate_groups,
        calibrate_local,
        calibrate_masked,
        join,
        split_conformal,
    )
    from jaxcp.certificates.laws import coverage_law
    from jaxcp.cross import (
        CrossCalibration,
        CrossConformal,
        cross_calibrate,
        cross_conformal,
        cv_plus,
        enbpi,
        fit_quantile,
        jackknife_plus,
        jackknife_plus_after_bootstrap,
        split_conformal_fit,
    )
    from jaxcp.draws import draw, uniforms
    from jaxcp.full import (
        ConformalBayes,
        DiscretizedConformal,
        FullConformal,
        InfluenceConformal,
        conformal_bayes,
        discretized_conformal,
        full_conformal,
        influence_conformal,
    )
    from jaxcp.held.rows import Held
    from jaxcp.plotting.pages import report
    from jaxcp.pvalues.conformal import conformal_p_value
    from jaxcp.quantiles import (
        conformal_quantile,
        conformal_rank,
        empirical_quantile,
        first_within,
        grouped_conformal_quantile,
        kth_smallest,
        sharded_conformal_quantile,
        soft_conformal_quantile,
        weighted_conformal_quantile,
        weighted_select,
    )
    from jaxcp.saving import load, save
    from jaxcp.simulation.replicates import simulate
    from jaxcp.volumes import volume

__version__ = "0.3.0"

# fmt: off
__all__ = [
    "Calibration", "ConditionalCalibration", "ConformalBayes", "CrossCalibration",
    "CrossConformal", "DiscretizedConformal", "FullConformal", "GroupCalibration",
    "Held", "InfluenceConformal", "LocalCalibration", "MaskedCalibration", "Predictor",
    "Rule", "SplitConformal", "calibrate", "calibrate_conditional", "calibrate_groups",
    "calibrate_local", "calibrate_masked", "causal", "certificates", "conditional",
    "conformal_bayes", "conformal_p_value", "conformal_quantile", "conformal_rank",
    "coverage_law", "cross_calibrate", "cross_conformal", "cv_plus", "datasets",
    "detection", "discretized_conformal", "distributed", "draw", "empirical_quantile",
    "enbpi", "first_within", "fit_quantile", "frames", "full_conformal",
    "grouped_conformal_quantile", "influence_conformal", "jackknife_plus",
    "jackknife_plus_after_bootstrap", "join", "kth_smallest", "learners", "load",
    "metrics", "online", "outliers", "plotting", "predictive", "pvalues", "pytree",
    "report", "resampling", "risk", "save", "scores", "selection", "sets",
    "sharded_conformal_quantile", "simulate", "simulation", "soft_conformal_quantile",
    "split_conformal", "split_conformal_fit", "static", "survival", "training",
    "typing", "uniforms", "volume", "weighted_conformal_quantile", "weighted_select",
]
# fmt: on


def __dir__() -> list[str]:
    return [*__all__, "models"]
