import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import datasets

pytestmark = pytest.mark.slow


def test_linear(key):
    x, y = datasets.linear(key, 20_000, num_features=4, noise=0.5)
    assert x.shape == (20_000, 4)
    errors = y - jnp.sum(x, axis=1) / 2
    assert_allclose(np.std(errors), 0.5, rtol=0.03)
    assert_allclose(np.std(y), np.sqrt(1.25), rtol=0.03)


def test_heteroscedastic_noise_grows(key):
    x, y = datasets.heteroscedastic(key, 50_000)
    errors = np.asarray(y - jnp.sin(2 * x[:, 0]))
    for at in [0.2, 1.0, 1.8]:
        near = np.abs(np.asarray(x[:, 0]) - at) < 0.05
        assert_allclose(np.std(errors[near]), 0.1 + at / 2, rtol=0.1)


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_heteroscedastic_draws_of_every_generator(kind):
    """The numbers of two draws, in one program."""
    key = jax.random.key(0, impl=kind)
    key_x, key_y = jax.random.split(key)
    x, y = datasets.heteroscedastic(key, 7)
    assert_array_equal(x, jax.random.uniform(key_x, (7, 1), maxval=2.0))
    noise = (y - jnp.sin(2 * x[:, 0])) / (0.1 + x[:, 0] / 2)
    assert_allclose(noise, jax.random.normal(key_y, (7,)), rtol=1e-4)


def test_class_posterior_is_exact(key):
    x, y = datasets.classes(key, 100_000, num_classes=4, separation=1.5)
    p = np.asarray(datasets.class_posterior(x, num_classes=4, separation=1.5))
    y = np.asarray(y)
    assert_allclose(np.sum(p, axis=1), np.ones(len(p)), rtol=1e-5)
    for c in range(4):
        for low in [0.1, 0.4, 0.7]:
            chosen = (p[:, c] > low) & (p[:, c] < low + 0.2)
            share = np.mean(y[chosen] == c)
            spread = 4 * 0.5 / np.sqrt(np.sum(chosen))
            assert abs(share - np.mean(p[chosen, c])) < spread


def test_generators_are_pure_and_batch(key):
    keys = jax.random.split(key, 3)
    for generate in [datasets.linear, datasets.heteroscedastic, datasets.classes]:
        batch = jax.jit(jax.vmap(lambda k, g=generate: g(k, 6)))(keys)
        alone = jax.jit(generate, static_argnums=1)(keys[1], 6)
        assert_allclose(batch[0][1], alone[0], rtol=1e-5)
        assert_allclose(batch[1][1], alone[1], rtol=1e-5)


LAWS = {
    "unimodal": datasets.Unimodal(),
    "half noise": datasets.Unimodal(noise=0.5, num_targets=3),
    "bimodal": datasets.Bimodal(),
    "one moon": datasets.OneMoon(),
    "del Barrio": datasets.DelBarrio(),
}


@pytest.mark.parametrize("name", ["half noise", "bimodal", "one moon"])
def test_laws_are_models_of_their_own_data(name, key):
    """Codes are standard normal, go back, and their map has the density as Jacobian."""
    law = LAWS[name]
    x, y = law.draw(key, 4000)
    d = law.num_targets
    assert x.shape == (4000, 1) and y.shape == (4000, d)
    low, high = law.support
    assert low <= x.min() and x.max() <= high
    z = jax.jit(jax.vmap(law.to_latent, (None, 0, 0)))(None, x, y)
    assert_allclose(np.mean(z, axis=0), np.zeros(d), atol=4 / 4000**0.5)
    assert_allclose(np.cov(z.T), np.eye(d), atol=6 / 4000**0.5)
    back = jax.jit(jax.vmap(law.from_latent, (None, 0, 0)))
    assert_allclose(back(None, x[:500], z[:500]), y[:500], atol=1e-3)

    def by_map(x, y):
        jacobian = jax.jacfwd(lambda v: law.to_latent(None, x, v))(y)
        log_normal = jnp.sum(jax.scipy.stats.norm.logpdf(law.to_latent(None, x, y)))
        return log_normal + jnp.log(jnp.prod(jnp.diagonal(jacobian)))  # triangular

    densities = jax.vmap(law.log_prob, (None, 0, 0))(None, x[:200], y[:200])
    assert_allclose(jax.jit(jax.vmap(by_map))(x[:200], y[:200]), densities, atol=1e-2)


@pytest.mark.parametrize("name", LAWS)
def test_draws_of_laws_are_their_data(name, key):
    law = LAWS[name]
    low, high = law.support
    x = jnp.full((4000, 1), 0.3 * low + 0.7 * high)
    draws = law.sample(None, key, x[0], 4000)
    y = law.targets(jax.random.key(1), x)
    assert_allclose(np.mean(draws, 0), np.mean(y, 0), atol=6 * np.std(y) / 4000**0.5)
    assert_allclose(np.cov(draws.T), np.cov(y.T), atol=0.12 * np.var(y))


def test_log_densities_of_laws_integrate_to_one():
    side = jnp.linspace(-12.0, 12.0, 241)
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    for name in ("unimodal", "bimodal", "one moon", "del Barrio"):
        law = LAWS[name]
        logs = jax.vmap(lambda v, m=law: m.log_prob(None, jnp.ones(1), v))(grid)
        assert_allclose(jnp.sum(jnp.exp(logs)) * (side[1] - side[0]) ** 2, 1, rtol=1e-3)
