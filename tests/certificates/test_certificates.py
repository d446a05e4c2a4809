from fractions import Fraction
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import jaxcp
from helpers import LARGER
from jaxcp import certificates, learners, metrics
from jaxcp.certificates import calibration_size, certificate, laws
from jaxcp.scores import Absolute, Signed


def check(*args, **options):
    return certificates.coverage_test(*args, **options)


@pytest.mark.parametrize("n, alpha", [(1, 0.5), (9, 0.1), (20, 0.1), (99, 0.05)])
def test_certificate_is_the_beta_law(n, alpha):
    proof = certificate(n, alpha)
    k = int(np.ceil(round((n + 1) * (1 - alpha), 9)))
    law = stats.beta(k, n + 1 - k)
    assert proof.rank == k and proof.law == (k, n + 1 - k)
    assert_allclose(proof.coverage, law.mean(), rtol=1e-15)
    assert_allclose(proof.standard_deviation, law.std(), rtol=1e-12)
    assert_allclose(proof.interval(0.8), law.ppf([0.1, 0.9]), rtol=1e-12)
    assert_allclose(proof.lower_bound(0.9), law.ppf(0.1), rtol=1e-12)
    between = law.cdf(0.95) - law.cdf(0.7)
    assert_allclose(proof.probability(0.7, 0.95), between, rtol=1e-10, atol=1e-15)


def test_too_few_scores_are_certain_to_cover():
    proof = certificate(3, 0.1)
    assert proof.law == (4, 0) and proof.coverage == 1.0
    assert proof.interval(0.9) == (1.0, 1.0) and proof.lower_bound(0.99) == 1.0
    assert proof.probability(0.5) == 1.0 and proof.probability(0.5, 0.9) == 0.0
    assert check(np.ones(5, bool), 3, 0.1).p_value == 1.0
    assert check(np.zeros(5, bool), 3, 0.1).p_value < 1e-200


def test_ten_million_scores_in_double_precision():
    """Normal approximation: mean 0.9, sd sqrt(0.09 / n); float32 has none of it."""
    proof = certificate(10**7, 0.1)
    low, high = proof.interval(0.9)
    assert_allclose([low - 0.9, high - 0.9], [-1.5604e-4, 1.5604e-4], rtol=2e-3)
    assert_allclose(proof.probability(low, high), 0.9, rtol=1e-9)


@pytest.mark.parametrize("eps", [0.1, 0.05, 0.02])
def test_calibration_size_is_the_last_crossing(eps):
    """Against all sizes: half of the slack in each tail, from that size on."""

    def kept(n):
        low, high = certificate(n, 0.1).interval(0.9)
        return low >= 0.9 - eps - 1e-12 and high <= 0.9 + eps + 1e-12

    size = calibration_size(0.1, eps, 0.9)
    assert not kept(size - 1)
    assert all(kept(n) for n in range(size, 2 * size))
    assert certificate(5, 0.1).num_needed(eps, 0.9) == size


@pytest.mark.parametrize("alpha", [0.002, 0.5, 0.997, Fraction(1, 3), 0.0123])
def test_calibration_sizes_of_other_levels(alpha):
    """Also where infinite sets, of coverage 1, are within the slack."""
    slack = min(1.5 * float(min(alpha, 1 - alpha)), 0.1)
    size = calibration_size(alpha, slack, 0.95)

    def kept(n):
        low, high = certificate(n, alpha).interval(0.95)
        return low >= 1 - alpha - slack and high <= 1 - alpha + slack

    assert size > 1 and not kept(size - 1)
    assert all(kept(n) for n in range(size, size + 1500, 7))


@pytest.mark.parametrize(
    "eps, n",
    [(0.1, 22), (0.05, 102), (0.01, 2491), (0.005, 9812), (0.001, 244390)],
)
def test_published_calibration_sizes(eps, n):
    """Each is a size at which the slack is kept, and not at one less."""

    def kept(n):
        low, high = certificate(n, 0.1).interval(0.9)
        return low >= 0.9 - eps and high <= 0.9 + eps

    assert kept(n) and not kept(n - 1)
    assert n <= calibration_size(0.1, eps, 0.9) < 1.5 * n


