"""The kernel on many numbers, which it counts in bytes."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import kth_smallest
from jaxcp.quantiles import _rows
from jaxcp.quantiles._keys import from_keys, to_keys

pytestmark = pytest.mark.double

FLOATS = ["float16", "bfloat16", "float32"] + ["float64"] * jax.config.jax_enable_x64
INTEGERS = ["int8", "int32", "uint16", "uint32"] + ["int64"] * jax.config.jax_enable_x64
# More numbers than are counted in bits: one row, rows, and rows that lie side by side.
SHAPES = [(1, 40_001), (3, 20_000), (40, 1000), (260, 128), (400, 101), (40_000, 1)]


def many(kind, shape, dtype, seed=0):
    """Numbers of a kind: spread, tied, all equal, subnormal, special or any bits."""
    rng = np.random.default_rng(seed)
    if not jnp.issubdtype(dtype, jnp.floating):
        info = jnp.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    bits = f"u{np.dtype(jnp.dtype(dtype)).itemsize}"
    largest = np.iinfo(bits).max
    info = jnp.finfo(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max]
    draws = {
        "spread": lambda: rng.normal(size=shape),
        "tied": lambda: rng.integers(0, 3, shape),
        "equal": lambda: np.full(shape, -2.5),
        "subnormal": lambda: rng.normal(size=shape) * float(info.tiny),
        "special": lambda: rng.choice(special, shape),
        "bits": lambda: rng.integers(0, largest, shape, bits).view(jnp.dtype(dtype)),
    }
    return np.asarray(draws[kind]()).astype(jnp.dtype(dtype))


def ranks_of(n):
    return np.unique([-1, 0, 1, 2, n // 3, n // 2, int(0.9 * n), n - 1, n, n + 1])


def expected(x, k):
    """Order statistics by sorting, x (..., n) at each of k (a,): (..., a)."""
    with np.errstate(invalid="ignore"):
        wide = np.asarray(x).astype(float)
    ordered = np.sort(np.where(np.isnan(wide), np.inf, wide))
    n = x.shape[-1]
    found = ordered[..., np.clip(k - 1, 0, n - 1)]
    return np.where(k < 1, -np.inf, np.where(k > n, np.inf, found))


KINDS = ["spread", "tied", "equal", "subnormal", "special", "bits"]
CASES = [(dtype, kind) for dtype in FLOATS for kind in KINDS]


@jax.jit
def each_rank(x, k):
    """One rank at a time, in the program of one rank."""
    return jax.lax.map(lambda rank: jax.vmap(kth_smallest, (0, None))(x, rank), k).T


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_of_many_floats(dtype, shape):
    k = ranks_of(shape[1])
    for kind in KINDS:
        x = many(kind, shape, dtype)
        found = np.asarray(each_rank(x, k), float)  # XLA flushes subnormals
        assert_array_equal(found, expected(x, k), err_msg=kind)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ranks_of_many_integers(dtype):
    x = many("", (2, 20_000), dtype)
    k = ranks_of(20_000)
    wanted = expected(x, k)
    found = np.asarray(each_rank(x, k), float)
    assert np.all(found >= wanted)  # rounded up where floats are too narrow
    assert_allclose(found, wanted, rtol=1e-6)


def test_a_mask_of_many():
    x = many("special", (2, 30_000), "float32")
    where = np.random.default_rng(1).random(x.shape) < 0.3
    for k in (1, 100, 8_000, 30_000):
        found = jax.vmap(lambda v, m, k=k: kth_smallest(v, k, where=m))(x, where)
        wanted = [
            expected(v[m], np.array([k]))[0] for v, m in zip(x, where, strict=True)
        ]
        assert_array_equal(found, wanted)


def test_several_ranks_of_many():
    x = many("spread", (40_000,), "float32")
    for count in (2, 5, 40):  # one after the other, or sorted
        k = np.linspace(1, 40_000, count).astype(int)
        wanted = expected(x, k)
        assert_array_equal(kth_smallest(x, k), wanted)
        assert_array_equal(jax.vmap(kth_smallest, (None, 0))(x, k), wanted)


def test_any_nest_of_maps_is_rows():
    x = many("spread", (3, 4, 5000), "float32")
    k = np.arange(1, 5000, 450).reshape(3, 4)
    both = jax.vmap(jax.vmap(kth_smallest))(x, k)
    wanted = np.take_along_axis(np.sort(x), k[..., None] - 1, -1)[..., 0]
    assert_array_equal(both, wanted)
    outer = jax.vmap(jax.vmap(kth_smallest, (None, 0)), (0, None))(x[:, 0], k[0])
    assert_array_equal(outer, expected(x[:, 0], k[0]))
    inner = jax.vmap(jax.vmap(kth_smallest, (0, None)), (None, 0))(x[0], k[:, 0])
    assert_array_equal(inner, expected(x[0], k[:, 0]).T)
    crossed = jax.vmap(jax.vmap(kth_smallest, (1, None)), (0, None), 1)
    assert_array_equal(
        crossed(x.swapaxes(1, 2), 7).T, expected(x, np.array([7]))[..., 0]
    )


def test_derivatives_of_many():
    x = jnp.asarray(many("spread", (400, 101), "float32"))

    @jax.jit
    @jax.grad
    def slope(x):
        return jnp.sum(jax.vmap(lambda row: kth_smallest(row, 90))(x))

    largest = np.sort(x)[:, 89]
    assert_array_equal(slope(x), x == largest[:, None])
    row = x.ravel()
    scaled = lambda s: kth_smallest(s * row, 90) ** 2  # noqa: E731
    assert_allclose(jax.hessian(scaled)(1.5), 2 * kth_smallest(row, 90) ** 2, rtol=1e-6)
    kept = jax.jvp(jax.checkpoint(scaled), (1.5,), (1.0,))
    assert_allclose(kept, jax.jvp(scaled, (1.5,), (1.0,)))


def test_many_in_loops():
    x = jnp.asarray(many("spread", (3, 400, 101), "float32"))

    def step(total, rows):
        return total + jnp.sum(jax.vmap(lambda r: kth_smallest(r, 3))(rows)), None

    total, _ = jax.jit(lambda x: jax.lax.scan(step, 0.0, x))(x)
    assert_allclose(total, np.sum(np.sort(x)[..., 2]), rtol=1e-5)
    count = jax.lax.while_loop(
        lambda i: kth_smallest(x.ravel(), i) < -1, lambda i: i + 1000, 1
    )
    assert count % 1000 == 1 and np.sort(x.ravel())[count - 1] >= -1


@pytest.mark.parametrize("shape", [(4, 20_000), (5000, 101), (2, 2**20)])
def test_rows_in_shards_are_those_of_one_device(shape):
    """Within shard_map each device has its rows side by side, and in blocks."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = P("rows")
    x = many("spread", shape, "float32")
    x = np.concatenate([x, x[:1], x[:1]]) if shape[0] == 5000 else x
    k = np.arange(len(x)) % x.shape[1] + 1

    def each(x, k):
        return jax.vmap(kth_smallest)(x, k)

    sharded = jax.shard_map(each, mesh=mesh, in_specs=(rows, rows), out_specs=rows)
    wanted = np.take_along_axis(np.sort(x), k[:, None] - 1, -1)[:, 0]
    assert_array_equal(jax.jit(sharded)(x, k), wanted)
    assert_array_equal(jax.jit(each)(x, k), wanted)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("shape", [(4, 50), (4, 20_000), (800, 101)])
