"""Sums of many rows: as exact as floats are, of equal numbers and in any order.

A float that is added to 10^6 others, one after the other, loses up to one percent:
where numbers tie it is always rounded the same way.
"""

import ast
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_many_rows import DOORS

import jaxcp
from jaxcp import learners, metrics, predictive, pvalues, scores
from jaxcp.sets import Interval

VALUES = 0.1, 0.9, 0.3  # no binary fractions
KEY = jax.random.key(0)


def widths(v):
    return Interval(jnp.zeros(v.shape), jnp.asarray(v))


def zeros(v):
    return np.zeros(v.shape, int)


def places(v):
    return np.arange(len(v))


def odd(v):
    return places(v) % 2


def columns(v):
    return np.stack([v, 1 - v], axis=1)


def table(result, *names):
    return [result.columns[name] for name in names]


def of_groups(num_groups, num_clusters=None):
    def call(v):
        groups = places(v) % num_groups
        options = {"num_groups": num_groups, "loss": lambda s, y: s.upper}
        if num_clusters is not None:
            options["clusters"] = places(v) % num_clusters
        found = metrics.by_group(widths(v), 2 * v, groups, **options)
        return table(found, "mean_size", "mean_loss")

    return call


def calibration_error(num_bins, **options):
    def call(v):
        probs = columns(v) if options.get("kind") else v
        return metrics.expected_calibration_error(
            probs, zeros(v), num_bins=num_bins, **options
        )

    return call


def walk(kind):
    return lambda v: metrics.calibration_test(v, zeros(v), kind=kind).statistic


def walked(v, n):
    return np.sqrt(n * v / (1 - v))


def levels(v):
    labels = (places(v) % 10 == 0).astype(int)
    at = np.float32([0.55])
    options = {"weights": v, "num_levels": 1000}
    return predictive.venn_abers(np.full_like(v, 0.55), labels, at, **options)


def fit(x, y, weights=np.ones_like):
    """Of a tenth of the rows: a fit takes many steps."""

    def call(v):
        v = v[::10]
        rows = (np.asarray(row(v), "f") for row in (x, y, weights))
        return predictive.isotonic(*rows)[:2]

    return call


def leveled(v, n):
    return np.array([v * n / 10, v * n / 10 + 1])[:, None] / (v * n + 1)


def ridge(x, **options):
    def call(v):
        learner = learners.Ridge(1e-3, **options)
        params = learner.fit(KEY, x(v), v, np.ones_like(v))
        return learner.predict(params, x(v[:3]))

    return call


def survival(v):
    times = places(v).astype("f")
    model = learners.KaplanMeier().fit(times, np.ones(len(v), bool))
    return model.survival(np.floor(v[0] * len(v)))


def censored(v):
    """Half of the bounds are missed, and each miss weighs 2 / (1 + v)."""
    sets = Interval(2 * (places(v) % 2), np.full(len(v), np.inf))
    rows = np.ones(len(v)), np.ones(len(v), bool)
    return jaxcp.survival.coverage(sets, *rows, lambda t: (1 + v) / 2).coverage


def bets(martingale):
    return lambda v: pvalues.watch(martingale, v)[1][-1]


