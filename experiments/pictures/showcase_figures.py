"""The figures of the showcase."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcp
from experiments.pictures.showcase_methods import rows
from experiments.pictures.showcase_streams import METHODS, Series, sets_of
from experiments.tools.reporting import save_figure
from jaxcp import metrics, plotting, scores

NAME, STREAMS = "showcase", tuple(METHODS)
LOWEST = 0.85  # where the axis of coverages begins
ROW, FRAME = 0.19, 0.85  # inches of a method, and of title and axis of a data set
PANELS = (1.65, 1.85), (3.65, 1.15)  # left end and width of coverages and of sizes
NUM_SPLITS = 400
LABEL_ALPHA = 0.02  # at 0.1 one label is enough: the classifier misses fewer
SIZES = {
    "digits": "labels in a set",
    "breast cancer": "labels in a set",
    "energy": "area",
    "generated loads": "area",
    "strange digits": "share let through",
    "objects": "area",
    "COCO": "labels in a set",
    "generated labels": "labels in a set",
}


def draw(
    out: Path, table: list[dict], pools: dict, stream: Series, alpha: float
) -> None:
    """Writes all figures."""
    figures = {
        "showcase_coverage": lambda: draw_table(table, alpha),
        "showcase_intervals": lambda: draw_intervals(pools["diabetes"], alpha),
        "showcase_label_sets": lambda: draw_label_sets(pools["digits"], LABEL_ALPHA),
        "showcase_law": lambda: draw_law(alpha),
        "showcase_streams": lambda: draw_streams(stream, alpha),
    }
    for name, make in figures.items():
        figure = make()
        save_figure(figure, out, name)
        plt.close(figure)


def columns_of(table: list[dict]) -> list[list[str]]:
    """Returns the data sets of the table in two columns of about as many rows."""
    names = list(dict.fromkeys(line["data"] for line in table))
    counts = [sum(line["data"] == name for line in table) for name in names]
    before = np.cumsum(counts) - counts
    first = [name for name, b in zip(names, before, strict=True) if 2 * b < len(table)]
    return [first, names[len(first) :]]


def draw_table(table, alpha):
    """Draws coverage and size of every method, a block of rows for each data set."""
    columns = columns_of(table)
    blocks = [[(v, lines_of(table, v)) for v in names] for names in columns]
    size = 5 * len(columns), 0.4 + max(map(height, blocks))
    figure = plt.figure(figsize=size)
    figure.set_layout_engine("none")  # places are in inches
    for i, column in enumerate(blocks):
        draw_column(figure, 5 * i, size[1] - 0.6, column, alpha)
    explain(figure)
    return figure


def lines_of(table, data):
    """Returns the lines of a data set."""
    return [line for line in table if line["data"] == data]


def height(blocks):
    """Returns the inches of data sets below each other."""
    return sum(ROW * len(lines) + FRAME for _, lines in blocks)


def draw_column(figure, left, top, blocks, alpha):
    """Draws data sets, a name and lines each, below each other, from these inches."""
    for data, lines in blocks:
        place = top - ROW * len(lines), ROW * len(lines)
        axes = [add_axes(figure, left + x, *place, width=w) for x, w in PANELS]
        draw_block(axes, data, lines, alpha)
        top -= place[1] + FRAME


def add_axes(figure, left, bottom, height, width):
    """Returns new axes at a place in inches."""
    across, up = figure.get_size_inches()
    place = left / across, bottom / up, width / across, height / up
    return figure.add_axes(place)


def draw_block(axes, data, lines, alpha):
    """Draws the methods of one data set, and marks the worst group of each."""
    names = ("coverage", "+-", "mean size", "+- size", "worst group")
    values = (np.array([v.get(n) or np.nan for v in lines]) for n in names)
    coverage, error, size, size_error, worst = values
    errors = 2 * np.nan_to_num(error), 2 * np.nan_to_num(size_error)
    plotting.plot_comparison(
        [line["method"] for line in lines], coverage, size, alpha,
        coverage_errors=errors[0], size_errors=errors[1], lowest=LOWEST,
        size_name=SIZES.get(data, "mean width"), legend=False, markersize=4, ax=axes,
    )  # fmt: skip
    seen = worst >= LOWEST
    look = {"color": plt.rcParams["text.color"], "zorder": 2}
    axes[0].plot(worst[seen], np.flatnonzero(seen), "|", ms=8, **look)
    for row in np.flatnonzero(~seen & (coverage >= LOWEST)):
        told = f"‹ {worst[row]:.3f}"
        axes[0].text(LOWEST + 0.001, row, told, va="center", fontsize=7, **look)
    axes[0].set(title=data, xlim=(LOWEST, 0.96))
    axes[1].set_yticks([])
    axes[1].autoscale(axis="x")
    axes[1].margins(x=0.12)
    axes[0].set_xticks([0.85, 0.9, 0.95])
    axes[0].tick_params(axis="y", pad=6)
    axes[1].locator_params(axis="x", nbins=3)


def explain(figure, loc="upper left"):
    """Draws what the marks mean, above all blocks."""
    ink = plt.rcParams["text.color"]
    look = {"linestyle": "", "color": ink}
    marks = [
        plt.Line2D([], [], marker="o", ms=4, label="mean, ± 2 standard errors"),
        plt.Line2D([], [], marker="|", ms=8, label="worst group", **look),
        plt.Line2D(
            [],
            [],
            marker="<",
            ms=4,
            label="lies beyond the axis, at this value",
            **look,
        ),
    ]
    figure.legend(handles=marks, loc=loc, ncols=3, handlelength=1.5)


def calibrated(pool, score, pred, alpha, order=None):
    """Returns the sets and targets of the test rows of a split, as rows come if None.

    Calibration rows come first, so that test rows have places from their number on.
    """
    n, preds = pool.num_calibration, pool.preds[pred]
    order = jnp.arange(len(pool.y)) if order is None else order
    old, new = order[:n], order[n:]
    cp = jaxcp.calibrate(score, rows(preds, old), pool.y[old])
    return cp(rows(preds, new), alpha), pool.y[new]


def over_splits(*way):
    """Returns a line on the means of coverage and size over random splits."""

    def trial(key):
        order = jax.random.permutation(key, len(way[0].y))
        sets, y = calibrated(*way, order)
        return {"coverage": metrics.coverage(sets, y), "size": metrics.mean_size(sets)}

    found = jaxcp.simulate(trial, jax.random.key(2), NUM_SPLITS, batch_size=NUM_SPLITS)
    coverage, size = (np.asarray(found[name]) for name in ("coverage", "size"))
    error = 2 * coverage.std() / NUM_SPLITS**0.5
    told = f"{NUM_SPLITS} splits: coverage {coverage.mean():.3f} ± {error:.3f}, "
    return f"{told}size {size.mean():.3g}"


def draw_intervals(pool, alpha):
    """Draws normalized and CQR intervals of test rows along the ridge prediction."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
    position = pool.preds["ridge"][pool.num_calibration :]
    ways = {
        "normalized": (scores.Normalized(), "normal"),
        "CQR": (scores.CQR(), "quantiles"),
    }
    for ax, (name, way) in zip(axes, ways.items(), strict=True):
        sets, y = calibrated(pool, *way, alpha)
        plotting.plot_intervals(position, sets, y, kind="band", ax=ax)
        title = f"{name}: coverage here {coverage_here(sets, y)}\n"
        ax.set_title(title + over_splits(pool, *way, alpha), fontsize=9)
        ax.set(xlabel="ridge prediction", ylabel="")
    axes[0].set_ylabel("progression of diabetes")
    return figure


