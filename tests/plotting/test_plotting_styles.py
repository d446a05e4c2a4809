"""What all pictures have in common: the style, legends, options, lines drawn once."""

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

from jaxcp import plotting
from jaxcp.predictive import Atoms
from jaxcp.sets import Balls, Band, BoundingBox, Interval, LabelSet

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb

X, FAN = np.arange(6.0), np.array([0.1, 0.5, 0.9])
SETS = Interval(jnp.asarray(X - 1), jnp.asarray(X + 1))
LABELS = LabelSet(jnp.tril(jnp.ones((3, 3), bool)))
MASKS = np.eye(4, dtype=bool)[None].repeat(2, axis=0)
BALL = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
BOX = BoundingBox(jnp.ones((1, 2)), jnp.full((1, 2), 4.0))
HELPERS = {
    "band": lambda **k: plotting.plot_band(Band(X - 1, X + 1), X, **k),
    "boxes": lambda **k: plotting.plot_boxes(np.zeros((6, 6)), BOX, **k),
    "coverage": lambda **k: plotting.plot_coverage([0.9, 0.92, 0.91], 99, 0.1, **k),
    "cdf": lambda **k: plotting.plot_cdf(Atoms(X), **({"label": "a"} | k)),
    "curve": lambda **k: plotting.plot_coverage_curve([0.1, 0.2], [0.9, 0.8], **k),
    "fan": lambda **k: plotting.plot_fan(X, X[:, None] + FAN, FAN, **k),
    "groups": lambda **k: plotting.plot_group_coverage(SETS, X, X > 2, 0.1, **k),
    "intervals": lambda **k: plotting.plot_intervals(X, SETS, X, **k),
    "masks": lambda **k: plotting.plot_masks(np.zeros((2, 4, 4)), MASKS, MASKS, **k),
    "labels": lambda **k: plotting.plot_label_sets(LABELS, [0, 2, 2], **k),
    "monitor": lambda **k: plotting.plot_monitor(X, 3, **({"label": "a"} | k)),
    "p_values": lambda **k: plotting.plot_p_values([0.1, 0.5], **k),
    "pit": lambda **k: plotting.plot_pit([0.1, 0.5], 9, **k),
    "region": lambda **k: plotting.plot_region(BALL, num_points=9, **k),
    "rolling": lambda **k: plotting.plot_rolling_coverage(X > 1, 0.1, window=2, **k),
    "sensitivity": lambda **k: plotting.plot_sensitivity(X, SETS, **k),
    "sizes": lambda **k: plotting.plot_sizes({"a": LABELS}, **k),
    "strata": lambda **k: plotting.plot_size_stratified_coverage(SETS, X, 0.1, **k),
    "widths": lambda **k: plotting.plot_widths(X, SETS, **({"label": "a"} | k)),
}
helpers = pytest.mark.parametrize("draw", HELPERS.values(), ids=HELPERS)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def contrast(one, two):
    """Contrast of two colors, from 1 to 21 (WCAG 2.1)."""
    rgb = np.array([to_rgb(one), to_rgb(two)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    return light.max() / light.min()


def test_the_ink_reads_on_white_and_on_black():
    look = plotting.style()
    assert contrast(look["text.color"], "white") >= 4.5
    assert contrast(look["text.color"], "black") >= 4.5
    assert look["figure.facecolor"] == look["axes.facecolor"] == "none"
    assert plotting.style(ink="black")["axes.edgecolor"] == "black"


def test_a_style_sets_nothing_and_takes_settings():
    before = dict(plt.rcParams)
    look = plotting.style(font_size=11, **{"axes.linewidth": 2})
    assert dict(plt.rcParams) == before
    assert (look["font.size"], look["axes.linewidth"]) == (11, 2)
    with plt.rc_context(look):
        assert plt.rcParams["svg.fonttype"] == "none"
    with plt.style.context(look):
        assert plt.rcParams["pdf.fonttype"] == 42
    with pytest.raises(KeyError, match="ink_"):
        plotting.style(ink_=1)


def test_colors_are_distinct_and_misses_are_another_mark():
    colors = [each["color"] for each in plotting.style()["axes.prop_cycle"]]
    assert len(set(colors)) == 7
    hit, miss = plotting.plot_intervals(X, SETS, X + (X == 2) * 2).get_lines()
    assert hit.get_marker() != miss.get_marker()
    assert contrast(hit.get_color(), miss.get_color()) > 1.2  # in black and white


@helpers
def test_helpers_draw_on_given_axes_with_or_without_legend(draw):
    ax = plt.subplots()[1]
    assert draw(ax=ax, legend=False) is ax
    assert ax.get_legend() is None
    legend = draw(legend="lower left").get_legend()
    assert legend._get_loc() == legend.codes["lower left"]


@helpers
def test_helpers_draw_on_panels_that_share_their_axes(draw):
    for ax in plt.subplots(2, 2, sharex=True, sharey=True)[1].flat:
        assert draw(ax=ax) is ax


@helpers
def test_names_of_axes_are_the_callers(draw):
    ax = plt.subplots()[1]
    ax.set(xlabel="age, years")
    assert draw(ax=ax).get_xlabel() == "age, years"


@pytest.mark.parametrize("name", ["coverage", "curve", "groups", "p_values", "rolling"])
def test_lines_of_reference_are_drawn_once_in_ink(name):
    with plt.rc_context(plotting.style(ink="#123456")):
        ax = HELPERS[name]()
        HELPERS[name](ax=ax)
    dashed = [line for line in ax.get_lines() if line.get_linestyle() == "--"]
    assert len(dashed) == 1
    assert to_hex(dashed[0].get_color()) == "#123456"


@pytest.mark.parametrize("name", ["coverage", "intervals", "strata"])
def test_a_legend_above_leaves_the_data_free(name):
    ax = HELPERS[name]()
    free = ax.dataLim.y1 if name != "coverage" else ax.get_lines()[0].get_ydata().max()
    ax.figure.canvas.draw()
    corners = ax.get_legend().get_window_extent()
    bottom = ax.transData.inverted().transform(corners)[0, 1]
    assert bottom > free
    height = np.diff(ax.get_ylim())
    HELPERS[name](ax=ax)  # one more entry or two: room is made anew, not added
    assert np.diff(ax.get_ylim()) < 1.5 * height


def test_options_reach_the_main_artist():
    ax = HELPERS["intervals"](zorder=7, label="CQR", color="green")
    assert ax.collections[0].get_zorder() == 7
    assert ax.get_legend().get_texts()[0].get_text() == "CQR"
    ax = HELPERS["curve"](linestyle=":", label="a")
    assert ax.get_lines()[-1].get_linestyle() == ":"
    ax = HELPERS["coverage"](bins=[0.8, 0.9, 1.0], hatch="/")
    assert [patch.get_hatch() for patch in ax.patches] == ["/"]


def test_panels_that_share_axes_are_named_at_the_outside():
    axes = plt.subplots(2, 2, sharex=True, sharey=True)[1]
    for ax in axes.flat:
        HELPERS["intervals"](ax=ax)
    assert [ax.get_xlabel() for ax in axes.flat] == ["", "", "input", "input"]
    assert [ax.get_ylabel() for ax in axes.flat] == ["target", "", "target", ""]
