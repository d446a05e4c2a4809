"""Thresholds by the latest scores: of similar times, and by regression on them."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose, assert_array_equal

import references
from helpers import reference
from jaxcp import metrics, online, scores
from jaxcp.online import lags

ABSOLUTE, SIGNED = scores.Absolute(), scores.Signed()
CASE = reference("conditional/streams")
R = CASE["residuals"]
Z95 = 1.6448536  # of the normal law


def autoregression(phi, n, seed):
    """Residuals of unit variance that are normal."""
    noise = np.random.default_rng(seed).normal(size=n) * (1 - phi**2) ** 0.5
    noise[0] /= (1 - phi**2) ** 0.5
    for t in range(1, n):
        noise[t] += phi * noise[t - 1]
    return noise.astype("f")


AR = autoregression(0.9, 6000, seed=0)


# Weights of similar times.


def similar_loop(past, bandwidth, lags, window, alpha):
    """The threshold after scores (n,) or (n, c), from the definition."""
    rows = range(max(len(past) - window, lags), len(past))
    past = np.asarray(past, np.float64)
    far = [np.linalg.norm(past[i - lags : i] - past[-lags:]) for i in rows]
    weights = np.exp(-((np.array(far) / bandwidth) ** 2) / 2)
    columns = past[list(rows)].reshape(len(rows), -1).T
    found = [references.weighted_conformal_quantile(c, weights, alpha) for c in columns]
    return found[0] if past.ndim == 1 else np.array(found)


def test_similar_thresholds_of_the_reference():
    lags, window = int(CASE["similar_lags"]), int(CASE["similar_window"])
    method = online.Similar(ABSOLUTE, CASE["similar_bandwidth"].item(), lags, window)
    n, y = lags + window, R[lags + window :]
    state = method.init(abs(R[:n]), 0.1)
    _, sets = online.run(method, state, np.zeros_like(y), y, 0.1)
    assert_allclose(sets.upper, CASE["similar_threshold"], rtol=1e-4)


def test_similar_is_the_loop_from_a_short_past_on():
    """Also of components, which share the weights: scores that are absent weigh 0."""
    y = R[5:45]
    for score, past in ((ABSOLUTE, abs(R[:5])), (SIGNED, np.c_[-R[:5], R[:5]])):
        method = online.Similar(score, 1.5, lags=2, window=30)
        state = method.init(past, 0.4)
        assert state.shape == (32, *past.shape[1:])
        _, sets = online.run(method, state, np.zeros_like(y), y, 0.4)
        known = abs(R) if score is ABSOLUTE else np.c_[-R, R]
        for t in range(len(y)):
            level = 0.4 if score is ABSOLUTE else 0.2
            q = similar_loop(known[: t + 5], 1.5, 2, 30, level)
            ends = [-q, q] if score is ABSOLUTE else [-q[0], q[1]]
            assert_allclose([sets.lower[t], sets.upper[t]], ends, rtol=1e-5)


def test_a_flat_kernel_is_the_sliding_window():
    past, y = abs(R[:60]), R[60:180]
    flat = online.Similar(ABSOLUTE, 1e6, lags=1, window=40)
    window = online.SlidingWindow(ABSOLUTE)
    found, expected = (
        online.run(m, m.init(p, 0.1), np.zeros_like(y), y, 0.1)[1]
        for m, p in ((flat, past), (window, past[-40:]))
    )
    assert_array_equal(found.upper, expected.upper)


def test_everything_where_too_little_is_similar():
    """Up to a sum of weights of 1 / alpha - 1; with ties, infinities and a mask."""
    method = online.Similar(ABSOLUTE, 0.1, window=20)
    alternate = np.tile(np.array([1, 5], "f"), 12)
    for count, ends in ((8, np.inf), (9, 5)):  # rows after a 1, at alpha = 0.1
        past = alternate[: 2 * count + 1]
        assert method.quantile(method.init(past, 0.1), 0.1) == ends
    past = np.where(alternate == 5, np.inf, alternate).astype("f")
    q = method.quantile(method.init(past, 0.1), 0.1)
    assert q == 1  # infinite scores are like each other
    assert method.quantile(method.init(past[:-1], 0.1), 0.1) == np.inf
    nan = np.where(alternate == 5, np.nan, alternate)
    assert method.quantile(method.init(nan, 0.1), 0.1) == 1  # as +inf
    latest = np.arange(24) < 23
    absent = method.init(alternate, 0.1, mask=latest)
    assert method.quantile(absent, 0.1) == np.inf
    assert method.quantile(method.init(np.ones(1, "f"), 0.1), 0.1) == np.inf
    count = lambda s: method.init(s.astype(int), 0.1)  # noqa: E731
    assert method.quantile(count(alternate), 0.1) == 1
    state = method.init(alternate, 0.1)
    traced = jax.jit(lambda h: online.Similar(ABSOLUTE, h).threshold(state, 0.2))
    for h, q in ((0.1, 1), (np.inf, 5), (np.nan, np.inf)):
        assert traced(h) == q


def test_the_threshold_moves_with_the_scores():
    method = online.Similar(ABSOLUTE, 0.5, window=40)

    def last(scale, bandwidth=0.5):
        method = online.Similar(ABSOLUTE, bandwidth, window=40)
        state = method.init(scale * abs(R[:60]), 0.2)
        return method.threshold(state, 0.2)

    slopes = jax.grad(last, (0, 1))(1.0, 0.5)
    assert_allclose(slopes, (last(1.0), 0), rtol=1e-5)
    many = jax.vmap(lambda h: last(1.0, h))(jnp.array([0.2, 0.5, 2.0]))
    assert_allclose(many[1], method.threshold(method.init(abs(R[:60]), 0.2), 0.2))


# Regressions of residuals.

ONE = online.SPCI(1, window=503, every=50)


def linear_program(x, y, level):
    """Quantile regression as it is defined: argmin of the pinball loss."""
    n, p = x.shape
    cost = np.r_[np.zeros(p), np.full(n, level), np.full(n, 1 - level)]
    rows = np.hstack([x, np.eye(n), -np.eye(n)])
    free = [(None, None)] * p + [(0, None)] * (2 * n)
    return scipy.optimize.linprog(cost, A_eq=rows, b_eq=y, bounds=free).x[:p]


def spci_loop(past, lags, window, alpha, num_levels):
    """Coefficients (2, levels, 1 + lags) after residuals, the latest lag last."""
    rows = [i for i in range(len(past) - window, len(past)) if i >= lags]
    x = np.array([[1, *past[i - lags : i]] for i in rows], np.float64)
    b = np.linspace(0, alpha, num_levels)
    levels = np.clip([b, 1 - alpha + b], 0.001, 0.999)
    fit = lambda level: linear_program(x, past[rows], level)  # noqa: E731
    return np.array([[fit(level) for level in side] for side in levels])


def test_spci_ends_of_the_reference():
    method = online.SPCI(3, window=100, every=1)
    for i, t in enumerate(CASE["spci_times"]):
        state = method.init(R[:t], 0.1)
        ends = np.asarray(state.coefs) @ np.r_[1, R[t - 3 : t]]
        assert_allclose(ends.T, CASE["spci_ends"][i], rtol=1e-4, atol=1e-4)
        low, high = CASE["spci_ends"][i][CASE["spci_best"][i]]
        assert_allclose(method.quantile(state, 0.1), [-low, high], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def along():
    """SPCI with one lag on an autoregression: sets of four runs of 1000 steps."""
    states, found = [ONE.init(AR[:2000], 0.1)], []
    for piece in np.split(AR[2000:], 4):
        state, sets = online.run(ONE, states[-1], np.zeros_like(piece), piece, 0.1)
        states, found = [*states, state], [*found, sets]
    return states, jax.tree.map(lambda *v: jnp.concatenate(v), *found)


def test_the_law_of_an_autoregression(along):
    """Width 2 z sqrt(1 - phi^2) = 1.434; a window, which reads no lags, has 2 z."""
    _, sets = along
    width = 2 * Z95 * (1 - 0.9**2) ** 0.5
    assert_allclose(jnp.mean(sets.size()), width, rtol=0.05)
    se = (0.1 * 0.9 / 4000) ** 0.5
    coverage = metrics.coverage(sets, AR[2000:])
    assert 0.89 - 4 * se < coverage < 0.9 + 4 * se
    method = online.SlidingWindow(ABSOLUTE)
    state, y = method.init(abs(AR[1500:2000]), 0.1), AR[2000:]
    _, plain = online.run(method, state, np.zeros_like(y), y, 0.1)
    assert_allclose(jnp.mean(plain.size()), 2 * Z95, rtol=0.1)


def test_fits_are_those_of_the_definition_and_last_until_the_next(along):
    states, sets = along
    for t in (0, 49, 50, 120):  # by rows of before step 0, 0, 50 and 100
        known = 2000 + t // 50 * 50
        coefs = spci_loop(AR[:known].astype(float), 1, 503, 0.1, 5)
        low, high = coefs @ np.r_[1, AR[2000 + t - 1]]
        best = np.argmin(high - low)
        ends = sets.lower[t], sets.upper[t]
        assert_allclose(ends, [low[best], high[best]], rtol=1e-4, atol=1e-4)
    assert states[-1].steps == 0
    assert_array_equal(states[-1].residuals, AR[-504:])


def test_spci_steps_and_targets_that_come_late(along):
    states, sets = along
    state = ONE.init(np.c_[-AR, AR][:2000], 0.1)  # scores as they are
    for a, b in zip(*map(jax.tree.leaves, (state, states[0])), strict=True):
        assert_array_equal(a, b)
    for t in range(3):
        y = AR[2000 + t]
        before = ONE.predict(state, 0.0, 0.1)
        q = ONE.quantile(state, 0.1)
        late = ONE.update(state, 0.0, y, 0.1, threshold=q)
        state, now = ONE.step(state, 0.0, y, 0.1)
        assert_array_equal(late.residuals, state.residuals)
        for sides in (before, now):
            assert_allclose([sides.lower, sides.upper], [-q[0], q[1]], rtol=1e-6)
            assert_allclose(sides.upper, sets.upper[t], rtol=1e-5)
    late = pickle.loads(pickle.dumps(jax.device_get(late)))
    assert_array_equal(ONE.quantile(late, 0.1), ONE.quantile(state, 0.1))
    with jax.no_tracing():
        ONE.step(state, 0.0, y, 0.1)
        online.run(ONE, state, np.zeros(1000, "f"), AR[:1000], 0.1)


LATE = 4


@pytest.mark.parametrize(
    "method",
    [online.SPCI(1, 500, 50, delay=LATE), online.Similar(ABSOLUTE, 0.3, delay=LATE)],
)
def test_late_lags_are_those_that_were_known(method):
    """Coverage as without a delay; the width of SPCI 2 z sqrt(1 - phi^10)."""
    past = AR if isinstance(method, online.SPCI) else abs(AR)
    y, wider = AR[1000:3000], replace(method, window=method.window + LATE, delay=0)
    state, preds = method.init(past[:1000], 0.1), np.zeros_like(AR[1000:3000])
    _, sets = online.run(method, state, preds, y, 0.1)  # with the delay it knows
    _, same = online.run(wider, state, preds, y, 0.1, delay=LATE)
    assert_array_equal(sets.upper, same.upper)
    assert metrics.coverage(sets, y) > 0.87
    if past is AR:
        width = 2 * Z95 * (1 - 0.9 ** (2 + 2 * LATE)) ** 0.5
        assert_allclose(jnp.mean(sets.size()), width, rtol=0.05)


def test_spci_under_vmap_and_grad():
    """Each series as alone; residuals of twice the size have twice the ends."""
    method = online.SPCI(1, window=59, every=5)

    @jax.jit
    @jax.vmap
    def of(scale):
        def upper(scale):
            y = scale * AR[:75]
            state = method.init(y[:61], 0.2)
            _, sets = online.run(method, state, jnp.zeros(14), y[61:], 0.2)
            return jnp.sum(sets.upper), sets.upper

        (total, upper), slope = jax.value_and_grad(upper, has_aux=True)(scale)
        return total, upper, slope

    total, upper, slope = of(jnp.array([1.0, 2.0]))
    assert_allclose(upper[1], 2 * upper[0], rtol=1e-3)
    assert_allclose(slope, total / jnp.array([1.0, 2.0]), rtol=1e-3)
    for t in (0, 7, 13):
        known = 61 + t // 5 * 5
        low, high = (
            spci_loop(AR[:known].astype(float), 1, 59, 0.2, 5) @ np.r_[1, AR[60 + t]]
        )
        assert_allclose(upper[0, t], high[np.argmin(high - low)], rtol=1e-3, atol=1e-4)


def test_spci_is_everything_where_it_knows_too_little():
    """Fewer rows than 1 / alpha - 1 or coefficients, and lags that are not finite."""
    method, y = ONE, np.linspace(-1, 1, 41).astype("f") ** 3

    def q(past, alpha=0.2, **options):
        return np.asarray(method.quantile(method.init(past, alpha, **options), alpha))

    assert np.all(q(y[:4]) == np.inf)  # three rows: 0.2 (3 + 1) < 1
    assert np.all(np.isfinite(q(y[:5])))
    assert np.all(q(y[:3], 0.6) == np.inf)  # two rows, and two coefficients
    for odd in (np.inf, -np.inf, np.nan):
        assert np.all(q(np.append(y, odd)) == np.inf)
    middle = y.copy()
    middle[20] = np.nan
    absent = q(np.where(np.isnan(middle), 9, middle), mask=~np.isnan(middle))
    assert_array_equal(q(middle), absent)  # left out, as what is absent
    assert np.all(np.isfinite(absent))
    assert np.all(q(np.zeros(41, "f")) == 0)


def test_spci_intervals_that_cross_are_empty():
    """Coefficients of a state say where: the set is empty, as an interval is."""
    method = online.SPCI(1, window=4, num_levels=2)
    coefs = jnp.stack([jnp.full((2, 2), 1.0), jnp.full((2, 2), -1.0)])
    state = lags.SPCIState(jnp.ones(5), coefs, jnp.array(0.2), jnp.zeros((), int))
    sets = method.predict(state, 0.0, 0.2)
    assert (sets.lower, sets.upper) == (2, -2)
    assert sets.size() == 0 and not sets.contains(0.0)


def test_spci_is_told_sizes_from_residuals():
    with pytest.raises(ValueError, match="residuals y - pred, not their sizes"):
        ONE.init(abs(AR[:20]), 0.1)


def test_spci_keeps_to_the_alpha_of_its_fits():
    method, state = ONE, ONE.init(AR[:60], 0.1)
    with pytest.raises(ValueError, match=r"alpha 0.1, got 0.2: its fits are for that"):
        method.predict(state, 0.0, 0.2)
    found = jax.jit(lambda a: method.threshold(state, method.rank(state, a)))
    assert np.all(np.isinf(found(0.2))) and np.all(np.isfinite(found(0.1)))
    with pytest.raises(ValueError, match=r"components \(\), as from one example"):
        online.SPCI(1, 503, score=ABSOLUTE).step(state, 0.0, 1.0, 0.1)


def test_spci_of_a_scaled_score():
    """The residual is the second of two components, in units of a scale."""
    score = scores.TwoSided(scores.ScaledResidual())
    method = online.SPCI(1, window=503, score=score)
    state = method.init(AR[:60], 0.1)
    q = ONE.quantile(ONE.init(AR[:60], 0.1), 0.1)
    sets = method.predict(state, (1.0, 2.0), 0.1)
    assert_allclose([sets.lower, sets.upper], [1 - 2 * q[0], 1 + 2 * q[1]], rtol=1e-5)


def test_spci_in_groups():
    method, groups = online.ByGroup(ONE, 2), np.arange(200) % 2
    state = method.init(AR[:200], 0.1, groups=groups)
    found = method.quantile(state, 0.1)
    for g in range(2):
        expected = ONE.quantile(ONE.init(AR[:200][g::2], 0.1), 0.1)
        assert_allclose(found[g], expected, rtol=1e-5)
