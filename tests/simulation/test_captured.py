"""What functions of the user read may change: the next call sees it, in every verb.

jax keeps programs by function, and what a function captured stays as it was traced.
Here the same functions are called again after a change, and fresh ones beside them.
"""

import gc
import inspect
import logging.handlers
import sys
import weakref
from collections import deque
from functools import partial, update_wrapper
from types import MappingProxyType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from test_docstrings import public

import jaxcp
from jaxcp import (
    learners,
    metrics,
    online,
    predictive,
    pvalues,
    risk,
    scores,
    selection,
    sets,
    survival,
    training,
)
from jaxcp.checking.captured import states_of

KEY, ZEROS, Y = jax.random.key(0), jnp.zeros(9), jnp.arange(1.0, 10.0)
X = Y[:, None]
factor = 1.0  # what every function below reads, straight or through `scaled`


def scaled(values):
    return factor * values


def error():
    return lambda pred, y: scaled(jnp.abs(y - pred))


def around():
    return lambda pred, q: sets.Interval(pred - scaled(q), pred + scaled(q))


def custom(score):
    return lambda: jaxcp.calibrate(score, ZEROS, Y).quantile(0.2)


def numbers(make):
    """The numbers that a rule of selection goes by, of a function of a prediction."""
    rows = scores.Absolute(), ZEROS + 1, Y
    return partial(
        lambda by: selection.calibrate_selected(*rows, rule=make(by=by)).numbers,
        lambda pred: scaled(pred),
    )


def swapped(make):
    """Which rows a rule of one's own selects."""
    rows = scores.Absolute(), Y, Y
    return partial(
        lambda flags: (
            selection.calibrate_selected(*rows, rule=make(flags))(Y, 0.3).selected
        ),
        lambda mu, below, new: scaled(new) > 2,
    )


def upper(score):
    return lambda: jaxcp.calibrate(score, ZEROS + 1, Y)(ZEROS + 1, 0.2).upper


def lost(verb, *args):
    """A metric of the loss of intervals, some of which miss."""
    missed = lambda s, y: scaled(~s.contains(y) * 1.0)  # noqa: E731
    return lambda: verb(sets.Interval(ZEROS, ZEROS + 5), Y, *args, loss=missed)


def stakes(kind, bar):
    monitor = kind(0.5, bar, stake=lambda state: scaled(jnp.ones(()) / 2))
    return lambda: monitor.run(jnp.ones(3))[1]


def volume(score):
    found = score.invert(jnp.zeros(2), 4.0)
    return lambda: jaxcp.volume(KEY, found, num_samples=64)


def constant():
    return learners.FunctionLearner(
        lambda key, x, y, weights: scaled(jnp.ones(())) + 0 * jnp.sum(weights),
        lambda params, x: jnp.full(len(x), params),
    )


def mean():
    return learners.FunctionLearner(
        lambda key, x, y, weights: weights @ y / jnp.sum(weights),
        lambda params, x: jnp.full(len(x), scaled(params)),
    )


def refits(verb, learner, **options):
    call = partial(verb, KEY, learner, scores.Absolute(), X, Y, **options)
    return lambda: call()(X[:2], 0.5).lower


def gradient(name):
    """Returns a learner one of whose functions reads what changes."""
    read = {name: scaled}
    same = lambda v: v  # noqa: E731
    learner = learners.GradientLearner(
        init=lambda key: read.get("init", same)(jnp.ones(())),
        predict=lambda params, x: read.get("predict", same)(jnp.full(len(x), params)),
        loss=lambda pred, y: read.get("loss", same)((y - pred) ** 2),
        optimizer=optax.sgd(0.1),
        num_steps=2,
    )
    return refits(jaxcp.cv_plus, learner, num_folds=3)


def risks(loss, score=None, y=Y):
    score = score or scores.Absolute()
    preds = ZEROS if y is Y else jnp.full((9, 2), 0.5)
    return lambda: risk.calibrate_risk(loss, score, preds, y).quantile(0.3)


def matches():
    loss = risk.best_match(lambda y: scaled(jnp.array([0.5, 0.5])))
    return lambda: loss(sets.LabelSet(jnp.array([True, False])), 1)


def family():
    method = lambda p, delta: p <= scaled(delta)  # noqa: E731
    losses = np.arange(8) % 8 < np.array([[1, 2]]).T  # p-values 9 / 256, 37 / 256
    return lambda: risk.learn_then_test(losses.T, 0.5, 0.1, method=method)