def test_rows_stay_on_their_devices(kind, shape):
    types = (jax.sharding.AxisType[kind],)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=types)
    rows = jax.NamedSharding(mesh, P("rows"))
    with jax.set_mesh(mesh):
        x = jax.device_put(many("spread", shape, "float32"), rows)
        select = jax.jit(jax.vmap(lambda r: kth_smallest(r, 7)))
        compiled = select.lower(x).compile()
        assert "all-" not in compiled.as_text()
        assert_array_equal(compiled(x), np.sort(x)[:, 6])


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("n", [20, 512, 4096])
def test_one_row_over_devices(kind, n):
    """Few numbers are sorted where they are on one device."""
    mesh = jax.make_mesh((2,), ("n",), axis_types=(jax.sharding.AxisType[kind],))
    row = many("spread", (n,), "float32")
    spread = jax.device_put(row, jax.NamedSharding(mesh, P("n")))
    for found in (kth_smallest(spread, 7), jax.jit(kth_smallest)(spread, 7)):
        assert_array_equal(found, np.sort(row)[6])


ON_ONE_DEVICE = """
import jax, numpy as np
from jaxcp import kth_smallest
from test_kernel import SHAPES, each_rank, expected, many, ranks_of
assert jax.device_count() == 1
for shape in [(1, 40_001), (500, 101), (2200, 1000), (5, 700_000), (21_111, 127)]:
    x, k = many("special", shape, "float32"), ranks_of(shape[1])
    x[:, ::2] = many("spread", x[:, ::2].shape, "float32")
    np.testing.assert_array_equal(each_rank(x, k), expected(x, k))
x = many("spread", (3, 11, 2000), "float32")
select = jax.vmap(jax.vmap(kth_smallest, (0, None)), (0, None))
np.testing.assert_array_equal(select(x, 90), expected(x, np.array([90]))[..., 0])
memory = jax.jit(lambda x: jax.vmap(kth_smallest, (0, None))(x, 90))
memory = memory.lower(np.zeros((30_000, 100), np.float32)).compile().memory_analysis()
assert memory.temp_size_in_bytes < 0.6 * 30_000 * 100 * 4
"""


