import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp.cross._votes import VoteSet
from jaxcp.scores import Absolute
from jaxcp.sets import (
    Ball,
    Balls,
    BoundingBox,
    Box,
    Ellipsoid,
    Interval,
    Intervals,
    Kept,
    LabelMask,
    LabelSet,
    LevelSet,
)
from jaxcp.typing import Set

INF = np.inf


@pytest.mark.parametrize(
    "lower, upper, size",
    [
        (0.0, 2.0, 2.0),
        (2.0, 0.0, 0.0),  # crossed: empty
        (1.0, 1.0, 0.0),
        (-INF, INF, INF),
        (0.0, INF, INF),
        (INF, INF, 0.0),
        (INF, -INF, 0.0),
        (-INF, -INF, 0.0),
    ],
)
def test_interval_size(lower, upper, size):
    interval = Interval(jnp.array(lower), jnp.array(upper))
    assert interval.size() == size
    slope = jax.grad(lambda s: s.size())(interval)
    assert np.all(np.isfinite(jax.tree.leaves(slope)))


def test_interval_is_closed():
    interval = Interval(jnp.array(0.0), jnp.array(1.0))
    for y, inside in [
        (0.0, True),
        (1.0, True),
        (0.5, True),
        (1.1, False),
        (-0.1, False),
    ]:
        assert interval.contains(y) == inside
    assert not Interval(1.0, 0.0).contains(0.5)
    assert np.isnan(Interval(jnp.nan, jnp.array(1.0)).size())


def test_box():
    box = Box(jnp.array([0.0, -1.0]), jnp.array([2.0, 2.0]))
    assert box.size() == 6
    assert box.contains(jnp.array([2.0, -1.0]))
    assert not box.contains(jnp.array([2.0, -1.1]))
    flat = Box(jnp.array([0.0, -INF]), jnp.array([0.0, INF]))
    crossed = Box(jnp.array([1.0, 0.0]), jnp.array([0.0, INF]))
    assert flat.size() == crossed.size() == 0
    assert Box(jnp.array([0.0, -INF]), jnp.ones(2)).size() == INF
    assert np.all(np.isfinite(jax.grad(lambda s: s.size())(crossed).lower))


def test_label_set_knows_no_labels_out_of_range():
    labels = LabelSet(jnp.array([True, False, True]))
    assert labels.size() == 2
    inside = [bool(labels.contains(y)) for y in [-3, -1, 0, 1, 2, 3, 99]]
    assert inside == [False, False, True, False, True, False, False]


@pytest.mark.parametrize("k", [None, 2])
def test_what_is_no_whole_number_is_no_label(k):
    """In one set and in a batch: refused where it is known, else not a member."""
    labels = LabelSet(jnp.ones((3,) if k is None else (k, 3), bool))
    y = np.array([0.5, 2.9, -0.5, -0.9, jnp.nan, jnp.inf, 0.0, 1.0, 2.0, 3.0], "f")
    whole = y == np.floor(y)
    for value in y[~whole]:
        with pytest.raises(ValueError, match=f"y as whole numbers, got {value}"):
            labels.contains(value)
    traced = jax.jit(jax.vmap(labels.contains))(y)
    known = np.stack([labels.contains(v) for v in y[whole]])
    assert not np.any(traced[~whole])
    assert_array_equal(traced[whole], known)


def test_level_set_has_members_but_no_size():
    level_set = LevelSet(Absolute(), jnp.array(1.0), jnp.array(0.5))
    assert level_set.contains(1.5)
    assert not level_set.contains(1.6)
    with pytest.raises(ValueError, match="closed-form size, got LevelSet"):
        level_set.size()
    with pytest.raises(
        ValueError, match=r"on the line the interval\(start\) of a LevelSet has ends"
    ):
        level_set.to_numpy()


def test_sets_are_pytrees_and_batch_under_vmap():
    for batch in [
        Interval(jnp.zeros(3), jnp.arange(3.0)),
        Box(jnp.zeros((3, 2)), jnp.ones((3, 2))),
        LabelSet(jnp.eye(3, dtype=bool)),
    ]:
        assert isinstance(batch, Set)
        leaves, structure = jax.tree.flatten(batch)
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(batch)
        sizes = jax.jit(jax.vmap(lambda s: s.size()))(batch)
        rows = [jax.tree.map(lambda v, i=i: v[i], batch) for i in range(3)]
        assert_array_equal(sizes, [row.size() for row in rows])


