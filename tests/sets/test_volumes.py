import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import reference
from jaxcp import scores
from jaxcp.sets import Balls, Box, Ellipsoid, Interval

pytestmark = pytest.mark.slow

EXACT = reference("multioutput/volumes_exact")
KEYS = jax.random.split(jax.random.key(0), 12)


def volumes(regions, sobol=False, num_samples=4000, keys=KEYS):
    run = lambda key, region: jaxcp.volume(key, region, num_samples, sobol=sobol)  # noqa: E731
    return jax.jit(jax.vmap(run))(keys, regions)


def assert_within(found, exact, errors=3):
    log_volume, error = (np.asarray(v, float) for v in found)
    assert np.all(error < 0.2)
    assert np.all(np.abs(log_volume - exact) <= errors * error + 1e-5)


def log_normal(pred, y):
    """Log density of N(0, L L') from L = pred."""
    z = jax.scipy.linalg.solve_triangular(pred, y, lower=True)
    log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(pred))))
    return -0.5 * jnp.sum(z**2) - log_det - 0.5 * len(y) * jnp.log(2 * jnp.pi)


def sample_normal(key, pred, n):
    return jax.random.normal(key, (n, len(pred))) @ pred.T


@pytest.mark.parametrize("sobol", [False, True])
@pytest.mark.parametrize("d", [1, 2])
def test_unions_of_balls(d, sobol):
    balls = Balls(jnp.asarray(EXACT[f"centres{d}"]), jnp.asarray(EXACT["radius"]))
    exact = np.log(EXACT[{1: "length_union", 2: "area_union"}[d]])
    found = volumes(balls, sobol)
    assert_within(found, exact)
    if sobol:  # closer than the error says
        assert np.mean(np.abs(found[0] - exact) < found[1]) > 0.9


@pytest.mark.parametrize("d", [1, 2, 8])
def test_ellipsoids_level_sets_and_latent_balls(d):
    """The same regions three times: in closed form, by a density, by a latent map."""
    scale, rho, level, exact = (
        jnp.asarray(EXACT[f"{name}_{d}"])
        for name in ("chol", "rho", "level", "log_volume")
    )
    ellipsoids = Ellipsoid(jnp.zeros((12, d)), scale, rho)
    log_volume, error = volumes(ellipsoids)
    assert_allclose(log_volume, exact, rtol=1e-5, atol=1e-5)
    assert_array_equal(error, 0)
    density = scores.Density(log_normal, sample_normal)
    assert_within(volumes(jax.vmap(density.invert)(scale, -level)), exact)
    latent = scores.Latent(to_code, from_code, d)
    images = jax.vmap(latent.invert)(scale, rho)
    for sobol in (False, True):
        assert_within(volumes(images, sobol), exact, errors=3.5)


def to_code(scale, y):
    return jax.scipy.linalg.solve_triangular(scale, y, lower=True)


def from_code(scale, z):
    return scale @ z


def test_errors_are_standard_errors():
    """Over many keys, estimates are unbiased and as far off as they say."""
    keys = jax.random.split(jax.random.key(1), 200)
    row = lambda name: jnp.asarray(EXACT[name][1])  # noqa: E731
    latent = scores.Latent(to_code, from_code, 3)
    density = scores.Density(log_normal, sample_normal)
    for region, exact in [
        (latent.invert(row("chol_3"), row("rho_3")), EXACT["log_volume_3"][1]),
        (density.invert(row("chol_3"), -row("level_3")), EXACT["log_volume_3"][1]),
    ]:
        same = jax.tree.map(lambda v: jnp.broadcast_to(v, (200, *v.shape)), region)
        log_volume, error = volumes(same, num_samples=1000, keys=keys)
        off = np.asarray((log_volume - exact) / error)
        assert abs(off.mean()) < 0.3
        assert 0.8 < off.std() < 1.2


def test_a_map_that_stretches_a_gap():
    """Nearly no latent code lies between two far modes, most of the volume does."""
    law = jaxcp.datasets.Bimodal()
    region = scores.Latent.of(law, None).invert(
        jnp.ones(1), jnp.sqrt(-2 * jnp.log(0.2))
    )
    side = jnp.linspace(-9.0, 9.0, 121)
    grid = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    cells = jnp.sum(jaxcp.sets.membership(region, grid)) * (side[1] - side[0]) ** 2
    log_volume, error = jaxcp.volume(KEYS[0], region, 2000)
    assert abs(log_volume - jnp.log(cells)) < 3 * error + 0.02
    assert error < 0.05


BALL = Balls(jnp.array([[1.0, 2.0]]), jnp.array(1.5))
PAIR = Balls(jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), jnp.array(1.0))


def with_radius(balls, radius):
    return Balls(balls.centers, jnp.asarray(radius))