def coverage_here(sets, y):
    """Returns the coverage of these rows, and two of its standard errors."""
    here = float(metrics.coverage(sets, y))
    return f"{here:.3f} ± {2 * (here * (1 - here) / len(y)) ** 0.5:.3f}"


def least_certain(pool, count):
    """Returns places and images of the digits of which the classifier is least sure."""
    n = pool.num_calibration
    unsure = np.argsort(np.asarray(jnp.max(pool.preds["p"][n:], axis=1)))[:count]
    images = 16 - np.asarray(pool.preds["raw"])[n:][unsure].reshape(-1, 8, 8)
    return unsure, np.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=16)


def draw_label_sets(pool, alpha, count=12):
    """Draws the sets of the digits of which the classifier is least sure."""
    unsure, images = least_certain(pool, count)
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.6))
    ways = {
        "LAC": (scores.LAC(), "p"),
        "APS, randomized": (scores.APS(randomized=True), "p, u"),
    }
    handles = {}
    for ax, (name, way) in zip(axes, ways.items(), strict=True):
        sets, y = calibrated(pool, *way, alpha)
        plotting.plot_label_sets(
            sets[unsure], y[unsure], images=images, legend=False, ax=ax
        )
        ax.set_title(f"{name}\n{over_splits(pool, *way, alpha)}", fontsize=9)
        ax.set_ylabel("")
        handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    of = f"the {count} least certain of {len(y)} test rows, 1 − α = {1 - alpha}"
    figure.suptitle(f"digits: {of}", x=0.01, ha="left")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3)
    return figure


def draw_law(alpha, n=100, num_trials=100_000):
    """Draws exact coverages of split conformal prediction against their law."""

    def trial(key):
        return jaxcp.conformal_quantile(jax.random.uniform(key, (n,)), alpha)

    samples = jaxcp.simulate(trial, jax.random.key(1), num_trials, batch_size=10_000)
    ax = plotting.plot_coverage(samples, n, alpha, histtype="stepfilled")
    ax.set_title(f"calibration sets of {n} rows")
    return ax.figure


def draw_streams(series, alpha, window=250, lowest=0.7):
    """Draws the coverage of the last steps along a series, a panel for each method."""
    count = math.ceil(len(METHODS) / 3)
    grid = {"figsize": (8, 1.8 * count), "sharex": True, "sharey": True}
    figure, axes = plt.subplots(count, 3, **grid)
    for ax in axes.flat[len(METHODS) :]:
        ax.axis("off")
    for ax in axes.flat[len(METHODS) - 3 :]:
        ax.tick_params(labelbottom=True)  # of the last panel of each column
    for ax, name in zip(axes.flat, METHODS, strict=False):
        sets = sets_of(name, series, alpha)
        covered = np.asarray(metrics.covered(sets, series.y))
        plotting.plot_rolling_coverage(
            covered, alpha, window=window, color="C0", legend=False, ax=ax
        )
        ax.set(title=f"{name}: {covered.mean():.3f}", xlabel="", ylabel="")
        width = f"width {np.median(sets.upper - sets.lower):.3g}"
        look = {"transform": ax.transAxes, "ha": "right", "fontsize": 8}
        ax.text(0.99, 0.03, width, **look)
        least = np.convolve(covered, np.ones(window) / window, mode="valid").min()
        if least < lowest:
            ax.text(0.99, 0.16, f"falls to {least:.2f}", **look)
        ax.set_ylim(lowest, 1.01)
    told = "mean coverage and median width; strip: ± 2 errors of independent steps"
    figure.suptitle(f"{series.data} series: {told}", x=0.01, ha="left")
    figure.supylabel(f"coverage of the last {window} steps", fontsize=9)
    figure.supxlabel("step", fontsize=9)
    return figure
