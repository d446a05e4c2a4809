"""Bands of paths and fields: the score, the set, scales from other rows."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import inside, reference, scores_of, sets_of
from jaxcp import learners, metrics, online, risk, scores, sets
from jaxcp.scores import Band, envelope, root_mean_square
from jaxcp.typing import HasEnds

VECTORS = reference("conditional_bands")
FIT, CAL = int(VECTORS["num_fit"]), int(VECTORS["num_cal"])
ALPHAS = VECTORS["alphas"].tolist()
KINDS = ["const", "std", *(f"envelope_{a}" for a in ALPHAS)]
KINDS += ["fraction_0.8", "fraction_0.95"]


def fields(n=40, shape=(6,), seed=0):
    """Predictions of paths or fields, (center, scale), and targets."""
    rng = np.random.default_rng(seed)
    center, noise = rng.normal(size=(2, n, *shape)).astype("f")
    scale = rng.uniform(0.5, 2, size=(n, *shape)).astype("f")
    return (center, scale), center + scale * noise


@pytest.mark.parametrize("x64", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors(kind, x64):
    with jax.enable_x64(x64):
        known = {k: np.asarray(v, float if x64 else "f") for k, v in VECTORS.items()}
        center, y, inner = known["center"], known["y"], known[f"{kind}_in"]
        residuals, shape = (y - center)[:FIT], center.shape
        name, _, number = kind.partition("_")
        scale = {
            "const": lambda: np.ones(shape[1:], center.dtype),
            "envelope": lambda: envelope(residuals, float(number)),
        }.get(name, lambda: root_mean_square(residuals))()
        if name != "const":
            name = kind if name == "envelope" else "std"
            assert_allclose(scale, known[f"scale_{name}"], rtol=1e-5)
        preds = center, np.broadcast_to(scale, shape)
        score = Band(float(number) if kind.startswith("fraction") else 1.0)
        old = jax.tree.map(lambda v: v[FIT : FIT + CAL], preds)
        new = jax.tree.map(lambda v: v[FIT + CAL :], preds)
        cp = jaxcp.calibrate(score, old, y[FIT : FIT + CAL])
        assert_allclose(cp.scores, known[f"{kind}_scores"], rtol=1e-5)
        alphas = [float(number)] if name == kind and number else ALPHAS
        for i, alpha in enumerate(alphas):
            assert_allclose(cp.quantile(alpha), known[f"{kind}_q"][i], rtol=1e-5)
            bands = cp(new, alpha)
            assert_array_equal(bands.contains(y[FIT + CAL :]), inner[i])
            if f"{kind}_mean_width" in known:
                width = known[f"{kind}_mean_width"][i]
                assert_allclose(metrics.mean_size(bands), width, rtol=1e-5)


def by_definition(fraction, center, scale, y):
    """The ceil(f d)-th smallest error of d points that are not left out, in a loop."""
    errors = []
    for c, s, v in zip(center.ravel(), scale.ravel(), y.ravel(), strict=True):
        errors += [] if s == np.inf else [abs(v - c) / s]
    count = math.ceil(Fraction(str(fraction)) * len(errors))
    return sorted(errors)[count - 1] if errors else 0.0


@pytest.mark.parametrize("fraction", [1.0, 0.95, 0.5, 0.001])
@pytest.mark.parametrize("shape", [(), (1,), (40,), (4, 5), (2, 3, 4)], ids=str)
def test_the_score_and_the_set_are_the_definition(shape, fraction):
    (center, scale), y = fields(20, shape)
    for i, points in enumerate(scale.reshape(20, -1)):  # of each row another number
        points[: i % (points.size + 1)] = np.inf
        y.reshape(20, -1)[i, : i % (points.size + 1)] = [np.nan, 9.0][i % 2]
    score, rows = Band(fraction), list(zip(center, scale, y, strict=True))
    expected = [by_definition(fraction, *row) for row in rows]
    found = scores_of(score, (center, scale), y)
    assert_allclose(found, expected, rtol=1e-6)
    # The very target whose score is the threshold is inside, in spite of rounding.
    bands = sets_of(score, (center, scale), found)
    assert inside(bands, y).all()
    assert bands.target_shape() == shape
    assert bands.contains(y).shape == (20,)
    assert isinstance(bands, HasEnds) == (fraction == 1)


@pytest.mark.parametrize("x64", [False, True], ids=["single", "double"])
def test_a_target_at_the_threshold_is_inside_at_every_point(x64):
    """One point each, over ten thousand magnitudes of center, scale and error."""
    with jax.enable_x64(x64):
        rng = np.random.default_rng(3)
        dtype = jnp.zeros(()).dtype
        center, error, scale = 10.0 ** rng.uniform(-6, 6, size=(3, 10_000, 1))
        preds = center.astype(dtype), scale.astype(dtype)
        y = (center + error * rng.choice([-1, 1], size=error.shape)).astype(dtype)
        q = scores_of(Band(), preds, y)
        assert inside(sets_of(Band(), preds, q), y).all()
        less = np.nextafter(np.asarray(q), 0)
        contained = inside(sets_of(Band(), preds, less * (1 - 1e-4)), y)
        # Digits of small errors are lost in y - center.
        assert not np.asarray(contained)[(error > 0.01 * center)[:, 0]].any()


def test_points_are_counted_from_the_decimal():
    zeros, y = (jnp.zeros(40), jnp.ones(40)), jnp.arange(40.0)
    assert Band(0.95)(zeros, y) == 37  # the 38th: 0.95 * 40 in floats is above 38
    assert Band(0.951)(zeros, y) == Band(np.float32(0.975))(zeros, y) == 38
    assert Band(Fraction(1, 3))(zeros, y) == 13
    ends = jnp.zeros(40), jnp.full(40, 37.0)
    assert sets.Band(*ends, fraction=0.95).contains(y)
    assert not sets.Band(*ends, fraction=0.951).contains(y)


@pytest.mark.parametrize("bad", [0, -0.1, 1.5, math.nan, True, "all", None])
def test_a_fraction_outside_is_refused(bad):
    for make in (Band, lambda f: sets.Band(jnp.zeros(2), jnp.ones(2), fraction=f)):
        with pytest.raises(ValueError, match=r"expected fraction (in \(0, 1\)|as a)"):
            make(bad)


def test_what_a_scale_leaves_out():
    scale = jnp.array([1.0, jnp.inf, 0.0, -1.0, jnp.nan])
    pred, y = (jnp.zeros(5), scale), jnp.array([1.0, 9, 9, 9, 9])
    assert Band()(pred, y) == 1
    assert Band(0.8)(pred, y) == 1  # those left out do not count
    band = Band().invert(pred, 2.0)
    assert_array_equal(band.upper, [2, *[np.inf] * 4])
    assert band.size() == 4  # of the point that is known
    assert band.contains(y)
    assert not band.contains(y.at[0].set(3.0))
    assert Band()(pred, y.at[3].set(jnp.nan)) == 1
    assert band.contains(y.at[3].set(jnp.nan))
    assert Band()(pred, y.at[0].set(jnp.nan)) == jnp.inf
    assert not band.contains(y.at[0].set(jnp.nan))
    hidden = (jnp.array([0, jnp.nan, jnp.inf, 0, 0]), scale)
    assert Band()(hidden, y) == 1
    assert Band().invert(hidden, 1.0).contains(y)
    nothing = jnp.full(5, jnp.inf)
    assert Band()((y, nothing), y) == 0
    for fraction in (1.0, 0.4):  # below 0 nothing is inside, as no score is
        for scales in (scale, nothing):
            empty = Band(fraction).invert((pred[0], scales), -0.5)
            assert empty.is_empty()
            assert not empty.contains(y)
        assert not Band(fraction).invert(pred, 0.0).is_empty()
    whole = Band().invert(pred, jnp.inf)
    assert whole.size() == jnp.inf
    assert whole.contains(1e9 * y)


@pytest.mark.parametrize("share", [0.95, 0.123456])
def test_a_share_of_the_points_that_are_seen(share):
    """Half of the points are left out, with NaN for targets: the rest are counted."""
    (center, scale), y = fields(200, (40,))
    seen = np.random.default_rng(5).random(y.shape) < 0.5
    preds, known = (center, np.where(seen, scale, np.inf)), np.where(seen, y, np.nan)
    cp = jaxcp.calibrate(Band(share), preds, known)
    assert_array_equal(cp.scores, jaxcp.calibrate(Band(share), preds, y).scores)
    bands = cp(preds, 0.2)
    inside = np.sum((bands.lower <= y) & (y <= bands.upper) & seen, axis=1)
    exact = Fraction(str(share))
    needed = np.array([math.ceil(exact * int(k)) for k in seen.sum(axis=1)])
    assert_array_equal(metrics.covered(bands, known), inside >= needed)
    assert_array_equal(
        jax.jit(lambda b, v: b.contains(v))(bands, known), inside >= needed
    )
    assert np.sum(inside >= needed) >= 161  # k = 200 + 1 - floor(0.2 * 201), no ties
    assert_array_equal(bands.contains(known), cp.scores <= cp.quantile(0.2))
    method = online.PID(Band(share), 0.1)
    _, issued = online.run(method, method.init(cp.scores, 0.2), preds, known, 0.2)
    _, late = online.run(method, method.init(cp.scores, 0.2), preds, y, 0.2, delay=2)
    assert_array_equal(metrics.covered(issued, known), issued.contains(y))
    assert_array_equal(metrics.covered(late, known), late.contains(y))
    with pytest.raises(ValueError, match="y without NaN"):
        metrics.coverage(bands, y * np.nan)


def test_a_point_beyond_all_numbers_is_not_left_out():
    large = jnp.finfo(jnp.zeros(()).dtype).max / 3
    pred = jnp.zeros(4), jnp.array([large, 1, 1, 1])
    score = Band(0.6)  # three of four points
    for y in ([0, 0, 0, 200.0], [0, 0, 200, 200.0], [jnp.inf, 0, 0, 0]):
        y = jnp.array(y)
        assert score.invert(pred, 100.0).contains(y) == (score(pred, y) <= 100)
    assert score.invert(pred, 100.0).size() == jnp.inf


def test_gradients_are_those_of_the_largest_point():
    pred, y = (jnp.zeros(3), jnp.array([1.0, 2.0, jnp.inf])), jnp.array([1.0, 8.0, 9])
    slopes = jax.grad(lambda p, y: Band()(p, y), argnums=(0, 1))(pred, y)
    assert_array_equal(slopes[0][0], [0, -0.5, 0])
    assert_array_equal(slopes[0][1], [0, -2, 0])
    assert_array_equal(slopes[1], [0, 0.5, 0])
    assert_array_equal(jax.grad(lambda y: Band(0.5)(pred, y))(y), [1, 0, 0])
    width = jax.grad(lambda s: Band().invert((pred[0], s), 3.0).size())(pred[1])
    assert_allclose(width, [3, 3, 0])


def test_a_scale_broadcasts_in_each_row():
    (center, scale), y = fields(10, (3, 4))
    for own in (scale[:, :1, :1], scale[:, :1], scale[:, 0], scale[:, 0, 0]):
        wide = own.reshape(10, *(1,) * (3 - own.ndim), *own.shape[1:])
        wide = np.broadcast_to(wide, center.shape)
        two = (jaxcp.calibrate(Band(), (center, v), y) for v in (own, wide))
        one, other = two
        assert_array_equal(one.scores, other.scores)
        ends = one((center, own), 0.2).upper
        assert_array_equal(ends, other((center, wide), 0.2).upper)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c, s, y: ((c, 0 * s), y), r"scale > 0, got 0.0 .*; np.where\(scale"),
        (lambda c, s, y: ((c, s[0]), y), r"length, got \[6, 40\]; numpy.broadcast_to"),
        (lambda c, s, y: ((c, s[:1]), y), r"length, got \[1, 40\]; numpy.broadcast"),
        (lambda c, s, y: ((c, 1.0), y), r"scalar; \[value\] is one row"),
        (lambda c, s, y: ((c, s * np.nan), y), "preds without NaN"),
        (lambda c, s, y: ((c, s), y * np.nan), "y without NaN"),
        (lambda c, s, y: ((c, s), y[:, :3]), r"y of shape \(40, 6\) like center"),
        (lambda c, s, y: ((c, s[:, :2]), y), r"rows broadcast to \(6,\), got \(40, 2"),
        (lambda c, s, y: ((c[:, 0], s), y[:, 0]), r"rows broadcast to \(\), got"),
        (lambda c, s, y: (c, y), r"a tuple \(center, scale\), got \(40, 6\)"),
        (lambda c, s, y: ((c, s, s), y), r"a tuple \(center, scale\), got"),
        (lambda c, s, y: ((c[:, :0], s[:, :0]), y[:, :0]), "at least one output"),
    ],
)
def test_the_door(change, expected):
    (center, scale), y = fields()
    with pytest.raises(ValueError, match=f"expected .*{expected}"):
        jaxcp.calibrate(Band(), *change(center, scale, y))


def test_another_shape_at_test_is_refused():
    preds, y = fields()
    cp = jaxcp.calibrate(Band(), preds, y)
    shorter = jax.tree.map(lambda v: v[:, :4], preds)
    with pytest.raises(ValueError, match=r"expected preds .*\(6,\).*got \(4,\)"):
        cp(shorter, 0.1)
    with pytest.raises(ValueError, match=r"y of shape \(40, 6\) like sets, got"):
        metrics.coverage(cp(preds, 0.1), y[:, :4])
    with pytest.raises(ValueError, match=r"targets of shape \(6,\), got \(4,\)"):
        cp(preds, 0.1)[0].contains(y[0, :4])
    with pytest.raises(ValueError, match="a volume, got a Band; its size"):
        jaxcp.volume(jax.random.key(0), cp(preds, 0.1)[0])


def test_sets_are_data():
    preds, y = fields(5, (2, 3))
    bands = sets_of(Band(), preds, np.full(5, 1.5, "f"))
    assert len(bands) == 5
    assert bands.to_numpy().shape == (5, 2, 3, 2)
    assert y[0] in sets_of(Band(), preds, np.full(5, 9, "f"))[0]
    frame = bands.to_pandas()
    assert [*frame][:3] == ["lower_0_0", "upper_0_0", "lower_0_1"]
    assert_array_equal(frame["upper_1_2"], bands.upper[:, 1, 2])
    assert bands[0].to_dict().keys() == {"lower", "upper"}
    line = sets.Band(jnp.zeros((2, 3)), jnp.ones((2, 3)))
    assert [*line.to_pandas(columns="abc")][:2] == ["lower_a", "upper_a"]
    assert sets.Band(jnp.array([0, 0]), jnp.array([1, 2])).size() == 1.5
    number = sets.Band(jnp.zeros(2), jnp.ones(2), ndim=0)
    assert [*number.to_pandas()] == ["lower", "upper"]
    cut = bands.clip(-0.5, 0.5)
    assert cut.lower.min() >= -0.5
    assert cut.upper.max() <= 0.5
    doubled = bands.transform(lambda v: 2 * v)
    assert_allclose(doubled.size(), 2 * bands.size(), rtol=1e-6)
    part = sets.Band(*bands.ends(), ndim=2, fraction=0.5)
    assert repr(part).startswith("Band(lower=float32[5,2,3]")
    for same in (part, part[1:], jax.tree.map(jnp.asarray, part), part.clip(0, 1)):
        assert not isinstance(same, HasEnds)
        assert same.ends is None
    with pytest.raises(
        TypeError, match=r"incompatible shapes .*\(5, 2, 3\), \(4, 2, 3\)"
    ):
        part.contains(y[:4])
    with pytest.raises(ValueError, match=r"expected _?\w*Band of shape \(3,\), got"):
        part.checked(3)
    with pytest.raises(ValueError, match="expected ndim as an int >= 0, got -1"):
        sets.Band(*bands.ends(), ndim=-1)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_it_works_as_any_score(fraction):
    """Groups, delta, predictors, streams, risks; methods of it are in the table."""
    score, (preds, y) = Band(fraction), fields(60)
    s, groups = np.asarray(scores_of(score, preds, y)), np.arange(60) % 2
    own = lambda v, a: float(jaxcp.conformal_quantile(v, a))  # noqa: E731
    by_group = jaxcp.calibrate_groups(score, preds, y, groups, num_groups=2)
    found = by_group(preds, 0.2, groups=groups).contains(y)
    limits = np.array([own(s[i::2], 0.2) for i in (0, 1)])
    assert_array_equal(found, s <= limits[groups])
    pac = jaxcp.calibrate(score, preds, y)
    q = np.sort(s)[jaxcp.conformal_rank(60, 0.2, delta=0.1) - 1]
    assert_array_equal(pac(preds, 0.2, delta=0.1).contains(y), s <= q)
    predict = lambda _, x: (x, jnp.ones_like(x))  # noqa: E731
    split = jaxcp.split_conformal(predict, None, score, preds[0], y)
    assert_array_equal(split.scores, scores_of(score, (preds[0], 0 * y + 1), y))
    streams = online.PID(score, 0.1), online.PID(scores.Absolute(), 0.1)
    states = [method.init(s[:20], 0.2) for method in streams]
    _, issued = online.run(streams[0], states[0], preds, y, 0.2)
    _, of_scores = online.run(streams[1], states[1], 0 * s, s, 0.2)
    assert_array_equal(metrics.covered(issued, y), metrics.covered(of_scores, s))
    lost = risk.calibrate_risk(risk.miscoverage, score, preds, y)
    assert lost.quantile(0.2) == own(s, 0.2)


def test_cross_conformal_bands_have_ends():
    """Each end is the k-th smallest of the rows' own, at each point."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 20, 3)).astype("f")
    fit = lambda key, x, y, w: jnp.average(y - x, axis=0, weights=w)  # noqa: E731
    predict = lambda mean, x: (x + mean[None], jnp.ones_like(x))  # noqa: E731
    learner = learners.FunctionLearner(fit, predict)
    cp = jaxcp.jackknife_plus(jax.random.key(0), learner, Band(), x, x + noise)
    bands = cp(x[:4], 0.2)
    assert isinstance(bands, sets.Band)
    left = np.stack([np.delete(noise, i, 0).mean(0) for i in range(20)])
    s = abs(noise - left).max(axis=1)
    k = 17  # ceil(0.8 (20 + 1))
    upper = np.sort(left + s[:, None], axis=0)[k - 1] + x[:4]
    lower = -np.sort(s[:, None] - left, axis=0)[k - 1] + x[:4]
    assert_allclose(bands.upper, upper, rtol=1e-4, atol=1e-5)
    assert_allclose(bands.lower, lower, rtol=1e-4, atol=1e-5)
    folds = jaxcp.cv_plus(
        jax.random.key(0), learner, Band(), x, x + noise, num_folds=20
    )
    assert_allclose(folds(x[:4], 0.2).upper, upper, rtol=1e-4, atol=1e-5)
    part = jaxcp.jackknife_plus(jax.random.key(0), learner, Band(0.5), x, x + noise)
    assert part(x[:4], 0.2).contains(x[:4]).shape == (4,)


