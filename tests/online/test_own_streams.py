"""A method of one's own on a stream: it works where ours do."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, online, scores

KEY = jax.random.key(0)


# An online method: a tracked quantile whose steps fade.


@jaxcp.pytree
class FadingSteps(online.Stream):
    """Quantile tracking whose steps fade: Angelopoulos, Barber, Bates, 2024."""

    score: jaxcp.typing.Score
    step_size: float
    power: float = 0.6

    def init(self, scores, alpha, *, mask=None):
        return jnp.max(scores, axis=0), jnp.zeros((), int)

    def threshold(self, state, alpha):
        return state[0]

    def learn(self, state, pred, y, alpha, q):
        _, steps = state
        missed = self.score(pred, y) > q
        step = self.step_size * (steps + 1.0) ** -self.power
        return q + step * (missed - alpha), steps + 1


FADING = FadingSteps(scores.Absolute(), 1.0)
PAST, T = jnp.linspace(0, 1, 20), 400
PREDS = jnp.sin(jnp.arange(T) / 9.0)
Y = PREDS + jax.random.uniform(jax.random.key(0), (T,), minval=-1)


def run_fading(step_size=1.0, power=0.6, y=Y):
    method = FadingSteps(scores.Absolute(), step_size, power)
    return online.run(method, method.init(PAST, 0.1), PREDS, y, 0.1)[1]


def test_a_stream_of_ones_own_is_the_loop():
    sets, q = run_fading(), 1.0
    for t in range(T):
        assert_allclose(sets.upper[t] - PREDS[t], q, atol=1e-5)
        q += (t + 1) ** -0.6 * ((abs(Y[t] - PREDS[t]) > q) - 0.1)


@pytest.mark.parametrize("kind", ["random", "just outside", "always 0", "in turns"])
def test_the_bound_of_a_stream_of_ones_own(kind):
    """|mean error - alpha| <= (B + step_1) / (step_T T) for scores in [0, B = 1]."""

    def step(state, t):
        q = FADING.threshold(state, None)
        outside = jnp.clip(1.01 * q + 0.01, 0, 1)
        y = {
            "random": jax.random.uniform(jax.random.fold_in(jax.random.key(0), t)),
            "just outside": outside,
            "always 0": jnp.zeros(()),
            "in turns": jnp.where(t % 50 < 25, outside, 0),
        }[kind]
        state, sets = FADING.step(state, jnp.zeros(()), y, 0.1)
        return state, ~sets.contains(y)

    t = np.arange(1, 3001)
    _, missed = jax.lax.scan(step, FADING.init(PAST, 0.1), t - 1)
    gap = np.abs(np.cumsum(missed) / t - 0.1)
    assert np.all(gap <= (1 + 1.0) / (t**-0.6 * t) + 1e-5)


def test_a_stream_of_ones_own_one_by_one_and_saved():
    sets, state = run_fading(), FADING.init(PAST, 0.1)
    for t in range(5):
        before = FADING.predict(state, PREDS[t], 0.1)
        state, now = FADING.step(state, PREDS[t], Y[t], 0.1)
        assert_array_equal(before.upper, now.upper)
        assert_allclose(now.upper, sets.upper[t], rtol=1e-5)
    loaded = pickle.loads(pickle.dumps(jax.device_get(state)))
    _, rest = online.run(FADING, loaded, PREDS[5:], Y[5:], 0.1)
    assert_allclose(rest.upper, sets.upper[5:], rtol=1e-5)
    with jax.no_tracing():
        FADING.step(state, PREDS[0], Y[0], 0.1)


def test_a_stream_of_ones_own_is_transformed():
    steps, powers = jnp.array([0.5, 1.0]), jnp.array([0.5, 0.6])
    many = jax.jit(jax.vmap(run_fading))(steps, powers)
    assert_allclose(many.upper[1], run_fading().upper, rtol=1e-5)
    series = jax.vmap(lambda y: run_fading(y=y))(jnp.stack([Y, 2 * Y]))
    assert_allclose(series.upper[0], run_fading().upper, rtol=1e-5)

    def width(step):
        return jnp.mean(run_fading(step).size())

    slope = jax.jit(jax.grad(width))(1.0)
    assert_allclose(slope, (width(1.001) - width(0.999)) / 0.002, rtol=0.05)


def test_components_of_a_stream_of_ones_own():
    """Their share of alpha is that of the library: nothing is written for them."""
    method = FadingSteps(scores.Signed(), 1.0)
    past = jnp.stack([PAST, PAST], axis=1)
    assert_allclose(method.rank(method.init(past, 0.2), 0.2), [0.1, 0.1])
    assert_allclose(method.rank(method.init(past, 0.2), [0.05, 0.15]), [0.05, 0.15])
    preds, y = jnp.tile(PREDS, 10), jnp.tile(Y, 10)
    _, sets = online.run(method, method.init(past, 0.2), preds, y, 0.2)
    for side in (y < sets.lower, y > sets.upper):
        assert abs(jnp.mean(side) - 0.1) < 0.02
    assert abs(metrics.coverage(sets, y) - 0.8) < 0.03
    with pytest.raises(ValueError, match=r"alpha of shape \(\) or \(2,\), got \(3,\)"):
        method.predict(method.init(past, 0.2), 0.0, [0.1, 0.1, 0.1])


def test_what_a_stream_of_ones_own_is_told():
    state = FADING.init(PAST, 0.1)
    with pytest.raises(ValueError, match="expected preds without NaN, got nan"):
        FADING.step(state, jnp.nan, 0.0, 0.1)
    with pytest.raises(ValueError, match=r"one example, got .*; online"):
        FADING.step(state, PREDS, Y, 0.1)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 2"):
        online.run(FADING, state, PREDS, Y, 2)

    class Forgotten(FadingSteps):
        """Without its decorator no pytree."""

    with pytest.raises(ValueError, match="method as a pytree, got Forgotten; decorate"):
        online.run(Forgotten(scores.Absolute(), 1.0), state, PREDS, Y, 0.1)
    with pytest.raises(TypeError, match=r"abstract methods? .*learn"):

        class Half(online.Stream):
            pass

        Half()


@pytest.mark.parametrize("delay", [0, 24])
def test_aci_keeps_its_bound_where_targets_come_late(delay):
    """With the threshold of each set kept until its target comes; runs of misses."""
    alpha, step_size, length = 0.1, 0.05, 1200
    method = online.ACI(scores.Absolute(), step_size)
    y = jnp.where(jnp.arange(length) // 100 % 2 == 0, 1e9, 0.0)
    state = method.init(jnp.arange(30.0), alpha)
    rank = method.rank(state, alpha)

    def step(carry, row):
        (state, waiting), (t, y) = carry, row
        q = method.threshold(state, rank)
        waiting = jnp.append(waiting, jnp.array([[y, q]]), axis=0)
        come, kept = waiting[0], waiting[1:]
        later = method.learn(state, 0.0, come[0], rank, come[1])
        later = jax.tree.map(partial(jnp.where, t >= delay), later, state)
        return (later, kept), abs(y) > q

    start = state, jnp.zeros((delay, 2))
    _, missed = jax.lax.scan(step, start, (jnp.arange(length), y))
    counts = np.arange(1, length - delay + 1)
    rates = np.cumsum(missed)[: length - delay] / counts
    bounds = (0.9 + (delay + 1) * step_size) / (step_size * counts)
    assert (abs(rates - alpha) <= bounds + 1e-4).all()