@pytest.mark.parametrize(
    "n, alpha, m, r",
    [
        (9, 0.1, 1, 1),
        (99, 0.1, 20, 1),
        (99, 0.1, 20, 7),
        (4, 0.5, 5, 3),
        (1, 0.5, 1, 50),
    ],
)
def test_p_values_are_those_of_the_convolved_law(n, alpha, m, r):
    mass = stats.betabinom.pmf(np.arange(m + 1), m, *certificate(n, alpha).law)
    law = np.ones(1)
    for _ in range(r):
        law = np.convolve(law, mass)
    for total in {0, 1, r * m // 2, int(0.9 * r * m), r * m}:
        counts = np.full(r, total // r) + (np.arange(r) < total % r)
        below, above = law[: total + 1].sum(), law[total:].sum()
        for side, p in {
            "less": below,
            "greater": above,
            "two-sided": min(2 * min(below, above), 1),
        }.items():
            got = check(counts, n, alpha, num_test=m, alternative=side)
            assert_allclose(got.p_value, min(p, 1), rtol=1e-8)


def exact_law(a, b, m, r):
    """How many of all cases r BetaBinomial(m, a, b) sum to each number: integers."""
    one = [comb(x + a - 1, x) * comb(m - x + b - 1, m - x) for x in range(m + 1)]
    law = np.ones(1, object)
    for _ in range(r):
        law = np.convolve(law, np.array(one, object))
    return law


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("m", [1, 3, 31])
@pytest.mark.parametrize("r", [2, 3, 4])
def test_p_values_of_few_scores_are_those_of_the_exact_law(n, m, r):
    """Few scores have laws that are as wide as can be: no sum is left out."""
    points = m * r
    for b in range(1, n + 1):
        law = exact_law(n + 1 - b, b, m, r)
        for total in {0, 1, points // 3, points // 2 + 1, 2 * points // 3, points}:
            counts = np.full(r, total // r) + (np.arange(r) < total % r)
            sides = law[: total + 1], law[total:]
            below, above = (part.sum() / law.sum() for part in sides)
            two_sided = min(2 * min(below, above), 1)
            expected = {"less": below, "greater": above, "two-sided": two_sided}
            for side, p in expected.items():
                level = Fraction(b, n + 1)
                found = check(counts, n, level, num_test=m, alternative=side)
                assert_allclose(found.p_value, p, rtol=1e-9)


def test_a_million_replicates_and_tiny_p_values():
    """Against the binomial law: one test point for each calibration set."""
    counts = np.arange(10**6) < 900_990 + 3000
    result = check(counts.astype(int), 100, 0.1, num_test=1)
    exact = 2 * stats.binom.sf(counts.sum() - 1, 10**6, 91 / 101)
    assert exact < 1e-20
    assert_allclose(result.p_value, exact, rtol=1e-6)
    assert_allclose(result.standard_error, np.sqrt(91 * 10 / 101**2 / 1e6), rtol=1e-9)
    # A window of the law, not all of its numbers.
    wide = check(np.full(10**6, 91), 100, 0.1, num_test=100)
    z = (0.91 - 91 / 101) / wide.standard_error
    assert 1e-300 <= wide.p_value < 1e-200 and z > 100


def test_a_window_of_the_law_has_the_tails_of_all(monkeypatch):
    """Where all the numbers a sum can be are too many, only those near it count."""
    counts = np.array([17, 18, 20, 15, 19] * 40)
    every = check(counts, 20, 0.1, num_test=20)
    far = check(counts - 5, 20, 0.1, num_test=20)
    monkeypatch.setattr(laws, "_ALL", 512)
    assert_allclose(check(counts, 20, 0.1, num_test=20), every, rtol=1e-9)
    assert_allclose(check(counts - 5, 20, 0.1, num_test=20), far, rtol=1e-8)
    assert far.p_value < 1e-30 < every.p_value


def test_shapes_of_covered():
    flags = np.arange(60).reshape(6, 10) % 10 > 0
    many = check(flags, 20, 0.1)
    assert many == check(flags.sum(axis=1), 20, 0.1, num_test=10)
    assert check(flags[0], 20, 0.1) == check(9, 20, 0.1, num_test=10)
    assert many.coverage == 0.9 and many.expected == 19 / 21
    assert check(jnp.asarray(flags), 20, 0.1) == many


def test_standard_error_is_that_of_the_mean():
    draws = stats.betabinom(10, 19, 2).rvs((4000, 6), random_state=0) / 10
    expected = check(np.full(6, 9), 20, 0.1, num_test=10).standard_error
    assert_allclose(draws.mean(axis=1).std(), expected, rtol=0.05)


def test_certificate_of_a_calibration():
    x = jnp.arange(20.0)
    cp = jaxcp.calibrate(Absolute(), jnp.zeros(20), x)
    assert cp.certificate(0.1) == certificate(20, 0.1)
    masked = jaxcp.calibrate(Absolute(), jnp.zeros(20), x, mask=x < 9)
    assert masked.certificate(0.1).n == 9
    inside = jax.jit(lambda y: cp.certificate(0.1).coverage + 0 * y)(1.0)
    assert_allclose(inside, 19 / 21, rtol=1e-6)
    weighted = jaxcp.calibrate(Absolute(), jnp.zeros(20), x, weights=jnp.ones(20))
    with pytest.raises(ValueError, match="without weights"):
        weighted.certificate(0.1)
    with pytest.raises(ValueError, match="got 2 components"):
        jaxcp.calibrate(Signed(), jnp.zeros(20), x).certificate(0.1)
    with pytest.raises(ValueError, match="a mask with values, got a traced one"):
        jax.jit(lambda m: jaxcp.calibrate(Absolute(), x, x, mask=m).certificate(0.1).n)(
            x < 3
        )


@pytest.mark.parametrize("name", LARGER)
def test_larger_sets_cover_at_least_what_is_certified(name):
    """Lower bounds hold, over 500 calibration sets; what would bound from above not."""
    score, n, alpha = LARGER[name].score, 19, 0.2
    preds, y = LARGER[name].batch(10_000)
    rows = jax.tree.map(lambda v: v.reshape(500, 20, *v.shape[1:]), (preds, y))
    known, new = (jax.tree.map(lambda v, i=i: v[:, i], rows) for i in (slice(n), -1))

    def trial(known, pred, target):
        cp = jaxcp.calibrate(score, *known)
        one = jax.tree.map(lambda v: v[None], pred)
        return metrics.covered(cp(one, alpha), target[None])[0]

    covered = np.asarray(jax.jit(jax.vmap(trial))(known, *new))
    row = jax.tree.map(lambda v: v[0], known)
    proof = jaxcp.calibrate(score, *row).certificate(alpha)
    assert not proof.exact and "at least 16/20" in str(proof)
    test = check(covered.astype(int), n, alpha, num_test=1, alternative="less")
    assert test.p_value > 1e-3
    exact = certificate(n, alpha)
    assert exact.exact and "at least" not in str(exact)
    assert proof.coverage == exact.coverage
    assert proof.lower_bound(0.9) == exact.lower_bound(0.9)
    assert proof.probability(0.7) == exact.probability(0.7)
    for claim in (
        lambda: proof.law,
        lambda: proof.standard_deviation,
        lambda: proof.interval(0.9),
        lambda: proof.probability(0.7, 0.9),
        lambda: proof.num_needed(0.1, 0.9),
    ):
        with pytest.raises(ValueError, match="expected an exact certificate, got one"):
            claim()


def test_certificates_of_other_sets_say_at_least():
    x, y = jnp.arange(9.0)[:, None], jnp.sin(jnp.arange(9.0))
    given = jax.random.key(0), learners.Ridge(1.0), Absolute(), x, y
    for residuals in ("studentized", "ordinary", "deleted"):
        proof = jaxcp.full_conformal(*given, residuals=residuals).certificate(0.2)
        assert proof.exact == ("at least" not in str(proof))
        assert proof.exact == (residuals == "studentized")
    score = LARGER["aps-inclusive"].score
    p, labels = LARGER["aps-inclusive"].batch(20)
    one = jaxcp.calibrate_groups(score, p, labels, labels % 2, num_groups=2)
    assert not any(proof.exact for proof in one.certificate(0.2))


def test_the_test_is_of_one_row_for_other_sets():
    """Full conformal sets cover k/(n + 1), but many rows of one fit not by its law."""
    n, m, alpha = 10, 50, 0.2

    def trial(key):
        x = jax.random.normal(key, (n + m, 8))
        y = jax.random.normal(jax.random.fold_in(key, 1), (n + m,))
        cp = jaxcp.full_conformal(
            key, learners.Ridge(0.1), Absolute(), x[:n], y[:n], check=False
        )
        return cp(x[n:], alpha).contains(y[n:])

    keys = jax.random.split(jax.random.key(0), 2000)
    covered = np.asarray(jax.jit(jax.vmap(trial))(keys))
    one = covered[:, 0].astype(int)
    assert check(one, n, alpha, num_test=1).p_value > 1e-3
    runs = covered.reshape(100, 20, m)
    rejected = [check(flags, n, alpha).p_value <= 0.05 for flags in runs]
    assert np.mean(rejected) > 0.05 + 4 * (0.05 * 0.95 / 100) ** 0.5


def test_errors():
    for call, message in {
        lambda: certificate(-1, 0.1): "n as an int >= 0, got -1",
        lambda: certificate(9, 1.5): r"alpha in \(0, 1\), got 1.5",
        lambda: certificate(9, jnp.array(0.1)): "alpha as a number, got a jax array",
        lambda: certificate(9, [0.1, 0.2]): r"alpha of shape \(\), got \(2,\)",
        lambda: certificate(9, 0.1).interval(1.0): r"probability in \(0, 1\), got 1.0",
        lambda: certificate(9, 0.1).lower_bound(0): r"probability in \(0, 1\), got 0",
        lambda: calibration_size(0.1, 0.0, 0.9): r"slack in \(0, 1\), got 0.0",
        lambda: calibration_size(1e-7, 0.1, 0.9): r"\[1e-6, 1 - 1e-6\], got 1e-07",
        lambda: check(np.ones(3), 9, 0.1): r"as flags.*got float64\(3,\)",
        lambda: check(np.ones((0, 2), bool), 9, 0.1): r"got bool\(0, 2\)",
        lambda: check([5, 11], 9, 0.1, num_test=10): r"0, ..., 10, got 11 at 1",
        lambda: check(np.ones(3), 9, 0.1, num_test=10): "as counts of shape",
        lambda: check([1], 9, 0.1, num_test=0): "num_test as an int >= 1, got 0",
        lambda: check([1], 9, 0.1, num_test=1, alternative="lower"): "'lower'",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_coverage_law():
    assert jaxcp.coverage_law(99, 0.1) == (90, 10)
    assert jaxcp.coverage_law(8, 0.1) == (9, 0)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\), got 1.5"):
        jaxcp.coverage_law(9, 1.5)
