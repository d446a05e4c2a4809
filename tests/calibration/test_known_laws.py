"""Ranks by a law of the score that is known: `CDF(base, cdf=)`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import jaxcp
from helpers import inside, scores_of, sets_of
from jaxcp import scores
from jaxcp.sets import Interval, LevelSet

KEY = jax.random.key(0)
INF = np.inf


def half_normal(pred, s):
    """P(abs(N(0, scale^2)) <= s); `pred` is (mu, scale)."""
    return erf(s / (pred[1] * np.sqrt(2)))


def rayleigh(pred, s):
    return -jnp.expm1(-(s**2) / 2)


AROUND = scores.Custom(
    lambda pred, y: jnp.abs(y - pred[0]),
    lambda pred, q: scores.Absolute().invert(pred[0], q),
)
KNOWN = scores.CDF(AROUND, cdf=half_normal)


@functools.partial(jax.jit, static_argnums=1)
def heteroscedastic(key, n):
    key_x, key_y = jax.random.split(key)
    x = jax.random.uniform(key_x, (n,), minval=0.2, maxval=5.0)
    mu = jnp.sin(x)
    return (mu, x), mu + x * jax.random.normal(key_y, (n,))


def test_with_the_true_law_the_score_is_uniform():
    preds, y = heteroscedastic(KEY, 5000)
    found = np.asarray(scores_of(KNOWN, preds, y), float)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    mu, scale, y = (np.asarray(v) for v in (*preds, y))
    expected = 2 * stats.norm.cdf(abs(y - mu) / scale) - 1
    assert_allclose(found, expected, atol=2e-6)


def test_coverage_given_the_input_is_the_threshold():
    """Whatever x: the ends are the quantiles of the law at the calibrated level."""
    cp = jaxcp.calibrate(KNOWN, *heteroscedastic(KEY, 199))
    q = float(cp.quantile(0.1))
    (mu, scale), _ = heteroscedastic(jax.random.key(1), 50)
    sets = cp((mu, scale), 0.1)
    mass = stats.norm.cdf(sets.upper, mu, scale) - stats.norm.cdf(sets.lower, mu, scale)
    assert_allclose(mass, q, atol=2e-6)
    # k / (n + 1) = 0.9 on average; q itself is the k-th of n uniforms.
    assert abs(q - 0.9) < 4 * np.sqrt(0.09 / 200)


def test_norms_of_gaussians_have_a_law():
    """C-HDR of a Gaussian: by Mahalanobis, and by its density."""
    rng = np.random.default_rng(0)
    mu, z = rng.normal(size=(2, 400, 2)).astype(np.float32)
    scale = np.exp(rng.normal(size=(400, 2))).astype(np.float32)
    preds, y = (mu, scale), mu + scale * z
    by_norm = scores.CDF(scores.Mahalanobis(), cdf=rayleigh)

    def log_prob(pred, y):
        logs = jax.scipy.stats.norm.logpdf(y, *pred)
        return jnp.sum(logs)

    def law(pred, s):  # -log f = |z|^2 / 2 + log(2 pi det)
        least = jnp.log(2 * jnp.pi) + jnp.sum(jnp.log(pred[1]))
        return -jnp.expm1(-jnp.maximum(s - least, 0))

    by_density = scores.CDF(scores.Density(log_prob), cdf=law)
    ours, theirs = (jaxcp.calibrate(s, preds, y) for s in (by_norm, by_density))
    exact = stats.chi2.cdf(np.sum(z.astype(float) ** 2, axis=1), 2)
    for cp in (ours, theirs):
        assert_allclose(cp.scores, exact, atol=1e-5)
    q = ours.quantile(0.1)
    sets = ours(preds, 0.1)
    assert_allclose(sets.radius, np.sqrt(-2 * np.log1p(-q)), rtol=1e-5)
    area = np.pi * sets.radius**2 * jnp.prod(scale, axis=1)
    assert_allclose(sets.size(), area, rtol=1e-4)
    levels = theirs(preds, 0.1)
    assert isinstance(levels, LevelSet)
    clear = np.abs(exact - q) > 1e-4
    for found in (inside(sets, y), inside(levels, y)):
        assert_array_equal(np.asarray(found)[clear], (exact <= q)[clear])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sets_hold_what_scores_at_most_q(dtype):
    with jax.enable_x64(dtype == "float64"):
        preds, y = jax.tree.map(
            lambda v: jnp.asarray(v, dtype), heteroscedastic(KEY, 2000)
        )
        found = scores_of(KNOWN, preds, y)
        assert found.dtype == dtype
        assert jnp.all(inside(sets_of(KNOWN, preds, found), y))  # at its own score
        q = jnp.roll(found, 1)
        clear = jnp.abs(found - q) > 20 * jnp.finfo(dtype).eps
        held = inside(sets_of(KNOWN, preds, q), y)
        assert_array_equal(held[clear], (found <= q)[clear])
        scores.check(KNOWN, *jax.tree.map(lambda v: v[:50], (preds, y)))


def test_the_threshold_is_the_last_number_inside():
    pred = jnp.zeros(()), jnp.ones(())
    known = scores.CDF(AROUND, cdf=lambda pred, s: s / (s + 1))
    for q in (0.1, 0.5, 0.999):
        s = known.threshold(pred, jnp.array(q))
        bound = jnp.float32(q) * (1 + 4 * jnp.finfo("float32").eps)
        assert s / (s + 1) <= bound + 1e-7
        assert_allclose(s, q / (1 - q), rtol=2e-3 if q > 0.99 else 1e-5)
        further = s + s * 1e-3
        assert further / (further + 1) > bound


@pytest.mark.parametrize(
    "q, ends", [(1.0, (-INF, INF)), (INF, (-INF, INF)), (0.0, (1.0, 1.0))]
)
def test_levels_at_the_edge(q, ends):
    pred = jnp.array(1.0), jnp.array(2.0)
    assert KNOWN.invert(pred, jnp.array(q)).ends() == ends


@pytest.mark.parametrize("q", [-0.1, -INF])
def test_levels_below_zero_are_empty(q):
    pred = jnp.array(1.0), jnp.array(2.0)
    assert KNOWN.invert(pred, jnp.array(q)).is_empty()
    assert np.isnan(KNOWN.threshold(pred, jnp.array(np.nan)))


def test_targets_that_no_law_reaches():
    flat = scores.Density(
        lambda pred, y: jnp.where(jnp.all(jnp.abs(y) < 1), 0.0, -jnp.inf)
    )
    score = scores.CDF(flat, cdf=lambda pred, s: jnp.where(s >= 0, 1.0, 0.0))
    assert score(0.0, jnp.full(2, 5.0)) == 1
    unknown = scores.CDF(
        scores.Custom(lambda pred, y: jnp.nan * y), cdf=lambda pred, s: s
    )
    assert unknown(0.0, jnp.array(1.0)) == 1
    nowhere = scores.CDF(scores.Mahalanobis(), cdf=rayleigh)
    pred = jnp.zeros(2), jnp.zeros(2)  # no scale: the whole space
    assert nowhere(pred, jnp.ones(2)) == 0
    assert nowhere.invert(pred, jnp.array(0.3)).contains(jnp.full(2, 1e9))


def test_slopes_are_those_of_the_quantile():
    """s = scale sqrt(2) erfinv(q)."""
    upper = lambda scale, q: KNOWN.invert((0.0, scale), q).upper  # noqa: E731
    slopes = jax.jit(jax.grad(upper, (0, 1)))(3.0, 0.9)
    z = stats.norm.ppf(0.95)
    assert_allclose(slopes[0], z, rtol=1e-4)
    assert_allclose(slopes[1], 3 / (2 * stats.norm.pdf(z)), rtol=1e-4)
    assert_allclose(jax.grad(upper, (0, 1))(3.0, 1.0), (0.0, 0.0))


def test_parameters_of_the_law_are_leaves():
    law = jax.tree_util.Partial(lambda rate, pred, s: 1 - jnp.exp(-rate * s), 2.0)

    def upper(score):
        return score.invert(jnp.array(0.0), 0.5).upper

    score = scores.CDF(scores.Absolute(), cdf=law)
    assert jax.tree.leaves(score) == [2.0]
    assert_allclose(upper(score), np.log(2) / 2, rtol=1e-5)
    assert_allclose(
        jax.tree.leaves(jax.grad(upper)(score)), [-np.log(2) / 4], rtol=1e-4
    )


def test_predictions_are_those_of_the_base():
    score = scores.CDF(scores.Absolute(), cdf=lambda pred, s: 1 - jnp.exp(-s))
    mu, y = jnp.zeros(9), jnp.arange(1.0, 10.0)
    cp = jaxcp.calibrate(score, mu, y)
    assert_allclose(cp(mu, 0.2).upper, 8.0, rtol=1e-3)
    assert isinstance(cp(mu, 0.2), Interval)
    assert score.takes.text == scores.Absolute().takes.text
    with pytest.raises(ValueError, match="preds as one array"):
        jaxcp.calibrate(score, (mu, y[:, None]), y)


@pytest.mark.parametrize("option", ["extended", "randomized"])
def test_options_of_draws_make_no_sense(option):
    with pytest.raises(ValueError, match="one of extended, randomized and cdf"):
        scores.CDF(scores.Absolute(), cdf=rayleigh, **{option: True})


def test_wrong_laws():
    mu, y = jnp.zeros(30), jnp.linspace(0.1, 5.0, 30)
    with pytest.raises(ValueError, match="expected cdf as a function, got 0"):
        scores.CDF(scores.Absolute(), cdf=0.5)
    pair = scores.CDF(scores.Absolute(), cdf=lambda pred, s: jnp.stack([s, s]))
    with pytest.raises(ValueError, match=r"cdf\(pred, s\) of shape \(\), got \(2,\)"):
        jaxcp.calibrate(pair, mu, y)
    with pytest.raises(ValueError, match=r"base score of shape \(\), got components"):
        jaxcp.calibrate(
            scores.CDF(scores.Absolute(), cdf=rayleigh), mu[:, None], y[:, None]
        )
    survival = scores.CDF(scores.Absolute(), cdf=lambda pred, s: jnp.exp(-s))
    with pytest.raises(ValueError, match=r"expected invert\(pred, q\) to"):
        scores.check(survival, mu, y)
