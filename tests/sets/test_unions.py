"""Unions of intervals, asked everything that sets are asked."""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from jaxcp import metrics, plotting, training
from jaxcp.cross._votes import VoteSet
from jaxcp.scores import Custom
from jaxcp.sets import Interval, Intervals, membership
from rows import refuses

matplotlib.use("Agg")
INF, NAN = np.inf, np.nan
KEY = jax.random.key(0)

# Two pieces and a place left over, nothing, a point, the line, half lines with a gap
# and a piece in it.
ROWS = [
    ([0.0, 5.0, INF], [1.0, 7.0, -INF]),
    ([INF, INF, INF], [-INF, -INF, -INF]),
    ([2.0, INF, INF], [2.0, -INF, -INF]),
    ([-INF, INF, INF], [INF, -INF, -INF]),
    ([-INF, 2.0, 8.0], [0.0, 3.0, INF]),
]
SETS = Intervals(*(jnp.array(ends) for ends in zip(*ROWS, strict=True)))
Y = jnp.array([3.0, 3.0, 2.0, 3.0, 3.0])


ANSWERS = {
    "contains": (lambda s: s.contains(0.5), [1, 0, 0, 1, 0]),
    "an end": (lambda s: s.contains(2.0), [0, 0, 1, 1, 1]),
    "infinity": (lambda s: s.contains(INF), [0, 0, 0, 1, 1]),
    "unknown": (lambda s: s.contains(NAN), [0] * 5),
    "size": (lambda s: s.size(), [3, 0, 0, INF, INF]),
    "widths": (lambda s: s.widths(), [3, 0, 0, INF, INF]),
    "log size": (lambda s: s.log_size(), [np.log(3), -INF, -INF, INF, INF]),
    "soft size": (lambda s: s.soft_size(1e-6), [3, 0, 0, INF, INF]),
    "empty": (lambda s: s.is_empty(), [0, 1, 0, 0, 0]),
    "pieces": (lambda s: s.num_pieces(), [2, 0, 1, 1, 3]),
    "hull": (lambda s: s.hull().lower, [0, INF, 2, -INF, -INF]),
    "its end": (lambda s: s.hull().upper, [7, -INF, 2, INF, INF]),
    "clip": (lambda s: s.clip(0.5, 6.0).size(), [1.5, 0, 0, 5.5, 1]),
    "its pieces": (lambda s: s.clip(0.5, 6.0).num_pieces(), [2, 0, 1, 1, 1]),
    "from below": (lambda s: s.clip(2.5).hull().lower, [5, INF, INF, 2.5, 2.5]),
    "from above": (lambda s: s.clip(None, -1.0).num_pieces(), [0, 0, 0, 1, 1]),
    "to a point": (lambda s: s.clip(2.0, 2.0).num_pieces(), [0, 0, 1, 1, 1]),
    "first": (lambda s: s.pieces()[0][..., 0], [0, INF, 2, -INF, -INF]),
}


def ask_all(sets):
    return {name: ask(sets) for name, (ask, _) in ANSWERS.items()}


def test_answers_of_one_set_of_a_batch_and_of_several_axes():
    twice = jax.tree.map(lambda v: jnp.stack([v, v]), SETS)
    batch, each = jax.jit(ask_all)(SETS), jax.jit(jax.vmap(ask_all))(SETS)
    more = jax.jit(ask_all)(twice)
    for name, (_, answers) in ANSWERS.items():
        for found in (batch, each):
            assert_allclose(found[name], answers, atol=1e-5, err_msg=name)
        assert_allclose(more[name], [answers] * 2, atol=1e-5, err_msg=name)
    with jax.no_tracing():
        host = jax.tree.map(np.asarray, SETS)
        assert_allclose(host.widths(), ANSWERS["widths"][1])
    assert 0.5 in SETS[0] and 3.0 not in SETS[0]


def test_parts_within_bounds_come_first():
    part = SETS.clip(2.5, 9.0)
    assert_array_equal(part.lower[0], [5, INF, INF])
    assert_array_equal(part.upper[4], [3, 9, -INF])
    inside = jax.vmap(lambda y: SETS.contains(y))
    y = jnp.linspace(2.5, 9.0, 53)
    assert_array_equal(jax.vmap(lambda y: part.contains(y))(y), inside(y))
    unknown = Intervals(jnp.array([0.0, 3.0]), jnp.array([NAN, 4.0])).clip(1.0, 5.0)
    assert np.isnan(unknown.upper[0]) and unknown.upper[1] == 4
    assert Intervals(jnp.array([0]), jnp.array([3])).clip(1).size() == 2


