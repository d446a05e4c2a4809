"""A delay of a run: each row is learned D steps later, at its own threshold."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from streams import ABSOLUTE, METHODS, PAST, PREDS, STREAMS, D, T, Y
from test_lags import autoregression
from test_online import ADVERSARIES

import jaxcp
from helpers import reference, same
from jaxcp import metrics, online, scores
from rows import refuses

ACI = METHODS["aci"]
each_stream = pytest.mark.parametrize("name", STREAMS)


@each_stream
def test_a_delay_is_the_loop(name):
    """Of `quantile` when a set is issued, and `update(threshold=)` D steps later."""
    case, issued, upper = STREAMS[name], [], []
    method, state = case.method, case.start()
    if hasattr(method, "delay"):  # which lags are known when a set is issued
        method = replace(method, delay=D)
    for t in range(T):
        issued.append(case.threshold(method.quantile(state, 0.1), t))
        upper.append(method.predict(state, case.preds(t), 0.1).upper)
        if (old := t - D) >= 0:
            settle = partial(method.update, state, case.preds(old), Y[old], 0.1)
            state = settle(threshold=issued[old])
    late, sets = case.run(case.start(), delay=D)
    # The tangent of an integrator: its last bit depends on the program around it.
    rtol = 1e-5 if name == "pid" else 0
    compare = partial(assert_allclose, rtol=rtol)
    compare(sets.upper, upper)
    jax.tree.map(compare, late.state, state)
    assert jax.tree.structure(late.state) == jax.tree.structure(state)
    assert int(late.steps) == T


@each_stream
def test_a_set_knows_no_target_of_the_last_steps(name):
    """A target moves no set before its turn: what a delay is for."""
    case, rows = STREAMS[name], np.arange(T)
    for t in (0, 6):
        ends = [
            case.run(case.start(), y=np.where(rows == t, y, Y), delay=D)[1].upper
            for y in (PREDS[t], 1e3)  # one is held, the other missed
        ]
        (moved,) = np.nonzero(np.asarray(ends[0] != ends[1]))
        assert np.all(moved > t + D)
        assert len(moved) or name.startswith("window")


def test_no_delay_is_the_run_of_before(programs):
    """Its bits, its state, and its program; a delay has one for all pieces."""
    case = STREAMS["aci"]
    state, sets = case.run(case.start())
    programs.clear()
    again = case.run(case.start(), delay=0)
    assert not programs
    same(again, (state, sets))
    given = online.PID(ABSOLUTE, 0.3, saturation=2.0), PREDS[:9], Y[:9]
    begin = given[0].init(PAST, 0.1)
    programs.clear()
    late, _ = online.run(given[0], begin, *given[1:], 0.1, delay=3)
    assert len(programs) <= 2  # the rows that wait, and the run
    programs.clear()
    online.run(given[0], late, *given[1:], 0.1)
    online.run(
        online.PID(ABSOLUTE, 0.4, saturation=1.0), begin, *given[1:], 0.1, delay=3
    )
    assert not programs


def test_a_delay_longer_than_the_stream_learns_nothing():
    begin = STREAMS["aci"].start()
    late, sets = STREAMS["aci"].run(begin, delay=T)
    same(late.state, begin)
    assert_array_equal(sets.upper, PREDS + ACI.quantile(begin, 0.1))
    further, _ = online.run(ACI, late, PREDS[:2], Y[:2], 0.1)
    assert further.state.alpha != begin.alpha


def test_slopes_of_late_streams():
    """In the step size of tracking; that of ACI moves a level, which has none."""

    def width(step, method, preds):
        method = type(method)(method.score, step)
        begin = method.init(PAST, 0.1)
        return online.run(method, begin, preds, Y, 0.1, delay=D)[1].size().mean()

    scaled, pair = online.ACI(scores.Normalized(), 0.1), (PREDS, 1 + abs(PREDS))
    for method, given in ((METHODS["tracking"], PREDS), (scaled, pair)):
        slope = jax.grad(width)(0.1, method, given)
        assert np.isfinite(slope)
        assert (slope != 0) == (method is not scaled)


def test_double_precision_and_labels():
    with jax.enable_x64(True):
        y = np.asarray(Y, float)
        method = online.PID(ABSOLUTE, 0.3)
        begin = method.init(np.asarray(PAST, float), 0.1)
        late, sets = online.run(method, begin, 0 * y, y, 0.1, delay=D)
        assert sets.upper.dtype == late.rows[2].dtype == float
    probs = jax.nn.softmax(jnp.stack([PREDS, Y, PREDS * Y], axis=1))
    labels = jnp.argmax(probs[::-1], axis=1)
    method = online.ACI(scores.LAC(), 0.05)
    late, sets = online.run(method, method.init(PAST, 0.1), probs, labels, 0.1, delay=D)
    assert sets.mask.shape == (T, 3)
    assert late.rows[1].dtype == labels.dtype


@pytest.mark.parametrize("delay", [1, 5])
@pytest.mark.parametrize("name", ["tracking", "aci", "aci_level"])
def test_delays_of_the_reference(name, delay):
    """Tracking that starts at q = 1; ACI with the first 60 scores as window."""
    case = reference("conditional/streams")
    expected, y = case[f"delay_{delay}_{name}"], case["residuals"]
    if name == "tracking":
        method = online.PID(ABSOLUTE, 0.15)
        state = method.init(np.ones(1, "f"), 0.1)
    else:
        method = online.ACI(ABSOLUTE, 0.02)
        state, y = method.init(abs(y[:60]), 0.1), y[60:]
    begin, found = online.run(method, state, y[:0], y[:0], 0.1, delay=delay)[0], []

    def step(late, y):
        level = late.state.alpha if name != "tracking" else 0.0
        late, sets = method.step(late, jnp.zeros(()), y, 0.1)
        return late, (sets.upper, level)

    found = jax.jit(partial(jax.lax.scan, step))(begin, jnp.asarray(y))[1]
    found = found[name == "aci_level"]
    assert_allclose(found, expected[: len(y)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("delay", [0, 1, 5, 24])
def test_bounds_hold_on_every_late_sequence(delay):
    """No statistics: 500 adversaries that see each set before they choose the target.

    The mean is that of the rows that were learned; at every number of them.
    """
    count, t = 500, 400
    keys = jax.random.split(jax.random.key(delay), (3, count))
    steps = jnp.asarray(np.geomspace(0.005, 0.5, 5)[np.arange(count) % 5])
    alphas = jnp.asarray(np.array([0.1, 0.3, 0.9])[np.arange(count) // 5 % 3])
    past, worst = jnp.linspace(0, 1, 40), list(ADVERSARIES.values())

    def missed(method, key, alpha):
        key_kind, key_block = jax.random.split(key)
        kinds = jax.random.randint(key_kind, (2,), 0, len(worst))
        block = jax.random.randint(key_block, (), 1, 3 * delay + 20)
        late, zero = method.init(past, alpha), jnp.zeros(())
        if delay:
            none = jnp.zeros(0), jnp.zeros(0)
            late, _ = online.run(method, late, *none, alpha, delay=delay)

        def step(carry, t):
            late, misses = carry
            sets = method.predict(late, zero, alpha)
            targets = jnp.stack([choose(t, sets, misses) for choose in worst])
            y = targets[kinds[t // block % 2]]  # two kinds in turn, a block each
            late, sets = method.step(late, zero, y, alpha)
            return (late, misses + ~sets.contains(y)), ~sets.contains(y)

        return jax.lax.scan(step, (late, 0), jnp.arange(t))[1]

    @jax.jit
    @jax.vmap
    def each(step, alpha, keys):
        falling = online.PID(ABSOLUTE, step, decay=0.6)
        methods = online.ACI(ABSOLUTE, step), online.PID(ABSOLUTE, step), falling
        return [missed(m, key, alpha) for m, key in zip(methods, keys, strict=True)]

    found = each(steps, alphas, keys.T)
    alpha, step = (np.asarray(v, float)[:, None] for v in (alphas, steps))
    learned = np.arange(1, t - delay + 1)
    kinds = (np.maximum(alpha, 1 - alpha), 0), (1, 0), (1, 0.6)
    for errors, (reach, decay) in zip(found, kinds, strict=True):
        total = np.cumsum(np.asarray(errors, float)[:, : t - delay], axis=1)
        far = np.abs(total / learned - alpha)
        last = step * learned**-decay  # the smallest
        bound = (reach + (delay + 1) * step) / (last * learned)
        assert np.all(far <= bound + 1e-5)
        if not decay:
            assert np.any(far > 0.5 * bound)  # these adversaries are not kind


def test_experts_at_their_levels_of_now_cover_less_and_aci_does_not():
    """On errors that depend on the last ones: what the docstring of `DtACI` says."""
    y = autoregression(0.9, 6000, seed=0)
    past, y = abs(y[:500]), y[500:]
    experts = online.DtACI(ABSOLUTE, jnp.array([0.001, 0.01, 0.1]))
    for method, delay, low, high in (
        (experts, 0, 0.885, 0.915),
        (experts, 24, 0.8, 0.86),
        (online.ACI(ABSOLUTE, 0.01), 24, 0.88, 0.92),
    ):
        state = method.init(past, 0.1)
        _, sets = online.run(method, state, np.zeros_like(y), y, 0.1, delay=delay)
        assert low < metrics.coverage(sets, y) < high


LATE = online.run(ACI, ACI.init(PAST, 0.1), PREDS, Y, 0.1, delay=D)[0]
PLAIN = STREAMS["aci"].start()


class Own:
    """A method of one's own that is no `Stream`."""

    def init(self, scores, alpha, *, mask=None):
        return scores[-1]

    def step(self, state, pred, y, alpha):
        return jnp.abs(y - pred), jaxcp.sets.Interval(pred - state, pred + state)


