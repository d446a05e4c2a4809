"""Counts of errors and mean losses that prove a risk: exact, for any number of rows."""

from fractions import Fraction
from itertools import pairwise
from math import comb, exp, isclose, log

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import jaxcp
from helpers import reference
from jaxcp import certificates, risk
from jaxcp.quantiles import levels

TENTH = Fraction(1, 10)


def law(n, alpha):
    """P(Bin(n, alpha) <= k) for k = 0, ..., n, in fractions."""
    beta = 1 - alpha
    mass = [comb(n, k) * alpha**k * beta ** (n - k) for k in range(n + 1)]
    return np.cumsum(np.array(mass, object))


def largest(n, alpha, delta):
    return max([k for k, p in enumerate(law(n, alpha)) if p <= delta], default=-1)


def test_counts_ranks_and_levels_agree_with_exact_vectors():
    case = {k.removeprefix("grid__"): v for k, v in reference("risk/critical").items()}
    levels = [
        (n, a, d) for n in case["ns"] for a in case["alphas"] for d in case["deltas"]
    ]
    expected = case["count"].copy()
    # By symmetry P(Bin(99, 1/2) <= 49) is 1/2: a tie, which the vector has missed.
    tie = case["ns"] == 99, case["alphas"] == 0.5, case["deltas"] == 0.5
    expected[np.ix_(*tie)] = 49
    ranks = np.where(expected < 0, case["ns"][:, None, None] + 1, 0)
    ranks = np.where(expected >= 0, case["ns"][:, None, None] - expected, ranks)
    assert np.sum(ranks != case["pac_rank"]) == 1
    assert_array_equal([risk.critical_count(*v) for v in levels], expected.ravel())
    found = [[jaxcp.conformal_rank(case["ns"], *v[1:]) for v in levels[:25]]]
    assert_array_equal(np.array(found).reshape(25, -1).T.ravel(), ranks.ravel())
    found = [risk.hoeffding_bentkus_level(*v) for v in levels]
    assert_allclose(found, case["level"].ravel(), rtol=1e-9)


def test_counts_are_those_of_the_definition():
    """In fractions, ties and both ends among them; and for all numbers of rows."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n, alpha = int(rng.integers(60)), Fraction(int(rng.integers(1, 100)), 100)
        tails = law(n, alpha)
        tie = tails[rng.integers(n + 1)]
        for delta in [Fraction(int(rng.integers(1, 1000)), 1000), *[tie] * (tie < 1)]:
            expected = [largest(m, alpha, delta) for m in (n, n // 2)]
            assert risk.critical_count(n, alpha, delta) == expected[0]
            every = levels.critical_counts(n, alpha, delta)
            assert [every[n], every[n // 2]] == expected and every[0] == -1
            assert set(np.diff(every)) <= {0, 1}
        own = levels.binomial_tails(n, np.arange(n + 1), alpha)
        assert_allclose(own, tails.astype(float), rtol=1e-12)


@pytest.mark.parametrize(
    "n, delta", [(1, 0.9), (6, 0.9**6), (50, 0.9**50), (2000, 0.9**2000)]
)
def test_ties_of_no_errors_are_decided_exactly(n, delta):
    exact = Fraction(9, 10) ** n
    assert isclose(float(exact), delta)
    below = exact * (1 - Fraction(1, 10**30))
    assert levels.critical_errors(n, TENTH, exact) == 0
    assert levels.critical_errors(n, TENTH, below) == -1
    assert certificates.smallest_size(TENTH, exact) == n
    assert certificates.smallest_size(TENTH, below) == n + 1


@pytest.mark.parametrize("n", [10**4, 10**6, 10**8])
@pytest.mark.parametrize(
    "alpha, delta", [("0.1", "0.1"), ("1e-6", "0.01"), ("0.999", "0.7"), ("0.3", 1e-30)]
)
def test_counts_of_many_rows(n, alpha, delta):
    alpha, delta = Fraction(alpha), Fraction(str(delta))
    k = levels.critical_errors(n, alpha, delta)
    binomial = stats.binom(n, float(alpha))
    assert (k < 0 or binomial.cdf(k) <= delta) and binomial.cdf(k + 1) > delta


def test_the_level_is_the_largest_mean_with_a_small_p_value():
    def p_value(r, n, a, delta):
        h = (r and r * log(r / a)) + (1 - r) * log((1 - r) / (1 - a))
        bentkus = exp(1) * stats.binom.cdf(np.ceil(n * r - 1e-9), n, a)
        return min(exp(-n * h), bentkus) / delta

    for n, a, delta in [(100, 0.1, 0.1), (1000, 0.1, 0.1), (30, 0.5, 0.01)]:
        level = risk.hoeffding_bentkus_level(n, a, delta)
        assert p_value(level, n, a, delta) <= 1 + 1e-9
        assert all(p_value(level + e, n, a, delta) > 1 for e in (1e-7, 1e-3, 0.02))
    assert risk.hoeffding_bentkus_level(21, 0.1, 0.1) == -1
    assert risk.hoeffding_bentkus_level(22, 0.1, 0.1) >= 0


def test_stricter_levels_allow_no_more_errors():
    grid = ["1e-9", "0.01", "0.05", "0.1", "0.4", "0.6", "0.99"]
    for n in (1, 40, 1000):
        table = np.array([[risk.critical_count(n, Fraction(a), Fraction(d))
                           for a in grid] for d in grid])  # fmt: skip
        assert (np.diff(table, axis=0) >= 0).all() and (np.diff(table) >= 0).all()


FEWEST = [(0.05, 0.1, 45), (0.1, 0.1, 22), (0.2, 0.1, 11), (0.1, 0.95, 1)]
FEWEST += [(0.1, None, 9), (0.3, None, 3)]


@pytest.mark.parametrize("alpha, delta, n", FEWEST)
def test_the_fewest_rows_with_finite_sets(alpha, delta, n):
    assert certificates.smallest_size(alpha, delta) == n
    sizes = np.array([n - 1, n])
    assert_array_equal(
        jaxcp.conformal_rank(sizes, alpha, delta) <= sizes, [False, True]
    )


@pytest.mark.parametrize("n", [9, 45, 99, 1000])
def test_certificates_with_delta(n):
    for one, two in pairwise([0.9, 0.5, 0.1, 0.01]):
        low, high = (certificates.certificate(n, 0.1, d) for d in (one, two))
        assert low.rank <= high.rank == jaxcp.conformal_rank(n, 0.1, two)
        assert high.probability(0.9) >= 1 - two - 1e-12
        assert high.lower_bound(1 - two) >= 0.9 - 1e-12
        before = stats.beta(high.rank - 1, n + 2 - high.rank)
        assert before.sf(0.9) < 1 - two  # no smaller rank would do
    assert certificates.certificate(99, 0.1).delta is None
