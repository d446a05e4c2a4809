"""Scores that rise with the target: reference arrays, bounds, jumps, both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import inside, reference, scores_of, sets_of
from jaxcp import scores

LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95], "f")
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
CLOSE = CLOSE if jax.config.jax_enable_x64 else {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def data():
    return reference("distributional/quantiles")


@pytest.mark.double
def test_levels_among_predicted_quantiles(data):
    score = scores.PredictedQuantiles(data["levels"])
    for name in ("crossed", "sorted"):
        found = scores_of(score, jnp.asarray(data[name]), jnp.asarray(data["y"]))
        assert_allclose(found, data["cdf"], **CLOSE)
    n = int(data["num_calibration"])
    cp = jaxcp.calibrate(score, data["crossed"][:n], data["y"][:n])
    bound = cp(data["crossed"][n:], 0.1)
    assert_allclose(bound.upper, data["calibrated_upper_09"], **CLOSE)
    assert np.all(np.asarray(bound.lower) == -np.inf)


@pytest.mark.double
def test_dcp_is_the_reference(data):
    score, n = scores.DCP(data["levels"]), int(data["num_calibration"])
    cp = jaxcp.calibrate(score, data["crossed"][:n], data["y"][:n])
    assert_allclose(cp.scores, data["score"][:n], **CLOSE)
    for i, alpha in enumerate(data["alphas"]):
        assert_allclose(cp.quantile(alpha), data["threshold"][i], **CLOSE)
        sets = cp(data["crossed"][n:], alpha)
        assert_allclose(sets.to_numpy(), data["interval"][:, i], **CLOSE)


FLAT = np.array([1, 2, 2, 2, 3, 3, 4], "f")  # jumps from 0.1 to 0.5 and 0.75 to 0.9


@pytest.mark.parametrize(
    "score, at_two",
    [
        (scores.PredictedQuantiles(LEVELS), 0.5),
        (scores.PredictedQuantiles(LEVELS, "lower"), -0.5),
        (scores.DCP(LEVELS), 0.0),
    ],
    ids=["upper", "lower", "both"],
)
def test_jumps(score, at_two):
    """Targets at a jump and beside it are inside where their scores are."""
    around = np.float32([1, 2, 2.5, 3, 4])
    below, above = (np.nextafter(around, np.float32(v)) for v in (-np.inf, np.inf))
    y = np.concatenate(
        [below, around, above, np.float32([-9, 9, 2.25, -np.inf, np.inf])]
    )
    preds = np.tile(FLAT, (len(y), 1))
    found = np.asarray(scores_of(score, preds, y))
    assert_allclose(found[6], at_two, atol=1e-7)
    beside = np.nextafter(found, np.float32(np.inf))
    levels = [-0.1, 0.0, 0.1, 0.3, 0.4, 0.5, 0.8, 0.9]
    for q in [*found, *beside, *levels, *(-v for v in levels)]:
        sets = sets_of(score, preds, np.full(len(y), q, "f"))
        far = ~np.isclose(found, q, atol=1e-5)
        assert_array_equal(np.asarray(inside(sets, y))[far], (found <= q)[far])
        assert np.all(np.asarray(inside(sets, y))[found <= q])


def test_quantiles_that_are_all_equal_are_a_jump():
    x, score = jnp.full(3, 2.0), scores.PredictedQuantiles([0.2, 0.5, 0.7])
    y = jnp.array([1.0, 2.0, 3.0])
    found = jax.vmap(score, (None, 0))(x, y)
    assert_array_equal(found, np.array([-np.inf, 0.7, np.inf], found.dtype))
    assert score.invert(x, 5.0).upper == 2.0 == score.negated().invert(x, 0.0).lower
    assert score.invert(x, 0.1).upper < 2.0 < score.negated().invert(x, -0.8).lower
    both = jax.vmap(scores.DCP(score.levels), (None, 0))(x, y)
    assert_array_equal(both, [np.inf, 0, np.inf])


@pytest.mark.parametrize(
    "score", [scores.PredictedQuantiles(LEVELS), scores.DCP(LEVELS)]
)
def test_quantiles_that_are_not_finite_say_nothing(score):
    x = jnp.asarray(FLAT).at[-1].set(jnp.inf)
    assert score(x, 3.0) == -np.inf
    assert score.invert(x, 0.2).contains(jnp.array(9.0))
    assert jnp.all(jnp.isfinite(jax.grad(lambda x: score.invert(x, 0.2).size() * 0)(x)))


def test_no_target_is_at_a_distance_below_zero():
    assert scores.DCP(LEVELS).invert(FLAT, -0.1).is_empty()
    assert scores.DCP(LEVELS).invert(FLAT, -jnp.inf).is_empty()
    assert not scores.DCP(LEVELS).invert(FLAT, 0.0).is_empty()


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_signed_has_the_bits_of_two_bands_of_width_zero(shape):
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 50, *shape)).astype("f")
    y = np.where(rng.random(y.shape) < 0.2, mu, y)
    q = rng.normal(size=(50, 2 * mu[0].size)).astype("f")
    signed, band = scores.Signed(), scores.AsymmetricCQR()
    found, expected = scores_of(signed, mu, y), scores_of(band, (mu, mu), y)
    assert_array_equal(np.asarray(found).view("i"), np.asarray(expected).view("i"))
    for level in (q, q[:, :2], q[:, :1], q[:, 0]):
        found, wanted = sets_of(signed, mu, level), sets_of(band, (mu, mu), level)
        assert type(found) is type(wanted)
        assert_array_equal(found.to_numpy(), wanted.to_numpy())


def test_each_side_of_a_two_sided_score_is_a_bound_of_its_own():
    rng = np.random.default_rng(0)
    mu, y = rng.normal(size=(2, 60)).astype("f")
    sigma = rng.uniform(0.5, 2, size=60).astype("f")
    for base, preds in [
        (scores.Residual(), mu),
        (scores.ScaledResidual(), (mu, sigma)),
        (scores.PredictedQuantiles(LEVELS), rng.normal(size=(60, 7)).astype("f")),
    ]:
        two = jaxcp.calibrate(scores.TwoSided(base), preds, y)
        upper = jaxcp.calibrate(base, preds, y)
        lower = jaxcp.calibrate(base.negated(), preds, y)
        sets = two(preds, 0.2)
        assert_array_equal(sets.upper, upper(preds, 0.1).upper)
        assert_array_equal(sets.lower, lower(preds, 0.1).lower)
        assert_array_equal(lower.scores, -np.asarray(upper.scores))
        assert (
            base.negated().negated() == base or base.negated().negated().side == "upper"
        )


def test_what_is_no_score_of_this_kind_is_refused():
    with pytest.raises(ValueError, match="expected side as one of"):
        scores.Residual("left")
    with pytest.raises(ValueError, match="expected an increasing score, got Absolute"):
        scores.TwoSided(scores.Absolute())
    with pytest.raises(ValueError, match="expected side of base"):
        scores.TwoSided(scores.Residual("lower"))
    for levels in ([0.5], [0.5, 0.2], [0.0, 0.5], [0.5, 1.0], [0.2, 0.2], [[0.2, 0.5]]):
        with pytest.raises(ValueError, match="expected rising levels"):
            scores.PredictedQuantiles(levels)
        with pytest.raises(ValueError, match="expected rising levels"):
            scores.DCP(levels)
    x = np.zeros((9, 7), "f")
    for preds in (x[:, :6], x[:, 0], (x, x)):
        with pytest.raises(ValueError, match="expected preds"):
            jaxcp.calibrate(scores.DCP(LEVELS), preds, x[:, 0])
    with pytest.raises(ValueError, match="expected y of shape"):
        jaxcp.calibrate(scores.DCP(LEVELS), x, x)
    with pytest.raises(ValueError, match="sigma > 0, got 0"):
        jaxcp.calibrate(scores.ScaledResidual(), (x[:, 0], x[:, 0]), x[:, 0])


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_a_predicted_jump_keeps_the_promise(side):
    """Quantiles that are all equal: half of the targets are below, and score -inf."""
    rng, q = np.random.default_rng(0), jnp.zeros((99, 3))
    y, new = rng.normal(size=99).astype("f"), rng.normal(size=4000).astype("f")
    score = scores.PredictedQuantiles([0.1, 0.5, 0.9], side)
    cp, many = jaxcp.calibrate(score, q, y), jnp.zeros((4000, 3))
    for alpha in (0.6, 0.4, 0.1):
        covered = cp(many, alpha).contains(new)
        of_scores = jax.vmap(score)(many, new) <= cp.quantile(alpha)
        assert_array_equal(covered, of_scores)
        assert covered.mean() > 1 - alpha - 0.1


def test_an_end_below_a_jump_holds_its_own_target():
    """Rounding is that of the steep piece before the jump."""
    score = scores.DCP([0.1, 0.25, 0.5, 0.75, 0.9])
    pred = jnp.array([-0.999, 0.001, 0.001, 0.751, 1.001])
    for y in jnp.float32(0.001) * (1 - jnp.array([1.3e-5, 1e-6, 0, 1e-4])):
        assert score.invert(pred, score(pred, y)).contains(y)
