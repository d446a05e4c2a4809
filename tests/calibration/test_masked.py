"""Missing inputs: for each mask of the test rows, rows hidden to exactly this one."""

from math import comb
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import HistGradientBoostingRegressor

import jaxcp
from helpers import promised
from jaxcp import scores
from rows import refuses

GOLDEN = np.load(Path(__file__).parents[1] / "reference/rows/missing.npz")
SCORE, BETA = scores.Absolute(), np.array([2.0, 1.0], "f")
N, M, ALPHA = 40, 9, 0.3


def linear(beta, x):
    return x @ jnp.asarray(beta)


def rows(n, seed=0, share=0.3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype("f")
    y = (x @ BETA + 0.5 * rng.normal(size=n)).astype("f")
    return x, y, rng.random((n, 2)) < share


X, Y, MISSING = rows(N)
NEW, NEW_Y, NEW_MISSING = rows(M, 1)
MASKED = jaxcp.calibrate_masked(linear, BETA, SCORE, X, Y, MISSING, fill=0.0)


def case(number):
    names = "x", "y", "missing", "beta"
    x, y, missing, beta = (GOLDEN[f"{number}_{name}"] for name in names)
    if not jax.config.jax_enable_x64:
        x, y, beta = (v.astype("f") for v in (x, y, beta))
    return jaxcp.calibrate_masked(linear, beta, SCORE, x, y, missing, fill=0.0)


@pytest.mark.double
@pytest.mark.parametrize("number", range(2))
def test_thresholds_are_those_of_the_vectors(number):
    cp, masks = case(number), GOLDEN[f"{number}_test_missing"]
    each = cp.at_masks(masks)
    assert_array_equal(each.held.counts(), GOLDEN[f"{number}_num_rows"])
    counted = np.reshape(each.held.mask, (len(masks), -1))
    assert_array_equal(counted, GOLDEN[f"{number}_rows"])
    x = GOLDEN[f"{number}_test_x"].astype(cp.x.dtype)
    pred = GOLDEN[f"{number}_test_pred"]
    for alpha, q in zip(
        GOLDEN[f"{number}_alphas"], GOLDEN[f"{number}_threshold"], strict=True
    ):
        assert_allclose(each.quantile(alpha), q, rtol=2e-6)
        sets = cp(x, alpha, missing=masks)
        assert_allclose(sets.lower, pred - q, rtol=1e-5, atol=1e-5)
        assert_allclose(sets.upper, pred + q, rtol=1e-5, atol=1e-5)


def by_hand(x, y, mask):
    """Returns scores of the rows within a mask, hidden to it, one after another."""
    found = []
    for i in range(N):
        if not (MISSING[i] & ~mask).any():
            seen = np.where(mask, 0, x[i])
            found.append(abs(y[i] - seen @ BETA))
    return np.sort(found)


def test_sets_and_p_values_are_those_of_the_definition():
    sets = MASKED(NEW, ALPHA, missing=NEW_MISSING)
    p = MASKED.p_values(NEW, NEW_Y, missing=NEW_MISSING)
    for j, mask in enumerate(NEW_MISSING):
        own, pred = by_hand(X, Y, mask), np.where(mask, 0, NEW[j]) @ BETA
        k = len(own) + 1 - int(np.floor(ALPHA * (len(own) + 1) + 1e-9))
        q = own[k - 1] if k <= len(own) else np.inf
        assert_allclose(sets.upper[j], pred + q, rtol=1e-5, atol=1e-6)
        share = (1 + np.sum(own >= abs(NEW_Y[j] - pred))) / (len(own) + 1)
        assert_allclose(p[j], share, rtol=1e-6)
    assert_array_equal(sets.contains(NEW_Y), p > ALPHA)


def test_no_mask_is_split_to_the_last_bit():
    split = jaxcp.split_conformal(linear, BETA, SCORE, X, Y)
    cp = jaxcp.calibrate_masked(linear, BETA, SCORE, X, Y)
    model = HistGradientBoostingRegressor(max_iter=5).fit(X[:20], Y[:20])
    of = lambda _, x: model.predict(x)  # noqa: E731
    hosted = jaxcp.calibrate_masked(of, None, SCORE, X.astype(float), Y)
    split_of = jaxcp.split_conformal(of, None, SCORE, X.astype(float), Y)
    for found, expected in ((cp, split), (hosted, split_of)):
        for delta in (None, 0.1):
            a = found(NEW, ALPHA, delta=delta)
            b = expected(NEW, ALPHA, delta=delta)
            assert_array_equal(a.lower, b.lower)
            assert_array_equal(a.upper, b.upper)
        assert_array_equal(found.p_values(NEW, NEW_Y), expected.p_values(NEW, NEW_Y))
    u = np.linspace(0.1, 0.9, M).astype("f")
    assert_allclose(cp(NEW, ALPHA, u=u).upper, split(NEW, ALPHA, u=u).upper, rtol=1e-6)


def test_all_hidden_uses_all_rows_and_too_few_rows_are_infinite():
    masks = np.array([[True, True], [False, False]])
    each = MASKED.at_masks(masks)
    none = int(np.sum(~MISSING.any(axis=1)))
    assert each.held.counts().tolist() == [N, none]
    q = np.sort(abs(Y))[N - int(np.floor(0.2 * (N + 1)))]
    assert_allclose(each.quantile(0.2)[0], q, rtol=1e-6)
    few = jaxcp.calibrate_masked(linear, BETA, SCORE, X[:3], Y[:3], fill=0.0)
    assert np.isinf(few(NEW, 0.2, missing=NEW_MISSING).upper).all()
    shut = jaxcp.calibrate_masked(  # no row is within the mask that hides nothing
        linear, BETA, SCORE, X, Y, np.ones((N, 2), bool), fill=0.0
    )
    none_hidden = np.zeros(NEW.shape, bool)
    assert np.isinf(shut(NEW, 0.9, missing=none_hidden).upper).all()
    assert shut(NEW[:0], 0.2, missing=none_hidden[:0]).upper.shape == (0,)


def test_hidden_is_nan_or_flagged_and_filled():
    x, new = (np.where(m, np.nan, v) for v, m in ((X, MISSING), (NEW, NEW_MISSING)))
    expected = MASKED(NEW, ALPHA, missing=NEW_MISSING).upper
    of_nan = jaxcp.calibrate_masked(linear, BETA, SCORE, x, Y, fill=[0.0, 0.0])
    assert_array_equal(of_nan(new, ALPHA).upper, expected)
    own = lambda beta, x: linear(beta, jnp.nan_to_num(x))  # noqa: E731
    imputes = jaxcp.calibrate_masked(own, BETA, SCORE, jnp.asarray(x), Y)
    assert_array_equal(imputes(new, ALPHA).upper, expected)
    half = np.where([True, False], np.nan, 1.0) * np.where(MISSING, np.nan, X)
    half = np.where([True, False], half, X).astype("f")  # one column either way
    both = jaxcp.calibrate_masked(linear, BETA, SCORE, half, Y, MISSING, fill=0.0)
    hidden = MISSING | [True, False]
    known = jaxcp.calibrate_masked(linear, BETA, SCORE, X, Y, hidden, fill=0.0)
    found = [cp(new, ALPHA, missing=np.isnan(new)).upper for cp in (both, known)]
    assert_array_equal(*found)
    table = pd.DataFrame(x.astype(object)).where(~MISSING, pd.NA)
    of_table = jaxcp.calibrate_masked(linear, BETA, SCORE, table, Y, fill=0.0)
    assert_allclose(of_table(new, ALPHA).upper, expected, atol=1e-5)
    means = jaxcp.calibrate_masked(linear, BETA, SCORE, x, Y, fill=[5.0, -1.0])
    q = means.at_masks([[True, True]]).quantile(ALPHA)
    pred = means.predict(BETA, jnp.array([[5.0, -1.0]]))
    sets = means(np.full((1, 2), np.nan, "f"), ALPHA)
    assert_allclose(sets.upper, pred + q, rtol=1e-6)


def test_the_model_sees_masks_of_the_batch_alone_hidden_exactly():
    seen = []

    def watching(_, x):
        seen.append(np.array(x))
        return np.nan_to_num(x) @ BETA

    x, new = (np.where(m, np.nan, v) for v, m in ((X, MISSING), (NEW, NEW_MISSING)))
    cp = jaxcp.calibrate_masked(watching, None, SCORE, x, Y)
    seen.clear()
    sets = cp(new, ALPHA)
    assert_allclose(sets.upper, MASKED(NEW, ALPHA, missing=NEW_MISSING).upper, 1e-5)
    masks = np.unique(NEW_MISSING, axis=0)
    assert [len(v) for v in seen] == [M, len(masks) * N]
    for block, mask in zip(seen[1].reshape(-1, N, 2), masks, strict=True):
        assert_array_equal(np.isnan(block), MISSING | mask)


def test_blocks_of_masks_change_nothing(monkeypatch):
    expected = MASKED(NEW, ALPHA, missing=NEW_MISSING).upper
    monkeypatch.setattr("jaxcp.calibration.masked._MOST", 2 * X.size)
    found = MASKED(NEW, ALPHA, missing=NEW_MISSING).upper
    assert_allclose(found, expected, rtol=1e-6)


def test_the_model_has_finite_slopes():
    def total(beta):
        cp = jaxcp.calibrate_masked(linear, beta, SCORE, X, Y, MISSING, fill=0.0)
        found = cp(NEW, ALPHA, missing=NEW_MISSING).upper
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0))

    assert np.isfinite(jax.jit(jax.grad(total))(BETA)).all()


