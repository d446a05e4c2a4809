"""How well prediction sets and distributions do: one function per metric.

Arrays of any library may stand for sets: numbers of shape (m, 2), or a frame with
columns lower and upper, are the ends of intervals; flags of shape (m, k) are label
sets.

At several levels: `jax.vmap(metrics.coverage, (0, None))(sets, y)`.
"""

from jaxcp._loading import lazily

with lazily(globals()):
    from jaxcp.metrics.conditional import (
        conditional_coverage_error,
        excess_coverage_risk,
        worst_slab_coverage,
    )
    from jaxcp.metrics.dependence import hsic, hsic_null, hsic_test
    from jaxcp.metrics.intervals import (
        coverage_width_criterion,
        interval_score,
        khosravi_coverage_width_criterion,
        mean_bound,
        pinball,
        pinball_score,
        winkler_score,
    )
    from jaxcp.metrics.losses import MeanLoss, mean_loss
    from jaxcp.metrics.overview import GroupSummary, Summary, by_group, summary
    from jaxcp.metrics.probabilities import (
        CalibrationTest,
        brier_score,
        calibration_test,
        expected_calibration_error,
    )
    from jaxcp.metrics.proper import crps, energy_score, log_score, variogram_score
    from jaxcp.metrics.rates import (
        class_coverage,
        coverage,
        coverage_gap,
        covered,
        empty_rate,
        full_rate,
        group_coverage,
        singleton_rate,
    )
    from jaxcp.metrics.size import (
        MeanVolume,
        infinite_rate,
        iou,
        mean_finite_size,
        mean_size,
        mean_volume,
        median_size,
        sizes,
    )
    from jaxcp.metrics.strata import (
        SizeStrata,
        min_size_stratified_coverage,
        size_strata,
        size_stratified_coverage,
        size_stratified_coverage_violation,
    )
    from jaxcp.metrics.streams import longest_miss, worst_window_coverage

# fmt: off
__all__ = [
    "CalibrationTest", "GroupSummary", "MeanLoss", "MeanVolume", "SizeStrata",
    "Summary", "brier_score", "by_group", "calibration_test", "class_coverage",
    "conditional_coverage_error", "coverage", "coverage_gap",
    "coverage_width_criterion", "covered", "crps", "empty_rate", "energy_score",
    "excess_coverage_risk", "expected_calibration_error", "full_rate", "group_coverage",
    "hsic", "hsic_null", "hsic_test", "infinite_rate", "interval_score", "iou",
    "khosravi_coverage_width_criterion", "log_score", "longest_miss", "mean_bound",
    "mean_finite_size", "mean_loss", "mean_size", "mean_volume", "median_size",
    "min_size_stratified_coverage", "pinball", "pinball_score", "singleton_rate",
    "size_strata", "size_stratified_coverage", "size_stratified_coverage_violation",
    "sizes", "summary", "variogram_score", "winkler_score", "worst_slab_coverage",
    "worst_window_coverage",
]
# fmt: on
