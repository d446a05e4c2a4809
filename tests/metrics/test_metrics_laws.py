"""What holds for every metric: a new one is one row of `METRICS`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers import cut, stacked
from jaxcp import metrics, risk
from jaxcp.sets import Balls, BoundingBox, Interval, LabelSet

KEY, M = jax.random.key(0), 60


class Rows(NamedTuple):
    """Sets with everything that a metric may ask of their rows."""

    sets: object
    y: jax.Array
    x: jax.Array
    groups: jax.Array
    clusters: jax.Array


def rows_of(kind, key):
    """Rows with sets of a kind, of which some cover."""
    key_sets, key_x, key_groups = jax.random.split(key, 3)
    sets, y = kind(key_sets)
    x = jax.random.normal(key_x, (M, 2))
    groups, clusters = jax.random.randint(key_groups, (M,), 0, 3), jnp.arange(M) ** 2
    return Rows(sets, y, x, groups, clusters % 11)  # of six clusters, some with few


def intervals(key):
    lower, width, y = jax.random.uniform(key, (3, M))
    return Interval(y + lower - 0.75, y + lower + width), y


def labels(key):
    key_mask, key_y = jax.random.split(key)
    mask = jax.random.bernoulli(key_mask, 0.7, (M, 3))
    return LabelSet(mask), jax.random.randint(key_y, (M,), 0, 3)


def balls(key):
    key_centers, key_y = jax.random.split(key)
    centers = jax.random.normal(key_centers, (M, 2, 2))
    return Balls(centers, jnp.ones(M)), jax.random.normal(key_y, (M, 2))


def boxes(key):
    corner = jax.random.uniform(key, (M, 2))
    true = jnp.broadcast_to(jnp.array([0.5, 0.5, 1.5, 1.5]), (M, 4))
    return BoundingBox(corner, corner + 1), true


def on_sets(metric, *, alpha=False, **options):
    """A metric of sets and targets, and of a level."""
    return lambda r, a: metric(r.sets, r.y, *([a] if alpha else []), **options)


def tables(r, groups, **options):
    """All columns of a table of groups but counts."""
    options |= {"num_groups": 3, "loss": risk.shortfall(1.0)}
    found = metrics.by_group(r.sets, r.y, groups, **options)
    return {k: v for k, v in found.columns.items() if k not in ("n", "clusters")}


METRICS = {  # kind of sets, metric of (rows, alpha), whether the order of rows matters
    "by_group": (intervals, lambda r, a: tables(r, r.groups)),
    "by_group, in clusters": (
        intervals,
        lambda r, a: tables(r, r.groups, clusters=r.clusters),
    ),
    "by_group, flags in clusters": (
        intervals,
        lambda r, a: tables(
            r, jnp.stack([r.groups >= k for k in range(3)], axis=1), clusters=r.clusters
        ),
    ),
    "class_coverage": (labels, on_sets(metrics.class_coverage)),
    "conditional_coverage_error": (
        intervals,
        lambda r, a: metrics.conditional_coverage_error(KEY, r.sets, r.y, r.x, a),
        True,
    ),
    "coverage": (intervals, on_sets(metrics.coverage)),
    "coverage, in clusters": (
        intervals,
        lambda r, a: metrics.coverage(r.sets, r.y, clusters=r.clusters),
    ),
    "coverage_gap": (
        intervals,
        lambda r, a: metrics.coverage_gap(r.sets, r.y, r.groups, a, num_groups=3),
    ),
    "coverage_width_criterion": (
        intervals,
        on_sets(metrics.coverage_width_criterion, alpha=True, eta=3.0),
    ),
    "covered": (intervals, on_sets(metrics.covered)),
    "empty_rate": (labels, lambda r, a: metrics.empty_rate(r.sets)),
    "excess_coverage_risk": (
        intervals,
        lambda r, a: metrics.excess_coverage_risk(
            r.sets, r.y, jax.nn.sigmoid(r.x[:, 0]), a
        ),
    ),
    "full_rate": (labels, lambda r, a: metrics.full_rate(r.sets)),
    "group_coverage": (
        intervals,
        lambda r, a: metrics.group_coverage(r.sets, r.y, r.groups, num_groups=3),
    ),
    "hsic": (intervals, on_sets(metrics.hsic)),
    "hsic_null": (intervals, on_sets(metrics.hsic_null)),
    "hsic_test": (
        intervals,
        lambda r, a: metrics.hsic_test(KEY, r.sets, r.y, num_permutations=9),
        True,
    ),
    "infinite_rate": (
        intervals,
        lambda r, a: metrics.infinite_rate(
            Interval(r.sets.lower, jnp.where(r.groups == 0, jnp.inf, r.sets.upper))
        ),
    ),
    "interval_score": (intervals, on_sets(metrics.interval_score, alpha=True)),
    "iou": (boxes, lambda r, a: jax.vmap(metrics.iou)(r.sets.corners(), r.y)),
    "khosravi_coverage_width_criterion": (
        intervals,
        on_sets(metrics.khosravi_coverage_width_criterion, alpha=True, eta=3.0),
    ),
    "longest_miss": (  # a count
        intervals,
        lambda r, a: metrics.longest_miss(r.sets, r.y).astype(r.y.dtype),
        True,
    ),
    "mean_bound": (intervals, lambda r, a: metrics.mean_bound(r.sets, side="lower")),
    "mean_finite_size": (intervals, lambda r, a: metrics.mean_finite_size(r.sets)),
    "mean_loss": (
        intervals,
        lambda r, a: metrics.mean_loss(risk.shortfall(1.0), r.sets, r.y),
    ),
    "mean_size": (intervals, lambda r, a: metrics.mean_size(r.sets)),
    "mean_size, in clusters": (
        intervals,
        lambda r, a: metrics.mean_size(r.sets, clusters=r.clusters),
    ),
    "median_size": (intervals, lambda r, a: metrics.median_size(r.sets)),
    "mean_volume": (balls, lambda r, a: metrics.mean_volume(KEY, r.sets, 20), True),
    "min_size_stratified_coverage": (
        intervals,
        on_sets(metrics.min_size_stratified_coverage, num_bins=4),
    ),
    "pinball": (intervals, on_sets(metrics.pinball, alpha=True, side="upper")),
    "pinball_score": (
        intervals,
        lambda r, a: metrics.pinball_score(r.sets.lower, r.y, a),
    ),
    "singleton_rate": (labels, lambda r, a: metrics.singleton_rate(r.sets)),
    "size_stratified_coverage": (
        intervals,
        on_sets(metrics.size_stratified_coverage, num_bins=4),
    ),
    "size_stratified_coverage_violation": (
        intervals,
        on_sets(metrics.size_stratified_coverage_violation, alpha=True, num_bins=4),
    ),
    "sizes": (intervals, lambda r, a: metrics.sizes(r.sets)),
    "summary": (
        intervals,
        lambda r, a: metrics.summary(r.sets, r.y, a, r.groups, num_groups=3),
    ),
    "summary, in clusters": (
        intervals,
        lambda r, a: metrics.summary(
            r.sets, r.y, a, r.groups, num_groups=3, clusters=r.clusters
        ),
    ),
    "winkler_score": (intervals, on_sets(metrics.winkler_score, alpha=True)),
    "worst_slab_coverage": (
        intervals,
        lambda r, a: metrics.worst_slab_coverage(
            KEY, r.sets, r.y, r.x, num_directions=5
        ),
        True,
    ),
    "worst_window_coverage": (
        intervals,
        on_sets(metrics.worst_window_coverage, window=7),
        True,
    ),
}
NO_METRICS = {"MeanVolume", "SizeStrata", "Summary", "size_strata"}
NO_METRICS |= {"GroupSummary", "MeanLoss"}
# Of distributions and probabilities: test_proper, test_metrics_probabilities.
NO_METRICS |= {"crps", "energy_score", "variogram_score", "log_score", "brier_score"}
NO_METRICS |= {"expected_calibration_error", "calibration_test", "CalibrationTest"}
OF_SETS_ALONE = {
    "empty_rate",
    "full_rate",
    "infinite_rate",
    "iou",
    "mean_bound",
    "mean_finite_size",
    "mean_size",
    "mean_volume",
    "median_size",
    "singleton_rate",
    "sizes",
}
each_metric = pytest.mark.parametrize("name", METRICS)
# Of what jax makes of the rows.
BY_JAX = {"by_group, flags in clusters", "excess_coverage_risk", "infinite_rate"}


@pytest.mark.parametrize(
    "name", [k for k, v in METRICS.items() if v[0] is intervals and k not in BY_JAX]
)
def test_labels_of_rows_say_which_belong_together(name):
    pd = pytest.importorskip("pandas")
    kind, metric, *_ = METRICS[name]
    rows = rows_of(kind, KEY)
    order = np.random.default_rng(0).permutation(M)
    table = pd.DataFrame({"lower": rows.sets.lower, "upper": rows.sets.upper})
    labeled = Rows(
        sets=table,
        y=pd.Series(np.asarray(rows.y)).iloc[order],
        x=pd.DataFrame(np.asarray(rows.x)).iloc[order],
        groups=pd.Series(np.asarray(rows.groups)).iloc[order],
        clusters=pd.Series(np.asarray(rows.clusters)).iloc[order],
    )
    found = jax.tree.leaves(metric(labeled, 0.2))
    for a, b in zip(found, jax.tree.leaves(metric(rows, 0.2)), strict=True):
        assert_array_equal(a, b)


def covered(r):
    if isinstance(r.sets, LabelSet):
        return r.sets.mask[np.arange(M), r.y]
    return (r.sets.lower <= r.y) & (r.y <= r.sets.upper)


def widths(r):
    return np.maximum(r.sets.upper - r.sets.lower, 0)


def by_group(values, groups):
    return np.array([values[groups == g].mean() for g in range(3)])


def by_cluster(values, clusters):
    return np.array([values[clusters == k].mean() for k in np.unique(clusters)])


def by_width(r):
    return np.array([v.mean() for v in np.split(covered(r)[np.argsort(widths(r))], 4)])


def interval_scores(r, a):
    outside = np.maximum(r.sets.lower - r.y, 0) + np.maximum(r.y - r.sets.upper, 0)
    return widths(r) + 2 / a * outside


def criterion(r, a):
    error = covered(r).mean() - (1 - a)
    return (1 - widths(r).mean() / np.ptp(r.y)) * np.exp(-3 * error**2)


def khosravi(r, a):
    error = covered(r).mean() - (1 - a)
    fine = np.exp(-3 * error) * (error < 0)
    return widths(r).mean() / np.ptp(r.y) * (1 + fine)


def dependence(r):
    kernels = [np.exp(-((v[:, None] - v) ** 2)) for v in (widths(r), 1.0 * covered(r))]
    k, other = (v - v.mean(0) - v.mean(1)[:, None] + v.mean() for v in kernels)
    return np.sqrt(np.sum(k * other)) / (M - 1)


def longest_run(flags):
    return max(len(run) for run in "".join("01"[int(v)] for v in flags).split("0"))


def null_of_dependence(r):
    """The mean over permutations of trace(K H L H) / (m - 1)^2, from its two means."""
    k, other = (np.exp(-((v[:, None] - v) ** 2)) for v in (widths(r), 1.0 * covered(r)))
    h = np.eye(M) - 1 / M
    return np.trace(k @ h) * np.trace(other @ h) / (M - 1) ** 3


def shared_area(r):
    corners = np.maximum(r.sets.lower, r.y[:, :2]), np.minimum(r.sets.upper, r.y[:, 2:])
    both = np.prod(np.maximum(corners[1] - corners[0], 0), axis=1)
    ends = (r.sets.lower, r.sets.upper), (r.y[:, :2], r.y[:, 2:])
    areas = sum(np.prod(upper - lower, axis=1) for lower, upper in ends)
    return both / (areas - both)


FORMULAS = {  # in numpy, of what takes no draws
    "class_coverage": lambda r, a: by_group(covered(r), r.y),
    "coverage": lambda r, a: covered(r).mean(),
    "coverage, in clusters": lambda r, a: by_cluster(covered(r), r.clusters).mean(),
    "coverage_gap": lambda r, a: abs(by_group(covered(r), r.groups) - (1 - a)).mean(),
    "coverage_width_criterion": criterion,
    "covered": lambda r, a: covered(r),
    "empty_rate": lambda r, a: 1 - r.sets.mask.any(axis=1).mean(),
    "excess_coverage_risk": lambda r, a: np.mean(
        (covered(r) - (1 - a)) * np.sign(1 / (1 + np.exp(-r.x[:, 0])) - (1 - a))
    ),
    "full_rate": lambda r, a: r.sets.mask.all(axis=1).mean(),
    "group_coverage": lambda r, a: by_group(covered(r), r.groups),
    "hsic": lambda r, a: dependence(r),
    "hsic_null": lambda r, a: null_of_dependence(r),
    "infinite_rate": lambda r, a: np.mean(r.groups == 0),
    "interval_score": interval_scores,
    "iou": lambda r, a: shared_area(r),
    "khosravi_coverage_width_criterion": khosravi,
    "longest_miss": lambda r, a: longest_run(~covered(r)),
    "mean_bound": lambda r, a: r.sets.lower.mean(),
    "mean_finite_size": lambda r, a: widths(r).mean(),
    "mean_size": lambda r, a: widths(r).mean(),
    "mean_size, in clusters": lambda r, a: by_cluster(widths(r), r.clusters).mean(),
    "median_size": lambda r, a: np.median(widths(r)),
    "min_size_stratified_coverage": lambda r, a: by_width(r).min(),
    "pinball": lambda r, a: np.mean(
        np.maximum((1 - a) * (r.y - r.sets.upper), -a * (r.y - r.sets.upper))
    ),
    "pinball_score": lambda r, a: np.mean(
        np.maximum(a * (r.y - r.sets.lower), (a - 1) * (r.y - r.sets.lower))
    ),
    "singleton_rate": lambda r, a: np.mean(r.sets.mask.sum(axis=1) == 1),
    "size_stratified_coverage": lambda r, a: by_width(r),
    "sizes": lambda r, a: widths(r),
    "size_stratified_coverage_violation": lambda r, a: abs(by_width(r) - 1 + a).max(),
    "winkler_score": lambda r, a: interval_scores(r, a).mean(),
    "worst_window_coverage": lambda r, a: np.min(
        [covered(r)[i : i + 7].mean() for i in range(M - 6)]
    ),
}


def assert_close(found, expected):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_the_table_has_every_metric():
    named = {name.split(",")[0] for name in METRICS}
    assert named == set(metrics.__all__) - NO_METRICS


@each_metric
def test_jit_and_vmap_change_nothing(name):
    """Three sets of rows at once, at levels of their own, and one by one outside."""
    kind, metric = METRICS[name][:2]
    keys, alphas = jax.random.split(KEY, 3), jnp.array([0.1, 0.2, 0.4])
    each = [rows_of(kind, key) for key in keys]
    found = jax.jit(jax.vmap(metric))(stacked(*each), alphas)
    loop = [metric(rows, a) for rows, a in zip(each, alphas, strict=True)]
    assert_close(found, stacked(*loop))


@each_metric
def test_double_precision_is_kept(name):
    """Shares and counts too: a mean of booleans is single unless it is told."""
    kind, metric = METRICS[name][:2]
    with jax.enable_x64(True):
        rows = rows_of(kind, jax.random.key(1))
        found = metric(rows, 0.2)
    leaves = jax.tree.leaves(found)  # of a summary numbers of Python, outside of jit
    assert {np.asarray(v).dtype.name for v in leaves} == {"float64"}
    if name in FORMULAS:
        expected = FORMULAS[name](jax.tree.map(np.asarray, rows), 0.2)
        assert_allclose(found, expected, rtol=1e-12)


@each_metric
def test_arrays_stand_for_sets(name):
    kind, metric = METRICS[name][:2]
    if kind not in (intervals, labels) or name in ("pinball_score", "infinite_rate"):
        pytest.skip("of other sets, or of what the sets are made of")
    rows = rows_of(kind, KEY)
    expected, array = metric(rows, 0.2), rows.sets.to_numpy()
    pd = pytest.importorskip("pandas")
    for sets in (array, jnp.asarray(array), pd.DataFrame(array), array.tolist()):
        assert_close(metric(rows._replace(sets=sets), 0.2), expected)
    found = jax.jit(lambda v: metric(rows._replace(sets=v), 0.2))(array)
    assert_close(found, expected)


@each_metric
def test_rows_may_come_in_any_order(name):
    kind, metric, *ordered = METRICS[name]
    if ordered:
        pytest.skip("goes by the place of a row")
    rows, order = rows_of(kind, KEY), np.random.default_rng(0).permutation(M)
    shuffled = jax.tree.map(lambda v: v[order], rows)
    expected = metric(rows, 0.2)
    if getattr(expected, "shape", None) == (M,):
        expected = expected[order]
    assert_close(metric(shuffled, 0.2), expected)


@each_metric
def test_no_rows_say_nothing(name):
    """The mean of nothing is NaN, and so is the least; misses are counted."""
    kind, metric = METRICS[name][:2]
    found = metric(cut(rows_of(kind, KEY), slice(0)), 0.2)
    nothing = 0 if name == "longest_miss" else np.nan
    for value in jax.tree.leaves(found):
        assert_array_equal(value, nothing)


@each_metric
def test_lengths_that_differ_are_an_error(name):
    kind, metric = METRICS[name][:2]
    rows = rows_of(kind, KEY)
    one_less = jax.tree.map(lambda v: v[1:], rows.sets)
    if name in OF_SETS_ALONE:
        pytest.skip("reads nothing beside the sets, or all pairs")
    with pytest.raises(ValueError, match=rf"rows like .*got ({M}|{M - 1})"):
        metric(rows._replace(sets=one_less), 0.2)


@each_metric
def test_gradients_of_sizes_are_finite(name):
    """Coverage has slope zero almost everywhere; nothing may be NaN."""
    kind, metric = METRICS[name][:2]
    if kind is not intervals:
        pytest.skip("sets without ends")

    def total(widen):
        rows = rows_of(kind, KEY)
        wider = Interval(rows.sets.lower - widen, rows.sets.upper + widen)
        found = metric(rows._replace(sets=wider), 0.2)
        return sum(jnp.nansum(v) for v in jax.tree.leaves(found))

    assert np.isfinite(jax.jit(jax.grad(total))(0.1))


OWN_UNITS = None  # a kernel or a loss has a width of its own
# Degrees in the units of the targets, 0 if not named; of columns by their names.
DEGREES = {
    "by_group": {"mean_size": 1, "mean_finite_size": 1, "mean_loss": OWN_UNITS},
    "hsic": OWN_UNITS,
    "hsic_null": OWN_UNITS,
    "hsic_test": OWN_UNITS,
    "mean_loss": OWN_UNITS,
    "mean_volume": OWN_UNITS,  # of logarithms: below
    "summary": {
        **dict.fromkeys(("mean_size", "median_size", "mean_finite_size"), 1),
        **{"winkler_score": 1, "hsic": OWN_UNITS},
    },
}
DEGREES |= dict.fromkeys(("interval_score", "winkler_score", "mean_bound"), 1)
DEGREES |= dict.fromkeys(("mean_size", "mean_finite_size", "median_size", "sizes"), 1)
DEGREES |= dict.fromkeys(("pinball", "pinball_score"), 1)
DEGREES["by_group"]["mean_loss_error"] = OWN_UNITS
IN_CLUSTERS = {
    "by_group, in clusters": "by_group",
    "by_group, flags in clusters": "by_group",
    "mean_size, in clusters": "mean_size",
    "summary, in clusters": "summary",
}
DEGREES |= {name: DEGREES[metric] for name, metric in IN_CLUSTERS.items()}


def paths(key):
    """Draws and targets of two outputs."""
    points = jax.random.normal(key, (M, 6, 2))
    return Interval(points[:, 1:], points[:, 1:]), points[:, 0]


def width(found, y):
    return found.upper - found.lower


def on_draws(metric, **options):
    return lambda r, a: metric(r.sets.lower, r.y, **options)


IN_UNITS = {  # kind of rows, metric, degree
    **{k: (*METRICS[k][:2], DEGREES.get(k, 0)) for k in METRICS},
    "mean_loss of widths": (
        intervals,
        lambda r, a: metrics.mean_loss(width, r.sets, r.y),
        1,
    ),
    "losses of groups": (
        intervals,
        lambda r, a: metrics.by_group(
            r.sets, r.y, r.groups, num_groups=3, loss=width
        ).columns["mean_loss_error"],
        1,
    ),
    "crps": (
        paths,
        lambda r, a: metrics.crps(r.sets.lower[..., 0], r.y[:, 0]),
        1,
    ),
    "energy": (paths, on_draws(metrics.energy_score), 1),
    "energy fair": (paths, on_draws(metrics.energy_score, beta=0.5, fair=True), 0.5),
    "energy steep": (paths, on_draws(metrics.energy_score, beta=1.5), 1.5),
    "variogram": (paths, on_draws(metrics.variogram_score), 1),
    "variogram of squares": (paths, on_draws(metrics.variogram_score, order=2.0), 4),
}


def in_units(rows, c):
    """Returns rows with sets and targets, where these are numbers, c times as large."""

    def scaled(v):
        return c * v if jnp.issubdtype(v.dtype, jnp.floating) else v

    sets, y = jax.tree.map(scaled, (rows.sets, rows.y))
    return rows._replace(sets=sets, y=y)


def powers(degree):
    """Returns the units, powers of two, in which a metric of this degree is a float."""
    exponent = 90 if abs(degree) * 90 < 120 else 20
    return [np.float32(2.0**e) for e in (-exponent, exponent)]


@pytest.mark.parametrize("name", IN_UNITS)
def test_units_change_a_metric_by_its_degree(name):
    """f(c x) = c^d f(x)."""
    kind, metric, degrees = IN_UNITS[name]
    rows = rows_of(kind, KEY)
    if degrees is OWN_UNITS:
        pytest.skip("has units of its own")
    expected = metric(rows, 0.2)
    degree = degrees if isinstance(degrees, int | float) else 1
    for c in powers(degree):
        found = metric(in_units(rows, c), 0.2)
        if isinstance(degrees, dict):
            for column, value in found.items():
                d = degrees.get(column, 0)
                if d is not OWN_UNITS:
                    factor = np.float32(c**d)
                    assert_allclose(value, expected[column] * factor, rtol=2e-6)
            continue
        for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            assert_allclose(ours, theirs * np.float32(c**degree), rtol=2e-6)


def test_units_add_to_logarithms():
    """A log score grows by log c, and a log volume by d log c."""
    log_densities = jax.random.normal(KEY, (M,))
    rows = rows_of(balls, KEY)
    volumes = metrics.mean_volume(KEY, rows.sets, 20)
    for c in powers(1):
        more = np.log(c)
        found = metrics.log_score(log_densities - more)
        assert_allclose(found, metrics.log_score(log_densities) + more, rtol=1e-6)
        found = metrics.mean_volume(KEY, in_units(rows, c).sets, 20)
        assert_allclose(found.log_volumes, volumes.log_volumes + 2 * more, rtol=1e-6)
        assert_allclose(found.errors, volumes.errors, atol=1e-4)  # of logs


@pytest.mark.parametrize("name", ["energy", "variogram", "crps"])
def test_units_do_not_change_the_slopes_of_proper_scores(name):
    kind, metric, _ = IN_UNITS[name]
    rows = rows_of(kind, KEY)

    def slopes(rows):
        return jax.grad(lambda y: metric(rows._replace(y=y), 0.2))(rows.y)

    expected = slopes(rows)
    for c in powers(1):
        assert_allclose(slopes(in_units(rows, c)), expected, rtol=1e-5, atol=1e-8)
