"""Treatments: outcomes of an arm, boxes of propensities, effects."""

import itertools
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import cut, promised
from jaxcp import causal, scores
from jaxcp.sets import Interval
from rows import ABSOLUTE, KEY, refuses

REFERENCE = Path(__file__).parents[1] / "reference" / "rows"
ARMS = list(itertools.product((0, 1), ("all", "treated", "untreated")))
each_arm = pytest.mark.parametrize("arm, target", ARMS)
N, M, ALPHA = 40, 8, 0.2
E = np.linspace(0.3, 0.8, N)
TREATED = np.arange(N) % 2 == 0


def outcomes(dtype):
    found = np.load(REFERENCE / "outcomes.npz")
    floats = lambda v: v.astype(dtype) if v.dtype.kind == "f" and v.ndim else v  # noqa: E731
    return {k: floats(v) for k, v in found.items()}


def of_arm(r, arm, target):
    """A calibration that sees no outcome of the other arm."""
    y = np.where(r["treated"] == arm, r["y"], np.nan).astype(r["y"].dtype)
    data = r["pred"], y, r["treated"], r["propensity"]
    return causal.calibrate_outcome(ABSOLUTE, *data, arm=arm, target=target)


@each_arm
def test_thresholds_of_the_reference(arm, target):
    """To the last bit in double precision, and in single where no sum is near."""
    for dtype in ("float64", "float32")[: 1 + (target == "all")]:
        with jax.enable_x64(dtype == "float64"):
            r, name = outcomes(dtype), f"arm{arm}_{target}"
            cp, e = of_arm(r, arm, target), r["test_propensity"]
            least = 1e-6 if dtype == "float32" else -1
            for i, alpha in enumerate(map(float, r["alphas"])):
                sets = cp(r["test_pred"], alpha, propensity=e)
                assert sets.upper.dtype == dtype
                found = np.array([cp.quantile(alpha, propensity=v) for v in e])
                clear = r[f"margin_{name}"][i] > least
                q, rtol = r[f"threshold_{name}"][i][clear], 2e-7 * (least > 0)
                assert_allclose(found[clear], q, rtol=rtol)
                upper = r["test_pred"][clear] + q
                assert_allclose(sets.upper[clear], upper, rtol=1e-14 + rtol)


def test_effects_with_one_outcome_seen():
    with jax.enable_x64(True):
        r, alpha = outcomes("float64"), float(outcomes("float64")["one_seen_alpha"])
        new = r["test_pred"], alpha
        ask = lambda cp: cp(*new, propensity=r["test_propensity"])  # noqa: E731
        both = ask(of_arm(r, 0, "treated")), ask(of_arm(r, 1, "untreated"))
        found = causal.effect_sets(*both, r["test_y"], r["test_treated"])
        # Ends of sets are rounded outwards.
        assert_allclose(found.lower, r["one_seen_low"], atol=1e-14)
        assert_allclose(found.upper, r["one_seen_high"], atol=1e-14)


def test_nested_effects():
    with jax.enable_x64(True):
        r = dict(np.load(REFERENCE / "effects.npz"))
        n1, n = int(r["num_outcome"]), len(r["y"])
        first, second = slice(n1), slice(n1, n)

        def sets_of(arm, target):
            names = (f"mu{arm}", "y", "treated", "propensity")
            data = [r[k][first] for k in names]
            cp = causal.calibrate_outcome(ABSOLUTE, *data, arm=arm, target=target)
            given = {"propensity": r["propensity"][second]}
            return cp(r[f"mu{arm}"][second], float(r["gamma"]), **given)

        seen = r["y"][second], r["treated"][second]
        both = sets_of(0, "treated"), sets_of(1, "untreated")
        effects = causal.effect_sets(*both, *seen)
        assert_allclose(effects.lower, r["effect_low"], atol=1e-14)
        assert_allclose(effects.upper, r["effect_high"], atol=1e-14)
        effects = Interval(jnp.asarray(r["effect_low"]), jnp.asarray(r["effect_high"]))
        ends = lambda rows: (r["low_pred"][rows], r["high_pred"][rows])  # noqa: E731
        cp = causal.calibrate_effect(scores.CQR(), ends(second), effects)
        assert_array_equal(cp.scores, r["scores"])
        alpha = float(r["alpha"])
        assert cp.quantile(alpha) == r["threshold"]
        sets = cp(ends(slice(n, None)), alpha)
        assert_allclose(sets.lower, r["set_low"], atol=1e-14)
        assert_allclose(sets.upper, r["set_high"], atol=1e-14)


