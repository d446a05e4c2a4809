"""Calls of MAPIE beside ours. Each function returns ours, theirs, and what explains a
difference. The keys of `CALLS` are words of the first column on the page."""

import jax
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
    quiet,
)
from jaxcp import learners, metrics, online, predictive, pvalues, risk, scores

LEVEL = 1 - ALPHA


def split(levels=LEVEL):
    """Returns intervals of both for a fitted model."""
    from mapie.regression import SplitConformalRegressor

    rows = numbers()
    model, (new, _) = line(rows), rows.part("new")
    theirs = SplitConformalRegressor(model, confidence_level=levels, prefit=True)
    theirs.conformalize(*rows.part("cal"))
    predict = lambda _, x: model.predict(x)  # noqa: E731
    cp = jaxcp.split_conformal(predict, None, scores.Absolute(), *rows.part("cal"))
    return cp, new, theirs.predict_interval(new)[1]


def one_level():
    """Returns the intervals of one level."""
    cp, new, theirs = split()
    return cp(new, ALPHA).to_numpy(), theirs[:, :, 0]


def levels():
    """Returns the intervals of three levels at once."""
    cp, new, theirs = split([0.8, 0.9, 0.95])
    alphas = np.array([0.2, 0.1, 0.05])
    return ends(jax.vmap(cp, (None, 0))(new, alphas)), np.moveaxis(theirs, -1, 0)


def quantiles(symmetric: bool):
    """Returns intervals of quantile models."""
    from mapie.regression import ConformalizedQuantileRegressor

    rows = numbers()
    models, (x, y), (new, _) = quantile_models(rows), rows.part("cal"), rows.part("new")
    theirs = ConformalizedQuantileRegressor(
        models, confidence_level=LEVEL, prefit=True
    ).conformalize(x, y)
    found = theirs.predict_interval(new, symmetric_correction=symmetric)[1]
    low, high, _ = models
    both = lambda x: (low.predict(x), high.predict(x))  # noqa: E731
    score = scores.CQR() if symmetric else scores.AsymmetricCQR()
    return ends(jaxcp.calibrate(score, both(x), y)(both(new), ALPHA)), found[:, :, 0]


def cross(method: str):
    """Returns intervals of ten folds."""
    from mapie.regression import CrossConformalRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold

    rows, cv = numbers(), KFold(10)
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    model = LinearRegression()
    theirs = CrossConformalRegressor(model, LEVEL, method=method, cv=cv)
    theirs.fit_conformalize(x, y)
    folds = np.empty(len(y), int)
    for k, (_, held) in enumerate(cv.split(x)):
        folds[held] = k
    learner = learners.Estimator(model)
    cp = jaxcp.cv_plus(KEY, learner, scores.Absolute(), x, y, folds=folds)
    ours = {"plus": cp, "minmax": cp.minmax, "base": cp.naive}[method]
    return ends(ours(new, ALPHA)), theirs.predict_interval(new)[1][:, :, 0]


def leave_one_out():
    """Returns intervals of the jackknife+."""
    from mapie.regression import CrossConformalRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import LeaveOneOut

    rows = numbers()
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    theirs = CrossConformalRegressor(LinearRegression(), LEVEL, cv=LeaveOneOut())
    theirs.fit_conformalize(x, y)
    learner = learners.Estimator(LinearRegression())
    cp = jaxcp.jackknife_plus(KEY, learner, scores.Absolute(), x, y)
    return ends(cp(new, ALPHA)), theirs.predict_interval(new)[1][:, :, 0]


