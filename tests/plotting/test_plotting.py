import sys

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxcp import plotting
from jaxcp.scores import Density
from jaxcp.sets import (
    Balls,
    Band,
    BoundingBox,
    Box,
    Ellipsoid,
    Interval,
    Intervals,
    LabelMask,
    LabelSet,
    LevelSet,
)

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def close_figures():
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def test_plots_need_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="matplotlib"):
        plotting.plot_intervals(jnp.zeros(1), Interval(jnp.zeros(1), jnp.ones(1)))


def test_intervals():
    sets = Interval(jnp.array([0.0, -jnp.inf, 2.0]), jnp.array([1.0, jnp.inf, 1.0]))
    ax = plotting.plot_intervals(jnp.arange(3.0), sets, [0.5, 3.0, 1.5])
    covered, missed, *_ = (line.get_xdata() for line in ax.get_lines())
    assert list(covered) == [0, 1]
    assert list(missed) == [2]
    assert plotting.plot_intervals(jnp.arange(3.0)[:, None], sets, ax=ax) is ax
    with pytest.raises(ValueError, match=r"ends of shape \(2,\), got \(3,\)"):
        plotting.plot_intervals(jnp.arange(2.0), sets)
    with pytest.raises(ValueError, match=r"y of shape \(3,\), got \(2,\)"):
        plotting.plot_intervals(jnp.arange(3.0), sets, [1.0, 2.0])


def test_bands_of_paths_and_fields():
    t, out = np.arange(6.0), np.array([np.inf, 1, 1, 1, 1, 1])
    wide, narrow = (Band(t - s * out, t + s * out) for s in (2, 1))
    y = t + np.array([9, 0, 1.5, 3, 0, -3])
    ax = plotting.plot_band([narrow, wide], y)  # misses are outside of the widest
    lines = {line.get_label(): line.get_xdata() for line in ax.get_lines()}
    assert list(lines["covered (4)"]) == [0, 1, 2, 4]
    assert list(lines["missed (2)"]) == [3, 5]
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["band", "covered (4)", "missed (2)", "infinite (1)"]
    assert len(ax.collections) == 2
    assert plotting.plot_band(wide, x=t + 1, label="a", ax=ax) is ax
    field = np.arange(12.0).reshape(3, 4)
    ends = np.zeros((1, 3, 4)), np.full((1, 3, 4), 7.0)
    ends[0][0, 0, 0], ends[1][0, 0, 0] = -np.inf, np.inf
    ax = plotting.plot_band(Band(*ends, ndim=2, fraction=0.5), field)
    shown, missed = (image.get_array() for image in ax.get_images())
    assert shown.mask.sum() == shown.mask[0, 0] == 1
    assert_array_equal(missed[..., 3] > 0, field > 7)
    assert [v.get_text() for v in ax.get_legend().get_texts()] == [
        "left out (1)",
        "missed (4)",
    ]
    look = {"extent": (0, 8, 5, 9), "origin": "lower", "aspect": "auto"}
    field[0, 0] = np.nan  # left out
    ax = plotting.plot_band(Band(*ends, ndim=2), field, **look)
    for image in ax.get_images():
        assert (image.get_extent(), image.origin) == ([0, 8, 5, 9], "lower")
    assert ax.get_aspect() == "auto"
    assert ax.get_ylim() == (5, 9)
    assert_array_equal(ax.get_images()[1].get_array()[..., 3] > 0, field > 7)
    (widths,) = plotting.plot_band(Band(*ends, ndim=2)).get_images()
    assert widths.get_array().max() == 7
    assert not np.isfinite(widths.get_array().filled(np.nan)[0, 0])