def test_scales_of_other_rows():
    residuals = np.random.default_rng(0).normal(size=(19, 2, 3)).astype("f")
    assert_allclose(
        root_mean_square(residuals), np.sqrt(np.mean(residuals**2, axis=0)), rtol=1e-6
    )
    size = abs(residuals).max(axis=(1, 2))
    for alpha, kept in ((0.5, 10), (0.1, 18), (0.01, 19)):  # the last one: infinite
        among = size <= np.sort(size)[kept - 1]
        assert_array_equal(envelope(residuals, alpha), abs(residuals[among]).max(0))
    for bad in (np.full((2, 3), np.nan), 1.0):
        for scale in (root_mean_square, lambda r: envelope(r, 0.1)):
            with pytest.raises(ValueError, match="expected residuals "):
                scale(bad)
    with pytest.raises(ValueError, match=r"alpha in \(0, 1\)"):
        envelope(residuals, 1.0)
    assert_array_equal(envelope(residuals[:0], 0.1), np.zeros((2, 3)))  # refused then
    wide = np.random.default_rng(1).normal(size=(5, 70, 60)).astype("f")  # row by row
    assert_allclose(root_mean_square(wide), np.sqrt(np.mean(wide**2, 0)), rtol=1e-6)
    assert_array_equal(envelope(wide, 0.01), abs(wide).max(axis=0))
    half = np.full((5, 70, 60), 300, np.float16)  # squares overflow
    assert_array_equal(root_mean_square(half), half[0])