def weight(e, arm, target):
    """The six formulas of the docstring."""
    known = {
        (1, "all"): 1 / e,
        (1, "untreated"): (1 - e) / e,
        (1, "treated"): 1,
        (0, "all"): 1 / (1 - e),
        (0, "treated"): e / (1 - e),
        (0, "untreated"): 1,
    }
    return known[arm, target] + 0 * e


def by_definition(values, w, own, alpha):
    """min{v : mass{S > v} + own <= alpha total}, and the p-value of 1."""
    total = w.sum() + own
    fits = [v for v in values if w[values > v].sum() + own <= alpha * total + 1e-12]
    p = (w[values >= 1].sum() + own) / total
    return min(fits, default=np.inf), p


@each_arm
def test_a_box_is_its_worst_vertex(arm, target):
    """All 2^7 of the rows, of which five count, and both ends of the new unit."""
    rng = np.random.default_rng(10 * arm + len(target))
    n, own = 7, np.arange(7) < 5
    y, low = np.abs(rng.normal(size=(2, n)))
    low = 0.1 + 0.5 * low / low.max()
    high, new = low + 0.3 * rng.random(n), (0.4, 0.55)
    treated = own == bool(arm)
    options = {"arm": arm, "target": target}
    box = tuple(v.astype("f") for v in (low, high))
    data = np.zeros(n, "f"), y.astype("f"), treated, box
    cp = causal.calibrate_outcome(ABSOLUTE, *data, **options)
    worst = np.array([0.0, 0.0])
    for ends in itertools.product((0, 1), repeat=own.sum()):
        e = np.where(ends, box[1][:5], box[0][:5]).astype(float)
        w, at = weight(e, arm, target), [weight(v, arm, target) for v in new]
        each = [by_definition(data[1][:5], w, v, 0.45) for v in at]
        worst = np.maximum(worst, np.max(each, axis=0))
    found = cp.quantile(0.45, propensity=new)
    p = cp.p_values(np.zeros(1), np.ones(1), propensity=tuple(np.array([new]).T))
    assert_allclose([found, p[0]], worst, rtol=1e-5)
    # The same of many units, and of one propensity where a box has no width.
    many = tuple(np.full(M, v) for v in new)
    assert_array_equal(cp(np.zeros(M), 0.45, propensity=many).upper, found)
    at_most = new[1 - arm] if target != ("untreated", "treated")[arm] else 0.5
    assert cp.quantile(0.45, propensity=at_most) == found


@each_arm
def test_one_propensity_is_split_calibration_of_the_arm(arm, target):
    """To the last bit, with ties, where alpha (n + 1) is whole or not; boxes too."""
    rng, is_own = np.random.default_rng(0), target == ("untreated", "treated")[arm]
    alphas, options = (0.05, 0.1, 0.2, 0.25, 0.4), {"arm": arm, "target": target}
    with jax.enable_x64(arm == 1):
        for n in (9, 19, 16):
            own, y = np.arange(N) < n, np.round(rng.normal(size=N), 1)
            split = jaxcp.calibrate(ABSOLUTE, 0 * y, y, mask=own)
            same = np.full(N, rng.uniform(0.01, 0.99))
            # The arm's own units: whatever the propensities are.
            for e in (E, (E, E)) if is_own else (same, (same, same)):
                data = ABSOLUTE, 0 * y, y, own == bool(arm), e
                cp = causal.calibrate_outcome(*data, **options)
                new = {"propensity": jax.tree.map(lambda v: v[3], e)}
                for alpha in alphas:
                    assert cp.quantile(alpha, **new) == split.quantile(alpha)


def test_a_mask_leaves_rows_out():
    """A mask of no row at all makes sets infinite."""
    y, mask = np.linspace(-2, 3, N), np.arange(N) < 30
    fit = partial(causal.calibrate_outcome, ABSOLUTE)
    cp, new = fit(0 * y, y, TREATED, E, mask=mask), {"propensity": 0.5}
    none = fit(0 * y, y, TREATED, E, mask=mask & False)
    assert none.quantile(ALPHA, **new) == np.inf
    # Of 30 rows 15 are treated, and their weights are 1/e.
    w = 1 / E[:30:2]
    size = cp.effective_size(**new)
    assert_allclose(size, w.sum() ** 2 / (w**2).sum(), rtol=1e-5)


