import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import jaxcp
from jaxcp import metrics
from jaxcp._numbers import mean
from jaxcp.metrics.conditional import _worst_run
from jaxcp.metrics.rates import rates_of
from jaxcp.scores import Absolute
from jaxcp.sets import Box, Interval, LabelSet, LevelSet

INF, KEY = np.inf, jax.random.key(0)


def intervals():
    lower = jnp.array([0.0, -INF, 1.0, 0.0, 2.0])
    upper = jnp.array([1.0, INF, 0.0, INF, 2.0])
    return Interval(lower, upper)


def test_coverage_counts_closed_infinite_and_crossed_sets():
    y = jnp.array([1.0, 1e30, 0.5, -1.0, 2.0])
    assert_allclose(metrics.coverage(intervals(), y), 3 / 5)
    assert metrics.mean_size(intervals()) == INF
    finite = jax.tree.map(lambda v: v[jnp.array([0, 2, 4])], intervals())
    assert_allclose(metrics.mean_size(finite), 1 / 3)


def test_coverage_of_other_sets():
    boxes = Box(jnp.zeros((3, 2)), jnp.ones((3, 2)))
    targets = jnp.array([[0.5, 0.5], [0.5, 1.5], [1.0, 0.0]])
    assert_allclose(metrics.coverage(boxes, targets), 2 / 3)
    labels = LabelSet(jnp.array([[True, False], [True, True]]))
    assert metrics.coverage(labels, jnp.array([1, 1])) == 0.5
    assert metrics.mean_size(labels) == 1.5
    level_sets = LevelSet(Absolute(), jnp.zeros(2), jnp.ones(2))
    assert metrics.coverage(level_sets, jnp.array([0.5, 1.5])) == 0.5
    with pytest.raises(ValueError, match="closed-form size"):
        metrics.mean_size(level_sets)


def test_nan_is_never_silently_not_covered():
    y = jnp.array([0.5, jnp.nan])
    with pytest.raises(ValueError, match=r"y without NaN, got nan at 1"):
        metrics.coverage(Interval(jnp.zeros(2), jnp.ones(2)), y)
    traced = jax.jit(metrics.coverage)(Interval(jnp.zeros(2), jnp.ones(2)), y)
    assert np.isnan(traced)
    unknown = Interval(jnp.array([0.0, jnp.nan]), jnp.ones(2))
    assert np.isnan(metrics.coverage(unknown, jnp.zeros(2)))


def test_group_coverage():
    sets, y = Interval(jnp.zeros(5), jnp.ones(5)), jnp.array([0.5, 2, 0.5, 0.5, 2])
    groups = jnp.array([0, 0, 1, 1, 3])
    result = metrics.group_coverage(sets, y, groups, num_groups=4)
    assert_array_equal(result, [0.5, 1, np.nan, 0])
    one = metrics.group_coverage(sets, y, jnp.zeros(5, int), num_groups=1)
    assert_allclose(one[0], metrics.coverage(sets, y))
    jitted = jax.jit(metrics.group_coverage, static_argnames="num_groups")
    assert_array_equal(jitted(sets, y, groups, num_groups=4), result)


def test_shares_of_more_rows_than_single_precision_counts():
    """One row of ten is missed: in all, and in the group that has them all."""
    n = 20_000_000

    @jax.jit
    def shares(missed):
        covered = (jnp.arange(n) % 10 != missed).astype(float)
        return mean(covered), rates_of(covered, jnp.ones(n, int), num_groups=2)

    share, (rates, rows) = shares(3)
    assert n > 2**24 and rows.tolist() == [0, n]
    assert_allclose([share, rates[1]], 0.9, rtol=1e-7)


def test_numpy_sets_and_lists_are_accepted():
    assert metrics.coverage(Interval(np.zeros(2), np.ones(2)), [0.5, 2.0]) == 0.5
    assert metrics.coverage(LabelSet(np.eye(2, dtype=bool)), [0, 0]) == 0.5


def covering(x, rate, key):
    """Intervals that cover the target 0 with probability rate(x), independently."""
    hit = jax.random.uniform(key, x.shape[:1]) < rate
    return Interval(jnp.where(hit, -1.0, 1.0), jnp.full(x.shape[0], 2.0))


@pytest.mark.slow
def test_conditional_error_is_its_noise_floor_or_more():
    """Over many test sets: the floor exactly when coverage does not depend on x.

    With probability 0.8, or as the thresholds of 28 calibration rows have it.
    """
    m, n, alpha = 400, 28, 0.2

    def trial(key):
        key_x, key_hit, key_cells, key_old = jax.random.split(key, 4)
        x = jax.random.normal(key_x, (m, 3))
        right = jnp.where(x[:, 0] > 0, 0.95, 0.65)
        drawn = jaxcp.conformal_quantile(jax.random.uniform(key_old, (n,)), alpha)
        rates = (jnp.full(m, 0.8), None), (right, None), (jnp.full(m, drawn), n)
        return [
            metrics.conditional_coverage_error(
                key_cells,
                covering(x, rate, key_hit),
                jnp.zeros(m),
                x,
                alpha,
                num_calibration=rows,
            )
            for rate, rows in rates
        ]

    keys = jax.random.split(jax.random.key(0), 300)
    even, uneven, drawn = jax.jit(jax.vmap(trial))(keys)
    for error, floor in (even, drawn):
        spread = np.std(error) / len(keys) ** 0.5
        assert abs(np.mean(error) - np.mean(floor)) < 4 * spread
    assert_allclose(np.max(even[1]), 20 * 0.16 / m, rtol=1e-5)
    # Cells are cut at x = 0 by few, so nearly all of the 0.15^2 is seen.
    assert 0.01 < np.mean(uneven[0]) - np.mean(uneven[1]) < 0.0225


