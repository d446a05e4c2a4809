"""Numbers that are settings: a Fraction or a Decimal is read as the float is."""

import importlib
import inspect
import pkgutil
from decimal import Decimal
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import (
    causal,
    certificates,
    conditional,
    datasets,
    learners,
    metrics,
    online,
    outliers,
    pvalues,
    risk,
    scores,
    selection,
    sets,
    survival,
)

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
ABSOLUTE, RIDGE = scores.Absolute(), learners.Ridge(1.0)
N = 40
Y = np.sort(RNG.normal(size=N)).astype("f")
MU = (Y + RNG.normal(size=N)).astype("f")
X = np.stack([MU, Y], axis=1)
P = RNG.uniform(0.1, 0.9, N).astype("f")
PROBABILITIES, LABELS = RNG.dirichlet(np.ones(3), N).astype("f"), np.arange(N) % 3
DRAWS = RNG.normal(size=(N, 8, 2)).astype("f")
INTERVALS = sets.Interval(MU - 1, MU + 1)
SHARES = learners.FunctionLearner(
    lambda key, x, y, weights: jnp.mean(y), lambda share, x: jnp.full(len(x), share)
)
LINE = learners.GradientLearner(
    init=lambda key: jnp.zeros(2),
    predict=lambda slope, x: x @ slope,
    loss=optax.squared_error,
    optimizer=optax.sgd(0.1),
    num_steps=9,
)


def scores_of(score, preds=PROBABILITIES, y=LABELS):
    return jaxcp.calibrate(score, preds, y).scores


def selected(rule):
    return selection.calibrate_selected(ABSOLUTE, MU, Y, rule=rule)(MU, 0.2).selected


def stream(method):
    state = method.init(np.abs(Y[:20]), 0.2)
    return online.run(method, state, MU[20:], Y[20:], 0.2)[1]


def predicted(learner):
    return learner.predict(learner.fit(KEY, X, Y, np.ones(N, "f")), X)


def near(kernel):
    return jaxcp.calibrate_local(ABSOLUTE, MU, Y, X, kernel)(MU, 0.2, x=X)


def widths_off(sets, y):
    return 1.0 * ~sets.contains(y)


def controlled(loss, **numbers):
    return risk.calibrate_risk(loss, ABSOLUTE, MU, Y, **numbers).quantile(0.2)


def mean_scale(floor):
    return predicted(learners.MeanScale(RIDGE, RIDGE, floor))


def difficulty(beta):
    return learners.Difficulty("knn", 3, beta=beta).fit(X, residuals=Y)(X + 1)


def bounds_of_times(cutoff):
    cp = survival.calibrate_lower(MU, Y, Y + P, cutoff=cutoff, probability=P)
    return cp.quantile(0.2, probability=0.5)