def test_joint_coverage_and_what_clamped_bonferroni_loses():
    """A walk of 12 steps: a band covers k / (n + 1) of the paths, with any scale.

    Bonferroni at alpha / T has ranks beyond n; the largest score instead covers less,
    of independent points (n / (n + 1))^T.
    """
    n, t, num = 24, 12, 4000
    noise = np.random.default_rng(0).normal(size=(num, n + 1, t)).astype("f")
    steps = np.cumsum(noise, axis=2)
    scale = np.sqrt(np.arange(1, t + 1)).astype("f")
    error = 4 / math.sqrt(num)

    def covered(paths, fraction):
        preds = jnp.zeros_like(paths), jnp.broadcast_to(scale, paths.shape)
        score = Band(fraction)
        q = jaxcp.conformal_quantile(jax.vmap(score)(*_rows(preds, paths, n)), 0.2)
        new = jax.tree.map(lambda v: v[n], (preds, paths))
        return score.invert(new[0], q).contains(new[1])

    for fraction in (1.0, 0.75):
        found = jax.jit(jax.vmap(lambda v, f=fraction: covered(v, f)))(steps)
        assert abs(found.mean() - 20 / 25) < error * 0.4  # k = ceil(0.8 * 25)
    clamped = (abs(noise[:, n]) <= abs(noise[:, :n]).max(axis=1)).all(axis=1)
    expected = (n / (n + 1)) ** t
    assert abs(clamped.mean() - expected) < error * math.sqrt(expected * (1 - expected))
    assert expected < 0.8 - 4 * error * 0.4


def _rows(preds, paths, n):
    return jax.tree.map(lambda v: v[:n], (preds, paths))


def test_normalized_is_a_band_of_one_point():
    (center, scale), y = fields(30, ())
    one, other = (
        jaxcp.calibrate(score, (center, scale), y)
        for score in (Band(), scores.Normalized())
    )
    assert_array_equal(one.scores, other.scores)
    assert_array_equal(
        one((center, scale), 0.1).upper, other((center, scale), 0.1).upper
    )
