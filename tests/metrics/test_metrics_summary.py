"""All metrics of some sets in one dict, and what they are of each row."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, scores
from jaxcp.metrics import dependence
from jaxcp.sets import Interval, LabelSet, LevelSet
from rows import sized


def test_summary_has_what_applies():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    found = metrics.summary(sets, y, 0.1, groups=[0, 0, 1, 1], num_bins=2)
    assert found["coverage"] == 0.75
    assert [found[f"group_coverage[{g}]"] for g in range(2)] == [0.5, 1]
    assert found["min_size_stratified_coverage"] == 0.5
    assert_allclose(found["coverage_gap"], 0.25, rtol=1e-5)
    assert_allclose(found["winkler_score"], (1 + 2 + 20 + 3 + 4) / 4)
    assert set(found) >= {"mean_size", "empty_rate", "hsic", "coverage_width_criterion"}
    labels = metrics.summary(LabelSet(jnp.eye(3, dtype=bool)), jnp.arange(3), 0.1)
    assert labels["singleton_rate"] == 1
    assert [labels[f"class_coverage[{c}]"] for c in range(3)] == [1, 1, 1]
    levels = LevelSet(lambda pred, y: abs(y - pred), jnp.zeros(3), jnp.ones(3))
    with pytest.raises(ValueError, match="sets as numbers, got function"):
        metrics.summary(levels, jnp.zeros(3), 0.1)  # a function is no pytree


def test_second_call_traces_nothing():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    labels, rows = LabelSet(jnp.eye(4, dtype=bool)), jnp.arange(4)
    others, groups = y + 1, rows % 2
    metrics.summary(sets, y, 0.1, groups, num_bins=2)
    metrics.summary(labels, rows, 0.1)
    with jax.no_tracing():
        metrics.summary(sets, others, 0.2, groups, num_bins=2)
        metrics.summary(labels, rows, 0.2)


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
    assert list(found)[-2:] == ["class_coverage[0]", "class_coverage[1]"]
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
    assert " 'group_coverage[1]': 0.5," in str(found).splitlines()
    assert json.loads(json.dumps(found.tolist()))["group_coverage[0]"] == 1
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


@pytest.mark.double
def test_a_summary_holds_plain_numbers():
    """In the digits of their own precision; arrays of jax in programs alone."""
    sets, y = sized([1.0, 2.0, 3.0, 4.1], [1, 0, 1, 1])

    def run(alpha):
        return metrics.summary(sets, y, alpha, num_bins=2)

    found, traced = run(0.1), jax.jit(run)(0.1)
    assert {type(v) for v in found.values()} == {float}
    assert found["mean_size"] == pytest.approx(2.525) and found["coverage"] == 0.75
    assert all(isinstance(v, jax.Array) for v in traced.values())
    for name, value in traced.items():
        assert found[name] == value == metrics.summary(sets, y, 0.1, num_bins=2)[name]
    if not jax.config.jax_enable_x64:
        assert str(found["mean_size"]) == str(np.float32(found["mean_size"]))
    assert json.loads(json.dumps(found)) == found
    infinite = metrics.summary(Interval(y - jnp.inf, y + jnp.inf), y, 0.1)
    assert infinite["mean_size"] == infinite["median_size"] == np.inf
    assert infinite["infinite_rate"] == 1
    groups = metrics.summary(sets, y, 0.1, jnp.arange(4) % 2)
    assert {type(v) for v in groups.values()} == {float}


def test_a_summary_goes_into_pandas():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    found = metrics.summary(sets, y, 0.1, num_bins=2)
    column = pd.Series(found)
    assert column.dtype == float and list(column.index) == list(found)
    assert column["median_size"] == 2.5 and column["infinite_rate"] == 0
    frame = pd.DataFrame([found, found], index=["one", "two"])
    assert frame.dtypes.eq(float).all() and frame.loc["two", "coverage"] == 0.75
    labels = metrics.summary(LabelSet(jnp.eye(3, dtype=bool)), jnp.arange(3), 0.1)
    rows = pd.Series(labels).round(3)
    assert rows.dtype == float and rows["class_coverage[2]"] == 1
    assert pd.DataFrame([labels, labels])["full_rate"].dtype == float


def test_a_summary_says_that_sets_hold_every_label():
    """Deterministic APS of a confident network: all rows tie at a mass of 1."""
    y = jnp.arange(200) % 5
    wrong = jnp.arange(200) % 7 == 0
    probs = jax.nn.softmax(40.0 * jax.nn.one_hot(jnp.where(wrong, y + 1, y) % 5, 5))
    u = jaxcp.uniforms(jax.random.key(0), 200)
    found, shown = {}, {}
    for score, preds in {
        scores.APS(): probs,
        scores.APS(randomized=True): (probs, u),
        scores.LAC(): probs,
    }.items():
        cp = jaxcp.calibrate(score, preds, y)
        summary = metrics.summary(cp(preds, 0.2), y, 0.2)
        name = type(score).__name__, getattr(score, "randomized", False)
        found[name], shown[name] = summary["full_rate"], str(summary)
    assert found["APS", False] == 1
    assert max(found["APS", True], found["LAC", False]) < 0.3
    told = {name: "Most sets hold every label" in text for name, text in shown.items()}
    assert told == {name: name == ("APS", False) for name in found}
    for shares, said in (([0.9, 0.8], True), ([0.9, 0.0], False), (np.nan, False)):
        many = metrics.Summary(full_rate=jnp.array(shares))
        assert ("every label" in str(many)) == said


def test_full_sets():
    sets = LabelSet(jnp.array([[True, False], [True, True], [False, False]]))
    assert metrics.full_rate(sets) == metrics.full_rate(sets.to_numpy())
    assert_allclose(metrics.full_rate(sets), 1 / 3, rtol=1e-6)


def test_flags_in_a_frame_go_by_their_names():
    mask = jnp.array([[True, False, False], [False, True, True], [True, False, True]])
    for names in (["cat", "dog", "emu"], [2, 0, 1], range(3)):
        sets = LabelSet(mask, classes=names)
        frame, y = sets.to_pandas(), np.asarray(names)[[1, 1, 2]]
        assert_array_equal(metrics.covered(frame, y), [0, 1, 1])
        assert str(metrics.summary(frame, y, 0.1)) == str(metrics.summary(sets, y, 0.1))


@pytest.mark.double
def test_ends_in_a_frame_go_by_their_names():
    sets, y = sized([1.0, 2.0, 3.0, 4.0], [1, 0, 1, 1])
    frame = sets.to_pandas()
    for ends in (frame, frame[["upper", "lower"]], frame.set_axis(["a", "b"], axis=1)):
        assert metrics.coverage(ends, y) == 0.75
        assert metrics.summary(ends, y, 0.1) == metrics.summary(sets, y, 0.1)
    crossed = frame.set_axis(["upper", "lower"], axis=1)
    assert metrics.empty_rate(crossed) == 1  # as it says
    assert metrics.mean_size(frame.astype(int)) == 2.5
    nothing = np.zeros((0, 2))
    assert np.isnan(metrics.coverage(nothing, np.zeros(0)))
    stacked = jnp.stack([sets.to_numpy(), sets.to_numpy() + 9])
    found = jax.vmap(metrics.coverage, (0, None))(stacked, y)
    assert_array_equal(found, [0.75, 0])
    with pytest.raises(ValueError, match="y with digits that single precision"):
        if jax.config.jax_enable_x64:
            raise ValueError("y with digits that single precision can hold")
        far = np.array([1e9, 1e9 + 1, 1e9 + 2]) + 0.3
        metrics.coverage(np.stack([far - 1, far + 1], axis=1), far)


@pytest.mark.parametrize("m", [1, 2, 9, 200])
@pytest.mark.parametrize("kind", ["numbers", "ties", "infinite", "unknown", "labels"])
def test_sizes_in_order_on_the_host_are_those_of_programs(kind, m):
    """To the last bit: strata, medians of sizes and of distances."""
    rng = np.random.default_rng(m)
    sizes = rng.exponential(size=m).astype(np.float32)
    if kind == "ties":
        sizes = np.round(2 * sizes)
    if kind == "infinite":
        sizes[: m // 3] = np.inf
    if kind == "unknown":
        sizes[-1] = np.nan
    sets, y = sized(sizes, rng.random(m) < 0.8)
    if kind == "labels":
        sets, y = LabelSet(rng.random((m, 4)) < 0.5), rng.integers(0, 4, m)
    known = metrics.summary(sets, y, 0.1)
    traced = jax.jit(metrics.summary)(sets, y, 0.1)
    assert list(known) == list(traced)
    for name, value in traced.items():
        assert_allclose(known[name], value, rtol=1e-6, err_msg=name)
    for name in ("median_size", *filter(re.compile("size_strat").search, traced)):
        value = traced[name]
        assert_array_equal(np.asarray(known[name], value.dtype), value, name)
    found = metrics.sizes(sets).astype(float)
    distance = dependence.known_median_distance(np.asarray(found))
    assert_array_equal(distance, dependence._median_distance(found))
