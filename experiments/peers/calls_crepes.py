"""Calls of crepes beside ours. Each function returns ours, theirs, and what explains a
difference. The keys of `CALLS` are words of the first column on the page."""

import numpy as np

import jaxcp
from experiments.peers.calls_data import ALPHA, classifier, ends, labels, line, numbers
from jaxcp import conditional, learners, metrics, predictive, pvalues, scores

LEVEL = 1 - ALPHA


def wrapped(**options):
    """Returns a calibrated model of crepes, and new inputs."""
    from crepes import WrapRegressor

    rows = numbers()
    theirs = WrapRegressor(line(rows))
    theirs.calibrate(*rows.part("cal"), **options)
    return theirs, rows.part("new")


def split_of(rows, **options):
    """Returns our calibration of the same model."""
    model = line(rows)
    predict = lambda _, x: model.predict(x)  # noqa: E731
    return jaxcp.split_conformal(
        predict, None, scores.Absolute(), *rows.part("cal"), **options
    )


def intervals():
    """Returns intervals, cut to a range."""
    theirs, (new, _) = wrapped()
    sets = split_of(numbers())(new, ALPHA)
    found = theirs.predict_int(new, confidence=LEVEL, y_min=-2, y_max=3)
    return ends(sets.clip(-2, 3)), found


def groups():
    """Returns intervals of the categories of a function."""
    side = lambda x: x[:, 1] > 0  # noqa: E731
    theirs, (new, _) = wrapped(mc=side)
    cp = split_of(numbers(), groups=side(numbers().part("cal")[0]))
    found = theirs.predict_int(new, confidence=LEVEL)
    return ends(cp(new, ALPHA, groups=side(new))), found


def difficulties():
    """Returns both estimates of difficulty, by the nearest rows of training."""
    from crepes.extras import DifficultyEstimator

    rows = numbers()
    x, y = rows.part("fit")
    residuals = y - line(rows).predict(x)
    theirs = DifficultyEstimator().fit(X=x, residuals=residuals, k=25)
    ours = learners.Difficulty("knn").fit(x, residuals=residuals)
    return ours, theirs


def difficulty():
    """Returns the difficulty of new rows."""
    ours, theirs = difficulties()
    new, _ = numbers().part("new")
    return ours(new), theirs.apply(new)


def normalized():
    """Returns intervals whose width follows the difficulty."""
    ours, de = difficulties()
    theirs, (new, _) = wrapped(de=de)
    model, (x, y) = line(numbers()), numbers().part("cal")
    cp = jaxcp.calibrate(scores.Normalized(), (model.predict(x), ours(x)), y)
    sets = cp((model.predict(new), ours(new)), ALPHA)
    return ends(sets), theirs.predict_int(new, confidence=LEVEL)


def binned():
    """Returns bins of difficulties, for new rows by the same limits."""
    from crepes.extras import binning

    sigma = np.random.default_rng(0).gamma(2.0, size=(2, 100))
    theirs, limits = binning(sigma[0], bins=5, seed=0)
    ours, edges = conditional.bins(sigma[0], 5)
    return [ours, conditional.bins(sigma[1], edges)[0]], [
        theirs,
        binning(sigma[1], bins=limits),
    ]


def of_labels(**options):
    """Returns calibrated classifiers of crepes, and our probabilities."""
    from crepes import WrapClassifier

    rows = labels()
    model, (x, y) = classifier(rows), rows.part("cal")
    theirs = WrapClassifier(model)
    theirs.calibrate(x, y, **options)
    p, p_new = model.predict_proba(x), model.predict_proba(rows.part("new")[0])
    return theirs, (p, y, p_new), rows.part("new")


def label_sets():
    """Returns label sets as masks."""
    theirs, (p, y, p_new), (new, _) = of_labels()
    found = theirs.predict_set(new, labels=False, confidence=LEVEL, smoothing=False)
    return jaxcp.calibrate(scores.LAC(), p, y)(p_new, ALPHA).mask, found


def by_class():
    """Returns label sets with a threshold for each class."""
    theirs, (p, y, p_new), (new, _) = of_labels(class_cond=True)
    cp = jaxcp.calibrate_groups(scores.LAC(), p, y, y, num_groups=4)
    found = theirs.predict_set(new, labels=False, confidence=LEVEL, smoothing=False)
    return cp(p_new, ALPHA).mask, found


def p_values_of_classes():
    """Returns the p-values of all classes."""
    theirs, (p, y, p_new), (new, _) = of_labels()
    cp = jaxcp.calibrate(scores.LAC(), p, y)
    return cp.p_values(p_new), theirs.predict_p(new, smoothing=False)


def p_values():
    """Returns the p-values of the targets of new rows."""
    theirs, (new, y) = wrapped()
    cp, model = split_of(numbers()), line(numbers())
    found = theirs.predict_p(new, y, smoothing=False)
    held = numbers().part("cal")
    cp = jaxcp.calibrate(scores.Absolute(), model.predict(held[0]), held[1])
    return cp.p_values(model.predict(new), y), found


