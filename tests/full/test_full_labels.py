"""Full conformal prediction of labels, by a refit with each label."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

import jaxcp
from jaxcp import learners, scores
from rows import refuses

KEY, LAC = jax.random.key(0), scores.LAC()
GOLDEN = Path(__file__).parents[1] / "reference" / "full_labels.npz"


def _count_fit(key, x, y, weights):
    return jnp.zeros((4, 3)).at[x, y].add(weights)


def _count_predict(table, x):
    return (table[x] + 1) / (jnp.sum(table[x], axis=1, keepdims=True) + 3)


# The share of a label among rows with the same input, of 4: exact, and full of ties.
COUNTS = learners.FunctionLearner(_count_fit, _count_predict)


def _newton(penalty, intercept_penalty, steps=30):
    """Returns multinomial logistic regression by Newton's method."""

    def loss(params, x, y, weights):
        logits = x @ params[:, :-1].T + params[None, :, -1]
        each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        pulls = penalty * jnp.sum(params[:, :-1] ** 2)
        pulls += intercept_penalty * jnp.sum(params[:, -1] ** 2)
        return jnp.sum(weights * each) + pulls / 2

    def fit(key, x, y, weights):
        shape = 3, x.shape[1] + 1
        flat = lambda v: loss(v.reshape(shape), x, y, weights)  # noqa: E731

        def step(v, _):
            return v - jnp.linalg.solve(jax.hessian(flat)(v), jax.grad(flat)(v)), None

        start = jnp.zeros(shape, x.dtype).ravel()
        return jax.lax.scan(step, start, None, steps)[0].reshape(shape)

    def predict(params, x):
        return jax.nn.softmax(x @ params[:, :-1].T + params[None, :, -1])

    return learners.FunctionLearner(fit, predict)


def _softmax(steps=20, **options):
    return learners.GradientLearner(
        init=lambda key: jnp.zeros((2, 3)),
        predict=lambda params, x: jax.nn.softmax(x @ params),
        loss=lambda pred, y: -jnp.log(pred[y]),
        optimizer=optax.sgd(1.0),
        num_steps=steps,
        **options,
    )


SOFTMAX = _softmax()


def _fit(learner, score, x, y, **options):
    return jaxcp.full_conformal(KEY, learner, score, x, y, **options)


def _p_values(cp, x_new, **rows):
    """Returns the p-value of every label at each input."""
    m = len(jax.tree.leaves(x_new)[0])
    each = [cp.p_values(x_new, jnp.full(m, c), **rows) for c in range(3)]
    return jnp.stack(each, axis=1)


def _counted(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, n), rng.integers(0, 3, n)


def _exact(x, y, x_new, label, mask=None, weights=None, test_weight=1, u=1):
    """Returns the p-value of `COUNTS` with 1 - p, in fractions."""
    n = len(y)
    mask = np.ones(n, bool) if mask is None else mask
    weights = np.ones(n, int) if weights is None else weights
    x, y = [*x[mask], x_new], [*y[mask], label]
    weights = [*map(Fraction, weights[mask]), Fraction(test_weight)]
    pairs, inputs = list(zip(x, y, strict=True)), list(x)
    p = [Fraction(pairs.count(z) + 1, inputs.count(z[0]) + 3) for z in pairs]
    above = sum(w for w, v in zip(weights[:-1], p[:-1], strict=True) if v < p[-1])
    equal = sum(w for w, v in zip(weights, p, strict=True) if v == p[-1])
    return (above + Fraction(u) * equal) / sum(weights)


def test_golden_of_a_multinomial_regression():
    with jax.enable_x64(True), np.load(GOLDEN) as golden:
        case = {name.split("__")[1]: golden[name] for name in golden}
        learner = _newton(case["penalty"].item(), case["intercept_penalty"].item())
        cp = _fit(learner, LAC, case["x"], case["y"])
        x_new, p = jnp.asarray(case["x_new"]), case["p_values"]
        assert_allclose(_p_values(cp, x_new), p, rtol=1e-9)
        for alpha in (0.05, 0.1, 0.3, 0.5):
            kept = p > alpha * (1 + 1e-9)
            assert_array_equal(cp(x_new, alpha).mask, kept)


