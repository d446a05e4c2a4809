"""Distances of several outputs and the balls that are their sets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import inside, scores_of, sets_of
from jaxcp import learners, metrics, plotting, scores, training
from jaxcp.sets import Ball, Box, Interval

KEY = jax.random.key(0)
INF = np.inf
NORMS = [1, 2, INF]
norms = pytest.mark.parametrize("norm", NORMS)


def rows(d, n=60, seed=0):
    rng = np.random.default_rng(seed)
    mu, noise = rng.normal(size=(2, n, d)).astype(np.float32)
    return 3 * mu, 3 * mu + noise


def log_volume(norm, d, r):
    """(2r)^d / d!, pi^(d/2) r^d / Gamma(d/2 + 1) and (2r)^d."""
    if norm == 2:
        return d / 2 * np.log(np.pi) + d * np.log(r) - math.lgamma(d / 2 + 1)
    return d * np.log(2 * r) - (math.lgamma(d + 1) if norm == 1 else 0)


@norms
@pytest.mark.parametrize("d", [1, 2, 5, 16, 17, 40])
def test_scores_and_sets_are_those_of_numpy(norm, d):
    mu, y = rows(d)
    score = scores.Distance(norm)
    expected = np.linalg.norm((y - mu).astype(float), norm, axis=1)
    found = scores_of(score, mu, y)
    assert_allclose(found, expected, rtol=1e-6)
    q = np.roll(expected, 1).astype(np.float32)
    assert_array_equal(inside(sets_of(score, mu, q), y), expected <= q)
    sets = sets_of(score, mu, found)
    box = Interval if d == 1 else Box
    assert isinstance(sets, box if norm == INF else Ball)
    assert jnp.all(inside(sets, y))  # at its own score


@jax.jit
def slopes_at(ball):
    """Returns the slope of the size in the radius, and of the soft size in all."""
    size = lambda r: Ball(ball.center, r, ball.norm).size()  # noqa: E731
    soft = jax.grad(lambda ball: ball.soft_size(0.1))
    return jax.grad(size)(ball.radius), soft(ball)


@norms
@pytest.mark.parametrize("d", [1, 2, 3, 30])
def test_volumes_in_closed_form(norm, d):
    r = np.array([0.5, 1.0, 3.0])
    ball = Ball(jnp.ones((3, d)), jnp.asarray(r, "float32"), norm)
    expected = [log_volume(norm, d, v) for v in r]
    assert_allclose(ball.log_size(), expected, rtol=1e-5, atol=1e-5)
    assert_allclose(ball.size(), np.exp(expected), rtol=1e-4)
    found = metrics.mean_volume(KEY, ball)
    assert_allclose(found.log_volumes, expected, rtol=1e-5, atol=1e-5)
    assert_array_equal(found.errors, 0)
    assert_allclose(ball.soft_size(1e-4), ball.size(), rtol=1e-4)


@norms
def test_volumes_are_those_of_points(norm):
    ball = Ball(jnp.array([1.0, -1.0, 0.5]), jnp.array(1.5), norm)
    found, error = jaxcp.volume(KEY, ball, 4000, within=Box(*ball.bounds()))
    assert abs(found - log_volume(norm, 3, 1.5)) < 3 * error + 1e-5


@norms
def test_radii_of_nothing_and_of_everything(norm):
    y = jnp.array([1e9, -3.0])
    sizes = {INF: INF, 0.0: 0.0, -1.0: 0.0, -INF: 0.0}
    for radius, size in sizes.items():
        ball = Ball(jnp.zeros(2), jnp.array(radius), norm)
        assert ball.size() == size and ball.contains(y) == (radius == INF)
        assert ball.is_empty() == (radius < 0)
        assert all(np.all(np.isfinite(v)) for v in jax.tree.leaves(slopes_at(ball)))
    unknown = Ball(jnp.zeros(2), jnp.array(np.nan), norm)
    assert np.isnan(unknown.size()) and not unknown.contains(y)


@norms
@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_output_is_absolute(norm, shape):
    mu, y = (jnp.asarray(v).reshape(-1, *shape) for v in rows(1))
    cp, same = (
        jaxcp.calibrate(s, mu, y) for s in (scores.Distance(norm), scores.Absolute())
    )
    assert_array_equal(cp.scores, same.scores.reshape(-1))
    sets, expected = cp(mu, 0.2), same(mu, 0.2)
    assert_array_equal(inside(sets, y), inside(expected, y))
    assert_allclose(metrics.mean_size(sets), metrics.mean_size(expected), rtol=1e-6)
    if shape == ():
        assert isinstance(sets, Interval)
        assert_array_equal(sets.ends(), expected.ends())


@norms
def test_a_target_at_its_own_score_in_other_batches(norm):
    """99 copies of one row, also where sums over outputs are not written out."""
    for d in (3, 24):
        for i in range(10):
            mu, y = (v[i : i + 1] for v in rows(d))
            copies = (np.repeat(v, 99, axis=0) for v in (mu, y))
            cp = jaxcp.calibrate(scores.Distance(norm), *copies)
            assert metrics.coverage(cp(mu, 0.1), y) == 1
            assert cp.p_values(mu, y) == 1


@norms
def test_slopes(norm):
    y, mu = jnp.array([3.0, -5.0, 1.0]), jnp.zeros(3)
    found = jax.grad(scores.Distance(norm), 1)(mu, y)
    exact = {
        1: np.sign(y),
        2: np.asarray(y) / np.linalg.norm(y),
        INF: np.array([0.0, -1.0, 0.0]),
    }
    assert_allclose(found, exact[norm], rtol=1e-6)
    assert np.all(np.abs(jax.grad(scores.Distance(norm))(mu, mu)) <= 1)
    log_size = lambda q: scores.Distance(norm).invert(mu, q).log_size()  # noqa: E731
    assert_allclose(jax.grad(log_size)(2.0), 3 / 2, rtol=1e-6)
    size = training.soft_size(scores.Distance(norm), mu[None], 2.0, temperature=0.01)
    assert_allclose(size[0], np.exp(log_volume(norm, 3, 2.0)), rtol=1e-4)


@norms
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_other_types(norm, dtype):
    with jax.enable_x64(dtype == "float64"):
        mu, y = (jnp.asarray(5 * v, dtype) for v in rows(3))
        score = scores.Distance(norm)
        q = scores_of(score, mu, y)
        assert q.dtype == ("float32" if dtype == "int32" else dtype)
        assert jnp.all(inside(sets_of(score, mu, q), y))


def test_largest_errors_have_ends():
    """Sets of "+" methods are boxes; those of other norms vote."""
    x = jax.random.normal(KEY, (40, 2))
    y = x + jax.random.normal(jax.random.key(1), (40, 2))
    ridge, options = learners.Ridge(1.0), {"num_folds": 4}
    boxes = jaxcp.cv_plus(KEY, ridge, scores.Distance(INF), x, y, **options)(x, 0.2)
    assert isinstance(boxes, Box)
    votes = jaxcp.cv_plus(KEY, ridge, scores.Distance(), x, y, **options)(x, 0.2)
    for sets in (boxes, votes):
        assert metrics.coverage(sets, y) > 0.6
    wide = Box(jnp.full(2, -9.0), jnp.full(2, 9.0))
    volumes = metrics.mean_volume(KEY, votes, 500, within=wide)  # known by membership
    assert jnp.all(jnp.isfinite(volumes.log_volumes))
    ball = scores.Distance().invert(x[0], jnp.array(1.0))
    plotting.plot_region(ball, y=y)


def test_wrong_norms_and_shapes():
    for make in (scores.Distance, lambda norm: Ball(jnp.zeros(2), 1.0, norm)):
        for norm in (3, "l2", 0.5):
            with pytest.raises(ValueError, match=r"norm as 1, 2 or jnp\.inf, got"):
                make(norm)
    with pytest.raises(ValueError, match=r"prediction of shape \(2,\), got"):
        jaxcp.calibrate(scores.Distance(), *(rows(3)[0], rows(2)[0]))
    with pytest.raises(ValueError, match=r"a target of shape \(2,\), got \(3,\)"):
        Ball(jnp.zeros(2), jnp.array(1.0)).contains(jnp.zeros(3))
