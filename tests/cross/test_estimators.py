"""Models of other libraries as learners: their fits, seeds, rows and predictions."""

import os
import pickle
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from jaxcp.learners import Estimator, FitError
from rows import refuses

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
N = 12
X = RNG.normal(size=(N, 3))
Y = X.sum(axis=1) + RNG.normal(size=N)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"], index=np.arange(N)[::-1])
NAMES = np.array(["cat", "dog", "owl"])[np.arange(N) % 3]
FOLDS = (np.arange(N)[None] % 3 != np.arange(3)[:, None]).astype(float)
LINEAR = Estimator(LinearRegression())


class Mean:
    """A model without a library."""

    def __init__(self, failing=()):
        self.failing, self.rows = failing, None

    def fit(self, X, y):
        for value in self.failing:
            if value not in y:
                raise RuntimeError(f"no {value}")
        self.rows = np.asarray(y, float)

    def predict(self, X):
        return np.full(len(X), np.mean(self.rows))


def fitted(learner, x=X, y=Y, weights=FOLDS):
    return learner.fit_all(KEY, x, y, weights)


def test_fits_are_those_of_a_plain_loop():
    fits = fitted(LINEAR)
    preds = LINEAR.predict_all(fits, X[:5])
    for j, row in enumerate(FOLDS):
        model = LinearRegression().fit(X[row > 0], Y[row > 0])
        assert_array_equal(preds[j], model.predict(X[:5]))
    assert preds.shape == (3, 5)
    assert isinstance(fits.models, list)
    assert all(isinstance(model, LinearRegression) for model in fits.models)
    assert_array_equal(
        LINEAR.predict_full(fits, X), LinearRegression().fit(X, Y).predict(X)
    )
    assert not hasattr(LINEAR.model, "coef_")


def test_each_fit_predicts_the_rows_that_it_left_out():
    fits, held_out = fitted(LINEAR), FOLDS == 0
    preds = LINEAR.predict_held_out(fits, X, held_out)
    everything = LINEAR.predict_all(fits, X)
    assert_allclose(preds, np.where(held_out, everything, 0), rtol=1e-12)
    seen = []
    count = Estimator(Mean(), predict=lambda m, x: seen.append(len(x)) or m.predict(x))
    count.predict_held_out(fitted(count), X, held_out)
    assert seen == [4, 4, 4]
    bags = np.array([[2.0] * 6 + [0.0] * 6, [1.0] * 12])
    preds = LINEAR.predict_held_out(fitted(LINEAR, weights=bags), X, bags == 0)
    assert not preds[1].any()
    assert not LINEAR.predict_held_out(fits, X, FOLDS > 1).any()


