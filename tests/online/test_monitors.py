"""Monitors: by their vectors, by loops, by their laws, under every transformation."""

from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import online, outliers, pvalues
from jaxcp.online import monitors

PLACE = Path(__file__).parent.parent / "reference" / "monitors.npz"
VECTORS = dict(np.load(PLACE))
KEY, LIMIT = jax.random.key(0), 0.1
RISK, CHANGE = online.RiskMonitor(LIMIT, 0.05), online.ChangeMonitor(LIMIT, 100)
BOTH = pytest.mark.parametrize("monitor", [RISK, CHANGE], ids=["risk", "change"])
LOSSES = np.random.default_rng(1).random(40).astype("f") ** 4


def as_numbers(v):
    is_key = jnp.issubdtype(jnp.asarray(v).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(v) if is_key else v)


def bits(tree):
    return list(map(as_numbers, jax.tree.leaves(tree)))


def assert_same_bits(a, b):
    for one, other in zip(bits(a), bits(b), strict=True):
        assert_array_equal(one, other)


def case(i):
    named = {k[2:]: v for k, v in VECTORS.items() if k.startswith(f"{i}_")}
    return {k: v if v.ndim else v.item() for k, v in named.items()}


@pytest.mark.parametrize("i", range(3))
def test_vectors(i):
    """Capital, Shiryaev-Roberts and ends of other hands; ends rounded outwards."""
    v = case(i)
    bound = {"bound": v["bound"]}
    risk = online.RiskMonitor(v["limit"], v["delta"], **bound)
    state, log_capital = risk.run(v["losses"])
    assert_allclose(log_capital, v["log_capital"], atol=1e-5)
    assert state.first_alarm == v["first_alarm"]
    assert_allclose(state.mean, np.mean(v["losses"]), rtol=1e-6)
    change = online.ChangeMonitor(v["limit"], v["run_length"], **bound)
    state, log_capital = change.run(v["losses"])
    assert_allclose(log_capital, np.log(v["shiryaev_roberts"]), atol=1e-5)
    assert state.first_alarm == v["sr_alarm"]
    assert state.alarm == (v["sr_alarm"] > 0)
    # The one bet that all ten stakes are together, given as a stake of one's own.
    bets = jnp.asarray(v["bets"] * v["limit"])
    own = online.RiskMonitor(
        v["limit"], v["delta"], stake=lambda state: bets[state.steps], **bound
    )
    assert_allclose(own.run(v["losses"])[1], v["log_capital"], atol=1e-4)
    low, high = online.confidence_sequence(v["losses"][:120], v["delta"], **bound)
    cell, slack = v["bound"] / 1000, 1e-6 * v["bound"]
    assert np.all((low <= v["low"] + slack) & (low >= v["low"] - cell - slack))
    assert np.all((high >= v["high"] - slack) & (high <= v["high"] + cell + slack))


@BOTH
def test_a_run_is_its_steps_and_goes_on_from_a_file(monitor, tmp_path):
    state = monitor.init()
    for loss in LOSSES[:25]:
        state = monitor.update(state, loss)
    whole, log_capital = monitor.run(LOSSES)
    jaxcp.save(tmp_path / "monitor.npz", (monitor, state))
    loaded, resumed = jaxcp.load(tmp_path / "monitor.npz")
    assert_same_bits(state, resumed)
    end, second = loaded.run(LOSSES[25:], resumed)
    assert_same_bits((end, second), (whole, log_capital[25:]))
    step = lambda state, loss: (monitor.update(state, loss),) * 2  # noqa: E731
    scanned, states = jax.jit(lambda x: jax.lax.scan(step, monitor.init(), x))(LOSSES)
    assert_allclose(states.log_capital, log_capital, atol=1e-6)
    assert_allclose(scanned.mean, np.mean(LOSSES), rtol=1e-6)
    assert sum(v.size for v in bits(whole)) == sum(v.size for v in bits(state)) <= 24


