"""Jackknife+, CV+ and their relatives against published implementations."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxcp
from helpers import assert_intervals, cases, one_side_over
from jaxcp import scores
from stored import inputs, of_stored


def weights_of_folds(fold):
    return (fold[None] != np.unique(fold)[:, None]).astype(float)


def with_full(preds):
    return np.append(preds, np.zeros((len(preds), 1)), axis=1)


@pytest.mark.parametrize("name", ["c0", "c1", "c2", "c3"])
def test_cv_plus_of_puncc(name):
    case = cases("puncc/cvplus")[name]
    n, folds = len(case["residuals"]), case["fold_preds"].shape[1]
    zeros = np.zeros((n, folds + 1))
    weights = weights_of_folds(case["fold"])
    cp = of_stored(scores.Absolute(), zeros, case["residuals"], weights)
    x = inputs(with_full(case["fold_preds"]), folds)
    for i, alpha in enumerate(case["alphas"]):
        assert_intervals(cp(x, alpha), case["exact_lo"][i], case["exact_hi"][i])


def test_cv_plus_of_puncc_with_fits():
    case = cases("puncc/cvplus")["fit"]
    weights = weights_of_folds(case["fold"])
    ols = jaxcp.learners.Ridge(0.0, intercept=False)
    absolute, key = scores.Absolute(), jax.random.key(0)
    cp = jaxcp.cross_conformal(key, ols, absolute, case["X"], case["y"], weights)
    assert_allclose(cp.fits.params.coef, case["coef"], rtol=1e-4, atol=1e-5)
    for i, alpha in enumerate(case["alphas"]):
        sets = cp(case["X_test"], alpha)
        lower, upper = case["puncc_lo"][i], case["puncc_hi"][i]
        assert_intervals(sets, lower, upper)


@pytest.mark.parametrize("name", ["c0", "c1"])
def test_jackknife_plus_of_puncc(name):
    case = cases("puncc/jackknife_plus")[name]
    n = len(case["residuals"])
    weights = 1 - np.eye(n)
    cp = of_stored(scores.Absolute(), np.zeros((n, n + 1)), case["residuals"], weights)
    x = inputs(with_full(case["loo_preds"]), n)
    for i, alpha in enumerate(case["alphas"]):
        assert_intervals(cp(x, alpha), case["exact_lo"][i], case["exact_hi"][i])


SCORES = {
    "abs": scores.Absolute(),
    "abs_asym": scores.Signed(),
    "gamma": one_side_over(lambda pred: pred, lambda pred: pred),
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["cv5", "jack", "ties"])
def test_cross_regression_of_mapie(name, score):
    case = cases("mapie/cross_regression")[name]
    weights = weights_of_folds(case["fold"])
    cp = of_stored(SCORES[score], case["p_train"], case["y"], weights)
    x = inputs(case["p_test"], len(weights))
    ways = {"plus": cp, "minmax": cp.minmax, "base": cp.naive}
    for way, sets in ways.items():
        for i, level in enumerate(case["levels"]):
            alpha = round(1 - level, 10)
            iv = case[f"iv_{way}_{score}"][:, :, i]
            assert_intervals(sets(x, alpha), *iv.T)


@pytest.mark.parametrize("name", ["cv5", "jack", "ties"])
def test_centers_of_mapie(name):
    case = cases("mapie/cross_regression")[name]
    weights = weights_of_folds(case["fold"])
    cp = of_stored(scores.Absolute(), case["p_train"], case["y"], weights)
    x = inputs(case["p_test"], len(weights))
    assert_allclose(cp.aggregate(x), case["pt_mean"], rtol=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", "median"])
@pytest.mark.parametrize("name", ["jab", "jabfew"])
def test_jackknife_after_bootstrap_of_mapie(name, aggregation):
    case = cases("mapie/cross_regression")[name]
    n, bags = len(case["y"]), case["train_idx"]
    weights = np.array([np.bincount(bag, minlength=n) for bag in bags])
    x = inputs(case["p_test"], len(bags))
    for score in SCORES:
        if f"iv_plus_{score}_{aggregation}" not in case:
            continue
        cp = of_stored(
            SCORES[score], case["p_train"], case["y"], weights, aggregation=aggregation
        )
        missing = np.isnan(case[f"scores_abs_{aggregation}"])
        assert (missing.any() and np.array_equal(cp.mask, ~missing)) or cp.mask is None
        if score == "abs":
            assert_allclose(
                cp.scores[~missing],
                np.abs(case[f"scores_abs_{aggregation}"])[~missing],
                rtol=1e-5,
                atol=1e-5,
            )
        for way, sets in {"plus": cp, "minmax": cp.minmax}.items():
            for i, level in enumerate(case["levels"]):
                iv = case[f"iv_{way}_{score}_{aggregation}"][:, :, i]
                if np.isnan(iv).any():
                    continue
                assert_intervals(sets(x, round(1 - level, 10)), *iv.T)


@pytest.mark.parametrize("name", ["cv5", "cv3"])
def test_cross_cqr_of_mapie(name):
    case = cases("mapie/cross_cqr")[name]
    weights = weights_of_folds(case["fold"])
    train, test = (
        (case[f"lo_{part}"], case[f"up_{part}"]) for part in ("train", "test")
    )
    x = inputs(test, len(weights))
    for kind, score in {"sym": scores.CQR(), "asym": scores.AsymmetricCQR()}.items():
        cp = of_stored(score, train, case["y"], weights)
        ways = {"plus": cp, "minmax": cp.minmax, "base": cp.naive}
        for way, sets in ways.items():
            for i, level in enumerate(case["levels"]):
                iv = case[f"iv_{way}_{kind}"][:, :, i]
                assert_intervals(sets(x, round(1 - level, 10)), *iv.T)
