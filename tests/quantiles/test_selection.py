import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import references
from jaxcp import kth_smallest, weighted_select
from jaxcp.quantiles import _rows
from jaxcp.quantiles._cells import known_thresholds
from jaxcp.quantiles._keys import from_keys, to_keys
from jaxcp.quantiles.thresholds import group_thresholds, thresholds

pytestmark = pytest.mark.double

FLOATS = ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64
INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


def awkward(rng, n, dtype):
    """Values with ties, zeros of both signs, subnormals, infinities and NaN."""
    info = jnp.finfo(dtype)
    special = [np.inf, -np.inf, np.nan, -0.0, 0.0, info.max, info.tiny, -info.tiny]
    special += [float(info.smallest_subnormal), -float(info.smallest_subnormal)]
    x = np.round(rng.normal(size=n) * 2, 1)
    x = np.where(rng.random(n) < 0.4, rng.choice(np.array(special, float), n), x)
    return np.asarray(x).astype(jnp.dtype(dtype))


def sorted_with_infinities(x):
    """The order statistics of rank -1, 0, ..., n + 2."""
    x = np.asarray(x, float)
    x = np.sort(np.where(np.isnan(x), np.inf, x))
    return np.concatenate([[-np.inf, -np.inf], x, [np.inf, np.inf]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 40])
def test_every_rank_of_awkward_floats(dtype, n):
    rng = np.random.default_rng(n)
    for _ in range(5):
        x = awkward(rng, n, dtype)
        expected = sorted_with_infinities(x)
        ranks = jnp.arange(-1, n + 3)
        by_sorting = kth_smallest(x, ranks)
        # As of more numbers, and of more rows at once.
        by_bits = _rows._by_bits(jnp.asarray(x)[None], None, ranks[None])[0]
        by_bits = from_keys(by_bits, x.dtype)
        assert by_bits.dtype == by_sorting.dtype == jnp.dtype(dtype)
        assert_array_equal(np.asarray(by_sorting, float), expected)
        assert_array_equal(np.asarray(by_bits, float), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 40])
def test_thresholds_on_the_host_are_those_of_programs(dtype, n):
    """To the last bit, at all ranks, masked or not, of all rows or of each group."""
    rng, ranks = np.random.default_rng(n), np.arange(-1, n + 3)
    if jnp.dtype(dtype).kind != "f":  # those of bfloat16 stay on the device
        return
    x, mask, groups = awkward(rng, n, dtype), rng.random(n) < 0.7, rng.integers(0, 3, n)
    for where in (None, mask):
        for k in ranks:
            found = known_thresholds(x, k, where)
            wanted = np.asarray(thresholds(jnp.asarray(x), jnp.asarray(k), where))
            assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()
            if where is not None:  # flags of integers are flags
                assert known_thresholds(x, k, 2 * where).tobytes() == found.tobytes()
        k = rng.choice(ranks, (3, 2))
        found = known_thresholds(np.stack([x, x[::-1]], 1), k, where, groups)
        columns = jnp.stack([x, x[::-1]], 1)
        wanted = group_thresholds(columns, jnp.asarray(k), jnp.asarray(groups), where)
        assert found.tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_rank_of_integers(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(0, 100, 20), [info.min, info.max, 7, 7]])
    x = x.astype(dtype)
    ranks = jnp.arange(-1, len(x) + 3)
    default = jnp.zeros(()).dtype
    expected = sorted_with_infinities(x).astype(default)
    for result in (
        kth_smallest(x, ranks),
        jax.vmap(kth_smallest, (None, 0))(x, ranks),
        kth_smallest(np.append(x, x[:3]), ranks, where=np.arange(len(x) + 3) < len(x)),
    ):
        assert result.dtype == default
        assert_array_equal(result, expected)


def test_booleans():
    assert_array_equal(
        kth_smallest([True, False, True], jnp.arange(1, 5)), [0, 1, 1, np.inf]
    )


def test_keys_order_like_values_and_come_back():
    for dtype in FLOATS:
        x = jnp.asarray(awkward(np.random.default_rng(1), 200, dtype))
        back = np.asarray(from_keys(to_keys(x), x.dtype), float)
        assert_array_equal(back, np.where(np.isnan(x), np.inf, np.asarray(x, float)))
        assert_array_equal(
            np.argsort(to_keys(x), kind="stable"), np.argsort(back, kind="stable")
        )


def test_random_rows_against_numpy():
    rng = np.random.default_rng(2)
    for shape in [(50, 1), (200, 7), (20, 1000), (1, 50_000)]:
        x = rng.normal(size=shape).astype(np.float32)
        k = rng.integers(1, shape[1] + 1, shape[0])
        expected = np.sort(x, axis=1)[np.arange(shape[0]), k - 1]
        assert_array_equal(jax.vmap(kth_smallest)(x, jnp.asarray(k)), expected)
        columns = jax.vmap(kth_smallest, (1, 0))(x.T, jnp.asarray(k))
        assert_array_equal(columns, expected)


