"""Calibration errors, Brier score and tests of calibration: vectors, laws, edges."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from helpers import cases
from jaxcp.metrics import brier_score, calibration_test, expected_calibration_error
from jaxcp.metrics.probabilities import _of_motion, _of_range
from rows import refuses

VECTORS = cases("distributional/calibration")
MAPIE = cases("mapie/metrics_calibration")
PRECISE = [pytest.param(False, id="float32"), pytest.param(True, id="float64")]
KINDS = "kolmogorov", "kuiper", "spiegelhalter"


def tolerance(is_double):
    return {"rtol": 1e-9, "atol": 1e-9} if is_double else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("is_double", PRECISE)
def test_vectors_of_events(is_double):
    case, close = VECTORS["binary"], tolerance(is_double)
    rows = case["p"], case["y"]
    with jax.enable_x64(is_double):
        for bins in ("width", "mass"):
            for num_bins in (1, 5, 10):
                found = expected_calibration_error(*rows, num_bins=num_bins, bins=bins)
                assert_allclose(found, case[f"ece_{bins}_{num_bins}"], **close)
        assert_allclose(brier_score(*rows), case["brier"], **close)
        walk, span, score = (calibration_test(*rows, kind=k) for k in KINDS)
        assert_allclose(walk.statistic * case["scale"], case["ks"], **close)
        assert_allclose(walk.p_value, case["ks_p"], **close)
        assert_allclose(span.statistic * case["scale"], case["kuiper"], **close)
        assert_allclose(score.statistic, abs(case["spiegelhalter_z"]), **close)
        assert_allclose(score.p_value, case["spiegelhalter_p"], **close)


@pytest.mark.parametrize("is_double", PRECISE)
def test_vectors_of_classes(is_double):
    case, close = VECTORS["multi"], tolerance(is_double)
    rows = case["p"], case["y"]
    with jax.enable_x64(is_double):
        assert_allclose(brier_score(*rows), case["brier"], **close)
        for kind in ("top_label", "classwise"):
            found = expected_calibration_error(*rows, num_bins=10, kind=kind)
            assert_allclose(found, case[f"{kind}_ece_10"], **close)
        event = rows[0].max(axis=1), rows[0].argmax(axis=1) == rows[1]
        found = expected_calibration_error(*event, num_bins=10)
        assert_allclose(found, case["confidence_ece_10"], **close)


@pytest.mark.parametrize("is_double", PRECISE)
def test_vectors_of_mapie(is_double):
    """Its `num_bins` makes one bin less; the range of its walk forgets the start."""
    close = {"rtol": 1e-6} if is_double else {"rtol": 1e-5}
    with jax.enable_x64(is_double):
        for name, num_bins in {"base": 9, "miscal": 9, "rounded": 9}.items():
            case = MAPIE[name]
            rows = case["score"], case["correct"]
            found = expected_calibration_error(*rows, num_bins=num_bins)
            assert_allclose(found, case["ece_uniform_b10"], **close)
            of_classes = case["proba"], case["label"]
            options = {"num_bins": num_bins, "kind": "top_label"}
            found = expected_calibration_error(*of_classes, **options)
            if name != "rounded":  # whose largest probabilities tie
                assert_allclose(found, case["fix_tl_ece_b10"], **close)
        for name in ("base", "miscal"):
            case = MAPIE[name]
            rows = case["score"], case["correct"]
            walk, span, score = (calibration_test(*rows, kind=k) for k in KINDS)
            assert_allclose(walk.statistic, case["ks"], **close)
            assert_allclose(score.statistic, case["spieg"], **close)
            sums = np.append(case["cumdiff"], 0)
            scale = np.sqrt(np.sum(rows[0] * (1 - rows[0]))) / len(rows[0])
            assert_allclose(span.statistic, np.ptp(sums) / scale, **close)
        laws = {"ks_cdf": _of_motion, "kuiper_cdf": _of_range}
        for name, tail in laws.items():
            found = 1 - jax.vmap(tail)(jnp.asarray(MAPIE["base"]["grid"]))
            assert_allclose(found, MAPIE["base"][name], **close, atol=2e-6)


def test_tails_are_precise_where_they_are_small():
    x = np.array([4.0, 6.0, 9.0])
    tail = stats.norm.sf
    assert_allclose(jax.vmap(_of_motion)(x), 4 * (tail(x) - tail(3 * x)), rtol=1e-5)
    expected = 8 * (tail(x) - 2 * tail(2 * x))
    assert_allclose(jax.vmap(_of_range)(x), expected, rtol=1e-5)


def loop(p, y, num_bins, bins):
    """The error from its definition, bin by bin."""
    if bins == "width":
        edges = np.linspace(0, 1, num_bins + 1)
        parts = [
            np.flatnonzero((p > low) & (p <= high) | (p == 0) & (low == 0))
            for low, high in pairwise(edges)
        ]
    else:
        parts = np.array_split(np.argsort(p, kind="stable"), num_bins)
    return sum(abs(np.sum(y[i] - p[i])) for i in parts) / len(p)


@pytest.mark.parametrize("bins", ["width", "mass"])
@pytest.mark.parametrize("m", [1, 3, 50])
def test_errors_are_those_of_the_definition(m, bins):
    """Bins without rows count nothing; rows fill up a batch, and do not count."""
    draw = np.random.default_rng(m)
    p = np.round(draw.uniform(size=m), 1)
    y = draw.uniform(size=m) < p
    for num_bins in (4, 7):
        found = expected_calibration_error(p, y, num_bins=num_bins, bins=bins)
        assert_allclose(found, loop(p, y, num_bins, bins), atol=1e-6)
    probs = draw.dirichlet(np.ones(3), size=m)
    labels, top = draw.integers(3, size=m), np.argmax(probs, axis=1)
    options = {"num_bins": 4, "bins": bins}
    found = expected_calibration_error(probs, labels, kind="classwise", **options)
    columns = [loop(probs[:, c], labels == c, **options) for c in range(3)]
    assert_allclose(found, columns, atol=1e-6)
    found = expected_calibration_error(probs, labels, kind="top_label", **options)
    parts = [top == c for c in range(3) if np.any(top == c)]
    hits, largest = labels == top, probs.max(axis=1)
    total = sum(loop(largest[i], hits[i], **options) * np.mean(i) for i in parts)
    assert_allclose(found, total, atol=1e-6)


def test_no_rows_and_certain_rows():
    nothing = np.zeros(0), np.zeros(0)
    assert np.isnan(expected_calibration_error(*nothing, num_bins=3))
    assert np.isnan(brier_score(*nothing))
    for kind in KINDS:
        assert np.isnan(calibration_test(*nothing, kind=kind)).all()
        right = calibration_test([0.0, 1.0, 1.0], [0, 1, 1], kind=kind)
        assert_allclose(right, (1, 0), rtol=1e-6)
        assert right.p_value <= 1
        assert_array_equal(calibration_test([0.0, 1.0], [1, 1], kind=kind), (0, np.inf))


def test_tests_of_calibration_hold_their_level():
    """5 % of 4000 sets of 400 rows, and few less: walks of finitely many steps."""
    keys = jax.random.split(jax.random.key(0), 4000)

    def run(key):
        key_p, key_y = jax.random.split(key)
        p = jnp.round(jax.random.uniform(key_p, (400,)), 2)  # with ties
        y = jax.random.bernoulli(key_y, p)
        return jnp.stack([calibration_test(p, y, kind=k).p_value for k in KINDS])

    rates = np.mean(np.asarray(jax.jit(jax.vmap(run))(keys)) <= 0.05, axis=0)
    error = 4 * (0.05 * 0.95 / len(keys)) ** 0.5
    assert np.all(rates < 0.05 + error)
    assert np.all(rates > 0.03)


def test_programs_and_gradients():
    draw = np.random.default_rng(0)
    p = jnp.asarray(draw.uniform(size=(2, 9)), "f")
    y = jnp.asarray(draw.uniform(size=(2, 9)) < 0.5)
    error = lambda p, y: expected_calibration_error(p, y, num_bins=3)  # noqa: E731
    test = lambda p, y: calibration_test(p, y, kind="kuiper").p_value  # noqa: E731
    for call in (error, test, brier_score):
        each = [call(*rows) for rows in zip(p, y, strict=True)]
        assert_allclose(jax.jit(jax.vmap(call))(p, y), each, rtol=1e-5)
        assert np.all(np.isfinite(jax.grad(call)(p[0], y[0])))


WRONG = {
    "probabilities beyond": (lambda: brier_score([1.2], [1]), r"probs in \[0, 1\]"),
    "labels of three": (lambda: brier_score([0.1, 0.2], [1, 2]), "flags or 0 and 1"),
    "other rows": (lambda: brier_score([0.1, 0.2], [1]), "y with 2 rows like probs"),
    "labels out of range": (lambda: brier_score(np.eye(2), [0, 2]), "y in 0, ..., 1"),
    "three axes": (lambda: brier_score(np.ones((2, 2, 2)), [0, 1]), "probs of shape"),
    "no kind": (
        lambda: expected_calibration_error(np.eye(2), [0, 1], num_bins=3),
        "kind for probs of 2 axes as one of",
    ),
    "a kind of one event": (
        lambda: expected_calibration_error([0.1], [1], num_bins=3, kind="classwise"),
        "kind for probs of 1 axes as one of",
    ),
    "no bins": (
        lambda: expected_calibration_error([0.1], [1], num_bins=0),
        "num_bins as an int >= 1",
    ),
    "other bins": (
        lambda: expected_calibration_error([0.1], [1], num_bins=2, bins="depth"),
        "bins as one of",
    ),
    "a test of classes": (
        lambda: calibration_test(np.eye(2), [0, 1], kind="kuiper"),
        r"probs of shape \(n,\)",
    ),
    "another test": (lambda: calibration_test([0.1], [1], kind="ks"), "kind as one of"),
}
test_wrong_calls = refuses(WRONG)