def test_labels_by_name():
    """Binary outcomes: the score of a row is one minus the chance of what was seen."""
    p = np.stack([np.linspace(0.1, 0.9, N), np.linspace(0.9, 0.1, N)], 1)
    y = np.where(np.arange(N) % 3 == 0, "ill", "well").astype(object)
    y[~TREATED] = None
    names = {"classes": ["ill", "well"]}
    cp = causal.calibrate_outcome(scores.LAC(), p, y, TREATED, 0 * E + 0.4, **names)
    split = jaxcp.calibrate(scores.LAC(), p, y, mask=TREATED, **names)
    new = {"propensity": np.full(N, 0.4)}
    assert cp(p, 0.3, **new).labels() == split(p, 0.3).labels()
    assert_allclose(cp.p_values(p, **new), split.p_values(p), rtol=1e-5)


def test_smoothed_sets_are_those_of_smoothed_p_values():
    rng = np.random.default_rng(1)
    y, u, e = rng.normal(size=N), rng.random(M), E[:M]
    cp = causal.calibrate_outcome(ABSOLUTE, 0 * y, y, TREATED, E)
    new = {"propensity": e, "u": u}
    p = np.asarray(cp.p_values(np.zeros(M), y[:M], **new))
    inside = cp(np.zeros(M), 0.5, **new).contains(jnp.asarray(y[:M]))
    clear = abs(p - 0.5) > 1e-4
    assert clear.sum() > 5
    assert_array_equal(inside[clear], p[clear] > 0.5)


def test_p_values_of_labels_and_of_components():
    """All labels at once, and both ends of a band, which have half of alpha each."""
    p = np.stack([np.linspace(0.1, 0.9, N), np.linspace(0.9, 0.1, N)], 1)
    cp = causal.calibrate_outcome(scores.LAC(), p, np.arange(N) % 3 % 2, TREATED, E)
    known = {"propensity": E[:M]}
    one = [cp.p_values(p[:M], np.full(M, j), **known) for j in (0, 1)]
    assert_array_equal(cp.p_values(p[:M], **known), np.stack(one, axis=1))
    y, box = np.linspace(-2, 3, N), causal.propensity_box(E, 1.5)
    both = scores.AsymmetricCQR(), (0 * y, 0 * y), y, TREATED
    for e in (E, box):
        new = {"propensity": jax.tree.map(lambda v: v[:M], e)}
        band = causal.calibrate_outcome(*both, e)
        found = band.p_values((np.zeros(M), np.zeros(M)), np.full(M, 1.0), **new)
        ends = [scores.Residual("lower"), scores.Residual("upper")]
        each = [causal.calibrate_outcome(s, 0 * y, y, TREATED, e) for s in ends]
        each = [cp.p_values(np.zeros(M), np.full(M, 1.0), **new) for cp in each]
        assert_allclose(found, np.minimum(1, 2 * np.min(each, axis=0)), rtol=1e-5)


def test_empty_and_infinite_intervals_of_effects():
    ends = jnp.zeros(4), jnp.ones(4)
    lower = jnp.array([-jnp.inf, 2.0, jnp.inf, 0.5])
    upper = jnp.array([1.0, 1.0, -jnp.inf, jnp.inf])
    fit = causal.calibrate_effect
    cp = fit(scores.CQR(), ends, Interval(lower, upper))
    assert_array_equal(cp.scores, [np.inf, -np.inf, -np.inf, np.inf])
    treated = jnp.arange(4) % 2
    sets = Interval(lower, upper)
    seen = causal.effect_sets(sets, sets, jnp.zeros(4), treated)
    assert_array_equal(seen.is_empty(), sets.is_empty())
    # Two components: each end has its own, and no band is empty by accident.
    both = fit(scores.AsymmetricCQR(), ends, Interval(lower - 1, lower + 1))
    assert_array_equal(both.scores[3], [0.5, 0.5])


