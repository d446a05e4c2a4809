from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
import references
from helpers import reference
from jaxcp.quantiles.levels import as_alpha

pytestmark = pytest.mark.double

SIZES = np.arange(1, 2001)
ALPHAS = np.array([i / 1000 for i in range(1, 1000)])


@pytest.fixture(scope="module")
def exact_ranks():
    """Ranks for all sizes and levels i / 1000, in integers."""
    i = np.arange(1, 1000)
    return SIZES[:, None] + 1 - i * (SIZES[:, None] + 1) // 1000


def test_rank_is_exact_for_numbers(exact_ranks):
    ranks = jaxcp.conformal_rank(SIZES[:, None], ALPHAS[None, :])
    assert_array_equal(ranks, exact_ranks)


def test_rank_is_exact_for_traced_counts(exact_ranks):
    ranks = jax.jit(lambda n: jaxcp.conformal_rank(n, ALPHAS[None, :]))(SIZES[:, None])
    assert_array_equal(ranks, exact_ranks)


def test_rank_is_exact_for_traced_levels(exact_ranks):
    ranks = jax.jit(jaxcp.conformal_rank)(SIZES[:, None], ALPHAS[None, :])
    assert_array_equal(ranks, exact_ranks)


@pytest.mark.parametrize("alpha", ["0.001", "0.01", "0.05", "0.1", "0.2", "0.5", "0.9"])
def test_traced_rank_of_usual_levels_for_large_n(alpha):
    n = np.arange(1, 100_001)
    exact = Fraction(alpha)
    expected = n + 1 - exact.numerator * (n + 1) // exact.denominator
    for dtype in {jnp.zeros(()).dtype, jnp.dtype("float32")}:
        level = jnp.asarray(float(alpha), dtype)
        assert_array_equal(jax.jit(jaxcp.conformal_rank)(n, level), expected)


@pytest.mark.parametrize(
    "alpha",
    [
        1 / 3,
        Fraction(1, 3),
        0.1 + 1e-12,
        float(0.1 - 5 * np.spacing(0.1)),
        Decimal("0.123456789012"),
        1e-9,
        1 - 1e-9,
    ],
)
def test_rank_of_long_decimals(alpha):
    exact = alpha if isinstance(alpha, Fraction | Decimal) else repr(alpha)
    n = np.array([0, 1, 2, 5, 9, 29, 99, 2**20, 2**29, 10**9])
    expected = [references.rank(int(k), exact) for k in n]
    assert_array_equal(jaxcp.conformal_rank(n, alpha), expected)
    traced = jax.jit(lambda n: jaxcp.conformal_rank(n, alpha))(n)
    assert_array_equal(traced, expected)


def test_rank_reads_every_kind_of_number():
    for alpha in [
        0.1,
        np.float32(0.1),
        np.float64(0.1),
        Decimal("0.1"),
        Fraction(1, 10),
    ]:
        assert jaxcp.conformal_rank(9, alpha) == 9
    for alphas in [[0.1, 0.2], np.array([0.1, 0.2]), np.array([0.1, 0.2], np.float32)]:
        assert_array_equal(jaxcp.conformal_rank(9, alphas), [9, 8])


def test_traced_levels_beyond_the_unit_interval():
    alphas = jnp.array([-1.0, 0.0, 1.0, 2.0, jnp.nan])
    ranks = jax.jit(lambda alpha: jaxcp.conformal_rank(9, alpha))(alphas)
    assert_array_equal(ranks, [10, 10, 0, 0, 10])
    quantile = jax.jit(lambda alpha: jaxcp.conformal_quantile(jnp.arange(9.0), alpha))
    expected = [np.inf, np.inf, -np.inf, -np.inf, np.inf]
    assert_array_equal(quantile(alphas), expected)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 1.0, 90.0, jnp.nan, 90])
def test_concrete_levels_beyond_the_unit_interval(alpha):
    for level in [jnp.array(alpha), np.array(alpha), alpha]:
        with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got"):
            jaxcp.conformal_rank(9, level)


@pytest.mark.parametrize("digits", range(1, 7))
@pytest.mark.parametrize("dtype", [float, np.float32])
def test_levels_are_the_decimals_that_users_mean(digits, dtype):
    """1 - 0.9 is 0.1, and so is every 1 - c; c itself, and c within 4 ulp."""
    if dtype == np.float32 and digits > 4:
        return  # single precision does not hold six decimals of 1 - c
    whole = 10**digits
    numerators = np.unique(np.random.default_rng(0).integers(1, whole, 200))
    c = (numerators / whole).astype(dtype)
    for part, values in [
        (numerators, c),
        (whole - numerators, 1 - c),
        (numerators, c + 3 * np.spacing(c)),
        (numerators, c - 3 * np.spacing(c)),
    ]:
        exact = np.array([Fraction(int(p), whole) for p in part], object)
        assert_array_equal(as_alpha(values), exact)
        for n in (9, 99, whole - 1):
            expected = [references.rank(n, level) for level in exact]
            assert_array_equal(jaxcp.conformal_rank(n, values), expected)


