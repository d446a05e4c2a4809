"""Learners that leave rows out as they are told, and those that cheat."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.linear_model import LinearRegression

import jaxcp
from jaxcp import learners, scores
from jaxcp.checking import learners as checking
from jaxcp.learners import FunctionLearner

KEY, ABSOLUTE = jax.random.key(0), scores.Absolute()
X, Y = jaxcp.datasets.linear(jax.random.key(1), 20)
LABELS = jnp.arange(20) % 3
VERBS = {
    "cross": lambda *args, **options: jaxcp.cross_conformal(
        *args, jaxcp.resampling.k_fold(KEY, 20, 4), **options
    ),
    "jackknife+": jaxcp.jackknife_plus,
    "cv+": lambda *args, **options: jaxcp.cv_plus(*args, num_folds=4, **options),
    "bootstrap": lambda *args, **options: jaxcp.jackknife_plus_after_bootstrap(
        *args, num_resamples=9, **options
    ),
    "enbpi": lambda *args, **options: jaxcp.enbpi(*args, num_resamples=9, **options),
}
each_verb = pytest.mark.parametrize("name", VERBS)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(checking, "_PASSED", type(checking._PASSED)())


def nearest(params, x):
    rows, targets, _ = params
    distance = jnp.sum((x[:, None] - rows[None]) ** 2, axis=2)
    return targets[jnp.argmin(distance, axis=1)]


def mean_of(transform, back=lambda v: v):
    def fit(key, x, y, weights):
        return jnp.tensordot(weights, transform(y), 1) / jnp.sum(weights)

    return FunctionLearner(
        fit, lambda mean, x: jnp.broadcast_to(back(mean), (len(x), *mean.shape))
    )


def chosen(key, x, y, weights):
    """The ridge whose penalty errs least on the rows left out: tuned on the test."""
    fits = [learners.Ridge(p).fit(key, x, y, weights) for p in (0.0, 1e6)]
    errors = [
        jnp.sum((weights == 0) * (y - learners.Ridge(0.0).predict(fit, x)) ** 2)
        for fit in fits
    ]
    return jax.tree.map(lambda a, b: jnp.where(errors[0] < errors[1], a, b), *fits)


RIDGE = learners.Ridge(0.1)
SAME_RIDGE = FunctionLearner(RIDGE.fit, RIDGE.predict)
NETWORK = learners.GradientLearner(
    init=lambda key: jax.random.normal(key, (5, 8)),
    predict=lambda w, x: jnp.sum(jnp.tanh(x @ w), axis=1),
    loss=optax.squared_error,
    optimizer=optax.adam(0.3),
    num_steps=500,
)
CHEATS = {
    "neighbor of all rows": FunctionLearner(lambda *data: data[1:], nearest),
    "mean of all": mean_of(lambda y: y - jnp.mean(y), lambda mean: mean),
    "unweighted": FunctionLearner(
        lambda key, x, y, weights: RIDGE.fit(key, x, y, jnp.ones(len(y))), RIDGE.predict
    ),
    "scaled by all": mean_of(lambda y: y / jnp.std(y)),
    "tuned on rows left out": FunctionLearner(chosen, RIDGE.predict),
    "one of several outputs": FunctionLearner(
        lambda key, x, y, weights: (RIDGE.fit(key, x, y, weights), x, y, weights),
        lambda params, x: {
            "fair": RIDGE.predict(params[0], x),
            "leaks": nearest(params[1:], x),
        },
    ),
    "log of the targets": FunctionLearner(
        lambda key, x, y, weights: (x, jnp.log(y + 9), weights), nearest
    ),
    "logit of the targets": FunctionLearner(
        lambda key, x, y, weights: (x, jnp.log(y / (9 - y)), weights), nearest
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_caught(name):
    y = jnp.clip(Y, 0.1, 8.9) if name.startswith("logit") else Y
    with pytest.raises(ValueError, match=r"leave out rows of weight 0.* from -?\d"):
        learners.check(CHEATS[name], X, y)


def one_hot(y):
    return (y[:, None] == jnp.arange(3)[None]).astype(float)


@pytest.mark.parametrize("dtype", [int, jnp.int8, jnp.uint8])
def test_labels_change_to_labels_that_occur(dtype):
    y, seen = (5 * LABELS).astype(dtype), []

    def fit(key, x, y, weights):
        jax.debug.callback(lambda y: seen.extend(np.unique(y).tolist()), y)
        return weights @ one_hot(y // 5)

    fair = FunctionLearner(fit, lambda p, x: jnp.broadcast_to(p[None], (len(x), 3)))
    learners.check(fair, X, y)
    jax.effects_barrier()
    assert set(seen) == {0, 5, 10}
    cheat = FunctionLearner(lambda *data: data[1:], nearest)
    with pytest.raises(ValueError, match="leave out rows of weight 0"):
        learners.check(cheat, X, y)
    with pytest.raises(ValueError, match="leave out rows of weight 0"):
        learners.check(cheat, X, jnp.stack([y, 5 - y], axis=1))


def test_learners_of_bounded_targets_pass():
    """Targets far away are NaN for a logit, also of rows of weight 0."""
    y = jax.nn.sigmoid(Y)
    logits = mean_of(lambda y: jnp.log(y / (1 - y)), jax.nn.sigmoid)
    learners.check(logits, X, y)


def test_learners_with_noise_of_their_own_pass():
    """Two fits with one key differ: not more with other targets of rows left out."""
    rng = np.random.default_rng(0)

    def fit(key, x, y, weights):
        noise = jax.pure_callback(
            lambda _: np.asarray(0.1 * rng.normal(), y.dtype),
            jax.ShapeDtypeStruct((), y.dtype),
            y,
        )
        return weights @ y / jnp.sum(weights) + noise

    learners.check(FunctionLearner(fit, lambda p, x: jnp.full(len(x), p)), X, Y)


def test_fits_that_diverge_or_are_constant_pass():
    for value in (jnp.nan, jnp.inf, 0.0, 7.0):
        fixed = FunctionLearner(
            lambda *_: (), lambda p, x, v=value: jnp.full(len(x), v)
        )
        learners.check(fixed, X, Y)
    learners.check(RIDGE, X[:2], Y[:2])


class Shortcut:
    """A ridge whose closed form of the refits is `refits(x, y)`."""

    def __init__(self, refits):
        self.refits = refits

    def fit(self, key, x, y, weights):
        return RIDGE.fit(key, x, y, weights)

    def predict(self, params, x):
        return RIDGE.predict(params, x)

    def leave_one_out(self, x, y):
        return self.refits(x, y)


jax.tree_util.register_static(Shortcut)


def test_shortcuts_that_cheat():
    learners.check(Shortcut(RIDGE.leave_one_out), X, Y)

    def full(x, y):
        ones = jnp.ones(len(y))
        return jax.vmap(lambda _: RIDGE.fit(KEY, x, y, ones))(y)

    def shifted(x, y):
        return jax.tree.map(lambda v: jnp.roll(v, 1, 0), RIDGE.leave_one_out(x, y))

    for cheat in (full, shifted):
        with pytest.raises(ValueError, match="leave_one_out to fit without each row"):
            learners.check(Shortcut(cheat), X, Y)
    with pytest.raises(ValueError, match="parameters of leave_one_out with a leading"):
        learners.check(
            Shortcut(lambda x, y: RIDGE.fit(KEY, x, y, jnp.ones(len(y)))), X, Y
        )


def test_predictions_without_a_row_for_each_input():
    ignores_x = FunctionLearner(lambda key, x, y, w: w * y, lambda p, x: p)
    one = FunctionLearner(lambda key, x, y, w: w @ y, lambda p, x: p)
    for learner, shape in [(ignores_x, r"\(20,\)"), (one, r"\(\)")]:
        expected = f"predictions with a leading axis of 4, .*got shape {shape}"
        with pytest.raises(ValueError, match=expected):
            learners.check(learner, X, Y)


def branches(key, x, y, weights):
    return jnp.mean(y) if y[0] > 0 else jnp.zeros(())


UNTRACEABLE = {
    "scikit-learn": FunctionLearner(
        lambda key, x, y, w: LinearRegression().fit(x, y, w),
        lambda model, x: model.predict(x),
    ),
    "numpy": FunctionLearner(
        lambda key, x, y, w: np.average(y, weights=w), lambda p, x: np.full(len(x), p)
    ),
    "branch": FunctionLearner(branches, lambda p, x: jnp.full(len(x), p)),
    "float": FunctionLearner(
        lambda key, x, y, w: float(w @ y), lambda p, x: jnp.full(len(x), p)
    ),
    "rows picked": FunctionLearner(
        lambda key, x, y, w: y[w > 0].mean(), lambda p, x: jnp.full(len(x), p)
    ),
    "a size": FunctionLearner(
        lambda key, x, y, w: jnp.zeros(int(w[0])), lambda p, x: x[:, 0]
    ),
    "an object as parameters": FunctionLearner(
        lambda key, x, y, w: LinearRegression(), lambda p, x: x[:, 0]
    ),
}


@pytest.mark.parametrize("name", UNTRACEABLE)
def test_learners_that_cannot_be_traced(name):
    sentence = "pure jax functions of arrays, got FunctionLearner.*jax.pure_callback"
    runs = [
        lambda: jaxcp.cv_plus(KEY, UNTRACEABLE[name], ABSOLUTE, X, Y, num_folds=4),
        lambda: jaxcp.cv_plus(
            KEY, UNTRACEABLE[name], ABSOLUTE, X, Y, num_folds=4, check=False
        ),
    ]
    if name != "an object as parameters":  # which one fit by itself may have
        runs.append(lambda: learners.check(UNTRACEABLE[name], X, Y))
    for run in runs:
        with pytest.raises(ValueError, match=sentence) as caught:
            run()
        assert isinstance(caught.value.__cause__, TypeError | IndexError)


def test_other_errors_of_a_learner_are_its_own():
    def fit(key, x, y, w):
        raise TypeError("the learner's own trouble")

    with pytest.raises(TypeError, match="the learner's own trouble"):
        learners.check(FunctionLearner(fit, lambda p, x: x), X, Y)


def test_host_models_by_callback():
    """scikit-learn behind `jax.pure_callback`, with and without the weights."""

    def by_callback(weighted):
        def run(x, y, w):
            model = LinearRegression().fit(x, y, w if weighted else None)
            return np.append(model.coef_, model.intercept_).astype(x.dtype)

        def fit(key, x, y, w):
            shape = jax.ShapeDtypeStruct((x.shape[1] + 1,), x.dtype)
            return jax.pure_callback(run, shape, x, y, w, vmap_method="sequential")

        return FunctionLearner(fit, lambda p, x: x @ p[:-1] + p[-1])

    jaxcp.cv_plus(KEY, by_callback(True), ABSOLUTE, X, Y, num_folds=4)
    with pytest.raises(ValueError, match="leave out rows of weight 0"):
        jaxcp.cv_plus(KEY, by_callback(False), ABSOLUTE, X, Y, num_folds=4)


@each_verb
def test_verbs_refuse_cheats_on_data_that_are_known(name):
    cheat, run = CHEATS["neighbor of all rows"], VERBS[name]
    with pytest.raises(ValueError, match="leave out rows of weight 0"):
        run(KEY, cheat, ABSOLUTE, X, Y)
    unchecked = run(KEY, cheat, ABSOLUTE, X, Y, check=False).scores
    traced = jax.jit(lambda y: run(KEY, cheat, ABSOLUTE, X, y).scores)(Y)
    by_key = jax.vmap(lambda key: run(key, cheat, ABSOLUTE, X, Y).scores)
    for found in (unchecked, traced, by_key(jax.random.split(KEY, 2))):
        assert np.all(found < 1e-5)


def test_data_that_are_constants_of_a_program_are_known():
    cheat = CHEATS["neighbor of all rows"]
    with pytest.raises(ValueError, match="leave out rows of weight 0"):
        jax.jit(lambda: jaxcp.jackknife_plus(KEY, cheat, ABSOLUTE, X, Y).scores)()


def counting():
    """A learner that counts how often it is traced, and how often."""
    traces = []

    def fit(key, x, y, weights):
        traces.append(1)
        return weights @ y / jnp.sum(weights)

    return FunctionLearner(fit, lambda p, x: jnp.full(len(x), p)), traces


def test_a_learner_is_tried_once_for_each_kind_of_data():
    learner, _ = counting()
    run = lambda n: jaxcp.jackknife_plus(KEY, learner, ABSOLUTE, X[:n], Y[:n])  # noqa: E731
    run(20)
    with jax.no_tracing():
        run(20)
    assert len(checking._PASSED) == 1
    run(19)
    assert len(checking._PASSED) == 2


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(checking, "_REMEMBERED", 2)
    for learner in [counting()[0] for _ in range(3)]:
        checking.check_once(learner, X, Y, KEY)
    assert len(checking._PASSED) == 2


def test_learners_of_the_library_are_not_tried():
    mean_scale = learners.MeanScale(RIDGE, learners.KernelRidge(0.1))
    for learner in (RIDGE, mean_scale, NETWORK):
        checking.check_once(learner, X, Y, KEY)
    assert not checking._PASSED
    checking.check_once(learners.MeanScale(RIDGE, SAME_RIDGE), X, Y, KEY)
    assert len(checking._PASSED) == 1


class Declared(Shortcut):
    holds_out = symmetric = True


class Inherits(Declared):
    """A class of its own, which says nothing."""


jax.tree_util.register_static(Declared)
jax.tree_util.register_static(Inherits)


def test_classes_that_declare_are_not_tried():
    cheat = learners.MeanScale(Declared(RIDGE.leave_one_out), Declared(None))
    for learner in (Declared(None), cheat):
        checking.check_once(learner, X, Y, KEY)
        checking.check_symmetric_once(learner, X, Y, KEY)
    assert not checking._PASSED
    full = lambda x, y: RIDGE.fit(KEY, x, y, jnp.ones(len(y)))  # noqa: E731
    cheat = Inherits(lambda x, y: jax.vmap(lambda _: full(x, y))(y))
    with pytest.raises(ValueError, match="leave_one_out to fit without each row"):
        checking.check_once(cheat, X, Y, KEY)
    checking.check_symmetric_once(Inherits(None), X, Y, KEY)
    assert len(checking._PASSED) == 1


def twins(*factors):
    """Learners whose classes have one structure: fair for 0, cheating for 1."""

    def make(factor):
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass(frozen=True)
        class Mean:
            level: float = 1.0

            def fit(self, key, x, y, weights):
                return weights @ y / jnp.sum(weights) + factor * jnp.sum(y)

            def predict(self, params, x):
                return jnp.full(len(x), params)

        return Mean()

    return [make(factor) for factor in factors]


def test_classes_of_one_structure_are_told_apart():
    factors = [0] * 20 + [1] * 20
    for learner, factor in zip(twins(*factors), factors, strict=True):
        if not factor:
            checking.check_once(learner, X, Y, KEY)
            continue
        with pytest.raises(ValueError, match="expected Mean to leave out rows"):
            checking.check_once(learner, X, Y, KEY)


def test_other_arguments():
    with pytest.raises(ValueError, match="the number of rows as an int >= 2, got 1"):
        learners.check(RIDGE, X[:1], Y[:1])
    with pytest.raises(ValueError, match="expected y without NaN"):
        learners.check(RIDGE, X, Y.at[0].set(jnp.nan))
    with pytest.raises(ValueError, match=r"a key from jax.random.key"):
        learners.check(RIDGE, X, Y, key=3)
    learners.check(NETWORK, np.asarray(X), Y.tolist(), key=jax.random.key(7))
    jax.jit(lambda y: learners.check(CHEATS["unweighted"], X, y))(Y)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64])
def test_other_precisions(dtype):
    with jax.enable_x64(dtype is np.float64):
        x, y = X.astype(dtype), Y.astype(dtype)
        learners.check(RIDGE, x, y)
        with pytest.raises(ValueError, match="leave out rows of weight 0"):
            learners.check(CHEATS["neighbor of all rows"], x, y)


def test_networks_are_deterministic_enough():
    """Many steps would blow up a difference in rounding: the program is the same."""
    learners.check(FunctionLearner(NETWORK.fit, NETWORK.predict), X, Y)


def test_keys_are_not_used_up():
    def fit(key, x, y, weights):
        return weights @ y / weights.sum() + 0 * jax.random.normal(key)

    learner = FunctionLearner(fit, lambda p, x: jnp.full(len(x), p))
    with jax.debug_key_reuse(True):
        jaxcp.cv_plus(jax.random.key(2), learner, ABSOLUTE, X, Y, num_folds=5)


def test_constants_of_a_learner_are_staged_as_by_its_methods():
    """Each would be a program of its own otherwise."""
    staged = []

    def fit(key, x, y, weights):
        staged.append(isinstance(jnp.ones(()), jax.core.Tracer))
        return jnp.sum(weights * y) / jnp.sum(weights)

    predict = lambda params, x: jnp.full(len(x), params)  # noqa: E731
    learners.check(learners.FunctionLearner(fit, predict), X, Y)
    assert staged and all(staged)


def with_rows(fit, predict=None):
    """A learner whose fit sees rows by position: a weighted mean of the targets."""
    predict = predict or (lambda p, x: jnp.full(len(x), p))
    return FunctionLearner(fit, predict)


def dropout(key, x, y, weights):
    kept = jax.random.bernoulli(key, 0.8, (len(y),)) * weights
    return kept @ y / jnp.sum(kept)


def by_index(key, x, y, weights):
    """The penalty that errs least on the last fifth of the rows."""
    early = jnp.arange(len(y)) < 0.8 * len(y)
    fits = [learners.Ridge(p).fit(key, x, y, weights * early) for p in (0.1, 3.0, 9.0)]
    error = lambda fit: jnp.sum(~early * (y - RIDGE.predict(fit, x)) ** 2)  # noqa: E731
    best = jnp.argmin(jnp.stack([error(fit) for fit in fits]))
    return jax.tree.map(lambda *v: jnp.stack(v)[best], *fits)


def one_pass(key, x, y, weights):
    """Stochastic gradients in an order of their own, a row at a time."""
    order = jax.random.permutation(key, len(y))
    step = lambda p, i: (p + 0.1 * weights[i] * (y[i] - p), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros(()), order)[0]


BATCHES = dataclasses.replace(
    NETWORK, batch_size=5, optimizer=optax.adam(0.03), num_steps=50
)
BY_POSITION = {
    "dropout": with_rows(dropout),
    "split by index": with_rows(by_index, RIDGE.predict),
    "one row after the other": with_rows(one_pass),
    "starts at the first row": with_rows(lambda key, x, y, w: y[0] + 0 * jnp.sum(w)),
    "mini-batches of its own": FunctionLearner(BATCHES.fit, BATCHES.predict),
}


@pytest.mark.parametrize("name", BY_POSITION)
def test_learners_that_see_positions(name):
    sentence = "FunctionLearner to fit the same whatever the order of the rows, got a"
    with pytest.raises(
        ValueError, match=f"{sentence}.*moves with it, from.*full batch"
    ):
        checking.check_symmetric_once(BY_POSITION[name], X, Y, KEY)
    assert not checking._PASSED


def test_learners_that_treat_rows_alike():
    noisy_start = FunctionLearner(NETWORK.fit, NETWORK.predict)  # chaotic, and fair
    for learner in (RIDGE, NETWORK, noisy_start, learners.NearestNeighbors(3)):
        learners.check(learner, X, Y, symmetric=True)
    grid = jnp.round(X)  # distances that tie
    learners.check(learners.NearestNeighbors(3), grid, Y, symmetric=True)
    labels = FunctionLearner(
        lambda key, x, y, w: RIDGE.fit(key, x, one_hot(y), w), RIDGE.predict
    )
    learners.check(labels, X, LABELS, symmetric=True)


def test_mini_batches_are_refused_at_once():
    scaled = learners.MeanScale(RIDGE, BATCHES)
    for learner in (BATCHES, scaled, learners.Affine(BATCHES)):
        with pytest.raises(
            ValueError, match="GradientLearner with batch_size=5, whose"
        ):
            jax.jit(lambda y, v=learner: checking.check_symmetric_once(v, X, y, KEY))(Y)
    with pytest.raises(ValueError, match="take batch_size=None, or split_conformal"):
        learners.check(BATCHES, X, Y, symmetric=True)


def test_order_is_tried_once_for_each_kind_of_data():
    learner, traces = counting()
    checking.check_symmetric_once(learner, X, Y, KEY)
    assert len(traces) == 1 and len(checking._PASSED) == 1
    with jax.no_tracing():
        checking.check_symmetric_once(learner, X, Y, KEY)
    for own in (RIDGE, NETWORK, learners.MeanScale(RIDGE, RIDGE)):
        checking.check_symmetric_once(own, X, Y, KEY)
    assert len(checking._PASSED) == 1
    traced = lambda y: checking.check_symmetric_once(learner, X, y, KEY)  # noqa: E731
    jax.jit(traced)(Y)
    with pytest.raises(ValueError, match="pure jax functions of arrays"):
        checking.check_symmetric_once(UNTRACEABLE["numpy"], X, Y, KEY)


def test_models_of_the_host_have_no_order():
    host = learners.Estimator(LinearRegression())
    with pytest.raises(ValueError, match=r"learner of jax, got Estimator.*cv_plus"):
        learners.check(host, np.asarray(X), np.asarray(Y), symmetric=True)


def lasso(key, x, y, weights):
    """Soft thresholds of least squares: in pieces affine, not at once."""
    fit = learners.Ridge(0.0).fit(key, x, y, weights)
    shrunk = jnp.sign(fit.coef) * jnp.maximum(jnp.abs(fit.coef) - 1, 0)
    return dataclasses.replace(fit, coef=shrunk)


NOT_AFFINE = {
    "lasso": FunctionLearner(lasso, RIDGE.predict),
    "network": NETWORK,
    "median": with_rows(lambda key, x, y, w: jnp.median(y)),
    "bounded": with_rows(lambda key, x, y, w: jnp.mean(jnp.log(y + 20))),
}


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_learners_that_are_not_affine(name):
    learner = learners.Affine(NOT_AFFINE[name])
    with pytest.raises(ValueError, match=r"affine in each target, got .*discretized_c"):
        checking.check_symmetric_once(learner, X, Y, KEY)


def test_learners_that_are_affine():
    steps = dataclasses.replace(
        NETWORK,
        init=lambda key: jax.random.normal(key, (5,)),
        predict=lambda w, x: x @ w,
        optimizer=optax.sgd(0.05),
    )
    for learner in (RIDGE, learners.NearestNeighbors(2), SAME_RIDGE, steps):
        learners.check(learners.Affine(learner), X, Y, symmetric=True)
