"""No target is lost to rounding: score(pred, y) <= q puts y into the set at q.

Over the table of all scores, in four float types, where ends land on 0, on themselves
or beyond, and with scores and sets of separate programs and batches.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import CASES, inside, scores_of, sets_of
from jaxcp import metrics, scores

NUM_ROWS = 4000
SIMPLE = {
    "absolute": scores.Absolute(),
    "signed": scores.Signed(),
    "normalized": scores.Normalized(),
    "gamma": scores.Gamma(),
    "cqr": scores.CQR(),
    "asymmetric-cqr": scores.AsymmetricCQR(),
}
simple_scores = pytest.mark.parametrize("name", SIMPLE)
float_types = pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("float16", "bfloat16", "float64")
        ),
    ],
    indirect=True,
)


@pytest.fixture
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def predictions(name, mu, rng):
    """Predictions of a score around `mu`, with scales and bands of width 0 as well."""
    if name == "gamma":
        return np.abs(mu) + 1
    if name == "normalized":
        return mu, np.exp(rng.normal(size=mu.shape))
    if name in ("cqr", "asymmetric-cqr"):
        half = np.abs(rng.normal(size=mu.shape)) * (rng.random(mu.shape) < 0.7)
        return mu - half, mu + half
    return mu


def cast(tree, dtype):
    return jax.tree.map(lambda v: jnp.asarray(v, dtype), tree)


def assert_no_target_lost(score, preds, y, q):
    """Every target whose score is at most q is in its set."""
    values = np.asarray(scores_of(score, preds, y), float)
    below = values <= np.asarray(q, float)
    below = below.reshape(len(below), -1).all(axis=1)
    inside_set = np.asarray(inside(sets_of(score, preds, q), y))
    lost = below & ~inside_set
    assert not lost.any(), f"{lost.sum()} of {below.sum()} lost, first {lost.argmax()}"


LAWS = {
    "normal": lambda rng, n: (rng.normal(size=n), rng.normal(size=n)),
    "tiny targets": lambda rng, n: (
        rng.choice([-1.0, 0.0, 1.0, 0.3], n),
        rng.choice([-1, 1], n) * np.exp(-9 - 25 * rng.random(n)),
    ),
    "halves": lambda rng, n: (rng.integers(-8, 9, n) / 2, rng.integers(-8, 9, n) / 2),
    "far away": lambda rng, n: (1e4 + rng.normal(size=n), 1e4 + rng.normal(size=n)),
    "all the same": lambda rng, n: (np.full(n, -0.1), np.full(n, 0.7)),
    "exact": lambda rng, n: (rng.normal(size=n),) * 2,
    "barely normal": lambda rng, n: tuple(
        rng.normal(size=(2, n)) * np.exp(-70 - 17 * rng.random((2, n)))
    ),
}


@float_types
@simple_scores
@pytest.mark.parametrize("law", LAWS)
def test_a_target_is_in_the_set_at_its_own_score(law, name, dtype):
    rng, score = np.random.default_rng(0), SIMPLE[name]
    mu, y = LAWS[law](rng, NUM_ROWS)
    if dtype == "float16":
        mu, y = np.clip(mu, -6e4, 6e4), np.clip(y, -6e4, 6e4)
    preds, y = cast((predictions(name, mu, rng), y), dtype)
    own = scores_of(score, preds, y)
    assert_no_target_lost(score, preds, y, own)
    # Ends that land on 0: thresholds that are the prediction itself.
    center = jax.tree.leaves(preds)[0]
    for q in [center, -center, jnp.abs(center)]:
        q = q if own.ndim == 1 else jnp.stack([q, q], axis=1)
        assert_no_target_lost(score, preds, y, q.astype(own.dtype))


@pytest.mark.parametrize("name", CASES)
@float_types
def test_every_score_of_the_table(name, dtype):
    case = CASES[name]
    if isinstance(case.score, scores.Custom) and case.score.inverse is not None:
        return  # what the user's inverse rounds to is the user's
    preds, y = case.batch(NUM_ROWS)
    preds = jax.tree.map(lambda v: cast(v, dtype) if v.dtype.kind == "f" else v, preds)
    y = cast(y, dtype) if y.dtype.kind == "f" else y
    q = scores_of(case.score, preds, y)
    assert_no_target_lost(case.score, preds, y, q)
    assert_no_target_lost(case.score, preds, y, jnp.full_like(q, jnp.inf))


@simple_scores
@pytest.mark.parametrize("bits", [10, 23, 24, 25, 26, 28, 30])
def test_integers(name, bits):
    """Integers are floats for scores and sets alike: nothing overflows or splits."""
    rng = np.random.default_rng(bits)
    mu = rng.integers(1, 2**bits, NUM_ROWS)
    y = np.clip(mu + rng.integers(-20, 21, NUM_ROWS), 0, 2**bits).astype(np.int32)
    preds = (mu - 3, mu + 5) if name in ("cqr", "asymmetric-cqr") else mu
    preds = (mu, 1 + mu % 7) if name == "normalized" else preds
    preds, y = jax.tree.map(lambda v: jnp.asarray(v, jnp.int32), (preds, y))
    own = scores_of(SIMPLE[name], preds, y)
    assert jnp.issubdtype(own.dtype, jnp.floating)
    assert_no_target_lost(SIMPLE[name], preds, y, own)


def test_differences_of_integers_do_not_overflow():
    far = np.array([-2_000_000_000], np.int32), np.array([2_000_000_000], np.int32)
    assert jaxcp.calibrate(scores.Absolute(), *far).scores == 4e9


SMALL = {"float32": 1e-6, "float64": 1e-14}


@float_types
@pytest.mark.parametrize("name", ["absolute", "signed", "normalized", "gamma", "cqr"])
def test_targets_just_beyond_zero_are_covered(name, dtype):
    """mu = 1, and scores that round to 1: the set [0, 2] would miss all targets."""
    n, rng = 1999, np.random.default_rng(0)
    y = -np.exp(-9 - 12 * rng.random(n)) * SMALL.get(dtype, 1)
    ones = np.ones(n)
    preds = {"normalized": (ones, ones), "cqr": (ones, ones)}.get(name, ones)
    rows = cast((preds, y), dtype)
    old = jax.tree.map(lambda v: v[:999], rows)
    new = jax.tree.map(lambda v: v[999:], rows)
    cp = jaxcp.calibrate(SIMPLE[name], *old)
    covered = metrics.coverage(cp(new[0], 0.1), new[1])
    assert covered >= np.mean(cp.p_values(*new) > 0.1) >= 0.89


def test_margins_that_overflow_leave_no_end_unknown():
    """A small box in half precision: two of the margins in its units are infinite."""
    score = scores.BoxOffset(relative=True)
    pred = jnp.array([1, 0, 1.0234, 1.13e-5], "float16")
    y = jnp.array([-1.5, 1.25, 1.3, 1.53], "float16")
    margins = score(pred, y)
    assert_array_equal(jnp.isinf(margins), [False, True, False, True])
    assert not jnp.any(jnp.isnan(score.invert(pred, margins).corners()))


@pytest.mark.parametrize("name", CASES)
def test_point_masses_are_covered(name):
    """99 copies of one row: the test row is one of them, and has to be covered.

    Calibration, sets of one row and membership are separate programs of other sizes,
    which may add a score up in another order.
    """
    case, missed, p_values = CASES[name], [], []
    for i in range(30):
        row = case.batch(1, start=i)
        if isinstance(case.score, scores.Normalized) and row[0][1] <= 0:
            continue
        copies = jax.tree.map(lambda v: np.repeat(v, 99, axis=0), row)
        cp = jaxcp.calibrate(case.score, *copies)
        if metrics.coverage(cp(row[0], 0.1), row[1]) < 1:
            missed.append(i)
        p_values.append(cp.p_values(*row)[0])
    assert not missed
    if not (isinstance(case.score, scores.Custom) and case.score.inverse is not None):
        assert_array_equal(p_values, 1)  # of a copy of all of them


@pytest.mark.parametrize("rows", [1, 99])
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "triangular"])
@pytest.mark.parametrize("d", [1, 3, 5])
def test_ellipsoids_of_other_batches_hold_the_targets_at_their_own_scores(
    d, full, rows
):
    rng, n = np.random.default_rng(d), 198
    mu, y = rng.normal(size=(2, n, d))
    scale = np.exp(rng.normal(size=(n, d)))
    if full:
        lower = np.tril(rng.normal(size=(n, d, d)), -1)
        scale = lower + scale[:, :, None] * np.eye(d)
    score, (preds, y) = scores.Mahalanobis(), cast(((mu, scale), y), jnp.float32)
    own = scores_of(score, preds, y)
    for start in range(0, n, rows):
        block = jax.tree.map(lambda v: v[start : start + rows], (preds, own, y))  # noqa: B023
        assert jnp.all(inside(sets_of(score, *block[:2]), block[2]))


@pytest.mark.parametrize(
    "score", [scores.PCP(), scores.CP2PCP(0.2)], ids=["pcp", "cp2"]
)
def test_balls_of_many_dimensions_hold_the_targets_at_their_own_scores(score):
    """Sums over 24 outputs are added up in another order in another program."""
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(40, 5, 24)), rng.normal(size=(40, 24))
    preds = (draws, draws[:, ::-1] + 1) if isinstance(score, scores.CP2PCP) else draws
    preds, y = cast((preds, y), jnp.float32)
    own = scores_of(score, preds, y)
    for i in range(40):
        row = jax.tree.map(lambda v: v[i : i + 1], (preds, own, y))  # noqa: B023
        assert inside(sets_of(score, *row[:2]), row[2])
        copies = jax.tree.map(lambda v: jnp.repeat(v, 99, axis=0), (row[0], row[2]))
        cp = jaxcp.calibrate(score, *copies)
        assert metrics.coverage(cp(row[0], 0.1), row[2]) == 1
        assert cp.p_values(row[0], row[2]) == 1