def test_conditional_error_by_hand():
    """Two far cells, covered 3 of 4 times and 0 of 2."""
    x = jnp.array([0.0, 0.1, 0.2, 0.3, 9.0, 9.1])
    y = jnp.array([0.0, 0.0, 0.0, 5.0, 5.0, 5.0])
    sets = Interval(-jnp.ones(6), jnp.ones(6))
    found = metrics.conditional_coverage_error(
        jax.random.key(0), sets, y, x, 0.1, num_cells=2
    )
    expected = 4 / 6 * (0.75 - 0.9) ** 2 + 2 / 6 * 0.9**2
    assert_allclose(found, [expected, 2 * 0.09 / 6], rtol=1e-5)
    one = metrics.conditional_coverage_error(
        jax.random.key(0), sets, y, x, 0.1, num_cells=1
    )
    assert_allclose(one, [(0.5 - 0.9) ** 2, 0.09 / 6], rtol=1e-5)


@pytest.mark.parametrize(("n", "alpha"), [(5, 0.1), (19, 0.2), (99, 0.1), (150, 0.3)])
def test_the_floor_of_calibrated_sets(n, alpha):
    """Means over Beta(k, n + 1 - k), with cells of 2 and 4 rows."""
    x = jnp.array([0.0, 0.1, 0.2, 0.3, 9.0, 9.1])
    sets = Interval(-jnp.ones(6), jnp.ones(6))
    call = dict(num_cells=2, num_calibration=n)
    found = metrics.conditional_coverage_error(KEY, sets, 2 * x, x, alpha, **call)[1]
    k = int(jaxcp.conformal_rank(n, alpha))
    expected = alpha**2  # infinite sets
    if k <= n:
        p = stats.beta(k, n + 1 - k)
        noise = 2 / 6 * p.expect(lambda c: c * (1 - c))
        expected = noise + p.expect(lambda c: (c - (1 - alpha)) ** 2)
    assert_allclose(found, expected, rtol=1e-5)
    levels = jnp.array([alpha, alpha])
    each = lambda a: metrics.conditional_coverage_error(  # noqa: E731
        KEY, sets, 2 * x, x, a, **call
    )[1]
    assert_allclose(jax.jit(jax.vmap(each))(levels), expected, rtol=1e-5)


def test_worst_slab_is_found_and_told_on_other_rows():
    m = 2000
    x = jax.random.normal(jax.random.key(0), (m, 2))
    bad = x @ jnp.array([0.6, 0.8]) > 1.0  # a sixth of the rows
    key = jax.random.key(1)
    uneven = covering(x, jnp.where(bad, 0.3, 0.9), key)
    even = covering(x, jnp.full(m, 0.8), key)
    run = jax.jit(
        lambda sets: metrics.worst_slab_coverage(
            key, sets, jnp.zeros(m), x, num_directions=200
        )
    )
    assert abs(run(uneven) - 0.3) < 0.15
    assert abs(run(even) - 0.8) < 0.12  # searching alone would find less


@pytest.mark.parametrize("num_places", [7, 10_000])
def test_worst_slab_against_all_slabs(num_places):
    """Against all runs of rows of at least the share that cut no place in two."""
    rng = np.random.default_rng(num_places)
    run = jax.jit(_worst_run, static_argnums=2)
    for _ in range(20):
        places = np.sort(rng.integers(num_places, size=60))
        hits = (rng.random(60) < 0.8).astype(float)
        starts = [i for i in range(60) if i == 0 or places[i] > places[i - 1]]
        runs = [
            hits[i:j].mean() for i in starts for j in [*starts[1:], 60] if j >= i + 7
        ]
        mean, first, last = run(jnp.asarray(hits), jnp.asarray(places), 7)
        assert_allclose(mean, min(runs), rtol=1e-6)
        assert_allclose(hits[int(first) : int(last) + 1].mean(), mean, rtol=1e-6)
        assert int(first) in starts and int(last) + 1 in [*starts, 60]


def test_conditional_metrics_of_one_row():
    key, one = jax.random.key(0), Interval(jnp.zeros(1), jnp.ones(1))
    found = metrics.conditional_coverage_error(
        key, one, jnp.zeros(1), jnp.zeros(1), 0.1
    )
    assert_allclose(found, [0.01, 0.09], rtol=1e-5)
    assert np.isnan(metrics.worst_slab_coverage(key, one, jnp.zeros(1), jnp.zeros(1)))


@pytest.mark.parametrize("seed", range(4))
def test_worst_slab_of_discrete_inputs(seed):
    """Rows at one place are in a slab together, found as told."""
    x = jax.random.randint(jax.random.key(0), (2000, 3), 0, 2)
    bad = jnp.all(x == 1, axis=1)
    sets = Interval(jnp.zeros(2000), jnp.where(bad, -1.0, 1.0))
    y = jnp.full(2000, 0.5)
    key = jax.random.key(seed)
    assert metrics.worst_slab_coverage(key, sets, y, x, num_directions=100) == 0
