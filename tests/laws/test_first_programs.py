"""What a first call compiles: few programs, with the numbers of many."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import datasets, learners, metrics, resampling, scores
from jaxcp.predictive import calibrate_predictive
from jaxcp.quantiles._keys import num_passed
from jaxcp.sets import Interval


def test_plans_of_verbs_are_those_of_resampling(key):
    x, y = datasets.linear(key, 30)
    key_plan, key_fits = jax.random.split(key)
    fit = lambda key, x, y, weights: (weights, jax.random.key_data(key))  # noqa: E731
    learner = learners.FunctionLearner(fit, lambda params, x: x[:, 0])
    options = {"check": False}
    data = learner, scores.Absolute(), x, y
    cv = jaxcp.cv_plus(key, *data, num_folds=4, **options)
    given = jaxcp.cv_plus(key, *data, folds=np.arange(30) % 4, **options)
    bags = jaxcp.enbpi(key, *data, num_resamples=9, block_size=3, **options)
    for cp, weights in (
        (cv, resampling.k_fold(key_plan, 30, 4)),
        (given, np.arange(30) % 4 != np.arange(4)[:, None]),
        (bags, resampling.block_bootstrap(key_plan, 30, 9, 3)),
    ):
        assert_array_equal(cp.fits.params[0], weights)
        keys = jax.random.split(key_fits, len(weights) + 1)[:-1]
        assert_array_equal(cp.fits.params[1], jax.random.key_data(keys))


def test_folds_under_jit_and_vmap(key):
    x, y = datasets.linear(key, 30)

    def fit(key):
        ridge, score = learners.Ridge(1.0), scores.Absolute()
        return jaxcp.cv_plus(key, ridge, score, x, y, num_folds=4).scores

    keys = jax.random.split(key, 3)
    each = np.stack([fit(key) for key in keys])
    np.testing.assert_allclose(jax.jit(jax.vmap(fit))(keys), each, rtol=1e-4)


def test_few_programs(key, programs):
    """Those of a plan are one, with the key of its fits; a posterior is one."""
    x, y = (np.asarray(v) for v in datasets.linear(key, 37))
    data = learners.Ridge(1.0), scores.Absolute(), x, y
    two, scale = x[:, :2], np.tile(np.eye(2, dtype="f"), (37, 1, 1))
    ends = Interval(y - 1, y + 1)

    def sizes(score, preds, y):  # scores, sets, sizes
        return jaxcp.calibrate(score, preds, y)(preds, 0.1).size()

    system, u = calibrate_predictive(scores.Residual(), y, y), np.full(37, 0.5, "f")
    jax.clear_caches()
    for call, most in (
        (lambda: sizes(scores.Absolute(), y, y), 3),
        (lambda: sizes(scores.Rectangle(), (two - 1, two + 1), two), 3),
        (lambda: sizes(scores.Distance(), two, two), 3),
        (lambda: sizes(scores.Mahalanobis(), (two, scale), two), 3),
        (lambda: sizes(scores.LAC(), scale[:, 0], 0 + (y > 0)), 3),
        (lambda: system.cdf(y, y, u=u), 1),
        (lambda: system.quantile(y, [0.1, 0.9], side="upper"), 2),  # and alpha's type
        (lambda: system.crps(y, y), 1),
        (lambda: metrics.worst_slab_coverage(key, ends, y, x), 1),
        (lambda: metrics.summary(ends, y, 0.1), 2),  # sizes first, put in order here
        (lambda: datasets.heteroscedastic(key, 37), 1),
        (lambda: resampling.leave_one_out(37), 1),
        (lambda: datasets.class_posterior(x[:, :2], num_classes=4), 1),
        (lambda: jaxcp.cv_plus(key, *data, num_folds=7), 3 + 2),  # two copies of data
        (lambda: jaxcp.jackknife_plus(key, *data), 2 + 3),
    ):
        programs.clear()
        call()
        assert len(programs) <= most


def test_a_function_of_losses_is_compiled_once(programs):
    """Also where the arrays that it binds change, and inside of other programs."""
    rows = np.arange(12, dtype="f").reshape(3, 4)
    above = lambda x, v: jnp.sum(x > v)  # noqa: E731
    jaxcp.first_within(partial(above, rows[0]), 1)
    programs.clear()
    found = [jaxcp.first_within(partial(above, row), k) for row in rows for k in (1, 2)]
    assert not programs
    assert_array_equal(found, [2, 1, 6, 5, 10, 9])
    each = jax.jit(jax.vmap(lambda row: jaxcp.first_within(partial(above, row), 1)))
    assert_array_equal(each(rows), [2, 6, 10])
    closed = jax.vmap(lambda row: jaxcp.first_within(lambda v: above(row, v), 1))
    assert_array_equal(closed(rows), [2, 6, 10])


@pytest.mark.parametrize("n", [2, 3, 8, 9, 100])
def test_places_are_those_of_a_search(n, key):
    values = jnp.round(3 * jax.random.normal(key, (n,)))  # ties
    ordered = jnp.sort(values.at[0].set(jnp.nan).at[-1].set(jnp.inf))
    below = num_passed(lambda at: ordered[at] < values, n, (n,))
    up_to = num_passed(lambda at: ordered[at] <= values, n, (n,))
    assert_array_equal(below, np.searchsorted(ordered, values))
    assert_array_equal(up_to, np.searchsorted(ordered, values, side="right"))
