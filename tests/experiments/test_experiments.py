"""The experiments still fit the library: traced, not run."""

import math
import struct
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import interpolate, stats

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
import pages
from experiments.data import (
    anomaly,
    boxes,
    conformal_training,
    enbpi_solar,
    fields,
    multioutput_data,
    width_training,
)
from experiments.laws import (
    conditional,
    conformal_bayes,
    coverage_grid,
    coverage_laws,
    full_conformal,
    full_laws,
    jackknife_barber,
    multioutput_toys,
    pit,
    rows,
    selection,
    threshold_gradients,
)
from experiments.peers import ranks
from experiments.pictures import (
    front_page,
    showcase_detection,
    showcase_figures,
    showcase_streams,
    social_card,
)
from experiments.speed import (
    accelerator,
    batches,
    conditional_speed,
    cross_streams,
    full_speed,
    simulation_speed,
)
from experiments.tools import bars, reporting, series
from experiments.tools.multioutput_methods import METHODS, Source, calibrated, offered
from jaxcp import datasets, models, online, pvalues, scores, sets

KEY = jax.random.key(0)


@pytest.mark.parametrize("name", full_conformal.SETTINGS)
def test_settings_of_full_conformal_prediction(name):
    """Every published method has a line, and the bars are the published values."""
    setting = full_conformal.SETTINGS[name]
    small = setting._replace(num_rows=setting.num_features + 20)
    lines = jax.eval_shape(lambda key: full_conformal.trial(key, small), KEY)
    assert set(setting.published) <= set(lines)
    assert lines["jackknife+"]["length"].shape == (full_conformal.NUM_TEST,)
    method, *values = bars.LENGTHS[name]
    assert list(setting.published[method][1:]) == values


def test_lengths_that_are_infinite_have_no_error():
    values = {"coverage": np.ones(2), "length": np.array([[1.0, 2.0], [3.0, np.inf]])}
    line = full_conformal.line("B", "full, ordinary", values)
    assert (line["length"], line["median length"], line["infinite"]) == (
        np.inf,
        2.5,
        0.25,
    )
    assert line["+- length"] is None and line["published length"] == 6.594


def test_splines_of_the_settings():
    """All but the first of the B-splines that SciPy makes of the same knots."""
    x = jax.random.normal(KEY, (200,))
    ends = np.percentile(x, [0, 0, 0, 0, 50, 100, 100, 100, 100])
    expected = interpolate.BSpline.design_matrix(x, ends, 3).toarray()[:, 1:]
    np.testing.assert_allclose(full_laws.splines(x), expected, atol=1e-6)


def test_laws_of_the_settings():
    """Columns of norm 1 about 0; noise of MAD 1 / 1.4826; lags reach back by five."""
    names = "linear", "additive", "correlated"

    @jax.jit
    def drawn(key):
        data = [getattr(full_laws, name)(key, 60, 12) for name in names]
        mixing = full_laws.with_lags(key, jnp.eye(12))
        signs = full_laws.active_signs(key, 12)
        return data, full_laws.heavy_noise(key, 101), mixing, signs

    data, noise, mixing, signs = jax.tree.map(np.asarray, drawn(KEY))
    for x, y in data:
        np.testing.assert_allclose(np.linalg.norm(x, axis=0), 1, rtol=1e-5)
        np.testing.assert_allclose(np.mean(x, axis=0), 0, atol=1e-6)
        assert y.shape == (60,) and np.all(np.isfinite(y))
    spread = np.median(np.abs(noise - np.median(noise)))
    np.testing.assert_allclose(1.4826 * spread, 1, rtol=1e-5)
    assert np.all(np.triu(mixing) == mixing) and np.all(np.diag(mixing) > 0)
    assert np.sum(np.abs(signs)) == full_laws.NUM_ACTIVE


def test_numpy_of_the_timed_sets_is_full_conformal_prediction():
    """In closed form and by refits: no trial value that only one of them keeps."""
    rng = np.random.default_rng(0)
    x, x_new, y = rng.normal(size=(30, 3)), rng.normal(size=(9, 3)), rng.normal(size=30)
    lower, upper = full_speed.numpy_full_conformal(x, y, x_new)
    tried = np.linspace(-5, 5, 40)
    inside = (tried >= lower[:, None]) & (tried <= upper[:, None])
    assert np.array_equal(full_speed.numpy_grid(x, y, x_new, tried), inside)