def test_a_box_of_the_marginal_sensitivity_model():
    """Odds within a factor; a factor of 1 changes no bit, and many go by vmap."""
    low, high = causal.propensity_box(E, 3.0)
    odds = lambda e: np.asarray(e, float) / (1 - np.asarray(e, float))  # noqa: E731
    assert_allclose(odds(low), odds(E) / 3, rtol=1e-5)
    assert_allclose(odds(high), odds(E) * 3, rtol=1e-5)
    for end in causal.propensity_box(E, 1):
        assert_array_equal(end, jnp.asarray(E))
    y = np.linspace(0, 5, N)

    @jax.jit
    @jax.vmap
    def width(gamma):
        box, new = causal.propensity_box(E, gamma), causal.propensity_box(0.5, gamma)
        cp = causal.calibrate_outcome(ABSOLUTE, 0 * y, y, TREATED, box)
        return cp.quantile(ALPHA, propensity=new)

    found = np.asarray(width(jnp.array([1.0, 1.5, 2.0, 20.0])))
    known = causal.calibrate_outcome(ABSOLUTE, 0 * y, y, TREATED, E)
    assert found[0] == known.quantile(ALPHA, propensity=0.5)
    assert np.all(np.diff(found) >= 0) and found[-1] == np.inf


def test_traced_propensities_without_overlap_make_sets_infinite():
    y = np.linspace(0, 5, N)
    cp = causal.calibrate_outcome(ABSOLUTE, 0 * y, y, TREATED, E)
    new = jnp.array([0.0, -1.0, jnp.nan, 1.0])
    upper = jax.jit(lambda e: cp(jnp.zeros(4), ALPHA, propensity=e).upper)(new)
    assert_array_equal(upper, np.inf)


Y = np.arange(float(N))
FIT = partial(causal.calibrate_outcome, ABSOLUTE, 0 * Y, Y)
CP = FIT(TREATED, E)
WRONG = {
    "zero": (lambda: FIT(TREATED, 0 * E), r"propensity in \(0, 1\), got 0.0 at 0; u"),
    "one": (lambda: FIT(TREATED, E / E), r"got 1.0 at 0.*counterpart: leave them out"),
    "new": (lambda: CP(Y, 0.1, propensity=E + 1), r"propensity in \(0, 1\), got 1."),
    "crossed": (
        lambda: FIT(TREATED, (E, E[::-1])),
        "with high - low >= 0, got -0.012",
    ),
    "columns": (lambda: FIT(TREATED, E[:, None]), r"of shape \(n,\), got \(40, 1\)"),
    "flags": (lambda: FIT(Y, E), "treated as flags or 0 and 1, got 2.0 at 2"),
    "arm": (lambda: FIT(TREATED, E, arm=2), r"arm as one of \[0, 1\], got 2"),
    "target": (lambda: FIT(TREATED, E, target="ATT"), "target as one of .'all', 't"),
    "none": (lambda: CP(Y, 0.1), "expected propensity of each test point"),
    "one of many": (lambda: CP.quantile(0.1, propensity=E), r"of shape \(\)"),
    "at": (lambda: CP.at(0.1), "reads propensity of each"),
    "gamma": (lambda: causal.propensity_box(E, 0.5), r"gamma in \[1, inf\), got 0.5"),
    "no bound": (lambda: causal.propensity_box(E, np.inf), r"\[1, inf\), got inf"),
    "labels": (
        lambda: causal.calibrate_effect(
            scores.LAC(), np.eye(2), Interval(np.zeros(2), np.zeros(2))
        ),
        "y of an integer type",
    ),
    "pieces": (
        lambda: causal.calibrate_effect(
            scores.PCP(), np.zeros((2, 5, 1)), Interval(np.zeros(2), np.ones(2))
        ),
        "a score whose sets are intervals, got",
    ),
    "ends of pairs": (
        lambda: causal.effect_sets(
            *[Interval(*np.zeros((2, 2, 2)))] * 2, Y[:2], [0, 1]
        ),
        r"ends of control of shape \(n,\), got \(2, 2\)",
    ),
    "no sets": (lambda: causal.effect_sets(Y, Y, Y, TREATED), "control as an Interval"),
}


test_wrong_calls_are_refused_in_words = refuses(WRONG)


# Laws: simulated, each with what it is without weights.


def units(key, n):
    """Units whose outcomes are the noisier the rarer their arm: x, e, flags, y of arms.

    e = 0.2 + 0.6 x; treated ones vary by 2.2 - 2 x, others by 0.2 + 2 x, effect x.
    """
    key_x, key_t, key_y = jax.random.split(key, 3)
    x = jax.random.uniform(key_x, (n,))
    e = 0.2 + 0.6 * x
    treated = jax.random.uniform(key_t, (n,)) < e
    noise = jax.random.normal(key_y, (2, n))
    y = jnp.stack([(0.2 + 2 * x) * noise[0], x + (2.2 - 2 * x) * noise[1]])
    return x, e, treated, y