# A call of many equal numbers, and what it is of one number v and n rows.
SUMS = {
    "brier_score": (lambda v: metrics.brier_score(v, zeros(v)), lambda v, n: v**2),
    "by_group": (of_groups(3), lambda v, n: v),
    "by_group, in clusters": (of_groups(3, num_clusters=7), lambda v, n: v),
    "by_group of very many": (of_groups(1000), lambda v, n: v),
    "calibration_test": (walk("kolmogorov"), walked),
    "calibration_test, range": (walk("kuiper"), walked),
    "calibration_test, sum": (walk("spiegelhalter"), walked),
    "coverage_width_criterion": (
        lambda v: metrics.coverage_width_criterion(widths(v), odd(v), 0.5, eta=3.0),
        lambda v, n: 1 - v,
    ),
    "crps": (lambda v: metrics.crps(v[:, None], zeros(v)), lambda v, n: v),
    "crps of many atoms": (
        lambda v: metrics.crps(v[None], np.zeros(1, "f")),
        lambda v, n: v,
    ),
    "crps of weights": (
        lambda v: metrics.crps(
            predictive.Atoms(odd(v)[None].astype("f"), v[None]), np.zeros(1, "f")
        ),
        lambda v, n: 0.25,
    ),
    "energy_score": (
        lambda v: metrics.energy_score(v[:, None], zeros(v)),
        lambda v, n: v,
    ),
    "excess_coverage_risk": (
        lambda v: metrics.excess_coverage_risk(widths(v), zeros(v), 0.99 + 0 * v, v[0]),
        lambda v, n: v,
    ),
    "expected_calibration_error": (calibration_error(5), lambda v, n: v),
    "expected_calibration_error of 15": (calibration_error(15), lambda v, n: v),
    "expected_calibration_error of runs": (
        calibration_error(15, bins="mass"),
        lambda v, n: v,
    ),
    "expected_calibration_error of classes": (
        calibration_error(15, kind="classwise"),
        lambda v, n: 1 - v,
    ),
    "expected_calibration_error of the label": (
        calibration_error(15, kind="top_label"),
        lambda v, n: 1 - v,
    ),
    "isotonic": (fit(lambda v: 0 * v, lambda v: v), lambda v, n: v),
    "isotonic of two": (fit(odd, lambda v: v), lambda v, n: v),
    "isotonic of one block": (
        fit(places, lambda v: (places(v) < len(v) // 2) * v),
        lambda v, n: v / 2,
    ),
    "khosravi_coverage_width_criterion": (
        lambda v: metrics.khosravi_coverage_width_criterion(
            widths(v), odd(v), 0.5, eta=3.0
        ),
        lambda v, n: v,
    ),
    "log_score": (metrics.log_score, lambda v, n: -v),
    "mean_bound": (
        lambda v: metrics.mean_bound(widths(v), side="upper"),
        lambda v, n: v,
    ),
    "mean_finite_size": (
        lambda v: metrics.mean_finite_size(widths(v)),
        lambda v, n: v,
    ),
    "mean_loss": (
        lambda v: metrics.mean_loss(lambda s, y: y, widths(v), v).mean,
        lambda v, n: v,
    ),
    "mean_size": (lambda v: metrics.mean_size(widths(v)), lambda v, n: v),
    "pinball": (
        lambda v: metrics.pinball(widths(v), zeros(v), 0.5, side="upper"),
        lambda v, n: v / 2,
    ),
    "pinball_score": (
        lambda v: metrics.pinball_score(v, zeros(v), 0.25),
        lambda v, n: 0.75 * v,
    ),
    "variogram_score": (
        lambda v: metrics.variogram_score(
            np.stack([0 * v, v], axis=1)[:, None], np.zeros((len(v), 2))
        ),
        lambda v, n: 2 * v,
    ),
    "venn_abers": (levels, leveled),
    "watch": (
        bets(pvalues.PowerMartingale(0.5)),
        lambda v, n: n * (np.log(0.5) - 0.5 * np.log(v)),
    ),
    "winkler_score": (
        lambda v: metrics.winkler_score(widths(v), 2 * v, 0.5),
        lambda v, n: 5 * v,
    ),
    "survival.coverage": (censored, lambda v, n: v / (1 + v)),
    "root_mean_square": (
        lambda v: scores.root_mean_square(v[:, None]),
        lambda v, n: v,
    ),
    "Ridge": (
        ridge(lambda v: np.stack([odd(v), places(v) % 7], 1).astype("f")),
        lambda v, n: v,
    ),
    "KaplanMeier": (survival, lambda v, n: 1 - (np.floor(np.float32(v) * n) + 1) / n),
    "Held.effective_size": (
        lambda v: jaxcp.Held(v, weights=v).effective_size(),
        lambda v, n: n,
    ),
    "Held.effective_size of groups": (
        lambda v: jaxcp.Held(
            v, weights=v, groups=places(v) % 20, num_groups=20
        ).effective_size(),
        lambda v, n: n / 20,
    ),
}
# Doors that add up no floats of rows, or not as they stand.
NO_SUMS = {
    "selects, ranks or counts rows": "calibrate_conditional calibrate_local "
    "calibrate_masked conformal_p_value conformal_quantile cross_calibrate "
    "cross_conformal cv_plus discretized_conformal draw empirical_quantile enbpi "
    "fit_quantile full_conformal grouped_conformal_quantile influence_conformal "
    "jackknife_plus jackknife_plus_after_bootstrap kth_smallest report "
    "sharded_conformal_quantile split_conformal split_conformal_fit class_coverage "
    "conditional_coverage_error metrics.coverage coverage_gap covered empty_rate "
    "full_rate group_coverage infinite_rate longest_miss median_size singleton_rate "
    "sizes min_size_stratified_coverage size_strata size_stratified_coverage iou "
    "size_stratified_coverage_violation worst_slab_coverage worst_window_coverage "
    "conditional_outlier_p_values grouped_outlier_p_values is_outlier match_boxes "
    "outlier_p_values benjamini_hochberg bonferroni fixed_sequence graphical holm "
    "permutation_test selection_p_values sequential_p_values simes_test check "
    "storey_benjamini_hochberg calibrate_effect effect_sets calibrate_selected "
    "impute_censoring pareto_front selective_threshold value_at_risk interval_score",
    "adds weights as integers": "weighted_conformal_quantile weighted_select "
    "weighted_selection calibrate_outcome calibrate_lower e_benjamini_hochberg "
    "e_values",
    "adds with slack, or what each rounding adds to the next": "calibrate_risk "
    "conditional_value_at_risk learn_then_test p_value pareto_test upper_bound "
    "confidence_sequence",
    "is of single rows, or mends its own steps": "run merge_pairs",
    "is of pairs of rows: 10^6 are too many": "hsic hsic_null hsic_test",
    "is a loss to descend, or a smooth set": "conformal_training_loss select_score "
    "soft_membership soft_size train_score soft_conformal_quantile",
    "is `isotonic` or `venn_abers` of each fold or pair": "cross_venn_abers "
    "venn_abers_classes",
    "is a tail of a law, of a jnp.sum": "fisher_test",
    "is a mean of draws": "mean_volume",
    "is several of these together": "summary",
    "fits by steps": "density_ratio label_ratio",
}


def test_each_door_is_in_a_table():
    names = {name.split()[0].strip(",") for name in SUMS}
    left_out = {name for of_reason in NO_SUMS.values() for name in of_reason.split()}
    assert not names & left_out
    last_words = Counter(door.rpartition(".")[2] for door in DOORS)
    shared = {word for word, count in last_words.items() if count > 1}
    doors = {*last_words} - shared
    doors |= {door for door in DOORS if door.rpartition(".")[2] in shared}
    assert doors <= names | left_out


def assert_as_in_double(name, n):
    call, expected = SUMS[name]
    for value in VALUES:
        v = np.full(n, value, "f")
        found = np.asarray(jax.tree.leaves(call(v)), float)
        wanted = expected(float(v[0]), n)
        assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-5)


@pytest.mark.parametrize("name", SUMS)
def test_equal_numbers_are_added_as_in_double_precision(name):
    assert_as_in_double(name, 10**6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_ten_times_as_many(name):
    assert_as_in_double(name, 10**7)


def test_a_survival_function_ends_at_zero():
    """Where all die, and nowhere else; one step is a product of one factor."""
    time, event = np.arange(1000.0), np.ones(1000, bool)
    model = learners.KaplanMeier().fit(time, event)
    assert float(model.survival(999)) == 0
    assert_allclose(model.survival(998), 1e-3, rtol=1e-5)
    assert float(model.survival(-1)) == 1
    assert float(learners.KaplanMeier().fit(time, ~event).survival(999)) == 1


@pytest.mark.parametrize("weighted", [False, True])
def test_an_isotonic_fit_stays_in_the_range_of_its_targets(weighted):
    """A constant is its own fit, to the last bit; slopes stay those of means."""
    keys = jax.random.split(KEY, 300)

    @jax.jit
    @jax.vmap
    def draw(key):
        key_x, key_y, key_w, key_c = jax.random.split(key, 4)
        x = jax.random.randint(key_x, (40,), 0, 5).astype(float)
        constant = jax.random.normal(key_c, ())
        y = constant + 1e-6 * jax.random.bernoulli(key_y, 0.1, (40,))
        weights = jax.random.uniform(key_w, (40,)) if weighted else None
        fit = predictive.isotonic(x, y, weights)
        same = predictive.isotonic(x, jnp.full(40, constant), weights)
        slope = jax.grad(lambda y: jnp.sum(predictive.isotonic(x, y, weights)))
        return y, fit, constant, same, slope(jnp.full(40, constant))

    y, fit, constant, same, slope = draw(keys)
    assert np.all((fit >= y.min(1)[:, None]) & (fit <= y.max(1)[:, None]))
    assert np.all(same == constant[:, None])
    assert_allclose(np.sum(slope, axis=1), 40, rtol=1e-5)  # a shift moves all


FUNCTIONS = "segment_sum", "cumprod", "cumsum", "scan"


def sums_in(tree):
    """Yields the function around each running or scattered sum, and its name."""

    def walk(node, path):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield from walk(child, (*path, child.name))
                continue
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                name, owner = child.func.attr, child.func.value
                at = isinstance(owner, ast.Subscript) and ast.unparse(
                    owner.value
                ).endswith(".at")
                if name in FUNCTIONS or (name == "add" and at):
                    yield ".".join(path), name
            yield from walk(child, path)

    return walk(tree, ())


def running_sums():
    root = Path(jaxcp.__file__).parent
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for function, name in sums_in(ast.parse(path.read_text())):
            yield f"{module}.{function}".rstrip("."), name


# Why each of them loses no digits of many rows.
REASONS = {
    "integers, or flags": "calibration.exporting.drawn "
    "conditional.classes.quantiles_of_classes cross._votes.sort_folds "
    "frames.forecasts._paths metrics.conditional._worst_run "
    "metrics.rates._means_of_clusters metrics.rates.rates_of "
    "quantiles._cells.cell_thresholds quantiles._regression._reached "
    "metrics.streams.worst_window_coverage pvalues.conformal.p_values_in_groups "
    "pvalues.conformal._ranks_in_order pvalues.martingales._split_runs "
    "pvalues.selecting._kept quantiles._chunks.select quantiles._groups.first_keys "
    "quantiles._rows._search quantiles._rows._places_among resampling._block_bootstrap "
    "risk.testing._counts scores.multioutput.HDPCP._kept "
    "sets.labels._listed volumes.estimate._chosen",
    "the sum of blocks itself, with its slope": "_arrays.sums_of_groups "
    "_arrays._sums_of_many_groups _arrays._sums_of_many_groups_jvp",
    "jnp.cumsum adds in pairs": "learners.survival._survival "
    "metrics.probabilities.calibration_test predictive.atoms._of_sorted "
    "predictive.probability._pair pvalues.conformal.masses_of_keys "
    "sets.unions.sweep.sums learners.general._descend",
    "few terms: of components, classes or one block": "_geometry.Mixture._scan "
    "_geometry.Mixture.sample learners.linear._turn learners.linear.center "
    "learners.neighbors.same_distances predictive.probability._classes "
    "pvalues.martingales._one_by_one scores.labels.Entmax._at scores.labels._up_to",
    "the rounding of each step is added to the next": "online.monitors._sequence "
    "pvalues.martingales._in_blocks pvalues.martingales.summed_bets "
    "risk.bounds._largest_log_capital",
    "in double precision, by NumPy": "certificates.laws.log_beta_binomial "
    "plotting.coverage.plot_monitor plotting.coverage.plot_rolling_coverage "
    "plotting.distributions._ends_of_count quantiles.levels.log_simes_bounds",
    "no sum: a choice, a largest or smallest number": "held.rows.Held.in_groups "
    "quantiles._keys.num_passed predictive.probability._slopes "
    "risk.thresholds._first_of_suprema scores.bands._envelope",
    "steps of a method, whose state is one float by definition": "online.stream.run "
    "learners.general._descend learners.quantiles._fit_levels.fit.iterate "
    "models._training._fit models.flows._carried online.stream._run "
    "online.monitors.ExchangeabilityMonitor._after training.tuning._train "
    "pvalues.martingales.capital_along",
}


def test_each_running_sum_has_a_reason():
    """A new one adds in pairs (`sums_of_groups`), exactly, or says why it need not."""
    with_reasons = {name for names in REASONS.values() for name in names.split()}
    assert {place for place, _ in running_sums()} == with_reasons
