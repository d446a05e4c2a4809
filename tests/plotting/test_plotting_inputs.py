"""Pictures say which argument is wrong, and never draw wrong numbers as if right."""

import re
import warnings

import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd
import pytest

from jaxcp import metrics, plotting
from jaxcp.sets import Balls, Band, Interval, LabelMask, LabelSet

matplotlib.use("Agg")
import matplotlib.pyplot as plt

X = np.arange(6.0)
SETS = Interval(jnp.asarray(X - 1), jnp.asarray(X + 1))
LABELS = LabelSet(jnp.eye(3, dtype=bool))
PIXELS = LabelMask(np.ones((2, 4, 4), bool), ndim=2)
BALL = Balls(jnp.zeros((1, 2)), jnp.array(1.0))
NONE = np.zeros(0)
NO_SETS = Interval(jnp.zeros(0), jnp.zeros(0))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize(
    "draw, expected",
    [
        (lambda: plotting.plot_intervals(X, SETS, X * np.nan), "y without NaN"),
        (lambda: plotting.plot_intervals(X, SETS, list("abcdef")), "y as numbers"),
        (lambda: plotting.plot_intervals(np.ones((6, 2)), SETS), r"shape \(12,\), got"),
        (lambda: plotting.plot_sizes({}), "one kind of size, got none"),
        (lambda: plotting.plot_monitor(np.ones((2, 3)), 1), r"log_capital of shape"),
        (lambda: plotting.plot_monitor(X, None), "alarm_level as a number"),
        (lambda: plotting.plot_monitor(X, 1, limit=0.1), "losses with limit and band"),
        (
            lambda: plotting.plot_monitor(X, 1, losses=X, ax=plt.subplots()[1]),
            "ax as 2 axes, got 1",
        ),
        (
            lambda: plotting.plot_sizes({"a": LABELS, "b": SETS}),
            "one kind of size, got number of labels and width",
        ),
        (lambda: plotting.plot_sizes(SETS, bins=0), "bins as an int >= 1"),
        (lambda: plotting.plot_coverage([90.0], 99, 0.1), r"samples in \[0, 1\]"),
        (
            lambda: plotting.plot_coverage_curve([0.1], np.ones((0, 1))),
            r"coverages of shape \(1, 1\), got \(0, 1\)",
        ),
        (
            lambda: plotting.plot_group_coverage(SETS, X, X > 1, 1),
            r"alpha in \(0, 1\), got 1",
        ),
        (
            lambda: plotting.plot_rolling_coverage([1, 5], 0.1, window=1),
            r"covered in \[0, 1\], got 5",
        ),
        (
            lambda: plotting.plot_p_values([0.1, 0.2], ["yes", "no"]),
            "is_nominal as numbers",
        ),
        (lambda: plotting.plot_p_values([0.1], [2]), "is_nominal as flags"),
        (lambda: plotting.plot_region(BALL, num_points=1), "num_points as an int >= 2"),
        (lambda: plotting.plot_label_sets(LABELS, [0, 1, -1]), r"y in 0, \.\.\., 2"),
        (
            lambda: plotting.plot_label_sets(PIXELS),
            r"label sets, got LabelMask; plot_masks .* plot_label_sets\(sets.mask\)",
        ),
        (
            lambda: plotting.plot_region(PIXELS[0]),
            "in the plane, got LabelMask; plot_ma",
        ),
        (lambda: plotting.plot_band(SETS), "sets of kind Band, got Interval"),
        (
            lambda: plotting.plot_band(Band(np.zeros((2, 6)), np.ones((2, 6)))),
            r"Band of shape \(1,\), got \(2,\)",
        ),
        (
            lambda: plotting.plot_band([Band(np.eye(6), np.eye(6), 2)] * 2),
            r"bands of one path \(d,\), or .*, got 2 of shape \(6, 6\)",
        ),
        (
            lambda: plotting.plot_band(Band(X, X), X[1:]),
            r"y of shape \(6,\), got \(5,\)",
        ),
        (
            lambda: plotting.plot_masks(None, PIXELS[0]),
            r"masks \(m, h, w\) or \(m, k, h, w\), got \(4, 4\)",
        ),
        (
            lambda: plotting.plot_masks(None, PIXELS, np.ones((2, 4, 5))),
            r"y of shape \(2, 1, 4, 4\), got \(2, 1, 4, 5\)",
        ),
        (
            lambda: plotting.plot_masks(np.zeros((3, 4, 4)), PIXELS),
            r"images, .* of shape \(2, 4, 4\), got \(3, 4, 4\)",
        ),
        (
            lambda: plotting.plot_masks(None, PIXELS, names=["a"]),
            r"names of shape \(2,\), got \(1,\)",
        ),
        (
            lambda: plotting.plot_masks(None, PIXELS, num_columns=0),
            "num_columns as an int >= 1, got 0",
        ),
        (
            lambda: plotting.plot_masks(None, PIXELS, 255 * np.ones((2, 4, 4))),
            "masks as flags or 0 and 1, got 255",
        ),
    ],
)
def test_messages_name_the_argument(draw, expected):
    with pytest.raises(ValueError, match="expected .*" + expected):
        draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plotting.plot_intervals(X, SETS, X, max_points=-1),
        lambda: plotting.plot_intervals(pd.period_range("2024", periods=6), SETS),
        lambda: plotting.plot_widths(X, SETS, ax=plt.subplots(2)[1]),
        lambda: plotting.plot_group_coverage(SETS, X, [None, *"abcde"], 0.1),
        lambda: plotting.plot_comparison(["a"], [0.9], [1], 0.1, size_errors=[-1]),
        lambda: plotting.plot_region(BALL, (0, 1)),
        lambda: plotting.plot_boxes(np.zeros((3, 6, 6))),
        lambda: plotting.plot_boxes(np.zeros((6, 6)), SETS),
        lambda: plotting.plot_sizes({"a": SETS, "b": SETS}, color=["red"]),
        lambda: plotting.plot_label_sets(LABELS, names=["a"]),
    ],
)
def test_numpy_and_matplotlib_refuse_the_rest(draw):
    with pytest.raises((AttributeError, IndexError, TypeError, ValueError)):
        draw()


