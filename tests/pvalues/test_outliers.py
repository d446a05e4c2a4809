from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats

import jaxcp
import references
from helpers import cases, composes
from jaxcp import outliers, pvalues

STREAMS = cases("mapie/exchangeability_streams")
MARTINGALES = [
    pvalues.PowerMartingale(0.7),
    pvalues.MixtureMartingale(),
    pvalues.SimpleJumper(),
]


@pytest.mark.parametrize("case", cases("puncc/anomaly").values())
def test_agreement_with_the_published(case):
    scores, test = case["cal_scores"], case["test_scores"]
    p = outliers.outlier_p_values(scores, test)
    assert_allclose(p, case["exact_pvalue"], rtol=1e-6)
    for i, alpha in enumerate(case["alphas"]):
        flagged = outliers.is_outlier(scores, test, alpha)
        assert_array_equal(flagged, case["exact_is_anomaly"][i])
        threshold = jaxcp.conformal_quantile(scores, alpha)
        assert_allclose(threshold, case["exact_threshold"][i], rtol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 9, 999])
def test_p_values_are_fractions_to_the_last_bit(n):
    """k / (n + 1) as it is nearest, so that p <= alpha is the test at level alpha."""
    scores, test = jnp.arange(float(n)), jnp.arange(n + 1) - 0.5
    ranks = np.arange(n + 1, 0, -1)
    p = outliers.outlier_p_values(scores, test)
    assert_array_equal(p, (ranks / p.dtype.type(n + 1)).astype(p.dtype))
    for alpha in (0.01, 0.05, 0.1, 0.3):
        flagged = outliers.is_outlier(scores, test, alpha)
        assert_array_equal(flagged, np.asarray(p) <= p.dtype.type(alpha))
    many = jax.jit(jax.vmap(outliers.outlier_p_values))
    batch = many(jnp.stack([scores] * 3), jnp.stack([test] * 3))
    one_by_one = jax.jit(jax.vmap(jaxcp.conformal_p_value, (None, 0)))(scores, test)
    assert_array_equal(batch[2], p)
    assert_array_equal(one_by_one, p)


def test_p_values_against_loops_with_ties_infinities_and_nan():
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=60), 1)
    scores[:3], scores[3] = np.inf, -np.inf
    test = np.append(np.round(rng.normal(size=40), 1), [np.inf, -np.inf, np.nan])
    u, weights = rng.random(43), rng.exponential(size=60)
    test_weights = rng.exponential(size=43)
    smooth = outliers.outlier_p_values(scores, test, u=u)
    weighted = outliers.outlier_p_values(
        scores, test, u=u, weights=weights, test_weights=test_weights
    )
    for i, s in enumerate(np.where(np.isnan(test), np.inf, test)):
        assert_allclose(smooth[i], references.p_value(scores, s, u[i]), rtol=1e-5)
        above, equal = weights[scores > s].sum(), weights[scores == s].sum()
        share = above + u[i] * (equal + test_weights[i])
        expected = share / (weights.sum() + test_weights[i])
        assert_allclose(weighted[i], expected, rtol=1e-5)
        alone = jaxcp.conformal_p_value(
            scores, s, u=u[i], weights=weights, test_weight=test_weights[i]
        )
        assert_allclose(alone, expected, rtol=1e-5)
    mask = np.arange(60) % 3 > 0
    masked = outliers.outlier_p_values(scores, test, u=u, mask=mask)
    some = outliers.outlier_p_values(scores[mask], test, u=u)
    assert_array_equal(masked, some)
    weights = weights / weights[mask].max()
    both = outliers.outlier_p_values(scores, test, weights=weights, mask=mask)
    some = outliers.outlier_p_values(scores[mask], test, weights=weights[mask])
    assert_allclose(both, some, rtol=1e-5)
    flagged = outliers.is_outlier(scores, test, 0.3, mask=mask)
    assert_array_equal(flagged, outliers.is_outlier(scores[mask], test, 0.3))


