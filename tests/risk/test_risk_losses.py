"""Sets of several labels, their score, losses of sets, and losses on streams."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import reference
from jaxcp import metrics, online, risk, scores
from jaxcp.sets import Box, Interval, LabelMask, LabelSet, LevelSet
from jaxcp.typing import HasLabels, HasMarks, HasSteps

MULTI = scores.MultiLabel()
RNG = np.random.default_rng(0)
# All pairs of masks of three labels: no true label, the empty set and thirds too.
MASKS = np.array(list(itertools.product([False, True], repeat=6)))
KEPT, TRUE = MASKS[:, :3], MASKS[:, 3:]


def of_rows(loss, sets, y):
    return np.asarray(jax.jit(jax.vmap(loss))(sets, jnp.asarray(y)))


def share(part, whole):
    return sum(part) / sum(whole) if any(whole) else 0.0


BY_HAND = {
    "false_negative_rate": lambda c, y: share(y & ~c, y),
    "false_discovery_rate": lambda c, y: share(c & ~y, c),
    "false_positive_count": lambda c, y: sum(~c & ~y),
    # 1 - 2 |A and B| / (|A| + |B|) and 1 - |A and B| / |A or B|, in one division.
    "dice_loss": lambda c, y: sum(c ^ y) / max(sum(c) + sum(y), 1),
    "iou_loss": lambda c, y: share(c ^ y, c | y),
    "miscoverage": lambda c, y: any(y & ~c),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_of_masks_are_the_definitions(name):
    loss, rows = getattr(risk, name), zip(KEPT, TRUE, strict=True)
    expected = [BY_HAND[name](c, y) for c, y in rows]
    found = of_rows(loss, LabelMask(jnp.asarray(KEPT)), TRUE)
    exact = np.asarray(expected, found.dtype)  # thirds are the nearest floats
    assert_array_equal(found, exact)
    assert found.dtype == (bool if name == "miscoverage" else np.float32)
    integers = of_rows(loss, LabelMask(jnp.asarray(KEPT)), TRUE.astype(int))
    assert_array_equal(integers, exact)
    pixels = LabelMask(jnp.asarray(KEPT)[:, None], ndim=2)
    assert_array_equal(of_rows(loss, pixels, TRUE[:, None]), exact)
    one = loss(LabelMask(KEPT[11]), TRUE[11])
    assert one.shape == () and one == exact[11]
    with jax.enable_x64(True):
        found = of_rows(loss, LabelMask(jnp.asarray(KEPT)), TRUE)
        assert_array_equal(found, np.asarray(expected, found.dtype))


@pytest.mark.parametrize("name", ["dice_loss", "iou_loss"])
def test_overlaps_are_those_of_the_papers(name):
    both, kept, true = (v.sum(1) for v in (KEPT & TRUE, KEPT, TRUE))
    parts = {
        "dice_loss": (2 * both, kept + true),
        "iou_loss": (both, kept + true - both),
    }
    overlap, whole = parts[name]
    expected = np.where(whole > 0, 1 - overlap / np.maximum(whole, 1), 0)
    found = of_rows(getattr(risk, name), LabelMask(jnp.asarray(KEPT)), TRUE)
    assert_allclose(found, expected, atol=1e-7)
    # of several classes a pixel all together, or each by itself
    one = LabelMask(jnp.asarray(KEPT).reshape(2, 32, 3), ndim=3)
    together = getattr(risk, name)(one, TRUE.reshape(2, 32, 3))
    assert_allclose(together, 1 - overlap.sum() / whole.sum(), rtol=1e-6)
    classes = jax.vmap(getattr(risk, name))(
        LabelMask(one.mask, 2), TRUE.reshape(2, 32, 3)
    )
    halves = 1 - overlap.reshape(2, 32).sum(1) / whole.reshape(2, 32).sum(1)
    assert_allclose(classes, halves, rtol=1e-6)


@pytest.mark.parametrize("name", ["dice_loss", "iou_loss"])
def test_overlaps_are_not_monotone(name):
    p, loss = jnp.asarray(RNG.random((20, 4, 4))), getattr(risk, name)
    with pytest.raises(
        ValueError, match=f"{name}, that does not rise .*learn_then_test"
    ):
        risk.calibrate_risk(loss, MULTI, p, p > 0.7)
    cp = risk.calibrate_risk(loss, MULTI, p, p > 0.7, monotone=False)
    assert cp.risk(jnp.inf) > 0.5 and cp.quantile(0.5) == jnp.inf  # all that is valid
    grid = jnp.linspace(0.95, 0.05, 19)
    sets = LabelMask(p[:, None] >= grid[None, :, None, None], ndim=2)
    each = jax.vmap(jax.vmap(loss, (0, None)))(sets, p > 0.7)  # (rows, settings)
    valid = risk.learn_then_test(each, alpha=0.5, delta=0.2)
    assert 0 < valid.sum() < len(grid) and valid[grid == 0.7].all()


@pytest.mark.parametrize(
    "name", ["false_negative_rate", "false_discovery_rate", "dice_loss", "iou_loss"]
)
def test_rates_of_many_labels_are_the_nearest_floats(name):
    kept, true = RNG.random((2, 20, 1001)) < 0.3
    expected = [BY_HAND[name](*row) for row in zip(kept, true, strict=True)]
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found = of_rows(getattr(risk, name), LabelMask(jnp.asarray(kept)), true)
            assert_array_equal(found, np.asarray(expected, found.dtype))


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_of_single_labels_are_those_of_masks(name):
    """Also of the labels that are out of range, which every set misses."""
    loss, y = getattr(risk, name), jnp.array([0, 2, 1, -1, 3])
    kept = jnp.asarray(RNG.random((5, 3)) < 0.5)
    found = of_rows(loss, LabelSet(kept), y)
    inside = of_rows(loss, LabelMask(kept[:3]), np.eye(3, dtype=bool)[[0, 2, 1]])
    assert_array_equal(found[:3], inside)
    if name in ("false_negative_rate", "miscoverage"):
        assert_array_equal(found[3:], 1)
    if name != "miscoverage":  # a mask may have one true label, by its number
        assert_array_equal(of_rows(loss, LabelMask(kept), y), found)


def test_losses_of_other_sets_and_other_masks_are_refused():
    one = LabelMask(jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"a set of labels .*, got Interval; risk.mis"):
        risk.false_negative_rate(Interval(0.0, 1.0), 0.5)
    message = r"y as a mask of shape \(3,\), got \(4,\)"
    for loss in (risk.false_negative_rate, risk.false_discovery_rate):
        with pytest.raises(ValueError, match=message):
            loss(one, jnp.ones(4, bool))
    labels, y = jnp.ones((3, 3), bool), np.eye(3)
    interval = Interval(jnp.zeros(3), jnp.ones(3))
    several = (
        (risk.false_negative_rate, LabelMask(labels)),
        (risk.false_discovery_rate, LabelSet(labels)),
        (risk.best_match(), LabelMask(labels)),
        (risk.shortfall(1.0), interval),
    )
    for loss, sets in several:
        with pytest.raises(ValueError, match=r"one set, got several: jax.vmap\(loss"):
            loss(sets, y)
    with pytest.raises(ValueError, match=r"sets with ends, .*, got LabelMask"):
        risk.shortfall(1.0)(one, 0.5)
    assert risk.miscoverage(LevelSet(scores.Absolute(), 0.0, 1.0), 2.0)


def test_best_match_is_what_the_best_member_lacks():
    table = RNG.random((4, 4)).astype(np.float32)
    kept, y = RNG.random((30, 4)) < 0.4, RNG.integers(0, 4, 30)
    kept[0] = False
    best = [table[b][a].max(initial=0) for a, b in zip(kept, y, strict=True)]
    expected = 1 - np.array(best, np.float32)
    sets = LabelSet(jnp.asarray(kept))
    assert_array_equal(of_rows(risk.best_match(table), sets, y), expected)
    assert expected[0] == 1
    by_row = lambda y: jnp.asarray(table)[y]  # noqa: E731
    assert_array_equal(of_rows(risk.best_match(by_row), sets, y), expected)
    assert_array_equal(of_rows(risk.best_match(), sets, table[y]), expected)
    masks = LabelMask(sets.mask)
    assert_array_equal(of_rows(risk.best_match(), masks, table[y]), expected)
    outside = of_rows(risk.best_match(table), sets[:2], np.array([-1, 4]))
    assert_array_equal(outside, 1)
    loss = risk.best_match(table)
    assert len(jax.tree.leaves(loss)) == 1  # another table compiles nothing
    for wrong, message in [
        (table[:2], r"similarity of shape \(2, 2\), got \(2, 4\)"),
        (2 + table, r"similarity in \[0, 1\], got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            risk.best_match(wrong)
    with pytest.raises(ValueError, match=r"of shape \(4,\), got \(3,\)"):
        risk.best_match()(sets[0], jnp.ones(3))


def test_shortfall_is_the_distance_to_the_set_up_to_a_bound():
    inf = np.inf
    lower = jnp.array([0.0, -inf, 2.0, 0.0, inf])
    upper = jnp.array([1.0, inf, 0.0, 1.0, -inf])  # the third and the last are empty
    y = jnp.array([1.5, 9.0, 1.0, -7.0, 0.0])
    found = of_rows(risk.shortfall(4.0), Interval(lower, upper), y)
    assert_array_equal(found, [0.5, 0.0, 1.0, 4.0, 4.0])
    box = Box(jnp.zeros(2), jnp.ones(2))
    assert risk.shortfall(4.0)(box, jnp.array([3.0, -1.0])) == 2
    for bound in (0.0, inf, np.nan):
        with pytest.raises(ValueError, match="bound > 0, finite"):
            risk.shortfall(bound)


def test_monotone_losses_fall_as_sets_grow():
    p, y = RNG.random((20, 5)).round(1), RNG.random((20, 5)) < 0.4
    monotone = risk.false_negative_rate, risk.false_positive_count, risk.miscoverage
    for loss in (*monotone, risk.best_match()):
        levels = np.append(np.sort(p.ravel()), [-np.inf, np.inf])
        one = lambda q, p, y, loss=loss: loss(MULTI.invert(p, q), y)  # noqa: E731
        each = jax.jit(jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None)))
        columns = np.asarray(each(np.sort(levels), p, 1.0 * y)).astype(float)
        assert np.all(np.diff(columns, axis=0) <= 0)
        assert loss not in monotone or np.all(columns[-1] == 0)


@pytest.mark.parametrize("name", ["MultiLabel", "LAC"])
def test_sets_change_at_the_steps_alone(name):
    score, p = getattr(scores, name)(), jnp.array([0.5, 0.125, 0.375])
    assert issubclass(type(score), HasSteps)
    steps = np.sort(np.asarray(score.steps(p)))
    at = lambda q: np.asarray(score.invert(p, q).mask)  # noqa: E731
    for j, q in enumerate(steps):
        assert at(q).sum() == j + 1
        assert at(np.nextafter(q, -np.inf)).sum() == j


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_true_labels_are_covered_together(dtype):
    """The threshold is the conformal quantile of the worst true label of each row."""
    with jax.enable_x64(dtype == "float64"):
        p = RNG.random((60, 2, 3)).astype(dtype)
        y = RNG.random(p.shape) < p / 3
        worst = [max(1 - a[b], default=-np.inf) for a, b in zip(p, y, strict=True)]
        assert -np.inf in worst
        cp = jaxcp.calibrate(MULTI, p, y)
        assert_array_equal(cp.scores, np.array(worst, dtype))
        for alpha in (0.1, 0.5):
            assert cp.quantile(alpha) == jaxcp.conformal_quantile(cp.scores, alpha)
        sets = cp(p, 0.1)
        joint = [bool(np.all(c[b])) for c, b in zip(sets.to_numpy(), y, strict=True)]
        assert_array_equal(sets.contains(y), joint)
        assert_allclose(metrics.coverage(sets, y), np.mean(joint), rtol=1e-6)
        assert_array_equal(metrics.coverage(sets, y * 1), metrics.coverage(sets, y))
        assert cp.quantile(0.01) == np.inf and np.all(cp(p, 0.01).mask)


def test_joint_coverage_over_calibrations():
    def covers(key):
        p = jax.random.uniform(key, (20, 4))
        y = jax.random.uniform(jax.random.fold_in(key, 1), (20, 4)) < 0.5
        cp = jaxcp.calibrate(MULTI, p[:19], y[:19].at[:, 0].set(True))
        return cp(p[19:], 0.2).contains(y[19:].at[:, 0].set(True))[0]

    found = jax.jit(jax.vmap(covers))(jax.random.split(jax.random.key(0), 20_000))
    assert abs(found.mean() - 0.8) < 4 * (0.16 / 20_000) ** 0.5  # no ties: exactly 4/5


def test_unknown_probabilities_leave_nothing_out():
    p = jnp.array([jnp.nan, 0.25, 0.5])
    found = jax.jit(lambda p: MULTI.invert(p, 0.5).mask)(p)
    assert_array_equal(found, [True, False, True])
    y = jnp.array([True, False, True])
    assert np.isnan(jax.jit(MULTI)(p, y))  # it counts as +inf
    slope = jax.grad(MULTI)
    assert_array_equal(slope(p.at[0].set(0.0), y), [-1, 0, 0])
    assert_array_equal(slope(p.at[0].set(0.0), y & False), 0)


def test_scores_and_sets_of_masks_belong_together():
    p = RNG.random((40, 3)).astype(np.float32)
    scores.check(MULTI, p, RNG.random((40, 3)) < p)


def test_masks_are_data():
    kept = np.array([[True, False], [False, False], [True, True]])
    masks = LabelMask(jnp.asarray(kept))
    assert masks.labels() == [[0], [], [0, 1]] and masks[2].labels(["a", "b"]) == [
        "a",
        "b",
    ]
    named = masks.named(("cat", "dog"))
    assert named.labels()[0] == ["cat"] and named.named(None).classes is None
    frame = named.to_pandas(index=[3, 4, 5])
    assert [*frame.columns] == ["cat", "dog"] and [*frame.index] == [3, 4, 5]
    assert_array_equal(frame.to_numpy(), kept)
    assert [*masks.to_pandas(columns=["a", "b"]).columns] == ["a", "b"]
    assert_array_equal(masks.contains(jnp.array([False, True])), [False, False, True])
    assert_array_equal(masks.contains(kept), True)
    assert metrics.mean_size(masks) == 1 and metrics.empty_rate(named) * 3 == 1
    assert metrics.coverage(named, kept) == 1
    assert issubclass(LabelMask, HasMarks) and not issubclass(LabelMask, HasLabels)
    one = LabelMask(jnp.array(True), ndim=0)  # of one label without an axis
    assert one.size() == 1 and one.contains(True) and not one.is_empty()


def test_what_masks_refuse():
    pixels = LabelMask(jnp.ones((4, 2, 3), bool), ndim=2)
    masks = LabelMask(jnp.ones((4, 3), bool))
    for wrong, message in [
        (pixels.labels, r"labels\(\) of masks of one axis of labels, got 2; the field"),
        (pixels.to_pandas, "a frame of masks of one axis of labels, got 2"),
        (
            lambda: pixels.named(["a", "b"]),
            "names for masks of one axis of labels, got 2",
        ),
        (lambda: masks.named(["a", "b"]), "classes with 3 names, one a column"),
        (lambda: masks.contains(jnp.arange(4)), r"y as masks of shape \(3,\), got"),
        (lambda: metrics.coverage(masks, jnp.arange(4)), r"y of shape \(4, 3\)"),
        (lambda: metrics.coverage(pixels, jnp.ones((4, 3))), r"y of shape \(4, 2, 3\)"),
        (lambda: metrics.class_coverage(masks, jnp.arange(4)), "kind LabelSet, got La"),
        (
            lambda: metrics.coverage(LabelMask(pixels.mask), masks.mask),
            "a mask of 2 axes, bool",
        ),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            wrong()
        assert str(error.value).startswith("expected ")


# Losses on streams.


def tracking(step, loss=risk.false_negative_rate, **options):
    return online.PID(MULTI, step, loss=loss, **options)


def follow(method, start, preds, y, alpha):
    """Returns the losses along a stream from a threshold, and the sets."""
    state = method.init(jnp.asarray([start]), alpha)
    _, sets = online.run(method, state, preds, y, alpha)
    return of_rows(method.loss, sets, y), sets


@pytest.mark.parametrize("case", ["base", "drift"])
def test_losses_of_streams_are_the_reference(case):
    with jax.enable_x64(True):
        arrays = reference("risk/stream").items()
        given = {k.split("__")[1]: v for k, v in arrays if k.startswith(case)}
        alpha, step = float(given["alpha"]), float(given["gamma"])
        score = scores.Custom(
            lambda e, y: jnp.max(e, where=y, initial=-jnp.inf),
            lambda e, q: LabelMask(e <= q),
        )
        method = online.PID(score, step, loss=risk.false_negative_rate)
        losses, sets = follow(method, given["q0"], given["e"], given["y"], alpha)
        assert_allclose(losses, given["loss"], rtol=1e-9)
        q = given["q0"] + step * np.cumsum(np.append(0, losses - alpha))[:-1]
        assert_allclose(q, given["q"], rtol=1e-9, atol=1e-12)
        expected = LabelMask(jnp.asarray(given["e"] <= given["q"][:, None]))
        assert_array_equal(sets.mask, expected.mask)


@pytest.mark.parametrize("kind", ["random", "all true", "none true", "in turns"])
@pytest.mark.parametrize("bound", [1.0, 4.0])
def test_the_mean_loss_of_every_stream_is_near_alpha(kind, bound):
    """Also of a loss that counts, whose level may exceed 1."""
    t, step, alpha = 400, 0.1, 0.3 * bound
    p = jnp.asarray(RNG.random((t, 4)).astype(np.float32))
    y = np.asarray(RNG.random((t, 4)) < 0.5)
    y = {"all true": y | True, "none true": y & False}.get(kind, y)
    y[::2] |= kind == "in turns"
    y[:, :2] = True  # so that the empty set loses at least alpha
    loss = risk.false_negative_rate if bound == 1 else _num_missed
    losses, _ = follow(tracking(step, loss, bound=bound), 0.5, p, y, alpha)
    assert abs(losses.mean() - alpha) <= (1 + step * bound) / (step * t) + 1e-5


def _num_missed(set, y):
    return risk.false_negative_rate(set, y) * jnp.sum(y)


def test_an_error_is_a_loss_and_unknown_losses_are_the_bound():
    p = jnp.asarray(RNG.random((50, 3)).astype(np.float32))
    y = RNG.random((50, 3)) < 0.4
    past = jnp.linspace(0, 1, 9)
    plain, error = online.PID(MULTI, 0.2), tracking(0.2, risk.miscoverage)
    runs = [online.run(m, m.init(past, 0.2), p, y, 0.2) for m in (plain, error)]
    assert runs[0][0].quantile == runs[1][0].quantile
    assert_array_equal(runs[0][1].mask, runs[1][1].mask)
    unknown = tracking(0.5, lambda set, y: jnp.nan, bound=2.0)
    state, _ = unknown.step(unknown.init(past, 1.5), p[0], y[0], 1.5)
    assert_allclose(state.quantile - unknown.init(past, 1.5).quantile, 0.25)


def test_losses_of_streams_are_transformed_and_saved(tmp_path):
    p = jnp.asarray(RNG.random((30, 3)).astype(np.float32))
    y = jnp.asarray(RNG.random((30, 3)) < 0.4)

    def last(step, table):
        method = tracking(step, risk.best_match(table))
        state = method.init(jnp.array([0.5]), 0.2)
        return online.run(method, state, p, jnp.argmax(y, axis=1) * 0, 0.2)[0].quantile

    # targets are labels, and the score wants a mask: the loss of one label is refused
    with pytest.raises(ValueError, match="y as a mask of shape"):
        last(0.1, jnp.eye(3))
    method = tracking(0.1, risk.best_match())
    state = method.init(jnp.array([0.5]), 0.2)
    after, _ = online.run(method, state, p, y, 0.2)
    jaxcp.save(tmp_path / "m.npz", (method, after))
    again, kept = jaxcp.load(tmp_path / "m.npz")
    assert isinstance(again.loss, type(method.loss)) and again.bound == 1
    assert kept.quantile == after.quantile

    def end(step):
        method = tracking(step)
        state = method.init(jnp.array([0.5]), 0.2)
        return online.run(method, state, p, y, 0.2)[0].quantile

    steps = jnp.array([0.1, 0.3])
    assert_allclose(jax.vmap(end)(steps), [end(0.1), end(0.3)], rtol=1e-6)
    assert np.isfinite(jax.grad(end)(0.1))


SIMILAR = np.exp(-np.abs(np.arange(5.0)[:, None] - np.arange(5.0))).astype(np.float32)
PROBS = RNG.random((60, 5)).astype(np.float32)
FLAGS, WORDS = RNG.random((60, 5)) < PROBS / 2, RNG.integers(0, 5, 60)
SHARES, NUMBERS = PROBS / PROBS.sum(axis=1, keepdims=True), 3 * PROBS[:, 0] - 1
RISKS = {
    "missed": (risk.false_negative_rate, MULTI, PROBS, FLAGS, 1.0),
    "a label": (risk.false_negative_rate, scores.LAC(), SHARES, WORDS, 1.0),
    "pixels": (risk.false_negative_rate, MULTI, PROBS.reshape(60, 1, 5), FLAGS, 1.0),
    "count": (risk.false_positive_count, MULTI, 1 - PROBS, FLAGS, 5.0),
    "answers": (risk.best_match(SIMILAR), scores.LAC(), SHARES, WORDS, 1.0),
    "given": (risk.best_match(), scores.LAC(), SHARES, SIMILAR[WORDS], 1.0),
    "distance": (risk.shortfall(2.0), scores.Absolute(), PROBS[:, 1], NUMBERS, 2.0),
}


@pytest.mark.parametrize("name", RISKS)
def test_thresholds_for_each_loss_are_the_first_floats_within_the_budget(name):
    loss, score, preds, y, bound = RISKS[name]
    y = y.reshape(preds.shape) if name == "pixels" else y
    cp = risk.calibrate_risk(loss, score, preds, y, bound=bound)
    q = np.asarray(cp.quantile(0.15 * bound))
    below = np.nextafter(q, np.float32(-np.inf))
    sums = [60.0 * cp.risk(v) + bound for v in (q, below)]
    budget = 0.15 * bound * 61  # sum of L_i(q) + B <= alpha (n + 1)
    assert sums[0] <= budget * (1 + 1e-5) and sums[1] > budget * (1 - 1e-5)
    losses = of_rows(loss, cp(preds, 0.15 * bound), y)
    assert_allclose(losses.mean(), cp.risk(q), rtol=1e-5)
