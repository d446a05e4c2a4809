"""Ratios of test to calibration laws: of labels by moments and EM, of inputs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

import jaxcp
from jaxcp import learners, scores
from jaxcp.learners import density_ratio, label_ratio

FILE = Path(__file__).parents[1] / "reference/rows/labels.npz"
KEY, METHODS = jax.random.key(0), ["moments", "em"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_vectors(method, dtype):
    """EM there took all of 5,000 steps: it ends sooner here, as near as digits go."""
    with jax.enable_x64(dtype == "float64"), np.load(FILE) as found:
        rows = (found[f"ratio_{k}"] for k in ("probs", "y", "new_probs"))
        probs, y, new = rows
        given = probs.astype(dtype), y, new.astype(dtype)
        w = label_ratio(*given, method=method)
        assert w.dtype == dtype
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        assert_allclose(w, found[f"ratio_{method}"], rtol=tolerance, atol=tolerance)
        if method == "moments":
            assert_allclose(np.mean(np.asarray(w)[y]), 1, rtol=1e-6)
            raw = found["ratio_moments_raw"]
            assert np.all(raw > 0)
            assert_allclose(w, raw, rtol=tolerance)


def drawn(key, shares, n):
    """Returns labels with these shares, and true probabilities under equal ones."""
    key_y, key_x = jax.random.split(key)
    k = len(shares)
    y = jax.random.choice(key_y, k, (n,), p=shares)
    x = y + 0.6 * jax.random.normal(key_x, (n,))
    return y, jax.nn.softmax(-((x[:, None] - jnp.arange(k)[None]) ** 2) / 0.72)


@pytest.mark.parametrize("method", METHODS)
def test_many_rows_give_the_true_ratio(method):
    old, new = jnp.full(3, 1 / 3), jnp.array([0.1, 0.3, 0.6])
    y, probs = drawn(KEY, old, 200_000)
    _, new_probs = drawn(jax.random.key(1), new, 200_000)
    found = label_ratio(probs, y, new_probs, method=method)
    assert_allclose(found, new / old, atol=0.06)
    inside = jax.jit(lambda *rows: label_ratio(*rows, method=method))
    assert_allclose(inside(probs, y, new_probs), found, rtol=1e-5, atol=1e-5)


def test_moments_are_clipped_and_scaled():
    """M = I / 2 and shares (1, 0): w = (2, 0); with confusion a negative one is 0."""
    eye, y = np.eye(2, dtype="f"), np.array([0, 1])
    assert_allclose(label_ratio(eye, y, eye[:1]), [2, 0])
    names = {"classes": ["b", "a"]}
    assert_allclose(label_ratio(eye, ["b", "a"], eye[:1], **names), [2, 0])
    probs = np.float32([[1, 0]] * 3 + [[0, 1]] + [[0, 1]] * 4)
    y = np.repeat([0, 1], 4)  # M = [[3, 0], [1, 4]] / 8, raw w = (8/3, -2/3)
    assert_allclose(label_ratio(probs, y, eye[:1]), [2, 0], rtol=1e-6)


def test_labels_that_are_not_told_apart():
    """Label 2 is predicted as label 1 is: an error, and traced infinite weights."""
    counts = np.array([[14, 11, 33], [16, 9, 27], [33, 8, 24]])
    pred, y = (np.repeat(v.ravel(), counts.ravel()) for v in np.indices((3, 3)))
    probs = np.eye(3, dtype="f")[pred]
    with pytest.raises(ValueError, match="matrix of rank 3, got 2"):
        label_ratio(probs, y, probs)
    assert np.all(np.isinf(jax.jit(label_ratio)(probs, y, probs)))


def test_labels_without_rows():
    y, probs = drawn(KEY, jnp.full(3, 1 / 3), 300)
    none = np.where(np.asarray(y) == 2, 0, y)
    with pytest.raises(ValueError, match=r"matrix of rank 3, got 2: .* method='em'"):
        label_ratio(probs, none, probs)
    found = label_ratio(probs, none, probs, method="em")
    assert found[2] == np.inf
    assert np.all(np.isfinite(found[:2]))
    assert np.all(np.isinf(jax.jit(label_ratio)(probs, none, probs)))  # always in


def test_refusals_of_labels():
    y, probs = drawn(KEY, jnp.full(3, 1 / 3), 30)
    for args, text in (
        ((probs, y, probs[:, :2]), r"probs of shape \(30, 2\), got \(30, 3\)"),
        ((probs, y + 1, probs), "y in 0, ..., 2, got 3"),
        ((3 * probs, y, probs), r"probs in \[0, 1\]"),
        ((probs, y[1:], probs), "y with 30 rows like probs, got 29"),
        ((probs, y, probs[:0]), "number of rows of new_probs as an int >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            label_ratio(*args)
    with pytest.raises(ValueError, match=r"method as one of \['moments', 'em'\]"):
        label_ratio(probs, y, probs, method="bbse")


def of_two_normals(key, x, y, weights):
    """Returns slope and intercept of log odds of two normal laws with one variance."""

    def mean(values, w):
        return jnp.sum(w * values) / jnp.sum(w)

    x, old, new = x[:, 0], weights * (1 - y), weights * y
    low, high = mean(x, old), mean(x, new)
    variance = mean((x - jnp.where(y > 0, high, low)) ** 2, weights)
    slope = (high - low) / variance
    return slope, jnp.log(new.sum() / old.sum()) - slope * (low + high) / 2


CLASSIFIER = learners.FunctionLearner(
    of_two_normals, lambda p, x: jax.nn.sigmoid(p[0] * x[:, 0] + p[1])
)
X, NEW = (
    c + np.random.default_rng(c).normal(size=(n, 1)) for c, n in ((0, 400), (1, 300))
)


@pytest.mark.parametrize("kind", ["jax", "model", "frame"])
def test_ratio_of_inputs(kind):
    """Near exp(x - 1/2), that of two normal laws."""
    learner, x, new = CLASSIFIER, X, NEW
    if kind != "jax":
        learner = learners.Estimator(LogisticRegression(C=100.0))
    if kind == "frame":
        x, new = (pd.DataFrame(v, columns=["dose"]) for v in (X, NEW))
    found = density_ratio(KEY, learner, x, new)
    for w, v in zip(found, (X, NEW), strict=True):
        assert w.shape == (len(v),)
        error = np.abs(np.log(np.asarray(w)) - (v[:, 0] - 0.5))
        assert np.max(error[np.abs(v[:, 0]) < 2]) < 0.6


def test_each_input_has_a_fit_without_it():
    """A fit that knows its rows says 0 or 1 for these, and a half for all others."""

    def fit(key, x, y, weights):
        return jnp.where(weights > 0, 2 * y - 1, 0)

    names = jnp.arange(50.0)[:, None]
    memory = learners.FunctionLearner(fit, lambda seen, x: 0.5 + 0.5 * seen)
    w, new_w = density_ratio(KEY, memory, names[:30], names[30:], num_folds=4)
    # Of 30 old ones 22 or 23 are in a fit, and 15 of 20 new ones.
    each = [*[22 / 15] * 16, *[23 / 15] * 14]
    assert_allclose(jnp.sort(w), each, rtol=1e-6)
    assert_allclose(jnp.sort(new_w), np.repeat([22 / 15, 23 / 15], 10), rtol=1e-6)


def test_inputs_that_tell_nothing_weigh_one():
    """A fit that knows no more than its shares: 7 old inputs, 60 new ones, 5 folds."""
    shares = learners.FunctionLearner(
        lambda key, x, y, weights: jnp.sum(weights * y) / jnp.sum(weights),
        lambda share, x: share + 0 * x[:, 0],
    )
    for w in density_ratio(KEY, shares, X[:7], NEW[:60]):
        assert_allclose(w, 1, rtol=1e-6)


def test_clipped():
    far = learners.FunctionLearner(
        lambda key, x, y, weights: jnp.zeros(()), lambda _, x: (x[:, 0] > 0) * 1.0
    )
    signs = jnp.array([[-1.0], [1.0]] * 5)
    w, _ = density_ratio(KEY, far, signs, signs, clip=0.1)
    assert_allclose(w, [1 / 9, 9] * 5, rtol=1e-6)


def test_jit_and_keys():
    rows = jnp.asarray(X[:40]), jnp.asarray(NEW[:30])
    once = density_ratio(KEY, CLASSIFIER, *rows)
    inside = jax.jit(lambda key, *rows: density_ratio(key, CLASSIFIER, *rows))(
        KEY, *rows
    )
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-4), once, inside)
    again = density_ratio(KEY, CLASSIFIER, *rows)
    jax.tree.map(assert_array_equal, once, again)


def test_refusals_of_inputs():
    odds = learners.FunctionLearner(
        lambda key, x, y, weights: jnp.zeros(()), lambda _, x: 3 * x[:, 0]
    )
    with pytest.raises(ValueError, match=r"predictions, probabilities, in \[0, 1\]"):
        density_ratio(KEY, odds, X, NEW)
    with pytest.raises(ValueError, match=r"clip in \(0, 0.5\), got 0.5"):
        density_ratio(KEY, CLASSIFIER, X, NEW, clip=0.5)
    with pytest.raises(ValueError, match="num_folds <= n = 3, got 5"):
        density_ratio(KEY, CLASSIFIER, X[:3], NEW)
    frames = (pd.DataFrame({k: v.ravel()}) for k, v in {"age": X, "dose": NEW}.items())
    with pytest.raises(ValueError, match=r"columns \('age',\), got \('dose',\)"):
        density_ratio(KEY, learners.Estimator(LogisticRegression()), *frames)
    with pytest.raises(ValueError, match=r"new_x with rows of shape \(1,\) like x"):
        density_ratio(KEY, CLASSIFIER, X, np.ones((300, 2)))
    with pytest.raises(ValueError, match="Estimator"):
        density_ratio(KEY, LogisticRegression(), X, NEW)
    triple = learners.FunctionLearner(
        lambda key, x, y, weights: jnp.zeros(()), lambda _, x: jnp.ones((len(x), 3)) / 3
    )
    with pytest.raises(ValueError, match=r"a probability each, of shape \(700,\)"):
        density_ratio(KEY, triple, X, NEW)


def test_estimated_weights_cover():
    """Old inputs N(0, 1), new ones N(1, 1): about 0.8 with estimated weights, where
    unit weights cover less than that by 4 standard errors."""
    n, m, alpha, trials = 60, 60, 0.2, 1_000

    def trial(key):
        key_x, key_y, key_fit = jax.random.split(key, 3)
        x = jax.random.normal(key_x, (n + m + 1,)) + (jnp.arange(n + m + 1) >= n)
        y = jnp.exp(x / 2) * jax.random.normal(key_y, x.shape)
        w, new_w = density_ratio(key_fit, CLASSIFIER, x[:n, None], x[n:, None])
        plain = jaxcp.calibrate(scores.Absolute(), jnp.zeros(n), y[:n])
        weighted = jaxcp.calibrate(scores.Absolute(), jnp.zeros(n), y[:n], weights=w)
        q = jnp.stack(
            [plain.quantile(alpha), weighted.quantile(alpha, test_weight=new_w[-1])]
        )
        return jnp.abs(y[-1]) <= q

    keys = jax.random.split(KEY, trials)
    naive, right = np.mean(jax.jit(jax.vmap(trial))(keys), axis=0)
    error = (alpha * (1 - alpha) / trials) ** 0.5
    assert naive < 1 - alpha - 4 * error
    assert right > 1 - alpha - 4 * error