@pytest.mark.parametrize("x64", [False, True])
def test_agrees_with_counting_in_fractions(x64):
    with jax.enable_x64(x64):
        for n in (0, 1, 24):
            x, y = _counted(n, n)
            cp = _fit(COUNTS, LAC, x, y, batch_size=3)
            x_new = jnp.arange(4)
            exact = [[_exact(x, y, z, c) for c in range(3)] for z in range(4)]
            p = _p_values(cp, x_new)
            assert_allclose(p, np.array(exact, float), rtol=1e-6)
            for alpha in (Fraction(1, 25), Fraction(1, 5), Fraction(1, 2)):
                kept = np.array([[v > alpha for v in row] for row in exact])
                mask = cp(x_new, alpha).mask
                assert_array_equal(mask, kept)


def test_mask_weights_and_uniforms_in_fractions():
    x, y = _counted(20, 3)
    mask, weights = np.arange(20) % 3 > 0, np.arange(20) % 4
    rows = {"calibration_weights": weights, "mask": mask}
    cp = _fit(COUNTS, LAC, x, y, **rows)
    labels, u = np.array([0, 1, 2, 1]), np.array([0.0, 0.25, 0.5, 1.0])
    test_weights = [1, 0, 3, 2]
    p = cp.p_values(jnp.arange(4), labels, u=u, test_weights=test_weights)
    given = zip(range(4), labels, test_weights, u, strict=True)
    exact = [_exact(x, y, z, c, mask, weights, w, u) for z, c, w, u in given]
    assert_allclose(p, np.array(exact, float), rtol=1e-6)
    for alpha in (0.1, 0.3, 0.5):
        given = zip(range(4), test_weights, strict=True)
        p = [[_exact(x, y, z, c, mask, weights, w) for c in range(3)] for z, w in given]
        kept = np.array([[v > alpha for v in row] for row in p])
        sets = cp(jnp.arange(4), alpha, test_weights=test_weights)
        assert_array_equal(sets.mask, kept)
    fewer = _fit(COUNTS, LAC, x[mask], y[mask])
    masked = _fit(COUNTS, LAC, x, np.where(mask, y, -1), mask=mask)
    both = (_p_values(cp, jnp.arange(4)) for cp in (masked, fewer))
    assert_array_equal(*both)


SCORES = {
    "lac": LAC,
    "aps": scores.APS(),
    "raps": scores.RAPS(0.01, 1),
    "top": scores.TopK(),
}


@pytest.mark.parametrize("name", SCORES)
def test_any_score_of_labels(name):
    score, (x, y) = SCORES[name], _counted(12, 5)
    cp = _fit(COUNTS, score, x, y)
    p = np.asarray(_p_values(cp, jnp.arange(4)))
    for z in range(4):
        for label in range(3):
            rows = np.append(x, z), np.append(y, label)
            preds = COUNTS.predict(COUNTS.fit(KEY, *rows, jnp.ones(13)), rows[0])
            each = np.asarray(jaxcp.calibrate(score, preds, rows[1]).scores)
            expected = np.mean(each >= each[-1] * (1 - 1e-6))
            assert_allclose(p[z, label], expected, rtol=1e-6)
    sets = cp(jnp.arange(4), 0.3)
    assert_array_equal(sets.mask, p > 0.3)


def test_randomized_scores_take_uniforms_from_the_inputs():
    x, y = _counted(12, 6)
    u = jaxcp.uniforms(KEY, 16)
    learner = learners.FunctionLearner(
        lambda key, x, y, weights: _count_fit(key, x[0], y, weights),
        lambda table, x: (_count_predict(table, x[0]), x[1]),
    )
    score = scores.APS(randomized=True)
    cp = _fit(learner, score, (x, u[:12]), y)
    new = jnp.arange(4), u[12:]
    p = _p_values(cp, new)
    assert_array_equal(cp(new, 0.3).mask, p > 0.3)
    assert p.shape == (4, 3) and len(np.unique(p)) > 3