def test_labels_have_names_and_components_boxes():
    p = lambda _, x: jax.nn.softmax(jnp.stack([x[:, 0], x[:, 1]], 1))  # noqa: E731
    labels = np.where(Y > 0, "yes", "no")
    given = {"fill": 0.0, "classes": ["no", "yes"]}
    cp = jaxcp.calibrate_masked(p, None, scores.LAC(), X, labels, MISSING, **given)
    sets = cp(NEW, ALPHA, missing=NEW_MISSING)
    assert {v for names in sets.labels() for v in names} <= {"no", "yes"}
    each = cp.p_values(NEW, missing=NEW_MISSING)
    assert_array_equal(sets.mask, each > ALPHA)
    own = cp.p_values(NEW, np.full(M, "yes"), missing=NEW_MISSING)
    assert_array_equal(own, each[:, 1])
    both = lambda _, x: jnp.stack([x[:, 0], x[:, 1]], 1)  # noqa: E731
    given = {"fill": 0.0}
    boxes = jaxcp.calibrate_masked(both, None, SCORE, X, X + 1, MISSING, **given)
    found = boxes(NEW, 0.5, missing=np.zeros((M, 2), bool))
    assert_allclose(found.upper, NEW + 1, rtol=1e-5)


WRONG = {
    "one column": (lambda: again(x=X[:, 0]), r"x of shape \(n, d\), got \(40,\)"),
    "text": (lambda: again(x=X.astype(str)), "expected x as numbers, got <U"),
    "other flags": (
        lambda: again(missing=MISSING[:, :1]),
        r"missing of shape \(40, 2\), got \(40, 1\)",
    ),
    "no flags": (
        lambda: again(missing=np.full((N, 2), 0.5)),
        "expected missing as flags or 0 and 1, got 0.5",
    ),
    "other fill": (lambda: again(fill=[0, 0, 0]), r"fill of shape \(2,\), got \(3,\)"),
    "no imputer": (lambda: again(fill=None), "expected preds without NaN, got nan at"),
    "a model": (lambda: again(predict=3), "predict.params, x. as a function, got int"),
    "other inputs": (
        lambda: MASKED(NEW[:, :1], 0.1, missing=NEW_MISSING),
        r"expected x of shape \(n, 2\), got \(9, 1\)",
    ),
    "masks": (
        lambda: MASKED.at_masks([[True]]),
        r"expected masks of shape \(1, 2\), got \(1, 1\)",
    ),
    "no masks": (
        lambda: MASKED.at_masks(np.zeros((0, 2), bool)),
        "expected num_groups as an int >= 1, got 0",
    ),
    "levels": (
        lambda: MASKED(NEW, np.array([0.1, 0.2]), missing=NEW_MISSING),
        r"expected alpha of shape \(\), got \(2,\)",
    ),
}