def test_weights_of_any_scale():
    scores, test = jnp.arange(4.0), jnp.array([1.5, 9.0])
    plain = outliers.outlier_p_values(scores, test)
    for scale in (1e-30, 1.0, 1e30):
        ones = jnp.full(4, scale)
        found = outliers.outlier_p_values(
            scores, test, weights=ones, test_weights=jnp.full(2, scale)
        )
        assert_allclose(found, plain, rtol=1e-6)
    nothing = outliers.outlier_p_values(
        scores, test, weights=jnp.zeros(4), test_weights=jnp.array([0.0, 1e30])
    )
    assert_array_equal(nothing, [1, 1])


def test_integers_and_wide_numbers_keep_their_values():
    scores = np.arange(1000.0)
    half = outliers.outlier_p_values(scores, [500.5])
    for weights in (np.ones(1000, np.uint8), np.full(1000, 200, np.uint8)):
        found = outliers.outlier_p_values(
            scores, [500.5], weights=weights, test_weights=weights[:1]
        )
        assert_allclose(found, half, rtol=1e-6)
    heavy = np.full(1000, 10_000_000)
    found = outliers.outlier_p_values(scores, [500.5], weights=heavy, test_weights=[1])
    assert_allclose(found, 0.499, rtol=1e-5)
    coarse = jnp.arange(9.0).astype(jnp.bfloat16) + 100  # whole numbers
    assert_allclose(outliers.outlier_p_values(coarse, [108.2]), 0.1, rtol=1e-6)
    assert outliers.is_outlier(coarse, [108.2], 0.1)


def test_weighted_p_values_are_in_order_and_at_most_one():
    def trial(key):
        key_s, key_w = jax.random.split(key)
        scores = jax.random.randint(key_s, (30,), 0, 4).astype(float)
        weights = jax.random.exponential(key_w, (30,))
        return outliers.outlier_p_values(scores, jnp.arange(-1.0, 5), weights=weights)

    p = jax.jit(jax.vmap(trial))(jax.random.split(jax.random.key(0), 2000))
    assert np.max(p) <= 1
    assert np.all(np.diff(p) <= 0)


@pytest.mark.slow
def test_grouped_p_values_are_those_of_each_group():
    rng = np.random.default_rng(1)
    scores, test = (np.round(rng.normal(size=n), 1) for n in (50, 30))
    groups, test_groups = rng.integers(0, 3, 50), rng.integers(0, 4, 30)
    u = rng.random(30)
    found = outliers.grouped_outlier_p_values(
        scores, groups, test, test_groups, num_groups=4, u=u
    )
    mask = rng.random(50) < 0.7
    masked = outliers.grouped_outlier_p_values(
        scores, groups, test, test_groups, num_groups=4, mask=mask
    )
    for g in range(4):  # the last one has no calibration rows
        own = test_groups == g
        expected = outliers.outlier_p_values(scores[groups == g], test[own], u=u[own])
        assert_array_equal(found[own], expected)
        some = scores[(groups == g) & mask]
        assert_array_equal(masked[own], outliers.outlier_p_values(some, test[own]))
    unknown = jax.jit(outliers.grouped_outlier_p_values, static_argnames="num_groups")
    far = unknown(scores, groups, test, test_groups + 9, num_groups=4)
    assert np.all(far == 1)


@pytest.mark.parametrize("method", ["simes", "dkw"])
def test_conditional_p_values_hold_for_most_calibration_sets(method):
    """The share of sets that mislead is at most delta; for Simes it is delta."""
    n, delta, trials = 40, 0.2, 10_000
    grid = -jnp.arange(1.0, n + 1)  # a score between the ranks: r = 1, ..., n
    p = outliers.conditional_outlier_p_values(grid, grid + 0.5, delta, method=method)
    assert np.all(np.diff(p) >= 0)
    assert np.all(p >= jnp.arange(1, n + 1) / (n + 1))
    # Given the set, P(p <= p_r) is the probability above its (n + 1 - r)-th score.
    uniforms = jax.random.uniform(jax.random.key(0), (trials, n))
    valid = jnp.mean(jnp.all(jnp.sort(uniforms, axis=1) <= p[None], axis=1))
    error = 4 * np.sqrt(delta * (1 - delta) / trials)
    assert valid > 1 - delta - error
    assert method != "simes" or valid < 1 - delta + error
    p_value = partial(outliers.conditional_outlier_p_values, method=method)
    assert p_value(grid, jnp.full(1, -99.0), delta) == 1
    one = p_value(grid[:1], jnp.zeros(1), delta)
    assert_allclose(one, [1 - delta] if method == "simes" else 1, rtol=1e-6)


