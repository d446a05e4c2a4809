"""Factors by Cholesky agree with singular values, and leave bad designs to them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcp.learners import _algebra

KEY = jax.random.key(5)


def designs(p):
    """A stack of a plain design, one of nearly dependent columns, and one of rank 1."""
    x = jax.random.normal(KEY, (p + 20, p), float)
    near = x.at[:, 0].set(x[:, 1] + 1e-9 * x[:, 0])
    return jnp.stack([x, near, jnp.outer(x[:, 0], jnp.ones(p))])


whiten_each = jax.jit(jax.vmap(_algebra.whiten, (0, None, None)))


@pytest.mark.parametrize("p", [3, 40, 70])
@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_factors_are_those_of_the_inverse(p, penalty):
    with jax.enable_x64(True):
        stack, units = designs(p), jnp.ones(p)
        batch = whiten_each(stack, jnp.asarray(penalty), units)
        for i, x in enumerate(np.asarray(stack)):
            factor, rows, lost, _ = (np.asarray(v[i]) for v in batch)
            gram = x.T @ x + penalty * np.eye(p)
            expected = np.linalg.pinv(gram, rcond=1e-13, hermitian=True)
            if i != 1 or penalty:
                np.testing.assert_allclose(factor @ factor.T, expected, 1e-7, 1e-9)
            np.testing.assert_allclose(rows, x @ factor, atol=1e-5 if i == 1 else 1e-11)
            full = rows.T @ rows + penalty * factor.T @ factor + lost.T @ lost
            if i < 2:
                np.testing.assert_allclose(full, np.eye(p), atol=1e-12)


def test_bad_designs_are_known():
    with jax.enable_x64(True):
        find = lambda x: _algebra.by_triangles(x, jnp.zeros(3))[0]  # noqa: E731
        good = [bool(find(x)) for x in designs(3)]
        assert good == [True, False, False]


@pytest.mark.parametrize("axes", [1, 2])
def test_a_stack_is_mended_where_it_is_bad(axes):
    quick = lambda v: (v > 0, 2 * v)  # noqa: E731
    find = _algebra.unless_bad(quick, lambda v: -v)
    values = jnp.array([[1.0, -3.0], [2.0, 5.0]])
    expected = jnp.where(values > 0, 2 * values, -values)
    if axes == 1:
        assert jnp.array_equal(jax.jit(jax.vmap(find))(values[0]), expected[0])
    else:
        assert jnp.array_equal(jax.jit(jax.vmap(jax.vmap(find)))(values), expected)
