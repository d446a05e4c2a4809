"""The gallery: notebooks by task, each with its methods, a sentence and a picture."""

import dataclasses
import re
import shutil
from pathlib import Path

from nbformat import NotebookNode

TAG = "thumbnail"  # of the cell whose picture is drawn in small


@dataclasses.dataclass(frozen=True)
class Story:
    """The place of a notebook in the gallery.

    Args:
      task: What somebody wants who may read it.
      methods: What it shows, by the names of the field.
      panel: Which of the axes of its picture is drawn in small.
      legend: Whether with its legend.
    """

    task: str
    methods: str
    panel: int = 0
    legend: bool = False


SETS = "Sets for each kind of target"
ROWS = "Rows that are few, shifted, grouped, or in time"
WORK = "Judge, control, train, and put to work"
TASKS = SETS, ROWS, WORK
STORIES = {
    "01": Story(SETS, "Intervals for regression: split conformal, any network"),
    "02": Story(SETS, "Label sets: LAC, APS, RAPS, coverage in each class"),
    "05": Story(SETS, "Regions for two outputs: density, draws, latent codes", 9),
    "06": Story(SETS, "Boxes for a detector: one threshold a side"),
    "09": Story(SETS, "Your own model: scikit-learn, PyTorch, a density"),
    "17": Story(SETS, "Distributions: predictive systems, percentiles, CRPS"),
    "18": Story(SETS, "Calibrated probabilities: Venn-Abers"),
    "21": Story(SETS, "Bands for paths and fields, and late targets"),
    "03": Story(ROWS, "Few rows, any model: jackknife+ and CV+", legend=True),
    "10": Story(ROWS, "Few rows and frames: CV+, bootstrap, EnbPI"),
    "14": Story(ROWS, "Few rows, at least 1 - alpha: full conformal", legend=True),
    "16": Story(ROWS, "Conditional coverage: CQR, groups, shifts, neighbors", 2),
    "13": Story(ROWS, "Covariate shift: weights by likelihood ratios"),
    "20": Story(ROWS, "Clusters, treatments, survival times, selected rows"),
    "04": Story(ROWS, "Time series: EnbPI, ACI, PID"),
    "12": Story(ROWS, "Anomalies: p-values, false discoveries, martingales"),
    "11": Story(WORK, "Judging sets: coverage, size, conditional coverage", 1),
    "15": Story(WORK, "Risk control: missed pixels, selective answers"),
    "07": Story(WORK, "Training for small sets: gradients of thresholds"),
    "08": Story(WORK, "Simulation: a million calibrations, exact coverage"),
    "19": Story(WORK, "Production: groups, export, late answers, alarms"),
}


def story(name: str) -> Story:
    """Returns the place of a notebook, by its name without a suffix.

    Raises:
      ValueError: if it has none.
    """
    if name[:2] not in STORIES:
        raise ValueError(f"expected a story for {name} in STORIES of {__name__}")
    return STORIES[name[:2]]


def picture(notebook: Path) -> Path:
    """Returns where the picture of a notebook lies: `notebooks.thumbnails` draws it."""
    return notebook.parent / "thumbnails" / f"{notebook.stem}.png"


def heading(notebook: NotebookNode) -> tuple[str, str]:
    """Returns the title and the first sentence of a notebook, in plain text."""
    first, _, rest = notebook.cells[0].source.strip().partition("\n")
    paragraph = " ".join(rest.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.?!](?= |$)", paragraph)
    text = sentence[0] if sentence else paragraph
    return first.lstrip("# "), re.sub(r"[*`]", "", text).rstrip(":")


def write(folder: Path, notebooks: dict[Path, NotebookNode]) -> None:
    """Writes the page and the pictures of a gallery beside the notebooks.

    Args:
      folder: Of the notebooks on the site.
      notebooks: Each, by its file in the repository.

    Raises:
      ValueError: if a notebook has no story, or no picture, with its name.
    """
    (folder / "thumbnails").mkdir(parents=True, exist_ok=True)
    cards: dict[str, list[str]] = {}
    for path, notebook in notebooks.items():
        if not picture(path).exists():
            raise ValueError(
                f"{path.name}: expected a picture, got none; draw it with "
                f"`python -m notebooks.thumbnails {path.stem}`"
            )
        shutil.copy(picture(path), folder / "thumbnails")
        group = cards.setdefault(story(path.stem).task, [])
        group.append(_card(path.stem, *heading(notebook)))
    groups = [_group(task, cards[task]) for task in TASKS if task in cards]
    names = "\n".join(path.stem for path in notebooks)
    page = _PAGE.format(groups="\n".join(groups), names=names)
    (folder / "gallery.md").write_text(page)


def _card(name: str, title: str, sentence: str) -> str:
    methods = story(name).methods
    text = sentence if methods.startswith(title) else f"**{title}.** {sentence}"
    return _CARD.format(name=name, methods=methods, text=text)


def _group(task: str, cards: list[str]) -> str:
    return _GROUP.format(task=task, cards="\n".join(cards))


_PAGE = """# Notebooks

Each tells one story: data, prediction, sets, coverage, a picture, and a claim that is
checked. They are shown with the outputs of their last run.

{groups}
```{{toctree}}
:hidden:

{names}
```
"""
_GROUP = """## {task}

````{{grid}} 1 2 2 2
:gutter: 3

{cards}
````
"""
_CARD = """```{{grid-item-card}} {methods}
:img-top: thumbnails/{name}.png
:img-alt: The picture of this notebook, in small
:link: {name}
:link-type: doc

{text}
```
"""