def test_places_that_no_set_needs_are_cut():
    assert SETS.trimmed().lower.shape == (5, 3)
    assert SETS[:3].trimmed().lower.shape == (3, 2)
    assert_array_equal(SETS[:3].trimmed().to_numpy(), SETS[:3].to_numpy()[:, :2])
    assert SETS[1].trimmed().lower.shape == (1,)
    assert SETS[5:].trimmed().lower.shape == (0, 1)
    assert jax.jit(lambda s: s.trimmed())(SETS).lower.shape == (5, 3)
    with jax.no_tracing():
        assert SETS[:3].trimmed().lower.shape == (3, 2)


def test_no_places_are_nothing():
    nothing = Intervals(jnp.zeros((2, 0)), jnp.zeros((2, 0)))
    assert nothing.is_empty().all() and not nothing.contains(0.0).any()
    assert_array_equal(nothing.size(), [0, 0])
    assert nothing.hull().is_empty().all()
    assert nothing.clip(0.0, 1.0).lower.shape == nothing.trimmed().lower.shape == (2, 0)


def test_slopes_of_sizes_are_finite():
    def total(sets):
        sizes = jnp.stack([sets.size(), sets.soft_size(0.1)])
        return jnp.sum(jnp.where(jnp.isfinite(sizes), sizes, 0))

    slope = jax.jit(jax.grad(total))(SETS)
    assert all(np.all(np.isfinite(v)) for v in jax.tree.leaves(slope))
    assert_allclose(slope.upper[0], [2, 2, 0], atol=1e-3)


def test_frames_and_arrays():
    frame = SETS.to_pandas(index=list("abcde"))
    assert list(frame.columns)[:3] == ["lower_0", "upper_0", "lower_1"]
    with pytest.raises(ValueError, match=r"\(5, 6\), indices imply \(5, 1\)"):
        SETS.to_pandas(columns=["u"])
    assert frame.loc["a", "upper_1"] == 7 and np.asarray(SETS).shape == (5, 3, 2)
    columns = SETS.to_pandas(columns=list("uvwxyz")).columns
    assert list(columns) == list("uvwxyz")


def test_volumes_and_many_points():
    log_volume, error = jaxcp.volume(KEY, SETS[0])
    assert (float(log_volume), error) == (pytest.approx(np.log(3)), 0)
    within = Interval(jnp.array(0.0), jnp.array(6.0))
    log_volume, error = jaxcp.volume(KEY, SETS[0], 4000, within=within)
    assert abs(log_volume - np.log(2)) < 4 * error
    found = membership(SETS[0], jnp.array([0.5, 3.0, 5.0]))
    assert_array_equal(found, [True, False, True])
    assert_allclose(metrics.mean_volume(KEY, SETS[:3]).mean, 1, rtol=1e-6)


def test_metrics_take_the_set_and_not_its_hull():
    assert_allclose(metrics.coverage(SETS, Y), 3 / 5)
    assert_allclose(metrics.sizes(SETS), [3, 0, 0, INF, INF])
    assert_allclose(metrics.mean_size(SETS[:3]), 1)
    assert_allclose(metrics.median_size(SETS), 3)
    assert_allclose(metrics.empty_rate(SETS), 1 / 5)
    assert_allclose(metrics.infinite_rate(SETS), 2 / 5)
    strata = metrics.size_stratified_coverage(SETS, Y, num_bins=2)
    found = metrics.summary(SETS, Y, 0.2, np.array([0, 0, 0, 1, 1]), num_bins=2)
    assert_allclose(found["size_stratified_coverage_violation"], 0.3, atol=0.5)
    assert found["coverage"] == 0.6 and found["group_coverage[1]"] == 1
    assert "winkler_score" not in found and strata.shape == (2,)
    assert_allclose(metrics.interval_score(SETS[:1].hull(), Y[:1], 0.2), 7)


test_a_wrong_use_is_refused = refuses(
    {
        "several volumes": (
            lambda: jaxcp.volume(KEY, SETS),
            "expected one Intervals, got several",
        ),
        "several sets": (
            lambda: membership(SETS, jnp.zeros(2)),
            r"one set, got sets of shape \(5,\)",
        ),
        "within a union": (
            lambda: jaxcp.volume(KEY, SETS[0], within=SETS[0]),
            "within as a Box or an Interval, got Intervals",
        ),
        "bounds": (
            lambda: SETS.clip(1.0, 0.0),
            "lower <= upper, got 1.0 and 0.0",
        ),
        "bounds of shape": (
            lambda: SETS.clip(jnp.zeros(5)),
            r"lower of shape \(\), got \(5,\)",
        ),
        **{
            name: (
                lambda metric=metric: metric(SETS, Y, 0.2),
                r"kind Interval, got Intervals; sets.hull\(\) is an interval around",
            )
            for name, metric in {
                "interval score": metrics.interval_score,
                "winkler score": metrics.winkler_score,
                "criterion": partial(metrics.coverage_width_criterion, eta=1.0),
                "other criterion": partial(
                    metrics.khosravi_coverage_width_criterion, eta=1.0
                ),
            }.items()
        },
    }
)


