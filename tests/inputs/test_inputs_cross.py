"""Wrong calls of the cross family, its learners and resamples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    RepeatedKFold,
    TimeSeriesSplit,
)

import jaxcp
from jaxcp import learners, resampling, scores
from rows import ABSOLUTE, KEY, RIDGE, X2, PlainLearner, X, refuses


def cross(x=X2, y=X, weights=None, learner=RIDGE, score=ABSOLUTE, **options):
    weights = resampling.leave_one_out(9) if weights is None else weights
    return lambda: jaxcp.cross_conformal(KEY, learner, score, x, y, weights, **options)


CROSS = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X2, X)

PREDS = jnp.asarray(np.zeros((3, 9)))
HELD_OUT = jnp.asarray(np.arange(9) % 3 == np.arange(3)[:, None])
RECORDED = jaxcp.cross_calibrate(ABSOLUTE, PREDS, X, HELD_OUT)


def recorded(preds=PREDS, y=X, held_out=HELD_OUT, score=ABSOLUTE, **options):
    return lambda: jaxcp.cross_calibrate(score, preds, y, held_out, **options)


RECORDS = {
    "fits that hold all": (
        recorded(held_out=HELD_OUT & False),
        "some row with weight 0 in a resample",
    ),
    "swapped": (
        recorded(preds=PREDS.T),
        r"preds with leading axes \(b, n\) = \(3, 9\) .*, got shape \(9, 3\); preds.T",
    ),
    "both swapped": (recorded(PREDS.T, X, HELD_OUT.T), "y with 3 rows like preds"),
    "one fit": (recorded(preds=X), r"preds with leading axes .*, got shape \(9,\)"),
    "no preds": (recorded(preds=None), "preds as a value, got None"),
    "a list of others": (
        recorded(preds=[X, X]),
        r"leading axes \(b, n\) = \(3, 9\) like held_out, got shape \(2, 9\)",
    ),
    "other targets": (recorded(y=X[:8]), "y with 9 rows like preds, got 8"),
    "weights for held out": (
        recorded(held_out=1.0 - HELD_OUT),
        "held_out of bool, True where a fit is without a row, got float32; .* == 0",
    ),
    "folds for held out": (recorded(held_out=X > 3), r"axes b fits = \(9,\)"),
    "no held out": (recorded(held_out=None), "held_out as a value, got None"),
    "NaN of a fit": (
        recorded(preds=PREDS.at[2, 5].set(jnp.nan)),
        "preds without NaN where a fit left the row out, got nan of fit 2 at row 5",
    ),
    "a mask of others": (recorded(mask=X[:3] > 0), r"mask of shape \(9,\), got \(3,\)"),
    "negative weights": (recorded(weights=-X), "finite weights >= 0"),
    "a mode": (recorded(aggregation="mode"), "aggregation as one of"),
    "no score": (recorded(score=jnp.abs), "score with an inverse"),
    "labels": (
        recorded(preds=jnp.full((3, 9, 2), 0.5), y=jnp.arange(9), score=scores.LAC()),
        "y in 0, ..., 1, got 2 at 2",
    ),
    "new preds of other fits": (
        lambda: RECORDED(jnp.zeros((4, 5)), 0.1),
        r"preds with leading axes b fits = \(3,\) like held_out, got shape \(4, 5\)",
    ),
    "new preds swapped": (
        lambda: RECORDED(jnp.zeros((5, 3)), 0.1),
        r"got shape \(5, 3\); preds.T puts the fits first",
    ),
    "new preds of one fit": (
        lambda: RECORDED(jnp.zeros(3), 0.1),
        r"preds with leading axes .*, got shape \(3,\)",
    ),
    "new NaN": (
        lambda: RECORDED(PREDS.at[1, 4].set(jnp.nan), 0.1),
        "preds without NaN, got nan of fit 1 at row 4",
    ),
    "new rows of another shape": (
        lambda: RECORDED(jnp.zeros((3, 5, 2)), 0.1),
        r"preds with rows of shape \(\) as at calibration, got \(2,\)",
    ),
    "new weights": (
        lambda: RECORDED(PREDS, 0.1, test_weights=X),
        "test_weights only with calibration weights",
    ),
    "a level": (lambda: RECORDED(PREDS, 90), "alpha"),
    "levels": (lambda: RECORDED.aggregate(PREDS, alpha=[0.1, 0.2]), r"alpha of shape"),
}
test_wrong_records_say_what_was_expected = refuses(RECORDS)


WRONG = {
    "unequal lengths": (cross(y=X[:8]), "x with 8 rows like y, got 9"),
    "weights of other rows": (
        cross(weights=jnp.ones((3, 8))),
        r"weights of shape \(3, 9\), got \(3, 8\)",
    ),
    "one resample": (
        cross(weights=jnp.ones(9)),
        r"weights of shape \(9, 9\), got \(9,\)",
    ),
    "negative weights": (cross(weights=-jnp.eye(9)), "finite weights >= 0"),
    "all are in": (
        cross(weights=jnp.ones((3, 9))),
        "some row with weight 0 in a resample",
    ),
    "a mode": (cross(aggregation="mode"), "aggregation as one of .*, got 'mode'"),
    "batch size": (cross(batch_size=0), "batch_size as an int >= 1"),
    "a class": (cross(learner=learners.Ridge), "learner as a value, got the class"),
    "a function": (cross(learner=jnp.mean), "a learner with fit and predict"),
    "NaN targets": (cross(y=X.at[2].set(jnp.nan)), "y without NaN, got nan at 2"),
    "inputs as a vector": (cross(x=X), r"x of shape \(n, p\), got \(9,\)"),
    "weights": (cross(calibration_weights=-X), "finite weights >= 0, got -1.0 at 0"),
    "no weights": (
        lambda: jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X2, X, None),
        "weights as a value, got None",
    ),
    "a number as key": (
        lambda: jaxcp.jackknife_plus(0, RIDGE, ABSOLUTE, X2, X),
        "a key from jax.random.key, got int",
    ),
    "several keys": (
        lambda: jaxcp.jackknife_plus(KEY[None], RIDGE, ABSOLUTE, X2, X),
        r"a key from jax.random.key, got key<fry>\(1,\)",
    ),
    "no inputs": (lambda: CROSS(None, 0.1), "x as a value, got None"),
    "other columns": (
        lambda: CROSS(X2[:, :1], 0.1),
        r"x of shape \(n, 2\), got \(9, 1\)",
    ),
    "other columns of neighbors": (
        lambda: jaxcp.jackknife_plus(
            KEY, learners.NearestNeighbors(2), ABSOLUTE, X2, X
        )(X2[:, :1], 0.1),
        r"x of shape \(n, 2\), got \(9, 1\)",
    ),
    "ridge, penalty": (cross(learner=learners.Ridge(-1.0)), "penalty >= 0, got -1.0"),
    "no scale": (
        cross(learner=learners.KernelRidge(1.0, 0.0)),
        "lengthscale > 0, got 0.0",
    ),
    "no neighbors": (
        cross(learner=learners.NearestNeighbors(0)),
        "num_neighbors as an int >= 1, got 0",
    ),
    "levels of quantiles": (
        cross(learner=learners.QuantileRidge((0.5, 1.5), 1.0), score=scores.CQR()),
        r"levels in \(0, 1\), got 1.5",
    ),
    "quantiles of vectors": (
        cross(
            y=X2, learner=learners.QuantileRidge((0.1, 0.9), 1.0), score=scores.CQR()
        ),
        r"y of shape \(n,\), got \(9, 2\)",
    ),
    "loss of many examples": (
        cross(
            learner=learners.GradientLearner(
                init=lambda key: jnp.zeros(2),
                predict=lambda params, x: (x @ params)[:, None],
                loss=lambda pred, y: (pred - y) ** 2,
                optimizer=optax.sgd(0.1),
                num_steps=2,
            )
        ),
        r"a loss of shape \(\) for one example, got \(1,\)",
    ),
    "zero rows": (
        cross(x=X2[:0], y=X[:0], weights=jnp.zeros((2, 0))),
        "the number of rows as an int >= 1, got 0",
    ),
    "one row": (
        lambda: jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X2[:1], X[:1]),
        "the number of rows as an int >= 2, got 1",
    ),
    "too many folds": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, num_folds=10),
        "num_folds <= n = 9, got 10",
    ),
    "folds of two rows a row": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=[["a", "b"]] * 9),
        r"fold of each row, shape \(9,\), a splitter, or a list of pairs .*, got list",
    ),
    "the class of a splitter": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=KFold),
        r"folds as a value, got the class KFold; write KFold\(\.\.\.\)",
    ),
    "a splitter of too many folds": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=KFold(10)),
        "a splitter of x and y, got KFold: Cannot have number of splits n_splits=10",
    ),
    "a splitter that needs groups": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=GroupKFold(3)),
        r"got GroupKFold: .*; of one that needs groups give the pairs, folds=\[\*spl",
    ),
    "a splitter of the past": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=TimeSeriesSplit(3)),
        "each row once in the two parts of fold 0, got 0 at 5; .*"
        "TimeSeriesSplit fits on the past alone, which is no cross-validation",
    ),
    "a splitter that draws rows again": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=RepeatedKFold()),
        r"folds that leave out each row once, got 10 at 0; CV\+ is",
    ),
    "pairs that leave rows out": (
        lambda: jaxcp.cv_plus(
            KEY, RIDGE, ABSOLUTE, X2, X, folds=[*KFold(3).split(X)][1:]
        ),
        r"folds that leave out each row once, got 0 at 0; CV\+ is",
    ),
    "a train part with its test rows": (
        lambda: jaxcp.cv_plus(
            KEY, RIDGE, ABSOLUTE, X2, X, folds=[(range(9), [0]), ([0], range(1, 9))]
        ),
        "each row once in the two parts of fold 0, got 2 at 0; CV",
    ),
    "row numbers beyond": (
        lambda: jaxcp.cv_plus(
            KEY, RIDGE, ABSOLUTE, X2, X, folds=[(range(9), [9]), ([0], range(1, 9))]
        ),
        "the test part of fold 0 in 0, ..., 8, got 9 at 0",
    ),
    "parts of words": (
        lambda: jaxcp.cv_plus(
            KEY, RIDGE, ABSOLUTE, X2, X, folds=[(["a"], ["b"]), (["b"], ["a"])]
        ),
        "the train part of fold 0 as row numbers, got <U1",
    ),
    "a generator of numbers": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, folds=iter(range(9))),
        r"folds as pairs \(train, test\) of row numbers, got 0",
    ),
    "a splitter of traced rows": (
        lambda: jax.jit(
            lambda x: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, x, X, folds=KFold(3)).scores
        )(X2),
        "x and y with values for a splitter, got traced ones",
    ),
    "a matrix of labels": (
        cross(
            learner=learners.Estimator(LogisticRegression()),
            score=scores.MultiLabel(),
            y=np.asarray(X2 > 2, int),
        ),
        r"y of shape \(n,\), got \(9, 2\); .* predict=lambda .*p\[:, 1\] for p in",
    ),
    "fits that are done": (
        lambda: learners.Estimator(LogisticRegression()).resume(CROSS.fits),
        "fits of a FitError, got Fits; those of a result, cp.fits, are all done",
    ),
    "a missing fold": (
        lambda: jaxcp.cv_plus(
            KEY, RIDGE, ABSOLUTE, X2, X, folds=["a", None, *"bababab"]
        ),
        "folds without missing ones, got None",
    ),
    "a fold": (lambda: resampling.k_fold(KEY, 9, 1), "num_folds as an int >= 2, got 1"),
    "blocks": (
        lambda: resampling.block_bootstrap(KEY, 9, 3, 10),
        "block_size <= n = 9, got 10",
    ),
    "none": (
        lambda: resampling.bootstrap(KEY, 9, 0),
        "num_resamples as an int >= 1, got 0",
    ),
    "all in each": (lambda: resampling.subsample(KEY, 9, 3, 9), "size < n = 9, got 9"),
    "alpha": (lambda: CROSS(X2, 1.5), r"alpha in \(0, 1\), got 1.5"),
    "two alphas": (lambda: CROSS(X2, [0.1, 0.2]), r"alpha of shape \(\), got \(2,\)"),
    "test weights without weights": (
        lambda: CROSS(X2, 0.1, test_weights=X),
        "test_weights only with calibration weights",
    ),
    "NaN in the inputs of a fit": (
        cross(x=X2.at[3, 1].set(jnp.nan)),
        r"x without NaN, got nan at \(3, 1\)",
    ),
    "a learner that is no pytree": (
        cross(learner=PlainLearner()),
        "learner as a pytree, got PlainLearner; decorate",
    ),
    "a model for its prediction function": (
        lambda: jaxcp.split_conformal(RIDGE, None, ABSOLUTE, X2, X),
        r"predict\(params, x\) as a function, got Ridge",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
