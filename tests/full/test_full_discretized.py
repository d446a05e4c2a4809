"""Discretized full conformal prediction, against refits of each cell in a loop."""

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression

import jaxcp
from jaxcp import learners, scores
from rows import KEY, RIDGE, X2, PlainLearner, X, refuses

GOLDEN = Path(__file__).parents[1] / "reference/distributional/full_grid.npz"
ABSOLUTE = scores.Absolute()
GRID = np.linspace(-2, 2, 9)  # halfway are 8ths: exact
ALPHAS = [0.05, 0.1, 0.2, 0.35, 0.5]
rng = np.random.default_rng(0)
XS = rng.normal(size=(24, 3))
YS = XS[:, 0] + rng.standard_t(3, size=24) / 2
NEW = rng.normal(size=(4, 3))


def discretized(x=XS, y=YS, grid=GRID, learner=RIDGE, score=ABSOLUTE, **options):
    return jaxcp.discretized_conformal(KEY, learner, score, x, y, grid, **options)


def joined(pieces):
    """Returns pieces that touch as one."""
    out = []
    for lower, upper in pieces:
        if lower <= upper and out and lower <= out[-1][1]:
            out[-1][1] = upper
        elif lower <= upper:
            out.append([lower, upper])
    return np.array(out).reshape(-1, 2)


def assert_pieces(sets, i, expected, **tolerance):
    got = np.stack([sets.lower[i], sets.upper[i]], axis=-1)
    assert_allclose(got[: len(expected)], expected, **tolerance)
    assert_array_equal(got[len(expected) :, 0], np.inf)
    assert_array_equal(got[len(expected) :, 1], -np.inf)


def ridge_in_numpy(x, y, penalty=1.0):
    """Returns what ridge with an intercept predicts for its rows."""
    center, level = x.mean(axis=0), y.mean()
    rows = x - center
    gram = rows.T @ rows + penalty * np.eye(x.shape[1])
    return level + rows @ np.linalg.solve(gram, rows.T @ (y - level))


def cells(grid):
    halfway = (grid[1:] + grid[:-1]) / 2
    return np.r_[-np.inf, halfway], np.r_[halfway, np.inf]


def brute_force(x, y, x_new, grid, alpha, kth=None):
    """The pieces of `Absolute` and ridge at one input, from the definition."""
    lows, highs = cells(grid)
    rounded = grid[np.argmin(abs(y[:, None] - grid), axis=1)]
    k = len(y) + 1 - int(Fraction(str(alpha)) * (len(y) + 1))
    kth = kth or (lambda s: np.sort(s)[k - 1] if k <= len(s) else np.inf)
    pieces = []
    for target, low, high in zip(grid, lows, highs, strict=True):
        preds = ridge_in_numpy(np.vstack([x, x_new]), np.append(rounded, target))
        q = kth(abs(y - preds[:-1]))
        pieces.append((max(preds[-1] - q, low), min(preds[-1] + q, high)))
    return joined(pieces)


@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-9), (False, 1e-5)])
def test_golden_vectors(double, tolerance):
    with jax.enable_x64(double):
        case = {k.removeprefix("grid__"): v for k, v in np.load(GOLDEN).items()}
        ridge = learners.Ridge(float(case["penalty"]), intercept=False)
        cp = discretized(case["x"], case["y"], case["grid"], ridge)
        for a, alpha in enumerate(case["alphas"]):
            sets = cp(case["x_new"], float(alpha))
            for i, pieces in enumerate(case["pieces"][:, a]):
                assert_pieces(sets, i, joined(pieces), rtol=0, atol=tolerance)


def test_refits_in_a_loop():
    with jax.enable_x64(True):
        cp = discretized()
        for alpha in (0.03, 0.1, 0.5):
            sets = cp(NEW, alpha)
            for i, x in enumerate(NEW):
                assert_pieces(sets, i, brute_force(XS, YS, x, GRID, alpha), atol=1e-9)


def test_targets_round_to_the_nearest_value_and_halves_down():
    """Integers on a grid of integers and halves: every rule counts."""
    with jax.enable_x64(True):
        y, grid = np.round(2 * YS) / 2, np.arange(-3.0, 4)
        sets = discretized(y=y, grid=grid)(NEW, 0.2)
        for i, x in enumerate(NEW):
            assert_pieces(sets, i, brute_force(XS, y, x, grid, 0.2), atol=1e-9)


