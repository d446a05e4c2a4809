import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

from jaxcp import plotting
from jaxcp.scores import Density
from jaxcp.sets import Balls, Box, Ellipsoid, Interval, LabelSet, LevelSet

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def test_intervals():
    sets = Interval(jnp.array([0.0, -jnp.inf, 2.0]), jnp.array([1.0, jnp.inf, 1.0]))
    ax = plotting.plot_intervals(jnp.arange(3.0), sets, [0.5, 3.0, 1.5])
    covered, missed = (line.get_xdata() for line in ax.get_lines())
    assert list(covered) == [0, 1]
    assert list(missed) == [2]
    assert plotting.plot_intervals(jnp.arange(3.0)[:, None], sets, ax=ax) is ax
    with pytest.raises(ValueError, match=r"ends of shape \(2,\), got \(3,\)"):
        plotting.plot_intervals(jnp.arange(2.0), sets)
    with pytest.raises(ValueError, match=r"y of shape \(3,\), got \(2,\)"):
        plotting.plot_intervals(jnp.arange(3.0), sets, [1.0, 2.0])


def test_label_sets():
    sets = LabelSet(jnp.array([[True, False, False], [True, True, False]]))
    ax = plotting.plot_label_sets(sets, [0, 2])
    rings = ax.collections[-1]
    assert [tuple(p) for p in rings.get_offsets()] == [(0.5, 0.5), (2.5, 1.5)]
    assert not np.allclose(*rings.get_edgecolors())  # the second set misses
    with pytest.raises(ValueError, match=r"y of shape \(2,\), got \(3,\)"):
        plotting.plot_label_sets(sets, [0, 1, 2])


def test_coverage_density_has_mass_one():
    samples = np.random.default_rng(0).beta(90, 10, 500)
    ax = plotting.plot_coverage(samples, 99, 0.1)
    x, density = ax.get_lines()[0].get_data()
    assert abs(np.trapezoid(density, x) - 1) < 0.01
    infinite = plotting.plot_coverage(np.ones(10), 5, 0.1)
    assert len(infinite.get_lines()) == 1  # no law to draw: coverage is 1


DISC = LevelSet(Density(lambda p, y: -jnp.sum(y**2)), None, jnp.array(1.0))
PLANE = Box(jnp.full(2, -2.0), jnp.full(2, 2.0))


@pytest.mark.parametrize(
    "region, bounds",
    [
        (Balls(jnp.zeros((2, 2)), jnp.array(1.0)), None),
        (Ellipsoid(jnp.zeros(2), jnp.eye(2), jnp.array(1.0)), PLANE),
        (Ellipsoid(jnp.zeros(2), jnp.ones(2), jnp.array(1.0)), None),
        (DISC, PLANE),
    ],
)
def test_regions(region, bounds):
    """A unit disc, four times: the shaded area and the missed target."""
    y = jnp.array([[0.5, 0.5], [0.9, 0.9]])
    ax = plotting.plot_region(region, bounds, y, num_points=200)
    covered, missed = (line.get_xydata() for line in ax.get_lines())
    assert np.allclose(covered, y[:1]) and np.allclose(missed, y[1:])
    outline = ax.collections[0].get_paths()[0].vertices
    assert abs(np.linalg.norm(outline, axis=1) - 1).max() < 0.05
    left, right = ax.get_xlim()
    assert (right == 2) if bounds is not None else (left < -1 and 1 < right < 1.2)
    assert plotting.plot_region(region, PLANE, ax=ax) is ax


def test_regions_that_fill_or_miss_the_frame():
    everything = Balls(jnp.zeros((1, 2)), jnp.array(jnp.inf))
    plotting.plot_region(everything, PLANE, num_points=20)
    plotting.plot_region(Box(jnp.ones(2), -jnp.ones(2)), PLANE, num_points=20)
    with pytest.raises(ValueError, match="expected finite bounds"):
        plotting.plot_region(everything)
    with pytest.raises(ValueError, match="expected bounds, a Box, for a LevelSet"):
        plotting.plot_region(DISC)
    with pytest.raises(ValueError, match=r"two outputs, corners of shape \(2,\)"):
        plotting.plot_region(Balls(jnp.zeros((1, 3)), jnp.array(1.0)))
    with pytest.raises(ValueError, match=r"y of shape \(3, 2\), got \(3,\)"):
        plotting.plot_region(PLANE, y=jnp.zeros(3))
