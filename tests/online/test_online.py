"""Online methods: their bounds on every sequence, and what they reduce to."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from streams import (
    ABSOLUTE,
    METHODS,
    PAST,
    SIGNED,
    STREAMS,
    FadingSteps,
    LastScore,
)

import jaxcp
import references
from helpers import reference
from jaxcp import metrics, online, scores
from jaxcp.online import windows
from jaxcp.sets import Interval

T = 120
each_method = pytest.mark.parametrize("name", METHODS)


class LastError:
    """The last error is the radius of the next interval: two functions are enough."""

    def init(self, scores, alpha, *, mask=None):
        return scores[-1]

    def step(self, state, pred, y, alpha):
        return jnp.abs(y - pred), Interval(pred - state, pred + state)


@pytest.mark.parametrize("name", [*METHODS, "late", "of one's own"])
def test_streams_over_devices_are_those_of_one(name):
    """In shard_map with its checks: what `init` makes of alpha varies over no mesh."""
    beside = {"late": METHODS["aci"], "of one's own": LastError()}
    method, delay = {**METHODS, **beside}[name], 3 if name == "late" else None

    def run(past, y):
        state = method.init(past, 0.2)
        return online.run(method, state, jnp.zeros(len(y)), y, 0.2, delay=delay)

    y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 60)), jnp.float32)
    mesh = jax.make_mesh((2,), ("series",), axis_types=(jax.sharding.AxisType.Auto,))
    series = jax.sharding.PartitionSpec("series")
    spread = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=series, out_specs=series)
    rows = jnp.abs(y[:, :30]), y[:, 30:]
    found = jax.tree.leaves(spread(*rows))
    for a, b in zip(found, jax.tree.leaves(jax.vmap(run)(*rows)), strict=True):
        assert_allclose(a, b, rtol=1e-6)  # exp and sums round by shape


def test_a_method_of_ones_own_runs():
    method = LastError()
    state, sets = online.run(method, method.init(PAST, 0.1), PREDS, Y, 0.1)
    errors = np.abs(Y - PREDS)
    assert state == errors[-1]
    assert_allclose(sets.upper, PREDS + np.append(PAST[-1], errors[:-1]), rtol=1e-6)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 7"):
        online.run(method, state, PREDS, Y, 7)
    with pytest.raises(ValueError, match="a method with init and step, got Absolute"):
        online.run(ABSOLUTE, state, PREDS, Y, 0.1)


def stream(t=T, seed=1):
    rng = np.random.default_rng(seed)
    preds = rng.normal(size=t).astype(np.float32)
    scale = np.where(np.arange(t) < t // 2, 1.0, 3.0)
    return jnp.asarray(preds), jnp.asarray(
        (preds + scale * rng.normal(size=t)).astype(np.float32)
    )


PREDS, Y = stream()


def start(name):
    return STREAMS[name].start()


@pytest.mark.parametrize("every", [1, 3, 7, 50, 80, 500])
@pytest.mark.parametrize("empirical", [False, True])
def test_sliding_window_against_the_loop(every, empirical):
    """Also with more steps between updates than the window or the stream is long."""
    method = online.SlidingWindow(ABSOLUTE, every=every, empirical=empirical)
    _, sets = online.run(method, method.init(PAST, 0.2), PREDS, Y, 0.2)
    memory, used = list(PAST), list(PAST)
    for t in range(T):
        k = references.rank(len(used) - empirical, "0.2")
        expected = references.kth_smallest(np.array(used), k)
        assert_allclose(sets.upper[t], PREDS[t] + expected, rtol=1e-5, atol=1e-6)
        memory.append(abs(Y[t] - PREDS[t]))
        if (t + 1) % every == 0:
            used = memory[-50:]


def test_window_stays_sorted_with_ties_and_infinities():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, 300).astype(np.float32)
    values[rng.random(300) < 0.1] = np.inf
    values[rng.random(300) < 0.05] = -np.inf
    window = windows.make_window(jnp.asarray(values[:9]), None)

    def push(window, value):
        window = window.push(value)
        return window, window.ordered

    _, ordered = jax.lax.scan(push, window, jnp.asarray(values[9:]))
    for t in range(len(ordered)):
        assert_array_equal(ordered[t], np.sort(values[t + 1 : t + 10]))


@pytest.mark.parametrize(
    "method",
    [
        online.SlidingWindow(ABSOLUTE),
        online.ACI(ABSOLUTE, 0.0),
        online.NexCP(ABSOLUTE, 1.0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_stream_without_a_past(method):
    """The sets are infinite until 1/alpha - 1 scores have come; then they are exact."""
    state = method.init(jnp.zeros(30), 0.2, mask=jnp.zeros(30, bool))
    _, sets = online.run(method, state, PREDS, Y, 0.2)
    seen = np.abs(np.asarray(Y - PREDS))
    for t in range(60):
        expected = references.conformal_quantile(seen[max(t - 30, 0) : t], "0.2")
        assert_allclose(sets.upper[t], PREDS[t] + expected, rtol=1e-5, atol=1e-5)
    assert np.all(np.isinf(sets.upper[:4]))
    assert np.isfinite(sets.upper[4])


def test_nexcp_against_the_loop():
    method = METHODS["nexcp"]
    _, sets = online.run(method, start("nexcp"), PREDS, Y, 0.1)
    memory = list(np.asarray(PAST))
    weights = 0.97 ** np.arange(50, 0, -1.0)
    for t in range(T):
        q = references.weighted_conformal_quantile(np.array(memory[-50:]), weights, 0.1)
        assert_allclose(sets.upper[t], PREDS[t] + q, rtol=1e-5, atol=1e-5)
        memory.append(abs(float(Y[t] - PREDS[t])))
    assert_allclose(online.nexcp_weights(50, 0.97), weights, rtol=1e-5)


def test_nexcp_covers_exchangeable_rows():
    """Whose weighted distance from exchangeability is 0."""
    n, decay, alpha = 30, 0.9, 0.2

    def trial(key):
        s = jax.random.uniform(key, (n + 1,))
        method = online.NexCP(ABSOLUTE, decay)
        own = method.predict(method.init(s[:n], alpha), 0.0, alpha)
        weights = online.nexcp_weights(n, decay)
        cp = jaxcp.calibrate(ABSOLUTE, jnp.zeros(n), s[:n], weights=weights)
        return own.contains(s[n]), cp(jnp.zeros(1), alpha).contains(s[n:])[0]

    covered = jax.jit(jax.vmap(trial))(jax.random.split(jax.random.key(0), 10_000))
    for found in covered:
        assert found.mean() > 1 - alpha - 4 * (alpha * (1 - alpha) / 10_000) ** 0.5


def test_aci_against_the_loop():
    _, sets = online.run(METHODS["aci"], start("aci"), PREDS, Y, 0.1)
    memory, alpha = list(np.asarray(PAST)), 0.1
    for t in range(T):
        q = quantile_at(np.array(memory[-50:]), alpha)
        assert_allclose(sets.upper[t], PREDS[t] + q, rtol=1e-5, atol=1e-5)
        score = abs(float(Y[t] - PREDS[t]))
        alpha += 0.05 * (0.1 - (score > q))
        memory.append(score)


def quantile_at(past, level):
    """The conformal quantile at a level that need not be in (0, 1)."""
    k = len(past) + 1 - int(np.floor(level * (len(past) + 1) + 1e-5))
    return references.kth_smallest(past, np.clip(k, 0, len(past) + 1))


def test_dtaci_against_the_loop():
    """Gibbs and Candes, 2024, algorithm 1, with the mean level."""
    method = METHODS["dtaci"]
    state, sets = online.run(method, start("dtaci"), PREDS, Y, 0.1)
    gammas, interval, a = np.array([0.01, 0.05, 0.2]), 50, 0.1
    eta = np.sqrt(3 / interval) * np.sqrt(
        (np.log(3 * interval) + 2) / ((1 - a) ** 2 * a**3 + a**2 * (1 - a) ** 3)
    )
    memory, alphas, w = list(np.asarray(PAST)), np.full(3, a), np.ones(3)
    for t in range(T):
        past, score = np.sort(memory[-50:]), abs(float(Y[t] - PREDS[t]))
        alpha = np.sum(w * alphas) / np.sum(w)
        quantile = partial(quantile_at, past)
        assert_allclose(sets.upper[t], PREDS[t] + quantile(alpha), rtol=1e-4)
        beta = (1 + np.sum(past >= score)) / 51
        losses = a * (beta - alphas) - np.minimum(0, beta - alphas)
        missed = np.array([score > quantile(level) for level in alphas])
        alphas = alphas + gammas * (a - missed)
        w = w * np.exp(-eta * losses)
        w = (1 - 1 / (2 * interval)) * w / w.sum() + 1 / (2 * interval) / 3
        memory.append(score)
    assert_allclose(state.alphas, alphas, atol=1e-4)
    assert_allclose(state.weights, w, atol=1e-3)


@pytest.mark.slow
def test_dtaci_may_never_miss():
    """Targets on the end of each set: the mean of the experts has no bound."""
    steps = jnp.array([0.001, 0.01, 0.1])
    method = online.DtACI(ABSOLUTE, steps, rolling=False)
    start = method.init(jnp.arange(1, 1000) / 1000, 0.1)
    rank = method.rank(start, 0.1)

    def step(state, _):
        q = method.threshold(state, rank)
        y = jnp.clip(q, 0, 1)
        return method.learn(state, jnp.zeros(()), y, rank, q), y > q

    assert not jnp.any(jax.lax.scan(step, start, length=10_000)[1])


def test_published_rate_of_dtaci():
    steps = jnp.geomspace(0.001, 0.128, 8)
    _, eta = online.DtACI(ABSOLUTE, steps, interval=500)._rates(0.1, 8)
    assert_allclose(eta, 2.76, atol=0.005)


def test_pid_against_the_loop():
    """Angelopoulos, Candes, Tibshirani, 2023: tracking and the tangent integrator."""
    method = METHODS["pid"]
    _, sets = online.run(method, start("pid"), PREDS, Y, 0.1)
    tracked = references.conformal_quantile(np.asarray(PAST), "0.1")
    excess = 0.0
    for t in range(T):
        angle = excess * np.log(t + 1) / (max(t, 1) * 2.0)
        assert abs(angle) < np.pi / 2
        q = tracked + 0.5 * np.tan(angle)
        assert_allclose(sets.upper[t], PREDS[t] + q, rtol=1e-4, atol=1e-4)
        error = float(abs(Y[t] - PREDS[t]) > q)
        tracked += 0.1 * (error - 0.1)
        excess += error - 0.1


@pytest.mark.parametrize("bound", [1.0, 2.5])
def test_an_own_loss_that_is_not_known_is_the_bound(bound):
    """Where every third target has a loss of 0/0, states are those of the bound."""
    y = np.arange(1.0, 13.0, dtype="f")
    is_unknown = np.arange(12) % 3 == 0

    def states(unknown):
        loss = lambda interval, y: jnp.where(  # noqa: E731
            y % 3 == 1, unknown, bound * (y > interval.upper)
        )
        method = online.PID(scores.Absolute(), 0.5, loss=loss, bound=bound)
        state = method.init(y[:9], 0.2)
        return online.run(method, state, np.zeros(12, "f"), y, 0.2)

    assert is_unknown[y % 3 == 1].all()
    for ours, theirs in zip(
        *map(jax.tree.leaves, (states(jnp.nan), states(bound))), strict=True
    ):
        assert_array_equal(ours, theirs)
        assert not np.isnan(ours).any()


def test_the_integrator_saturates():
    method = online.PID(ABSOLUTE, 0.0, integral_gain=1.0, saturation=0.1)
    state = method.init(PAST, 0.1)
    _, sets = online.run(method, state, jnp.zeros(9), jnp.full(9, 1e6), 0.1)
    assert np.isinf(sets.upper).any()
    assert np.isinf(sets.upper[np.argmax(np.isinf(sets.upper)) :]).sum() >= 1


def test_sfogd_against_the_loop():
    _, sets = online.run(METHODS["sf-ogd"], start("sf-ogd"), PREDS, Y, 0.1)
    q, squares = references.conformal_quantile(np.asarray(PAST), "0.1"), 0.0
    for t in range(T):
        assert_allclose(sets.upper[t], PREDS[t] + q, rtol=1e-4, atol=1e-4)
        gradient = 0.1 - float(abs(Y[t] - PREDS[t]) > q)
        squares += gradient**2
        q -= 3.0 / np.sqrt(3) * gradient / np.sqrt(squares)


def test_scorecaster():
    method = online.PID(ABSOLUTE, 0.2, scorecaster=LastScore())
    _, sets = online.run(method, method.init(PAST, 0.1), PREDS, Y, 0.1)
    tracked, forecast = 0.0, float(PAST[-1])
    for t in range(T):
        q, score = tracked + forecast, abs(float(Y[t] - PREDS[t]))
        assert_allclose(sets.upper[t] - PREDS[t], q, rtol=1e-3, atol=1e-4)
        tracked, forecast = tracked + 0.2 * (float(score > q) - 0.1), score


def test_no_step_is_the_static_method():
    frozen = online.ACI(ABSOLUTE, 0.0, rolling=False)
    _, sets = online.run(frozen, frozen.init(PAST, 0.1), PREDS, Y, 0.1)
    static = jaxcp.Calibration(ABSOLUTE, PAST)(PREDS, 0.1)
    assert_array_equal(sets.upper, static.upper)
    rolling = online.ACI(ABSOLUTE, 0.0)
    _, sets = online.run(rolling, rolling.init(PAST, 0.1), PREDS, Y, 0.1)
    _, expected = online.run(METHODS["window"], start("window"), PREDS, Y, 0.1)
    assert_array_equal(sets.upper, expected.upper)


@pytest.mark.parametrize("score", [ABSOLUTE, SIGNED], ids=["absolute", "signed"])
def test_one_expert_is_aci(score):
    past = PAST if score is ABSOLUTE else jnp.stack([PAST - 1, 1 - PAST], axis=1)
    runs = [
        online.run(method, method.init(past, 0.1), PREDS, Y, 0.1)[1]
        for method in (online.DtACI(score, jnp.array([0.05])), online.ACI(score, 0.05))
    ]
    assert_array_equal(runs[0].upper, runs[1].upper)
    assert_array_equal(runs[0].lower, runs[1].lower)


def adversary(method, state, alpha, t, worst):
    """Targets chosen after the set: `worst(t, sets, covered so far)`, in [0, 1]."""

    def step(carry, t):
        state, misses = carry
        sets = method.predict(state, jnp.zeros(()), alpha)
        y = worst(t, sets, misses)
        state, sets = method.step(state, jnp.zeros(()), y, alpha)
        return (state, misses + ~sets.contains(y)), ~sets.contains(y)

    return jax.lax.scan(step, (state, 0), jnp.arange(t))[1]


def just_outside(t, sets, misses):
    return jnp.where(
        jnp.isfinite(sets.upper), jnp.clip(sets.upper * 1.01 + 0.01, 0, 1), 1.0
    )


ADVERSARIES = {
    "just outside": just_outside,
    "on the boundary": lambda t, sets, misses: jnp.clip(sets.upper, 0, 1),
    "always 0": lambda t, sets, misses: jnp.zeros(()),
    "always 1": lambda t, sets, misses: jnp.ones(()),
    "in turns": lambda t, sets, misses: jnp.where(
        t % 50 < 25, just_outside(t, sets, misses), 0.0
    ),
    "random": lambda t, sets, misses: jax.random.uniform(
        jax.random.fold_in(jax.random.key(0), t)
    ),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_bounds_hold_on_every_sequence(name):
    """No statistics: ACI and quantile tracking, after every number of steps."""
    past, steps = jnp.linspace(0, 1, 40), jnp.array([0.005, 0.05, 0.5])
    t = 2000

    @jax.jit
    def errors(step, alpha):
        aci, tracking = online.ACI(ABSOLUTE, step), online.PID(ABSOLUTE, step)
        return [
            adversary(m, m.init(past, alpha), alpha, t, ADVERSARIES[name])
            for m in (aci, tracking)
        ]

    alphas = jnp.array([0.1, 0.3, 0.9])
    missed = jax.vmap(jax.vmap(errors, (None, 0)), (0, None))(steps, alphas)
    excess = [
        np.cumsum(np.asarray(m, float) - np.asarray(alphas)[None, :, None], axis=2)
        for m in missed
    ]
    length, step, alpha = (
        np.arange(1, t + 1),
        np.asarray(steps)[:, None, None],
        np.asarray(alphas)[None, :, None],
    )
    rounding = 1e-5 * length  # of the level, which moves in single precision
    bounds = [(np.maximum(alpha, 1 - alpha) + step) / step, (1 + step) / step]
    names = {"max": np.maximum, "a": alpha, "step_size": step, "T": length, "b": 1}
    methods = online.ACI, online.PID
    for method, total, bound in zip(methods, excess, bounds, strict=True):
        assert np.all(np.abs(total) <= bound + rounding)
        formula = method.promise.removeprefix("|mean error - {alpha}| <= ")
        printed = eval(formula[: formula.index(" after T rows")], names)
        assert_allclose(printed * length, bound + 0 * length)


@pytest.mark.parametrize("name", ["just outside", "in turns", "random"])
@pytest.mark.parametrize("double", [False, True])
def test_bounds_of_long_streams_with_their_rounding(name, double):
    """As stated, with eps (1 + 4 step) / (2 step) for the level of scores up to 1."""
    t, alpha = 20_000, 0.1
    with jax.enable_x64(double):
        past, steps = jnp.linspace(0, 1, 40), jnp.array([0.001, 0.01, 0.1])

        @jax.jit
        @jax.vmap
        def missed(step):
            aci, tracking = online.ACI(ABSOLUTE, step), online.PID(ABSOLUTE, step)
            return [
                adversary(m, m.init(past, alpha), alpha, t, ADVERSARIES[name])
                for m in (aci, tracking)
            ]

        counts = [np.cumsum(np.asarray(m), axis=1) for m in missed(steps)]
    length, step = np.arange(1, t + 1), np.asarray(steps, np.float64)[:, None]
    rounding = np.finfo(steps.dtype).eps * (1 + 4 * step) / (2 * step)
    for count, reach in zip(counts, (1 - alpha, 1), strict=True):
        far = np.abs(count / length - alpha)
        assert np.all(far <= (reach + step) / (step * length) + rounding + 1e-15)


@pytest.mark.parametrize("has_loss", [False, True])
def test_bound_of_falling_steps_on_500_sequences(has_loss):
    """|mean - alpha| <= (b + step_1 bound) / (step_T T) at every T: see its guarantee.

    Each sequence has a step, a decay and an opponent of its own; with a loss, half of
    the misses cost 2 and the other half 1.
    """
    t, alpha, bound = 400, 0.2, 2.0 if has_loss else 1.0
    rng = np.random.default_rng(7)
    kinds, decays = rng.integers(6, size=500), rng.uniform(0, 0.99, 500)
    steps = rng.choice([0.05, 0.5, 2.0], 500)
    decays[:50] = 0
    loss = lambda sets, y: jnp.where(sets.contains(y), 0, 1.0 + (y < 0.5))  # noqa: E731

    @jax.jit
    @jax.vmap
    def losses(kind, step, decay):
        options = {"loss": loss, "bound": bound} if has_loss else {}
        method = online.PID(ABSOLUTE, step, decay=decay, **options)
        state = method.init(jnp.linspace(0, 1, 40), alpha)

        def choose(state, t):
            sets = method.predict(state, jnp.zeros(()), alpha)
            each = jnp.stack([a(t, sets, 0) for a in ADVERSARIES.values()])
            y = each[kind]
            found = loss(sets, y) if has_loss else 1.0 - sets.contains(y)
            return method.update(state, jnp.zeros(()), y, alpha), found

        return jax.lax.scan(choose, state, jnp.arange(t))[1]

    given = (jnp.asarray(v.astype("f")) for v in (steps, decays))
    found = np.asarray(losses(jnp.asarray(kinds), *given), np.float64)
    length = np.arange(1, t + 1)
    gap = np.abs(np.cumsum(found, axis=1) / length - alpha)
    last = steps[:, None] * length ** -decays[:, None]
    eps = np.finfo("f").eps
    rounding = eps * (1 + 4 * bound * steps[:, None]) / (2 * last) + 1e-6
    assert np.all(gap <= (1 + bound * steps[:, None]) / (last * length) + rounding)
    for kind in range(6):
        assert np.sum(kinds == kind) > 40


def test_thresholds_of_falling_steps_in_the_reference():
    case = reference("conditional/streams")
    for name in ("0.5", "0.6"):
        method = online.PID(ABSOLUTE, 0.8, decay=float(name))
        state, y = method.init(np.ones(1, "f"), 0.1), case["residuals"]
        state, sets = online.run(method, state, np.zeros_like(y), y, 0.1)
        found = np.append(sets.upper, state.quantile)
        assert_allclose(found, case[f"decay_{name}"], rtol=1e-4, atol=1e-4)


def test_steps_that_do_not_fall_are_the_program_of_before():
    """0 is no leaf, so nothing is computed of it; as an array it has the same bits."""
    plain, zero = online.PID(ABSOLUTE, 0.3), online.PID(ABSOLUTE, 0.3, decay=0)
    assert jax.tree.structure(plain) == jax.tree.structure(zero)
    assert plain.decay is None
    state = plain.init(PAST, 0.1)
    _, expected = online.run(plain, state, PREDS, Y, 0.1)
    with jax.no_tracing():
        online.run(zero, state, PREDS, Y, 0.1)
    array = online.PID(ABSOLUTE, 0.3, decay=jnp.zeros(()))
    _, sets = online.run(array, state, PREDS, Y, 0.1)
    assert_array_equal(sets.upper, expected.upper)


def test_falling_steps_converge_where_nothing_changes_and_lose_where_it_does():
    """Uniform scores: the quantile is 0.9, and 1.8 after a jump to twice the size."""
    t = 4000
    y = jax.random.uniform(jax.random.key(3), (2 * t,)).at[t:].multiply(2)
    past, zeros = jnp.linspace(0, 1, 20), jnp.zeros(2 * t)
    ends = {}
    for decay in (0, 0.6):
        method = online.PID(ABSOLUTE, 0.5, decay=decay)
        _, sets = online.run(method, method.init(past, 0.1), zeros, y, 0.1)
        ends[decay] = np.asarray(sets.upper)
    before = {p: np.abs(v[t // 2 : t] - 0.9).mean() for p, v in ends.items()}
    assert before[0.6] < 0.03 < 0.05 < before[0]
    after = {p: np.argmax(v[t:] > 1.7) for p, v in ends.items()}  # steps to get there
    assert after[0] < 20 < 200 < after[0.6]


@pytest.mark.parametrize("name", [*METHODS, "own"])
@pytest.mark.parametrize("way", ["predict", "update", "step"])
def test_one_example_is_refused_as_a_stream_is(name, way):
    """NaN, the state of another method, nothing, and a batch."""
    method, state = STREAMS[name].method, start(name)

    def call(pred=PREDS[0], y=Y[0], state=state):
        rest = (0.1,) if way == "predict" else (y, 0.1)
        return getattr(method, way)(state, pred, *rest)

    call()
    wrong = [(dict(pred=jnp.nan), "expected preds without NaN, got nan")]
    wrong += [(dict(pred=None), "expected pred as a value, got None")]
    wrong += [(dict(pred=PREDS, y=Y), "one example, got .*; online.run")]
    if way != "predict":
        wrong += [(dict(y=np.nan), "expected y without NaN, got nan")]
        wrong += [(dict(pred=PREDS[:1], y=Y[:1]), "one example, got .*; online.run")]
        wrong += [(dict(y=None), "expected y as a value, got None")]
        wrong += [(dict(y=Y), "shape")]
    if method.state_type is not object:
        wrong += [
            (
                dict(state=jnp.asarray(PAST)),
                "expected a state of .*, got ArrayImpl; .* init",
            )
        ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            call(**arguments)
    jax.jit(lambda pred, y: call(pred, y))(jnp.nan, jnp.nan)
    jax.vmap(lambda pred, y: call(pred, y))(PREDS, Y)


ONE_OF_A_KIND = {
    "cqr": (scores.CQR(), (-1.0, 1.0), 0.3),
    "signed": (SIGNED, 0.0, 1.0),
    "vectors": (ABSOLUTE, jnp.zeros(3), jnp.ones(3)),
    "normalized": (scores.Normalized(), (0.0, 2.0), 1.0),
    "probabilities": (scores.LAC(), jnp.array([0.2, 0.5, 0.3]), 1),
    "ranks": (scores.APS(True), (jnp.array([0.2, 0.5, 0.3]), 0.5), 1),
    "ellipse": (scores.Mahalanobis(), (jnp.zeros(3), jnp.ones(3)), jnp.ones(3)),
    "draws": (scores.PCP(), jnp.zeros((5, 3)), jnp.ones(3)),
    "box": (scores.BoxOffset(), jnp.arange(4.0), jnp.arange(4.0)),
    "inputs as predictions": (
        scores.Latent(lambda x, y: y - jnp.sum(x)),
        jnp.arange(4.0),
        jnp.ones(2),
    ),
}


@pytest.mark.parametrize("name", ONE_OF_A_KIND)
def test_one_example_of_every_kind_of_score(name):
    score, pred, y = ONE_OF_A_KIND[name]
    pred, y = jax.tree.map(jnp.asarray, (pred, y))
    shape = jax.eval_shape(score, pred, y).shape
    method = online.SlidingWindow(score)
    state = method.init(jnp.zeros((9, *shape)), 0.2)
    method.predict(state, pred, 0.2)
    method.step(state, pred, y, 0.2)
    if name.startswith("inputs"):  # a batch is one input as well
        return
    batch = jax.tree.map(lambda v: jnp.stack([v] * 6), (pred, y))
    words = r"of shape|one example, got .*; online|lower triangular"
    refused = pytest.raises(ValueError, match=words)
    with refused:
        method.update(state, *batch, 0.2)
    if name != "draws":  # which may be of targets of any shape
        with refused:
            method.predict(state, batch[0], 0.2)


def test_one_example_is_valid_for_the_score():
    labels = online.ACI(scores.LAC(), 0.1)
    state = labels.init(PAST, 0.1)
    for call in (labels.update, labels.step):
        with pytest.raises(ValueError, match="sum to 1 in each row"):
            call(state, jnp.array([0.5, 0.7]), 1, 0.1)
        with pytest.raises(ValueError, match=r"expected y in 0, ..., 1, got 2"):
            call(state, jnp.array([0.5, 0.5]), 2, 0.1)
    with pytest.raises(ValueError, match="expected probabilities >= 0"):
        labels.predict(state, jnp.array([1.5, -0.5]), 0.1)
    of_scale = online.PID(scores.Normalized(), 0.1)
    with pytest.raises(ValueError, match="expected sigma > 0"):
        of_scale.step(of_scale.init(PAST, 0.1), (1.0, 0.0), 1.0, 0.1)
    with pytest.raises(
        ValueError, match=r"components \(2,\), as from one example, got"
    ):
        online.ACI(SIGNED, 0.1).step(state, 0.0, 1.0, 0.1)


@each_method
def test_coverage_after_a_shift(name):
    preds, y = stream(4000)
    _, sets = online.run(METHODS[name], start(name), preds, y, 0.1)
    assert abs(metrics.coverage(sets, y) - 0.9) < 0.03


@pytest.mark.parametrize("kind", [online.PID, FadingSteps])
def test_gradient_in_the_step_size(kind):
    @jax.jit
    def width(step):
        method = kind(ABSOLUTE, step)
        _, sets = online.run(method, method.init(PAST, 0.1), PREDS, Y, 0.1)
        return jnp.mean(sets.upper)

    slope = jax.jit(jax.grad(width))(0.2)
    assert_allclose(slope, (width(0.2001) - width(0.1999)) / 0.0002, rtol=0.05)


def test_components_share_the_level():
    """Two sides: each at half of the level, together at all of it."""
    past = jnp.stack([PAST - 1, 1 - PAST], axis=1)
    for method in (online.SlidingWindow(SIGNED), online.ACI(SIGNED, 0.0)):
        state = method.init(past, 0.2)
        sets = method.predict(state, jnp.zeros(()), 0.2)
        k = references.rank(50, "0.1")
        expected = [references.kth_smallest(np.asarray(side), k) for side in past.T]
        assert_allclose([-sets.lower, sets.upper], expected, rtol=1e-5)
        uneven = method.init(past, [0.05, 0.15])
        sets = method.predict(uneven, jnp.zeros(()), [0.05, 0.15])
        k = references.rank(50, "0.05")
        assert_allclose(
            -sets.lower, references.kth_smallest(np.asarray(past[:, 0]), k), rtol=1e-5
        )
    tracking = online.PID(SIGNED, 0.1)
    preds, y = stream(4000)
    _, sets = online.run(tracking, tracking.init(past, 0.2), preds, y, 0.2)
    for side in (y < sets.lower, y > sets.upper):
        assert abs(np.mean(side) - 0.1) < 0.02


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("score", [ABSOLUTE, SIGNED], ids=["absolute", "signed"])
def test_bound_of_aci_with_components(score, shape):
    """The family's level is what leaves (0, 1), not a component's share of it."""
    t, step = 500, 0.05
    past = jax.vmap(score)(jnp.zeros((40, *shape)), jnp.ones((40, *shape)))
    method = online.ACI(score, step, rolling=False)
    for y in (jnp.zeros((t, *shape)), jnp.full((t, *shape), 9.0)):
        state = method.init(past, 0.1)
        _, sets = online.run(method, state, jnp.zeros_like(y), y, 0.1)
        errors = 1 - float(metrics.coverage(sets, y))
        assert abs(errors - 0.1) <= (0.9 + step) / (step * t) + 1e-5


def test_labels_on_a_stream():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 600).astype(np.float32)
    y = np.array([rng.choice(4, p=row / row.sum()) for row in p])
    method = online.ACI(scores.APS(), 0.02)
    past = jaxcp.calibrate(scores.APS(), p[:100], y[:100]).scores
    _, sets = online.run(method, method.init(past, 0.2), p[100:], y[100:], 0.2)
    assert abs(metrics.coverage(sets, y[100:]) - 0.8) < 0.03


def test_levels_beyond_the_unit_interval():
    state = METHODS["aci"].init(PAST, 0.1)
    for alpha, size in [(-0.3, np.inf), (0.0, np.inf), (1.0, 0.0), (1.7, 0.0)]:
        moved = type(state)(state.window, jnp.asarray(alpha))
        assert METHODS["aci"].predict(moved, jnp.zeros(()), 0.1).size() == size