@pytest.mark.parametrize("design", rows.DESIGNS, ids=lambda names: names[0])
def test_designs_of_rows_tell_the_naive_way_and_the_right_one(design):
    found = jax.eval_shape(rows.DESIGNS[design], KEY)
    assert [*found] == ["naive", "right"]
    kinds = {(v.shape, str(v.dtype)) for v in found.values()}
    assert kinds in ({((), "bool")}, {((8,), "float32")})  # NaN: not selected


def test_published_tables_are_traced():
    for d in (5, 100):
        lines = jax.eval_shape(lambda k, d=d: jackknife_barber.trial(k, d), KEY)
        assert set(jackknife_barber.EARLIER[d]) <= set(lines)


def test_lines_of_conformal_bayes(monkeypatch):
    monkeypatch.setattr(conformal_bayes, "NUM_DRAWS", 50)
    rows, test = ((jnp.ones((n, 3)), jnp.ones(n)) for n in (20, 7))
    lines = jax.eval_shape(conformal_bayes.trial, KEY, rows, test)
    assert set(lines) == set(conformal_bayes.PUBLISHED)


def test_draws_of_the_posterior_of_a_linear_model():
    """Coefficients given sigma by the normal equations, sigma from its marginal."""
    rng, prior_sd, num_draws = np.random.default_rng(0), 0.5, 20_000
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    sigmas = np.geomspace(0.2, 5, 60)
    arrays = jnp.asarray(x), jnp.asarray(y)
    marginal = conformal_bayes.log_marginal(*arrays, prior_sd, jnp.asarray(sigmas))
    exact = np.array(
        [
            stats.multivariate_normal.logpdf(
                y, np.zeros(12), s**2 * np.eye(12) + prior_sd**2 * x @ x.T
            )
            for s in sigmas
        ]
    )
    np.testing.assert_allclose(np.ptp(marginal - exact), 0, atol=1e-4)

    run = jax.jit(conformal_bayes.posterior, static_argnums=3)
    b, sigma = run(KEY, *arrays, num_draws, prior_sd, 2.0, jnp.asarray(sigmas))
    weights = np.exp(exact) * stats.halfnorm.pdf(sigmas, scale=2.0) * sigmas
    weights /= weights.sum()
    mean, spread = sigmas @ weights, (sigmas**2 @ weights) ** 0.5
    assert abs(np.mean(sigma) - mean) < 4 * spread / num_draws**0.5

    b, _ = run(KEY, *arrays, num_draws, prior_sd, 2.0, jnp.full(1, 0.7))
    cov = np.linalg.inv(x.T @ x / 0.7**2 + np.eye(3) / prior_sd**2)
    mean, errors = cov @ x.T @ y / 0.7**2, np.sqrt(np.diag(cov) / num_draws)
    assert np.all(np.abs(np.mean(b, axis=0) - mean) < 4 * errors)
    np.testing.assert_allclose(np.cov(b.T), cov, atol=0.05 * np.max(cov))


@pytest.mark.parametrize("name", showcase_streams.METHODS)
def test_streams_of_the_showcase(name):
    series_ = showcase_streams.Series(
        "generated", jnp.ones(9), jnp.zeros(9), jnp.linspace(0, 1, 600), None
    )
    sets = jax.eval_shape(lambda: showcase_streams.sets_of(name, series_, 0.1))
    assert sets.upper.shape == (9,)


def test_timed_streams_and_generated_series():
    for method, size, _ in cross_streams.STREAMS.values():
        state = method.init(jnp.ones(size), 0.1)
        run = lambda y, m=method, s=state: online.run(m, s, y, y, 0.1)[1]  # noqa: E731
        assert jax.eval_shape(run, jnp.ones(3)).upper.shape == (3,)
    x, y = series.autoregression(KEY, 50)
    assert x.shape == (50, 2) and y.shape == (50,)


def test_solar_data_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"solar_atlanta\.csv, hourly rows"):
        series.solar(tmp_path)
    assert list(enbpi_solar.PUBLISHED) == [876, 1654, 2433]