def cross_quantiles():
    """Returns intervals of quantile models that are refitted in folds."""
    from mapie.regression import CrossConformalizedQuantileRegressor
    from sklearn.linear_model import QuantileRegressor
    from sklearn.model_selection import KFold

    rows, cv = numbers(), KFold(5)
    (x, y), (new, _) = rows.part("cal"), rows.part("new")
    model = QuantileRegressor(alpha=0.0)
    theirs = CrossConformalizedQuantileRegressor(model, LEVEL, cv=cv)
    with quiet():
        theirs.fit_conformalize(x, y)
    ours, held = [], np.ones((5, len(y)), bool)
    for k, (rest, _) in enumerate(cv.split(x)):
        held[k, rest] = False
        pair = [QuantileRegressor(quantile=v, alpha=0.0) for v in (0.05, 0.95)]
        ours.append([m.fit(x[rest], y[rest]).predict for m in pair])
    both = lambda x: [tuple(f(x) for f in fits) for fits in ours]  # noqa: E731
    cp = jaxcp.cross_calibrate(scores.CQR(), both(x), y, held)
    return ends(cp(both(new), ALPHA)), theirs.predict_interval(new)[1][:, :, 0]


def groups():
    """Returns intervals of two groups; MAPIE 1 calibrates each by itself."""
    from mapie.regression import SplitConformalRegressor

    rows = numbers()
    model, (x, y), (new, _) = line(rows), rows.part("cal"), rows.part("new")
    found = np.empty((len(new), 2))
    for side in (False, True):
        one = SplitConformalRegressor(model, confidence_level=LEVEL, prefit=True)
        one.conformalize(x[(x[:, 1] > 0) == side], y[(x[:, 1] > 0) == side])
        here = (new[:, 1] > 0) == side
        found[here] = one.predict_interval(new[here])[1][:, :, 0]
    predict = lambda _, x: model.predict(x)  # noqa: E731
    cp = jaxcp.split_conformal(
        predict, None, scores.Absolute(), x, y, groups=x[:, 1] > 0
    )
    return ends(cp(new, ALPHA, groups=new[:, 1] > 0)), found


def label_sets(kind: str):
    """Returns label sets as masks."""
    from mapie.classification import SplitConformalClassifier

    rows = labels()
    model, (x, y), (new, _) = classifier(rows), rows.part("cal"), rows.part("new")
    theirs = SplitConformalClassifier(
        model, confidence_level=LEVEL, conformity_score=kind, prefit=True
    ).conformalize(x, y)
    score = {"lac": scores.LAC(), "top_k": scores.TopK()}[kind]
    p, p_new = model.predict_proba(x), model.predict_proba(new)
    found = theirs.predict_set(new)[1][:, :, 0]
    return np.asarray(jaxcp.calibrate(score, p, y)(p_new, ALPHA).mask), found


def figures():
    """Returns what both say of the same intervals."""
    from mapie.metrics import regression as theirs

    cp, new, found = split()
    y, sets = numbers().part("new")[1], cp(new, ALPHA)
    ours = (
        metrics.coverage(sets, y),
        metrics.mean_size(sets),
        metrics.winkler_score(sets, y, ALPHA),
    )
    pairs = found[:, :, 0]
    return np.ravel(ours), np.ravel(
        [
            theirs.regression_coverage_score(y, found)[0],
            theirs.regression_mean_width_score(found)[0],
            theirs.regression_mwi_score(y, pairs[:, :, None], LEVEL),
        ]
    )


def conditional_sets():
    """Returns intervals that cover in the cells of a feature map."""
    from mapie.conditional_conformal_prediction import (
        ConditionalSplitConformalRegressor,
    )

    rows = numbers()
    model, (x, y), (new, _) = line(rows), rows.part("cal"), rows.part("new")
    new = new[:8]
    phi = lambda x: np.stack([x[:, 1] <= 0, x[:, 1] > 0], 1).astype(float)  # noqa: E731
    with quiet():
        theirs = ConditionalSplitConformalRegressor(phi, model, LEVEL)
        theirs.conformalize(x, y)
        found = theirs.predict_interval(new)[1][:, :, 0]
    cp = jaxcp.calibrate_conditional(scores.Absolute(), model.predict(x), y, phi(x))
    return ends(cp(model.predict(new), ALPHA, features=phi(new))), found


