"""Batches of sets as data: rows, arrays, frames, and bounds."""

import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import same
from jaxcp import metrics, scores
from jaxcp.sets import Balls, BoundingBox, Box, Interval, LabelSet
from rows import X2, X, refuses

INF, NAN = np.inf, np.nan
INTERVALS, BOXES, LABELS, BALLS = jax.tree.map(
    jnp.asarray,
    (
        Interval(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, INF])),
        Box(np.zeros((3, 2)), np.arange(6.0).reshape(3, 2)),
        LabelSet(np.array([[True, False], [False, False], [True, True]])),
        Balls(np.zeros((3, 1, 2)), np.ones(3)),
    ),
)
OUTER = BoundingBox(BOXES.lower, BOXES.upper)


WRONG = [3, -4, [0, 3], "lower", (0, 1), None, True, [True, False], 0.5, [[0], [1]]]


@pytest.mark.parametrize("index", WRONG, ids=repr)
def test_a_wrong_index_is_refused(index):
    with pytest.raises(IndexError):
        _ = INTERVALS[index]


def test_rows_in_programs_are_those_outside():
    same(jax.jit(lambda s: s[1])(BOXES), BOXES[1])
    same(jax.jit(lambda s: s[:2])(BOXES), BOXES[:2])
    same(jax.jit(lambda s, i: s[i])(BOXES, 2), BOXES[2])
    same(jax.vmap(lambda i: INTERVALS[i])(jnp.arange(3)), INTERVALS)
    sizes = jax.jit(lambda s: (len(s), [one.size() for one in s]))(INTERVALS)
    assert sizes == (3, [1, 2, INF])
    widths = jax.vmap(lambda s: jnp.stack([one.size() for one in s]))
    doubled = jax.tree.map(lambda v: jnp.stack([v, v]), BOXES)
    assert len(doubled) == 2 and len(doubled[0]) == 3
    assert_array_equal(widths(doubled), [BOXES.size(), BOXES.size()])
    _, found = jax.lax.scan(lambda c, one: (c, one.size()), 0, BOXES)
    assert_array_equal(found, BOXES.size())
    with pytest.raises(IndexError):
        jax.jit(lambda s: s[7])(BOXES)
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
        jax.jit(lambda s, mask: s[mask])(BOXES, jnp.ones(3, bool))


def test_no_index_compiles():
    sets = LabelSet(jnp.asarray(np.random.default_rng(0).random((37, 5)) < 0.5))
    assert len(list(sets)) == 37
    with jax.no_tracing():
        for index in (1, -3, slice(2, 29, 3), [5, 6, 7], np.arange(37) % 2 == 0):
            assert sets[index].mask.shape[-1] == 5
        assert [one.mask.ndim for one in sets] == [1] * 37