def test_solar_halves_are_random_and_stand_beside_the_published():
    x, y = jax.random.normal(KEY, (60, 7)), jnp.arange(60.0)
    run = jax.jit(lambda key: enbpi_solar.split_trial(key, x, y, 40)["width"])
    one, other = map(run, jax.random.split(KEY))
    assert one != other
    values = {"coverage": jnp.array([0.5, 0.6]), "width": jnp.array([1.0, 3.0])}
    line = enbpi_solar.line(876, "split conformal", values)
    assert (line["published"], line["published width"]) == (0.531, 113.8)
    assert line["width"] == 2 and line["+- width"] == 1
    assert (
        enbpi_solar.line(876, "EnbPI, ...", {"width": 1.0, "coverage": 0.9})["+-"]
        is None
    )


@pytest.mark.parametrize("hours", enbpi_solar.PUBLISHED)
def test_bars_of_solar_are_the_published_values(hours):
    bars_ = {
        (key[1].partition(",")[0], column): float(limit.split()[0])
        for key, column, limit in bars.BARS["enbpi_solar"]
        if key[0] == hours
    }
    for name, (coverage, width) in enbpi_solar.PUBLISHED[hours].items():
        assert bars_[name, "coverage"] == coverage and bars_[name, "width"] == width


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_multioutput_methods(method):
    law = datasets.Unimodal()
    source = Source(law, None, KEY, num_draws=10)

    def covered():
        x, y = law.draw(KEY, 20)
        sets = calibrated(method, source, x, y)(method.preds(source, x), 0.2)
        return jax.vmap(lambda s, v: s.contains(v))(sets, y)

    assert jax.eval_shape(covered).shape == (20,)


def test_what_models_serve():
    without_density = {
        m.name for m in offered(Source(models.FlowMatching(), None, KEY))
    }
    lacking = {m.name for m in METHODS} - without_density
    assert lacking == {"DR-CP", "C-HDR", "C-HDR, extended", "HD-PCP"}
    assert len(offered(Source(models.CouplingFlow(), None, KEY))) == len(METHODS)


def test_exact_values_of_the_toy_laws():
    """The unimodal law in closed form: 15.453, 17.697 and 100 x 0.015673."""
    exact = multioutput_toys.exact_values(datasets.Unimodal(), 10.0)
    assert abs(exact["DR-CP"][0] - 1.567) < 0.01
    assert abs(exact["DR-CP"][1] - 15.453) < 0.05
    assert abs(exact["C-HDR"][1] - 17.697) < 0.05
    assert abs(exact["L-CP"][1] - 17.697) < 0.05


def test_buildings(tmp_path):
    x, y = multioutput_data.like_energy(KEY, 50)
    assert x.shape == (50, 8) and y.shape == (50, 2)
    with pytest.raises(FileNotFoundError, match=r"energy\.csv, energy efficiency"):
        multioutput_data.energy(tmp_path)
    rows = "X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2\n1,2,3,4,5,6,7,8,9,10\n"
    (tmp_path / "energy.csv").write_text(rows)
    x, y = multioutput_data.energy(tmp_path)
    assert x.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]] and y.tolist() == [[9, 10]]


def test_anomalies_and_boxes():
    pool = anomaly.Pool(jnp.arange(100.0), jnp.arange(50.0), 59, 20)
    rates = jax.eval_shape(lambda: anomaly.trial(pool, KEY))
    lines = {name: rate["power"].shape for name, rate in rates.items()}
    kinds = (anomaly.EACH, anomaly.GIVEN, anomaly.BH, anomaly.STOREY)
    assert lines == dict.fromkeys(kinds, (len(anomaly.LEVELS),))
    found = jax.eval_shape(boxes.trial, KEY)
    assert set(found) == {*boxes.METHODS, "n"}
    assert boxes.render(jnp.array([[10.0, 10.0, 30.0, 20.0]])).shape == (256, 256)


