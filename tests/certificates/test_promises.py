"""Every promise of a docstring has a law that simulates it, or enumerates its cases.

A new public name whose `Guarantee:` promises something needs a row here: a test that
would fail if the promise were false, or why there is none.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest
from test_docstrings import public, sections

from helpers import CASES

# Nothing is promised, or another name promises it.
NONE = re.compile(r"(none|no finite-sample guarantee|that of)\b", re.IGNORECASE)

LAWS = {  # what simulates or enumerates a promise, and for which names
    "test_in_turn::test_sets_of_every_score_miss_as_many_as_they_may": [
        "Calibration.__call__",
        "Calibration.p_values",
        "calibrate",
        "scores.Labelwise",  # as `own.SAPS`
        *sorted({f"scores.{type(case.score).__name__}" for case in CASES.values()}),
    ],
    "test_in_turn::test_the_mean_over_all_turns_is_at_most_alpha": [
        "Calibration.quantile",
        "CrossConformal.minmax",
        "DiscretizedConformal.__call__",
        "DiscretizedConformal.p_values",
        "conformal_p_value",
        "conformal_quantile",
        "conformal_rank",
        "discretized_conformal",
        "online.SlidingWindow",
        "outliers.is_outlier",
        "outliers.outlier_p_values",
        "pvalues.selection_p_values",
        "risk.best_match",
        "risk.calibrate_risk",
        "risk.false_negative_rate",
        "risk.false_positive_count",
        "risk.miscoverage",
        "risk.shortfall",
        "split_conformal",
    ],
    "test_clusters::test_each_row_of_each_cluster_in_turn": [
        "Calibration.all_rows",
        "calibrate",
        "calibrate_groups",
        "risk.calibrate_risk",
    ],
    "test_clusters::test_coverage_of_a_row_and_of_all_rows": [
        "Calibration.all_rows",
        "calibrate",
    ],
    "test_in_turn::test_full_conformal_sets_miss_as_many_as_they_may": [
        "FullConformal.__call__",
        "FullConformal.p_values",
        "full_conformal",
    ],
    "test_in_turn::test_predictive_distributions_are_uniform": [
        "FullConformal.predictive",
    ],
    "test_in_turn::test_calibrated_distributions_are_uniform": [
        "predictive.PredictiveSystem.cdf",
        "predictive.PredictiveSystem.quantile",
        "predictive.calibrate_predictive",
    ],
    "test_systems::test_the_law_of_intervals": [
        "predictive.PredictiveSystem.certificate",
    ],
    "test_atoms::test_each_value_in_turn_makes_the_cdf_uniform": [
        "predictive.Atoms",
        "predictive.Atoms.cdf",
        "predictive.Atoms.quantile",
    ],
    "test_proper::test_no_forecast_scores_less_than_the_law": [
        "metrics.crps",
        "metrics.energy_score",
        "metrics.variogram_score",
        "predictive.Atoms.crps",
    ],
    "test_proper::test_no_probabilities_have_a_lower_log_score_than_the_law": [
        "metrics.log_score",
    ],
    "test_proper::test_the_mean_of_fair_scores_is_that_of_the_law": [
        "metrics.crps",
        "metrics.energy_score",
    ],
    "test_in_turn::test_each_group_loses_as_much_as_it_may": [
        "GroupCalibration.__call__",
        "GroupCalibration.p_values",
        "calibrate_groups",
        "grouped_conformal_quantile",
        "outliers.grouped_outlier_p_values",
    ],
    "test_small_groups::test_groups_that_share_lose_as_much_as_they_may_together": [
        "GroupCalibration.__call__",
        "GroupCalibration.p_values",
        "calibrate_groups",
        "predictive.calibrate_predictive",
    ],
    "test_selected::test_selected_rows_are_covered": [
        "selection.SelectedCalibration.__call__",
        "selection.SelectedCalibration.adjusted",
        "selection.SelectedCalibration.p_values",
        "selection.calibrate_selected",
    ],
    "test_split_groups::test_coverage_in_each_group_of_a_fit": ["split_conformal_fit"],
    "test_in_turn::test_each_group_of_fits_on_all_rows_loses_as_much_as_it_may": [
        "CrossConformal.__call__",
        "CrossConformal.minmax",
        "FullConformal.__call__",
        "FullConformal.p_values",
        "full_conformal",
        "jackknife_plus",
    ],
    "test_full_groups::test_each_group_has_its_coverage": [
        "FullConformal.__call__",
        "full_conformal",
        "jackknife_plus",
    ],
    "test_in_turn::test_labels_of_a_group_lose_as_much_as_they_may": [
        "GroupCalibration.__call__",
        "GroupCalibration.p_values",
        "calibrate_groups",
    ],
    "test_in_turn::test_local_sets_miss_as_many_as_they_may": ["calibrate_local"],
    "test_forecast::test_all_turns_of_independent_series_miss_as_many_as_they_may": [
        "frames.forecast",
    ],
    "test_forecast::test_series_in_turn_miss_at_most_alpha": ["frames.forecast"],
    "test_forecast::test_coverage_of_paths_and_of_steps_by_simulation": [
        "frames.forecast",
    ],
    "test_causal::test_outcomes_of_an_arm_are_covered": ["causal.calibrate_outcome"],
    "test_causal::test_what_is_not_measured_within_a_box_is_covered": [
        "causal.calibrate_outcome",
    ],
    "test_causal::test_effects_are_covered": [
        "causal.calibrate_effect",
        "causal.effect_sets",
    ],
    "test_in_turn::test_shifts_by_features_miss_as_much_as_they_may": [
        "ConditionalCalibration.dual",
        "calibrate_conditional",
    ],
    "test_features::test_each_group_of_a_frame_is_covered": ["conditional.indicators"],
    "test_in_turn::test_jackknife_plus_misses_at_most_twice_alpha": [
        "CrossConformal.__call__",
        "cross_conformal",
        "jackknife_plus",
    ],
    "test_in_turn::test_folds_of_any_learner_cover_what_is_proved": [
        "CrossCalibration.__call__",
        "CrossCalibration.minmax",
        "cross_calibrate",
    ],
    "test_cross_certificates::test_random_learners_cover_no_less": [
        "CrossCalibration.certificate",
        "CrossConformal.certificate",
    ],
    "test_cross_coverage::test_stable_learners_have_about_the_level": [
        "cv_plus",
        "jackknife_plus_after_bootstrap",
    ],
    # With `delta`, weights, uniforms, or a law that is known.
    "test_lower_bounds::test_times_are_above_their_bounds": [
        "survival.calibrate_lower",
    ],
    "test_risk_delta::test_calibration_sets_are_bad_as_often_as_the_law_says": [
        "Calibration.__call__",
        "Calibration.quantile",
        "calibrate",
    ],
    "test_risk_control::test_few_calibration_sets_have_more_risk_with_delta": [
        "risk.calibrate_risk",
    ],
    "test_risk_control::test_the_law_of_the_risk": ["risk.calibrate_risk"],
    "test_risk_certificates::test_the_law_of_a_loss_of_0_and_1": [
        "risk.RiskCalibration.certificate",
    ],
    "test_risk_certificates::test_the_mean_of_a_loss_is_between_its_bounds": [
        "risk.RiskCalibration.certificate",
    ],
    "test_coverage::test_covariate_shift_coverage": [
        "Calibration.__call__",
        "weighted_conformal_quantile",
    ],
    "test_bounds_of_weights::test_coverage": ["Calibration.__call__", "calibrate"],
    "test_label_weights::test_coverage": ["Calibration.__call__"],
    "test_coverage::test_fixed_weights_keep_their_coverage_on_exchangeable_data": [
        "weighted_conformal_quantile",
    ],
    "test_coverage::test_p_values_are_uniform": ["conformal_p_value"],
    "test_full_labels::test_smoothed_p_values_are_uniform_and_sets_cover": [
        "FullConformal.p_values",
    ],
    "test_known_laws::test_coverage_given_the_input_is_the_threshold": ["scores.CDF"],
    "test_histograms::test_true_histograms_give_uniform_scores_and_the_smallest_"
    "volume": ["scores.Binned"],
    "test_multioutput::test_conditional_error_of_counts": ["scores.CDF"],
    "test_split_fit::test_coverage_is_exact": ["split_conformal_fit"],
    "test_masked::test_each_mask_is_covered_as_the_formula_says": [
        "MaskedCalibration.__call__",
        "MaskedCalibration.at_masks",
        "calibrate_masked",
    ],
    "test_cross_clusters::test_plus_sets_and_minmax_cover_what_is_promised": [
        "CrossCalibration.__call__",
        "CrossCalibration.minmax",
        "cross_calibrate",
        "jackknife_plus",
    ],
    "test_full_bayes::test_coverage_of_a_model_that_is_wrong": ["conformal_bayes"],
    # What is known of coverage.
    "test_coverage::test_split_coverage_follows_its_beta_law": ["coverage_law"],
    "test_simulation::test_many_replicates_follow_the_beta_law": [
        "certificates.certificate",
    ],
    "test_pit::test_right_systems_are_rejected_as_rarely_as_the_level_says": [
        "certificates.pit_test",
    ],
    "test_certificates::test_calibration_size_is_the_last_crossing": [
        "certificates.calibration_size",
    ],
    "test_mutations::test_a_thousand_clean_runs_raise_no_alarm": [
        "certificates.coverage_test",
    ],
    "test_risk_counts::test_the_fewest_rows_with_finite_sets": [
        "certificates.smallest_size",
    ],
    # Streams.
    "test_online::test_bounds_hold_on_every_sequence": ["online.ACI", "online.PID"],
    "test_online::test_bound_of_falling_steps_on_500_sequences": ["online.PID"],
    "test_online::test_bounds_of_long_streams_with_their_rounding": [
        "online.ACI",
        "online.PID",
    ],
    "test_risk_losses::test_the_mean_loss_of_every_stream_is_near_alpha": [
        "online.PID",
    ],
    "test_delays::test_bounds_hold_on_every_late_sequence": [
        "online.ACI",
        "online.PID",
    ],
    "test_late::test_the_bound_of_a_queue_out_of_order": ["online.Queue"],
    "test_online::test_nexcp_covers_exchangeable_rows": [
        "online.NexCP",
        "online.nexcp_weights",
    ],
    "test_outlier_guarantees::test_martingales_rarely_cross_and_see_a_shift": [
        "pvalues.MixtureMartingale",
        "pvalues.PowerMartingale",
        "pvalues.SimpleJumper",
        "pvalues.alarm_level",
        "pvalues.sequential_p_values",
        "pvalues.watch",
    ],
    "test_monitors::test_quiet_streams_rarely_alarm": [
        "online.ChangeMonitor",
        "online.RiskMonitor",
    ],
    "test_monitors::test_means_stay_between_the_ends": ["online.confidence_sequence"],
    "test_monitors::test_exchangeable_streams_rarely_alarm": [
        "online.ExchangeabilityMonitor",
    ],
    "test_monitors::test_permutations": ["pvalues.permutation_test"],
    # Many rows at once.
    "test_outlier_guarantees::test_p_values_are_uniform": ["outliers.outlier_p_values"],
    "test_outlier_guarantees::test_false_discovery_rate": [
        "pvalues.benjamini_hochberg",
        "pvalues.storey_benjamini_hochberg",
    ],
    "test_outlier_guarantees::test_batches_of_nominal_rows": [
        "pvalues.fisher_test",
        "pvalues.simes_test",
    ],
    "test_outliers::test_storey_counts_the_calibration_rows": [
        "pvalues.storey_benjamini_hochberg",
    ],
    "test_metrics_sizes::test_p_values_of_dependence": ["metrics.hsic_test"],
    "test_metrics_probabilities::test_tests_of_calibration_hold_their_level": [
        "metrics.calibration_test",
    ],
    "test_probability::test_one_of_both_probabilities_is_calibrated": [
        "predictive.venn_abers",
    ],
    "test_outliers::test_conditional_p_values_hold_for_most_calibration_sets": [
        "outliers.conditional_outlier_p_values",
    ],
    "test_familywise::test_false_rejections_are_as_rare_as_delta": [
        "pvalues.bonferroni",
        "pvalues.fixed_sequence",
        "pvalues.graphical",
        "pvalues.holm",
    ],
    "test_conformal_selection::test_false_discovery_rate_of_fixed_nulls": [
        "pvalues.selection_p_values",
    ],
    "test_conformal_selection::test_false_discovery_rate_under_covariate_shift": [
        "pvalues.weighted_selection",
    ],
    "test_conformal_selection::test_e_values_of_nominal_rows_sum_to_at_most_m": [
        "pvalues.e_benjamini_hochberg",
        "pvalues.e_values",
    ],
    # Bounds of risks, and settings that keep them.
    "test_risk_bounds::test_p_values_of_true_claims_are_at_most_uniform": [
        "risk.p_value",
        "risk.upper_bound",
    ],
    "test_risk_bounds::test_betting_bounds_miss_at_most_delta_and_restarted_ones_"
    "more": ["risk.upper_bound"],
    "test_risk_counts::test_counts_are_those_of_the_definition": [
        "risk.critical_count",
    ],
    "test_risk_quantiles::test_bounds_hold_together": ["risk.cdf_bounds"],
    "test_risk_quantiles::test_quantile_risk_holds_with_probability": [
        "risk.conditional_value_at_risk",
        "risk.value_at_risk",
    ],
    "test_risk_testing::test_answers_err_too_often_with_probability_delta": [
        "risk.selective_threshold",
    ],
    "test_risk_testing::test_valid_settings_are_all_right_with_probability_one_minus_"
    "delta": ["risk.learn_then_test", "risk.pareto_test"],
}
EQUAL = {  # what holds a name equal to others that have a law
    "test_transform::test_ends_are_mapped_and_swapped_where_the_function_falls": [
        "sets.Band.transform",
        "sets.Box.transform",
        "sets.Interval.transform",
    ],
    "test_certificates::test_certificate_of_a_calibration": ["Calibration.certificate"],
    "test_chunks::test_chunks_have_the_bits_of_the_whole": ["distributed.quantile"],
    "test_detection::test_calibration_on_images_is_calibration_on_pairs": [
        "detection.calibrate_boxes",
    ],
    "test_full_conformal::test_marginal_coverage_is_known": [
        "FullConformal.certificate",
    ],
    "test_full_discretized::test_certificate_is_the_marginal_coverage": [
        "DiscretizedConformal.certificate",
    ],
    "test_risk_counts::test_certificates_with_delta": ["conformal_rank"],
    "test_risk_counts::test_the_level_is_the_largest_mean_with_a_small_p_value": [
        "risk.hoeffding_bentkus_level",
    ],
    "test_risk_delta::test_each_group_has_its_rank": [
        "GroupCalibration.__call__",
        "calibrate_groups",
    ],
    "test_split_groups::test_a_model_is_its_predictions": ["split_conformal"],
    "test_masked::test_sets_and_p_values_are_those_of_the_definition": [
        "MaskedCalibration.p_values",
    ],
    "test_risk_delta::test_models_boxes_and_outliers": [
        "outliers.is_outlier",
        "split_conformal",
    ],
}
UNTESTED = {
    "enbpi": "asymptotic: no number of rows has a bound",
    "online.DtACI": "a regret whose bound grows with the path of the best alphas",
    "online.SPCI": "asymptotic: a fit to a finite window covers less",
    "online.Similar": "asymptotic: no number of scores has a bound",
    "online.SFOGD": "asymptotic: rates of growth, without their constants",
}


def promises():
    """Yields public names, and methods of classes, whose guarantee says something."""
    for case in public():
        (value,) = case.values
        parts = {case.id: value}
        if inspect.isclass(value):
            functions = inspect.getmembers(value, inspect.isfunction)  # inherited, too
            parts |= {f"{case.id}.{name}": f for name, f in functions}
        for name, part in parts.items():
            text = sections(part).get("Guarantee", "none").strip()
            if not NONE.match(text):
                yield name.removeprefix("jaxcp.")


def test_every_promise_has_a_law_or_a_reason():
    """And every row is of a promise that is there."""
    rows = [
        name for table in (LAWS, EQUAL) for names in table.values() for name in names
    ]
    assert not set(rows) & set(UNTESTED)
    known, found = {*rows, *UNTESTED}, set(promises())
    assert found - known == set(), "no law"
    assert known - found == set(), "no such promise"


@pytest.mark.parametrize("law", [*LAWS, *EQUAL])
def test_laws_are_there(law):
    file, _, name = law.partition("::")
    (path,) = Path(__file__).parents[1].rglob(f"{file}.py")
    module = ast.parse(path.read_text())
    functions = {v.name for v in module.body if isinstance(v, ast.FunctionDef)}
    assert name.startswith("test_") and name in functions
