"""What holds for every kind of set: a new one is one row of `kinds.batches`."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from kinds import KINDS, NO_ENDS, Around, Between, M, batches
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import cut, same
from jaxcp.typing import Set

each_kind = pytest.mark.parametrize("name", KINDS)
BY_MEMBERSHIP = "levels", "votes"
ANSWERS = "size", "is_empty", "log_size"


def ask(sets, y):
    """What is asked of sets, of those that know it."""
    found = {"contains": sets.contains(y)}
    for answer in ANSWERS:
        try:
            found[answer] = getattr(sets, answer)()
        except (ValueError, AttributeError):
            continue  # of a set that is known by membership alone
    return found


@each_kind
def test_a_batch_answers_for_each_of_its_sets(name):
    """Membership, size and emptiness of a batch are those of its sets, one by one."""
    sets, y = batches()[name]
    assert isinstance(sets, Set)
    each = [ask(*row) for row in zip([cut(sets, i) for i in range(M)], y, strict=True)]
    each = {k: np.stack([one[k] for one in each]) for k in each[0]}
    inside = each["contains"]
    assert inside.shape == (M,) and (name == "votes" or 0 < inside.sum() < M + 1)
    twice = jax.tree.map(lambda v: jnp.stack([v, v]), (sets, y))
    for found in (ask(sets, y), jax.jit(ask)(sets, y), jax.jit(jax.vmap(ask))(sets, y)):
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-6), found, each)
    for k, found in jax.jit(ask)(*twice).items():
        assert_allclose(found, [each[k]] * 2, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NO_ENDS])
def test_nothing_and_everything(name):
    """The last two of a batch; slopes of sizes are finite, of nothing too."""
    sets, y = batches()[name]
    most = sets.mask.shape[-1] if hasattr(sets, "mask") else np.inf
    for i, size in ((3, 0), (4, most)):
        one = cut(sets, i)
        assert_array_equal([one.contains(v) for v in y], i == 4)
        found = ask(one, y[i])
        assert found.get("is_empty", i == 3) == (i == 3)
        assert found.get("size", size) == size
    for size in (lambda s: s.size(), lambda s: s.soft_size(0.1)):
        try:
            slopes = jax.jit(jax.grad(lambda s, size=size: jnp.sum(size(s))))(sets[:4])
        except (AttributeError, TypeError, ValueError):
            continue  # no size, or a count
        assert all(np.all(np.isfinite(v)) for v in jax.tree.leaves(slopes))


@each_kind
def test_sets_are_kept_by_files_and_copies(name, tmp_path):
    sets, _ = batches()[name]
    own = {type(sets)} & {Around, Between}
    jaxcp.save(tmp_path / "sets", sets)
    for again in (
        jaxcp.load(tmp_path / "sets", types=own),
        pickle.loads(pickle.dumps(sets)),
        copy.deepcopy(sets),
        jax.tree.unflatten(*reversed(jax.tree.flatten(sets))),
    ):
        same(again, sets)
        assert repr(again) == repr(sets)
        assert jax.tree.structure(again) == jax.tree.structure(sets)


@each_kind
def test_a_batch_is_a_sequence_of_its_sets(name):
    sets, y = batches()[name]
    rows = [cut(sets, i) for i in range(M)]
    assert len(sets) == 5
    for found, one in zip(sets, rows, strict=True):
        same(found, one)
    for i in (0, 4, -1, -5, np.int64(3), jnp.array(2), np.array(2)):
        same(sets[i], rows[int(i)])
    some = jax.tree.map(lambda v: v[np.array([0, 3])], sets)
    flags = np.array([True, False, False, True, False])
    for index in ([0, 3], np.array([0, 3]), jnp.array([0, -2]), slice(None, 4, 3)):
        same(sets[index], some)
    known = pd.Series(flags, dtype="boolean")  # that could have missing ones
    for index in (flags, jnp.asarray(flags), flags.tolist(), pd.Series(flags), known):
        same(sets[index], some)
    for nothing in (sets[5:], sets[[]], sets[flags & ~flags]):
        assert len(nothing) == 0 and list(nothing) == [] and nothing
    inside = [bool(one.contains(v)) for one, v in zip(sets, y, strict=True)]
    assert_array_equal(sets.contains(y), inside)
    assert [v in one for one, v in zip(sets, y, strict=True)] == inside


@each_kind
def test_one_set_has_no_rows(name):
    sets, y = batches()[name]
    one = sets[0]
    for what in (len, iter, list, lambda s: s[0], lambda s: s[:1]):
        with pytest.raises(TypeError, match="with a leading axis, got one "):
            what(one)
    assert one and sets  # no flag
    with pytest.raises((TypeError, ValueError)):
        _ = y[0] in sets


@pytest.mark.parametrize(
    "name", ["intervals", "boxes", "bands", "bounding boxes", "inner boxes"]
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
    for i in range(3):
        one = jax.tree.map(lambda v: v[i], sets)  # noqa: B023
        assert_allclose(one.bounds(), corners[:, i], rtol=1e-6)
        lower, upper = 2 * corners[0, i] - corners[1, i], 2 * corners[1, i]
        cube = np.random.default_rng(i).random((400, 2))
        points = lower + (upper - corners[0, i] - lower) * cube
        held = np.all((corners[0, i] <= points) & (points <= corners[1, i]), axis=1)
        inside = jax.vmap(one.contains)(jnp.asarray(points))
        assert inside.any() and not np.any(inside & ~held)
