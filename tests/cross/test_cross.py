"""Jackknife+, CV+ and relatives against loops written from the papers."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
import references
from helpers import (
    CASES,
    ONE_OF_EACH,
    assert_intervals,
    cut,
    inside,
    regression,
    same,
)
from jaxcp import datasets, learners, online, resampling, scores
from jaxcp.cross import _votes
from jaxcp.cross.plans import Recorded
from jaxcp.sets import Box, LabelSet

KEY = jax.random.key(0)
RIDGE, ABSOLUTE = learners.Ridge(0.5), scores.Absolute()
N, M = 30, 8


def data(n=N, m=M):
    x, y = regression(n + m, 3)
    return x[:n], y[:n], x[n:], y[n:]


X, Y, X_NEW, Y_NEW = data()


@pytest.fixture(scope="module")
def jackknife():
    return jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X, Y)


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.5, 0.9, 0.03])
def test_jackknife_family_against_the_loop(jackknife, alpha):
    loop = references.jackknife(
        *(np.float64(v) for v in (X, Y, X_NEW)), 0.5, str(alpha)
    )
    ways = {"plus": jackknife, "minmax": jackknife.minmax, "naive": jackknife.naive}
    for name, way in ways.items():
        assert_intervals(way(X_NEW, alpha), *loop[name])
    assert np.all(np.isinf(loop["plus"][1])) == (alpha < 1 / (N + 1))


@pytest.mark.slow
def test_closed_form_equals_refits_to_the_last_digits():
    with jax.enable_x64(True):
        x, y, new = (jnp.asarray(v, float) for v in (X, Y, X_NEW))
        for learner in (
            RIDGE,
            learners.KernelRidge(0.3, 2.0),
            learners.NearestNeighbors(4),
        ):
            closed = jaxcp.jackknife_plus(KEY, learner, ABSOLUTE, x, y)
            weights = resampling.leave_one_out(N)
            refits = jaxcp.cross_conformal(KEY, learner, ABSOLUTE, x, y, weights)
            assert_allclose(closed.scores, refits.scores, rtol=1e-8, atol=1e-8)
            sets = refits(new, 0.1)
            exact = {"rtol": 1e-8, "atol": 1e-8}
            assert_intervals(closed(new, 0.1), sets.lower, sets.upper, **exact)


@pytest.mark.parametrize("aggregation", ["folds", "bootstrap"])
def test_centers_are_means_over_rows_in_double_precision(aggregation):
    """Folds of 4 and 5 rows: a share of rows is as precise as the predictions."""
    with jax.enable_x64(True):
        x, y, new = (jnp.asarray(v, float) for v in (X, Y, X_NEW))
        if aggregation == "folds":
            cp = jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, x, y, num_folds=7)
            held_out = np.arange(7)[:, None] == np.asarray(cp.calibration.left_out.fold)
            assert {*held_out.sum(axis=1)} == {4, 5}
        else:
            cp = jaxcp.jackknife_plus_after_bootstrap(
                KEY, RIDGE, ABSOLUTE, x, y, num_resamples=7
            )
            held_out = np.asarray(cp.calibration.left_out.held_out)
        preds, center = np.asarray(cp.fits.predict(new)), cp.aggregate(new)
    assert center.dtype == np.float64
    seen = held_out[:, held_out.any(axis=0)]
    each = (seen.T @ preds) / seen.sum(axis=0)[:, None]
    assert_allclose(center, each.mean(axis=0), rtol=1e-12)


def test_as_many_folds_as_rows_are_the_jackknife(jackknife):
    folds = jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X, Y, num_folds=N)
    assert_allclose(folds.scores, jackknife.scores, rtol=1e-4, atol=1e-5)
    for way in ("__call__", "minmax", "naive"):
        sets = getattr(jackknife, way)(X_NEW, 0.2)
        assert_intervals(getattr(folds, way)(X_NEW, 0.2), sets.lower, sets.upper)


@pytest.mark.parametrize("num_folds", [2, 3, 7])
def test_cv_plus_against_the_loop(num_folds):
    cp = jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X, Y, num_folds=num_folds)
    fold = np.asarray(cp.calibration.left_out.fold)
    assert np.ptp(np.bincount(fold)) <= 1
    preds, residuals = np.empty((N, M)), np.empty(N)
    for i in range(N):
        coef = references.ridge(X[fold != fold[i]], Y[fold != fold[i]], 0.5)
        residuals[i] = abs(Y[i] - np.append(X[i], 1) @ coef)
        preds[i] = np.column_stack([X_NEW, np.ones(M)]) @ coef
    assert_allclose(cp.scores, residuals, rtol=1e-4, atol=1e-5)
    loop = references.plus_interval(preds, residuals, "0.2")
    assert_intervals(cp(X_NEW, 0.2), *loop)


RECORDED = Recorded()
ROWS = 190  # in three folds: just below where folds count as long
STORED = np.random.default_rng(1).normal(size=(3, ROWS)).round(1)  # with ties
FOLD = np.minimum(np.arange(ROWS) // 60, 2)  # uneven: 60, 60, 70
HELD_OUT = FOLD[None] == np.arange(3)[:, None]
LONG = {
    "absolute": (ABSOLUTE, STORED),
    "signed": (scores.Signed(), STORED),
    "cqr": (scores.CQR(), (STORED - 0.5, STORED + 0.4)),
    "normalized": (scores.Normalized(), (STORED, 0.1 + np.abs(STORED))),
}


@pytest.mark.parametrize("name", LONG)
def test_long_folds_give_the_same_sets(name):
    """Sorted scores of a few folds against a pass over all scores."""
    score, preds = LONG[name]
    y = np.random.default_rng(2).normal(size=ROWS).round(1)
    cp = jaxcp.cross_calibrate(score, preds, y, HELD_OUT)
    x = jax.tree.map(lambda v: v[:, :20], preds)
    assert not _votes._has_long_folds(cp, x)
    long = jax.jit(lambda cp, x, rank: _votes._plus_of_folds(cp, RECORDED, x, rank, x))
    for alpha in (0.001, 0.1, 0.5):
        rank = jaxcp.conformal_rank(ROWS, alpha / (2 if name == "signed" else 1))
        level = jnp.broadcast_to(rank, cp.scores.shape[1:])
        sets, expected = long(cp, x, level), cp(x, alpha)
        # Ends that are moved out by rounding need not grow with scores that tie but
        # for rounding.
        assert_intervals(sets, expected.lower, expected.upper, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_long_folds_have_the_same_gradients():
    x, y, x_new, _ = data(200)

    def ends(penalty, way):
        cp = jaxcp.cv_plus(KEY, learners.Ridge(penalty), ABSOLUTE, x, y, num_folds=3)
        assert _votes._has_long_folds(cp.calibration, cp.fits.predict(x_new))
        rank = jaxcp.conformal_rank(200, 0.1)
        ballot = _votes.Ballot(rank[None], None, None, jnp.ones(()))

        def one(preds):
            preds = cp.calibration.left_out.without_each(preds)
            return _votes.plus(ABSOLUTE, preds, cp.scores, ballot)

        sets = (
            cp(x_new, 0.1) if way == "long" else jax.vmap(one)(cp.fits.by_input(x_new))
        )
        return sets.lower, sets.upper

    one, other = (
        jax.jacfwd(lambda p, w=way: ends(p, w))(0.5) for way in ("long", "short")
    )
    assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert np.all(np.abs(np.asarray(one)) > 0)


@jax.jit
def centroids(key, x, y, weights):
    del key
    member = weights[None] * (y[None] == jnp.arange(3)[:, None])
    return member @ x / jnp.maximum(jnp.sum(member, axis=1), 1)[:, None]


CLASSIFIER = learners.FunctionLearner(
    centroids, lambda c, x: jax.nn.softmax(2 * x @ c.T - jnp.sum(c**2, axis=1)[None])
)
CLASSES = datasets.classes(jax.random.key(3), 212)


@pytest.mark.parametrize("n", [40, 200], ids=["short folds", "long folds"])
@pytest.mark.parametrize(
    "score",
    [scores.LAC(), scores.APS(), scores.RAPS(0.1, 1), scores.TopK()],
    ids=lambda s: type(s).__name__,
)
def test_labels_are_counted(score, n):
    """A label is kept iff fewer than k scores are below its own: by brute force."""
    x, y = CLASSES
    cp = jaxcp.cv_plus(KEY, CLASSIFIER, score, x[:n], y[:n], num_folds=3)
    preds = cp.fits.predict(x[200:])
    assert _votes._has_long_folds(cp.calibration, preds) == (n == 200)
    each = jax.jit(jax.vmap(jax.vmap(score.labels)))(preds)
    labels = np.asarray(each)[np.asarray(cp.calibration.left_out.fold)]
    below = np.sum(np.asarray(cp.scores)[:, None, None] < labels, axis=0)
    for alpha in ("0.02", "0.1", "0.4"):
        expected = below < references.rank(n, alpha)
        assert_array_equal(cp(x[200:], float(alpha)).mask, expected)


def test_inclusive_label_sets_are_supersets():
    x, y = CLASSES
    plain, inclusive = (
        jaxcp.cv_plus(KEY, CLASSIFIER, score, x[:40], y[:40], num_folds=4)
        for score in (scores.APS(), scores.APS(inclusive=True))
    )
    assert_array_equal(plain.scores, inclusive.scores)
    for way in ("__call__", "minmax", "naive"):
        small, large = (getattr(cp, way)(x[200:], 0.2) for cp in (plain, inclusive))
        assert np.all(small.mask <= large.mask)
        assert np.any(small.mask < large.mask)


def test_minmax_and_naive_label_sets(jackknife):
    x, y = CLASSES
    cp = jaxcp.cv_plus(KEY, CLASSIFIER, scores.LAC(), x[:40], y[:40], num_folds=4)
    q = float(cp.calibration.quantile(0.2))
    preds = np.asarray(cp.fits.predict(x[200:]))
    assert_array_equal(cp.minmax(x[200:], 0.2).mask, np.any(1 - preds <= q, axis=0))
    full = np.asarray(CLASSIFIER.predict(cp.fits.full, x[200:]))
    assert_array_equal(cp.naive(x[200:], 0.2).mask, 1 - full <= q)


def test_a_fit_whose_prediction_is_not_known_leaves_nothing_out_of_minmax():
    """Traced, at one input of three: the whole line there, the others as they are."""
    held_out = np.arange(12) % 3 == np.arange(3)[:, None]
    preds, y = np.zeros((3, 12), "f"), np.arange(12, dtype="f")
    cp = jaxcp.cross_calibrate(scores.Absolute(), preds, y, held_out)
    minmax = jax.jit(lambda preds: cp.minmax(preds, 0.2))
    new = np.arange(9, dtype="f").reshape(3, 3)
    others = minmax(new.copy())
    new[1, 1] = np.nan
    sets = minmax(new)
    is_unknown = np.arange(3) == 1
    assert_array_equal(sets.lower, np.where(is_unknown, -np.inf, others.lower))
    assert_array_equal(sets.upper, np.where(is_unknown, np.inf, others.upper))


def test_weights_against_the_loop():
    weights = np.linspace(0.2, 2.0, N).astype(np.float32)
    test_weights = np.linspace(0.1, 9.0, M).astype(np.float32)
    cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X, Y, calibration_weights=weights)
    preds, residuals = np.asarray(cp.fits.predict(X_NEW)), np.asarray(cp.scores)
    for alpha in (0.1, 0.3):
        sets = cp(X_NEW, alpha, test_weights=test_weights)
        for j in range(M):
            expected = references.weighted_plus_interval(
                preds[:, j : j + 1], residuals, weights, test_weights[j], alpha
            )
            assert_allclose(sets.lower[j], expected[0][0], rtol=1e-5, atol=1e-5)
            assert_allclose(sets.upper[j], expected[1][0], rtol=1e-5, atol=1e-5)
        # Where the test point outweighs what may be missed, its set is infinite.
        assert np.isinf(sets.upper[-1]) == (alpha == 0.1)


def test_vectors_have_boxes_family_wise(jackknife):
    y = np.stack([Y, -Y], axis=1)
    cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X, y)
    box, side = cp(X_NEW, 0.2), jackknife(X_NEW, 0.1)
    assert isinstance(box, Box)
    assert_intervals(
        box,
        *(
            np.stack(v, axis=1)
            for v in ((side.lower, -side.upper), (side.upper, -side.lower))
        ),
    )
    other = cp(X_NEW, [0.1, 0.3])
    assert_allclose(other.upper[:, 0], side.upper, rtol=1e-5)


def test_a_score_without_an_inverse_votes(jackknife):
    distance = scores.Custom(lambda pred, y: jnp.abs(y - pred))
    cp = jaxcp.jackknife_plus(KEY, RIDGE, distance, X, Y)
    grid = jnp.linspace(-6, 6, 101)
    for way in ("__call__", "minmax"):
        votes, sets = (getattr(c, way)(X_NEW, 0.2) for c in (cp, jackknife))
        inside = jax.vmap(lambda s: jax.vmap(s.contains)(grid))(votes)
        expected = jax.vmap(lambda s: jax.vmap(s.contains)(grid))(sets)
        # The hull of the votes is the interval; here the votes have no gaps.
        assert np.mean(inside != expected) < 0.01
    with pytest.raises(ValueError, match="closed-form size"):
        jaxcp.metrics.mean_size(cp(X_NEW, 0.2))


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_bootstrap_against_the_loop(aggregation):
    bags = np.random.default_rng(0).poisson(1, (9, N)).astype(float)
    bags[:, 3] = 1  # in every bag
    cp = jaxcp.cross_conformal(
        KEY, RIDGE, ABSOLUTE, X, Y, bags, aggregation=aggregation
    )
    combine = {"mean": np.mean, "median": np.median}[aggregation]
    own, new = np.asarray(cp.fits.predict(X)), np.asarray(cp.fits.predict(X_NEW))
    held = bags == 0
    kept = held.any(axis=0)
    assert_array_equal(cp.mask, kept)
    # A row in every bag counts, with an infinite score at any prediction.
    residuals, each = np.full(N, np.inf), np.zeros((N, M))
    for i in np.flatnonzero(kept):
        residuals[i] = abs(Y[i] - combine(own[held[:, i], i]))
        each[i] = combine(new[held[:, i]], axis=0)
    preds = each[kept]
    assert_allclose(cp.scores, residuals, rtol=1e-5, atol=1e-5)
    loop = references.plus_interval(each, residuals, "0.2")
    assert_intervals(cp(X_NEW, 0.2), *loop)
    q = references.conformal_quantile(residuals, "0.2")
    assert_intervals(
        cp.minmax(X_NEW, 0.2), preds.min(axis=0) - q, preds.max(axis=0) + q
    )
    assert_allclose(cp.aggregate(X_NEW), combine(preds, axis=0), rtol=1e-4, atol=1e-5)
    k = len(preds) - int(0.2 * len(preds))
    assert_allclose(
        cp.aggregate(X_NEW, alpha=0.2),
        np.sort(preds, axis=0)[k - 1],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "name", ["absolute", "signed", "normalized", "raps-randomized", "custom", "latent"]
)
def test_rows_in_every_bag_exclude_nothing(name):
    """The k-th of n scores, of which some are infinite, is the k-th of the others."""
    case, n, held = CASES[name], 40, 30
    preds, y = case.batch(n)
    of_fits = jax.tree.map(lambda v: np.stack([v, np.roll(v, 1, 0), v]), preds)
    x = jax.tree.map(lambda v: v[:, :10], of_fits)
    target = case.batch(10, start=50)[1]
    bags = np.arange(3)[:, None] != np.arange(n)[None] % 3  # each lacks two
    bags &= np.arange(n)[None] < held
    cp = jaxcp.cross_calibrate(case.score, of_fits, y, bags)
    alone = jaxcp.cross_calibrate(
        case.score,
        jax.tree.map(lambda v: v[:, :held], of_fits),
        y[:held],
        bags[:, :held],
    )
    assert_array_equal(cp.mask, np.arange(n) < held)
    assert np.all(np.isposinf(cp.scores[held:])) and cp.calibration.mask.all()
    rank, c = references.rank(n, "0.3"), cp.calibration.components
    level = Fraction(held + 1 - rank, held + 1)
    for way in ("__call__", "minmax"):
        found = inside(getattr(cp, way)(x, np.full(c, 0.3)), target)
        expected = inside(getattr(alone, way)(x, np.full(c, level)), target)
        assert_array_equal(found, expected)
        assert np.all(inside(getattr(cp, way)(x, np.full(c, 0.2)), target))
    # One that is known not to count does not.
    masked = jaxcp.cross_calibrate(case.score, of_fits, y, bags, mask=cp.mask)
    found = inside(masked(x, np.full(c, level)), target)
    assert_array_equal(found, inside(alone(x, np.full(c, level)), target))


def test_few_bags():
    """By the theorem rows of every bag count, and EnbPI leaves them out."""
    few = jaxcp.jackknife_plus_after_bootstrap(
        KEY, RIDGE, ABSOLUTE, X, Y, num_resamples=1
    )
    known = np.asarray(few.mask)
    assert 0 < known.sum() < N - 0.4 * N
    assert_array_equal(np.isposinf(few.scores), ~known)
    for way in (few, few.minmax, few.naive):
        assert np.all(np.isposinf(way(X_NEW, 0.4).upper))
    method, state = few.stream()
    kept = jaxcp.conformal_quantile(few.scores[known], 0.4)
    assert_array_equal(
        online.run(method, state, Y_NEW[:1], Y_NEW[:1], 0.4)[1].upper, Y_NEW[:1] + kept
    )
    # One fit and rows that it did not see: split conformal prediction.
    weights = (~known)[None].astype(float)
    split = jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X, Y, weights)
    assert_array_equal(split.calibration.mask, known)
    assert np.all(np.isfinite(split(X_NEW, 0.4).upper))


def test_rows_in_every_bag():
    everything = jnp.ones((3, N))
    with pytest.raises(ValueError, match="some row with weight 0 in a resample"):
        jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X, Y, everything)
    traced = jax.jit(
        lambda w: jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X, Y, w)(X_NEW, 0.2)
    )
    assert np.all(np.isinf(traced(everything).upper))
    # A bag with every row holds nothing out, and changes nothing.
    weights = resampling.k_fold(KEY, N, 3)
    sets = traced(jnp.concatenate([weights, everything[:1]]))
    expected = traced(weights)
    assert_intervals(sets, expected.lower, expected.upper)


def test_nothing_left_out_is_everything():
    """Under jit, where the weights cannot be looked at: of every kind of set."""
    x, y = CLASSES

    @jax.jit
    def sets(weights):
        of_labels = jaxcp.cross_conformal(
            KEY, CLASSIFIER, scores.LAC(), x[:N], y[:N], weights
        )
        of_numbers = jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X, Y, weights)
        return [
            way(new, 0.3)
            for cp, new in ((of_labels, x[200:]), (of_numbers, X_NEW))
            for way in (cp, cp.minmax, cp.naive)
        ]

    for s in sets(jnp.ones((3, N))):
        assert np.all(s.mask if isinstance(s, LabelSet) else np.isinf(s.upper))
        assert isinstance(s, LabelSet) or np.all(s.lower == -np.inf)


def test_a_fit_on_all_rows_is_in_no_set():
    """Beside folds it holds nothing out: minmax leaves it aside, traced or not."""
    far = learners.FunctionLearner(
        lambda key, x, y, w: jnp.where(jnp.sum(w) == N, 99.0, 0.0),
        lambda params, x: jnp.full(len(x), params),
    )
    weights = jnp.concatenate([resampling.k_fold(KEY, N, 3), jnp.ones((1, N))])

    def run(weights):
        cp = jaxcp.cross_conformal(KEY, far, ABSOLUTE, X, Y, weights)
        return cp.minmax(X_NEW, 0.3)

    eager, traced = run(weights), jax.jit(run)(weights)
    assert_intervals(eager, traced.lower, traced.upper)
    assert np.all(eager.upper < 99)


def test_a_fit_that_diverged_spoils_its_own_rows_only():
    diverging = learners.FunctionLearner(
        lambda key, x, y, w: jnp.where(w[0] == 0, jnp.inf, w @ y / jnp.sum(w)),
        lambda params, x: jnp.full(len(x), params),
    )
    bags = resampling.bootstrap(KEY, N, 12)
    cp = jaxcp.cross_conformal(KEY, diverging, ABSOLUTE, X, Y, bags)
    used = np.asarray((bags[:, :1] == 0) & (bags == 0)).any(axis=0)
    assert_array_equal(np.isfinite(cp.scores), ~used)
    assert 0 < used.sum() < N


def test_learners_of_learners_are_held_out():
    """Neighbors of the errors of a mean: each fit has targets of its own."""
    both = learners.MeanScale(RIDGE, learners.NearestNeighbors(5))
    weights = resampling.k_fold(KEY, N, 3)
    cp = jaxcp.cross_conformal(KEY, both, scores.Normalized(), X, Y, weights)
    for j, keep in enumerate(np.asarray(weights) > 0):
        ones = np.ones(keep.sum(), np.float32)
        params = jax.jit(both.fit)(KEY, X[keep], Y[keep], ones)
        mu, sigma = jax.jit(both.predict)(params, X[~keep])
        assert_allclose(cp.scores[~keep], abs(Y[~keep] - mu) / sigma, rtol=1e-4)
        assert (
            np.asarray(cp.calibration.left_out.fold)[~keep].tolist()
            == [j] * (~keep).sum()
        )


def test_parameters_that_are_not_shared():
    wrong = learners.FunctionLearner(
        lambda key, x, y, w: learners.Shared(w @ y), lambda p, x: x[:, 0] * p.value
    )
    with pytest.raises(ValueError, match="Shared to depend on x alone"):
        jaxcp.cv_plus(KEY, wrong, ABSOLUTE, X, Y, num_folds=3)


@pytest.mark.parametrize("params", [(), None, learners.Shared(jnp.zeros(2))], ids=str)
def test_models_without_parameters(params):
    fixed = learners.FunctionLearner(lambda *_: params, lambda p, x: x[:, 0])
    for cp in (
        jaxcp.cv_plus(KEY, fixed, ABSOLUTE, X, Y, num_folds=3),
        jaxcp.jackknife_plus(KEY, fixed, ABSOLUTE, X, Y),
    ):
        assert_allclose(cp.scores, np.abs(Y - X[:, 0]), rtol=1e-6)
        sets = cp(X_NEW, 0.2)
        q = cp.calibration.quantile(0.2)
        assert_intervals(sets, X_NEW[:, 0] - q, X_NEW[:, 0] + q)


@pytest.mark.slow
def test_few_rows_and_few_inputs(jackknife):
    one = jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X[:1], Y[:1], jnp.zeros((2, 1)))
    assert np.all(np.isinf(one(X_NEW, 0.1).upper))
    for n in (2, 3):
        cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X[:n], Y[:n])
        assert np.all(np.isinf(cp(X_NEW, 0.1).upper))
        assert np.all(np.isfinite(cp(X_NEW, 0.5).upper))
    cv = jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X[:2], Y[:2], num_folds=2)
    assert np.all(np.isfinite(cv(X_NEW, 0.5).upper))
    whole = jackknife(X_NEW, 0.2)
    one, none = jackknife(X_NEW[:1], 0.2), jackknife(X_NEW[:0], 0.2)
    assert_allclose(one.upper, whole.upper[:1], rtol=1e-6)
    assert none.upper.shape == (0,)
    assert jackknife.minmax(X_NEW[:0], 0.2).upper.shape == (0,)
    assert jackknife.aggregate(X_NEW[:0]).shape == (0,)


def test_fits_in_batches_are_the_same_fits():
    weights = resampling.bootstrap(KEY, N, 7)
    kernel = learners.KernelRidge(0.3, 2.0)
    for learner in (RIDGE, kernel):
        cps = [
            jaxcp.cross_conformal(
                KEY, learner, ABSOLUTE, X, Y, weights, batch_size=size
            )
            for size in (None, 3)
        ]
        assert_allclose(cps[0].scores, cps[1].scores, rtol=1e-5, atol=1e-5)
        a, b = (jax.tree.leaves(cp.fits.params) for cp in cps)
        assert [v.shape for v in a] == [v.shape for v in b]
    # The training rows that all fits share are kept once.
    assert cps[1].fits.params.x.value.shape == X.shape


def test_many_inputs_go_in_blocks(monkeypatch, jackknife):
    from jaxcp import _batching

    def double(x):
        sizes.append(len(x))
        return {"a": 2 * x}

    monkeypatch.setattr(_batching, "_BLOCK", {"cpu": 20})
    for m in (0, 4, 12, 13):
        sizes, x = [], jnp.arange(float(m))
        out = _batching.map_blocks(double, x, width=5)
        assert_array_equal(out["a"], 2 * x)
        assert set(sizes) == {min(m, 4)}  # one program


def test_penalty_path_is_one_call_and_leaves_vmap():
    penalties = jnp.array([0.1, 0.5, 2.0])

    @jax.jit
    def fit(penalty):
        return jaxcp.jackknife_plus(KEY, learners.Ridge(penalty), ABSOLUTE, X, Y)

    paths = jax.vmap(fit)(penalties)
    sets = jax.vmap(lambda cp: cp(X_NEW, 0.2))(paths)
    for i, penalty in enumerate(penalties):
        same(cut(sets, i), fit(penalty)(X_NEW, 0.2), rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 0.001], ids=["finite", "infinite"])
def test_gradients_through_all_of_it(alpha):
    def width(penalty, x):
        cp = jaxcp.jackknife_plus(KEY, learners.Ridge(penalty), ABSOLUTE, x, Y)
        sets = [way(X_NEW, alpha) for way in (cp, cp.minmax, cp.naive)]
        ends = [v for s in sets for v in (s.lower, s.upper)]
        return sum(jnp.sum(jnp.where(jnp.isfinite(v), v, 0) ** 2) for v in ends)

    width = jax.jit(width)
    slopes = jax.jit(jax.grad(width, (0, 1)))(0.5, X)
    assert all(np.all(np.isfinite(v)) for v in slopes)
    if alpha == 0.2:
        change = (width(0.51, X) - width(0.49, X)) / 0.02
        assert_allclose(slopes[0], change, rtol=0.05)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_sets_of_every_score(name):
    """More in minmax than in "+", more at a smaller level, whatever the score."""
    case = CASES[name]
    preds, y = case.batch(40)
    of_fits = jax.tree.map(lambda v: np.stack([v, np.roll(v, 1, 0)]), preds)
    held_out = np.arange(40)[None] % 2 == np.arange(2)[:, None]
    cp = jaxcp.cross_calibrate(case.score, of_fits, y, held_out)
    x = jax.tree.map(lambda v: v[:, :10], of_fits)
    ways = [cp(x, 0.1), cp.minmax(x, 0.1), cp(x, 0.7), cp.minmax(x, 0.7), cp(x, 0.01)]
    target = case.batch(10, start=50)[1]
    held = (np.asarray(inside(s, target)) for s in ways)
    small, widest, narrow, wide, everything = held
    assert np.all(narrow <= wide) and np.all(small <= widest)
    assert np.all(narrow <= small) and np.all(everything)
    assert np.mean(narrow) < 1


FOLLOWERS = {
    "ridge": (RIDGE, ABSOLUTE),
    "kernel": (learners.KernelRidge(0.3), ABSOLUTE),
    "neighbors": (learners.NearestNeighbors(3), ABSOLUTE),
    "quantiles": (learners.QuantileRidge((0.1, 0.9), 1.0), scores.CQR()),
    "scale": (learners.MeanScale(RIDGE, RIDGE), scores.Normalized()),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_results_have_the_type_of_the_data(name, dtype):
    """Also where double precision is the default type of weights and levels."""
    learner, score = FOLLOWERS[name]

    def run(x, y):
        cps = [
            jaxcp.jackknife_plus(KEY, learner, score, x, y),
            jaxcp.jackknife_plus_after_bootstrap(
                KEY, learner, score, x, y, num_resamples=5
            ),
        ]
        ways = [w(x, 0.1) for cp in cps for w in (cp, cp.minmax, cp.naive)]
        window = online.SlidingWindow(score)
        state = window.init(cps[0].scores, 0.1)
        stream = online.run(window, state, cps[0].aggregate(x), y, 0.1)[1]
        return ways, cps[1].scores, cps[1].aggregate(x), stream

    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(s, dtype) for s in ((9, 2), (9,))]
        results = jax.tree.leaves(jax.eval_shape(run, *shapes))
    assert {v.dtype.name for v in results} == {dtype}


def test_minmax_of_components_is_the_union_of_each():
    """A target that each fit misses by another component is in: no bound says less."""
    rng = np.random.default_rng(0)
    preds, y = (rng.normal(size=s).astype(np.float32) for s in ((3, N, 2), N))
    score = scores.Custom(lambda pred, y: jnp.abs(y - pred))
    held_out = np.arange(N)[None] % 3 == np.arange(3)[:, None]
    cp = jaxcp.cross_calibrate(score, preds, y, held_out)
    q, grid = np.asarray(cp.quantile(0.6)), np.linspace(-4, 4, 81, dtype=np.float32)
    new = preds[:, :5]
    kept = np.abs(grid[:, None, None, None] - new[None]) <= q
    union, joint = kept.any(axis=1).all(axis=2), kept.all(axis=3).any(axis=1)
    assert np.any(union & ~joint)
    found = jax.vmap(lambda y: cp.minmax(new, 0.6).contains(jnp.full(5, y)))(grid)
    assert_array_equal(found, union)


def test_votes_of_inner_boxes_are_inner_boxes():
    """Whatever box has the votes lies around the inner box that they leave."""
    sides = np.stack([Y - 9, Y - 9, Y + 9, Y + 9], axis=1)
    score = scores.BoxOffset(inner=True, maximum=True)
    cp, by_votes = (
        jaxcp.jackknife_plus(KEY, RIDGE, s, X, sides)
        for s in (score, scores.Custom(score))
    )
    centers = np.asarray(cp.naive(X_NEW, 0.2).corners())
    noise = np.random.default_rng(0).normal(size=(200, *centers.shape))
    for way in ("__call__", "minmax"):
        found, votes = (getattr(c, way)(X_NEW, 0.2) for c in (cp, by_votes))
        assert found.inner and np.all(found.lower < found.upper)
        inside, held = (
            np.asarray(jax.jit(jax.vmap(s.contains))(centers + noise))
            for s in (votes, found)
        )
        assert 0.01 < np.mean(inside) < np.mean(held) < 0.9
        assert not np.any(inside & ~held)
