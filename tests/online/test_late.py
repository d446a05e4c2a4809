"""Targets that come late: each is charged to the set that was issued for it."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from streams import ABSOLUTE, METHODS, PAST, PREDS, STREAMS, Y

import jaxcp
from helpers import reference, same
from jaxcp import online, scores
from jaxcp.online import Queue
from rows import refuses

LEARNED = {  # what a target moves, in units of the step, where errors are known
    "aci": 0.05,
    "frozen aci": 0.05,
    "components": 0.05,
    "pid": 0.1,
    "tracking": 0.3,
    "falling": 1.0,
    "sf-ogd": None,
}
NOT_LEARNED = "window", "window, every 7", "nexcp", "dtaci", "similar"


def start(name):
    return STREAMS[name].start()


@pytest.mark.parametrize("name", [*LEARNED, *NOT_LEARNED])
def test_a_late_target_is_charged_to_its_own_set(name):
    """Where the method learns from errors: a set that held it, and one that missed."""
    method, state, step = STREAMS[name].method, start(name), LEARNED.get(name)
    like = np.zeros(np.shape(method.quantile(state, 0.1)), "f")
    held, missed = (
        method.update(state, 0.0, 1.0, 0.1, threshold=like + q) for q in (1.5, 0.5)
    )
    if name in NOT_LEARNED:  # windows know no errors, experts err as of now
        same(held, missed)
    elif step is None:
        assert held.quantile < state.quantile < missed.quantile
    elif isinstance(method, online.ACI):
        moved = 0.1 + step * np.array([0.1, -0.9])
        assert_allclose([held.alpha, missed.alpha], moved, rtol=1e-5)
    else:
        assert_allclose(missed.quantile - held.quantile, step, rtol=1e-4)
    if name == "pid":
        assert_allclose([held.excess, missed.excess], [-0.1, 0.9], rtol=1e-5)


@pytest.mark.parametrize("delay", [1, 5])
@pytest.mark.parametrize("name", ["tracking", "aci"])
def test_delays_of_the_reference(name, delay):
    """In a scan: the error of step i comes after the set of step i + delay."""
    case = reference("conditional/streams")
    expected, y = case[f"delay_{delay}_{name}"], case["residuals"]
    if name == "aci":
        method = online.ACI(ABSOLUTE, 0.02)
        state, y = method.init(abs(y[:60]), 0.1), y[60:]
    else:
        method = online.PID(ABSOLUTE, 0.15)
        state = method.init(np.ones(1, "f"), 0.1)

    def step(carry, row):
        (state, waiting), (t, y) = carry, row
        q = method.quantile(state, 0.1)
        waiting = jnp.append(waiting, jnp.stack([y, q])[None], axis=0)
        learn = partial(method.update, state, 0.0, waiting[0, 0], 0.1)
        later = learn(threshold=waiting[0, 1])
        state = jax.tree.map(partial(jnp.where, t >= delay), later, state)
        return (state, waiting[1:]), q

    begin = state, jnp.zeros((delay, 2))
    rows = jnp.arange(len(y)), jnp.asarray(y)
    (state, _), q = jax.jit(partial(jax.lax.scan, step))(begin, rows)
    assert_allclose(q, expected[: len(y)], rtol=1e-4, atol=1e-4)


def test_what_a_threshold_is_told():
    method, state = METHODS["aci"], start("aci")
    update = partial(method.update, state, 0.0, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"threshold of shape \(\), got \(2,\)"):
        update(threshold=jnp.ones(2))
    with pytest.raises(ValueError, match="expected threshold without NaN, got nan"):
        update(threshold=jnp.nan)
    with pytest.raises(ValueError, match="expected a state of ACI"):
        method.quantile(PAST, 0.1)
    assert update(threshold=jnp.inf).alpha > state.alpha > update(threshold=0).alpha


@pytest.mark.parametrize("name", ["aci", "pid", "window"])
def test_a_queue_in_order_is_the_loop(name):
    method, state = METHODS[name], start(name)
    queue, expected = Queue(method, state, 0.1), state
    for t in range(9):
        queue, sets = queue.issue(t, PREDS[t])
        before = method.predict(expected, PREDS[t], 0.1)
        assert_array_equal(sets.upper, before.upper)
        queue = queue.settle(t, Y[t])
        expected = method.update(expected, PREDS[t], Y[t], 0.1)
        same(queue.state, expected)
    assert not queue.waiting


def test_order_does_not_matter_where_the_method_has_none():
    """Of binary fractions, whose sums are exact: tracking, ACI of a fixed window."""
    for method in (online.PID(ABSOLUTE, 0.5), online.ACI(ABSOLUTE, 0.125, None, False)):
        queue = Queue(method, method.init(PAST, 0.25), 0.25)
        for t in range(20):
            queue, _ = queue.issue(t, PREDS[t])
        found = []
        for order in (range(20), np.random.default_rng(0).permutation(20)):
            settled = queue
            for t in order:
                settled = settled.settle(int(t), Y[t])
            found.append(settled.state)
        same(*found)
    window = online.SlidingWindow(ABSOLUTE)
    queue = Queue(window, window.init(PAST, 0.1), 0.1)
    for t in range(20):
        queue, _ = queue.issue(t, PREDS[t])
    ends = []
    for order in (range(20), range(19, -1, -1)):
        settled = queue
        for t in order:
            settled = settled.settle(t, Y[t])
        ends.append(settled.state.window.ordered)
    assert_array_equal(*ends)


@pytest.mark.parametrize("kind", ["runs", "just outside"])
def test_the_bound_of_a_queue_out_of_order(kind):
    """|mean error - alpha| <= (max(a, 1 - a) + (D + 1) step) / (step N), D waiting."""
    alpha, step, waiting = 0.1, 0.2, 6
    rng, method = np.random.default_rng(2), online.ACI(ABSOLUTE, step)
    queue = Queue(method, method.init(jnp.arange(30.0), alpha), alpha)
    errors, known = [], {}
    for t in range(300):
        queue, sets = queue.issue(t, 0.0)
        far = 1e9 if t // 40 % 2 else 0.0
        outside = np.clip(1.5 * float(sets.upper), 0, 100) + 1
        known[t] = far if kind == "runs" else round(outside)
        errors.append(not sets.contains(known[t]))
        if len(known) > waiting:
            late = int(rng.choice([*known]))
            queue = queue.settle(late, known.pop(late))
            settled = [e for s, e in enumerate(errors) if s not in known]
            bound = (1 - alpha + (waiting + 1) * step) / (step * len(settled))
            assert abs(np.mean(settled) - alpha) <= bound + 1e-5
    assert len(queue.waiting) == waiting
    assert 0 < np.mean(errors) < 0.3


def test_a_queue_is_saved_with_what_waits(tmp_path):
    rows = {1: 0.0, "b": np.float32(1.0), ("c", 2): jnp.array(0.5)}
    for method, state in (
        (METHODS["aci"], start("aci")),
        (METHODS["pid"], start("pid")),
    ):
        queue = Queue(method, state, 0.1, size=3)
        for name, pred in rows.items():
            queue, _ = queue.issue(name, pred)
        queue, _ = queue.issue("new", 2.0)
        jaxcp.save(tmp_path / "queue", queue)
        again = jaxcp.load(tmp_path / "queue")
        assert repr(again) == repr(queue)
        assert list(again.waiting) == ["b", ("c", 2), "new"]
        for name in ("new", "b"):
            queue, again = queue.settle(name, 3.0), again.settle(name, 3.0)
            same(queue.state, again.state)
        a, b = queue.issue(4, 1.0)[1], again.issue(4, 1.0)[1]
        assert_array_equal(a.upper, b.upper)


def test_a_queue_keeps_what_it_was_given():
    """A value: earlier queues stay, and arrays may be changed afterwards."""
    method, pred = online.ACI(scores.LAC(), 0.1), np.array([0.5, 0.5], "f")
    first = Queue(method, method.init(PAST, 0.1), 0.1)
    queue, _ = first.issue("a", pred)
    expected = queue.settle("a", 1).state
    pred[:] = 0.25, 0.75
    same(queue.settle("a", 1).state, expected)
    assert not first.waiting
    assert first.state is queue.state


def test_a_full_queue_drops_the_oldest_and_says_so():
    queue = Queue(METHODS["aci"], start("aci"), 0.1, size=2)
    for name in "abcd":
        queue, _ = queue.issue(name, 0.0)
    assert list(queue.waiting) == ["c", "d"]
    shorter, _ = dataclasses.replace(queue, size=1).issue("e", 0.0)
    assert list(shorter.waiting) == ["e"]
    assert (queue.num_dropped, queue.last_dropped) == (2, "b")
    assert repr(queue) == "Queue(ACI at alpha = 0.1, 2 waiting, 2 dropped, 'b' last)"
    with pytest.raises(ValueError, match=r"got 'a': .*dropped \(2 dropped, 'b' last"):
        queue.settle("a", 0.0)
    queue = queue.settle("c", 0.0)
    with pytest.raises(ValueError, match="that waits, got 'c': never issued, settled"):
        queue.settle("c", 0.0)
    with pytest.raises(ValueError, match="a new id, got 'd', which waits already"):
        queue.issue("d", 0.0)
    with pytest.raises(ValueError, match="expected y without NaN"):
        queue.settle("d", np.nan)
    assert list(queue.waiting) == ["d"]


QUEUE = Queue(METHODS["aci"], start("aci"), 0.1)
WRONG = {
    "no method": (lambda: Queue(ABSOLUTE, start("aci"), 0.1), "method of jaxcp.online"),
    "another's state": (lambda: Queue(METHODS["pid"], start("aci"), 0.1), "a state of"),
    "alpha": (lambda: Queue(METHODS["aci"], start("aci"), 7), r"alpha in \(0, 1\)"),
    "a list": (
        lambda: QUEUE.issue([1], 0.0),
        r"hashable and not missing, got \[1\]",
    ),
    "NaN": (lambda: QUEUE.issue(np.nan, 0.0), "not missing, got nan"),
    "a list that waits": (lambda: QUEUE.settle([1], 0.0), "an id that waits, got"),
    "size": (lambda: Queue(METHODS["aci"], start("aci"), 0.1, size=0), "size as an"),
}
test_what_a_queue_is_told = refuses(WRONG)
