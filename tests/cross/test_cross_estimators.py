"""Models of other libraries in the cross family: forests, pipelines, classifiers."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import jaxcp
from helpers import composes, same
from jaxcp import learners, metrics, online, resampling, scores
from jaxcp.learners import Estimator
from jaxcp.sets import Box
from rows import refuses

KEY, ABSOLUTE, ALPHA = jax.random.key(0), scores.Absolute(), 0.2
RNG = np.random.default_rng(1)
X = RNG.normal(size=(60, 3))
Y = X.sum(axis=1) + RNG.normal(size=60)
NEW = RNG.normal(size=(7, 3))
FOLDS = RNG.permutation(np.arange(60) % 5)
FOREST = RandomForestRegressor(5, random_state=0)
LINEAR = Estimator(LinearRegression())
VERBS = {
    "cross": lambda *args: jaxcp.cross_conformal(
        *args, resampling.subsample(KEY, len(args[-1]), 9, 12)
    ),
    "jackknife+": jaxcp.jackknife_plus,
    "cv+": lambda *args: jaxcp.cv_plus(*args, num_folds=4),
    "bootstrap": lambda *args: jaxcp.jackknife_plus_after_bootstrap(
        *args, num_resamples=9
    ),
    "enbpi": lambda *args: jaxcp.enbpi(*args, num_resamples=9, block_size=4),
}
each_verb = pytest.mark.parametrize("name", VERBS)


def cv_plus_by_hand(model, x, y, folds, new, alpha):
    """Barber et al. 2021, eq. (3.5): CV+ as the paper writes it, and as MAPIE does."""
    ends, n = [], len(y)
    for fold in np.unique(folds):
        held = folds == fold
        fitted = sklearn.base.clone(model).fit(x[~held], y[~held])
        error = np.abs(y[held] - fitted.predict(x[held]))
        preds = fitted.predict(new)
        ends.append((preds[:, None] - error[None], preds[:, None] + error[None]))
    lower, upper = (
        np.sort(np.concatenate(v, axis=1), axis=1) for v in zip(*ends, strict=True)
    )
    k = n + 1 - int(np.floor(alpha * (n + 1) + 1e-9))
    return lower[:, n - k], upper[:, k - 1]


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.35])
def test_cv_plus_of_a_forest_is_that_of_the_paper(alpha):
    cp = jaxcp.cv_plus(KEY, Estimator(FOREST), ABSOLUTE, X, Y, folds=FOLDS)
    sets = cp(NEW, alpha)
    lower, upper = cv_plus_by_hand(FOREST, X, Y, FOLDS, NEW, alpha)
    assert_allclose(sets.lower, lower, rtol=1e-6, atol=1e-6)
    assert_allclose(sets.upper, upper, rtol=1e-6, atol=1e-6)
    assert len(cp.fits.models) == 5


@each_verb
def test_ridge_of_scikit_learn_is_that_of_jax(name):
    other = Estimator(sklearn.linear_model.Ridge(alpha=0.7))
    own = learners.Ridge(0.7)
    x, y = X.astype(np.float32), Y.astype(np.float32)
    host, device = (VERBS[name](KEY, v, ABSOLUTE, x, y) for v in (other, own))
    assert_allclose(host.scores, device.scores, rtol=1e-5, atol=1e-5)
    new = NEW.astype(np.float32)
    for use in ("__call__", "minmax", "naive"):
        one, two = (getattr(cp, use)(new, ALPHA) for cp in (host, device))
        same(one, two, rtol=1e-5)
    preds = [cp.aggregate(new) for cp in (host, device)]
    assert_allclose(*preds, rtol=1e-5, atol=1e-5)
    assert_array_equal(host.mask is None, device.mask is None)


@each_verb
def test_recorded_predictions_give_the_same(name):
    cp = VERBS[name](KEY, Estimator(FOREST), ABSOLUTE, X, Y)
    fits = cp.fits.fitted
    preds = cp.fits.learner.predict_all(fits, X)
    recorded = jaxcp.cross_calibrate(ABSOLUTE, preds, Y, fits.weights == 0)
    assert_array_equal(recorded.scores, cp.scores)
    new = np.stack([model.predict(NEW) for model in cp.fits.models])
    same(recorded(new, ALPHA), cp(NEW, ALPHA))


@each_verb
def test_the_key_gives_folds_and_seeds(name):
    forest = RandomForestRegressor(3)
    runs = [
        VERBS[name](key, Estimator(forest, num_workers=k), ABSOLUTE, X[:20], Y[:20])
        for key, k in [(KEY, 1), (KEY, 2), (jax.random.key(1), 1)]
    ]
    assert_array_equal(runs[0].scores, runs[1].scores)
    assert not np.array_equal(runs[0].scores, runs[2].scores)


def test_pipelines_on_frames():
    frame = pd.DataFrame(X, columns=list("abc"), index=RNG.permutation(60) + 100)
    frame["site"] = np.where(X[:, 0] > 0, "north", "south")
    columns = make_column_transformer(
        (StandardScaler(), ["a", "b", "c"]), (OneHotEncoder(), ["site"])
    )
    learner = Estimator(make_pipeline(columns, LinearRegression()))
    y = pd.Series(Y, index=frame.index)
    cp = jaxcp.cv_plus(KEY, learner, ABSOLUTE, frame[:50], y[:50], num_folds=5)
    sets = cp(frame[50:], ALPHA)
    assert sets.lower.shape == (10,)
    plain = jaxcp.cv_plus(
        KEY, LINEAR, ABSOLUTE, np.c_[X, X[:, 0] > 0][:50], Y[:50], num_folds=5
    )
    assert_allclose(
        sets.upper, plain(np.c_[X, X[:, 0] > 0][50:], ALPHA).upper, rtol=1e-4
    )
    assert cp(frame[:0], ALPHA).lower.shape == (0,)
    assert cp(frame[:1], ALPHA).lower.shape == (1,)


def test_classifiers_give_label_sets():
    labels = np.digitize(Y, [-0.7, 0.7])
    learner = Estimator(LogisticRegression())
    cp = jaxcp.cv_plus(KEY, learner, scores.LAC(), X, labels, folds=FOLDS)
    held = np.zeros(60)
    for fold in range(5):
        own = fold == FOLDS
        model = LogisticRegression().fit(X[~own], labels[~own])
        held[own] = 1 - model.predict_proba(X[own])[np.arange(own.sum()), labels[own]]
    assert_allclose(cp.scores, held, atol=1e-6)
    names = np.array(["low", "mid", "top"])[labels]
    for y in (names, pd.Series(names).astype("category"), names.tolist()):
        named = jaxcp.cv_plus(KEY, learner, scores.LAC(), X, y, folds=FOLDS)
        assert_array_equal(named.scores, cp.scores)
        assert named(NEW, ALPHA).labels() == cp(NEW, ALPHA).labels(np.unique(names))
    assert metrics.coverage(cp(X, ALPHA), labels) > 0.7


def test_folds_may_be_words():
    words = np.array(["south", "east", "west", "north", "sea"])[FOLDS]
    expected = jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, Y, folds=FOLDS)
    kinds = words, words.tolist(), pd.Series(words), pd.Series(words).astype("category")
    for folds in kinds:
        cp = jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, Y, folds=folds)
        assert_array_equal(cp.scores, expected.scores)
        assert len(cp.fits.models) == 5


def folds_of(fold):
    return fold == FOLDS


def test_two_quantile_models_give_cqr():
    pair = [
        GradientBoostingRegressor(loss="quantile", alpha=level, n_estimators=5)
        for level in (0.1, 0.9)
    ]
    learner = Estimator(pair)
    cp = jaxcp.jackknife_plus_after_bootstrap(
        KEY, learner, scores.CQR(), X, Y, num_resamples=6
    )
    sets = cp(NEW, ALPHA)
    assert sets.lower.shape == (7,)
    assert jnp.all(sets.lower < sets.upper)
    low, high = cp.fits.models[0]
    assert (low.alpha, high.alpha) == (0.1, 0.9)


def test_several_outputs_give_boxes():
    y = np.stack([Y, X[:, 0] - Y], axis=1)
    cp = jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, y, folds=FOLDS)
    sets = cp(NEW, ALPHA)
    assert isinstance(sets, Box)
    assert sets.lower.shape == (7, 2)
    column = jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, y[:, 1], folds=FOLDS)
    assert_allclose(column(NEW, ALPHA / 2).upper, sets.upper[:, 1], rtol=1e-5)
    band = lambda model, x: (model.predict(x) - 1, model.predict(x) + 1)  # noqa: E731
    wide = Estimator(LinearRegression(), predict=band)
    rectangle = jaxcp.cv_plus(KEY, wide, scores.Rectangle(), X, y, folds=FOLDS)
    assert rectangle(NEW, ALPHA).lower.shape == (7, 2)


def test_the_full_fit_is_made_for_naive_alone():
    counts = []

    class Counted(LinearRegression):
        def fit(self, X, y):
            counts.append(len(y))
            return super().fit(X, y)

    cp = jaxcp.cv_plus(KEY, Estimator(Counted()), ABSOLUTE, X, Y, folds=FOLDS)
    cp(NEW, ALPHA), cp.minmax(NEW, ALPHA), cp.aggregate(NEW)
    assert counts == [48] * 5
    sets = cp.naive(NEW, ALPHA)
    cp.naive(NEW, ALPHA)
    assert counts == [48] * 5 + [60]
    middle = LinearRegression().fit(X, Y).predict(NEW)
    assert_allclose((sets.lower + sets.upper) / 2, middle, rtol=1e-5, atol=1e-6)


def test_enbpi_of_a_forest_goes_on_as_a_stream():
    cp = jaxcp.enbpi(KEY, Estimator(FOREST), ABSOLUTE, X, Y, num_resamples=4)
    assert cp.mask is not None  # some rows are in every bag
    method, state = cp.stream(every=3)
    preds, y = cp.aggregate(NEW), jnp.arange(7.0)
    _, sets = online.run(method, state, preds, y, ALPHA)
    window = online.SlidingWindow(ABSOLUTE, every=3)
    state = window.init(cp.scores, ALPHA, mask=cp.mask)
    _, expected = online.run(window, state, preds, y, ALPHA)
    assert_array_equal(sets.upper, expected.upper)
    narrow = cp.calibration.stream(empirical=True)[0]
    assert narrow.empirical
    assert narrow.every == 1


def test_ensembles_of_models_are_kept_by_pickle():
    cp = jaxcp.cv_plus(KEY, Estimator(FOREST), ABSOLUTE, X, Y, num_folds=3)
    again = pickle.loads(pickle.dumps(cp))
    for use in ("__call__", "naive"):
        same(getattr(again, use)(NEW, ALPHA), getattr(cp, use)(NEW, ALPHA))


def test_a_failed_fit_goes_on():
    class Memory(LinearRegression):
        def fit(self, X, y):
            if Y[FOLDS == 3][0] not in y:
                raise MemoryError("none left")
            return super().fit(X, y)

    run = lambda learner: jaxcp.cv_plus(KEY, learner, ABSOLUTE, X, Y, folds=FOLDS)  # noqa: E731
    with pytest.raises(learners.FitError, match="resample 3 of 0") as error:
        run(Estimator(Memory()))
    cp = run(LINEAR.resume(error.value.fits))
    assert_array_equal(cp.scores, run(LINEAR).scores)
    assert cp.fits.models[0] is error.value.fits.models[0]


def test_scores_that_cannot_be_lose_no_fit():
    weights = {"calibration_weights": np.ones(59)}
    with pytest.raises(ValueError, match="weights") as error:
        jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, Y, folds=FOLDS, **weights)
    learner = LINEAR.resume(error.value.fits)
    cp = jaxcp.cv_plus(KEY, learner, ABSOLUTE, X, Y, folds=FOLDS)
    assert cp.fits.models[0] is error.value.fits.models[0]


TRACED = {
    "x": (lambda v: jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, v, Y, num_folds=3).scores, X),
    "y": (lambda v: jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, v, num_folds=3).scores, Y),
    "key": (
        lambda key: jaxcp.cv_plus(key, LINEAR, ABSOLUTE, X, Y, num_folds=3).scores,
        KEY,
    ),
    "nothing": (
        lambda v: v * jaxcp.jackknife_plus(KEY, LINEAR, ABSOLUTE, X, Y).scores,
        1.0,
    ),
    "new inputs": (
        lambda v: jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, Y, num_folds=3)(v, 0.1).upper,
        NEW,
    ),
    "part": (
        lambda v: (
            jaxcp.split_conformal_fit(KEY, LINEAR, ABSOLUTE, v, Y, share=0.5).scores
        ),
        X,
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_inside_of_programs_one_sentence_names_the_cure(name):
    function, value = TRACED[name]
    with pytest.raises(ValueError, match=r"give those to jaxcp.cross_calibrate"):
        jax.jit(function)(value)
    if name not in ("key", "nothing"):
        with pytest.raises(ValueError, match=r"give those to jaxcp.cross_calibrate"):
            jax.vmap(function)(jnp.asarray(value)[None])


def test_check_tries_one_fit():
    learners.check(LINEAR, X, Y)
    learners.check(Estimator(LogisticRegression()), X, np.where(Y > 0, "a", "b"))
    with pytest.raises(learners.FitError, match="resample 0 of 0"):
        learners.check(LINEAR, X[:, :0], Y)
    with pytest.raises(ValueError, match="number of rows as an int >= 2, got 1"):
        learners.check(LINEAR, X[:1], Y[:1])
    with pytest.raises(ValueError, match="Estimator outside of jit"):
        jax.jit(lambda x: learners.check(LINEAR, x, Y))(X)


@pytest.mark.parametrize("learner", [learners.Ridge(0.3), LINEAR], ids=["jax", "host"])
def test_given_folds(learner):
    cp = jaxcp.cv_plus(KEY, learner, ABSOLUTE, X, Y, folds=FOLDS)
    weights = FOLDS[None] != np.arange(5)[:, None]
    given = jaxcp.cross_conformal(KEY, learner, ABSOLUTE, X, Y, weights.astype(float))
    assert_allclose(cp.scores, given.scores, rtol=1e-5)
    assert_array_equal(cp.calibration.left_out.fold, FOLDS)
    for folds in (pd.Series(FOLDS), FOLDS.tolist(), FOLDS.astype(np.int8)):
        again = jaxcp.cv_plus(KEY, learner, ABSOLUTE, X, Y, folds=folds, num_folds=5)
        assert_array_equal(again.scores, cp.scores)


def test_given_folds_are_traced():
    def upper(folds):
        ridge = learners.Ridge(0.3)
        cp = jaxcp.cv_plus(KEY, ridge, ABSOLUTE, X, Y, folds=folds, num_folds=5)
        return cp(NEW, ALPHA).upper

    composes(upper, (FOLDS,), (FOLDS[::-1],), rtol=1e-5)
    with pytest.raises(ValueError, match="num_folds beside traced folds, got None"):
        jax.jit(lambda f: jaxcp.cv_plus(KEY, LINEAR, ABSOLUTE, X, Y, folds=f))(FOLDS)


def verb(learner=LINEAR, x=X, y=Y, score=ABSOLUTE, **options):
    options = options or {"num_folds": 3}
    return lambda: jaxcp.cv_plus(KEY, learner, score, x, y, **options)


def nan_in_fold_2(model, x):
    preds = model.predict(x)
    preds[-1] = np.nan if abs(preds[-1] - LAST) < 1e-9 else preds[-1]
    return preds


OWN = FOLDS == 2
LAST = LinearRegression().fit(X[~OWN], Y[~OWN]).predict(X[OWN])[-1]
WRONG = {
    "a model by itself": (
        verb(LinearRegression()),
        r"a learner of jax, got LinearRegression, a model .*, or split_conformal or "
        r"cv_plus, which takes learners.Estimator\(model\)",
    ),
    "a pipeline by itself": (verb(make_pipeline(FOREST)), r"learners.Estimator\(model"),
    "a class": (verb(LinearRegression.__class__), "learner as a value, got the class"),
    "Estimator": (verb(Estimator), r"the class Estimator; write Estimator\(...\)"),
    "no predict": (verb(StandardScaler()), "got StandardScaler; wrap two functions"),
    "in a learner of learners": (
        verb(learners.MeanScale(LINEAR, LINEAR)),
        "learner of jax, got Estimator, .*cv_plus",
    ),
    "NaN of one fit": (
        verb(Estimator(LinearRegression(), predict=nan_in_fold_2), folds=FOLDS),
        "predictions of fit 2 without NaN, got nan at 11",
    ),
    "other rows": (verb(x=X[1:]), "x with 60 rows like y, got 59"),
    "no inputs": (verb(x=None), "x as a value, got None"),
    "neither": (verb(num_folds=None), "num_folds as an int >= 2, got None"),
    "folds of other rows": (
        verb(folds=FOLDS[1:]),
        r"folds of shape \(60,\), got \(59,\)",
    ),
    "an empty fold": (
        verb(folds=np.where(FOLDS == 1, 0, FOLDS)),
        r"folds that use each of 0, \.\.\., 4, got no row in 1; numpy.unique",
    ),
    "one fold": (
        verb(folds=np.zeros(60, int)),
        "got no row in 1",
    ),
    "negative folds": (verb(folds=FOLDS - 1), r"folds in 0, \.\.\., 3, got -1"),
    "folds as floats": (verb(folds=FOLDS + 0.5), "folds of an integer type, got float"),
    "more folds than said": (verb(folds=FOLDS, num_folds=4), r"0, \.\.\., 3, got 4"),
    "weights in a stream": (
        lambda: verb(num_folds=3, calibration_weights=np.ones(60))().stream(),
        "scores without calibration_weights",
    ),
    "every": (lambda: verb()().stream(every=0), "every as an int >= 1, got 0"),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