@pytest.mark.parametrize(
    "region, size",
    [
        (Interval(jnp.array(1.0), jnp.array(3.0)), 2.0),
        (Interval(jnp.array(3.0), jnp.array(1.0)), 0.0),
        (Interval(jnp.array(0.0), jnp.array(np.inf)), np.inf),
        (Box(jnp.zeros(2), jnp.array([2.0, 3.0])), 6.0),
        (Box(jnp.array([0.0, -np.inf]), jnp.array([0.0, np.inf])), 0.0),
        (Box(jnp.full(2, -np.inf), jnp.full(2, np.inf)), np.inf),
        (BALL, 2.25 * np.pi),
        (Balls(jnp.zeros(4), jnp.array(0.5)), 1.0),  # numbers: four times one interval
        (with_radius(BALL, np.inf), np.inf),
        (with_radius(BALL, 0.0), 0.0),
        (with_radius(BALL, -1.0), 0.0),
        (Ellipsoid(jnp.zeros(2), jnp.array([1.0, 2.0]), jnp.array(1.0)), 2 * np.pi),
        (Ellipsoid(jnp.zeros(2), jnp.eye(2), jnp.array(np.inf)), np.inf),
        (Ellipsoid(jnp.zeros(2), jnp.eye(2), jnp.array(-np.inf)), 0.0),
    ],
    ids=str,
)
def test_sizes_known_exactly(region, size):
    log_volume, error = jaxcp.volume(KEYS[0], region, 200)
    assert_allclose(jnp.exp(log_volume), size, rtol=1e-5)
    assert error < 1e-4


@pytest.mark.parametrize("level", [np.inf, -np.inf])
def test_whole_space_and_nothing(level):
    density = scores.Density(log_normal, sample_normal)
    latent = scores.Latent(to_code, from_code, 2)
    for score in (density, latent):
        found = jaxcp.volume(KEYS[0], score.invert(jnp.eye(2), jnp.array(level)), 50)
        assert_array_equal(found, [level, 0])


def test_a_set_that_no_draw_falls_into():
    density = scores.Density(log_normal, sample_normal)
    found = jaxcp.volume(KEYS[0], density.invert(jnp.eye(2), jnp.array(-5.0)), 50)
    assert_array_equal(found, [-np.inf, np.inf])


def test_the_gradient_of_a_union_is_its_surface():
    """Two discs at distance 1, one of them twice: the area in closed form."""

    def area(radius, distance):
        half = distance / (2 * radius)
        lens = 2 * radius**2 * jnp.arccos(half) - distance * radius * jnp.sqrt(
            1 - half**2
        )
        return jnp.log(2 * jnp.pi * radius**2 - lens)

    def estimate(radius, distance):
        centers = (
            jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]).at[1:, 0].set(distance)
        )
        return jaxcp.volume(KEYS[0], Balls(centers, radius), 20_000)[0]

    exact = jax.grad(area, (0, 1))(1.0, 1.0)
    found = jax.jit(jax.value_and_grad(estimate, (0, 1)))(1.0, 1.0)
    assert_allclose(found[0], area(1.0, 1.0), atol=0.01)
    assert_allclose(found[1], exact, atol=0.03)


def test_gradients_of_estimates_are_those_of_the_volume():
    """log V = log V_d + d log r + log det: with respect to the level and the scale."""

    def by_density(log_scale, level):
        score = scores.Density(log_normal, sample_normal)
        pred = jnp.exp(log_scale) * jnp.eye(2)
        return jaxcp.volume(KEYS[0], score.invert(pred, level), 40_000)[0]

    def by_code(log_scale, radius):
        score = scores.Latent(to_code, from_code, 2)
        pred = jnp.exp(log_scale) * jnp.eye(2)
        return jaxcp.volume(KEYS[0], score.invert(pred, radius), 2000)[0]

    # -log f <= t is a disc of squared radius 2 scale^2 (t - log 2 pi - 2 log scale)
    exact = lambda s, t: jnp.log(2 * jnp.exp(2 * s) * (t - jnp.log(2 * jnp.pi) - 2 * s))  # noqa: E731
    level = 3.5
    expected = jax.grad(exact, (0, 1))(0.1, level)
    found = jax.jit(jax.grad(by_density, (0, 1)))(0.1, level)
    assert_allclose(found, expected, rtol=0.1, atol=0.05)
    found = jax.jit(jax.grad(by_code, (0, 1)))(0.1, 1.5)
    assert_allclose(found, [2.0, 2 / 1.5], rtol=1e-3)


@pytest.mark.parametrize("radius", [0.0, -1.0, np.inf])
def test_gradients_of_degenerate_volumes_are_finite(radius):
    for region in (PAIR, Ellipsoid(jnp.zeros(2), jnp.eye(2), jnp.array(1.0))):

        def log_volume(r, region=region):
            changed = jax.tree.unflatten(
                jax.tree.structure(region), [*jax.tree.leaves(region)[:-1], r]
            )
            value = jaxcp.volume(KEYS[0], changed, 100)[0]
            return jnp.where(jnp.isfinite(value), value, 0)

        assert np.isfinite(jax.grad(log_volume)(radius))


