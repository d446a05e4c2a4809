"""Martingales whose bets are summed, against the loop over their steps."""

from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import pvalues
from jaxcp.pvalues import martingales
from jaxcp.typing import MemorylessMartingale

SHORT = martingales._SHORT
SUMMED = [pvalues.PowerMartingale(0.6), pvalues.MixtureMartingale(5)]
BLOCK, STRETCH = martingales._BLOCK, martingales._STRETCH


@pytest.fixture(autouse=True, scope="module")
def short_streams_too():
    """Sums streams of any length, which the library does with long ones alone."""
    jax.clear_caches()
    martingales._SHORT = -1
    yield
    martingales._SHORT = SHORT
    jax.clear_caches()


@jaxcp.pytree
class Stepwise:
    """Another martingale, of which `watch` knows its steps alone."""

    martingale: pvalues.PowerMartingale | pvalues.MixtureMartingale

    def init(self):
        return self.martingale.init()

    def step(self, state, p_value):
        return self.martingale.step(state, p_value)


@jaxcp.pytree
class Bets:
    """Takes the p-value for the log of the bet, and keeps the number of bets too."""

    def init(self):
        return {"log": jnp.zeros(()), "count": jnp.zeros((), int)}

    def log_bet(self, p_value):
        log = jnp.select(
            [p_value == 0, p_value == 1, p_value == 0.75],
            [-jnp.inf, jnp.inf, jnp.nan],
            p_value,
        )
        return {"log": log, "count": 1}

    def log_capital(self, state):
        return state["log"]

    def step(self, state, p_value):
        state = jax.tree.map(jnp.add, state, self.log_bet(p_value))
        return state, self.log_capital(state)


def uniforms(n, seed=0):
    return np.random.default_rng(seed).random(n, np.float32)


def test_which_are_summed():
    for martingale in (*SUMMED, Bets()):
        assert isinstance(martingale, MemorylessMartingale)
    assert not isinstance(pvalues.SimpleJumper(), MemorylessMartingale)
    assert not isinstance(Stepwise(SUMMED[0]), MemorylessMartingale)