@BOTH
def test_groups_by_vmap_and_slopes(monitor):
    rows = jnp.asarray(LOSSES).reshape(4, 10)
    states, log_capital = jax.vmap(monitor.run)(rows)
    for i, row in enumerate(rows):
        one, alone = jax.jit(monitor.run)(row)
        assert_allclose(log_capital[i], alone, atol=1e-6)
        assert states.first_alarm[i] == one.first_alarm
    kind = type(monitor)
    of_limit = lambda r: kind(r, 200.0 if kind is online.ChangeMonitor else 0.1)  # noqa: E731
    many = jax.vmap(lambda r: of_limit(r).run(rows[0])[1])(jnp.array([0.1, 0.3]))
    assert_allclose(many[1], of_limit(0.3).run(rows[0])[1], atol=1e-6)
    slopes = jax.grad(lambda r, x: of_limit(r).run(x)[1][-1], (0, 1))(0.2, rows[0])
    assert slopes[0] < 0
    assert np.all(slopes[1] >= 0)
    assert np.isfinite(slopes[0]) and np.all(np.isfinite(slopes[1]))


def test_parameters_of_any_kind_of_number():
    """Fractions, decimals, and integers beyond those of jax."""
    change = online.ChangeMonitor(Fraction(1, 10), 10**10, bound=Decimal(2))
    assert_allclose(change.alarm_level, np.log(1e10), rtol=1e-6)
    risk = online.RiskMonitor(Decimal("0.1"), Fraction(1, 20))
    assert_array_equal(risk.run([1, 0])[1], RISK.run([1, 0])[1])
    assert_array_equal(change.run([2, 0])[0].mean, 1)
    ends = online.confidence_sequence([1, 0], 0.1, bound=Fraction(1), resolution=10)
    assert_allclose(ends, [[0, 0], [1, 1]])


def test_odd_losses():
    """No rows; flags, integers; traced NaN counts as the bound, less than 0 as 0."""
    state, log_capital = RISK.run(np.zeros(0))
    assert log_capital.shape == (0,)
    assert not state.alarm
    flags = LOSSES > 0.3
    by_type = [RISK.run(flags.astype(kind))[1] for kind in (bool, int, "f", float)]
    for other in by_type[1:]:
        assert_array_equal(by_type[0], other)
    run = jax.jit(lambda monitor, x: monitor.run(x)[1])
    odd, plain = jnp.array([jnp.nan, -1.0, jnp.inf]), jnp.array([1.0, 0.0])
    assert_array_equal(run(RISK, odd)[:2], run(RISK, plain))
    assert np.all(np.isfinite(run(RISK, odd)[:2]))
    for limit in (0.0, -1.0, np.nan):  # traced: bets nothing
        assert_allclose(run(online.RiskMonitor(limit, 0.1), plain), 0, atol=1e-6)
    stakes = {2.0: 1 - float(jnp.finfo(plain.dtype).eps), -1.0: 0, np.nan: 0}
    for stake, used in stakes.items():
        own = online.RiskMonitor(LIMIT, 0.1, stake=lambda s, v=stake: v + 0 * s.mean)
        factors = 1 + used * (plain / LIMIT - 1)
        assert_allclose(run(own, plain), np.cumsum(np.log(factors)), rtol=1e-3)
    low, high = online.confidence_sequence(plain[:0], 0.1, resolution=10)
    assert low.shape == high.shape == (0,)


@pytest.mark.parametrize("bound", [1.0, 3.0])
def test_a_traced_loss_that_is_not_known_is_the_bound(bound):
    """A third of the losses: with 0 in their place the ends leave out the mean."""
    losses = np.where(np.arange(60) % 3 == 0, np.nan, 0.25 * bound)
    options = {"delta": 0.1, "bound": bound, "resolution": 20}
    monitor = online.RiskMonitor(0.1 * bound, 0.1, bound=bound)

    @jax.jit
    def run(x):
        return online.confidence_sequence(x, **options), monitor.run(x)[1]

    known = np.where(np.isnan(losses), bound, losses)
    for ours, theirs in zip(
        *map(jax.tree.leaves, (run(losses), run(known))), strict=True
    ):
        assert_array_equal(ours, theirs)