def pid():
    method = online.PID(scores.Absolute(), 0.5, loss=lambda s, y: scaled(s.size() < y))

    def run():
        state = method.init(Y, 0.2)
        return online.run(method, state, jnp.zeros(3), jnp.full(3, 99.0), 0.2)[1].upper

    return run


def projected():
    project = lambda s: jax.tree.map(lambda v: 0 * v + scaled(1.0), s)  # noqa: E731
    start = scores.RAPS(0.5, 1)
    preds, y = jnp.full((40, 3), 1 / 3), jnp.arange(40) % 3
    how = {"optimizer": optax.sgd(0.0), "num_steps": 1, "temperature": 0.1}
    return lambda: (
        training.train_score(KEY, start, preds, y, 0.2, project=project, **how).penalty
    )


class Ones:
    """A model of another library."""

    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.ones(len(x))


@jaxcp.pytree
class Own:
    """A score, a learner, a set, a martingale: whatever it is asked for."""

    c: float = 1.0

    def __call__(self, pred, y):
        return scaled(jnp.abs(y - pred))

    def invert(self, pred, q):
        return Ray(pred + q)

    def fit(self, key, x, y, weights):
        return scaled(jnp.ones(())) + 0 * jnp.sum(weights)

    def predict(self, params, x):
        return jnp.full(len(x), params)

    def init(self):
        return jnp.zeros(())

    def step(self, state, p_value):
        return state + scaled(p_value), state + scaled(p_value)


@jaxcp.pytree
class Ray:
    end: jax.Array

    def contains(self, y):
        return y <= scaled(self.end)

    def size(self):
        return scaled(self.end)