@pytest.mark.parametrize("delta", [0.01, 0.3, 0.9])
def test_conditional_p_values_by_dkw_are_those_of_the_formula(delta):
    """r / n + sqrt(log(2 / delta) / (2 n)), Bates et al. 2023; 1 beyond."""
    n = 400
    at = jnp.arange(n, -1.0, -1.0) - 0.5  # above 0, 1, ..., n scores among 0 ... n - 1
    p = outliers.conditional_outlier_p_values(jnp.arange(n), at, delta, method="dkw")
    bounds = np.arange(1, n + 1) / n + np.sqrt(np.log(2 / delta) / (2 * n))
    assert_allclose(p, np.append(np.minimum(bounds, 1), 1), rtol=1e-6)


def test_sequential_p_values_against_loops():
    for digits in (0, 1, 6):
        scores = np.round(np.random.default_rng(digits).normal(size=157), digits)
        scores[50:60], scores[5] = np.inf, np.nan
        u = np.random.default_rng(9).random(157)
        seen = np.where(np.isnan(scores), np.inf, scores)
        expected = [
            ((seen[: t + 1] > s).sum() + u[t] * (seen[: t + 1] == s).sum()) / (t + 1)
            for t, s in enumerate(seen)
        ]
        found = pvalues.sequential_p_values(scores, u)
        assert_allclose(found, expected, rtol=1e-5)
    assert pvalues.sequential_p_values(jnp.zeros(0), jnp.zeros(0)).shape == (0,)
    assert_allclose(pvalues.sequential_p_values([3.0], [0.3]), [0.3], rtol=1e-6)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_agree_with_the_published(name):
    case = STREAMS[name]
    scores = np.abs(case["y"] - case["pred"])
    p = pvalues.sequential_p_values(scores, case["u"])
    # Some scores differ by less than single precision tells.
    assert_allclose(p, case["pvalue"], atol=1e-6 if name != "ties" else 0.05)
    jumper = pvalues.SimpleJumper({"shift": 0.05}.get(name, 0.01))
    _, log_capital = pvalues.watch(jumper, case["pvalue"])
    assert_allclose(log_capital, np.log(case["jumper"]), atol=1e-4)


def test_martingales_by_formula():
    p = np.random.default_rng(0).random(200) ** 1.5
    _, power = pvalues.watch(pvalues.PowerMartingale(0.4), p)
    exact = np.cumsum(np.log(0.4) - 0.6 * np.log(p))
    assert_allclose(power, exact, rtol=1e-4, atol=1e-5)
    _, mixture = pvalues.watch(pvalues.MixtureMartingale(200), p)

    def capital(epsilon, t):
        return np.exp(t * np.log(epsilon) + (epsilon - 1) * np.log(p[:t]).sum())

    for t in (1, 20, 200):  # the integral over epsilon, to which the grid tends
        exact = integrate.quad(capital, 1e-9, 1, args=(t,))[0]
        assert_allclose(mixture[t - 1], np.log(exact), atol=0.02)


