"""Wrong calls: the message says what was expected and what came."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy.sparse
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import (
    datasets,
    detection,
    learners,
    metrics,
    online,
    outliers,
    pvalues,
    resampling,
    scores,
    training,
)
from jaxcp.sets import (
    Balls,
    BoundingBox,
    Box,
    Ellipsoid,
    Interval,
    LabelSet,
    membership,
)

X = jnp.arange(1.0, 10.0)
P = jnp.full((9, 3), 1 / 3)
Y = jnp.arange(9) % 3
CP = jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), X)
LABELS = jaxcp.calibrate(scores.LAC(), P, Y)
GROUPS = jaxcp.calibrate_groups(scores.Absolute(), X, X, Y, num_groups=3)


def train_loss(alpha=0.1, **options):
    options |= {"temperature": 1.0}
    return training.conformal_training_loss(scores.LAC(), P, Y, P, alpha, **options)


def train_score(score=None, **options):
    score = scores.RAPS(0.1, 1) if score is None else score
    options = {"optimizer": optax.sgd(1.0), "num_steps": 1} | options
    return training.train_score(KEY, score, P, Y, 0.1, temperature=1.0, **options)


def calibrate(score, preds, y, **options):
    return lambda: jaxcp.calibrate(score, preds, y, **options)


KEY, RIDGE, ABSOLUTE = jax.random.key(0), learners.Ridge(1.0), scores.Absolute()
X2 = X[:, None] ** jnp.arange(1, 3)[None]


class PlainScore:
    def __call__(self, pred, y):
        return y - pred

    def invert(self, pred, q):
        return Interval(pred - q, pred + q)


class PlainLearner:
    def fit(self, key, x, y, weights):
        return jnp.mean(y)

    def predict(self, params, x):
        return jnp.full(len(x), params)


def cross(x=X2, y=X, weights=None, learner=RIDGE, score=ABSOLUTE, **options):
    weights = resampling.leave_one_out(9) if weights is None else weights
    return lambda: jaxcp.cross_conformal(KEY, learner, score, x, y, weights, **options)


def stream(method, past=X, preds=X, y=X, alpha=0.1, **options):
    def run():
        state = method.init(past, alpha, **options)
        return online.run(method, state, preds, y, alpha)

    return run


CROSS = jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X2, X)
DRAWS = jnp.zeros((9, 5, 2))
DISC = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
SETS9 = Interval(X - 1, X + 1)


def multi(score, preds, y=X2):
    return calibrate(score, preds, y)


BOXES = jnp.array([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0]])
CROSSED = BOXES[:, jnp.array([2, 1, 0, 3])]
P_VALUES = X / 10


def boxes(preds=BOXES, true=BOXES, score=None, **options):
    score = scores.BoxOffset(**options) if score is None else score
    return lambda: jaxcp.calibrate(score, preds, true)


def images(preds=(BOXES,), true=(BOXES,), min_iou=0.5, **options):
    return lambda: detection.match_images(preds, true, min_iou=min_iou, **options)


WRONG = {
    "crossed boxes": (
        boxes(preds=CROSSED),
        r"preds with x_min <= x_max and y_min <= y_max, got \[2. 0. 0. 2.\] at 0",
    ),
    "crossed true boxes": (boxes(true=CROSSED), "expected y with x_min <= x_max"),
    "boxes of three numbers": (
        boxes(preds=BOXES[:, :3]),
        r"preds of shape \(n, 4\), x_min, y_min, x_max, y_max, got \(2, 3\)",
    ),
    "flat boxes, relative": (
        boxes(preds=BOXES.at[1, 2].set(1.0), relative=True),
        "preds with width and height > 0",
    ),
    "NaN boxes": (boxes(preds=BOXES.at[1, 1].set(jnp.nan)), "preds without NaN"),
    "coverage of boxes": (
        lambda: metrics.coverage(BoundingBox(BOXES[:, :2], BOXES[:, 2:]), BOXES[:, :2]),
        r"y of shape \(2, 4\) like sets, got \(2, 2\)",
    ),
    "IoU of crossed boxes": (lambda: metrics.iou(BOXES, CROSSED), "b with x_min <="),
    "IoU of one crossed box": (
        lambda: metrics.iou([3, 0, 1, 1], BOXES),
        r"a with x_min <= x_max and y_min <= y_max, got \[3 0 1 1\]$",
    ),
    "no uniforms of a stream": (
        lambda: pvalues.sequential_p_values(X, None),
        "u as an array, got NoneType",
    ),
    "IoU of points": (lambda: metrics.iou(BOXES, X2), r"b of shape \(..., 4\)"),
    "IoU threshold in percent": (images(min_iou=50), r"min_iou in \[0, 1\], got 50"),
    "IoU threshold below 0": (
        lambda: detection.match_boxes(BOXES, BOXES, min_iou=-0.1),
        r"min_iou in \[0, 1\], got -0.1",
    ),
    "several images at once": (
        lambda: detection.match_boxes(BOXES[None], BOXES, min_iou=0.5),
        r"one image, shape \(b, 4\), got \(1, 2, 4\); use jax.vmap",
    ),
    "mask of boxes": (
        lambda: detection.match_boxes(BOXES, BOXES, min_iou=0.5, pred_mask=[True]),
        "mask with 2 rows like boxes, got 1",
    ),
    "other images": (
        images(true=(BOXES, BOXES)),
        "true_boxes of 1 images like pred_boxes, got 2",
    ),
    "crossed boxes of an image": (
        images(preds=(CROSSED,)),
        r"pred_boxes\[0\] with x_min <= x_max",
    ),
    "a box for an image": (images(preds=(BOXES[0],)), r"pred_boxes\[0\] of shape"),
    "labels of one side": (
        images(pred_labels=([0, 1],)),
        "pred_labels and true_labels together, got one",
    ),
    "labels of too few boxes": (
        images(pred_labels=([0],), true_labels=([0, 1],)),
        r"pred_labels\[0\] of shape \(2,\), one for each box, got \(1,\)",
    ),
    "labels of other images": (
        images(pred_labels=([0, 1], [0]), true_labels=([0, 1],)),
        "pred_labels of 1 images, got 2",
    ),
    "float labels of boxes": (
        images(pred_labels=([0.5, 1],), true_labels=([0, 1],)),
        "pred_labels of an integer type",
    ),
    "confidences alone": (
        images(confidences=([0.5, 0.6],)),
        "confidences and min_confidence together, got one",
    ),
    "a confidence for each class, no classes": (
        images(confidences=([0.5, 0.6],), min_confidence=[0.1, 0.2]),
        r"min_confidence of shape \(\), or \(k,\) with labels, got \(2,\)",
    ),
    "a class without a confidence": (
        images(
            confidences=([0.5, 0.6],),
            min_confidence=[0.1, 0.2],
            pred_labels=([0, 2],),
            true_labels=([0, 1],),
        ),
        "pred_labels in 0, ..., 1, got 2",
    ),
    "miss rate": (lambda: datasets.scenes(KEY, 2, miss_rate=2.0), "miss_rate in"),
    "bias of two sides": (
        lambda: datasets.scenes(KEY, 2, bias=(1.0, 2.0)),
        r"bias of shape \(4,\), got \(2,\)",
    ),
    "outlier, alpha": (
        lambda: outliers.is_outlier(X, X, 5),
        r"alpha in \(0, 1\), got 5",
    ),
    "outlier scores in a column": (
        lambda: outliers.outlier_p_values(X[:, None], X),
        r"scores of shape \(n,\), got \(9, 1\)",
    ),
    "NaN calibration scores": (
        lambda: outliers.outlier_p_values(X.at[2].set(jnp.nan), X),
        "scores without NaN, got nan at 2",
    ),
    "uniforms of another length": (
        lambda: outliers.outlier_p_values(X, X, u=P_VALUES[:3]),
        "u with 9 rows like test_scores, got 3",
    ),
    "outlier weights of another length": (
        lambda: outliers.outlier_p_values(X, X, weights=X[:3]),
        "weights with 9 rows like scores, got 3",
    ),
    "outlier test weights alone": (
        lambda: outliers.outlier_p_values(X, X, test_weights=X),
        "test_weights only with weights",
    ),
    "outlier groups": (
        lambda: outliers.grouped_outlier_p_values(X, Y, X, Y + 1, num_groups=3),
        "test_groups in 0, ..., 2, got 3",
    ),
    "delta": (
        lambda: outliers.conditional_outlier_p_values(X, X, 1.0),
        r"delta in \(0, 1\), got 1.0",
    ),
    "conditional p-values of another kind": (
        lambda: outliers.conditional_outlier_p_values(X, X, 0.1, method="exact"),
        r"method as one of \['simes', 'dkw'\], got 'exact'",
    ),
    "negative p-values": (
        lambda: pvalues.benjamini_hochberg(-P_VALUES, 0.1),
        "p_values >= 0, got -0.1",
    ),
    "false discovery rate in percent": (
        lambda: pvalues.benjamini_hochberg(P_VALUES, 10),
        r"level in \(0, 1\), got 10",
    ),
    "Storey's threshold": (
        lambda: pvalues.storey_benjamini_hochberg(P_VALUES, 0.1, threshold=1),
        r"threshold in \(0, 1\), got 1",
    ),
    "p-values above 1 in a stream": (
        lambda: pvalues.watch(pvalues.SimpleJumper(), X),
        r"p_values in \[0, 1\], got 2.0 at 1",
    ),
    "a power above 1": (
        lambda: pvalues.watch(pvalues.PowerMartingale(2.0), P_VALUES),
        r"epsilon in \(0, 1\], got 2.0",
    ),
    "a jump above 1": (
        lambda: pvalues.watch(pvalues.SimpleJumper(1.5), P_VALUES),
        r"jump in \[0, 1\], got 1.5",
    ),
    "a mixture of nothing": (
        lambda: pvalues.watch(pvalues.MixtureMartingale(0), P_VALUES),
        "num_powers as an int >= 1, got 0",
    ),
    "a class for a martingale": (
        lambda: pvalues.watch(pvalues.SimpleJumper, P_VALUES),
        "martingale as a value, got the class",
    ),
    "alarm level": (lambda: pvalues.alarm_level(0), r"alpha in \(0, 1\), got 0"),
    "no sets": (lambda: metrics.coverage((X, X), X), "sets with contains"),
    "a class for sets": (lambda: metrics.mean_size(Interval), "sets with contains"),
    "no targets": (
        lambda: metrics.coverage(SETS9, None),
        "y as an array, got NoneType",
    ),
    "a mask of numbers": (
        lambda: metrics.mean_size(LabelSet(P)),
        r"a mask of shape \(m, k\), bool, got float\d+\(9, 3\)",
    ),
    "one label set": (
        lambda: metrics.empty_rate(LabelSet(Y > 0)),
        r"a mask of shape \(m, k\), bool, got bool\(9,\)",
    ),
    "corners of three": (
        lambda: metrics.coverage(BoundingBox(P, P), jnp.ones((9, 4))),
        r"ends of shape \(9, 2\), got \(9, 3\) and \(9, 3\)",
    ),
    "several targets for a label set": (
        lambda: metrics.coverage(LabelSet(P > 0), P.astype(int)),
        r"y of shape \(9,\) like sets, got \(9, 3\)",
    ),
    "an IoU of nothing": (lambda: metrics.iou(None, BOXES), "a as an array"),
    "a bandwidth for both": (
        lambda: metrics.hsic(SETS9, X, bandwidths=1.0),
        "two bandwidths or None, got 1.0",
    ),
    "eta of nothing": (
        lambda: metrics.coverage_width_criterion(SETS9, X, 0.1, eta=None),
        "eta as a number, got None",
    ),
    "edges of nothing": (
        lambda: metrics.size_stratified_coverage(SETS9, X, edges=[jnp.nan]),
        "edges without NaN",
    ),
    "a flag for a count": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_bins=True),
        "num_bins as an int >= 1, got True",
    ),
    "no directions": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2, directions=X2[:0]),
        r"v >= 1, got \(0, 2\)",
    ),
    "a traced share": (
        lambda: jax.jit(
            lambda s: metrics.worst_slab_coverage(KEY, SETS9, X, X2, share=s)
        )(0.1),
        "share as a number, got",
    ),
    "infinite inputs": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2.at[1, 0].set(jnp.inf)),
        r"finite x, got inf at \(1, 0\)",
    ),
    "several powers": (
        lambda: pvalues.watch(pvalues.PowerMartingale(P_VALUES), P_VALUES),
        r"epsilon of shape \(\), got \(9,\); use jax.vmap",
    ),
    "no level": (
        lambda: pvalues.benjamini_hochberg(P_VALUES, None),
        "level as a number, got None",
    ),
    "no delta": (
        lambda: outliers.conditional_outlier_p_values(X, X, None),
        "delta as a number, got NoneType",
    ),
    "no lists of boxes": (images(preds=None), "pred_boxes as a list of arrays"),
    "traced lists of boxes": (
        lambda: jax.jit(lambda b: images(preds=(b,))().matched)(BOXES),
        r"use jax.vmap\(match_boxes\)",
    ),
    "a mask of two axes": (
        lambda: detection.match_boxes(
            BOXES, BOXES, min_iou=0.5, pred_mask=[[True], [True]]
        ),
        r"mask of shape \(n,\), got \(2, 1\)",
    ),
    "strata in two ways": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_bins=2, edges=[1]),
        "one of num_bins, num_ranges and edges .* got 2 for Interval",
    ),
    "strata in no way": (
        lambda: metrics.size_stratified_coverage(SETS9, X),
        "got 0 for Interval",
    ),
    "ranges of widths": (
        lambda: metrics.size_stratified_coverage(SETS9, X, num_ranges=2),
        "num_ranges only for label sets, got Interval",
    ),
    "too many ranges": (
        lambda: metrics.size_stratified_coverage(LabelSet(P > 0), Y, num_ranges=5),
        "num_ranges <= 4, got 5",
    ),
    "edges that fall": (
        lambda: metrics.size_stratified_coverage(SETS9, X, edges=[2, 1]),
        "edges that increase",
    ),
    "sizes of another length": (
        lambda: metrics.hsic(SETS9, X, sizes=X[:3]),
        "sizes with 9 rows like sets, got 3",
    ),
    "a bandwidth of 0": (
        lambda: metrics.hsic(SETS9, X, bandwidths=(1.0, 0.0)),
        "bandwidths > 0, got 0.0",
    ),
    "one bandwidth": (
        lambda: metrics.hsic(SETS9, X, bandwidths=(1.0,)),
        r"expected two bandwidths or None, got \(1.0,\)",
    ),
    "interval score of labels": (
        lambda: metrics.winkler_score(LabelSet(P > 0), Y, 0.1),
        "sets of kind Interval, got LabelSet",
    ),
    "singletons of intervals": (
        lambda: metrics.singleton_rate(SETS9),
        "sets of kind LabelSet, got Interval",
    ),
    "pinball score of a band": (
        lambda: metrics.pinball_score(P, X, 0.1),
        r"or \(m, a\), \(m,\) and \(a,\), got \(9, 3\), \(9,\) and \(\)",
    ),
    "pinball level": (
        lambda: metrics.pinball_score(X, X, 1.0),
        r"level in \(0, 1\), got 1.0",
    ),
    "rates of coverage": (
        lambda: metrics.excess_coverage_risk(SETS9, X, X, 0.1),
        r"rates in \[0, 1\], got 2.0 at 1",
    ),
    "directions of other inputs": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X2, directions=P),
        r"directions of shape \(v, 2\), v >= 1, got \(9, 3\)",
    ),
    "summary, alpha": (
        lambda: metrics.summary(SETS9, X, 90),
        r"alpha in \(0, 1\), got 90",
    ),
    "summary, traced groups": (
        lambda: jax.jit(lambda g: metrics.summary(SETS9, X, 0.1, g))(Y),
        "num_groups with traced groups, got None",
    ),
    "sampler of another shape": (
        multi(scores.PCP(), jnp.zeros((9, 5, 3))),
        r"expected draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 3\)",
    ),
    "no draws": (multi(scores.PCP(), DRAWS[:, :0]), r"l >= 1, got \(9, 0, 2\)"),
    "NaN draws": (multi(scores.PCP(), DRAWS.at[1].set(jnp.nan)), "preds without NaN"),
    "one draw a row": (multi(scores.PCP(), DRAWS[:, 0]), r"draws of shape \(n, l, 2\)"),
    "CDF without draws": (
        multi(scores.CDF(scores.PCP()), DRAWS),
        r"preds as a tuple \(base prediction, draws\), got \(9, 5, 2\)",
    ),
    "CDF, draws of another shape": (
        multi(scores.CDF(scores.PCP()), (DRAWS, DRAWS[..., :1])),
        r"draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 1\)",
    ),
    "CDF, base with the wrong draws": (
        multi(scores.CDF(scores.PCP()), (DRAWS[..., :1], DRAWS)),
        r"draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 1\)",
    ),
    "CDF, no uniform": (
        multi(scores.CDF(scores.PCP(), randomized=True), (DRAWS, DRAWS)),
        r"a tuple \(base prediction, draws, u\)",
    ),
    "CDF, uniform out of range": (
        multi(scores.CDF(scores.PCP(), randomized=True), (DRAWS, DRAWS + 0, X)),
        r"u in \[0, 1\], got 2.0",
    ),
    "CDF of a class": (
        lambda: scores.CDF(scores.PCP),
        "base as a value, got the class",
    ),
    "a density of each output": (
        multi(scores.Density(lambda pred, y: -(y**2)), X2),
        r"log_prob\(pred, y\) of shape \(\), got \(2,\)",
    ),
    "a law and targets of another size": (
        multi(scores.Density.of(datasets.Unimodal(), None), X[:, None], X),
        r"y of shape \(2,\), got \(1,\)",
    ),
    "CDF, extended and randomised": (
        lambda: scores.CDF(scores.PCP(), extended=True, randomized=True),
        "extended or randomized, got both",
    ),
    "CDF of components": (
        multi(scores.CDF(scores.Absolute()), (X2, DRAWS)),
        r"base score of shape \(\), got components \(2,\)",
    ),
    "HDPCP, alpha": (
        multi(scores.HDPCP(1.5), (DRAWS, DRAWS[..., 0])),
        r"alpha in \(0, 1\), got 1.5",
    ),
    "HDPCP, densities of another shape": (
        multi(scores.HDPCP(0.1), (DRAWS, DRAWS[:, 0])),
        r"log densities of shape \(9, 5\) like the draws, got \(9, 2\)",
    ),
    "CP2PCP without a pair": (
        multi(scores.CP2PCP(0.1), DRAWS),
        "reference draws, draws",
    ),
    "Mahalanobis, scale of another shape": (
        multi(scores.Mahalanobis(), (X2, DRAWS)),
        r"scale of shape \(n, d\) or \(n, d, d\), got \(9, 2\) and \(9, 5, 2\)",
    ),
    "Mahalanobis, a covariance": (
        multi(scores.Mahalanobis(), (X2, jnp.ones((9, 2, 2)))),
        "expected a lower triangular scale",
    ),
    "Mahalanobis, no scale": (
        multi(scores.Mahalanobis(), (X2, 0 * X2)),
        "scales > 0, got 0.0",
    ),
    "Rectangle without a pair": (multi(scores.Rectangle(), DRAWS), "as a tuple"),
    "Rectangle.bounds, alpha": (
        lambda: scores.Rectangle.bounds(DRAWS, 2),
        r"alpha in \(0, 1\), got 2",
    ),
    "a density that is no function": (
        lambda: scores.Density(3.0),
        "expected log_prob as a function, got 3.0",
    ),
    "a model without a density": (
        lambda: scores.Density.of(RIDGE, None),
        "model with log_prob for a density score, got Ridge with none of",
    ),
    "points that do not fit": (
        lambda: membership(DISC, DRAWS[0, :, :1]),
        r"points of shape \(l, 1\) for a target of shape \(1,\), l >= 1, got \(1, 2\)",
    ),
    "points and many sets": (
        lambda: membership(SETS9, X),
        r"expected one set, without a leading axis, got sets of shape \(9,\)",
    ),
    "ellipsoid and other targets": (
        lambda: metrics.coverage(Ellipsoid(X2, X2, X), X[:, None]),
        r"target of shape \(2,\), got \(1,\)",
    ),
    "volume of many sets": (
        lambda: jaxcp.volume(KEY, Balls(DRAWS, X)),
        "expected one Balls, got several: use jax.vmap",
    ),
    "NaN points": (
        lambda: membership(DISC, jnp.full((2, 2), jnp.nan)),
        "points without NaN",
    ),
    "volume of labels": (
        lambda: jaxcp.volume(KEY, LabelSet(jnp.ones(3, bool))),
        "or Latent score, got LabelSet",
    ),
    "volume of any score": (
        lambda: jaxcp.volume(KEY, scores.Custom(jnp.maximum).invert(X, 1.0)),
        "got LevelSet of the score Custom",
    ),
    "volume without a sampler": (
        lambda: jaxcp.volume(KEY, scores.Density(jnp.dot).invert(X, 1.0)),
        "Density score with `sample`",
    ),
    "volume without a forward map": (
        lambda: jaxcp.volume(KEY, scores.Latent(jnp.dot).invert(X, 1.0)),
        "Latent score with `forward` and `dim`",
    ),
    "volume from Sobol points of a sampler": (
        lambda: jaxcp.volume(
            KEY, scores.Density(jnp.dot, jnp.dot).invert(X, 1.0), sobol=True
        ),
        "sobol=False",
    ),
    "volume from no points": (
        lambda: jaxcp.volume(KEY, DISC, 0),
        "num_samples as an int",
    ),
    "volume without a key": (
        lambda: jaxcp.volume(0, DISC),
        "a key from jax.random.key",
    ),
    "quantile of nothing": (
        lambda: jaxcp.empirical_quantile(X[:0], 0.5),
        r"values of shape \(l, ...\), got \(0,\)",
    ),
    "quantile at no level": (
        lambda: jaxcp.empirical_quantile(X, 1.5),
        r"level in \[0, 1\], got 1.5",
    ),
    "conditional error, inputs of other rows": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X[:8], 0.1),
        "x with 9 rows like y, got 8",
    ),
    "conditional error, NaN inputs": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X * jnp.nan, 0.1),
        "expected finite x, got nan at 0",
    ),
    "conditional error, no cells": (
        lambda: metrics.conditional_coverage_error(KEY, SETS9, X, X, 0.1, num_cells=0),
        "num_cells as an int >= 1, got 0",
    ),
    "worst slab, share": (
        lambda: metrics.worst_slab_coverage(KEY, SETS9, X, X, share=0.0),
        r"share in \(0, 1\], got 0.0",
    ),
    "unequal lengths": (
        calibrate(scores.Absolute(), X, X[:8]),
        "expected y with 9 rows like preds, got 8",
    ),
    "cross, unequal lengths": (cross(y=X[:8]), "expected x with 8 rows like y, got 9"),
    "cross, weights of other rows": (
        cross(weights=jnp.ones((3, 8))),
        r"expected weights of shape \(b, 9\), got \(3, 8\)",
    ),
    "cross, weights as a vector": (
        cross(weights=jnp.ones(9)),
        r"weights of shape \(b, 9\), got \(9,\)",
    ),
    "cross, negative weights": (cross(weights=-jnp.eye(9)), "finite weights >= 0"),
    "cross, nothing left out": (
        cross(weights=jnp.ones((3, 9))),
        "expected some row with weight 0 in a resample",
    ),
    "cross, aggregation": (
        cross(aggregation="mode"),
        "expected aggregation mean or median, got 'mode'",
    ),
    "cross, batch size": (cross(batch_size=0), "expected batch_size as an int >= 1"),
    "cross, learner as a class": (
        cross(learner=learners.Ridge),
        "expected learner as a value, got the class",
    ),
    "cross, a function as learner": (
        cross(learner=jnp.mean),
        "expected a learner with fit and predict",
    ),
    "cross, NaN targets": (
        cross(y=X.at[2].set(jnp.nan)),
        "y without NaN, got nan at 2",
    ),
    "cross, inputs as a vector": (cross(x=X), r"x of shape \(n, p\), got \(9,\)"),
    "cross, calibration weights": (
        cross(calibration_weights=-X),
        "expected finite weights >= 0, got -1.0 at 0",
    ),
    "cross, no weights": (
        lambda: jaxcp.cross_conformal(KEY, RIDGE, ABSOLUTE, X2, X, None),
        "expected weights as a value, got None",
    ),
    "cross, a number as key": (
        lambda: jaxcp.jackknife_plus(0, RIDGE, ABSOLUTE, X2, X),
        "expected a key from jax.random.key, got int",
    ),
    "cross, several keys": (
        lambda: jaxcp.jackknife_plus(KEY[None], RIDGE, ABSOLUTE, X2, X),
        r"expected one key, got keys of shape \(1,\)",
    ),
    "cross, no inputs": (lambda: CROSS(None, 0.1), "expected x as a value, got None"),
    "cross, other columns": (
        lambda: CROSS(X2[:, :1], 0.1),
        "expected x with 2 columns, got 1",
    ),
    "cross, other columns of neighbours": (
        lambda: jaxcp.jackknife_plus(
            KEY, learners.NearestNeighbors(2), ABSOLUTE, X2, X
        )(X2[:, :1], 0.1),
        "expected x with 2 columns, got 1",
    ),
    "negative penalty of a ridge": (
        cross(learner=learners.Ridge(-1.0)),
        "expected penalty >= 0, got -1.0",
    ),
    "no lengthscale": (
        cross(learner=learners.KernelRidge(1.0, 0.0)),
        "expected lengthscale > 0, got 0.0",
    ),
    "no neighbours": (
        cross(learner=learners.NearestNeighbors(0)),
        "expected num_neighbors as an int >= 1, got 0",
    ),
    "levels of quantiles": (
        cross(learner=learners.QuantileRidge((0.5, 1.5), 1.0), score=scores.CQR()),
        r"expected levels in \(0, 1\), got 1.5",
    ),
    "one level of quantiles": (
        cross(learner=learners.QuantileRidge(0.5, 1.0), score=scores.CQR()),
        "expected levels as a tuple, got 0.5",
    ),
    "quantiles of vectors": (
        cross(
            y=X2, learner=learners.QuantileRidge((0.1, 0.9), 1.0), score=scores.CQR()
        ),
        r"expected y of shape \(n,\), got \(9, 2\)",
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
        r"expected a loss of shape \(\) for one example, got \(1,\)",
    ),
    "method as a class": (
        lambda: online.run(online.ACI, None, X, X, 0.1),
        "expected method as a value, got the class",
    ),
    "state of another method": (
        lambda: online.run(
            online.ACI(ABSOLUTE, 0.1),
            online.PID(ABSOLUTE, 0.1).init(X, 0.1),
            X,
            X,
            0.1,
        ),
        "expected a state of ACI, ACIState, got PIDState",
    ),
    "several steps": (
        stream(online.PID(ABSOLUTE, X)),
        r"expected step_size of shape \(\), got \(9,\); use jax.vmap",
    ),
    "stream, several alphas": (
        stream(online.SlidingWindow(ABSOLUTE), alpha=[0.1, 0.2]),
        r"expected alpha of shape \(\), got \(2,\)",
    ),
    "scorecaster with a mask": (
        stream(online.PID(ABSOLUTE, 0.1, scorecaster=RIDGE), mask=X > 2),
        "expected no mask with a scorecaster",
    ),
    "cross, zero rows": (
        cross(x=X2[:0], y=X[:0], weights=jnp.zeros((2, 0))),
        "expected the number of rows as an int >= 1, got 0",
    ),
    "one row": (
        lambda: jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X2[:1], X[:1]),
        "expected the number of rows as an int >= 2, got 1",
    ),
    "too many folds": (
        lambda: jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, X, num_folds=10),
        "expected num_folds <= n = 9, got 10",
    ),
    "one fold": (
        lambda: resampling.k_fold(KEY, 9, 1),
        "expected num_folds as an int >= 2, got 1",
    ),
    "long blocks": (
        lambda: resampling.block_bootstrap(KEY, 9, 3, 10),
        "expected block_size <= n = 9, got 10",
    ),
    "no resamples": (
        lambda: resampling.bootstrap(KEY, 9, 0),
        "expected num_resamples as an int >= 1, got 0",
    ),
    "all rows in every subsample": (
        lambda: resampling.subsample(KEY, 9, 3, 9),
        "expected size < n = 9, got 9",
    ),
    "cross, alpha": (lambda: CROSS(X2, 1.5), r"alpha in \(0, 1\), got 1.5"),
    "cross, several alphas": (
        lambda: CROSS(X2, [0.1, 0.2]),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "cross, test weights without weights": (
        lambda: CROSS(X2, 0.1, test_weights=X),
        "expected test_weights only with calibration weights",
    ),
    "no past scores": (
        stream(online.ACI(ABSOLUTE, 0.1), past=X[:0]),
        r"expected past scores of shape \(n,\) or \(n, c\), at least one, got \(0,\)",
    ),
    "past scores of another score": (
        stream(online.ACI(scores.Signed(), 0.1)),
        r"expected past scores with components \(2,\), as of preds and y, got \(\)",
    ),
    "long window": (
        stream(online.ACI(ABSOLUTE, 0.1, window=10)),
        "expected at least window = 10 past scores, got 9",
    ),
    "mask of another length": (
        stream(online.ACI(ABSOLUTE, 0.1), mask=jnp.ones(8, bool)),
        "expected mask with 9 rows like scores, got 8",
    ),
    "negative step": (stream(online.ACI(ABSOLUTE, -0.1)), "expected step_size >= 0"),
    "no step of SF-OGD": (stream(online.SFOGD(ABSOLUTE, 0.0)), "step_size > 0"),
    "no update": (
        stream(online.SlidingWindow(ABSOLUTE, every=0)),
        "expected every as an int >= 1, got 0",
    ),
    "growing weights": (
        stream(online.NexCP(ABSOLUTE, 1.1)),
        r"expected decay in \(0, 1\], got 1.1",
    ),
    "stream, unequal lengths": (
        stream(online.PID(ABSOLUTE, 0.1), y=X[:8]),
        "expected y with 9 rows like preds, got 8",
    ),
    "stream, NaN": (
        stream(online.PID(ABSOLUTE, 0.1), y=X.at[1].set(jnp.nan)),
        "expected y without NaN, got nan at 1",
    ),
    "stream, alpha": (
        stream(online.PID(ABSOLUTE, 0.1), alpha=1),
        r"alpha in \(0, 1\), got 1",
    ),
    "unequal parts": (
        calibrate(scores.CQR(), (X, X[:8]), X),
        r"expected preds of one length, got \[8, 9\]",
    ),
    "no rows": (
        calibrate(scores.Absolute(), 1.0, X),
        "expected preds with a leading axis, got a scalar",
    ),
    "nothing": (
        calibrate(scores.Absolute(), (), X),
        r"expected preds as arrays, got \(\)",
    ),
    "alpha 0": (lambda: CP(X, 0), r"alpha in \(0, 1\), got 0"),
    "alpha 1": (lambda: CP(X, 1.0), r"alpha in \(0, 1\), got 1.0"),
    "alpha negative": (lambda: CP.quantile(-0.1), r"alpha in \(0, 1\), got -0.1"),
    "alpha in percent": (lambda: CP.quantile(10), r"alpha in \(0, 1\), got 10"),
    "alpha NaN": (lambda: CP.quantile(float("nan")), r"alpha in \(0, 1\), got nan"),
    "alpha in a list": (lambda: CP.quantile([0.1, 2]), r"alpha in \(0, 1\), got 2"),
    "alpha as text": (lambda: CP.quantile("0.1"), "alpha as numbers, got str"),
    "several alphas": (
        lambda: CP(X, [0.1, 0.2]),
        r"alpha of shape \(\), got \(2,\)",
    ),
    "alphas for components": (
        lambda: jaxcp.calibrate(scores.Signed(), X, X)(X, [0.1, 0.2, 0.3]),
        r"alpha of shape \(\) or \(2,\), got \(3,\)",
    ),
    "labels from 1": (
        calibrate(scores.LAC(), P, Y + 1),
        r"expected y in 0, ..., 2, got 3 at 2",
    ),
    "labels from 1, APS": (calibrate(scores.APS(), P, Y + 1), "y in 0, ..., 2, got 3"),
    "labels below 0": (
        calibrate(scores.TopK(), P, Y - 1),
        "y in 0, ..., 2, got -1 at 0",
    ),
    "float labels": (
        calibrate(scores.LAC(), P, Y.astype(float)),
        "expected y of an integer type, got float",
    ),
    "logits": (
        calibrate(scores.LAC(), jnp.ones((9, 3)), Y),
        "probabilities that sum to 1 in each row, got 3.0 at 0",
    ),
    "negative probabilities": (
        calibrate(scores.APS(), P.at[2].set(jnp.array([1.2, -0.2, 0.0])), Y),
        r"probabilities >= 0 .*, got -0.2\d* at \(2, 1\)",
    ),
    "logits at prediction": (
        lambda: LABELS(jnp.ones((2, 3)), 0.1),
        "probabilities that sum to 1 in each row, got 3.0 at 0",
    ),
    "one probability": (
        calibrate(scores.LAC(), X, Y),
        r"preds of shape \(n, k\), one column a label, got \(9,\)",
    ),
    "no uniforms": (
        calibrate(scores.APS(randomized=True), P, Y),
        r"pair \(probabilities \(n, k\), uniforms \(n,\)\)",
    ),
    "uniforms out of range": (
        calibrate(scores.APS(randomized=True), (P, X), Y),
        r"uniforms in \[0, 1\], got 2.0 at 1",
    ),
    "negative penalty": (
        calibrate(scores.RAPS(-1.0, 2), P, Y),
        "penalty >= 0, got -1.0",
    ),
    "negative k_reg": (calibrate(scores.RAPS(1.0, -2), P, Y), "k_reg >= 0, got -2"),
    "negative weights": (
        calibrate(scores.Absolute(), X, X, weights=X - 3),
        "finite weights >= 0, got -2.0 at 0",
    ),
    "infinite weights": (
        calibrate(scores.Absolute(), X, X, weights=X / 0),
        "finite weights >= 0, got inf at 0",
    ),
    "too few weights": (
        calibrate(scores.Absolute(), X, X, weights=X[:3]),
        "expected weights with 9 rows like preds, got 3",
    ),
    "too short a mask": (
        calibrate(scores.Absolute(), X, X, mask=[True]),
        "expected mask with 9 rows like preds, got 1",
    ),
    "test weights without weights": (
        lambda: CP(X, 0.1, test_weights=X),
        "test_weights only with calibration weights",
    ),
    "NaN predictions": (
        calibrate(scores.Absolute(), X.at[4].set(jnp.nan), X),
        "expected preds without NaN, got nan at 4",
    ),
    "NaN targets": (
        calibrate(scores.Absolute(), X, X.at[4].set(jnp.nan)),
        "expected y without NaN, got nan at 4",
    ),
    "NaN at prediction": (
        lambda: CP(X.at[4].set(jnp.nan), 0.1),
        "expected preds without NaN, got nan at 4",
    ),
    "sigma of 0": (
        calibrate(scores.Normalized(), (X, X - 1), X),
        "expected sigma > 0, got 0.0 at 0",
    ),
    "sigma missing": (
        calibrate(scores.Normalized(), X, X),
        r"tuple \(mu, sigma\), got \(9,\)",
    ),
    "quantiles missing": (
        calibrate(scores.CQR(), jnp.ones((9, 3)), X),
        r"tuple \(lower, upper\), got \(9, 3\)",
    ),
    "negative predictions": (
        calibrate(scores.Gamma(), X - 2, X),
        "expected preds > 0, got -1.0 at 0",
    ),
    "outputs unlike targets": (
        calibrate(scores.Absolute(), P, X),
        r"prediction of shape \(\) for each target, like y, got \(3,\)",
    ),
    "group out of range": (
        lambda: jaxcp.calibrate_groups(scores.Absolute(), X, X, Y, num_groups=2),
        r"groups in 0, ..., 1, got 2 at 2",
    ),
    "float groups": (
        lambda: jaxcp.calibrate_groups(scores.Absolute(), X, X, X, num_groups=9),
        "groups of an integer type, got float",
    ),
    "test groups missing": (
        lambda: GROUPS(X, 0.1),
        "group of each test point, got groups=None",
    ),
    "test group out of range": (
        lambda: GROUPS(X, 0.1, groups=Y + 1),
        "groups in 0, ..., 2, got 3",
    ),
    "classes unlike groups": (
        lambda: jaxcp.calibrate_groups(scores.LAC(), P, Y, Y * 0, num_groups=1)(P, 0.1),
        r"1 classes \(groups\), got 3",
    ),
    "negative test weights": (
        lambda: jaxcp.calibrate(scores.Absolute(), X, X, weights=X).p_values(
            X, X, test_weights=-X
        ),
        "finite test_weights >= 0, got -1.0 at 0",
    ),
    "test weight without weights": (
        lambda: CP.quantile(0.1, test_weight=2.0),
        "test_weight only with calibration weights",
    ),
    "p-value uniforms": (
        lambda: CP.p_values(X, X, u=X),
        r"u in \[0, 1\], got 2.0 at 1",
    ),
    "a vector for a score": (
        lambda: jaxcp.conformal_p_value(X, X),
        r"score, u and test_weight of shape \(\)",
    ),
    "uniforms of every label": (
        calibrate(scores.APS(randomized=True), (P, P), Y),
        r"uniforms \(n,\)\) for a randomised score",
    ),
    "labels in a column": (
        calibrate(scores.LAC(), P, Y[:, None]),
        r"y of shape \(n,\), got \(9, 1\)",
    ),
    "weights in a column": (
        calibrate(scores.Absolute(), X, X, weights=X[:, None]),
        r"weights of shape \(n,\), got \(9, 1\)",
    ),
    "text": (
        calibrate(scores.Absolute(), X, ["a"] * 9),
        r"expected y as numbers, got text \(a\); numpy.unique",
    ),
    "labels as text": (
        calibrate(scores.LAC(), P, np.array(["cat", "dog", "cow"] * 3)),
        r"expected y as numbers, got text \(cat\); numpy.unique",
    ),
    "labels as objects": (
        calibrate(scores.LAC(), P, pd.Series(["cat", "dog", "cow"] * 3)),
        r"expected y as numbers, got text \(cat\); numpy.unique",
    ),
    "labels as categories": (
        calibrate(
            scores.LAC(), P, pd.Series(["cat", "dog", "cow"] * 3, dtype="category")
        ),
        "expected y as numbers, got text",
    ),
    "groups as text": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, ["f"] * 9, num_groups=1),
        r"expected groups as numbers, got text \(f\)",
    ),
    "a sparse array": (
        calibrate(ABSOLUTE, X, scipy.sparse.csr_array(np.ones((9, 1)))),
        r"expected y as a dense array, got csr_array; x.toarray\(\)",
    ),
    "rows of several lengths": (
        calibrate(ABSOLUTE, X, [[1.0], [2.0, 3.0]]),
        "expected y as one array, got rows of several lengths",
    ),
    "dates": (
        calibrate(ABSOLUTE, X, np.arange(9).astype("datetime64[D]")),
        r"expected y as numbers, got datetime64\[D\]",
    ),
    "a model in place of its predictions": (
        calibrate(ABSOLUTE, PlainLearner(), X),
        "expected preds as numbers, got PlainLearner",
    ),
    "flags as predictions": (
        calibrate(ABSOLUTE, X > 3, X),
        "expected preds as real numbers, got bool; astype",
    ),
    "flags as bands": (
        calibrate(scores.CQR(), (X > 3, X > 2), X),
        "expected preds as real numbers, got bool",
    ),
    "complex targets": (
        calibrate(ABSOLUTE, X, X + 1j),
        "expected y as real numbers, got complex64",
    ),
    "a dict of predictions": (
        calibrate(ABSOLUTE, {"mu": X}, X),
        r"expected preds as arrays, got a dict of \['mu'\]",
    ),
    "a dict of bands": (
        calibrate(scores.CQR(), {"lower": X, "upper": X}, X),
        "expected preds as arrays, got a dict",
    ),
    "a dict of probabilities": (
        calibrate(scores.LAC(), {"p": P}, Y),
        r"expected preds of shape \(n, k\), one column a label, got {'p'",
    ),
    "sets as predictions": (
        calibrate(ABSOLUTE, SETS9, X),
        "expected preds as arrays, got sets of kind Interval",
    ),
    "sets as targets": (
        calibrate(ABSOLUTE, X, SETS9),
        "expected y as arrays, got sets of kind Interval",
    ),
    "several predictions for one output": (
        calibrate(ABSOLUTE, (X, X), X),
        r"expected preds as one array, got \(\(9,\), \(9,\)\)",
    ),
    "crossed bands": (
        calibrate(scores.CQR(), (X + 1, X - 1), X),
        "lower > upper in 9 of 9; swap the two",
    ),
    "crossed bands, two sides": (
        calibrate(scores.AsymmetricCQR(), (X + 1, X - 1), X),
        "lower > upper in 9 of 9; swap the two",
    ),
    "crossed rectangles": (
        calibrate(scores.Rectangle(), (X2 + 1, X2 - 1), X2),
        "lower > upper in 18 of 18; swap the two",
    ),
    "rectangles of means": (
        calibrate(scores.Rectangle(), X2, X2),
        r"preds as a pair \(lower, upper\) of arrays \(9, 2\) like y, got one array",
    ),
    "bands of means": (
        calibrate(scores.CQR(), X2, X2),
        r"preds as a pair \(lower, upper\) of arrays \(9, 2\) like y, got one array",
    ),
    "NaN in the inputs of a fit": (
        cross(x=X2.at[3, 1].set(jnp.nan)),
        r"expected x without NaN, got nan at \(3, 1\)",
    ),
    "an array for each prediction": (
        calibrate(scores.Absolute(), list(X), X),
        "a list of 9 arrays is so many outputs, jnp.stack makes rows of them",
    ),
    "an array of one for each prediction": (
        calibrate(scores.Absolute(), list(X[:, None]), X),
        "expected y with 1 rows like preds, got 9; a list of 9 arrays",
    ),
    "a score that is no pytree": (
        calibrate(PlainScore(), X, X),
        r"decorate .* with jaxcp.pytree, .* jaxcp.static, or use scores.Custom",
    ),
    "a learner that is no pytree": (
        cross(learner=PlainLearner()),
        "expected learner as a pytree, got PlainLearner; decorate",
    ),
    "draws that are ranked among themselves": (
        calibrate(scores.CDF(scores.PCP()), (X2[:, None], X2[:, None])[:1] * 2, X2),
        "draws independent of the base prediction",
    ),
    "a model for its prediction function": (
        lambda: jaxcp.split_conformal(RIDGE, None, ABSOLUTE, X2, X),
        r"expected predict\(params, x\) as a function, got Ridge",
    ),
    "inputs in place of predictions": (
        lambda: CP(X2, 0.1),
        r"preds with rows of shape \(\) as at calibration, got \(2,\)",
    ),
    "fewer labels than at calibration": (
        lambda: LABELS(P[:, :2] * 1.5, 0.1),
        r"rows of shape \(3,\) as at calibration, got \(2,\)",
    ),
    "step size and score swapped": (
        lambda: online.ACI(0.1, ABSOLUTE).init(X, 0.1),
        r"step_size as a number, got Absolute\(\)",
    ),
    "no predictions": (
        calibrate(scores.Absolute(), None, X),
        "expected preds as a value, got None",
    ),
    "a class for a score": (
        calibrate(scores.Absolute, X, X),
        "expected score as a value, got the class",
    ),
    "a function for a score": (
        calibrate(lambda pred, y: y, X, X),
        "score with an inverse, got function",
    ),
    "no groups": (
        lambda: jaxcp.calibrate_groups(scores.Absolute(), X, X, Y, num_groups=0),
        "num_groups as an int >= 1, got 0",
    ),
    "levels unlike groups": (
        lambda: jaxcp.grouped_conformal_quantile(X, Y, [0.1, 0.2], num_groups=3),
        r"alpha of shape \(\) or \(3,\), one a group, got \(2,\)",
    ),
    "inclusive class-wise sets": (
        lambda: jaxcp.calibrate_groups(
            scores.APS(inclusive=True), P, Y, Y, num_groups=3
        )(P, 0.1),
        "class-wise sets need inclusive=False",
    ),
    "targets unlike boxes": (
        lambda: metrics.coverage(Box(P, P), X),
        r"y of shape \(9, 3\) like sets, got \(9,\)",
    ),
    "count of scores": (
        lambda: jaxcp.conformal_rank(9.0, 0.1),
        "expected an integer count, got float",
    ),
    "negative count": (lambda: jaxcp.conformal_rank(-1, 0.1), "count >= 0, got -1"),
    "scalar scores": (
        lambda: jaxcp.conformal_quantile(1.0, 0.1),
        "scores with a leading axis, got a scalar",
    ),
    "bandwidth of 0": (
        lambda: jaxcp.soft_conformal_quantile(X, 0.1, bandwidth=0.0),
        "bandwidth > 0, got 0.0",
    ),
    "points that are not in the plane": (
        lambda: datasets.class_posterior(P),
        r"x of shape \(n, 2\), got \(9, 3\)",
    ),
    "data of minus one row": (
        lambda: datasets.linear(KEY, -1),
        "n as an int >= 0, got -1",
    ),
    "logits of +inf": (
        lambda: jaxcp.calibrate(scores.LogLAC(), P.at[2, 1].set(jnp.inf), Y),
        r"logits below \+inf, got inf at \(2, 1\)",
    ),
    "temperature of 0": (
        lambda: training.soft_size(scores.LAC(), P, 0.5, temperature=0.0),
        "temperature > 0, got 0.0",
    ),
    "several temperatures": (
        lambda: training.soft_size(scores.LAC(), P, 0.5, temperature=X),
        r"temperature of shape \(\), got \(9,\)",
    ),
    "soft size of a level set": (
        lambda: training.soft_size(scores.Custom(jnp.maximum), X, 1.0, temperature=1.0),
        "a score with a method `labels`, got LevelSet",
    ),
    "soft size of balls without a key": (
        lambda: training.soft_size(scores.PCP(), P[:, :, None], 1.0, temperature=1.0),
        "expected a key for unions of balls",
    ),
    "soft size of inner boxes": (
        lambda: training.soft_size(
            scores.BoxOffset(inner=True, maximum=True),
            jnp.ones((9, 4)),
            1.0,
            temperature=1.0,
        ),
        "sets to make small, got inner boxes",
    ),
    "soft size at thresholds of many rows": (
        lambda: training.soft_size(scores.LAC(), P, X, temperature=1.0),
        r"q of shape \(\) or \(3,\), got \(9,\)",
    ),
    "soft membership at thresholds of many rows": (
        lambda: training.soft_membership(scores.LAC(), P, Y, X, temperature=1.0),
        r"q of shape \(\) or \(3,\), got \(9,\)",
    ),
    "soft membership of fewer targets": (
        lambda: training.soft_membership(scores.LAC(), P, Y[1:], 1.0, temperature=1.0),
        "y with 9 rows like preds, got 8",
    ),
    "training loss with two gradients": (
        lambda: train_loss(bandwidth=0.1, nearest=3),
        "one of bandwidth and nearest, got 0.1 and 3",
    ),
    "training loss at alpha 1": (
        lambda: train_loss(alpha=1.0),
        r"alpha in \(0, 1\), got 1.0",
    ),
    "training loss at two levels": (
        lambda: train_loss(alpha=jnp.array([0.1, 0.2])),
        r"alpha of shape \(\), got \(2,\); use jax.vmap",
    ),
    "training loss of the nearest none": (
        lambda: train_loss(nearest=0),
        "nearest as an int >= 1, got 0",
    ),
    "training loss with weights without labels": (
        lambda: train_loss(size_weights=jnp.ones(3)),
        "expected y, which size and classification weights go by",
    ),
    "training loss with weights of other labels": (
        lambda: train_loss(y=Y, size_weights=jnp.ones(2)),
        r"size_weights of shape \(3,\), got \(2,\)",
    ),
    "training loss with negative weights": (
        lambda: train_loss(y=Y, classification_weights=-jnp.eye(3)),
        "finite classification_weights >= 0, got -1.0",
    ),
    "training a score without hyperparameters": (
        lambda: train_score(scores.APS()),
        "a score with hyperparameters, got APS",
    ),
    "training a score by no optimizer": (
        lambda: train_score(optimizer=0.1),
        "optimizer from optax, got float",
    ),
    "training a score by a projection to another": (
        lambda: train_score(project=lambda s: s.penalty),
        "project to return a score like its argument, .*RAPS",
    ),
    "training a score by a projection that is none": (
        lambda: train_score(project=0.1),
        "project as a function, got 0.1",
    ),
    "training an inclusive score": (
        lambda: training.soft_size(scores.APS(inclusive=True), P, 0.5, temperature=1.0),
        "inclusive=False to train with, got inclusive=True",
    ),
    "training loss of halves with other labels": (
        lambda: training.conformal_training_loss(
            scores.LAC(), P, Y, jnp.full((9, 2), 0.5), 0.1, temperature=1.0
        ),
        r"preds with rows of shapes \[\(3,\)\] like preds_cal, got \[\(2,\)\]",
    ),
    "training loss of no sets": (
        lambda: training.conformal_training_loss(
            scores.LAC(), P, Y, P[:0], 0.1, temperature=1.0
        ),
        "preds with at least 1 row, got 0",
    ),
    "choosing a score that is not valid": (
        lambda: training.select_score(KEY, scores.RAPS([0.1, -1.0], 1), P, Y, 0.1),
        "penalty >= 0, got -1.0",
    ),
    "soft size of balls at three thresholds": (
        lambda: training.soft_size(
            scores.PCP(), P[:, :, None], X[:3], temperature=1.0, key=KEY
        ),
        r"q of shape \(\), got \(3,\)",
    ),
    "training a score by too few rows": (
        lambda: train_score(),
        "expected more rows, got 9: half of them have an infinite threshold",
    ),
    "choosing a score by too few rows": (
        lambda: training.select_score(KEY, scores.RAPS([0.1, 1.0], 1), P, Y, 0.1),
        "expected more rows, got 9: half of them have an infinite threshold",
    ),
    "choosing a score at two levels": (
        lambda: training.select_score(
            KEY, scores.RAPS([0.1, 1.0], 1), P, Y, [0.1, 0.2]
        ),
        r"alpha of shape \(\), got \(2,\); use jax.vmap",
    ),
    "choosing a score of one": (
        lambda: training.select_score(KEY, scores.RAPS(0.1, 1), P, Y, 0.1),
        "hyperparameters with one leading axis of candidates",
    ),
    "choosing a score by one row": (
        lambda: training.select_score(KEY, scores.RAPS(X, 1), P[:1], Y[:1], 0.1),
        "at least 2 rows, one for each half, got 1",
    ),
    "u out of range": (
        lambda: jaxcp.conformal_p_value(X, 1.0, u=2.0),
        r"u in \[0, 1\], got 2.0",
    ),
    "weights unlike scores": (
        lambda: jaxcp.weighted_conformal_quantile(X, X[:2], 0.1),
        r"one shape \(n,\), got \(9,\) and \(2,\)",
    ),
    "coverage of unequal lengths": (
        lambda: metrics.coverage(Interval(X, X), X[:3]),
        "expected y with 9 rows like sets, got 3",
    ),
    "coverage of labels from 1": (
        lambda: metrics.coverage(LabelSet(P > 0), Y + 1),
        "y in 0, ..., 2, got 3",
    ),
    "coverage of float labels": (
        lambda: metrics.coverage(LabelSet(P > 0), X),
        "y of an integer type, got float",
    ),
    "coverage of groups": (
        lambda: metrics.group_coverage(Interval(X, X), X, Y, num_groups=2),
        "groups in 0, ..., 1, got 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_say_what_was_expected(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_masked_rows_are_not_checked():
    y = X.at[4].set(jnp.nan)
    mask = jnp.arange(9) != 4
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), y, mask=mask)
    assert cp.quantile(0.2) == 9
    weights = jnp.where(mask, 1.0, jnp.nan)
    jaxcp.calibrate(scores.Absolute(), jnp.zeros(9), y, mask=mask, weights=weights)
    sigma = jnp.where(mask, 1.0, -1.0)
    jaxcp.calibrate(scores.Normalized(), (X, sigma), X, mask=mask)


def test_traced_values_never_raise():
    import jax

    bad = X.at[4].set(jnp.nan)
    sets = jax.jit(lambda p, y: jaxcp.calibrate(scores.Absolute(), p, y)(X, 0.1))(
        X, bad
    )
    assert np.all(np.isinf(sets.upper))  # the NaN score counts as infinite
    labels = jax.jit(lambda p, y: jaxcp.calibrate(scores.APS(), p, y)(P, 0.1))(P, Y + 1)
    assert np.all(labels.mask)


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        lambda v: np.asarray(v).tolist(),
        lambda v: pd.DataFrame(v) if np.ndim(v) > 1 else pd.Series(v),
        lambda v: np.asarray(v, np.float64 if np.asarray(v).dtype.kind == "f" else int),
    ],
    ids=["numpy", "lists", "pandas", "wide"],
)
def test_every_kind_of_array_is_accepted(convert):
    x, p, y = convert(np.asarray(X)), convert(np.asarray(P)), convert(np.asarray(Y))
    zeros = convert(np.zeros(9))
    cp = jaxcp.calibrate(scores.Absolute(), zeros, x, weights=convert(np.ones(9)))
    assert cp.quantile(0.1) == 9
    assert_array_equal(cp(zeros, 0.1).upper, np.full(9, 9))
    pair = jaxcp.calibrate(scores.CQR(), (zeros, x), x)
    assert_array_equal(pair.scores, np.zeros(9))
    labels = jaxcp.calibrate(scores.LAC(), p, y)
    assert metrics.coverage(labels(p, 0.2), y) == 1
    groups = jaxcp.calibrate_groups(scores.Absolute(), zeros, x, y, num_groups=3)
    assert_array_equal(groups(zeros, 0.5, groups=y).upper[:3], [4, 5, 6])
    assert jaxcp.conformal_quantile(x, 0.2) == 8
    assert jaxcp.kth_smallest(x, 3) == 3


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    x = torch.arange(1.0, 10.0, requires_grad=True)
    cp = jaxcp.calibrate(scores.Absolute(), torch.zeros(9), x)
    assert cp.quantile(0.1) == 9
    assert_array_equal(cp(torch.zeros(2), 0.2).upper, [8, 8])


def test_integer_data():
    cp = jaxcp.calibrate(scores.Absolute(), np.zeros(9, int), np.arange(1, 10))
    assert cp.quantile(0.2) == 8
    assert jnp.issubdtype(cp.quantile(0.2).dtype, jnp.floating)
    assert_array_equal(cp(np.array([1, 2]), 0.2).upper, [9, 10])
    assert np.all(np.isinf(cp(np.array([1, 2]), 0.01).size()))
