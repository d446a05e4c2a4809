"""Jackknife+, CV+ and their relatives against published implementations."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxcp
from helpers import assert_intervals, cases, fits_first, one_side_over
from jaxcp import scores


def weights_of_folds(fold):
    return (fold[None] != np.unique(fold)[:, None]).astype(float)


def of_fits(score, preds, y, weights, **options):
    """Returns cross calibration from predictions of b fits, and perhaps one on all."""
    preds = jax.tree.map(lambda v: v[: len(weights)], fits_first(preds))
    return jaxcp.cross_calibrate(score, preds, y, weights == 0, **options)


def ways(cp, preds):
    """Yields the three forms, as functions of alpha, from predictions (m, b + 1)."""
    preds = fits_first(preds)
    each = jax.tree.map(lambda v: v[:-1], preds)
    yield "plus", lambda alpha: cp(each, alpha)
    yield "minmax", lambda alpha: cp.minmax(each, alpha)
    full = jax.tree.map(lambda v: v[-1], preds)
    yield "base", lambda alpha: cp.naive(full, alpha)


@pytest.mark.parametrize("name", ["c0", "c1", "c2", "c3"])
def test_cv_plus_of_puncc(name):
    case = cases("puncc/cvplus")[name]
    n, folds = len(case["residuals"]), case["fold_preds"].shape[1]
    weights = weights_of_folds(case["fold"])
    cp = of_fits(scores.Absolute(), np.zeros((n, folds)), case["residuals"], weights)
    preds = fits_first(case["fold_preds"])
    for i, alpha in enumerate(case["alphas"]):
        assert_intervals(cp(preds, alpha), case["exact_lo"][i], case["exact_hi"][i])


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
    cp = of_fits(scores.Absolute(), np.zeros((n, n)), case["residuals"], weights)
    preds = fits_first(case["loo_preds"])
    for i, alpha in enumerate(case["alphas"]):
        assert_intervals(cp(preds, alpha), case["exact_lo"][i], case["exact_hi"][i])


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
    cp = of_fits(SCORES[score], case["p_train"], case["y"], weights)
    for way, sets in ways(cp, case["p_test"]):
        for i, level in enumerate(case["levels"]):
            alpha = round(1 - level, 10)
            iv = case[f"iv_{way}_{score}"][:, :, i]
            assert_intervals(sets(alpha), *iv.T)


@pytest.mark.parametrize("name", ["cv5", "jack", "ties"])
def test_centers_of_mapie(name):
    case = cases("mapie/cross_regression")[name]
    weights = weights_of_folds(case["fold"])
    cp = of_fits(scores.Absolute(), case["p_train"], case["y"], weights)
    preds = fits_first(case["p_test"])[:-1]
    assert_allclose(cp.aggregate(preds), case["pt_mean"], rtol=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", "median"])
@pytest.mark.parametrize("name", ["jab", "jabfew"])
def test_jackknife_after_bootstrap_of_mapie(name, aggregation):
    case = cases("mapie/cross_regression")[name]
    n, bags = len(case["y"]), case["train_idx"]
    weights = np.array([np.bincount(bag, minlength=n) for bag in bags])
    for score in SCORES:
        if f"iv_plus_{score}_{aggregation}" not in case:
            continue
        missing = np.isnan(case[f"scores_abs_{aggregation}"])  # MAPIE drops these rows
        options = {"aggregation": aggregation, "mask": ~missing}
        cp = of_fits(SCORES[score], case["p_train"], case["y"], weights, **options)
        assert (missing.any() and np.array_equal(cp.mask, ~missing)) or cp.mask is None
        if score == "abs":
            assert_allclose(
                cp.scores[~missing],
                np.abs(case[f"scores_abs_{aggregation}"])[~missing],
                rtol=1e-5,
                atol=1e-5,
            )
        for way, sets in list(ways(cp, case["p_test"]))[:2]:
            for i, level in enumerate(case["levels"]):
                iv = case[f"iv_{way}_{score}_{aggregation}"][:, :, i]
                if np.isnan(iv).any():
                    continue
                assert_intervals(sets(round(1 - level, 10)), *iv.T)


@pytest.mark.parametrize("name", ["cv5", "cv3"])
def test_cross_cqr_of_mapie(name):
    case = cases("mapie/cross_cqr")[name]
    weights = weights_of_folds(case["fold"])
    train, test = (
        (case[f"lo_{part}"], case[f"up_{part}"]) for part in ("train", "test")
    )
    for kind, score in {"sym": scores.CQR(), "asym": scores.AsymmetricCQR()}.items():
        cp = of_fits(score, train, case["y"], weights)
        for way, sets in ways(cp, test):
            for i, level in enumerate(case["levels"]):
                iv = case[f"iv_{way}_{kind}"][:, :, i]
                assert_intervals(sets(round(1 - level, 10)), *iv.T)
