"""The door of the cross family for predictions of any models."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
import references
from helpers import assert_intervals, same
from jaxcp import learners, resampling, scores

KEY, ABSOLUTE = jax.random.key(0), scores.Absolute()
N, M, B = 30, 7, 5
RNG = np.random.default_rng(0)
X, X_NEW = (RNG.normal(size=(rows, 3)).astype(np.float32) for rows in (N, M))
Y = (X.sum(axis=1) + RNG.normal(size=N)).astype(np.float32)
PREDS, NEW = (RNG.normal(size=(B, rows)).astype(np.float32) for rows in (N, M))
HELD_OUT = np.arange(N)[None] % B == np.arange(B)[:, None]
FORMS = "__call__", "minmax", "aggregate"


close = partial(same, rtol=1e-5)  # about 3: its seventh digit is rounded


def fits(name):
    """Returns an ensemble of a learner and the weights that its fits had."""
    ridge, long = learners.Ridge(0.5), name == "long folds"
    x, y = (
        (np.tile(v, (20, 1) if v.ndim == 2 else 20) for v in (X, Y)) if long else (X, Y)
    )
    if name == "bags":
        weights = resampling.bootstrap(KEY, N, 12)
        cp = jaxcp.cross_conformal(KEY, ridge, ABSOLUTE, x, y, weights)
        return cp, x, y, weights == 0
    k = N if name == "rows" else 4
    cp = jaxcp.cv_plus(KEY, ridge, ABSOLUTE, x, y, num_folds=k)
    return (
        cp,
        x,
        y,
        np.asarray(cp.calibration.left_out.fold)[None] == np.arange(k)[:, None],
    )


@pytest.mark.parametrize("name", ["folds", "long folds", "rows", "bags"])
def test_equal_to_the_learner_up_to_rounding(name):
    """A product of matrices rounds by its shape and by the processor.

    The learner predicts the rows that a fit left out, here each fit predicts all rows:
    the last digit of a prediction may differ, and with it those of scores and ends.
    """
    cp, x, y, held_out = fits(name)
    recorded = jaxcp.cross_calibrate(ABSOLUTE, cp.fits.predict(x), y, held_out)
    close(recorded.scores, cp.scores)
    preds = cp.fits.predict(X_NEW)
    for alpha in (0.1, 0.02):
        close(recorded(preds, alpha), cp(X_NEW, alpha))
        close(recorded.minmax(preds, alpha), cp.minmax(X_NEW, alpha))
        naive = recorded.naive(cp.fits.predict_full(X_NEW), alpha)
        close(naive, cp.naive(X_NEW, alpha))
    close(recorded.aggregate(preds), cp.aggregate(X_NEW))
    aggregate = cp.aggregate(X_NEW, alpha=0.2)
    close(recorded.aggregate(preds, alpha=0.2), aggregate)


@pytest.mark.parametrize("name", ["folds", "rows"])
def test_scores_of_the_same_predictions_have_the_same_bits(name):
    """A score is one difference, so NumPy has its bits on any processor."""
    cp, x, y, held_out = fits(name)
    preds = np.asarray(cp.fits.predict(x))
    recorded = jaxcp.cross_calibrate(ABSOLUTE, preds, y, held_out)
    fit_of_row = held_out.argmax(axis=0)
    assert_array_equal(
        recorded.scores, np.abs(y - preds[fit_of_row, np.arange(len(y))])
    )


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_against_the_loop(alpha):
    cp = jaxcp.cross_calibrate(ABSOLUTE, PREDS, Y, HELD_OUT)
    fold = np.arange(N) % B
    residuals = np.abs(Y - PREDS[fold, np.arange(N)])
    assert_array_equal(cp.scores, residuals)
    assert_intervals(
        cp(NEW, alpha), *references.plus_interval(NEW[fold], residuals, str(alpha))
    )


def test_functions_that_aggregate():
    """A function of the values and of which are held out: here a trimmed mean."""
    bags = RNG.poisson(1, (9, N))
    preds = RNG.normal(size=(9, N)).astype(np.float32)

    def largest(values, held):
        held = held.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.max(jnp.where(held, values, -jnp.inf), axis=0)

    cp = jaxcp.cross_calibrate(ABSOLUTE, preds, Y, bags == 0, aggregation=largest)
    expected = np.where(bags == 0, preds, -np.inf).max(axis=0)
    known = (bags == 0).any(axis=0)
    assert_array_equal(cp.scores[known], np.abs(Y - expected)[known])
    new = RNG.normal(size=(9, 2)).astype(np.float32)
    each = np.where((bags == 0)[:, :, None], new[:, None], -np.inf).max(axis=0)
    assert_array_equal(cp.aggregate(new), each[known].max(axis=0))


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_the_center_is_of_all_rows(aggregation):
    """Unequal folds: one prediction for each row, traced folds or known ones."""
    fold = np.minimum(np.arange(N) // 3, B - 1)
    held_out = fold[None] == np.arange(B)[:, None]

    def center(held_out):
        cp = jaxcp.cross_calibrate(
            ABSOLUTE, PREDS, Y, held_out, aggregation=aggregation
        )
        return cp.aggregate(NEW)

    expected = getattr(np, aggregation)(NEW[fold], axis=0)
    for found in (center(held_out), jax.jit(center)(held_out)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.3])
def test_the_center_at_a_level_is_an_order_statistic(alpha):
    """The ceil((1 - alpha) n)-th smallest prediction of the fits without a row."""
    preds, new = (np.random.default_rng(i).normal(size=(N, N)) for i in range(2))
    cp = jaxcp.cross_calibrate(ABSOLUTE, preds, Y, np.eye(N, dtype=bool))
    place = math.ceil((1 - Fraction(str(alpha))) * N) - 1
    expected = np.sort(new, axis=0)[place].astype(cp.scores.dtype)
    assert_array_equal(cp.aggregate(new, alpha=alpha), expected)


def test_unused_predictions_do_not_matter():
    unknown = np.where(HELD_OUT, PREDS, np.nan)
    known = jaxcp.cross_calibrate(ABSOLUTE, PREDS, Y, HELD_OUT)
    same(known.scores, jaxcp.cross_calibrate(ABSOLUTE, unknown, Y, HELD_OUT).scores)
    once = np.vstack([HELD_OUT, HELD_OUT])  # each row is left out by two fits
    preds = np.vstack([PREDS, PREDS])
    twice = [
        jaxcp.cross_calibrate(ABSOLUTE, np.where(once, preds, rest), Y, once)
        for rest in (0, np.nan)
    ]
    same(twice[0].scores, twice[1].scores)


def test_a_row_that_every_fit_holds_has_no_score():
    mask = np.arange(N) < 20
    cp = jaxcp.cross_calibrate(ABSOLUTE, PREDS, Y, HELD_OUT & mask)
    assert_array_equal(cp.mask, mask)


def test_lists_of_what_each_fit_predicts():
    cp = jaxcp.cross_calibrate(ABSOLUTE, list(PREDS), Y, HELD_OUT)
    same(
        cp(list(NEW), 0.2),
        jaxcp.cross_calibrate(ABSOLUTE, PREDS, Y, HELD_OUT)(NEW, 0.2),
    )
    pairs = [(p - 1, p + 1) for p in PREDS]
    cqr = jaxcp.cross_calibrate(scores.CQR(), pairs, Y, HELD_OUT)
    one = jaxcp.cross_calibrate(scores.CQR(), (PREDS - 1, PREDS + 1), Y, HELD_OUT)
    same(cqr((NEW - 1, NEW + 1), 0.2), one([(p - 1, p + 1) for p in NEW], 0.2))


def test_few_rows_and_none_to_predict():
    one = jaxcp.cross_calibrate(ABSOLUTE, PREDS[:2, :2], Y[:2], np.eye(2, dtype=bool))
    sets = one(NEW[:2], 0.1)
    assert np.all(sets.lower == -np.inf) and np.all(sets.upper == np.inf)
    cp = jaxcp.cross_calibrate(ABSOLUTE, PREDS, Y, HELD_OUT)
    assert cp(NEW[:, :0], 0.1).lower.shape == (0,)
