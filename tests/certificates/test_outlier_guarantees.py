"""What anomaly detection promises, over ten thousand calibration sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxcp import outliers, pvalues

pytestmark = pytest.mark.slow

NUM_TRIALS = 10_000
N, M, NUM_NOMINAL = 60, 30, 20
LEVELS = (0.05, 0.1, 0.2, 0.5)


@pytest.fixture(scope="module")
def trials():
    """Calibration and test scores, of which the last are strange, and p-values."""

    def draw(key):
        key_old, key_new, key_u, key_ties = jax.random.split(key, 4)
        scores = jax.random.normal(key_old, (N,))
        test = jax.random.normal(key_new, (M,)) + 3 * (jnp.arange(M) >= NUM_NOMINAL)
        u = jax.random.uniform(key_u, (M,))
        tied = jnp.round(jnp.append(scores, jax.random.normal(key_ties, (1,))))
        p = outliers.outlier_p_values(scores, test)
        return {
            "p": p,
            "smooth": outliers.outlier_p_values(scores, test, u=u),
            "tied": outliers.outlier_p_values(tied[:N], tied[N:], u=u[:1]),
            "flags": jnp.stack([outliers.is_outlier(scores, test, a) for a in LEVELS]),
            "bh": [pvalues.benjamini_hochberg(p, level) for level in LEVELS],
            "storey": [
                pvalues.storey_benjamini_hochberg(p, a, num_calibration=N)
                for a in LEVELS
            ],
            "simes": pvalues.simes_test(p[:NUM_NOMINAL]),
            "fisher": pvalues.fisher_test(
                outliers.conditional_outlier_p_values(
                    scores, test[:NUM_NOMINAL], 0.1, method="dkw"
                )
            ),
        }

    keys = jax.random.split(jax.random.key(0), NUM_TRIALS)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))


def assert_at_most(samples, bound, exactly=False):
    error = 4 * np.std(samples) / len(samples) ** 0.5 + 1e-9
    assert np.mean(samples) < bound + error
    if exactly:
        assert np.mean(samples) > bound - error


def test_false_positive_rate(trials):
    """Exactly floor(alpha (n + 1)) / (n + 1) without ties."""
    for i, alpha in enumerate(LEVELS):
        rate = trials["flags"][:, i, :NUM_NOMINAL].mean(axis=1)
        assert_at_most(rate, np.floor(alpha * (N + 1)) / (N + 1), exactly=True)


def test_p_values_are_uniform(trials):
    p = np.round(trials["p"][:, 0] * (N + 1))  # uniform on 1, ..., n + 1
    counts = np.bincount(p.astype(int), minlength=N + 2)[1:]
    assert stats.chisquare(counts).pvalue > 1e-4
    for name in ("smooth", "tied"):
        assert stats.kstest(trials[name][:, 0], "uniform").pvalue > 1e-4


@pytest.mark.parametrize("name", ["bh", "storey"])
def test_false_discovery_rate(trials, name):
    """BH: at most level times the share of nominal rows, and near it; Storey: level."""
    share = NUM_NOMINAL / M if name == "bh" else 1
    for found, level in zip(trials[name], LEVELS, strict=True):
        false = found[:, :NUM_NOMINAL].sum(axis=1)
        rate = false / np.maximum(found.sum(axis=1), 1)
        assert_at_most(rate, share * level)
    power = trials[name][2][:, NUM_NOMINAL:].mean()
    assert power > 0.7


def test_batches_of_nominal_rows(trials):
    for level in LEVELS:
        assert_at_most(trials["simes"] <= level, level)
        assert_at_most(trials["fisher"] <= level, level + 0.1)  # delta = 0.1


def test_weighted_p_values_under_covariate_shift():
    """Likelihood ratios make p-values uniform where plain ones are not."""

    def trial(key):
        key_x, key_pick, key_u, key_s = jax.random.split(key, 4)
        x = jax.random.uniform(key_x, (N + 1,))
        pick = jax.random.uniform(key_pick)
        x = x.at[N].set(jnp.sqrt(pick))  # density 2 x: the ratio is 2 x
        scores = x + 0.1 * jax.random.normal(key_s, x.shape)
        u = jax.random.uniform(key_u, (1,))
        options = {"weights": x[:N], "test_weights": x[N:]}
        old, new = scores[:N], scores[N:]
        return [
            outliers.outlier_p_values(old, new, u=u, **options)[0],
            outliers.outlier_p_values(old, new, u=u)[0],
        ]

    keys = jax.random.split(jax.random.key(1), NUM_TRIALS)
    weighted, plain = jax.jit(jax.vmap(trial))(keys)
    assert stats.kstest(np.asarray(weighted), "uniform").pvalue > 1e-4
    assert stats.kstest(np.asarray(plain), "uniform").pvalue < 1e-9


def test_martingales_rarely_cross_and_see_a_shift():
    """Capital c is reached with probability at most 1/c on exchangeable streams.

    Unless p-values share a calibration set: they depend on each other.
    """
    steps, change = 80, 30
    martingales = [
        pvalues.PowerMartingale(0.7),
        pvalues.MixtureMartingale(8),
        pvalues.SimpleJumper(0.05),
    ]

    def trial(key):
        key_s, key_u = jax.random.split(key)
        scores = jnp.round(4 * jax.random.normal(key_s, (steps,)))  # with ties
        u = jax.random.uniform(key_u, (steps,))
        p = pvalues.sequential_p_values(scores, u)
        shared = outliers.outlier_p_values(scores[:20], scores[20:], u=u[20:])
        later = 16 * (jnp.arange(steps) >= change)
        shifted = pvalues.sequential_p_values(scores + later, u)
        return [
            (
                jnp.max(pvalues.watch(martingale, p)[1]),
                pvalues.watch(martingale, shifted)[1][-1],
                jnp.max(pvalues.watch(martingale, shared)[1]),
            )
            for martingale in martingales
        ], p[jnp.array([1, steps - 1])]

    keys = jax.random.split(jax.random.key(2), NUM_TRIALS)
    results, p = jax.jit(jax.vmap(trial))(keys)
    for highest, last, of_one_set in results:
        for alpha in (0.5, 0.1, 0.02):
            alarm = np.asarray(pvalues.alarm_level(alpha))
            assert_at_most(np.asarray(highest) >= alarm, alpha)
        assert np.mean(np.asarray(last) > np.log(20)) > 0.9
        alarms = np.asarray(of_one_set) >= np.log(20)  # as if they were independent
        assert np.mean(alarms) > 0.06
    assert stats.kstest(np.asarray(p[:, 1]), "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(p.T)[0, 1]) < 4 / NUM_TRIALS**0.5  # and independent
