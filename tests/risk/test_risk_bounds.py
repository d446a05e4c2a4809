"""Upper bounds and p-values of a mean loss."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from jaxcp import risk
from jaxcp.risk.bounds import binomial_tail
from rows import refuses

slow = pytest.mark.slow
VECTORS = np.load(Path(__file__).parents[1] / "reference/risk/bounds.npz")
CASES = [
    pytest.param(case, marks=[] if case in ("beta", "binary", "one") else slow)
    for case in sorted({name.split("__")[0] for name in VECTORS.files})
]
METHODS = "hoeffding_bentkus", "binomial", "betting"
FLAGS = np.arange(100) % 20 == 0
SHARES = np.random.default_rng(0).beta(1, 5, (60, 3))


@pytest.fixture(params=["float64", "float32"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield np.dtype(request.param)


def growths(x, level, delta):
    """log(1 - nu_j (x_j - R)), by the definition, for columns of x."""
    x = np.asarray(x, float)
    i = np.arange(1, len(x) + 1).reshape(-1, *(1,) * (x.ndim - 1))
    mean = (0.5 + np.cumsum(x, 0)) / (1 + i)
    variance = (0.25 + np.cumsum((x - mean) ** 2, 0)) / (1 + i)
    before = np.concatenate([np.full_like(x[:1], 0.25), variance[:-1]])
    nu = np.minimum(1, np.sqrt(2 * np.log(1 / delta) / (len(x) * before)))
    return np.log1p(-nu * (x - level))


def p_betting(x, level, delta):
    capital = np.cumsum(growths(x, level, delta), 0)
    return np.exp(-capital.max(0, initial=0))


def p_hoeffding_bentkus(x, level):
    n, total = len(x), np.sum(np.asarray(x, float))
    r = min(total / n, level)
    parts = (r, level), (1 - r, 1 - level)
    h = sum(a * np.log(a / b) for a, b in parts if a > 0)
    return min(1, np.exp(-n * h), np.e * binom.cdf(np.ceil(total - 1e-9), n, level))


@pytest.mark.parametrize("case", CASES)
def test_bounds_and_p_values_of_known_losses(case):
    with jax.enable_x64(True):
        _check_known(case, np.float64, rtol=1e-9)


def test_known_losses_in_single_precision():
    _check_known("binary", np.float32, rtol=1e-5)


def _check_known(case, dtype, **close):
    get = {k.split("__")[1]: VECTORS[k] for k in VECTORS.files if case in k}
    x, alphas, deltas = (
        get["x"].astype(dtype),
        get["alphas"],
        jnp.asarray(get["deltas"]),
    )
    for method, name in ((METHODS[0], "ucb_hb"), ("betting", "ucb_wsr")):
        found = jax.vmap(lambda d, m=method: risk.upper_bound(x, d, method=m))(deltas)
        np.testing.assert_allclose(found, get[name], **close)
    for delta, expected in zip(deltas, get["p_wsr"], strict=True):
        p = lambda a, d=delta: risk.p_value(x, a, method="betting", delta=d)  # noqa: E731
        found = [p(a) for a in alphas]
        np.testing.assert_allclose(found, expected, **close)
    found = [risk.p_value(x, a) for a in alphas]
    np.testing.assert_allclose(found, get["p_hb"], **close)
    if not np.isnan(get["ucb_binomial"]).any():
        errors = x.astype(bool)
        found = [risk.p_value(errors, a) for a in alphas]
        np.testing.assert_allclose(found, get["p_hb"], **close)
        found = [risk.p_value(x.astype(int), a, method="binomial") for a in alphas]
        np.testing.assert_allclose(found, get["p_binomial"], **close)
        found = [risk.upper_bound(errors, d, method="binomial") for d in deltas]
        np.testing.assert_allclose(found, get["ucb_binomial"], **close)


@pytest.mark.parametrize("n", [1, 3, 40, 1000, 10**5])
def test_binomial_tails_have_the_precision_of_their_type(n, dtype):
    rng = np.random.default_rng(n)
    mean = np.where(
        rng.random(200) < 0.5, rng.random(200), 10 ** -rng.uniform(0, 4, 200)
    )
    mean = np.clip(mean.astype(dtype), 1e-6, 1 - 1e-6)
    exact = mean.astype(float)
    spread = rng.uniform(-5, 5, 200) * np.sqrt(n * exact * (1 - exact))
    count = np.clip(np.round(n * exact + spread), 0, n)
    tail = jax.jit(jax.vmap(binomial_tail, (0, None, 0)))
    found = tail(count.astype(dtype), np.asarray(n, dtype), mean)
    tolerance = 1e-11 if dtype == np.float64 else 2e-4
    np.testing.assert_allclose(found, binom.cdf(count, n, exact), rtol=tolerance)


def test_binomial_tails_at_the_ends():
    tail = jax.jit(binomial_tail)
    at = lambda *args: tail(*map(np.float32, args))  # noqa: E731
    assert at(0, 0, 0.3) == at(4, 4, 0.3) == at(0, 4, 0.0) == at(4, 4, 1.0) == 1
    assert at(3, 4, 1.0) == at(0, 4, 1.0) == 0
    slope = jax.jit(jax.grad(lambda a: tail(jnp.float32(3), jnp.float32(20), a)))
    step = (binom.cdf(3, 20, 0.1 + 1e-5) - binom.cdf(3, 20, 0.1 - 1e-5)) / 2e-5
    np.testing.assert_allclose(slope(0.1), step, rtol=1e-4)
    assert slope(0.0) == slope(1.0) == 0


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_do_not_count_are_as_if_left_out(method):
    losses = SHARES > 0.2 if method == "binomial" else SHARES
    where = np.random.default_rng(1).random(losses.shape) < 0.6
    where[:, 2] = False
    options = dict(method=method, delta=0.1)
    p = risk.p_value(losses, 0.3, where=where, **options)
    bound = risk.upper_bound(losses, 0.1, method=method, where=where)
    assert p.shape == bound.shape == (3,) and p[2] == bound[2] == 1
    for j in range(2):
        kept = losses[where[:, j], j]
        alone = risk.p_value(kept, 0.3, **options)
        np.testing.assert_allclose(p[j], alone, rtol=1e-5)
    alone = risk.upper_bound(kept, 0.1, method=method)
    np.testing.assert_allclose(bound[1], alone, rtol=1e-5)


def test_masks_of_other_shapes_than_losses():
    where = np.random.default_rng(1).random(SHARES.shape) < 0.6
    expected = risk.p_value(SHARES, 0.3, where=where)[0]
    several = risk.p_value(SHARES[:, 0], 0.3, where=where)
    shared = risk.p_value(SHARES, 0.3, where=where[:, 0])
    unknown = np.where(where[:, 0], SHARES[:, 0], np.nan)
    masked = risk.p_value(unknown, 0.3, where=where[:, 0])
    assert several.shape == shared.shape == (3,)
    np.testing.assert_allclose([several[0], shared[0], masked], expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["hoeffding_bentkus", "betting"])
def test_columns_vmap_jit_and_loop_agree(method):
    losses = jnp.asarray(SHARES)
    p = lambda x, a: risk.p_value(x, a, method=method, delta=0.1)  # noqa: E731
    bound = lambda x, d: risk.upper_bound(x, d, method=method)  # noqa: E731
    for function, level in ((p, 0.25), (bound, 0.1)):
        columns = function(losses, level)
        loop = [function(losses[:, j], level) for j in range(3)]
        np.testing.assert_allclose(columns, loop, rtol=1e-6)
        levels = jnp.asarray([level, 0.5])
        both = jax.vmap(jax.vmap(function, (None, 0)), (1, None))
        mapped = jax.jit(both)(losses, levels)
        np.testing.assert_allclose(mapped[:, 0], columns, rtol=5e-6)
        np.testing.assert_allclose(mapped[0, 1], function(losses[:, 0], 0.5), rtol=5e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_bound_is_where_the_p_value_crosses_delta(method):
    x = (SHARES > 0.2 if method == "binomial" else SHARES)[:, 0]
    end = risk.upper_bound(x, 0.1, method=method)
    p = lambda a: risk.p_value(x, a, method=method, delta=0.1)  # noqa: E731
    step = 8 * jnp.finfo(end.dtype).eps
    assert p(end - step) > 0.1 >= p(end + step)


def test_losses_in_other_units():
    for method in ("hoeffding_bentkus", "betting"):
        one = risk.upper_bound(SHARES, 0.1, method=method)
        five = risk.upper_bound(5 * SHARES, 0.1, method=method, bound=5)
        np.testing.assert_allclose(five, 5 * one, rtol=1e-5)
        one = risk.p_value(SHARES, 0.3, method=method, delta=0.1)
        five = risk.p_value(5 * SHARES, 1.5, method=method, delta=0.1, bound=5)
        np.testing.assert_allclose(five, one, rtol=1e-4)
    counts = np.arange(40) % 4  # of at most 4: whole sums stay whole
    found = risk.p_value(counts, 2, bound=4)
    np.testing.assert_allclose(found, p_hoeffding_bentkus(counts / 4, 0.5), rtol=1e-5)


def test_ceilings_are_taken_of_sums_and_not_of_means(dtype):
    # A sum of thirds that is 14, at n = 100: 100 times the mean may exceed 14.
    x = np.zeros(100, dtype)
    x[:42] = 1 / 3
    expected = min(np.e * binom.cdf(14, 100, 0.2), p_hoeffding_bentkus(x, 0.2))
    np.testing.assert_allclose(risk.p_value(x, 0.2), expected, rtol=1e-5)
    errors = np.arange(100)[:, None] < np.arange(101)  # k errors in column k
    found = risk.p_value(errors, 0.2, method="binomial")
    np.testing.assert_allclose(found, binom.cdf(np.arange(101), 100, 0.2), rtol=1e-5)


@pytest.mark.parametrize("kind", ["flags", "integers", "tenths", "floats"])
def test_millions_of_rows_lose_no_row_to_rounding(kind):
    n, level, rng = 6_000_000, 0.1, np.random.default_rng(0)
    most, bound = level * n - 2.5 * np.sqrt(n * level * (1 - level)), 1
    x = np.arange(n) < most
    if kind == "integers":
        x = x.astype(int)
    if kind == "tenths":  # the sum is 1/10 above an integer
        x, bound = 2 * rng.integers(0, 2, n, dtype=np.int32), 10
        x[: x.sum() - int(10 * most)] = 0  # each is 1 on average
        x[-9:] = np.arange(9) < (1 - x[:-9].sum()) % 10
    if kind == "floats":  # the sum is 1/2 above an integer
        x = rng.random(n, dtype=np.float32) * np.float32(2 * most / n)
        x[0] = (0.5 - x[1:].sum(dtype=float)) % 1
    expected = p_hoeffding_bentkus(x / bound, level)
    assert 0.001 < expected < 0.1
    found = risk.p_value(x, level * bound, bound=bound)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_thousands_of_rows_in_single_precision():
    rng = np.random.default_rng(2)
    x = np.concatenate(
        [rng.beta(1, 9, (4000, 4)), np.tile(SHARES[:, :1], (66, 4))[:40]]
    )
    x = x.astype(np.float32)
    found = risk.p_value(x, 0.11, method="betting", delta=0.1)
    np.testing.assert_allclose(found, p_betting(x, 0.11, 0.1), rtol=1e-5)
    # A capital that falls below the smallest float, and comes back.
    low = np.concatenate([np.ones(60), np.zeros(2050)]).astype(np.float32)
    found = risk.p_value(low, 0.1, method="betting", delta=1e-9)
    assert np.cumsum(growths(low, 0.1, 1e-9)).min() < -88
    np.testing.assert_allclose(found, p_betting(low, 0.1, 1e-9), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_traced_levels_and_losses_outside_their_range(method):
    x = jnp.asarray(FLAGS if method == "binomial" else 1.0 * FLAGS)
    p = jax.jit(lambda x, a: risk.p_value(x, a, method=method, delta=0.1))
    assert p(x, -0.5) == p(x, 0.0) == p(x, jnp.nan) == 1 and p(x, 1.0) == p(x, 1.5)
    bound = jax.jit(lambda x, d: risk.upper_bound(x, d, method=method))
    assert bound(x, 0.0) == bound(x, -1.0) == bound(x, jnp.nan) == 1
    unknown = jnp.where(jnp.arange(100) == 1, jnp.nan, 1.0 * FLAGS)
    counted = (jnp.arange(100) == 1) | FLAGS
    as_bound = p(counted if method == "binomial" else 1.0 * counted, 0.2)
    assert p(unknown, 0.2) == as_bound
    assert p(jnp.where(jnp.arange(100) == 1, 7.0, 1.0 * FLAGS), 0.2) == as_bound


@pytest.mark.parametrize("method", METHODS)
def test_few_rows_and_extreme_losses(method):
    # No row, one error, 30 errors, one row without, and 30 rows without an error.
    losses = np.ones((30, 5), bool) & (np.arange(5) < 3)
    where = np.arange(30)[:, None] < np.array([0, 1, 30, 1, 30])
    p = risk.p_value(losses, 0.2, method=method, delta=0.1, where=where)
    bound = risk.upper_bound(losses, 0.1, method=method, where=where)
    np.testing.assert_array_equal((p[:3], bound[:3]), 1)
    assert p[3] > 0.1 and bound[3] > 0.5 and p[4] < 0.1 and 0 < bound[4] < 0.2
    if method != "betting":
        expected = 0.8**30, 1 - 0.1 ** (1 / 30)
        np.testing.assert_allclose((p[4], bound[4]), expected, rtol=1e-5)
    assert risk.p_value(losses[:0, 0], 0.2, method=method, delta=0.1) == 1


@pytest.mark.parametrize("method", ["hoeffding_bentkus", "betting"])
def test_slopes_are_those_of_differences(method):
    def both(x, a, delta):
        p = risk.p_value(x, a, method=method, delta=0.1)
        return jnp.stack([p, risk.upper_bound(x, delta, method=method)])

    with jax.enable_x64(True):
        both, slopes = jax.jit(both), jax.jit(jax.jacrev(both, (0, 1, 2)))
        x, a, delta, d = jnp.asarray(SHARES[:40, 0]), 0.22, 0.1, 1e-6
        close = dict(rtol=1e-4, atol=1e-9)
        of_x, of_a, of_delta = slopes(x, a, delta)
        for i in (0, 7):
            e = d * (jnp.arange(40) == i)
            step = (both(x + e, a, delta) - both(x - e, a, delta)) / (2 * d)
            np.testing.assert_allclose(of_x[:, i], step, **close)
        step = (both(x, a + d, delta) - both(x, a - d, delta)) / (2 * d)
        np.testing.assert_allclose(of_a, step, **close)
        step = (both(x, a, delta + d) - both(x, a, delta - d)) / (2 * d)
        np.testing.assert_allclose(of_delta, step, **close)
        ends = jnp.where(jnp.arange(40) % 3 == 0, 0.0, x > 0.3)
        for losses in (ends, 0 * x, 0 * x + 1):
            for slope in slopes(losses, a, delta):
                assert jnp.all(jnp.isfinite(slope))


def restarted(x, mean, delta):
    """The wrong p-value: capitals of two halves, each with its own largest value."""
    growth = growths(x, mean, delta)
    halves = growth[: len(x) // 2], growth[len(x) // 2 :]
    return np.exp(-sum(np.cumsum(v, 0).max(0, initial=0) for v in halves))


LAWS = {
    "flags .05": (0.05, lambda rng, shape: rng.random(shape) < 0.05),
    "flags .2": (0.2, lambda rng, shape: rng.random(shape) < 0.2),
    "beta": (0.2, lambda rng, shape: rng.beta(0.3, 1.2, shape)),
    "thirds": (0.15, lambda rng, shape: rng.binomial(3, 0.15, shape) / 3),
}


def misses(law, n, delta, runs):
    """How often the betting bound is below the mean, and with a second capital."""
    mean, draw = LAWS[law]
    x = draw(np.random.default_rng(n), (n, runs)).astype(np.float32)
    p = risk.p_value(x, mean, method="betting", delta=delta)
    return np.mean(np.asarray(p) <= delta), np.mean(restarted(x, mean, delta) <= delta)


def test_betting_bounds_miss_at_most_delta_and_restarted_ones_more():
    missed, wrong = misses("flags .05", 200, 0.1, runs=5000)
    assert missed <= 0.1 + 4 * np.sqrt(0.09 / 5000)
    assert abs(missed - 0.091) < 0.02 and abs(wrong - 0.254) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "n", "delta", "expected"),
    [
        ("flags .05", 50, 0.1, 0.088),
        ("flags .05", 200, 0.1, 0.091),
        ("flags .05", 500, 0.1, 0.087),
        ("flags .05", 500, 0.2, 0.161),
        ("flags .05", 2000, 0.05, 0.039),
        ("flags .2", 50, 0.1, 0.083),
        ("flags .2", 200, 0.1, 0.074),
        ("beta", 2000, 0.05, 0.037),
        ("thirds", 200, 0.1, 0.076),
        ("thirds", 500, 0.2, 0.148),
    ],
)
def test_betting_bounds_miss_at_most_delta_where_they_miss_most(
    law, n, delta, expected
):
    missed, wrong = misses(law, n, delta, runs=8000)
    error = np.sqrt(delta * (1 - delta) / 8000)
    assert missed <= delta + 4 * error
    assert abs(missed - expected) < 8 * error  # of two measured rates
    assert wrong > missed


@pytest.mark.parametrize("method", ["hoeffding_bentkus", "binomial"])
def test_p_values_of_true_claims_are_at_most_uniform(method):
    runs, error = 10_000, np.sqrt(0.09 / 10_000)
    x = np.random.default_rng(3).random((60, runs)) < 0.2
    p = np.asarray(risk.p_value(x, 0.2, method=method))
    bound = np.asarray(risk.upper_bound(x, 0.1, method=method))
    assert np.mean(p <= 0.1) <= 0.1 + 4 * error
    np.testing.assert_array_equal(bound < 0.2, p <= 0.1)
    if method == "binomial":
        law = binom.cdf(risk.critical_count(60, 0.2, 0.1), 60, 0.2)
        assert abs(np.mean(p <= 0.1) - law) < 4 * error


WRONG = {
    "an unknown method": (
        lambda: risk.p_value(FLAGS, 0.1, method="bernstein"),
        r"method as one of \['hoeffding_bentkus', .*\], got 'bernstein'",
    ),
    "no delta": (
        lambda: risk.p_value(FLAGS, 0.1, method="betting"),
        "delta as a number, got None",
    ),
    "delta of 1": (lambda: risk.upper_bound(FLAGS, 1.0), r"delta in \(0, 1\), got 1.0"),
    "alpha beyond the bound": (
        lambda: risk.p_value(FLAGS, 2.5, bound=2),
        r"alpha in \(0, 2\), got 2.5",
    ),
    "several alphas": (
        lambda: risk.p_value(FLAGS, [0.1, 0.2]),
        "alpha as a number, got ",
    ),
    "a bound of 0": (lambda: risk.upper_bound(FLAGS, 0.1, bound=0), "bound > 0, got 0"),
    "losses beyond the bound": (
        lambda: risk.upper_bound([0.5, 1.5], 0.1),
        r"losses in \[0, 1\], got 1.5 at 1",
    ),
    "negative losses of columns": (
        lambda: risk.p_value([[0.5, 0.2], [0.1, -1.0]], 0.1),
        r"losses in \[0, 1\], got -1.0 at \(1, 1\)",
    ),
    "losses that are NaN": (
        lambda: risk.p_value([0.5, np.nan], 0.1),
        r"losses in \[0, 1\], got nan at 1",
    ),
    "shares as errors": (
        lambda: risk.p_value([0.5, 1.0], 0.1, method="binomial"),
        'losses of 0 or 1 with method="binomial", got 0.5 at 0',
    ),
    "errors of another bound": (
        lambda: risk.p_value(FLAGS, 0.1, method="binomial", bound=2),
        'bound=1 with method="binomial", got 2',
    ),
    "a table of losses": (
        lambda: risk.upper_bound(np.zeros((2, 2, 2)), 0.1),
        r"losses of shape \(n,\) or \(n, g\), got \(2, 2, 2\)",
    ),
    "rows of another length": (
        lambda: risk.upper_bound(FLAGS, 0.1, where=FLAGS[:5]),
        "where with 100 rows like losses, got 5",
    ),
    "rows of other columns": (
        lambda: risk.p_value(np.zeros((4, 3)), 0.1, where=np.ones((4, 2), bool)),
        r"where of shape \(4, 3\), got \(4, 2\)",
    ),
}
test_wrong_calls = refuses(WRONG)
