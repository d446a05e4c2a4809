"""The weighted kernel on many numbers, whose weights it adds up by bytes of their keys.

What it finds are the keys of `weighted_key`, which sums masks of all weights.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import scores, weighted_select
from jaxcp.quantiles import _keys, _rows
from jaxcp.quantiles._keys import to_keys
from jaxcp.quantiles._rows import masses_of, total_mass
from rows import POINTWISE

pytestmark = pytest.mark.double

ABSOLUTE = scores.Absolute()
# More numbers than are summed bit by bit: one row, rows, and rows side by side.
SHAPES = [(1, 40_001), (20, 2048), (17, 2049), (400, 101)]


def values_like(kind, shape, rng):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38]
    return {
        "spread": lambda: rng.normal(size=shape),
        "tied": lambda: rng.integers(0, 4, shape),
        "special": lambda: rng.choice(special, shape),
    }[kind]().astype(np.float32)


def weights_like(kind, shape, rng):
    return {
        "uniform": lambda: rng.random(shape),
        "heavy": lambda: rng.exponential(size=shape) ** 8,
        "tenths": lambda: np.full(shape, 0.1),
        "mostly zero": lambda: rng.random(shape) * (rng.random(shape) < 0.01),
        "giant": lambda: np.where(rng.random(shape) < 1e-3, 1e30, rng.random(shape)),
        "infinite": lambda: np.where(rng.random(shape) < 1e-3, np.inf, 1.0),
        "zero": lambda: np.zeros(shape),
    }[kind]().astype(np.float32)


def targets_of(x, w):
    """Masses that are met exactly, missed by an ulp, beyond all, and none, (b, 8)."""
    order = np.argsort(x, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(w, order, 1), axis=1, dtype=np.float32)
    met, total = sums[:, sums.shape[1] // 3], np.asarray(jax.vmap(total_mass)(w))
    with np.errstate(over="ignore"):
        beyond = total * np.float32(1.001)
    some = [met, np.nextafter(met, np.float32(0)), 0.9 * total, total, beyond]
    constant = [np.full(len(x), v, np.float32) for v in (0, -1, np.nan)]
    return np.stack(some + constant, axis=1).astype(np.float32)


CASES = [("spread", "uniform"), ("tied", "tenths"), ("special", "heavy")]
CASES += [("spread", kind) for kind in ("mostly zero", "giant", "infinite", "zero")]


@jax.jit
def all_ways(x, w, targets):
    """Keys as one device finds them, by bytes or by a sort, and those of whole sums."""
    side_by_side = x.shape[1] < _keys.SHORT
    by_bytes = _rows._short_rows if side_by_side else _rows._long_rows
    ways = by_bytes, _rows._by_sort, _rows._by_bits
    return [way(x, w, targets) for way in ways]


@pytest.mark.parametrize("shape", SHAPES)
def test_keys_are_those_of_whole_sums(shape):
    rng = np.random.default_rng(0)
    for kind, weights in CASES:
        x, w = values_like(kind, shape, rng), weights_like(weights, shape, rng)
        *found, by_bits = all_ways(x, w, targets_of(x, w))
        for keys in found:
            assert_array_equal(keys, by_bits, err_msg=f"{kind}, {weights}")


@pytest.mark.parametrize(("shape", "bit"), [((50, 992), -12), ((900, 61), -16)])
def test_following_words_fill_sixteen_bits(shape, bit):
    """31 of them, each as large as it may be, are one sum; of either sign."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape).astype(np.float32)
    for odd, following in ((1, 1024), (3, -1024)):
        w = np.full(shape, 1 + odd * 2.0**bit, np.float32)
        assert_array_equal(masses_of(jnp.asarray(w[0])).following, following)
        *found, by_bits = all_ways(x, w, targets_of(x, w))
        for keys in found:
            assert_array_equal(keys, by_bits)


TYPES = [("float16", "float32"), ("bfloat16", "float32")]
if jax.config.jax_enable_x64:
    TYPES += [("float64", "float64"), ("float32", "float64"), ("float64", "float32")]


@pytest.mark.parametrize(("values", "weights"), TYPES)
def test_other_types(values, weights):
    rng = np.random.default_rng(2)
    for shape in [(17, 2049), (400, 101)]:
        x = jnp.asarray(rng.normal(size=shape), values)
        w = jnp.asarray(rng.random(shape), weights)
        t = jnp.asarray(targets_of(np.asarray(x, float), np.asarray(w)), weights)
        *found, by_bits = all_ways(x, w, t)
        for keys in found:
            assert_array_equal(keys, by_bits)


