import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp


@pytest.mark.parametrize("level", [0.0, 0.05, 0.1, 0.5, 0.9, 1.0])
def test_against_numpy(level):
    values = np.random.default_rng(0).normal(size=(11, 2, 3)).astype(np.float32)
    found = jaxcp.empirical_quantile(values, level)
    assert_allclose(found, np.quantile(values, level, axis=0), rtol=1e-5, atol=1e-6)
    one = jaxcp.empirical_quantile(values[:1], level)
    assert_array_equal(one, values[0])


def test_infinities_and_integers():
    values = jnp.array([-jnp.inf, 1.0, jnp.inf, jnp.inf])
    at = lambda level: jaxcp.empirical_quantile(values, level).item()  # noqa: E731
    assert [at(0.0), at(1 / 3), at(0.5), at(1.0)] == [-np.inf, 1.0, np.inf, np.inf]
    assert jaxcp.empirical_quantile([1, 2, 4], 0.75) == 3.0


def test_traced_levels_and_gradients():
    values = jnp.array([3.0, 1.0, 2.0])
    run = jax.jit(jax.vmap(jaxcp.empirical_quantile, (None, 0)))
    levels = jnp.array([0.0, 0.25, 2.0])  # beyond 1 is the largest
    assert_allclose(run(values, levels), [1.0, 1.5, 3.0])
    slope = jax.grad(jaxcp.empirical_quantile)(values, 0.25)
    assert_allclose(slope, [0.0, 0.5, 0.5])
