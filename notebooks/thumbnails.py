"""Draws the pictures of the gallery: `python -m notebooks.thumbnails [NAME ...]`.

Each is one panel of the figure that a notebook draws in its cell with the tag
"thumbnail", in small: few ticks, large letters, no title. The cells of the notebook
before it are run with the small sizes of the tests. The pictures lie beside the
notebooks and know the source of their cell: a test says which are behind it.
"""

import argparse
import hashlib
import io
import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text
from matplotlib.ticker import AutoLocator, LogLocator, MaxNLocator
from PIL import Image, PngImagePlugin

from notebooks import _gallery, build

SIZE = 4.0, 2.4  # inches
POINTS = 12  # of letters; of those inside of the axes a few less
SOURCE = "Source"  # of the picture: the key of what it was drawn from


def source(path: Path) -> str:
    """Returns a digest of the cell that a picture is drawn by, and of its panel."""
    cells = build.read_source(path).cells
    drawn = [c.source for c in cells if _gallery.TAG in c.metadata.get("tags", [])]
    text = "\n".join([*drawn, str(_gallery.story(path.stem).panel)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def said(picture: Path) -> str:
    """Returns the digest that a picture was saved with."""
    with Image.open(picture) as image:
        return image.info.get(SOURCE, "")


def draw(path: Path) -> Figure:
    """Returns the panel of a notebook at the size of a card.

    Raises:
      ValueError: if no cell has the tag "thumbnail".
    """
    names = {"__name__": "__main__"}
    for cell in build.read_source(path).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, path.name, "exec"), names)
        if _gallery.TAG in cell.metadata.get("tags", []):
            figure, story = plt.gcf(), _gallery.story(path.stem)
            kept = figure.axes[story.panel]
            if kept.get_legend() and not story.legend:
                kept.get_legend().remove()
            return alone(figure, kept)
    raise ValueError(f"expected a cell with the tag {_gallery.TAG!r} in {path.name}")


def alone(figure: Figure, kept: Axes) -> Figure:
    """Returns a figure with one of its axes, as large as a card."""
    for ax in figure.axes:
        if ax is not kept:
            ax.remove()
    for text in [*figure.texts, *figure.legends]:
        text.remove()
    figure.set_size_inches(SIZE)
    kept.set_subplotspec(GridSpec(1, 1, figure)[0])
    kept.set_title("")
    kept.tick_params(labelbottom=True, labelleft=True)  # also of axes that share them
    for axis in (kept.xaxis, kept.yaxis):
        if isinstance(axis.get_major_locator(), AutoLocator):
            axis.set_major_locator(MaxNLocator(4))
        if isinstance(axis.get_major_locator(), LogLocator):
            axis.set_major_locator(LogLocator(numticks=4))
    if kept.images:
        kept.set(xticks=[], yticks=[], xlabel="", ylabel="")
    inside = [*kept.texts, *(kept.get_legend() or Text()).findobj(Text)]
    for text in kept.findobj(Text):
        text.set_fontsize(POINTS - 3 * (text in inside))
    return figure


def save(path: Path) -> None:
    """Writes the picture of a notebook, of at most 64 colors, beside it."""
    data = io.BytesIO()
    figure = draw(path)
    with plt.rc_context({"savefig.bbox": None}):  # all of one shape
        figure.savefig(data, dpi=200)
    plt.close("all")
    picture = _gallery.picture(path)
    picture.parent.mkdir(exist_ok=True)
    info = PngImagePlugin.PngInfo()
    info.add_text(SOURCE, source(path))
    Image.open(data).quantize(64).save(picture, optimize=True, pnginfo=info)


def main() -> None:
    """Draws the pictures that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of notebooks, such as 01")
    names = parser.parse_args().names
    os.environ["JAXCP_FAST"] = "1"
    for path in build.sources():
        if not names or any(path.stem.startswith(name) for name in names):
            save(path)
            print(_gallery.picture(path))


if __name__ == "__main__":
    main()
