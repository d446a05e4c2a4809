"""The part of the showcase that runs in a minute, and its picture.

At least one method for each need: intervals, intervals that adapt, groups, labels, no
held-out rows, a risk, overlapping groups, a predictive distribution, and a stream.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments.pictures.showcase_figures import (
    add_axes,
    calibrated,
    draw_column,
    explain,
    height,
    least_certain,
    lines_of,
)
from experiments.pictures.showcase_methods import Method
from experiments.pictures.showcase_streams import Series, sets_of
from experiments.tools.report import table_of
from experiments.tools.reporting import save_figure
from jaxcp import metrics, plotting, scores

NAME = "showcase_quick"
BASIC = ("split", "normalized", "CQR", "Mondrian", "full conformal", "jackknife+")
LABELS = ("LAC", "class-wise LAC", "APS, randomized")
METHODS = {  # by part of the showcase
    "methods": (*BASIC, "CV+", *LABELS),
    "risk": ("risk control",),
    "conditional": ("conditional, randomized",),
    "predictive": ("predictive system",),
}
NUM_METHODS = sum(map(len, METHODS.values()))
STREAMS = "never updated", "ACI", "quantile tracking"
RESULTS, TABLE = Path(__file__).with_name("RESULTS.md"), "showcase"
COMMAND = "python -m experiments.pictures.showcase --out DIR"
LABEL_ALPHA, NUM_DIGITS = 0.02, 8  # at 0.1 one label is enough
NUM_PATIENTS, WINDOW = 70, 250  # steps of the stream
LEFT, WIDTH, FOOT, GAP = 0.65, 3.9, 0.5, 0.85  # inches of the panels of pictures
SHARES = 0.33, 0.39, 0.28  # of the rest


def chosen(
    found: Iterator[tuple[int, Method]], part: str
) -> Iterator[tuple[int, Method]]:
    """Yields the first method of each name, and asks for none that comes after."""
    left = {*METHODS.get(part, ())}
    while left:
        number, method = next(found)
        if method.name in left:
            left.remove(method.name)
            yield number, method


def left_out(table: list[dict]) -> str:
    """Returns a text with the methods of the results that a table lacks."""
    own = {line["method"] for line in table}
    known = dict.fromkeys(v["method"] for v in table_of(RESULTS.read_text(), TABLE))
    names = [str(name) for name in known if name not in own]
    text = textwrap.fill(f"# left out, {len(names)} methods: {'; '.join(names)}", 86)
    return text.replace("\n", "\n# ") + f"\n# all of them, in some minutes: {COMMAND}"


def draw(
    out: Path, table: list[dict], pools: dict, stream: Series, alpha: float
) -> None:
    """Writes the picture: three methods at work, and the table."""
    print(left_out(table))
    blocks = [(v, lines_of(table, v)) for v in dict.fromkeys(v["data"] for v in table)]
    figure = plt.figure(figsize=(10, 0.4 + height(blocks)))
    figure.set_layout_engine("none")  # places are in inches
    top = figure.get_size_inches()[1] - 0.75
    draw_column(figure, 5, top, blocks, alpha)
    draw_pictures(figure, top, pools, stream, alpha)
    told = f"{len(table)} methods at 1 − α = {1 - alpha}"
    figure.suptitle(told, x=0.01, y=0.99, ha="left", weight="bold")
    explain(figure, loc="upper right")
    save_figure(figure, out, NAME, ("png",))


def draw_pictures(figure, top: float, pools: dict, stream: Series, alpha) -> None:
    """Draws intervals, label sets and a stream below each other, from these inches."""
    room = top - FOOT - GAP * (len(SHARES) - 1)
    axes = []
    for share in SHARES:
        top -= share * room
        axes.append(add_axes(figure, LEFT, top, share * room, WIDTH))
        top -= GAP
    draw_patients(axes[0], pools["diabetes"], alpha)
    draw_digits(axes[1], pools["digits"])
    draw_stream(axes[2], stream, alpha)


def draw_patients(ax, pool, alpha: float) -> None:
    """Draws intervals of some test rows along the prediction of their model."""
    sets, y = calibrated(pool, scores.Normalized(), "normal", alpha)
    some = slice(pool.num_calibration, pool.num_calibration + NUM_PATIENTS)
    x, sets, y = pool.preds["normal"][0][some], sets[:NUM_PATIENTS], y[:NUM_PATIENTS]
    plotting.plot_intervals(x, sets, y, kind="bars", legend=False, linewidth=2, ax=ax)
    ax.set(xlabel="prediction", ylabel="progression of diabetes")
    ax.set_title(f"{NUM_PATIENTS} patients, normalized intervals (× missed)")


def draw_digits(ax, pool) -> None:
    """Draws the sets of the digits of which the classifier is least sure."""
    sets, y = calibrated(pool, scores.LAC(), "p", LABEL_ALPHA)
    unsure, images = least_certain(pool, NUM_DIGITS)
    look = {"images": images, "legend": False, "ax": ax}
    plotting.plot_label_sets(sets[unsure], y[unsure], **look)
    told = f"the {NUM_DIGITS} least certain digits, LAC"
    ax.set_title(f"{told}, 1 − α = {1 - LABEL_ALPHA} (○ true)")
    ax.set_ylabel("")


def draw_stream(ax, stream: Series, alpha: float) -> None:
    """Draws the coverage of the last steps of each method along a stream."""
    look = {"window": WINDOW, "legend": False, "ax": ax}
    for name in STREAMS:
        covered = np.asarray(metrics.covered(sets_of(name, stream, alpha), stream.y))
        plotting.plot_rolling_coverage(covered, alpha, label=name, **look)
    known = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    ax.legend([known[name] for name in STREAMS], STREAMS, loc="lower left")
    ax.set(xlabel="step", ylabel=f"coverage of {WINDOW} steps", ylim=(None, 1))
    ax.set_title(f"along a stream: {stream.data}")
