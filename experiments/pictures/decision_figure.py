"""The decision figure of the guide: five questions, and what to call for each answer.

`python -m experiments.pictures.decision_figure [--out DIR]` writes
`which_method.svg`, into the guide if no folder is given.
"""

import argparse
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from jaxcp import plotting

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GUIDE = Path(__file__).parents[2] / "notebooks" / "guide"
WIDTH, LINE = 4.7, 0.235  # inches
GAP = 0.8  # lines between questions
COLUMN = 0.54  # where calls begin, as a share of the width

QUESTIONS = (
    (
        "What is y?",
        "#0072B2",
        (
            ("a number: one prediction", "Absolute()"),
            ("a number: mean and scale", "Normalized()"),
            ("a number: two quantiles", "CQR()"),
            ("a number: one-sided bound", "Residual()"),
            ("a number: all percentiles", "calibrate_predictive"),
            ("a label", "LAC(), APS()"),
            ("a label: right probabilities", "venn_abers"),
            ("several labels, or pixels", "MultiLabel()"),
            ("several numbers", "PCP(), CDF(PCP())"),
            ("a box of an object", "BoxOffset()"),
            ("none: is the row strange?", "outlier_p_values"),
        ),
    ),
    (
        "What do you have?",
        "#D55E00",
        (
            ("predictions", "calibrate"),
            ("a fitted model", "split_conformal"),
            ("too few rows; a linear model", "full_conformal"),
            ("too few rows; any model", "cv_plus"),
            ("predictions of folds", "cross_calibrate"),
        ),
    ),
    (
        "Are new rows like the old ones?",
        "#009E73",
        (
            ("yes", "nothing more"),
            ("no: other shares of groups", "calibrate_groups"),
            ("no: other inputs", "weights="),
            ("no: a stream that changes", "online.run"),
        ),
    ),
    (
        "Where must 1 - alpha hold?",
        "#CC79A7",
        (
            ("on average over rows", "any of these"),
            ("in each group or class", "calibrate_groups"),
            ("in groups that overlap", "calibrate_conditional"),
            ("evenly, given x", "CQR(), CDF(...)"),
            ("for this calibration set", "delta=0.05"),
            ("for the mean of a loss", "calibrate_risk"),
        ),
    ),
    (
        "How many rows calibrate?",
        "#E69F00",
        (
            ("below 1 / alpha - 1", "sets are infinite"),
            ("tens", "full_conformal"),
            ("hundreds: 0.9 ± 0.03", "split_conformal"),
            ("thousands: 0.9 ± 0.01", "calibrate_groups, too"),
        ),
    ),
)


def num_lines() -> float:
    """Returns the height of the figure in lines of text."""
    return sum(len(answers) + 1 + GAP for *_, answers in QUESTIONS) - GAP + 1


def draw_question(ax: Axes, top: float, number: int) -> float:
    """Draws a question and its answers; returns where the next one begins."""
    question, color, answers = QUESTIONS[number]
    ax.scatter(0.04, top, s=330, color=color, zorder=3)
    ax.text(0.04, top, number + 1, color="white", weight="bold", **MIDDLE)
    ax.text(0.1, top, question, weight="bold", size=12, va="center")
    for line, (answer, call) in enumerate(answers, start=1):
        ax.text(0.1, top + line, answer, size=10.5, va="center")
        ax.text(COLUMN + 0.06, top + line, call, **CALL)
        arrow = {**ARROW, "color": color}
        at = (COLUMN + 0.045, top + line), (COLUMN, top + line)
        ax.annotate("", *at, arrowprops=arrow)
    return top + len(answers) + 1 + GAP


MIDDLE = {"ha": "center", "va": "center"}
CALL = {"size": 9.5, "va": "center", "family": "monospace"}
ARROW = {"arrowstyle": "->", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}


def draw(ax: Axes) -> None:
    """Draws all questions along one line from the first to the last."""
    top, tops = 0.0, []
    for number in range(len(QUESTIONS)):
        tops.append(top)
        top = draw_question(ax, top, number)
    ink = matplotlib.rcParams["text.color"]
    ax.plot([0.04] * 2, [tops[0], tops[-1]], color=ink, linewidth=1.5, zorder=1)
    ax.set(xlim=(0, 1), ylim=(num_lines() - 0.9, -0.9))
    ax.axis("off")


def main() -> None:
    """Writes the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GUIDE)
    out = parser.parse_args().out
    with plt.rc_context(plotting.style(**{"svg.hashsalt": "which_method"})):
        size = WIDTH, LINE * num_lines()
        figure = plt.figure(figsize=size, layout="none")
        draw(figure.add_axes((0, 0, 1, 1)))
        figure.savefig(out / "which_method.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
