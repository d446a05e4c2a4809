"""The decision figure of the guide: its five questions, and what to call.

`python -m experiments.pictures.decision_figure [--out DIR]` takes the rows in bold from
the tables of the page `which_method.md`, and writes `which_method.svg`, and for phones
`which_method_phone.svg`, into the guide if no folder is given.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxcp import plotting

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GUIDE = Path(__file__).parents[2] / "notebooks" / "guide"
PAGE = GUIDE / "which_method.md"
# Which questions stand below one another, in each of the columns.
LAYOUTS = {"which_method": ((0, 1), (2, 3, 4)), "which_method_phone": (range(5),)}
COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07A00"
WIDTH, LINE = 4.7, 0.225  # inches, of a column and of a line
GAP = 0.6  # lines between questions
CALL = 0.53  # where calls begin, as a share of a column
NOTE = re.compile(r"[:;,(]| or | and | for | if | beside ")  # what follows a call


class Question(NamedTuple):
    """A question of the page.

    Args:
      words: What is asked.
      answers: The common answers, each with what to call.
    """

    words: str
    answers: tuple[tuple[str, str], ...]


def questions(page: str) -> list[Question]:
    """Returns the questions of the page, with the rows of their tables in bold."""
    _, *parts = re.split(r"^## \d\. ", page, flags=re.MULTILINE)
    return [Question(part.partition("\n")[0], answers(part)) for part in parts]


def answers(part: str) -> tuple[tuple[str, str], ...]:
    """Returns the answers in bold of the first table of a part, and their calls."""
    lines = part.partition("\n\n| ")[2].partition("\n\n")[0].splitlines()
    rows = [re.split(r" *\| *", line.removeprefix("| ")) for line in lines]
    at = next(i for i, cell in enumerate(rows[0]) if re.search("call|add", cell))
    bold = [row for row in rows if row[0].startswith("**")]
    return tuple((words(row[:at]), call(row[at])) for row in bold)


def words(cells: list[str]) -> str:
    """Returns the cells of an answer as one, without marks."""
    return ": ".join(cell for cell in cells if cell).replace("**", "")


def call(cell: str) -> str:
    """Returns the first call of a cell without its arguments, or its first words."""
    code = re.match("`(jaxcp[.])?([^`]+)`", cell)
    if not code:
        return NOTE.split(cell)[0]
    name, _, arguments = code[2].partition("(")
    return name + "()" * (bool(arguments) and name.startswith("scores."))


def draw_question(ax: Axes, left: float, top: float, number: int, question: Question):
    """Draws a question and its answers; returns where the next one begins."""
    color = COLORS[number]
    ax.scatter(left + 0.18, top, s=300, color=color, zorder=3)
    ax.text(left + 0.18, top, number + 1, **MIDDLE)
    ax.text(left + 0.42, top, question.words, weight="bold", size=12, va="center")
    end = left + CALL * WIDTH
    for i, (answer, what) in enumerate(question.answers, start=1):
        line = top + i
        ax.text(left + 0.42, line, answer, **WORDS)
        ax.text(end, line, "\N{RIGHTWARDS ARROW}", color=color, **WORDS)
        ax.text(end + 0.2, line, what, **(WORDS if " " in what else CODE))
    return top + len(question.answers) + 1 + GAP


MIDDLE = {"ha": "center", "va": "center", "color": "white", "weight": "bold"}
WORDS = {"size": 10, "va": "center"}
CODE = {"size": 9, "va": "center", "family": "monospace"}


def draw(asked: list[Question], columns: tuple) -> Figure:
    """Returns the figure of the questions, in columns from the first to the last."""
    lines = [sum(len(asked[i].answers) + 1 + GAP for i in c) - GAP for c in columns]
    size = WIDTH * len(columns), LINE * (max(lines) + 1)
    figure = plt.figure(figsize=size, layout="none")
    ax = figure.add_axes((0, 0, 1, 1))
    for j, numbers in enumerate(columns):
        top = 0.0
        for number in numbers:
            top = draw_question(ax, j * WIDTH, top, number, asked[number])
    ax.set(xlim=(0, size[0]), ylim=(max(lines) + 0.1, -0.9))
    ax.axis("off")
    return figure


def main() -> None:
    """Writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GUIDE)
    out = parser.parse_args().out
    asked = questions(PAGE.read_text())
    with plt.rc_context(plotting.style(**{"svg.hashsalt": "which_method"})):
        for name, columns in LAYOUTS.items():
            figure = draw(asked, columns)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