def test_conditional_coverage(monkeypatch, tmp_path):
    """Each method has a line, at every x; groups are found by the names of columns."""
    for name, size in {"NUM_FIT": 60, "NUM_CAL": 50, "NUM_TEST": 20}.items():
        monkeypatch.setattr(conditional, name, size)
    found = jax.eval_shape(conditional.trial, KEY)
    assert set(conditional.PUBLISHED) < set(found) and len(found) == 8
    assert {v["miss"].shape for k, v in found.items() if k != "rows"} == {(3,)}
    found = jax.eval_shape(conditional.group_trial, KEY)
    assert found["plain"].shape == found["flags"].shape == (len(conditional.GROUPS),)
    head = "Cement (kg),Slag,Fly Ash,Water,Age,strength\n"
    (tmp_path / "concrete.csv").write_text(head + "1,2,3,4,5,6\n2,2,2,0,9,1\n")
    names, values = conditional.read(tmp_path, "concrete")
    flags, columns = conditional.flags_of("concrete", names, values[:, :-1])
    assert columns == [4, 3, 2, 0]
    assert flags.tolist() == [[True, True, True, False], [False, False, False, True]]
    assert [group for group, *_ in bars.BARS["conditional_groups"][:4]] == [
        ("randomized", group) for group in conditional.GROUPS
    ]


def test_timed_conditional_thresholds_bound_a_share_of_the_scores():
    phi, y, new = conditional_speed.data(200, 200)
    assert phi.shape == new.shape == (200, conditional_speed.NUM_FEATURES)
    inside = np.abs(y) <= conditional_speed.half_widths(phi, y, phi)
    assert 0.88 < inside.mean() < 0.97


def test_selection():
    found = jax.eval_shape(selection.shifted_trial, KEY)
    assert len(found) == 5 and all(set(v) == {"FDR", "power"} for v in found.values())
    found = jax.eval_shape(lambda: selection.law_trial((9, 4, 2, 0.4), KEY))
    assert found["FDR"].shape == ()
    found = jax.eval_shape(selection.repeated_trial, KEY)
    assert {v["disagreement"].shape for v in found.values()} == {()}
    rows = selection.timed_rows(200)
    ours = pvalues.weighted_selection(None, *rows, 0.2, pruning="deterministic")
    loop = selection.numpy_selection(*(np.asarray(v, float) for v in rows), 0.2)
    assert np.array_equal(ours, loop) and loop.any()


@pytest.mark.parametrize("name", conformal_training.METHODS)
def test_conformal_training(name):
    x, y = jnp.ones((40, 3)), jnp.arange(40) % 10
    found = jax.eval_shape(lambda: conformal_training.trial(x, y, name, 2, KEY))
    assert {"APS", "LAC", "APS coverage", "LAC coverage"} < set(found)
    base = {what: np.full(2, 2.0) for what in found}
    lines = conformal_training.table({"cross-entropy": base, name: base})
    assert {line["sets"] for line in lines} == {"APS", "LAC"}
    assert lines[-1]["change, %"] == 0 and lines[-1]["size"] == 2


@pytest.mark.parametrize("name", width_training.METHODS)
def test_width_training(name):
    x, y = jnp.ones((40, 3)), jnp.arange(40.0)
    found = jax.eval_shape(lambda: width_training.trial(x, y, name, (4, 0.1), KEY))
    assert set(found) == {"width", "coverage", "worst fifth"}


def test_concrete_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"concrete\.csv, concrete strength"):
        width_training.concrete(tmp_path)


def test_the_narrowest_of_all_budgets(monkeypatch):
    widths = {300: 3.0, 600: 1.0, 1200: 2.0}
    trial = lambda x, y, method, budget, key: {"width": widths[budget[0]] + 0 * key}  # noqa: E731
    monkeypatch.setattr(width_training, "trial", trial)
    found = width_training.best(None, None, "CQR, pinball", jnp.zeros(3))
    assert found["budget"][0] == 600 and np.all(found["width"] == 1)


def test_slopes_of_the_threshold():
    """The slope of the population's threshold is that of its closed form."""
    tau = lambda d: stats.norm.ppf(0.95) * (1 + 4 * d**2) ** 0.5  # noqa: E731
    # Scores abs(y - theta x) have d = 1/2 - theta.
    slope = -(tau(0.5 + 1e-4) - tau(0.5 - 1e-4)) / 2e-4
    assert abs(threshold_gradients.true_slope() - slope) < 1e-6
    errors = jax.eval_shape(lambda: threshold_gradients.trial(50, KEY))
    assert set(errors) == set(threshold_gradients.COLORS)


