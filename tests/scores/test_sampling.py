import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp._batching import map_evenly
from rows import refuses

KEY = jax.random.key(0)


def sample(key, x, n):
    return x[None] + jax.random.normal(key, (n, 2))


def test_draws_depend_on_key_role_and_index_alone():
    x = jnp.arange(12.0).reshape(6, 2)
    all_ = jaxcp.draw(KEY, sample, x, 5)
    assert all_.shape == (6, 5, 2)
    part = jaxcp.draw(KEY, sample, x[jnp.array([4, 1])], 5, indices=[4, 1])
    assert_array_equal(part, all_[jnp.array([4, 1])])
    for other in [
        jaxcp.draw(KEY, sample, x, 5, role=1),
        jaxcp.draw(jax.random.key(1), sample, x, 5),
        jaxcp.draw(KEY, sample, x, 5, indices=jnp.arange(6) + 6),
    ]:
        assert not np.any(other == all_)
    expected = jax.random.fold_in(jax.random.fold_in(KEY, 0), 3)
    np.testing.assert_allclose(all_[3], sample(expected, x[3], 5), rtol=1e-6)


def test_bound_parameters_compile_nothing_anew():
    x = jnp.zeros((3, 2))

    def scaled(scale, key, x, n):
        return scale * sample(key, x, n)

    from functools import partial

    jaxcp.draw(KEY, partial(scaled, jnp.array(1.0)), x, 4)
    with jax.no_tracing():
        jaxcp.draw(KEY, partial(scaled, jnp.array(2.0)), x, 4)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sample": lambda k, x, n: jnp.zeros((n + 1, 2))}, r"sample\(key, x, 4\) of"),
        (
            {"sample": lambda k, x, n: (jnp.zeros((n, 2)),) * 2},
            r"sample\(key, x, 4\) of",
        ),
        ({"sample": 3.0}, "expected sample as a function, got 3.0"),
        ({"num_draws": 0}, "num_draws as an int >= 1, got 0"),
        ({"role": 0.7}, "role as an int >= 0, got 0.7"),
        ({"indices": [0.5, 1.0]}, "indices of an integer type"),
        ({"indices": [0]}, "indices with 2 rows like x, got 1"),
        ({"key": 3}, "expected a key"),
    ],
)
def test_wrong_calls(change, message):
    call = {"key": KEY, "sample": sample, "x": jnp.zeros((2, 2)), "num_draws": 4}
    with pytest.raises(ValueError, match=message):
        jaxcp.draw(**(call | change))


def test_blocks_of_one_size_are_the_rows():
    """Rows that fill up the last block count for nothing, slopes included."""
    rows = jnp.arange(7.0)
    for at_a_time in (1, 2, 3, 6, 7, 8):
        found = map_evenly(jnp.sqrt, rows, at_a_time=at_a_time)
        assert_allclose(found, np.sqrt(rows), rtol=1e-6)
        total = lambda v, b=at_a_time: jnp.sum(map_evenly(jnp.sqrt, v, at_a_time=b))  # noqa: E731
        slopes = jax.grad(total)(rows)
        assert slopes[0] == np.inf
        assert_allclose(slopes[1:], 0.5 / np.sqrt(rows[1:]), rtol=1e-6)
    assert map_evenly(jnp.sqrt, rows[:0], at_a_time=3).shape == (0,)


def test_uniforms_are_of_the_key_and_go_into_randomized_scores():
    u = jaxcp.uniforms(KEY, 20_000)
    assert u.shape == (20_000,) and u.dtype == jnp.zeros(0).dtype
    assert u.min() >= 0 and u.max() < 1
    assert_allclose([u.mean(), u.var()], [1 / 2, 1 / 12], atol=4 / 20_000**0.5)
    assert_array_equal(jax.jit(jaxcp.uniforms, static_argnums=1)(KEY, 20_000), u)
    many = jax.vmap(lambda key: jaxcp.uniforms(key, 3))(jax.random.split(KEY, 4))
    assert many.shape == (4, 3) and len(np.unique(many)) == 12
    assert jaxcp.uniforms(jax.random.PRNGKey(0), np.int64(0)).shape == (0,)
    preds = jnp.full((9, 3), 1 / 3), jaxcp.uniforms(KEY, 9)
    cp = jaxcp.calibrate(jaxcp.scores.APS(randomized=True), preds, jnp.arange(9) % 3)
    assert len(cp(preds, 0.2)) == 9


UNIFORMS = {
    "uniforms of a seed": (lambda: jaxcp.uniforms(0, 5), "a key .*, got int"),
    "uniforms of several keys": (
        lambda: jaxcp.uniforms(jax.random.split(KEY, 2), 5),
        r"a key from jax.random.key, got key<fry>\(2,\)",
    ),
    "uniforms of a shape": (
        lambda: jaxcp.uniforms(KEY, (5, 3)),
        r"n as an int >= 0, got \(5, 3\)",
    ),
    "fewer uniforms than none": (lambda: jaxcp.uniforms(KEY, -1), "n as an int >= 0"),
    "traced uniforms": (lambda: jax.jit(jaxcp.uniforms)(KEY, 5), "n as an int >= 0"),
}
test_wrong_calls_say_what_was_expected = refuses(UNIFORMS)
