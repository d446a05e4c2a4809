"""EnbPI and ACI against published implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxcp
from helpers import assert_intervals, cases, fits_first
from jaxcp import learners, online, scores
from jaxcp.sets import Interval


def along(method, state, preds, y, alpha, read):
    """Returns the last state, what `read` sees of each state, and the sets."""

    def step(state, row):
        seen = read(state)
        state, sets = method.step(state, *row, alpha)
        return state, (seen, sets)

    return jax.jit(lambda s, *rows: jax.lax.scan(step, s, rows))(state, preds, y)


def bags_of(rows, n):
    return np.array([np.bincount(bag, minlength=n) for bag in rows])


def full_batches(length, every):
    """PUNCC joins the rest of the series to its last batch instead of updating."""
    return length if every == 0 else length - length % every


def test_enbpi_of_puncc():
    """Fits, residuals, center and memory; the widths after its interpolation."""
    case = cases("puncc/enbpi")["c0"]
    ols, absolute = learners.Ridge(0.0, intercept=False), scores.Absolute()
    n = len(case["y"])
    bags = bags_of(case["boot_idx"], n)
    key = jax.random.key(0)
    cp = jaxcp.cross_conformal(key, ols, absolute, case["X"], case["y"], bags)
    assert_allclose(cp.fits.params.coef, case["coef"], rtol=1e-4, atol=1e-5)
    held = cp.calibration.left_out.held_out / cp.calibration.left_out.held_out.sum(
        axis=0, keepdims=True
    )
    assert_allclose(held.T, case["puncc_oob_weights"], rtol=1e-6)
    assert_allclose(cp.scores, case["puncc_residuals"], rtol=1e-4, atol=1e-5)
    center = cp.aggregate(case["X_test"])
    for i, every in enumerate(case["combo_s"]):
        alpha = float(case["combo_alpha"][i])
        lower, upper = case[f"combo{i}_puncc_lo"], case[f"combo{i}_puncc_hi"]
        assert_allclose(center, case[f"combo{i}_puncc_pred"], rtol=1e-4, atol=1e-5)
        window = online.SlidingWindow(absolute, every=int(every) or 1000)
        state = window.init(cp.scores, alpha)
        _, (used, _) = along(
            window, state, center, case["y_test"], alpha, lambda s: s.used.ordered
        )
        half = np.quantile(np.asarray(used), 1 - alpha, axis=1)
        t = full_batches(len(lower), every)
        assert_allclose((center - half)[:t], lower[:t], rtol=1e-4, atol=1e-5)
        assert_allclose((center + half)[:t], upper[:t], rtol=1e-4, atol=1e-5)


def test_adaptive_enbpi_of_puncc():
    case = cases("puncc/enbpi")["c0"]
    n, score = len(case["y"]), scores.Normalized()
    bags = bags_of(case["boot_idx"], n)

    def stored(part):  # (b, rows, 2) to a pair (b, rows)
        preds = case[f"adaptive_boot_preds_{part}"]
        return preds[..., 0], preds[..., 1]

    cp = jaxcp.cross_calibrate(score, stored("train"), case["y"], bags == 0)
    assert_allclose(cp.scores, case["adaptive_puncc_residuals"], rtol=1e-4)
    center = cp.aggregate(stored("test"))
    for i, every in enumerate(case["combo_s"]):
        alpha = float(case["combo_alpha"][i])
        expected = case[f"adaptive_combo{i}_puncc_pred"]
        assert_allclose(np.stack(center, axis=1), expected, rtol=1e-4, atol=1e-5)
        window = online.SlidingWindow(score, every=int(every) or 1000)
        state = window.init(cp.scores, alpha)
        _, (used, _) = along(
            window, state, center, case["y_test"], alpha, lambda s: s.used.ordered
        )
        half = np.quantile(np.asarray(used), 1 - alpha, axis=1) * center[1]
        lower = case[f"adaptive_combo{i}_puncc_lo"]
        t = full_batches(len(lower), every)
        assert_allclose((center[0] - half)[:t], lower[:t], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["enbpi", "enbpimed"])
def test_enbpi_of_mapie(name):
    case = cases("mapie/timeseries")[name]
    aggregation = {"enbpi": "mean", "enbpimed": "median"}[name]
    n, signed = len(case["y"]), scores.Signed()
    bags = bags_of(case["train_idx"], n)
    train, test = (fits_first(case[f"p_{part}"])[:-1] for part in ("train", "test"))
    cp = jaxcp.cross_calibrate(
        signed, train, case["y"], bags == 0, aggregation=aggregation
    )
    missing = np.isnan(case["scores0"])
    assert np.array_equal(missing, np.zeros(n, bool) if cp.mask is None else ~cp.mask)
    assert_allclose(cp.scores[~missing, 1], case["scores0"][~missing], atol=1e-5)
    center = cp.aggregate(test)
    assert_allclose(center, case["centre"], rtol=1e-5)
    for i, level in enumerate(case["levels"]):
        alpha = round(1 - level, 10)
        for every, iv in [(int(case["step"]), "iv_upd"), (1000, "iv0")]:
            window = online.SlidingWindow(signed, every=every)
            state = window.init(cp.scores, alpha, mask=cp.mask)
            state, sets = online.run(window, state, center, case["y_test"], alpha)
            assert_intervals(sets, *case[iv][:, :, i].T)
        state = online.SlidingWindow(signed).init(cp.scores, alpha, mask=cp.mask)
        state, _ = online.run(
            online.SlidingWindow(signed), state, center, case["y_test"], alpha
        )
        latest = np.roll(state.window.scores[:, 1], -int(state.window.oldest))
        assert_allclose(latest, case["scores_end"], atol=1e-5)


@pytest.mark.parametrize("rolling", [False, True])
def test_aci_of_mapie(rolling):
    """All levels, and the intervals where MAPIE does not refuse an infinite one."""
    case = cases("mapie/timeseries")["aci"]
    signed, end = scores.Signed(), "_roll" if rolling else ""
    method = online.ACI(signed, float(case["gamma"]), rolling=rolling)
    past = jax.vmap(signed)(jnp.asarray(case["pred_cal"]), jnp.asarray(case["y_cal"]))
    for i, level in enumerate(case["levels"]):
        alpha = round(1 - level, 10)
        state = method.init(past, alpha)
        rows = jnp.asarray(case["pred_test"]), jnp.asarray(case["y_test"])
        state, (levels, sets) = along(method, state, *rows, alpha, lambda s: s.alpha)
        levels = np.append(levels, state.alpha)
        assert_allclose(levels, case[f"alpha{end}"][:, i], atol=1e-5)
        finite = np.isfinite(sets.upper) & np.isfinite(sets.lower)
        assert np.mean(finite) > 0.9
        iv = case[f"iv{end}"][finite, :, i]
        kept = Interval(sets.lower[finite], sets.upper[finite])
        assert_intervals(kept, *iv.T)


@pytest.mark.parametrize("rolling", [False, True])
def test_fast_aci_of_mapie_until_it_clips(rolling):
    case = cases("mapie/timeseries")["acifast"]
    end = "_roll" if rolling else ""
    signed = scores.Signed()
    method = online.ACI(signed, float(case["gamma"]), rolling=rolling)
    past = jax.vmap(signed)(jnp.asarray(case["pred_cal"]), jnp.asarray(case["y_cal"]))
    theirs = case[f"alpha{end}"][:, 0]
    unclipped = int(np.argmax(theirs == 0))
    state = method.init(past, 0.1)
    rows = jnp.asarray(case["pred_test"]), jnp.asarray(case["y_test"])
    _, (levels, _) = along(method, state, *rows, 0.1, lambda s: s.alpha)
    assert_allclose(levels[:unclipped], theirs[:unclipped], atol=1e-5)
    # Ours goes below 0, where the set is everything, and comes back.
    assert levels[unclipped] < 0