def test_masked_rows_are_not_there():
    with jax.enable_x64(True):
        mask, weights = np.arange(24) % 3 > 0, np.linspace(0.2, 1, 24)
        given = np.where(mask, YS, 1e3)
        sets = discretized(y=given, mask=mask)(NEW, 0.2)
        for i, x in enumerate(NEW):
            expected = brute_force(XS[mask], YS[mask], x, GRID, 0.2)
            assert_pieces(sets, i, expected, atol=1e-9)
        some = discretized(y=given, mask=mask, calibration_weights=weights)
        rest = discretized(XS[mask], YS[mask], calibration_weights=weights[mask])
        found, p = (cp.p_values(NEW, NEW[:, 0]) for cp in (some, rest))
        assert_allclose(found, p, rtol=1e-12)


def test_weights_are_those_of_the_weighted_quantile():
    with jax.enable_x64(True):
        weights, test_weights = np.linspace(0.5, 2, 24), np.array([0.5, 1.0, 2.0, 30.0])
        cp = discretized(calibration_weights=weights)
        sets = cp(NEW, 0.2, test_weights=test_weights)
        for i, x in enumerate(NEW):

            def kth(s, own=test_weights[i]):
                q = jaxcp.weighted_conformal_quantile
                return float(q(s, weights, 0.2, test_weight=own))

            assert_pieces(sets, i, brute_force(XS, YS, x, GRID, 0.2, kth), atol=1e-9)
        assert np.isinf(sets.upper[3, 0])


@pytest.mark.parametrize(
    ("learner", "score", "alpha"),
    [
        (learners.QuantileRidge((0.2, 0.8), 0.1), scores.CQR(), 0.2),
        pytest.param(
            *(learners.MeanScale(RIDGE, RIDGE), scores.Normalized(), 0.2),
            marks=pytest.mark.slow,
        ),
        pytest.param(RIDGE, scores.Signed(), 0.3, marks=pytest.mark.slow),
        (learners.NearestNeighbors(5), scores.Custom(ABSOLUTE, start=lambda p: p), 0.2),
    ],
    ids=["CQR", "Normalized", "Signed", "Custom"],
)
def test_sets_are_refits_and_a_target_is_in_iff_its_p_value_is_above_alpha(
    learner, score, alpha
):
    with jax.enable_x64(True):
        cp = discretized(learner=learner, score=score)
        lows, highs = cells(GRID)
        y = np.linspace(-2.6, 2.6, 53) + 0.003
        x = np.broadcast_to(NEW[0], (len(y), 3))
        p = np.asarray(cp.p_values(x, y))
        for level in (alpha, 0.5):
            assert_array_equal(cp(x, level).contains(y), p > level)
        rounded = GRID[np.argmin(abs(YS[:, None] - GRID), axis=1)]
        rows, fit = np.vstack([XS, NEW[:1]]), jax.jit(learner.fit)
        for j in (2, 5, 7):
            targets = np.append(rounded, GRID[j])
            preds = learner.predict(fit(KEY, rows, targets, np.ones(25)), rows)
            pred = jax.tree.map(lambda v: v[-1], preds)
            known = jax.vmap(score)(jax.tree.map(lambda v: v[:-1], preds), YS)
            for target in y[(y > lows[j]) & (y < highs[j])][::3]:
                own = np.asarray(score(pred, target))
                counts = (1 + np.sum(np.asarray(known) >= own, axis=0)) / 25
                expected = np.minimum(1, np.min(counts) * own.size)
                assert_allclose(p[y == target], expected)


def trial(key, n=19):
    x, y = jaxcp.datasets.linear(key, n + 1)
    grid = jnp.linspace(-4, 4, 7)
    cp = jaxcp.discretized_conformal(key, RIDGE, ABSOLUTE, x[:n], y[:n], grid)
    p = cp.p_values(x[n:], y[n:])[0]
    return {"held": cp(x[n:], 0.2).contains(y[n:])[0], "p": p > 0.2 + 1e-6}


def test_coverage_is_k_over_n_plus_1():
    num = 10_000
    found = jaxcp.simulate(trial, KEY, num)
    assert_array_equal(found["held"], found["p"])
    assert abs(np.mean(found["held"]) - 0.8) < 4 * np.sqrt(0.8 * 0.2 / num)


def test_transforms():
    """jit and blocks change nothing; a vmap over penalties is a loop."""
    with jax.enable_x64(True):

        def ends(penalty, x=XS, x_new=NEW, batch_size=None):
            ridge = learners.Ridge(penalty)
            cp = discretized(x, learner=ridge, batch_size=batch_size)
            sets = cp(x_new, 0.2)
            return sets.lower, sets.upper

        eager = ends(1.0)
        for other in (jax.jit(ends)(1.0), ends(1.0, batch_size=3)):
            assert_allclose(other, eager, atol=1e-9)
        many = jax.vmap(ends)(jnp.array([0.5, 1.0]))
        assert_allclose([v[1] for v in many], eager, atol=1e-9)
        assert_allclose([v[0] for v in many], ends(0.5), atol=1e-9)


