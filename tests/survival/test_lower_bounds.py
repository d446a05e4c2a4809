"""Lower bounds of censored times: vectors, loops from the definition, the law."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import promised, same
from jaxcp import learners, scores, survival
from rows import refuses

KNOWN = dict(np.load(Path(__file__).parents[1] / "reference" / "survival.npz"))
KEY, LEVELS = jax.random.key(0), (0.1, 0.2, 0.4)
N, M, ALPHA, CUTOFF = 60, 4, 0.2, 2.0


def case(i):
    return {k[2:]: v for k, v in KNOWN.items() if k.startswith(f"{i}_")}


def calibrated(rows, **options):
    names = "pred", "time", "censoring"
    given = {k: rows[k] for k in ("cutoff", "probability")} | options
    return survival.calibrate_lower(*(rows[k] for k in names), **given)


@pytest.mark.parametrize("i", range(3))
def test_thresholds_and_bounds_are_those_of_the_vectors(i):
    rows = case(i)
    cp = calibrated(rows)
    assert cp.held.mask.sum() == rows["num_kept"]
    for j, alpha in enumerate(LEVELS):
        own = {"probability": rows["test_probability"]}
        sets = cp(rows["test_pred"], alpha, **own)
        assert_allclose(sets.lower, rows["bound_clipped"][j], rtol=1e-6, atol=1e-6)
        assert np.all(sets.upper == np.inf)
        q = [cp.quantile(alpha, probability=p) for p in rows["test_probability"]]
        assert_allclose(q, rows["threshold"][j], rtol=1e-6)


def survives(x, c):
    """P(C >= c given x) of the law of the vectors."""
    return jnp.exp(-(0.2 + 0.5 * x) * c)


def test_weights_without_a_draw_are_those_of_the_vectors():
    rows = case(0)
    x, time = jnp.log(rows["pred"]), jnp.minimum(rows["time"], CUTOFF)
    known = np.where(rows["event"], np.inf, rows["time"])
    cp = calibrated(rows | {"censoring": known, "probability": survives(x, time)})
    assert_array_equal(np.flatnonzero(cp.held.mask), KNOWN["ipcw_rows"])
    weights = cp.held.weights[KNOWN["ipcw_rows"]]
    assert_allclose(weights, KNOWN["ipcw_weights"], rtol=1e-5)
    for j, alpha in enumerate(LEVELS):
        new = 1 / KNOWN["ipcw_test_weights"]
        q = [cp.quantile(alpha, probability=p) for p in new]
        assert_allclose(q, KNOWN["ipcw_threshold"][j], rtol=1e-6)


def drawn(n, seed=0):
    """Rows with ties, half of them seen up to a cutoff that some have for C."""
    rng = np.random.default_rng(seed)
    pred, time, censoring = rng.integers(1, 12, (3, n)).astype("f") / 4
    p = rng.uniform(0.3, 1, n).astype("f")
    known = {"time": np.minimum(time, censoring), "censoring": censoring}
    return known | {"pred": pred, "cutoff": 1.5, "probability": p}


def threshold(rows, alpha, p_new):
    """min{v : weight of scores above v, and 1 / p_new, <= alpha of all}, by a loop."""
    kept = [i for i, c in enumerate(rows["censoring"]) if c >= rows["cutoff"]]
    capped = {k: np.minimum(rows[k], rows["cutoff"]) for k in ("pred", "time")}
    w = {i: 1 / float(rows["probability"][i]) for i in kept}
    total = sum(w.values()) + 1 / p_new
    s = {i: float(capped["pred"][i] - capped["time"][i]) for i in kept}
    for v in sorted(s.values()):
        if sum(w[i] for i in kept if s[i] > v) + 1 / p_new <= alpha * total:
            return v
    return np.inf


@pytest.mark.parametrize("n", [0, 1, 40])
def test_bounds_are_those_of_a_loop(n):
    rows, new = drawn(n), drawn(M, seed=1)
    cp = calibrated(rows)
    for alpha in LEVELS:
        p = new["probability"]
        q = np.array([threshold(rows, alpha, float(v)) for v in p])
        bounds = np.minimum(np.minimum(new["pred"], 1.5) - q, 1.5)
        found = cp(new["pred"], alpha, probability=p).lower
        assert_allclose(found, bounds, rtol=1e-6, atol=1e-6)


def test_candidate_times_have_the_share_of_rows_that_are_as_strange():
    rows, new = drawn(40), drawn(M, seed=1)
    cp, y = calibrated(rows), np.array([0.25, 1.0, 1.5, 9.0], "f")
    p = cp.p_values(new["pred"], y, probability=new["probability"])
    held = cp.held
    for i in range(M):
        own = 1 / new["probability"][i]
        score = min(new["pred"][i], 1.5) - y[i]
        mass = np.sum(np.where(held.values >= score, held.weights, 0))
        total = np.sum(held.weights) + own
        expected = 1.0 if y[i] >= 1.5 else (mass + own) / total
        assert_allclose(p[i], expected, rtol=1e-5)


def test_smoothed_sets_hold_what_has_a_large_smoothed_p_value():
    rows, new = drawn(40), drawn(200, seed=1)
    cp, u = calibrated(rows), np.linspace(0, 1, 200, dtype="f")
    given = {"probability": new["probability"], "u": u}
    sets, y = cp(new["pred"], 0.3, **given), new["time"] + np.float32(0.01)
    p = cp.p_values(new["pred"], y, **given)
    assert_array_equal(sets.contains(y), p > 0.3)  # of scores that tie with none
    p = cp.p_values(new["pred"], new["time"], **given)
    assert np.all(sets.contains(new["time"]) | (p <= 0.3))
    whole = cp(new["pred"], 0.3, probability=given["probability"])
    assert np.all(sets.lower >= whole.lower)


@pytest.mark.parametrize("n", [0, 1, 9, 60])
def test_without_censoring_bounds_are_those_of_split_to_the_last_bit(n):
    rng = np.random.default_rng(n)
    pred, time = rng.exponential(size=(2, n)).astype("f")
    never, ones = np.full(n, np.inf, "f"), np.ones(n, "f")
    given = {"cutoff": np.inf, "probability": ones}
    cp = survival.calibrate_lower(pred, time, never, **given)
    split = jaxcp.calibrate(scores.Residual("lower"), pred, time)
    new, own = rng.exponential(size=8).astype("f"), {"probability": np.ones(8, "f")}
    for alpha in (0.05, 0.1, 0.2, 1 / 3, 0.5):
        same(cp(new, alpha, **own), split(new, alpha))
    assert_allclose(cp.p_values(new, new, **own), split.p_values(new, new), rtol=1e-6)


def rate(x):
    return 0.05 + 1.2 * x


def law(x, c):
    return jnp.exp(-rate(x) * c)


def outcomes(key, n):
    """Those who are predicted to live long are rarely seen to, and vary the most."""
    key_x, key_t, key_c = jax.random.split(key, 3)
    x = jax.random.uniform(key_x, (n,))
    t = jnp.exp(x + (0.1 + 1.4 * x) * jax.random.normal(key_t, (n,)))
    return x, t, jax.random.exponential(key_c, (n,)) / rate(x)


def test_times_are_above_their_bounds():
    """1 - alpha with C seen, drawn, or weighed away; 0.74 without weights."""
    num_trials = 6000

    def trial(key):
        key_data, key_draw = jax.random.split(key)
        x, t, c = outcomes(key_data, N + 1)
        time, event, pred = jnp.minimum(t, c), t <= c, jnp.exp(x)
        old = lambda v: v[:N]  # noqa: E731
        rows = tuple(map(old, (pred, time)))

        def above(p, own, censoring):
            options = {"cutoff": CUTOFF, "probability": p}
            cp = survival.calibrate_lower(*rows, censoring, **options)
            found = cp(pred[N:], ALPHA, probability=own).contains(t[N:])[0]
            return found - promised(cp, ALPHA)

        drawn = survival.impute_censoring(key_draw, law, *map(old, (x, time, event)))
        beyond = old(jnp.where(event, jnp.inf, time))
        of_event = law(x, jnp.minimum(time, CUTOFF))
        p, ones = law(x, CUTOFF), jnp.ones(N + 1)
        ways = (
            (p, p, old(c)),
            (p, p, drawn),
            (of_event, p, beyond),
            (ones, ones, old(c)),
        )
        rows_p, own, censoring = (jnp.stack(v) for v in zip(*ways, strict=True))
        return jax.vmap(above)(rows_p[:, :N], own[:, N:], censoring)

    keys = jax.random.split(KEY, num_trials)
    found = jax.jit(lambda keys: jax.lax.map(trial, keys, batch_size=500))(keys)
    seen, drawn, of_events, naive = np.mean(found, axis=0)
    error = 4 * (0.8 * 0.2 / num_trials) ** 0.5
    for share in (seen, drawn, of_events):  # and no more than few rows cost
        assert -error < share < 0.06 + error
    assert naive < -error


def test_drawn_censoring_times_follow_the_law_beyond_the_event():
    """C >= c with probability G(c) / G(T), at every c; those that are seen stay."""
    n = 40_000
    time, event = jnp.full(n, 1.0), jnp.arange(n) % 4 > 0
    x = jnp.full(n, 0.5)
    found = survival.impute_censoring(KEY, law, x, time, event)
    assert_array_equal(found[~event], time[~event])
    assert np.all(found[event] >= 1)
    for c in (1.5, 2.0, 4.0):
        expected = np.exp(-rate(0.5) * (c - 1))
        error = (expected * (1 - expected) / (0.75 * n)) ** 0.5
        assert abs(np.mean(found[event] >= c) - expected) < 4 * error


def test_draws_of_kaplan_meier_are_at_its_steps():
    """Or beyond all times, with what it has left there: 1/2 of 3/4 after time 1."""
    time, event = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([0, 1, 0, 1])
    model = learners.KaplanMeier(reverse=True).fit(time, event)
    times, n = jnp.full(20_000, 1.5), 20_000
    found = survival.impute_censoring(KEY, model, None, times, jnp.ones(n, bool))
    assert set(np.unique(found).tolist()) == {3.0, np.inf}
    assert abs(np.mean(np.isinf(found)) - 0.5) < 4 * 0.5 / n**0.5
    late = survival.impute_censoring(KEY, law, jnp.ones(1), 900.0 + jnp.ones(1), [True])
    assert late.tolist() == [901.0]  # where P(C >= T) = 0 in single precision


def test_cutoffs_by_vmap_are_a_loop():
    x, t, c = outcomes(KEY, N)
    pred, time, new = jnp.exp(x), jnp.minimum(t, c), jnp.array([0.2, 0.8])

    def bounds(cutoff):
        given = {"cutoff": cutoff, "probability": law(x, cutoff)}
        cp = survival.calibrate_lower(pred, time, c, **given)
        return cp(jnp.exp(new), ALPHA, probability=law(new, cutoff)).lower

    cutoffs = jnp.array([0.5, 1.0, 2.0, 1e3])
    found = jax.jit(jax.vmap(bounds))(cutoffs)
    assert_allclose(found[:3], jnp.stack([bounds(v) for v in cutoffs[:3]]), rtol=1e-6)
    assert np.all(found[:3] <= cutoffs[:3, None])
    assert np.all(found[3] == -np.inf)  # no row is seen for so long


def test_rows_that_nobody_saw_to_the_cutoff_say_nothing():
    rows = drawn(9) | {"cutoff": 99.0}
    cp = calibrated(rows)
    assert cp.effective_size(probability=0.5) == 0
    assert cp(np.ones(2), 0.9, probability=np.ones(2)).lower.tolist() == [-np.inf] * 2
    assert cp(np.ones(2), 0.9, probability=np.ones(2)).clip(0.0).lower.tolist() == [
        0,
        0,
    ]


def test_numbers_without_an_answer_have_one():
    """Infinite predictions and traced probabilities <= 0: no NaN, no row counts."""
    never = np.full(9, np.inf, "f")
    given = {"cutoff": np.inf, "probability": np.ones(9)}
    cp = survival.calibrate_lower(never, never, never, **given)
    assert_array_equal(cp.held.values, 0)
    sets = cp(np.array([np.inf, 1.0]), 0.5, probability=np.ones(2))
    assert sets.lower.tolist() == [np.finfo("f").max, 1.0]
    assert cp(never, 0.01, probability=np.ones(9)).lower[0] == -np.inf
    rows = drawn(20)

    def bound(p, own):
        cp = calibrated(rows | {"probability": p})
        return cp(jnp.ones(1), 0.4, probability=own).lower[0]

    p = jnp.asarray(rows["probability"])
    odd = jnp.where(jnp.arange(20) % 2 > 0, 0.0, p)
    assert jax.jit(bound)(p, jnp.zeros(1)) == jax.jit(bound)(0 * p, p[:1]) == -np.inf
    for unseen in (jnp.nan, -0.5, -jnp.inf):
        assert jax.jit(bound)(p, jnp.full(1, unseen)) == -np.inf
    without = calibrated(rows, mask=np.arange(20) % 2 == 0)
    expected = without(np.ones(1), 0.4, probability=p[:1]).lower[0]
    assert jax.jit(bound)(odd, p[:1]) == expected


def test_integers_are_times():
    rows = drawn(20)
    whole = {k: np.round(4 * v).astype(int) for k, v in rows.items() if k != "cutoff"}
    whole |= {"cutoff": 6, "probability": rows["probability"]}
    bound = calibrated(whole)([4], 0.4, probability=[0.5]).lower
    expected = calibrated(rows)([1.0], 0.4, probability=[0.5]).lower
    assert_allclose(bound, 4 * expected, rtol=1e-5)


def kaplan_meier(time, event, at, reverse, side):
    """The product over distinct times u < at, or u <= at, by a loop."""
    left = 1.0
    for u in np.unique(time):
        if not (u < at or (u == at and side == "right")):
            continue
        n, d = np.sum(time >= u), np.sum((time == u) & event)
        c = np.sum((time == u) & ~event)
        if reverse:
            left *= 1 - c / (n - d) if n > d else 1
        else:
            left *= 1 - d / n
    return left


@pytest.mark.parametrize("reverse", [False, True])
def test_kaplan_meier_is_the_product_of_the_definition(reverse):
    rng = np.random.default_rng(0)
    time, event = rng.integers(1, 9, 30) / 2, rng.random(30) < 0.5
    model = learners.KaplanMeier(reverse).fit(time, event)
    at = np.arange(0, 12) / 2
    for found, side in ((model(None, at), "left"), (model.survival(at), "right")):
        expected = [kaplan_meier(time, event, v, reverse, side) for v in at]
        assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_kaplan_meier_of_the_vectors():
    time, event, at = (KNOWN[f"km_{k}"] for k in ("time", "event", "at"))
    of_t = learners.KaplanMeier().fit(time, event)
    of_c = learners.KaplanMeier(reverse=True).fit(time, event)
    assert_allclose(of_t.survival(at), KNOWN["km_survival"], rtol=1e-6)
    assert_allclose(of_c.survival(at), KNOWN["km_censoring"], rtol=1e-6)
    assert_allclose(of_c(None, at), KNOWN["km_censoring_before"], rtol=1e-6)
    before = jax.jit(lambda t, e: learners.KaplanMeier(True).fit(t, e)(None, at))
    assert_allclose(before(time, event), KNOWN["km_censoring_before"], rtol=1e-6)


def test_kaplan_meier_at_its_ends():
    """1 before all times, 0 after a last event, as it was after a last censoring."""
    model = learners.KaplanMeier().fit([1.0, 2.0], [True, True])
    assert model.survival([0.0, 2.0, np.inf]).tolist() == [1, 0, 0]
    assert learners.KaplanMeier().fit([1.0, 2.0], [1, 0]).survival(9.0) == 0.5
    assert learners.KaplanMeier().fit([], []).survival(3.0) == 1
    assert model(np.zeros((3, 2)), 2.0).tolist() == [0.5, 0.5, 0.5]


TWO = {"cutoff": 1.0, "probability": [0.5, 0.5]}
ROWS = [1.0, 2.0], [1.0, 1.0]
CALLS = {
    "never seen": (
        lambda: survival.calibrate_lower(
            *ROWS, [2.0, 2.0], cutoff=1.0, probability=[0.5, 0.0]
        ),
        r"probability in \(0, 1\], got 0.0 at 1; units that are never seen up to",
    ),
    "above 1": (
        lambda: survival.calibrate_lower(
            *ROWS, [2.0, 2.0], cutoff=1.0, probability=[2.0, 0.5]
        ),
        "got 2.0 at 0",
    ),
    "censored before seen": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 0.5], **TWO),
        r"censoring - time >= 0, as time is min\(T, C\) and C a time, got -0.5 at 1",
    ),
    "cutoff": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 2.0], **TWO | {"cutoff": np.nan}),
        "cutoff without NaN",
    ),
    "cutoffs": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 2.0], **TWO | {"cutoff": [1, 2]}),
        "cutoff as a number",
    ),
    "no probability": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 2.0], **TWO)([1.0], 0.1),
        "expected probability of each test point, which LowerCalibration reads",
    ),
    "test unit never seen": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 2.0], **TWO)(
            [1.0], 0.1, probability=[0.0]
        ),
        r"probability in \(0, 1\], got 0.0 at 0; units that are never seen",
    ),
    "weights of the test units": (
        lambda: survival.calibrate_lower(*ROWS, [2.0, 2.0], **TWO)(
            [1.0], 0.1, test_weights=[2.0]
        ),
        "LowerCalibration with probability of test points, got test_weights",
    ),
    "model": (
        lambda: survival.impute_censoring(KEY, 0.5, None, *ROWS),
        r"model\(x, c\), P\(C >= c given x\), as a function, got 0.5",
    ),
    "the curve of the times": (
        lambda: survival.impute_censoring(
            KEY, learners.KaplanMeier().fit(*ROWS), None, *ROWS
        ),
        r"law of C, KaplanMeier\(reverse=True\), got T's",
    ),
    "shape of a model": (
        lambda: survival.impute_censoring(KEY, lambda x, c: c[None], None, *ROWS),
        r"expected model\(x, c\) of shape \(2,\), got \(1, 2\)",
    ),
    "model of numpy": (
        lambda: survival.impute_censoring(
            KEY, lambda x, c: np.exp(-np.asarray(c)), None, *ROWS
        ),
        "expected functions that jax can trace",
    ),
    "not fitted": (
        lambda: learners.KaplanMeier()(None, 1.0),
        r"expected what fit\(time, event\) returns as a value, got None",
    ),
    "events of Kaplan-Meier": (
        lambda: learners.KaplanMeier().fit([1.0], [3]),
        "event as flags or 0 and 1, got 3 at 0",
    ),
    "NaN of Kaplan-Meier": (
        lambda: learners.KaplanMeier().fit([np.nan], [1]),
        "time without NaN",
    ),
}


test_wrong_calls_are_refused_in_words = refuses(CALLS)


def test_few_programs(programs):
    """Of the type of the cutoff, of which rows count, of scores, of sets; then none."""
    rows, new = drawn(33), drawn(M)
    jax.clear_caches()
    programs.clear()

    def bounds(rows):
        cp = calibrated(rows)
        return cp(new["pred"], 0.3, probability=new["probability"])

    bounds(rows)
    assert len(programs) <= 4, programs
    with jax.no_tracing():
        bounds(drawn(33, seed=3) | {"cutoff": 1.25})