@pytest.mark.parametrize("n", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
@pytest.mark.parametrize("martingale", SUMMED, ids=lambda m: type(m).__name__)
def test_sums_are_those_of_the_steps(martingale, n):
    p = uniforms(n)
    state, log_capital = pvalues.watch(martingale, p)
    last, expected = pvalues.watch(Stepwise(martingale), p)
    assert log_capital.shape == (n,)
    assert (log_capital.dtype, state.dtype) == (expected.dtype, last.dtype)
    assert_allclose(log_capital, expected, rtol=1e-5, atol=1e-5)
    assert_allclose(state, last, rtol=1e-5, atol=1e-5)
    if n:
        assert_allclose(martingale.log_capital(state), log_capital[-1], rtol=1e-6)


@pytest.mark.parametrize("n", [STRETCH, STRETCH + 1, 3 * STRETCH - 5])
def test_long_streams_lose_fewer_digits_than_steps(n):
    p = uniforms(n)
    exact = np.cumsum(np.log(0.5) - 0.5 * np.log(p.astype(float)))
    martingale = pvalues.PowerMartingale(0.5)
    state, summed = pvalues.watch(martingale, p)
    _, steps = pvalues.watch(Stepwise(martingale), p)
    assert np.max(np.abs(summed - exact)) <= np.max(np.abs(steps - exact))
    assert_allclose(summed, exact, rtol=1e-5, atol=2e-3)
    assert state == summed[-1]


def test_a_long_stream_goes_on_in_stretches_of_several_logs():
    p, martingale = uniforms(STRETCH // 4), pvalues.MixtureMartingale(16)
    first, whole = len(p) // 3, pvalues.watch(martingale, p)
    state, start = pvalues.watch(martingale, p[:first])
    state, rest = pvalues.watch(martingale, p[first:], state)
    assert_allclose(jnp.append(start, rest), whole[1], rtol=1e-4, atol=1e-3)
    assert_allclose(state, whole[0], rtol=1e-4, atol=1e-3)
    assert_allclose(whole[1], pvalues.watch(Stepwise(martingale), p)[1], rtol=1e-4)


@pytest.mark.parametrize("places", [{3: 0}, {3: 1}, {40: 0}, {2: 0, 70: 0.75}])
def test_infinite_bets_count_from_their_place_on(places):
    p = uniforms(3 * BLOCK) / 2 + 0.1
    p[list(places)] = list(places.values())
    state, log_capital = pvalues.watch(Bets(), p)
    log = np.select([p == 0, p == 1, p == 0.75], [-np.inf, np.inf, np.nan], p)
    assert_allclose(log_capital, np.cumsum(log), rtol=1e-5)
    assert state["count"] == len(p)
    assert_array_equal(state["log"], log_capital[-1])
    start = {"log": -jnp.inf, "count": 0}
    assert_array_equal(pvalues.watch(Bets(), p[:2], start)[1], [-np.inf] * 2)


def test_infinite_bets_of_both_signs_are_unknown_together():
    """Wherever they are, in one block or in two; and large sums are themselves."""
    for places in ([3, 4], [3, 40]):
        p = uniforms(3 * BLOCK) / 2 + 0.1
        p[places] = [1, 0]
        log_capital = pvalues.watch(Bets(), p)[1]
        assert log_capital[3] == np.inf
        assert np.all(np.isnan(log_capital[places[1] :]))
    state = {"log": jnp.float32(3e37), "count": 0}
    assert np.all(np.isfinite(pvalues.watch(Bets(), uniforms(50) / 2 + 0.1, state)[1]))


@jaxcp.pytree
class Restarting(pvalues.PowerMartingale):
    """Bets on, of 1 at least, whatever was lost: its step is not a sum."""

    def step(self, state, p_value):
        return super().step(jnp.maximum(state, 0), p_value)


def test_steps_of_a_subclass_are_taken():
    p = uniforms(40, seed=1)
    restarting, state, expected = Restarting(0.5), jnp.zeros(()), []
    for v in p:
        state, log_capital = restarting.step(state, v)
        expected.append(log_capital)
    found = pvalues.watch(restarting, p)[1]
    assert_allclose(found, expected, rtol=1e-5)
    assert found[-1] != pvalues.watch(pvalues.PowerMartingale(0.5), p)[1][-1]


@pytest.mark.parametrize("martingale", SUMMED, ids=lambda m: type(m).__name__)
def test_streams_of_each_device(martingale):
    mesh = jax.make_mesh((2,), ("streams",), axis_types=(jax.sharding.AxisType.Auto,))
    streams = jax.sharding.PartitionSpec("streams")
    p = uniforms(200).reshape(2, 100)
    watch = jax.vmap(lambda p: pvalues.watch(martingale, p)[1])
    spread = jax.shard_map(watch, mesh=mesh, in_specs=streams, out_specs=streams)
    assert_allclose(jax.jit(spread)(p), watch(p), rtol=1e-5, atol=1e-5)


def test_an_export_may_leave_the_length_open():
    (t,) = jax.export.symbolic_shape("t")
    p = jax.ShapeDtypeStruct((t,), jnp.float32)
    watch = lambda p: pvalues.watch(SUMMED[0], p)[1]  # noqa: E731
    exported = jax.export.export(jax.jit(watch))(p)
    assert_allclose(exported.call(uniforms(30)), watch(uniforms(30)), atol=1e-5)


def test_an_unknown_bet_leaves_those_before_it():
    p = jnp.array([0.5, 0.25, 0.75, 0.5])
    log_capital = pvalues.watch(Bets(), p)[1]
    assert_array_equal(log_capital, [0.5, 0.75, np.nan, np.nan])


@pytest.mark.parametrize("martingale", SUMMED, ids=lambda m: type(m).__name__)
def test_sums_compose(martingale):
    p = jnp.asarray(uniforms(90)).reshape(3, 30).at[1, 4].set(jnp.nan).at[2, 0].set(0)
    watch = partial(pvalues.watch, martingale)
    together = jax.jit(jax.vmap(watch))(p)
    alone = jax.tree.map(lambda *v: jnp.stack(v), *map(watch, p))
    jax.tree.map(partial(assert_allclose, rtol=1e-5, atol=1e-5), together, alone)

    def go(state, row):
        return pvalues.watch(martingale, row, state)

    _, stretches = jax.lax.scan(go, martingale.init(), p)
    whole = watch(p.ravel())[1]
    assert_allclose(stretches.ravel(), whole, rtol=1e-5, atol=1e-4)

    def last(p, kind):
        return pvalues.watch(kind, p)[1][-1]

    slopes = jax.grad(last)(p[0], martingale)
    expected = jax.grad(last)(p[0], Stepwise(martingale))
    assert_allclose(slopes, expected, rtol=1e-4)
    assert np.all(np.isfinite(jax.grad(last)(p[1], martingale)))


def test_streams_with_bets_of_their_own():
    p, epsilons = uniforms(40), jnp.array([0.3, 0.9])
    watch = lambda e: pvalues.watch(pvalues.PowerMartingale(e), p)[1]  # noqa: E731
    together = jax.vmap(watch)(epsilons)
    assert_allclose(together, [watch(e) for e in epsilons], rtol=1e-5, atol=1e-5)
    starts = jnp.array([0.0, 5.0])  # one stream, from two states
    states, both = pvalues.watch(SUMMED[0], p, starts)
    assert both.shape == (40, 2) and states.shape == (2,)
    assert_allclose(both[:, 1] - both[:, 0], 5, rtol=1e-5)


def test_sums_in_double_precision():
    with jax.enable_x64(True):
        p = np.random.default_rng(0).random(1000)
        state, log_capital = pvalues.watch(pvalues.PowerMartingale(0.5), p)
        assert log_capital.dtype == state.dtype == np.float64
        exact = np.cumsum(np.log(0.5) - 0.5 * np.log(p))
        assert_allclose(log_capital, exact, rtol=1e-12)


def test_a_second_stream_compiles_nothing():
    p, martingale = uniforms(64), pvalues.PowerMartingale(0.5)
    state, _ = pvalues.watch(martingale, p)
    pvalues.watch(martingale, p, state)
    with jax.no_tracing():
        pvalues.watch(pvalues.PowerMartingale(0.7), 1 - p, state)
