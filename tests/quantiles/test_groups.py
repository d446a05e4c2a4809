"""Thresholds of groups by counting: those of every group alone, to the last bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp._arrays import sums_of_groups
from jaxcp.quantiles.thresholds import group_thresholds
from jaxcp.scores import Absolute

N, G = 1500, 20  # more rows and groups than are compared with each other


def rows(dtype=np.float32):
    """Returns scores with ties and what is not finite, groups also of none, a mask."""
    draw = np.random.default_rng(0)
    x = np.round(draw.normal(size=N), 1)
    if np.issubdtype(dtype, np.floating):
        x[::7], x[::11], x[::13], x[::17] = np.inf, -np.inf, np.nan, -0.0
    else:
        x = 10 * x
    groups = draw.integers(-2, G - 1, N)  # the last group is empty
    groups[::19] = G + 5
    return x.astype(dtype), groups.astype(np.int16), draw.random(N) < 0.7


def alone(x, rank, groups, mask):
    """Returns the order statistic of every group, by numpy."""
    found = []
    for group, k in enumerate(rank):
        own = np.sort(x[(groups == group) & mask])  # NaN last, as +inf
        inside = own[min(max(k, 1), len(own)) - 1] if len(own) else np.inf
        found.append(-np.inf if k < 1 else np.inf if k > len(own) else inside)
    return np.where(np.isnan(np.array(found, float)), np.inf, found)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("hidden", [False, True])
def test_order_statistics_of_groups_are_those_of_each(dtype, hidden):
    with jax.enable_x64(dtype == "float64"):
        x, groups, mask = rows(np.dtype(dtype))
        mask = mask & (not hidden)
        for spread in (0, 40, 100, 200):  # 200 is beyond the rows of any group
            rank = np.arange(G) * spread // G
            found = group_thresholds(jnp.asarray(x), jnp.asarray(rank), groups, mask)
            expected = alone(x, rank, groups, mask)
            np.testing.assert_array_equal(np.asarray(found, float), expected)


def test_groups_of_many_components_maps_and_devices():
    x, groups, mask = rows()
    both, rank = np.stack([x, -x], 1), np.arange(2 * G).reshape(G, 2) * 5
    found = group_thresholds(jnp.asarray(both), jnp.asarray(rank), groups, mask)
    for column in range(2):
        expected = alone(both[:, column], rank[:, column], groups, mask)
        np.testing.assert_array_equal(found[:, column], expected)
    many = jax.vmap(group_thresholds, (1, 1, None, None), 1)
    np.testing.assert_array_equal(many(both, rank, groups, mask), found)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    if N % jax.device_count() == 0:
        spread = [jax.device_put(v, place) for v in (both, groups, mask)]
        again = group_thresholds(spread[0], jnp.asarray(rank), *spread[1:])
        np.testing.assert_array_equal(again, found)


def test_more_groups_than_rows():
    x, groups, mask = rows()
    rank = jnp.ones(10**5, int)
    found = group_thresholds(jnp.asarray(x), rank, groups, mask)
    expected = alone(x, np.ones(30, int), groups, mask)
    np.testing.assert_array_equal(found[:30], expected)
    assert np.all(np.isposinf(found[30:]))


def test_tangents_of_groups_are_those_of_each():
    x, groups, mask = rows()
    rank = jnp.arange(G) * 5
    moves = jnp.asarray(np.random.default_rng(1).normal(size=N), jnp.float32)

    def one(x, group):
        own = (groups == group) & mask
        return jaxcp.kth_smallest(x, rank[group], where=own)

    each = lambda x: jax.vmap(partial(one, x))(jnp.arange(G))  # noqa: E731
    ours = lambda x: group_thresholds(x, rank, groups, mask)  # noqa: E731
    pairs = [jax.jvp(f, (jnp.asarray(x),), (moves,))[1] for f in (ours, each)]
    np.testing.assert_allclose(*pairs, rtol=1e-6, atol=1e-7)
    weigh = lambda f: lambda x: jnp.sum(f(x)[1:5] * jnp.arange(4.0))  # noqa: E731
    grads = [jax.grad(weigh(f))(jnp.asarray(x)) for f in (ours, each)]
    np.testing.assert_array_equal(*grads)


@pytest.mark.parametrize("case", ["plain", "weights", "u"])
def test_calibrations_of_groups_are_those_of_each(case):
    x, groups, mask = rows()
    x, groups = np.nan_to_num(abs(x)), np.clip(groups, 0, G - 1)
    weights = np.float32(np.arange(N) % 5 / 4) if case == "weights" else None
    options = {"num_groups": G, "mask": mask, "weights": weights}
    held = jaxcp.calibrate_groups(Absolute(), 0 * x, x, groups, **options).held
    rank, u = held.rank(0.1), jnp.asarray(0.3) if case == "u" else None
    found = held.threshold((rank, jnp.asarray(0.1)) if case == "u" else rank, u=u)
    for group in range(G):
        own = held.of_group(group)
        k = (rank[group], jnp.asarray(0.1)) if case == "u" else rank[group]
        np.testing.assert_array_equal(found[group], own.threshold(k, u=u))


@pytest.mark.parametrize("num_groups", [3, 12, 1000])
def test_sums_of_groups(num_groups):
    draw = np.random.default_rng(0)
    groups = draw.integers(-1, num_groups + 1, N)
    numbers = draw.random(N).astype(np.float32)
    inside = groups == np.arange(num_groups)[:, None]
    sums = sums_of_groups(jnp.asarray(numbers), groups, num_groups)
    np.testing.assert_allclose(sums, inside @ numbers.astype(float), rtol=1e-6)
    counts = sums_of_groups(jnp.ones(N, int), groups, num_groups)
    np.testing.assert_array_equal(counts, inside.sum(axis=1))


@pytest.mark.parametrize("num_groups", [3, 12, 1000, 10_000])
@pytest.mark.parametrize("number", [0.3, 0.55, 0.9])
def test_sums_of_one_large_group_keep_their_digits(number, num_groups):
    """Budgets of losses forgive eight roundings of the largest sum."""
    n = 50_000
    sums = sums_of_groups(jnp.full(n, number), jnp.zeros(n, int), num_groups)
    error = float(sums[0]) - n * float(np.float32(number))
    assert abs(error) <= 4 * np.finfo(np.float32).eps * n