def test_rows_of_one_device():
    """As most users have one: side by side and in blocks, with few temporaries."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"JAX_NUM_CPU_DEVICES": "1", "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-c", ON_ONE_DEVICE], env=environment, check=True)


def test_few_numbers_are_counted_as_many_are():
    """Both ways give the same keys, whichever a device takes."""
    for shape in [(1, 40_001), (400, 101)]:
        x = jnp.asarray(many("bits", shape, "float32"))
        k = jnp.resize(jnp.asarray(ranks_of(shape[1])), (shape[0], 1))
        assert_array_equal(_rows._by_bits(x, None, k), _rows._by_bytes(x, None, k))
        assert_array_equal(
            from_keys(to_keys(x), x.dtype), np.where(np.isnan(x), np.inf, x)
        )


def test_accelerators_count_keys_and_not_bytes():
    select = jax.jit(jax.vmap(lambda r: kth_smallest(r, 7)))
    traced = select.trace(jnp.zeros((400, 101)))
    for platform, in_bytes in (("cpu", True), ("cuda", False), ("tpu", False)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("xi8>" in text) == in_bytes


def test_conformal_quantiles_of_many_rows():
    scores = many("tied", (500, 90), "float32")
    found = jaxcp.conformal_quantile(scores.T, 0.1)
    assert_array_equal(found, expected(scores, np.array([82]))[:, 0])


def plain_of_shard(x, w):
    quantile = jaxcp.conformal_quantile
    rounded = lambda s: jnp.round(9 * s).astype(int)  # noqa: E731
    return {
        "quantile": jax.vmap(lambda s: quantile(s, 0.1))(x),
        "masked": jax.vmap(lambda s: quantile(s, 0.1, mask=s > -1))(x),
        "slope": jax.vmap(jax.grad(lambda s: quantile(s, 0.1, nearest=3)))(x),
        "integers": jax.vmap(lambda s: kth_smallest(rounded(s), 3))(x),
    }


def weighted_of_shard(x, w):
    weighted = lambda s, v: jaxcp.weighted_conformal_quantile(s, v, 0.1)  # noqa: E731
    return jax.vmap(weighted)(x, w), jax.vmap(jax.grad(weighted))(x, w)


# Later versions fail in their own checks of shard_map, unless check_vma=False.
CHECKED = pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="jax's checks")


@pytest.mark.parametrize(
    "each", [plain_of_shard, pytest.param(weighted_of_shard, marks=CHECKED)]
)
def test_rows_of_a_shard_are_calibrated_by_themselves(each):
    """Within shard_map and its checks, no axis being named: values and slopes."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(jax.random.key(0), (4, 30))
    w = jax.random.uniform(jax.random.key(1), (4, 30))
    sharded = jax.shard_map(each, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    jax.tree.map(assert_array_equal, jax.jit(sharded)(x, w), each(x, w))


def test_no_numbers_and_no_ranks():
    none = jnp.zeros((2, 3, 0))
    smallest = jax.vmap(jax.vmap(lambda v: kth_smallest(v, 1)))
    assert_array_equal(smallest(none), np.full((2, 3), np.inf))
    assert smallest(jnp.zeros((2, 0, 0))).shape == (2, 0)
    weighted = jax.vmap(jax.vmap(lambda v: jaxcp.weighted_select(v, v, 1.0)))
    assert_array_equal(weighted(none), np.full((2, 3), np.inf))
    no_ranks = jnp.zeros((2, 3, 0), int)
    each = jax.vmap(jax.vmap(kth_smallest))
    assert each(jnp.zeros((2, 3, 20_000)), no_ranks).shape == (2, 3, 0)
    inner = jax.vmap(jax.vmap(kth_smallest, (0, None)), (None, 0))
    assert inner(jnp.zeros((3, 5)), no_ranks[:, 0]).shape == (2, 3, 0)


def test_a_number_of_rows_that_an_export_leaves_open():
    (b,) = export.symbolic_shape("b")
    rows = jax.ShapeDtypeStruct((b, 50), jnp.float32)
    for select in (
        lambda v: kth_smallest(v, 3),
        lambda v: jaxcp.weighted_select(v, jnp.abs(v), 3.0),
    ):
        exported = export.export(jax.jit(jax.vmap(select)))(rows)
        x = many("spread", (7, 50), "float32")
        assert_array_equal(exported.call(x), jax.vmap(select)(x))