def test_counts_as_weights_give_order_statistics():
    """Sums of whole numbers are exact: the kernel without weights is the truth."""
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x = values_like("special", shape, rng)
        k = rng.integers(1, shape[1] + 1, shape[0])
        found = jax.vmap(weighted_select)(x, np.ones(shape, np.float32), k.astype("f"))
        assert_array_equal(found, jax.vmap(jaxcp.kth_smallest)(x, k))


def test_a_mass_is_met_or_missed_by_the_last_bit():
    x = jnp.arange(40_000.0)
    w = jnp.full(40_000, 0.1)
    tenth = total_mass(w[:4000])
    assert weighted_select(x, w, tenth) == 3999
    assert weighted_select(x, w, jnp.nextafter(tenth, jnp.inf)) == 4000
    assert weighted_select(x, w, 0.0) == -jnp.inf
    assert weighted_select(x, w, 1e6) == jnp.inf


def test_any_nest_of_maps():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 4, 5000)).astype(np.float32)
    w = rng.integers(0, 3, (3, 4, 5000)).astype(np.float32)  # sums are exact
    t = rng.integers(1, 4000, (3, 4)).astype(np.float32)

    def one(x, w, t):
        order = np.argsort(x)
        return x[order][np.searchsorted(np.cumsum(w[order]), t)]

    select = jax.vmap(jax.vmap(weighted_select))
    wanted = [[one(x[i, j], w[i, j], t[i, j]) for j in range(4)] for i in range(3)]
    assert_array_equal(select(x, w, t), wanted)
    # One array at several targets; weights, or values, that are those of all rows.
    several = jax.vmap(jax.vmap(weighted_select, (None, None, 0)), (0, 0, None))
    wanted = [[one(x[i, 0], w[i, 0], v) for v in t[0]] for i in range(3)]
    assert_array_equal(several(x[:, 0], w[:, 0], t[0]), wanted)
    shared = jax.vmap(jax.vmap(weighted_select, (0, None, None)), (0, 0, 0))
    wanted = [[one(x[i, j], w[i, 0], t[i, 0]) for j in range(4)] for i in range(3)]
    assert_array_equal(shared(x, w[:, 0], t[:, 0]), wanted)
    crossed = jax.vmap(jax.vmap(weighted_select, (None, 0, None)), (0, None, 0))
    wanted = [[one(x[i, 0], w[0, j], t[i, 0]) for j in range(4)] for i in range(3)]
    assert_array_equal(crossed(x[:, 0], w[0], t[:, 0]), wanted)


def test_levels_of_a_weighted_quantile():
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=40_000).astype(np.float32), rng.random(40_000, np.float32)
    levels = jnp.array([0.05, 0.1, 0.5])
    quantile = jaxcp.weighted_conformal_quantile
    together = jax.vmap(quantile, (None, None, 0))(x, w, levels)
    assert_array_equal(together, [quantile(x, w, a) for a in levels])


def cut_by_rationals(x, w, alpha, new):
    """min{v : sum_{S_i > v} w_i + w_new <= alpha (sum w_i + w_new)} in fractions."""
    w, new = [Fraction(float(v)) for v in w], Fraction(float(new))
    most = alpha * (sum(w) + new) - new
    above = lambda v: sum(w[i] for i in np.flatnonzero(x > v))  # noqa: E731
    return next((v for v in np.sort(x) if above(v) <= most), np.inf)


@pytest.mark.parametrize("scale", [1.0, 2.0**-100, 2.0**100])
def test_many_test_weights_of_one_row(scale):
    """They share the words of the weights, however far from these they are."""
    rng, n = np.random.default_rng(7), 60
    x = rng.integers(0, 30, n).astype(np.float32)
    w = rng.integers(0, 4, n)
    w[0] += (1 - w.sum()) % 4  # no mass is near a quarter of all
    w = (scale * w).astype(np.float32)
    new = np.r_[0, 1e-38, 3e38, scale * 2.0 ** np.arange(-20, 10)].astype(np.float32)
    cp = jaxcp.Calibration(ABSOLUTE, jnp.asarray(x), jnp.asarray(w))
    found = cp(np.zeros(len(new)), 0.25, test_weights=new).upper
    assert_array_equal(found, [cut_by_rationals(x, w, Fraction(1, 4), v) for v in new])
    each = [cp.quantile(0.25, test_weight=v) for v in new]
    assert_array_equal(found, each)


