"""Wrong calls of calibration and its sets, in groups too."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.sparse

import jaxcp
from jaxcp.scores import (
    APS,
    CQR,
    LAC,
    Absolute,
    AsymmetricCQR,
    Gamma,
    MultiLabel,
    Normalized,
    Signed,
)
from jaxcp.sets import Interval
from rows import ABSOLUTE, X2, P, PlainLearner, X, Y, calibrate, refuses

CP = jaxcp.calibrate(ABSOLUTE, jnp.zeros(9), X)
LABELS = jaxcp.calibrate(LAC(), P, Y)
CLASSES = jaxcp.calibrate_groups(LAC(), P, Y, Y, num_groups=3)
GROUPS = jaxcp.calibrate_groups(ABSOLUTE, X, X, Y, num_groups=3)


class PlainScore:
    def __call__(self, pred, y):
        return y - pred

    def invert(self, pred, q):
        return Interval(pred - q, pred + q)


def points(preds=X, y=X, **options):
    return calibrate(ABSOLUTE, preds, y, **options)


WRONG = {
    "unequal lengths": (points(y=X[:8]), "y with 9 rows like preds, got 8"),
    "unequal parts": (
        calibrate(CQR(), (X, X[:8]), X),
        r"preds of one length, got \[8, 9\]",
    ),
    "images of unlike sizes": (
        calibrate(MultiLabel(), [np.zeros((4, 4)), np.zeros((5, 4))], X),
        r"preds of one length, got \[4, 5\]; numpy.pad gives images one size \(p = 0\)",
    ),
    "columns in another order": (
        points(pd.DataFrame({"a": X, "b": X}), pd.DataFrame({"b": X, "a": X})),
        r"columns of y in the order of those of preds \('a', 'b'\), got \('b', 'a'\)",
    ),
    "durations": (
        points(y=pd.Series(pd.to_timedelta(np.arange(9), unit="h"))),
        r"y as numbers, got timedelta64\[.s\]; y / pandas.Timedelta\(hours=1\) gives",
    ),
    "durations of numpy": (
        points(np.arange(9).astype("timedelta64[h]")),
        r"preds as numbers, got timedelta64\[h\]; preds / pandas.Timedelta",
    ),
    "dates for targets": (
        points(y=np.arange(9).astype("datetime64[h]")),
        r"y as numbers, got datetime64\[h\]; \(y - pandas.Timestamp.* gives hours",
    ),
    "a mean and a scale": (
        points((X, X)),
        r"preds as one array, got \(\(9,\), \(9,\)\); CQR takes .* Normalized \(mu, s",
    ),
    "two columns": (
        points(X2),
        r"preds of shape \(n,\) like y, got \(9, 2\); .*preds\[:, 0\] is one column",
    ),
    "one number": (lambda: CP(1.0, 0.1), r"a scalar; \[value\] is one row"),
    "the name of a column": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, "sex"),
        r"groups of shape \(n,\), got 'sex'; give the column itself, .* frame\['sex'\]",
    ),
    "the name of a column of clusters": (
        points(clusters="patient"),
        r"clusters of shape \(n,\), got 'patient'; give the column itself",
    ),
    "the name of a column, of a report": (
        lambda: jaxcp.report(CP, X, X, 0.1, groups="sex"),
        r"groups of shape \(n,\), got 'sex'; give the column itself",
    ),
    "batches with groups": (
        lambda: jaxcp.calibrate(ABSOLUTE, batches=[{"preds": X, "y": X, "groups": Y}]),
        "a mapping with preds, y, weights, mask, got groups; calibrate_groups takes",
    ),
    "batches with ids": (
        lambda: jaxcp.calibrate(ABSOLUTE, batches=[{"preds": X, "y": X, "id": Y}]),
        "a mapping with preds, y, weights, mask, got id",
    ),
    "one calibration to join": (
        lambda: jaxcp.join(CP),
        r"calibrations in a list, got Calibration; write join\(\[first, second\]\)",
    ),
    "groups of fewer labels": (
        lambda: jaxcp.calibrate_groups(LAC(), P, Y, label_groups=[0, 1]),
        r"label_groups of shape \(3,\), .*, got \(2,\); group_.*num_classes=3\) has",
    ),
    "delta of weights": (
        lambda: jaxcp.survival.calibrate_lower(
            X, X, X, cutoff=5.0, probability=P[:, 0]
        )(X, 0.1, delta=0.1, probability=P[:, 0]),
        "coverage has no known law, as with weights, got 0.1; leave it out",
    ),
    "flags of events": (
        lambda: jaxcp.survival.calibrate_lower(
            X, X, Y % 2, cutoff=5.0, probability=P[:, 0]
        ),
        r"got -1.0 at 0; of flags of events .* numpy.where\(event, numpy.inf, time\)",
    ),
    "a duration": (
        lambda: jaxcp.survival.calibrate_lower(
            X, X, X, cutoff=np.timedelta64(72, "h"), probability=P[:, 0]
        ),
        r"cutoff as a number, got .*72,'h'\); cutoff / pandas.Timedelta\(hours=1\)",
    ),
    "a duration of pandas": (
        lambda: jaxcp.survival.calibrate_lower(
            X, X, X, cutoff=pd.Timedelta(hours=72), probability=P[:, 0]
        ),
        r"cutoff as a number, got .*; cutoff / pandas.Timedelta\(hours=1\) gives hours",
    ),
    "no rows": (points(1.0), "preds with a leading axis, got a scalar"),
    "nothing": (points(()), r"preds as arrays, got \(\)"),
    "alpha 0": (lambda: CP(X, 0), r"alpha in \(0, 1\), got 0"),
    "alpha 1": (lambda: CP(X, 1.0), r"alpha in \(0, 1\), got 1.0"),
    "alpha negative": (lambda: CP.quantile(-0.1), r"alpha in \(0, 1\), got -0.1"),
    "alpha in percent": (lambda: CP.quantile(10), r"alpha in \(0, 1\), got 10"),
    "alpha NaN": (lambda: CP.quantile(float("nan")), r"alpha in \(0, 1\), got nan"),
    "alpha in a list": (lambda: CP.quantile([0.1, 2]), r"alpha in \(0, 1\), got 2"),
    "alpha as text": (lambda: CP.quantile("0.1"), "alpha as a number, got str"),
    "delta 0": (lambda: CP(X, 0.5, delta=0), r"delta in \(0, 1\), got 0; 0.05 is for"),
    "delta 1": (lambda: CP.quantile(0.5, delta=1.0), r"delta in \(0, 1\), got 1.0"),
    "delta NaN": (lambda: CP.rank(0.5, np.nan), r"delta in \(0, 1\), got nan"),
    "delta as text": (lambda: CP(X, 0.5, delta="0.1"), "delta as a number, got str"),
    "delta as a flag": (lambda: CP(X, 0.5, delta=True), "delta as a number, got bool"),
    "several deltas": (
        lambda: CP.certificate(0.5, [0.1, 0.2]),
        "delta as a number, got list",
    ),
    "delta in a jax array": (
        lambda: CP(X, 0.5, delta=jnp.asarray(0.1)),
        "delta as a number, got ",
    ),
    "delta too small": (
        lambda: jaxcp.conformal_rank(9, 0.1, 1e-310),
        "delta of at least 1e-300, got 1e-310",
    ),
    "delta with alpha in a jax array": (
        lambda: CP.quantile(jnp.asarray(0.5), delta=0.1),
        "alpha as a number where delta is given, got a jax array; .* alpha=0.1",
    ),
    "delta with weights": (
        lambda: jaxcp.calibrate(ABSOLUTE, X, X, weights=X / 9)(X, 0.5, delta=0.05),
        "delta=None for a calibration with weights, got 0.05; .* without weights",
    ),
    "delta of outliers": (
        lambda: jaxcp.outliers.is_outlier(X, X, 0.1, delta=2),
        r"delta in \(0, 1\), got 2",
    ),
    "delta of no rows": (
        lambda: jaxcp.risk.critical_count(-1, 0.1, 0.1),
        "n as an int >= 0, got -1",
    ),
    "a level in a jax array": (
        lambda: jaxcp.risk.hoeffding_bentkus_level(9, jnp.asarray(0.1), 0.1),
        "alpha as a number, got a jax array",
    ),
    "a table of alphas": (
        lambda: CP.quantile(jnp.full((2, 2), 0.1)),
        r"alpha of shape \(\) or \(a,\), got \(2, 2\)",
    ),
    "several test weights for one threshold": (
        lambda: jaxcp.calibrate(ABSOLUTE, X, X, weights=X).quantile(0.1, test_weight=X),
        r"test_weight of shape \(\), got \(9,\)",
    ),
    "classes of no predictions": (
        lambda: CLASSES(None, 0.1),
        "preds as a value, got None",
    ),
    "classes of one row": (
        lambda: CLASSES(P[0], 0.1),
        r"rows of shape \(3,\) as at calibration, got \(\)",
    ),
    "several alphas": (lambda: CP(X, [0.1, 0.2]), r"alpha of shape \(\), got \(2,\)"),
    "alphas for components": (
        lambda: jaxcp.calibrate(Signed(), X, X)(X, [0.1, 0.2, 0.3]),
        r"alpha of shape \(\) or \(2,\), got \(3,\)",
    ),
    "negative weights": (points(weights=X - 3), "finite weights >= 0, got -2.0 at 0"),
    "infinite weights": (points(weights=X / 0), "finite weights >= 0, got inf at 0"),
    "too few weights": (points(weights=X[:3]), "weights with 9 rows like preds, got 3"),
    "too short a mask": (points(mask=[True]), "mask with 9 rows like preds, got 1"),
    "test weights without weights": (
        lambda: CP(X, 0.1, test_weights=X),
        "test_weights only with calibration weights",
    ),
    "NaN predictions": (
        points(X.at[4].set(jnp.nan)),
        "preds without NaN, got nan at 4",
    ),
    "NaN targets": (points(y=X.at[4].set(jnp.nan)), "y without NaN, got nan at 4"),
    "NaN later": (
        lambda: CP(X.at[4].set(jnp.nan), 0.1),
        "preds without NaN, got nan at 4",
    ),
    "sigma of 0": (calibrate(Normalized(), (X, X - 1), X), "sigma > 0, got 0.0 at 0"),
    "sigma missing": (
        calibrate(Normalized(), X, X),
        r"tuple \(mu, sigma\), got \(9,\)",
    ),
    "quantiles missing": (
        calibrate(CQR(), jnp.ones((9, 3)), X),
        r"tuple \(lower, upper\), got \(9, 3\)",
    ),
    "negative means": (calibrate(Gamma(), X - 2, X), "preds > 0, got -1.0 at 0"),
    "outputs unlike targets": (
        points(P),
        r"preds of shape \(n,\) like y, got \(9, 3\); CQR takes",
    ),
    "negative test weights": (
        lambda: jaxcp.calibrate(ABSOLUTE, X, X, weights=X).p_values(
            X, X, test_weights=-X
        ),
        "finite test_weights >= 0, got -1.0 at 0",
    ),
    "test weight without weights": (
        lambda: CP.quantile(0.1, test_weight=2.0),
        "test_weight only with calibration weights",
    ),
    "uniforms": (lambda: CP.p_values(X, X, u=X), r"u in \[0, 1\], got 2.0 at 1"),
    "weights in a column": (
        points(weights=X[:, None]),
        r"weights of shape \(n,\), got \(9, 1\)",
    ),
    "text": (
        points(y=["a"] * 9),
        r"y as numbers, got text \(a\); .*classes=model.classes_.*index\(name\)",
    ),
    "a sparse array": (
        points(y=scipy.sparse.csr_array(np.ones((9, 1)))),
        "y as numbers, got csr_array",
    ),
    "dates": (
        points(y=np.arange(9).astype("datetime64[D]")),
        r"y as numbers, got datetime64\[D\]",
    ),
    "a model in place of its predictions": (
        points(PlainLearner()),
        "preds as numbers, got PlainLearner",
    ),
    "flags as predictions": (points(X > 3), "preds as real numbers, got bool"),
    "flags as bands": (
        calibrate(CQR(), (X > 3, X > 2), X),
        "preds as real numbers, got bool",
    ),
    "complex targets": (points(y=X + 1j), "y as real numbers, got complex"),
    "a dict of bands": (
        calibrate(CQR(), {"lower": X, "upper": X}, X),
        r"preds as a tuple \(lower, upper\), got {'lower': \(9,\)",
    ),
    "several predictions for one output": (
        points((X, X)),
        r"preds as one array, got \(\(9,\), \(9,\)\)",
    ),
    "crossed bands": (
        calibrate(CQR(), (X + 1, X - 1), X),
        "lower > upper in 9 of 9; swap the two",
    ),
    "crossed bands, two sides": (
        calibrate(AsymmetricCQR(), (X + 1, X - 1), X),
        "lower > upper in 9 of 9; swap the two",
    ),
    "bands of means": (
        calibrate(CQR(), X2, X2),
        r"preds as a pair \(lower, upper\) of arrays \(9, 2\) like y, got one array",
    ),
    "an array for each prediction": (
        points(list(X)),
        "a list of 9 arrays means 9 outputs: make rows by jnp.stack",
    ),
    "an array of one for each prediction": (
        points(list(X[:, None])),
        "y with 1 rows like preds, got 9; a list of 9 arrays",
    ),
    "a score that is no pytree": (
        calibrate(PlainScore(), X, X),
        r"decorate .* with jaxcp.pytree, .* jaxcp.static, or use scores.Custom",
    ),
    "inputs in place of predictions": (
        lambda: CP(X2, 0.1),
        r"preds with rows of shape \(\) as at calibration, got \(2,\)",
    ),
    "no predictions": (points(None), "preds as a value, got None"),
    "a class for a score": (
        calibrate(Absolute, X, X),
        "score as a value, got the class",
    ),
    "a function for a score": (
        calibrate(lambda pred, y: y, X, X),
        "score with an inverse, got function",
    ),
    "group out of range": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, Y, num_groups=2),
        r"groups in 0, ..., 1, got 2 at 2",
    ),
    "float groups": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, X, num_groups=9),
        "groups of an integer type, got float",
    ),
    "no test groups": (
        lambda: GROUPS(X, 0.1),
        "group of each test point, got groups=None",
    ),
    "another test group": (
        lambda: GROUPS(X, 0.1, groups=Y + 1),
        "groups in 0, ..., 2, got 3",
    ),
    "classes unlike groups": (
        lambda: jaxcp.calibrate_groups(LAC(), P, Y, Y * 0, num_groups=1)(P, 0.1),
        r"1 classes \(groups\), got 3",
    ),
    "groups as text": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, ["f"] * 9, num_groups=2),
        "num_groups as many as group_names, 1, got 2",
    ),
    "no groups": (
        lambda: jaxcp.calibrate_groups(ABSOLUTE, X, X, Y, num_groups=0),
        "num_groups as an int >= 1, got 0",
    ),
    "inclusive class-wise sets": (
        lambda: jaxcp.calibrate_groups(APS(inclusive=True), P, Y, Y, num_groups=3)(
            P, 0.1
        ),
        "class-wise sets need inclusive=False",
    ),
}

test_wrong_calls_say_what_was_expected = refuses(WRONG)
