"""Agreement with published implementations, corrected where they are wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
import references
from helpers import assert_intervals, cases, labels_of, one_side_over, reference
from jaxcp import scores
from jaxcp.scores import labels as label_scores
from jaxcp.sets import Interval


@pytest.mark.parametrize("case", cases("puncc/split_cp").values())
def test_split(case):
    cp = jaxcp.calibrate(scores.Absolute(), case["cal_pred"], case["cal_true"])
    for i, alpha in enumerate(case["alphas"]):
        q = cp.quantile(alpha)
        assert_allclose(q, case["exact_q"][i], rtol=1e-5)
        assert_intervals(
            cp(case["test_pred"], alpha), case["test_pred"] - q, case["test_pred"] + q
        )
        if case["exact_q"][i] == case["puncc_q"][i]:
            sets = cp(case["test_pred"], alpha)
            assert_intervals(sets, case["puncc_lo"][i], case["puncc_hi"][i])


@pytest.mark.parametrize("case", cases("puncc/lacp").values())
def test_locally_adaptive(case):
    mask = case["cal_pred"][:, 1] > 0  # the reference drops rows without a scale
    cp = jaxcp.calibrate(
        scores.Normalized(), case["cal_pred"], case["cal_true"], mask=mask
    )
    assert_allclose(cp.scores[mask], case["puncc_scores"], rtol=1e-4)
    for i, alpha in enumerate(case["alphas"]):
        sets = cp(case["test_pred"], alpha)
        assert_allclose(cp.quantile(alpha), case["puncc_q"][i], rtol=1e-5)
        assert_intervals(sets, case["puncc_lo"][i], case["puncc_hi"][i])


@pytest.mark.parametrize("case", cases("puncc/cqr").values())
def test_cqr(case):
    cp = jaxcp.calibrate(scores.CQR(), case["cal_pred"], case["cal_true"])
    assert_allclose(cp.scores, case["puncc_scores"], atol=1e-5)
    for i, alpha in enumerate(case["alphas"]):
        sets = cp(tuple(case["test_pred"].T), alpha)
        assert_intervals(sets, case["puncc_lo"][i], case["puncc_hi"][i])


@pytest.mark.parametrize("case", cases("puncc/weighted_split").values())
def test_weighted_split(case):
    cp = jaxcp.calibrate(
        scores.Absolute(), case["cal_pred"], case["cal_true"], weights=case["weights"]
    )
    for i, alpha in enumerate(case["alphas"]):
        assert_allclose(cp.quantile(alpha), case["exact_q"][i], rtol=1e-5)


def test_several_targets_family_wise():
    case = reference("puncc/multi_target")
    cp = jaxcp.calibrate(scores.Absolute(), case["cal_pred"], case["cal_true"])
    for i, alpha in enumerate(case["alphas"]):
        assert_allclose(cp.quantile(alpha), case["exact_bonf_q"][i], rtol=1e-5)
        sets = cp(case["test_pred"], alpha)
        assert_intervals(sets, case["puncc_bonf_lo"][i], case["puncc_bonf_hi"][i])
        shares = [float(alpha) * float(w) for w in case["wb_weights"]]
        sets = cp(case["test_pred"], shares)
        assert_intervals(sets, case["puncc_wbonf_lo"][i], case["puncc_wbonf_hi"][i])


def test_leverage_weights_as_a_custom_score():
    case = reference("puncc/lwcp")

    def scaled(pred, y):
        return jnp.abs(y - pred[0]) * pred[1]

    def inverse(pred, q):
        return Interval(pred[0] - q / pred[1], pred[0] + q / pred[1])

    def predict(coefficients, x):
        gram = case["X_fit"].T @ case["X_fit"]
        # The reference takes the root of the leverage, though its text does not.
        leverage = np.sqrt(np.einsum("ni,ij,nj->n", x, np.linalg.inv(gram), x))
        return x @ coefficients, (1 + leverage) ** -0.5

    score = scores.Custom(scaled, inverse)
    cp = jaxcp.split_conformal(
        predict, case["coef"], score, case["X_cal"], case["y_cal"]
    )
    assert_allclose(cp.calibration.scores, case["puncc_scores"], rtol=1e-4)
    for i, alpha in enumerate(case["alphas"]):
        sets = cp(case["X_test"], alpha)
        assert_intervals(sets, case["puncc_lo"][i], case["puncc_hi"][i])


@pytest.mark.parametrize("case", cases("puncc/lac").values())
def test_lac(case):
    cp = jaxcp.calibrate(scores.LAC(), case["cal_proba"], case["cal_label"])
    for i, alpha in enumerate(case["alphas"]):
        assert_allclose(cp.quantile(alpha), case["puncc_q"][i], rtol=1e-5)
        sets = cp(case["test_proba"], alpha)
        assert_array_equal(sets.mask, case["puncc_sets"][i])


@pytest.mark.parametrize("case", cases("puncc/classwise_lac").values())
def test_classwise_lac(case):
    y = case["cal_label"]
    k = case["cal_proba"].shape[1]
    cp = jaxcp.calibrate_groups(scores.LAC(), case["cal_proba"], y, y, num_groups=k)
    for i, alpha in enumerate(case["alphas"]):
        assert_allclose(cp.quantile(alpha), case["exact_q"][i], rtol=1e-5)
        expected = 1 - case["test_proba"] <= case["exact_q"][i]
        assert_array_equal(cp(case["test_proba"], alpha).mask, expected)


@pytest.mark.parametrize("file", ["puncc/aps", "puncc/raps"])
@pytest.mark.parametrize("randomized", [False, True])
def test_aps_and_raps(file, randomized):
    for case in cases(file).values():
        calibration, test = case["cal_proba"], case["test_proba"]
        if randomized:
            calibration, test = (calibration, case["u_cal"]), (test, case["u_test"])
        prefix = "rand" if randomized else "det"
        for g, (penalty, k_reg) in enumerate(
            zip(case["lambda"], case["kreg"], strict=True)
        ):
            score = scores.RAPS(float(penalty), int(k_reg), randomized)
            cp = jaxcp.calibrate(score, calibration, case["cal_label"])
            assert_allclose(cp.scores, case[f"{prefix}_scores"][g], atol=1e-6)
            for i, alpha in enumerate(case["alphas"]):
                expected = case[f"{prefix}_exact_level_sets"][g, i]
                assert_array_equal(cp(test, alpha).mask, expected)
                if not randomized:
                    inclusive = scores.RAPS(float(penalty), int(k_reg), inclusive=True)
                    sets = jaxcp.Calibration(inclusive, cp.scores)(test, alpha)
                    assert_array_equal(sets.mask, case["det_exact_incl_sets"][g, i])


@pytest.mark.double
@pytest.mark.parametrize(
    ("name", "score", "preds"),
    [
        ("saps", lambda case: scores.SAPS(case["saps_weight"]), ["probabilities"]),
        (
            "saps_rand",
            lambda case: scores.SAPS(case["saps_weight"], randomized=True),
            ["probabilities", "u"],
        ),
        ("margin", lambda case: scores.Margin(), ["probabilities"]),
        ("log_margin", lambda case: scores.LogMargin(), ["logits"]),
        ("entmax_1.5", lambda case: scores.Entmax(1.5), ["logits"]),
        ("entmax_2.0", lambda case: scores.Entmax(2.0), ["logits"]),
    ],
)
def test_ranks_margins_and_entmax(name, score, preds):
    case = reference("conditional_labels")
    score, n = score(case), int(case["num_cal"])
    rtol = 1e-9 if jax.config.jax_enable_x64 else 1e-4
    preds = tuple(jnp.asarray(case[v].astype(float)) for v in preds)
    preds = preds if len(preds) > 1 else preds[0]
    calibration, test = (
        jax.tree.map(f, preds) for f in (lambda v: v[:n], lambda v: v[n:])
    )
    assert_allclose(labels_of(score, preds), case[f"{name}_labels"], rtol, rtol)
    cp = jaxcp.calibrate(score, calibration, case["y"][:n])
    for i, alpha in enumerate(case["alphas"].tolist()):
        assert_allclose(cp.quantile(alpha), case[f"{name}_q"][i], rtol)
        assert_array_equal(cp(test, alpha).mask, case[f"{name}_sets"][i])


@pytest.mark.parametrize("gamma", [1.2, 1.5, 2.0, 3.0])
def test_entmax_sets_are_its_support(gamma):
    """Of p = (z / temperature - tau)_+^d, where tau makes it sum to 1."""
    z, q = np.random.default_rng(0).normal(size=(2, 40, 9)), 0.8
    z = 3 * z[0]
    low = (high := np.max(z, axis=1, keepdims=True) / q) - 1.0  # p_max <= 1
    for _ in range(60):
        tau = (low + high) / 2
        heavy = np.sum(np.maximum(z / q - tau, 0) ** (1 / (gamma - 1)), 1) > 1
        low, high = (
            np.where(heavy[:, None], tau, low),
            np.where(heavy[:, None], high, tau),
        )
    sets = jax.vmap(scores.Entmax(gamma).invert, (0, None))(jnp.asarray(z), q)
    assert_array_equal(sets.mask, z / q > tau)


def test_sets_do_not_depend_on_the_number_of_test_rows():
    case = reference("puncc/aps_small_batch")
    score = scores.APS(inclusive=True)
    cp = jaxcp.calibrate(score, case["cal_proba"], case["cal_label"])
    sets = cp(case["test_proba"], float(case["alpha"]))
    assert_array_equal(sets.mask, case["exact_incl_sets"])


MAPIE_REGRESSION = {
    "abs": (scores.Absolute(), "pred"),
    "abs_asym": (scores.Signed(), "pred"),
    "gamma_sym": (scores.Gamma(), "pred"),
    "gamma": (one_side_over(lambda pred: pred[0]), "pair"),
    "resid": (scores.Normalized(), "pair"),
    "resid_asym": (one_side_over(lambda pred: pred[1]), "pair"),
    "std": (scores.Normalized(), "pair"),
    "std_pow2": (scores.Normalized(), "squared"),
    "std_asym": (one_side_over(lambda pred: pred[1]), "pair"),
}


@pytest.mark.parametrize("name", MAPIE_REGRESSION)
@pytest.mark.parametrize("case", cases("mapie/split_regression").values())
def test_mapie_regression(case, name):
    score, kind = MAPIE_REGRESSION[name]

    def preds(part):
        mu, spread = case[f"pred_{part}"], case[f"spread_{part}"]
        spread = spread**2 if kind == "squared" else spread
        return mu if kind == "pred" else (mu, spread)

    cp = jaxcp.calibrate(score, preds("cal"), case["y_cal"])
    published = case.get(f"fix_iv_{name}", case[f"iv_{name}_inf"])
    for i, level in enumerate(case["levels"]):
        sets = cp(preds("test"), round(1 - level, 12))
        assert_intervals(sets, published[:, 0, i], published[:, 1, i])


@pytest.mark.parametrize("case", cases("mapie/cqr").values())
def test_mapie_cqr(case):
    for i, level in enumerate(case["levels"]):
        alpha = round(1 - level, 12)
        for score, name in [(scores.CQR(), "sym"), (scores.AsymmetricCQR(), "asym")]:
            cp = jaxcp.calibrate(score, case["q_cal"][:, :2], case["y_cal"])
            sets = cp(case["q_test"][:, :2], alpha)
            expected = case[f"iv_{name}"][:, :, i]
            assert_intervals(sets, expected[:, 0], expected[:, 1])


@pytest.mark.parametrize(
    "case", [c for c in cases("mapie/sets").values() if "p_cal" in c and "q_aps" in c]
)
def test_mapie_sets(case):
    """Compared where no score lies within rounding of the threshold."""
    p_cal, y, p_test = case["p_cal"], case["y_cal"], case["p_test"]
    tied = np.any(np.diff(np.sort(p_cal, axis=1)) == 0)
    lac = jaxcp.calibrate(scores.LAC(), p_cal, y)
    topk = jaxcp.calibrate(scores.TopK(), p_cal, y)
    aps = jaxcp.calibrate(scores.APS(randomized=True), (p_cal, case["u_cal"]), y)
    assert_allclose(lac.scores, case["scores_lac"][:, 0], atol=1e-6)
    if not tied:  # with ties MAPIE ranks by an unstable sort
        assert_allclose(aps.scores, case["scores_aps"][:, 0], atol=1e-6)
        assert_allclose(topk.scores, 1 + case["scores_top_k"][:, 0])
    for i, level in enumerate(case["levels"]):
        alpha = round(1 - level, 12)
        q = case["q_lac"][i]
        assert_allclose(lac.quantile(alpha), q, atol=1e-6)
        away = np.abs(1 - p_test - q) > 1e-6
        assert_array_equal(lac(p_test, alpha).mask[away], case["set_lac"][..., i][away])
        if tied:
            continue
        assert_array_equal(topk(p_test, alpha).mask, case["set_top_k"][..., i])
        assert_allclose(aps.quantile(alpha), case["q_aps"][i], atol=1e-6)
        for include, score in [
            ("true", scores.APS(inclusive=True)),
            ("false", scores.APS()),
        ]:
            sets = jaxcp.Calibration(score, aps.scores)(p_test, alpha)
            expected = case[f"set_aps_{include}"][..., i]
            # MAPIE never returns an empty set; ours may be one.
            expected = expected & np.any(sets.mask, axis=1, keepdims=True)
            assert_array_equal(sets.mask, expected)


def test_label_scores_against_the_loop():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(6), 50)
    p[:20] = rng.multinomial(8, np.ones(6) / 6, 20) / 8  # ties and zeros
    u = rng.random(50)
    for penalty, k_reg, noise in [(0, 0, 0 * u), (0.1, 2, 0 * u), (0.1, 0, u)]:
        score = scores.RAPS(penalty, k_reg, randomized=True)
        ours = labels_of(score, (jnp.asarray(p), jnp.asarray(noise)))
        loop = [
            references.label_scores(row, penalty, k_reg, v)
            for row, v in zip(p, noise, strict=True)
        ]
        assert_allclose(ours, loop, atol=1e-6)
    inclusive = scores.RAPS(0.1, 2, inclusive=True)
    labels = np.array([references.label_scores(row, 0.1, 2) for row in p])
    for q in [-1.0, 0.15, 0.555, 0.95, 1.35, 9.0]:
        sets = jax.jit(jax.vmap(inclusive.invert, (0, None)))(jnp.asarray(p), q)
        expected = [
            references.inclusive_set(s, row, q)
            for s, row in zip(labels, p, strict=True)
        ]
        assert_array_equal(sets.mask, expected)


@pytest.mark.parametrize(
    "score",
    [
        scores.APS(randomized=True),
        scores.RAPS(0.125, 2, randomized=True),
        scores.SAPS(0.25, randomized=True),
        scores.TopK(),
    ],
)
def test_few_labels_are_ranked_in_pairs_as_many_are_by_passes(score, monkeypatch, key):
    """Sets, scores of all labels and ranks, with ties, at every threshold."""
    key_p, key_u = jax.random.split(key)
    p = jnp.round(8 * jax.random.dirichlet(key_p, jnp.ones(9), (20,))) / 8
    u = jax.random.uniform(key_u, (20,))
    preds = (p, u) if score.randomized else p

    def of_all(preds):
        labels = score.labels(preds)
        q = jnp.append(labels, jnp.array([-1, 0, jnp.inf, jnp.nan]))
        return labels, jax.vmap(lambda q: score.invert(preds, q).mask)(q)

    few = jax.vmap(of_all)(preds)
    monkeypatch.setattr(label_scores, "_FEW", 0)
    many = jax.vmap(of_all)(preds)
    jax.tree.map(assert_array_equal, few, many)
