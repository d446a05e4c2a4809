"""Masked arrays of numpy, through every public verb that takes arrays.

What is masked holds a number of no meaning: it is no data, and nothing goes on with it.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_array_equal
from test_package import NAMESPACES

import jaxcp
from jaxcp import (
    causal,
    detection,
    learners,
    metrics,
    online,
    outliers,
    predictive,
    pvalues,
    risk,
    scores,
    selection,
    sets,
    survival,
    training,
)
from jaxcp.predictive import Atoms
from rows import ABSOLUTE, KEY, RIDGE

VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD

X = np.arange(1.0, 10.0)
X2 = X[:, None] ** np.arange(1, 3)
P, GROUPS = np.full((9, 3), 1 / 3), np.arange(9) % 3
ONES, SHARES, FLAGS = np.ones(9), X / 10, X > 3
BOXES = np.array([[0.0, 0, 2, 2], [1, 1, 3, 3]])
LABELS = np.arange(2)
PARAMETRIC = learners.GradientLearner(
    lambda key: jnp.zeros(()), lambda p, x: p * x[:, 0], abs, optax.sgd(0.1), 1
)
EVEN = learners.FunctionLearner(
    lambda key, x, y, weights: weights @ y / weights.sum(),
    lambda share, x: jnp.full(len(x), share),
)
LAC, LOSSES, COSTS = scores.LAC(), np.ones((9, 2)), np.arange(2.0)
RAPS = scores.RAPS(jnp.array([0.1, 0.2]), 1)
HELD_OUT = np.arange(9) % 3 == np.arange(3)[:, None]

CP = jaxcp.calibrate(ABSOLUTE, 0 * X, X, weights=ONES)
BY_GROUP = jaxcp.calibrate_groups(
    ABSOLUTE, 0 * X, X, GROUPS, num_groups=3, weights=ONES
)
RESIDUAL = scores.Residual()
SYSTEM = predictive.calibrate_predictive(RESIDUAL, 0 * X, X, weights=ONES)
NEAR = jaxcp.conditional.Gaussian(1.0)
BY_NEAR = jaxcp.calibrate_local(ABSOLUTE, 0 * X, X, X, NEAR)
BY_FEATURES = jaxcp.calibrate_conditional(ABSOLUTE, 0 * X, X, X2)
OF_ARM = causal.calibrate_outcome(ABSOLUTE, 0 * X, X, FLAGS, SHARES)


def total(_, x):
    return x.sum(axis=1)


MASKED = jaxcp.calibrate_masked(total, None, ABSOLUTE, X2, X, fill=0.0)
LOWER = survival.calibrate_lower(X, X, X, cutoff=3.0, probability=SHARES)
SELECTED = selection.calibrate_selected(ABSOLUTE, 0 * X, X, rule=selection.top(2))
CROSS = jaxcp.cross_calibrate(ABSOLUTE, np.zeros((3, 9)), X, HELD_OUT, weights=ONES)
CRC = risk.calibrate_risk(
    risk.miscoverage, ABSOLUTE, 0 * X, X, weights=ONES, groups=GROUPS, num_groups=3
)
SETS = sets.Interval(jnp.asarray(X - 1), jnp.asarray(X + 1))
ENDS = X[:, None] + np.array([-1.0, 1])
CELLS = sets.LabelSet(jnp.ones((9, 3), bool))
EXCHANGEABLE = online.ExchangeabilityMonitor(pvalues.SimpleJumper(), [0.0, 1.0])
ACI = online.ACI(ABSOLUTE, 0.1)
STATE = ACI.init(jnp.asarray(X), 0.1)
NEW = {"test_weights": ONES}


def door(function, *args, **options):
    return function, args, options


# Positions of numpy arrays in each are tried one by one.
DOORS = {
    "calibrate": door(jaxcp.calibrate, ABSOLUTE, X, X, weights=ONES, mask=FLAGS),
    "calibrate, labels": door(jaxcp.calibrate, LAC, P, GROUPS),
    "calibrate, pairs": door(jaxcp.calibrate, scores.CQR(), (X, X), X),
    "calibrate_groups": door(
        jaxcp.calibrate_groups, ABSOLUTE, X, X, GROUPS, num_groups=3, mask=FLAGS
    ),
    "calibrate_selected": door(
        selection.calibrate_selected,
        ABSOLUTE,
        X,
        X,
        rule=selection.top(2),
        mask=FLAGS,
    ),
    "SelectedCalibration": door(SELECTED, X, 0.1),
    "SelectedCalibration.p_values": door(SELECTED.p_values, X, X),
    "calibrate_conditional": door(
        jaxcp.calibrate_conditional, ABSOLUTE, X, X, X2, mask=FLAGS
    ),
    "ConditionalCalibration": door(BY_FEATURES, X, 0.1, features=X2, u=SHARES),
    "ConditionalCalibration.dual": door(BY_FEATURES.dual, X, X, 0.1, features=X2),
    "calibrate_local": door(jaxcp.calibrate_local, ABSOLUTE, X, X, X, NEAR, mask=FLAGS),
    "LocalCalibration": door(BY_NEAR, X, 0.1, x=X, anchors=X, u=SHARES),
    "LocalCalibration.p_values": door(BY_NEAR.p_values, X, X, x=X),
    "calibrate_outcome": door(
        causal.calibrate_outcome, ABSOLUTE, X, X, FLAGS, SHARES, mask=FLAGS
    ),
    "OutcomeCalibration": door(OF_ARM, X, 0.1, propensity=SHARES, u=SHARES),
    "OutcomeCalibration.p_values": door(OF_ARM.p_values, X, X, propensity=SHARES),
    "propensity_box": door(causal.propensity_box, SHARES, 2.0),
    "effect_sets": door(causal.effect_sets, SETS, SETS, X, FLAGS),
    "calibrate_effect": door(
        causal.calibrate_effect, ABSOLUTE, X, SETS, weights=ONES, mask=FLAGS
    ),
    "Calibration": door(CP, X, 0.1, test_weights=ONES),
    "Calibration.p_values": door(CP.p_values, X, X, u=SHARES, test_weights=ONES),
    "GroupCalibration": door(BY_GROUP, X, 0.1, groups=GROUPS, test_weights=ONES),
    "GroupCalibration.p_values": door(
        BY_GROUP.p_values, X, X, groups=GROUPS, u=SHARES, test_weights=ONES
    ),
    "calibrate_predictive": door(
        predictive.calibrate_predictive, RESIDUAL, X, X, weights=ONES, mask=FLAGS
    ),
    "calibrate_predictive, groups": door(
        predictive.calibrate_predictive, RESIDUAL, X, X, GROUPS, num_groups=3
    ),
    "PredictiveSystem": door(SYSTEM, X, 0.1, test_weights=ONES),
    "PredictiveSystem.cdf": door(SYSTEM.cdf, X, X, u=SHARES, test_weights=ONES),
    "PredictiveSystem.quantile": door(SYSTEM.quantile, X, 0.5, side="upper"),
    "PredictiveSystem.crps": door(SYSTEM.crps, X, X),
    "PredictiveSystem.mean": door(SYSTEM.mean, X),
    "calibrate_masked": door(
        jaxcp.calibrate_masked, total, None, ABSOLUTE, X2, X, X2 > 3, fill=np.ones(2)
    ),
    "MaskedCalibration": door(MASKED, X2, 0.1, missing=X2 > 3, u=SHARES),
    "MaskedCalibration.p_values": door(MASKED.p_values, X2, X, missing=X2 > 3),
    "jackknife_plus, clusters": door(
        jaxcp.jackknife_plus, KEY, RIDGE, ABSOLUTE, X2, X, clusters=GROUPS
    ),
    "group_k_fold": door(jaxcp.resampling.group_k_fold, KEY, GROUPS, 2),
    "split_conformal": door(
        jaxcp.split_conformal, lambda _, x: x, None, ABSOLUTE, X, X, weights=ONES
    ),
    "split_conformal, groups": door(
        jaxcp.split_conformal,
        lambda _, x: x,
        None,
        ABSOLUTE,
        X,
        X,
        groups=GROUPS,
        num_groups=3,
    ),
    "split_conformal_fit": door(
        jaxcp.split_conformal_fit, KEY, RIDGE, ABSOLUTE, X2, X, share=0.5
    ),
    "split_conformal_fit, groups": door(
        jaxcp.split_conformal_fit,
        KEY,
        RIDGE,
        ABSOLUTE,
        X2,
        X,
        share=0.5,
        groups=GROUPS,
        num_groups=3,
    ),
    "extended": door(
        jaxcp.calibrate(ABSOLUTE, X, X, mask=FLAGS).extended, X, X, mask=FLAGS
    ),
    "extended, groups": door(
        jaxcp.calibrate_groups(ABSOLUTE, X, X, GROUPS, num_groups=3).extended,
        X,
        X,
        GROUPS,
    ),
    "density_ratio": door(learners.density_ratio, KEY, EVEN, X2, X2, num_folds=3),
    "label_ratio": door(learners.label_ratio, np.eye(3)[GROUPS], GROUPS, P),
    "group_classes": door(
        jaxcp.conditional.group_classes, KEY, X, GROUPS, 2, min_count=1
    ),
    "bins": door(jaxcp.conditional.bins, X, np.array([-np.inf, 3.0, np.inf])),
    "indicators": door(jaxcp.conditional.indicators, {"is above 3": FLAGS}),
    "fourier": door(jaxcp.conditional.fourier, KEY, X2, 3, 1.0),
    "polynomial": door(jaxcp.conditional.polynomial, X2, 2),
    "root_mean_square": door(scores.root_mean_square, X2),
    "envelope": door(scores.envelope, X2, 0.5),
    "fit_quantile": door(jaxcp.fit_quantile, KEY, RIDGE, ABSOLUTE, X, X, X2),
    "cross_calibrate": door(
        jaxcp.cross_calibrate, ABSOLUTE, np.zeros((3, 9)), X, HELD_OUT, weights=ONES
    ),
    "CrossCalibration": door(CROSS, np.zeros((3, 9)), 0.1, **NEW),
    "CrossCalibration.minmax": door(CROSS.minmax, np.zeros((3, 9)), 0.1, **NEW),
    "CrossCalibration.aggregate": door(CROSS.aggregate, np.zeros((3, 9))),
    "cross_conformal": door(
        jaxcp.cross_conformal, KEY, RIDGE, ABSOLUTE, X2, X, 1.0 - HELD_OUT
    ),
    "jackknife_plus": door(
        jaxcp.jackknife_plus, KEY, RIDGE, ABSOLUTE, X2, X, calibration_weights=ONES
    ),
    "cv_plus": door(jaxcp.cv_plus, KEY, RIDGE, ABSOLUTE, X2, X, folds=GROUPS),
    "jackknife_plus_after_bootstrap": door(
        jaxcp.jackknife_plus_after_bootstrap,
        KEY,
        RIDGE,
        ABSOLUTE,
        X2,
        X,
        num_resamples=4,
    ),
    "enbpi": door(jaxcp.enbpi, KEY, RIDGE, ABSOLUTE, X2, X, num_resamples=4),
    "full_conformal": door(
        jaxcp.full_conformal, KEY, RIDGE, ABSOLUTE, X2, X, calibration_weights=ONES
    ),
    "discretized_conformal": door(
        jaxcp.discretized_conformal, KEY, RIDGE, ABSOLUTE, X2, X, X, mask=FLAGS
    ),
    "influence_conformal": door(
        jaxcp.influence_conformal, KEY, PARAMETRIC, X2, X, grid=X, mask=FLAGS
    ),
    "conformal_bayes": door(
        jaxcp.conformal_bayes, np.zeros((4, 9)), np.zeros((4, 2, 3)), 0.1
    ),
    "conformal_quantile": door(jaxcp.conformal_quantile, X, 0.1, mask=FLAGS),
    "conformal_rank": door(jaxcp.conformal_rank, GROUPS, np.array([0.1, 0.2, 0.3])),
    "conformal_p_value": door(jaxcp.conformal_p_value, X, 1.0, weights=ONES),
    "weighted_conformal_quantile": door(
        jaxcp.weighted_conformal_quantile, X, ONES, 0.1
    ),
    "grouped_conformal_quantile": door(
        jaxcp.grouped_conformal_quantile, X, GROUPS, 0.1, num_groups=3, mask=FLAGS
    ),
    "distributed.quantile": door(jaxcp.distributed.quantile, [X], 0.1),
    "sharded_conformal_quantile": door(
        jaxcp.sharded_conformal_quantile,
        X,
        0.1,
        jax.make_mesh((1,), ("rows",)),
        mask=FLAGS,
        weights=ONES,
    ),
    "soft_conformal_quantile": door(
        jaxcp.soft_conformal_quantile, X, 0.1, bandwidth=0.1
    ),
    "empirical_quantile": door(jaxcp.empirical_quantile, X, 0.1),
    "kth_smallest": door(jaxcp.kth_smallest, X, GROUPS, where=FLAGS),
    "weighted_select": door(jaxcp.weighted_select, X, ONES, 3.0),
    "draw": door(jaxcp.draw, KEY, lambda key, x, n: jnp.zeros((n, 2)), X2, 4),
    "coverage_test": door(jaxcp.certificates.coverage_test, FLAGS, 9, 0.1),
    "pit_test": door(jaxcp.certificates.pit_test, SHARES, 9),
    "calibrate_boxes": door(
        detection.calibrate_boxes,
        scores.BoxOffset(),
        [BOXES],
        [BOXES],
        min_iou=0.5,
        pred_labels=[LABELS],
        true_labels=[LABELS],
    ),
    "match_boxes": door(detection.match_boxes, BOXES, BOXES, min_iou=0.5),
    "match_images": door(
        detection.match_images,
        [BOXES],
        [BOXES],
        min_iou=0.5,
        confidences=[np.ones(2)],
        min_confidence=0.5,
    ),
    "learners.check": door(learners.check, RIDGE, X2, X),
    "scores.check": door(scores.check, ABSOLUTE, X, X),
    "membership": door(sets.membership, sets.Interval(0.0, 1.0), X),
    "Interval.contains": door(SETS.contains, X),
    "LabelSet.contains": door(CELLS.contains, GROUPS),
    "brier_score": door(metrics.brier_score, SHARES, FLAGS),
    "by_group": door(metrics.by_group, SETS, X, GROUPS, clusters=GROUPS),
    "calibration_test": door(metrics.calibration_test, SHARES, FLAGS, kind="kuiper"),
    "class_coverage": door(metrics.class_coverage, CELLS, GROUPS),
    "conditional_coverage_error": door(
        metrics.conditional_coverage_error, KEY, SETS, X, X2, 0.1
    ),
    "coverage": door(metrics.coverage, ENDS, X, clusters=GROUPS),
    "coverage_gap": door(metrics.coverage_gap, SETS, X, GROUPS, 0.1, num_groups=3),
    "coverage_width_criterion": door(
        metrics.coverage_width_criterion, SETS, X, 0.1, eta=1.0
    ),
    "covered": door(metrics.covered, SETS, X),
    "crps": door(metrics.crps, X2, X),
    "energy_score": door(metrics.energy_score, X2, X),
    "log_score": door(metrics.log_score, -X),
    "variogram_score": door(
        metrics.variogram_score, X2[:, None], X2, weights=np.eye(2)
    ),
    "Atoms.crps": door(lambda *of: Atoms(of[0], of[1]).crps(of[2]), X2, X2, X),
    "Atoms.cdf": door(lambda *of: Atoms(of[0]).cdf(of[1], u=of[2]), X2, X, SHARES),
    "empty_rate": door(metrics.empty_rate, ENDS),
    "excess_coverage_risk": door(metrics.excess_coverage_risk, SETS, X, SHARES, 0.1),
    "expected_calibration_error": door(
        metrics.expected_calibration_error, SHARES, FLAGS, num_bins=3
    ),
    "full_rate": door(metrics.full_rate, P > 0),
    "group_coverage": door(metrics.group_coverage, SETS, X, GROUPS, num_groups=3),
    "hsic": door(metrics.hsic, SETS, X, sizes=ONES),
    "hsic_null": door(metrics.hsic_null, SETS, X, sizes=ONES),
    "hsic_test": door(metrics.hsic_test, KEY, SETS, X, num_permutations=1, sizes=ONES),
    "infinite_rate": door(metrics.infinite_rate, ENDS),
    "interval_score": door(metrics.interval_score, SETS, X, 0.1),
    "iou": door(metrics.iou, BOXES, BOXES),
    "khosravi_coverage_width_criterion": door(
        metrics.khosravi_coverage_width_criterion, SETS, X, 0.1, eta=1.0
    ),
    "longest_miss": door(metrics.longest_miss, SETS, X),
    "mean_bound": door(metrics.mean_bound, ENDS, side="upper"),
    "mean_finite_size": door(metrics.mean_finite_size, ENDS),
    "mean_loss": door(metrics.mean_loss, risk.miscoverage, SETS, X),
    "mean_size": door(metrics.mean_size, ENDS, clusters=GROUPS),
    "mean_volume": door(metrics.mean_volume, KEY, ENDS),
    "median_size": door(metrics.median_size, ENDS),
    "min_size_stratified_coverage": door(
        metrics.min_size_stratified_coverage, SETS, X, num_bins=2
    ),
    "pinball": door(metrics.pinball, SETS, X, 0.1, side="upper"),
    "pinball_score": door(metrics.pinball_score, X, X, 0.1),
    "singleton_rate": door(metrics.singleton_rate, P > 0),
    "size_strata": door(metrics.size_strata, ENDS, edges=X),
    "size_stratified_coverage": door(
        metrics.size_stratified_coverage, SETS, X, num_bins=2
    ),
    "size_stratified_coverage_violation": door(
        metrics.size_stratified_coverage_violation, SETS, X, 0.1, num_bins=2
    ),
    "sizes": door(metrics.sizes, ENDS),
    "report": door(
        jaxcp.report, jaxcp.calibrate(ABSOLUTE, X, X), X, X, 0.1, groups=GROUPS
    ),
    "summary": door(metrics.summary, SETS, X, 0.1, groups=GROUPS, clusters=GROUPS),
    "winkler_score": door(metrics.winkler_score, SETS, X, 0.1),
    "worst_slab_coverage": door(metrics.worst_slab_coverage, KEY, SETS, X, X2),
    "worst_window_coverage": door(metrics.worst_window_coverage, SETS, X, 2),
    "nexcp_weights": door(online.nexcp_weights, 3, 0.9),
    "run": door(online.run, ACI, STATE, X, X, 0.1),
    "confidence_sequence": door(online.confidence_sequence, SHARES, 0.1, resolution=9),
    "RiskMonitor.run": door(online.RiskMonitor(0.1, 0.1).run, SHARES),
    "ExchangeabilityMonitor.run": door(
        lambda x: EXCHANGEABLE.run(x, EXCHANGEABLE.init(KEY)), X
    ),
    "ACI.init": door(ACI.init, X, 0.1),
    "ACI.step": door(ACI.step, STATE, np.array(0.0), np.array(1.0), 0.1),
    "isotonic": door(predictive.isotonic, X, X, ONES),
    "merge_pairs": door(predictive.merge_pairs, SHARES, SHARES, loss="log"),
    "venn_abers": door(predictive.venn_abers, X, FLAGS, X, weights=ONES),
    "cross_venn_abers": door(
        predictive.cross_venn_abers, X, FLAGS, HELD_OUT, np.ones((3, 2))
    ),
    "venn_abers_classes": door(
        predictive.venn_abers_classes, P, GROUPS, P, scheme="rest"
    ),
    "outlier_p_values": door(
        outliers.outlier_p_values, X, X, u=SHARES, weights=ONES, test_weights=ONES
    ),
    "conditional_outlier_p_values": door(
        outliers.conditional_outlier_p_values, X, X, 0.1
    ),
    "grouped_outlier_p_values": door(
        outliers.grouped_outlier_p_values, X, GROUPS, X, GROUPS, num_groups=3
    ),
    "is_outlier": door(outliers.is_outlier, X, X, 0.1, mask=FLAGS),
    "benjamini_hochberg": door(pvalues.benjamini_hochberg, SHARES, 0.1),
    "bonferroni": door(pvalues.bonferroni, SHARES, 0.1),
    "e_benjamini_hochberg": door(pvalues.e_benjamini_hochberg, X, 0.1),
    "e_values": door(pvalues.e_values, X, X, 0.1),
    "fisher_test": door(pvalues.fisher_test, SHARES),
    "fixed_sequence": door(pvalues.fixed_sequence, SHARES, 0.1),
    "graphical": door(pvalues.graphical, SHARES, 0.1, ONES / 9, np.zeros((9, 9))),
    "holm": door(pvalues.holm, SHARES, 0.1),
    "permutation_test": door(
        pvalues.permutation_test, KEY, X, lambda v: v[0], num_permutations=9
    ),
    "selection_p_values": door(
        pvalues.selection_p_values, X, X, 0.5, X, weights=ONES, test_weights=ONES
    ),
    "sequential_p_values": door(pvalues.sequential_p_values, X, SHARES),
    "simes_test": door(pvalues.simes_test, SHARES),
    "storey_benjamini_hochberg": door(pvalues.storey_benjamini_hochberg, SHARES, 0.1),
    "watch": door(pvalues.watch, pvalues.SimpleJumper(), SHARES),
    "weighted_selection": door(
        pvalues.weighted_selection, KEY, X, X, 0.5, X, ONES, ONES, 0.1
    ),
    "best": door(risk.best, FLAGS, X),
    "best_match": door(risk.best_match, np.eye(3)),
    "calibrate_risk": door(
        risk.calibrate_risk, risk.miscoverage, ABSOLUTE, X, X, weights=ONES, grid=X
    ),
    "RiskCalibration": door(CRC, X, 0.1, groups=GROUPS, test_weights=ONES),
    "conditional_value_at_risk": door(risk.conditional_value_at_risk, SHARES, 0.5, 0.1),
    "value_at_risk": door(risk.value_at_risk, SHARES, 0.5, 0.1),
    "learn_then_test": door(risk.learn_then_test, LOSSES, 0.1, 0.1, where=LOSSES > 0),
    "p_value": door(risk.p_value, SHARES, 0.1, where=FLAGS),
    "pareto_front": door(risk.pareto_front, LOSSES, COSTS),
    "pareto_test": door(risk.pareto_test, LOSSES, LOSSES, COSTS, 0.1, 0.1),
    "selective_threshold": door(
        risk.selective_threshold, SHARES, FLAGS, 0.1, 0.1, grid=SHARES[::-1]
    ),
    "upper_bound": door(risk.upper_bound, SHARES, 0.1, where=FLAGS),
    "calibrate_lower": door(
        survival.calibrate_lower,
        X,
        X,
        X,
        cutoff=3.0,
        probability=SHARES,
        mask=FLAGS,
    ),
    "LowerCalibration": door(LOWER, X, 0.1, probability=SHARES),
    "survival.coverage": door(
        survival.coverage,
        sets.Interval(-X, np.full(9, np.inf)),
        X,
        FLAGS,
        np.ones_like,
        clusters=GROUPS,
    ),
    "impute_censoring": door(
        survival.impute_censoring, KEY, lambda x, c: 0 * c, X, X, FLAGS
    ),
    "KaplanMeier.fit": door(learners.KaplanMeier().fit, X, FLAGS),
    "conformal_training_loss": door(
        training.conformal_training_loss,
        LAC,
        P,
        GROUPS,
        P,
        0.1,
        y=GROUPS,
        temperature=0.1,
    ),
    "select_score": door(training.select_score, KEY, RAPS, P, GROUPS, 0.1),
    "soft_membership": door(
        training.soft_membership, LAC, P, GROUPS, 0.5, temperature=0.1
    ),
    "soft_size": door(training.soft_size, LAC, P, 0.5, temperature=0.1),
    "train_score": door(
        training.train_score,
        KEY,
        RAPS,
        P,
        GROUPS,
        0.1,
        optimizer=None,
        num_steps=1,
        temperature=0.1,
    ),
}


def masked(leaf):
    """The same array, whose last value is masked."""
    hidden = np.arange(leaf.size).reshape(leaf.shape) == leaf.size - 1
    return np.ma.array(leaf, mask=hidden)


PLACES = [
    (name, place)
    for name, (_, *given) in DOORS.items()
    for place, leaf in enumerate(jax.tree.leaves(given))
    if isinstance(leaf, np.ndarray)
]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_masked_values_are_refused(name, place):
    function, *given = DOORS[name]
    leaves, structure = jax.tree.flatten(given)
    leaves[place] = masked(leaves[place])
    args, options = jax.tree.unflatten(structure, leaves)
    with pytest.raises(ValueError, match=r"without masked values.* x\.filled\(0\)"):
        function(*args, **options)


COLUMNS = {
    "integers": np.arange(6),
    "numbers": np.arange(6) / 4,
    "flags": np.arange(6) > 2,
    "words": np.array([*"abcabc"]),
    "objects": np.array([1, "a", ("a", 1), b"a", None, 2.5], object),
    "dates": np.array(["2026-01-01"], "M8[D]") + np.arange(6),
    "times": np.array([10**18], "M8[ns]") + np.arange(6),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_is_masked_has_no_flag(kind):
    """As what is None, in a column whose values are groups."""
    column, hidden = COLUMNS[kind], np.arange(6) % 3 == 1
    groups = {"x": [v for v in column if v is not None]}
    flags = jaxcp.conditional.indicators(
        {"x": np.ma.array(column, mask=hidden)}, groups, intercept=False
    )
    whole = jaxcp.conditional.indicators({"x": column}, groups, intercept=False)
    missing = [None if gone else v for v, gone in zip(column, hidden, strict=True)]
    assert_array_equal(flags, np.where(hidden[:, None], False, whole))
    assert_array_equal(
        flags, jaxcp.conditional.indicators({"x": missing}, groups, intercept=False)
    )


NUMBERS = {"alpha", "delta", "level", "decay", "bound", "bias"}
WITHOUT_ROWS = {
    "save": "it refuses such arrays by name",
    "simulate": "it takes no arrays",
    "forecast": "frames hold none: pandas makes missing values of what is masked",
}


def test_the_table_holds_every_verb_that_takes_arrays():
    tried = {function for function, *_ in DOORS.values()}
    homes = [
        v for v in NAMESPACES if v.__name__ not in ("jaxcp.plotting", "jaxcp.typing")
    ]
    missing = set()
    for home in homes:
        for name in home.__all__:
            verb = getattr(home, name)
            if isinstance(verb, type) or not callable(verb) or verb in tried:
                continue
            kinds = [
                str(parameter.annotation)
                for parameter in inspect.signature(verb).parameters.values()
                if parameter.name not in NUMBERS and parameter.kind != VAR_KEYWORD
            ]
            if any("ArrayLike" in v or "PyTree" in v or v == "Any" for v in kinds):
                missing.add(name)
    assert missing == {*WITHOUT_ROWS}