def again(**changed):
    names = "predict", "params", "score", "x", "y", "missing"
    given = dict(zip(names, (linear, BETA, SCORE, X, Y, MISSING), strict=True))
    return jaxcp.calibrate_masked(**given | {"fill": 0.0} | changed)


test_wrong_calls_say_what_is_wrong = refuses(WRONG)


HIDDEN = 0.3, 0.2  # how often each input is
FORCED = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], bool)


def exact_coverage(n, mask, alpha):
    """Returns E k / (n_m + 1), with n_m of n rows within the mask."""
    p = np.prod([1 if m else 1 - h for m, h in zip(mask, HIDDEN, strict=True)])
    total = 0
    for size in range(n + 1):
        floor = int(np.floor(alpha * (size + 1) + 1e-9))
        share = (size + 1 - floor) / (size + 1)
        total += comb(n, size) * p**size * (1 - p) ** (n - size) * share
    return total


@jax.jit
@jax.vmap
def covered(key):
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (64, 2))
    y = x @ BETA + 0.5 * jax.random.normal(keys[1], (64,))
    missing = jax.random.uniform(keys[2], (60, 2)) < jnp.array(HIDDEN)[None]
    new, data = x[60:], (linear, BETA, SCORE, x[:60], y[:60], missing)
    sets = jaxcp.calibrate_masked(*data, fill=0.0)(new, 0.2, missing=FORCED)
    filled = jnp.where(missing, 0, x[:60]), jnp.where(FORCED, 0, new)
    naive = jaxcp.split_conformal(*data[:3], filled[0], y[:60])(filled[1], 0.2)
    return sets.contains(y[60:]), naive.contains(y[60:])


