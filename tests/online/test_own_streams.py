"""A method of one's own on a stream: it works where ours do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from streams import FadingSteps

from jaxcp import metrics, online, scores

FADING = FadingSteps(scores.Absolute(), 1.0)
PAST, T = jnp.linspace(0, 1, 20), 400
PREDS = jnp.sin(jnp.arange(T) / 9.0)
Y = PREDS + jax.random.uniform(jax.random.key(0), (T,), minval=-1)


def test_a_stream_of_ones_own_is_the_loop():
    """Otherwise a row of `STREAMS`, and of the laws of them all."""
    sets, q = online.run(FADING, FADING.init(PAST, 0.1), PREDS, Y, 0.1)[1], 1.0
    for t in range(T):
        assert_allclose(sets.upper[t] - PREDS[t], q, atol=1e-5)
        q += (t + 1) ** -0.6 * ((abs(Y[t] - PREDS[t]) > q) - 0.1)


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
