"""All metrics of some sets in one dict, and what they are of each row."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import metrics
from jaxcp.sets import Interval, LabelSet, LevelSet
from rows import sized


def test_summary_has_what_applies():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    found = metrics.summary(sets, y, 0.1, groups=[0, 0, 1, 1], num_bins=2)
    assert found["coverage"] == 0.75
    assert_array_equal(found["group_coverage"], [0.5, 1])
    assert found["min_size_stratified_coverage"] == 0.5
    assert_allclose(found["coverage_gap"], 0.25, rtol=1e-5)
    assert_allclose(found["winkler_score"], (1 + 2 + 20 + 3 + 4) / 4)
    assert set(found) >= {"mean_size", "empty_rate", "hsic", "coverage_width_criterion"}
    labels = metrics.summary(LabelSet(jnp.eye(3, dtype=bool)), jnp.arange(3), 0.1)
    assert labels["singleton_rate"] == 1
    assert labels["class_coverage"].shape == (3,)
    levels = LevelSet(lambda pred, y: abs(y - pred), jnp.zeros(3), jnp.ones(3))
    with pytest.raises(ValueError, match="sets as numbers, got function"):
        metrics.summary(levels, jnp.zeros(3), 0.1)  # a function is no pytree


def test_summary_over_levels_is_each_level():
    """Every metric batches over levels, with and without jit."""
    widths = jnp.array([0.5, 1.0, 2.0])
    y = jax.random.normal(jax.random.key(0), (30,))
    scale = jnp.linspace(0.5, 2.0, 30)
    sets = Interval(-widths[:, None] * scale[None], widths[:, None] * scale[None])
    alphas, groups = jnp.array([0.5, 0.3, 0.1]), jnp.arange(30) % 2

    def run(sets, alpha):
        return metrics.summary(sets, y, alpha, groups, num_groups=2)

    together = jax.jit(jax.vmap(run))(sets, alphas)
    for i, alpha in enumerate(alphas):
        alone = run(Interval(sets.lower[i], sets.upper[i]), alpha)
        for name, value in alone.items():
            assert_allclose(together[name][i], value, rtol=1e-4, atol=1e-6)


def test_second_call_traces_nothing():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    labels, rows = LabelSet(jnp.eye(4, dtype=bool)), jnp.arange(4)
    others, groups = y + 1, rows % 2
    metrics.summary(sets, y, 0.1, groups, num_bins=2)
    metrics.summary(labels, rows, 0.1)
    with jax.no_tracing():
        metrics.summary(sets, others, 0.2, groups, num_bins=2)
        metrics.summary(labels, rows, 0.2)


def test_metrics_of_no_rows_are_nan():
    nothing, y = Interval(jnp.zeros(0), jnp.zeros(0)), jnp.zeros(0)
    for name, value in metrics.summary(nothing, y, 0.1, y.astype(int)).items():
        assert np.all(np.isnan(value)), name


def test_nan_is_never_silently_not_covered():
    sets, y = sized([1.0, jnp.nan, 3.0, 4.0], [1, 1, 1, 1])
    strata = metrics.size_stratified_coverage(sets, y, num_bins=2)
    assert_array_equal(strata, [1, np.nan])
    assert np.isnan(metrics.min_size_stratified_coverage(sets, y, num_bins=2))
    for name in ("hsic", "winkler_score", "coverage_width_criterion", "empty_rate"):
        assert np.isnan(metrics.summary(sets, y, 0.1)[name]), name


def test_a_summary_has_its_order_and_bins_only_where_they_count():
    labels = LabelSet(jnp.array([[True, False], [True, True]]))
    found = metrics.summary(labels, jnp.array([0, 1]), 0.1, num_bins=0)
    assert list(found)[:2] == ["coverage", "mean_size"]
    assert list(found)[-2:] == ["singleton_rate", "class_coverage"]
    sets, y = sized([1.0, 2.0], [1, 0])
    with pytest.raises(ValueError, match="num_bins as an int >= 1, got 0"):
        metrics.summary(sets, y, 0.1, num_bins=0)


def test_a_summary_shows_numbers_and_goes_into_json():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])

    def run(alpha):
        return metrics.summary(sets, y, alpha, jnp.arange(4) % 2, num_groups=2)

    found, levels = run(0.1), jnp.array([0.1, 0.2])
    assert isinstance(found, dict)
    assert str(found).splitlines()[:2] == ["{'coverage': 0.75,", " 'mean_size': 2.5,"]
    assert " 'group_coverage': [1. , 0.5]," in str(found).splitlines()
    assert json.loads(json.dumps(found.tolist()))["group_coverage"] == [1, 0.5]
    for many in (jax.vmap(run)(levels), jax.jit(jax.vmap(run))(levels)):
        assert list(many) == list(found)
        assert many["coverage"].shape == (2,)
        assert " 'mean_size': [2.5, 2.5]," in str(many).splitlines()
    jax.vmap(lambda alpha: str(run(alpha)) and alpha)(levels)  # traced values too


def test_strata_of_size_are_groups():
    sets, y = sized([1.0, 4.0, 2.0, 3.0], [1, 0, 1, 1])
    strata = jax.jit(lambda s: metrics.size_strata(s, num_bins=2))(sets)
    assert_array_equal(strata.groups, [0, 1, 0, 1])
    assert_array_equal(strata.sizes, metrics.sizes(sets))
    of = {"num_groups": strata.num_groups}
    found = metrics.group_coverage(sets, y, strata.groups, **of)
    assert_array_equal(found, metrics.size_stratified_coverage(sets, y, num_bins=2))
    gap = metrics.coverage_gap(sets, y, strata.groups, 0.25, **of)
    assert_allclose(gap, 0.25, rtol=1e-6)


def test_covered_rows_are_those_of_the_coverage():
    sets, y = sized([1.0, jnp.nan, 3.0, 4.0], [1, 1, 0, 1])
    assert_array_equal(metrics.covered(sets, y), [1, np.nan, 0, 1])
    assert_array_equal(metrics.sizes(sets), [1, np.nan, 3, 4])
