"""Coverage of jackknife+ and relatives over replicates, within 4 standard errors."""

from fractions import Fraction
from functools import partial
from itertools import combinations, permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import certificates, datasets, learners, metrics, online, scores

pytestmark = pytest.mark.slow

NUM_TRIALS, N, ALPHA = 2000, 20, 0.2
LEVEL = Fraction(str(ALPHA))
LEAST_SQUARES = learners.Ridge(0.0, intercept=False)


def coverages(num_features, method):
    """Returns the mean coverage of each kind of set, and its standard error."""

    def trial(key):
        key_data, key_fit = jax.random.split(key)
        x, y = datasets.linear(key_data, N + 5, num_features=num_features)
        cp = method(key_fit, LEAST_SQUARES, scores.Absolute(), x[:N], y[:N])
        ways = {"plus": cp, "minmax": cp.minmax, "naive": cp.naive}
        return {k: metrics.coverage(f(x[N:], ALPHA), y[N:]) for k, f in ways.items()}

    results = jaxcp.simulate(trial, jax.random.key(0), NUM_TRIALS)
    return {
        name: (np.mean(v), 4 * np.std(v) / NUM_TRIALS**0.5)
        for name, v in results.items()
    }


def test_jackknife_plus_where_the_jackknife_collapses():
    """As many features as rows: interpolation, whose residuals say nothing."""
    mean = coverages(N, jaxcp.jackknife_plus)
    assert mean["naive"][0] + mean["naive"][1] < 1 - 2 * ALPHA
    for name in ("plus", "minmax"):
        proof = certificates.CrossCertificate(N, N, LEVEL, name == "minmax")
        assert proof.coverage >= 1 - (2 - proof.minmax) * ALPHA
        assert mean[name][0] > proof.coverage - mean[name][1]


@pytest.mark.parametrize("num_folds", [2, 4, 10])
def test_folds_of_an_unstable_learner_cover_what_is_certified(num_folds):
    """As many features as rows of a fit."""
    method = partial(jaxcp.cv_plus, num_folds=num_folds)
    mean = coverages(N - N // num_folds, method)
    for name in ("plus", "minmax"):
        proof = certificates.CrossCertificate(N, num_folds, LEVEL, name == "minmax")
        assert mean[name][0] > proof.coverage - mean[name][1]


@pytest.mark.parametrize("name", ["jackknife", "cv", "bootstrap"])
def test_stable_learners_have_about_the_level(name):
    def method(*args):
        if name == "cv":
            return jaxcp.cv_plus(*args, num_folds=4)
        if name == "bootstrap":
            more = {"num_resamples": 20}
            return jaxcp.jackknife_plus_after_bootstrap(*args, **more)
        return jaxcp.jackknife_plus(*args)

    mean = coverages(2, method)
    assert abs(mean["plus"][0] - (1 - ALPHA)) < 0.04
    assert mean["minmax"][0] > 1 - ALPHA - mean["minmax"][1]


# Errors at the other rows of a learner that was fitted on two of six rows.
ERRORS = """
    --1200 -1-020 -00-21 -201-0 -1020- 0--012 0-1-22 1-12-0
    1-002- 20--10 01-2-0 01-20- 100--2 020-1- 0011--
"""


def test_minmax_of_folds_has_less_than_1_minus_alpha():
    """Two folds of two rows, and a new row, from six in any order: 69 of 90 cover."""
    errors = dict(zip(combinations(range(6), 2), ERRORS.split(), strict=True))
    covered = []
    for rows in permutations(range(6)):
        folds, new = (rows[:2], rows[2:4]), rows[4]
        if any(a > b for a, b in folds) or folds[0] > folds[1]:
            continue  # another order of the same folds
        fits = [[errors[fold][row] for row in rows[:5]] for fold in folds]
        preds = np.array([[float(e.replace("-", "0")) for e in fit] for fit in fits])
        held_out = np.array([[False, False, True, True], [True, True, False, False]])
        cp = jaxcp.cross_calibrate(
            scores.Absolute(), preds[:, :4], np.zeros(4), held_out
        )
        assert "-" not in (errors[folds[0]][new], errors[folds[1]][new])
        covered.append(0.0 in cp.minmax(preds[:, 4:], 0.2)[0])
    assert (sum(covered), len(covered)) == (69, 90)
    assert 1 - 0.2 > 69 / 90 > 1 - 0.2 - (1 - 2 / 4) / 3


def test_enbpi_covers_a_dependent_series():
    """An autoregression with a shift half way, where a frozen threshold fails."""
    steps, n = 3000, 500
    noise = jax.random.normal(jax.random.key(0), (steps,))
    noise *= jnp.where(jnp.arange(steps) < 1000, 1.0, 2.0)

    def step(last, e):
        y = 0.8 * last + e
        return y, y

    y = jax.lax.scan(step, 0.0, noise)[1]
    x, y = y[:-1, None], y[1:]
    score = scores.Absolute()
    cp = jaxcp.enbpi(
        jax.random.key(1), learners.Ridge(1.0), score, x[:n], y[:n],
        num_resamples=15, block_size=10,
    )  # fmt: skip
    center, coverage = cp.aggregate(x[n:]), {}
    for every in (1, 10**6):
        window = online.SlidingWindow(score, every=every)
        state = window.init(cp.scores, 0.1, mask=cp.mask)
        _, sets = online.run(window, state, center, y[n:], 0.1)
        coverage[every] = metrics.coverage(sets, y[n:])
    assert abs(coverage[1] - 0.9) < 0.03  # the window lags behind the shift
    assert coverage[10**6] < 0.75
