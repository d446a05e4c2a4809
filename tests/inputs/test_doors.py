"""What comes in keeps its value, its digits and its shape, or is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import CASES, scores_of
from jaxcp import metrics, outliers, scores, sets

BEYOND = [2**31, 2**32, 2**32 + 1, 2**33]
INTEGERS = [np.int64, np.uint64, list]


def integers(kind, *values):
    return list(values) if kind is list else np.array(values, kind)


def quantile_doors(row):
    """Thresholds of rows at which all of them are in the set."""
    n = len(row)
    mesh, groups, ones = jax.make_mesh((2,), ("rows",)), np.zeros(n, int), np.ones(n)
    yield jaxcp.conformal_quantile(row, 0.1)
    yield jaxcp.weighted_conformal_quantile(row, ones, 0.1)
    yield jaxcp.grouped_conformal_quantile(row, groups, 0.1, num_groups=1)[0]
    yield jaxcp.sharded_conformal_quantile(row, 0.1, mesh)
    yield jaxcp.soft_conformal_quantile(row, 0.1, bandwidth=1.0, hard=True)
    yield jaxcp.weighted_select(row, ones, n)
    yield jaxcp.empirical_quantile(row, 1.0)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("large", BEYOND)
def test_values_beyond_32_bits_become_floats_that_are_not_smaller(large, kind):
    """The next float at most: P(S <= q) holds for the integers as they came."""
    for value in (large, large + 65, 2 * large - 1):
        row = integers(kind, 1, 2, 3, 4, 5, 6, 7, 8, value)
        for found in quantile_doors(row):
            assert found.dtype == float or found.dtype == np.float32
            assert value <= int(found) <= value * (1 + np.finfo(np.float32).eps)
    weights = integers(kind, large, 1, 1, 1)
    q = jaxcp.weighted_conformal_quantile(np.arange(4.0), weights, 0.3, test_weight=1)
    assert q == 0
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9), integers(kind, *[large] * 9))
    assert np.all(np.asarray(cp.scores).astype(np.int64) >= large)
    row = integers(kind, 1, 2, 3, 4, 5, 6, 7, 8, large)
    p = outliers.outlier_p_values(row, integers(kind, large, large + 2**30))
    assert_allclose(p, [0.2, 0.1], rtol=1e-6)


@pytest.mark.double
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("large", BEYOND)
def test_order_statistics_are_exact_or_refused(large, kind):
    row = integers(kind, 1, large)
    if jax.config.jax_enable_x64:
        assert jaxcp.kth_smallest(row, 2) == large
        return
    with pytest.raises(
        ValueError, match=f"x that fit int32, got {large}; give x.astype"
    ):
        jaxcp.kth_smallest(row, 2)
    assert jaxcp.kth_smallest(integers(kind, 1, 2**31 - 1), 2) == 2.0**31


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("large", BEYOND)
def test_labels_and_groups_beyond_32_bits_are_refused(large, kind):
    p, label = np.array([[0.9, 0.1]]), integers(kind, large)
    expected = r"in 0, \.\.\., \d, got \d+"
    with pytest.raises(ValueError, match="y " + expected):
        jaxcp.calibrate(scores.LAC(), p, label)
    with pytest.raises(ValueError, match="groups " + expected):
        jaxcp.grouped_conformal_quantile(np.zeros(1), label, 0.4, num_groups=1)
    with pytest.raises(ValueError, match="groups " + expected):
        jaxcp.calibrate_groups(scores.Absolute(), [0.0], [0.0], label, num_groups=1)
    with pytest.raises(ValueError, match="y " + expected):
        metrics.coverage(sets.LabelSet(jnp.ones((1, 2), bool)), label)
    assert not sets.LabelSet(jnp.ones(2, bool)).contains(label[0])


def test_unsigned_integers_of_jax():
    y = jnp.array([2**31 + 2**10, 2**32 - 2**10], jnp.uint32)
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(2), y)
    assert_array_equal(cp.scores, np.asarray(y, float))
    custom = scores.Custom(lambda pred, y: jnp.abs(y - pred))
    preds = jnp.array([2**32 - 2**10, 2**31 + 2**10], jnp.uint32)
    assert_array_equal(jaxcp.calibrate(custom, preds, y).scores, 2.0**31 - 2**11)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_order_statistics_of_integers_do_not_shrink(dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(2**23, 2**31, (200, 9), dtype=np.int64).astype(dtype)
    ranks = jnp.arange(1, 10)
    found = jax.vmap(lambda row: jaxcp.kth_smallest(row, ranks))(jnp.asarray(x))
    exact = np.sort(x.astype(np.int64), axis=1)
    assert np.all(np.asarray(found, float) >= exact)
    assert np.all(np.asarray(found, float) - exact < 2**8)  # the next float at most
    assert jaxcp.conformal_quantile(np.full(99, 2**24 + 1), 0.1) == 2**24 + 2


OFFSETS = [(2.5e6, 0.05), (1e5, 0.01), (1.7e9, 100.0), (3e9, 5.0), (-1e8, 10.0)]


class Told:
    """A model whose prediction is its input."""

    def fit(self, x, y):
        return self

    def predict(self, x):
        return x[:, 0]


def doors(mu, y):
    """Verbs of predictions that check the digits of targets."""
    absolute = scores.Absolute()
    yield lambda: jaxcp.calibrate(absolute, mu, y)
    yield lambda: jaxcp.calibrate(absolute, list(mu), list(y))
    yield lambda: jaxcp.calibrate(scores.Signed(), mu, y)
    yield lambda: jaxcp.calibrate(scores.Normalized(), (mu, np.ones(len(y))), y)
    yield lambda: jaxcp.split_conformal(lambda _, x: x, None, absolute, mu, y)
    groups = np.zeros(len(y), int)
    yield lambda: jaxcp.calibrate_groups(absolute, mu, y, groups, num_groups=1)
    method = jaxcp.online.ACI(absolute, 0.1)
    state = method.init(np.ones(9), 0.1)
    yield lambda: jaxcp.online.run(method, state, mu, y, 0.1)


def doors_of_fits(mu, y):
    """Verbs of several fits, and of learners, that check them."""
    absolute, key = scores.Absolute(), jax.random.key(0)
    both, own = np.stack([mu, mu]), np.arange(len(y)) % 2 == np.arange(2)[:, None]
    yield lambda: jaxcp.cross_calibrate(absolute, both, y, own)
    x = mu[:, None]
    for learner in (
        jaxcp.learners.Estimator(Told()),
        jaxcp.learners.NearestNeighbors(3),
    ):
        fit = key, learner, absolute, x, y
        yield partial(jaxcp.split_conformal_fit, *fit, share=0.5)
        yield partial(jaxcp.cv_plus, *fit, num_folds=3)
    yield partial(jaxcp.full_conformal, *fit)


def doors_of_ends(mu, y):
    """Those whose scores are not 0 where the prediction is right."""
    half = np.full(len(y), np.std(y))
    yield lambda: jaxcp.calibrate(scores.CQR(), (mu - half, mu + half), y)
    normal = scores.Density(lambda pred, y: -0.5 * ((y - pred) / 1.0) ** 2)
    yield lambda: jaxcp.calibrate(normal, mu, y)
    learner, x = jaxcp.learners.Ridge(1.0), np.linspace(0, 1, len(y))[:, None]
    fit = jax.random.key(0), learner, scores.Absolute(), x, y
    yield partial(jaxcp.cv_plus, *fit, num_folds=3)


@pytest.mark.parametrize("offset, noise", OFFSETS)
def test_targets_that_lose_their_noise_are_refused(offset, noise):
    rng = np.random.default_rng(0)
    y = offset + noise * rng.normal(size=60)
    mu = np.full(60, offset)
    for door in [*doors(mu, y), *doors_of_fits(mu, y), *doors_of_ends(mu, y)]:
        with pytest.raises(ValueError, match=r"y with digits .*JAX_ENABLE_X64=1"):
            door()
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(60), y - offset)  # the cure
    assert 0.5 * noise < cp.quantile(0.5) < noise
    with jax.enable_x64(True):
        cp = jaxcp.calibrate(scores.Absolute(), np.full(60, offset), y)
        assert_allclose(np.sort(cp.scores), np.sort(np.abs(y - offset)), rtol=1e-6)


def test_gradients_in_scores_of_targets_that_were_rounded():
    preds, y = np.zeros(9), np.linspace(0.1, 1, 9)

    def total(factor):
        score = scores.Custom(partial(lambda f, pred, y: f * abs(y - pred), factor))
        return jaxcp.calibrate(score, preds, y).scores.sum()

    assert_allclose(jax.grad(total)(2.0), y.sum(), rtol=1e-6)


def test_digits_of_many_rows_are_those_of_some():
    rng, n = np.random.default_rng(0), 50_000
    noise, mask = rng.normal(size=n), rng.random(n) < 0.5
    mu = np.full(n, 1e5)
    with pytest.raises(ValueError, match="y with digits"):
        jaxcp.calibrate(scores.Absolute(), mu, mu + 0.01 * noise, mask=mask)
    jaxcp.calibrate(scores.Absolute(), mu, mu + 100 * noise, mask=mask)


def test_infinite_sets_need_no_digits():
    y = 1e6 + 1e-4 * np.arange(9)
    everything = sets.Interval(jnp.full(9, -jnp.inf), jnp.full(9, jnp.inf))
    assert metrics.coverage(everything, y) == 1


def test_metrics_do_not_hide_lost_digits():
    y = 2.5e6 + 0.05 * np.random.default_rng(0).normal(size=99)
    narrow = sets.Interval(jnp.full(99, 2.5e6), jnp.full(99, 2.5e6))
    with pytest.raises(ValueError, match="y with digits"):
        metrics.coverage(narrow, y)
    boxes = sets.Box(narrow.lower[:, None], narrow.upper[:, None])
    with pytest.raises(ValueError, match="y with digits"):
        metrics.coverage(boxes, y[:, None])
    wide = sets.Interval(jnp.full(99, 2.49e6), jnp.full(99, 2.51e6))
    assert metrics.coverage(wide, y) == 1


@pytest.mark.parametrize("offset, noise", [(2e5, 2e4), (1.0, 1e-3), (1e-30, 1e-31)])
def test_targets_with_digits_enough_pass(offset, noise):
    rng = np.random.default_rng(0)
    y = offset + noise * rng.normal(size=60)
    mu = np.full(60, offset)
    for door in [*doors(mu, y), *doors_of_fits(mu, y), *doors_of_ends(mu, y)]:
        door()
    whole = rng.integers(-(2**24), 2**24, 60)  # nothing is lost, whatever the error
    for dtype in (np.int64, np.int32, float):
        jaxcp.calibrate(scores.Absolute(), whole.astype(dtype), whole.astype(dtype))


SHAPES = {
    "a number, then several": (scores.Absolute(), (), (3,)),
    "one output, then several": (scores.Absolute(), (1,), (3,)),
    "signed": (scores.Signed(), (), (2,)),
    "gamma": (scores.Gamma(), (2,), (3,)),
}
PAIRS = {
    "bands": (scores.CQR(), (), (3,)),
    "rectangle": (scores.Rectangle(), (2,), (3,)),
    "normalized": (scores.Normalized(), (2,), (3,)),
    "mahalanobis": (scores.Mahalanobis(), (2,), (3,)),
}


@pytest.mark.parametrize("name", [*SHAPES, *PAIRS])
def test_predictions_keep_the_shape_they_had_at_calibration(name):
    pairs = name in PAIRS
    score, shape, other = (PAIRS if pairs else SHAPES)[name]
    known, new = jnp.ones((9, *shape)), jnp.ones((4, *other))
    preds, wrong = ((known, known), (new, new)) if pairs else (known, new)
    cp = jaxcp.calibrate(score, preds, known)
    groups = jnp.zeros(9, int)
    by_group = jaxcp.calibrate_groups(score, preds, known, groups, num_groups=1)
    for call in [
        lambda: cp(wrong, 0.2),
        lambda: cp.p_values(wrong, new),
        lambda: by_group(wrong, 0.2, groups=groups[:4]),
    ]:
        with pytest.raises(ValueError, match=r"rows of shape .* as at calibration"):
            call()


def test_bands_may_come_as_one_array_or_as_two():
    pairs = jnp.stack([jnp.zeros(9), jnp.ones(9)], axis=1)
    two = pairs[:, 0], pairs[:, 1]
    for first, then in [(pairs, two), (two, pairs)]:
        cp = jaxcp.calibrate(scores.CQR(), first, jnp.arange(9.0))
        assert_array_equal(cp(first, 0.2).upper, cp(then, 0.2).upper)


@pytest.mark.parametrize("name", ["pcp", "hdpcp", "cp2pcp", "c-pcp", "cdf-absolute"])
def test_only_the_number_of_draws_may_change(name):
    case = CASES[name]
    preds, y = jax.tree.map(jnp.asarray, case.batch(9))
    cp = jaxcp.calibrate(case.score, preds, y)
    draws = [v.ndim > 1 and name != "cdf-absolute" for v in jax.tree.leaves(preds)]
    draws = [False, True] if name == "cdf-absolute" else draws
    leaves, tree = jax.tree.flatten(preds)
    fewer = [v[:, :-1] if d else v for v, d in zip(leaves, draws, strict=True)]
    cp(jax.tree.unflatten(tree, fewer), 0.2)
    wider = [jnp.stack([v, v], axis=-1) for v in leaves]
    with pytest.raises(ValueError, match="as at calibration"):
        cp(jax.tree.unflatten(tree, wider), 0.2)


def test_own_scores_of_labels_may_read_pairs():
    """The labels are counted by their scores, not by the parts of a prediction."""

    @jaxcp.pytree
    class Randomized(scores.Labelwise):
        def labels(self, pred):
            p, u = pred
            return 1 - p * u

    p, u = jnp.full((9, 4), 0.25), jnp.full(9, 0.5)
    cp = jaxcp.calibrate(Randomized(), (p, u), jnp.arange(9) % 4)
    assert_array_equal(cp.scores, 0.875)


@pytest.mark.parametrize("seed", range(4))
def test_a_label_is_in_the_weighted_set_iff_its_p_value_exceeds_alpha(seed):
    """Integer weights are summed exactly, on any scale: the two sides agree."""
    rng = np.random.default_rng(seed)
    for scale in [1.0, 3.0, 1e-6]:
        weights = rng.integers(0, 4, 7) * scale
        cal, test = rng.integers(1, 6, 7) * 1.0, np.arange(1.0, 7.0)
        cp = jaxcp.Calibration(
            scores.Absolute(), jnp.asarray(cal), jnp.asarray(weights, float)
        )
        one = np.full(6, scale)
        p = cp.p_values(np.zeros(6), test, test_weights=one)
        for alpha in [0.05, 0.125, 0.25, 0.5, 0.75]:
            found = cp(np.zeros(6), alpha, test_weights=one)
            assert_array_equal(np.asarray(found.contains(test)), np.asarray(p) > alpha)


def test_weighted_p_values_do_not_round_integer_weights():
    cal, weights = [4.0, 5, 2, 5, 4, 2, 2], [2.0, 0, 0, 1, 3, 0, 1]
    assert jaxcp.conformal_p_value(cal, 5.0, weights=weights, test_weight=1) == 0.25
    cp = jaxcp.Calibration(scores.Absolute(), jnp.array(cal), jnp.array(weights))
    assert cp.p_values([0.0], [5.0], test_weights=[1])[0] == 0.25


def test_outliers_among_subnormal_scores():
    """Outliers are those with p <= alpha, though arithmetic takes scores for 0."""
    rng = np.random.default_rng(0)
    cal = (rng.integers(-9, 9, (200, 9)) * 1e-41).astype(np.float32)
    test = (rng.integers(-9, 9, (200, 5)) * 1e-41).astype(np.float32)
    for row, new in zip(jnp.asarray(cal), jnp.asarray(test), strict=True):
        p = outliers.outlier_p_values(row, new)
        assert_array_equal(outliers.is_outlier(row, new, 0.2), p <= np.float32(0.2))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n != "lac"))
        for n in CASES
        if n != "normalized-bad-sigma"
    ],
)
def test_everything_runs_without_jit(name):
    """`jax.disable_jit`, the first tool of anybody who debugs, changes no result."""
    case = CASES[name]
    preds, y = case.batch(12)

    def results():
        cp = jaxcp.calibrate(case.score, preds, y)
        found = metrics.coverage(cp(preds, 0.2), y)
        return cp.scores, cp.quantile(0.2), cp.p_values(preds, y), found

    with jax.disable_jit():
        eager = results()
    for a, b in zip(eager, results(), strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_scores_that_read_numpy_say_what_to_do():
    score = scores.Custom(lambda pred, y: np.abs(np.asarray(y) - np.asarray(pred)))
    with pytest.raises(ValueError, match="functions that jax can trace"):
        jaxcp.calibrate(score, jnp.zeros(3), jnp.ones(3))
    with pytest.raises(ValueError, match="functions that jax can trace"):
        scores_of_custom = scores.Custom(lambda pred, y: 1.0 if y > pred else 0.0)
        jaxcp.calibrate(scores_of_custom, jnp.zeros(3), jnp.ones(3))


class Model:
    def fit(self, x, y):
        return self

    def predict(self, x, check_input=True):
        if x is None:
            raise ValueError("Expected 2D array, got scalar array instead")
        return np.zeros(len(x))

    def __call__(self, x):
        return self.predict(x)


@pytest.mark.parametrize(
    "predict",
    [Model().predict, Model(), lambda x: np.zeros(len(x))],
    ids=["method", "model", "one argument"],
)
def test_methods_and_networks_are_no_predict(predict):
    x = np.zeros((9, 1))
    with pytest.raises(ValueError, match=r"lambda _, x: (model.predict|network)\(x\)"):
        jaxcp.split_conformal(predict, None, scores.Absolute(), x, np.ones(9))


def test_errors_inside_of_predict_are_its_own():
    with pytest.raises(TypeError, match="unsupported operand"):
        jaxcp.split_conformal(
            lambda _, x: x + None, None, scores.Absolute(), np.zeros(9), np.ones(9)
        )


def test_scores_of_halves_stay_halves():
    y = jnp.ones(3, jnp.float16)
    assert scores_of(scores.Absolute(), y, y).dtype == jnp.float16


def test_values_of_every_size_print(key):
    for n in (3, 30):
        cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(n), jnp.arange(float(n)))
        x, y = jnp.arange(float(n))[:, None], jnp.arange(float(n))
        cross = jaxcp.cv_plus(
            key, jaxcp.learners.Ridge(1.0), cp.score, x, y, num_folds=3
        )
        online = jaxcp.online
        methods = [
            online.ACI(cp.score, 0.1),
            online.DtACI(cp.score, jnp.linspace(0.1, 1, n)),
            online.PID(cp.score, 0.1),
            online.SFOGD(cp.score, 0.1),
            online.NexCP(cp.score, 0.9),
            online.Similar(cp.score, 1.0),
            online.SlidingWindow(cp.score),
        ]
        states = [method.init(cp.scores, 0.1) for method in methods]
        for value in [cp, cross, cp(jnp.zeros(n), 0.1), *methods, *states]:
            assert repr(value)
    assert "row_shapes=((),)" in repr(cp)
    assert "scores=float32[30]" in repr(cp)
    assert repr(states[0]).startswith("ACIState(window=Window(scores=float32[30]")


def test_networks_print_how_large_they_are():
    linear = partial(nnx.Linear, rngs=nnx.Rngs(0))
    layers = linear(3, 16), linear(16, 1)
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9), np.arange(9.0))
    predict = lambda params, x: x  # noqa: E731
    for network in (nnx.Sequential(*layers), nnx.split(nnx.Sequential(*layers))[1]):
        shown = f"{type(network).__name__}(4 arrays of 81 numbers)"
        assert f"={shown}, cal" in repr(jaxcp.SplitConformal(predict, network, cp))
    few = repr(jaxcp.SplitConformal(predict, linear(1, 1), cp))
    assert "Param(" in few


def test_numbers_by_themselves_keep_their_values():
    """Of 64 bits, where an array is expected and where a number is."""
    large = np.int64(2**33)
    cp = jaxcp.calibrate(
        scores.Absolute(), np.zeros(9), np.arange(9), weights=np.ones(9)
    )
    assert cp.quantile(0.2, test_weight=large) == np.inf
    assert cp.quantile(0.2, test_weight=2**33) == np.inf
    assert jaxcp.weighted_select(np.arange(3.0), np.full(3, 2**32), large) == 1
    assert jaxcp.weighted_select(np.arange(3.0), np.full(3, 2**32), 2**33) == 1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
def test_levels_of_every_float_type(kind):
    assert jaxcp.conformal_rank(9, kind(0.1)) == 9


@pytest.mark.parametrize("seed", range(4))
def test_predictions_that_are_right_to_the_last_digits_are_no_loss_of_digits(seed):
    """Of targets most of which are one number: a price, a limit, a rounded value."""
    rng = np.random.default_rng(seed)
    value, same = rng.normal() * 10.0 ** rng.integers(-3, 4), rng.random(60) < 0.8
    off = value * rng.integers(-9, 9, 60) * np.finfo(float).eps
    spread = value * (2 + rng.normal(size=(2, 60)))
    mu, y = np.where(same, [value + off, np.full(60, value)], spread)
    for door in [*doors(mu, y), *doors_of_fits(mu, y)]:
        door()
    lost = np.where(same, y, mu * (1 + 1e-9 * rng.normal(size=60)))
    for y in (lost, mu * (1 + 1e-9)):
        with pytest.raises(ValueError, match="y with digits"):
            jaxcp.calibrate(scores.Absolute(), mu, y)


def test_exact_predictions_are_no_loss_of_digits():
    y = 0.1 + 7 * np.random.default_rng(0).random(60)
    mostly = np.where(np.arange(60) % 5, y, y + 0.3)
    for preds in (y, mostly):
        for door in doors(preds, y):
            door()
        jaxcp.calibrate(scores.Gamma(), preds, y)


@pytest.mark.parametrize("others", [1, 2, 5])
def test_an_output_that_loses_its_noise_is_seen_among_others(others):
    rng = np.random.default_rng(0)
    fine = rng.normal(size=(60, others)) / 3
    y = np.column_stack([fine, 2.5e6 + 0.05 * rng.normal(size=60)])
    mu = np.column_stack([0 * fine, np.full(60, 2.5e6)])
    with pytest.raises(ValueError, match="y with digits"):
        jaxcp.calibrate(scores.Absolute(), mu, y)
    with pytest.raises(ValueError, match="y with digits"):
        metrics.coverage(sets.Box(jnp.asarray(mu - 1e-3), jnp.asarray(mu + 1e-3)), y)
    boxes = np.column_stack([y[:, :1], y[:, -1:], y[:, :1] + 1, y[:, -1:] + 1e4])
    found = sets.BoundingBox(jnp.asarray(boxes[:, :2]) - 1, jnp.asarray(boxes[:, 2:]))
    assert metrics.coverage(found, boxes) >= 0