def test_detection_in_the_showcase():
    methods = list(showcase_detection.objects(KEY))
    assert len(methods) + len(anomaly.DETECTORS) == showcase_detection.NUM_METHODS
    pool = methods[0].pool
    rows = jnp.arange(30)
    for method in methods:
        sets = jax.eval_shape(lambda m=method: m.sets(pool, rows, rows))
        assert sets.lower.shape == (30, 2)
    pool = replace(pool, y=jnp.arange(100.0))
    quiet = jax.eval_shape(lambda: showcase_detection.quiet(pool, rows, rows))
    assert quiet.upper.shape == (30,)


def test_mnist_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="ten thousand digits of MNIST"):
        anomaly.digits(tmp_path)


GRID = ["split", "Mondrian", "weighted, shifted x", "CV+", "EnbPI", "SF-OGD"]
GRID += ["conditional", "conditional, randomized", "RLCP", "LCP", "rectified"]
GRID += ["SAPS", "margin", "entmax"]
GRID += ["residual, one side", "predictive system", "DCP", "binned, randomized"]
GRID += ["interpolated"]
GRID += ["class-wise LAC", "is_outlier", "boxes, maximum", "C-PCP"]
GRID += ["full", "full, neighbors", "full, discretized", "full, labels"]
GRID += ["split, delta", "all labels", "risk, miscoverage, delta"]


@pytest.mark.parametrize("name", GRID)
def test_methods_of_the_coverage_grid(name):
    method = coverage_grid.BY_NAME[name]
    law = jax.ShapeDtypeStruct((), int)
    out = jax.eval_shape(lambda law: coverage_grid.one(method, KEY, law, 20), law)
    levels = len(coverage_grid.ALPHAS)
    assert out["covered"].shape == out["size"].shape == (levels,)


