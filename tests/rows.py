"""Rows that tests share, and what a test of wrong calls is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
from jaxcp import learners, risk, scores
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


def _held(n):
    """Targets, weights and groups of n calibration rows."""
    rng = np.random.default_rng(0)
    return rng.normal(size=n).astype("f"), 1 + rng.random(n, "f"), np.arange(n) % 3


def _split(score=ABSOLUTE, weighted=False, grouped=False):
    def make(n):
        y, weights, groups = _held(n)
        preds, y = {
            "Absolute": (0 * y, y),
            "LAC": (np.asarray(_shares(y)), groups),
            "Rectangle": ((0 * np.tile(y[:, None], 2),) * 2, np.tile(y[:, None], 2)),
        }[type(score).__name__]
        options = {"weights": weights} if weighted else {}
        if grouped:
            options |= {"groups": groups, "num_groups": 3}
        verb = jaxcp.calibrate_groups if grouped else jaxcp.calibrate
        return verb(score, preds, y, **options)

    return make


def _cross(weighted=False):
    def make(n):
        y, weights, _ = _held(n)
        held_out = np.arange(n) % 2 == np.arange(2)[:, None]
        options = {"weights": weights} if weighted else {}
        return jaxcp.cross_calibrate(
            ABSOLUTE, np.zeros((2, n), "f"), y, held_out, **options
        )

    return make


def _risk(weighted=False, grouped=False):
    def make(n):
        y, weights, groups = _held(n)
        options = {"weights": weights} if weighted else {}
        if grouped:
            options |= {"groups": groups, "num_groups": 3}
        return risk.calibrate_risk(risk.miscoverage, ABSOLUTE, 0 * y, y, **options)

    return make


def _cells(t, k):
    return jnp.stack([t + i for i in range(k)], axis=-1)


def _shares(t):
    part = 1 / (1 + t * t)
    return jnp.stack([part / 2, part / 2, 1 - part], axis=-1)


def _group(t):
    return jnp.abs(t).astype(int) % 3


_BOX, _LAC = scores.Rectangle(), scores.LAC()
# What is done with a calibration of n rows, for numbers t (m,) from which come
# predictions, weights and groups of m test points: results with leading axis m.
POINTWISE = {
    "sets": (_split(), lambda cp, t: cp(t, 0.1)),
    "sets, delta": (_split(), lambda cp, t: cp(t, 0.1, delta=0.1)),
    "p-values": (_split(), lambda cp, t: cp.p_values(t, 2 * t)),
    "components": (_split(_BOX), lambda cp, t: cp((_cells(t, 2),) * 2, 0.1)),
    "labels": (_split(_LAC), lambda cp, t: cp(_shares(t), 0.1)),
    "groups": (_split(grouped=True), lambda cp, t: cp(t, 0.1, groups=_group(t))),
    "classes": (_split(_LAC, grouped=True), lambda cp, t: cp(_shares(t), 0.1)),
    "p-values by group": (
        _split(grouped=True),
        lambda cp, t: cp.p_values(t, 2 * t, groups=_group(t)),
    ),
    "cross": (_cross(), lambda cp, t: cp(_cells(t, 2).T, 0.1)),
    "minmax": (_cross(), lambda cp, t: cp.minmax(_cells(t, 2).T, 0.1)),
    "aggregate": (_cross(), lambda cp, t: cp.aggregate(_cells(t, 2).T)),
    "risk": (_risk(), lambda cp, t: cp(t, 0.1)),
    "risk by group": (_risk(grouped=True), lambda cp, t: cp(t, 0.1, groups=_group(t))),
    "weighted sets": (
        _split(weighted=True),
        lambda cp, t: cp(t, 0.1, test_weights=abs(t)),
    ),
    "weighted p-values": (
        _split(weighted=True),
        lambda cp, t: cp.p_values(t, 2 * t, test_weights=abs(t)),
    ),
    "weighted components": (
        _split(_BOX, weighted=True),
        lambda cp, t: cp((_cells(t, 2),) * 2, 0.1, test_weights=abs(t)),
    ),
    "weighted labels": (
        _split(_LAC, weighted=True),
        lambda cp, t: cp(_shares(t), 0.1, test_weights=abs(t)),
    ),
    "weighted groups": (
        _split(weighted=True, grouped=True),
        lambda cp, t: cp(t, 0.1, groups=_group(t), test_weights=abs(t)),
    ),
    "weighted classes": (
        _split(_LAC, weighted=True, grouped=True),
        lambda cp, t: cp(_shares(t), 0.1, test_weights=abs(t)),
    ),
    "weighted p-values by group": (
        _split(weighted=True, grouped=True),
        lambda cp, t: cp.p_values(t, 2 * t, groups=_group(t), test_weights=abs(t)),
    ),
    "weighted cross": (
        _cross(weighted=True),
        lambda cp, t: cp(_cells(t, 2).T, 0.1, test_weights=abs(t)),
    ),
    "weighted minmax": (
        _cross(weighted=True),
        lambda cp, t: cp.minmax(_cells(t, 2).T, 0.1, test_weights=abs(t)),
    ),
    "weighted risk": (
        _risk(weighted=True),
        lambda cp, t: cp(t, 0.1, test_weights=abs(t)),
    ),
}


def refuses(table):
    """A test of {name: (call, message)}: what was expected and what came is said."""

    @pytest.mark.parametrize("name", table)
    def test(name):
        call, message = table[name]
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert str(error.value).startswith("expected ")

    return test
