"""Jackknife+ without one cluster at a time: rows weigh 1/N_k, a new row 1."""

from datetime import date
from fractions import Fraction
from functools import partial
from math import comb, floor

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import promised, regression, same
from jaxcp import learners, resampling, scores
from rows import refuses

KEY = jax.random.key(0)
SCORE, RIDGE = scores.Absolute(), learners.Ridge(1.0)
IDS = np.array([3, 3, 3, 3, 0, 1, 1, 2, 2, 2, 2, 2, 0, 5])  # K = 5
N, K = len(IDS), 5


def rows(seed=0):
    return regression(N, 2, seed)


def fit(key, x, y, weights):
    return jnp.sum(weights * y) / jnp.sum(weights)


MEAN = learners.FunctionLearner(fit, lambda mean, x: mean + x[:, 1])


def upper_end(values, ids, alpha):
    """Returns min{v : sum_k #{i : values_ki > v}/N_k + 1 <= alpha (K + 1)}."""
    names = set(ids.tolist())
    sizes = {name: int(np.sum(ids == name)) for name in names}
    for v in np.sort(values):
        above = sum(Fraction(1, sizes[i]) for i in ids[values > v].tolist())
        if above + 1 <= Fraction(alpha) * (len(names) + 1):
            return v
    return np.inf


def by_hand(x, y, ids, new, alpha):
    """Returns the ends of jackknife+ over clusters, from the definition."""
    lower, upper = [], []
    for point in new:
        ends = np.empty((2, len(y)), "f")
        for i, name in enumerate(ids):
            mean = np.mean(y[ids != name])
            score = abs(y[i] - (mean + x[i, 1]))
            ends[:, i] = mean + point[1] - score, mean + point[1] + score
        lower.append(-upper_end(-ends[0], ids, alpha))
        upper.append(upper_end(ends[1], ids, alpha))
    return np.array(lower), np.array(upper)


@pytest.mark.parametrize("alpha", ["1/10", "1/6", "1/4", "2/5", "3/4"])
def test_ends_are_those_of_the_definition(alpha):
    x, y = rows()
    new = rows(1)[0][:4]
    cp = jaxcp.jackknife_plus(KEY, MEAN, SCORE, x, y, clusters=IDS)
    sets = cp(new, float(Fraction(alpha)))
    lower, upper = by_hand(x, y, IDS, new, alpha)
    assert_allclose(sets.lower, lower, rtol=1e-5)
    assert_allclose(sets.upper, upper, rtol=1e-5)
    assert np.isinf(upper).all() == (alpha == "1/10")  # alpha (K + 1) < 1


def test_ties_are_kept():
    held_out = IDS[None] == np.unique(IDS)[:, None]
    for y in (np.ones(N), np.arange(N) % 3.0):
        cp = jaxcp.cross_calibrate(
            SCORE, np.zeros((K, N)), y, held_out, clusters=IDS.tolist()
        )
        for alpha in ("1/6", "1/3", "1/2"):
            found = cp(np.zeros((K, 1)), float(Fraction(alpha))).upper
            assert_array_equal(found, [upper_end(y, IDS, alpha)])


def test_labels_are_those_with_enough_weight():
    rng = np.random.default_rng(4)
    p, new = (rng.dirichlet(np.ones(3), (K, n)).astype("f") for n in (N, 6))
    y, names = rng.integers(3, size=N), np.unique(IDS)
    held_out = IDS[None] == names[:, None]
    cp = jaxcp.cross_calibrate(scores.LAC(), p, y, held_out, clusters=IDS)
    found = cp(new, 0.4).mask
    own = np.searchsorted(names, IDS)
    own_scores = 1 - p[own, np.arange(N), y]
    weights = 1 / np.bincount(own)[own]
    for j in range(6):
        for label in range(3):
            below = weights[own_scores < 1 - new[own, j, label]].sum()
            # {y : weight of R_i < s is less than (1 - alpha) (K + 1)}
            assert found[j, label] == (below < 0.6 * (K + 1) - 1e-6)


def test_one_row_a_cluster_is_the_jackknife_to_the_last_bit():
    x, y = rows()
    for learner in (RIDGE, MEAN):
        data = KEY, learner, SCORE, x, y
        one = jaxcp.jackknife_plus(*data, clusters=[f"row {i}" for i in range(N)])
        plain = jaxcp.jackknife_plus(*data)
        for way in ("__call__", "minmax", "naive"):
            same(getattr(one, way)(x, 0.2), getattr(plain, way)(x, 0.2))
        assert one.certificate(0.2) == plain.certificate(0.2)


