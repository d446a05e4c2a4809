"""Smoothed sets {y : p(y, u) > alpha}: their law, by brute force and by coverage."""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import CASES, components
from jaxcp import scores
from jaxcp.quantiles.thresholds import smoothed_threshold, threshold_at

ABSOLUTE = scores.Absolute()
QUICK = ["absolute", "lac", "aps-randomized", "multilabel", "topk", "c-pcp-ties"]
ALONE = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name, case in CASES.items()
    if components(case) == 1
]


def exact_p_value(known, weights, own, s, u):
    above, equal = (sum(weights[v]) for v in (known > s, known == s))
    total = sum(weights) + own
    return (above + u * (equal + own)) / total if total else Fraction(1)


def next_above(q):
    """Returns the next number that is 0, infinite or normal."""
    tiny = np.finfo(q.dtype).tiny
    if q in (-tiny, 0):
        return np.float32(0 if q else tiny)
    with np.errstate(over="ignore"):
        return np.nextafter(q, np.float32(np.inf))


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("kind", ["all", "mask", "weights"])
def test_thresholds_by_brute_force(kind, n):
    """The largest float whose p-value, in fractions, exceeds alpha."""
    rng, draws = np.random.default_rng(n), 400
    values = np.array([-np.inf, -1, 0, 0.5, 2, 3, np.inf], np.float32)
    known = rng.choice(values, (draws, n), p=[0.04, 0.2, 0.2, 0.2, 0.2, 0.1, 0.06])
    masses = rng.integers(0, 5 if kind == "weights" else 2, (draws, n))
    masses = np.ones_like(masses) if kind == "all" else masses
    own = rng.integers(0, 4, draws) if kind == "weights" else np.ones(draws, int)
    u, alpha = rng.integers(0, 9, draws) / 8, rng.integers(1, 32, draws) / 32

    def one(known, mass, own, u, alpha):
        if kind == "weights":
            return smoothed_threshold(known, alpha, alpha, u, None, mass, own)
        mask = None if kind == "all" else mass > 0
        count = n if mask is None else jnp.sum(mask)
        rank = jaxcp.conformal_rank(count, alpha)
        return smoothed_threshold(known, rank, alpha, u, mask)

    floats = (v.astype(np.float32) for v in (masses, own, u, alpha))
    found = np.asarray(jax.jit(jax.vmap(one))(known, *floats))
    for i, q in enumerate(found):
        weights = np.array([Fraction(int(w)) for w in masses[i]], object)
        p = partial(exact_p_value, known[i], weights, Fraction(int(own[i])))
        p = partial(p, u=Fraction(u[i]))
        assert p(q) > alpha[i] or q == -np.inf
        assert q == np.inf or p(next_above(q)) <= alpha[i]


def test_u_of_1_is_no_u():
    """To the last bit, whatever the weights; and u = 0 leaves out all that tie."""
    rng = np.random.default_rng(0)
    known = rng.normal(size=(200, 40)).round(1).astype(np.float32)
    weights = rng.exponential(size=(200, 40)).astype(np.float32)
    alpha = jnp.float32(0.1)
    one = jnp.ones(())

    def both(known, weights):
        given = alpha, None, weights, one
        masses = (
            threshold_at(known, *given),
            smoothed_threshold(known, alpha, alpha, one, None, weights, one),
        )
        rank = jaxcp.conformal_rank(40, 0.1)
        counts = (
            threshold_at(known, rank, None, None),
            smoothed_threshold(known, rank, alpha, one),
        )
        return masses, counts

    for plain, smooth in jax.jit(jax.vmap(both))(known, weights):
        assert_array_equal(plain, smooth)


def doubled(case):
    """Returns 40 rows, each twice, so that scores tie, and which of them count."""
    rows = np.repeat(np.arange(20), 2)
    preds, y = jax.tree.map(lambda v: v[rows], case.batch(20))
    mask = np.arange(40) % 5 > 0
    if isinstance(case.score, scores.Normalized):  # others are refused
        mask &= preds[1] > 0
    return preds, y, mask


def check_membership(case, held, q, p, alpha, found):
    """Real targets may lie on the boundary within rounding; labels may not."""
    off = (np.abs(p - alpha) < 1e-6) | (found == -np.inf)  # which is in every set
    if not case.exact:
        with np.errstate(invalid="ignore"):  # inf - inf
            off |= np.abs(found - q) <= 1e-5 * (1 + np.abs(q))
    assert np.mean(off) < 0.9
    assert_array_equal(held[~off], p[~off] > alpha)


