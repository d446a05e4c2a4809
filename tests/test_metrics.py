import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import metrics
from jaxcp.scores import Absolute
from jaxcp.sets import Box, Interval, LabelSet, LevelSet

INF = np.inf


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


def test_nothing_and_everything():
    y = jnp.zeros(4)
    assert metrics.coverage(Interval(y - 1, y + 1), y) == 1
    assert metrics.coverage(Interval(y + 1, y + 2), y) == 0


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


def test_no_rows():
    assert np.isnan(
        metrics.coverage(Interval(jnp.zeros(0), jnp.zeros(0)), jnp.zeros(0))
    )


def test_numpy_sets_and_lists_are_accepted():
    assert metrics.coverage(Interval(np.zeros(2), np.ones(2)), [0.5, 2.0]) == 0.5
    assert metrics.coverage(LabelSet(np.eye(2, dtype=bool)), [0, 0]) == 0.5


def test_metrics_batch_over_levels():
    lower = jnp.stack([jnp.zeros(3), -jnp.ones(3)])
    sets, y = Interval(lower, -lower), jnp.array([0.0, 0.5, -2.0])
    both = jax.vmap(metrics.coverage, (0, None))(sets, y)
    assert_allclose(both, [1 / 3, 2 / 3])
