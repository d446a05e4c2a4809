"""Groups where a model is: `split_conformal` and `split_conformal_fit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression, LogisticRegression

import jaxcp
from helpers import loaded, same
from jaxcp import learners, scores
from rows import refuses

N, ALPHA, KEY = 40, 0.2, jax.random.key(0)
ABSOLUTE, LAC, RIDGE = scores.Absolute(), scores.LAC(), learners.Ridge(0.3)
X, Y = map(np.asarray, jaxcp.datasets.linear(jax.random.key(1), N, num_features=3))
OF_ROW = np.arange(N) % 5 % 3
WORDS = np.array(["ash", "bee", "cat"])
FRAME = pd.DataFrame({"place": WORDS[OF_ROW], "kind": WORDS[::-1][OF_ROW]})
SLOPES = np.array([1.0, 0.5, 0.0], "f")


def predict(slopes, x):
    return x @ slopes


def split(groups=None, x=X, y=Y, score=ABSOLUTE, **options):
    return jaxcp.split_conformal(predict, SLOPES, score, x, y, groups=groups, **options)


def fit(groups, learner=RIDGE, y=Y, score=ABSOLUTE, key=KEY, **options):
    given = key, learner, score, X, y
    return jaxcp.split_conformal_fit(*given, share=0.5, groups=groups, **options)


GIVEN = {
    "none": (None, {}),
    "numbers": (OF_ROW, {"num_groups": 4}),
    "words": (WORDS[OF_ROW], {}),
    "categories": (FRAME.place.astype("category"), {}),
    "with an unseen one": (WORDS[OF_ROW], {"group_names": [*WORDS, "dew"]}),
    "that share": (OF_ROW, {"num_groups": 3, "min_size": 10}),
    "weights and a mask": (
        OF_ROW,
        {"num_groups": 3, "weights": np.ones(N, "f"), "mask": OF_ROW + Y > 0},
    ),
}


@pytest.mark.parametrize("groups, options", GIVEN.values(), ids=GIVEN)
def test_a_model_is_its_predictions(groups, options, tmp_path):
    """To the last bit, for sets, thresholds, p-values, laws, levels and files."""
    cp = split(groups, **options)
    preds = predict(SLOPES, X)
    known = {} if groups is None else {"groups": groups}
    verb = jaxcp.calibrate_groups if known else jaxcp.calibrate
    of = verb(ABSOLUTE, preds, Y, **known, **options)
    own = {k: np.asarray(v) for k, v in known.items()}
    for one in (cp, loaded(cp, tmp_path, predict=predict)):
        same(one(X, ALPHA, **own), of(preds, ALPHA, **own))
        same(one.quantile(ALPHA), of.quantile(ALPHA))
        same(one.p_values(X, Y, **own), of.p_values(preds, Y, **own))
        same(one.at(ALPHA)(X, **own), of(preds, ALPHA, **own))
    if not options.keys() & {"weights", "min_size"}:
        assert cp.certificate(ALPHA) == of.certificate(ALPHA)
        sure = of(preds, ALPHA, delta=0.1, **own)
        same(cp(X, ALPHA, delta=0.1, **own), sure)


@pytest.mark.parametrize("learner", [RIDGE, learners.Estimator(LinearRegression())])
def test_rows_held_out_take_their_groups_along(learner):
    cp = fit(WORDS[OF_ROW], learner, group_names=[*WORDS, "dew"], min_size=5)
    plain = fit(None, learner)
    found = cp.calibration
    assert_array_equal(cp.scores, plain.scores)
    residuals = abs(np.asarray(plain.predict(plain.params, X)) - Y)
    rows = [np.argmin(abs(residuals - s)) for s in np.asarray(cp.scores)]
    assert_array_equal(found.groups, OF_ROW[rows])
    of = jaxcp.GroupCalibration(
        ABSOLUTE, plain.scores, found.groups, None, 4, min_size=5
    )
    same(cp.quantile(ALPHA), of.quantile(ALPHA))
    assert found.group_names == (*WORDS, "dew")
    by_number = fit(OF_ROW, learner, num_groups=4, min_size=5)
    same(by_number.quantile(ALPHA), cp.quantile(ALPHA))
    sets = cp(X, ALPHA, groups=WORDS[OF_ROW])
    same(by_number(X, ALPHA, groups=OF_ROW), sets)


def test_the_groups_of_a_fit_are_those_of_its_rows():
    """The learner predicts 0, so that scores are targets, which say the group."""
    zero = learners.FunctionLearner(
        lambda key, x, y, w: jnp.zeros(()), lambda p, x: p + jnp.zeros(len(x))
    )
    cp = fit(OF_ROW, zero, y=np.arange(1.0, N + 1), num_groups=3)
    rows = np.asarray(cp.scores).astype(int) - 1
    assert_array_equal(cp.calibration.groups, OF_ROW[rows])


def test_classes_are_groups():
    labels = WORDS[np.digitize(Y, [-0.5, 0.5])]
    learner = learners.Estimator(LogisticRegression())
    cp = fit(labels, learner, labels, LAC)
    assert cp.calibration.group_names == cp.calibration.classes == tuple(WORDS)
    assert cp(X, ALPHA).mask.shape == (N, 3)
    assert cp.p_values(X, labels).shape == (N,)


def test_jit_and_vmap():
    def upper(key, penalty, groups):
        learner = learners.Ridge(penalty)
        cp = fit(groups, learner, key=key, num_groups=3, min_size=5)
        return cp(X[:5], ALPHA, groups=groups[:5]).upper

    keys, groups = jax.random.split(KEY, 3), jnp.asarray(OF_ROW)
    expected = jnp.stack([upper(key, 0.3, groups) for key in keys])
    assert_allclose(jax.jit(upper)(keys[0], 0.3, groups), expected[0], rtol=1e-5)
    mapped = jax.vmap(upper, (0, None, None))(keys, 0.3, groups)
    assert_allclose(mapped, expected, rtol=1e-5)
    finite = lambda p: jnp.nan_to_num(upper(KEY, p, groups), posinf=0).sum()  # noqa: E731
    assert jnp.isfinite(jax.grad(finite)(0.3))


def test_coverage_in_each_group_of_a_fit():
    """A model that is wrong for one group: within four standard errors in each."""

    @jax.jit
    @jax.vmap
    def covered(key):
        key_data, key_fit = jax.random.split(key)
        x, y = jaxcp.datasets.linear(key_data, 41, num_features=2)
        y = y * jnp.where(jnp.arange(41) % 2 == 0, 1.0, 5.0)
        groups = jnp.arange(41) % 2
        data = x[:39], y[:39]
        given = {"share": 0.5, "groups": groups[:39], "num_groups": 2}
        cp = jaxcp.split_conformal_fit(key_fit, RIDGE, ABSOLUTE, *data, **given)
        return cp(x[39:], ALPHA, groups=groups[39:]).contains(y[39:])

    num_sets = 4000
    found = np.asarray(covered(jax.random.split(jax.random.key(3), num_sets)))
    assert np.all(found.mean(0) >= 1 - ALPHA - 4 * np.sqrt(0.16 / num_sets))


CP = split(WORDS[OF_ROW])
MISSING = pd.Categorical([*WORDS[OF_ROW][1:], None])
REFUSED = {
    "a number alone": (
        lambda: split(num_groups=3),
        "groups with num_groups, got None",
    ),
    "names alone": (
        lambda: split(group_names=WORDS),
        "groups with group_names, got None",
    ),
    "a size alone": (
        lambda: split(min_size=3),
        "groups with min_size, got None",
    ),
    "of a fit": (
        lambda: fit(None, min_size=3),
        "groups with min_size, got None",
    ),
    "no number": (
        lambda: split(OF_ROW),
        "num_groups with groups 0, ..., num_groups - 1",
    ),
    "lengths of a fit": (lambda: fit(WORDS), "groups with 40 rows like y, got 3"),
    "a group beyond": (lambda: fit(OF_ROW, num_groups=2), "groups in 0, ..., 1, got 2"),
    "missing categories": (lambda: split(MISSING), "groups without missing ones"),
    "those of a fit": (lambda: fit(MISSING), "groups without missing ones"),
    "an unseen group": (
        lambda: CP(X[:1], ALPHA, groups=["dew"]),
        r"got 'dew' at 0; group_names=\[...\] at calibration can name it: its sets are "
        "infinite, or with min_size= those of small groups",
    ),
    "two columns": (
        lambda: split(FRAME),
        r"a frame of the columns place, kind; groups.astype\(str\).agg\(' '.join",
    ),
    "two columns of a fit": (lambda: fit(FRAME), "frame of the columns place, kind"),
    "two columns, asked": (lambda: CP(X, ALPHA, groups=FRAME), "frame of the columns"),
    "an array of two": (
        lambda: split(FRAME.to_numpy()),
        r"groups of shape \(n,\), got \(40, 2\)",
    ),
    "no groups asked": (
        lambda: CP(X, ALPHA),
        "the group of each test point, got group",
    ),
}
test_wrong_calls = refuses(REFUSED)
