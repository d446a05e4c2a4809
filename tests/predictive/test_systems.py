"""Predictive systems: reference arrays, laws, and edges where others go wrong."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import loaded, reference
from jaxcp import scores
from jaxcp.predictive import calibrate_predictive

X64 = jax.config.jax_enable_x64
CLOSE = {"rtol": 1e-9, "atol": 1e-9} if X64 else {"rtol": 1e-5, "atol": 1e-5}
CASES = ["plain", "ties", "normalized", "weighted", "whole", "tiny", "two"]
LEVELS = [0.2, 0.3, 0.5, 0.8]


@pytest.fixture(scope="module")
def data():
    return reference("distributional/cps")


def of_case(data, name):
    """Returns the system of a case, its test predictions, context, and arrays."""
    found = {k.split("__")[1]: v for k, v in data.items() if k.startswith(f"{name}__")}
    scaled = not np.all(found["sigma_cal"] == 1)
    score = scores.ScaledResidual() if scaled else scores.Residual()
    old, new = found["mu_cal"], found["mu"]
    if scaled:
        old, new = (old, found["sigma_cal"]), (new, found["sigma"])
    weights = {"weights": found["weights"]} if "weights" in found else {}
    system = calibrate_predictive(score, old, found["y_cal"], **weights)
    given = {"test_weights": found["test_weights"]} if weights else {}
    return system, new, given, found


@pytest.mark.double
@pytest.mark.parametrize("name", CASES)
def test_systems_are_the_reference(data, name):
    system, preds, given, case = of_case(data, name)
    y = case["y"]
    assert_allclose(system.cdf(preds, y, u=case["u"], **given), case["cdf"], **CLOSE)
    for u in (0, 1):
        assert_allclose(system.cdf(preds, y, u=u, **given), case[f"cdf_{u}"], **CLOSE)
    sides = ["upper", "lower"] + ["between"] * (not given)
    for side in sides:
        found = system.quantile(preds, case["levels"], side=side, **given)
        assert_allclose(found, case[side], **CLOSE)
    for i, alpha in enumerate(case["alphas"] if "interval" in case else []):
        sets = system(preds, alpha, **given)
        assert_allclose(sets.to_numpy(), case["interval"][:, i], **CLOSE)
    assert_allclose(system.crps(preds, y), case["crps"], **CLOSE)
    if "mean" in case:
        assert_allclose(system.mean(preds), case["mean"], **CLOSE)


@pytest.mark.double
def test_systems_of_groups_are_the_reference(data):
    case = {k.split("__")[1]: v for k, v in data.items() if k.startswith("mondrian__")}
    old = case["mu_cal"], case["y_cal"], case["groups_cal"]
    count = 1 + max(case["groups"].max(), case["groups_cal"].max())
    system = calibrate_predictive(scores.Residual(), *old, num_groups=count)
    preds, y, given = case["mu"], case["y"], {"groups": case["groups"]}
    assert_allclose(system.cdf(preds, y, u=case["u"], **given), case["cdf"], **CLOSE)
    sets = system(preds, 0.2, **given)
    assert_allclose(sets.to_numpy(), case["interval_02"], **CLOSE)
    assert_allclose(system.crps(preds, y, **given), case["crps"], **CLOSE)
    ends = [
        system.quantile(preds, v, side=side, **given)
        for side, v in (("lower", 0.1), ("upper", 0.9))
    ]
    assert_array_equal(ends, sets.ends())


def test_unseen_groups_and_units_say_nothing():
    """crepes gives p = 0 and the interval [0, 0] to a category without rows."""
    y, groups = np.arange(6.0, dtype="f"), np.array([0, 0, 2, 2, 2, 2])
    system = calibrate_predictive(scores.Residual(), 0 * y, y, groups, num_groups=3)
    preds = np.zeros(2, "f")
    _check_nothing(system, preds, groups=np.array([1, 1]))
    ends = system.quantile(preds, 0.5, side="between", groups=np.array([1, 1]))
    assert_array_equal(ends, -np.inf)
    assert np.all(np.isnan(system.mean(preds, groups=np.array([1, 1]))))
    draws = system.draw(jax.random.key(0), preds, 3, groups=np.array([1, 0]))
    assert_array_equal(np.isnan(draws).all(axis=1), [True, False])
    jitted = jax.jit(lambda g: system.cdf(preds, preds, u=U, groups=g))
    assert_array_equal(jitted(np.array([1, 9])), U)
    _check_nothing(calibrate_predictive(scores.Residual(), y[:0], y[:0]), preds)


@pytest.mark.parametrize("score", [scores.Residual(), scores.ScaledResidual()])
def test_infinite_targets_are_beyond_all_rows(score):
    """F(inf) = (n + u) / (n + 1) and F(-inf) = u / (n + 1), eager and traced."""
    y, n = np.arange(9.0, dtype="f"), 9
    scaled = isinstance(score, scores.ScaledResidual)
    preds = (0 * y, 1 + 0 * y) if scaled else 0 * y
    system = calibrate_predictive(score, preds, y)
    two = jax.tree.map(lambda v: v[:2], preds)
    for cdf in (system.cdf, jax.jit(lambda p, y, u: system.cdf(p, y, u=u))):
        options = {"u": U} if cdf == system.cdf else {}
        rows = () if options else (U,)
        above = cdf(two, np.full(2, np.inf, "f"), *rows, **options)
        below = cdf(two, np.full(2, -np.inf, "f"), *rows, **options)
        assert_allclose(above, (n + U) / (n + 1), rtol=1e-6)
        assert_allclose(below, U / (n + 1), rtol=1e-6)


def test_predictions_that_say_nothing():
    y = np.arange(6.0, dtype="f")
    scaled = calibrate_predictive(scores.ScaledResidual(), (0 * y, 1 + y), y)
    for sigma in ([0, -1], [np.inf, 0]):
        _check_nothing(scaled, (np.zeros(2, "f"), np.float32(sigma)))
    levels = scores.PredictedQuantiles([0.2, 0.8])
    through = calibrate_predictive(levels, np.stack([y - 1, y + 1], 1), y)
    _check_nothing(through, np.float32([[0, np.inf]] * 2))


U = np.array([0.3, 0.6], "f")


def _check_nothing(system, preds, **given):
    y = np.ones(2, "f")
    assert_array_equal(system.cdf(preds, y, u=U, **given), U)
    assert_array_equal(system.quantile(preds, 0.5, side="upper", **given), np.inf)
    assert np.all(np.isnan(system.crps(preds, y, **given)))
    assert np.all(system(preds, 0.2, **given).size() == np.inf)


def by_hand(atoms, y):
    """CRPS of atoms (m, n) at y (m,) from all pairs."""
    near = abs(atoms - y[:, None]).mean(axis=1)
    return near - abs(atoms[:, :, None] - atoms[:, None]).mean(axis=(1, 2)) / 2


def test_a_score_whose_units_differ_along_the_line():
    rng = np.random.default_rng(0)
    x = np.sort(rng.normal(size=(30, 4)), axis=1).astype("f")
    y = rng.normal(size=30).astype("f")
    score = scores.PredictedQuantiles(LEVELS)
    for groups in (None, np.arange(20) % 2):
        given = {} if groups is None else {"groups": np.arange(10) % 2}
        own = {} if groups is None else {"groups": groups, "num_groups": 2}
        system = calibrate_predictive(score, x[:20], y[:20], **own)
        rows = system.calibration.scores[:, 1]
        one = lambda pred, q: score.invert(pred, q).upper  # noqa: E731
        pairs = jax.vmap(jax.vmap(one, (None, 0)), (0, None))
        atoms = np.asarray(pairs(jnp.asarray(x[20:]), rows))
        if groups is not None:
            same = groups[None] == given["groups"][:, None]
            atoms = atoms[same].reshape(10, 10)
        found = system.crps(x[20:], y[20:], **given)
        assert_allclose(found, by_hand(atoms, y[20:]), rtol=1e-4, atol=1e-5)
        assert_allclose(
            system.mean(x[20:], **given), atoms.mean(axis=1), rtol=1e-4, atol=1e-5
        )
        inside = (atoms < y[20:, None]).mean(axis=1) * atoms.shape[1]
        cdf = system.cdf(x[20:], y[20:], u=0, **given)
        assert_allclose(cdf, inside / (atoms.shape[1] + 1), rtol=1e-6)


@pytest.mark.parametrize("n", [19, 39, 99, 999])
def test_ranks_of_quantiles_are_exact(n):
    """crepes takes floor(0.05 * (n + 1)) of floats, one rank too low."""
    scores_ = np.arange(1.0, n + 1, dtype="f")
    system = calibrate_predictive(scores.Residual(), 0 * scores_, scores_)
    levels = np.array([0.01, 0.05, 0.07, 0.1, 0.29, 0.57, 0.9, 0.95, 0.99])
    exact = [Fraction(str(v)) * (n + 1) for v in levels]
    zero = np.zeros(1, "f")
    for given in (levels, list(levels), jnp.asarray(levels)):
        lower = system.quantile(zero, given, side="lower")[0]
        upper = system.quantile(zero, given, side="upper")[0]
        ranks = np.array([v // 1 for v in exact], float)
        assert_array_equal(lower, np.where(ranks < 1, -np.inf, ranks))
        ranks = np.array([-(-v // 1) for v in exact], float)
        assert_array_equal(upper, np.where(ranks > n, np.inf, ranks))


def test_shapes_of_levels_and_of_one_sided_bounds():
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 40)).astype("f")
    system = calibrate_predictive(scores.Residual(), mu, y)
    bound = jaxcp.calibrate(scores.Residual(), mu, y)(mu, 0.1)
    found = system.quantile(mu, 0.9, side="upper")
    assert_array_equal(found, bound.upper)
    many = system.quantile(mu, np.full((2, 3), 0.9), side="upper")
    assert many.shape == (40, 2, 3)
    assert_array_equal(many[:, 1, 2], found)
    signed = jaxcp.calibrate(scores.Signed(), mu, y)(mu, 0.3)
    assert_array_equal(system(mu, 0.3).to_numpy(), signed.to_numpy())


def test_draws_have_the_weights_of_the_rows(key):
    y, weights = np.float32([1, 2, 4]), np.float32([1, 0, 3])
    zero = np.zeros(2, "f")
    system = calibrate_predictive(scores.Residual(), 0 * y, y, weights=weights)
    draws = np.asarray(system.draw(key, zero, 4000))
    assert set(np.unique(draws)) == {1, 4}
    assert np.all(abs((draws == 4).mean(axis=1) - 0.75) < 4 * np.sqrt(0.1875 / 4000))
    assert not np.array_equal(draws[0], draws[1])
    groups = np.array([0, 0, 1])
    by_group = calibrate_predictive(scores.Residual(), 0 * y, y, groups, num_groups=2)
    draws = by_group.draw(key, zero, 50, groups=np.array([0, 1]))
    assert set(np.unique(draws[0])) == {1, 2}
    assert set(np.unique(draws[1])) == {4}


def test_the_law_of_intervals(key):
    """Coverage given the calibration set is Beta(j, n + 1 - j)."""
    y = np.random.default_rng(0).normal(size=19).astype("f")
    system = calibrate_predictive(scores.Residual(), 0 * y, y)
    certificate = system.certificate(0.2)
    assert (certificate.rank, certificate.law) == (16, (16, 4))
    assert system.certificate(0.05).law == (20, 0)

    def coverage(key):
        rows, new = jnp.split(jax.random.uniform(key, (69,)), [19])
        given = calibrate_predictive(scores.Residual(), 0 * rows, rows)
        return given(0 * new, 0.2).contains(new).sum()

    covered = np.asarray(jaxcp.simulate(coverage, key, 2000))
    test = jaxcp.certificates.coverage_test(covered, 19, 0.2, num_test=50)
    assert test.p_value > 1e-3
    grouped = calibrate_predictive(
        scores.Residual(), 0 * y, y, np.arange(19) % 2, num_groups=2
    )
    assert [v.law for v in grouped.certificate(0.5)] == [(7, 4), (6, 4)]
    weighted = calibrate_predictive(scores.Residual(), y, y, weights=abs(y) / 9)
    with pytest.raises(ValueError, match="without weights"):
        weighted.certificate(0.1)


def test_a_model_and_its_inputs_saved_and_loaded(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 2)).astype("f")
    y, w = x[:, 0] + x[:, 1] ** 2, np.float32([1, 0.5])
    predict = lambda w, x: x @ w  # noqa: E731
    of_inputs = calibrate_predictive(scores.Residual(), x, y, predict=predict, params=w)
    of_preds = calibrate_predictive(scores.Residual(), x @ w, y)
    for system in (of_inputs, loaded(of_inputs, tmp_path, predict=predict)):
        assert_allclose(system.cdf(x, y, u=0.5), of_preds.cdf(x @ w, y, u=0.5))
        assert_allclose(system(x, 0.2).upper, of_preds(x @ w, 0.2).upper, rtol=1e-6)
        assert_allclose(system.mean(x), of_preds.mean(x @ w), rtol=1e-5)
        assert system.certificate(0.2) == of_preds.certificate(0.2)


def test_outputs_are_systems_of_columns():
    mu, y = np.random.default_rng(0).normal(size=(2, 20, 3)).astype("f")
    make = lambda mu, y: calibrate_predictive(scores.Residual(), mu, y)  # noqa: E731
    systems = jax.vmap(make, 1)(mu, y)
    cdf = lambda system, mu, y: system.cdf(mu, y, u=0.5)  # noqa: E731
    found = jax.vmap(cdf, (0, 1, 1), 1)(systems, mu, y)
    for j in range(3):
        one = make(mu[:, j], y[:, j])
        assert_allclose(found[:, j], one.cdf(mu[:, j], y[:, j], u=0.5), rtol=1e-6)
    with pytest.raises(ValueError, match=r"got 3 outputs; jax\.vmap over columns"):
        make(mu, y)


def test_batches_are_the_whole():
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 30)).astype("f")
    sites = np.array(["a", "b", "c"])[np.arange(30) % 3]
    whole = calibrate_predictive(scores.Residual(), mu, y, sites)
    batches = (
        {"preds": mu[i], "y": y[i], "groups": sites[i]}
        for i in (slice(12), slice(12, None))
    )
    parts = calibrate_predictive(
        scores.Residual(), batches=batches, group_names=["a", "b", "c"]
    )
    asked = {"u": 0.5, "groups": sites}
    assert_array_equal(whole.cdf(mu, y, **asked), parts.cdf(mu, y, **asked))


def test_rows_of_weight_0_are_as_if_deleted_whatever_their_targets():
    mu, y, weights = np.zeros(9), np.arange(9.0), np.r_[np.ones(8), 0] / 2
    new = np.arange(3.0)
    for last in (np.inf, -np.inf, 1e9):
        y[-1] = last
        system = calibrate_predictive(scores.Residual(), mu, y, weights=weights)
        fewer = calibrate_predictive(
            scores.Residual(), mu[:8], y[:8], weights=weights[:8]
        )
        assert_allclose(system.mean(new), fewer.mean(new), rtol=1e-6)


def test_weights_above_one_need_no_test_weights_for_the_crps():
    mu, y = np.random.default_rng(0).normal(size=(2, 20)).astype("f")
    weights = np.linspace(0.5, 3, 20, dtype="f")
    system = calibrate_predictive(scores.Residual(), mu, y, weights=weights)
    halved = calibrate_predictive(scores.Residual(), mu, y, weights=weights / 4)
    assert_allclose(system.crps(mu, y), halved.crps(mu, y), rtol=1e-5)
    with pytest.raises(ValueError, match="test_weights"):
        system.cdf(mu, y, u=0.5)


def test_the_crps_has_finite_slopes():
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 20)).astype("f")
    sigma = np.where(np.arange(20) < 2, 0, 1 + abs(mu)).astype("f")

    def loss(mu, sigma):
        system = calibrate_predictive(
            scores.ScaledResidual(), (mu, sigma), y, mask=sigma > 0
        )
        return jnp.nanmean(system.crps((mu, sigma), y))

    value, slopes = jax.jit(jax.value_and_grad(loss, (0, 1)))(mu, sigma)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(v)) for v in slopes)


def test_wrong_calls_are_refused():
    y = np.arange(9.0, dtype="f")
    system = calibrate_predictive(scores.Residual(), 0 * y, y)
    weighted = calibrate_predictive(scores.Residual(), 0 * y, y, weights=y / 9)
    wrong = [
        (lambda: calibrate_predictive(scores.Absolute(), y, y), "an increasing score"),
        (lambda: calibrate_predictive(scores.Residual(), y, y, predict=3), "as a func"),
        (lambda: system.quantile(y, 0.5, side="middle"), "expected side as one of"),
        (lambda: system.quantile(y, 1.0, side="upper"), r"levels in \(0, 1\), got 1"),
        (lambda: weighted.quantile(y, 0.5, side="between"), "with weights"),
        (lambda: system.cdf(y, y, u=2.0), r"u in \[0, 1\]"),
        (lambda: system.cdf(y, y, u=y[:3] / 9), "u with 9 rows"),
        (lambda: system.crps(y, y, groups=y), "groups only of a calibration with"),
        (lambda: system.draw(0, y, 3), "key"),
        (lambda: system.draw(jax.random.key(0), y, 0), "num_draws"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_predicted_jump_is_known_on_both_sides():
    """F is -inf below quantiles that are all equal, and +inf above: both are known."""
    preds, y = np.zeros((9, 3), "f"), np.linspace(-2, -1, 9).astype("f")
    score = scores.PredictedQuantiles([0.1, 0.5, 0.9])
    system = calibrate_predictive(score, preds, y)
    assert_allclose(system.crps(preds[:2], np.array([-1.0, 1.0])), [1, 1], rtol=1e-5)


def test_unknown_context_is_refused():
    y = np.arange(9.0)
    system = calibrate_predictive(scores.Residual(), 0 * y, y, weights=np.ones(9))
    with pytest.raises(ValueError, match="expected groups or test_weights, got foo"):
        system.cdf(np.zeros(2), np.zeros(2), u=0.5, foo=1)
    with pytest.raises(TypeError, match="test_weights"):
        system.crps(np.zeros(2), np.zeros(2), test_weights=np.ones(2))