def test_sets_of_numpy_and_of_other_devices_stay_what_they_are():
    own = Interval(np.zeros(3), np.ones(3))
    assert own[0].lower.dtype == own[1:].upper.dtype == np.float64
    assert jax.jit(lambda i: own[i].upper)(1) == 1
    last = jax.devices()[-1]
    far = jax.device_put(INTERVALS, last)
    assert far[0].lower.devices() == far[1:].lower.devices() == {last}
    mesh = jax.make_mesh((2,), ("rows",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    wide = jax.device_put(Interval(jnp.zeros(4), jnp.arange(4.0)), spread)
    assert [one.upper.item() for one in wide] == [0, 1, 2, 3]
    assert_array_equal(wide[1:3].to_numpy(), [[0, 1], [0, 2]])


def test_sets_as_arrays():
    assert_array_equal(INTERVALS.to_numpy(), [[0, 1], [1, 3], [2, INF]])
    assert_array_equal(BOXES.to_numpy()[1], [[0, 2], [0, 3]])
    assert BOXES.to_numpy().shape == (3, 2, 2)
    assert_array_equal(OUTER.to_numpy()[1], [0, 0, 2, 3])
    assert LABELS.to_numpy().dtype == bool
    assert_array_equal(LABELS.to_numpy(), LABELS.mask)
    assert_array_equal(INTERVALS[0].to_numpy(), [0, 1])
    assert Interval(jnp.zeros(0), jnp.zeros(0)).to_numpy().shape == (0, 2)
    for sets in (INTERVALS, BOXES, OUTER, LABELS):
        found = np.asarray(sets)
        assert found.dtype == sets.to_numpy().dtype != object
        assert_array_equal(found, sets.to_numpy())
        found[:] = 0  # an array of its own
        assert np.asarray(sets, float).dtype == float
    assert np.asarray(INTERVALS).dtype == INTERVALS.lower.dtype


ARITHMETIC = {
    "of numpy": lambda: np.zeros(3) <= INTERVALS,
    "of jax": lambda: jnp.zeros(3) <= INTERVALS,
    "of pandas": lambda: pd.Series([0.0, 1.0, 2.0]) >= INTERVALS,
    "an exponential": lambda: np.exp(INTERVALS),
    "a maximum": lambda: np.maximum(INTERVALS, 0.0),
    "a mean": lambda: np.mean(INTERVALS),
    "a stack": lambda: np.stack([INTERVALS, INTERVALS]),
    "ends of two rows": lambda: np.ones(2) < next(iter(INTERVALS[:2])),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_no_arithmetic_takes_sets_for_numbers(name):
    with pytest.raises(TypeError) as error:
        ARITHMETIC[name]()
    assert "sets.transform(jnp.exp)" in str(error.value) or name == "of jax"


def test_what_the_error_says_moves_ends():
    moved = INTERVALS.transform(jnp.exp)
    assert_array_equal(moved.to_numpy(), jnp.exp(INTERVALS.to_numpy()))


def test_what_has_no_numbers_says_so():
    for make in (np.asarray, pd.DataFrame, lambda s: s.to_numpy()):
        with pytest.raises(ValueError, match="sets with ends or labels, got Balls"):
            make(BALLS)
    for make in (np.asarray, lambda s: s.to_pandas()):
        with pytest.raises(jax.errors.TracerArrayConversionError):
            jax.jit(make)(INTERVALS)


def test_sets_as_frames():
    frame = INTERVALS.to_pandas()
    assert list(frame) == ["lower", "upper"] and list(frame.index) == [0, 1, 2]
    assert_array_equal(frame, INTERVALS.to_numpy())
    assert list(INTERVALS.to_pandas(columns=["low", "high"])) == ["low", "high"]
    boxes = BOXES.to_pandas()
    assert list(boxes) == ["lower_0", "upper_0", "lower_1", "upper_1"]
    assert_array_equal(boxes["upper_1"], BOXES.upper[:, 1])
    named = BOXES.to_pandas(columns=["height", "width"])
    assert list(named)[2:] == ["lower_width", "upper_width"]
    assert list(OUTER.to_pandas()) == ["x_min", "y_min", "x_max", "y_max"]
    assert list(LABELS.to_pandas()) == [0, 1]
    labels = LABELS.to_pandas(columns=["cat", "dog"])
    assert labels.dtypes.tolist() == [bool, bool] and labels["cat"].sum() == 2
    data = pd.DataFrame({"price": [1.0, 2.0, 3.0]}, index=["x", "y", "z"])
    for index in (data, data["price"], data.index, list("xyz")):
        found = INTERVALS.to_pandas(index)
        assert list(found.index) == ["x", "y", "z"]
        assert list(data.join(found)) == ["price", "lower", "upper"]
    column = Interval(jnp.zeros((3, 1)), jnp.ones((3, 1)))
    assert column.to_pandas().shape == (3, 2)
    assert Interval(jnp.zeros(0), jnp.zeros(0)).to_pandas().shape == (0, 2)
    short = jax.tree.map(lambda v: v.astype(jnp.bfloat16), INTERVALS)
    assert short.to_pandas().dtypes.tolist() == [float, float]


def test_what_pandas_makes_of_sets_is_right_or_refused():
    assert_array_equal(pd.DataFrame(INTERVALS), INTERVALS.to_numpy())
    assert_array_equal(pd.DataFrame(LABELS, columns=["cat", "dog"]), LABELS.mask)
    for make in (
        lambda: pd.DataFrame(BOXES),
        lambda: pd.Series(INTERVALS),
        lambda: pd.DataFrame({"interval": INTERVALS}),
        lambda: pd.DataFrame(list(INTERVALS)),
    ):
        with pytest.raises((ValueError, TypeError)):
            make()
    kept = pd.DataFrame({"interval": list(INTERVALS)})["interval"]
    assert kept[1].upper == 3


def test_frames_need_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas"):
        INTERVALS.to_pandas()


def test_clipped_sets_lie_within_bounds():
    found = INTERVALS.clip(0.5, 2.5)
    assert_array_equal(found.to_numpy(), [[0.5, 1], [1, 2.5], [2, 2.5]])
    whole = Interval(jnp.full(2, -INF), jnp.full(2, INF))
    assert_array_equal(whole.clip(0, 1).to_numpy(), [[0, 1], [0, 1]])
    assert_array_equal(whole.clip(lower=0).to_numpy(), [[0, INF], [0, INF]])
    assert_array_equal(whole.clip(upper=0).to_numpy(), [[-INF, 0], [-INF, 0]])
    assert_array_equal(whole.clip().to_numpy(), whole.to_numpy())
    boxes = BOXES.clip([0.5, 1.0], upper=[3.0, 3.5])
    assert_array_equal(boxes.upper, [[0, 1], [2, 3], [3, 3.5]])
    assert_array_equal(boxes.is_empty(), [True, False, False])
    frame = OUTER.clip(1, 4)
    assert_array_equal(frame.corners()[2], [1, 1, 4, 4])
    same(INTERVALS[1].clip(2, 9), Interval(jnp.array(2.0), jnp.array(3.0)))
    assert type(frame) is BoundingBox


def test_a_clipped_set_outside_of_the_bounds_is_empty():
    """Crossed, also where it was: not the point at the bound."""
    outside = Interval(jnp.array([5.0, -3.0, 3.0]), jnp.array([6.0, -2.0, 2.0]))
    found = outside.clip(0, 1)
    assert np.all(found.is_empty()) and not np.any(found.contains(jnp.ones(3)))
    assert not np.any(found.contains(jnp.zeros(3)))
    unknown = Interval(jnp.array([NAN, 0.0]), jnp.array([1.0, NAN])).clip(0, 1)
    assert np.isnan(unknown.lower[0]) and np.isnan(unknown.upper[1])


def test_clipping_keeps_targets_within_the_bounds():
    keys = jax.random.split(jax.random.key(0), 3)
    y = jax.random.uniform(keys[0], (500, 2)).at[:9].set(0).at[9:19].set(1)
    lower = y + jax.random.normal(keys[1], (500, 2))
    boxes = Box(lower, lower + 2 * jax.random.uniform(keys[2], (500, 2)))
    assert_array_equal(boxes.clip(0, 1).contains(y), boxes.contains(y))
    intervals = Interval(boxes.lower[:, 0], boxes.upper[:, 0])
    inside = intervals.contains(y[:, 0])
    assert 50 < inside.sum() < 450
    assert_array_equal(intervals.clip(0, 1).contains(y[:, 0]), inside)
    assert np.all(intervals.clip(0, 1).size() <= intervals.size())


def test_bounds_may_be_traced():
    cut = jax.jit(lambda s, low, high: s.clip(low, high))
    same(cut(INTERVALS, 0.5, 2.5), INTERVALS.clip(0.5, 2.5))
    assert np.all(cut(INTERVALS, 2.0, 1.0).is_empty()[:2])  # no bound is refused
    one = jax.vmap(lambda s: s.clip(0.5, jnp.array([1.0, 4.0])))(BOXES)
    same(one, BOXES.clip(0.5, jnp.array([1.0, 4.0])))
    slope = jax.grad(lambda high: INTERVALS.clip(upper=high).size().sum())(2.5)
    assert slope == 2


CLIPS = {
    "bounds that cross": (lambda: INTERVALS.clip(2, 1), "lower <= upper, got 2 and 1"),
    "a NaN": (lambda: INTERVALS.clip(upper=NAN), "upper without NaN, got nan"),
    "bounds of several outputs": (
        lambda: INTERVALS.clip([0.0, 1.0]),
        r"lower of shape \(\), got \(2,\)",
    ),
    "bounds of three": (
        lambda: BOXES.clip(upper=jnp.ones(3)),
        r"upper of shape \(2,\), got \(3,\)",
    ),
    "words": (lambda: INTERVALS.clip("low"), "lower as numbers, got text"),
    "an inner box": (
        lambda: BoundingBox(X2, X2, True).clip(0, 1),
        "outer boxes to clip, got inner ones",
    ),
    "a frame of several levels": (
        lambda: Interval(X2, X2).to_pandas(),
        r"Interval of shape \(9,\), got \(9, 2\)",
    ),
    "a frame of balls": (lambda: BALLS.to_pandas(), "with ends or labels"),
}
test_wrong_calls_say_what_was_expected = refuses(CLIPS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BOXES.to_pandas(columns=["a", "b", "c"]),
        lambda: LABELS.to_pandas(columns=["cat"]),
        lambda: INTERVALS.to_pandas(index=[1, 2]),
        lambda: INTERVALS.to_pandas(index="abc"),
        lambda: INTERVALS.to_pandas(index=3),
    ],
)
def test_names_and_indices_of_other_lengths_are_refused_by_pandas(make):
    with pytest.raises((ValueError, TypeError)):
        make()


def test_sets_of_a_predictor_are_data():
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), X)
    sets = cp(pd.Series([1.0, 2.0, 3.0]), 0.2)
    assert_allclose(sets.to_pandas()["upper"], [9, 10, 11])
    assert metrics.coverage(sets[1:], [0.0, 99.0]) == 0.5
    preds = jax.jit(lambda cp, p: cp(p, 0.2))(cp, jnp.zeros(4))
    assert len(preds) == 4 and preds[0].upper == 8


def test_own_sets_need_no_length():
    @jaxcp.pytree
    class Half:
        end: jax.Array
        to_numpy: ClassVar = None  # a name that arrays have too

        def contains(self, y):
            return y <= self.end

    sets = Half(jnp.arange(3.0))
    assert metrics.coverage(sets, jnp.ones(3)) == metrics.coverage(
        Interval(sets.end - 9, sets.end), jnp.ones(3)
    )
    with pytest.raises(TypeError):
        len(sets)