@pytest.mark.parametrize("martingale", MARTINGALES, ids=lambda m: type(m).__name__)
def test_a_stream_in_two_parts_with_odd_p_values(martingale):
    p = jnp.array([0.5, jnp.nan, 0.0, 1.0, 1e-9, 0.3])
    _, whole = jax.jit(pvalues.watch)(martingale, p)
    assert np.all(np.isfinite(whole))
    without = jax.jit(pvalues.watch)(martingale, p[jnp.array([0, 2, 3, 4, 5])])[1]
    assert_allclose(jnp.delete(whole, 1), without, atol=0.02)  # a jumper may jump
    state, first = jax.jit(pvalues.watch)(martingale, p[:2])
    _, second = jax.jit(pvalues.watch)(martingale, p[2:], state)
    assert_allclose(jnp.append(first, second), whole, rtol=1e-5)
    rates = jax.grad(lambda m: pvalues.watch(m, p)[1][-1])
    for slope in jax.tree.leaves(rates(martingale)):
        assert np.isfinite(slope)


def test_a_strategy_of_ones_own():
    class Doubling:
        """Bets everything on p < 1/2; keeps a count of wins, an integer."""

        def init(self):
            return jnp.zeros((), int), 0.0

        def step(self, state, p_value):
            wins, capital = state
            win = p_value < 0.5
            capital = capital + jnp.where(win, jnp.log(2.0), -jnp.inf)
            return (wins + win, capital), capital

    jax.tree_util.register_static(Doubling)
    (wins, _), log_capital = pvalues.watch(Doubling(), [0.1, 0.2, 0.7])
    assert wins == 2
    assert_allclose(log_capital, [np.log(2), np.log(4), -np.inf], rtol=1e-6)
    with pytest.raises(ValueError, match="martingale with init and step, got float"):
        pvalues.watch(0.5, [0.1])


def step_up(p, level):
    """Benjamini-Hochberg from the paper."""
    order = np.argsort(p)
    fits = np.flatnonzero(p[order] <= level * np.arange(1, len(p) + 1) / len(p) + 1e-12)
    found = np.zeros(len(p), bool)
    found[order[: fits[-1] + 1 if len(fits) else 0]] = True
    return found


def test_discoveries_against_loops():
    rng = np.random.default_rng(0)
    for scale in (1, 3, 30):
        p = rng.random(80) ** scale
        for level in (0.05, 0.2):
            found = pvalues.benjamini_hochberg(p, level)
            assert_array_equal(found, step_up(p, level))
            share = (1 + np.sum(p > 0.4)) / (80 * 0.6)
            found = pvalues.storey_benjamini_hochberg(p, level, threshold=0.4)
            assert_array_equal(found, step_up(p, level / share) & (p <= 0.4))
        cells = np.ceil(20 * p)  # p-values that share 19 rows: some are at a threshold
        for above in (12, 1.5):
            share = (1 + np.sum(cells > 20 - above)) * 20 / (80 * np.floor(above - 0.5))
            limit = {"threshold": 1 - above / 20, "num_calibration": 19}
            found = pvalues.storey_benjamini_hochberg(cells / 20, 0.2, **limit)
            passed = step_up(cells / 20, 0.2 / share) & (cells <= 20 - above)
            assert_array_equal(found, passed)
    fractions = np.array([1, 2, 3, 4, 5]) / 50  # level i / m, but for rounding
    assert np.all(pvalues.benjamini_hochberg(fractions, 0.1))
    assert not np.any(pvalues.benjamini_hochberg(fractions + 0.001, 0.1))
    nan = pvalues.benjamini_hochberg(jnp.array([0.001, jnp.nan]), 0.1)
    assert_array_equal(nan, [True, False])
    assert pvalues.benjamini_hochberg(jnp.zeros(0), 0.1).shape == (0,)


@pytest.mark.parametrize("m", [3, 10, 49])
def test_p_values_at_their_level_are_rejected_however_they_round(m):
    """i p-values equal to level i / m, the others 1: these i, for every i."""
    reject = jax.jit(jax.vmap(pvalues.benjamini_hochberg, (0, None)))
    for level in ("0.05", "0.1", "0.3"):
        steps = [float(Fraction(level) * i / m) for i in range(1, m + 1)]
        is_step = np.tri(m, dtype=bool)  # row i has i + 1 of them
        p_values = np.where(is_step, np.array(steps)[:, None], 1.0)
        assert_array_equal(reject(p_values, float(level)), is_step)


