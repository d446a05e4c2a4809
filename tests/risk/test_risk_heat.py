"""Masks that hold a share of the true pixels, from heat of any range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import reference
from jaxcp import metrics, risk
from jaxcp.scores import MultiLabel

FNR, HEAT, INF = risk.false_negative_rate, MultiLabel(bounded=False), np.inf
KNOWN = reference("conditional/masks")
NUM_OLD = int(KNOWN["num_cal"])
PREDS = {"heat": KNOWN["heat"], "margin": -KNOWN["distance"]}
CASES = [("heat", True), ("heat", False), ("margin", False)]


def control(preds, y, share, score=HEAT):
    """Sets that miss more than a share 1 - share with probability alpha."""
    tail = {1.0: 0, 0.9: 0.1, 0.75: 0.25, 0.5: 0.5}[share]
    return risk.calibrate_risk(FNR, score, preds, y, tail=tail)


def scores_by_hand(heat, y, share):
    """Minus the heat that all but floor((1 - share) size) true pixels reach."""
    found = []
    for h, true in zip(heat, np.asarray(y, bool), strict=True):
        falling = -np.sort(-h[true])
        may_miss = int((1 - share) * len(falling) + 1e-9)
        found.append(-falling[len(falling) - 1 - may_miss] if len(falling) else -INF)
    return np.array(found)


def thresholds(known, alphas):
    ranks = [int(jaxcp.conformal_rank(len(known), a)) for a in alphas]
    return [INF if k > len(known) else np.sort(known)[k - 1] for k in ranks]


@pytest.mark.parametrize("share", [1.0, 0.9])
@pytest.mark.parametrize(("kind", "bounded"), CASES)
def test_thresholds_and_pixels_are_those_of_the_definition(kind, bounded, share):
    preds, y = PREDS[kind], KNOWN["mask"]
    old, new = slice(NUM_OLD), slice(NUM_OLD, None)
    cp = control(preds[old], y[old], share, MultiLabel(bounded))
    name, alphas = f"cover_{kind}_{share:g}", KNOWN["alphas"].tolist()
    for alpha, q, pixels in zip(
        alphas, KNOWN[f"{name}_q"], KNOWN[f"{name}_pixels"], strict=True
    ):
        found, sets = cp.quantile(alpha), cp(preds[new], alpha)
        if bounded:  # 1 - p is rounded, minus heat is not
            assert_allclose(found - 1, q, atol=1e-7)
        else:
            assert found == np.float32(q)
            assert_array_equal(sets.mask, preds[new] >= -np.float32(q))
        assert_array_equal(sets.size(), pixels)


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_ties_infinities_empty_and_full_masks(share, double):
    """Against the definition, of heat in few steps on both sides of 0."""
    rng = np.random.default_rng(0)
    heat = rng.integers(-3, 4, (41, 4, 5)) / 3
    heat[rng.random(heat.shape) < 0.1] = -INF  # never in, but in everything
    heat[rng.random(heat.shape) < 0.1] = INF  # always in
    y = rng.random(heat.shape) < rng.random((41, 1, 1))
    y[:3], y[3:6] = False, True
    alphas = [0.01, 0.05, 0.1, 0.3, 0.6, 0.95]  # 0.01: more than there are rows for
    with jax.enable_x64(double):
        heat = heat.astype(float if double else "f")
        cp = control(heat, y, share)
        expected = thresholds(scores_by_hand(heat, y, share), alphas)
        assert expected[0] == INF and expected[-1] == -INF
        found = [cp.quantile(a) for a in alphas]
        assert found[0].dtype == heat.dtype
        assert_array_equal(found, expected)
        for alpha, q in zip(alphas, expected, strict=True):
            assert_array_equal(cp(heat, alpha).mask, -heat <= q)
        assert cp(heat, alphas[0]).mask.all()
        empty = control(heat, 0 * y, share)
        assert empty.quantile(0.1) == -INF
        assert_array_equal(empty(heat, 0.1).mask, heat == INF)
        whole = jaxcp.calibrate(HEAT, heat, y)
        assert_array_equal(whole.scores, scores_by_hand(heat, y, 1.0))
    none = control(heat[:0], y[:0], share)
    assert none.quantile(0.1) == INF


def test_integers_and_transforms():
    """Minus a whole distance; levels and rows are traced."""
    rng = np.random.default_rng(1)
    distance, y = rng.integers(0, 30, (2, 25, 6)), rng.random((2, 25, 6)) < 0.3
    expected = [
        thresholds(scores_by_hand(-d, v, 0.5), [0.2])[0]
        for d, v in zip(distance, y, strict=True)
    ]
    q_of = lambda d, v, a=0.2: control(-d, v, 0.5).quantile(a)  # noqa: E731
    each = [q_of(*row) for row in zip(distance, y, strict=True)]
    assert_array_equal(each, expected)
    assert_array_equal(jax.jit(jax.vmap(q_of))(distance, y), expected)
    assert jax.jit(q_of)(distance[0], y[0], jnp.float32(0.2)) == expected[0]
    score = lambda h: HEAT(h, jnp.array([True, False, True]))  # noqa: E731
    assert_array_equal(jax.grad(score)(jnp.array([0.5, -3, -2])), [0, 0, -1])


def test_a_share_of_the_pixels_with_the_probability_asked_for():
    """Exactly k / (n + 1) of rows, for heat without ties; the mean share is no law."""
    n, trials = 19, 20_000
    draw = lambda key: jax.random.normal(key, (n + 1, 6))  # noqa: E731
    true = jnp.ones((n, 6), bool)

    def holds(key):
        heat = draw(key)
        sets = control(heat[:n], true, 0.5)(heat[n:], 0.2)
        return metrics.mean_loss(FNR, sets, true[:1]).mean <= 0.5

    keys = jax.random.split(jax.random.key(0), trials)
    rate = np.mean(jax.jit(lambda k: jax.lax.map(holds, k, batch_size=1000))(keys))
    assert abs(rate - 0.8) < 4 * (0.8 * 0.2 / trials) ** 0.5


def test_heat_of_nan_is_refused_and_files_keep_the_kind(tmp_path):
    heat = np.array([[0.5, np.nan], [1.0, 2.0]], "f")
    with pytest.raises(ValueError, match="preds without NaN, got nan"):
        control(heat, heat > 0, 1.0)
    cp = control(np.nan_to_num(heat), heat > 0, 1.0)
    jaxcp.save(tmp_path / "cp", cp)
    again = jaxcp.load(tmp_path / "cp")
    assert again.score.bounded is False
    assert_array_equal(again(heat[1:], 0.1).mask, cp(heat[1:], 0.1).mask)