def test_a_band_where_x_is_ordered_and_bars_elsewhere():
    x = np.arange(8.0)
    sets = Interval(jnp.asarray(x - 1), jnp.asarray(x + 1))
    days = np.datetime64("2024-01-01") + np.arange(8)
    for place, kind in (
        (x, "FillBetweenPolyCollection"),
        (days, "FillBetweenPolyCollection"),
        (x[::-1], "LineCollection"),
        (x // 4, "LineCollection"),
    ):
        ax = plotting.plot_intervals(place, sets)
        assert type(ax.collections[0]).__name__ in (kind, kind[11:])
    assert (
        "Concise"
        in type(
            plotting.plot_intervals(days, sets).xaxis.get_major_formatter()
        ).__name__
    )
    bars = plotting.plot_intervals(x, sets, kind="bars").collections[0]
    assert len(bars.get_segments()) == 8
    with pytest.raises(ValueError, match=r"kind as one of .*, got 'box'"):
        plotting.plot_intervals(x, sets, kind="box")
    ends = np.stack([x - 1, x + 1], axis=1)
    assert plotting.plot_intervals(x, ends).get_ylim() == ax.get_ylim()


def test_many_rows_are_thinned_but_no_miss_is():
    x = np.arange(5000.0)
    y = np.where(x % 10 == 0, 2.0, 0.0)
    sets = Interval(-jnp.ones(5000), jnp.ones(5000))
    ax = plotting.plot_intervals(x, sets, y, kind="bars", max_points=300, max_bars=50)
    assert len(ax.collections[0].get_segments()) == 50
    covered, missed = (line.get_xdata() for line in ax.get_lines())
    assert (len(covered), len(missed)) == (300, 500)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "prediction interval (50 of 5,000 drawn)",
        "covered (4,500; 300 drawn)",
        "missed (500)",
    ]


def test_infinite_ends_are_marked_at_the_frame():
    lower, upper = jnp.zeros(6), jnp.ones(6)
    sets = Interval(lower.at[0].set(-jnp.inf), upper.at[:2].set(jnp.inf))
    ax = plotting.plot_intervals(jnp.arange(6.0), sets)
    _, up, down = ax.get_lines()
    assert list(up.get_xdata()) == [0, 1] and list(down.get_xdata()) == [0]
    assert ax.get_legend().get_texts()[1].get_text() == "infinite (2)"
    ax.set_ylim(-50, 50)  # they stay there
    place = down.get_transform().transform((0, down.get_ydata()[0]))
    assert np.isclose(place[1], ax.bbox.y0)
    assert 0.7 < up.get_ydata()[0] < 1  # below the legend
    ax = plotting.plot_widths(jnp.arange(6.0), sets)
    assert list(ax.get_lines()[-1].get_xdata()) == [0, 1]


def test_unions_of_intervals_are_drawn_in_pieces():
    two = Intervals(jnp.array([[0.0, 5.0]] * 3), jnp.array([[1.0, 6.0]] * 3))
    ax = plotting.plot_intervals(jnp.arange(3.0), two, [0.5, 3.0, 5.5])
    assert len(ax.collections[0].get_segments()) == 6
    covered, missed = (line.get_xdata() for line in ax.get_lines())
    assert list(covered) == [0, 2] and list(missed) == [1]
    ax = plotting.plot_intervals(jnp.arange(3.0), two, kind="band")
    assert len(ax.collections) == 2


def test_intervals_on_one_frame_show_all():
    x = jnp.arange(4.0)
    axes = matplotlib.pyplot.subplots(1, 2, sharey=True)[1]
    plotting.plot_intervals(x, Interval(x - 9, x + 9), ax=axes[0])
    plotting.plot_intervals(x, Interval(x - 1, x + 1), ax=axes[1])
    low, high = axes[1].get_ylim()
    assert low < -9 and high > 12