def test_mean_volumes():
    balls = Balls(jnp.zeros((3, 1, 2)), jnp.array([1.0, 2.0, 4.0]))
    found = jaxcp.metrics.mean_volume(KEYS[0], balls, 10)
    assert_allclose(found.mean, 7 * np.pi, rtol=1e-4)
    assert_allclose(found.geometric_mean, 4 * np.pi, rtol=1e-4)
    some = jaxcp.metrics.mean_volume(
        KEYS[0], Balls(balls.centers, jnp.array([1.0, 0.0, np.inf])), 10
    )
    assert some.mean == some.geometric_mean == np.inf
    none = jaxcp.metrics.mean_volume(KEYS[0], Balls(balls.centers, jnp.zeros(3)), 10)
    assert none.mean == none.geometric_mean == 0


def test_volumes_do_not_depend_on_other_sets():
    centers = jax.random.normal(KEYS[0], (5, 7, 2))
    together = jaxcp.metrics.mean_volume(KEYS[1], Balls(centers, jnp.ones(5)), 50)
    alone = jaxcp.metrics.mean_volume(KEYS[1], Balls(centers[:2], jnp.ones(2)), 50)
    assert_allclose(together.log_volumes[:2], alone.log_volumes, rtol=1e-6)


def test_sobol_points_are_uniform_whatever_the_scramble():
    from jaxcp.volumes import estimate

    for key in KEYS[:3]:
        u = np.asarray(estimate._uniforms(key, 256, 3, jnp.float32, True))
        assert u.min() > 0 and u.max() < 1
        for column in u.T:  # one point in each of 256 strata
            assert len(set((column * 256).astype(int))) == 256
        pairs = (u[:, :2] * 16).astype(int)
        assert len({tuple(p) for p in pairs}) == 256  # and in each of 16 x 16 squares
    assert not np.allclose(u, estimate._uniforms(KEYS[5], 256, 3, jnp.float32, True))


def test_densities_that_vanish_have_gradients():
    half = scores.Density(
        lambda p, y: jnp.where(y[0] > 0, -0.5 * jnp.sum(y**2), -jnp.inf),
        lambda key, p, n: jax.random.normal(key, (n, 2)),
    )
    log_volume = lambda level: jaxcp.volume(KEYS[0], half.invert(0.0, level), 500)[0]  # noqa: E731
    value, slope = jax.value_and_grad(log_volume)(1.0)
    assert np.isfinite(value) and np.isfinite(slope)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float16, jnp.bfloat16])
def test_unions_in_other_types(dtype):
    balls = Balls(jnp.array([[0, 0], [9, 0]], dtype), jnp.array(1.0, jnp.float16))
    log_volume, _ = jaxcp.volume(KEYS[0], balls, 50)
    assert_allclose(float(log_volume), np.log(2 * np.pi), rtol=1e-2)


@pytest.mark.parametrize(
    "region",
    [
        with_radius(BALL, jnp.nan),
        Balls(jnp.full((1, 2), jnp.nan), jnp.array(1.0)),
        Ellipsoid(jnp.zeros(2), jnp.eye(2), jnp.array(jnp.nan)),
        Interval(jnp.array(jnp.nan), jnp.array(1.0)),
        scores.Density(log_normal, sample_normal).invert(
            jnp.eye(2), jnp.array(jnp.nan)
        ),
    ],
    ids=lambda r: type(r).__name__,
)
def test_a_set_with_a_nan_has_no_volume(region):
    assert np.all(np.isnan(jaxcp.volume(KEYS[0], region, 20)))


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_copies_of_a_ball_cost_nothing(offset):
    """Wherever they are: 90 copies of one ball beside ten others."""
    few = jax.random.normal(KEYS[0], (10, 2)) + offset
    many = jnp.concatenate([few, jnp.broadcast_to(few[0], (90, 2))])
    alone = jaxcp.volume(KEYS[1], Balls(few, jnp.array(0.5)), 2000)
    crowded = jaxcp.volume(KEYS[1], Balls(many, jnp.array(0.5)), 2000)
    assert_allclose(crowded, alone, atol=2e-3)  # points on the edge round apart


def test_balls_at_infinity_hold_nothing():
    """A draw that overflowed neither counts nor spoils the others."""
    far = jnp.array([[0.0, 0.0], [jnp.inf, 0.0], [9.0, 0.0]])
    log_volume = lambda r: jaxcp.volume(KEYS[0], Balls(far, r), 200)[0]  # noqa: E731
    value, slope = jax.value_and_grad(log_volume)(1.0)
    assert_allclose([value, slope], [np.log(2 * np.pi), 2.0], rtol=1e-4)
    nowhere = Balls(jnp.full((2, 2), jnp.inf), jnp.array(1.0))
    assert_array_equal(jaxcp.volume(KEYS[0], nowhere, 50), [-np.inf, 0])
