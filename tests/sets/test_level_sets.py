"""Level sets of scores without an inverse: their ends, pieces and volumes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import same
from jaxcp import learners, metrics, plotting, scores
from jaxcp.sets import Box, Interval, Intervals, LevelSet

pytestmark = pytest.mark.double

KEY = jax.random.key(0)
INF = np.inf
float_types = pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])


def relative(pred, y):
    """In units of the prediction, and not the same on both sides."""
    return jnp.maximum(pred - y, 2 * (y - pred)) / (1 + jnp.abs(pred))


def skewed(pred, y):
    """The same in any program: no division, and no sum that follows a product."""
    return jnp.maximum(pred - y, 2 * (y - pred))


def either_sign(pred, y):
    return jnp.abs(jnp.abs(y) - pred)


def middle(pred):
    return pred


FOUND = scores.Custom(relative, start=middle)


@pytest.fixture(autouse=True)
def precision(request):
    dtype = request.node.callspec.params.get("dtype") if _has_dtype(request) else None
    with jax.enable_x64(dtype == "float64" or jax.config.jax_enable_x64):
        yield


def _has_dtype(request):
    return hasattr(request.node, "callspec")


def level_sets(score, preds, q):
    return jax.vmap(lambda pred, level: LevelSet(score, pred, level))(preds, q)


def rows(dtype, n=300):
    rng = np.random.default_rng(0)
    preds = jnp.asarray(rng.normal(size=n), dtype)
    return preds, jnp.asarray(rng.exponential(size=n), dtype)


# Ends


@float_types
def test_ends_are_the_last_floats_inside(dtype):
    preds, q = rows(dtype)
    sets = level_sets(scores.Custom(skewed), preds, q)
    for region, bound in [
        (sets.exact(), q),
        (sets, q + 4 * jnp.finfo(q.dtype).eps * q),  # those inside by rounding
    ]:
        found = region.interval(preds)
        assert found.lower.dtype == q.dtype
        for end, side in [(found.lower, -INF), (found.upper, INF)]:
            assert jnp.all(skewed(preds, end) <= bound)
            beyond = jnp.nextafter(end, jnp.full_like(end, side))
            assert jnp.all(skewed(preds, beyond) > bound)
        wide = [np.asarray(v, float) for v in (preds, q, *found.ends())]
        expected = wide[0] - wide[1], wide[0] + wide[1] / 2
        tolerance = 20 * float(jnp.finfo(dtype).eps)
        assert_allclose(wide[2:], expected, rtol=tolerance, atol=tolerance)


@float_types
def test_an_interval_holds_what_its_level_set_holds(dtype):
    preds, q = rows(dtype)
    sets = level_sets(scores.Custom(skewed), preds, q)
    y = jnp.concatenate([preds[::-1], *sets.interval(preds).ends()])
    three = jax.tree.map(lambda v: jnp.concatenate([v] * 3), (sets, preds))
    found = three[0].interval(three[1])
    assert_array_equal(found.contains(y), three[0].contains(y))


def test_thresholds_beyond_the_scores():
    region = lambda level: FOUND.invert(jnp.array(1.0), jnp.array(level))  # noqa: E731
    assert region(INF).ends() == (-INF, INF)
    for level in (-1.0, -INF):
        assert region(level).is_empty() and region(level).size() == 0
    assert region(0.0).ends() == (1.0, 1.0)
    assert np.isnan(region(np.nan).lower) and np.isnan(region(np.nan).upper)
    unknown = FOUND.invert(jnp.array(np.nan), jnp.array(1.0))
    assert np.isnan(unknown.lower) and np.isnan(unknown.upper)


def test_a_score_that_never_reaches_the_threshold_on_one_side():
    flat = scores.Custom(
        lambda pred, y: jnp.where(y > pred, jnp.tanh(y - pred), (pred - y) ** 2),
        start=middle,
    )
    found = flat.invert(jnp.array(3.0), jnp.array(4.0))
    assert_allclose(found.ends(), [1.0, INF], rtol=1e-6)
    inside = flat.invert(jnp.array(3.0), jnp.array(0.25))
    assert_allclose(inside.ends(), [2.5, 3 + np.arctanh(0.25)], rtol=1e-6)
    overflows = scores.Custom(lambda pred, y: jnp.exp(jnp.abs(y)), start=jnp.zeros_like)
    found = overflows.invert(jnp.array(3.0), jnp.array(1e30))
    assert_allclose(found.upper, np.log(1e30), rtol=1e-6)


def test_a_score_that_is_defined_on_one_side_only():
    """Elsewhere it is NaN, which is stranger than anything."""
    log_ratio = scores.Custom(lambda p, y: jnp.abs(jnp.log(y / p)), start=middle)
    found = log_ratio.invert(jnp.array(2.0), jnp.array(9.0))
    assert_allclose(found.ends(), [2 * np.exp(-9), 2 * np.exp(9)], rtol=1e-5)
    assert log_ratio.invert(jnp.array(2.0), jnp.array(INF)).ends() == (-INF, INF)


def test_components_end_where_the_first_of_them_does():
    sides = scores.Custom(lambda p, y: jnp.stack([p - y, 3 * (y - p)]), start=middle)
    q = jnp.array([2.0, 6.0])
    found = sides.invert(jnp.array(1.0), q)
    assert_allclose(found.ends(), [-1.0, 3.0], rtol=3e-6)
    slopes = jax.jacobian(lambda q: jnp.stack(sides.invert(1.0, q).ends()))(q)
    assert_allclose(slopes, [[-1, 0], [0, 1 / 3]], rtol=1e-6)
    one_side = sides.invert(jnp.array(1.0), jnp.array([2.0, INF]))
    assert_allclose(one_side.ends(), [-1.0, INF], rtol=3e-6)


def test_targets_with_an_axis_of_their_own():
    sizes = scores.Custom(lambda p, y: jnp.sum((y - p) ** 2))
    preds, level = jnp.ones((4, 1)), jnp.arange(1.0, 5.0)
    sets = level_sets(sizes, preds, level)
    found = sets.interval(preds)
    assert_allclose(found.upper, 1 + np.sqrt(np.arange(1, 5)), rtol=1e-6)
    bracket = Box(jnp.full(1, -9.0), jnp.full(1, 9.0))
    same(sets.intervals(bracket).hull(), found)


def test_jit_is_eager_and_vmap_is_a_loop():
    preds, q = rows("float32", 5)
    eager = [FOUND.invert(p, v).ends() for p, v in zip(preds, q, strict=True)]
    together = jax.jit(jax.vmap(FOUND.invert))(preds, q)
    assert_array_equal(jnp.stack(together.ends(), axis=1), np.array(eager))
    plain = level_sets(scores.Custom(relative), preds, q)
    same(plain.interval(preds), together)
    assert plain.interval(0.0).lower.shape == (5,)
    bracket = Interval(-20.0, 20.0)
    union = plain.intervals(bracket)
    same(jax.jit(lambda s: s.intervals(bracket))(plain), union)
    same(union.hull(), together)


@pytest.mark.parametrize("level", [0.7, 2.0])
def test_slopes_are_those_of_the_root(level):
    """upper = p + q (1 + p) / 2 and lower = p - q (1 + p), for p > 0."""
    ends = lambda p, q: jnp.stack(FOUND.invert(p, q).ends())  # noqa: E731
    for run in (jax.jacfwd, jax.jacrev):
        by_pred, by_level = jax.jit(run(ends, (0, 1)))(1.5, level)
        assert_allclose(by_pred, [1 - level, 1 + level / 2], rtol=1e-5)
        assert_allclose(by_level, [-2.5, 1.25], rtol=1e-5)


def test_slopes_in_parameters_and_in_calibration_scores():
    def size(scale, preds, y):
        score = scores.Custom(
            jax.tree_util.Partial(lambda s, p, y: jnp.abs(y - p) / s, scale),
            start=middle,
        )
        cp = jaxcp.calibrate(score, preds, y)
        return cp.score.invert(jnp.array(0.0), 2.0).size(), cp(preds, 0.2).size()[0]

    preds, y = jnp.zeros(9), jnp.arange(1.0, 10.0)
    alone, calibrated = jax.jacobian(size, (0, 2))(3.0, preds, y)
    assert_allclose(alone[0], 4.0, rtol=1e-5)  # 2 q scale
    assert_allclose(alone[1], 0)
    assert_allclose(calibrated[0], 0, atol=1e-4)  # the threshold shrinks with it
    assert_allclose(calibrated[1], 2.0 * (np.arange(9) == 7), atol=1e-5)


@pytest.mark.parametrize("level", [INF, -1.0, np.nan])
def test_slopes_of_sets_without_ends_are_zero(level):
    size = lambda p, q: FOUND.invert(p, q).lower  # noqa: E731
    assert_array_equal(jax.grad(size, (0, 1))(1.0, level), (0.0, 0.0))


def test_functions_that_jax_cannot_differentiate_have_ends():
    def outside(pred, y):
        size = lambda p, v: np.abs(v - p).astype(np.float32)  # noqa: E731
        shape = jax.ShapeDtypeStruct((), "float32")
        return jax.pure_callback(size, shape, pred, y, vmap_method="broadcast_all")

    score = scores.Custom(outside, start=middle)
    found = jax.vmap(score.invert, (0, None))(jnp.arange(3.0, dtype="float32"), 2.0)
    assert_allclose(found.upper, [2.0, 3.0, 4.0], rtol=1e-6)
    upper = lambda q: score.invert(jnp.float32(1), q).upper  # noqa: E731
    assert np.isnan(jax.grad(upper)(2.0))


# What ends are good for


def test_a_score_with_a_start_is_one_with_an_inverse():
    own = scores.Custom(lambda p, y: jnp.abs(y - p), start=middle)
    x = jax.random.normal(KEY, (60, 2))
    y = x[:, 0] + jax.random.normal(jax.random.key(1), (60,))
    preds = x[:, 0]
    cp, same = (jaxcp.calibrate(s, preds, y) for s in (own, scores.Absolute()))
    sets, expected = cp(preds, 0.2), same(preds, 0.2)
    assert_allclose(sets.ends(), expected.ends(), rtol=2e-6, atol=2e-6)
    assert_allclose(metrics.mean_size(sets), 2 * cp.quantile(0.2), rtol=1e-5)
    found = metrics.summary(sets, y, 0.2)
    assert {"winkler_score", "mean_size"} <= set(found)
    assert_array_equal(cp.p_values(preds, y), same.p_values(preds, y))
    plotting.plot_intervals(x[:, 0], sets, y)
    for verb in (jaxcp.cv_plus, jaxcp.jackknife_plus):
        options = {"num_folds": 5} if verb is jaxcp.cv_plus else {}
        ours, theirs = (
            verb(KEY, learners.Ridge(1.0), s, x, y, **options)(x[:5], 0.2)
            for s in (own, scores.Absolute())
        )
        assert_allclose(ours.ends(), theirs.ends(), atol=1e-5)


def test_a_class_of_your_own_finds_its_ends():
    @jaxcp.pytree
    class Power:
        power: float

        def __call__(self, pred, y):
            return jnp.abs(y - pred) ** self.power

        def invert(self, pred, q):
            return LevelSet(self, pred, q).interval(start=pred)

    preds, y = rows("float32", 60)
    scores.check(Power(3.0), preds, y)
    sets = jaxcp.calibrate(Power(3.0), preds, y)(preds, 0.2)
    expected = jaxcp.calibrate(scores.Absolute(), preds, y)(preds, 0.2)
    assert_allclose(sets.ends(), expected.ends(), rtol=2e-6, atol=2e-6)
    size = lambda power: Power(power).invert(0.0, 8.0).size()  # noqa: E731
    assert_allclose(jax.grad(size)(3.0), -4 * np.log(8) / 9, rtol=1e-4)


def test_p_values_are_those_of_the_sets():
    preds, y = rows("float32", 60)
    cp = jaxcp.calibrate(FOUND, preds[:30], y[:30])
    p_values = np.asarray(cp.p_values(preds, y))
    for k in (3, 10, 25):
        held = cp(preds, (k + 0.5) / 31).contains(y)
        assert_array_equal(held, p_values > (k + 0.5) / 31)


def test_no_target_is_lost_at_its_own_score():
    """Also where scores and sets are of other programs: 99 copies of one row."""
    preds, y = rows("float32", 40)
    for pred, target in zip(preds, y, strict=True):
        cp = jaxcp.calibrate(FOUND, jnp.full(99, pred), jnp.full(99, target))
        assert metrics.coverage(cp(pred[None], 0.1), target[None]) == 1


def test_advice_works():
    preds, y = rows("float32", 30)
    sets = jaxcp.calibrate(scores.Custom(relative), preds, y)(preds, 0.2)
    with pytest.raises(
        ValueError, match=r"mean_volume\(key, sets, within=...\), a Box"
    ):
        metrics.mean_size(sets)
    bracket = Interval(-20.0, 20.0)
    known = metrics.mean_size(sets.interval(preds))
    assert_allclose(metrics.mean_size(sets.intervals(bracket)), known, rtol=1e-6)
    found = metrics.mean_volume(KEY, sets, 2000, within=bracket, sobol=True)
    assert_allclose(found.mean, known, rtol=0.02)


def test_inverse_and_start():
    with pytest.raises(ValueError, match="expected inverse or start, got both"):
        scores.Custom(relative, lambda p, q: Interval(p - q, p + q), middle)
    with pytest.raises(ValueError, match="expected start as a function, got 3"):
        scores.Custom(relative, start=3)
    two = scores.Custom(relative, start=lambda pred: jnp.stack([pred, pred]))
    with pytest.raises(ValueError, match="Cannot broadcast to shape"):
        two.invert(1.0, jnp.array(1.0))
    sets = level_sets(scores.Custom(relative), jnp.zeros(4), jnp.ones(4))
    with pytest.raises(ValueError, match="for broadcasting"):
        sets.interval(jnp.zeros(3))


# Pieces

TWO = scores.Custom(either_sign)
BRACKET = Interval(-10.0, 10.0)


def test_all_pieces_are_found_to_the_float():
    q = jnp.array([0.5, 0.001, 2.9, 3.0, 4.0, -1.0])
    found = level_sets(TWO, jnp.full(6, 3.0), q).exact().intervals(BRACKET)
    lower = [[-3.5, 2.5], [-3.001, 2.999], [-5.9, 0.1], [-6, INF], [-7, INF]]
    upper = [[-2.5, 3.5], [-2.999, 3.001], [-0.1, 5.9], [6, -INF], [7, -INF]]
    assert_allclose(found.lower[:5, :2], lower, rtol=1e-6, atol=1e-6)
    assert_allclose(found.upper[:5, :2], upper, rtol=1e-6, atol=1e-6)
    assert_array_equal(found.num_pieces(), [2, 2, 2, 1, 1, 0])
    assert_array_equal(found.is_empty(), np.arange(6) == 5)
    assert_allclose(found.size(), [2, 0.004, 11.6, 12, 14, 0], rtol=1e-3)
    assert_allclose(found.hull().upper[:5], [3.5, 3.001, 5.9, 6, 7], rtol=1e-6)
    for end in (found.lower, found.upper):
        known = jnp.where(jnp.isfinite(end), end, 3.0)
        assert jnp.all(either_sign(3.0, known) <= jnp.maximum(q, 0)[:, None])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("score", [skewed, either_sign], ids=["a well", "two wells"])
def test_pieces_of_one_float_are_found(score, dtype):
    """At the threshold 0, where most predictions are exact, and a few floats above."""
    own = scores.Custom(score)
    rng, ulp = np.random.default_rng(0), np.spacing(np.asarray(50, dtype))
    for offset in (0.0, 0.003, 1.0, -40.0):
        wells = np.r_[offset, offset + rng.uniform(0.1, 1, 20)].astype(dtype)
        wells = abs(wells) if score is either_sign else wells
        bracket = Interval(np.full(21, -50, dtype), np.full(21, 50, dtype))
        for level in (0, ulp):
            levels = jnp.full(21, level, dtype)
            region = level_sets(own, jnp.asarray(wells), levels).exact()
            pieces = region.intervals(bracket, num_points=101)
            assert np.all(pieces.contains(wells)) and np.all(pieces.size() < 9 * ulp)
            assert_array_equal(pieces.contains(-wells), region.contains(-wells))


def test_more_pieces_than_there_is_room_for_are_joined():
    waves = scores.Custom(lambda pred, y: jnp.where(jnp.abs(y) < 9, jnp.cos(y), 2.0))
    region = LevelSet(waves, 0.0, jnp.array(0.0))
    all_of_them = region.intervals(BRACKET, max_pieces=9)
    assert all_of_them.num_pieces() == 4
    few = region.intervals(BRACKET, max_pieces=2)
    assert_allclose(few.lower, all_of_them.lower[:2])
    assert_allclose(few.upper, [all_of_them.upper[0], all_of_them.upper[3]])
    y = jnp.linspace(-10, 10, 999)
    inside = jax.vmap(region.contains)(y)
    assert_array_equal(all_of_them.contains(y[0]), inside[0])
    assert_array_equal(jax.vmap(all_of_them.contains)(y), inside)
    assert not np.any(inside & ~jax.vmap(few.contains)(y))


def test_pieces_go_on_beyond_the_bracket():
    region = LevelSet(TWO, 3.0, jnp.array(0.5)).exact()
    found = region.intervals(Interval(-3.0, 3.0))
    assert_allclose(found.lower[:2], [-3.5, 2.5], rtol=1e-6)
    assert_allclose(found.upper[:2], [-2.5, 3.5], rtol=1e-6)
    whole = LevelSet(TWO, 3.0, jnp.array(INF)).intervals(BRACKET)
    assert whole.num_pieces() == 1 and whole.size() == INF
    assert whole.hull().ends() == (-INF, INF)
    unknown = LevelSet(TWO, 3.0, jnp.array(np.nan)).intervals(BRACKET)
    assert np.isnan(unknown.size())


def test_slopes_of_pieces():
    size = lambda p, q: LevelSet(TWO, p, q).intervals(BRACKET).size()  # noqa: E731
    assert_allclose(jax.grad(size, (0, 1))(3.0, 0.5), (0.0, 4.0), atol=1e-5)
    assert_allclose(jax.grad(size, (0, 1))(3.0, 4.0), (2.0, 2.0), atol=1e-5)


def test_a_score_of_several_pieces_covers_and_has_metrics():
    bracket, options = Interval(-30.0, 30.0), {"num_points": 40, "max_pieces": 2}
    score = scores.Custom(
        either_sign, lambda p, q: LevelSet(TWO, p, q).intervals(bracket, **options)
    )
    rng = np.random.default_rng(0)
    preds = 5 + rng.exponential(size=400).astype(np.float32)
    y = rng.choice([-1, 1], 400) * preds + rng.normal(size=400).astype(np.float32)
    scores.check(score, preds[:30], y[:30])
    cp = jaxcp.calibrate(score, preds[:200], y[:200])
    sets = cp(preds[200:], 0.2)
    assert isinstance(sets, Intervals)
    assert abs(metrics.coverage(sets, y[200:]) - 0.8) < 0.1
    assert_allclose(metrics.mean_size(sets), 4 * cp.quantile(0.2), rtol=1e-4)
    found = metrics.summary(sets, y[200:], 0.2)
    assert "median_size" in found and "winkler_score" not in found
    volumes = metrics.mean_volume(KEY, sets)
    assert_allclose(volumes.mean, metrics.mean_size(sets), rtol=1e-5)
    size = jaxcp.training.soft_size(score, preds[:3], 1.0, temperature=1e-3)
    assert_allclose(size, 4.0, rtol=1e-3)


def test_check_says_that_level_sets_have_several_pieces():
    rng = np.random.default_rng(0)
    preds = 5 + rng.exponential(size=60)
    both = rng.choice([-1, 1], 60) * preds + rng.normal(size=60)
    wrong = scores.Custom(either_sign, lambda p, q: LevelSet(TWO, p, q).interval(p))
    with pytest.raises(
        ValueError, match=r"hold the target .* have several pieces: tha"
    ):
        scores.check(wrong, preds, both)
    # Where no target of a row lies in another piece, a grid finds it.
    here = np.append(preds[:-1], -6.0), np.append(both[:-1], -6.5)
    gap = scores.Custom(lambda p, y: jnp.abs(jnp.abs(y) - jnp.abs(p)), start=middle)
    preds, y = here[0], np.sign(here[0]) * np.abs(here[1])
    with pytest.raises(ValueError, match="have several pieces"):
        scores.check(gap, preds, y)
    scores.check(FOUND, preds, y)


def test_a_start_that_is_not_the_least_score_is_caught():
    preds, y = rows("float32", 60)
    beside = scores.Custom(relative, start=lambda pred: pred + 1)
    with pytest.raises(ValueError, match=r"expected start\(pred\) as the target with"):
        scores.check(beside, preds, y)


def test_a_start_outside_of_level_sets_is_refused_at_calibration():
    """A set around it would be empty, or of one piece, and cover less in silence."""
    rng = np.random.default_rng(0)
    preds = 5 + rng.exponential(size=900)
    y = rng.choice([-1, 1], 900) * preds + rng.normal(size=900)
    between = scores.Custom(either_sign, start=jnp.zeros_like)
    first = scores.Custom(either_sign, start=middle)
    beside = scores.Custom(lambda p, y: jnp.abs(y - p), start=lambda pred: pred + 20)
    for score in (between, first, beside):
        with pytest.raises(ValueError, match=r"for row .* miss the target at its own"):
            jaxcp.calibrate(score, preds, y)
        assert len(jax.jit(partial(jaxcp.calibrate, score))(preds, y).scores) == 900
    mask = y > 0  # of masked rows nothing is asked
    cp = jaxcp.calibrate(first, preds, y, mask=mask)
    assert jnp.isfinite(cp.quantile(0.2))
    for n in (1, 2, 300):
        jaxcp.calibrate(FOUND, *(v[:n] for v in rows("float32", 900)))


# Volumes

DISC = LevelSet(scores.Custom(lambda p, y: jnp.sum((y - p) ** 2)), jnp.zeros(2), 1.0)
SQUARE = Box(-jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize("sobol", [False, True])
def test_the_volume_in_a_box(sobol):
    log_volume, error = jaxcp.volume(KEY, DISC, 4000, within=SQUARE, sobol=sobol)
    assert error == pytest.approx(np.sqrt((4 / np.pi - 1) / 4000), rel=0.1)
    assert abs(log_volume - np.log(np.pi)) < 3 * error
    half = Box(jnp.zeros(2), jnp.ones(2))
    quarter = jaxcp.volume(KEY, DISC, 4000, within=half, sobol=sobol)
    assert abs(quarter[0] - np.log(np.pi / 4)) < 3 * quarter[1]


def test_errors_of_volumes_in_a_box_are_standard_errors():
    keys = jax.random.split(KEY, 200)
    run = jax.vmap(lambda key: jaxcp.volume(key, DISC, 300, within=SQUARE))
    log_volume, error = jax.jit(run)(keys)
    off = np.asarray((log_volume - np.log(np.pi)) / error)
    assert abs(off.mean()) < 0.3 and 0.8 < off.std() < 1.2


def test_volumes_of_sets_known_by_membership_on_the_line():
    region = LevelSet(TWO, 3.0, jnp.array(0.5))
    log_volume, error = jaxcp.volume(KEY, region, 4000, within=BRACKET)
    assert abs(log_volume - np.log(2)) < 3 * error
    inside = jaxcp.volume(KEY, Interval(0.0, 1.0), 4000, within=Interval(0.5, 9.5))
    assert abs(inside[0] - np.log(0.5)) < 3 * inside[1]


@pytest.mark.parametrize(
    "lower, upper, expected",
    [
        (5.0, 6.0, (-INF, INF)),  # no point fell into the set
        (-0.5, 0.5, (0.0, 0.0)),  # all did
        (0.0, 0.0, (-INF, 0.0)),  # flat
        (1.0, -1.0, (-INF, 0.0)),  # crossed
    ],
)
def test_boxes_that_miss_the_set_or_lie_in_it(lower, upper, expected):
    box = Box(jnp.full(2, lower), jnp.full(2, upper))
    assert_allclose(jaxcp.volume(KEY, DISC, 99, within=box), expected, atol=1e-5)
    run = jax.jit(lambda box: jaxcp.volume(KEY, DISC, 99, within=box))
    assert_allclose(run(box), expected, atol=1e-5)


def test_traced_boxes_without_end_have_no_volume():
    box = Box(jnp.zeros(2), jnp.full(2, INF))
    run = jax.jit(lambda box: jaxcp.volume(KEY, DISC, 99, within=box))
    assert not np.any(np.isfinite(run(box)))
    with pytest.raises(ValueError, match="within as a finite box, got inf at 0"):
        jaxcp.volume(KEY, DISC, within=box)


def test_mean_volumes_in_a_box():
    sets = level_sets(DISC.score, jnp.zeros((3, 2)), jnp.array([0.25, 1.0, 4.0]))
    found = metrics.mean_volume(KEY, sets, 4000, within=Box(*(2 * v for v in ends())))
    expected = np.log(np.pi * np.array([0.25, 1, 4]))
    assert np.all(np.abs(found.log_volumes - expected) < 4 * found.errors)
    radius = jnp.array([[0.5], [1.0], [2.0]]) * jnp.ones((1, 2))
    each = metrics.mean_volume(KEY, sets, 4000, within=Box(-radius, radius))
    assert np.all(np.abs(each.log_volumes - expected) < 4 * each.errors)
    assert_allclose(each.errors, each.errors[0], rtol=0.1)  # each box fits its set
    with pytest.raises(ValueError, match="within with 3 rows like sets, got 2"):
        metrics.mean_volume(KEY, sets, within=Box(-radius[:2], radius[:2]))
    alone = jaxcp.volume(jax.random.fold_in(KEY, 1), DISC, 4000, within=SQUARE)
    assert_allclose(each.log_volumes[1], alone[0], rtol=1e-5)


def ends():
    return SQUARE.ends()