def test_no_rows_are_drawn_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plotting.plot_intervals(NONE, NO_SETS, NONE)
        plotting.plot_widths(NONE, NO_SETS)
        plotting.plot_group_coverage(NO_SETS, NONE, NONE, 0.1)
        plotting.plot_label_sets(np.zeros((0, 3), bool), [])
        plotting.plot_label_sets(np.zeros((3, 0), bool))
        plotting.plot_masks(np.zeros((0, 4, 4)), PIXELS[:0], np.zeros((0, 4, 4)))
        plotting.plot_region(BALL, y=np.zeros((0, 2)), num_points=9)
        ax = plotting.plot_sizes(NO_SETS, label="split")
    assert ax.get_legend().get_texts()[0].get_text() == "split, no sets"


# Not even a formula that matplotlib cannot read.
PRICES = ["$0-$50", r"$\alpha{$", "x_1$2$"]
NAMED = {
    "groups": lambda: plotting.plot_group_coverage(SETS, X, PRICES * 2, 0.1),
    "labels": lambda: plotting.plot_label_sets(
        LabelSet(jnp.eye(3, dtype=bool), classes=PRICES)
    ),
    "rows": lambda: plotting.plot_label_sets(LABELS, names=PRICES),
    "methods": lambda: plotting.plot_comparison(PRICES, X[:3] / 6, X[:3], 0.1)[0],
}


@pytest.mark.parametrize("kind", NAMED)
def test_names_are_words_and_no_formulas(kind, tmp_path):
    with plt.rc_context({"svg.fonttype": "none"}):
        NAMED[kind]().figure.savefig(tmp_path / "named.svg")
    drawn = re.sub("<!--.*?-->", "", (tmp_path / "named.svg").read_text())
    assert all(price in drawn for price in PRICES)


def test_targets_on_the_end_are_hits_as_for_the_metrics():
    """Sets are in single precision, in which 0.7 is less than 0.7 in double."""
    sets, y = Interval(jnp.zeros(3), jnp.full(3, 0.7)), np.array([0.7, 0.6, 0.8])
    ax = plotting.plot_intervals(np.arange(3.0), sets, y)
    covered, missed = (len(line.get_xdata()) for line in ax.get_lines())
    assert (covered, missed) == (2, 1)
    assert metrics.covered(sets, y).sum() == covered


def test_large_targets_have_a_frame():
    big = np.stack([X - 3e38, X + 3e38], axis=1)
    with np.errstate(over="ignore"):  # the triangles and bars of matplotlib
        low, high = plotting.plot_intervals(X, big.astype("float32"), X).get_ylim()
    assert low < -3e38 and high > 3e38
    same = np.full((6, 2), 1e9)
    low, high = plotting.plot_intervals(X, same, same[:, 0]).get_ylim()
    assert low < 1e9 < high


def test_x_may_be_words_numbers_as_objects_or_dates_with_a_zone():
    days = pd.date_range("2024-01-01", periods=6, tz="Europe/Berlin")
    for x in (list("abcdef"), X.astype(object), days, pd.Series(days)):
        ax = plotting.plot_intervals(x, SETS, X)
        assert len(ax.get_lines()[0].get_xdata()) == 6


def test_widths_on_a_log_axis_do_not_begin_at_zero():
    ax = plt.subplots()[1]
    ax.set_yscale("log")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plotting.plot_widths(X, SETS, ax=ax).get_ylim()[0] > 0
