"""Certificates of jackknife+, CV+ and minmax: counts of rows that fits may miss."""

from fractions import Fraction
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcp
import references
from jaxcp import learners, resampling, scores

ABSOLUTE, KEY = scores.Absolute(), jax.random.key(0)
RIDGE = learners.Ridge(1.0)


def of_folds(n, num_folds, score=ABSOLUTE, shape=(), **options):
    held_out = np.arange(n) * num_folds // n == np.arange(num_folds)[:, None]
    y = np.zeros((n, *shape))
    preds = np.zeros((num_folds, *y.shape))
    return jaxcp.cross_calibrate(score, preds, y, held_out, **options)


def unbeaten(n, alpha):
    """Returns how many rows outside of its fold a missed one need not beat, f - 1."""
    return n - references.rank(n, alpha)


@pytest.mark.parametrize("sizes", [(4, 1), (3, 1), (4, 2)], ids=str)
def test_no_tournament_has_more_missed_rows(sizes):
    """All tournaments of n + m rows that do not compare rows of one fold."""
    n, m = sizes
    fold = np.arange(n + m) // m
    pairs = [(i, j) for i, j in combinations(range(n + m), 2) if fold[i] != fold[j]]
    won = np.arange(2 ** len(pairs))[:, None] >> np.arange(len(pairs)) & 1
    beats = np.zeros((len(won), n + m), int)
    for bit, (i, j) in zip(won.T, pairs, strict=True):
        beats[:, i] += bit
        beats[:, j] += 1 - bit
    cp = of_folds(n, n // m)
    for lost in range(n // 2):
        alpha = Fraction(lost + 1, n + 1)
        worst = np.max(np.sum(beats >= n - lost, axis=1))
        bound = (n + m) * (1 - cp.certificate(alpha).coverage)
        assert worst <= bound + 1e-9
        assert m > 1 or worst == pytest.approx(min(bound, n + m))


def coverage(residuals, fold, alpha, way):
    """Returns the share of rows that are covered, each by fits without its own fold.

    Row i has residuals[i, k] under the fit without its fold and fold k.
    """
    covered = []
    for i, own in enumerate(fold):
        others = np.flatnonzero(fold != own)
        of_others = fold[others]
        folds = np.unique(of_others)
        held_out = of_others[None] == folds[:, None]
        preds = np.where(held_out, residuals[others, own][None], np.nan)
        y = np.zeros(len(others))
        cp = jaxcp.cross_calibrate(ABSOLUTE, preds, y, held_out)
        sets = getattr(cp, way)(residuals[i, folds][:, None], alpha)
        covered.append(bool(sets.contains(jnp.zeros(1))[0]))
    return np.mean(covered), cp


@pytest.mark.parametrize("alpha", ["0.1", "0.2", "0.3"])
def test_jackknife_plus_attains_its_certificate(alpha):
    """The missed rows beat every other, and half of themselves each, in a circle."""
    n = 9
    lost = unbeaten(n, alpha)
    missed = 2 * lost + 1
    i, j = np.indices((n + 1, n + 1))
    around = (j - i) % missed
    residuals = np.where(j < missed, (around > 0) & (around <= lost), True)
    residuals = (residuals & (i < missed)).astype(float)
    share, cp = coverage(residuals, np.arange(n + 1), float(alpha), "__call__")
    assert share == pytest.approx(cp.certificate(float(alpha)).coverage)
    assert share < 1 - missed / (n + 2)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_minmax_attains_its_certificate(m):
    """A fold of missed rows beats all but a few, which beat the fold as well."""
    n, alpha = 12, "0.3"
    lost = unbeaten(n, alpha)
    fold = np.arange(n + m) // m
    size = np.select([fold == 0, np.arange(n + m) < m + lost], [2.0, 3.0], 1.0)
    residuals = np.tile(size[:, None], n // m + 1)
    share, cp = coverage(residuals, fold, float(alpha), "minmax")
    proof = cp.certificate(float(alpha), minmax=True)
    assert (
        share
        == pytest.approx(proof.coverage)
        == pytest.approx(1 - (lost + m) / (n + m))
    )


@pytest.mark.parametrize("minmax", [False, True])
@pytest.mark.parametrize("sizes", [(4, 2), (12, 2), (6, 3)], ids=str)
def test_random_learners_cover_no_less(sizes, minmax):
    """Errors of a fit that depend on its rows alone, in all parts of n + 1 rows."""
    n, num_folds = sizes
    m, rng = n // num_folds, np.random.default_rng(0)
    alphas = [Fraction(f, n + 1) for f in (1, 2)]
    cp = of_folds(n, num_folds)
    bounds = [cp.certificate(a, minmax=minmax).coverage for a in alphas]
    orders = rng.permuted(np.tile(np.arange(n + 1), (4000, 1)), axis=1)
    folds, new = orders[:, :n].reshape(-1, num_folds, m), orders[:, n]
    rest = 2 ** (n + 1) - 1 - 2**new
    used = rest[:, None] - np.sum(2**folds, axis=2)  # the rows of each fit
    for _ in range(20):
        # Few values, which tie, and shocks to whole fits.
        table = rng.integers(0, 4, (2 ** (n + 1), n + 1))
        table += 3 * (rng.random(len(table)) < 0.3)[:, None]
        own, tests = table[used[..., None], folds], table[used, new[:, None]]
        beaten_by = np.min(tests, axis=1, keepdims=True) if minmax else tests
        below = np.sum(own < beaten_by[..., None], axis=(1, 2))
        covered = np.mean(below[:, None] < n + 1 - np.array([1, 2]), axis=0)
        assert np.all(covered > np.array(bounds) - 4 * 0.5 / len(orders) ** 0.5)


def test_certificates_are_above_the_published_bounds():
    for n, num_folds in [(9, 9), (60, 2), (60, 5), (60, 60), (1000, 10), (1, 1)]:
        cp = of_folds(n, num_folds)
        for alpha in (0.01, 0.05, 0.1, 0.25, 0.4, 0.9):
            proof, wide = (cp.certificate(alpha, minmax=v) for v in (False, True))
            assert 0 <= proof.published <= proof.coverage <= wide.coverage <= 1
            assert wide.published <= wide.coverage
            assert (proof.coverage == 1) == (alpha * (n + 1) < 1)
            assert not proof.exact
            assert f"at least {proof.coverage:.6g}" in str(proof)
            m, k = n // num_folds, references.rank(n, str(alpha))
            assert k > n or proof.coverage >= 1 - (2 * (n - k) + m) / (n + m) - 1e-12
            assert m > 1 or wide.coverage == pytest.approx(k / (n + 1))


def test_published_bounds_are_those_of_the_theorems():
    jackknife, folds = (of_folds(60, k).certificate(0.1) for k in (60, 5))
    assert jackknife.published == pytest.approx(0.8)
    slack = min(2 * (1 - 1 / 5) / (60 / 5 + 1), (1 - 5 / 60) / (5 + 1))
    assert folds.published == pytest.approx(0.8 - slack)


def test_components_pay_each():
    for score, shape in ((scores.Signed(), ()), (ABSOLUTE, (3,))):
        cp = of_folds(40, 20, score, shape)
        c, one = cp.scores.shape[1], of_folds(40, 20)
        for minmax in (False, True):
            alone = one.certificate(Fraction(1, 5) / c, minmax=minmax)
            both = cp.certificate(Fraction(1, 5), minmax=minmax)
            assert 1 - both.coverage == pytest.approx(c * (1 - alone.coverage))
            assert 1 - both.published == pytest.approx(c * (1 - alone.published))


def test_what_has_no_certificate():
    x, y = np.zeros((10, 1), np.float32), np.arange(10, dtype=np.float32)

    def fails(cp, expected):
        for calibration in (cp, getattr(cp, "calibration", cp)):
            with pytest.raises(ValueError, match=expected):
                calibration.certificate(0.2)

    rows = KEY, RIDGE, ABSOLUTE, x, y
    fails(jaxcp.jackknife_plus(*rows, calibration_weights=np.ones(10)), "leave cali")
    bags = {"num_resamples": 4}
    fails(jaxcp.jackknife_plus_after_bootstrap(*rows, **bags), "left out by several")
    once = jaxcp.jackknife_plus_after_bootstrap(*rows, num_resamples=1)
    fails(once, "left out by several or none")
    fails(jaxcp.cv_plus(*rows, num_folds=3), "one size, got 3 to 4 rows; let the n mod")
    # The cure: one row trains in every fit, and calibrates in none.
    weights = np.concatenate([resampling.k_fold(KEY, 9, 3), np.ones((3, 1))], axis=1)
    proof = jaxcp.cross_conformal(*rows, weights).certificate(0.2)
    assert proof == of_folds(9, 3).certificate(0.2)
    with pytest.raises(ValueError, match="alpha"):
        of_folds(9, 3).certificate(1.0)

    def traced(held_out):
        preds = jnp.zeros(held_out.shape)
        cp = jaxcp.cross_calibrate(ABSOLUTE, preds, jnp.zeros(10), held_out)
        return cp.certificate(0.2).coverage

    with pytest.raises(ValueError, match=r"traced ones; ask .* outside of jax.jit"):
        jax.jit(traced)(jnp.eye(10, dtype=bool))


def test_rows_off_the_mask_do_not_count():
    mask = np.arange(12) < 8
    proof = of_folds(12, 3, mask=mask)
    assert proof.certificate(0.2) == of_folds(8, 2).certificate(0.2)
