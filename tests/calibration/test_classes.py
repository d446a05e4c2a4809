"""Classes of the user: none runs the program of another, however they are registered.

Under `jax.tree_util.register_dataclass` classes with the same fields compare equal in
jax, and about one pair in 128 shares a program: forty classes show it. Registered in
another way they share one always or never, which a few show.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxcp
from jaxcp import metrics, online, pvalues, sets

MANY, FEW = 40, 8


def dataclass_pytree(cls):
    cls = dataclasses.dataclass(frozen=True)(cls)
    return jax.tree_util.register_dataclass(cls, ["c"], [])


def static(cls):
    return jax.tree_util.register_static(dataclasses.dataclass(frozen=True)(cls))


def node(cls):
    cls = dataclasses.dataclass(frozen=True)(cls)
    cls.tree_flatten = lambda self: ((self.c,), None)
    cls.tree_unflatten = classmethod(lambda cls, _, children: cls(*children))
    return jax.tree_util.register_pytree_node_class(cls)


REGISTRATIONS = {
    "register_dataclass": dataclass_pytree,
    "register_static": static,
    "register_pytree_node_class": node,
    "jaxcp.pytree": jaxcp.pytree,
}
registrations = pytest.mark.parametrize(
    "register",
    [
        pytest.param(
            register, id=name, marks=[pytest.mark.slow] * (name != "register_dataclass")
        )
        for name, register in REGISTRATIONS.items()
    ],
)


def count(register):
    return MANY if register is dataclass_pytree else FEW


def score_class(register, i):
    class Scaled:
        c: float = 1.0

        def __call__(self, pred, y):
            return (i + 1) * jnp.abs(y - pred) * self.c

        def invert(self, pred, q):
            return sets.Interval(pred - q / (i + 1), pred + q / (i + 1))

    return register(Scaled)


def learner_class(register, i):
    class Constant:
        c: float = 1.0

        def fit(self, key, x, y, weights):
            return (i + 1) * jnp.ones(()) * self.c

        def predict(self, params, x):
            return jnp.full(len(x), params)

    return register(Constant)


def set_class(register, i):
    class Ray:
        c: jax.Array

        def contains(self, y):
            return y <= (i + 1) * self.c

        def size(self):
            return (i + 1) * self.c

    return register(Ray)


@pytest.mark.slow
@registrations
def test_scores_have_thresholds_sets_and_p_values_of_their_own(register):
    pred, y = jnp.zeros(9), jnp.arange(1.0, 10.0)
    for i in range(count(register)):
        cp = jaxcp.calibrate(score_class(register, i)(), pred, y)
        assert cp.quantile(0.2) == 8 * (i + 1)
        assert cp(pred[:1], 0.2).upper == 8
        assert_allclose(cp.p_values(pred[:1], y[7:8]), 0.3, rtol=1e-6)
        groups = jnp.zeros(9, int)
        by_group = jaxcp.calibrate_groups(cp.score, pred, y, groups, num_groups=1)
        assert by_group.quantile(0.2)[0] == 8 * (i + 1)
        ranks = jaxcp.calibrate(jaxcp.scores.CDF(cp.score), (pred, y[:, None]), y)
        assert_allclose(ranks.scores, 1)


@registrations
def test_programs_of_the_user_tell_calibrations_apart(register):
    half_width = jax.jit(lambda cp: cp.score(0.0, 1.0) * cp(jnp.zeros(1), 0.5).upper[0])
    for i in range(count(register)):
        cp = jaxcp.Calibration(
            score_class(register, i)(), jnp.arange(1.0, 4.0) * (i + 1)
        )
        assert_allclose(half_width(cp), 2 * (i + 1))


@pytest.mark.slow
@registrations
def test_streams_use_the_score_of_their_class(register):
    for i in range(count(register)):
        method = online.ACI(score_class(register, i)(), 0.1)
        state = method.init(jnp.arange(1.0, 10.0) * (i + 1), 0.2)
        state, found = online.run(method, state, jnp.zeros(1), jnp.ones(1), 0.2)
        assert found.upper[0] == 8
        assert state.window.scores[0] == i + 1


@registrations
def test_martingales_bet_for_themselves(register):
    def martingale_class(i):
        class Steady:
            c: float = 1.0

            def init(self):
                return jnp.zeros(())

            def step(self, state, p_value):
                state = state + (i + 1) * self.c
                return state, state

        return register(Steady)

    for i in range(count(register)):
        _, capital = pvalues.watch(martingale_class(i)(), jnp.full(2, 0.5))
        assert_allclose(capital, [i + 1, 2 * (i + 1)])


@pytest.mark.slow
@registrations
def test_learners_have_models_of_their_own(register):
    x, y = jnp.zeros((4, 1)), jnp.arange(4.0)
    for i in range(count(register)):
        learner, key = learner_class(register, i)(), jax.random.key(0)
        cp = jaxcp.cv_plus(key, learner, jaxcp.scores.Absolute(), x, y, num_folds=2)
        assert_allclose(cp.scores, np.abs(y - (i + 1)))
        assert_allclose(cp.aggregate(x[:1]), i + 1)
        assert cp.minmax(x[:1], 0.6).upper >= i + 1


@registrations
def test_sets_have_metrics_of_their_own(register):
    for i in range(count(register)):
        if register is static:
            continue  # arrays cannot be static
        region = set_class(register, i)(jnp.ones(2))
        assert metrics.mean_size(region) == i + 1
        assert metrics.coverage(region, jnp.array([i + 0.5, i + 1.5])) == 0.5


@registrations
def test_a_cell_that_is_run_again_defines_a_new_class(register):
    cell = """
@register
class Scaled:
    c: float = 1.0
    def __call__(self, pred, y):
        return factor * jnp.abs(y - pred) * self.c
    def invert(self, pred, q):
        return sets.Interval(pred - q / factor, pred + q / factor)
"""
    pred, y = jnp.zeros(9), jnp.arange(1.0, 10.0)
    for factor in range(1, 1 + count(register)):
        names = {"register": register, "factor": factor, "jnp": jnp, "sets": sets}
        exec(cell, names)
        assert jaxcp.calibrate(names["Scaled"](), pred, y).quantile(0.2) == 8 * factor


def test_values_compare_and_hash_by_identity():
    cp, same = (
        jaxcp.calibrate(jaxcp.scores.Absolute(), jnp.zeros(9), jnp.arange(9.0))
        for _ in range(2)
    )
    assert cp == cp and cp != same and len({cp, same, cp}) == 2
    assert {cp: 1}[cp] == 1
    assert_allclose(jax.jit(cp)(jnp.zeros(2), 0.2).upper, cp(jnp.zeros(2), 0.2).upper)
    method = online.ACI(cp.score, 0.1)
    state = method.init(cp.scores, 0.1)
    assert len({method, state, state.window}) == 3
