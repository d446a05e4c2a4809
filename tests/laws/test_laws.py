"""Laws of every score, over ten thousand random cases each."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from own import CASES

import jaxcp
from helpers import (
    EDGES,
    LABELS,
    LARGER,
    NUM_CASES,
    components,
    inside,
    labels_of,
    scores_of,
    sets_of,
)
from jaxcp import scores
from jaxcp.scores import inputs

pytestmark = pytest.mark.double

all_scores = pytest.mark.parametrize("name", CASES)


@pytest.mark.parametrize("name", CASES | LARGER)
def test_inversion(name):
    """invert(pred, q) contains y exactly where all(score(pred, y) <= q).

    Or there and elsewhere: then a certificate says "at least".
    """
    case = (CASES | LARGER)[name]
    pred, y = case.batch(NUM_CASES)
    shape = (NUM_CASES, c) if (c := components(case)) > 1 else (NUM_CASES,)
    q = 3 * np.asarray(jax.random.normal(jax.random.key(1), shape))
    if case.exact:  # thresholds on the boundary: scores of other labels
        labels, rows = np.asarray(labels_of(case.score, pred)), np.arange(NUM_CASES)
        q = labels[rows, rows % labels.shape[1]]
        y = rows // labels.shape[1] % labels.shape[1]
    thresholds = q, *(np.full(shape, v, q.dtype) for v in (np.inf, -np.inf, 0.0))
    beyond = [_holds_more(case, pred, y, q) for q in thresholds]
    assert any(beyond) == (name in LARGER)
    assert not (any(beyond) and inputs.is_exact(case.score))


def _holds_more(case, pred, y, q):
    """Returns whether a set holds a target beyond its threshold; none lacks one."""
    contained = inside(sets_of(case.score, pred, q), y)
    scores = np.asarray(scores_of(case.score, pred, y))
    expected = scores <= q
    # Real targets may lie on the boundary within rounding; labels may not.
    with np.errstate(invalid="ignore"):  # inf - inf
        near = np.abs(scores - q) < 1e-5 * (1 + np.abs(q))
    near = np.zeros_like(near) if case.exact else near & np.isfinite(q)
    if expected.ndim > 1:
        expected, near = expected.all(axis=1), near.any(axis=1)
    contained, expected = np.asarray(contained)[~near], expected[~near]
    assert np.all(contained[expected])
    assert np.mean(near) < 0.5
    return np.any(contained & ~expected)


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_the_scores(name):
    case = CASES[name]
    pred, y = case.batch(NUM_CASES)
    labels = np.asarray(labels_of(case.score, pred))
    k = labels.shape[1]
    for y in [*range(k), -1, k, 99]:
        scores = scores_of(case.score, pred, np.full(NUM_CASES, y))
        assert_array_equal(scores, labels[:, y] if 0 <= y < k else np.inf)


@pytest.mark.parametrize("name", LABELS)
def test_a_threshold_for_each_label_gives_the_same_sets(name):
    case = CASES[name]
    pred, _ = case.batch(NUM_CASES)
    labels = np.asarray(labels_of(case.score, pred))
    q = labels[:, 0]
    each = sets_of(case.score, pred, np.broadcast_to(q[:, None], labels.shape))
    assert_array_equal(sets_of(case.score, pred, q).mask, each.mask)


@all_scores
def test_sets_grow_with_the_threshold(name):
    case = CASES[name]
    pred, y = case.batch(NUM_CASES)
    shape = (NUM_CASES, c) if (c := components(case)) > 1 else (NUM_CASES,)
    q = np.asarray(jax.random.normal(jax.random.key(1), shape))
    more = q + np.asarray(jax.random.exponential(jax.random.key(2), shape))
    everything = np.full(shape, np.inf, q.dtype)
    small, large, whole = (
        np.asarray(inside(sets_of(case.score, pred, v), y))
        for v in (q, more, everything)
    )
    assert np.all(small <= large)
    assert np.all(whole)


@all_scores
def test_order_of_the_calibration_set_does_not_matter(name):
    case = CASES[name]
    pred, y = case.batch(NUM_CASES)
    order = np.random.default_rng(1).permutation(NUM_CASES)
    shuffled = jax.tree.map(lambda v: v[order], (pred, y))
    alphas = [0.001, 0.1, 0.5, 0.9] if components(case) == 1 else 0.1
    one = jaxcp.calibrate(case.score, pred, y, mask=_usable(case, pred))
    two = jaxcp.calibrate(case.score, *shuffled, mask=_usable(case, shuffled[0]))
    assert_array_equal(one.quantile(alphas), two.quantile(alphas))


def _usable(case, pred):
    """Leaves out rows with sigma <= 0, which the door refuses."""
    score = getattr(case.score, "base", case.score)
    scaled = jaxcp.scores.Normalized, jaxcp.scores.ScaledResidual
    if not isinstance(score, scaled):
        return None
    return pred[1] > 0


@all_scores
def test_sets_are_nested_in_alpha_and_delta(name):
    case = CASES[name]
    pred, y = case.batch(NUM_CASES)
    cp = jaxcp.calibrate(case.score, pred, y, mask=_usable(case, pred))
    before = np.ones(NUM_CASES, bool)
    levels = [(0.1, 0.001), (0.1, 0.1), (0.1, None)]
    levels = [(0.00001, None), (0.01, None), *levels, (0.3, None), (0.9, None)]
    for alpha, delta in levels:
        contained = np.asarray(inside(cp(pred, alpha, delta=delta), y))
        assert np.all(contained <= before)
        before = contained
    n, c = NUM_CASES if cp.mask is None else np.sum(cp.mask), components(case)
    if c == 1:
        assert cp.certificate(0.1).exact == inputs.is_exact(case.score)
    rank = jaxcp.conformal_rank(n, Fraction(1, 10) / c, Fraction(1, 20) / c)
    assert np.all(cp.rank(0.1, 0.05) == rank)


@pytest.mark.parametrize(
    "score, pred",
    [
        (jaxcp.scores.Absolute(), -2.3),
        (jaxcp.scores.Signed(), -2.3),
        (jaxcp.scores.Residual(), -2.3),
        (jaxcp.scores.Residual("lower"), -2.3),
        (jaxcp.scores.ScaledResidual(), (-2.3, 0.7)),
        (jaxcp.scores.TwoSided(jaxcp.scores.ScaledResidual()), (-2.3, 0.7)),
        (jaxcp.scores.PredictedQuantiles([0.2, 0.3, 0.9]), [-2.3, 0.4, 1.7]),
        (jaxcp.scores.PredictedQuantiles([0.2, 0.3, 0.9], "lower"), [-2.3, 0.4, 1.7]),
        (jaxcp.scores.DCP([0.2, 0.3, 0.9]), [-2.3, 0.4, 1.7]),
        (jaxcp.scores.Normalized(), (-2.3, 0.7)),
        (jaxcp.scores.CQR(), (-2.3, -2.2)),
        (jaxcp.scores.AsymmetricCQR(), (-2.3, -2.2)),
        (jaxcp.scores.Gamma(), 0.3),
    ],
    ids=lambda v: type(v).__name__,
)
def test_rounding_loses_no_target(score, pred):
    """Sets keep the targets whose score is the threshold, whatever mu + q rounds to."""
    y = np.random.default_rng(0).poisson(3, 2000).astype(np.float32)
    preds = jax.tree.map(lambda v: np.full(2000, v, y.dtype), pred)
    preds = np.stack(preds, axis=1) if isinstance(preds, list) else preds
    cp = jaxcp.calibrate(score, preds, y)
    for alpha in [0.05, 0.2, 0.4, 0.7]:
        below = np.asarray(scores_of(score, preds, y)) <= np.asarray(cp.quantile(alpha))
        within = below.reshape(2000, -1).all(axis=1)
        assert_array_equal(inside(cp(preds, alpha), y), within)


@pytest.mark.parametrize("name", ["absolute", "signed", "cqr", "lac", "raps"])
def test_calibrations_that_are_constants_of_a_program(name):
    case = CASES[name]
    preds, y = jax.tree.map(jnp.asarray, case.batch(60))
    weights = np.linspace(0.5, 1, 60, dtype=np.float32)
    for options in [{}, {"mask": np.asarray(y) > -1}, {"weights": weights}]:
        cp = jaxcp.calibrate(case.score, preds, y, **options)
        closed = jax.jit(lambda cp=cp: (cp.quantile(0.2), cp.p_values(preds, y)))()
        open_ = cp.quantile(0.2), cp.p_values(preds, y)
        for a, b in zip(closed, open_, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_penalty_zero_is_aps():
    for randomized, name in [(False, "aps"), (True, "aps-randomized")]:
        pred, _ = CASES[name].batch(NUM_CASES)
        aps = jaxcp.scores.APS(randomized)
        raps = jaxcp.scores.RAPS(0.0, 3, randomized)
        assert_array_equal(labels_of(raps, pred), labels_of(aps, pred))


def test_constant_sigma_and_constant_bands_are_split():
    mu, y = CASES["absolute"].batch(200)
    split = jaxcp.calibrate(jaxcp.scores.Absolute(), mu, y)(mu, 0.1)
    scaled = jaxcp.calibrate(jaxcp.scores.Normalized(), (mu, 0 * mu + 2), y)
    banded = jaxcp.calibrate(jaxcp.scores.CQR(), (mu - 3, mu + 3), y)
    for cp, pred in [(scaled, (mu, 0 * mu + 2)), (banded, (mu - 3, mu + 3))]:
        sets = cp(pred, 0.1)
        np.testing.assert_allclose(sets.lower, split.lower, atol=1e-5)
        np.testing.assert_allclose(sets.upper, split.upper, atol=1e-5)


def test_shift_and_scale_of_the_target_carry_over():
    mu, y = CASES["absolute"].batch(200)
    cp = jaxcp.calibrate(jaxcp.scores.Absolute(), mu, y)(mu, 0.1)
    moved = jaxcp.calibrate(jaxcp.scores.Absolute(), 4 * mu + 1, 4 * y + 1)
    sets = moved(4 * mu + 1, 0.1)
    np.testing.assert_allclose(sets.lower, 4 * cp.lower + 1, atol=1e-4)
    np.testing.assert_allclose(sets.upper, 4 * cp.upper + 1, atol=1e-4)


SCALED = tuple(float(2.0**e) for e in (-90, 90))
ALONE = "a function with units of its own"
# Names of scores by their degree in the units of the targets.
OF_DEGREE = {
    1: "absolute absolute-3d signed residual residual-lower cqr asymmetric-cqr "
    "distance distance-sum distance-largest rectangle box-offset pcp hdpcp rectified",
    0: "scaled-residual two-sided quantiles quantiles-lower dcp normalized "
    "normalized-bad-sigma gamma band band-share mahalanobis cp2pcp box-inner "
    "box-maximum c-pcp c-pcp-extended c-pcp-ties cdf-absolute cdf-known "
    "rectified-ratio rectified-boxes rectified-law rectified-draws binned binned-one "
    "binned-randomized interpolated",
    ALONE: "custom custom-level-set custom-start density latent c-hdr-extended-ties "
    "own-ring",
}
DEGREES = {name: d for d, names in OF_DEGREE.items() for name in names.split()}
# What of a prediction has no units, and scores that hold numbers with units.
WITHOUT_UNITS = {
    "c-pcp-ties": lambda new, old: (*new[:-1], old[-1]),
    "hdpcp": lambda new, old: (new[0], old[1]),
    "rectified-draws": lambda new, old: (new[0], old[1]),
}
WITHOUT_UNITS |= dict.fromkeys(
    ("binned", "binned-one", "binned-randomized", "interpolated"), lambda new, old: old
)
IN_UNITS = {
    "binned": lambda c: scores.Binned(c * EDGES),
    "binned-one": lambda c: scores.Binned(c * EDGES[:2]),
    "binned-randomized": lambda c: scores.Binned(c * EDGES, True),
    "interpolated": lambda c: scores.Interpolated(c * EDGES),
}


def of_numbers(name):
    return np.issubdtype(CASES[name].one()[1].dtype, np.floating)


def test_each_score_of_numbers_declares_its_degree():
    assert set(DEGREES) == set(filter(of_numbers, CASES))


@pytest.mark.parametrize("name", [k for k, v in DEGREES.items() if v != ALONE])
def test_units_of_the_targets_change_nothing(name):
    """s(c pred, c y) = c^d s(pred, y), and sets at c^d q hold c y where they held y.

    To the last bit for powers of two.
    """
    case, degree = CASES[name], DEGREES[name]
    pred, y = case.batch(200)
    values = np.asarray(scores_of(case.score, pred, y))
    level = np.median(values, axis=0)
    q = np.broadcast_to(level, values.shape)
    held = inside(sets_of(case.score, pred, q), y)
    for c in SCALED:
        c = np.float32(c)
        scaled = jax.tree.map(lambda v, c=c: c * v, pred)
        scaled = WITHOUT_UNITS.get(name, lambda new, old: new)(scaled, pred)
        score = IN_UNITS.get(name, lambda c, case=case: case.score)(c)
        assert_array_equal(scores_of(score, scaled, c * y), c**degree * values)
        again = inside(sets_of(score, scaled, c**degree * q), c * y)
        assert_array_equal(again, held)


@pytest.mark.parametrize("name", ["distance", "pcp", "mahalanobis", "cp2pcp"])
def test_units_do_not_change_slopes(name):
    """Of degree 1 they are the same, of degree 0 they are in units of 1 / c."""
    case, degree = CASES[name], DEGREES[name]
    pred, y = case.batch(50)
    slopes = jax.jit(jax.vmap(jax.grad(lambda y, pred: case.score(pred, y))))
    expected = np.asarray(slopes(y, pred))
    assert np.all(np.isfinite(expected)) and np.any(expected != 0)
    for c in map(np.float32, SCALED):
        found = slopes(c * y, jax.tree.map(lambda v, c=c: c * v, pred))
        assert_allclose(found * c ** (1 - degree), expected, rtol=2e-6)