def test_fits_leave_out_whole_clusters_and_weights_are_shares():
    x, y = rows()
    cp = jaxcp.jackknife_plus(KEY, RIDGE, SCORE, x, y, clusters=IDS)
    preds, names = np.asarray(cp.fits.predict(x)), sorted(set(IDS.tolist()))
    for fold, name in enumerate(names):
        keep = name != IDS
        params = RIDGE.fit(KEY, x[keep], y[keep], np.ones(keep.sum(), "f"))
        assert_allclose(preds[fold], RIDGE.predict(params, x), rtol=1e-4, atol=1e-5)
    sizes = np.bincount(IDS)[IDS]
    assert_allclose(cp.calibration.calibration.weights, 1 / sizes, rtol=1e-6)


def test_models_of_scikit_learn_leave_out_the_same():
    from sklearn.linear_model import Ridge

    x, y = rows()
    model = learners.Estimator(Ridge(1.0))
    given = {"clusters": IDS, "check": False}
    found = jaxcp.jackknife_plus(KEY, model, SCORE, x, y, **given)(x, 0.4)
    expected = jaxcp.jackknife_plus(KEY, RIDGE, SCORE, x, y, **given)(x, 0.4)
    assert_allclose(found.upper, expected.upper, rtol=1e-4)


ALIKE = {
    "words": lambda v: [f"patient {i}" for i in v],
    "pairs": lambda v: [(i, "left") for i in v],
    "days": lambda v: [date(2026, 1, 1 + i) for i in v],
    "frozen sets": lambda v: [frozenset([i]) for i in v],
    "kinds mixed": lambda v: [i if i < 3 else str(i) for i in v],
    "a column": lambda v: pd.Series(v).astype(str),
    "categories": lambda v: pd.Series(v).astype("category"),
    "floats": lambda v: v + 0.5,
    "an array of jax": jnp.asarray,
}


@pytest.mark.parametrize("kind", ALIKE)
def test_ids_are_any_hashable_values(kind):
    x, y = rows()
    known = jaxcp.jackknife_plus(KEY, RIDGE, SCORE, x, y, clusters=IDS)
    found = jaxcp.jackknife_plus(KEY, RIDGE, SCORE, x, y, clusters=ALIKE[kind](IDS))
    assert_array_equal(found(x, 0.4).upper, known(x, 0.4).upper)


def test_masked_rows_are_as_if_deleted():
    y = rows()[1]
    mask, names = np.arange(N) % 4 != 1, np.unique(IDS)
    preds = np.stack([rows(seed)[1] for seed in range(K)])
    held_out, ids = IDS[None] == names[:, None], IDS.astype(object)
    ids[1] = None  # of a row that does not count
    kept = preds[:, mask], y[mask], held_out[:, mask]
    found = jaxcp.cross_calibrate(SCORE, preds, y, held_out, clusters=ids, mask=mask)
    expected = jaxcp.cross_calibrate(SCORE, *kept, clusters=IDS[mask])
    sets = found(preds[:, :3], 0.4), expected(preds[:, :3], 0.4)
    assert_allclose(sets[0].upper, sets[1].upper, rtol=1e-6)


