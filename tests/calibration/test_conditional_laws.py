"""Conditional calibration over replicates: no surplus of coverage with uniforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp.scores import Absolute

ALPHA, NUM_ROWS, NUM_TRIALS = 0.1, 60, 10_000


@pytest.mark.slow
def test_groups_that_overlap():
    """E f(X) (covered - 0.9) is 0 for each flag f with uniforms, without at least 0."""

    def trial(key):
        key_x, key_e, key_u = jax.random.split(key, 3)
        n = NUM_ROWS
        x = jax.random.uniform(key_x, (n + 1,), maxval=5.0)
        s = jnp.abs(jax.random.normal(key_e, (n + 1,))) * (0.3 + x)
        flags = [jnp.ones(n + 1, bool), x < 2, (x > 1) & (x < 3.5), x > 3]
        phi, zero = jnp.stack(flags, 1), jnp.zeros(n + 1)
        cp = jaxcp.calibrate_conditional(Absolute(), zero[:n], s[:n], phi[:n])
        u = jax.random.uniform(key_u, (1,))
        make = lambda u: cp(zero[n:], ALPHA, features=phi[n:], u=u)  # noqa: E731
        covered = jnp.stack([make(v).contains(s[n:])[0] for v in (None, u)])
        return (covered[:, None] - (1 - ALPHA)) * phi[n:]

    key = jax.random.key(1)
    surplus = np.asarray(jaxcp.simulate(trial, key, NUM_TRIALS, batch_size=500))
    mean, error = surplus.mean(0), surplus.std(0) / NUM_TRIALS**0.5
    assert np.all(mean[0] >= 0)
    np.testing.assert_array_less(np.abs(mean[1]), 4 * error[1])
