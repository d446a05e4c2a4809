"""Groups of few rows that share a threshold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import promised
from jaxcp import predictive, scores
from rows import refuses

ABSOLUTE, LAC, ALPHA = scores.Absolute(), scores.LAC(), 0.2
SIZES = np.array([5, *[1] * 15, 9])  # large scores in the first
GROUPS = np.repeat(np.arange(len(SIZES)), SIZES)
N, NUM_SETS, MIN_SIZE = len(GROUPS) - 1, 20, 5


def calibrated(y, groups, min_size=MIN_SIZE, num_groups=17, **given):
    own = {"num_groups": num_groups, "min_size": min_size}
    return jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, groups, **own, **given)


def rank(n, alpha=ALPHA):
    return n + 1 - int(np.floor(alpha * (n + 1) + 1e-9))


def threshold(values, alpha=ALPHA):
    k = rank(len(values), alpha)
    return np.sort(values)[k - 1] if k <= len(values) else np.inf


def by_loop(y, groups, group, min_size, rows_too=True):
    """The threshold of a new row; without `rows_too` that of the naive rule."""
    counts = np.bincount(groups, minlength=max(*groups, group) + 1)
    if counts[group] >= min_size:
        return threshold(y[groups == group])
    few = counts <= min_size if rows_too else counts < min_size
    return threshold(y[few[groups]])


def bags(seed=0):
    """Rows whose large scores are in a group that is just small."""
    y = np.abs(np.random.default_rng(seed).normal(size=(NUM_SETS, N + 1)))
    return (y + 10 * (GROUPS == 0)).astype("f")


@jax.jit
def in_turn(y):
    """Of each row that is the new one: is it missed, by set, p-value and system?"""

    def turn(i):
        others = jnp.where(jnp.arange(N) < i, jnp.arange(N), jnp.arange(N) + 1)
        old, groups = y[others], jnp.asarray(GROUPS)[others]
        asked = {"groups": jnp.asarray(GROUPS)[i][None]}
        cp, at = calibrated(old, groups), jnp.zeros(1)
        missed = cp(at, ALPHA, **asked).upper < y[i]
        system = predictive.calibrate_predictive(
            scores.Residual(), 0 * old, old, groups, num_groups=17, min_size=MIN_SIZE
        )
        ends = [system.cdf(at, y[i][None], u=u, **asked)[0] for u in (0.0, 1.0)]
        p = cp.p_values(at, y[i][None], **asked)
        smoothed = [
            cp.p_values(at, y[i][None], u=jnp.full(1, u), **asked) for u in (0, 1)
        ]
        return (
            missed[0],
            p[0] <= ALPHA + 1e-6,
            jnp.stack(ends),
            jnp.ravel(jnp.stack(smoothed)),
        )

    return jax.lax.map(turn, jnp.arange(N + 1))


def test_groups_that_share_lose_as_much_as_they_may_together():
    """And each large one alone: any of the n + 1 rows is the new one, nothing drawn."""
    small = SIZES[GROUPS] <= MIN_SIZE
    lost = 1 - promised(calibrated(bags()[0][:-1], GROUPS[:-1]), ALPHA)
    assert np.isclose(lost, ALPHA)
    for y in bags()[:3]:
        missed, strange, ends, smoothed = map(np.asarray, in_turn(y))
        assert_array_equal(missed, strange)
        assert missed[small].sum() == int(ALPHA * small.sum() + 1e-9)
        assert missed[~small].sum() == int(ALPHA * (~small).sum())
        for rows in (small, ~small):
            for low, high in (ends[rows].T, smoothed[rows].T):
                for t in np.linspace(0.03, 0.97, 9):
                    share = np.clip((t - low) / (high - low), 0, 1).mean()
                    assert_allclose(share, t, atol=1e-5)


def test_the_naive_rule_loses_more():
    """Sizes without the new row: large scores meet large ones less than they should."""
    small = np.flatnonzero(SIZES[GROUPS] <= MIN_SIZE)
    for y in bags():
        lost = {True: 0, False: 0}
        for i in small:
            old, groups = np.delete(y, i), np.delete(GROUPS, i)
            for both in lost:
                q = by_loop(old, groups, GROUPS[i], MIN_SIZE, both)
                lost[both] += y[i] > q
        assert lost[True] == ALPHA * len(small)
        assert lost[False] > lost[True]


def test_coverage_where_sizes_are_random():
    """The rows of groups are drawn, too: alone and together, within four errors."""
    shares, n, num_sets = np.array([0.1, *[0.02] * 15, 0.6]), 50, 4000

    @jax.jit
    @jax.vmap
    def trial(key):
        key_groups, key_y = jax.random.split(key)
        groups = jax.random.choice(key_groups, len(shares), (n + 1,), p=shares)
        y = jnp.abs(jax.random.normal(key_y, (n + 1,))) + 10 * (groups == 0)
        cp = calibrated(y[:n], groups[:n])
        sets = cp(jnp.zeros(1), ALPHA, groups=groups[n:])
        few = jnp.sum(groups[:n] == groups[n]) < MIN_SIZE
        return sets.contains(y[n:])[0], few, groups[n]

    keys = jax.random.split(jax.random.key(1), num_sets)
    covered, few, group = map(np.asarray, trial(keys))
    for rows in (few, ~few & (group == 0), group == 16):
        error = np.sqrt(ALPHA * (1 - ALPHA) / rows.sum())
        assert covered[rows].mean() >= 1 - ALPHA - 4 * error
    assert covered[few & (group == 0)].mean() < 0.5  # not each of them


SOME = np.random.default_rng(2)
WHICH = SOME.permutation(np.repeat(np.arange(6), [9, 3, 4, 0, 12, 2]))
VALUES = SOME.normal(size=(len(WHICH), 2)).astype("f")


@pytest.mark.parametrize(
    "min_size, columns",
    [(4, kind) for kind in ("nothing", "mask", "weights", "both")]
    + [(1, "nothing"), (1, "both"), (3, "mask"), (3, "weights"), (100, "both")],
)
def test_thresholds_are_those_of_the_definition(columns, min_size):
    y, n = abs(VALUES[:, 0]), len(WHICH)
    mask = np.arange(n) % 5 != 1 if columns in ("mask", "both") else None
    ones = np.ones(n, "f") if columns in ("weights", "both") else None
    cp = calibrated(y, WHICH, min_size, 6, mask=mask, weights=ones)
    kept = slice(None) if mask is None else mask
    expected = [by_loop(y[kept], WHICH[kept], g, min_size) for g in range(6)]
    assert_array_equal(cp.quantile(ALPHA), expected)
    groups = np.arange(6)
    sets = cp(np.zeros(6), ALPHA, groups=groups)
    assert_allclose(sets.upper, expected, rtol=1e-6)
    assert_array_equal(cp.at(ALPHA)(np.zeros(6), groups=groups).upper, sets.upper)
    if ones is not None:
        given = {"groups": groups, "test_weights": np.ones(6)}
        assert_allclose(cp(np.zeros(6), ALPHA, **given).upper, expected, rtol=1e-6)


def test_scores_with_components():
    given = {"num_groups": 6, "min_size": 4}
    zeros = np.zeros_like(VALUES)
    cp = jaxcp.calibrate_groups(ABSOLUTE, zeros, VALUES, WHICH, **given)
    each = [calibrated(VALUES[:, i], WHICH, 4, 6).quantile(ALPHA) for i in range(2)]
    assert_array_equal(cp.quantile(2 * ALPHA), np.stack(each, 1))


def test_classes_of_few_rows_share():
    """Each label is kept as if it were that of the new row."""
    p = SOME.dirichlet(np.ones(6), len(WHICH)).astype("f")
    cp = jaxcp.calibrate_groups(LAC, p, WHICH, WHICH, num_groups=6, min_size=4)
    s = 1 - p[np.arange(len(p)), WHICH]
    q = np.array([by_loop(s, WHICH, g, 4) for g in range(6)], "f")
    assert_array_equal(cp.quantile(ALPHA), q)
    new = SOME.dirichlet(np.ones(6), 5).astype("f")
    assert_array_equal(cp(new, ALPHA).mask, 1 - new <= q)
    assert_array_equal(cp.at(ALPHA)(new).mask, 1 - new <= q)
    for label in range(6):
        y = np.full(5, label)
        own = [label] if label in (0, 2, 4) else [1, 2, 5]
        among = s[np.isin(WHICH, own)]
        above = (among[:, None] >= 1 - new[:, label]).sum(0)
        assert_allclose(cp.p_values(new, y), (1 + above) / (1 + len(among)), rtol=1e-6)
        assert_array_equal(cp.p_values(new)[:, label], cp.p_values(new, y))


NAMES = np.array(["ash", "bee", "cat", "dew", "elm", "fox"])


def test_names_say_what_is_shared():
    y = VALUES[:, 0]
    given = {"group_names": NAMES, "min_size": 4}
    cp = jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, NAMES[WHICH], **given)
    few = "fewer than 4 rows"
    assert cp.threshold_names == ("ash", few, "cat", few, "elm", few)
    assert calibrated(y, WHICH, 4, 6).threshold_names == (0, few, 2, few, 4, few)
    named = dict(zip(cp.threshold_names, cp.quantile(ALPHA).tolist(), strict=True))
    assert set(named) == {"ash", "cat", "elm", few}
    unseen = cp(np.zeros(1), ALPHA, groups=["dew"])  # no rows: it shares
    assert unseen.upper.tolist() == [named[few]]
    assert "of at least 4 rows, and in the others together" in cp.at(ALPHA).promise
    alone = jaxcp.calibrate_groups(ABSOLUTE, 0 * y, y, NAMES[WHICH])
    assert alone.threshold_names == alone.group_names


CP = calibrated(VALUES[:, 0], WHICH, 4, 6)
SYSTEM = predictive.calibrate_predictive(
    scores.Residual(), VALUES[:, 1], VALUES[:, 0], WHICH, num_groups=6, min_size=4
)
ROWS = VALUES[:, 0], VALUES[:, 0]
REFUSED = {
    "a size of 0": (
        lambda: calibrated(VALUES[:, 0], WHICH, 0, 6),
        "min_size as an int",
    ),
    "a share": (lambda: calibrated(VALUES[:, 0], WHICH, 0.5, 6), "min_size as an int"),
    "a certificate": (
        lambda: CP.certificate(0.1),
        "a certificate where groups share no rows, wi",
    ),
    "that of a system": (lambda: SYSTEM.certificate(0.1), "a certificate where"),
    "delta": (
        lambda: CP.quantile(0.1, delta=0.1),
        "delta where groups share no rows, without min_size, got 4",
    ),
    "groups of labels": (
        lambda: jaxcp.calibrate_groups(
            LAC, np.ones((2, 2)) / 2, [0, 1], label_groups=[0, 0], min_size=3
        ),
        "label_groups alone, of a score of labels, got min_size too",
    ),
    "names of traced groups": (
        lambda: jax.jit(lambda g: calibrated(VALUES[:, 0], g, 4, 6).threshold_names)(
            WHICH
        ),
        "groups with values, got traced ones",
    ),
    "one alpha too few": (lambda: CP.quantile(np.full(6, 0.1)), r"\(\) or \(7,\)"),
}


test_wrong_calls = refuses(REFUSED)


def test_distributions_of_small_groups():
    """Bounds of the system are those of the rows that share."""
    groups = np.arange(6)
    y, mu = VALUES.T
    found = SYSTEM.quantile(np.zeros(6), 1 - ALPHA, side="upper", groups=groups)
    r = y - mu
    assert_allclose(found, [by_loop(r, WHICH, g, 4) for g in groups], rtol=1e-6)
    mean = SYSTEM.mean(np.zeros(6), groups=groups)
    assert_allclose(mean[1], r[np.isin(WHICH, [1, 2, 5])].mean(), rtol=1e-5)