# By the public name that takes a function, `name.argument`: functions without
# arguments that call the verb with the same functions each time.
VERBS = {
    "Custom.evaluate": lambda: custom(scores.Custom(error())),
    "Custom.inverse": lambda: upper(scores.Custom(error(), around())),
    "Custom.start": lambda: upper(
        scores.Custom(
            lambda pred, y: jnp.abs(y - scaled(pred)), start=lambda pred: scaled(pred)
        )
    ),
    "CDF.cdf": lambda: custom(
        scores.CDF(scores.Absolute(), cdf=lambda pred, s: 1 - jnp.exp(-scaled(s)))
    ),
    "Rectified.form": lambda: partial(
        lambda f: jaxcp.calibrate(
            scores.Rectified(scores.Absolute(), f), (Y, Y), Y + 1
        ).quantile(0.3),
        lambda s, tau: scaled(s),
    ),
    "Density.log_prob": lambda: custom(
        scores.Density(lambda pred, y: -scaled((y - pred) ** 2))
    ),
    "Density.sample": lambda: volume(
        scores.Density(
            lambda pred, y: -jnp.sum((y - pred) ** 2),
            lambda key, pred, n: scaled(jax.random.normal(key, (n, 2))),
        )
    ),
    "Latent.inverse": lambda: custom(
        scores.Latent(lambda pred, y: scaled(y - pred)[None])
    ),
    "Latent.forward": lambda: volume(
        scores.Latent(lambda pred, y: y - pred, lambda pred, z: scaled(pred + z), dim=2)
    ),
    "calibrate_masked.predict": lambda: partial(
        lambda f: (
            jaxcp.calibrate_masked(f, None, scores.Absolute(), X, Y)(X, 0.3).upper
        ),
        lambda params, x: scaled(x[:, 0]),
    ),
    "top.by": lambda: numbers(partial(selection.top, 2)),
    "above.by": lambda: numbers(partial(selection.above, 2.0)),
    "by_p_values.by": lambda: numbers(partial(selection.by_p_values, 2.0, 0.1)),
    "Swaps.by": lambda: numbers(
        partial(selection.Swaps, lambda mu, below, new: new > 0)
    ),
    "Swaps.flags": lambda: swapped(selection.Swaps),
    "calibrate_selected.rule": lambda: swapped(lambda flags: flags),
    "split_conformal.predict": lambda: partial(
        lambda f: jaxcp.split_conformal(f, None, scores.Absolute(), X, Y)(X, 0.3).upper,
        lambda params, x: scaled(x[:, 0]),
    ),
    "calibrate_predictive.predict": lambda: partial(
        lambda f: predictive.calibrate_predictive(
            scores.Residual(), X, Y, predict=f
        ).mean(X),
        lambda params, x: scaled(x[:, 0]),
    ),
    "draw.sample": lambda: partial(
        lambda f: jaxcp.draw(KEY, f, X, 2), lambda key, x, n: scaled(jnp.ones((n, 1)))
    ),
    "first_within.total": lambda: partial(
        jaxcp.first_within, lambda v: jnp.sum(scaled(Y) > v), 5
    ),
    "simulate.trial": lambda: partial(
        jaxcp.simulate, lambda key: scaled(jnp.ones(())), KEY, 4
    ),
    "FunctionLearner.fit": lambda: refits(jaxcp.jackknife_plus, constant()),
    "FunctionLearner.predict": lambda: refits(jaxcp.cv_plus, mean(), num_folds=3),
    "fit_quantile": lambda: partial(
        lambda f: jaxcp.fit_quantile(KEY, f, scores.Absolute(), 0 * Y, Y, X)(X), mean()
    ),
    "split_conformal_fit": lambda: refits(
        jaxcp.split_conformal_fit, constant(), share=0.5
    ),
    "Affine": lambda: refits(
        jaxcp.full_conformal, learners.Affine(mean()), residuals="ordinary"
    ),
    "GradientLearner.init": lambda: gradient("init"),
    "GradientLearner.predict": lambda: gradient("predict"),
    "GradientLearner.loss": lambda: gradient("loss"),
    "Estimator.predict": lambda: refits(
        jaxcp.cv_plus,
        learners.Estimator(Ones(), predict=lambda m, x: scaled(m.predict(x))),
        num_folds=3,
    ),
    "PID.loss": pid,
    "best_match.similarity": matches,
    "ChangeMonitor.stake": lambda: stakes(online.ChangeMonitor, 9),
    "RiskMonitor.stake": lambda: stakes(online.RiskMonitor, 0.1),
    "permutation_test.statistic": lambda: partial(
        lambda f: pvalues.permutation_test(KEY, Y, f, num_permutations=99),
        lambda s: -jnp.floor(scaled(s[0])),  # -1 of the first score, or 0 of three
    ),
    "by_group.loss": lambda: lost(metrics.by_group, np.zeros(9, int)),
    "mean_loss.loss": lambda: lost(lambda s, y, loss: metrics.mean_loss(loss, s, y)),
    "summary.loss": lambda: lost(metrics.summary, 0.2),
    "calibrate_risk.loss": lambda: risks(lambda s, y: scaled(~s.contains(y))),
    "calibrate_risk.best_match": lambda: risks(
        risk.best_match(lambda y: scaled(jnp.ones(2))), scores.MultiLabel(), Y[:, None]
    ),
    "learn_then_test.method": family,
    "train_score.project": projected,
    "coverage.censoring": lambda: partial(
        lambda f: survival.coverage(np.array([[1.0, np.inf]]), [0.0], [True], f),
        lambda t: scaled(jnp.exp(-t)) / 2,
    ),
    "impute_censoring.model": lambda: partial(
        lambda f: survival.impute_censoring(KEY, f, None, Y, Y > 0),
        lambda x, c: jnp.exp(-scaled(c)),
    ),
    "own score": lambda: custom(Own()),
    "own learner": lambda: refits(jaxcp.cv_plus, Own(), num_folds=3),
    "own set": lambda: partial(metrics.mean_size, Ray(jnp.ones(3))),
    "own set of an own score": lambda: partial(
        lambda s: metrics.coverage(jaxcp.calibrate(s, ZEROS, Y)(ZEROS, 0.5), Y), Own()
    ),
    "own martingale": lambda: partial(lambda s: pvalues.watch(s, Y[:3] / 10)[1], Own()),
}
FUNCTIONS = ("Callable", "Predict", "Procedure")


@pytest.mark.parametrize("name", VERBS)
def test_verbs_see_what_functions_read_now(name, monkeypatch):
    call, module = VERBS[name](), sys.modules[__name__]
    first = jax.tree.leaves(call())
    monkeypatch.setattr(module, "factor", 0.25)
    found, fresh = jax.tree.leaves(call()), jax.tree.leaves(VERBS[name]()())
    assert len(first) == len(found) == len(fresh) > 0
    assert any(np.any(np.asarray(a) != b) for a, b in zip(first, found, strict=True))
    for a, b in zip(found, fresh, strict=True):
        assert_allclose(a, b, rtol=1e-6)


def test_the_table_has_every_public_function_of_functions():
    exempt = {
        "MaskedCalibration.predict": "made by calibrate_masked",
        "SplitConformal.predict": "made by split_conformal",
        "Predictor.predict": "made by SplitConformal.at",
        "run_grid.fn": "its records refuse another function: test_grids",
    }
    takes = set()
    values = [parameter.values[0] for parameter in public()]
    for value in (v for v in values if v is not metrics.Summary):  # a dict
        for argument in inspect.signature(value).parameters.values():
            if any(kind in str(argument.annotation) for kind in FUNCTIONS):
                takes.add(f"{value.__name__}.{argument.name}")
    assert takes - set(VERBS) - set(exempt) == set()