FOLDS = IDS[None] == np.unique(IDS)[:, None]
ROWS = KEY, RIDGE, SCORE, *rows()
WRONG = {
    "groups": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=IDS, groups=IDS, num_groups=6),
        "expected clusters without weights and groups, got some; nothing is proved for "
        "both: one row of each cluster, drawn at random, takes them",
    ),
    "weights": (
        lambda: jaxcp.jackknife_plus(
            *ROWS, clusters=IDS, calibration_weights=np.ones(N)
        ),
        "expected clusters without weights and groups",
    ),
    "one cluster": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=["a"] * N),
        "expected the number of clusters as an int >= 2, got 1",
    ),
    "too few ids": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=IDS[1:]),
        "expected clusters with 14 rows like y, got 13",
    ),
    "no id": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=[None, *IDS[1:].tolist()]),
        "expected clusters without missing ones, got None",
    ),
    "a table": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=IDS[:, None]),
        r"expected clusters of shape \(n,\), got \(14, 1\)",
    ),
    "traced ids": (
        lambda: jax.jit(lambda v: jaxcp.jackknife_plus(*ROWS, clusters=v))(IDS),
        "expected clusters with values, got a traced array",
    ),
    "half a cluster": (
        lambda: jaxcp.cross_calibrate(
            SCORE, np.zeros((K, N)), ROWS[-1], FOLDS, clusters=np.arange(N) // 2
        ),
        "expected fits that leave out whole clusters, got rows of one with and without "
        "fit 0",
    ),
    "a bound by counts": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=IDS).certificate(0.2),
        "expected a certificate only for rows without clusters",
    ),
    "test weights": (
        lambda: jaxcp.jackknife_plus(*ROWS, clusters=IDS)(
            ROWS[-2], 0.2, test_weights=np.ones(N)
        ),
        "expected test weights only for rows without clusters",
    ),
    "more folds than clusters": (
        lambda: resampling.group_k_fold(KEY, IDS, 6),
        "expected num_folds <= clusters = 5, got 6",
    ),
}


test_wrong_calls_say_what_is_wrong = refuses(WRONG)


def test_folds_are_of_whole_clusters():
    ids = np.repeat([f"{i}" for i in range(11)], np.arange(1, 12))
    weights = np.asarray(resampling.group_k_fold(KEY, ids, 4))
    assert_array_equal(np.sum(weights == 0, axis=0), 1)
    fold = weights.argmin(axis=0)
    each = [set(fold[ids == name].tolist()) for name in dict.fromkeys(ids)]
    assert all(len(own) == 1 for own in each)
    counts = np.bincount([own.pop() for own in each])
    assert sorted(counts) == [2, 3, 3, 3]
    other = resampling.group_k_fold(jax.random.key(1), ids, 4)
    assert (np.asarray(other) != weights).any()
    jitted = jax.jit(lambda key: resampling.group_k_fold(key, ids, 4))
    assert_array_equal(jitted(KEY), weights)


# A new cluster is hard with probability p, with one row and a target in (1, 2), or easy
# with SIZE rows in (0, 1). The model says 0 whatever it has seen.
SHARE, CLUSTERS, SIZE, ALPHA = 0.7, 6, 8, 0.3
CODES = np.repeat(np.arange(CLUSTERS), SIZE)


def exact_coverage(weighted):
    """Returns the coverage of a new row, by the number of hard clusters."""
    total, share = Fraction(0), Fraction("0.7")
    alpha = Fraction("0.3")
    for hard in range(CLUSTERS + 1):
        easy = SIZE * (CLUSTERS - hard)
        if weighted:  # the weight that may lie above the threshold
            most = alpha * (CLUSTERS + 1) - 1
            above = min(hard, floor(most))
            more = floor((most - hard) * SIZE)  # easy rows, if no hard row is left
        else:
            above = floor(alpha * (hard + easy + 1)) - 1
            more = above - hard
        of_hard = max(Fraction(hard - above, hard + 1), 0)
        of_easy = 1 if above < hard else Fraction(easy - more, easy + 1)
        weight = comb(CLUSTERS, hard) * share**hard * (1 - share) ** (CLUSTERS - hard)
        total += weight * (share * of_hard + (1 - share) * of_easy)
    return float(total)


def draw(key):
    """Returns targets of rows, which of them there are, and the target of a new row."""
    keys = jax.random.split(key, 3)
    hard = jax.random.bernoulli(keys[0], SHARE, (CLUSTERS + 1,))
    u = jax.random.uniform(keys[1], (CLUSTERS + 1, SIZE)) + hard[:, None]
    counts = ~hard[:, None] | (jnp.arange(SIZE) == 0)[None]
    return u[:-1].ravel(), counts[:-1].ravel(), u[-1, 0]


@jax.jit
@jax.vmap
def ignoring(key):
    y, mask, new = draw(key)
    held_out = CODES[None] == np.arange(CLUSTERS)[:, None]
    data = SCORE, jnp.zeros((CLUSTERS, len(y))), y, held_out
    cp = jaxcp.cross_calibrate(*data, clusters=CODES, mask=mask)
    naive = jaxcp.cross_calibrate(*data, mask=mask)
    sets = [v(jnp.zeros((CLUSTERS, 1)), ALPHA) for v in (cp, naive)]
    return [v.contains(new[None])[0] for v in sets]


