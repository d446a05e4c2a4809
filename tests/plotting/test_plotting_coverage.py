"""Pictures of coverage: along streams, by group, its law, methods beside each other."""

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

from jaxcp import metrics, plotting
from jaxcp.metrics.rates import wilson
from jaxcp.plotting.coverage import _edges, _law
from jaxcp.sets import Interval, LabelSet

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def names(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_rolling_coverage():
    covered = np.random.default_rng(0).random((2, 50)) < 0.8
    ax = plotting.plot_rolling_coverage(covered, 0.2, window=10, label="a")
    x, rates = ax.get_lines()[-1].get_data()
    rolling = [np.convolve(row, np.full(10, 0.1), mode="valid") for row in covered]
    np.testing.assert_allclose(rates, np.mean(rolling, axis=0))
    assert (x[0], x[-1]) == (9, 49)
    days = np.datetime64("2024-03-01") + np.arange(50)
    again = plotting.plot_rolling_coverage(covered[0], 0.2, window=50, x=days)
    assert again.get_lines()[-1].get_xdata()[0] == days[-1]
    assert "Concise" in type(again.xaxis.get_major_formatter()).__name__
    with pytest.raises(ValueError, match="window <= 50, the number of steps, got 51"):
        plotting.plot_rolling_coverage(covered, 0.2, window=51)
    with pytest.raises(ValueError, match=r"x of shape \(50,\), got \(3,\)"):
        plotting.plot_rolling_coverage(covered, 0.2, window=5, x=[1, 2, 3])


def test_monitors():
    """Capital in powers of ten with its line and first alarm; the mean and its band."""
    log_capital = np.log([0.5, 2.0, 30.0, 10.0, 40.0])
    losses, band = [0, 1, 1, 0, 1], (np.zeros(5), np.ones(5))
    risk, capital = plotting.plot_monitor(
        log_capital, np.log(20), losses=losses, limit=0.25, band=band, label="a"
    )
    curve, line, alarm = capital.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), np.log10(np.exp(log_capital)))
    np.testing.assert_allclose(line.get_ydata(), np.log10(20))
    np.testing.assert_allclose(alarm.get_xydata(), [[3, np.log10(30)]])
    assert names(capital) == ["a", "alarm at 20", "first alarm: step 3"]
    means, line = risk.get_lines()
    np.testing.assert_allclose(means.get_ydata(), [0, 1 / 2, 2 / 3, 1 / 2, 3 / 5])
    assert means.get_color() == curve.get_color()
    assert names(risk) == ["a", "confidence sequence", "limit = 0.25"]
    days = np.datetime64("2024-03-01") + np.arange(5)
    ax = plotting.plot_monitor(log_capital, np.log(100), x=days)
    assert names(ax) == ["alarm at 100"]
    plotting.plot_monitor(log_capital[::-1], np.log(100), x=days, ax=ax)
    assert len(ax.get_lines()) == 3
    with pytest.raises(ValueError, match="losses with 5 rows like log_capital, got 3"):
        plotting.plot_monitor(log_capital, 3, losses=np.ones(3))


def test_group_coverage():
    """The rates of the metric, by name, and those that are too low apart."""
    y = jnp.arange(60.0)
    groups = np.repeat(["b", "a", "c"], [20, 30, 10])
    sets = Interval(y - 1, y + 1 - 2 * (y < 20))  # all of b, half a unit too low
    sets = Interval(jnp.where(y < 15, y + 1, y - 1), y + 2)
    ax = plotting.plot_group_coverage(sets, y, groups, 0.1)
    ticks = [text.get_text() for text in ax.get_yticklabels()]
    assert ticks == ["a (30)", "b (20)", "c (10)"]
    fine, low = (dots[0].get_xydata() for dots in ax.containers)
    rates = metrics.group_coverage(sets, y, groups)
    np.testing.assert_allclose(fine, [[rates[0], 0], [rates[2], 2]])
    np.testing.assert_allclose(low, [[rates[1], 1]])
    ax = plotting.plot_group_coverage(sets, y, groups, 0.1, names=["A", "B", "C"])
    assert ax.get_yticklabels()[2].get_text() == "C (10)"
    with pytest.raises(ValueError, match="longer"):
        plotting.plot_group_coverage(sets, y, groups, 0.1, names=["A"])
    with pytest.raises(ValueError, match=r"groups of shape \(60,\), got \(3,\)"):
        plotting.plot_group_coverage(sets, y, [1, 2, 3], 0.1)


def test_class_coverage_by_name():
    sets = LabelSet(jnp.eye(2, dtype=bool)[jnp.array([0, 1, 0])], ("cat", "dog"))
    ax = plotting.plot_group_coverage(sets, y := ["cat", "dog", "dog"], y, 0.1)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["cat (1)", "dog (2)"]


