"""Isotonic regression and Venn-Abers predictors: vectors, laws, and edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import references
from helpers import cases, composes
from jaxcp.predictive import (
    cross_venn_abers,
    isotonic,
    merge_pairs,
    venn_abers,
    venn_abers_classes,
)
from rows import refuses

VECTORS = cases("distributional/venn_abers")
MAPIE = cases("mapie/calibrators")
PRECISE = [pytest.param(False, id="float32"), pytest.param(True, id="float64")]
CALIBRATION = ("scores", "labels", "test_scores")


def tolerance(is_double):
    return {"rtol": 1e-9, "atol": 1e-9} if is_double else {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("is_double", PRECISE)
@pytest.mark.parametrize("name", ["plain", "ties", "one_class"])
def test_vectors_of_two_classes(name, is_double):
    case, close = VECTORS[name], tolerance(is_double)
    rows = [case[k] for k in CALIBRATION]
    with jax.enable_x64(is_double):
        p0, p1 = venn_abers(*rows)
        assert p0.dtype == ("float64" if is_double else "float32")
        assert_allclose(np.stack([p0, p1], 1), case["p0p1"], **close)
        assert_allclose(np.stack([p0, p1], 1), case["peer_p0p1"], **close)
        for loss in ("log", "brier"):
            assert_allclose(merge_pairs(p0, p1, loss=loss), case[loss], **close)
        options = {k: case[k] for k in ("weights", "test_weight")}
        weighted = np.stack(venn_abers(*rows, **options), 1)
        assert_allclose(weighted, case["p0p1_weighted"], **close)
        assert_allclose(isotonic(*rows[:2]), case["isotonic"], **close)


@pytest.mark.parametrize("is_double", PRECISE)
def test_vectors_of_folds_and_of_classes(is_double):
    close = tolerance(is_double)
    with jax.enable_x64(is_double):
        folds, case = VECTORS["cross"], VECTORS["multi"]
        p0, p1 = np.moveaxis(folds["p0p1"], -1, 0)
        for loss in ("log", "brier"):
            assert_allclose(
                merge_pairs(p0, p1, loss=loss, axis=0), folds[loss], **close
            )
        rows = [case[k] for k in ("probs", "labels", "test")]
        pairs = venn_abers_classes(*rows, scheme="pairs")
        assert_allclose(pairs, case["one"], **close)
        rest = venn_abers_classes(*rows, scheme="rest")
        assert_allclose(rest, case["rest"], **close)
        probs, labels, test = rows
        flags = labels == np.arange(4)[:, None]
        found = jax.vmap(venn_abers)(probs.T, flags, test.T)
        assert_allclose(np.stack(found, -1).swapaxes(0, 1), case["p0p1_rest"], **close)


@pytest.mark.parametrize("is_double", PRECISE)
def test_vectors_of_mapie(is_double):
    close = tolerance(is_double)
    with jax.enable_x64(is_double):
        for name in ("bin", "ties"):
            case = MAPIE[name]
            rows = case["p_cal"][:, 1], case["y_cal"], case["p_test"][:, 1]
            found = venn_abers(*rows)
            assert_allclose(np.stack(found, 1), case["va_p0p1"], **close)
            assert_allclose(merge_pairs(*found, loss="log"), case["va"][:, 1], **close)
        for name in ("multi", "fewtest"):
            rows = [MAPIE[name][k] for k in ("p_cal", "y_cal", "p_test")]
            found = venn_abers_classes(*rows, scheme="pairs")
            assert_allclose(found, MAPIE[name]["va"], **close)
        case = MAPIE["cross"]
        of_fold = lambda k: [case[f"cv_{k}_{i}"] for i in range(3)]  # noqa: E731
        scores = np.concatenate(of_fold("p"))[:, 1]
        held_out = np.repeat(np.eye(3, dtype=bool), 60, axis=1)
        test = np.stack(of_fold("test"))[..., 1]
        labels = np.concatenate(of_fold("y"))
        p0, p1 = cross_venn_abers(scores, labels, held_out, test)
        assert_allclose(np.concatenate([p0, p1]).T, case["va_cv_p0p1"], **close)
        for loss in ("log", "brier"):
            found = merge_pairs(p0, p1, loss=loss, axis=0)
            assert_allclose(found, case[f"va_{loss}"][:, 1], **close)
        of_models = cross_venn_abers(np.tile(scores, (3, 1)), labels, held_out, test)
        assert_array_equal(np.stack(of_models), np.stack([p0, p1]))


def draws(n, m=9, ties=False):
    draw = np.random.default_rng(n)
    scores = draw.uniform(size=n + m)
    scores = np.round(3 * scores) / 4 if ties else scores
    labels = draw.uniform(size=n) < scores[:n]
    weights = draw.uniform(size=n) * (draw.uniform(size=n) < 0.8)
    return scores[:n], labels, scores[n:], weights


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_probabilities_are_fits_of_all_rows(n, ties):
    """Each pair is that of two isotonic fits, one with each label of the test row."""
    scores, labels, test, weights = draws(n, ties=ties)
    expected = references.venn_abers(scores, labels, test)
    assert_allclose(np.stack(venn_abers(scores, labels, test)), expected, atol=1e-6)
    expected = references.venn_abers(scores, labels, test, weights, 0.5)
    options = {"weights": weights, "test_weight": 0.5}
    found = np.stack(venn_abers(scores, labels, test, **options))
    assert_allclose(found, expected, atol=1e-6)


Y = {
    "labels": lambda draw, x: draw.uniform(size=len(x)) < x,
    "normal": lambda draw, x: x + draw.normal(size=len(x)),
    "offset": lambda draw, x: 1e4 + x + draw.normal(size=len(x)),
    "small": lambda draw, x: 1e-6 * (x + draw.normal(size=len(x))),
    "rising": lambda draw, x: np.exp(20 * x),
    "falling": lambda draw, x: -x,
    "constant": lambda draw, x: np.full(len(x), 0.1),
}


@pytest.mark.parametrize("name", Y)
def test_isotonic_regression_is_that_of_the_definition(name):
    """Scales, offsets and ties do not matter; rounding is that of y."""
    draw = np.random.default_rng(0)
    for digits in (1, 6):
        x = np.round(draw.uniform(size=60), digits)
        y = np.asarray(Y[name](draw, x), "f")
        weights = draw.uniform(size=60) * (draw.uniform(size=60) < 0.9)
        close = {"rtol": 2e-6, "atol": 2e-6 * np.ptp(y)}
        expected = references.isotonic(x, y.astype(float))
        assert_allclose(isotonic(x, y), expected, **close)
        found = np.asarray(isotonic(x, y, weights))[weights > 0]
        rows = weights > 0
        expected = references.isotonic(x[rows], y[rows].astype(float), weights[rows])
        assert_allclose(found, expected, **close)


def test_many_rows_of_an_isotonic_fit_are_as_precise():
    """Errors are those of single precision, not of sums over all rows."""
    from sklearn.isotonic import IsotonicRegression

    draw = np.random.default_rng(0)
    x = draw.uniform(size=20_000).astype("f")
    y = (x + draw.normal(size=len(x))).astype("f")
    expected = IsotonicRegression().fit(x.astype(float), y.astype(float)).predict(x)
    found = np.asarray(isotonic(x, y))
    assert_allclose(found, expected, atol=1e-5)
    assert np.all(np.diff(found[np.argsort(x)]) >= 0)


def test_rows_without_weight_and_no_rows():
    assert isotonic(np.zeros(0), np.zeros(0)).shape == (0,)
    assert_array_equal(isotonic([1.0, 2.0], [0.0, 1.0], [0.0, 0.0]), [np.nan] * 2)
    assert_array_equal(isotonic([3.0, 1.0], [5, 7]), [6, 6])
    assert_array_equal(np.stack(venn_abers([], [], [0.3, -0.0])), [[0, 0], [1, 1]])
    hidden = venn_abers([0.2, 0.8], [0, 1], [0.5], weights=[0, 0])
    assert_array_equal(np.stack(hidden), [[0], [1]])
    one = np.stack(venn_abers([0.3], [True], [0.2, 0.3, 0.4, np.inf, -np.inf]))
    assert_allclose(one, [[0, 0.5, 0.5, 0.5, 0], np.ones(5)])
    assert_array_equal(np.stack(venn_abers([0.0], [1], [-0.0])), [[0.5], [1]])


def test_weights_of_zero_are_a_mask():
    scores, labels, test, _ = draws(40, ties=True)
    rows = np.arange(40) % 3 > 0
    found = venn_abers(scores, labels, test, weights=rows)
    expected = venn_abers(scores[rows], labels[rows], test)
    assert_array_equal(np.stack(found), np.stack(expected))


@pytest.mark.parametrize("num_levels", [7, 4000])
def test_levels_are_those_of_rounded_scores(num_levels):
    """Both sides are rounded: it is Venn-Abers of another score."""
    scores, labels, test, _ = draws(300)
    scores, test = np.append(scores, [0, 1]), np.append(test, [1, 0, 0.5])
    labels = np.append(labels, [False, True])
    cell = lambda v: np.minimum(np.floor(v * num_levels), num_levels - 1)  # noqa: E731
    found = venn_abers(scores, labels, test, num_levels=num_levels)
    expected = venn_abers(cell(scores), labels, cell(test))
    assert_allclose(np.stack(found), np.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("num_levels", [1, 4, 10])
def test_a_score_of_one_is_in_the_last_level(num_levels):
    """It has the pair of the middle of that level, whose rows have both labels."""
    scores = jnp.array([1.0, 1.0, 1.0, 0.97, 0.99, 0.1, 0.2])
    labels = jnp.array([1, 0, 1, 0, 1, 0, 0])
    tests = jnp.array([1.0, 1 - 0.5 / num_levels])
    for pair in venn_abers(scores, labels, tests, num_levels=num_levels):
        assert 0 < pair[0] < 1
        assert pair[0] == pair[1]


def test_classes_that_a_row_excludes_alike_have_one_probability():
    """Where two classes of probability 0 have like rows, neither is more likely."""
    rows = jnp.array([[0.5, 0.4, 0.1], [0.5, 0.1, 0.4], [0.6, 0.3, 0.1]])
    probs = jnp.concatenate([rows, rows[:, jnp.array([0, 2, 1])]])
    labels = jnp.array([0, 1, 1, 0, 2, 2])
    probs, labels = jnp.tile(probs, (3, 1)), jnp.tile(labels, 3)
    sure = jnp.array([[1.0, 0.0, 0.0]])
    found = venn_abers_classes(probs, labels, sure, scheme="pairs")
    assert_allclose(found[0, 1], found[0, 2], rtol=1e-6)


def test_a_class_without_rows_keeps_its_column():
    """venn-abers 1.5.4 drops it, and later columns are those of other classes."""
    draw = np.random.default_rng(0)
    probs = draw.dirichlet(np.ones(4), size=80)
    labels = np.where(probs[:, 1] > 0.3, 3, np.argmax(probs[:, [0, 2]], axis=1) * 2)
    assert set(labels) == {0, 2, 3}
    for scheme in ("pairs", "rest"):
        p = np.asarray(venn_abers_classes(probs, labels, probs, scheme=scheme))
        assert p.shape == (80, 4)
        assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
        assert np.all(p[:, 1] < np.delete(p, 1, axis=1).max(axis=1))
        assert np.mean(np.argmax(p, axis=1) == labels) > 0.6
    nothing = venn_abers_classes(probs[:0], labels[:0], probs[:2], scheme="pairs")
    assert_allclose(nothing, 0.25)
    two_zeros = np.eye(4)[[0, 1]]  # both classes of a pair may have no probability
    assert np.all(
        np.isfinite(venn_abers_classes(probs, labels, two_zeros, scheme="pairs"))
    )


def calibrated(key, n=8):
    """The pair of one test row, the one of its label, and that label."""
    key_x, key_y = jax.random.split(key)
    p = jax.random.uniform(key_x, (n + 1,))
    y = jax.random.bernoulli(key_y, p**2).astype(int)
    scores = jnp.round(20 * p) / 20
    p0, p1 = venn_abers(scores[:n], y[:n], scores[n:])
    q0, q1 = venn_abers(p[:n], y[:n], p[n:], num_levels=4)
    r0, r1 = venn_abers(jnp.round(2 * p[:n]) / 2, y[:n], p[n:])
    one = lambda a, b: jnp.where(y[n] == 1, b[0], a[0])  # noqa: E731
    merged = merge_pairs(p0, p1, loss="log")[0]
    return one(p0, p1), one(q0, q1), one(r0, r1), merged, y[n]


WEIGHTS = (np.ones_like, lambda p: p, lambda p: p**2, lambda p: p > 0.5)


def test_one_of_both_probabilities_is_calibrated():
    """E[(Y - P) h(P)] = 0 for the one of the label; the merged one has a bias.

    And so has a pair where calibration scores alone are rounded (venn-abers 1.5.4,
    `precision`).
    """
    keys = jax.random.split(jax.random.key(0), 20_000)
    *found, rounded, merged, y = map(np.asarray, jax.jit(jax.vmap(calibrated))(keys))

    def errors(p):
        products = [(y - p) * h(p) for h in WEIGHTS]
        return [v.mean() / (v.std() / len(v) ** 0.5) for v in products]

    for p in found:
        assert np.max(np.abs(errors(p))) < 4
    assert np.max(np.abs(errors(merged))) > 8
    assert np.max(np.abs(errors(rounded))) > 8


def test_programs_batches_and_gradients():
    scores, labels, test, weights = draws(30)
    args = [jnp.asarray(v, "f") for v in (scores, labels, test, weights + 0.1)]
    call = lambda s, y, t, w: venn_abers(s, y, t, weights=w)  # noqa: E731
    back = [v[::-1] for v in args]
    composes(call, args, back, rtol=1e-6)
    fit = lambda y, w: isotonic(args[0], y, w)  # noqa: E731
    composes(fit, args[1::2], back[1::2], rtol=1e-5)
    gradients = jax.grad(lambda *v: jnp.sum(call(*v)[0] + call(*v)[1]), (0, 3))(*args)
    assert all(np.all(np.isfinite(v)) for v in gradients)
    y = args[1] + args[0] * jnp.sin(9 * args[0])
    slopes, block = jax.jacobian(fit)(y, args[3]), np.asarray(fit(y, args[3]))
    shares = np.where(np.abs(block[:, None] - block) < 1e-6, args[3], 0)
    assert_allclose(slopes, shares / shares.sum(axis=1, keepdims=True), atol=1e-5)


WRONG = {
    "labels of three": (
        lambda: venn_abers([0.1, 0.2], [1, 2], [0.5]),
        "flags or 0 and 1",
    ),
    "other labels": (lambda: venn_abers([0.1, 0.2], [1], [0.5]), "1|rows"),
    "NaN": (lambda: venn_abers([np.nan], [1], [0.5]), "scores without NaN"),
    "a NaN test score": (lambda: venn_abers([0.1], [1], [np.nan]), "without NaN"),
    "no weight": (lambda: venn_abers([0.1], [1], [0.5], test_weight=0.0), "> 0"),
    "many rows": (
        lambda: venn_abers(np.zeros(2001), np.zeros(2001), [0.5]),
        "num_levels for more than 2000 rows, got 2001 rows; num_levels=1000 is one",
    ),
    "margins on levels": (
        lambda: venn_abers([2.0], [1], [0.5], num_levels=9),
        r"scores with num_levels in \[0, 1\], got 2.0",
    ),
    "no level": (lambda: venn_abers([0.2], [1], [0.5], num_levels=0), "an int >= 1"),
    "a loss": (
        lambda: merge_pairs(0.1, 0.2, loss="mse"),
        "one of .*log.*brier.*, got 'mse'",
    ),
    "a pair of other shapes": (
        lambda: merge_pairs(np.zeros(2), np.zeros(3), loss="log"),
        r"p1 of shape \(2,\), got \(3,\)",
    ),
    "no probability": (
        lambda: merge_pairs(0.1, 1.2, loss="log"),
        r"p1 in \[0, 1\], got 1.2",
    ),
    "other folds": (
        lambda: cross_venn_abers(np.zeros((2, 3)), [0, 1, 0], np.ones((2, 3)), [[0.1]]),
        "test_scores with 2 rows like held_out, got 1",
    ),
    "one class": (
        lambda: venn_abers_classes([[1.0]], [0], [[1.0]], scheme="rest"),
        r"probs of shape \(n, k\), k > 1, got \(1, 1\)",
    ),
    "labels out of range": (
        lambda: venn_abers_classes(np.eye(3), [0, 1, 3], np.eye(3), scheme="rest"),
        "labels in 0, ..., 2, got 3",
    ),
    "a scheme": (
        lambda: venn_abers_classes(np.eye(3), [0, 1, 2], np.eye(3), scheme="tree"),
        "scheme as one of",
    ),
    "classes of other rows": (
        lambda: venn_abers_classes(np.eye(3), [0, 1, 2], np.eye(2), scheme="rest"),
        r"test_probs of shape \(2, 3\), got \(2, 2\)",
    ),
    "a fit of NaN": (lambda: isotonic([0.0, 1.0], [np.nan, 1.0]), "finite y, got nan"),
    "a negative weight": (
        lambda: isotonic([0.0], [1.0], [-1.0]),
        "finite weights >= 0",
    ),
}


test_wrong_calls = refuses(WRONG)


def test_weights_make_no_more_than_certainty():
    s = np.random.default_rng(0).uniform(size=400).astype("f")
    for weights in (np.full(400, 0.1, "f"), np.linspace(0.1, 1, 400).astype("f")):
        p0, p1 = venn_abers(s, s > 0.5, s, weights=weights)
        assert np.all((p0 >= 0) & (p1 <= 1))
        assert np.all(np.isfinite(merge_pairs(p0, p1, loss="log")))


@pytest.mark.parametrize(
    "scores, tests, levels, words",
    [
        ([0, np.nan, 1, 2], [[0.5], [0.5]], None, "scores without NaN"),
        ([0, 0.5, 1, 2], [[0.5], [np.nan]], None, "test_scores without NaN"),
        ([0, 0.5, 1, 0.2], [[0.5], [7.0]], 5, "test_scores with num_levels"),
    ],
)
def test_scores_of_folds_are_checked(scores, tests, levels, words):
    held_out = np.array([[1, 1, 0, 0], [0, 0, 1, 1]])
    with pytest.raises(ValueError, match=words):
        cross_venn_abers(scores, [0, 1, 0, 1], held_out, tests, num_levels=levels)
