"""Generative models: consistent with themselves, close to a law they can express."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import _geometry, datasets, metrics, models, scores

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
LAW = datasets.OneMoon()
SMALL = {
    "coupling": models.CouplingFlow(num_couplings=4, num_hidden=16, num_steps=150),
    "mixture": models.MixtureNetwork(num_components=4, num_hidden=16, num_steps=150),
    "gaussian": models.GaussianNetwork(num_hidden=16, num_steps=150),
    "matching": models.FlowMatching(num_hidden=16, num_steps=150),
}
all_models = pytest.mark.parametrize("name", SMALL)
densities = pytest.mark.parametrize("name", [n for n in SMALL if n != "matching"])


@pytest.fixture(scope="module")
def fitted():
    x, y = LAW.draw(KEY, 1500)
    # On other scales: training must not depend on units.
    x, y = 100 + 10 * x, jnp.array([[5.0, 0.01]]) * y
    return x, y, {name: m.fit(jax.random.key(1), x, y) for name, m in SMALL.items()}


@all_models
def test_training_lowers_the_loss(name, fitted):
    losses = fitted[2][name].losses
    assert losses.shape == (150,)
    assert np.mean(losses[-50:]) < np.mean(losses[:20]) - 0.05
    assert fitted[2][name].num_targets == 2


@all_models
def test_codes_go_there_and_back(name, fitted):
    x, y, params = fitted
    model = SMALL[name]
    there = jax.jit(jax.vmap(model.to_latent, (None, 0, 0)))
    back = jax.jit(jax.vmap(model.from_latent, (None, 0, 0)))
    z = there(params[name], x[:200], y[:200])
    again = back(params[name], x[:200], z) / jnp.array([[5.0, 0.01]])
    assert_allclose(again, y[:200] / jnp.array([[5.0, 0.01]]), atol=2e-3)


@densities
def test_densities_are_those_of_the_map(name, fitted):
    """log f(y) = log N(z) - log abs(det dy / dz)."""
    x, y, params = fitted
    model, params = SMALL[name], params[name]

    def both(x, y):
        z = model.to_latent(params, x, y)
        jacobian = jax.jacfwd(lambda v: model.from_latent(params, x, v))(z)
        log_normal = jnp.sum(jax.scipy.stats.norm.logpdf(z))
        by_map = log_normal - _geometry.log_abs_det(jacobian)
        return model.log_prob(params, x, y), by_map

    assert_allclose(*jax.jit(jax.vmap(both))(x[:100], y[:100]), rtol=1e-3, atol=2e-3)


@all_models
def test_draws_have_standard_normal_codes(name, fitted):
    x, _, params = fitted
    model, params = SMALL[name], params[name]
    draws = jax.jit(model.sample, static_argnums=3)(params, KEY, x[0], 2000)
    assert draws.shape == (2000, 2)
    z = jax.jit(jax.vmap(model.to_latent, (None, None, 0)))(params, x[0], draws)
    assert np.all(np.abs(np.mean(z, axis=0)) < 4 / 2000**0.5)
    assert_allclose(np.std(z, axis=0), 1, atol=4 / 2000**0.5)


@pytest.mark.parametrize(
    "model",
    [models.CouplingFlow(2, 16, 400), models.GaussianNetwork(16, 400)],
    ids=lambda m: type(m).__name__,
)
def test_a_gaussian_law_is_learnt(model):
    """One output, numbers as inputs: y ~ N(x, (x / 2)^2)."""
    x = jax.random.uniform(KEY, (3000,), minval=1.0, maxval=3.0)
    y = x + x / 2 * jax.random.normal(jax.random.key(1), (3000,))
    params = model.fit(jax.random.key(2), x, y)
    found = jax.vmap(model.log_prob, (None, 0, 0))(params, x, y)
    exact = jax.scipy.stats.norm.logpdf(y, x, x / 2)
    assert abs(np.mean(exact - found)) < 0.02
    assert model.sample(params, KEY, x[0], 5).shape == (5, 1)


def test_fits_are_reproducible_and_equal_models_share_a_program():
    x, y = LAW.draw(KEY, 100)
    make = lambda: models.GaussianNetwork(num_hidden=8, num_steps=5)  # noqa: E731
    first = make().fit(jax.random.key(1), x, y)
    with jax.no_tracing():
        again = make().fit(jax.random.key(1), x, y)
    assert_array_equal(first.losses, again.losses)
    assert not np.array_equal(make().fit(jax.random.key(2), x, y).losses, again.losses)


def test_mahalanobis_of_a_network(fitted):
    x, y, params = fitted
    model, params = SMALL["gaussian"], params["gaussian"]
    preds = model.predict(params, x)
    assert np.all(np.triu(preds[1], 1) == 0)
    cp = jaxcp.calibrate(scores.Mahalanobis(), preds, y)
    codes = jax.vmap(model.to_latent, (None, 0, 0))(params, x, y)
    assert_allclose(cp.scores, np.linalg.norm(codes, axis=1), rtol=1e-4)
    sets = cp(preds, 0.2)
    assert_allclose(metrics.coverage(sets, y), 0.8, atol=0.01)
    assert np.isfinite(metrics.mean_size(sets))


def test_what_a_model_lacks_is_said(fitted):
    params = fitted[2]["matching"]
    with pytest.raises(AttributeError, match="has no attribute 'log_prob'"):
        scores.Density.of(SMALL["matching"], params)


def test_every_model_calibrates(fitted):
    """C-PCP on draws and L-CP on codes, from the same four functions."""
    x, y, params = fitted
    model, params = SMALL["matching"], params["matching"]
    latent = jaxcp.calibrate(scores.Latent.of(model, params), x[:500], y[:500])
    covered = metrics.coverage(latent(x[500:1000], 0.2), y[500:1000])
    assert abs(covered - 0.8) < 4 * (0.16 * 2 / 500) ** 0.5


def test_a_trained_flow_covers_and_adapts():
    """One moon: coverage 0.8, CEC-X near its noise floor, for C-HDR and L-CP."""
    n, flow = 1000, models.CouplingFlow(6, 24, num_steps=500)
    params = flow.fit(jax.random.key(1), *LAW.draw(KEY, 6000))
    x, y = LAW.draw(jax.random.key(2), 2 * n)
    density = scores.Density.of(flow, params)
    sample = jax.tree_util.Partial(flow.sample, params)
    ranked = x, jaxcp.draw(jax.random.key(3), sample, x, 40)
    latent = scores.Latent.of(flow, params)
    for score, preds in [(scores.CDF(density), ranked), (latent, x)]:
        old, new = (jax.tree.map(lambda v, p=p: v[p], preds) for p in (OLD, NEW))
        sets = jaxcp.calibrate(score, old, y[OLD])(new, 0.2)
        covered = metrics.coverage(sets, y[NEW])
        assert abs(covered - 0.8) < 4 * (0.16 * 2 / n) ** 0.5
        error, floor = metrics.conditional_coverage_error(
            jax.random.key(4), sets, y[NEW], x[NEW], 0.2
        )
        assert error < 3 * floor


OLD, NEW = slice(1000), slice(1000, None)


def test_wrong_data():
    model = models.GaussianNetwork(num_hidden=4, num_steps=2)
    x = jnp.ones((5, 1))
    for data, message in [
        ((x, jnp.ones((4, 2))), "expected x with 4 rows like y, got 5"),
        ((x, x.at[2].set(jnp.nan)), "expected finite y, got nan"),
        ((x[:0], x[:0]), "the number of rows as an int >= 1, got 0"),
        ((x[None], x[None]), "expected x of shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.fit(KEY, *data)
    for model, message in [
        (models.GaussianNetwork(num_steps=0), "num_steps as an int >= 1, got 0"),
        (models.CouplingFlow(num_couplings=0), "num_couplings as an int >= 1, got 0"),
        (models.MixtureNetwork(num_components=0), "num_components as an int >= 1"),
        (models.FlowMatching(num_stages=0), "num_stages as an int >= 1, got 0"),
        (models.FlowMatching(step_size=-1.0), "step_size > 0, got -1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.fit(KEY, x, x)


@all_models
def test_targets_and_inputs_of_another_size(name, fitted):
    x, y, params = fitted
    model, params = SMALL[name], params[name]
    density = model.log_prob if name != "matching" else model.to_latent
    with pytest.raises(ValueError, match=r"y of shape \(2,\), got \(1,\)"):
        density(params, x[0], y[0, :1])
    with pytest.raises(ValueError, match=r"x of shape \(1,\), got \(2,\)"):
        density(params, y[0], y[0])


def test_constant_columns_are_not_blown_up():
    """0.1 is not exact, and its standard deviation rounds to something above 0."""
    x = jnp.full((100, 2), 0.1).at[:, 1].set(jnp.linspace(0, 1, 100))
    model = models.GaussianNetwork(num_hidden=8, num_steps=5)
    params = model.fit(KEY, x, jnp.full((100, 1), 100.1) + 0 * x[:, :1])
    assert params.x_scale[0] == params.y_scale[0] == 1
    draws = [model.sample(params, KEY, jnp.array([a, 0.5]), 20) for a in (0.1, 0.1001)]
    assert_allclose(*draws, atol=0.01)


@all_models
def test_either_precision(name):
    model = type(SMALL[name])(num_hidden=8, num_steps=5)

    def codes(x, y):
        params = model.fit(jax.random.key(1), x, y)
        return model.to_latent(params, x[0], y[0])

    with jax.enable_x64(True):
        for dtype in ("float32", "float64"):
            data = jnp.ones((60, 1), dtype), jnp.ones((60, 2), dtype)
            assert jax.eval_shape(codes, *data).dtype == dtype