def jumper():
    """Returns the capital of the simple jumper on the same p-values."""
    from mapie.exchangeability_testing import OnlineMartingaleTest

    p = np.random.default_rng(2).beta(0.8, 1.0, 300)
    test = OnlineMartingaleTest(random_state=0)
    theirs = [test.update_simple_jumper_martingale(v) for v in p]
    _, log_capital = pvalues.watch(pvalues.SimpleJumper(), p)
    return np.exp(log_capital), theirs


def permutations():
    """Returns p-values of a drift of the mean, from a thousand permutations."""
    from mapie.exchangeability_testing.permutations import PValuePermutationTest
    from mapie.regression import SplitConformalRegressor

    rows = numbers()
    model, (x, y) = line(rows), rows.part("cal")
    y = y + 0.004 * np.arange(len(y))
    wrapped = SplitConformalRegressor(model, confidence_level=LEVEL, prefit=True)
    test = PValuePermutationTest(mapie_estimator=wrapped, random_state=0, warn=False)
    theirs = test.run(x, y).p_values[-1]

    def shift(s):
        left = np.arange(1, len(s))
        first = jax.numpy.cumsum(s)[:-1]
        gap = abs(first / left - (s.sum() - first) / (len(s) - left))
        return (gap * (left * (len(s) - left)) ** 0.5).max()

    residuals = abs(y - model.predict(x))
    return pvalues.permutation_test(KEY, residuals, shift), theirs


def probabilities():
    """Returns pairs of Venn-Abers probabilities."""
    from mapie._venn_abers import VennAbers

    rng = np.random.default_rng(3)
    s, new = rng.uniform(size=200).round(2), rng.uniform(size=30).round(2)
    y = (rng.uniform(size=200) < s**2).astype(int)
    theirs = VennAbers()
    theirs.fit(np.stack([1 - s, s], 1), y)
    pair = theirs.predict_proba(np.stack([1 - new, new], 1))[1]
    return np.stack(predictive.venn_abers(s, y, new), -1), np.asarray(pair)


def monitored():
    """Returns after how many rows each monitor says that the risk is above 0.1.

    MAPIE's half of `test_level` is for the limit, which is known here.
    """
    from mapie.exchangeability_testing import RiskMonitoring

    losses = (np.random.default_rng(4).random(600) < 0.2).astype(float)
    test = RiskMonitoring("accuracy", test_level=0.1, threshold=0.1, warn=False)
    test.update(np.ones(600), 1 - losses)
    above = test.online_risk_lower_bound_sequence_history > 0.1
    state, _ = online.RiskMonitor(0.1, 0.05).run(losses)
    return state.first_alarm, np.argmax(above) + 1 if above.any() else np.inf


def recall():
    """Returns thresholds of probabilities; theirs is the last below it of a grid."""
    from experiments.peers.risk_peers import mapie_crc

    rng = np.random.default_rng(5)
    p = rng.uniform(size=(300, 8))
    y = rng.uniform(size=p.shape) < p
    cp = risk.calibrate_risk(risk.false_negative_rate, scores.MultiLabel(), p, y)
    ours = 1 - float(cp.quantile(ALPHA))
    return ours, mapie_crc(p, y), np.floor(100 * ours) / 100


CALLS = {
    "SplitConformalRegressor(model": one_level,
    "several values of confidence_level": levels,
    "ConformalizedQuantileRegressor([low": lambda: quantiles(True),
    "symmetric_correction=False": lambda: quantiles(False),
    "CrossConformalRegressor(model": lambda: cross("plus"),
    'method="minmax"': lambda: cross("minmax"),
    'method="base"': lambda: cross("base"),
    "cv=LeaveOneOut()": leave_one_out,
    "CrossConformalizedQuantileRegressor": cross_quantiles,
    "one regressor for each group": groups,
    "SplitConformalClassifier(model": lambda: label_sets("lac"),
    'conformity_score="top_k"': lambda: label_sets("top_k"),
    "regression_coverage_score": figures,
    "ConditionalSplitConformalRegressor": conditional_sets,
    "OnlineMartingaleTest": jumper,
    "PValuePermutationTest": permutations,
    "MultiLabelClassificationController": recall,
    "VennAbersCalibrator": probabilities,
    "RiskMonitoring": monitored,
}
