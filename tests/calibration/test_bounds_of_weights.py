"""Weights that are known by bounds (low, high): the worst of all within them."""

import itertools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import promised
from jaxcp import predictive, risk, scores

FILE = Path(__file__).parents[1] / "reference/rows/box.npz"
RESIDUAL, ABSOLUTE = scores.Residual(), scores.Absolute()
RNG = np.random.default_rng(0)
N, M = 24, 5
Y, GROUPS = RNG.integers(0, 9, N).astype("f"), np.arange(N) % 2
LOW = RNG.uniform(0.2, 1, N).astype("f")
HIGH = LOW * RNG.uniform(1, 3, N).astype("f")
TEST = RNG.uniform(0.2, 2, M).astype("f")
BOUNDS = LOW, HIGH


def calibrated(weights=BOUNDS, **options):
    return jaxcp.calibrate(ABSOLUTE, np.zeros(N), Y, weights=weights, **options)


def grouped(weights=BOUNDS, **options):
    known = {"num_groups": 2, "weights": weights} | options
    return jaxcp.calibrate_groups(ABSOLUTE, np.zeros(N), Y, GROUPS, **known)


@jax.jit
def thresholds(held, ranks, own):
    """Returns a threshold for each rank and each weight of a test point."""
    each = jax.vmap(jaxcp.Held.threshold, (None, None, 0))
    return jax.vmap(each, (None, 0, None))(held, ranks, own)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", range(4))
def test_vectors(case, dtype):
    """Thresholds and p-values of exact arithmetic; widths 0, low ends 0, ties.

    Rows of weight 0 fill all cases but the first up to one shape.
    """
    with jax.enable_x64(dtype == "float64"), np.load(FILE) as found:
        of = {k[2:]: found[k] for k in found.files if k[0] == str(case)}
        more = 30 - len(of["scores"]) if case else 0
        values = np.append(of["scores"], np.full(more, of["scores"][0]))
        rows = [values, *(np.append(of[k], np.zeros(more)) for k in ("low", "high"))]
        rows = [jnp.asarray(v, dtype) for v in rows]
        held = jaxcp.Held(rows[0], tuple(rows[1:]))
        cp = jaxcp.Calibration(RESIDUAL, held.values, held.weights)
        known = of["margin"] > (1e-6 if dtype == "float32" else -1)
        alphas = jnp.asarray(of["alphas"])
        q = thresholds(held, held.rank(alphas), jnp.asarray(of["test_high"], dtype))
        expected = of["threshold"].astype(dtype)
        assert_array_equal(np.where(known, q, 0), np.where(known, expected, 0))
        own = tuple(jnp.asarray(of[f"test_{k}"], dtype) for k in ("low", "high"))
        m, t = len(own[0]), len(of["test_scores"])
        first = float(of["alphas"][0])
        sets = cp(jnp.zeros(m, dtype), first, test_weights=own)
        assert_array_equal(sets.upper[known[0]], q[0][known[0]])
        p = cp.p_values(
            jnp.zeros(t * m, dtype),
            jnp.asarray(np.repeat(of["test_scores"], m), dtype),
            test_weights=jnp.tile(own[1], t),
        )
        tolerance = 1e-12 if dtype == "float64" else 1e-6
        assert_allclose(p.reshape(t, m), of["p_value"], rtol=tolerance)


@jaxcp.pytree
class Bounded(jaxcp.Rule):
    """A rule of one's own with bounds of weights, and the weight of the test point."""

    score: jaxcp.typing.Score
    held: jaxcp.Held

    def weights_at(self, own):
        return self.held.weights, own


def test_rules_of_ones_own_have_the_p_values_of_the_worst_weights():
    cp = calibrated()
    rule = Bounded(ABSOLUTE, jaxcp.Held(cp.scores, cp.weights))
    new = np.array([0.0, 2.0, 4.0, 6.0, 8.0], "f")
    expected = cp.p_values(np.zeros(M), new, test_weights=TEST)
    assert_allclose(rule.p_values(np.zeros(M), new, own=TEST), expected, rtol=1e-6)


def worst(s, low, high, own, alpha):
    """Returns the largest threshold over all corners, by whole numbers: exact edges."""
    found = []
    for corner in itertools.product((0, 1), repeat=len(s)):
        w = np.where(corner, high, low)
        total = w.sum() + own
        fits = [
            v for v in s if 10 * (w[s > v].sum() + own) <= alpha * total and total > 0
        ]
        found.append(min(fits, default=np.inf))
    return max(found)


