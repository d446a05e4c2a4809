"""Tables of groups, losses with their errors, and metrics of bounds from one side."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, risk, scores
from jaxcp.sets import Box, Interval, LabelMask, LabelSet

M, INF = 60, np.inf
RNG = np.random.default_rng(0)
LOWER, WIDTH, Y = RNG.uniform(size=(3, M)).astype("float32")
ENDS = Y + LOWER - 0.75, Y + LOWER + WIDTH
SETS = Interval(*ENDS)
SITE = np.array(["zoo", "farm", "sea"])[RNG.integers(0, 3, M)]


def cost(one, y):
    return jnp.clip(jnp.maximum(one.lower - y, y - one.upper), 0, 1)


def wilson(rate, n):
    """The roots p of n (rate - p)^2 = 4 p (1 - p)."""
    return np.sort(np.roots([n + 4, -2 * n * rate - 4, n * rate**2]).real)


def rows_of_groups(lower, upper, y, inside):
    """The table by a loop over flags of groups, shape (m, g)."""
    table = {}
    for flags in inside.T:
        a, b, t = lower[flags], upper[flags], y[flags]
        n, hit, size = len(t), (a <= t) & (t <= b), np.maximum(b - a, 0)
        rate, known = hit.mean(), np.isfinite(size)
        outside = np.clip(np.maximum(a - t, t - b), 0, 1)
        row = {
            "n": n,
            "coverage": rate,
            "coverage_error": np.sqrt(rate * (1 - rate) / n),
            "low": wilson(rate, n)[0],
            "high": wilson(rate, n)[1],
            "mean_size": size.mean(),
            "mean_finite_size": size[known].mean(),
            "infinite_rate": 1 - known.mean(),
            "missed_below": np.mean(t < a),
            "missed_above": np.mean(t > b),
            "mean_loss": outside.mean(),
            "mean_loss_error": outside.std(ddof=1) / np.sqrt(n),
        }
        for name, value in row.items():
            table.setdefault(name, []).append(value)
    return table


def test_a_table_of_groups_is_a_loop_over_them():
    names = np.unique(SITE)
    upper = np.where(np.arange(M) % 7 == 0, INF, ENDS[1])
    sets = Interval(ENDS[0], upper)
    inside = SITE[:, None] == names
    expected = rows_of_groups(ENDS[0], upper, Y, inside)
    found = metrics.by_group(sets, Y, SITE, loss=cost)
    assert found.names == tuple(names) == ("farm", "sea", "zoo")
    assert list(found.keys()) == list(expected)
    for name, value in expected.items():
        assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    flags = pd.DataFrame({"all": True, "sea": SITE == "sea"}, index=range(M))
    expected = rows_of_groups(ENDS[0], upper, Y, flags.to_numpy())
    found = metrics.by_group(sets, Y, flags, loss=cost)
    assert found.names == ("all", "sea")
    for name, value in expected.items():
        assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    told = metrics.summary(sets, Y, 0.1, flags)
    assert told["group_coverage[sea]"] == pytest.approx(found["coverage"][1])


def test_a_table_of_groups_is_data():
    found = metrics.by_group(SETS, Y, SITE)
    frame = found.to_pandas()
    assert list(frame.index) == list(found.names) and frame.index.name == "group"
    assert_array_equal(frame["coverage"], metrics.group_coverage(SETS, Y, SITE))
    listed = json.loads(json.dumps(found.columns.tolist()))
    assert listed["n"] == frame["n"].tolist() and list(dict(found)) == list(frame)
    head, *lines = str(found).splitlines()
    assert head.split() == ["group", *found.keys()]
    assert [line.split()[0] for line in lines] == ["farm", "sea", "zoo"]
    assert len({len(line) for line in (head, *lines)}) == 1
    moved = jax.jit(lambda y: metrics.by_group(SETS, y, SITE))(Y)
    assert moved.names == found.names and [*moved.keys()] == [*found.keys()]
    shifts = jnp.array([0.0, 0.1])
    many = jax.vmap(lambda v: metrics.by_group(SETS, Y + v, SITE))(shifts)
    assert many["coverage"].shape == (2, 3) and "'coverage': [[" in str(many)
    assert_allclose(many["coverage"][0], found["coverage"], rtol=1e-6)


def test_groups_without_rows_and_with_one():
    found = metrics.by_group(SETS[:3], Y[:3], [0, 0, 2], num_groups=4, loss=cost)
    assert found.names == (0, 1, 2, 3) and found["n"].tolist() == [2, 0, 1, 0]
    assert metrics.by_group(SETS, Y, Y > -1).names == (False, True)
    for name in set(found.keys()) - {"n"}:
        assert np.isnan(np.asarray(found[name])[[1, 3]]).all(), name
    assert np.isnan(found["mean_loss_error"][2]) and not np.isnan(found["mean_loss"][2])
    nothing = metrics.by_group(SETS[:0], Y[:0], np.zeros(0, int))
    assert nothing["n"].tolist() == [0] and np.isnan(nothing["coverage"]).all()
    with pytest.raises(ValueError, match="groups with 60 rows like y, got 59"):
        metrics.by_group(SETS, Y, SITE[1:])
    with pytest.raises(ValueError, match="expected num_groups with traced groups"):
        jax.jit(lambda g: metrics.by_group(SETS, Y, g))(jnp.zeros(M, int))


@pytest.mark.parametrize("flags", [False, True])
def test_errors_of_losses_are_those_of_the_group_alone(flags):
    """Whatever losses other groups have; also gradients, beside an empty group."""
    codes = np.arange(M) % 3
    groups = codes[:, None] == np.arange(4) if flags else codes
    scale = np.array([1.0, 1e6, INF], "float32")[codes]
    own = Y[codes == 0]

    def table(t, y):
        loss = lambda one, v: t * v  # noqa: E731
        return metrics.by_group(SETS, y, groups, num_groups=4, loss=loss)

    error = table(1.0, Y * scale)["mean_loss_error"]
    expected = own.std(ddof=1) / np.sqrt(len(own))
    assert_allclose(error[0], expected, rtol=1e-5)
    assert table(1.0, np.where(codes == 1, 1e6, Y))["mean_loss_error"][1] == 0
    slope = jax.grad(lambda t, y: table(t, y)["mean_loss_error"][0])
    assert_allclose(slope(1.0, Y), expected, rtol=1e-5)
    assert slope(1.0, np.ones(M, "float32")) == 0  # at equal losses


def test_crossed_ends_and_unknown_ones():
    """An empty set is missed once, and a NaN makes the row of its group unknown."""
    lower = np.array([1.0, 0.0, np.nan], "float32")
    found = metrics.by_group(Interval(lower, 0 * lower), np.full(3, 0.5), [0, 0, 1])
    assert found["missed_below"][0] + found["missed_above"][0] == 1
    assert np.isnan(found["coverage"][1]) and np.isnan(found["missed_above"][1])


def test_tables_of_other_sets():
    labels = LabelSet(jnp.eye(3, dtype=bool), classes=["ant", "bee", "cat"])
    y = ["ant", "bee", "ant"]
    found = metrics.by_group(labels, y, y)
    names = ["n", "coverage", "coverage_error", "low", "high", "mean_size", "missed"]
    assert [*found.keys()] == names
    assert found["missed"].tolist() == [0.5, 0]
    one = Box(jnp.zeros((3, 1)), jnp.ones((3, 1)))
    for y in (np.array([0.5, 2.0, 1.0]), np.array([[0.5], [2.0], [1.0]])):
        score = metrics.winkler_score(Interval(jnp.zeros(3), jnp.ones(3)), y, 0.1)
        assert metrics.summary(one, y, 0.1)["winkler_score"] == pytest.approx(score)
    boxes = Box(jnp.zeros((3, 2)), jnp.ones((3, 2)))
    found = metrics.by_group(boxes, jnp.ones((3, 2)), [0, 1, 1])
    assert [*found.keys()][-2:] == ["infinite_rate", "missed"]


def test_names_that_print_alike_stay_apart():
    found = metrics.summary(SETS[:2], Y[:2], 0.1, [0, 1], group_names=[0, 1])
    assert "group_coverage[1]" in found
    names = ["1", 1]
    found = metrics.summary(SETS[:2], Y[:2], 0.1, names, group_names=names)
    assert {"group_coverage['1']", "group_coverage[1]"} <= set(found)
    many = metrics.summary(SETS, Y, 0.1, np.arange(M))
    assert "... (40 more)" in str(many) and len(many) > M


def test_the_mean_of_a_loss_with_its_error():
    mask = RNG.uniform(size=(M, 5)) < 0.6
    y = RNG.uniform(size=(M, 5)) < 0.5
    lost = (y & ~mask).sum(1) / np.maximum(y.sum(1), 1)
    found = metrics.mean_loss(risk.false_negative_rate, LabelMask(mask), y)
    mean, error = found
    assert_allclose(mean, lost.mean(), rtol=1e-5)
    assert_allclose(error, lost.std(ddof=1) / np.sqrt(M), rtol=1e-5)
    assert found.mean is mean and "MeanLoss(mean=" in str(found)
    told = metrics.summary(LabelMask(mask), y, 0.1, loss=risk.false_negative_rate)
    assert told["mean_loss"] == pytest.approx(float(mean), rel=1e-6)
    assert told["mean_loss_error"] == pytest.approx(float(error), rel=1e-6)
    assert told["coverage"] == pytest.approx((lost == 0).mean())
    assert {type(v) for v in told.values()} == {float}


def test_losses_of_labels_by_name_and_refusals():
    labels = LabelSet(jnp.eye(3, dtype=bool), classes=["ant", "bee", "cat"])
    found = metrics.mean_loss(risk.miscoverage, labels, ["ant", "bee", "bee"])
    assert_allclose(found.mean, 1 / 3, rtol=1e-6)
    assert np.isnan(metrics.mean_loss(cost, SETS[:0], Y[:0]).mean)
    assert np.isnan(metrics.mean_loss(cost, SETS[:1], Y[:1]).error)
    for call, words in (
        (lambda: metrics.mean_loss("fnr", SETS, Y), "risk.false_negative_rate, as a f"),
        (lambda: metrics.mean_loss(cost, SETS, Y[1:]), "y with 60 rows like sets"),
        (lambda: metrics.mean_loss(lambda s: 0.0, SETS, Y), r"expected loss\(set, y\)"),
        (lambda: metrics.mean_loss(lambda s, y: None, SETS, Y), "loss.* of shape"),
        (lambda: metrics.summary(SETS, Y, 0.1, loss="fnr"), "as a function, got 'fnr'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_bounds_from_one_side():
    free = np.full(M, INF, "float32")
    above, below = Interval(-free, ENDS[1]), Interval(ENDS[0], free)
    gap = {"upper": Y - ENDS[1], "lower": ENDS[0] - Y}
    for side, sets, end in (("upper", above, ENDS[1]), ("lower", below, ENDS[0])):
        found = metrics.summary(sets, Y, 0.1)
        assert "winkler_score" not in found and found["mean_size"] == INF
        assert_allclose(found["mean_bound"], end.mean(), rtol=1e-6)
        loss = np.maximum(0.9 * gap[side], -0.1 * gap[side]).mean()
        assert_allclose(found["pinball"], loss, rtol=1e-5)
        level = 0.9 if side == "upper" else 0.1
        assert_allclose(loss, metrics.pinball_score(end, Y, level), rtol=1e-5)
        traced = jax.jit(lambda s, side=side: metrics.summary(s, Y, 0.1, side=side))
        assert list(traced(sets)) == list(found)
    both = metrics.summary(Interval(-free, free), Y, 0.1)
    assert both["winkler_score"] == INF  # nothing says which side is meant
    some = Interval(-free, np.where(np.arange(M) == 3, INF, ENDS[1]))
    assert metrics.summary(some, Y, 0.1)["mean_bound"] == INF
    assert "winkler_score" in metrics.summary(SETS, Y, 0.1)
    for sets in (SETS, Interval(-free, free), SETS[:0]):
        with pytest.raises(ValueError, match="to be bounded on one alone"):
            metrics.mean_bound(sets)
    with pytest.raises(ValueError, match="side as one of"):
        metrics.summary(SETS, Y, 0.1, side="left")
    with pytest.raises(ValueError, match="sets of kind Interval, got LabelSet"):
        labels = LabelSet(jnp.eye(3, dtype=bool))
        metrics.summary(labels, jnp.arange(3), 0.1, side="upper")


def test_the_first_call_of_a_newcomer():
    """The idiom of README, with groups and with bounds of a score from one side."""
    y = RNG.normal(size=300)
    site = (np.arange(300) % 2).astype(str)
    for score in (scores.Absolute(), scores.Residual(side="lower")):
        sets = jaxcp.calibrate(score, np.zeros(200), y[:200])(np.zeros(100), alpha=0.1)
        found = metrics.summary(sets, y[200:], alpha=0.1, groups=site[200:])
        column = pd.Series(found).round(3)
        rates = metrics.group_coverage(sets, y[200:], site[200:])
        assert column["group_coverage[1]"] == pytest.approx(float(rates[1]), abs=1e-3)
