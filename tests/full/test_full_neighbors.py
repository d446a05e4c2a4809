"""What one more row changes: nearest neighbors, and learners declared affine."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression

import jaxcp
from helpers import cut, same
from jaxcp import learners
from jaxcp.learners import Affine, FunctionLearner, NearestNeighbors, Ridge

KEY = jax.random.key(0)
GOLDEN = np.load(Path(__file__).parents[1] / "reference/full/neighbors.npz")
SIZE = 8  # rows of a random design, some of them masked
TARGETS = (-3.0, 0.4, 50.0)  # of test points


@jax.jit
def augmented(learner, x, y, mask, x_new):
    return learner.augmented(learner.prepare(x, y, mask), x_new)


def ordinary(learner, x, y):
    options = KEY, learner, jaxcp.scores.Absolute(), x, y
    return jaxcp.full_conformal(*options, residuals="ordinary")


each_design = jax.jit(jax.vmap(augmented, (None, 0, 0, 0, 0)))


def of_nearest(x, y, k):
    """Residuals of rows that are predicted by their k nearest others, one by one."""
    residuals = np.array(y)
    for i in range(len(y)):
        others = np.arange(len(y)) != i
        distances, targets = ((x[others] - x[i]) ** 2).sum(axis=1), y[others]
        radius = np.sort(distances)[k - 1] if len(targets) > k else np.inf
        inside, on = distances < radius, distances == radius
        count = min(k, len(targets))
        mean = targets[inside].sum(axis=0) / max(count, 1)
        if on.any():
            mean = mean + (count - inside.sum()) / count * targets[on].mean(axis=0)
        residuals[i] -= mean
    return residuals


def of_line(found, i, y_new):
    """Residuals of all fits on n + 1 rows at a target of test point i."""
    moved = (y_new - found.preds[i]) / found.spread[i]
    shares = found.shares[i].reshape(-1, *(1,) * np.ndim(moved))
    return np.append(found.residuals[i] - shares * moved, [moved], axis=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_golden_vectors(dtype):
    x, y, x_new = (GOLDEN[name].astype(dtype) for name in ("x", "y", "x_new"))
    with jax.enable_x64(dtype is np.float64):
        found = augmented(NearestNeighbors(4), x, y, None, x_new)
    tolerance = 1e-12 if dtype is np.float64 else 1e-6
    assert found.residuals.dtype == found.shares.dtype == dtype
    assert_allclose(found.residuals, GOLDEN["residuals"], atol=tolerance)
    assert_allclose(found.shares, GOLDEN["shares"], atol=tolerance)


@pytest.mark.parametrize(
    "k, num_columns, shape", [(2, 1, ()), (3, 2, (2,)), (3, 1, ()), (5, 17, ())]
)
def test_fits_with_a_test_point_are_those_of_the_definition(k, num_columns, shape):
    """Of inputs that tie in all ways, also with fewer rows than neighbors."""
    rng, count = np.random.default_rng(k), 30
    x = rng.integers(0, 3, (count, SIZE + 2, num_columns)).astype(float)
    x[::3] += rng.normal(size=x[::3].shape)
    y = rng.normal(1e3, 1, (count, SIZE, *shape))
    mask = rng.random((count, SIZE)) < np.linspace(0, 1.2, count)[:, None]
    y[~mask] = 1e9
    with jax.enable_x64(True):
        learner = NearestNeighbors(k)
        found = each_design(learner, x[:, :SIZE], y, mask, x[:, SIZE:])
        found = jax.tree.map(np.asarray, found)
    for t, (rows, kept) in enumerate(zip(x, mask, strict=True)):
        of = jax.tree.map(lambda v, t=t: v[t], found)
        for i, target in np.ndindex(2, len(TARGETS)):
            new = np.full(shape, 1e3 + TARGETS[target])
            joined = np.append(rows[:SIZE][kept], rows[[SIZE + i]], axis=0)
            expected = of_nearest(joined, np.append(y[t][kept], [new], axis=0), k)
            got = of_line(of, i, new)[np.append(kept, True)]
            assert_allclose(got, expected, atol=1e-10)


def test_a_share_is_never_more_than_half_with_enough_rows():
    """So that the set is an interval whatever the residuals are compared by."""
    x = np.random.default_rng(0).integers(0, 3, (30, 2)).astype(float)
    for k in (2, 4):
        found = augmented(NearestNeighbors(k), x, x[:, 0], None, x[:9] + 0.5)
        assert np.all(found.shares >= 0) and np.max(found.shares) <= 1 / k + 1e-7
        assert np.all(found.spread == 1) and np.all(found.rest == 1)


def test_other_numbers_of_rows_and_unknown_inputs():
    learner, x_new = NearestNeighbors(2), jnp.array([[0.0], [jnp.nan]])
    none = augmented(learner, jnp.zeros((0, 1)), jnp.zeros(0), None, x_new)
    assert none.residuals.shape == none.shares.shape == (2, 0)
    one = augmented(learner, jnp.zeros((1, 1)), jnp.ones(1), None, x_new[:1])
    assert one.shares.item() == 1 and one.residuals.item() == 0
    many = augmented(learner, jnp.arange(3.0)[:, None], jnp.ones(3), None, x_new)
    assert np.isnan(many.preds[1]) and not np.isnan(many.preds[0])


def test_one_neighbor_is_refused():
    sentence = "num_neighbors >= 2, got 1: .*half lines; take more neighbors"
    with pytest.raises(ValueError, match=sentence):
        NearestNeighbors(1).prepare(jnp.zeros((3, 1)), jnp.zeros(3), None)


SAME_RIDGE = FunctionLearner(Ridge(0.3).fit, Ridge(0.3).predict)


def smooth(distances, weights):
    kernel = jnp.exp(-(distances**2)) * weights[None]
    return kernel / jnp.sum(kernel, axis=1, keepdims=True)


SMOOTHER = FunctionLearner(  # Nadaraya and Watson's
    lambda key, x, y, weights: (x["at"], y, weights),
    lambda fit, x: smooth(x["at"][:, None] - fit[0][None], fit[2]) @ fit[1],
)


def test_two_refits_are_the_closed_form():
    rng = np.random.default_rng(1)
    x, x_new = rng.normal(size=(12, 3)), rng.normal(size=(5, 3))
    y, mask = x[:, 0] + rng.normal(1e3, 1, 12), np.arange(12) % 5 > 0
    with jax.enable_x64(True):
        learner = Affine(Ridge(0.3))
        found = jax.tree.map(np.asarray, augmented(learner, x, y, mask, x_new))
        for i, target in np.ndindex(len(x_new), len(TARGETS)):
            new = 1e3 + TARGETS[target]
            joined = np.vstack([x[mask], x_new[i]]), np.append(y[mask], new)
            fit = learner.fit(KEY, *joined, np.ones(len(joined[1])))
            expected = joined[1] - learner.predict(fit, joined[0])
            got = of_line(found, i, new)[np.append(mask, True)]
            assert_allclose(got, expected, atol=1e-9)
    assert found.rest is None


def test_rows_off_the_mask_may_hold_anything():
    x, y, mask = np.arange(6.0)[:, None], np.arange(6.0) ** 2, np.arange(6) != 2
    for learner in (Affine(Ridge(0.3)), NearestNeighbors(2)):
        sets = []
        for value in (0.0, np.nan):
            x[2] = y[2] = value
            given = KEY, learner, jaxcp.scores.Absolute(), x, y
            cp = jaxcp.full_conformal(*given, residuals="ordinary", mask=mask)
            sets.append(cp(np.array([[1.5]]), 0.4))
        assert np.isfinite(sets[0].lower) and sets[0].lower == sets[1].lower
        assert sets[0].upper == sets[1].upper


def test_no_rows_and_one():
    x, y = np.ones((1, 1), np.float32), np.ones(1, np.float32)
    for learner in (NearestNeighbors(2), Affine(SAME_RIDGE)):
        for n in (0, 1):
            sets = ordinary(learner, x[:n], y[:n])(x, 0.6)
            assert sets.upper == -sets.lower == np.inf
        few = ordinary(learner, x, y)(x, 0.4)
        assert few.upper == -few.lower == np.inf


def test_two_refits_of_any_smoother():
    x, x_new = {"at": jnp.linspace(0, 3, 9)}, {"at": jnp.array([0.7, 2.0, 9.0])}
    y = jnp.sin(x["at"]) - 2
    learner = Affine(SMOOTHER)
    learners.check(learner, x, y, symmetric=True)
    found = augmented(learner, x, y, None, x_new)
    for i, new in enumerate((-2.0, 5.0, 0.0)):
        at = jnp.append(x["at"], x_new["at"][i])
        fit = at, jnp.append(y, new), jnp.ones(10)
        expected = fit[1] - SMOOTHER.predict(fit, {"at": at})
        moved = (new - found.preds[i]) / found.spread[i]
        if i == 2:  # far from all rows, it predicts itself
            assert found.spread[i] == jnp.inf
            continue
        assert_allclose(moved, expected[-1], atol=2e-6)
        got = found.residuals[i] - found.shares[i] * moved
        assert_allclose(got, expected[:-1], atol=2e-6)


def test_affine_composes():
    x, y = jnp.arange(6.0)[:, None], jnp.array([1.0, 0.0, 2.0, 5.0, 3.0, 4.0])
    of = lambda p: augmented(Affine(Ridge(p)), x, y, None, x[:2] + 0.5)  # noqa: E731
    penalties = jnp.array([0.1, 1.0])
    each = jax.vmap(of)(penalties)
    for i, penalty in enumerate(penalties):
        same(cut(each, i), of(penalty), rtol=1e-5)
    for leaf in jax.tree.leaves(jax.jacobian(of)(0.5)):
        assert np.all(np.isfinite(leaf))


def test_a_key_is_the_same_in_all_fits():
    """Random features: affine given the key."""
    by_key = lambda key: jax.random.normal(key, (1, 4))  # noqa: E731
    ridge = Ridge(0.5)

    def fit(key, x, y, weights):
        w = by_key(key)
        return w, ridge.fit(key, jnp.tanh(x @ w), y, weights)

    random = FunctionLearner(fit, lambda p, x: ridge.predict(p[1], jnp.tanh(x @ p[0])))
    x, y, x_new = jnp.arange(7.0)[:, None] / 7, jnp.arange(7.0) ** 2, jnp.ones((2, 1))
    own = jax.random.key(5)
    for key, learner in ((KEY, Affine(random)), (own, Affine(random, own))):
        features = (jnp.tanh(v @ by_key(key)) for v in (x, x_new))
        rows, new = features
        sets = ordinary(learner, x, y)(x_new, 0.4)
        expected = ordinary(Affine(ridge), rows, y)(new, 0.4)
        assert_allclose(sets.lower, expected.lower, rtol=1e-3)
        assert_allclose(sets.upper, expected.upper, rtol=1e-3)


WRONG = {
    "several outputs": (Ridge(1.0), r"y of shape \(n,\), got \(4, 2\)"),
    "a model of the host": (
        learners.Estimator(LinearRegression()),
        "learner of jax, got Estimator.*split_conformal or cv_plus",
    ),
    "a model": (LinearRegression(), "a learner of jax, got LinearRegr"),
    "a learner's own": (Ridge(-1.0), "penalty >= 0, got -1.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_affine_refuses(name):
    learner, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        learners.check(Affine(learner), jnp.ones((4, 1)), jnp.ones((4, 2)))


def test_predictions_that_are_not_one_number():
    learner = Affine(learners.QuantileRidge((0.1, 0.9), 1.0))
    with pytest.raises(
        ValueError, match=r"shape \(5,\) for Affine.*got \(\(5,\), \(5,\)\)"
    ):
        augmented(learner, jnp.ones((4, 1)), jnp.ones(4), None, jnp.ones((1, 1)))
