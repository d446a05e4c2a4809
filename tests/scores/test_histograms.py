"""Predicted histograms and densities on a grid: scores, and unions as sets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import jaxcp
from helpers import inside, reference, scores_of, sets_of
from jaxcp.scores import Binned, Interpolated
from rows import calibrate, refuses

KEY, INF = jax.random.key(0), np.inf
VECTORS = reference("distributional/histograms")
NUM_CAL, Y = int(VECTORS["num_calibration"]), VECTORS["y"]
ALPHAS = [0.05, 0.1, 0.2, 0.5]
BEYOND = abs(Y) > 3  # the edges and knots end there


def precise(dtype):
    """Returns a switch for double precision, vectors in a type, and how close."""
    found = {k: np.asarray(v, dtype) for k, v in VECTORS.items() if v.dtype == float}
    close = 1e-9 if dtype == "float64" else 1e-5
    return jax.enable_x64(dtype == "float64"), found, {"rtol": close, "atol": close}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bins_are_those_of_the_vectors(dtype):
    switch, v, close = precise(dtype)
    middle = (v["edges"][1:] + v["edges"][:-1]) / 2
    with switch:
        plain = Binned(v["edges"])
        assert_allclose(scores_of(plain, v["mass"], v["y"]), v["hpd"], **close)
        assert_array_equal(scores_of(plain, v["mass"], v["y"]) == INF, BEYOND)
        for j, y in enumerate(middle):
            every = scores_of(plain, v["mass"], np.full(Y.shape, y))
            assert_allclose(every, v["hpd_bins"][:, j], **close)
        randomized = scores_of(Binned(v["edges"], True), (v["mass"], v["u"]), v["y"])
        expected = np.where(BEYOND, INF, v["hpd_randomized"])
        assert_allclose(randomized, expected, **close)
        cp = jaxcp.calibrate(plain, v["mass"][:NUM_CAL], v["y"][:NUM_CAL])
        q = cp.quantile(np.array(ALPHAS))
        assert q.dtype == dtype
        assert_allclose(q, v["hpd_threshold"], **close)
        sets = [cp(v["mass"][NUM_CAL:], alpha) for alpha in ALPHAS]
        mask = [[inside(each, np.full(15, y)) for y in middle] for each in sets]
        assert_array_equal(np.moveaxis(mask, 1, 2), VECTORS["hpd_mask"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_densities_are_those_of_the_vectors_but_beyond_the_grid(dtype):
    switch, v, close = precise(dtype)
    assert np.all(v["r2ccp"][BEYOND] == 0)
    with switch:
        score = Interpolated(v["knots"])
        expected = np.where(BEYOND, INF, v["r2ccp"])
        assert_allclose(scores_of(score, v["mass"], v["y"]), expected, **close)
        cp = jaxcp.calibrate(score, v["mass"][:NUM_CAL], v["y"][:NUM_CAL])
        q = cp.quantile(np.array(ALPHAS))
        assert_allclose(q, v["r2ccp_threshold"], **close)
        for i, alpha in enumerate(ALPHAS):
            sets = cp(v["mass"][NUM_CAL:], alpha)
            lower, upper = np.moveaxis(v["r2ccp_intervals"][:, i], -1, 0)
            assert_allclose(sets.lower[:, :5], lower, **close)
            assert_allclose(sets.upper[:, :5], upper, **close)
            assert np.all(sets.lower[:, 5:] == INF)


def naive_bin_score(edges, p, y, u=0.0):
    """HPD-split as it is written, for one row."""
    density = [p[j] / (edges[j + 1] - edges[j]) for j in range(len(p))]
    found = INF
    for j in range(len(p)):
        if edges[j] <= y <= edges[j + 1]:
            before = [i for i in range(len(p)) if density[i] > density[j]]
            before += [i for i in range(j) if density[i] == density[j]]
            found = min(found, sum(p[i] for i in before) + (1 - u) * p[j])
    return found


EDGES = np.array([-4, -2, -1, 0, 2, 2.5, 3], np.float32)


def eighths(count):
    """Probabilities of six bins with ties and zeros, uniforms, targets, some on edges.

    Also beyond the edges.
    """
    rng = np.random.default_rng(0)
    p = rng.multinomial(8, np.full(6, 1 / 6), count) / 8
    y = np.round(rng.uniform(-5, 4, count) * 2) / 2
    every = p, rng.integers(0, 9, count) / 8, y
    return tuple(v.astype(np.float32) for v in every)


@pytest.mark.parametrize("randomized", [False, True])
def test_bins_against_a_loop_and_their_sets_at_every_tie(randomized):
    p, u, y = eighths(600)
    score = Binned(EDGES, randomized)
    preds = (p, u) if randomized else p
    found = np.asarray(scores_of(score, preds, y))
    rows = zip(p, y, u * randomized, strict=True)
    expected = [naive_bin_score(EDGES, *row) for row in rows]
    assert_array_equal(found, np.asarray(expected, np.float32))
    own = np.where(np.isinf(found), 1, found)
    below = np.where(own > 0, np.nextafter(own, -INF), np.float32(-1e-30))
    above = np.where(own > 0, np.nextafter(own, INF), np.float32(1e-30))
    for q in (own, below, above, own[::-1], own * 0, own - INF, own + INF):
        sets = sets_of(score, preds, q)
        assert_array_equal(inside(sets, y), found <= q)
        for other in np.append(EDGES, [-4.25, -1.5, 2.25, 3.25]):
            y_other = np.full(y.shape, other, np.float32)
            held = np.asarray(scores_of(score, preds, y_other)) <= q
            assert_array_equal(inside(sets, y_other), held)
    assert np.all(sets.num_pieces() == 1) and np.all(sets.size() == INF)


@pytest.mark.parametrize("offset", [0, 10_000])
def test_no_target_is_lost_at_its_own_threshold(offset):
    """Whatever ends round to: plateaus, densities near 0, targets far from 0."""
    rng = np.random.default_rng(1)
    p = rng.exponential(size=(3000, 8)) ** rng.integers(0, 9, (3000, 8))
    p[::3] = 1 + 1e-6 * rng.integers(0, 3, (1000, 8))  # nearly flat
    p[1::3] *= rng.integers(0, 2, (1000, 8))  # zeros
    p = p.astype(np.float32)
    grid = np.asarray(offset + np.array([0, 2, 3, 7, 8, 16, 17, 20]), np.float32)
    y = rng.uniform(offset - 1, offset + 21, 3000).astype(np.float32)
    y[::7] = grid[rng.integers(0, 8, y[::7].size)]
    score = Interpolated(grid)
    q = np.asarray(scores_of(score, p, y))
    assert np.all(inside(sets_of(score, p, q), y))
    found = np.isfinite(q)
    assert_array_equal(~found, (y < grid[0]) | (y > grid[-1]))
    rows = [*zip(y.astype(float), p.astype(float), strict=True)]
    exact = np.array([np.interp(at, grid, row) for at, row in rows])
    assert_allclose(-q[found], exact[found], rtol=1e-5, atol=1e-30)
    level = np.where(found, -1.001 * q, 1)
    held = inside(sets_of(score, p, -level), y) & found & (level > 0)
    around = [at + 1e-6 * at * np.array([-1, 0, 1]) for at in y.astype(float)]
    near = [np.interp(at, grid, row) for at, (_, row) in zip(around, rows, strict=True)]
    assert np.all(np.max(near, axis=1)[held] >= 0.99999 * level[held])
    whole = sets_of(score, p, np.zeros_like(q))  # of density 0 too, and not beyond
    assert np.all(whole.lower[:, 0] == grid[0]) and np.all(whole.num_pieces() == 1)
    assert np.all(whole.upper[:, 0] == grid[-1])


def mixture(x, y):
    """P(Y <= y) given x: two hills whose distance and widths depend on x."""
    left = stats.norm(-1 - x, 0.5).cdf(y)
    return (left + stats.norm(1 + x, 0.3 + 0.5 * x).cdf(y)) / 2


def smallest_volume(mass, widths, level):
    """The least length of bins, and of a part of one, that holds a mass."""
    order = np.argsort(-mass / widths)
    total = np.cumsum(mass[order])
    j = np.searchsorted(total, level)
    part = (level - total[j] + mass[order][j]) / mass[order][j]
    return widths[order][:j].sum() + part * widths[order][j]


def test_true_histograms_give_uniform_scores_and_the_smallest_volume():
    """Given each input; split coverage is k / (n + 1)."""
    rng, n, runs = np.random.default_rng(2), 99, 300
    edges = np.linspace(-8, 10, 91)
    masses = np.diff([mixture(x, edges) for x in (0, 1)], axis=1)
    masses /= masses.sum(axis=1, keepdims=True)
    x = rng.integers(0, 2, (runs, n + 1))
    hill, noise = rng.integers(0, 2, x.shape), rng.normal(size=x.shape)
    y = np.where(hill, 1 + x + (0.3 + 0.5 * x) * noise, -1 - x + 0.5 * noise)
    score = Binned(jnp.asarray(edges, float), True)
    preds, u = jnp.asarray(masses, float)[x], jax.random.uniform(KEY, x.shape)

    @jax.jit
    @jax.vmap
    def trial(preds, u, y):
        cp = jaxcp.calibrate(score, (preds[:n], u[:n]), y[:n])
        sets = cp((preds[n:], u[n:]), 0.1)
        return cp.scores, sets.contains(y[n:])[0], sets.size()[0]

    found, covered, sizes = map(np.asarray, trial(preds, u, jnp.asarray(y, float)))
    assert abs(covered.mean() - 0.9) < 4 * (0.09 / runs) ** 0.5
    for group in (0, 1):
        uniform = found[x[:, :n] == group]
        assert stats.kstest(uniform, "uniform").pvalue > 1e-4
        least = smallest_volume(masses[group], np.diff(edges), 0.9)
        of_group = sizes[x[:, n] == group]
        error = of_group.std() / of_group.size**0.5
        assert abs(of_group.mean() - least) < 4 * error + 0.01 * least


def test_traced_predictions_that_are_none_have_sets():
    for score in (Binned(EDGES), Interpolated(EDGES[:-1])):
        p = jnp.array([[jnp.nan, *[0.2] * 5], [3.0] * 6, [0.0] * 6])
        sets = sets_of(score, p, jnp.zeros(3))
        assert not np.any(np.isnan(sets.lower))
        far = scores_of(score, p, jnp.array([9.0, -9.0, INF]))
        assert_array_equal(far, [INF] * 3)


def test_few_rows_and_targets_beyond_give_the_whole_line():
    p, _, y = eighths(30)
    for score in (Binned(EDGES), Interpolated(EDGES[:-1])):
        for cp in (
            jaxcp.calibrate(score, p[:3], y[:3]),
            jaxcp.calibrate(score, p, np.full(30, 9.0, np.float32)),
        ):
            sets = cp(p[:2], 0.1)
            assert_array_equal(sets.lower[:, 0], [-INF] * 2)
            assert_array_equal(sets.upper[:, 0], [INF] * 2)


P = np.full((9, 6), 1 / 6, np.float32)
Y9 = np.arange(9.0)
INFINITE = np.append(EDGES[:-1], np.float32(INF))
test_wrong_calls = refuses(
    {
        "edges for others": (calibrate(Binned(EDGES[1:]), P, Y9), r"shape \(7,\)"),
        "edges that fall": (calibrate(Binned(-EDGES), P, Y9), "edges that increase"),
        "an infinite edge": (calibrate(Binned(INFINITE), P, Y9), "and are finite"),
        "no shares": (calibrate(Binned(EDGES), 2 * P, Y9), "that sum to 1"),
        "two outputs": (calibrate(Binned(EDGES), P, np.ones((9, 2))), r"y of shape"),
        "one point": (calibrate(Interpolated(EDGES[:1]), P[:, :1], Y9), "grid of"),
        "below 0": (calibrate(Interpolated(EDGES[1:]), -P, Y9), "densities >= 0"),
    }
)


def test_densities_of_any_size_keep_their_targets():
    score, tiny = Interpolated(jnp.array([0.0, 1.0])), jnp.array([5.8e-38, 3.2e-40])
    y = jnp.float32(6.08e-19)
    assert score.invert(tiny, score(tiny, y)).contains(y)
    wide, p = Interpolated(jnp.array([-1e30, 0, 1e30])), jnp.array([0, 1e30, 0])
    assert wide.invert(p, wide(p, 5e29)).contains(5e29)


@pytest.mark.double
def test_places_that_are_one_number_in_single_precision_are_refused():
    edges, p = 1e12 + np.arange(5), np.full((9, 4), 0.25)
    if not jax.config.jax_enable_x64:
        with pytest.raises(ValueError, match="edges that increase"):
            jaxcp.calibrate(Binned(edges), p, 1e12 + np.arange(9) % 4)