CONTAINERS = {
    "arrays": (X, Y),
    "arrays of jax": (jnp.asarray(X), jnp.asarray(Y)),
    "a frame and a series": (FRAME, pd.Series(Y, index=FRAME.index)),
    "lists": (X.tolist(), Y.tolist()),
    "tuples of numbers": (X, tuple(Y)),
    "sparse, by rows": (scipy.sparse.csr_array(X), Y),
    "sparse, by places": (scipy.sparse.coo_array(X), Y),
    "a column of targets": (X, Y[:, None]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_rows_come_in_any_container(name):
    x, y = CONTAINERS[name]
    fits = fitted(LINEAR, x, y)
    preds = LINEAR.predict_held_out(fits, x, FOLDS == 0)
    expected = LINEAR.predict_held_out(fitted(LINEAR), X, FOLDS == 0)
    assert_allclose(preds.reshape(3, N), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.array, jnp.asarray, pd.DataFrame])
def test_models_that_scale_in_place_change_nothing(kind):
    """Each fit predicts from inputs as given, not from what another left of them."""
    x, in_place = kind(X), make_pipeline(StandardScaler(copy=False), LinearRegression())
    expected = LINEAR.predict_all(fitted(LINEAR), X)
    learner = Estimator(in_place)
    fits = fitted(learner, x)
    assert_allclose(learner.predict_all(fits, x), expected, rtol=1e-4, atol=1e-5)
    learner.predict_full(fits, x)
    assert_array_equal(x, kind(X))


def test_frames_stay_frames():
    fits = fitted(LINEAR, FRAME, pd.Series(Y, index=FRAME.index))
    assert list(fits.models[0].feature_names_in_) == ["a", "b", "c"]


def test_a_dict_of_inputs_is_cut_in_each_part():
    class Sum(Mean):
        def predict(self, X):
            return X["a"].sum(axis=1) + X["b"]

    x = {"a": X, "b": Y}
    learner = Estimator(Sum(), predict=lambda model, x: x["a"].sum(axis=1) + x["b"])
    preds = learner.predict_held_out(fitted(learner, x), x, FOLDS == 0)
    assert_allclose(preds.sum(axis=0), X.sum(axis=1) + Y)
    with pytest.raises(ValueError, match=r"x of one length, got \[11, 12\]"):
        fitted(learner, {"a": X, "b": Y[1:]})


def test_text_as_inputs():
    text = [f"word{i % 3} word{i % 2}" for i in range(N)]
    learner = Estimator(make_pipeline(CountVectorizer(), Ridge()))
    fits = fitted(learner, text)
    assert learner.predict_all(fits, text[:2]).shape == (3, 2)


def test_whole_weights_repeat_rows():
    bags = RNG.integers(0, 3, size=(4, N)).astype(float)
    models = fitted(Estimator(Mean()), weights=bags).models
    for model, bag in zip(models, bags, strict=True):
        assert_array_equal(model.rows, np.repeat(Y, bag.astype(int)))


class Swallowing(Mean):
    """A model that ignores options that it does not know."""

    def fit(self, X, y, **options):
        super().fit(X, y)


def test_other_weights_are_sample_weights():
    weights = RNG.uniform(size=(2, N)) * (RNG.uniform(size=(2, N)) > 0.3)
    for model, row in zip(fitted(LINEAR, weights=weights).models, weights, strict=True):
        expected = LinearRegression().fit(X, Y, sample_weight=row)
        assert_allclose(model.coef_, expected.coef_)
    for model in (Mean(), Swallowing(), make_pipeline(StandardScaler(), Ridge())):
        with pytest.raises(ValueError, match="fit takes sample_weight, got others and"):
            fitted(Estimator(model), weights=weights)


def seeds(learner, key=KEY, weights=FOLDS):
    models = learner.fit_all(key, X, Y, weights).models
    name = "random_state"
    return [[v for k, v in m.get_params().items() if name in k] for m in models]


def test_seeds_come_from_the_key():
    forest = Estimator(RandomForestRegressor(2))
    first = seeds(forest)
    assert len({seed for (seed,) in first}) == 3
    assert first == seeds(forest)
    assert first == seeds(Estimator(RandomForestRegressor(2), num_workers=3))
    assert first[:2] == seeds(forest, weights=FOLDS[:2])
    assert first != seeds(forest, key=jax.random.key(1))
    assert first == seeds(forest, key=jax.random.key_data(KEY))
    assert forest.model.random_state is None
    assert seeds(Estimator(RandomForestRegressor(2, random_state=7))) == [[7]] * 3


def test_seeds_of_steps_are_drawn_as_well():
    pipeline = make_pipeline(StandardScaler(), RandomForestRegressor(2))
    assert len({seed for (seed,) in seeds(Estimator(pipeline))}) == 3
    several = MultiOutputRegressor(RandomForestRegressor(2))
    learner = Estimator(several)
    models = fitted(learner, y=np.stack([Y, -Y], axis=1)).models
    assert len({model.estimator.random_state for model in models}) == 3
    pair = Estimator([RandomForestRegressor(2), RandomForestRegressor(2)])
    a, b = fitted(pair).models[0]
    assert a.random_state != b.random_state


def test_several_models_predict_a_tuple():
    learner = Estimator([LinearRegression(), KNeighborsRegressor(2)])
    fits = fitted(learner)
    first, second = learner.predict_all(fits, X)
    assert first.shape == second.shape == (3, N)
    assert_allclose(first, LINEAR.predict_all(fitted(LINEAR), X))
    full = learner.predict_full(fits, X[:2])
    assert [v.shape for v in full] == [(2,), (2,)]
    both = Estimator(learner.model, predict=lambda m, x: m[0].predict(x) - 1)
    assert_allclose(both.predict_all(fitted(both), X), first - 1)


def test_several_outputs():
    targets = np.stack([Y, -Y], axis=1)
    fits = fitted(LINEAR, y=targets)
    preds = LINEAR.predict_held_out(fits, X, FOLDS == 0)
    assert preds.shape == (3, N, 2)
    assert_allclose(preds[..., 0], -preds[..., 1], atol=1e-9)


def test_columns_are_all_classes_of_y():
    learner = Estimator(LogisticRegression())
    one_class_less = np.stack([NAMES != "dog", NAMES != "owl"]).astype(float)
    fits = fitted(learner, y=NAMES, weights=one_class_less)
    assert fits.classes == learner.classes_of(NAMES) == ("cat", "dog", "owl")
    probs = learner.predict_all(fits, X)
    assert probs.shape == (2, N, 3)
    assert_allclose(probs.sum(axis=2), 1)
    assert not probs[0, :, 1].any()
    assert not probs[1, :, 2].any()
    keep = NAMES != "dog"
    plain = LogisticRegression().fit(X[keep], NAMES[keep]).predict_proba(X)
    assert_allclose(probs[0][:, [0, 2]], plain)
    turned = Estimator(LogisticRegression(), classes=["owl", "dog", "cat", "elk"])
    other = turned.predict_all(fitted(turned, y=NAMES, weights=one_class_less), X)
    assert_allclose(other[..., :3], probs[..., ::-1])
    assert not other[..., 3].any()


def test_classes_of_other_kinds():
    learner = Estimator(LogisticRegression())
    for y in (pd.Series(NAMES).astype("category"), NAMES.tolist(), pd.Series(NAMES)):
        assert learner.classes_of(y) == ("cat", "dog", "owl")
        probs = learner.predict_all(fitted(learner, y=y), X)
        assert_allclose(probs, learner.predict_all(fitted(learner, y=NAMES), X))
    assert learner.classes_of(np.arange(N) % 2 == 0) == (False, True)
    assert learner.classes_of([7, 3, 3]) == (3, 7)
    assert LINEAR.classes_of(Y) is None
    for label in (1, None, np.nan, pd.NA):
        with pytest.raises(TypeError):
            learner.classes_of(pd.Series(["a", "b", label, "a"], dtype=object))


class Frequencies:
    """A classifier that does not say its classes."""

    def fit(self, X, y):
        self.shares = np.unique(y, return_counts=True)[1] / len(y)

    def predict_proba(self, X):
        return np.tile(self.shares, (len(X), 1))


def test_classifiers_that_do_not_say_their_classes():
    learner = Estimator(Frequencies())
    fits = fitted(learner, y=NAMES, weights=np.ones((2, N)))
    assert_allclose(learner.predict_all(fits, X), np.full((2, N, 3), 1 / 3))
    fits = fitted(learner, y=NAMES, weights=(NAMES != "owl")[None].astype(float))
    with pytest.raises(ValueError, match=r"3 classes, got those of 3, shape \(12, 2\)"):
        learner.predict_all(fits, X)


def test_what_fit_returns_may_be_what_predicts():
    class Results:
        def predict(self, X):
            return np.ones(len(X))

    class Law(Mean):
        def fit(self, X, y):
            return Results()

    learner = Estimator(Law())
    assert learner.predict_all(fitted(learner), X).sum() == 3 * N

    class Plan:
        def fit(self, X, y):
            return Results()

    learner = Estimator(Plan(), predict=lambda results, x: results.predict(x))
    assert learner.predict_all(fitted(learner), X).sum() == 3 * N


def test_fitted_models_are_no_trap():
    warm = RandomForestRegressor(3, warm_start=True, random_state=0).fit(X, 100 + Y)
    learner = Estimator(warm)
    assert learner.predict_all(fitted(learner), X).max() < 50
    assert warm.predict(X).min() > 50


@pytest.mark.parametrize("num_workers", [2, 5])
def test_threads_give_the_same(num_workers):
    one = Estimator(RandomForestRegressor(3))
    many = Estimator(RandomForestRegressor(3), num_workers=num_workers)
    expected = one.predict_all(fitted(one), X)
    assert_array_equal(many.predict_all(fitted(many), X), expected)


def test_fits_run_at_a_time():
    barrier = threading.Barrier(3, timeout=20)

    class Meets(Mean):
        def fit(self, X, y):
            barrier.wait()
            super().fit(X, y)

    assert len(fitted(Estimator(Meets(), num_workers=3)).models) == 3


@pytest.mark.slow
def test_processes_give_the_same():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        learner = Estimator(RandomForestRegressor(3), executor=pool)
        fits = fitted(learner, FRAME)
        preds = learner.predict_all(fits, FRAME)
        with pytest.raises(FitError, match="resample 2 of 0") as error:
            fitted(Estimator(Mean([Y[2]]), executor=pool))
        assert "0 of" not in str(error.value)
    one = Estimator(RandomForestRegressor(3))
    assert_array_equal(preds, one.predict_all(fitted(one, FRAME), FRAME))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_fit_that_raises_loses_nothing(num_workers):
    learner = Estimator(Mean([Y[1]]), num_workers=num_workers)
    message = r"a fit to resample 1 of 0, ..., 2 with 8 rows, got RuntimeError: no"
    with pytest.raises(FitError, match=message) as error:
        fitted(learner)
    fits = error.value.fits
    assert error.value.__notes__[-1].endswith("learner.resume(error.fits) goes on")
    assert isinstance(error.value.__cause__, RuntimeError)
    assert fits.models[0] is not None
    assert fits.models[1] is None
    assert repr(fits) in [
        f"ModelFits({k} of 3 fits)" for k in range(1, 1 + num_workers)
    ]
    mended = fitted(Estimator(Mean()).resume(fits))
    assert mended.models[0] is fits.models[0]
    assert_array_equal(mended.models[1].rows, Y[FOLDS[1] > 0])
    again = fitted(Estimator(Mean()))
    for one, other in zip(mended.models, again.models, strict=True):
        assert_array_equal(one.rows, other.rows)
    assert pickle.loads(pickle.dumps(error.value)).fits.models[1] is None


def test_fits_of_other_data_are_not_resumed():
    with pytest.raises(FitError) as error:
        fitted(Estimator(Mean([Y[1]])))
    learner = Estimator(Mean()).resume(error.value.fits)
    calls = {
        "key": (jax.random.key(1), X, Y, FOLDS),
        "weights": (KEY, X, Y, FOLDS[:2]),
        "x and y": (KEY, X, Y + 1, FOLDS),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match="x and y of the fits that are resumed"):
            learner.fit_all(*call)
    with pytest.raises(ValueError, match="expected fits of a FitError, got list"):
        learner.resume([])


def test_data_that_changed_in_place_are_others():
    """Such as a frame without its missing values, which made the fit fail."""
    x, y = X.copy(), Y.copy()
    with pytest.raises(FitError) as error:
        fitted(Estimator(Mean([Y[1]])), x, y)
    learner = Estimator(Mean()).resume(error.value.fits)
    assert len(fitted(learner, x, y).models) == 3
    x[0] = 0
    with pytest.raises(ValueError, match="x and y of the fits that are resumed"):
        fitted(learner, x, y)
    assert len(fitted(Estimator(Mean()).resume(error.value.fits)).models) == 3


def texts(n=N):
    """Returns equal frames of which the text lies elsewhere in memory."""
    return pd.DataFrame({"a": X[:, 0], "site": [f"s{i % 2}" for i in range(n)]})


EQUAL = {
    "order in memory": (X, np.asfortranarray(X)),
    "text": (texts(), texts().assign(site=pd.Series(["s0", "s1"] * (N // 2)))),
    "blocks": (FRAME, FRAME[["a", "b"]].copy().assign(c=FRAME["c"])),
    "dict": ({"a": X}, {"a": X.copy()}),
    "list": ([["s0"]] * N, [["s" + str(0)] for _ in range(N)]),
    "arrays of jax": (jnp.asarray(X), jnp.asarray(X) + 0),
    "functions": ([len] * N, [len] * N),
    "sparse": (scipy.sparse.csr_array(X), scipy.sparse.csr_array(X)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_data_are_resumed(name):
    x, same = EQUAL[name]
    with pytest.raises(FitError) as error:
        fitted(Estimator(Mean([Y[1]])), x)
    learner = Estimator(Mean()).resume(error.value.fits)
    assert len(fitted(learner, same).models) == 3


@pytest.mark.parametrize("kind", [np.asarray, pd.Series])
def test_other_rows_are_not_resumed(kind):
    with pytest.raises(FitError) as error:
        fitted(Estimator(Mean([Y[1]])), {"a": kind(NAMES)})
    learner = Estimator(Mean()).resume(error.value.fits)
    with pytest.raises(ValueError, match="x and y of the fits that are resumed"):
        fitted(learner, {"a": kind(NAMES[::-1])})


@pytest.mark.parametrize("error", [RuntimeError("out"), KeyboardInterrupt()])
def test_predictions_that_raise_lose_no_fit(error):
    def predict(model, x):
        if Y[1] not in model.rows:
            raise error
        return model.predict(x)

    learner = Estimator(Mean(), predict=predict)
    with pytest.raises(type(error)) as raised:
        learner.predict_held_out(fitted(learner), X, FOLDS == 0)
    fits = raised.value.fits
    assert repr(fits) == "ModelFits(3 of 3 fits)"
    assert "learner.resume(error.fits) goes on" in raised.value.__notes__[-1]
    if isinstance(error, RuntimeError):
        assert raised.value.__notes__[0] == "raised while fit 1 predicted"
    again = fitted(Estimator(Mean()).resume(fits))
    assert again.models[1] is fits.models[1]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_interrupt_loses_nothing(num_workers):
    class Interrupted(Mean):
        def fit(self, X, y):
            if Y[2] not in y:
                raise KeyboardInterrupt
            super().fit(X, y)

    with pytest.raises(KeyboardInterrupt) as error:
        fitted(Estimator(Interrupted(), num_workers=num_workers))
    assert [model is None for model in error.value.fits.models] == [False, False, True]
    assert "learner.resume(error.fits)" in error.value.__notes__[0]
    assert len(fitted(Estimator(Mean()).resume(error.value.fits)).models) == 3


@pytest.mark.parametrize("num_workers", [1, 3])
def test_ctrl_c_stops(num_workers):
    """Fits that run in threads come to their end, and are kept; no other starts."""
    begun = []

    class Slow(Mean):
        def fit(self, X, y):
            begun.append(len(begun))
            if len(begun) in (4, 12, 20):  # one may fall into a callback, and be lost
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            super().fit(X, y)

    learner = Estimator(Slow(), num_workers=num_workers)
    # Of a test run in the background it would be ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as error:
            fitted(learner, weights=np.tile(FOLDS, (20, 1)))
    finally:
        signal.signal(signal.SIGINT, before)
    done = sum(model is not None for model in error.value.fits.models)
    assert 3 <= done <= len(begun) < 30


def test_the_fit_on_all_rows_is_made_when_asked_for():
    counts = []

    class Counted(Mean):
        def fit(self, X, y):
            counts.append(len(y))
            super().fit(X, y)

    learner = Estimator(Counted())
    fits = fitted(learner)
    assert counts == [8, 8, 8]
    first, second = learner.predict_full(fits, X), learner.predict_full(fits, X)
    assert counts == [8, 8, 8, 12]
    assert_array_equal(first, second)
    failing = Estimator(Mean(["nothing"]))
    with pytest.raises(FitError, match="a fit to all 12 rows, got RuntimeError"):
        failing.predict_full(fitted(Estimator(Mean())), X)


def test_progress_is_shown(capfd):
    fitted(Estimator(Mean(), progress=True))
    assert "3/3" in capfd.readouterr().err


def test_no_rows_to_predict():
    for learner, y, shape in [
        (LINEAR, Y, (3, 0)),
        (LINEAR, np.stack([Y, Y], axis=1), (3, 0, 2)),
        (Estimator(RandomForestClassifier(2)), NAMES, (3, 0, 3)),
    ]:
        assert learner.predict_all(fitted(learner, y=y), X[:0]).shape == shape
    fits = fitted(LINEAR, FRAME)
    assert LINEAR.predict_full(fits, FRAME[:0]).shape == (0,)


def test_fits_are_kept_by_pickle():
    learner = Estimator(RandomForestRegressor(2))
    fits = fitted(learner, FRAME)
    same, again = pickle.loads(pickle.dumps((learner, fits)))
    for name in ("predict_all", "predict_full"):
        expected = getattr(learner, name)(fits, FRAME)
        assert_array_equal(getattr(same, name)(again, FRAME), expected)


def test_learners_and_fits_are_static_values():
    fits = fitted(LINEAR)
    assert jax.tree.leaves((LINEAR, fits)) == []
    copy = jax.tree.map(lambda v: v, (LINEAR, fits))
    assert copy == (LINEAR, fits)
    assert hash(LINEAR) != hash(Estimator(LINEAR.model))
    hash(Estimator([LinearRegression()]))
    assert "LinearRegression()" in repr(LINEAR)


TRANSFORMED = {
    "jit": lambda f: jax.jit(f)(jnp.asarray(X)),
    "vmap": lambda f: jax.vmap(f)(jnp.asarray(X)[None]),
    "grad": lambda f: jax.grad(f)(jnp.asarray(X)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_traced_values_are_refused_in_one_sentence(name):
    fits = fitted(LINEAR)
    for call in (
        lambda x: LINEAR.fit_all(KEY, x, Y, FOLDS),
        lambda x: LINEAR.predict_all(fits, x).sum(),
        lambda x: LINEAR.predict_held_out(fits, x, FOLDS == 0).sum(),
        lambda x: LINEAR.predict_full(fits, x).sum(),
    ):
        with pytest.raises(ValueError, match=r"give those to jaxcp.cross_calibrate"):
            TRANSFORMED[name](call)
    with pytest.raises(ValueError, match=r"Estimator outside of jit"):
        jax.jit(lambda key: LINEAR.fit_all(key, X, Y, FOLDS))(KEY)


@pytest.mark.parametrize("lacking", [["dog"], ["dog", "owl"]])
def test_all_fits_predict_one_shape(lacking):
    """One column would be spread over three without a word."""
    columns = lambda model, x: model.predict_proba(x)  # noqa: E731
    learner = Estimator(RandomForestClassifier(2), predict=columns)
    weights = np.stack([np.isin(NAMES, lacking, invert=True), np.arange(N) > 2])
    fits = fitted(learner, y=NAMES, weights=weights.astype(float))
    message = r"one shape from all fits, got \([12],\) a row of fit 0, \(3,\) of fit 1"
    with pytest.raises(ValueError, match=message):
        learner.predict_all(fits, X)
    with pytest.raises(ValueError, match=message):
        learner.predict_held_out(fits, X, weights == 0)


class OnlyFits:
    def fit(self, X, y):
        return self


class NoTargets:
    def fit(self, X):
        return self

    def predict(self, X):
        return X[:, 0]


def held_out(predict, y=Y):
    learner = Estimator(Mean(), predict=predict)
    return lambda: learner.predict_held_out(fitted(learner, y=y), X, FOLDS == 0)


def of_second(value):
    def predict(model, x):
        preds = np.zeros(len(x))
        preds[1] = value if Y[1] not in model.rows else 0
        return preds

    return predict


WRONG = {
    "a class": (lambda: Estimator(Mean), r"the class Mean; write Mean\(\.\.\.\)"),
    "a function": (lambda: Estimator(np.mean), r"a model with fit\(X, y\) and predict"),
    "no predict": (lambda: Estimator(OnlyFits()), r"got OnlyFits; say predict="),
    "no targets": (lambda: Estimator(NoTargets()), "got NoTargets"),
    "a learner": (lambda: Estimator(LINEAR), "got Estimator"),
    "one of a list": (lambda: Estimator([Mean(), Mean]), "the class Mean"),
    "an empty list": (lambda: Estimator([]), "a model, got an empty list"),
    "no function": (lambda: Estimator(Mean(), predict=1), "predict as a function"),
    "workers": (lambda: Estimator(Mean(), num_workers=0), "num_workers as an int >= 1"),
    "rows": (lambda: fitted(LINEAR, X[1:]), "x with 12 rows like y, got 11"),
    "a word": (lambda: fitted(LINEAR, "abc"), "x with 12 rows like y, got 3"),
    "a number as key": (
        lambda: LINEAR.fit_all(0, X, Y, FOLDS),
        "a key from jax.random.key, got int",
    ),
    "weights of other rows": (
        lambda: fitted(LINEAR, weights=FOLDS[:, 1:]),
        r"weights of shape \(3, 12\), got \(3, 11\)",
    ),
    "no rows in a fit": (
        lambda: fitted(LINEAR, weights=FOLDS * np.array([1, 0, 1])[:, None]),
        "a fit to resample 1 of 0, ..., 2 with 0 rows",
    ),
    "negative weights": (lambda: fitted(LINEAR, weights=-FOLDS), "weights >= 0"),
    "NaN": (held_out(of_second(np.nan)), "of fit 1 without NaN, got nan at 1"),
    "text": (
        held_out(lambda m, x: ["a"] * len(x)),
        "as numbers, .* got <U1",
    ),
    "too few": (
        held_out(lambda m, x: m.predict(x)[1:]),
        r"a leading axis of 4, one for each row of x, got .* \(3,\) of fit 0",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
