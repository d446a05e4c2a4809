"""What holds for every metric: a new one is one row of `METRICS`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxcp import metrics
from jaxcp.sets import Balls, BoundingBox, Interval, LabelSet

KEY, M = jax.random.key(0), 60


class Rows(NamedTuple):
    """Sets with everything that a metric may ask of their rows."""

    sets: object
    y: jax.Array
    x: jax.Array
    groups: jax.Array


def rows_of(kind, key):
    """Rows with sets of a kind, of which some cover."""
    key_sets, key_x, key_groups = jax.random.split(key, 3)
    sets, y = kind(key_sets)
    x = jax.random.normal(key_x, (M, 2))
    return Rows(sets, y, x, jax.random.randint(key_groups, (M,), 0, 3))


def intervals(key):
    lower, width = jax.random.uniform(key, (2, M))
    return Interval(lower - 0.75, lower + width), jnp.zeros(M)


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


METRICS = {  # kind of sets, metric of (rows, alpha), whether the order of rows matters
    "class_coverage": (labels, on_sets(metrics.class_coverage)),
    "conditional_coverage_error": (
        intervals,
        lambda r, a: metrics.conditional_coverage_error(KEY, r.sets, r.y, r.x, a),
        True,
    ),
    "coverage": (intervals, on_sets(metrics.coverage)),
    "coverage_gap": (
        intervals,
        lambda r, a: metrics.coverage_gap(r.sets, r.y, r.groups, a, num_groups=3),
    ),
    "coverage_width_criterion": (
        intervals,
        on_sets(metrics.coverage_width_criterion, alpha=True, eta=3.0),
    ),
    "empty_rate": (labels, lambda r, a: metrics.empty_rate(r.sets)),
    "excess_coverage_risk": (
        intervals,
        lambda r, a: metrics.excess_coverage_risk(
            r.sets, r.y, jax.nn.sigmoid(r.x[:, 0]), a
        ),
    ),
    "group_coverage": (
        intervals,
        lambda r, a: metrics.group_coverage(r.sets, r.y, r.groups, num_groups=3),
    ),
    "hsic": (intervals, on_sets(metrics.hsic)),
    "interval_score": (intervals, on_sets(metrics.interval_score, alpha=True)),
    "iou": (boxes, lambda r, a: jax.vmap(metrics.iou)(r.sets.corners(), r.y)),
    "khosravi_coverage_width_criterion": (
        intervals,
        on_sets(metrics.khosravi_coverage_width_criterion, alpha=True, eta=3.0),
    ),
    "mean_size": (intervals, lambda r, a: metrics.mean_size(r.sets)),
    "mean_volume": (balls, lambda r, a: metrics.mean_volume(KEY, r.sets, 20), True),
    "min_size_stratified_coverage": (
        intervals,
        on_sets(metrics.min_size_stratified_coverage, num_bins=4),
    ),
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
    "summary": (
        intervals,
        lambda r, a: metrics.summary(r.sets, r.y, a, r.groups, num_groups=3),
    ),
    "winkler_score": (intervals, on_sets(metrics.winkler_score, alpha=True)),
    "worst_slab_coverage": (
        intervals,
        lambda r, a: metrics.worst_slab_coverage(
            KEY, r.sets, r.y, r.x, num_directions=5
        ),
        True,
    ),
}
each_metric = pytest.mark.parametrize("name", METRICS)


def assert_close(found, expected):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_the_table_has_every_metric():
    assert set(METRICS) == set(metrics.__all__) - {"MeanVolume"}


@each_metric
def test_jit_and_vmap_change_nothing(name):
    """Three sets of rows at once, at levels of their own, and one by one outside."""
    kind, metric = METRICS[name][:2]
    keys, alphas = jax.random.split(KEY, 3), jnp.array([0.1, 0.2, 0.4])
    each = [rows_of(kind, key) for key in keys]
    together = jax.tree.map(lambda *v: jnp.stack(v), *each)
    found = jax.jit(jax.vmap(metric))(together, alphas)
    loop = [metric(rows, a) for rows, a in zip(each, alphas, strict=True)]
    assert_close(found, jax.tree.map(lambda *v: jnp.stack(v), *loop))


@each_metric
def test_rows_may_come_in_any_order(name):
    kind, metric, *ordered = METRICS[name]
    if ordered:
        pytest.skip("draws by the place of a row")
    rows, order = rows_of(kind, KEY), np.random.default_rng(0).permutation(M)
    shuffled = jax.tree.map(lambda v: v[order], rows)
    expected = metric(rows, 0.2)
    if getattr(expected, "shape", None) == (M,):
        expected = expected[order]
    assert_close(metric(shuffled, 0.2), expected)


@each_metric
def test_lengths_that_differ_are_an_error(name):
    kind, metric = METRICS[name][:2]
    rows = rows_of(kind, KEY)
    one_less = jax.tree.map(lambda v: v[1:], rows.sets)
    if name in ("empty_rate", "iou", "singleton_rate", "mean_size", "mean_volume"):
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
