"""Split, fit and calibrate in one call."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, LogisticRegression

import jaxcp
from jaxcp import learners, metrics, scores
from jaxcp.learners import Estimator
from rows import refuses

KEY, ABSOLUTE, RIDGE = jax.random.key(0), scores.Absolute(), learners.Ridge(0.3)
X, Y = jaxcp.datasets.linear(jax.random.key(1), 40, num_features=3)
HOST = Estimator(LinearRegression())


def fit(learner=RIDGE, x=X, y=Y, score=ABSOLUTE, share=0.5, key=KEY):
    return jaxcp.split_conformal_fit(key, learner, score, x, y, share=share)


SIZES = [
    (0.5, 20),
    (0.29, 12),
    (0.999, 39),
    (1e-6, 1),
    (0.6, 24),
    (np.float32(0.7), 28),
]


@pytest.mark.parametrize(("share", "num_train"), SIZES)
def test_sizes_are_exact(share, num_train):
    seen = []

    class Counted(LinearRegression):
        def fit(self, X, y):
            seen.append(len(y))
            return super().fit(X, y)

    assert fit(share=share).scores.shape == (40 - num_train,)
    assert fit(Estimator(Counted()), share=share).scores.shape == (40 - num_train,)
    assert seen == [num_train]


def test_two_rows_are_enough():
    cp = fit(x=X[:2], y=Y[:2], share=0.9)
    assert cp.scores.shape == (1,)
    assert cp(X[:3], 0.1).upper.tolist() == [jnp.inf] * 3
    assert fit(HOST, X[:2], Y[:2]).scores.shape == (1,)


def test_each_row_trains_or_calibrates():
    """The learner keeps its targets, so that rows show which part they are in."""
    keep = learners.FunctionLearner(
        lambda key, x, y, weights: y, lambda params, x: jnp.zeros(len(x))
    )
    y = jnp.arange(40.0)
    cp = fit(keep, y=y, share=0.7)
    both = np.concatenate([cp.params.params, cp.scores])
    assert_array_equal(np.sort(both), y)
    other = fit(keep, y=y, share=0.7, key=jax.random.key(5))
    assert not np.array_equal(other.params.params, cp.params.params)
    assert_array_equal(fit(keep, y=y, share=0.7).scores, cp.scores)


def test_the_host_and_jax_take_the_same_rows():
    host, device = fit(HOST), fit(learners.Ridge(0.0))
    assert_allclose(host.scores, device.scores, rtol=1e-3, atol=1e-4)
    assert_allclose(host(X, 0.1).upper, device(X, 0.1).upper, rtol=1e-3, atol=1e-4)
    assert isinstance(host.params.models[0], LinearRegression)
    assert host.certificate(0.1).coverage == device.certificate(0.1).coverage
    p_values = host.p_values(X, Y)
    assert p_values.shape == (40,)


def test_frames_and_labels():
    frame = pd.DataFrame(np.asarray(X), columns=list("abc")).iloc[::-1]
    learner = Estimator(LogisticRegression())
    labels = np.digitize(np.asarray(Y), [-0.5, 0.5])[::-1]
    cp = fit(learner, frame, pd.Series(labels, index=frame.index), scores.LAC())
    assert cp(frame[:5], 0.2).mask.shape == (5, 3)
    assert list(cp.params.models[0].feature_names_in_) == ["a", "b", "c"]
    names = pd.Series(np.array(["low", "mid", "top"])[labels], index=frame.index)
    named = fit(learner, frame, names, scores.LAC())
    assert_allclose(named.scores, cp.scores)
    sets = named(frame, 0.2)
    assert sets.labels() == cp(frame, 0.2).labels(["low", "mid", "top"])
    assert metrics.coverage(sets, names) == metrics.coverage(cp(frame, 0.2), labels)


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="double precision holds them")
def test_targets_keep_their_digits():
    far = np.asarray(Y, np.float64) * 1e-3 + 2.5e6
    with pytest.raises(
        ValueError, match="y with digits that single precision can hold"
    ):
        fit(HOST, y=far)
    with pytest.raises(
        ValueError, match="y with digits that single precision can hold"
    ):
        fit(HOST, y=far.tolist())


def test_jit_and_vmap():
    def upper(key, penalty):
        return fit(learners.Ridge(penalty), key=key)(X[:5], 0.2).upper

    keys = jax.random.split(KEY, 4)
    expected = jnp.stack([upper(key, 0.3) for key in keys])
    assert_allclose(jax.jit(upper)(keys[0], 0.3), expected[0], rtol=1e-5)
    assert_allclose(jax.vmap(upper, (0, None))(keys, 0.3), expected, rtol=1e-5)
    slope = jax.grad(lambda p: upper(KEY, p).sum())(0.3)
    assert jnp.isfinite(slope)
    cp = fit()
    assert_allclose(jax.jit(cp)(X, 0.2).upper, cp(X, 0.2).upper, rtol=1e-6)


def test_a_second_call_traces_nothing():
    traces = []

    def fit_mean(key, x, y, weights):
        traces.append(1)
        return jnp.mean(y)

    mean = learners.FunctionLearner(fit_mean, lambda p, x: jnp.full(len(x), p))
    fit(mean)(X, 0.1)
    fit(mean, key=jax.random.key(3))(X, 0.1)
    assert len(traces) == 1


def test_learners_that_take_no_weights_are_fine():
    """The rows that calibrate are not there, not of weight zero."""
    plain = learners.FunctionLearner(
        lambda key, x, y, weights: RIDGE.fit(key, x, y, jnp.ones(len(y))), RIDGE.predict
    )
    assert_allclose(fit(plain).scores, fit().scores, rtol=1e-5)


@pytest.mark.slow
def test_coverage_is_exact():
    def trial(key):
        key_data, key_fit = jax.random.split(key)
        x, y = jaxcp.datasets.linear(key_data, 60)
        cp = fit(learners.Ridge(1.0), x[:40], y[:40], share=0.525, key=key_fit)
        return metrics.coverage(cp(x[40:], 0.1), y[40:])

    covered = jax.vmap(trial)(jax.random.split(KEY, 20_000))
    expected = 18 / 20  # 19 rows calibrate
    error = covered.std() / len(covered) ** 0.5
    assert abs(covered.mean() - expected) < 4 * error


WRONG = {
    "share": (lambda: fit(share=1.0), r"share in \(0, 1\), got 1.0"),
    "a count": (lambda: fit(share=20), r"share in \(0, 1\), got 20"),
    "no share": (lambda: fit(share=None), "share as a number, got None"),
    "one row": (lambda: fit(x=X[:1], y=Y[:1]), "the number of rows as an int >= 2"),
    "lengths": (lambda: fit(x=X[1:]), "x with 40 rows like y, got 39"),
    "lengths on the host": (lambda: fit(HOST, x=X[1:]), "x with 40 rows like y"),
    "a model": (lambda: fit(LinearRegression()), r"learners.Estimator\(model\)"),
    "NaN": (lambda: fit(y=Y.at[3].set(jnp.nan)), "y without NaN, got nan at 3"),
    "a seed": (lambda: fit(key=3), "a key from jax.random.key, got int"),
    "a score": (lambda: fit(score=jnp.abs), "a score with an inverse"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