def test_gradients_of_ends_are_their_slopes():
    with jax.enable_x64(True):

        def width(penalty, shift):
            cp = discretized(XS + shift, learner=learners.Ridge(penalty))
            return jnp.sum(cp(NEW, 0.2).hull().size())

        given = 1.3, jnp.full(XS.shape, 0.01) * XS
        width = jax.jit(width)
        by_penalty, by_x = jax.grad(width, argnums=(0, 1))(*given)
        step = 1e-6 * jnp.ones(XS.shape) * XS[::-1]
        for slope, ends in (
            (by_penalty * 1e-6, [(1.3 + s * 1e-6, given[1]) for s in (0.5, -0.5)]),
            (jnp.sum(by_x * step), [(1.3, given[1] + s * step) for s in (0.5, -0.5)]),
        ):
            change = width(*ends[0]) - width(*ends[1])
            assert_allclose(slope, change, rtol=1e-4)


def test_too_few_rows_make_the_whole_line():
    empty = np.zeros((0, 3)), np.zeros(0)
    for cp in (
        discretized(*empty),
        discretized(mask=np.arange(24) < 1),
    ):
        sets = cp(NEW, 0.1)
        assert_array_equal(sets.lower[:, 0], -np.inf)
        assert_array_equal(sets.upper[:, 0], np.inf)
        assert_array_equal(sets.num_pieces(), 1)
    assert_array_equal(cp.p_values(NEW, NEW[:, 0]) >= 0.5, True)
    assert discretized()(NEW[:0], 0.1).lower.shape == (0, 9)
    assert discretized().p_values(NEW[:0], YS[:0]).shape == (0,)


def test_rows_that_are_equal_tie():
    """Whatever rounding does to the last row of a product."""
    ridge = learners.Ridge(0.3, intercept=False)
    x, y = np.tile(NEW[:1], (26, 1)), np.full(26, YS[0])
    cp = discretized(x, y, learner=ridge)
    assert_array_equal(cp.p_values(x[:1], y[:1]), 1)
    assert_array_equal(cp(x[:1], 0.9).contains(y[:1]), True)


def test_values_that_are_not_numbers_exclude_nothing():
    cp = discretized()
    sets = cp(np.full((1, 3), np.nan), 0.2)
    assert_array_equal(sets.hull().size(), np.inf)
    assert_array_equal(cp.p_values(np.full((1, 3), np.nan), YS[:1]), 1)
    infinite = discretized(y=np.where(np.arange(24) < 3, np.inf, YS))
    assert np.all(np.isfinite(infinite(NEW, 0.2).hull().size()))
    assert_array_equal(infinite(NEW, 0.1).hull().size(), np.inf)


def test_a_score_that_is_not_known_at_the_target_says_nothing_against_it():
    """Whatever the scores of the rows are: p = 1, as for the smallest score."""

    def evaluate(pred, y):
        return jnp.where(y > 10, jnp.nan, jnp.abs(y - pred))

    cp = discretized(score=scores.Custom(evaluate, ABSOLUTE.invert))
    targets = np.array([11.0, 12.0, 0.5, 50.0])
    assert_array_equal(cp.p_values(NEW, targets) == 1, targets > 10)


def test_traced_grids_that_do_not_increase_tell_nothing():
    def ends(grid):
        cp = discretized(grid=grid)
        sets = cp(NEW, 0.2)
        return sets.hull().size(), sets.num_pieces(), cp.p_values(NEW, NEW[:, 0])

    grids = [[0, np.nan, 1], [0, 2, 1], [0, 1, np.inf], [1, 1, 2], [0, 1, 2]]
    sizes, counts, p = jax.jit(jax.vmap(ends))(jnp.asarray(grids, float))
    assert_array_equal(sizes[:4], np.inf)
    assert_array_equal(counts[:4], 1)
    assert_array_equal(p[:4], 1)
    assert np.all(np.isfinite(sizes[4]))


def test_one_cell_of_a_grid_is_the_line():
    sets = discretized(grid=[0.0])(NEW, 0.2)
    preds = ridge_in_numpy(np.vstack([XS, NEW[:1]]), np.zeros(25))
    assert_allclose(preds, 0)
    q = np.sort(abs(YS))[19]
    assert_allclose(sets.lower, np.full((4, 1), -q), rtol=1e-6)


