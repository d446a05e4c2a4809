import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxcp._types import Set
from jaxcp.scores import Absolute
from jaxcp.sets import Box, Interval, LabelSet, LevelSet

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


def test_level_set_has_members_but_no_size():
    level_set = LevelSet(Absolute(), jnp.array(1.0), jnp.array(0.5))
    assert level_set.contains(1.5)
    assert not level_set.contains(1.6)
    with pytest.raises(ValueError, match="closed-form size, got a LevelSet"):
        level_set.size()


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
