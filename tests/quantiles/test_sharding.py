import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import sharded_conformal_quantile
from jaxcp.quantiles.thresholds import _sharded

pytestmark = [pytest.mark.slow, pytest.mark.double]

ALPHAS = np.array([0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99])


def mesh_of(*shape):
    names = tuple("abc"[: len(shape)])
    devices = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, names, devices=devices)


def scores_like(kind, n, rng):
    kinds = {
        "normal": rng.normal(size=n),
        "ties": rng.integers(0, 5, n).astype(float),
        "infinite": np.where(rng.random(n) < 0.2, np.inf, rng.normal(size=n)),
        "NaN": np.where(rng.random(n) < 0.3, np.nan, -np.inf),
        "integers": rng.integers(-9, 9, n),
    }
    return kinds[kind] if kind == "integers" else kinds[kind].astype(float)


@pytest.mark.parametrize("kind", ["normal", "ties", "infinite", "NaN", "integers"])
@pytest.mark.parametrize("shape", [(1,), (4,), (2, 2)], ids=str)
def test_shards_have_the_quantile_of_the_whole(kind, shape):
    """To the last bit, on shards that do not come out even, at all levels at once."""
    rng, mesh = np.random.default_rng(0), mesh_of(*shape)
    for n in (0, 3, 21):
        x, mask = scores_like(kind, n, rng), rng.random(n) < 0.6
        whole = jaxcp.conformal_quantile(x, ALPHAS)
        found = sharded_conformal_quantile(x, ALPHAS, mesh)
        assert_array_equal(found, whole)
        assert found.dtype == whole.dtype
        masked = jaxcp.conformal_quantile(x, ALPHAS, mask=mask)
        assert_array_equal(
            sharded_conformal_quantile(x, ALPHAS, mesh, mask=mask), masked
        )


@pytest.mark.parametrize("test_weight", [1.0, 0.25, 8.0])
def test_weighted_shards(test_weight):
    """Bit for bit, also where a mass meets the level."""
    rng, mesh = np.random.default_rng(1), mesh_of(4)
    for n in (1, 21):
        x = rng.normal(size=n)
        for w in (np.ones(n), rng.integers(0, 4, n) / 4, np.full(n, 0.1)):
            found = sharded_conformal_quantile(
                x, ALPHAS, mesh, weights=w, test_weight=test_weight
            )
            whole = [
                jaxcp.weighted_conformal_quantile(x, w, a, test_weight=test_weight)
                for a in ALPHAS.tolist()
            ]
            assert_array_equal(found, np.stack(whole))
        mask = rng.random(n) < 0.5
        found = sharded_conformal_quantile(x, 0.2, mesh, weights=np.ones(n), mask=mask)
        assert_array_equal(found, jaxcp.conformal_quantile(x, 0.2, mask=mask))


def test_random_weights_of_shards():
    rng, mesh = np.random.default_rng(2), mesh_of(4)
    x, w = rng.normal(size=100), rng.exponential(size=100) ** 2
    found = sharded_conformal_quantile(x, ALPHAS, mesh, weights=w, test_weight=1.0)
    whole = jax.vmap(
        lambda a: jaxcp.weighted_conformal_quantile(x, w, a, test_weight=1.0)
    )(ALPHAS)
    assert_array_equal(found, whole)


@pytest.mark.parametrize("n", [2048, 5000])
def test_words_of_weights_do_not_depend_on_the_padding(n):
    """Of floats and of integers: weights whose masses meet the levels."""
    x, mesh = np.random.default_rng(4).normal(size=n), mesh_of(4)
    w = np.where(np.arange(n) % 2 == 0, 1 / 3, 1.0)
    for size in (n, n - 1, n - 3):
        found = sharded_conformal_quantile(x[:size], ALPHAS, mesh, weights=w[:size])
        whole = jax.vmap(
            lambda a, s=size: jaxcp.weighted_conformal_quantile(x[:s], w[:s], a)
        )(jnp.asarray(ALPHAS))
        assert_array_equal(found, whole)


def test_columns_and_placed_rows():
    rng, mesh = np.random.default_rng(3), mesh_of(2)
    x = rng.normal(size=(51, 3, 2))
    levels = np.array([0.1, 0.2])
    found = sharded_conformal_quantile(x, levels, mesh)
    assert_array_equal(found, jaxcp.conformal_quantile(x, levels))
    rows = jax.NamedSharding(mesh, jax.P("a"))
    placed = jax.device_put(x[:50], rows)
    found = sharded_conformal_quantile(placed, 0.1, mesh)
    assert_array_equal(found, jaxcp.conformal_quantile(x[:50], 0.1))
    one = jax.device_put(x, jax.devices()[1])  # on a device, and not the default one
    assert_array_equal(
        sharded_conformal_quantile(one, 0.1, mesh), jaxcp.conformal_quantile(x, 0.1)
    )
    assert_array_equal(sharded_conformal_quantile([1.0, 3.0, 2.0], 0.5, mesh), 2.0)


def test_gradient_of_a_sharded_quantile():
    x, mesh = jnp.array([3.0, 1.0, 2.0, 5.0]), mesh_of(2)
    gradient = jax.grad(lambda x: sharded_conformal_quantile(x, 0.5, mesh))(x)
    assert_allclose(gradient, [1, 0, 0, 0])
    inside = jax.jit(lambda x: sharded_conformal_quantile(x, 0.5, mesh))(x[:3])
    assert inside == 2.0


def test_second_call_traces_nothing(key):
    mesh = mesh_of(2)
    x = jax.random.normal(key, (1000,))
    sharded_conformal_quantile(x, 0.1, mesh)
    before = _sharded._cache_size()
    sharded_conformal_quantile(-x, 0.2, mesh)
    assert _sharded._cache_size() == before


def test_errors():
    mesh, x = mesh_of(2), np.arange(4.0)
    with pytest.raises(ValueError, match=r"mesh from jax.make_mesh, got int"):
        sharded_conformal_quantile(x, 0.1, 2)
    with pytest.raises(ValueError, match="mask with 4 rows like scores, got 3"):
        sharded_conformal_quantile(x, 0.1, mesh, mask=np.ones(3, bool))
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 1.5"):
        sharded_conformal_quantile(x, 1.5, mesh)
    with pytest.raises(ValueError, match=r"finite weights >= 0, got -1.0 at 0"):
        sharded_conformal_quantile(x, 0.1, mesh, weights=x - 1, test_weight=1.0)
    with pytest.raises(ValueError, match=r"scores of shape \(n,\), got \(4, 1\)"):
        sharded_conformal_quantile(x[:, None], 0.1, mesh, weights=x)
    with pytest.raises(ValueError, match=r"finite test_weight >= 0, got -1.0"):
        sharded_conformal_quantile(x, 0.1, mesh, weights=x, test_weight=-1.0)