@pytest.mark.parametrize("n", [1, 9, 99, 2049])
def test_many_unit_weights_give_the_rank(n):
    x = np.random.default_rng(8).normal(size=n).astype(np.float32)
    cp = jaxcp.calibrate(ABSOLUTE, 0 * x, x, weights=np.ones(n))
    plain = jaxcp.calibrate(ABSOLUTE, 0 * x, x)
    for alpha in (0.05, 0.1, 0.5):
        found = cp(np.zeros(100), alpha, test_weights=np.ones(100)).upper
        assert_array_equal(found, np.full(100, plain(np.zeros(1), alpha).upper))


@pytest.mark.parametrize("name", POINTWISE)
def test_memory_grows_as_rows_and_test_points(name):
    """Not as their product, of which a flag for each pair would take 400 MB."""
    make, call = POINTWISE[name]
    n = m = 20_000
    points = jax.ShapeDtypeStruct((m,), jnp.float32)
    memory = jax.jit(call).lower(make(n), points).compile().memory_analysis()
    assert memory.temp_size_in_bytes < n * m / 10


def test_derivatives_of_many():
    rng = np.random.default_rng(4)
    x, w = values_like("spread", (400, 101), rng), rng.random((400, 101), np.float32)
    value = jax.jit(jax.vmap(weighted_select, (0, 0, None)))(x, w, 20.0)
    slope = jax.jit(jax.vmap(jax.grad(weighted_select), (0, 0, None)))(x, w, 20.0)
    assert_allclose(slope, x == value[:, None], atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 20_000), (5000, 101)])
def test_rows_over_devices(shape, monkeypatch):
    """In shard_map, where rows lie in blocks, and as one array over devices."""
    monkeypatch.setattr(_keys, "_BLOCK", 2**16)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(5)
    x, w = values_like("spread", shape, rng), rng.random(shape, np.float32)
    t = (0.7 * w.sum(axis=1)).astype(np.float32)
    wanted = _rows._by_bits(jnp.asarray(x), jnp.asarray(w), t[:, None])[:, 0]

    def keys(x, w, t):
        return to_keys(jax.vmap(weighted_select)(x, w, t))

    sharded = jax.shard_map(keys, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
    assert_array_equal(jax.jit(sharded)(x, w, t), wanted)
    rows = jax.NamedSharding(mesh, P("rows"))
    spread = [jax.device_put(v, rows) for v in (x, w, t)]
    compiled = jax.jit(keys).lower(*spread).compile()
    assert "all-" not in compiled.as_text()
    assert_array_equal(compiled(*spread), wanted)


@pytest.mark.parametrize("n", [50, 9001])
def test_rows_over_devices_by_name(n):
    """On a mesh with Explicit axes, where the target, or the weights, are of all."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = values_like("spread", (8, n), np.random.default_rng(6))
    own = jax.vmap(lambda v: weighted_select(v, jnp.abs(v), 3.0))
    common = jax.vmap(lambda v: weighted_select(v, jnp.ones(n), 30.0))
    wanted = own(x), common(x)
    with jax.set_mesh(mesh):
        spread = jax.device_put(x, jax.NamedSharding(mesh, P("rows")))
        found = jax.jit(own)(spread), jax.jit(common)(spread)
    assert_array_equal(found[0], wanted[0])
    assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6])
def test_thresholds_of_wide_integers_are_not_below_them(alpha):
    """In single precision they are the next float, in double they are exact."""
    x = 2**24 + np.arange(1, 40, 2, dtype=np.int32)
    rank = int(jaxcp.conformal_rank(len(x), alpha))
    odd = int(np.sort(x)[rank - 1])  # between two floats of single precision
    wanted = odd if jax.config.jax_enable_x64 else odd + 1
    one, u = np.ones(len(x), np.float32), jnp.ones(())
    held = jaxcp.Held(jnp.asarray(x), jnp.asarray(one))
    ranks = jnp.asarray(rank), jnp.asarray(alpha)
    for found in (
        jaxcp.conformal_quantile(x, alpha),
        jaxcp.weighted_conformal_quantile(x, one, alpha),
        jaxcp.weighted_select(x, one, rank),
        held.threshold(jnp.asarray(alpha)),
        jaxcp.Held(jnp.asarray(x)).threshold(ranks, u=u),
        held.threshold((jnp.asarray(alpha), jnp.asarray(alpha)), u=u),
    ):
        assert found == wanted