def test_widths_and_sizes():
    x = jnp.arange(5.0)
    ax = plotting.plot_widths(x, Interval(-x, x), label="a")
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), 2 * np.arange(5))
    ax = plotting.plot_widths(x, Interval(-4 * x, 4 * x), label="b", ax=ax)
    assert ax.get_ylim()[1] > 32 and ax.get_ylim()[0] == 0
    assert plotting.plot_widths(x[::-1], Interval(-x, x)).get_lines()[0].get_marker()
    labels = LabelSet(jnp.array([[True, True], [True, False]]))
    ax = plotting.plot_sizes({"LAC": labels, "APS": LabelSet(labels.mask ^ True)})
    assert [bar.get_height() for bar in ax.patches] == [0, 0.5, 0.5, 0.5, 0.5, 0]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["LAC, mean 1.5", "APS, mean 0.5"]
    ends = jnp.array([jnp.inf, 1.0, 2.0, 3.0])
    ax = plotting.plot_sizes(Interval(-ends, ends), bins=2, label="ACI")
    (text,) = ax.get_legend().get_texts()
    assert text.get_text() == "ACI, 0.25 infinite, mean of others 4"
    same = Interval(jnp.zeros(9), 1 + 1e-7 * jnp.arange(9))
    assert max(plotting.plot_sizes(same).patches[0].get_xy()[:, 1]) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"kind as one of .*, got 'bars'"):
        plotting.plot_widths(x, Interval(-x, x), kind="bars")


def test_sensitivity_marks_where_a_value_is_in():
    gammas = np.array([3.0, 1.0, 2.0])  # in any order
    sets = Interval(jnp.asarray(2.5 - gammas), jnp.asarray(2 + gammas))
    ax = plotting.plot_sensitivity(gammas, sets, label="effect")
    value, first = ax.get_lines()
    assert value.get_ydata()[0] == 0 and first.get_xdata()[0] == 3
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["value 0", "in from Γ = 3", "effect"]
    assert ax.get_xlabel() == "sensitivity Γ" and ax.get_ylim()[0] < -0.5
    never = plotting.plot_sensitivity(gammas, np.stack([gammas, gammas + 1], axis=1), 9)
    assert len(never.get_lines()) == 1 and never.get_ylim()[1] > 9
    ax = plotting.plot_sensitivity(gammas, [np.inf, 1.0, 2.0], 1.5)
    value, first, line, above = ax.get_lines()  # a triangle at infinity
    assert first.get_xdata()[0] == 2 and list(line.get_xdata()) == [1, 2, 3]
    assert list(above.get_xdata()) == [3]
    with pytest.raises(ValueError, match=r"ends of shape \(3,\), got \(2,\)"):
        plotting.plot_sensitivity(gammas, [1.0, 2.0])
    with pytest.raises(ValueError, match="finding as a number, got None"):
        plotting.plot_sensitivity(gammas, sets, None)
    far = plotting.plot_sensitivity([1.0, 2.0, 3.0], [0.5, 1.5, np.inf], 2.0)
    assert "in from Γ = 3" in [line.get_label() for line in far.lines]
    with pytest.raises(ValueError, match="finding without NaN"):
        plotting.plot_sensitivity(gammas, sets, np.nan)
    with pytest.raises(ValueError, match="kind Interval or Intervals, got LabelSet"):
        plotting.plot_sensitivity(gammas, LabelSet(jnp.ones((3, 2), bool)))


def test_label_sets_have_images_and_names():
    sets = LabelSet(jnp.eye(3, dtype=bool), classes=("cat", "dog", "bird"))
    images, rows = np.zeros((3, 4, 4)), ["a", "b", "c"]
    ax = plotting.plot_label_sets(sets, images=images, names=rows)
    assert len(ax.child_axes) == 3 and ax.get_xlim()[0] < -1
    assert [text.get_text() for text in ax.get_yticklabels()] == rows
    assert [text.get_text() for text in ax.get_xticklabels()] == ["cat", "dog", "bird"]
    with pytest.raises(ValueError, match=r"images, number of shape \(3,\), got \(2,\)"):
        plotting.plot_label_sets(sets, images=images[:2])


def test_label_sets():
    sets = LabelSet(jnp.array([[True, False, False], [True, True, False]]))
    ax = plotting.plot_label_sets(sets, [0, 2])
    ring, cross = ax.get_lines()  # the second set misses
    assert ring.get_xydata().tolist() == [[0.5, 0.5]]
    assert cross.get_xydata().tolist() == [[2.5, 1.5]]
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
    assert ax.get_aspect() == 1  # balls are round
    assert plotting.plot_region(region, PLANE, aspect=2, ax=ax).get_aspect() == 2


