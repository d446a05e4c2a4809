"""Rows in clusters: each cluster counts the same, and errors are those of clusters."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, plotting, risk, scores
from jaxcp.sets import Interval, LabelSet
from rows import refuses

M, INF = 80, np.inf
RNG = np.random.default_rng(0)
LOWER, WIDTH, Y = RNG.uniform(size=(3, M)).astype("float32")
ENDS = Y + LOWER - 0.75, np.where(np.arange(M) % 7 == 0, INF, Y + LOWER + WIDTH)
SETS = Interval(*ENDS)
SITE = np.array(["zoo", "farm", "sea"])[RNG.integers(0, 3, M)]
PATIENT = RNG.integers(0, 12, M)
SHORTFALL = risk.shortfall(1.0)


def table_of_a_loop(flags, patients):
    """Columns for one group of rows, from the means of its patients."""
    a, b, t = (v[flags] for v in (*ENDS, Y))
    size, ids = b - a, patients[flags]
    outside = np.clip(np.maximum(a - t, t - b), 0, 1)
    rows = {
        "coverage": (a <= t) & (t <= b),
        "mean_size": size,
        "infinite_rate": size == INF,
        "missed_below": t < a,
        "missed_above": t > b,
        "mean_loss": outside,
    }
    means = {k: [v[ids == i].mean() for i in set(ids)] for k, v in rows.items()}
    known = size < INF
    finite = [size[known & (ids == i)].mean() for i in set(ids[known])]
    table = {k: np.mean(v) for k, v in means.items()} | {"n": len(t)}
    table |= {"clusters": len(set(ids)), "mean_finite_size": np.mean(finite)}
    for name, error in (("coverage",) * 2, ("mean_loss",) * 2):
        spread = np.std(means[name], ddof=1)
        table[f"{error}_error"] = spread / np.sqrt(len(set(ids)))
    return table


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ids", [PATIENT, PATIENT.astype(str), PATIENT * 10**12])
def test_a_table_is_a_loop_over_clusters(ids, overlap):
    names = ("farm", "sea", "zoo")
    flags = SITE[:, None] == names
    flags = flags | (np.arange(M) % 5 == 0)[:, None] if overlap else flags
    groups = flags if overlap else SITE
    found = metrics.by_group(SETS, Y, groups, loss=SHORTFALL, clusters=ids)
    for place, inside in enumerate(flags.T):
        expected = table_of_a_loop(inside, PATIENT)
        assert {*expected, "low", "high"} == {*found.keys()}
        for name, value in expected.items():
            assert_allclose(found[name][place], value, rtol=1e-5, err_msg=name)
        assert found["low"][place] < found["coverage"][place] < found["high"][place]
    everyone = table_of_a_loop(np.ones(M, bool), PATIENT)
    assert_allclose(metrics.coverage(SETS, Y, clusters=ids), everyone["coverage"])
    finite = Interval(ENDS[0], ENDS[0] + WIDTH)
    means = [WIDTH[i == PATIENT].mean() for i in set(PATIENT)]
    assert_allclose(metrics.mean_size(finite, clusters=ids), np.mean(means), rtol=1e-6)
    options = {"loss": SHORTFALL, "clusters": ids}
    told = metrics.summary(SETS, Y, 0.1, groups, **options)
    for name in ("coverage", "coverage_error", "mean_loss", "mean_loss_error"):
        assert told[name] == pytest.approx(everyone[name], rel=1e-5)
    rates = np.asarray(found["coverage"])
    if not overlap:
        assert told["group_coverage[sea]"] == pytest.approx(rates[1], rel=1e-6)
    assert told["coverage_gap"] == pytest.approx(abs(rates - 0.9).mean(), rel=1e-5)


def test_clusters_of_one_row_are_rows():
    """But for sqrt(n / (n - 1)) in the error, as the mean is estimated."""
    rows = metrics.by_group(SETS, Y, SITE, loss=SHORTFALL)
    found = metrics.by_group(SETS, Y, SITE, loss=SHORTFALL, clusters=np.arange(M))
    n = np.asarray(rows["n"])
    assert_array_equal(found["clusters"], n)
    for name in {*rows.keys()} - {"low", "high", "coverage_error"}:
        assert_allclose(found[name], rows[name], rtol=1e-5, atol=1e-7, err_msg=name)
    error = rows["coverage_error"] * np.sqrt(n / (n - 1))
    assert_allclose(found["coverage_error"], error, rtol=1e-5)
    assert_allclose(found["low"], rows["low"], atol=0.02)
    coverage = metrics.coverage(SETS, Y, clusters=np.arange(M))
    assert_allclose(coverage, metrics.coverage(SETS, Y), rtol=1e-6)


def test_stated_errors_are_the_spread_over_data_sets():
    """Of 30 clusters, half of one row and half of 16, which are covered more."""
    num_clusters, most, num_sets = 30, 16, 2000
    ids = jnp.repeat(jnp.arange(num_clusters), most)
    m = len(ids)

    def table(key, clusters):
        key_size, key_cluster, key_row = jax.random.split(key, 3)
        often = jax.random.bernoulli(key_size, 0.5, (num_clusters,))
        scale = jnp.where(often, 1.0, 2.0)
        shared = scale * jax.random.normal(key_cluster, (num_clusters,))
        y = shared[ids] + 0.5 * jax.random.normal(key_row, (m,))
        seen = often[ids] | (jnp.arange(m) % most == 0)
        groups, sets = (
            jnp.where(seen, 0, 1),
            Interval(jnp.full(m, -2.0), jnp.full(m, 2.0)),
        )
        options = {"num_groups": 2, "clusters": clusters}
        found = metrics.by_group(sets, y, groups, **options).columns
        return {k: v[0] for k, v in found.items()}

    keys = jax.random.split(jax.random.key(0), num_sets)
    found = jax.jit(jax.vmap(lambda key: table(key, ids)))(keys)
    spread = np.std(found["coverage"])
    # y of a row of a new cluster is normal, with variance 1 + 1/4 or 4 + 1/4.
    ends = 2 / jnp.sqrt(jnp.array([1.25, 4.25]))
    true = np.mean(1 - 2 * jax.scipy.stats.norm.sf(ends))
    assert abs(np.mean(found["coverage"]) - true) < 4 * spread / num_sets**0.5
    squares = np.asarray(found["coverage_error"], float) ** 2
    noise = np.std(squares) / num_sets**0.5 + spread**2 * (2 / num_sets) ** 0.5
    assert abs(squares.mean() - spread**2) < 4 * noise
    inside = (found["low"] <= true) & (true <= found["high"])
    assert 0.93 < np.mean(inside) < 0.98
    rows = jax.jit(jax.vmap(lambda key: table(key, None)))(keys[:200])
    assert np.mean(rows["coverage_error"]) < 0.4 * spread
    assert np.mean(rows["coverage"]) > true + 0.05  # those with many rows count more


def test_few_clusters_and_none():
    """Up to three say nothing of an interval, and one has no error."""
    group = np.array([0, 0, 0, 2, 2, 2, 2])
    ids = np.array(["a", "a", "a", "b", "b", "c", "d"])
    sets = Interval(np.zeros(7), np.ones(7))
    found = metrics.by_group(sets, np.full(7, 0.5), group, clusters=ids)
    assert found["clusters"].tolist() == [1, 0, 3]
    assert np.isnan(found["coverage_error"][0]) and found["coverage_error"][2] == 0
    assert_allclose(found["low"], [0, np.nan, 0], atol=1e-6)
    assert_allclose(found["high"], [1, np.nan, 1], atol=1e-6)
    alike = metrics.by_group(sets, np.full(7, 0.5), 0 * group, clusters=np.arange(7))
    n = 7 * 4 / 6  # where all are covered, Wilson's low end is n / (n + 4)
    assert_allclose(alike["low"][0], n / (n + 4), rtol=1e-6)
    y = np.where(group == 0, 0.5, 2.0)
    one = metrics.by_group(sets, y, group, clusters=np.full(7, 5))
    assert_array_equal(one["coverage"], [1, np.nan, 0])
    assert one["clusters"].tolist() == [1, 0, 1]
    for none in (np.zeros(0), np.zeros(0, int)):
        nothing = metrics.coverage(sets[:0], np.zeros(0), clusters=none)
        assert np.isnan(nothing)


def test_means_of_many_equal_numbers_keep_their_digits():
    m = 10**6
    width = np.full(m, 0.1, "float32")
    sets = Interval(0 * width, width)
    for num_clusters in (1, m // 3):
        found = metrics.mean_size(sets, clusters=np.arange(m) % num_clusters)
        assert_allclose(found, 0.1, rtol=1e-5)


def test_sets_of_labels_in_clusters():
    sets = LabelSet(jnp.eye(3, dtype=bool)[jnp.array([0, 1, 2, 0])], ["a", "b", "c"])
    y, ids = ["a", "b", "a", "b"], ["x", "x", "x", "y"]
    assert metrics.coverage(sets, y, clusters=ids) == pytest.approx(1 / 3)
    found = metrics.by_group(sets, y, ["one"] * 4, clusters=ids)
    assert found["missed"][0] == pytest.approx(2 / 3)
    assert metrics.summary(sets, y, 0.1, clusters=ids)["mean_size"] == 1


def test_pictures_and_pages_have_the_errors_of_clusters():
    found = metrics.by_group(SETS, Y, SITE, clusters=PATIENT)
    ax = plotting.plot_group_coverage(SETS, Y, SITE, 0.1, clusters=PATIENT)
    drawn = [v for part in ax.collections for v in part.get_segments()]
    ends = np.sort([segment[:, 0] for segment in drawn], axis=0)
    expected = np.sort(np.stack([found["low"], found["high"]], axis=1), axis=0)
    assert_allclose(ends, expected, atol=1e-6)
    plt.close(ax.figure)
    cp = jaxcp.calibrate(scores.Absolute(), 0 * Y, Y, clusters=PATIENT)
    page = jaxcp.report(cp, 0 * Y, Y, 0.2, groups=SITE, clusters=PATIENT)
    sets = cp(0 * Y, 0.2)
    for row in metrics.by_group(sets, Y, SITE, clusters=PATIENT).rows()[1:]:
        assert "".join(f"<td>{cell}</td>" for cell in row[1:]) in page
    assert "over clusters of new rows" in page


CALLS = {
    "lengths": (
        lambda: metrics.coverage(SETS, Y, clusters=PATIENT[1:]),
        "clusters with 80 rows like y, got 79",
    ),
    "lengths of sizes": (
        lambda: metrics.mean_size(SETS, clusters=PATIENT[1:]),
        "clusters with 80 rows like sets, got 79",
    ),
    "missing": (
        lambda: metrics.by_group(SETS, Y, SITE, clusters=np.where(Y > 0.5, Y, np.nan)),
        "clusters without missing ones",
    ),
    "axes": (
        lambda: metrics.summary(SETS, Y, 0.1, clusters=np.ones((M, 2), int)),
        r"clusters of shape \(n,\), got \(80, 2\)",
    ),
}
test_wrong_calls_are_refused_in_words = refuses(CALLS)
