"""Rows that tests share, and what a test of wrong calls is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import learners, scores
from jaxcp.sets import Interval

KEY, RIDGE, ABSOLUTE = jax.random.key(0), learners.Ridge(1.0), scores.Absolute()
_X = np.arange(1.0, 10.0)
X = jnp.asarray(_X)
X2 = jnp.asarray(_X[:, None] ** np.arange(1, 3)[None])
P = jnp.asarray(np.full((9, 3), 1 / 3))
Y = jnp.asarray(np.arange(9) % 3)
SETS9 = Interval(jnp.asarray(_X - 1), jnp.asarray(_X + 1))


class PlainLearner:
    def fit(self, key, x, y, weights):
        return jnp.mean(y)

    def predict(self, params, x):
        return jnp.full(len(x), params)


def calibrate(score, preds, y, **options):
    return lambda: jaxcp.calibrate(score, preds, y, **options)


def sized(sizes, covered):
    """Intervals of given sizes that hold 0 or do not."""
    lower = np.where(covered, 0.0, 1.0)
    ends = (jnp.asarray(v) for v in (lower, lower + np.asarray(sizes)))
    return Interval(*ends), jnp.asarray(np.zeros(len(sizes)))


def refuses(table):
    """A test of {name: (call, message)}: what was expected and what came is said."""

    @pytest.mark.parametrize("name", table)
    def test(name):
        call, message = table[name]
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert str(error.value).startswith("expected ")

    return test