def test_the_worst_of_all_corners():
    """1,000 random boxes of whole numbers, with ties, zeros and exact edges."""
    cases, rng = 1000, np.random.default_rng(1)
    s, low = rng.integers(0, 6, (2, cases, 6))
    high, own = low + rng.integers(0, 4, s.shape), rng.integers(0, 4, cases)
    alpha = rng.integers(1, 10, cases)  # tenths
    rows = (v.astype("f") for v in (s, low, high, own, alpha / 10))

    @jax.jit
    @jax.vmap
    def threshold(s, low, high, own, alpha):
        cp = jaxcp.calibrate(RESIDUAL, jnp.zeros(6), s, weights=(low, high))
        return cp.quantile(alpha, test_weight=own)

    expected = [worst(*row) for row in zip(s, low, high, own, alpha, strict=True)]
    assert_array_equal(threshold(*rows), expected)


@pytest.mark.parametrize("made", [calibrated, grouped])
def test_a_box_of_width_0_is_its_weights(made):
    """To the last bit, at exact edges too: thresholds, sets and p-values."""
    plain, box = made(LOW), made((LOW, LOW.copy()))
    context = {"groups": GROUPS[:M]} if made is grouped else {}
    for alpha in [0.1, 0.4]:
        for own in [0.0, 0.7, 3.0]:
            found = (cp.quantile(alpha, test_weight=own) for cp in (plain, box))
            assert_array_equal(*found)
        sets = [
            plain(np.zeros(M), alpha, test_weights=TEST, **context),
            box(np.zeros(M), alpha, test_weights=(0 * TEST, TEST), **context),
        ]
        assert_array_equal(*(s.upper for s in sets))
    p = [cp.p_values(TEST, Y[:M], test_weights=TEST, **context) for cp in (plain, box)]
    assert_array_equal(*p)
    ones = np.full(N, 0.5, "f"), np.full(N, 0.5, "f")  # edges at alpha (n + 1) / 2
    edges = [0.2, 0.4, 0.6, 0.8]
    assert_array_equal(
        [made(ones).quantile(a, test_weight=0.5) for a in edges],
        [made(ones[0]).quantile(a, test_weight=0.5) for a in edges],
    )


