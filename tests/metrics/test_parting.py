"""Strata of many rows, whose ends are selected, against those of sorted rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp import metrics
from jaxcp.metrics import strata
from jaxcp.quantiles._keys import to_keys
from jaxcp.sets import Interval, LabelSet

MANY = strata._MANY_ROWS + 3
RNG = np.random.default_rng(0)
EXTREMES = [np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, 3e38]
SIZES = {
    "no ties": RNG.normal(size=97).astype(np.float32),
    "ties": RNG.integers(0, 4, 97).astype(np.float32),
    "one size": np.ones(97, np.float32),
    "infinite and unknown": RNG.choice(np.float32(EXTREMES), 97),
    "integers": RNG.integers(0, 9, 97).astype(np.int32),
    "bytes": RNG.integers(-9, 9, 97).astype(np.int8),
    "halves": RNG.integers(0, 30, 97).astype(np.float16),
    "large integers": 2**24 + RNG.integers(0, 9, 97).astype(np.int32),
    "one row": np.ones(1, np.float32),
}


def by_sorting(sizes, num_bins):
    """Strata of sizes, where NaN counts as infinite and -0 as 0."""
    wide = sizes.astype(float)
    order = np.argsort(np.where(np.isnan(wide), np.inf, wide) + 0.0, kind="stable")
    groups = np.empty(len(sizes), int)
    for i, rows in enumerate(np.array_split(order, num_bins)):
        groups[rows] = i
    return groups


@jax.jit
def selected(sizes, ends):
    return strata._groups_between(to_keys(sizes), ends)


@pytest.mark.parametrize("num_bins", [2, 5, 16])
@pytest.mark.parametrize("name", SIZES)
def test_selected_strata_are_those_of_sorted_rows(name, num_bins):
    sizes = SIZES[name]
    ends = strata._ends(len(sizes), num_bins)[:-1]
    found = selected(sizes, ends)
    assert_array_equal(found, by_sorting(sizes, num_bins))


def test_selected_strata_of_batches_and_in_double_precision():
    sizes = np.stack([SIZES["ties"], SIZES["no ties"]])
    ends = strata._ends(97, 4)[:-1]
    both = jax.vmap(selected, (0, None))(sizes, ends)
    assert_array_equal(both, [by_sorting(row, 4) for row in sizes])
    with jax.enable_x64(True):
        wide = 1 + SIZES["no ties"].astype(float) * 1e-12
        assert_array_equal(selected(wide, ends), by_sorting(wide, 4))


@pytest.mark.parametrize("num_bins", [1, 3, 10, 17])
@pytest.mark.parametrize("scale", [1000.0, 3.0])
def test_strata_of_many_rows(num_bins, scale):
    sizes = np.round(RNG.random(MANY) * scale).astype(np.float32)
    sets, y = Interval(np.zeros(MANY), sizes), np.full(MANY, scale / 2)
    groups = by_sorting(sizes, num_bins)
    strata = metrics.size_strata(sets, num_bins=num_bins)
    assert_array_equal(strata.groups, groups)
    hits = y <= sizes
    rates = np.array([hits[groups == i].mean() for i in range(num_bins)])
    found = metrics.size_stratified_coverage(sets, y, num_bins=num_bins)
    assert_allclose(found, rates, rtol=1e-6)
    worst = metrics.min_size_stratified_coverage(sets, y, num_bins=num_bins)
    assert_allclose(worst, rates.min(), rtol=1e-6)


def test_many_rows_under_transformations():
    sizes = np.round(RNG.random((2, MANY)) * 5).astype(np.float32)
    sets = Interval(jnp.zeros((2, MANY)), jnp.asarray(sizes))
    y = jnp.full((2, MANY), 2.5)
    coverage = partial(metrics.size_stratified_coverage, num_bins=4)
    together = jax.jit(jax.vmap(coverage))(sets, y)
    alone = [coverage(jax.tree.map(lambda v, i=i: v[i], sets), y[i]) for i in (0, 1)]
    assert_allclose(together, alone, rtol=1e-6)
    unknown = y[0].at[7].set(jnp.nan)
    rates = jax.jit(coverage)(jax.tree.map(lambda v: v[0], sets), unknown)
    assert np.isnan(rates).sum() == 1  # of the stratum of that row alone


def test_many_label_sets():
    counts = RNG.integers(0, 4, MANY)
    labels = LabelSet(jnp.asarray(np.arange(3) < counts[:, None]))
    strata = metrics.size_strata(labels, num_bins=6)
    assert_array_equal(strata.groups, by_sorting(counts, 6))


def test_slopes_of_strata_of_many_rows_are_finite():
    sizes = np.round(RNG.random(MANY) * 5).astype(np.float32)

    def total(scale):
        sets = Interval(jnp.zeros(MANY), scale * sizes)
        return metrics.size_stratified_coverage(sets, sizes / 2, num_bins=4).sum()

    assert jax.grad(total)(1.0) == 0


def test_many_rows_of_each_device():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("rows")
    sizes = np.round(RNG.random((2, MANY)) * 5).astype(np.float32)
    y = np.full((2, MANY), 2.5, np.float32)

    def each(sizes, y):
        sets = Interval(jnp.zeros(MANY), sizes[0])
        return metrics.size_stratified_coverage(sets, y[0], num_bins=4)[None]

    spread = jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec)
    alone = [each(sizes[[i]], y[[i]])[0] for i in (0, 1)]
    assert_allclose(jax.jit(spread)(sizes, y), alone, rtol=1e-6)