def test_many_steps_keep_their_digits():
    """The sum of 10^5 logs in single precision, against double precision."""
    losses = np.random.default_rng(0).random(100_000) < 0.099
    stakes = 2.0 ** -np.arange(1, 11)
    logs = np.cumsum(np.log1p(stakes * (losses[:, None] / LIMIT - 1)), axis=0)
    expected = np.logaddexp.reduce(logs, axis=1) - np.log(10)
    state, log_capital = RISK.run(losses)
    assert_allclose(log_capital, expected, atol=2e-4)
    assert_allclose(state.mean, np.mean(losses), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: online.RiskMonitor(0, 0.1).init(),
            "limit above 0 and below bound = 1",
        ),
        (lambda: online.RiskMonitor(5, 0.1).run([1]), "below bound = 1, got 5"),
        (lambda: online.RiskMonitor(5, 1, bound=9).init(), r"delta in \(0, 1\), got 1"),
        (lambda: online.RiskMonitor(1, 0.1, bound=-1).run([1]), "bound > 0, got -1"),
        (lambda: online.RiskMonitor(np.array([0.1]), 0.1).init(), "use jax.vmap"),
        (lambda: online.ChangeMonitor(0.1, 0.5).init(), "run_length >= 1, got 0.5"),
        (lambda: RISK.run([0.1, 2]), r"losses in \[0, 1\], got 2.0 at 1; bound= is"),
        (lambda: RISK.update(RISK.init(), np.nan), "got nan at 0; bound= is"),
        (lambda: RISK.update(RISK.init(), [0.1]), r"value of shape \(\), got \(1,\)"),
        (lambda: RISK.run([[0.1]]), r"losses of shape \(n,\), got \(1, 1\)"),
        (
            lambda: online.RiskMonitor(0.1, 0.1, stake=lambda s: 2.0).run([0.1]),
            r"stake\(state\) in \[0, 1\], got 2.0",
        ),
        (lambda: online.RiskMonitor(0.1, 0.1, stake=0.5), "stake as a function"),
        (lambda: online.confidence_sequence([0.1], 1.5), r"delta in \(0, 1\), got 1.5"),
        (lambda: online.confidence_sequence([0.1], 0.1, resolution=1), "an int >= 2"),
        (lambda: EXCHANGEABLE.init(0), "a key from jax.random.key"),
        (lambda: EXCHANGEABLE.run([np.nan], EXCHANGEABLE.init(KEY)), "without NaN"),
        (lambda: small(19).init(KEY), "size as an int >= 20, got 19"),
        (
            lambda: jax.jit(EXCHANGEABLE.run)(np.ones(2), EXCHANGEABLE.init(KEY)),
            "known here, got traced ones; give size=",
        ),
        (
            lambda: jax.jit(EXCHANGEABLE.update)(EXCHANGEABLE.init(KEY), 1.0),
            "known here, got traced ones; give size=",
        ),
        (
            lambda: EXCHANGEABLE.run([1.0], small(20).init(KEY)),
            "monitor with this size=",
        ),
        (
            lambda: small(20).update(EXCHANGEABLE.init(KEY), 1),
            "monitor with this size=",
        ),
        (lambda: EXCHANGEABLE.update(RISK.init(), 1.0), "got MonitorState"),
        (lambda: RISK.update(0.0, 1), r"a state from init\(\), got float"),
        (
            lambda: pvalues.permutation_test(KEY, np.ones(3), lambda x: (x[0], x[1])),
            r"statistic\(scores\) as a number",
        ),
        (
            lambda: online.ExchangeabilityMonitor(0.5, [1.0]).init(KEY),
            "a martingale with init and step, got float",
        ),
        (
            lambda: pvalues.permutation_test(KEY, np.ones(3), lambda x: x),
            r"statistic\(scores\) of shape \(\), got \(3,\)",
        ),
    ],
)
def test_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def quiet(law, past, u):
    """Losses whose mean given the past is at most LIMIT; the last three look back."""
    error, half = 1.0 * (u < LIMIT), 2 * LIMIT * (u < 0.5)
    laws = [
        lambda: error,
        lambda: 2 * LIMIT * u,
        lambda: jnp.where(past.steps % 3 == 0, error, LIMIT * u),
        lambda: jnp.where(past.mean > LIMIT, half, error),
        lambda: jnp.where(past.log_capital > 0.5, error, half),
    ]
    return jax.lax.switch(law, laws)


