"""p-values of all labels: those of each label as a candidate, in its group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import scores
from jaxcp.learners import FunctionLearner

RNG = np.random.default_rng(0)
K, N, M = 3, 40, 6
P, NEW = (RNG.dirichlet(np.ones(K), n).round(2).astype(np.float32) for n in (N, M))
P[:, -1], NEW[:, -1] = 1 - P[:, :-1].sum(1), 1 - NEW[:, :-1].sum(1)  # ties, sums of 1
Y, SITE, U = RNG.integers(0, K, N), np.arange(N) % 2, RNG.uniform(size=M)
LAC = scores.LAC()
W, NAMES = RNG.uniform(0.5, 1, N), ["ant", "bee", "cat"]
RULES = {
    "plain": (jaxcp.calibrate(LAC, P, Y), {}),
    "smoothed": (jaxcp.calibrate(LAC, P, Y), {"u": U}),
    "masked": (jaxcp.calibrate(LAC, P, Y, mask=SITE == 0), {}),
    "weighted": (jaxcp.calibrate(LAC, P, Y, weights=W), {"test_weights": W[:M]}),
    "names": (jaxcp.calibrate(LAC, P, np.array(NAMES)[Y], classes=NAMES), {}),
    "inputs": (jaxcp.split_conformal(lambda _, x: x, None, LAC, P, Y), {}),
    "sites": (
        jaxcp.calibrate_groups(LAC, P, Y, SITE, num_groups=2),
        {"groups": SITE[:M]},
    ),
    "classes": (jaxcp.calibrate_groups(LAC, P, Y, Y, num_groups=K), {}),
    "classes, smoothed": (jaxcp.calibrate_groups(LAC, P, Y, Y, num_groups=K), {"u": U}),
    "classes, weighted": (
        jaxcp.calibrate_groups(LAC, P, Y, Y, num_groups=K, weights=W),
        {"test_weights": W[:M]},
    ),
    "label groups": (
        jaxcp.calibrate_groups(
            LAC, P, Y, label_groups=np.array([0, 1, -1]), rare="all"
        ),
        {},
    ),
    "local": (
        jaxcp.calibrate_local(LAC, P, Y, P, jaxcp.conditional.Gaussian(1.0)),
        {"x": NEW},
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_p_values_of_all_labels_are_those_of_each(name):
    cp, context = RULES[name]
    found = cp.p_values(NEW, **context)
    each = [cp.p_values(NEW, np.full(M, c), **context) for c in range(K)]
    assert found.shape == (M, K)
    assert_array_equal(found, np.stack(each, axis=1))


@pytest.mark.parametrize("name", ["plain", "classes", "sites", "label groups"])
def test_sets_are_the_labels_above_alpha(name):
    cp, context = RULES[name]
    for alpha in (0.07, 0.2, 0.5):
        mask = cp(NEW, alpha, **context).mask
        assert_array_equal(cp.p_values(NEW, **context) > alpha, mask)


def test_p_values_are_counts_of_rows():
    s, new = 1 - P[np.arange(N), Y], 1 - NEW
    count = (s[:, None, None] >= new).sum(0)
    found = RULES["plain"][0].p_values(NEW)
    assert_array_equal(found, ((1 + count) / (N + 1)).astype(np.float32))
    of_class = (s[:, None, None] >= new) & (Y[:, None, None] == np.arange(K))
    expected = (1 + of_class.sum(0)) / (1 + np.bincount(Y, minlength=K))
    found = RULES["classes"][0].p_values(NEW)
    assert_array_equal(found, expected.astype(np.float32))


def test_p_values_of_all_labels_under_transforms():
    cp = RULES["classes"][0]
    found = cp.p_values(NEW)
    assert_array_equal(jax.jit(lambda p: cp.p_values(p))(NEW), found)
    both = jax.vmap(cp.p_values)(jnp.stack([NEW, NEW[::-1]]))
    assert_array_equal(both, jnp.stack([found, found[::-1]]))
    assert cp.p_values(NEW[:0]).shape == (0, K)


def test_full_conformal_p_values_of_all_labels():
    def fit(key, x, y, weights):
        near = jax.nn.one_hot(y, K) * weights[:, None]
        return near.T @ x / (near.sum(0)[:, None] + 1)

    learner = FunctionLearner(fit, lambda centers, x: jax.nn.softmax(x @ centers.T))
    few, y = P[:12], Y[:12]
    cp = jaxcp.full_conformal(jax.random.key(0), learner, LAC, few, y)
    found = cp.p_values(NEW)
    each = [cp.p_values(NEW, np.full(M, c)) for c in range(K)]
    assert_array_equal(found, np.stack(each, axis=1))
    assert_array_equal(found > 0.3, cp(NEW, 0.3).mask)


def test_scores_without_labels_need_candidates():
    y = np.arange(20.0)
    for cp in (
        jaxcp.calibrate(scores.Absolute(), 0 * y, y),
        jaxcp.split_conformal(lambda _, x: x, None, scores.Absolute(), 0 * y, y),
    ):
        with pytest.raises(
            ValueError, match=r"y, as Absolute has no labels .*p_values\("
        ):
            cp.p_values(np.zeros(2))


@pytest.mark.parametrize("word", ["confidence", "confidence_level", "none"])
def test_a_call_without_alpha_says_what_it_is(word):
    options = {} if word == "none" else {word: 0.9}
    for name in ("plain", "inputs", "classes"):
        with pytest.raises(TypeError, match=rf"alpha \(1 - confidence\).*got {word}"):
            RULES[name][0](NEW, **options)


def test_words_of_other_libraries_name_the_call():
    for name in ("predict", "predict_p", "predict_set", "predict_interval"):
        with pytest.raises(
            AttributeError, match=r"cp\(preds, alpha=0.1\), got predict"
        ):
            getattr(RULES["plain"][0], name)
    assert not hasattr(RULES["plain"][0], "fit")
