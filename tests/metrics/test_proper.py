"""Proper scores: against vectors and loops, and that no other forecast scores less."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxcp import metrics
from jaxcp.predictive import Atoms

FOLDER = Path(__file__).parents[1] / "reference/distributional"
GOLDEN = dict(np.load(FOLDER / "proper_scores.npz"))
DRAWS, Y = GOLDEN["draws"], GOLDEN["y"]
LIMITS = {"float32": 1e-5, "float64": 1e-9}
RNG = np.random.default_rng(0)
ENERGY, VARIOGRAM, CRPS = metrics.energy_score, metrics.variogram_score, metrics.crps


@pytest.mark.parametrize("dtype", LIMITS)
def test_vectors(dtype):
    first = DRAWS[..., 0], Y[:, 0]
    with jax.enable_x64(dtype == "float64"):
        weighted = Atoms(first[0], GOLDEN["draw_weights"])
        found = {
            "crps": CRPS(*first),
            "crps_fair": CRPS(*first, fair=True),
            "crps_weighted": CRPS(weighted, first[1]),
        }
        for p in (0.5, 1.0, 1.5, 2.0):
            if p < 2:
                found[f"energy_{p}"] = ENERGY(DRAWS, Y, beta=p)
                found[f"energy_fair_{p}"] = ENERGY(DRAWS, Y, beta=p, fair=True)
            if p != 1.5:
                pairs = GOLDEN["pair_weights"]
                found[f"variogram_{p}"] = VARIOGRAM(DRAWS, Y, order=p)
                weighted = VARIOGRAM(DRAWS, Y, order=p, weights=pairs)
                found[f"variogram_weighted_{p}"] = weighted
    for name, value in found.items():
        assert value.dtype == dtype
        assert_allclose(value, GOLDEN[name].mean(), rtol=LIMITS[dtype], err_msg=name)


def slow_energy(draws, y, beta, fair):
    k = len(draws)
    near = sum(np.linalg.norm(a - y) ** beta for a in draws) / k
    far = sum(np.linalg.norm(a - b) ** beta for a in draws for b in draws)
    return near - far / (2 * k * (k - 1 if fair else k))


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_loops_with_ties_in_several_blocks(offset):
    """More rows than a block has; draws that are the same are at no distance."""
    draws = np.round(RNG.normal(size=(5, 3, 4)), 1).repeat(2, axis=1).astype("f")
    y = draws[:, 0] + np.array([0.0, 1, 0, -1], "f")
    draws, y = draws + np.float32(offset), y + np.float32(offset)
    wide = draws.astype(float), y.astype(float)
    for beta, fair in ((1.0, False), (0.5, True)):
        each = [slow_energy(*row, beta, fair) for row in zip(*wide, strict=True)]
        found = ENERGY(draws, y, beta=beta, fair=fair)
        assert_allclose(found, np.mean(each), rtol=1e-5)
    many = np.tile(draws, (40, 30, 1)), np.tile(y, (40, 1))
    whole = ENERGY(np.tile(draws, (1, 30, 1)), y)
    assert_allclose(ENERGY(*many), whole, rtol=1e-5)
    assert_allclose(VARIOGRAM(*many), VARIOGRAM(draws, y), rtol=1e-4)


def test_one_output_and_one_draw():
    draws, y = DRAWS[..., 0], Y[:, 0]
    assert_allclose(ENERGY(draws, y), CRPS(draws, y), rtol=1e-5)
    assert_allclose(ENERGY(draws[..., None], y), CRPS(draws, y), rtol=1e-5)
    assert_allclose(CRPS(draws[:, :1], y), np.mean(np.abs(draws[:, 0] - y)), rtol=1e-6)
    assert np.isnan(CRPS(draws[:, :1], y, fair=True))
    assert np.isnan(ENERGY(DRAWS[:, :1], Y, fair=True))
    assert np.isnan(CRPS(draws[:0], y[:0]))
    outputs = Atoms(jnp.asarray(np.moveaxis(DRAWS, 1, -1)))
    each = [CRPS(DRAWS[..., j], Y[:, j]) for j in range(3)]
    assert_allclose(CRPS(outputs, Y), each, rtol=1e-5)


def test_log_score():
    found = metrics.log_score(jnp.log(jnp.array([0.5, 0.25])))
    assert_allclose(found, 1.5 * np.log(2), rtol=1e-6)
    assert metrics.log_score(jnp.array([0.0, -np.inf])) == np.inf


def means(score, forecast, law):
    """The mean score of one forecast over targets that follow a law."""
    return np.asarray(score(np.stack([forecast] * len(law)), law), float)


@pytest.mark.parametrize("name", ["crps", "energy", "variogram", "weighted"])
def test_no_forecast_scores_less_than_the_law(name):
    """Laws and forecasts of eight equal masses on few points: some are near."""
    score = {
        "crps": lambda draws, y: CRPS(draws[..., 0], y[..., 0]),
        "energy": ENERGY,
        "variogram": VARIOGRAM,
        "weighted": lambda draws, y: CRPS(
            Atoms(jnp.asarray(draws[..., 0]), jnp.ones(draws.shape[:2])), y[..., 0]
        ),
    }[name]
    laws = RNG.integers(0, 3, (40, 8, 2)).astype("f")
    for law, other in zip(laws, np.roll(laws, 1, axis=0), strict=True):
        least = means(score, law, law)
        assert least <= means(score, other, law) + 1e-5
        near = law.copy()
        near[0] = other[0]
        assert least <= means(score, near, law) + 1e-5


def test_no_probabilities_have_a_lower_log_score_than_the_law():
    targets = RNG.integers(0, 4, (20, 50))
    for own, other in zip(targets, RNG.dirichlet(np.ones(4), 20), strict=True):
        law = np.bincount(own, minlength=4) / len(own)
        least, more = (metrics.log_score(np.log(v[own])) for v in (law, other))
        assert least <= more + 1e-5


@pytest.mark.parametrize("score", [CRPS, ENERGY])
def test_the_mean_of_fair_scores_is_that_of_the_law(score):
    """Over all samples of three from a law of four points, whatever the target."""
    points, y = np.array([0.0, 1, 1, 5], "f"), np.float32(2.0)
    every = np.stack(np.meshgrid(*[np.arange(4)] * 3), -1).reshape(-1, 3)
    samples = points[every]
    found = score(samples, np.full(len(samples), y), fair=True)
    assert_allclose(found, score(points[None], y[None]), rtol=1e-5)
    plain = score(samples, np.full(len(samples), y))
    assert plain > found + 0.1  # which has more for fewer draws


def test_gradients_are_finite_at_ties_and_right_elsewhere():
    with jax.enable_x64(True):
        draws, y = jnp.asarray(RNG.normal(size=(3, 4, 3))), jnp.asarray(Y[:3])
        tied = jnp.concatenate([draws, draws[:, :1], y[:, None]], axis=1)
        step = 1e-6 * RNG.normal(size=draws.shape)
        for score in (ENERGY, VARIOGRAM, lambda v, t: CRPS(v[..., 0], t[..., 0])):
            slope = jax.jit(jax.grad(score, (0, 1)))
            assert all(np.isfinite(v).all() for v in slope(tied, y))
            change = score(draws + step, y) - score(draws - step, y)
            found = 2 * jnp.sum(slope(draws, y)[0] * step)
            assert_allclose(found, change, rtol=1e-4)


def test_vmap_and_jit_are_a_loop():
    draws, y = DRAWS[:4].astype("f"), Y[:4].astype("f")
    for score in (ENERGY, VARIOGRAM, lambda v, t: CRPS(v[..., 0], t[..., 0])):
        each = [score(draws[i : i + 1], y[i : i + 1]) for i in range(4)]
        rows = jnp.asarray(draws)[:, None], jnp.asarray(y)[:, None]
        assert_allclose(jax.vmap(score)(*rows), each, rtol=1e-5)
        assert_allclose(jax.jit(score)(draws, y), np.mean(each), rtol=1e-5)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_near_draws_count_beside_far_ones(beta):
    """Of heavy tails and of two tight clusters: no digits of near pairs are lost."""
    rng = np.random.default_rng(1)
    far = rng.standard_cauchy((1, 200, 2)) ** 3
    near = rng.integers(0, 2, (1, 200, 1)) + 1e-4 * rng.normal(size=(1, 200, 2))
    for draws in (far, near):
        draws = draws.astype("f").astype(float)
        expected = slow_energy(draws[0], np.zeros(2), beta, False)
        found = ENERGY(draws.astype("f"), np.zeros((1, 2), "f"), beta=beta)
        assert_allclose(found, expected, rtol=1e-4)
