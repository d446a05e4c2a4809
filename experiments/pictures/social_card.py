"""The card that other sites show beside a link: a sentence, and ten intervals.

`python -m experiments.pictures.social_card [--out DIR]` writes `social_card.png`,
1200 x 630 pixels, beside this script if no folder is given. The rows are an example.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from experiments.tools.reporting import DPI, save_figure, use_style

SENTENCE = (
    "A model says 950;",
    "jaxcp says 610 to 1290,",
    "and on average nine of ten",
    "such intervals hold the truth.",
)
HALF = 340  # of an interval
ROWS = (  # what a model says, and the truth
    (950, 1100), (1120, 1010), (760, 830), (1010, 700), (880, 1130), (1200, 1620),
    (820, 760), (1060, 1240), (700, 610), (980, 1020),
)  # fmt: skip
BLUE, ORANGE, DARK, QUIET = "#0072B2", "#D55E00", "#1c2733", "#5b6875"


def draw_words(figure) -> None:
    """Draws the name, the sentence and what it is about."""
    look = {"x": 0.06, "va": "top", "ha": "left"}
    figure.text(y=0.92, s="jaxcp", size=34, weight="bold", color=BLUE, **look)
    words = "\n".join(SENTENCE)
    figure.text(y=0.7, s=words, size=17, color=DARK, linespacing=1.35, **look)
    told = "Prediction intervals with a coverage guarantee,\nfor any model, in JAX"
    figure.text(y=0.19, s=told, size=11, color=QUIET, linespacing=1.4, **look)


def draw_rows(ax) -> None:
    """Draws an interval and the truth of each row, the first with its numbers."""
    for i, (pred, y) in enumerate(ROWS):
        look = {"color": BLUE, "alpha": 1 if i == 0 else 0.35}
        ax.hlines(-i, pred - HALF, pred + HALF, linewidth=10 if i == 0 else 7, **look)
        shape, color = ("o", DARK) if abs(y - pred) <= HALF else ("X", ORANGE)
        ax.plot(y, -i, shape, color=color, mec="white", mew=1, ms=10, zorder=3)
    pred = ROWS[0][0]
    ax.plot(pred, 0, "|", color="white", ms=9, mew=2)
    look = {"ha": "center", "color": BLUE, "size": 13, "weight": "bold"}
    for value in (pred - HALF, pred, pred + HALF):
        ax.text(value, 0.6, f"{value}", **look)
    ax.set(ylim=(0.7 - len(ROWS), 1.2))
    ax.axis("off")


def draw():
    """Returns the card."""
    figure = plt.figure(figsize=(1200 / DPI, 630 / DPI), layout="none")
    figure.set_facecolor("white")
    draw_words(figure)
    draw_rows(figure.add_axes((0.56, 0.06, 0.4, 0.86)))
    return figure


def main() -> None:
    """Draws the card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    use_style(**{"savefig.transparent": False, "savefig.bbox": "standard"})
    save_figure(draw(), args.out, "social_card", ("png",))


if __name__ == "__main__":
    main()
