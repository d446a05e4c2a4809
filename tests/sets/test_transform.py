"""Sets mapped by monotone functions: images, infinite ends, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxcp.sets import BoundingBox, Box, Interval, Intervals

INF = np.inf
LOWER = np.array([-INF, 0.0, -1.0, 1.0, 2.0, -INF, INF, np.nan], np.float32)
UPPER = np.array([0.0, INF, 2.0, 1.0, 1.0, INF, -INF, 3.0], np.float32)
LINE = Interval(jnp.asarray(LOWER), jnp.asarray(UPPER))
RISES = {
    "exp": jnp.exp,
    "cube": lambda v: v**3,
    "arctan": jnp.arctan,
    "same": lambda v: v,
}
FALLS = {"minus": jnp.negative, "1/exp": lambda v: jnp.exp(-v)}


@pytest.mark.parametrize("name", RISES | FALLS)
def test_ends_are_mapped_and_swapped_where_the_function_falls(name):
    f = (RISES | FALLS)[name]
    found, at = LINE.transform(f), np.asarray
    first, last = (LOWER, UPPER) if name in RISES else (UPPER, LOWER)
    exists = LOWER <= UPPER
    assert_array_equal(found.lower[exists], at(f(jnp.asarray(first)))[exists])
    assert_array_equal(found.upper[exists], at(f(jnp.asarray(last)))[exists])
    assert_array_equal(found.is_empty(), LOWER > UPPER)
    assert np.isnan(found.lower[-1]) and np.isnan(found.upper[-1])
    y = jnp.linspace(-3, 3, 25, dtype=jnp.float32)  # the law: f(y) is in iff y is
    for one, image in zip(LINE[:-1], found[:-1], strict=True):
        inside = jax.vmap(one.contains)(y)
        assert_array_equal(jax.vmap(image.contains)(f(y))[inside], True)
        if name != "arctan":  # rounds together far from 0
            assert_array_equal(jax.vmap(image.contains)(f(y)), inside)
    assert_array_equal(jax.jit(lambda s: s.transform(f))(LINE).lower, found.lower)
    each = jax.vmap(lambda s: s.transform(f))(LINE)
    assert_allclose(each.upper, found.upper, rtol=1e-6)


def test_exp_of_minus_infinity_is_zero():
    logs = Interval(jnp.array([-INF, 0.0]), jnp.array([0.0, INF]))
    assert_array_equal(logs.transform(jnp.exp).to_numpy(), [[0, 1], [1, INF]])
    assert_array_equal(logs.transform(np.exp).to_numpy(), [[0, 1], [1, INF]])
    whole = Interval(jnp.array(0), jnp.array(3)).transform(lambda v: v / 2)
    assert whole.upper == 1.5


def test_boxes_are_mapped_in_each_output():
    box = Box(jnp.array([[0.0, 1.0], [2.0, 0.0]]), jnp.array([[1.0, 2.0], [1.0, 3.0]]))
    found = box.transform(lambda v: v * jnp.array([[1.0, -2.0]]))
    assert_array_equal(found.lower, [[0, -4], [INF, -6]])
    assert_array_equal(found.upper, [[1, -2], [-INF, -0.0]])
    assert_array_equal(found.is_empty(), box.is_empty())
    outer = BoundingBox(jnp.zeros((1, 2)), jnp.array([[4.0, 6.0]]))
    assert_array_equal(outer.transform(lambda v: v / 2).corners(), [[0, 0, 2, 3]])
    with pytest.raises(ValueError, match="outer boxes to transform, got inner"):
        BoundingBox(jnp.zeros(2), jnp.ones(2), inner=True).transform(jnp.exp)


def test_unions_stay_in_order_and_join():
    two = Intervals(jnp.array([[0.0, 5.0, INF]]), jnp.array([[1.0, 7.0, -INF]]))
    assert_array_equal(two.transform(jnp.negative).lower, [[-7, -1, INF]])
    assert_array_equal(two.transform(jnp.negative).upper, [[-5, 0, -INF]])
    far = Intervals(jnp.array([-2.0, 1.0]), jnp.array([-1.0, 3.0]))
    square = far.transform(jnp.square)  # falls on one piece, rises on the other
    assert_array_equal(square.lower, [1, INF])
    assert_array_equal(square.upper, [9, -INF])


NOT_MONOTONE = {
    "square": (jnp.square, -1.0, 2.0),
    "inverse": (lambda v: 1 / v, -INF, INF),
    "cosine": (jnp.cos, 0.0, 6.3),
    "log": (jnp.log, -1.0, 2.0),
    "distance": (lambda v: abs(v - 4), 3.0, 5.0),
}


@pytest.mark.parametrize("name", NOT_MONOTONE)
def test_what_turns_in_a_set_is_refused_where_it_is_seen(name):
    f, lower, upper = NOT_MONOTONE[name]
    sets = Interval(jnp.array([1.0, lower]), jnp.array([1.5, upper]))
    with pytest.raises(ValueError, match=r"monotone on each set.*; sets.clip\("):
        sets.transform(f)
    assert sets[:1].transform(f).upper.shape == (1,)  # it does not turn there


def test_traced_sets_never_raise_and_unknown_ends_are_everything():
    sets = Interval(jnp.array([1.0, -1.0, 3.0]), jnp.array([2.0, 2.0, 1.0]))
    found = jax.jit(lambda s: s.transform(jnp.log))(sets)
    assert_allclose(found.lower, [0, -INF, INF])
    assert_allclose(found.upper, [np.log(2), INF, -INF], rtol=1e-6)


def test_shapes_and_types_follow_the_ends():
    with pytest.raises(ValueError, match=r"f\(ends\) of shape \(8,\), got \(\)"):
        LINE.transform(jnp.sum)
    half = Interval(jnp.zeros(2, jnp.float16), jnp.ones(2, jnp.float16))
    assert half.transform(jnp.exp).lower.dtype == jnp.float16
    with jax.enable_x64(True):
        wide = Interval(jnp.zeros(2), jnp.ones(2)).transform(jnp.exp)
        assert wide.upper.dtype == np.float64
    empty = Interval(jnp.zeros(0), jnp.zeros(0)).transform(jnp.exp)
    assert empty.lower.shape == (0,)
    slope = jax.grad(lambda v: Interval(v, v + 1).transform(jnp.exp).size())(0.5)
    assert_allclose(slope, np.exp(1.5) - np.exp(0.5), rtol=1e-6)
