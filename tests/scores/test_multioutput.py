"""Scores of several outputs: what laws, references and coverage do not say."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import CASES, DENSITY, inside, scores_of, sets_of
from jaxcp import datasets, metrics, scores
from jaxcp.sets import Balls

KEY = jax.random.key(0)
C_PCP, C_HDR = scores.CDF(scores.PCP()), scores.CDF(DENSITY)
ALPHA = 0.2


def draws(key, x, num_draws, role=0, law=None):
    law = datasets.Unimodal() if law is None else law
    return jaxcp.draw(
        key, lambda k, v, n: law.sample(None, k, v, n), x, num_draws, role=role
    )


def brute_counts(references, mc, y):
    """C-PCP counts in double precision, from all differences."""
    distance = lambda a: np.linalg.norm(a[:, :, None] - references[:, None], axis=-1)  # noqa: E731
    of_draws, of_y = distance(mc).min(-1), distance(y[:, None]).min(-1)
    return np.sum(of_draws <= of_y, axis=1)


@pytest.mark.parametrize("d", [1, 3, 16, 20])
def test_counts_in_any_dimension(d):
    """Also beyond the dimensions whose sums are written out."""
    rng = np.random.default_rng(d)
    references, mc = (rng.normal(size=(30, k, d)).astype(np.float32) for k in (6, 11))
    y = rng.normal(size=(30, d)).astype(np.float32)
    expected = brute_counts(*(v.astype(float) for v in (references, mc, y)))
    assert_array_equal(scores_of(C_PCP, (references, mc), y), expected)


@pytest.mark.parametrize("d", [2, 16])
def test_outputs_far_from_zero_keep_their_ranks(d):
    """1000 standard deviations away; numbers in eighths are exact in both places."""
    rng = np.random.default_rng(0)
    references, mc = ((rng.normal(size=(40, k, d)) * 8).round() / 8 for k in (20, 30))
    y = (rng.normal(size=(40, d)) * 8).round() / 8
    near = [jnp.asarray(v, jnp.float32) for v in (references, mc, y)]
    far = [v + 1000 for v in near]
    here = scores_of(C_PCP, tuple(near[:2]), near[2])
    assert_array_equal(scores_of(C_PCP, tuple(far[:2]), far[2]), here)


def test_a_density_of_zero_is_the_worst():
    flat = scores.Density(
        lambda pred, y: jnp.where(jnp.all(jnp.abs(y) < 1), 0.0, -jnp.inf)
    )
    nan = scores.Density(lambda pred, y: jnp.nan * y[0])
    y = jnp.array([5.0, 5.0])
    assert flat(None, y) == nan(None, y) == np.inf
    counts = scores.CDF(flat)((None, jnp.zeros((4, 2))), y)
    assert counts == 4
    assert not flat.invert(None, jnp.array(3.0)).contains(y)
    assert flat.invert(None, jnp.array(jnp.inf)).contains(y)


@pytest.mark.parametrize(
    "score, rank", [(C_PCP, "counts"), (scores.CDF(scores.PCP(), extended=True), "all")]
)
def test_smallest_sizes(score, rank):
    """K = 1, L = 1, d = 1, n = 9: the threshold is infinite, or a rank of K is."""
    x = jnp.ones((10, 1))
    law = datasets.Unimodal(num_targets=1)
    pred = draws(KEY, x, 1, law=law), draws(KEY, x, 1, 1, law)
    y = law.targets(jax.random.key(5), x)
    nine = jax.tree.map(lambda v: v[:9], pred)
    cp = jaxcp.calibrate(score, nine, y[:9])
    infinite, finite = cp(pred, 0.05), cp(pred, 0.5)
    assert np.all(np.isinf(infinite.radius))
    assert metrics.mean_volume(KEY, infinite, 10).mean == np.inf
    whole = rank == "counts" and cp.quantile(0.5) == 1
    assert bool(np.all(np.isinf(finite.radius))) == whole
    numbers = jaxcp.calibrate(score, jax.tree.map(lambda v: v[..., 0], nine), y[:9, 0])
    assert_array_equal(numbers.scores, cp.scores)


def test_rank_k_is_everything_and_less_is_open():
    references, mc = jnp.zeros((1, 1)), jnp.array([[1.0], [2.0], [2.0], [jnp.inf]])
    radius = lambda q: C_PCP.invert((references, mc), q).radius  # noqa: E731
    assert radius(4.0) == np.inf
    assert np.isfinite(radius(3.0)) and radius(3.0) > 1e38  # below an infinite draw
    for q, first_out in [(0.0, 1.0), (0.9, 1.0), (1.0, 2.0), (2.0, 2.0)]:
        assert radius(q) == np.nextafter(np.float32(first_out), np.float32(0))
    assert radius(-1.0) == -np.inf
    at_a_draw = jnp.zeros((1, 1)), jnp.zeros((3, 1))
    assert not C_PCP.invert(at_a_draw, 2.0).contains(jnp.zeros(1))  # empty
    assert C_PCP.invert(at_a_draw, 3.0).contains(jnp.ones(1))


def test_extended_ranks_join_the_counts():
    """At draw i the rank is i, between them linear, beyond them strictly monotone."""
    base = scores.Custom(lambda pred, y: y)
    score = scores.CDF(base, extended=True)
    pred = 0.0, jnp.array([3.0, 1.0, 2.0, 7.0, 5.0])
    rank = jax.jit(jax.vmap(lambda y: score(pred, y)))
    assert_allclose(rank(jnp.array([1.0, 2.0, 3.0, 5.0, 7.0])), [1, 2, 3, 4, 5])
    assert_allclose(rank(jnp.array([1.5, 4.0])), [1.5, 3.5])
    spread = 7.0 - 3.0  # of the orders ceil(.9 K) = 5 and ceil(.5 K) = 3
    assert_allclose(rank(jnp.array([9.0, -1.0])), [5 + 2 / spread, np.exp(-2 / spread)])
    grid = jnp.linspace(-20.0, 30.0, 999)
    assert np.all(np.diff(rank(grid)) > 0)
    back = jax.jit(jax.vmap(lambda q: score.threshold(pred, q)))
    assert_allclose(back(rank(grid)), grid, atol=1e-3)
    assert_array_equal(
        back(jnp.array([jnp.inf, -jnp.inf, -1.0])), [np.inf, -np.inf, -np.inf]
    )
    assert_array_equal(rank(jnp.array([jnp.inf, -jnp.inf])), [np.inf, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "mc",
    [[2.0], [2.0, 2.0, 2.0], [1.0, np.inf, np.inf], [np.inf] * 3, [-np.inf, 1.0, 2.0]],
    ids=str,
)
def test_extended_ranks_of_degenerate_draws(mc):
    """Defined, monotone, differentiable, and inverted by their thresholds."""
    score = scores.CDF(scores.Custom(lambda pred, y: y), extended=True)
    pred, grid = (0.0, jnp.array(mc)), jnp.linspace(-4.0, 8.0, 49)
    ranks, slopes = jax.vmap(jax.value_and_grad(lambda y: score(pred, y)))(grid)
    assert np.all(np.isfinite(ranks)) and np.all(np.diff(ranks) > 0)
    assert np.all(np.isfinite(slopes))
    within = ranks[None] <= ranks[:, None]
    thresholds = jax.vmap(lambda q: score.threshold(pred, q))(ranks)
    found = grid[None] <= thresholds[:, None] + 1e-4
    assert_array_equal(found, within)


@pytest.mark.slow
def test_a_model_with_half_the_noise():
    """Counts report the whole space, extended ranks finite sets that cover 0.8."""
    law, model = datasets.Unimodal(), datasets.Unimodal(noise=0.5)
    x, y = law.draw(KEY, 2000)
    density = scores.Density.of(model, None)
    key = jax.random.key(7)  # the key of the data would draw the same noise again
    mc, references = draws(key, x, 50, 1, model), draws(key, x, 50, 2, model)
    old, new = slice(1000), slice(1000, None)
    for base, pred in [(density, x), (scores.PCP(), references)]:
        for extended in (False, True):
            score = scores.CDF(base, extended=extended)
            cp = jaxcp.calibrate(score, (pred[old], mc[old]), y[old])
            sets = cp((pred[new], mc[new]), ALPHA)
            level = jax.tree.leaves(sets)[-1]  # of density sets, the radius of balls
            covered = metrics.coverage(sets, y[new])
            assert np.all(np.isfinite(level)) == extended
            if extended:
                assert abs(covered - 0.8) < 4 * np.sqrt(0.16 * 2 / 1000)
            else:
                assert covered == 1
                assert metrics.mean_volume(KEY, sets, 10).mean == np.inf


def unimodal_coverage(law, x, q_of_x):
    """Exact coverage of {r / x <= q} for the unimodal law in two dimensions."""
    return 1 - jnp.exp(-(q_of_x**2) / 2)


@pytest.mark.slow
def test_conditional_error_with_the_true_law():
    """Against exact values: the unimodal law, p = 1, d = 2, alpha = 0.2."""
    law, m = datasets.Unimodal(), 4000
    x, y = law.draw(KEY, 20_000)
    density = scores.Density.of(law, None)
    grid = jnp.linspace(0.5, 2.0, m)[:, None]
    level = jaxcp.calibrate(density, x, y).quantile(ALPHA)
    # -log f <= t where r^2 / x^2 <= 2 (t - log 2 pi x^2)
    square = 2 * (level - jnp.log(2 * jnp.pi * grid[:, 0] ** 2))
    coverage = 1 - jnp.exp(-square / 2)
    assert 1.35 < 100 * jnp.mean((coverage - 0.8) ** 2) < 1.80
    volumes = jnp.pi * square * grid[:, 0] ** 2
    assert_allclose(jnp.mean(volumes), 15.453, rtol=0.02)

    z = jax.vmap(lambda a, b: law.to_latent(None, a, b))(x, y)
    radius = jaxcp.conformal_quantile(jnp.linalg.norm(z, axis=1), ALPHA)
    assert 100 * (1 - jnp.exp(-(radius**2) / 2) - 0.8) ** 2 < 0.03
    assert_allclose(jnp.mean(jnp.pi * radius**2 * grid[:, 0] ** 2), 17.697, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("num_draws, bar", [(100, 0.22), (300, 0.09)])
def test_conditional_error_of_counts(num_draws, bar):
    """p (1 - p) / (K + 2) is 0.157 at K = 100 and 0.053 at K = 300, times 100."""
    law = datasets.Unimodal()
    score = scores.CDF(scores.Density.of(law, None))
    x, y = law.draw(KEY, 4000)
    mc = draws(jax.random.key(1), x, num_draws)
    q = jaxcp.calibrate(score, (x[:2000], mc[:2000]), y[:2000]).quantile(ALPHA)
    pred = x[2000:], mc[2000:]
    level = jax.jit(jax.vmap(score.threshold, (0, None)))(pred, q)
    square = 2 * (level - jnp.log(2 * jnp.pi * x[2000:, 0] ** 2))
    coverage = 1 - jnp.exp(-square / 2)
    assert 100 * jnp.mean((coverage - 0.8) ** 2) < bar


@pytest.mark.slow
def test_regions_do_not_depend_on_batch_order_or_call():
    law, score = datasets.Unimodal(), C_PCP
    x, y = law.draw(KEY, 60)
    key_old, key_new = jax.random.split(jax.random.key(1))

    def preds(key, x, indices=None):
        sample = lambda k, v, n: law.sample(None, k, v, n)  # noqa: E731
        roles = [
            jaxcp.draw(key, sample, x, 20, role=r, indices=indices) for r in (0, 1)
        ]
        return tuple(roles)

    cp = jaxcp.calibrate(score, preds(key_old, x[:40]), y[:40])
    together = cp(preds(key_new, x[40:]), ALPHA)
    assert not np.array_equal(*(np.asarray(v) for v in preds(key_new, x[40:])))
    order = jnp.array([7, 3, 11])
    some = cp(preds(key_new, x[40:][order], order), ALPHA)
    assert_array_equal(some.centers, together.centers[order])
    assert_array_equal(some.radius, together.radius[order])
    again = cp(preds(key_new, x[40:]), ALPHA)
    assert_array_equal(again.radius, together.radius)


def test_gradients_of_scores_and_regions():
    """With respect to the target, the draws and the parameters of the model."""
    slope = jax.grad(
        lambda s, y: scores.Density(lambda p, v: -jnp.sum((v / p) ** 2))(s, y), (0, 1)
    )
    assert_allclose(slope(2.0, jnp.array([1.0, 2.0]))[0], -2 * 5 / 8, rtol=1e-6)
    references = jnp.array([[0.0, 0.0], [3.0, 0.0]])
    away, at = jnp.array([1.0, 0.0]), jnp.array([3.0, 0.0])
    pull = jax.grad(scores.PCP(), (0, 1))(references, away)
    assert_allclose(pull[0], [[-1.0, 0.0], [0.0, 0.0]])
    assert_allclose(pull[1], [1.0, 0.0])
    assert_array_equal(jax.grad(scores.PCP(), 1)(references, at), 0)  # a kink

    preds, _ = CASES["c-pcp-extended"].batch(30)

    def width(shift):
        moved = preds[0] * shift, preds[1] * shift
        cp = jaxcp.calibrate(CASES["c-pcp-extended"].score, moved, jnp.ones((30, 2)))
        return jnp.sum(cp(moved, 0.3).radius)

    assert np.isfinite(jax.jit(jax.grad(width))(1.0))


def test_parameters_are_leaves_of_the_score():
    """New parameters compile nothing, batch, and differentiate."""

    class Normal:
        def log_prob(self, params, x, y):
            return -0.5 * jnp.sum(((y - x) / params) ** 2) - 2 * jnp.log(params)

        def sample(self, params, key, x, n):
            return x[None] + params * jax.random.normal(key, (n, 2))

    model, x = Normal(), jnp.zeros((40, 2))
    y = jax.random.normal(KEY, (40, 2))

    @jax.jit
    def threshold(params):
        return jaxcp.calibrate(scores.Density.of(model, params), x, y).quantile(0.1)

    threshold(1.0)
    with jax.no_tracing():
        threshold(2.0)
    together = jax.vmap(threshold)(jnp.array([1.0, 2.0]))
    assert_allclose(together, [threshold(1.0), threshold(2.0)], rtol=1e-6)
    assert np.isfinite(jax.grad(threshold)(1.0))
    with pytest.raises(AttributeError, match="to_latent"):
        scores.Latent.of(model, 1.0)


def test_hdpcp_keeps_the_exact_share():
    """floor((1 - alpha) l), at least one; of equal densities the first."""
    points = jnp.arange(10.0)[:, None]
    same = jnp.zeros(10)
    for alpha, kept in [(0.1, 9), (0.2, 8), (0.7, 3), (0.9, 1), (0.95, 1)]:
        balls = scores.HDPCP(alpha).invert((points, same), jnp.array(0.1))
        assert set(np.ravel(balls.centers)) == set(range(kept))
    densities = jnp.arange(10.0).at[4].set(jnp.nan)
    balls = scores.HDPCP(0.7).invert((points, densities), jnp.array(0.1))
    assert set(np.ravel(balls.centers)) == {7, 8, 9}


def test_membership_of_many_points_in_bounded_memory():
    balls = Balls(jax.random.normal(KEY, (20, 2)), jnp.array(0.3))
    points = jax.random.normal(jax.random.key(1), (40_000, 2))
    found = jaxcp.sets.membership(balls, points)
    distances = np.linalg.norm(
        np.asarray(points)[:, None] - balls.centers[None], axis=-1
    )
    assert_array_equal(found, distances.min(1) <= 0.3)
    run = jax.jit(jaxcp.sets.membership).lower(balls, points).compile()
    assert run.memory_analysis().temp_size_in_bytes < 40_000 * 20  # distances: 3.2 MB


@pytest.mark.parametrize("name", ["pcp", "c-pcp", "mahalanobis"])
def test_sets_are_the_level_sets_of_their_scores(name):
    """In one program and in others: balls and counts agree to the last bit."""
    case = CASES[name]
    preds, y = case.batch(500)
    cp = jaxcp.calibrate(case.score, preds, y)
    for alpha in (0.1, 0.5):
        eager = [
            bool(case.score.invert(row(preds, i), cp.quantile(alpha)).contains(y[i]))
            for i in range(5)
        ]
        expected = cp.scores <= cp.quantile(alpha)
        assert_array_equal(eager, expected[:5])
        assert_array_equal(inside(cp(preds, alpha), y), expected)
        q = jnp.full(500, cp.quantile(alpha))
        assert_array_equal(inside(sets_of(case.score, preds, q), y), expected)


def row(tree, i):
    return jax.tree.map(lambda v: jnp.asarray(v[i]), tree)


def test_targets_that_equal_a_draw_tie_with_it():
    """Also by a network, whose arithmetic depends on the batch."""
    from jaxcp import models

    model = models.GaussianNetwork(num_hidden=8, num_steps=5)
    x = jax.random.normal(KEY, (300, 3))
    params = model.fit(KEY, x, x[:, :2])
    y = x[:, 1:]
    same = jnp.broadcast_to(y[:, None], (300, 5, 2))
    score = scores.CDF(scores.Density.of(model, params))
    assert_array_equal(jaxcp.calibrate(score, (x, same), y).scores, 5)


def last_within(inside, thresholds):
    """Whether each threshold is inside and the next number is not."""
    after = np.nextafter(np.asarray(thresholds), np.float32(np.inf))
    return bool(jnp.all(inside(thresholds)) & ~jnp.any(inside(jnp.asarray(after))))


def test_radii_of_cp2pcp_are_the_last_within():
    key_q, key_scale = jax.random.split(KEY)
    q = jax.random.uniform(key_q, (2000,), minval=0.1, maxval=5.0)
    scale = jax.random.uniform(key_scale, (2000,), minval=0.1, maxval=5.0)
    score = scores.CP2PCP(0.5)
    pred = jnp.zeros((2000, 1, 1)), scale[:, None, None]
    radius = jax.jit(jax.vmap(score.invert))(pred, q).radius
    inside = lambda r: jax.jit(jax.vmap(score))(pred, r[:, None]) <= q  # noqa: E731
    assert last_within(inside, radius)
    for scale, q, expected in [
        (1e10, 1e30, np.inf),  # all finite numbers are within
        (0.0, 2.0, 0.0),
        (1.0, np.inf, np.inf),
    ]:
        pred = jnp.zeros((1, 1)), jnp.full((4, 1), scale)
        found = score.invert(pred, jnp.array(q)).radius
        assert found == expected or (expected == np.inf and found > 1e38)
        assert not np.isnan(found)


def test_extended_thresholds_are_the_last_within():
    score = scores.CDF(scores.Custom(lambda pred, y: y), extended=True)
    draws_of = jax.random.normal(KEY, (2000, 7))
    q = jax.random.uniform(jax.random.key(1), (2000,), minval=0.01, maxval=9.0)
    pred = jnp.zeros(2000), draws_of
    found = jax.jit(jax.vmap(score.threshold))(pred, q)
    inside = lambda s: jax.jit(jax.vmap(score))(pred, s) <= q  # noqa: E731
    assert last_within(inside, found)


def test_gradients_at_infinity_are_finite():
    far = jnp.array([jnp.inf, 0.0])
    latent = scores.Latent(lambda pred, y: y)
    assert np.all(np.isfinite(jax.grad(latent, 1)(None, far)))
    slopes = jax.grad(scores.PCP(), (0, 1))(far[None], jnp.zeros(2))
    assert all(np.all(np.isfinite(v)) for v in slopes)
    assert latent(None, far) == scores.PCP()(far[None], jnp.zeros(2)) == np.inf


def test_distances_in_half_precision_do_not_overflow():
    points = jnp.zeros((1, 2), jnp.float16)
    distance = scores.PCP()(points, jnp.array([300.0, 400.0], jnp.float16))
    assert distance == 500 and distance.dtype == jnp.float16


@pytest.mark.slow
def test_codes_of_a_mixture_far_out():
    """Between two modes of one law the code is near that of the nearer mode."""
    from jaxcp._geometry import Mixture

    law = Mixture(jnp.zeros(2), jnp.array([[-1.0], [1.0]]), jnp.ones((2, 1)))
    y = jnp.array([-40.0, -15.0, -9.0, 0.0, 9.0, 15.0, 40.0])[:, None]
    z = jax.vmap(law.to_latent)(y)
    assert_allclose(z[:, 0], np.sign(y[:, 0]) * (np.abs(y[:, 0]) - 1), atol=0.12)
    assert_allclose(jax.vmap(law.from_latent)(z), y, rtol=1e-5, atol=1e-5)
    slopes = jax.vmap(jax.jacfwd(law.to_latent))(y)
    assert np.all(np.isfinite(slopes)) and np.all(slopes[np.array([0, -1])] > 0.9)


def test_integers_inside_of_bound_parameters_stay_leaves():
    def log_prob(params, pred, y):
        return -jnp.sum((y - params["center"]) ** 2) * params["power"]

    params = {"center": jnp.zeros(2), "power": 2}
    score = scores.Density(partial(log_prob, params))
    assert len(jax.tree.leaves(score)) == 2
    sized = scores.Density(partial(lambda n, pred, y: -jnp.sum(y[:n] ** 2), 1))
    assert jax.tree.leaves(sized) == []
    assert jax.jit(sized)(None, jnp.array([2.0, 3.0])) == 4