def test_rank_matches_the_references():
    puncc = reference("puncc/quantile")
    n, alpha = puncc["n"], puncc["alpha"]
    assert_array_equal(
        jaxcp.conformal_rank(n[:, None], alpha[None]), puncc["exact_rank"]
    )
    mapie = reference("mapie/quantile")
    n, level = mapie["grid__ns"], mapie["grid__levels"]
    alpha = np.array([float(1 - Decimal(str(v))) for v in level])
    assert_array_equal(
        jaxcp.conformal_rank(n[:, None], alpha[None]), mapie["grid__exact_rank"]
    )


def test_quantile_matches_the_reference_with_ties():
    puncc = reference("puncc/quantile")
    pool = puncc["pool"]
    for i, n in enumerate(puncc["n"]):
        mask = np.arange(len(pool)) < n
        quantiles = jaxcp.conformal_quantile(pool, puncc["alpha"], mask=mask)
        assert_allclose(quantiles, puncc["exact_value_pool"][i], rtol=1e-6)


def test_quantile_shapes():
    x = np.random.default_rng(0).normal(size=(20, 3, 2)).astype(np.float32)
    scalar = jaxcp.conformal_quantile(x, 0.1)
    assert_array_equal(scalar, np.sort(x, axis=0)[18])
    assert_array_equal(jaxcp.conformal_quantile(x[:, 0, 0], 0.1), scalar[0, 0])
    levels = jaxcp.conformal_quantile(x[:, 0, 0], [0.1, 0.2, 0.3, 0.4, 0.01])
    assert_array_equal(levels, np.append(np.sort(x[:, 0, 0])[[18, 16, 14, 12]], np.inf))
    by_column = jaxcp.conformal_quantile(x[:, 0], [0.1, 0.2])
    assert_array_equal(by_column, [levels[0], np.sort(x[:, 0, 1])[16]])
    grid = jaxcp.conformal_quantile(x[:, 0], np.array([[0.1], [0.2], [0.3]]))
    assert grid.shape == (3, 2)
    assert_array_equal(grid[:, 0], levels[:3])


def test_order_and_increasing_transforms_do_not_matter():
    rng = np.random.default_rng(2)
    x = rng.normal(size=99).astype(np.float32)
    q = jaxcp.conformal_quantile(x, 0.05)
    assert jaxcp.conformal_quantile(rng.permutation(x), 0.05) == q
    assert jaxcp.conformal_quantile(2 * x, 0.05) == 2 * q
    thresholds = jaxcp.conformal_quantile(x, np.linspace(0.01, 0.99, 99))
    assert np.all(np.diff(thresholds) <= 0)


def test_shards_give_the_quantile_of_the_whole():
    x = np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32)
    mask = x > -1
    for alpha in [0.01, 0.1, 0.5]:
        each = jax.vmap(
            lambda s, m, a=alpha: jaxcp.conformal_quantile(
                s, a, mask=m, axis_name="shards"
            ),
            axis_name="shards",
        )(x, mask)
        whole = jaxcp.conformal_quantile(x.ravel(), alpha, mask=mask.ravel())
        assert_array_equal(each, np.full(4, whole))
        plain = jax.vmap(
            lambda s, a=alpha: jaxcp.conformal_quantile(s, a, axis_name="shards"),
            axis_name="shards",
        )(x)
        assert_array_equal(
            plain, np.full(4, jaxcp.conformal_quantile(x.ravel(), alpha))
        )


def test_unit_weights_are_no_weights(exact_ranks):
    sizes = np.unique(
        np.concatenate([np.arange(1, 40), np.arange(50, 2000, 97), [2000]])
    )
    weights = (np.arange(2000) < sizes[:, None]).astype(np.float32)
    scores = jnp.arange(1.0, 2001.0)
    select = jax.jit(
        jax.vmap(jaxcp.weighted_conformal_quantile, in_axes=(None, 0, None))
    )
    for column in range(0, 999, 23):
        k = exact_ranks[sizes - 1, column]
        expected = np.where(k > sizes, np.inf, k)
        assert_array_equal(
            select(scores, weights, jnp.asarray(ALPHAS[column])), expected
        )


def test_weighted_quantile_against_loop():
    rng = np.random.default_rng(4)
    for n in [0, 1, 5, 30, 300]:
        scores = np.round(rng.normal(size=n), 1)
        weights = rng.exponential(size=n)
        for alpha in [0.03, 0.1, 0.5, 0.9]:
            for test_weight in [0.0, 0.3, 5.0]:
                q = jaxcp.weighted_conformal_quantile(
                    scores, weights, alpha, test_weight=test_weight
                )
                if n + test_weight > 0:
                    expected = references.weighted_conformal_quantile(
                        scores, weights, alpha, test_weight
                    )
                    assert_allclose(q, expected, rtol=1e-6)


