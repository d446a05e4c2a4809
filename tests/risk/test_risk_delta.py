"""Sets that cover with probability 1 - delta over calibration sets."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import jaxcp
from jaxcp import certificates, conformal_rank, detection, outliers, scores

X = jnp.arange(1.0, 100.0)
ABSOLUTE, ZEROS = scores.Absolute(), jnp.zeros(99)
CP = jaxcp.calibrate(ABSOLUTE, ZEROS, X)


def calibrate(y, **options):
    return jaxcp.calibrate(ABSOLUTE, jnp.zeros(y.shape), y, **options)


def test_calibration_sets_are_bad_as_often_as_the_law_says():
    """n = 99, alpha = delta = 0.1: rank 94, bad as often as Bin(99, 0.1) <= 5."""
    data = jax.random.uniform(jax.random.key(0), (10_000, 99))
    exact = stats.binom.cdf(5, 99, 0.1)
    assert_allclose(exact, 0.0612, atol=5e-5)
    cp = jax.vmap(calibrate)(data)
    q = jax.vmap(lambda cp: cp.quantile(0.1, delta=0.1))(cp)  # is the coverage
    assert_array_equal(q, np.sort(data)[:, 93])
    error = (exact * (1 - exact) / len(q)) ** 0.5
    assert abs(np.mean(q < 0.9) - exact) < 4 * error
    assert stats.kstest(np.asarray(q, float), stats.beta(94, 6).cdf).pvalue > 1e-3
    assert_allclose(CP.certificate(0.1, delta=0.1).probability(0.9), 1 - exact)


def test_sets_certificate_and_test_agree():
    assert CP.rank(0.1, 0.1) == CP.quantile(0.1, delta=0.1) == 94
    assert_array_equal(CP.quantile([0.1, 0.2], delta=0.1), [94, 85])
    assert_array_equal(CP(jnp.zeros(2), 0.1, delta=0.1).upper, [94, 94])
    assert CP.certificate(0.1, delta=0.1) == certificates.certificate(99, 0.1, 0.1)
    assert CP.certificate(0.1, delta=0.1).law == (94, 6)
    few = calibrate(X[:21])
    assert few.quantile(0.1, delta=0.1) == jnp.inf
    assert few.certificate(0.1, delta=0.1).coverage == 1
    for empty in (calibrate(X[:0]), calibrate(X, mask=X < 0)):
        assert empty.quantile(0.1, delta=0.9) == jnp.inf
    counts = np.full(500, 94)
    assert certificates.coverage_test(counts, 99, 0.1, num_test=99).p_value < 0.01
    found = certificates.coverage_test(counts, 99, 0.1, delta=0.1, num_test=100)
    assert found.expected == 0.94 and found.p_value > 0.5


@pytest.mark.parametrize("x64", [False, True])
def test_numbers_ties_and_infinite_scores(x64):
    with jax.enable_x64(x64):
        y = jnp.asarray(np.repeat([1.0, 2.0, np.inf], [90, 5, 4]))
        cp = jaxcp.Calibration(ABSOLUTE, y)
        rank = cp.rank(Fraction(1, 10), np.float32(0.1))
        assert rank == 94 and cp.quantile(0.1, delta=0.1) == 2
        assert cp.quantile(0.05, delta=0.1) == jnp.inf
        assert cp.quantile(1 - 0.9, delta=1 - 0.9) == 2


def test_programs_know_the_number_of_rows():
    sets = CP(jnp.arange(3.0), 0.1, delta=0.1)
    inside = jax.jit(lambda cp, p: cp(p, 0.1, delta=0.1))(CP, jnp.arange(3.0))
    assert_array_equal(inside.upper, sets.upper)
    masked = calibrate(X, mask=X <= 50)
    assert masked.rank(0.1, 0.1) == conformal_rank(50, 0.1, 0.1) == 49
    assert jax.jit(lambda: masked.quantile(0.1, delta=0.1))() == 49
    gradient = jax.grad(lambda y: calibrate(y).quantile(0.1, delta=0.1))(X)
    assert_array_equal(gradient, X == 94)
    with pytest.raises(ValueError, match="got a traced mask, groups or count; the"):
        jax.jit(lambda cp: cp.quantile(0.1, delta=0.1))(masked)
    with pytest.raises(ValueError, match="alpha as a number where delta is given"):
        jax.vmap(lambda a: CP.quantile(a, delta=0.1))(jnp.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="delta as a number, got "):
        jax.jit(lambda d: CP.quantile(0.1, delta=d))(0.1)


def test_components_hold_together():
    """A union bound: each of c components takes alpha / c and delta / c."""
    y = jax.random.normal(jax.random.key(1), (400, 3))
    cp = jaxcp.calibrate(ABSOLUTE, jnp.zeros((400, 3)), y)
    each = [jaxcp.calibrate(ABSOLUTE, jnp.zeros(400), v) for v in y.T]
    exact = Fraction(1, 10) / 3, Fraction(1, 20) / 3
    expected = [one.quantile(exact[0], delta=exact[1]) for one in each]
    assert_array_equal(cp.quantile(0.1, delta=0.05), expected)
    assert_array_equal(cp(jnp.zeros((2, 3)), 0.1, delta=0.05).upper[1], expected)
    ranks = [conformal_rank(400, a, exact[1]) for a in (0.05, 0.02, 0.03)]
    assert_array_equal(cp.rank([0.05, 0.02, 0.03], 0.05), ranks)
    with pytest.raises(ValueError, match="without weights or several components"):
        cp.certificate(0.1, delta=0.05)


def test_each_group_has_its_rank():
    groups = jnp.asarray(np.repeat([0, 1, 2], [60, 29, 10]))
    cp = jaxcp.calibrate_groups(ABSOLUTE, ZEROS, X, groups, num_groups=3)
    of_group = [calibrate(X[groups == g]) for g in range(3)]
    expected = [one.quantile(0.1, delta=0.1) for one in of_group]
    assert expected[2] == jnp.inf
    assert_array_equal(cp.quantile(0.1, delta=0.1), expected)
    sets = cp(jnp.zeros(3), 0.1, delta=0.1, groups=jnp.arange(3))
    assert_array_equal(sets.upper, expected)
    alphas = [0.2, 0.1, 0.3]
    each = [of_group[g].quantile(alphas[g], delta=0.1) for g in range(3)]
    assert_array_equal(cp.quantile(alphas, delta=0.1), each)
    proofs = cp.certificate(0.1, delta=0.1)
    assert proofs == tuple(one.certificate(0.1, delta=0.1) for one in of_group)
    with pytest.raises(ValueError, match="got a traced mask, groups or count"):
        jax.jit(lambda cp: cp.quantile(0.1, delta=0.1))(cp)
    two = jaxcp.calibrate_groups(
        ABSOLUTE, jnp.zeros((99, 2)), jnp.stack([X, -X], 1), groups, num_groups=3
    )
    assert_array_equal(two.rank(0.2, 0.2), np.stack([cp.rank(0.1, 0.1)] * 2, 1))
    p, y = jnp.linspace(0.1, 0.9, 60), jnp.arange(60) % 2
    p = jnp.stack([p, 1 - p], 1)
    labels = jaxcp.calibrate_groups(scores.LAC(), p, y, y, num_groups=2)
    bound = labels.quantile(0.2, delta=0.1)
    assert_array_equal(labels(p, 0.2, delta=0.1).mask, 1 - p <= bound[None])


def test_models_boxes_and_outliers():
    model = jaxcp.split_conformal(lambda _, x: 0 * x, None, ABSOLUTE, X, X)
    assert_array_equal(model(X[:1], 0.1, delta=0.1).upper, [94])
    assert model.quantile(0.1, delta=0.1) == 94
    assert model.certificate(0.1, delta=0.1) == CP.certificate(0.1, delta=0.1)
    true = jnp.array([[10.0, 10.0, 90.0, 90.0]])
    preds = [true + shift / 10 for shift in range(60)] + [true + 1000]  # one unmatched
    score = scores.BoxOffset(maximum=True)
    cp = detection.calibrate_boxes(score, preds, 61 * [true], min_iou=0.3)
    rank = conformal_rank(60, 0.1, 0.05)
    assert_allclose(cp.quantile(0.1, delta=0.05), (rank - 1) / 10, rtol=1e-4)
    assert cp.certificate(0.1, delta=0.05).n == 60
    assert_allclose(cp(true, 0.1, delta=0.05).corners()[0, 0], 10 - (rank - 1) / 10)
    test = jnp.array([89.5, 93.5, 94.0, 94.5, jnp.nan])
    found = outliers.is_outlier(X, test, 0.1, delta=0.1)
    assert_array_equal(found, [False, False, False, True, True])
    of_mask = outliers.is_outlier(X, test, 0.1, delta=0.1, mask=X <= 21)
    assert not of_mask.any()  # too few rows
    traced = jax.jit(lambda s: outliers.is_outlier(s, test, 0.1, delta=0.1))(X)
    assert_array_equal(traced, found)


def test_only_where_the_law_is_known():
    weighted = calibrate(X, weights=X / np.max(X))
    for call in (weighted.quantile, lambda a, delta: weighted(ZEROS, a, delta=delta)):
        with pytest.raises(ValueError, match="a calibration with weights, got 0"):
            call(0.1, delta=0.05)

    @jaxcp.pytree
    class Half(jaxcp.Rule):
        score: jaxcp.typing.Score
        whole: jaxcp.Calibration

        def rank(self, alpha):
            return self.whole.rank(alpha)

        def threshold(self, rank):
            return self.whole.threshold(rank) / 2

    @jaxcp.pytree
    class Sure(Half):
        def rank(self, alpha, delta=None):
            return self.whole.rank(alpha, delta)

    assert Sure(ABSOLUTE, CP).quantile(0.1, delta=0.1) == 47
    assert_array_equal(Sure(ABSOLUTE, CP)(ZEROS[:1], 0.1, delta=0.1).upper, [47])
    for call in (
        lambda: Half(ABSOLUTE, CP).quantile(0.1, delta=0.05),
        lambda: Half(ABSOLUTE, CP)(ZEROS, 0.1, delta=0.05),
    ):
        with pytest.raises(ValueError, match="delta=None for Half, whose coverage has"):
            call()
    held_out = jnp.arange(99)[None] % 3 == jnp.arange(3)[:, None]
    cross = jaxcp.cross_calibrate(ABSOLUTE, jnp.zeros((3, 99)), X, held_out)
    with pytest.raises(TypeError, match="delta"):
        cross.quantile(0.1, delta=0.05)
