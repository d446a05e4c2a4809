import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from jaxcp import datasets


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