def test_predictions_may_have_an_axis_of_one_output():
    predict = lambda params, x: RIDGE.predict(params, x)[:, None]  # noqa: E731
    column = learners.FunctionLearner(RIDGE.fit, predict)
    sets, expected = discretized(learner=column)(NEW, 0.2), discretized()(NEW, 0.2)
    assert_allclose(sets.lower, expected.lower, rtol=1e-5)


def test_certificate_is_the_marginal_coverage():
    assert discretized().certificate(0.2).coverage == 20 / 25


def gradient_learner(batch_size):
    return learners.GradientLearner(
        init=lambda key: jnp.zeros(()),
        predict=lambda params, x: params * x[:, 0],
        loss=optax.squared_error,
        optimizer=optax.sgd(0.1),
        num_steps=3,
        batch_size=batch_size,
    )


def refused(x=X2, y=X, grid=X, **options):
    return lambda: discretized(x, y, grid, **options)


LAST = learners.FunctionLearner(
    lambda key, x, y, weights: y[-1], lambda params, x: jnp.full(len(x), params)
)
CP = discretized(X2, X, X)
test_wrong_calls = refuses(
    {
        "a number": (refused(grid=100), r"grid of shape \(n,\), got \(\)"),
        "no grid": (refused(grid=None), "grid as a value, got None"),
        "an empty grid": (refused(grid=[]), "length of grid as an int >= 1, got 0"),
        "falling": (
            refused(grid=[0.0, 2.0, 1.0]),
            "grid in increasing order, got 1.0 at 2; numpy.unique",
        ),
        "repeated": (refused(grid=[0, 1, 1]), "in increasing order, got 1.0 at 2"),
        "NaN": (refused(grid=[0, np.nan]), "grid of finite values, got nan at 1"),
        "infinite": (refused(grid=[0, np.inf]), "grid of finite values, got inf at 1"),
        "complex": (refused(y=X + 1j), "y as real numbers, got complex"),
        "several outputs": (refused(y=X2), r"y of shape \(n,\), got \(9, 2\)"),
        "labels": (
            refused(score=scores.LAC()),
            "one column a label",
        ),
        "a score without ends": (
            refused(score=scores.Custom(ABSOLUTE)),
            "whose sets are intervals, got LevelSet from Custom; .* takes an inverse",
        ),
        "no score": (refused(score=abs), "a score with an inverse"),
        "a model": (
            refused(learner=LinearRegression()),
            r"learner of jax, got Lin.*takes learners.Estimator\(model\)",
        ),
        "a model of the host": (
            refused(learner=learners.Estimator(LinearRegression())),
            "learner of jax, got Estimator, .* split_conformal or cv_plus",
        ),
        "no pytree": (refused(learner=PlainLearner()), "learner as a pytree"),
        "mini-batches": (
            refused(learner=gradient_learner(4)),
            "treats all rows alike, got GradientLearner with batch_size=4",
        ),
        "an order": (refused(learner=LAST), "whatever the order of the rows"),
        "a penalty": (refused(learner=learners.Ridge(-1.0)), "penalty >= 0"),
        "few targets": (refused(y=X[:8]), "x with 8 rows like y, got 9"),
        "NaN targets": (refused(y=X * np.nan), "y without NaN"),
        "a short mask": (refused(mask=X[:3] > 0), "mask with 9 rows like y, got 3"),
        "weights below 0": (
            refused(calibration_weights=-X),
            "finite calibration_weights >= 0, got -1.0 at 0",
        ),
        "NaN inputs": (refused(x=X2 * np.nan), "x without NaN, got nan at"),
        "a pair": (refused(score=scores.CQR()), r"preds as a tuple \(lower, upper\)"),
        "batches of none": (refused(batch_size=0), "batch_size as an int >= 1"),
        "other columns": (
            lambda: CP(X2[:, :1], 0.1),
            r"x_new with rows of shape \(2,\) like x, got \(1,\)",
        ),
        "no level": (lambda: CP(X2, 1.5), r"alpha in \(0, 1\)"),
        "levels": (lambda: CP(X2, [0.1, 0.2]), r"alpha of shape \(\), got \(2,\)"),
        "weights for none": (
            lambda: CP(X2, 0.1, test_weights=X),
            "test_weights only with calibration weights",
        ),
        "p-values of few": (
            lambda: CP.p_values(X2, X[:3]),
            "y with 9 rows like x_new, got 3",
        ),
        "p-values of NaN": (lambda: CP.p_values(X2, X * np.nan), "y without NaN"),
        "uniforms above 1": (lambda: CP.p_values(X2, X, u=2 * X), r"u in \[0, 1\]"),
    }
)
