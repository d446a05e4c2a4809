"""What users write themselves, as they would: no more than what is public."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from own import SAPS

import jaxcp
from helpers import labels_of
from jaxcp import learners, online, risk, scores, sets, training

N, M, K, PENALTY = 99, 400, 6, 0.2


def label_rows(seed, n):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(K), n).astype(np.float32)
    y = np.array([rng.choice(K, p=row / row.sum()) for row in p.astype(float)])
    return (p, rng.uniform(size=n).astype(np.float32)), y


OLD, NEW = label_rows(0, N), label_rows(1, M)
SCORE = SAPS(PENALTY)


def saps(p, u, penalty):
    """The same in a loop over rows and labels."""
    out = np.zeros(p.shape)
    for i, row in enumerate(p):
        for rank, label in enumerate(np.argsort(-row, kind="stable"), start=1):
            further = row.max() + (rank - 2 + u[i]) * penalty
            out[i, label] = u[i] * row.max() if rank == 1 else further
    return out


def test_a_score_of_labels_is_that_of_a_loop():
    """With a threshold, or one for each class; else a row of the laws (`own.OWN`)."""
    own, new = saps(*OLD[0], PENALTY), saps(*NEW[0], PENALTY)
    assert_allclose(labels_of(SCORE, OLD[0]), own, rtol=1e-5)
    mine, groups = own[np.arange(N), OLD[1]], {"groups": OLD[1], "num_groups": K}
    by_class = jaxcp.calibrate_groups(SCORE, *OLD, **groups)
    each = [jaxcp.conformal_quantile(mine[OLD[1] == c], 0.4) for c in range(K)]
    for cp, q in (
        (jaxcp.calibrate(SCORE, *OLD), jaxcp.conformal_quantile(mine, 0.4)),
        (by_class, np.array(each)),
    ):
        assert_allclose(cp.quantile(0.4), q, rtol=1e-5)
        clear = ~(abs(new - q) <= 1e-5)
        mask = np.asarray(cp(NEW[0], 0.4).mask)
        assert_array_equal(mask[clear], (new <= q)[clear])


def test_a_score_of_labels_joins_cross_conformal_prediction(key):
    """A model that mixes a base rate, which it learns, into given probabilities."""

    def fit(key, x, y, weights):
        counts = jnp.sum(weights[:, None] * jax.nn.one_hot(y, K), axis=0) + 1
        return counts / jnp.sum(counts)

    def predict(params, x):
        p, u = x
        return 0.5 * (p + params[None]), u

    learner = learners.FunctionLearner(fit, predict)
    x, y = jax.tree.map(jnp.asarray, OLD)
    cp = jaxcp.cv_plus(key, learner, SCORE, x, y, num_folds=3)
    mask = np.asarray(cp(NEW[0], 0.1).mask)
    assert mask.shape == (M, K)
    assert mask[np.arange(M), NEW[1]].mean() > 0.75  # 1 - 2 alpha, less slack


def test_a_score_of_labels_can_be_trained_with():
    (p, u), y = jax.tree.map(jnp.asarray, OLD)

    def loss(logits):
        preds = jax.nn.softmax(logits), u
        halves = [jax.tree.map(lambda v, s=s: v[s::2], preds) for s in (0, 1)]
        return training.conformal_training_loss(
            SCORE, halves[0], y[::2], halves[1], 0.1, temperature=0.1
        )

    value, slope = jax.value_and_grad(loss)(jnp.log(p + 1e-3))
    assert jnp.isfinite(value) and jnp.all(jnp.isfinite(slope)) and jnp.any(slope)
    trained = training.train_score(
        jax.random.key(0),
        SCORE,
        (p, u),
        y,
        0.1,
        temperature=0.1,
        optimizer=optax.sgd(0.01),
        num_steps=2,
    )
    assert isinstance(trained, SAPS) and jnp.isfinite(trained.penalty)


def test_a_score_of_labels_is_checked_by_what_it_takes():
    (p, u), y = OLD
    for preds, target, message in [
        (p, y, r"a pair \(probabilities \(n, k\), uniforms \(n,\)\)"),
        ((2 * p, u), y, "sum to 1 in each row"),
        ((p, u + 1), y, r"uniforms in \[0, 1\]"),
        ((p, u), y + 1, "y in 0, ..., 5, got 6"),
    ]:
        with pytest.raises(ValueError, match=message):
            jaxcp.calibrate(SCORE, preds, target)
    with pytest.raises(ValueError, match=r"rows of shape \(6,\), \(\) as at calibr"):
        jaxcp.calibrate(SCORE, *OLD)(
            (p[:, :5] / p[:, :5].sum(1, keepdims=True), u), 0.1
        )


# What is no score, and what the message says of it
NO_SCORES = {
    "None": lambda pred, y: None,  # a return that was forgotten
    "str": lambda pred, y: "far",
    "list": lambda pred, y: [pred - y, y - pred],
    "tuple": lambda pred, y: (pred - y,),
    "complex64": lambda pred, y: 1j * (pred - y),
    r"\(2, 2\)": lambda pred, y: jnp.full((2, 2), pred - y),
    r"\(0,\)": lambda pred, y: jnp.zeros(0),
}


@jaxcp.pytree
class Plain:
    evaluate: object = jaxcp.static()

    def __call__(self, pred, y):
        return self.evaluate(pred, y)

    def invert(self, pred, q):
        return sets.Interval(pred - q, pred + q)


def doors(score):
    """Every verb that evaluates a score of the user."""
    key, x, preds, y = jax.random.key(0), np.ones((9, 1)), np.zeros(9), np.arange(9.0)
    ridge, method = learners.Ridge(1.0), online.ACI(score, 0.1)
    yield lambda: jaxcp.calibrate(score, preds, y)
    yield lambda: jax.jit(lambda v: jaxcp.calibrate(score, v, y).scores)(preds)
    yield lambda: jaxcp.calibrate_groups(score, preds, y, y == 0)
    yield lambda: jaxcp.Calibration(score, jnp.asarray(y)).p_values(preds, y)
    yield lambda: scores.check(score, preds, y)
    yield lambda: jaxcp.cv_plus(key, ridge, score, x, y, num_folds=3)
    yield lambda: online.run(method, method.init(y, 0.1), preds, y, 0.1)
    if isinstance(score, Plain):  # of a level set there are no intervals
        yield lambda: jaxcp.discretized_conformal(key, ridge, score, x, y, y)
    else:
        yield lambda: score.invert(preds[0], 1.0).contains(1.0)
        around = scores.Custom(score.evaluate, start=lambda pred: pred)
        yield lambda: jaxcp.calibrate(around, preds, y)


@pytest.mark.parametrize("kind", [scores.Custom, Plain])
@pytest.mark.parametrize("found", NO_SCORES)
def test_what_is_no_score_is_refused_wherever_it_is_evaluated(found, kind):
    expected = rf"expected score\(pred, y\) of shape \(\) or \(c,\), got {found}"
    for door in doors(kind(NO_SCORES[found])):
        with pytest.raises(ValueError, match=expected):
            door()


NO_LABELS = {
    "None": lambda p: None,
    "str": lambda p: "far",
    "list": lambda p: [1.0, 2.0, 3.0],
    "complex64": lambda p: 1j * p,
    r"\(\)": jnp.sum,
    r"\(6, 6\)": lambda p: jnp.outer(p, p),
}


@jaxcp.pytree
class Labels(scores.Labelwise):
    evaluate: object = jaxcp.static()
    takes = scores.inputs.probabilities()

    def labels(self, pred):
        return self.evaluate(pred)


@pytest.mark.parametrize("found", NO_LABELS)
def test_what_are_no_scores_of_labels_is_refused(found):
    ((p, _), y), score = OLD, Labels(NO_LABELS[found])
    for door in [
        lambda: jaxcp.calibrate(score, p, y),
        lambda: jaxcp.calibrate(score, p, y, classes=range(K)),
        lambda: jaxcp.Calibration(score, jnp.asarray(p[:, 0]))(p, 0.1),
        lambda: jaxcp.Calibration(score, jnp.asarray(p[:, 0])).p_values(p, y),
        lambda: risk.calibrate_risk(risk.miscoverage, score, p, y),
        lambda: scores.check(score, p, y),
    ]:
        with pytest.raises(ValueError, match=rf"labels\(pred\) of .*, got {found}"):
            door()
