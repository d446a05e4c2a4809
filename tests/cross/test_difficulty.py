"""The difficulty of rows, and groups by it: definitions, a peer, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import reference
from jaxcp import conditional, metrics, scores
from jaxcp.learners import Difficulty
from rows import refuses

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(200, 3)) * [1, 10, 0], RNG.normal(size=(30, 3)) * [1, 10, 0]
Y = X[:, 0] + X[:, 0] * RNG.normal(size=200)
ERRORS = Y - X[:, 0]


def neighbors(k):
    """By a loop over columns in [0, 1]: places and distances of the k nearest."""
    low, high = X.min(0), X.max(0)
    scaled = [
        np.clip((v - low) / np.where(high > low, high - low, 1), 0, 1) for v in (X, NEW)
    ]
    for row in scaled[1]:
        away = np.sqrt(((scaled[0] - row) ** 2).sum(axis=1))
        yield (near := np.argsort(away)[:k]), away[near]


@pytest.mark.parametrize("k", [1, 10, 200])
def test_nearest_rows_by_the_loop(k):
    knn = Difficulty("knn", num_neighbors=k, beta=0.5)
    expected = [
        (abs(ERRORS[near]).mean(), np.std(Y[near]), away.sum())
        for near, away in neighbors(k)
    ]
    for fitted, values in zip(
        (knn.fit(X, residuals=ERRORS), knn.fit(X, Y), knn.fit(X)),
        np.transpose(expected),
        strict=True,
    ):
        assert_allclose(fitted(NEW), values + 0.5, rtol=1e-9)
        assert fitted(NEW[:0]).shape == (0,)


@pytest.mark.parametrize("k", [7, 25])
def test_nearest_rows_of_crepes(k):
    case = reference("crepes_difficulty")
    knn = Difficulty("knn", num_neighbors=k)
    rows, new = case["x"], case["x_new"]
    by_residuals = knn.fit(rows, residuals=case["residuals"])
    assert_allclose(by_residuals(new), case[f"residuals_{k}"], atol=1e-6)
    assert_allclose(knn.fit(rows, case["y"])(new), case[f"targets_{k}"], atol=1e-6)
    assert_allclose(knn.fit(rows)(new), case[f"distances_{k}"], atol=1e-6)


class Member:
    def __init__(self, preds):
        self.preds = preds

    def predict(self, x):
        return self.preds


def test_spread_of_crepes():
    """A variance there, a standard deviation here: in units of the target."""
    case = reference("crepes_difficulty")
    spread = Difficulty("spread", [*map(Member, case["members"])]).fit(case["x"])
    found = (spread(case["x_new"]) - 0.01) ** 2
    assert_allclose(found + 0.01, case["variance"], atol=1e-6)


def test_bins_of_crepes():
    case = reference("crepes_difficulty")
    groups, edges = conditional.bins(case["residuals_25"], 5)
    assert_array_equal(groups, case["bins"])
    assert_allclose(edges, case["edges"], atol=1e-6)
    again, same = conditional.bins(case["residuals_7"], edges)
    assert_array_equal(again, case["bins_new"])
    assert_array_equal(same, edges)


def test_bins_hold_equally_many_rows_and_ties_stay_together():
    values = np.random.default_rng(1).normal(size=103)
    groups, edges = conditional.bins(values, 4)
    assert set(np.bincount(groups)) <= {25, 26}
    inside = (edges[groups] < values) & (values <= edges[groups + 1])
    assert inside.all()
    tied, edges = conditional.bins([1.0] * 8 + [2.0, 3.0], 5)
    assert_array_equal(tied, [0] * 8 + [1, 1])
    assert_array_equal(edges, [-np.inf, 1, np.inf])
    for k in (2, 3, 4, 8):  # ties at the top too: no bin is empty
        groups, edges = conditional.bins([1.0, 2, 2, 2, 3, 3, 3, 3], k)
        assert np.bincount(groups, minlength=len(edges) - 1).min() > 0
    for one in ([5.0, 5.0], [5.0]):
        assert_array_equal(conditional.bins(one, 3)[0], np.zeros(len(one), int))
    assert conditional.bins([], edges)[0].shape == (0,)
    assert_array_equal(conditional.bins(jnp.arange(6), 2)[0], [0, 0, 0, 1, 1, 1])


def test_models_and_ensembles_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    forests = pytest.importorskip("sklearn.ensemble")
    frames = pytest.importorskip("pandas")
    model = linear.LinearRegression()
    fitted = Difficulty("model", model, beta=0.1).fit(X[:, :2], residuals=ERRORS)
    assert not hasattr(model, "coef_")
    alone = linear.LinearRegression().fit(X[:, :2], abs(ERRORS))
    expected = np.maximum(alone.predict(NEW[:, :2]), 0) + 0.1
    assert_allclose(fitted(NEW[:, :2]), expected)
    forest = forests.RandomForestRegressor(5, random_state=0).fit(X, Y)
    spread = Difficulty("spread", forest).fit(X)
    expected = np.std([tree.predict(NEW) for tree in forest.estimators_], axis=0)
    assert_allclose(spread(NEW), expected + 0.01)
    frame = frames.DataFrame(NEW, columns=[*"abc"])
    assert_allclose(spread(frame), expected + 0.01)
    knn = Difficulty("knn").fit(frames.DataFrame(X, columns=[*"abc"]), residuals=ERRORS)
    assert_allclose(knn(frame), knn(NEW))
    with pytest.raises(ValueError, match=r"columns \('a', 'b', 'c'\) as in fit, got"):
        knn(frame[[*"cab"]])


class Line:
    """A model of difficulties that falls below 0."""

    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.asarray(x)[:, 0]


@pytest.mark.parametrize("beta", [0.01, 0.5])
def test_no_scale_is_below_beta(beta):
    """sigma = max(model(x), 0) + beta, whatever the model says."""
    fitted = Difficulty("model", Line(), beta=beta).fit(X, residuals=ERRORS)
    new = np.linspace(-2, 2, 9)[:, None] * np.ones(X.shape[1])
    assert_allclose(fitted(new), np.maximum(new[:, 0], 0) + beta)


@pytest.mark.parametrize("options", [{"bootstrap_features": True}, {"max_features": 2}])
def test_bags_whose_members_have_columns_of_their_own(options):
    forests = pytest.importorskip("sklearn.ensemble")
    sparse = pytest.importorskip("scipy.sparse")
    bag = forests.BaggingRegressor(n_estimators=4, random_state=0, **options).fit(X, Y)
    members = zip(bag.estimators_, bag.estimators_features_, strict=True)
    expected = np.std([one.predict(NEW[:, own]) for one, own in members], axis=0) + 0.01
    spread = Difficulty("spread", bag).fit(X)
    assert_allclose(spread(NEW), expected)
    assert_allclose(spread(sparse.csr_matrix(NEW)), expected)


@pytest.mark.parametrize("kind", ["knn", "bins"])
def test_it_covers_in_each_part_where_absolute_does_not(kind):
    """1 - alpha on average; near it for hard and easy rows, by sigma and by bins."""
    rng, n = np.random.default_rng(2), 4000
    x = rng.uniform(size=(3 * n, 1))
    error = (0.1 + x[:, 0]) * rng.normal(size=3 * n)
    train, old, new = (slice(i * n, (i + 1) * n) for i in range(3))
    knn = Difficulty("knn", num_neighbors=100).fit(x[train], residuals=error[train])
    sigma, zero = knn(x), np.zeros(3 * n)
    hard = (x[new, 0] > 0.5).astype(int)
    plain = jaxcp.calibrate(scores.Absolute(), zero[old], error[old])
    rates = metrics.group_coverage(
        plain(zero[new], 0.1), error[new], hard, num_groups=2
    )
    assert rates[0] > 0.97 > 0.85 > rates[1]
    if kind == "knn":
        score = scores.Normalized()
        cp = jaxcp.calibrate(score, (zero[old], sigma[old]), error[old])
        sets = cp((zero[new], sigma[new]), 0.1)
    else:
        _, edges = conditional.bins(sigma[train], 5)
        groups, _ = conditional.bins(sigma, edges)
        cp = jaxcp.calibrate_groups(
            scores.Absolute(), zero[old], error[old], groups[old], num_groups=5
        )
        sets = cp(zero[new], 0.1, groups=groups[new])
    slack = 4 * (0.1 * 0.9 / (n / 2) * 2) ** 0.5 + 0.01
    rates = metrics.group_coverage(sets, error[new], hard, num_groups=2)
    assert_allclose(rates, 0.9, atol=slack)


def test_saved_and_loaded(tmp_path):
    knn = Difficulty("knn", num_neighbors=5).fit(X, residuals=ERRORS)
    jaxcp.save(tmp_path / "value", knn)
    assert_array_equal(jaxcp.load(tmp_path / "value")(NEW), knn(NEW))


class _Ones:
    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.ones(len(x))


def test_rows_of_the_fit_are_refused():
    knn = Difficulty("knn").fit(X, residuals=ERRORS)
    for rows in (X, X[:5], X[::-1], np.concatenate([X[:40], NEW])):
        with pytest.raises(
            ValueError, match=r"not in the fit, got .* that were; fit to"
        ):
            knn(rows)
    mixed = np.concatenate([NEW, X[:20]])
    assert knn(mixed).shape == (50,)
    assert knn(X[:4]).shape == (4,)  # few rows may come again
    words = np.array([f"{v}" for v in range(200)], object)[:, None]
    words[-1] = "a word that is longer than all others"
    model = Difficulty("model", _Ones()).fit(words, residuals=ERRORS)
    with pytest.raises(ValueError, match="got 50 of 50 that were"):
        model(words[:50].astype(str))
    few = RNG.integers(0, 2, (200, 3))  # the values of which all rows have
    assert Difficulty("knn").fit(few, residuals=ERRORS)(few[:50]).shape == (50,)


BAD = np.where(np.arange(200) == 3, np.nan, Y)
WRONG = {
    "kind": (lambda: Difficulty("trees"), "kind as one of"),
    "beta": (lambda: Difficulty("knn", beta=0.0), "beta > 0, got 0.0"),
    "k": (lambda: Difficulty("knn", num_neighbors=0), "num_neighbors as an int"),
    "no model": (lambda: Difficulty("model"), "a model with fit"),
    "no ensemble": (
        lambda: Difficulty("spread", X),
        "ensemble with a list estimators_",
    ),
    "not fitted": (lambda: Difficulty("knn")(NEW), r"what fit\(x, ...\) returns as a"),
    "few rows": (
        lambda: Difficulty("knn").fit(X[:9]),
        "number of rows as an int >= 25",
    ),
    "one axis": (
        lambda: Difficulty("knn").fit(Y),
        r"x of shape \(n, p\), got \(200,\)",
    ),
    "NaN": (lambda: Difficulty("knn").fit(X, BAD), "finite y, got nan at 3"),
    "NaN in x": (lambda: Difficulty("knn").fit(X * np.nan), "finite x, got nan"),
    "lengths": (
        lambda: Difficulty("knn").fit(X, residuals=Y[:9]),
        r"residuals of shape \(200,\), got \(9,\)",
    ),
    "a model that was seen": (
        lambda: Difficulty("knn").fit(X, residuals=0 * Y),
        "that the model did not see, got 0 in all; .*cross_val_predict",
    ),
    "other columns": (
        lambda: Difficulty("knn").fit(X, Y)(NEW[:, :2]),
        r"x of shape \(30, 3\), got \(30, 2\)",
    ),
    "traced": (
        lambda: jax.jit(Difficulty("knn").fit(X, Y))(NEW),
        "expected Difficulty outside of jit",
    ),
    "k of bins": (lambda: conditional.bins(Y, 0), "k as an int >= 1"),
    "no values": (lambda: conditional.bins([], 2), "number of values as an int >= 1"),
    "NaN in bins": (lambda: conditional.bins(BAD, 2), "finite values, got nan at 3"),
    "falling edges": (lambda: conditional.bins(Y, [1.0, 0.0]), "edges that rise"),
    "edges with an end": (
        lambda: conditional.bins(Y, [0.0, 1.0, 2.0]),
        r"rise from -inf to inf, got \[0\. 1\. 2\.\]",
    ),
    "no edges": (lambda: conditional.bins(Y, []), "edges that rise"),
    "edges in text": (lambda: conditional.bins(Y, ["a", "b"]), "k as numbers, got <U1"),
    "edges of two axes": (lambda: conditional.bins(Y, np.ones((2, 2))), "k of shape"),
    "traced edges": (
        lambda: jax.jit(lambda k: conditional.bins(Y, k))(np.arange(3.0)),
        "k with numbers, got a traced",
    ),
    "text": (lambda: Difficulty("knn").fit(X, ["a"] * 200), "y as numbers, got <U1"),
    "no members": (lambda: Difficulty("spread", []), "a list of models, got list"),
    "no models": (lambda: Difficulty("spread", [1, 2]), "a list of models, got list"),
    "an infinite beta": (lambda: Difficulty("knn", beta=np.inf), "beta > 0"),
    "traced bins": (lambda: jax.jit(conditional.bins)(Y, 2), "got a traced array"),
}


test_what_is_refused = refuses(WRONG)