@pytest.mark.parametrize(
    ("n", "threshold"), [(3, 0.5), (9, 0.8), (19, 0.85), (19, 0.9)]
)
def test_storey_counts_the_calibration_rows(n, threshold):
    """100 strange rows have the least p-value, counts of 100 others are Polya's."""
    rng, level, m = np.random.default_rng(n), 0.1, 100
    ends = np.cumsum(rng.multinomial(m, rng.dirichlet(np.ones(n + 1), 10_000)), axis=1)
    cells = 1 + np.sum(ends[:, None] <= np.arange(m)[:, None], axis=2)
    p = jnp.asarray(np.append(cells, np.ones_like(cells), axis=1) / (n + 1))
    rates = {}
    for given in (None, n):
        options = {"threshold": threshold, "num_calibration": given}
        found = jax.vmap(
            lambda p, o=options: pvalues.storey_benjamini_hochberg(p, level, **o)
        )(p)
        false = found[:, :m].sum(axis=1) / jnp.maximum(found.sum(axis=1), 1)
        rates[given] = false.mean(), 4 * false.std() / len(p) ** 0.5
    left = n + 1 - round(threshold * (n + 1))  # p-values above the threshold
    assert rates[n][0] < level + rates[n][1]
    assert rates[None][0] < level * left / (left - 1) + rates[None][1]
    if n > 3:  # as if p-values were independent
        assert rates[None][0] > level + rates[None][1]


def test_storey_of_traced_thresholds_that_leave_no_p_value_to_count():
    find = lambda t: pvalues.storey_benjamini_hochberg(  # noqa: E731
        jnp.full(5, 0.25), 0.5, threshold=t, num_calibration=3
    )
    found = jax.vmap(find)(jnp.array([0.2, 0.5, 0.75, 0.99]))
    assert_array_equal(found[:, 0], [False, True, False, False])


def test_tests_of_a_batch():
    rng = np.random.default_rng(0)
    for m in (1, 5, 200):
        p = rng.random(m)
        expected = stats.combine_pvalues(p, "fisher").pvalue
        assert_allclose(pvalues.fisher_test(p), expected, rtol=1e-4)
        ordered = np.sort(p) * m / np.arange(1, m + 1)
        assert_allclose(pvalues.simes_test(p), min(ordered.min(), 1), rtol=1e-5)
    for m in (3000, 100_000):  # a normal approximation
        for shift in (-3, -1, 0, 2):
            p = rng.random(m) ** (1 - shift / m**0.5)
            expected = stats.combine_pvalues(p, "fisher").pvalue
            assert_allclose(pvalues.fisher_test(p), expected, rtol=0.01)
    assert np.all(np.isfinite(jax.grad(pvalues.fisher_test)(jnp.array([0.0, 0.5]))))
    assert pvalues.fisher_test(jnp.zeros(3)) == 0
    assert pvalues.fisher_test(jnp.ones(3)) == 1
    assert pvalues.fisher_test(jnp.zeros(0)) == pvalues.simes_test(jnp.zeros(0)) == 1


@pytest.mark.slow
def test_everything_is_pure():
    """Under jit and vmap as one by one, and no new trace on the second call."""
    keys = jax.random.split(jax.random.key(0), 3)
    scores = np.asarray(jax.random.normal(keys[0], (3, 40)))
    test = np.asarray(jax.random.normal(keys[1], (3, 25)))
    u = np.asarray(jax.random.uniform(keys[2], (3, 25)))

    def run(scores, test, u):
        p = outliers.outlier_p_values(scores, test, u=u)
        return {
            "found": pvalues.storey_benjamini_hochberg(p, 0.5),
            "tests": [pvalues.fisher_test(p), pvalues.simes_test(p)],
            "stream": pvalues.watch(
                pvalues.SimpleJumper(), pvalues.sequential_p_values(test, u)
            ),
        }

    composes(run, *zip(scores, test, u, strict=True), rtol=1e-5)
    with jax.no_tracing():
        run(scores[1], test[1], u[1])