class Holder:
    """Reads an attribute, of an object or of its class."""

    shift = 0.0

    def __init__(self, factor):
        self.factor = factor

    def error(self, pred, y):
        return self.factor * jnp.abs(y - pred) + self.shift


def by_default(held=None):
    return lambda pred, y, held=held: held[0] * jnp.abs(y - pred)


def partly(held, pred, y):
    return held["a"] * jnp.abs(y - pred)


def changed(value, function, attribute, to):
    """How a value starts, a function of it, and how an attribute or item changes."""
    if isinstance(value, dict | list | deque | np.ndarray):
        return value, function, lambda: value.__setitem__(attribute, to)
    return value, function, lambda: setattr(value, attribute, to)


class OwnHolder(Holder):
    pass


class Slot:
    __slots__ = ("value",)


class OwnSlot(Slot):
    """Has a slot of its base, and attributes."""


class OwnDict(dict):
    value = 1.0


def decorated(function):
    return update_wrapper(OwnSlot(), function)


def slotted(cls):
    held = cls()
    held.value = 1.0
    return held


def of_value(held):
    return lambda pred, y: held.value * (y - pred)


def shadowed(held):
    def evaluate(pred, y):
        def inner(held):
            return lambda: held

        return held.value * (y - pred) + 0 * inner(0)()

    return evaluate


class Hidden:
    __slots__ = ("__value",)

    def __init__(self, value):
        self.put(value)

    def put(self, value):
        self.__value = value

    def get(self):
        return self.__value


class Factor:
    def __mul__(self, y):
        return y**POWER


POWER, FACTOR, HIDDEN = 1, Factor(), Hidden(1.0)


THIS = sys.modules[__name__]


def aliased(pred, y):
    module = THIS
    return module.LEVEL * y


def linked(length):
    held = first = SimpleNamespace(value=1.0)
    for _ in range(length):
        held = SimpleNamespace(next=held)
    return held, first


CHAIN, LAST = linked(2000)
SELF = of_value(SimpleNamespace(value=0.0))
SELF.value = 1.0


LEVEL = 1
VIEWED, OWN = {"a": 1.0}, OwnDict()
# What a function may capture: how it starts, a function of it, and a change.
KINDS = {
    "cell": changed([1.0], lambda v: lambda p, y: v[0] * (y - p), 0, 0.25),
    "dict": changed({"a": 1.0}, lambda v: lambda p, y: v["a"] * (y - p), "a", 9),
    "deep": changed({"a": [{}]}, lambda v: lambda p, y: len(v["a"]) * y, "a", [1, 2]),
    "deque": changed(deque([1.0]), lambda v: lambda p, y: v[0] * (y - p), 0, 0.25),
    "numpy": changed(np.ones(3), lambda v: lambda p, y: v[1] * (y - p), 1, 0.25),
    "zero": changed([0.0], lambda v: lambda p, y: jnp.copysign(y, v[0]), 0, -0.0),
    "jax": changed([jnp.ones(())], lambda v: lambda p, y: v[0] * y, 0, jnp.zeros(())),
    "attribute": changed(Holder(1.0), lambda v: lambda p, y: v.factor * y, "factor", 4),
    "method": changed(Holder(1.0), lambda v: v.error, "factor", 4),
    "class": changed(
        OwnHolder, lambda v: lambda p, y: v(1.0).error(p, y), "shift", 4.0
    ),
    "partial": changed({"a": 1.0}, lambda v: partial(partly, v), "a", 9),
    "default": changed([1.0], by_default, 0, 0.25),
    "module": changed(
        sys.modules[__name__], lambda v: lambda p, y: v.LEVEL * (y - p), "LEVEL", 4
    ),
    "slot": changed(slotted(Slot), of_value, "value", 4),
    "slot of a base": changed(slotted(OwnSlot), of_value, "value", 4),
    "namespace": changed(SimpleNamespace(value=1.0), shadowed, "value", 4),
    "own dict": (OWN, of_value, lambda: setattr(OWN, "value", 4)),
    "view": (
        VIEWED,
        lambda v: lambda p, y, v=MappingProxyType(v): v["a"] * y,
        lambda: VIEWED.update(a=4),
    ),
    "attribute of a function": changed(SELF, of_value, "value", 4),
    "attribute of a decorator": changed(
        slotted(lambda: decorated(abs)), of_value, "value", 4
    ),
    "objects": changed(
        np.array([1.0, None]), lambda v: lambda p, y: v[0] * (y - p), 0, 4.0
    ),
    "private slot": (HIDDEN, lambda v: lambda p, y: v.get() * y, lambda: HIDDEN.put(4)),
    "operator": (
        FACTOR,
        lambda v: lambda p, y: v * y,
        lambda: setattr(sys.modules[__name__], "POWER", 3),
    ),
    "alias of a module": changed(sys.modules[__name__], lambda v: aliased, "LEVEL", 16),
    "long chain": (
        LAST,
        lambda v: lambda p, y, chain=CHAIN: v.value * (y - p),
        lambda: setattr(LAST, "value", 4),
    ),
    "kind": changed(
        [(0, 1)], lambda v: lambda p, y: y * (1 + (v[0] == [0, 1])), 0, [0, 1]
    ),
    "function": changed([jnp.abs], lambda v: lambda p, y: v[0](y), 0, jnp.sqrt),
    "helper": changed([jnp.abs], lambda v: lambda p, y: helped(v, y), 0, jnp.sqrt),
}


