"""Metrics of size and dependence, of intervals, and their summary."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import metrics
from jaxcp._tree import pytree
from jaxcp.sets import Balls, BoundingBox, Box, Ellipsoid, Interval, LabelSet
from rows import sized

INF, KEY = np.inf, jax.random.key(0)


def test_strata_of_equally_many_rows():
    """Ties in the order of the rows; the first strata are longer; no row is lost."""
    sets, y = sized([2.0, 1, 2, INF, 1, 2, 0], [1, 1, 0, 1, 0, 1, 1])
    found = metrics.size_stratified_coverage(sets, y, num_bins=3)
    assert_allclose(found, [2 / 3, 1 / 2, 1])  # sizes 0 1 1 | 2 2 | 2 inf
    assert_allclose(metrics.size_stratified_coverage(sets, y, num_bins=1), 5 / 7)
    many = metrics.size_stratified_coverage(sets, y, num_bins=9)
    assert_array_equal(many, [1, 1, 0, 1, 0, 1, 1, np.nan, np.nan])
    assert metrics.min_size_stratified_coverage(sets, y, num_bins=9) == 0
    violation = metrics.size_stratified_coverage_violation(sets, y, 0.25, num_bins=3)
    assert_allclose(violation, 0.25)


@pytest.mark.parametrize("m", [1, 2, 9, 40])
def test_median_and_infinite_sizes_against_numpy(m):
    rng = np.random.default_rng(m)
    for sizes in (rng.exponential(size=m), rng.integers(0, 4, m).astype(float)):
        for infinite in (0, m // 3, (m + 1) // 2, m):
            sizes = np.where(np.arange(m) < infinite, INF, sizes).astype(np.float32)
            sets, _ = sized(rng.permutation(sizes), np.ones(m))
            assert_allclose(metrics.median_size(sets), np.median(sizes), rtol=1e-6)
            assert_allclose(metrics.infinite_rate(sets), infinite / m, rtol=1e-6)
    counts = rng.integers(0, 6, m)
    labels = LabelSet(jnp.asarray(np.arange(5) < counts[:, None]))
    assert metrics.median_size(labels) == np.median(counts)
    assert metrics.infinite_rate(labels) == 0


def test_median_and_infinite_sizes_of_nothing_and_of_nan():
    nothing = LabelSet(jnp.zeros((0, 3), bool))
    unknown, _ = sized([1.0, jnp.nan, 2.0], [1, 1, 1])
    for metric in (metrics.median_size, metrics.infinite_rate):
        assert np.isnan(metric(nothing)) and np.isnan(metric(unknown))
        with pytest.raises(ValueError, match="closed-form size"):
            metric(Balls(jnp.zeros((4, 2, 2)), jnp.ones(4)))
    halves = Interval(jnp.zeros(2, jnp.float16), jnp.full(2, 60_000, jnp.float16))
    assert metrics.median_size(halves) == 60_000  # not the infinite sum of two
    assert metrics.median_size(halves).dtype == jnp.float16


def test_strata_of_each_size_are_those_of_sets_with_labels():
    """An empty set covers nothing: `empty_rate` tells, not the least coverage."""
    sizes = np.array([0, 1, 1, 1, 1, 2, 2])
    labels = LabelSet(jnp.asarray(np.arange(3) < sizes[:, None]))
    y = jnp.array([0, 0, 0, 0, 2, 1, 0])
    each = metrics.size_stratified_coverage(labels, y)
    assert_array_equal(each, [0, 0.75, 1, np.nan])
    assert metrics.min_size_stratified_coverage(labels, y) == 0.75
    violation = metrics.size_stratified_coverage_violation(labels, y, 0.125)
    assert violation == 0.125
    found = metrics.summary(labels, y, 0.125)
    assert found["min_size_stratified_coverage"] == 0.75
    assert found["size_stratified_coverage_violation"] == 0.125
    assert_allclose(found["empty_rate"], 1 / 7)
    for strata in ({"num_ranges": 4}, {"edges": (0, 1, 2)}, {"num_bins": 7}):
        assert metrics.min_size_stratified_coverage(labels, y, **strata) == 0
        exact = metrics.size_stratified_coverage_violation(labels, y, 0.125, **strata)
        assert exact == 0.875
    empty = LabelSet(jnp.zeros((3, 2), bool))
    assert np.isnan(metrics.min_size_stratified_coverage(empty, jnp.zeros(3, int)))


def test_one_infinite_set_does_not_rule_a_summary():
    sets, y = sized([1.0, 2.0, 3.0, INF], [1, 1, 0, 1])
    found = metrics.summary(sets, y, 0.1)
    assert found["mean_size"] == INF
    assert found["median_size"] == 2.5 and found["infinite_rate"] == 0.25
    assert found["mean_finite_size"] == metrics.mean_finite_size(sets) == 2
    for sizes in ([INF, INF], [1.0, np.nan], []):
        assert np.isnan(metrics.mean_finite_size(sized(sizes, [1] * len(sizes))[0]))


def test_strata_between_edges():
    sets, y = sized([0.0, 1, 2, 3, 10, INF], [1, 0, 1, 1, 0, 1])
    found = metrics.size_stratified_coverage(sets, y, edges=(1, 3, 5))
    assert_array_equal(found, [0.5, 1, np.nan, 0.5])
    labels = LabelSet(jnp.tril(jnp.ones((4, 4), bool)))  # sizes 1, 2, 3, 4
    rows = jnp.array([0, 3, 1, 3])
    each = metrics.size_stratified_coverage(labels, rows)
    assert_array_equal(each, [np.nan, 1, 0, 1, 1])
    halves = metrics.size_stratified_coverage(labels, rows, num_ranges=2)
    assert_array_equal(halves, [0.5, 1])  # sizes 0 to 2, and 3 to 4


def test_targets_and_ends_with_an_axis_of_one():
    """(m, 1) for a single output is (m,): for every metric, and without m x m."""
    y = jnp.array([0.5, 0.5, 2.0, 0.5])
    sets = Interval(jnp.zeros(4), jnp.array([1.0, 2.0, 3.0, 0.2]))
    column = Interval(sets.lower[:, None], sets.upper[:, None])
    groups, x = jnp.array([0, 0, 1, 1]), jnp.arange(4.0)
    plain = metrics.summary(sets, y, 0.1, groups, num_bins=2)
    for ends, target in [(sets, y[:, None]), (column, y), (column, y[:, None])]:
        found = metrics.summary(ends, target, 0.1, groups, num_bins=2)
        for name, value in plain.items():
            assert_array_equal(found[name], value, err_msg=name)
        risk = metrics.excess_coverage_risk(ends, target, x / 4, 0.5)
        assert risk == metrics.excess_coverage_risk(sets, y, x / 4, 0.5)
        slab = metrics.worst_slab_coverage(jax.random.key(0), ends, target, x)
        assert slab.shape == ()
    labels, rows = LabelSet(jnp.eye(3, dtype=bool)), jnp.array([[0], [1], [1]])
    assert_allclose(metrics.coverage(labels, rows), 2 / 3)
    assert_array_equal(metrics.class_coverage(labels, rows), [1, 0.5, np.nan])


@pytest.mark.parametrize("m", [10, 41, 1000])
def test_rates_are_fractions_to_the_last_bit(m):
    sets, y = sized(np.ones(m), np.arange(m) > 0)
    dtype = metrics.coverage(sets, y).dtype.type
    assert metrics.coverage(sets, y) == dtype(m - 1) / dtype(m)
    assert jax.jit(metrics.coverage)(*sized(np.ones(m), np.ones(m))) == 1
    assert metrics.empty_rate(Interval(jnp.ones(m), jnp.zeros(m))) == 1
    batch = jax.vmap(metrics.coverage)(
        Interval(*jnp.stack([sets.lower, sets.upper])[:, None]), y[None]
    )
    assert batch[0] == metrics.coverage(sets, y)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sums_of_halves_do_not_overflow(dtype):
    sets = Interval(jnp.zeros(70_000, dtype), jnp.full(70_000, 100, dtype))
    assert metrics.mean_size(sets) == 100
    assert metrics.mean_size(sets).dtype == dtype
    found = metrics.pinball_score(sets.lower, sets.upper, 0.5)
    assert found == 50
    rates = jnp.full(4, 0.9, dtype)
    sets, y = sized(np.ones(4), [1, 1, 1, 0])
    assert metrics.excess_coverage_risk(sets, y, rates, 0.1) == 0


def test_targets_of_integers_and_sets_of_ones_own():
    sets, y = Interval(jnp.zeros(4), jnp.ones(4)), np.array([0, 1, 2, 4], np.uint8)
    for kind in (np.uint8, np.int32, float):
        cwc = metrics.coverage_width_criterion(sets, y.astype(kind), 0.5, eta=10.0)
        assert_allclose(cwc, 0.75)

    @pytree
    class HalfOpen(Interval):
        def contains(self, y):
            return (self.lower <= y) & (y < self.upper)

    half_open = HalfOpen(jnp.zeros(2), jnp.ones(2))
    assert metrics.coverage(half_open, jnp.array([0.5, 1.0])) == 0.5


def test_sizes_may_be_given():
    """For sets without a size in closed form: here estimated volumes."""
    balls = Balls(jnp.zeros((4, 1, 2)), jnp.array([1.0, 2.0, 3.0, 4.0]))
    y = jnp.full((4, 2), 1.5)
    volumes = metrics.mean_volume(jax.random.key(0), balls, 10).log_volumes
    found = metrics.size_stratified_coverage(balls, y, num_bins=2, sizes=volumes)
    assert_array_equal(found, [0, 1])
    assert metrics.hsic(balls, y, sizes=volumes) > 0
    with pytest.raises(ValueError, match="closed-form size"):
        metrics.hsic(balls, y)


def hsic_by_loops(sizes, covered, s1, s2):
    """trace(K H L H) from whole matrices."""
    n = len(sizes)
    with np.errstate(invalid="ignore"):
        away = np.where(sizes[:, None] == sizes, 0, sizes[:, None] - sizes)
    k = np.exp(-(away**2) / s1)
    l_ = np.exp(-np.float64(covered[:, None] != covered) / s2)
    h = np.eye(n) - 1 / n
    return np.sqrt(np.trace(k @ h @ l_ @ h)) / (n - 1)


@pytest.mark.parametrize("k", [4, 40])
def test_strata_of_few_and_of_many_sizes_are_the_numbers_of_labels(k):
    counts = np.random.default_rng(k).integers(0, k + 1, 200)
    sets = LabelSet(jnp.asarray(np.arange(k) < counts[:, None]))
    found = metrics.size_strata(sets)
    assert found.num_groups == k + 1
    assert_array_equal(found.groups, counts)


def test_hsic_against_matrices():
    rng = np.random.default_rng(0)
    sizes, covered = rng.exponential(size=60), rng.random(60) < 0.7
    sizes[:7] = INF  # infinite sets are alike, and far from the others
    sets, y = sized(sizes, covered)
    for s1, s2 in [(1.0, 1.0), (0.1, 3.0)]:
        found = metrics.hsic(sets, y, bandwidths=(s1, s2), sizes=sizes)
        assert_allclose(found, hsic_by_loops(sizes, covered, s1, s2), rtol=1e-5)
    finite = sizes[np.isfinite(sizes)]
    away = np.abs(np.subtract.outer(finite, finite))[np.triu_indices(53, 1)]
    median = np.sort(away)[(len(away) + 1) // 2 - 1]
    found = metrics.hsic(sets, y, bandwidths=None, sizes=sizes)
    expected = hsic_by_loops(sizes, covered, 2 * median**2, 2.0)
    assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("bandwidths", [(1.0, 1.0), (0.3, 2.0), None])
def test_hsic_of_all_permutations(bandwidths):
    """Three misses among eight rows in all 56 ways; equal sizes make ties."""
    sizes, covered = np.array([1.0, 1, 2, 2, 2, 3.5, 3.5, INF]), np.arange(8) > 2
    ways = np.array([[i not in v for i in range(8)] for v in combinations(range(8), 3)])
    call = dict(bandwidths=bandwidths, sizes=jnp.asarray(sizes))
    sets, y = sized(sizes, covered)
    each = jax.vmap(lambda v: metrics.hsic(Interval(v, v + 1), y, rooted=False, **call))
    found = np.asarray(each(1.0 - ways), float)
    assert_allclose(found.mean(), metrics.hsic_null(sets, y, **call), rtol=1e-5)
    value = found[np.all(ways == covered, axis=1)].item()
    exact, b = np.mean(found >= value * (1 - 1e-4)), 4999
    call |= {"num_permutations": b}
    p = metrics.hsic_test(KEY, sets, y, **call)
    error = 4 * (exact * (1 - exact) / b) ** 0.5
    assert abs(p - (1 + b * exact) / (1 + b)) < error + 1e-6


def test_p_values_of_dependence():
    """At most uniform where misses fall on any size, small where they do not."""

    def p_values(key):
        key_y, key_test = jax.random.split(key)
        widths = jnp.arange(24) // 8 + 1.0
        y, sets = jax.random.normal(key_y, (24,)), Interval(-widths, widths)
        targets = jnp.stack([y * widths, y])  # that spread as the sets do, or alike
        return jax.vmap(
            lambda y: metrics.hsic_test(key_test, sets, y, num_permutations=19)
        )(targets)

    keys = jax.random.split(KEY, 2000)
    none, some = np.asarray(jax.jit(jax.vmap(p_values))(keys)).T
    for t in (0.05, 0.1, 0.5):
        assert np.mean(none <= t + 1e-6) < t + 4 * (t * (1 - t) / len(keys)) ** 0.5
    assert np.mean(some <= 0.05 + 1e-6) > 0.15


def test_hsic_is_zero_where_nothing_varies():
    for sizes, covered in [
        (np.ones(50), np.arange(50) % 3 == 0),
        (np.arange(1.0, 51), np.ones(50)),
        (np.arange(1.0, 51), np.zeros(50)),
    ]:
        sets, y = sized(sizes, covered)
        for bandwidths in [(1.0, 1.0), None]:
            options = {"bandwidths": bandwidths, "sizes": jnp.asarray(sizes)}
            value, slope = jax.value_and_grad(
                lambda o, s=sets, y=y: metrics.hsic(s, y, **o), allow_int=True
            )(options)
            assert value == metrics.hsic_null(sets, y, **options) == 0
            assert np.all(np.isfinite(slope["sizes"]))
            assert metrics.hsic_test(KEY, sets, y, **options) == 1
    for rows in (sized([1.0], [1]), sized([], []), sized([1.0, np.nan], [1, 0])):
        assert np.isnan(metrics.hsic(*rows)) and np.isnan(metrics.hsic_null(*rows))
        for bandwidths in [(1.0, 1.0), None]:
            assert np.isnan(metrics.hsic_test(KEY, *rows, bandwidths=bandwidths))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_median_heuristic_has_no_units(scale):
    rng = np.random.default_rng(0)
    sizes, covered = rng.exponential(size=60), rng.random(60) < 0.7
    sets, y = sized(sizes, covered)
    plain = metrics.hsic(sets, y, bandwidths=None, sizes=sizes)
    found = metrics.hsic(sets, y, bandwidths=None, sizes=scale * sizes)
    assert_allclose(found, plain, rtol=1e-4)


def test_hsic_keeps_little_memory_and_differentiates():
    """No m x m matrix: neither going forward nor back."""
    m = 6000
    sizes = jnp.linspace(0.1, 3.0, m)
    sets, y = sized(sizes, np.arange(m) % 3 > 0)

    def value(sizes):
        return metrics.hsic(sets, y, sizes=sizes)

    def null(sizes):
        return metrics.hsic_null(sets, y, sizes=sizes)

    def test(sizes):
        return metrics.hsic_test(KEY, sets, y, sizes=sizes, num_permutations=999)

    for run in (value, jax.grad(value), null, test):
        memory = jax.jit(run).lower(sizes).compile().memory_analysis()
        assert memory.temp_size_in_bytes < m * m  # a quarter of it in single precision
    few = sizes[:: m // 40]
    sets, y = sized(few, np.arange(len(few)) % 3 > 0)
    slope = jax.grad(value)(few)
    step = 1e-2 * jnp.cos(jnp.arange(len(few)))
    change = value(few + step) - value(few - step)
    assert_allclose(jnp.sum(slope * 2 * step), change, rtol=0.02)


def test_interval_scores_by_hand():
    sets = Interval(jnp.array([0.0, 0.0, 2.0, -INF]), jnp.array([1.0, 1.0, 1.0, INF]))
    y = jnp.array([0.5, 3.0, 1.5, 0.0])
    found = metrics.interval_score(sets, y, 0.5)
    assert_allclose(found, [1, 1 + 4 * 2, 4 * 0.5 + 4 * 0.5, INF])
    assert metrics.winkler_score(sets, y, 0.5) == INF
    slope = jax.grad(lambda u: metrics.winkler_score(Interval(u * 0, u), y, 0.5))
    assert_allclose(slope(jnp.full(4, 1.0)), [0.25, (1 - 4) / 4, (1 - 4) / 4, 0.25])


def test_pinball_score_of_several_levels():
    y = jnp.array([1.0, -1.0, 3.0])
    preds, levels = jnp.zeros((3, 2)), jnp.array([0.1, 0.9])
    found = metrics.pinball_score(preds, y, levels)
    assert_allclose(found, [(0.1 + 0.9 + 0.3) / 3, (0.9 + 0.1 + 2.7) / 3], rtol=1e-6)
    assert_allclose(metrics.pinball_score(preds[:, 1], y, 0.9), found[1])


def test_criteria_of_coverage_and_width():
    sets = Interval(jnp.zeros(4), jnp.ones(4))
    y = jnp.array([0.5, 0.5, 0.5, 4.5])  # coverage 3/4, width 1 of a range of 4
    cwc = metrics.coverage_width_criterion(sets, y, 0.1, eta=2.0)
    assert_allclose(cwc, 0.75 * np.exp(-2 * 0.15**2), rtol=1e-6)
    khosravi = metrics.khosravi_coverage_width_criterion
    assert_allclose(khosravi(sets, y, 0.1, eta=2.0), (1 + np.exp(0.3)) / 4, rtol=1e-5)
    assert_allclose(khosravi(sets, y, 0.25, eta=2.0), 0.25)  # covered: no fine
    same = jnp.full(4, 0.5)
    assert metrics.coverage_width_criterion(sets, same, 0.1, eta=2.0) == -INF
    assert khosravi(sets, same, 0.1, eta=2.0) == INF
    for m, alpha in [(100, 0.05), (35, 0.2), (20, 0.15), (100, 0.01), (1000, 0.1)]:
        sets, _ = sized(np.ones(m), np.arange(m) >= round(alpha * m))
        wide = jnp.zeros(m).at[0].set(-4.0)  # a range of 4, and no target gained
        wide = wide if round(alpha * m) else jnp.zeros(m)
        exact = khosravi(sets, wide, alpha, eta=50.0)
        assert_allclose(exact, 0.25, rtol=1e-5)  # covered as asked: no fine
    points = Interval(same, same)
    assert_allclose(khosravi(points, same, 0.1, eta=2.0), 0)
    infinite = Interval(jnp.full(4, -INF), jnp.full(4, INF))
    for eta in (0.0, 1e9):
        cwc = metrics.coverage_width_criterion(infinite, y, 0.1, eta=eta)
        assert cwc == -INF
        assert khosravi(infinite, y, 0.1, eta=eta) == INF


def test_empty_sets_and_singletons():
    lower = jnp.array([0.0, 1.0, 0.0])
    assert_allclose(metrics.empty_rate(Interval(lower, jnp.zeros(3))), 1 / 3)
    corners = jnp.zeros((3, 2)), jnp.array([[1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])
    assert_allclose(metrics.empty_rate(Box(*corners)), 1 / 3)
    assert_allclose(metrics.empty_rate(BoundingBox(*corners)), 1 / 3)
    assert metrics.empty_rate(BoundingBox(*corners, inner=True)) == 0
    radius = jnp.array([-1.0, 0.0, INF])
    assert_allclose(metrics.empty_rate(Balls(jnp.zeros((3, 1, 2)), radius)), 1 / 3)
    ellipsoids = Ellipsoid(jnp.zeros((3, 2)), jnp.ones((3, 2)), radius)
    assert_allclose(metrics.empty_rate(ellipsoids), 1 / 3)
    labels = LabelSet(jnp.array([[0, 0, 0], [0, 1, 0], [1, 1, 1]], bool))
    assert_allclose(metrics.empty_rate(labels), 1 / 3)
    assert_allclose(metrics.singleton_rate(labels), 1 / 3)
    assert np.isnan(metrics.empty_rate(Interval(lower, jnp.array([0, np.nan, 0]))))
    one_class = LabelSet(jnp.ones((3, 1), bool))
    assert metrics.singleton_rate(one_class) == 1
    assert metrics.class_coverage(one_class, jnp.zeros(3, int)) == 1


def test_gap_of_groups():
    sets, y = sized(np.ones(6), [1, 0, 1, 1, 1, 0])
    groups = jnp.array([0, 0, 2, 2, 2, 2])  # coverage 1/2 and 3/4, group 1 is empty
    gap = metrics.coverage_gap(sets, y, groups, 0.1, num_groups=3)
    assert_allclose(gap, (0.4 + 0.15) / 2, rtol=1e-5)
    weighted = metrics.coverage_gap(sets, y, groups, 0.1, num_groups=3, weighted=True)
    assert_allclose(weighted, (2 * 0.4 + 4 * 0.15) / 6, rtol=1e-5)


def test_excess_risk_of_the_truth_is_the_mean_error():
    """Rates on the right side of the level see its whole distance from coverage."""
    keys = jax.random.split(jax.random.key(0), 2)
    rates = jnp.where(jax.random.uniform(keys[0], (20_000,)) < 0.5, 0.95, 0.75)
    covered = jax.random.uniform(keys[1], rates.shape) < rates
    sets, y = sized(np.ones(len(rates)), covered)
    risk = metrics.excess_coverage_risk(sets, y, rates, 0.1)
    error = 4 * np.sqrt(0.12 / len(rates))
    assert abs(risk - (0.05 + 0.15) / 2) < error
    knows_nothing = metrics.excess_coverage_risk(
        sets, y, jnp.full_like(rates, 0.9), 0.1
    )
    assert knows_nothing == 0
    for alpha in (0.09, 0.16, 0.29, 0.33):
        level = jnp.full_like(rates, 1 - alpha)
        assert metrics.excess_coverage_risk(sets, y, level, alpha) == 0


def test_iou_of_flat_infinite_and_apart_boxes():
    boxes = jnp.array(
        [[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6], [1, 1, 1, 4], [-INF, -INF, INF, INF]]
    )
    found = metrics.iou(boxes, boxes)
    assert_allclose(found[0], [1, 1 / 7, 0, 0, 0], rtol=1e-6)
    assert_array_equal(found, found.T)
    assert found[3, 3] == 0
    assert metrics.iou(boxes[0], boxes[1]).shape == ()
    assert metrics.iou(boxes[0], boxes).shape == (5,)
    far = jnp.array([-3e38, -3e38, 3e38, 3e38])
    assert metrics.iou(far, far) == 1
    wide, flat = jnp.array([0, 0, 1e38, 1.0]), jnp.array([0, 0, 1e38, 0.5])
    assert_allclose(metrics.iou(wide, flat), 0.5, rtol=1e-6)
    for scale in (1e-20, 1e18):
        assert_allclose(
            metrics.iou(scale * boxes[0], scale * boxes[1]), 1 / 7, rtol=1e-5
        )
    half = jnp.array([[0, 0, 300, 300]], jnp.float16)
    assert metrics.iou(half, half) == 1
    assert np.isnan(jax.jit(metrics.iou)(boxes[0], jnp.full(4, jnp.nan)))
    whole = metrics.iou(boxes[:2].astype(int), boxes[:2].astype(int))
    assert_allclose(whole, found[:2, :2], rtol=1e-6)
    slope = jax.jit(jax.grad(lambda b: jnp.sum(metrics.iou(b, boxes))))(boxes)
    assert np.all(np.isfinite(slope))