def test_smoothed_p_values_are_uniform_and_sets_cover(key):
    def trial(key):
        key_x, key_y, key_u = jax.random.split(key, 3)
        x = jax.random.randint(key_x, (10,), 0, 2)
        y = jax.random.categorical(key_y, jnp.eye(3)[x])
        cp = _fit(COUNTS, LAC, x[:9], y[:9])
        u = jax.random.uniform(key_u, (1,))
        rows = x[9:], y[9:]
        return cp.p_values(*rows, u=u)[0], cp.p_values(*rows)[0]

    smooth, plain = jax.jit(jax.vmap(trial))(jax.random.split(key, 10_000))
    levels = np.array([0.05, 0.1, 0.25, 0.5, 0.8])
    errors = np.sqrt(levels * (1 - levels) / 10_000)
    below = np.mean(np.asarray(smooth)[:, None] <= levels, axis=0)
    assert np.all(abs(below - levels) < 4 * errors)
    assert np.all(
        np.mean(np.asarray(plain)[:, None] <= levels, axis=0) <= levels + 4 * errors
    )


def test_coverage_is_exact_without_ties(key):
    def trial(key):
        key_x, key_y = jax.random.split(key)
        x = jax.random.normal(key_x, (10, 2))
        y = jax.random.categorical(key_y, x @ jnp.array([[1.0, 0, -1], [0, 1, -1]]))
        cp = _fit(SOFTMAX, LAC, x[:9], y[:9])
        return cp(x[9:], 0.3).mask[0, y[9]]

    covered = np.asarray(jax.jit(jax.vmap(trial))(jax.random.split(key, 4000)))
    assert abs(np.mean(covered) - 0.7) < 4 * np.sqrt(0.21 / 4000)  # k/(n + 1) = 7/10


def test_repeated_rows_tie(key):
    x = jnp.repeat(jax.random.normal(key, (5, 2)), 4, axis=0)
    y = jnp.repeat(jnp.array([0, 1, 2, 1, 0]), 4)
    cp = _fit(SOFTMAX, LAC, x, y)
    p = cp.p_values(x[::4], y[::4])
    assert np.all(p * 21 > 4.9)  # the row and its four copies
    u = jnp.zeros(5)
    strict = cp.p_values(x[::4], y[::4], u=u)
    assert_allclose(sorted((p - strict) * 21), np.full(5, 5.0), rtol=1e-5)


def test_one_class_no_rows_and_few_rows():
    x, y = _counted(6, 1)
    one = _fit(COUNTS, LAC, x, 0 * y)
    p = _p_values(one, jnp.arange(4))
    assert np.all(p[:, 0] == 1) and np.all(p > 0)
    for n in (0, 1, 3):
        few = _fit(SOFTMAX, LAC, jnp.zeros((n, 2)), y[:n])
        sets = few(jnp.ones((2, 2)), 0.2)
        assert np.all(sets.mask)  # n < 1 / alpha - 1
    masked = _fit(COUNTS, LAC, x, y, mask=np.zeros(6, bool))
    assert np.all(_p_values(masked, jnp.arange(2)) == 1)
    assert one(jnp.arange(0), 0.2).mask.shape == (0, 3)


def test_nan_says_nothing_against_a_label(key):
    x, y = jax.random.normal(key, (30, 2)), jnp.arange(30) % 3
    cp = _fit(SOFTMAX, LAC, x, y)
    new = jnp.array([[jnp.nan, 0.0], [0.0, 0.0]])
    assert_array_equal(cp(new, 0.5).mask[0], [True] * 3)
    own = learners.FunctionLearner(  # NaN at the test point alone
        lambda key, x, y, weights: jnp.ones(3) / 3,
        lambda p, x: p[None] * jnp.where(jnp.isnan(x[:, :1]), jnp.nan, 1),
    )
    cp = _fit(own, LAC, x, y)
    assert np.all(_p_values(cp, new[:1]) == 1)


