"""Pictures of predictive distributions and of probabilities."""

import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_allclose

from jaxcp import plotting
from jaxcp.plotting.distributions import _ends_of_count
from jaxcp.predictive import Atoms

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INF = np.inf


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def names(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ends_at(ax, x, which=0):
    """The lowest and the highest place of a strip at an input."""
    (path,) = ax.collections[which].get_paths()
    inside = [y for y in np.linspace(-1, 3, 4001) if path.contains_point((x, y))]
    return inside[0], inside[-1]


def test_all_bins_of_a_right_system_are_in_the_band():
    """With at least its probability, by draws from the Dirichlet-multinomial law."""
    rng, n, m, cells = np.random.default_rng(0), 49, 200, np.array([12, 13, 13, 12])
    for probability in (0.5, 0.9):
        tail = (1 - probability) / 8
        low, high = np.array([_ends_of_count(c, n, m, tail) for c in cells]).T
        draws = rng.multinomial(m, rng.dirichlet(cells, 4000))
        share = np.mean(np.all((low <= draws) & (draws <= high), axis=1))
        assert share > probability - 4 * 0.5 / 4000**0.5
    assert _ends_of_count(5, 9, 1, 0.2) == (0, 1)


def test_pit_histogram_and_its_band():
    pit = (np.arange(200) + 0.5) / 200
    ax = plotting.plot_pit(pit, 49, num_bins=4, probability=0.9)
    (bars,) = ax.patches
    assert_allclose(bars.get_xy()[:, 1].max(), 1)  # cells 12, 13, 13, 12
    low, high = _ends_of_count(13, 49, 200, 0.1 / 8)
    assert_allclose(ends_at(ax, 0.3), [low / 52, high / 52], atol=2e-3)
    low, high = _ends_of_count(12, 49, 200, 0.1 / 8)
    assert_allclose(ends_at(ax, 0.99), [low / 48, high / 48], atol=2e-3)
    assert names(ax) == ["PIT of 200 rows", "band of all bins, 90 %", "uniform"]
    assert ax.get_xlim() == (0, 1) and ax.get_xlabel() == "PIT"


def test_steps_of_a_distribution_and_their_strip():
    """Q(y, 0), Q(y, 1/2) and Q(y, 1) between atoms 1, 2, 2, 4."""
    ax = plotting.plot_cdf(Atoms(np.array([2.0, 4, 1, 2])), label="row")
    x, middle = ax.get_lines()[0].get_data()
    assert_allclose(x[1:-1], [1, 2, 2, 4])
    assert_allclose(middle[:-1], [0.1, 0.3, 0.5, 0.7, 0.9])
    assert_allclose(ends_at(ax, 1.5), [0.2, 0.4], atol=2e-3)
    assert_allclose(ends_at(ax, 3), [0.6, 0.8], atol=2e-3)
    weighted = Atoms(np.array([1.0, INF, -INF]), np.array([1.0, 2, 5]), np.array(2.0))
    ax = plotting.plot_cdf(weighted, ax=ax)
    assert_allclose(ax.get_lines()[1].get_ydata()[1:3], [0.6, 0.7])
    assert names(ax) == ["row"] and ax.get_ylabel() == "probability"
    plotting.plot_cdf(Atoms(np.zeros(0)))
    plotting.plot_cdf(Atoms(np.array([INF, -INF])))


def test_a_fan_has_a_band_for_each_pair_of_levels():
    x = np.array([3.0, 1, 2])
    quantiles = x[:, None] / 8 + np.array([-0.5, -0.25, 0, 0.25, 0.5])
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    y = np.array([0.375, 1, 0.25])
    ax = plotting.plot_fan(x, quantiles, levels, y, legend="lower right")
    shown = ["0.5", "0.25 to 0.75", "0.05 to 0.95", "covered (2)", "missed (1)"]
    assert names(ax) == shown
    assert_allclose(ax.get_lines()[0].get_data(), [[1, 2, 3], [0.125, 0.25, 0.375]])
    assert_allclose(ends_at(ax, 2, 0), [0, 0.5], atol=2e-3)
    assert_allclose(ends_at(ax, 2, 1), [-0.25, 0.75], atol=2e-3)
    quantiles[0, -1] = INF
    ax = plotting.plot_fan(x, quantiles[:, [0, -1]], [0.05, 0.95], alpha=0.1)
    assert names(ax) == ["0.05 to 0.95", "infinite (1)"]
    assert ax.collections[0].get_alpha() == 0.1


def test_dots_are_rates_of_bins_with_rows():
    probs = np.repeat([0.05, 0.5, 0.95], [100, 50, 100])
    y = np.arange(250) % 2  # half of the rows of each bin
    ax = plotting.plot_reliability(probs, y, num_bins=4)
    calm, apart = ax.containers[:2]
    assert_allclose(calm.lines[0].get_xydata(), [[0.5, 0.5]], atol=1e-6)
    assert_allclose(apart.lines[0].get_xydata(), [[0.05, 0.5], [0.95, 0.5]], atol=1e-6)
    assert_allclose([bar.get_height() for bar in ax.containers[2]], [0.4, 0.2, 0.4])
    ax = plotting.plot_reliability(probs, y, num_bins=1, ax=ax)
    assert plotting.plot_reliability(np.zeros(0), np.zeros(0)) is not None


@pytest.mark.parametrize(
    "draw, match",
    [
        (lambda: plotting.plot_pit([2.0], 99), r"pit in \[0, 1\]"),
        (lambda: plotting.plot_pit([0.5], 99, probability=1.0), r"\(0, 1\)"),
        (lambda: plotting.plot_cdf(Atoms(np.array([np.nan]))), "without NaN"),
        (lambda: plotting.plot_cdf(Atoms(np.eye(2))), r"values of shape \(n,\)"),
        (lambda: plotting.plot_cdf([1.0]), "atoms of kind Atoms, got list"),
        (lambda: plotting.plot_reliability([2.0], [1]), r"probs in \[0, 1\], got 2.0"),
        (
            lambda: plotting.plot_reliability([0.1, 0.2], [1]),
            "y with 2 rows like probs",
        ),
        (lambda: plotting.plot_reliability(np.eye(2), [0, 1]), "probs of 2 axes"),
        (lambda: plotting.plot_reliability([0.1], [1], num_bins=0), "num_bins as an"),
        (lambda: plotting.plot_fan([1], [[1, 2]], [0.9, 0.1]), "levels that increase"),
        (lambda: plotting.plot_fan([1], [[1]], [0.5]), r"quantiles of shape \(1, 2\)"),
        (lambda: plotting.plot_fan([1], [[1, 2]], [0.1, 0.9], [1, 2]), "y of shape"),
    ],
)
def test_wrong_calls(draw, match):
    with pytest.raises(ValueError, match=match):
        draw()
