"""Wrong predictions and targets of scores of labels and of several outputs."""

import jax.numpy as jnp
import numpy as np
import pandas as pd

import jaxcp
from jaxcp import datasets
from jaxcp.scores import (
    APS,
    CDF,
    CP2PCP,
    HDPCP,
    LAC,
    PCP,
    RAPS,
    SAPS,
    Absolute,
    Claims,
    Custom,
    Density,
    Distance,
    Entmax,
    LogLAC,
    LogMargin,
    Mahalanobis,
    Margin,
    MultiLabel,
    Rectangle,
    TopK,
)
from rows import X2, P, X, Y, calibrate, refuses

LABELS = jaxcp.calibrate(LAC(), P, Y)
DRAWS = jnp.zeros((9, 5, 2))


def multi(score, preds, y=X2):
    return calibrate(score, preds, y)


WRONG = {
    "labels from 1": (calibrate(LAC(), P, Y + 1), r"y in 0, ..., 2, got 3 at 2"),
    "labels from 1, APS": (calibrate(APS(), P, Y + 1), "y in 0, ..., 2, got 3"),
    "labels from -1": (calibrate(TopK(), P, Y - 1), "y in 0, ..., 2, got -1 at 0"),
    "float labels": (
        calibrate(LAC(), P, Y.astype(float)),
        "y of an integer type, got float",
    ),
    "logits": (
        calibrate(LAC(), jnp.ones((9, 3)), Y),
        "probabilities that sum to 1 in each row, got 3.0 at 0",
    ),
    "negative probabilities": (
        calibrate(APS(), P.at[2].set(jnp.array([1.2, -0.2, 0.0])), Y),
        r"probabilities >= 0 .*, got -0.2\d* at \(2, 1\)",
    ),
    "logits at prediction": (
        lambda: LABELS(jnp.ones((2, 3)), 0.1),
        "probabilities that sum to 1 in each row, got 3.0 at 0",
    ),
    "labels of pixels": (
        calibrate(LAC(), jnp.full((9, 3, 2, 2), 1 / 3), jnp.zeros((9, 2, 2), int)),
        r"one column a label, got \(9, 3, 2, 2\); of the pixels of images: scores.Mul",
    ),
    **{
        f"no outputs, {type(score).__name__}": (
            calibrate(score, preds, X2[:, :0]),
            r"preds of at least one output, got \(9, 0\)",
        )
        for score, preds in [
            (Absolute(), X2[:, :0]),
            (Distance(), X2[:, :0]),
            (Rectangle(), (X2[:, :0], X2[:, :0])),
            (Mahalanobis(), (X2[:, :0], X2[:, :0])),
        ]
    },
    "one probability": (
        calibrate(LAC(), X, Y),
        r"preds of shape \(n, k\), one column a label, got \(9,\)",
    ),
    "no uniforms": (
        calibrate(APS(randomized=True), P, Y),
        r"pair \(probabilities \(n, k\), uniforms \(n,\)\)",
    ),
    "uniforms out of range": (
        calibrate(APS(randomized=True), (P, X), Y),
        r"uniforms in \[0, 1\], got 2.0 at 1",
    ),
    "negative penalty": (calibrate(RAPS(-1.0, 2), P, Y), "penalty >= 0, got -1.0"),
    "negative k_reg": (calibrate(RAPS(1.0, -2), P, Y), "k_reg >= 0, got -2"),
    "negative weight": (calibrate(SAPS(-0.1), P, Y), "weight >= 0, got -0.1"),
    "weight of NaN": (calibrate(SAPS(jnp.nan), P, Y), "weight >= 0, got nan"),
    "gamma below 1": (calibrate(Entmax(0.5), P, Y), "gamma >= 1, got 0.5"),
    "logits for a margin": (
        calibrate(Margin(), jnp.ones((9, 3)), Y),
        "probabilities that sum to 1 in each row, got 3.0 at 0",
    ),
    "uniforms of every label": (
        calibrate(APS(randomized=True), (P, P), Y),
        r"uniforms of shape \(n,\), got \(9, 3\)",
    ),
    "a column": (calibrate(LAC(), P, Y[:, None]), r"y of shape \(n,\), got \(9, 1\)"),
    "one-hot labels": (
        calibrate(LAC(), P, jnp.eye(3)[Y]),
        r"labels y of shape \(n,\), got \(9, 3\); y.argmax\(axis=1\) are those of",
    ),
    "pairs of probabilities of several labels": (
        calibrate(MultiLabel(), [P[:, :2], P[:, :2]], X2 > 2),
        r"preds as one array, .*; of pairs \(n, 2\) numpy.stack\(\[p\[:, 1\] for p in",
    ),
    "labels as text": (
        calibrate(LAC(), P, np.array(["cat", "dog", "cow"] * 3)),
        r"y as numbers, got text \(cat\); .*classes=model.classes_.*index\(name\)",
    ),
    "labels as objects": (
        calibrate(LAC(), P, pd.Series(["cat", "dog", "cow"] * 3)),
        r"y as numbers, got text \(cat\); .*classes=model.classes_.*index\(name\)",
    ),
    "labels as categories": (
        calibrate(LAC(), P, pd.Series(["cat", "dog", "cow"] * 3, dtype="category")),
        "y as numbers, got text",
    ),
    "a dict of probabilities": (
        calibrate(LAC(), {"p": P}, Y),
        r"preds of shape \(n, k\), one column a label, got {'p'",
    ),
    "fewer labels than at calibration": (
        lambda: LABELS(P[:, :2] * 1.5, 0.1),
        r"rows of shape \(3,\) as at calibration, got \(2,\)",
    ),
    **{
        f"logits of +inf, {type(score).__name__}": (
            calibrate(score, P.at[2, 1].set(jnp.inf), Y),
            r"logits below \+inf, got inf at \(2, 1\)",
        )
        for score in (LogLAC(), LogMargin(), Entmax(1.5))
    },
    "sampler of another shape": (
        multi(PCP(), jnp.zeros((9, 5, 3))),
        r"draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 3\)",
    ),
    "labels for a mask": (
        calibrate(MultiLabel(), P, Y),
        r"y as a mask of shape \(9, 3\) .*, got \(9,\); .*one_hot\(y, k, axis=1\) > 0",
    ),
    "a mask of another shape": (
        calibrate(MultiLabel(), P, P[:, :2] > 0),
        r"y as a mask of shape \(9, 3\) like preds, got \(9, 2\)",
    ),
    "logits for a mask": (
        calibrate(MultiLabel(), P.at[1, 2].set(-0.5), P > 0),
        r"\[0, 1\] \(of logits: jax.nn.sigmoid\), got -0.5 at \(1, 2\)",
    ),
    "distances for a mask": (
        calibrate(MultiLabel(), -P, P > 0),
        r"heat of any range: scores.MultiLabel\(bounded=False\)",
    ),
    "NaN for heat": (
        calibrate(MultiLabel(bounded=False), P.at[1, 2].set(jnp.nan), P > 0),
        r"preds without NaN, got nan at \(1, 2\)",
    ),
    "flags for heat": (
        calibrate(MultiLabel(bounded=False), P > 0, P > 0),
        "preds as real numbers, got bool",
    ),
    "labels for heat": (
        calibrate(MultiLabel(bounded=False), P, Y),
        r"y as a mask of shape \(9, 3\) .*, got \(9,\)",
    ),
    "probabilities as a mask": (
        calibrate(MultiLabel(), P, P),
        "y as flags or 0 and 1, true where a label holds, got 0.3",
    ),
    "several arrays for a mask": (
        calibrate(MultiLabel(), (P, P), P > 0),
        r"preds as one array, got \(\(9, 3\), \(9, 3\)",
    ),
    "classes of a mask": (
        calibrate(MultiLabel(), P, P > 0, classes=("a", "b", "c")),
        "classes only with scores of labels, got MultiLabel",
    ),
    "share of 0": (calibrate(Claims(0.0), (P, P > 0), P > 0), r"\(0, 1\], got 0.0"),
    "share above 1": (
        calibrate(Claims(1.5), (P, P > 0), P > 0),
        "share in .*, got 1.5",
    ),
    "claims without a mask": (
        calibrate(Claims(), P, P > 0),
        r"a tuple \(confidences, mask\), both of shape \(n, m\), got \(9, 3\)",
    ),
    "claims of one number": (
        calibrate(Claims(), (X, X > 0), X > 0),
        r"both of shape \(n, m\), got \(\(9,\), \(9,\)\)",
    ),
    "a mask of other claims": (
        calibrate(Claims(), (P, P[:, :2] > 0), P > 0),
        r"both of shape \(n, m\), got \(\(9, 3\), \(9, 2\)\)",
    ),
    "confidences for a mask": (
        calibrate(Claims(), (P, P), P > 0),
        "the mask of preds as flags or 0 and 1, .*, got 0.3",
    ),
    "NaN confidences": (
        calibrate(Claims(), (P.at[1, 2].set(jnp.nan), P > 0), P > 0),
        r"confidences without NaN, got nan at \(1, 2\)",
    ),
    "truths of other claims": (
        calibrate(Claims(), (P, P > 0), P[:, :2] > 0),
        r"y as a mask of shape \(9, 3\) like the confidences, got \(9, 2\)",
    ),
    "truths as probabilities": (
        calibrate(Claims(), (P, P > 0), P),
        "y as flags or 0 and 1, true where a label holds, got 0.3",
    ),
    "no draws": (multi(PCP(), DRAWS[:, :0]), r"l >= 1, got \(9, 0, 2\)"),
    "NaN draws": (multi(PCP(), DRAWS.at[1].set(jnp.nan)), "preds without NaN"),
    "one draw a row": (multi(PCP(), DRAWS[:, 0]), r"draws of shape \(n, l, 2\)"),
    "CDF without draws": (
        multi(CDF(PCP()), DRAWS),
        r"preds as a tuple \(base prediction, draws\), got \(9, 5, 2\)",
    ),
    "CDF, draws of another shape": (
        multi(CDF(PCP()), (DRAWS, DRAWS[..., :1])),
        r"draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 1\)",
    ),
    "CDF, base with the wrong draws": (
        multi(CDF(PCP()), (DRAWS[..., :1], DRAWS)),
        r"draws of shape \(n, l, 2\), l >= 1, got \(9, 5, 1\)",
    ),
    "CDF, no uniform": (
        multi(CDF(PCP(), randomized=True), (DRAWS, DRAWS)),
        r"a tuple \(base prediction, draws, u\)",
    ),
    "CDF, uniform out of range": (
        multi(CDF(PCP(), randomized=True), (DRAWS, DRAWS + 0, X)),
        r"u in \[0, 1\], got 2.0",
    ),
    "CDF, class": (lambda: CDF(PCP), "base as a value, got the class"),
    "a density of each output": (
        multi(Density(lambda pred, y: -(y**2)), X2),
        r"log_prob\(pred, y\) of shape \(\), got \(2,\)",
    ),
    "a law and targets of another size": (
        multi(Density.of(datasets.Unimodal(), None), X[:, None], X),
        r"y of shape \(2,\), got \(1,\)",
    ),
    "CDF, extended and randomized": (
        lambda: CDF(PCP(), extended=True, randomized=True),
        "one of extended, randomized and cdf, got more",
    ),
    "CDF, extended and a known law": (
        lambda: CDF(PCP(), extended=True, cdf=jnp.exp),
        "one of extended, randomized and cdf, got more",
    ),
    "CDF, a law that is none": (lambda: CDF(PCP(), cdf=0.5), "cdf as a function"),
    "Distance, another norm": (lambda: Distance(3), "norm as 1, 2 or jnp.inf, got 3"),
    "Distance of a pair": (
        multi(Distance(), (X2, X2)),
        r"preds as one array, got \(\(9, 2\), \(9, 2\)\)",
    ),
    "inverse and start": (
        lambda: Custom(jnp.subtract, jnp.subtract, jnp.negative),
        "inverse or start, got both",
    ),
    "CDF of components": (
        multi(CDF(Absolute()), (X2, DRAWS)),
        r"base score of shape \(\), got components \(2,\)",
    ),
    "HDPCP, alpha": (
        multi(HDPCP(1.5), (DRAWS, DRAWS[..., 0])),
        r"alpha in \(0, 1\), got 1.5",
    ),
    "HDPCP, densities of another shape": (
        multi(HDPCP(0.1), (DRAWS, DRAWS[:, 0])),
        r"log densities of shape \(5,\), got \(2,\)",
    ),
    "CP2PCP, no pair": (multi(CP2PCP(0.1), DRAWS), "reference draws, draws"),
    "Mahalanobis, scale of another shape": (
        multi(Mahalanobis(), (X2, 1 + X2[:, :1])),
        r"a scale of shape \(2,\), got \(1,\)",
    ),
    "Mahalanobis, a covariance": (
        multi(Mahalanobis(), (X2, jnp.ones((9, 2, 2)))),
        "a lower triangular scale",
    ),
    "Mahalanobis, no scale": (
        multi(Mahalanobis(), (X2, 0 * X2)),
        "scales > 0, got 0.0",
    ),
    "Rectangle without a pair": (multi(Rectangle(), DRAWS), "as a tuple"),
    "bounds": (lambda: Rectangle.bounds(DRAWS, 2), r"alpha in \(0, 1\), got 2"),
    "a density": (lambda: Density(3.0), "log_prob as a function, got 3.0"),
    "crossed rectangles": (
        calibrate(Rectangle(), (X2 + 1, X2 - 1), X2),
        "lower > upper in 18 of 18; swap the two",
    ),
    "rectangles of means": (
        calibrate(Rectangle(), X2, X2),
        r"preds as a pair \(lower, upper\) of arrays \(9, 2\) like y, got one array",
    ),
    "draws that are ranked among themselves": (
        calibrate(CDF(PCP()), (X2[:, None], X2[:, None])[:1] * 2, X2),
        "draws independent of the base prediction",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
