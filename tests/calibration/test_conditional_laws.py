"""Conditional calibration over replicates: no surplus of coverage with uniforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxcp
from jaxcp.scores import Absolute, Residual

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


def rows_in_cells(rng, shape):
    """A score that is constant in each of three cells."""
    cells = rng.integers(0, 3, shape)
    return np.array([0.1, 0.7, 0.3])[cells], np.eye(3)[cells]


def rows_additive_in_flags(rng, shape):
    flags = rng.random((*shape, 3)) < [1, 0.4, 0.5]
    return flags.astype("f") @ np.array([0.1, 0.3, 0.7], "f"), flags


def rows_equal_to_a_feature(rng, shape):
    x = rng.random(shape, "f")
    return x, np.stack([x**0, x, x > 0.5], -1)


def integers_with_flags(rng, shape):
    return rng.integers(0, 4, shape), rng.random((*shape, 3)) < [1, 0.4, 0.5]


def integers_with_numbers(rng, shape):
    x = rng.integers(0, 4, shape)
    return x + rng.integers(0, 3, shape), np.stack([x**0, x, x**2], -1)


def three_values(rng, shape):
    one = np.ones(shape)
    return rng.integers(0, 3, shape), np.stack([one, 0 * one, 0 * one], -1)


TIED = [
    rows_in_cells,
    rows_additive_in_flags,
    rows_equal_to_a_feature,
    integers_with_flags,
    integers_with_numbers,
    three_values,
]


@jax.jit
def surpluses(s, phi, u):
    """Returns f(X) (covered - 0.8) of many sets: plain, with u, and by the dual."""

    def trial(rows):
        s, phi, u = rows
        n, zeros, alpha = len(s) - 1, jnp.zeros(len(s)), 0.2
        cp = jaxcp.calibrate_conditional(Residual(), zeros[:n], s[:n], phi[:n])
        new = {"alpha": alpha, "features": phi[n:]}
        plain, random = (
            cp(zeros[n:], **new, u=v).contains(s[n:])[0] for v in (None, u[None])
        )
        below = cp.dual(zeros[n:], s[n:], **new)[0] < u - alpha
        covered = jnp.stack([plain, random, below])
        return jnp.outer(covered - (1 - alpha), phi[n])

    return lax.map(trial, (s, phi, u), batch_size=500)


@pytest.mark.slow
@pytest.mark.parametrize("law", TIED, ids=lambda law: law.__name__)
def test_scores_that_tie(law):
    """E f(X) (covered - 0.8) is 0 with uniforms and for duals, and else at least 0."""
    rng, shape = np.random.default_rng(7), (NUM_TRIALS, 12)
    s, phi = (np.asarray(v, "f") for v in law(rng, shape))
    found = np.asarray(surpluses(s, phi, rng.random(NUM_TRIALS, "f")))
    mean, error = found.mean(0), found.std(0) / NUM_TRIALS**0.5
    assert np.all(mean[0] >= -4 * error[0])
    np.testing.assert_array_less(np.abs(mean[1:]), 4 * error[1:] + 1e-9)
