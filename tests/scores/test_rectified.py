"""Scores corrected by their predicted quantile, and what predicts it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.linear_model import LinearRegression, QuantileRegressor

import jaxcp
from helpers import reference
from jaxcp import learners, scores
from jaxcp.scores import Absolute, Rectified
from rows import refuses

KEY, INF = jax.random.key(0), np.inf
VECTORS = reference("conditional_rectified")
NUM_CAL, ALPHAS = VECTORS["num_cal"], [0.05, 0.1, 0.2, 0.5]
X64 = jax.config.jax_enable_x64
CLOSE = {"rtol": 1e-9 if X64 else 1e-4, "atol": 1e-9 if X64 else 1e-5}


def exponential(s, tau):
    return -jnp.expm1(-2 * s / tau)


def vectors(*names):
    """Returns calibration and test rows of vectors, and targets."""
    parts = [jnp.asarray(VECTORS[name], float) for name in (*names, "y")]
    cal, new = (
        [v[rows] for v in parts] for rows in (slice(NUM_CAL), slice(NUM_CAL, None))
    )
    return (tuple(cal[:-1]), cal[-1]), (tuple(new[:-1]), new[-1])


@pytest.mark.double
@pytest.mark.parametrize(
    "name, form",
    [
        ("difference", "difference"),
        ("ratio", "ratio"),
        ("pit", exponential),
        ("pit", (exponential, lambda t, tau: -tau * jnp.log1p(-t) / 2)),
    ],
)
def test_thresholds_are_those_of_the_vectors(name, form):
    (cal, y), (new, _) = vectors("mu", "tau")
    score = Rectified(Absolute(), form)
    q = jaxcp.calibrate(score, cal, y).quantile(ALPHAS)
    assert_allclose(q, VECTORS[f"q_{name}"], **CLOSE)
    at = jax.jit(jax.vmap(jax.vmap(score.threshold, (0, None)), (None, 0)))
    assert_allclose(at(new, q), VECTORS[f"threshold_{name}"], **CLOSE)


def by_sides(pred, y):
    """CQR-m: each side in units of its distance from the middle."""
    lower, middle, upper = pred
    below, above = middle - lower, upper - middle
    return jnp.maximum((lower - y) / below, (y - upper) / above)


def from_middle(pred, y):
    """CQR-fm: the same about the middle, with the same sets."""
    lower, middle, upper = pred
    error = y - middle
    return jnp.maximum(-error / (middle - lower), error / (upper - middle))


@pytest.mark.double
@pytest.mark.parametrize(
    "name, score, parts",
    [
        ("cqr_r", Rectified(scores.CQR(), "ratio"), ("lower", "upper")),
        (
            "cqr_m",
            scores.Custom(by_sides, start=lambda pred: pred[1]),
            ("lower", "mu", "upper"),
        ),
        (
            "cqr_fm",
            scores.Custom(from_middle, start=lambda pred: pred[1]),
            ("lower", "mu", "upper"),
        ),
    ],
)
def test_scaled_bands_are_those_of_the_vectors(name, score, parts):
    def pred(ends):
        return (ends, ends[-1] - ends[0]) if name == "cqr_r" else ends

    (cal, y), (new, y_new) = vectors(*parts)
    cp = jaxcp.calibrate(score, pred(cal), y)
    assert_allclose(cp.scores, VECTORS[f"{name}_scores"], **CLOSE)
    assert_allclose(cp.quantile(ALPHAS), VECTORS[f"{name}_q"], **CLOSE)
    for alpha, ends, held in zip(
        ALPHAS, VECTORS[f"{name}_ends"], VECTORS[f"{name}_in"], strict=True
    ):
        sets = cp(pred(new), alpha)
        assert_allclose(jnp.stack(sets.ends(), axis=1), ends, **CLOSE)
        assert_array_equal(sets.contains(y_new), held)


def test_known_scores_are_cases():
    """To the last bit where the formula is the same operation.

    The ends of `Normalized` are mu + q sigma, rounded once more or less.
    """
    (mu, tau), y = vectors("mu", "tau")[0]
    same = [
        (scores.Normalized(), (mu, tau), "ratio", (mu, tau), 1e-6),
        (Absolute(), mu, "difference", (mu, 0 * tau), 0),
    ]
    for score, preds, form, rectified, rtol in same:
        one = jaxcp.calibrate(score, preds, y)
        two = jaxcp.calibrate(Rectified(Absolute(), form), rectified, y)
        assert_array_equal(one.scores, two.scores)
        sets = one(preds, 0.1), two(rectified, 0.1)
        assert_allclose(sets[0].ends(), sets[1].ends(), rtol=rtol, atol=rtol)
    draws, others, points = (
        jax.random.normal(key, (60, k, 2))
        for key, k in zip(jax.random.split(KEY, 3), (5, 6, 1), strict=True)
    )
    away = jax.vmap(jax.vmap(scores.PCP(), (None, 0)))(draws, others)
    tau = jaxcp.empirical_quantile(away.T, 0.8)
    one = jaxcp.calibrate(scores.CP2PCP(0.2), (draws, others), points[:, 0])
    ratio = Rectified(scores.PCP(), "ratio")
    two = jaxcp.calibrate(ratio, (draws, tau), points[:, 0])
    assert_allclose(one.scores, two.scores, rtol=1e-6)
    radii = one((draws, others), 0.1).radius, two((draws, tau), 0.1).radius
    assert_allclose(*radii, rtol=1e-6)


@pytest.mark.parametrize("form", ["ratio", "difference"])
@pytest.mark.parametrize("tau", [0.0, -1.0, np.nan, INF, -INF])
def test_without_a_quantile_nothing_is_known(form, tau):
    """As `Normalized` without a scale; a difference needs no positive one."""
    score, pred = Rectified(Absolute(), form), (jnp.array(1.0), jnp.array(tau))
    known = form == "difference" and np.isfinite(tau)
    assert score(pred, 3.0) == (2 - tau if known else -INF)
    assert score.invert(pred, jnp.array(-5.0)).is_empty() == known
    for q in (-INF, -5.0, INF):
        whole = not known or q == INF
        assert (score.invert(pred, jnp.array(q)).size() == INF) == whole
    slopes = jax.grad(lambda p: score(p, 3.0))(pred)
    assert np.all(np.isfinite(slopes))


def test_slopes_are_those_of_the_formula():
    """mu + q + tau and mu + q tau, of an own function by its implicit function."""
    upper = lambda form, mu, tau, q: (  # noqa: E731
        Rectified(Absolute(), form).invert((mu, tau), q).upper
    )
    at, q = (2.0, 3.0), 0.5
    for form, expected in [
        ("difference", (1, 1, 1)),
        ("ratio", (1, q, 3)),
        (exponential, (1, -np.log(0.5) / 2, 3 / (2 * 0.5))),
    ]:
        slopes = jax.jit(jax.grad(upper, (1, 2, 3)), static_argnums=0)(form, *at, q)
        assert_allclose(slopes, expected, rtol=1e-5)
        flat = jax.grad(upper, (2, 3))(form, *at, INF)
        assert_array_equal(flat, (0, 0))


def test_each_component_has_its_quantile_or_all_share_one():
    mu, y = jnp.zeros(2), jnp.array([1.0, -4.0])
    for tau, expected in [(jnp.array([1.0, 2.0]), [1, 2]), (jnp.array(2.0), [0.5, 2])]:
        score = Rectified(Absolute(), "ratio")
        assert score((mu, tau), y).tolist() == expected
        for q in (jnp.array(2.0), jnp.array([1.0, 2.0])):
            upper = score.invert((mu, tau), q).upper
            assert_allclose(upper, jnp.broadcast_to(q * tau, (2,)), rtol=1e-6)


def test_own_functions_lose_no_target():
    """Of thousands of scores near 1, which round as other programs do."""
    x = jax.random.uniform(KEY, (4000, 3))
    score, preds = Rectified(Absolute(), exponential), (x[:, 0], 0.1 + x[:, 1])
    own = jax.jit(jax.vmap(score))(preds, x[:, 2])
    held = jax.jit(jax.vmap(score.invert))(preds, own).contains(x[:, 2])
    assert jnp.all(held) and score.rounds_up and not Rectified(Absolute()).rounds_up


@pytest.mark.parametrize(
    "form, most",
    [
        (lambda s, tau: s > tau, 1e3),
        (lambda s, tau: jnp.searchsorted(jnp.array([1.0, 10.0, 1e9]), s), 1e11),
        (lambda s, tau: (1e-3 * s / tau).astype(jnp.float16), 3e5),
    ],
    ids=["flags", "places", "halves"],
)
def test_own_functions_may_return_other_types(form, most):
    """Thresholds of the base are of its type, whatever numbers the function has."""
    y, preds = jnp.linspace(0, most, 99), (jnp.zeros(99), jnp.ones(99))
    score = Rectified(Absolute(), form)
    cp = jaxcp.calibrate(score, preds, y)
    inside = jax.vmap(score)(preds, y) <= cp.quantile(0.1)
    assert_array_equal(cp(preds, 0.1).contains(y), inside)
    assert inside.mean() >= 0.9


def test_only_bases_of_labels_have_labels():
    p, tau = jnp.array([0.5, 0.3, 0.2]), jnp.array(0.5)
    score = Rectified(scores.LAC(), "ratio")
    assert_allclose(score.labels((p, tau)), [1, 1.4, 1.6], rtol=1e-6)
    assert score.invert((p, tau), 1.5).mask.tolist() == [True, True, False]
    assert not hasattr(Rectified(Absolute()), "labels")
    cp = jaxcp.calibrate(score, (p[None], tau[None]), ["b"], classes=["a", "b", "c"])
    assert cp((p[None], tau[None]), 0.5).labels(["a", "b", "c"]) == [["a", "b"]]


def heteroscedastic(key, n):
    key_x, key_y = jax.random.split(key)
    x = jax.random.uniform(key_x, (n, 1), maxval=2.0)
    return x, (0.1 + x[:, 0]) * jax.random.normal(key_y, (n,))


MEDIAN = learners.QuantileRidge((0.5,), 0.0)
X, Y = heteroscedastic(KEY, 60)


def fit(learner=MEDIAN, score=Absolute(), preds=0 * Y, y=Y, x=X):  # noqa: B008
    return jaxcp.fit_quantile(KEY, learner, score, preds, y, x)


@pytest.mark.parametrize("score", [Absolute(), scores.Signed()], ids=["one", "two"])
def test_quantiles_are_what_the_learner_predicts_of_the_scores(score, tmp_path):
    """Of a learner of jax and of a model, also of several components."""
    base = jax.vmap(score)(0 * Y, Y)
    ridge, ones = learners.Ridge(0.1), jnp.ones(60)
    expected = ridge.predict(ridge.fit(KEY, X, base, ones), X[:5])
    tau = fit(ridge, score)
    assert_allclose(tau(X[:5]), expected, rtol=1e-4, atol=1e-5)
    assert_allclose(jax.jit(tau)(X[:5]), tau(X[:5]), rtol=1e-6)
    jaxcp.save(tmp_path / "tau", tau)
    assert_array_equal(jaxcp.load(tmp_path / "tau")(X[:5]), tau(X[:5]))
    model = LinearRegression().fit(np.asarray(X), np.asarray(base))
    found = fit(learners.Estimator(LinearRegression()), score)(np.asarray(X[:5]))
    assert_allclose(found, model.predict(np.asarray(X[:5])), rtol=1e-4, atol=1e-5)


def test_learners_of_one_target_are_fitted_to_each_component():
    learner = learners.QuantileRegression((0.75,))
    found, base = fit(learner, scores.Signed())(X), jax.vmap(scores.Signed())(0 * Y, Y)
    for j in range(2):
        expected = learner.predict(learner.fit(KEY, X, base[:, j], jnp.ones(60)), X)[0]
        assert_allclose(found[:, j], expected, rtol=1e-5, atol=1e-5)


def test_a_predicted_quantile_has_slopes():
    ridge = learners.Ridge(0.1)
    total = lambda s: jnp.sum(fit(ridge, preds=0 * Y, y=s * Y)(X))  # noqa: E731
    assert_allclose(jax.grad(total)(2.0), total(1.0), rtol=1e-4)


def test_models_of_quantiles_agree():
    model = QuantileRegressor(quantile=0.5, alpha=0.0)
    by_model = fit(learners.Estimator(model))(X)
    assert_allclose(fit()(X), by_model, atol=0.05)
    batch = jax.vmap(lambda y: fit(y=y)(X))(jnp.stack([Y, 2 * Y]))
    assert_allclose(batch[1], 2 * fit()(X), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form, most, width",
    [(None, 1.3, 4.18), ("ratio", 0.15, 3.62), ("difference", 0.15, 3.62)],
)
def test_cells_are_covered_alike(form, most, width):
    """Mean squared error of the coverage of ten cells, in %, and the mean width.

    y = (0.1 + x) e: the 0.9 quantile of abs(y) is linear in x. `Absolute` errs by 1.18.
    """
    x = jnp.asarray((np.arange(2000) + 0.5)[:, None] / 1000)
    ridge = learners.QuantileRidge((0.9,), 0.0)

    @jax.vmap
    def trial(key):
        key_tau, key_cal, key_fit = jax.random.split(key, 3)
        (x_tau, y_tau), (x_cal, y_cal) = (
            heteroscedastic(k, 500) for k in (key_tau, key_cal)
        )
        if form is None:
            return jaxcp.calibrate(Absolute(), 0 * y_cal, y_cal)(0 * x[:, 0], 0.1).upper
        tau = jaxcp.fit_quantile(key_fit, ridge, Absolute(), 0 * y_tau, y_tau, x_tau)
        pred = lambda x: (0 * x[:, 0], jnp.maximum(tau(x), 0.01))  # noqa: E731
        cp = jaxcp.calibrate(Rectified(Absolute(), form), pred(x_cal), y_cal)
        return cp(pred(x), 0.1).upper

    half = np.maximum(jax.jit(trial)(jax.random.split(KEY, 200)), 0)
    covered = 2 * stats.norm.cdf(half / np.asarray(0.1 + x.T)) - 1
    cells = covered.reshape(200, 10, 200).mean(axis=2)
    errors = 100 * np.mean((cells - 0.9) ** 2, axis=1)
    assert np.mean(errors) <= most and (form or np.mean(errors) > 1)
    assert abs(np.mean(2 * half) - width) < 0.1
    mean = cells.mean(axis=1)
    assert abs(mean.mean() - 451 / 501) < 4 * mean.std() / 200**0.5


MU, TAU = jnp.zeros(9), jnp.ones(9)


def calibrate(preds, form="difference", base=Absolute(), y=MU):  # noqa: B008
    return lambda: jaxcp.calibrate(Rectified(base, form), preds, y)


WRONG = {
    "form": (
        lambda: Rectified(Absolute(), "times"),
        r"form as one of \['difference', 'ratio'\], got 'times'",
    ),
    "no function": (lambda: Rectified(Absolute(), ()), r"form as one of .* got \(\)"),
    "a class": (lambda: Rectified(Absolute), r"write Absolute\(...\)"),
    "no tau": (calibrate(MU), r"a tuple \(base prediction, tau\), got \(9,\)"),
    "several tau": (calibrate((MU, (TAU, TAU))), "one array"),
    "tau as a column": (
        calibrate((MU, TAU[:, None])),
        r"tau of shape \(\), got \(1,\)",
    ),
    "tau of three": (
        calibrate((MU, jnp.ones((9, 3))), base=scores.Signed()),
        r"tau of shape \(2,\), got \(3,\)",
    ),
    "tau below 0": (calibrate((MU, -TAU), "ratio"), "tau > 0, got -1.0 at 0"),
    "tau NaN": (calibrate((MU, TAU * jnp.nan)), "preds without NaN, got nan"),
    "the base's own": (calibrate(((MU, -TAU), TAU), base=scores.Normalized()), "sigma"),
    "a function of another shape": (
        calibrate((MU, TAU), lambda s, tau: jnp.stack([s, tau])),
        r"form\(s, tau\) of shape \(\), got \(2,\)",
    ),
    "infinite scores": (
        lambda: fit(score=scores.Custom(lambda pred, y: jnp.inf * (1 + y**2))),
        "finite scores, got inf at 0",
    ),
    "two quantiles": (
        lambda: fit(learners.QuantileRidge((0.1, 0.9), 1.0))(X),
        "a learner of one quantile, got 2",
    ),
    "lengths": (lambda: fit(x=X[1:]), "x with 60 rows like y, got 59"),
    "a model": (lambda: fit(LinearRegression()), r"learners.Estimator\(model\)"),
    "NaN": (lambda: fit(y=Y.at[3].set(jnp.nan)), "y without NaN, got nan at 3"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