def test_the_coverage_grid_has_every_method_and_judges_them():
    assert len(coverage_grid.BY_NAME) == len(coverage_grid.METHODS) >= 41
    exact, promised = (coverage_grid.BY_NAME[v] for v in ("split", "jackknife+"))
    counts = stats.betabinom(20, 19, 2).rvs(2000, random_state=0)
    right = coverage_grid.judged(exact, counts, 20, 0.1)
    assert right["level"] == 19 / 21 and right["p-value"] > 1e-4
    assert coverage_grid.judged(exact, counts - (counts > 0), 20, 0.1)["p-value"] < 1e-6
    assert coverage_grid.judged(promised, counts, 20, 0.1)["p-value"] > 0.5
    assert coverage_grid.judged(promised, counts // 2, 20, 0.1)["p-value"] < 1e-6
    with_delta = coverage_grid.judged(
        coverage_grid.BY_NAME["split, delta"], counts, 20, 0.1
    )
    assert with_delta["level"] == 1 and with_delta["p-value"] < 1e-6  # 22 rows at least
    refitted = coverage_grid.BY_NAME["full"]
    for wrong in (0, 1):  # of the right mean, whatever the law; one in 20 too few
        found = coverage_grid.judged(refitted, counts - wrong * (counts > 0), 20, 0.1)
        assert found["level"] == 19 / 21 and (found["p-value"] < 1e-4) == wrong


def test_oracles_of_the_four_laws():
    """Normal: 2 x 1.645. Exponential: from the lower end, -log alpha."""
    widths = [coverage_laws.oracle_width(law, 0.1) for law in coverage_laws.LAWS]
    expected = [3.2897, 3.2897, 2 * stats.t(3).ppf(0.95), np.log(10)]
    np.testing.assert_allclose(widths, expected, rtol=1e-4)
    assert 1 < coverage_laws.oracle_labels("normal", 0.1) < 5


def test_right_systems_look_wrong_to_the_uniform_law():
    row = pit.rates(KEY, 20, 1000, 20)
    assert row["KS, crepes"] == 100 and row["Pearson, drawn"] < 40


def test_ranks_of_recipes():
    """Linear interpolation of n = 9 scores at 0.9 is 8.2."""
    rows = {row["threshold"]: row for row in ranks.taken_rows()}
    assert rows["np.quantile(s, 1 - a)"]["n = 9"] == 8.2
    assert [rows["jaxcp"][f"n = {n}"] for n in ranks.SIZES] == [np.inf, 9, 19, 90, 91]


def test_ranks_are_judged(monkeypatch):
    """At n = 9: alpha 0.5 has rank 5, 0.2 has 8, 0.1 has 9, 0.05 has none."""
    monkeypatch.setattr(ranks, "peers", dict)
    sites = tuple((9, alpha) for alpha in (0.5, 0.2, 0.1, 0.05))
    found = {k: ranks.judged(v, sites) for k, v in ranks.contenders().items()}
    kinds = ["right", "too low", "finite where infinite", "too high"]
    counts = {name: [line[kind] for kind in kinds] for name, line in found.items()}
    assert counts["jaxcp"] == [4, 0, 0, 0]
    assert counts["np.quantile(s, 1 - a)"] == [1, 2, 1, 0]  # 5, 7.4, 8.2, 8.6
    assert counts["the same, method='higher'"] == [1, 0, 1, 2]  # 6, 9, 9, 9
    assert counts["the same, inverted_cdf"] == [3, 0, 1, 0]
    assert ranks.verdict(None, np.inf) == "right" != ranks.verdict(None, 9.0)


def test_each_verb_of_the_audit_has_a_bar():
    checked = [(verb, where) for verb, where, _ in ranks.verbs()]
    assert checked == list(bars.RANKED)
    for threshold in ranks.held_verbs().values():
        assert ranks.judged(threshold, ((9, 0.1), (99, 0.05)))["right"] == 2


@pytest.mark.parametrize("part", ["kernel", "rows", "blocks"])
def test_what_accelerators_are_timed_with(part):
    """In small; alternatives are compared before they are timed."""
    small = accelerator.Sizes(
        kernel=(40_000,), rows=((400, 101),), labels=(60, 20), blocks=(200, 2000)
    )
    small = small._replace(copied=2**10)
    lines = accelerator.measure(small, part)
    assert len({line["call"] for line in lines}) == len(lines) >= 2
    assert all(line["share of peak"] > 0 for line in lines)


def test_the_timed_simulation():
    mean, variance = simulation_speed.by_numpy(8000)
    ours = simulation_speed.run(8000)
    assert abs(mean - ours.mean) < 6 * ours.standard_error
    assert abs(variance / ours.variance - 1) < 0.2


@pytest.mark.slow
def test_the_timed_spans():
    """Two processes, whose merge has the bits of one run, or it raises."""
    rows = simulation_speed.spans(5000, 512, repeats=1)
    assert [row["5000 replicates"] for row in rows][3:] == [
        "two spans in two processes",
        "merge",
    ]
    assert all(row["CPU s"] > 0 for row in rows)


def test_the_times_of_the_front_page_are_those_of_the_results():
    found, machine = front_page.times()
    assert {*found} == {"jaxcp", "numpy", "MAPIE", "PUNCC"}
    assert [*found.values()] == sorted(found.values())
    assert "masked" not in machine["instructions"] and int(machine["cores"]) > 0
    assert f"\n| MAPIE | {found['MAPIE']:.4g} |" in front_page.RESULTS.read_text()


@pytest.mark.parametrize("phone", [False, True])
def test_the_front_page_is_drawn_beside_and_below(phone, monkeypatch):
    monkeypatch.setattr(front_page, "NUM_CALIBRATIONS", 1000)
    y = np.zeros(5, np.float32)
    one = front_page.Drawn(np.arange(5.0), sets.Interval(y - 1, y + 1), y, "told")
    made = dict.fromkeys(("split", "normalized", "CQR"), one)
    figure = front_page.draw(made, KEY, phone=phone)
    across, up = figure.get_size_inches()
    assert (up > 3 * across) == phone
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes[:3]] == [
        *made
    ]
    plt.close(figure)


def test_the_card_says_what_the_readme_says():
    """In the size that platforms show, and small."""
    readme = " ".join(pages.README.read_text().split())
    assert " ".join(social_card.SENTENCE) in readme
    assert len(social_card.ROWS) == 10
    missed = [abs(y - pred) > social_card.HALF for pred, y in social_card.ROWS]
    assert sum(missed) == 1 and social_card.ROWS[0][0] == 950
    ends = f"{950 - social_card.HALF} to {950 + social_card.HALF}"
    assert ends in " ".join(social_card.SENTENCE)
    card = (pages.ROOT / "experiments/pictures/social_card.png").read_bytes()
    assert struct.unpack(">II", card[16:24]) == (1200, 630) and len(card) < 100_000