def test_each_mask_is_covered_as_the_formula_says():
    n = 8000
    found, naive = (np.mean(v, 0) for v in covered(jax.random.split(KEY, n)))
    truth = np.array([exact_coverage(60, mask, 0.2) for mask in FORCED])
    assert np.all(abs(found - truth) < 4 * np.sqrt(truth * (1 - truth) / n))
    data = linear, BETA, SCORE, np.zeros((3, 2)), np.zeros(3)
    assert np.all(truth >= promised(jaxcp.calibrate_masked(*data, fill=0.0), 0.2))
    assert naive[0] > 0.95
    assert naive[1] < 0.6  # imputation alone
    assert naive[3] < 0.6


def test_frames_keep_their_columns_and_flags_are_not_forgotten():
    x = pd.DataFrame({"a": np.arange(9.0), "b": 1.0}).mask(np.eye(9, 2) > 0)
    seen = []

    def predict(_, x):
        seen.append([*x.columns])
        return x.sum(axis=1)

    data = predict, None, SCORE, x, np.arange(9.0)
    cp = jaxcp.calibrate_masked(*data, fill=x.mean())
    expected = jaxcp.calibrate_masked(linear, np.ones(2), *data[2:], fill=x.mean())
    assert_allclose(cp(x, 0.4).upper, expected(x, 0.4).upper, rtol=1e-6)
    assert all(columns == ["a", "b"] for columns in seen)
    other = x[["b", "a"]]
    for wrong in (
        lambda: cp(other, 0.4),
        lambda: cp(x, 0.4, missing=other.isna()),
        lambda: jaxcp.calibrate_masked(*data, fill=other.mean()),
    ):
        with pytest.raises(ValueError, match=r"of the columns \('a', 'b'\), in order"):
            wrong()
    with pytest.raises(ValueError, match="expected missing, as at calibration"):
        jaxcp.calibrate_masked(*data, x.isna(), fill=0.0)(x, 0.4)


KEY = jax.random.key(5)
