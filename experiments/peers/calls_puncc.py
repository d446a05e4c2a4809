"""Calls of PUNCC beside ours. Each function returns ours, theirs, and what explains a
difference. The keys of `CALLS` are words of the first column on the page."""

import numpy as np

import jaxcp
from experiments.peers.calls_data import (
    ALPHA,
    KEY,
    classifier,
    ends,
    labels,
    line,
    numbers,
    quantile_models,
)
from jaxcp import detection, learners, outliers, scores


def split():
    """Returns intervals of a fitted model."""
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.regression import SplitCP

    rows = numbers()
    model, (x, y), (new, _) = line(rows), rows.part("cal"), rows.part("new")
    theirs = SplitCP(BasePredictor(model, is_trained=True), train=False)
    theirs.fit(X_calib=x, y_calib=y)
    found = theirs.predict(new, alpha=ALPHA)[1:]
    predict = lambda _, x: model.predict(x)  # noqa: E731
    cp = jaxcp.split_conformal(predict, None, scores.Absolute(), x, y)
    return ends(cp(new, ALPHA)), np.stack(found, -1)


def of_predictions():
    """Returns intervals of predictions."""
    from deel.puncc.api.prediction import IdPredictor
    from deel.puncc.regression import SplitCP

    rows = numbers()
    model, (x, y), (new, _) = line(rows), rows.part("cal"), rows.part("new")
    theirs = SplitCP(IdPredictor(), train=False)
    theirs.fit(X_calib=model.predict(x), y_calib=y)
    found = theirs.predict(model.predict(new), alpha=ALPHA)[1:]
    cp = jaxcp.calibrate(scores.Absolute(), model.predict(x), y)
    return ends(cp(model.predict(new), ALPHA)), np.stack(found, -1)


def normalized():
    """Returns intervals whose width follows a predicted scale."""
    from deel.puncc.api.prediction import MeanVarPredictor
    from deel.puncc.regression import LocallyAdaptiveCP

    rows = numbers()
    mean, (x, y), (new, _) = line(rows), rows.part("cal"), rows.part("new")

    class Scale:
        def predict(self, x):
            return 0.5 + abs(x[:, 1])

    both = MeanVarPredictor([mean, Scale()], is_trained=[True, True])
    theirs = LocallyAdaptiveCP(both, train=False)
    theirs.fit(X_calib=x, y_calib=y)
    found = theirs.predict(new, alpha=ALPHA)[1:]
    pred = lambda x: (mean.predict(x), Scale().predict(x))  # noqa: E731
    cp = jaxcp.calibrate(scores.Normalized(), pred(x), y)
    return ends(cp(pred(new), ALPHA)), np.stack(found, -1)


def quantiles():
    """Returns intervals of two quantile models."""
    from deel.puncc.api.prediction import DualPredictor
    from deel.puncc.regression import CQR

    rows = numbers()
    low, high, _ = quantile_models(rows)
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    theirs = CQR(DualPredictor([low, high], is_trained=[True, True]), train=False)
    theirs.fit(X_calib=x, y_calib=y)
    found = theirs.predict(new, alpha=ALPHA)[1:]
    both = lambda x: (low.predict(x), high.predict(x))  # noqa: E731
    cp = jaxcp.calibrate(scores.CQR(), both(x), y)
    return ends(cp(both(new), ALPHA)), np.stack(found, -1)


def cross():
    """Returns intervals of ten folds, which both shuffle by themselves."""
    from deel.puncc.api.prediction import BasePredictor
    from deel.puncc.regression import CVPlus
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold

    rows = numbers()
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    theirs = CVPlus(BasePredictor(LinearRegression()), K=10, random_state=0)
    theirs.fit(x, y)
    found = theirs.predict(new, alpha=ALPHA)[1:]
    folds = np.empty(len(y), int)
    for k, (_, held) in enumerate(KFold(10, shuffle=True, random_state=0).split(x)):
        folds[held] = k
    learner = learners.Estimator(LinearRegression())
    cp = jaxcp.cv_plus(KEY, learner, scores.Absolute(), x, y, folds=folds)
    return ends(cp(new, ALPHA)), np.stack(found, -1)


def label_sets(theirs, score, **options):
    """Returns label sets as masks, of the same probabilities."""
    from deel.puncc import classification
    from deel.puncc.api.prediction import IdPredictor

    rows = labels()
    model, (x, y), (new, _) = classifier(rows), rows.part("cal"), rows.part("new")
    p, p_new = model.predict_proba(x), model.predict_proba(new)
    cp = getattr(classification, theirs)(IdPredictor(), train=False, **options)
    cp.fit(X_calib=p, y_calib=y)
    found = np.zeros(p_new.shape, bool)
    for row, names in zip(found, cp.predict(p_new, alpha=ALPHA)[1], strict=True):
        row[np.asarray(names, int)] = True
    if theirs == "ClasswiseLAC":
        ours = jaxcp.calibrate_groups(score, p, y, y, num_groups=4)
    else:
        ours = jaxcp.calibrate(score, p, y)
    return ours(p_new, ALPHA).mask, found


def outlying():
    """Returns which new rows are outliers."""
    from deel.puncc.anomaly_detection import SplitCAD
    from deel.puncc.api.prediction import BasePredictor

    class Distance(BasePredictor):
        def predict(self, x):
            return np.linalg.norm(x, axis=1)

    (x, _), (new, _) = numbers().part("cal"), numbers().part("new")
    theirs = SplitCAD(Distance(None, is_trained=True), train=False)
    theirs.fit(z_calib=x)
    found = theirs.predict(2 * new, alpha=ALPHA)
    held, tested = (np.linalg.norm(v, axis=1) for v in (x, 2 * new))
    return outliers.is_outlier(held, tested, ALPHA), found


def boxes():
    """Returns the outer boxes of both; theirs move the ends by scores as they are."""
    from deel.puncc.api.prediction import IdPredictor
    from deel.puncc.object_detection import SplitBoxWise

    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 50, (240, 2))
    pred = np.concatenate([corner, corner + rng.uniform(10, 40, (240, 2))], 1)
    true = pred + rng.normal(0.5, 2.0, pred.shape)
    theirs = SplitBoxWise(IdPredictor(), method="additive", train=False)
    theirs.fit(X_calib=pred[:200], y_calib=true[:200])
    found = theirs.predict(pred[200:], alpha=ALPHA)[2]
    pairs = [v[:200, None] for v in (pred, true)]
    cp = detection.calibrate_boxes(scores.BoxOffset(), *pairs, min_iou=0.0)
    q = jaxcp.conformal_quantile((pred - true)[:200], ALPHA / 4)
    moved = pred[200:] + np.asarray(q) * np.array([-1, -1, 1, 1])
    return cp(pred[200:], ALPHA).to_numpy(), found, moved


CALLS = {
    "SplitCP(BasePredictor(model)": split,
    "SplitCP(IdPredictor()": of_predictions,
    "LocallyAdaptiveCP": normalized,
    "CQR(DualPredictor": quantiles,
    "CVPlus(": cross,
    "LAC(IdPredictor()": lambda: label_sets("LAC", scores.LAC()),
    "ClasswiseLAC": lambda: label_sets("ClasswiseLAC", scores.LAC()),
    "APS(rand=False)": lambda: label_sets(
        "APS", scores.APS(inclusive=True), rand=False
    ),
    "RAPS(lambd=": lambda: label_sets(
        "RAPS", scores.RAPS(0.1, 1, inclusive=True), rand=False, lambd=0.1, k_reg=1
    ),
    "SplitBoxWise": boxes,
    "SplitCAD": outlying,
}