def test_a_model_that_ignores_the_data_has_the_coverage_of_the_formula():
    n = 10_000
    found = ignoring(jax.random.split(jax.random.key(1), n))
    for covered, weighted in zip(found, (True, False), strict=True):
        truth = exact_coverage(weighted)
        error = np.sqrt(truth * (1 - truth) / n)
        assert abs(np.mean(covered) - truth) < 4 * error
    least = 1 - 2 * ALPHA + 1 / (CLUSTERS + 1)
    assert exact_coverage(True) > least > exact_coverage(False)


@jax.jit
@jax.vmap
def learning(key):
    """A mean of rows, of clusters with means of their own, far ones with one row."""
    y, mask, new = draw(key)
    effects = 3 * jax.random.normal(jax.random.fold_in(key, 1), (CLUSTERS + 1,))
    y, new = y + effects[CODES], new + effects[-1]
    held_out = CODES[None] == np.arange(CLUSTERS)[:, None]
    kept = jnp.where(held_out, 0, mask[None])
    means = jnp.sum(kept * y[None], axis=1) / jnp.sum(kept, axis=1)
    preds = jnp.broadcast_to(means[:, None], held_out.shape)
    cp = jaxcp.cross_calibrate(SCORE, preds, y, held_out, clusters=CODES, mask=mask)
    ways = cp(means[:, None], ALPHA), cp.minmax(means[:, None], ALPHA)
    return [v.contains(new[None])[0] for v in ways]


def test_plus_sets_and_minmax_cover_what_is_promised():
    n = 6000
    plus, minmax = map(np.mean, learning(jax.random.split(jax.random.key(2), n)))
    y, mask, _ = draw(jax.random.key(2))
    held_out = CODES[None] == np.arange(CLUSTERS)[:, None]
    data = SCORE, np.zeros(held_out.shape), y, held_out
    cp = jaxcp.cross_calibrate(*data, clusters=CODES, mask=mask)
    assert np.isclose(promised(cp, ALPHA), 1 - 2 * ALPHA + 1 / (CLUSTERS + 1))
    for covered, least in ((plus, promised(cp, ALPHA)), (minmax, 1 - ALPHA)):
        assert covered > least - 4 * np.sqrt(least * (1 - least) / n)
    assert minmax >= plus


def nearest(train, x):
    old, y, weights = train
    far = abs(x[:, None] - old[None]) + jnp.where(weights > 0, 0, 1e9)[None]
    return y[jnp.argmin(far, axis=1)]


def test_a_split_by_cluster_leaves_whole_ones_and_covers_new_ones():
    """A model that knows old clusters by heart, for 12 of them with four rows each."""
    keep = lambda key, x, y, weights: (x, y, weights)  # noqa: E731
    learner = learners.FunctionLearner(keep, nearest)
    ids = jnp.repeat(jnp.arange(13), 4)

    def trial(key):
        keys = jax.random.split(key, 3)
        own = jax.random.normal(keys[0], (13,))[ids]
        y = own + 0.1 * jax.random.normal(keys[1], ids.shape)
        data = learner, SCORE, ids[:48] + 0.0, y[:48]
        split = partial(jaxcp.split_conformal_fit, keys[2], *data, share=0.45)
        found = split(), split(clusters=ids[:48])
        hits = [cp(ids[48:] + 0.0, 0.3).contains(y[48:]) for cp in found]
        return hits[0].mean(), hits[1].mean(), found[1].calibration.held.counts()

    naive, right, counts = jaxcp.simulate(trial, KEY, 2000)
    assert np.mean(naive) < 0.5  # the model has seen each old cluster
    assert np.mean(right) > 0.7 - 4 * np.std(right) / 2000**0.5
    assert {*np.asarray(counts).tolist()} == {24}  # 22 rows train, and two are left
    by_name = [f"p{i}" for i in ids[:48].tolist()]
    x, y = np.asarray(ids[:48], float), np.arange(48.0)
    cp = jaxcp.split_conformal_fit(
        KEY, learner, SCORE, x, y, share=0.45, clusters=by_name
    )
    assert_allclose(cp.calibration.weights, 0.25 * cp.calibration.mask)
    with pytest.raises(ValueError, match="48 rows like y, got 47"):
        jaxcp.split_conformal_fit(
            KEY, learner, SCORE, x, y, share=0.5, clusters=by_name[1:]
        )