def test_names_of_none_of_the_labels():
    x, y = _counted(12, 2)
    names = np.array(["ape", "bee", "cat"])
    by_name = _fit(COUNTS, LAC, x, names[y], classes=names)
    with pytest.raises(ValueError, match="y among the classes 'ape', 'bee', 'cat'"):
        by_name.p_values(jnp.arange(2), ["cat", "dog"])


def test_blocks_agree(key):
    x, y = jax.random.normal(key, (15, 2)), jnp.arange(15) % 3
    new = jax.random.normal(jax.random.key(1), (5, 2))
    cp = _fit(SOFTMAX, LAC, x, y)
    for size in (1, 2, 3):
        parts = _fit(SOFTMAX, LAC, x, y, batch_size=size)
        sets = parts(new, 0.3)
        assert_array_equal(sets.mask, cp(new, 0.3).mask)


def test_other_answers_of_the_predictor():
    x, y = _counted(19, 4)
    cp = _fit(COUNTS, LAC, x, y)
    assert cp.certificate(0.1).coverage == 0.9  # k/(n + 1) = 18/20
    with pytest.raises(ValueError, match="got LAC, a score of labels"):
        cp.predictive(jnp.arange(2))
    with pytest.raises(ValueError, match=r"union=True with scores.Absolute.*got LAC"):
        cp(jnp.arange(2), 0.1, union=True)


def _refused(score=LAC, learner=SOFTMAX, **changes):
    rows = {"x": np.ones((6, 2)), "y": np.arange(6) % 3, **changes}
    return lambda: _fit(learner, score, **rows)


def _of_columns(k):
    return learners.FunctionLearner(
        lambda key, x, y, weights: jnp.zeros(()),
        lambda params, x: jnp.full((len(x), k) if k else len(x), 1 / max(k, 1)),
    )


REFUSED = {
    "label out of range": (_refused(y=np.arange(6)), r"0, \.\.\., 2, got 3"),
    "negative label": (_refused(y=np.arange(6) - 1), "got -1"),
    "labels as floats": (_refused(y=np.ones(6)), "integer type, got float32"),
    "names without classes": (_refused(y=list("abcabc")), "by name"),
    "two classes": (_refused(classes=["a", "b"], y=list("ababab")), "with 3 names"),
    "one column": (_refused(learner=_of_columns(1), y=np.zeros(6, int)), "one column"),
    "no columns": (_refused(learner=_of_columns(0)), "one column a label"),
    "logits": (
        _refused(
            learner=learners.FunctionLearner(
                lambda key, x, y, weights: jnp.zeros(()),
                lambda params, x: jnp.full((len(x), 3), -1.0),
            )
        ),
        "of logits",
    ),
    "uniforms": (_refused(scores.APS(randomized=True)), r"into x as well"),
    "inclusive": (_refused(scores.APS(inclusive=True)), "inclusive=False"),
    "mini-batches": (_refused(learner=_softmax(batch_size=4)), "batch"),
    "host model": (
        _refused(learner=learners.Estimator(LogisticRegression())),
        "learner of jax, got Estimator.*split_conformal or cv_plus",
    ),
    "a model": (
        _refused(learner=LogisticRegression()),
        "learner of jax, got LogisticRegression.*cv_plus, which takes",
    ),
    "batch of no points": (_refused(batch_size=0), "batch_size as an int >= 1"),
}


test_refuses = refuses(REFUSED)


def test_refuses_inputs_unlike_those_of_the_rows():
    cp = _refused()()
    with pytest.raises(ValueError, match=r"rows of shape \(2,\) like x, got \(3,\)"):
        cp(jnp.ones((4, 3)), 0.1)
    with pytest.raises(ValueError, match=r"0, \.\.\., 2, got 3 at 1"):
        cp.p_values(jnp.ones((2, 2)), [0, 3])
