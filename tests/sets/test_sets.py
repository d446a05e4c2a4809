import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxcp.scores import Absolute
from jaxcp.sets import (
    BoundingBox,
    Box,
    Ellipsoid,
    Interval,
    Kept,
    LabelMask,
    LabelSet,
    LevelSet,
)

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