def test_mask_counts_masked_entries_as_absent():
    rng = np.random.default_rng(3)
    x = awkward(rng, 30, "float32")
    where = rng.random(30) < 0.5
    ranks = jnp.arange(-1, 33)
    kept = sorted_with_infinities(x[where])
    expected = np.concatenate([kept, np.full(34 - len(kept), np.inf)])
    assert_array_equal(kth_smallest(x, ranks, where=where), expected)
    one_by_one = jax.vmap(lambda k: kth_smallest(x, k, where=where))(ranks)
    assert_array_equal(one_by_one, expected)
    assert kth_smallest(x, 1, where=np.zeros(30, bool)) == np.inf


def test_traced_rank_compiles_once():
    traces = []

    @jax.jit
    def select(x, k, where):
        traces.append(1)
        return kth_smallest(x, k, where=where)

    x = jnp.arange(16.0)
    for n, k in itertools.product([1, 5, 16], [1, 3, 9]):
        expected = k - 1 if k <= n else np.inf
        assert select(x, k, jnp.arange(16) < n) == expected
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint32"])
def test_shards_select_like_the_whole(dtype):
    rng = np.random.default_rng(4)
    x = awkward(rng, 24, dtype) if dtype in FLOATS else rng.integers(0, 9, 24, dtype)
    where = rng.random(24) < 0.7
    for k in [0, 1, 5, 12, 24, 25]:
        for mask in (None, where):
            shard = jax.vmap(
                lambda v, m, k=k: kth_smallest(v, k, where=m, axis_name="shards"),
                in_axes=(0, None if mask is None else 0),
                axis_name="shards",
            )
            split = None if mask is None else mask.reshape(4, 6)
            together = kth_smallest(x, k, where=mask)
            assert_array_equal(shard(x.reshape(4, 6), split), np.full(4, together))