def helped(held, y):
    return held[0](y)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_value_that_changes_is_seen(name):
    value, function, change = KINDS[name]
    evaluate = function(value)
    call = custom(scores.Custom(lambda pred, y: evaluate(pred, y)))
    first = call()
    change()
    found = call()
    assert_allclose(found, custom(scores.Custom(function(value)))())
    assert found != first or np.signbit(found) != np.signbit(first)


def test_what_stays_as_it_is_compiles_nothing():
    """Also of functions that change what they read: traces are counted in a list."""
    traces, told, array = [], {"traces": 0}, np.ones(9)

    def evaluate(pred, y):
        traces.append(len(array))
        told["traces"] += 1
        return scaled(jnp.abs(y - pred))

    call = custom(scores.Custom(evaluate))
    call()
    known = len(traces)
    call()
    array[:] = 1  # the same numbers
    call()
    assert len(traces) == known == told["traces"]


def test_loggers_are_no_reason_to_compile():
    logger = logging.getLogger(__name__)
    logger.propagate, handler = False, logging.handlers.MemoryHandler(99)
    logger.addHandler(handler)
    call = lambda: logger.info("")  # noqa: E731
    before = states_of([call])
    handler.buffer.append("another record")
    assert states_of([call]) == before


def test_cycles_end_and_states_are_compared_by_content():
    ring = []
    ring.append(ring)
    function = lambda: (ring, factor)  # noqa: E731
    assert states_of([function]) == states_of([function])
    assert states_of([[1, [2]]]) != states_of([[1, 2]])
    assert len({states_of([v]) for v in (1, 1.0, True, 0.0, -0.0)}) == 5
    assert states_of([float("nan")]) == states_of([float("nan")])


class Data:
    shift = 0.0


# Verbs whose memos would keep functions alive, besides those of jax.
LIVES = {
    "simulate": lambda f: jaxcp.simulate(lambda key: f(jnp.ones(())), KEY, 4),
    "simulate a method": lambda f: jaxcp.simulate(Trial(f).run, KEY, 4),
    "check": lambda f: refits(
        jaxcp.cv_plus,
        learners.FunctionLearner(
            lambda key, x, y, w: jnp.sum(w * y) / 9, lambda p, x: f(jnp.full(len(x), p))
        ),
        num_folds=3,
    )(),
    "custom": lambda f: custom(scores.Custom(lambda pred, y: f(y - pred)))(),
    "first_within": lambda f: jaxcp.first_within(lambda v: f(-v), 1),
}


class Trial:
    def __init__(self, function):
        self.function = function

    def run(self, key):
        return self.function(jnp.ones(()))


@pytest.mark.parametrize("name", LIVES)
def test_functions_are_let_go(name):
    def used():
        data = Data()
        LIVES[name](lambda v: v + data.shift)
        return weakref.ref(data)

    known = used()
    jax.clear_caches()
    gc.collect()
    assert known() is None


def test_a_checkpoint_is_of_the_program_that_it_names(tmp_path):
    held = {"factor": 1.0}
    trial = lambda key: held["factor"] * jnp.ones(())  # noqa: E731
    jaxcp.simulate(trial, KEY, 4)
    held["factor"] = 2.0
    assert_allclose(jaxcp.simulate(trial, KEY, 4, checkpoint=tmp_path / "two"), 2)
    held["factor"] = 1.0
    with pytest.raises(ValueError, match="another"):
        jaxcp.simulate(trial, KEY, 4, checkpoint=tmp_path / "two")