@partial(jax.jit, static_argnames="steps")
def quiet_alarms(law, keys, steps):
    """Returns the first alarm of both monitors on streams of a law."""

    def stream(key):
        def step(states, u):
            loss = quiet(law, states[0], u)
            return [m.step(s, loss)[0] for m, s in zip(two, states, strict=True)], None

        two = RISK, CHANGE
        start = [m.init() for m in two]
        ends, _ = jax.lax.scan(step, start, jax.random.uniform(key, (steps,)))
        return [end.first_alarm for end in ends]

    return jax.vmap(stream)(keys)


def times_of_quiet(law, num_streams, steps):
    """Returns steps to false alarms of a `ChangeMonitor`, after the check of Ville."""
    keys = jax.random.split(jax.random.key(law), num_streams)
    ever, first = map(np.asarray, quiet_alarms(law, keys, steps))
    # Ville: P(ever an alarm) <= delta.
    error = np.sqrt(0.05 * 0.95 / num_streams)
    assert np.mean(ever > 0) <= 0.05 + 4 * error
    return np.where(first > 0, first, steps)  # at most the time to the alarm


@pytest.mark.parametrize("law", range(5))
def test_quiet_streams_rarely_alarm(law):
    times = times_of_quiet(law, 1000, 500)
    assert np.mean(times) >= 100 - 4 * np.std(times) / np.sqrt(1000)


@pytest.mark.slow
@pytest.mark.parametrize("law", range(5))
def test_1e5_quiet_streams_rarely_alarm(law):
    times_of_quiet(law, 100_000, 200)


def test_a_change_is_found_soon():
    """Risk 0.08, from step 500 on 0.2: all found, at the median within 150 steps."""
    change, num_streams = 500, 500
    risk = jnp.where(jnp.arange(1500) < change, 0.08, 0.2)
    losses = jax.random.uniform(jax.random.key(7), (num_streams, 1500)) < risk[None]
    # A capital of its own knows nothing of the change, and loses before it.
    monitor = online.ChangeMonitor(LIMIT, 10_000)
    first = np.asarray(jax.vmap(lambda x: monitor.run(x)[0].first_alarm)(losses))
    assert np.all(first > 0)
    late = first[first > change]
    assert np.median(late) - change <= 150
    assert np.mean(first <= change) < 0.1