def again(preds=PREDS, y=Y, state=LATE, method=ACI, **delay):
    return online.run(method, state, preds, y, 0.1, **delay)


LAGS = online.Similar(ABSOLUTE, 9.0, window=2, delay=3)


def lagged(method, **delay):
    grouped = isinstance(method, online.ByGroup)
    groups = np.zeros(T, int)
    given = {"groups": np.zeros(len(PAST), int)} if grouped else {}
    preds = (groups, PREDS) if grouped else PREDS
    return again(preds, Y, method.init(PAST, 0.1, **given), method, **delay)


WRONG = {
    "another delay": (
        lambda: again(delay=4),
        "the delay 5 of the state, got 4; leave it out to go on, or start from state",
    ),
    "no delay": (lambda: again(delay=0), "the delay 5 of the state, got 0"),
    "negative": (lambda: again(state=PLAIN, delay=-1), "delay as an int >= 0, got -1"),
    "a flag": (lambda: again(state=PLAIN, delay=True), "delay as an int >= 0, got T"),
    "a float": (lambda: again(state=PLAIN, delay=2.0), "delay as an int >= 0, got 2"),
    "traced": (
        lambda: jax.jit(lambda d: again(state=PLAIN, delay=d)[1])(3),
        "delay as an int >= 0, got",
    ),
    "own method": (
        lambda: again(state=PAST[-1], method=Own(), delay=3),
        "a jaxcp.online.Stream for a delay, got Own",
    ),
    "a delay of its own": (
        lambda: lagged(LAGS, delay=4),
        "the delay 3 of the method, got 4; run begins with it",
    ),
    "none for late lags": (
        lambda: lagged(LAGS, delay=0),
        "the delay 3 of the method, got 0",
    ),
    "a short window": (
        lambda: lagged(replace(LAGS, delay=0), delay=2),
        "window > delay 2, got 2",
    ),
    "lags of groups": (
        lambda: lagged(online.ByGroup(LAGS, 1), delay=4),
        "the delay 3 of the method, got 4",
    ),
    "late lags of groups": (
        lambda: lagged(online.ByGroup(replace(LAGS, delay=0), 1), delay=1),
        "a method without lags, got Similar; run each group",
    ),
    "lags of groups at once": (
        lambda: lagged(online.ByGroup(LAGS, 1)),
        "the delay 3 of the method, got 0",
    ),
    "own lags of groups": (
        lambda: lagged(online.ByGroup(LAGS, 1), delay=3),
        "a method without lags, got Similar; run each group",
    ),
    "integers": (
        lambda: again(y=jnp.ones(T, int)),
        r"like those that wait, \('float32\[\]', 'float32\[\]'\), got .*'int32\[\]'",
    ),
    "one integer": (lambda: ACI.step(LATE, 0.0, 1, 0.1), "rows like those that wait"),
    "components": (
        lambda: again(PREDS[:, None], Y[:, None]),
        r"past scores with components \(1,\)|rows like those that wait",
    ),
    "another's state": (
        lambda: again(method=METHODS["tracking"]),
        "a state of PID, PIDState, got ACIState",
    ),
    "threshold": (
        lambda: ACI.update(LATE, 0.0, 1.0, 0.1, threshold=1.0),
        "a state without a delay, got Delayed; use step, or state.state",
    ),
    "queue": (lambda: online.Queue(ACI, LATE, 0.1), "a state without a delay, got"),
}
test_what_a_delay_is_told = refuses(WRONG)


def test_a_method_that_knows_its_delay_begins_with_it():
    """Also one that is longer than the window: `init` has kept rows for it."""
    state = LAGS.init(PAST, 0.5)
    ways = {}, {"delay": 3}
    own, given = (online.run(LAGS, state, PREDS, Y, 0.5, **way) for way in ways)
    same(own, given)
    assert len(own[0].rows[-1]) == 3 > LAGS.window
    assert np.any(np.isfinite(own[1].upper))


def test_a_queue_goes_on_from_the_state_inside():
    queue = online.Queue(ACI, LATE.state, 0.1)
    assert queue.issue(0, 0.0)[1].upper == ACI.quantile(LATE, 0.1)


def test_the_memory_is_that_of_the_rows_that_wait():
    for length in (T, 9):
        late, _ = online.run(ACI, PLAIN, PREDS[:length], Y[:length], 0.1, delay=D)
        assert {v.shape for v in jax.tree.leaves(late.rows)} == {(D,)}