@jaxcp.pytree
class EitherSign:
    """How far the size of the target is from a prediction: two pieces, or one."""

    def __call__(self, pred, y):
        return jnp.abs(jnp.abs(y) - pred)

    def invert(self, pred, q):
        ends = jnp.stack([-pred - q, pred - q]), jnp.stack([q - pred, pred + q])
        two = Intervals(*ends)
        hull = two.hull()
        one = Intervals(jnp.array([hull.lower, INF]), jnp.array([hull.upper, -INF]))
        return jax.tree.map(lambda a, b: jnp.where(q >= pred, a, b), one, two)


@jaxcp.pytree
class TwoSided:
    """Sizes of the target above and below a prediction: two components."""

    def __call__(self, pred, y):
        return jnp.stack([jnp.abs(y) - pred, pred - jnp.abs(y)])

    def invert(self, pred, q):
        low, high = jnp.maximum(pred - q[1], 0), pred + q[0]
        return Intervals(jnp.stack([-high, low]), jnp.stack([-low, high]))


@jaxcp.pytree
class Size:
    """Predicts the mean size of targets."""

    def fit(self, key, x, y, weights):
        return jnp.sum(weights * jnp.abs(y)) / jnp.sum(weights)

    def predict(self, params, x):
        return jnp.full(len(x), params)


SPREAD = jnp.linspace(3.0, 5.0, 40) * jnp.tile(jnp.array([-1.0, 1.0]), 20)


@pytest.fixture(scope="module")
def signs():
    x = jax.random.normal(KEY, (60, 2))
    noise, sign = (jax.random.normal(k, (60,)) for k in jax.random.split(KEY))
    return x, (4 + 0.5 * noise) * jnp.where(sign > 0, 1, -1)


def test_calibrated_sets_have_gaps_and_p_values(signs):
    _, y = signs
    preds = jnp.full(60, 4.0)
    cp = jaxcp.calibrate(EitherSign(), preds[:40], y[:40])
    sets = cp(preds[40:], 0.2)
    assert isinstance(sets, Intervals) and np.all(sets.num_pieces() == 2)
    inside = np.asarray(cp.p_values(preds[40:], y[40:])) > 0.2
    assert_array_equal(inside, sets.contains(y[40:]))
    assert_array_equal(cp(preds[40:], 0.01).size(), np.full(20, INF))
    sizes = training.soft_size(EitherSign(), preds[:3], 0.5, temperature=0.01)
    assert_allclose(sizes, 2, rtol=1e-3)


def test_votes_are_the_exact_union(signs):
    """As those of the same sets, known by membership alone."""
    x, y = signs
    weights, grid = jnp.arange(60) % 3 / 2, jnp.linspace(-9.0, 9.0, 301)
    found = {}
    for score in (EitherSign(), Custom(EitherSign())):  # and without an inverse
        cp = jaxcp.jackknife_plus(KEY, Size(), score, x, y, calibration_weights=weights)
        for name, sets in {
            "plus": cp(x[:5], 0.2),
            "minmax": cp.minmax(x[:5], 0.2),
        }.items():
            inside = jax.jit(jax.vmap(lambda s: jax.vmap(s.contains)(grid)))(sets)
            found.setdefault(name, []).append((sets, inside))
    for (ours, inside), (theirs, same) in found.values():
        assert isinstance(ours, Intervals) and isinstance(theirs, VoteSet)
        assert_array_equal(inside, same)
        assert np.all(ours.num_pieces() == 2)
        assert ours.lower.shape == (5, 2)  # places left over are cut


def test_votes_of_components_are_intersected():
    cp = jaxcp.jackknife_plus(KEY, Size(), TwoSided(), jnp.ones((40, 1)), SPREAD)
    sets = cp(jnp.ones((2, 1)), 0.2)
    inside = sets.contains(jnp.array([4.0, -4.0]))
    assert np.all(inside) and np.all(sets.num_pieces() == 2)
    assert not sets.contains(0.0).any() and not sets.contains(9.0).any()
    whole = cp(jnp.ones((2, 1)), 0.01)
    assert_array_equal(whole.to_numpy(), [[[-INF, INF]]] * 2)


@pytest.mark.parametrize("kind", [None, "band", "bars"])
def test_pictures_show_gaps(kind):
    ax = plotting.plot_intervals(jnp.arange(5.0), SETS, Y, kind=kind)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert any("infinite (2)" in text for text in texts), texts