def shares(trial, num_trials):
    """Means of what a trial says, and four standard errors."""
    found = np.asarray(jaxcp.simulate(trial, KEY, num_trials), float)
    return found.mean(axis=0), 4 * found.std(axis=0) / num_trials**0.5


@pytest.mark.parametrize("arm", [0, 1])
def test_outcomes_of_an_arm_are_covered(arm):
    """60 rows; of all units, and of those of the other arm by their share of units."""

    def trial(key):
        x, e, treated, y = units(key, 61)
        own = treated if arm else ~treated
        misses = jnp.abs(y[arm] - x * arm)
        rows = (x * arm)[:60], y[arm][:60]
        split = jaxcp.calibrate(ABSOLUTE, *rows, mask=own[:60])
        q, least = [split.quantile(ALPHA)], [promised(split, ALPHA)]
        for target in ("all", ("treated", "untreated")[arm]):
            cp = causal.calibrate_outcome(
                ABSOLUTE, *rows, treated[:60], e[:60], arm=arm, target=target
            )
            q.append(cp.quantile(ALPHA, propensity=e[60]))
            least.append(promised(cp, ALPHA))
        excess = (misses[60] <= jnp.stack(q)) - jnp.array(least)
        return excess * jnp.array([1, 1, ~own[60]])

    excess, error = shares(trial, 4000)
    assert excess[0] + error[0] < 0  # without weights
    assert np.all(excess[1:] + error[1:] > 0) and np.all(excess < 0.06)


def test_what_is_not_measured_within_a_box_is_covered():
    """Treatment depends on a hidden flag, by odds of gamma; so does the outcome."""
    gamma = 2.0

    def trial(key):
        key_u, key_t, key_y = jax.random.split(key, 3)
        hidden = jax.random.bernoulli(key_u, shape=(61,))
        e = jnp.where(hidden, 1 / (1 + gamma), gamma / (1 + gamma))
        treated = jax.random.uniform(key_t, (61,)) < e
        y = (1 + 4 * hidden) * jax.random.normal(key_y, (61,))
        half = jnp.full(60, 0.5)  # e given nothing
        box = causal.propensity_box(half, gamma)
        q = []
        for given in (half, box):
            rows = 0 * half, y[:60], treated[:60], given
            cp = causal.calibrate_outcome(ABSOLUTE, *rows)
            new = jax.tree.map(lambda v: v[0], given)
            q.append(cp.quantile(ALPHA, propensity=new))
        return (jnp.abs(y[60]) <= jnp.stack(q)) - promised(cp, ALPHA)

    (known, box), error = shares(trial, 4000)
    assert known + error[0] < 0 < box + error[1]


def test_effects_are_covered():
    """60 rows for outcomes, 25 for effects, alpha = gamma = 0.1: 0.8 is promised.

    Intervals C of treated and untreated units hold their effects at 1 - gamma, and C of
    new units is in the sets at 1 - alpha.
    """

    def trial(key):
        x, e, treated, y = units(key, 86)
        seen = jnp.where(treated, y[1], y[0])
        first = slice(60)
        sets = []
        for arm, target in ((0, "treated"), (1, "untreated")):
            pred = jnp.where(arm, x, 0)
            rows = pred[first], seen[first], treated[first], e[first]
            options = {"arm": arm, "target": target}
            cp = causal.calibrate_outcome(ABSOLUTE, *rows, **options)
            sets.append(cp(pred[60:], 0.1, propensity=e[60:]))
        c = causal.effect_sets(*sets, seen[60:], treated[60:])
        ends, effect = (x[60:] - 1, x[60:] + 1), (y[1] - y[0])[60:]
        old, new = slice(25), slice(25, None)
        cp = causal.calibrate_effect(scores.CQR(), cut(ends, old), cut(c, old))
        nested = cp(cut(ends, new), 0.1)
        inside = (nested.lower <= c.lower[new]) & (c.upper[new] <= nested.upper)
        inexact = (x[85] - 1 <= effect[25]) & (effect[25] <= x[85] + 1)
        held = c.contains(effect)[25], inside[0], nested.contains(effect[new])[0]
        return jnp.stack([*held, inexact]) - jnp.array([0, promised(cp, 0.1), 0, 0])

    (seen, inside, nested, inexact), error = shares(trial, 4000)
    assert seen + error[0] > 0.9 and inside + error[1] > 0 and nested > 0.9
    assert inexact < 0.6  # ends that nobody calibrated