def test_soft_quantile_tends_to_the_exact_one():
    scores = jax.random.normal(jax.random.key(0), (50,))
    for alpha in [0.05, 0.1, 0.5]:
        exact = jaxcp.conformal_quantile(scores, alpha)
        soft = jaxcp.soft_conformal_quantile(scores, alpha, bandwidth=1e-5)
        assert_allclose(soft, exact, atol=1e-4)
    assert jaxcp.soft_conformal_quantile(scores, 0.01, bandwidth=0.1) == np.inf


def test_soft_quantile_gradient_is_its_finite_difference():
    scores = jax.random.normal(jax.random.key(1), (20,))
    direction = jax.random.normal(jax.random.key(2), (20,))

    def soft(t, h):
        return jaxcp.soft_conformal_quantile(scores + t * direction, 0.2, bandwidth=h)

    slopes = jax.grad(soft, (0, 1))(0.0, 0.5)
    step = 1e-2
    assert_allclose(
        slopes[0], (soft(step, 0.5) - soft(-step, 0.5)) / (2 * step), rtol=2e-3
    )
    assert_allclose(
        slopes[1],
        (soft(0.0, 0.5 + step) - soft(0.0, 0.5 - step)) / (2 * step),
        rtol=2e-3,
    )
    with_infinite = jax.grad(
        lambda s: jaxcp.soft_conformal_quantile(s, 0.5, bandwidth=0.5)
    )(scores.at[0].set(jnp.inf))
    assert np.all(np.isfinite(with_infinite))
    none = jax.grad(lambda s: jaxcp.soft_conformal_quantile(s, 0.01, bandwidth=0.5))(
        scores
    )
    assert_array_equal(none, np.zeros(20))


def test_p_values_against_loop():
    rng = np.random.default_rng(6)
    scores = np.round(rng.normal(size=40), 1)
    for score in [-9.0, 9.0, *scores[:5], np.inf, -np.inf]:
        for u in [0.0, 0.3, 1.0]:
            expected = references.p_value(scores, score, u)
            assert_allclose(
                jaxcp.conformal_p_value(scores, score, u=u), expected, rtol=1e-6
            )
    assert_allclose(jaxcp.conformal_p_value(scores, np.nan), 1 / 41, rtol=1e-6)
    assert jaxcp.conformal_p_value(np.zeros(0), 1.0) == 1


def test_p_values_with_weights():
    scores, weights = jnp.array([1.0, 2.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 0.0, 4.0])
    p = jaxcp.conformal_p_value(scores, 2.0, u=0.5, weights=weights, test_weight=3.0)
    assert_allclose(p, (4 + 0.5 * (2 + 3)) / 10)
    unit = jaxcp.conformal_p_value(scores, 2.0, weights=jnp.ones(4))
    assert unit == jaxcp.conformal_p_value(scores, 2.0)


def test_p_value_and_quantile_agree():
    """S <= quantile(alpha) exactly where p > alpha."""
    scores = np.round(np.random.default_rng(7).normal(size=19), 1)
    for alpha in [0.05, 0.1, 0.35, 0.5]:
        q = jaxcp.conformal_quantile(scores, alpha)
        for score in np.unique(scores):
            p = jaxcp.conformal_p_value(scores, score)
            assert bool(jnp.asarray(score) <= q) == bool(p > jnp.asarray(alpha))


def test_no_rows_of_several_columns():
    assert_array_equal(
        jaxcp.conformal_quantile(np.zeros((0, 3)), 0.1), np.full(3, np.inf)
    )


def test_weights_of_nothing_and_of_any_scale():
    scores = jnp.arange(1.0, 20.0)
    none = jaxcp.weighted_conformal_quantile(scores, 0 * scores, 0.1, test_weight=0.0)
    assert none == np.inf
    assert (
        jaxcp.conformal_p_value(scores, 3.0, weights=0 * scores, test_weight=0.0) == 1
    )
    for scale in [1e-37, 3e37]:
        weights = jnp.full(19, scale)
        q = jaxcp.weighted_conformal_quantile(scores, weights, 0.1, test_weight=scale)
        assert q == 18


def test_thresholds_have_no_gradient_in_their_weights():
    scores = jax.random.normal(jax.random.key(0), (50,))

    def threshold(weights):
        return jaxcp.weighted_conformal_quantile(scores, weights, 0.1)

    assert_array_equal(jax.grad(threshold)(jnp.ones(50)), np.zeros(50))


def test_narrow_counts_and_weights():
    assert jaxcp.conformal_rank(jnp.array(127, jnp.int8), 0.1) == 116
    p = jaxcp.conformal_p_value(
        jnp.linspace(0, 1, 70_000), 0.9, weights=jnp.ones(70_000, jnp.float16)
    )
    assert_allclose(p, 0.1, rtol=1e-3)