@functools.cache
def batches():
    """A set of each kind as (sets with leading axis m, targets of each)."""
    m, d, k = 5, 2, 3
    rng = np.random.default_rng(7)
    mu, half, y, z = rng.normal(size=(4, m, d)).astype("f")
    half, radius = abs(half) + np.float32(0.1), 0.5 + abs(z[:, 0])
    mask = rng.random((m, k)) < 0.7
    pixels = np.zeros((m, 2, k), bool)
    pixels[:, 1, 0] = True
    scale = np.tril(np.ones((d, d), "f")) * half[:, None]
    low, high = np.array([[[-2, 0.5]], [[-1, 2]]], "f")
    ones, first = np.ones((m, 1, 1), "f"), np.zeros((m, 1), "i4")
    balls = Ellipsoid(mu[:, None, None], np.ones((m, 1, 1, d), "f"), ones)
    levels = jax.vmap(lambda pred: LevelSet(Absolute(), pred, jnp.full(d, 0.8)))
    found = {
        "intervals": (Interval(mu[:, 0] - 1, mu[:, 0] + half[:, 0]), y[:, 0]),
        "boxes": (Box(mu - half, mu + half), y / 2),
        "bounding boxes": (
            BoundingBox(mu - 2, mu + 2),
            np.concatenate([mu - y / 2, mu + half], axis=1),
        ),
        "inner boxes": (
            BoundingBox(mu - np.float32(0.1), mu + np.float32(0.1), True),
            np.concatenate([mu - half, mu + half], axis=1),
        ),
        "labels": (LabelSet(mask), np.arange(m) % k),
        "masks": (LabelMask(mask), np.eye(m, k, dtype=bool)),
        "pixels": (LabelMask(np.stack([mask, ~mask], axis=1), ndim=2), pixels),
        "claims": (
            Kept(mask, np.full(m, 0.5, "f")),
            np.arange(m * k).reshape(m, k) % 2,
        ),
        "labels out of range": (LabelSet(mask), np.arange(m) - 1),
        "balls": (Balls(np.stack([mu, z], axis=1), abs(z[:, 0])), y),
        "ball": (Ball(mu, radius), y),
        "diamonds": (Ball(mu, radius, 1), y),
        "cubes": (Ball(mu, radius, INF), y),
        "unions": (Intervals(mu + low, mu + high), y[:, 0]),
        "axes": (Ellipsoid(mu, half, radius), y),
        "ellipsoids": (Ellipsoid(mu, scale, radius), y),
        "levels": (levels(mu), y / 2),
        "votes": (VoteSet(balls, first + 1, first), y),
    }
    return jax.tree.map(jnp.asarray, found)


@pytest.mark.parametrize("name", batches())
def test_a_batch_answers_for_each_of_its_sets(name):
    """Membership, size and emptiness of a batch are those of its sets, one by one."""
    sets, y = batches()[name]
    rows = [jax.tree.map(lambda v: v[i], (sets, y)) for i in range(len(y))]  # noqa: B023
    inside = np.array([one.contains(target) for one, target in rows])
    assert inside.shape == (5,) and (name == "votes" or 0 < inside.sum() < 6)
    assert_array_equal(sets.contains(y), inside)
    assert_array_equal(jax.vmap(lambda s, v: s.contains(v))(sets, y), inside)
    twice = jax.tree.map(lambda v: jnp.stack([v, v]), (sets, y))
    assert_array_equal(twice[0].contains(twice[1]), [inside, inside])
    for answer in ("size", "is_empty", "log_size"):
        try:
            each = [getattr(one, answer)() for one, _ in rows]
        except (ValueError, AttributeError):
            continue  # of a set that is known by membership alone
        assert_allclose(getattr(sets, answer)(), np.array(each), rtol=1e-6)
        doubled = getattr(twice[0], answer)()
        assert_allclose(doubled, np.array([each, each]), rtol=1e-6)