def jumper(experts: list):
    """Returns the capital of the simple jumper on the same p-values."""
    from crepes.martingales import EpsilonBettingFunction, SimpleJumper

    p = np.random.default_rng(2).beta(0.8, 1.0, 300)
    theirs = SimpleJumper(bf=EpsilonBettingFunction(E=experts)).apply(p)
    _, log_capital = pvalues.watch(pvalues.SimpleJumper(), p)
    return np.exp(log_capital), theirs


def out_of_bag():
    """Returns intervals of a forest from the rows that its trees left out."""
    from crepes import WrapRegressor
    from sklearn.ensemble import RandomForestRegressor

    rows = numbers()
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    forest = RandomForestRegressor(100, oob_score=True, random_state=0).fit(x, y)
    theirs = WrapRegressor(forest)
    theirs.calibrate(x, y, oob=True)
    held = np.stack(
        [~np.isin(np.arange(len(y)), taken) for taken in forest.estimators_samples_]
    )
    of_trees = lambda x: np.stack([t.predict(x) for t in forest.estimators_])  # noqa: E731
    cp = jaxcp.cross_calibrate(scores.Absolute(), of_trees(x), y, held)
    q = jaxcp.conformal_quantile(abs(y - forest.oob_prediction_), ALPHA)
    one = forest.predict(new)[:, None] + np.array([-1, 1]) * np.asarray(q)
    found = theirs.predict_int(new, confidence=LEVEL)
    return ends(cp(of_trees(new), ALPHA)), found, one


def systems(**options):
    """Returns both predictive systems, and new rows."""
    theirs, (new, y) = wrapped(cps=True, **options)
    rows, model = numbers(), line(numbers())
    predict = lambda _, x: model.predict(x)  # noqa: E731
    ours = predictive.calibrate_predictive(
        scores.Residual(), *rows.part("cal"), predict=predict
    )
    return ours, theirs, new, y


def distribution():
    """Returns p-values of targets, not smoothed: with u = 1."""
    ours, theirs, new, y = systems()
    return ours.cdf(new, y, u=np.ones(len(y))), theirs.predict_p(
        new, y, smoothing=False
    )


def percentiles():
    """Returns lower and upper percentiles."""
    ours, theirs, new, _ = systems()
    found = theirs.predict_percentiles(
        new, lower_percentiles=[4, 50], higher_percentiles=[95]
    )
    low = ours.quantile(new, np.array([0.04, 0.5]), side="lower")
    high = ours.quantile(new, 0.95, side="upper")
    return np.column_stack([low, high]), found


def ranked_score(scaled: bool):
    """Returns the mean CRPS of a system, of residuals or of scaled ones."""
    from crepes import ConformalPredictiveSystem

    rows, model = numbers(), line(numbers())
    (x, y), (new, y_new) = rows.part("cal"), rows.part("new")
    sigma, sigma_new = (0.5 + abs(v[:, 1]) for v in (x, new))
    units = {"sigmas": sigma} if scaled else {}
    theirs = ConformalPredictiveSystem().fit(y - model.predict(x), **units)
    units = {"sigmas": sigma_new} if scaled else {}
    found = theirs.evaluate(model.predict(new), y_new, metrics=["CRPS"], **units)
    score = scores.ScaledResidual() if scaled else scores.Residual()
    preds = (model.predict(x), sigma) if scaled else model.predict(x)
    preds_new = (model.predict(new), sigma_new) if scaled else model.predict(new)
    system = predictive.calibrate_predictive(score, preds, y)
    return system.crps(preds_new, y_new).mean(), found["CRPS"]


def evaluated(online: bool):
    """Returns error and mean width; version 0.9.1 of the wrapper evaluates online.

    It passes `seed`, `online` and `warm_start` as `smoothing`, `seed` and `online`.
    """
    theirs, (new, y) = wrapped()
    names = ["error", "eff_mean"]
    found = theirs.evaluate(new, y, confidence=LEVEL, metrics=names)
    preds = theirs.predict(new)
    alone = theirs.cr.evaluate(preds, y, confidence=LEVEL, metrics=names, online=online)
    sets = split_of(numbers())(new, ALPHA)
    ours = 1 - metrics.coverage(sets, y), metrics.mean_size(sets)
    found, alone = ([v[name] for name in names] for v in (found, alone))
    return (ours, found, alone) if online else (ours, alone)


CALLS = {
    "WrapRegressor(model).calibrate(X_cal, y_cal), then": intervals,
    "mc=mc": groups,
    "de=de": normalized,
    "DifficultyEstimator().fit": difficulty,
    "binning(": binned,
    "WrapClassifier(model).calibrate(X_cal, y_cal), then": label_sets,
    "class_cond=True": by_class,
    "WrapClassifier.predict_p": p_values_of_classes,
    "WrapRegressor.predict_p": p_values,
    "oob=True": out_of_bag,
    "martingales.SimpleJumper": lambda: jumper([-1, 0, 1]),
    "its default E=[-1": lambda: jumper([-1, -0.5, 0, 0.5, 1]),
    "cps=True": distribution,
    "lower_percentiles=": percentiles,
    'metrics=["CRPS"]': lambda: ranked_score(False),
    "the same, of a system with sigmas": lambda: ranked_score(True),
    "WrapRegressor.evaluate": lambda: evaluated(True),
    "ConformalRegressor.evaluate": lambda: evaluated(False),
}