@pytest.mark.parametrize("n, alpha", [(7, 0.1), (40, 0.25), (1000, 0.02)])
def test_errors_reach_the_level_within_two_standard_errors_of_it(n, alpha):
    rates = np.arange(n + 1) / n
    low, high = wilson(rates, np.full(n + 1, n))
    level, error = 1 - alpha, 2 * np.sqrt(alpha * (1 - alpha) / n)
    reached = (low <= level) & (level <= high)
    np.testing.assert_array_equal(reached, abs(rates - level) <= error)
    assert low.min() > -1e-12 and high.max() < 1 + 1e-12


def test_coverages_of_test_rows_have_bins_on_their_grid():
    """Each bin has equally many of the fractions, and none is on an edge."""
    samples = np.random.default_rng(0).binomial(250, 0.9, 5000) / 250
    for values in (samples, samples.astype("float32")):
        edges = _edges(values.astype(float))
        held = np.histogram(np.arange(251) / 250, edges)[0]
        assert set(held[:-1]) == {held[0]}
        assert np.abs(edges * 250 - np.round(edges * 250)).min() > 0.4
        assert edges[0] < values.min() and values.max() < edges[-1]


def test_few_bins_for_many_coverages():
    samples = np.random.default_rng(0).beta(90, 10, 100_000)
    assert len(_edges(samples)) <= 42
    ones = plotting.plot_coverage([1.0, 1.0], 5, 0.1).patches[0]
    assert 1 in np.round(ones.get_xy()[:, 0], 1)
    assert len(plotting.plot_coverage([], 99, 0.1).patches) == 0


def test_the_law_of_counted_coverage():
    """BetaBinomial: its mass, mean and variance."""
    grid, density, name = _law(90, 10, 50)
    mass = density / 50
    assert name == "BetaBinomial(50, 90, 10), exact"
    np.testing.assert_allclose(mass.sum(), 1, atol=1e-4)
    np.testing.assert_allclose(mass @ grid, 0.9, atol=1e-4)
    variance = 0.09 / 50 * (1 + 49 / 101)
    np.testing.assert_allclose(mass @ (grid - 0.9) ** 2, variance, rtol=0.01)
    with pytest.raises(ValueError, match="num_test as an int >= 1, got 0"):
        plotting.plot_coverage([0.9, 0.8], 99, 0.1, num_test=0)


def test_coverage_curves_have_their_diagonal_on_any_axes():
    ax = plt.subplots()[1]
    plotting.plot_coverage_curve([0.1, 0.2], [0.9, 0.8], label="a", ax=ax)
    plotting.plot_coverage_curve([0.1, 0.2], [0.9, 0.8], label="b", ax=ax)
    assert names(ax) == ["exact", "a", "b"]


def test_strata_show_the_range_that_they_have():
    y = jnp.linspace(-1.0, 1.0, 1000)
    sets = Interval(y - 0.95, y + 0.95)
    ax = plotting.plot_size_stratified_coverage(sets, y, 0.1)
    assert ax.get_ylim()[0] > 0.8
    assert ax.get_xlabel() == "mean width of the stratum"
    assert max(ax.get_yticks()) < 1.001


def test_comparison():
    left, right = plotting.plot_comparison(
        ["split", "CQR", "EnbPI"],
        [0.9, 0.91, 0.6],
        [2.0, jnp.inf, 1.5],
        0.1,
        coverage_errors=[0.01, 0.02, 0.03],
        size_errors=[[0.1, 0.1, 0.1], [0.2, 0.2, 0.2]],
        lowest=0.85,
        label="diabetes",
    )
    assert [t.get_text() for t in left.get_yticklabels()] == ["split", "CQR", "EnbPI"]
    assert left.get_xlim()[0] == 0.85 and right.get_xlim()[0] <= 0
    shown = left.containers[0][0].get_xdata()
    np.testing.assert_allclose(shown, [0.9, 0.91, np.nan])
    assert [t.get_text() for t in left.texts] == ["0.6"]
    assert [t.get_text() for t in right.texts] == ["infinite"]
    both = left, right
    plotting.plot_comparison(
        ["split", "CQR", "EnbPI"], [0.9] * 3, [1.0] * 3, 0.1, label="b", ax=both
    )
    assert names(left) == ["1 − α = 0.9", "diabetes", "b"]
    with pytest.raises(ValueError, match="same size"):
        plotting.plot_comparison(["a"], [0.9, 0.8], [1.0], 0.1)
    with pytest.raises(ValueError, match="xerr"):
        plotting.plot_comparison(["a"], [0.9], [1.0], 0.1, size_errors=[1.0, 2.0])
    with pytest.raises(ValueError, match="names as the axes have them, split, CQR, En"):
        plotting.plot_comparison(["CQR", "split"], [0.9] * 2, [1.0] * 2, 0.1, ax=both)
    with pytest.raises(ValueError, match="expected 2, got 1"):
        plotting.plot_comparison(["a"], [0.9], [1.0], 0.1, ax=left)