def test_shards_on_a_mesh():
    assert jax.device_count() > 1
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("shards",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("shards")
    x = jax.random.normal(jax.random.key(0), (8 * jax.device_count(),))
    select = jax.shard_map(
        lambda v: kth_smallest(v, 5, axis_name="shards"),
        mesh=mesh,
        in_specs=spec,
        out_specs=jax.sharding.PartitionSpec(),
    )
    assert jax.jit(select)(x) == kth_smallest(x, 5)


def test_weighted_select_against_loop():
    rng = np.random.default_rng(5)
    for n in [0, 1, 2, 10, 60]:
        x = np.round(rng.normal(size=n), 1).astype(np.float32)
        weights = rng.integers(0, 4, n).astype(np.float32)  # sums are exact
        for target in np.arange(-1, weights.sum() + 2):
            expected = references.weighted_select(x, weights, target)
            assert weighted_select(x, weights, target) == expected
            if n == 10:
                shard = jax.vmap(
                    lambda v, w, t=target: weighted_select(v, w, t, axis_name="shards"),
                    axis_name="shards",
                )
                parts = shard(x.reshape(2, 5), weights.reshape(2, 5))
                assert_array_equal(parts, np.full(2, expected))


def test_weights_that_are_none():
    x = jnp.arange(4.0)
    weights = jnp.array([jnp.nan, -1.0, 1.0, 1.0])
    assert weighted_select(x, weights, 1.0) == 2
    assert weighted_select(x, jnp.zeros(4), 1e-3) == np.inf


def test_tangent_is_one_hot_averaged_over_ties():
    x = jnp.array([3.0, 1.0, 2.0, 2.0])
    assert_allclose(jax.grad(kth_smallest)(x, 1), [0, 1, 0, 0])
    assert_allclose(jax.grad(kth_smallest)(x, 2), [0, 0, 0.5, 0.5])
    forward = jax.jvp(lambda v: kth_smallest(v, 3), (x,), (jnp.arange(4.0),))
    assert_allclose(forward, (2, 2.5))


def test_tangent_of_the_nearest():
    x = jnp.array([0.0, 1.0, 1.1, 5.0, jnp.inf])
    slope = jax.grad(lambda v: kth_smallest(v, 2, nearest=3))(x)
    assert_allclose(slope, [1 / 3, 1 / 3, 1 / 3, 0, 0])
    everything = jax.grad(lambda v: kth_smallest(v, 2, nearest=9))(x)
    assert_allclose(everything, [0.25, 0.25, 0.25, 0.25, 0])
    masked = jax.grad(lambda v: kth_smallest(v, 1, where=v > 0, nearest=2))(x)
    assert_allclose(masked, [0, 0.5, 0.5, 0, 0])


def test_tangent_of_shards_is_that_of_the_whole():
    x = jax.random.normal(jax.random.key(0), (4, 5))

    def total(v):
        part = jax.vmap(
            lambda s: kth_smallest(s, 7, axis_name="shards", nearest=4),
            axis_name="shards",
        )
        return part(v)[0]

    whole = jax.grad(lambda v: kth_smallest(v.ravel(), 7, nearest=4))(x)
    forward = jax.jvp(total, (x,), (whole,))[1]
    assert_allclose(forward, jnp.sum(whole * whole), rtol=1e-6)


def test_infinite_results_have_no_tangent():
    x = jnp.array([1.0, jnp.inf, -jnp.inf])
    for k in [-1, 0, 1, 3, 4]:
        assert_array_equal(jax.grad(kth_smallest)(x, k), np.zeros(3))


def test_tangent_under_vmap_and_of_several_ranks():
    x = jax.random.normal(jax.random.key(1), (6, 9))
    batched = jax.vmap(jax.grad(kth_smallest), (0, None))(x, 4)
    assert_array_equal(batched, [jax.grad(kth_smallest)(row, 4) for row in x])
    ranks = jnp.array([1, 5, 12])
    jacobian = jax.jacrev(kth_smallest)(x[0], ranks)
    expected = [jax.grad(kth_smallest)(x[0], k) for k in ranks]
    assert_array_equal(jacobian, expected)
    assert_array_equal(jacobian, jax.jacfwd(kth_smallest)(x[0], ranks))


def test_second_derivative_is_defined():
    x = jnp.array([3.0, 1.0, 2.0])
    hessian = jax.hessian(lambda v: kth_smallest(v**2, 2))(x)
    assert_allclose(hessian, np.diag([0.0, 0.0, 2.0]))


def test_weighted_tangent():
    x, weights = jnp.array([3.0, 1.0, 1.0]), jnp.array([1.0, 1.0, 3.0])
    dx, dw = jax.grad(weighted_select, (0, 1))(x, weights, 2.0)
    assert_allclose(dx, [0, 0.25, 0.75])
    assert_allclose(dw, [0, 0, 0])


def test_integers_inside_a_differentiated_function():
    def loss(v):
        return kth_smallest(jnp.round(v).astype(int), 1) * jnp.sum(v)

    assert_allclose(jax.grad(loss)(jnp.array([2.0, 3.0])), [2, 2])


def test_constants_with_permuted_axes():
    """XLA once folded the bits of such constants in the wrong order."""
    x = jnp.abs(jax.random.normal(jax.random.key(0), (99, 3))) * jnp.array(
        [[0.1, 1, 9]]
    )

    def select(v):
        return jax.vmap(lambda s: kth_smallest(jnp.where(s > 2, 2, s), 50), 1)(v)

    assert_array_equal(jax.jit(lambda: select(x))(), jax.jit(select)(x))


def test_sharded_weights_select_an_element():
    for seed in range(20):
        key_x, key_w = jax.random.split(jax.random.key(seed))
        x = jax.random.normal(key_x, (2, 100))
        w = jax.random.uniform(key_w, (2, 100))
        target = jnp.cumsum(w.ravel()[jnp.argsort(x.ravel())])[150]
        shard = jax.vmap(
            lambda v, u, t=target: weighted_select(v, u, t, axis_name="shards"),
            axis_name="shards",
        )
        assert np.isin(shard(x, w)[0], x)


def test_rows_sharded_over_a_mesh():
    """The kernel inside shard_map, with its default checks."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("rows")
    x = jax.random.normal(jax.random.key(0), (4, 20))

    def each(rows):
        return jax.vmap(lambda r: kth_smallest(r, 7, where=r > -1))(rows)

    sharded = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec)
    assert_array_equal(jax.jit(sharded)(x), each(x))


def test_narrow_types_do_not_overflow():
    x = jnp.arange(1000.0)
    assert_array_equal(kth_smallest(x, jnp.array([1, 5], jnp.int8)), [0, 4])
    ones = jnp.ones(5000, jnp.float16)
    assert weighted_select(jnp.arange(5000.0), ones, 3001) == 3000
    zeros = jnp.zeros(70_000, jnp.float16)
    slope = jax.grad(kth_smallest)(zeros, 3).astype(float)
    assert_allclose(jnp.sum(slope), 1, rtol=0.01)


def test_errors_say_what_was_expected():
    x = jnp.arange(3.0)
    with pytest.raises(ValueError, match=r"shape \(n,\), got \(1, 3\)"):
        kth_smallest(x[None], 1)
    with pytest.raises(ValueError, match=r"integer k .* got float32"):
        kth_smallest(x, np.float32(1.0))
    with pytest.raises(ValueError, match=r"where of shape \(3,\), got \(2,\)"):
        kth_smallest(x, 1, where=[True, False])
    with pytest.raises(ValueError, match="nearest as an int >= 1, got 0"):
        kth_smallest(x, 1, nearest=0)
    with pytest.raises(ValueError, match=r"weights of shape \(3,\), got \(2,\)"):
        weighted_select(x, jnp.ones(2), 1.0)
    with pytest.raises(ValueError, match=r"target of shape \(\), got \(2,\)"):
        weighted_select(x, x, jnp.ones(2))


def test_the_slope_is_that_of_a_value_however_values_are_rounded():
    """Scores computed once to select and once to compare may differ in the last bit."""

    def slope(key):
        x, noise = jax.random.normal(key, (2, 400))
        y = 0.5 * x + 0.5 * noise
        return jax.grad(lambda t: kth_smallest(jnp.abs(y - t * x), 360))(0.0)

    slopes = jax.jit(jax.vmap(slope))(jax.random.split(jax.random.key(0), 200))
    assert jnp.all(slopes != 0)
