"""Promises without a law of the data: each of n + 1 rows is the new one in turn.

Exchangeable rows are the same whichever is new. So the mean over all turns keeps what
is promised, for all rows that there are and to the last row: nothing is simulated.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own import CASES

import jaxcp
from helpers import (
    components,
    num_groups_promised,
    promised,
    scores_of,
)
from jaxcp import (
    learners,
    online,
    outliers,
    predictive,
    pvalues,
    resampling,
    risk,
    scores,
)

N, NUM_SETS = 9, 200
KEY = jax.random.key(0)
OTHERS = np.array([[j for j in range(N + 1) if j != i] for i in range(N + 1)])


@functools.partial(jax.jit, static_argnums=0)
def in_turn(function, rows):
    """Returns function(old rows, new row) of each row of each set, (sets, n + 1)."""

    def turn(of_set, others, i):
        cut = lambda j: jax.tree.map(lambda v: v[j], of_set)  # noqa: E731
        return function(cut(others), cut(i))

    over_turns = jax.vmap(turn, (None, 0, 0))
    return jax.vmap(over_turns, (0, None, None))(rows, OTHERS, np.arange(N + 1))


def one(tree):
    return jax.tree.map(lambda v: v[None], tree)


@pytest.mark.parametrize("name", CASES)
def test_sets_of_every_score_miss_as_many_as_they_may(name):
    """And no p-value is below what its place among n + 1 is, with ties above it."""
    case = CASES[name]
    c = components(case)
    alpha = 0.2 if c == 1 else 0.6
    split = lambda v: v.reshape(NUM_SETS, N + 1, *v.shape[1:])  # noqa: E731
    rows = jax.tree.map(split, case.batch(NUM_SETS * (N + 1)))

    def turn(old, new):
        cp = jaxcp.calibrate(case.score, *old)
        pred, y = one(new)
        missed, least = ~cp(pred, alpha).contains(y)[0], promised(cp, alpha)
        return missed, cp.p_values(pred, y)[0], jnp.asarray(least)

    missed, p, least = map(np.asarray, in_turn(turn, rows))
    missed, places = missed.sum(axis=1), np.sort(p, axis=1) * (N + 1)
    assert np.all(missed <= (1 - least[:, 0]) * (N + 1) + 1e-5)
    below = np.arange(1, N + 2) / c - 1e-5
    assert np.all(places >= below)
    flat = jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), rows)
    s = np.sort(split(np.asarray(scores_of(case.score, *flat))), axis=1)
    if c == 1:
        with np.errstate(invalid="ignore"):  # inf - inf
            apart = np.all(np.diff(s) > 1e-4 * (1 + abs(s[:, 1:])), axis=1)
        assert np.all(missed[apart] == alpha * (N + 1))
        assert np.allclose(places[apart], np.arange(1, N + 2))


ABSOLUTE, ALPHA = scores.Absolute(), 0.2
RIDGE, NEIGHBORS = learners.Ridge(0.1), learners.NearestNeighbors(2)
GRID = jnp.linspace(-3, 3, 5)


def misses(predictor, new):
    """Returns whether the set of the new row at alpha lacks its target."""
    x, y = one(new)
    return ~predictor(x, ALPHA).contains(y)[0]


def full(learner, **options):
    def turn(old, new):
        cp = jaxcp.full_conformal(KEY, learner, ABSOLUTE, *old, **options)
        assert np.isclose(promised(cp, ALPHA), 1 - ALPHA)
        return misses(cp, new)

    return turn


def full_p_value(old, new):
    cp = jaxcp.full_conformal(KEY, RIDGE, ABSOLUTE, *old)
    return cp.p_values(*one(new))[0] <= ALPHA


def discretized(old, new):
    cp = jaxcp.discretized_conformal(KEY, RIDGE, ABSOLUTE, *old, GRID)
    p = cp.p_values(*one(new))[0]
    return jnp.maximum(misses(cp, new), p <= ALPHA)


def split(old, new):
    predict = lambda w, x: x @ w  # noqa: E731
    cp = jaxcp.split_conformal(predict, jnp.array([0.5, 2.0]), ABSOLUTE, *old)
    return misses(cp, new)


def jackknife(way):
    def turn(old, new):
        cp = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, *old)
        return misses(getattr(cp, way), new)

    return turn


def loss_of_interval(loss, bound=1.0):
    """Returns the loss of the new row in units of its bound."""

    def turn(old, new):
        (x, y), (x_new, y_new) = old, new
        cp = risk.calibrate_risk(loss, ABSOLUTE, x[:, 0], y, bound=bound)
        assert promised(cp, ALPHA * bound) == ALPHA * bound
        interval = ABSOLUTE.invert(x_new[0], cp.quantile(ALPHA * bound))
        return loss(interval, y_new) / bound

    return turn


def loss_of_labels(loss, bound=1.0, near=False):
    """Of three labels, which hold or are near to what holds."""

    def rows(x, y):
        p = jax.nn.sigmoid(jnp.stack([*x.T, y], -1))
        truth = jax.nn.sigmoid(jnp.stack([y, *x.T], -1))
        best = jnp.max(truth, -1, keepdims=True)
        return p, truth / best if near else truth > 0.6

    def turn(old, new):
        score = scores.MultiLabel()
        cp = risk.calibrate_risk(loss, score, *rows(*old), bound=bound)
        p, truth = rows(*new)
        return loss(score.invert(p, cp.quantile(ALPHA * bound)), truth) / bound

    return turn


def stream(method):
    """The set of a row from the scores of those before it."""

    def turn(old, new):
        (x, y), (x_new, y_new) = old, new
        state = method.init(jnp.abs(y - x[:, 0]), ALPHA)
        return ~method.predict(state, x_new[0], ALPHA).contains(y_new)

    return turn


def of_scores(function):
    """Returns a law of scores: the targets, whose strange ones are large."""
    return lambda old, new: function(old[1], one(new[1]))[0]


def selected(old, new):
    p = pvalues.selection_p_values(old[0][:, 0], old[1], 0.5, one(new[0][0]))
    return (p[0] <= ALPHA) & (new[1] <= 0.5)


# What is lost in a turn, in [0, 1].
EXACT = {  # in rows without ties just alpha in the mean
    "Calibration.quantile": of_scores(
        lambda s, new: abs(new) > jaxcp.calibrate(ABSOLUTE, 0 * s, s).quantile(ALPHA)
    ),
    "conformal_rank": of_scores(
        lambda s, new: (jnp.sum(s < new) >= jaxcp.conformal_rank(N, ALPHA))[None]
    ),
    "conformal_quantile": of_scores(
        lambda s, new: new > jaxcp.conformal_quantile(s, ALPHA)
    ),
    "conformal_p_value": of_scores(
        lambda s, new: jaxcp.conformal_p_value(s, new[0])[None] <= ALPHA
    ),
    "outlier_p_values": of_scores(
        lambda s, new: outliers.outlier_p_values(s, new) <= ALPHA
    ),
    "is_outlier": of_scores(lambda s, new: outliers.is_outlier(s, new, ALPHA)),
    "split_conformal": split,
    "discretized_conformal": discretized,
    "miscoverage": loss_of_interval(risk.miscoverage),
    "SlidingWindow": stream(online.SlidingWindow(ABSOLUTE)),
}
AT_MOST = {
    "selection_p_values": selected,
    "jackknife_plus.minmax": jackknife("minmax"),
    "shortfall": loss_of_interval(risk.shortfall(2.0), 2.0),
    "false_negative_rate": loss_of_labels(risk.false_negative_rate),
    "false_positive_count": loss_of_labels(risk.false_positive_count, 3.0),
    "best_match": loss_of_labels(risk.best_match(), near=True),
}
CLOSED = {  # sets in closed form: the fits of two turns round ties in two ways
    "studentized": full(RIDGE),
    "p-value": full_p_value,
    "kernel": full(learners.KernelRidge(0.3)),
    "neighbors": full(NEIGHBORS),
    "deleted": full(RIDGE, residuals="deleted"),
}


def data(ties):
    key_x, key_noise = jax.random.split(KEY)
    x = jax.random.normal(key_x, (NUM_SETS, N + 1, 2))
    y = x[..., 0] + jax.random.t(key_noise, 3.0, (NUM_SETS, N + 1))
    return (jnp.round(x), jnp.round(y)) if ties else (x, y)


@pytest.mark.parametrize("name", [*EXACT, *AT_MOST])
def test_the_mean_over_all_turns_is_at_most_alpha(name):
    for ties in (False, True):
        turn = EXACT[name] if name in EXACT else AT_MOST[name]
        lost = np.asarray(in_turn(turn, data(ties)), float).sum(axis=1)
        assert np.all(lost <= ALPHA * (N + 1) + 1e-5)
        assert ties or name not in EXACT or np.all(lost == ALPHA * (N + 1))


@pytest.mark.parametrize("name", CLOSED)
def test_full_conformal_sets_miss_as_many_as_they_may(name):
    missed = np.asarray(in_turn(CLOSED[name], data(ties=False))).sum(axis=1)
    assert np.all(missed <= ALPHA * (N + 1))
    assert name in ("neighbors", "deleted") or np.all(missed == ALPHA * (N + 1))


def test_predictive_distributions_are_uniform():
    """A target has each number of atoms below it in one turn."""

    def turn(old, new):
        cp = jaxcp.full_conformal(KEY, RIDGE, scores.Signed(), *old)
        return jnp.sum(cp.predictive(new[0][None]).values[0] < new[1])

    places = np.sort(in_turn(turn, data(ties=False)), axis=1)
    assert np.all(places == np.arange(N + 1))


GROUPS = np.arange(N + 1) % 2  # five rows each
LEVELS = 0.05, 0.1, 0.25, 0.5, 0.7, 0.9, 0.95


@pytest.mark.parametrize("grouped", [False, True])
def test_calibrated_distributions_are_uniform(grouped):
    """Of all turns the share with Q(Y, U) <= t is t, ties or not, in each group."""

    def turn(old, new):
        (x, y, groups), (x_new, y_new, group) = old, one(new)
        own = {"groups": groups, "num_groups": 2} if grouped else {}
        asked = {"groups": group} if grouped else {}
        system = predictive.calibrate_predictive(scores.Residual(), x[:, 0], y, **own)
        at = x_new[:, 0]
        ends = [system.cdf(at, y_new, u=u, **asked)[0] for u in (0, 1)]
        upper, lower = (
            system.quantile(at, LEVELS, side=side, **asked)[0]
            for side in ("upper", "lower")
        )
        return jnp.stack(ends), jnp.stack([y_new[0] <= upper, y_new[0] < lower])

    for ties in (False, True):
        groups = jnp.broadcast_to(GROUPS, (NUM_SETS, N + 1))
        ends, inside = map(np.asarray, in_turn(turn, (*data(ties), groups)))
        for rows in [GROUPS == 0, GROUPS == 1] if grouped else [GROUPS >= 0]:
            low, high = ends[:, rows, :1], ends[:, rows, 1:]
            for t in np.linspace(0.03, 0.97, 21):
                share = np.clip((t - low) / (high - low), 0, 1).mean(axis=1)
                assert np.allclose(share, t, atol=1e-5)
            below = inside[:, rows].mean(axis=1)
            assert np.all(below[:, 0] >= np.array(LEVELS) - 1e-6)
            assert np.all(below[:, 1] <= np.array(LEVELS) + 1e-6)


def one_by_one(*args):
    return jaxcp.cross_conformal(*args, resampling.leave_one_out(N))


@pytest.mark.parametrize("method", [jaxcp.jackknife_plus, one_by_one])
@pytest.mark.parametrize("learner", [RIDGE, NEIGHBORS])
def test_jackknife_plus_misses_at_most_twice_alpha(method, learner):
    def turn(old, new):
        return misses(method(KEY, learner, ABSOLUTE, *old), new)

    for ties in (False, True):
        x, y = data(ties)
        cp = method(KEY, learner, ABSOLUTE, x[0, 1:], y[0, 1:])
        missed = np.asarray(in_turn(turn, (x, y))).sum(axis=1)
        assert np.all(missed <= (1 - promised(cp, ALPHA)) * (N + 1) + 1e-6)


def of_groups(old, new):
    (x, y, groups), (x_new, y_new, group) = old, one(new)
    rows = {"num_groups": 2}
    cp = jaxcp.calibrate_groups(ABSOLUTE, x[:, 0], y, groups, **rows)
    sets = cp(x_new[:, 0], ALPHA, groups=group)
    p = cp.p_values(x_new[:, 0], y_new, groups=group)
    q = jaxcp.grouped_conformal_quantile(y, groups, ALPHA, **rows)[group]
    strange = outliers.grouped_outlier_p_values(y, groups, y_new, group, **rows)
    lost = ~sets.contains(y_new), p <= ALPHA, y_new > q, strange <= ALPHA
    assert num_groups_promised(cp) == 2
    return jnp.stack(lost)[:, 0] - (1 - promised(cp, ALPHA))


def test_each_group_loses_as_much_as_it_may():
    for ties in (False, True):
        groups = jnp.broadcast_to(GROUPS, (NUM_SETS, N + 1))
        lost = np.asarray(in_turn(of_groups, (*data(ties), groups)))
        for g in range(2):
            of_group = lost[:, g == GROUPS].sum(axis=1)  # of five rows
            assert np.all(of_group <= 1e-6)
            assert ties or np.allclose(of_group, 0, atol=1e-6)


def full_of_groups(old, new):
    (x, y, groups), (x_new, y_new, group) = old, one(new)
    args = KEY, RIDGE, ABSOLUTE, x, y
    cp = jaxcp.full_conformal(*args, groups=groups, num_groups=2)
    p = cp.p_values(x_new, y_new, groups=group)
    sets = cp(x_new, ALPHA, groups=group)
    return jnp.stack([~sets.contains(y_new), p <= ALPHA])[:, 0]


def jackknife_of_groups(old, new):
    (x, y, groups), (x_new, y_new, group) = old, one(new)
    args = KEY, RIDGE, ABSOLUTE, x, y
    cp = jaxcp.jackknife_plus(*args, groups=groups, num_groups=2)
    ways = cp(x_new, ALPHA, groups=group), cp.minmax(x_new, ALPHA, groups=group)
    return jnp.stack([~sets.contains(y_new) for sets in ways])[:, 0]


def test_each_group_of_fits_on_all_rows_loses_as_much_as_it_may():
    """Full conformal sets one of five rows, the jackknife+ two, and minmax one."""
    rows = (*data(ties=False), jnp.broadcast_to(GROUPS, (NUM_SETS, N + 1)))
    lost = np.asarray(in_turn(full_of_groups, rows))
    apart = np.asarray(in_turn(jackknife_of_groups, rows))
    for g in range(2):
        assert np.all(lost[:, g == GROUPS].sum(axis=1) == 1)
        assert np.all(apart[:, g == GROUPS].sum(axis=1) <= [2, 1])


def test_shifts_by_features_miss_as_much_as_they_may():
    """For all f that are linear in features: misses times f, randomized exactly.

    The duals of the rows, each new in turn, are of one regression: sum phi_i dual_i = 0
    and uniforms miss with probability alpha + dual_i.
    """
    flags = np.arange(N + 1)[:, None] % np.array([1, 2, 3]) == 0  # they overlap

    def turn(old, new):
        (x, y, phi), (x_new, y_new, phi_new) = old, one(new)
        cp = jaxcp.calibrate_conditional(ABSOLUTE, x[:, 0], y, phi)
        assert promised(cp, ALPHA) == 0
        assert f"E f(X) (1(Y in set) - (1 - {'{alpha}'})) >= 0" in cp.promise
        given = {"features": phi_new}
        missed = ~cp(x_new[:, 0], ALPHA, **given).contains(y_new)
        return missed[0], cp.dual(x_new[:, 0], y_new, ALPHA, **given)[0]

    for ties in (False, True):
        rows = *data(ties), jnp.broadcast_to(1.0 * flags, (NUM_SETS, N + 1, 3))
        missed, dual = map(np.asarray, in_turn(turn, rows))
        assert np.all(missed @ flags <= ALPHA * flags.sum(axis=0) + 1e-6)
        assert ties or np.allclose(dual @ flags, 0, atol=1e-5)
        assert np.all(missed <= (dual > 1 - ALPHA - 1e-4))


def test_local_sets_miss_as_many_as_they_may():
    """LCP, whose sets {p > alpha} may end between two scores."""

    def turn(old, new):
        (x, y), (x_new, y_new) = old, one(new)
        kernel = jaxcp.conditional.Gaussian(0.3)
        cp = jaxcp.calibrate_local(ABSOLUTE, 0 * y, y, x, kernel)
        found = cp(0 * y_new, ALPHA, x=x_new).contains(y_new)
        p = cp.p_values(0 * y_new, y_new, x=x_new)
        assert np.isclose(promised(cp, ALPHA), 1 - ALPHA)
        return ~found[0], p[0] <= ALPHA

    for ties in (False, True):
        missed, strange = map(np.asarray, in_turn(turn, data(ties)))
        np.testing.assert_array_equal(missed, strange)
        assert np.all(missed.sum(axis=1) <= ALPHA * (N + 1))


def test_labels_of_a_group_lose_as_much_as_they_may():
    """Rare ones in none, which are infinite, or in a group of all rows."""
    y, of_label = np.arange(N + 1) % 3, np.array([0, 0, -1])

    def turn(old, new):
        (p, y), (p_new, y_new) = old, one(new)
        rows = {"label_groups": of_label}
        cps = [
            jaxcp.calibrate_groups(scores.LAC(), p, y, rare=rare, **rows)
            for rare in ("infinite", "all")
        ]
        lost = [~cp(p_new, ALPHA).contains(y_new)[0] for cp in cps]
        assert [*map(num_groups_promised, cps)] == [1, 1]
        assert all(np.isclose(promised(cp, ALPHA), 1 - ALPHA) for cp in cps)
        return jnp.stack([*lost, cps[1].p_values(p_new, y_new)[0] <= ALPHA])

    key = jax.random.key(1)
    p = jax.nn.softmax(jax.random.normal(key, (NUM_SETS, N + 1, 3)))
    y = jnp.broadcast_to(y, (NUM_SETS, N + 1))
    lost = np.asarray(in_turn(turn, (p, y)))
    for rare, count in (("all", 1), ("infinite", 2)):  # laws: none of rare ones in all
        given = {"label_groups": of_label, "rare": rare}
        cp = jaxcp.calibrate_groups(scores.LAC(), p[0], y[0], **given)
        assert len(cp.certificate(ALPHA)) == count
    in_group = of_label[np.asarray(y[0])] == 0  # seven rows
    assert np.all(lost[:, in_group, 0].sum(axis=1) == 1)
    assert not np.any(lost[:, ~in_group, 0])
    np.testing.assert_array_equal(lost[..., 1], lost[..., 2])


@pytest.mark.parametrize("num_folds, m", [(9, 1), (4, 2), (2, 3)])
def test_folds_of_any_learner_cover_what_is_proved(num_folds, m):
    """Errors of symmetric learners are any numbers, for a row and two folds left out.

    Of the n + m rows each is the new one in turn, in a fold with m - 1 that are unseen.
    """
    n, alpha = num_folds * m, 0.3
    fold = np.arange(n + m) // m
    # Of row i without its fold and fold g; on one side, so that they are compared.
    errors = np.array(jax.random.uniform(KEY, (1000, n + m, num_folds + 1)))
    errors[:, :4] += 1  # rows that are often missed
    missed = {"plus": 0, "minmax": 0}
    for new in range(n + m):
        rows = np.flatnonzero(fold != fold[new])
        others = np.unique(fold[rows])
        held_out = fold[rows] == others[:, None]
        preds = np.where(held_out, errors[:, None, rows, fold[new]], 0)
        test = errors[:, new, others]
        covered = covered_by_folds(preds, test, held_out, alpha)
        for way, of_sets in covered.items():
            missed[way] += ~np.asarray(of_sets)
    cp = jaxcp.cross_calibrate(ABSOLUTE, preds[0], np.zeros(n), held_out)
    most = (n + m) * (1 - promised(cp, alpha)) + 1e-9
    assert np.all(missed["plus"] <= most)
    share = n / num_folds
    slack = (1 - 1 / share) / (num_folds + 1)
    other = 2 * (1 - 1 / num_folds) / (share + 1)
    assert most <= (n + m) * (2 * alpha + min(slack, other) + 1e-4)  # four digits
    assert np.all(missed["minmax"] <= (n + m) * (alpha + slack) + 1e-9)
    assert missed["plus"].max() >= alpha * (n + m)


@functools.partial(jax.jit, static_argnums=3)
@functools.partial(jax.vmap, in_axes=(0, 0, None, None))
def covered_by_folds(preds, test, held_out, alpha):
    y = jnp.zeros(held_out.shape[1])
    cp = jaxcp.cross_calibrate(ABSOLUTE, preds, y, held_out)
    ways = {"plus": cp, "minmax": cp.minmax}
    return {k: f(test[:, None], alpha).contains(y[:1])[0] for k, f in ways.items()}
