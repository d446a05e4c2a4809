"""Laws of coverage over many calibration sets; of every score: `test_in_turn`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxcp
from helpers import CASES, promised

pytestmark = pytest.mark.slow

NUM_TRIALS = 4000


def test_split_coverage_follows_its_beta_law(key):
    """10^5 calibration sets of uniform scores: coverage is the threshold itself."""
    n, alpha = 20, 0.2

    def trial(key):
        return jaxcp.conformal_quantile(jax.random.uniform(key, (n,)), alpha)

    coverages = jaxcp.simulate(trial, key, 100_000, batch_size=10_000)
    a, b = jaxcp.coverage_law(n, alpha)
    assert (
        stats.kstest(np.asarray(coverages, float), stats.beta(a, b).cdf).pvalue > 1e-4
    )
    assert_close_to(coverages, a / (a + b))


def test_class_wise_coverage(key):
    """Every class is covered at its own exact level."""
    draw = CASES["aps-randomized"].draw
    score, n, alpha = jaxcp.scores.LAC(), 60, 0.2

    def trial(key):
        (p, _), y = jax.vmap(draw)(jax.random.split(key, n + 5))
        cp = jaxcp.calibrate_groups(score, p[:n], y[:n], y[:n], num_groups=5)
        sets = cp(p[n:], alpha)
        covered = jax.vmap(lambda s, t: s.contains(t))(sets, y[n:])
        of_class = y[n:][None] == jnp.arange(5)[:, None]
        return jnp.sum(of_class & covered[None], axis=1), jnp.sum(of_class, axis=1)

    covered, total = jaxcp.simulate(trial, key, 4000, batch_size=4000)
    covered, total = covered.sum(axis=0), total.sum(axis=0)
    coverage = covered / total
    assert np.all(coverage > 1 - alpha - 4 * np.sqrt(alpha * (1 - alpha) / total))


def test_covariate_shift_coverage(key):
    """Weights by the true likelihood ratio restore the level that the shift breaks."""
    n, alpha = 100, 0.1

    def trial(key):
        key_x, key_y = jax.random.split(key)
        x = jax.random.normal(key_x, (n + 1,))
        x = x.at[n].add(1.0)  # test inputs have mean 1: the ratio is exp(x - 1/2)
        y = jnp.exp(0.5 * x) * jax.random.normal(key_y, (n + 1,))
        ratio = jnp.exp(x - 0.5)
        plain = jaxcp.calibrate(jaxcp.scores.Absolute(), jnp.zeros(n), y[:n])
        weighted = jaxcp.calibrate(
            jaxcp.scores.Absolute(), jnp.zeros(n), y[:n], weights=ratio[:n]
        )
        shifted = weighted(jnp.zeros(1), alpha, test_weights=ratio[n:])
        return (
            jaxcp.metrics.coverage(plain(jnp.zeros(1), alpha), y[n:]),
            jaxcp.metrics.coverage(shifted, y[n:])
            - promised(weighted, alpha, ratios=True),
        )

    plain, weighted = jaxcp.simulate(trial, key, NUM_TRIALS, batch_size=NUM_TRIALS)
    assert np.mean(plain) < 0.85
    assert np.mean(weighted) > -4 * standard_error(weighted)


@pytest.mark.parametrize("smoothed", [False, True])
def test_p_values_are_uniform(smoothed, key):
    """On {1/(n+1), ..., 1}; exactly uniform when smoothed, ties or not."""
    n = 19

    def trial(key):
        key_s, key_u = jax.random.split(key)
        scores = jax.random.randint(key_s, (n + 1,), 0, 5) if smoothed else None
        scores = jax.random.normal(key_s, (n + 1,)) if scores is None else scores
        u = jax.random.uniform(key_u) if smoothed else 1.0
        return jaxcp.conformal_p_value(scores[:n], scores[n], u=u)

    p = np.asarray(jaxcp.simulate(trial, key, NUM_TRIALS, batch_size=NUM_TRIALS))
    if smoothed:
        assert stats.kstest(p, "uniform").pvalue > 1e-4
    else:
        counts = np.bincount(np.round(p * (n + 1)).astype(int), minlength=n + 2)
        assert counts[0] == 0
        assert stats.chisquare(counts[1:]).pvalue > 1e-4


def test_fixed_weights_keep_their_coverage_on_exchangeable_data(key):
    n, alpha = 50, 0.1
    weights = 0.99 ** jnp.arange(n, 0.0, -1)

    def trial(key):
        scores = jax.random.uniform(key, (n,))
        return jaxcp.weighted_conformal_quantile(scores, weights, alpha)

    q = jaxcp.simulate(trial, key, NUM_TRIALS, batch_size=NUM_TRIALS)
    coverage = np.minimum(q, 1)  # of a uniform test score
    assert np.mean(coverage) > 1 - alpha - 4 * standard_error(coverage)


def standard_error(samples):
    return np.std(samples) / np.sqrt(len(samples))


def assert_close_to(samples, mean):
    assert abs(np.mean(samples) - mean) < 4 * standard_error(samples)
