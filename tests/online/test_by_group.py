"""One state a group: each group is the method on its own rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from streams import METHODS as STREAMS
from streams import FadingSteps

import jaxcp
from jaxcp import metrics, online, scores
from jaxcp.online import ByGroup
from rows import refuses

ABSOLUTE = scores.Absolute()
W, T, G = 20, 90, 3
RNG = np.random.default_rng(0)
PAST = RNG.exponential(size=G * W).astype("f")
OF_PAST = RNG.permutation(np.repeat(np.arange(G), W))
PREDS, NOISE = RNG.normal(size=(2, T)).astype("f")
GROUPS = RNG.permutation(np.repeat(np.arange(G), T // G))
Y = PREDS + NOISE * (1 + GROUPS)


METHODS = STREAMS | {"own": FadingSteps(ABSOLUTE)}
del METHODS["frozen aci"]  # whose window is longer than the past of a group
each_method = pytest.mark.parametrize("name", METHODS)
ACI = online.ACI(ABSOLUTE, 0.05, window=15)


def start(method, alpha=0.1, **options):
    return method.init(PAST, alpha, groups=OF_PAST, **options)


def leaves(*trees):
    return zip(*map(jax.tree.leaves, trees), strict=True)


@each_method
def test_each_group_is_the_method_on_its_rows(name):
    """To the last bit, but for a tangent: sets, and the state at the end."""
    rtol = 1e-5 if name == "pid" else 0
    own, method = METHODS[name], ByGroup(METHODS[name], G)
    state, sets = online.run(method, start(method), (GROUPS, PREDS), Y, 0.1)
    for g in range(G):
        rows, first = g == GROUPS, own.init(PAST[g == OF_PAST], 0.1)
        alone, expected = online.run(own, first, PREDS[rows], Y[rows], 0.1)
        assert_allclose(sets.upper[rows], expected.upper, rtol, rtol)
        assert_allclose(sets.lower[rows], expected.lower, rtol, rtol)
        for found, value in leaves(state, alone):
            assert_allclose(found[g], value, rtol, rtol)


@each_method
def test_steps_are_the_run(name):
    method = ByGroup(METHODS[name], G)
    state, rows = start(method), (GROUPS, PREDS)
    _, sets = online.run(method, state, rows, Y, 0.1)
    for t in range(4):
        pred = int(GROUPS[t]), PREDS[t]
        now, q = method.predict(state, pred, 0.1), method.quantile(state, 0.1)
        assert_allclose(now.upper, sets.upper[t], rtol=1e-6)
        own = q[GROUPS[t]]
        late = method.update(state, pred, Y[t], 0.1, threshold=own)
        before, state = state, method.update(state, pred, Y[t], 0.1)
        for a, b, old in leaves(late, state, before):
            assert_array_equal(a, b)
            others = np.arange(G) != GROUPS[t]
            assert_array_equal(a[others], old[others])
    with jax.no_tracing():
        method.update(state, (0, PREDS[5]), Y[5], 0.1)
        method.predict(state, (1, PREDS[5]), 0.1)


def test_groups_of_unlike_sizes():
    """What a smaller group lacks is absent; a group without a past starts without."""
    few = np.repeat([0, 2], [15, 6])
    past, order = PAST[:21], np.random.default_rng(1).permutation(21)
    for name in ("window", "aci", "nexcp"):
        own, method = METHODS[name], ByGroup(METHODS[name], G)
        state = method.init(past[order], 0.1, groups=few[order])
        for g in range(G):
            mine = past[order][few[order] == g]
            padded = np.concatenate([np.zeros(15 - len(mine), "f"), mine])
            alone = own.init(padded, 0.1, mask=np.arange(15) >= 15 - len(mine))
            rows = g == GROUPS
            _, expected = online.run(own, alone, PREDS[rows], Y[rows], 0.1)
            _, sets = online.run(method, state, (GROUPS, PREDS), Y, 0.1)
            assert_array_equal(sets.upper[rows], expected.upper)
            assert np.isinf(expected.upper[0]) == (g == 1 or len(mine) < 9)


def test_masked_scores_of_the_past_are_absent():
    method, mask = ByGroup(ACI, G), np.arange(len(PAST)) % 4 > 0
    odd = np.where(mask, PAST, 99).astype("f")
    found = method.init(odd, 0.1, groups=np.where(mask, OF_PAST, 0), mask=mask)
    expected = method.init(PAST[mask], 0.1, groups=OF_PAST[mask])
    for a, b in leaves(found.window.ordered, expected.window.ordered):
        assert_array_equal(a, b)


def test_a_traced_unknown_group_has_all_and_teaches_nothing():
    for name in ("aci", "pid", "window"):
        method = ByGroup(METHODS[name], G)
        state, groups = (
            start(method),
            np.where(np.arange(T) % 2, GROUPS, [[-1], [7]][0]),
        )
        run = jax.jit(lambda g, m, s: online.run(m, s, (g, PREDS), Y, 0.1))
        for unknown in (-1, G, 7):
            groups = np.where(np.arange(T) % 2, GROUPS, unknown)
            found, sets = run(groups, method, state)
            odd = np.arange(T) % 2 == 1
            rows = GROUPS[odd], PREDS[odd]
            expected, known = online.run(method, state, rows, Y[odd], 0.1)
            assert np.isinf(sets.size()[~odd]).all()
            assert_allclose(sets.upper[odd], known.upper, rtol=1e-6)
            for a, b in leaves(found, expected):
                assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_names_are_their_numbers(tmp_path):
    names = np.array(["east", "north", "west"])
    by_name, by_code = ByGroup(ACI, group_names=names), ByGroup(ACI, G)
    state = by_name.init(PAST, 0.1, groups=names[OF_PAST])
    _, expected = online.run(by_code, start(by_code), (GROUPS, PREDS), Y, 0.1)
    jaxcp.save(tmp_path / "stream", (by_name, state))
    for method, first in ((by_name, state), jaxcp.load(tmp_path / "stream")):
        assert method.group_names == ("east", "north", "west")
        _, sets = online.run(method, first, (names[GROUPS], PREDS), Y, 0.1)
        assert_array_equal(sets.upper, expected.upper)
    one = by_name.predict(state, (str(names[GROUPS[0]]), PREDS[0]), 0.1)
    assert_array_equal(one.upper, expected.upper[0])
    years = ByGroup(ACI, group_names=[2024, 2025, 2026])
    _, sets = jax.jit(lambda g: online.run(years, state, (g, PREDS), Y, 0.1))(
        GROUPS + 2024
    )
    assert_array_equal(sets.upper, expected.upper)


def test_traced_groups_of_the_past():
    """They need a length, of which the latest scores are kept."""
    method = ByGroup(ACI, G)
    begin = jax.jit(lambda g: method.init(PAST, 0.1, groups=g, length=W))
    found = online.run(method, begin(OF_PAST), (GROUPS, PREDS), Y, 0.1)[1]
    expected = online.run(method, start(method), (GROUPS, PREDS), Y, 0.1)[1]
    assert_array_equal(found.upper, expected.upper)
    with pytest.raises(ValueError, match="length where groups are traced as an int"):
        jax.jit(lambda g: method.init(PAST, 0.1, groups=g))(OF_PAST)
    short = ByGroup(METHODS["window"], G)
    state = start(short, length=7)
    for g in range(G):
        latest = np.sort(PAST[g == OF_PAST][-7:])
        assert_array_equal(state.used.ordered[g], latest)


def test_labels_components_and_a_forecast():
    p = RNG.dirichlet(np.ones(3), T).astype("f")
    labels = ByGroup(online.ACI(scores.LAC(), 0.05), G)
    _, sets = online.run(labels, start(labels), (GROUPS, p), GROUPS, 0.3)
    assert sets.mask.shape == (T, 3)
    signed = ByGroup(online.ACI(scores.Signed(), 0.05), G)
    past = np.stack([PAST, PAST], axis=1)
    state = signed.init(past, 0.2, groups=OF_PAST)
    _, sets = online.run(signed, state, (GROUPS, PREDS), Y, 0.2)
    assert signed.quantile(state, 0.2).shape == (G, 2)
    assert abs(metrics.coverage(sets, Y) - 0.8) < 0.15
    scaled = ByGroup(online.ACI(scores.Normalized(), 0.05), G)
    pred = 1, (0.0, 2.0)
    plain = ByGroup(online.ACI(ABSOLUTE, 0.05), G)
    assert_allclose(
        scaled.predict(start(scaled), pred, 0.2).upper,
        2 * plain.predict(start(plain), (1, 0.0), 0.2).upper,
    )


def test_a_queue_of_groups():
    method = ByGroup(ACI, group_names=["a", "b", "c"])
    state = method.init(PAST, 0.1, groups=np.array(["a", "b", "c"])[OF_PAST])
    queue = online.Queue(method, state, 0.1)
    for name in "abc":
        queue, _ = queue.issue(name, (name, 0.0))
    queue = queue.settle("b", 1e9).settle("a", 0.0)
    assert_allclose(queue.state.alpha, [0.105, 0.055, 0.1], rtol=1e-5)


def test_coverage_in_each_group_and_its_bound():
    """Groups of unlike noise and frequency, in runs of shifts: ACI's bound in each."""
    t, step, alpha = 6000, 0.02, 0.1
    rng = np.random.default_rng(3)
    groups = rng.choice(3, t, p=[0.7, 0.2, 0.1])
    y = (rng.normal(size=t) * 10.0**groups * (1 + np.arange(t) // 1500)).astype("f")
    method = ByGroup(online.ACI(ABSOLUTE, step), 3)
    rows = groups, np.zeros(t, "f")
    _, sets = online.run(method, start(method), rows, y, alpha)
    missed = metrics.covered(sets, y) == 0
    for g in range(3):
        own = missed[groups == g]
        bound = (1 - alpha + step) / (step * np.arange(1, len(own) + 1))
        rates = np.cumsum(own) / np.arange(1, len(own) + 1)
        assert (abs(rates - alpha) <= bound + 1e-4).all()


def test_a_step_works_on_one_group():
    """What a step computes does not grow with the groups, but for the state itself."""
    sizes = []
    for count in (3, 300):
        method = ByGroup(ACI, count)
        state = method.init(PAST, 0.1, groups=OF_PAST, length=W)
        rank = method.rank(state, 0.1)

        def step(state, group, method=method, rank=rank):
            pred = group, jnp.float32(0)
            q = method._threshold_for(state, pred, rank)
            return method.learn(state, pred, jnp.float32(1), rank, q)

        equations = jax.make_jaxpr(step)(state, 1).eqns
        own = [e for e in equations if "dynamic_update" not in str(e)]
        sizes.append(max(v.aval.size for e in own for v in e.outvars))
    assert sizes == [15, 15]  # the window


WRONG = {
    "no method": (lambda: ByGroup(ABSOLUTE, 2), "method of jaxcp.online, got Absolute"),
    "no number": (lambda: ByGroup(ACI), "num_groups as an int >= 1, got None"),
    "a group of None": (
        lambda: ByGroup(ACI, G).predict(STATE, (None, 0.0), 0.1),
        "group as a value, got None",
    ),
    "two numbers": (
        lambda: ByGroup(ACI, 3, group_names=["a", "b"]),
        "num_groups as many as group_names, 2, got 3",
    ),
    "no groups": (lambda: ByGroup(ACI, G).init(PAST, 0.1), "groups as a value"),
    "unknown groups": (lambda: start(ByGroup(ACI, 2)), r"groups in 0, ..., 1, got 2"),
    "an unknown name": (
        lambda: ByGroup(ACI, group_names=["a"]).predict(STATE, ("b", 0.0), 0.1),
        "group_names 'a', got 'b'; name all groups at ByGroup",
    ),
    "an unknown group": (
        lambda: ByGroup(ACI, G).predict(STATE, (3, 0.0), 0.1),
        "group in 0, ..., 2, got 3",
    ),
    "no pair": (
        lambda: ByGroup(ACI, G).predict(STATE, 0.0, 0.1),
        r"preds as a tuple \(group, prediction\)",
    ),
    "a batch": (
        lambda: ByGroup(ACI, G).update(STATE, (GROUPS, PREDS), Y, 0.1),
        r"group of shape \(n,\), got",
    ),
    "another number": (
        lambda: ByGroup(ACI, 2).predict(STATE, (0, 0.0), 0.1),
        r"groups of the state of shape \(2,\), got \(3,\)",
    ),
}
STATE = start(ByGroup(ACI, G))
test_what_it_is_told = refuses(WRONG)