def test_ways_of_a_calibration():
    """Masks, groups and rows that come later keep the bounds."""
    mask = GROUPS == 0
    kept = (LOW[mask], HIGH[mask])
    alone = jaxcp.calibrate(ABSOLUTE, np.zeros(N // 2), Y[mask], weights=kept)
    hidden = (np.where(mask, LOW, 9), np.where(mask, HIGH, 1))  # crossed, and unused
    with_mask, both = calibrated(hidden, mask=mask), grouped()
    q = alone.quantile(0.3, test_weight=0.5)
    assert q < np.inf
    assert_array_equal(with_mask.quantile(0.3, test_weight=0.5), q)
    assert_array_equal(both.quantile(0.3, test_weight=0.5)[0], q)
    assert_array_equal(
        grouped(min_size=3).quantile(0.3, test_weight=0.5)[:2],
        both.quantile(0.3, test_weight=0.5),
    )
    halves = [
        jaxcp.calibrate(ABSOLUTE, np.zeros(12), Y[i], weights=(LOW[i], HIGH[i]))
        for i in (slice(12), slice(12, None))
    ]
    further = np.zeros(12), Y[12:]
    longer = halves[0].extended(*further, weights=(LOW[12:], HIGH[12:]))
    rows = {"preds": np.zeros(N), "y": Y, "weights": BOUNDS}
    for cp in (jaxcp.join(halves), longer, jaxcp.calibrate(ABSOLUTE, batches=[rows])):
        jax.tree.map(assert_array_equal, cp, calibrated())
    assert_array_equal(longer.latest(12).weights, halves[1].weights)
    file = calibrated().effective_size(), calibrated(HIGH).effective_size()
    assert_array_equal(*file)


def test_fixed_weights_and_one_threshold():
    half = LOW / 4, LOW / 2
    cp = calibrated(half)
    assert_array_equal(cp.at(0.3).q, cp.quantile(0.3, test_weight=1.0))
    assert "1 - 0.3 for every true ratio within the bounds" in cp.at(0.3).promise
    with pytest.raises(ValueError, match="weights <= 1 of calibration rows"):
        calibrated((LOW, 4 * HIGH)).quantile(0.3)
    predictor = jaxcp.split_conformal(
        lambda _, x: x, None, ABSOLUTE, np.zeros(N), Y, weights=half
    )
    assert_array_equal(predictor.quantile(0.3), cp.quantile(0.3))


def test_components():
    """Each component has its own threshold, at its share of alpha."""
    two = np.stack([Y, Y[::-1]], axis=1)
    cp = jaxcp.calibrate(ABSOLUTE, np.zeros((N, 2)), two, weights=BOUNDS)
    each = [
        jaxcp.calibrate(ABSOLUTE, np.zeros(N), v, weights=BOUNDS).quantile(
            0.2, test_weight=0.5
        )
        for v in two.T
    ]
    assert_array_equal(cp.quantile(0.4, test_weight=0.5), each)
    p = cp.p_values(np.zeros((1, 2)), two[:1], test_weights=[0.5])
    expected = [
        jaxcp.calibrate(ABSOLUTE, np.zeros(N), v, weights=BOUNDS).p_values(
            np.zeros(1), v[:1], test_weights=[0.5]
        )
        for v in two.T
    ]
    assert_allclose(p, np.minimum(1, 2 * np.min(expected, axis=0)), rtol=1e-6)


def test_refusals():
    refused = partial(pytest.raises, ValueError)
    with refused(match=r"high - low >= 0 of weights, got -1.0 at 2"):
        calibrated((LOW + np.eye(N, dtype="f")[2] * (1 + HIGH - LOW)[2], HIGH))
    with refused(match="high - low >= 0 of weights, got -1.0 at 0"):
        calibrated((np.full(N, 2, "u1"), np.ones(N, bool)))
    with refused(match="weights of one length, got"):
        calibrated((LOW, HIGH[1:]))
    with refused(match="finite weights >= 0, got inf at 0"):
        calibrated((LOW, np.where(np.arange(N) == 0, np.inf, HIGH)))
    with refused(match=r"high - low >= 0 of test_weights"):
        calibrated()(np.zeros(M), 0.1, test_weights=(TEST, TEST / 2))
    for call in (
        lambda: calibrated().quantile(0.1, test_weight=1.0, u=0.5),
        lambda: calibrated()(np.zeros(M), 0.1, test_weights=TEST, u=np.ones(M) / 2),
        lambda: calibrated().p_values(TEST, TEST, test_weights=TEST, u=np.ones(M) / 2),
    ):
        with refused(match="u=None, for weights that are known by bounds"):
            call()
    given = np.zeros(N), Y
    held_out = np.arange(N) % 3 == np.arange(3)[:, None]
    for call in (
        lambda: risk.calibrate_risk(risk.miscoverage, ABSOLUTE, *given, weights=BOUNDS),
        lambda: jaxcp.cross_calibrate(
            ABSOLUTE, np.zeros((3, N)), Y, held_out, weights=BOUNDS
        ),
        lambda: predictive.calibrate_predictive(
            scores.Residual(), *given, weights=BOUNDS
        ),
        lambda: jaxcp.weighted_conformal_quantile(Y, BOUNDS, 0.1),
    ):
        with refused(
            match=r"expected weights of shape \(n,\), got bounds \(low, high\)"
        ):
            call()
    with refused(match="no exact law|without weights"):
        calibrated().certificate(0.1)


def test_a_pair_of_numbers_is_the_weights_of_two_rows():
    cp = jaxcp.calibrate(ABSOLUTE, np.zeros(2), Y[:2], weights=(0.5, 1.0))
    assert_array_equal(cp.weights, np.float32([0.5, 1.0]))


def test_coverage():
    """True weights anywhere in the box: at least 1 - alpha, where unit weights and one
    end of the box cover less."""
    n, alpha, trials = 30, 0.2, 10_000

    def trial(key):
        key_x, key_y, key_new = jax.random.split(key, 3)
        x = jax.random.normal(key_x, (n,))
        new = jax.random.normal(key_new) + 1  # ratio exp(x), up to a factor
        x = jnp.append(x, new)
        y = jnp.exp(x / 2) * jax.random.normal(key_y, (n + 1,))
        low, high = jnp.exp(x) / 1.5, jnp.exp(x) * 1.5
        made = partial(jaxcp.calibrate, ABSOLUTE, jnp.zeros(n), y[:n])
        cp = made(weights=(low[:n], high[:n]))
        q = jnp.stack([made().quantile(alpha), cp.quantile(alpha, test_weight=high[n])])
        return (jnp.abs(y[n]) <= q) - promised(cp, alpha)

    keys = jax.random.split(jax.random.key(0), trials)
    naive, box = np.mean(jax.jit(jax.vmap(trial))(keys), axis=0)
    error = (0.8 * 0.2 / trials) ** 0.5
    assert naive < -4 * error
    assert box > -4 * error