def test_means_stay_between_the_ends():
    """At all times together; with a mean that rises, `low` is at most the largest."""
    num_streams, steps = 400, 100

    @jax.jit
    @jax.vmap
    def missed(key):
        u = jax.random.uniform(key, (steps,))
        low, high = online.confidence_sequence(u < 0.3, 0.2, resolution=10)
        means = jnp.where(jnp.arange(steps) < steps // 2, 0.1, 0.3)
        rising, _ = online.confidence_sequence(u < means, 0.2, resolution=10)
        return jnp.any((low > 0.3) | (high < 0.3)), jnp.any(rising > means)

    keys = jax.random.split(jax.random.key(5), num_streams)
    outside, above = map(np.mean, missed(keys))
    assert outside <= 0.2 + 4 * np.sqrt(0.2 * 0.8 / num_streams)
    assert above <= 0.1 + 4 * np.sqrt(0.1 * 0.9 / num_streams)


@jaxcp.pytree
class Seen:
    """No bets: the capital that it tells is the p-value."""

    def init(self):
        return jnp.zeros(())

    def step(self, state, p_value):
        return state, p_value


CALIBRATION, STREAM = VECTORS["exch_calibration"], VECTORS["exch_stream"]
EXCHANGEABLE = online.ExchangeabilityMonitor(pvalues.SimpleJumper(), CALIBRATION)


def small(size, martingale=None, scores=CALIBRATION):
    martingale = pvalues.SimpleJumper() if martingale is None else martingale
    return online.ExchangeabilityMonitor(martingale, scores, size=size)


def test_p_values_among_all_scores_before(tmp_path):
    """Counts of the vectors; a uniform each; rows or batches, host or buffer."""
    host = online.ExchangeabilityMonitor(Seen(), CALIBRATION)
    _, p = host.run(STREAM, host.init(KEY))
    n = 21 + np.arange(60)
    past = np.concatenate([CALIBRATION, STREAM])
    above = [np.sum(past[: m - 1] > s) for m, s in zip(n, STREAM, strict=True)]
    ties = [1 + np.sum(past[: m - 1] == s) for m, s in zip(n, STREAM, strict=True)]
    u = (n * np.asarray(p) - above) / ties  # the uniforms that were drawn
    assert np.all((u > -1e-4) & (u < 1 + 1e-4))
    assert len(np.unique(np.round(u, 4))) > 50
    known = (n * VECTORS["exch_p"] - above) / ties
    assert_allclose(known, VECTORS["exch_u"], atol=1e-9)
    buffer = small(100, Seen())
    _, same = jax.jit(lambda x: buffer.run(x, buffer.init(KEY)))(STREAM)
    assert_allclose(same, p, rtol=1e-6)
    whole, log_capital = EXCHANGEABLE.run(STREAM, EXCHANGEABLE.init(KEY))
    state = EXCHANGEABLE.init(KEY)
    for score in STREAM[:7]:
        state = EXCHANGEABLE.update(state, score)
    jaxcp.save(tmp_path / "state.npz", (EXCHANGEABLE, state))
    loaded, state = jaxcp.load(tmp_path / "state.npz")
    end, second = loaded.run(STREAM[7:], state)
    assert_same_bits((end, second), (whole, log_capital[7:]))
    assert_allclose(end.past[1], np.sort(STREAM))
    assert EXCHANGEABLE.run(STREAM[:0], state)[0].log_capital == state.log_capital


@pytest.mark.parametrize("size", [None, 300], ids=["host", "buffer"])
def test_scores_of_a_wider_type_tie(size):
    """What is kept in half precision is compared in it: no bet on its rounding."""
    runs = []
    for kept, score in ((np.float16(0.1), 0.1), (0.5, 0.5)):
        monitor = small(size, Seen(), np.full(20, kept))
        runs.append(monitor.run(np.full(200, score, "f"), monitor.init(KEY))[1])
        assert monitor.update(monitor.init(KEY), score).log_capital == runs[-1][0]
    assert_array_equal(*runs)


def test_latest_scores_are_a_part_of_their_own(monkeypatch):
    """Rows one by one and all at once: the same parts, counts and bits."""
    monkeypatch.setattr(monitors, "_LATEST", 16)
    whole, log_capital = EXCHANGEABLE.run(STREAM, EXCHANGEABLE.init(KEY))
    state, capitals = EXCHANGEABLE.init(KEY), []
    for score in STREAM.tolist():
        state = EXCHANGEABLE.update(state, score)
        capitals.append(state.log_capital)
    assert_same_bits((state, jnp.stack(capitals)), (whole, log_capital))
    assert [len(part) for part in whole.past] == [20 + 48, 12]
    expected = np.sort(np.append(CALIBRATION, STREAM[:48]))
    assert_allclose(whole.past[0], expected)
    monkeypatch.setattr(monitors, "_LATEST", 1000)
    assert_array_equal(EXCHANGEABLE.run(STREAM, EXCHANGEABLE.init(KEY))[1], log_capital)


def test_a_buffer_in_a_scan():
    monitor = small(30)
    step = lambda state, s: (monitor.update(state, s), state.log_capital)  # noqa: E731
    state = monitor.init(KEY)
    end, log_capital = jax.lax.scan(step, state, jnp.asarray(STREAM))
    whole, expected = monitor.run(STREAM, state)
    assert_allclose(log_capital[1:], expected[:-1], atol=1e-6)
    assert_same_bits(end.past, whole.past)
    kept = np.asarray(whole.past[0])
    assert whole.past[1] == 30
    assert np.all(np.isin(kept, np.concatenate([CALIBRATION, STREAM])))


def test_p_values_of_a_full_buffer_are_independent():
    """All 5 x 5 cells of p-values one and two steps apart are as likely, with ties."""
    monitor = small(2, Seen(), np.zeros(0))

    @jax.vmap
    def stream(key):
        key_s, key_m = jax.random.split(key)
        scores = jnp.round(2 * jax.random.normal(key_s, (12,)))
        return monitor.run(scores, monitor.init(key_m))[1][-4:]

    p = np.asarray(jax.jit(stream)(jax.random.split(KEY, 20_000)))
    cells = np.minimum((5 * p).astype(int), 4)
    for gap in (1, 2, 3):
        counts = np.bincount(5 * cells[:, -1] + cells[:, -1 - gap], minlength=25)
        errors = (counts - 800) / np.sqrt(20_000 * 0.04 * 0.96)
        assert np.max(abs(errors)) < 4.5


def test_exchangeable_streams_rarely_alarm():
    """At 5 %; those that are compared with one calibration set alarm more often."""
    n, steps, num_streams = 50, 300, 500
    jumper, level = pvalues.SimpleJumper(), np.log(20)

    @jax.vmap
    def highest(key):
        key_s, key_m, key_u = jax.random.split(key, 3)
        scores = jax.random.normal(key_s, (n + steps,))
        old, new = scores[:n], scores[n:]
        runs = []
        for size in (n + steps, n):
            monitor = online.ExchangeabilityMonitor(jumper, old, size=size)
            runs.append(monitor.run(new, monitor.init(key_m))[1])
        u = jax.random.uniform(key_u, (steps,))
        fixed = outliers.outlier_p_values(old, new, u=u)
        runs += [pvalues.watch(jumper, fixed)[1]]
        later = new + 2 * (jnp.arange(steps) >= 100)
        runs.append(monitor.run(later, monitor.init(key_m))[1])
        return jnp.stack([jnp.max(run) for run in runs])

    found = np.asarray(
        jax.jit(highest)(jax.random.split(jax.random.key(3), num_streams))
    )
    everything, dropped, fixed, changed = np.mean(found >= level, axis=0)
    error = np.sqrt(0.05 * 0.95 / num_streams)
    assert max(everything, dropped) <= 0.05 + 4 * error
    assert fixed > 0.05 + 4 * error
    assert changed > 0.95


def test_permutations():
    """p is uniform on its steps if rows are exchangeable; ties and NaN count."""
    rises = lambda s: jnp.mean(s[5:]) - jnp.mean(s[:5])  # noqa: E731
    test = lambda key, s: pvalues.permutation_test(  # noqa: E731
        key, s, rises, num_permutations=19
    )
    assert test(KEY, jnp.ones(10)) == 1
    assert test(KEY, jnp.full(10, jnp.nan)) == 1
    assert_allclose(test(KEY, jnp.arange(10.0)), 0.05)

    @jax.jit
    @jax.vmap
    def trial(key):
        key_s, key_p = jax.random.split(key)
        return test(key_p, jnp.round(2 * jax.random.normal(key_s, (10,)), 1))

    p = np.asarray(trial(jax.random.split(KEY, 4000)))
    for level in (0.05, 0.25, 0.5):
        error = 4 * np.sqrt(level * (1 - level) / 4000)
        assert np.mean(p <= level + 1e-6) <= level + error
        assert np.mean(p <= level + 1e-6) >= level - error - 0.03  # ties
    rows = {"x": jnp.arange(6), "y": jnp.ones((6, 2))}
    with_rows = pvalues.permutation_test(
        KEY, rows, lambda r: r["x"][0], num_permutations=200
    )
    assert with_rows == 1  # no first row is smaller than 0
    least = pvalues.permutation_test(
        KEY, rows, lambda r: -r["x"][0], num_permutations=2000
    )
    assert abs(least - 1 / 6) < 4 * np.sqrt(5 / 36 / 2000)