# What is made of a setting: of 1/2, and of numbers in its place.
SETTINGS = {
    "conformal_rank delta": lambda a: jaxcp.conformal_rank(N, 0.1, a),
    "first_within budget": lambda a: jaxcp.first_within(lambda v: jnp.exp(-v), a),
    "influence_conformal damping": lambda a: jaxcp.influence_conformal(
        KEY, LINE, X, Y, damping=a, grid=Y
    )(X, 0.2),
    "split_conformal_fit share": lambda a: jaxcp.split_conformal_fit(
        KEY, RIDGE, ABSOLUTE, X, Y, share=a
    )(X, 0.2),
    "weighted_select target": lambda a: jaxcp.weighted_select(Y, P, a),
    "propensity_box gamma": lambda a: causal.propensity_box(P, a + 1),
    "calibration_size slack": lambda a: certificates.calibration_size(0.1, a, 0.9),
    "calibration_size probability": partial(certificates.calibration_size, 0.1, 0.1),
    "certificate delta": lambda a: certificates.certificate(N, 0.1, delta=a),
    "coverage_test delta": lambda a: certificates.coverage_test(
        90, N, 0.1, delta=a, num_test=99
    ),
    "smallest_size delta": lambda a: certificates.smallest_size(0.1, delta=a),
    "Gaussian bandwidth": lambda a: near(conditional.Gaussian(a)),
    "Within radius": lambda a: near(conditional.Within(a)),
    "fourier bandwidth": lambda a: conditional.fourier(KEY, X, 4, a),
    "Bimodal power": lambda a: datasets.Bimodal(power=a).draw(KEY, 3),
    "Unimodal power": lambda a: datasets.Unimodal(power=a).draw(KEY, 3),
    "Unimodal noise": lambda a: datasets.Unimodal(noise=a).draw(KEY, 3),
    "class_posterior separation": lambda a: datasets.class_posterior(X, separation=a),
    "classes separation": lambda a: datasets.classes(KEY, 5, separation=a),
    "linear noise": lambda a: datasets.linear(KEY, 5, noise=a),
    "scenes noise": lambda a: datasets.scenes(KEY, 5, noise=a),
    "scenes miss_rate": lambda a: datasets.scenes(KEY, 5, miss_rate=a),
    "Difficulty beta": difficulty,
    "KernelRidge penalty": lambda a: predicted(learners.KernelRidge(a, 1.0)),
    "KernelRidge lengthscale": lambda a: predicted(learners.KernelRidge(1.0, a)),
    "MeanScale floor": mean_scale,
    "QuantileRegression levels": lambda a: predicted(
        learners.QuantileRegression((a / 2, a))
    ),
    "QuantileRidge levels": lambda a: predicted(
        learners.QuantileRidge((a / 2, a), 1.0)
    ),
    "QuantileRidge penalty": lambda a: predicted(learners.QuantileRidge((0.1, 0.9), a)),
    "Ridge penalty": lambda a: predicted(learners.Ridge(a)),
    "density_ratio clip": lambda a: learners.density_ratio(
        KEY, SHARES, X, X + 1, clip=a / 4
    ),
    "energy_score beta": lambda a: metrics.energy_score(DRAWS, X, beta=a),
    "variogram_score order": lambda a: metrics.variogram_score(DRAWS, X, order=a),
    "worst_slab_coverage share": lambda a: metrics.worst_slab_coverage(
        KEY, INTERVALS, Y, X, share=a
    ),
    "ACI step_size": lambda a: stream(online.ACI(ABSOLUTE, a)),
    "PID step_size": lambda a: stream(online.PID(ABSOLUTE, a)),
    "PID integral_gain": lambda a: stream(online.PID(ABSOLUTE, 0.1, a)),
    "PID saturation": lambda a: stream(online.PID(ABSOLUTE, 0.1, saturation=a)),
    "PID bound": lambda a: stream(online.PID(ABSOLUTE, 0.1, bound=a)),
    "PID decay": lambda a: stream(online.PID(ABSOLUTE, 0.1, decay=a)),
    "SFOGD step_size": lambda a: stream(online.SFOGD(ABSOLUTE, a)),
    "DtACI interval": lambda a: stream(
        online.DtACI(ABSOLUTE, jnp.array([0.1, 0.2]), interval=a * 100)
    ),
    "NexCP decay": lambda a: stream(online.NexCP(ABSOLUTE, a)),
    "Similar bandwidth": lambda a: stream(online.Similar(ABSOLUTE, a)),
    "ChangeMonitor limit": lambda a: online.ChangeMonitor(a, 99).run(P),
    "ChangeMonitor run_length": lambda a: online.ChangeMonitor(0.1, a * 99).run(P),
    "ChangeMonitor bound": lambda a: online.ChangeMonitor(0.1, 99, bound=a * 4).run(P),
    "RiskMonitor limit": lambda a: online.RiskMonitor(a, 0.1).run(P),
    "RiskMonitor delta": lambda a: online.RiskMonitor(0.1, a).run(P),
    "RiskMonitor bound": lambda a: online.RiskMonitor(0.1, 0.1, bound=a * 4).run(P),
    "confidence_sequence delta": lambda a: online.confidence_sequence(P, a),
    "confidence_sequence bound": lambda a: online.confidence_sequence(
        P, 0.1, bound=a * 4
    ),
    "conditional_outlier_p_values delta": lambda a: (
        outliers.conditional_outlier_p_values(Y, MU, delta=a)
    ),
    "is_outlier delta": lambda a: outliers.is_outlier(Y, MU, 0.2, delta=a),
    "PowerMartingale epsilon": lambda a: pvalues.watch(pvalues.PowerMartingale(a), P),
    "SimpleJumper jump": lambda a: pvalues.watch(pvalues.SimpleJumper(a), P),
    "storey_benjamini_hochberg threshold": lambda a: pvalues.storey_benjamini_hochberg(
        P, 0.2, threshold=a
    ),
    "calibrate_risk bound": lambda a: controlled(widths_off, bound=a * 4),
    "calibrate_risk tail": lambda a: controlled(widths_off, tail=a),
    "cdf_bounds delta": lambda a: risk.cdf_bounds(N, a),
    "conditional_value_at_risk beta": lambda a: risk.conditional_value_at_risk(
        P, a, 0.1, bound=1.0
    ),
    "conditional_value_at_risk delta": lambda a: risk.conditional_value_at_risk(
        P, 0.5, a, bound=1.0
    ),
    "conditional_value_at_risk bound": lambda a: risk.conditional_value_at_risk(
        P, 0.5, 0.1, bound=a * 4
    ),
    "value_at_risk beta": lambda a: risk.value_at_risk(P, a, 0.1, bound=1.0),
    "value_at_risk delta": lambda a: risk.value_at_risk(P, 0.5, a, bound=1.0),
    "value_at_risk bound": lambda a: risk.value_at_risk(P, 0.5, 0.1, bound=a * 4),
    "selective_threshold alpha": lambda a: risk.selective_threshold(
        P, P > 0.5, a, 0.1, grid=[0.5, 0.3]
    ),
    "selective_threshold delta": lambda a: risk.selective_threshold(
        P, P > 0.5, 0.6, a, grid=[0.5, 0.3]
    ),
    "shortfall bound": lambda a: controlled(risk.shortfall(a), bound=1.0),
    "RAPS penalty": lambda a: scores_of(scores.RAPS(a, 1)),
    "RAPS k_reg": lambda a: scores_of(scores.RAPS(0.1, a)),
    "SAPS weight": lambda a: scores_of(scores.SAPS(a)),
    "Band fraction": lambda a: scores_of(scores.Band(a), (X, abs(X)), 2 * X),
    "Claims share": lambda a: scores_of(scores.Claims(a), (X, X > 0), Y[:, None] < X),
    "Distance norm": lambda a: scores_of(scores.Distance(a * 4), X, 2 * X),
    "Entmax gamma": lambda a: scores_of(scores.Entmax(a + 1)),
    "envelope alpha": lambda a: scores.envelope(DRAWS, a),
    "above c": lambda a: selected(selection.above(a)),
    "by_p_values threshold": lambda a: selected(selection.by_p_values(a, 0.5)),
    "by_p_values level": lambda a: selected(selection.by_p_values(0.5, a)),
    "Ball norm": lambda a: sets.Ball(X, P, a * 4).contains(X + 1),
    "calibrate_lower cutoff": bounds_of_times,
}
# Levels are read exactly: test_alpha holds all of them to their decimals.
ELSEWHERE = {
    "forecast fraction": "read like alpha, see tests/frames",
    "Quantiles levels": "read like alpha",
    "scenes bias": "an array of four numbers",
    **dict.fromkeys(
        ("CoverageTest", "PITTest", "RiskCertificate", "RiskCalibration", "Summary"),
        "made by the library",
    ),
    "plotting": "numbers of a picture",
    "typing": "no callables",
}


def settings():
    """Returns the arguments of public names whose annotation is one number."""
    names = {"Number", "float"}
    for module in pkgutil.iter_modules(jaxcp.__path__):
        if module.name[0] == "_" or module.name == "models":
            continue
        own = importlib.import_module(f"jaxcp.{module.name}")
        for name in getattr(own, "__all__", ()):
            if {name, module.name} & {*ELSEWHERE} or not callable(getattr(own, name)):
                continue
            for argument in inspect.signature(getattr(own, name)).parameters.values():
                words = str(argument.annotation).replace("[", " ").replace(",", "")
                if names & {*words.split()}:
                    yield f"{name} {argument.name}"


def test_every_setting_is_in_the_table():
    assert {*settings()} - {*ELSEWHERE} <= {*SETTINGS}


@pytest.mark.parametrize("name", SETTINGS)
def test_fractions_and_decimals_are_the_numbers_that_they_are(name):
    expected = SETTINGS[name](0.5)
    for number in (Fraction(1, 2), Decimal("0.5")):
        found = SETTINGS[name](number)
        for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            assert_array_equal(a, b)