def test_one_target_for_many_sets_and_one_set_for_many_targets():
    lower, upper = jnp.zeros(3), jnp.array([1.0, 2.0, 3.0])
    intervals, y = Interval(lower, upper), jnp.array([0.5, 2.5, 2.5])
    assert_array_equal(intervals.contains(1.5), [False, True, True])
    assert_array_equal(intervals.contains(y[:, None]), [True, False, True])
    assert_array_equal(Interval(0.0, 1.0).contains(y), [True, False, False])
    assert_array_equal(
        intervals.contains(np.array([0.5, 2.5, 2.5])), intervals.contains(y)
    )
    labels = LabelSet(jnp.array([[True, False], [True, True]]))
    assert_array_equal(labels.contains(1), [False, True])
    assert_array_equal(
        LabelSet(labels.mask[0]).contains(jnp.arange(3)), [True, False, False]
    )
    with pytest.raises(ValueError, match=r"targets of shape \(2,\), got \(3,\)"):
        Box(jnp.zeros((4, 2)), jnp.ones((4, 2))).contains(jnp.ones(3))


def test_label_sets_of_numpy_and_labels_in_a_column():
    mask = np.array([[True, False], [False, True], [True, True]])
    assert LabelSet(mask[0]).contains(0)
    found = LabelSet(jnp.asarray(mask)).contains(np.array([[0], [0], [1]]))
    assert found.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "sets, y",
    [
        (Interval(jnp.zeros(4), jnp.ones(4)), jnp.ones(3)),
        (Interval(jnp.zeros(4), jnp.ones(4)), jnp.ones((3, 1))),
        (Box(jnp.zeros((4, 2)), jnp.ones((4, 2))), jnp.ones((3, 2))),
        (BoundingBox(jnp.zeros((4, 2)), jnp.ones((4, 2))), jnp.ones((3, 4))),
        (LabelSet(jnp.ones((4, 2), bool)), jnp.ones(3, int)),
        (LabelMask(jnp.ones((4, 2), bool)), jnp.ones((3, 2), bool)),
        (Kept(jnp.ones((4, 2), bool), jnp.ones(4)), jnp.ones((3, 2), bool)),
    ],
)
def test_targets_of_other_rows_are_refused(sets, y):
    with pytest.raises((TypeError, ValueError), match="broadcast"):
        sets.contains(y)


def test_an_unknown_radius_has_no_size():
    ellipsoid = Ellipsoid(jnp.zeros(2), jnp.ones(2), jnp.array(jnp.nan))
    assert np.isnan(ellipsoid.size())
    assert np.isnan(Box(jnp.array([jnp.nan, 0.0]), jnp.zeros(2)).log_size())


@pytest.mark.parametrize(
    "name", ["intervals", "boxes", "bounding boxes", "inner boxes"]
)
def test_ends_say_what_is_inside(name):
    sets, y = batches()[name]
    lower, upper = sets.ends()
    assert lower.shape[1:] == upper.shape[1:] == sets.target_shape() == y.shape[1:]
    inside = ((lower <= y) & (y <= upper)).reshape(5, -1).all(axis=1)
    assert_array_equal(sets.contains(y), inside)
    again = sets.with_ends(lower, upper)
    assert_array_equal(jax.tree.leaves(again), jax.tree.leaves(sets))
    assert type(again) is type(sets)


@pytest.mark.parametrize("name", ["balls", "axes", "ellipsoids", "ball", "diamonds"])
def test_bounds_hold_the_set(name):
    sets, _ = batches()[name]
    corners = np.asarray(sets.bounds())
    for i in range(5):
        one = jax.tree.map(lambda v: v[i], sets)  # noqa: B023
        assert_allclose(one.bounds(), corners[:, i], rtol=1e-6)
        lower, upper = 2 * corners[0, i] - corners[1, i], 2 * corners[1, i]
        cube = np.random.default_rng(i).random((400, 2))
        points = lower + (upper - corners[0, i] - lower) * cube
        held = np.all((corners[0, i] <= points) & (points <= corners[1, i]), axis=1)
        inside = jax.vmap(one.contains)(jnp.asarray(points))
        assert inside.any() and not np.any(inside & ~held)