@pytest.mark.parametrize("name", ALONE)
def test_a_target_is_in_the_set_iff_its_p_value_exceeds_alpha(name):
    """With masks and ties; with weights in groups, of one row and of none, too."""
    case, alpha = CASES[name], 0.15
    *rows, mask = doubled(case)
    u, index = np.linspace(1, 0, 40, dtype=np.float32), np.arange(40)
    group, own = index % 4, index % 3 / 2
    groups = np.where(index > 1, index % 2, 2 * index)  # 0 and 1, and one row of 2
    options = {"num_groups": 4, "weights": index % 4 / 4 + 0.25, "mask": mask}

    @jax.jit
    def run(preds, y, u):
        cp = jaxcp.calibrate(case.score, preds, y, mask=mask)
        found = jaxcp.metrics.covered(cp(preds, alpha, u=u), y)
        q = jax.vmap(lambda u: cp.quantile(alpha, u=u))(u)
        alone = found, q, cp.p_values(preds, y, u=u), cp.scores
        of = jaxcp.calibrate_groups(case.score, preds, y, groups, **options)
        context = {"groups": group, "test_weights": own, "u": u}
        found = jaxcp.metrics.covered(of(preds, alpha, **context), y)
        of_point = lambda u, w: of.quantile(alpha, u=u, test_weight=w)  # noqa: E731
        q = jax.vmap(of_point)(u, own)[index, group]
        return alone, (found, q, of.p_values(preds, y, **context), of.scores)

    for held, q, p, found in jax.tree.map(np.asarray, run(*rows, u)):
        check_membership(case, held, q, p, alpha, found)


NUM_TRIALS = 10_000


def assert_share(flags, share):
    error = (share * (1 - share) / len(flags)) ** 0.5
    assert abs(np.mean(flags) - share) < 4 * error


@pytest.mark.parametrize("n", [0, 5, 20])
def test_coverage_is_exact(n):
    """Of few rows, with ties and with true ratios as weights; and how often sets are
    finite: alpha (n + 1) where rows are few."""
    alpha = 0.1

    def trial(key):
        keys = jax.random.split(key, 3)
        noise, x = jax.random.normal(keys[0], (2, n + 1))
        u, mu = jax.random.uniform(keys[1], (1,)), jnp.zeros(n + 1)
        tied = jax.random.randint(keys[2], (n + 1,), 0, 4).astype(float)
        x = x.at[n].add(1.0)
        shifted, ratio = jnp.exp(x) * noise, jnp.exp(x)

        def one(y, weights=None, **test):
            cp = jaxcp.calibrate(ABSOLUTE, mu[:n], y[:n], weights=weights)
            sets = cp(mu[n:], alpha, u=u, **test)
            return sets.contains(y[n:])[0], jnp.isfinite(sets.size())[0]

        weighted = one(shifted, ratio[:n], test_weights=ratio[n:])
        return one(noise), one(tied), weighted

    keys = jax.random.split(jax.random.key(n), NUM_TRIALS)
    plain, tied, weighted = jax.jit(jax.vmap(trial))(keys)
    for covered, _ in (plain, tied, weighted):
        assert_share(covered, 1 - alpha)
    if n < 1 / alpha - 1:
        assert_share(plain[1], alpha * (n + 1))


def test_every_class_is_covered_exactly():
    """One uniform a row decides on all labels, also with few rows of a class."""
    n, k, alpha = 12, 3, 0.2

    def trial(key):
        key_p, key_y, key_u = jax.random.split(key, 3)
        p = jax.random.dirichlet(key_p, jnp.ones(k), (n + 1,)).round(1)
        y = jax.random.randint(key_y, (n + 1,), 0, k)
        cp = jaxcp.calibrate_groups(scores.LAC(), p[:n], y[:n], y[:n], num_groups=k)
        u = jax.random.uniform(key_u, (1,))
        return cp(p[n:], alpha, u=u).contains(y[n:])[0], y[n]

    keys = jax.random.split(jax.random.key(0), NUM_TRIALS)
    covered, y = map(np.asarray, jax.jit(jax.vmap(trial))(keys))
    for label in range(k):
        assert_share(covered[y == label], 1 - alpha)