def test_regions_that_fill_or_miss_the_frame():
    everything = Balls(jnp.zeros((1, 2)), jnp.array(jnp.inf))
    plotting.plot_region(everything, PLANE, num_points=20)
    plotting.plot_region(Box(jnp.ones(2), -jnp.ones(2)), PLANE, num_points=20)
    with pytest.raises(ValueError, match="expected finite bounds"):
        plotting.plot_region(everything)
    with pytest.raises(AttributeError, match=r"LevelSet.*bounds"):
        plotting.plot_region(DISC)
    with pytest.raises(ValueError, match=r"two outputs, corners of shape \(2,\)"):
        plotting.plot_region(Balls(jnp.zeros((1, 3)), jnp.array(1.0)))
    with pytest.raises(ValueError, match=r"y of shape \(3, 2\), got \(3,\)"):
        plotting.plot_region(PLANE, y=jnp.zeros(3))


def test_boxes():
    lower = jnp.array([[1.0, 1.0], [-jnp.inf, 2.0], [5.0, 5.0]])
    upper = jnp.array([[4.0, 4.0], [9.0, 8.0], [4.0, 6.0]])  # the last one is crossed
    true = [[2.0, 2.0, 3.0, 3.0], [1.0, 1.0, 3.0, 3.0], [5.0, 5.0, 6.0, 6.0]]
    ax = plotting.plot_boxes(
        np.zeros((10, 12)), BoundingBox(lower, upper), preds=true, true=true
    )
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["predicted", "true", "outer box", "outer box, misses"]
    assert len(ax.patches) == 3 + 3 + 2
    assert ax.get_xlim() == (-0.5, 11.5)
    assert ax.get_ylim() == (9.5, -0.5)  # images grow downwards
    wide = plotting.plot_boxes(np.zeros((5, 20_000)), true=[[15_000, 1, 15_500, 3]])
    assert wide.patches[0].get_bbox().bounds == (15_000, 1, 500, 2)
    assert len(plotting.plot_boxes(np.zeros((5, 5)), true=[]).patches) == 0
    inner = BoundingBox(lower[:1], upper[:1], inner=True)
    ax = plotting.plot_boxes(np.zeros((10, 12, 3)), inner)
    assert ax.get_legend().get_texts()[0].get_text() == "inner box"
    with pytest.raises(ValueError, match="expected 4, got 3"):
        plotting.plot_boxes(np.zeros((10, 12)), preds=[[1, 2, 3]])


def test_p_values():
    p = np.linspace(0, 1, 101)
    ax = plotting.plot_p_values(p, p > 0.5, num_bins=10)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert set(names) == {"nominal (50)", "outliers (51)", "uniform"}
    assert len(ax.patches) == 2
    for part in ax.patches:  # densities
        x, y = part.get_xy().T
        np.testing.assert_allclose(abs(np.trapezoid(y, x)), 1)
    with pytest.raises(ValueError, match=r"is_nominal of shape \(101,\), got \(3,\)"):
        plotting.plot_p_values(p, [True] * 3)
    assert len(plotting.plot_p_values([]).patches) == 0
    with pytest.raises(ValueError, match=r"p_values in \[0, 1\], got 2.0 at 0"):
        plotting.plot_p_values([2.0])


def test_size_stratified_coverage():
    y = jnp.arange(10.0)
    half = jnp.where(y < 5, -1.0, 1.0) * (1 + y)
    ax = plotting.plot_size_stratified_coverage(
        Interval(y - half, y + half), y, 0.1, num_bins=2
    )
    high, low = (dots[0].get_xydata().tolist() for dots in ax.containers)
    assert (high, low) == ([[1, 1]], [[0, 0]])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "16"]
    column = Interval((y - half)[:, None], (y + half)[:, None])
    ax = plotting.plot_size_stratified_coverage(column, y, 0.1, num_bins=2)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "16"]
    labels = LabelSet(jnp.tril(jnp.ones((4, 4), bool)))
    ax = plotting.plot_size_stratified_coverage(labels, jnp.arange(4), 0.1, num_bins=6)
    assert len(ax.containers[0][0].get_xydata()) == 4  # two strata are empty


