import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import reference
from jaxcp import scores
from jaxcp.sets import Balls, Box, Ellipsoid, Interval, LabelSet, LevelSet

EXACT = reference("multioutput/volumes_exact")
KEYS = jax.random.split(jax.random.key(0), 12)


def volumes(regions, sobol=False, num_samples=4000, keys=KEYS):
    run = lambda key, region: jaxcp.volume(key, region, num_samples, sobol=sobol)  # noqa: E731
    return jax.jit(jax.vmap(run))(keys, regions)


def assert_within(found, exact, errors=3):
    log_volume, error = (np.asarray(v, float) for v in found)
    assert np.all(error < 0.1)
    assert np.all(np.abs(log_volume - exact) <= errors * error + 1e-5)


def log_normal(pred, y):
    """Log density of N(0, L L') from L = pred."""
    z = jax.scipy.linalg.solve_triangular(pred, y, lower=True)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(pred))))
    return -0.5 * jnp.sum(z**2) - log_det - 0.5 * len(y) * jnp.log(2 * jnp.pi)


def sample_normal(key, pred, n):
    return jax.random.normal(key, (n, len(pred))) @ pred.T


@pytest.mark.parametrize("sobol", [False, True])
@pytest.mark.parametrize("d", [1, 2])
def test_unions_of_balls(d, sobol):
    balls = Balls(jnp.asarray(EXACT[f"centres{d}"]), jnp.asarray(EXACT["radius"]))
    exact = np.log(EXACT[{1: "length_union", 2: "area_union"}[d]])
    found = volumes(balls, sobol)
    assert_within(found, exact)
    if sobol:  # closer than the error says
        assert np.mean(np.abs(found[0] - exact) < found[1]) > 0.9