def test_batches_of_any_size_and_kind():
    """Eager, one row, none, a batch that is filled up, names, and every door."""
    y = np.arange(1.0, 6.0, dtype=np.float32)
    cp = jaxcp.calibrate(ABSOLUTE, np.zeros(5), y)
    u = np.linspace(0, 1, 7)
    all_ = np.asarray(cp(np.zeros(7), 0.1, u=u).upper)
    for m in (0, 1, 3, 7):
        sets = cp(np.zeros(m), 0.1, u=u[:m])
        assert_array_equal(sets.upper, all_[:m])
    assert_array_equal(all_, [cp.quantile(0.1, u=v) for v in u])
    assert_array_equal(cp.quantile([0.1, 0.2], u=1.0), cp.quantile([0.1, 0.2]))
    assert cp.quantile(0.2, u=1) == cp.quantile(0.2) == 5
    model = jaxcp.split_conformal(lambda _, x: 0 * x, None, ABSOLUTE, y, y)
    assert_array_equal(model(np.zeros(7), 0.1, u=u).upper, all_)
    none = jaxcp.calibrate(ABSOLUTE, np.zeros(0), np.zeros(0))
    assert_array_equal(none(np.zeros(2), 0.5, u=[0.5, 0.75]).upper, [-np.inf, np.inf])
    with jax.enable_x64(True):
        wide = jaxcp.calibrate(ABSOLUTE, np.zeros(5), y.astype(float))
        found = wide(np.zeros(7), 0.1, u=u).upper
        assert found.dtype == float
        np.testing.assert_allclose(found, all_, rtol=1e-6)
    outputs = jaxcp.calibrate(ABSOLUTE, np.zeros((5, 1)), y[:, None])
    assert_array_equal(outputs(np.zeros((7, 1)), 0.1, u=u).upper, all_)


def test_gradients_are_those_of_one_score_each():
    """None in weights and uniforms; an infinite bound has none."""
    u = jnp.array([0.1, 0.4, 0.9])

    def total(y, weights, u):
        cp = jaxcp.calibrate(ABSOLUTE, jnp.zeros(5), y, weights=weights)
        upper = cp(jnp.zeros(3), 0.2, u=u).upper
        return jnp.sum(jnp.where(jnp.isfinite(upper), upper, 0))

    y = jnp.arange(1.0, 6.0)
    for weights in (None, jnp.full(5, 0.5)):
        slopes = jax.jit(jax.grad(total, (0, 1, 2)))(y, weights, u)
        finite = round(float(jnp.sum(slopes[0])))
        assert 1 <= finite <= 3 and np.all(slopes[0] % 1 == 0)
        assert all(np.all(slope == 0) for slope in jax.tree.leaves(slopes[1:]))


def test_levels_that_are_not_in_range():
    """Traced: everything at 0 and NaN, nothing at 1."""
    cp = jaxcp.calibrate(ABSOLUTE, jnp.zeros(5), jnp.arange(1.0, 6.0))
    sets = lambda alpha: cp(jnp.zeros(2), alpha, u=jnp.array([0.2, 1.0])).upper  # noqa: E731
    found = jax.vmap(sets)(jnp.array([0.0, 0.5, 1.0, jnp.nan]))
    inf = np.inf
    np.testing.assert_allclose(found, [[inf, inf], [3, 3], [-inf, -inf], [inf, inf]])


REFUSED = {
    "delta": (lambda cp: cp(np.zeros(1), 0.1, u=[0.5], delta=0.1), "u=None with delta"),
    "delta of a threshold": (
        lambda cp: cp.quantile(0.1, u=0.5, delta=0.1),
        "u=None with delta",
    ),
    "several uniforms": (lambda cp: cp.quantile(0.1, u=[0.5]), r"u of shape \(\)"),
    "outside": (lambda cp: cp(np.zeros(1), 0.1, u=[1.5]), r"u in \[0, 1\], got 1.5"),
    "outside of a threshold": (lambda cp: cp.quantile(0.1, u=-1), r"u in \[0, 1\]"),
    "one for many": (lambda cp: cp(np.zeros(2), 0.1, u=[0.5]), "u with 2 rows"),
    "components": (
        lambda _: jaxcp.calibrate(scores.Signed(), np.zeros(9), np.zeros(9))(
            np.zeros(1), 0.1, u=[0.5]
        ),
        "u=None for scores with 2 components",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls(name):
    call, message = REFUSED[name]
    for groups in (False, True):
        given = ABSOLUTE, np.zeros(9), np.arange(9.0)
        cp = jaxcp.calibrate(*given)
        if groups and name != "components":
            cp = jaxcp.calibrate_groups(*given, np.zeros(9, int), num_groups=1)
            cp = _OfOneGroup(cp)
        with pytest.raises(ValueError, match=message):
            call(cp)


class _OfOneGroup:
    """Calls a calibration for rows of its first group."""

    def __init__(self, cp):
        self.cp, self.quantile = cp, cp.quantile

    def __call__(self, preds, *args, **options):
        return self.cp(preds, *args, groups=np.zeros(len(preds), int), **options)