def test_the_ranks_of_the_front_page():
    """Of the scores 1, ..., 49: 1 + 48 x 0.9, the exact rank 45, and one too many."""
    found = front_page.thresholds(np.arange(1.0, 50.0, dtype=np.float32)[None])
    assert set(found) == set(front_page.COLORS)
    ranks = np.concatenate(list(found.values()))
    np.testing.assert_allclose(ranks, [44.2, 45, 46], rtol=1e-6)


@pytest.mark.parametrize("name", ["split", "CQR"])
def test_the_bands_of_the_front_page(name):
    predict = {"split": lambda x: x[:, 0], "CQR": lambda x: (x[:, 0] - 1, x[:, 0] + 1)}
    score = {"split": scores.Absolute(), "CQR": scores.CQR()}[name]
    way = front_page.Way(score, predict[name])
    x, y = jnp.ones((50, 1)), jnp.ones(50)
    sets = jax.eval_shape(lambda: way.sets(x, y, x[:7]))
    assert sets.lower.shape == sets.upper.shape == (7,)


def test_the_showcase_is_drawn_by_data_set(tmp_path):
    """Rows below the cut, without errors, or of infinite size are drawn, too."""
    line = {"coverage": 0.9, "+-": 0.01, "mean size": 2.0, "+- size": 0.1}
    line |= {"worst group": 0.8, "data": "a", "method": "split"}
    stream = {"+-": None, "+- size": None, "mean size": math.inf, "data": "b"}
    table = [line, line, line | stream, line | stream | {"coverage": 0.3}]
    assert showcase_figures.columns_of(table) == [["a"], ["b"]]
    figure = showcase_figures.draw_table(table, 0.1)
    written = [text.get_text() for text in figure.axes[2].texts]
    assert any("0.3" in text for text in written) and "‹ 0.800" in written
    reporting.save_figure(figure, tmp_path, "table", ("svg",))
    first = (tmp_path / "table.svg").read_bytes()
    reporting.save_figure(figure, tmp_path, "table", ("svg",))
    assert (tmp_path / "table.svg").read_bytes() == first


def test_batches_have_the_threshold_of_the_whole():
    found = [batches.measure(way, 300)["threshold"] for way in ("whole", "batches")]
    assert found[0] == found[1]


def test_fields_solve_their_equation():
    """u_t + u u_x = viscosity u_xx, periodic; low waves decay as those of heat."""
    start = fields.draw_start(KEY)

    def u(t, x):
        return fields.burgers(start, t[None], x[None])[0, 0]

    @jax.jit
    @jax.vmap
    def parts(t, x):
        slopes = jax.grad(u, (0, 1))(t, x)
        curved = jax.grad(jax.grad(u, 1), 1)(t, x)
        return u(t, x), *slopes, fields.VISCOSITY * curved, u(t, x + fields.CIRCLE)

    t, x = jnp.array([0.1, 0.5, 0.9]), jnp.array([1.0, 3.0, 5.0])
    here, u_t, u_x, curved, around = parts(t, x)
    assert np.all(np.abs(u_t) > 1e-2)
    np.testing.assert_allclose(u_t + here * u_x, curved, atol=1e-3)
    np.testing.assert_allclose(around, here, atol=1e-4)
    decay = jnp.exp(-fields.VISCOSITY * fields.ORDERS**2 * 0.1)
    low, lower = (tuple(1e-3 * v * by for v in start) for by in (1, decay))
    low = fields.burgers(low, t[:1], x)[0]
    np.testing.assert_allclose(low, fields.wave(lower, x), atol=1e-5)


def test_bands_of_fields_have_bars():
    """Each scale for all points and for a share, and three bands of points beside."""
    shape = fields.NUM_CALIBRATE + fields.NUM_TEST, 4, 8
    y, scales = (
        jnp.ones(shape),
        dict.fromkeys(("constant", "predicted"), jnp.ones(shape)),
    )
    lines = jax.eval_shape(lambda key: fields.split_trial(y, y, scales, key), KEY)
    beside = {(name, fields.EVERY) for name in fields.ONE_POINT}
    points = fields.EVERY, fields.SOME
    assert set(lines) == beside | {(name, v) for name in scales for v in points}
    told = {
        key if isinstance(key, tuple) else (key, fields.EVERY)
        for key, *_ in bars.BARS["fields"]
    }
    assert set(lines) <= told