def test_coverage_curve():
    alphas = [0.5, 0.1, 0.3]
    ax = plotting.plot_coverage_curve(alphas, [0.5, 0.9, 0.7], label="a")
    exact, curve = ax.get_lines()
    np.testing.assert_allclose(curve.get_xdata(), [0.5, 0.7, 0.9])
    np.testing.assert_allclose(curve.get_ydata(), [0.5, 0.7, 0.9])
    assert exact.get_slope() == 1 and exact.get_xy1() == (0, 0)
    again = plotting.plot_coverage_curve(alphas, np.ones((4, 3)), label="b", ax=ax)
    assert again is ax and len(ax.get_lines()) == 3
    with pytest.raises(ValueError, match=r"coverages of shape \(1, 3\), got \(1, 2\)"):
        plotting.plot_coverage_curve(alphas, [0.5, 0.9])


def test_a_band_of_many_intervals_is_thinned():
    x = np.arange(100_000)
    ax = plotting.plot_intervals(x, np.stack([-1.0 - x, 1.0 + x], axis=1))
    (band,) = ax.collections
    outline = band.get_paths()[0].vertices
    assert len(outline) < 10_010
    assert outline[:, 0].min() == 0 and outline[:, 0].max() == 99_999


def _pixels(ax):
    """Returns the colors of each picture by what pixels are, without opacity."""
    from matplotlib.colors import to_rgb

    kinds = {to_rgb("#0072B2"): "k", to_rgb("#D55E00"): "m", to_rgb("#F0E442"): "f"}
    drawn = (image.get_array() for image in ax.get_images())
    return [
        [
            "".join(kinds.get(tuple(v[:3]), "-") for v in row)
            for row in np.asarray(colors)
        ]
        for colors in drawn
        if np.ndim(colors) == 3 and np.shape(colors)[-1] == 4
    ]


def test_masks_show_what_is_kept_missed_and_false():
    y = np.array([[[1, 1, 0], [0, 1, 0]], [[0, 0, 0], [0, 0, 0]]])
    kept = np.array([[[1, 0, 0], [1, 0, 0]], [[0, 0, 1], [0, 0, 0]]], bool)
    images = np.linspace(0, 1, 12).reshape(2, 2, 3)
    ax = plotting.plot_masks(images, LabelMask(jnp.asarray(kept), ndim=2), y)
    assert _pixels(ax) == [["km-", "fm-"], ["--f", "---"]]
    assert [text.get_text() for text in ax.texts] == ["misses 67%", "nothing true"]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["kept", "missed", "false"]
    shown = np.asarray(ax.get_images()[0].get_array())
    assert np.array_equal(shown, images[0])
    alone = plotting.plot_masks(None, kept, names=["a", "b"])
    assert _pixels(alone) == [["k--", "k--"], ["--k", "---"]]
    assert [text.get_text().strip() for text in alone.texts] == ["a", "b"]
    assert [t.get_text() for t in alone.get_legend().get_texts()] == ["in the set"]
    assert plotting.plot_masks(images, kept, y, ax=ax) is ax
    one = plotting.plot_masks(images[:, None], kept[:, None], y[:, None])
    assert _pixels(one) == [["km-", "fm-"], ["--f", "---"]]  # one channel


def test_several_classes_a_pixel_have_a_row_of_pictures():
    y = np.arange(8).reshape(1, 2, 2, 2) % 3 == 0
    colored = np.zeros((1, 2, 2, 3))
    ax = plotting.plot_masks(colored, ~y, y, names=["road", "sky"])
    assert len(_pixels(ax)) == 2
    words = [text.get_text() for text in ax.texts]
    assert words == ["road misses 100%", "sky misses 100%"]
    left, right = (image.get_extent() for image in ax.get_images()[::2])
    assert left[1] < right[0] and left[2:] == right[2:]  # side by side
