"""Columns (n, 1) of targets and predictions: one output, whose sets are intervals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import learners, metrics, online, risk, scores
from jaxcp.sets import Ball, Ellipsoid, Interval

RNG = np.random.default_rng(0)
N, M, ALPHA = 40, 5, 0.2
X, Y = RNG.normal(size=(N, 2)).astype(np.float32), RNG.normal(size=N).astype(np.float32)
F, NEW = 0.1 * X[:, 0], 0.1 * X[:M, 1]
band = lambda v: (v - 1, v + 1)  # noqa: E731
positive = lambda v: (v, 1 + v**2)  # noqa: E731
SCORES = {
    "Absolute": (scores.Absolute(), lambda v: v),
    "Signed": (scores.Signed(), lambda v: v),
    "CQR": (scores.CQR(), band),
    "AsymmetricCQR": (scores.AsymmetricCQR(), band),
    "Normalized": (scores.Normalized(), positive),
    "Rectangle": (scores.Rectangle(), band),
}


def column(tree):
    return jax.tree.map(lambda v: v[:, None], tree)


@pytest.mark.parametrize("name", SCORES)
def test_columns_are_numbers(name):
    score, of = SCORES[name]
    expected = jaxcp.calibrate(score, of(F), Y)(of(NEW), ALPHA)
    for preds, y, new in (
        (column(of(F)), Y[:, None], column(of(NEW))),
        (column(of(F)), Y, column(of(NEW))),
        (of(F), Y[:, None], of(NEW)),
    ):
        found = jaxcp.calibrate(score, preds, y)(new, ALPHA)
        assert type(found) is Interval and found.lower.shape == (M,)
        assert_array_equal(found.to_numpy(), expected.to_numpy())


@pytest.mark.parametrize("verb", ["jackknife_plus", "cv_plus", "full_conformal"])
@pytest.mark.parametrize("score", [scores.Absolute(), scores.Signed()])
def test_verbs_with_learners_take_columns(verb, score):
    options = {"num_folds": 4} if verb == "cv_plus" else {}
    of = lambda y: getattr(jaxcp, verb)(  # noqa: E731
        jax.random.key(0), learners.Ridge(1.0), score, X, y, **options
    )
    expected, cp = of(Y)(X[:M], ALPHA), of(Y[:, None])
    found = cp(X[:M], ALPHA)
    assert type(found) is Interval
    assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-5, atol=1e-6)
    if verb != "full_conformal":
        assert type(cp.minmax(X[:M], ALPHA)) is Interval


def test_what_follows_is_that_of_numbers():
    flat = jaxcp.calibrate(scores.Absolute(), F, Y)
    cp = jaxcp.calibrate(scores.Absolute(), F[:, None], Y[:, None])
    sets, y = cp(NEW[:, None], ALPHA), Y[:M, None]
    assert list(sets.to_pandas()) == ["lower", "upper"]
    assert metrics.coverage(sets, y) == metrics.coverage(flat(NEW, ALPHA), Y[:M])
    assert metrics.winkler_score(sets, y, ALPHA).shape == ()
    assert cp.certificate(ALPHA) == flat.certificate(ALPHA)
    p = cp.p_values(NEW[:, None], y)
    assert_array_equal(p, flat.p_values(NEW, Y[:M]))
    sure = cp(NEW[:, None], ALPHA, delta=0.1)
    assert_array_equal(sure.upper, flat(NEW, ALPHA, delta=0.1).upper)
    masked = jaxcp.calibrate(scores.Absolute(), F[:, None], Y[:, None], mask=Y > -1)
    assert type(masked(NEW[:, None], ALPHA)) is Interval
    loss = risk.calibrate_risk(risk.miscoverage, scores.Absolute(), F[:, None], y=Y)
    assert_array_equal(loss(NEW[:, None], ALPHA).upper, sets.upper)


def test_streams_take_columns():
    method = online.ACI(scores.Absolute(), 0.05)
    state = method.init(np.abs(Y - F), ALPHA)
    _, expected = online.run(method, state, NEW, Y[:M], ALPHA)
    state = method.init(np.abs(Y - F)[:, None], ALPHA)
    _, found = online.run(method, state, NEW[:, None], Y[:M, None], ALPHA)
    assert type(found) is Interval
    assert_array_equal(found.to_numpy(), expected.to_numpy())


def test_scores_of_vectors_keep_their_sets():
    pred = F[:, None], np.ones((N, 1), np.float32)
    ball = jaxcp.calibrate(scores.Distance(), F[:, None], Y[:, None])
    assert type(ball(NEW[:, None], ALPHA)) is Ball
    ellipsoid = jaxcp.calibrate(scores.Mahalanobis(), pred, Y[:, None])
    new = NEW[:, None], np.ones((M, 1), np.float32)
    assert type(ellipsoid(new, ALPHA)) is Ellipsoid
    two = jaxcp.calibrate(scores.Absolute(), np.zeros((N, 2)), np.c_[Y, Y])
    assert two(jnp.zeros((M, 2)), ALPHA).lower.shape == (M, 2)
