"""Pictures of how-to pages, drawn by the code that stands on them.

`python -m notebooks.pictures [NAME ...]`

A page shows its picture by `![What it shows](pictures/NAME.svg)`: its blocks above that
line are run in order, as the tests run them, and the figure that is current after the
last one is saved. Without names, those of all pages.
"""

import argparse
import os
import re
import tempfile
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from jaxcp import plotting

PAGES = Path(__file__).parent / "guide" / "howto"
MOST = 40_000  # bytes of a picture
STYLE = plotting.style() | {"figure.figsize": (6.4, 3.0), "svg.hashsalt": "jaxcp"}
STYLE |= {"savefig.bbox": "tight"}


def shown(name: str) -> str:
    """Returns the line of a page, up to the file, that shows its picture."""
    return f"](pictures/{name}.svg)"


def blocks(page: Path) -> list[str]:
    """Returns the Python blocks of a page above its picture.

    Raises:
      ValueError: if the page does not show its picture.
    """
    above, found, _ = page.read_text().partition(shown(page.stem))
    if not found:
        raise ValueError(f"expected ![...{shown(page.stem)} in {page.name}, got none")
    return re.findall(r"```python\n(.*?)```", above, flags=re.DOTALL)


def draw(page: Path, out: Path = PAGES / "pictures") -> Path:
    """Draws the picture of a page and returns its file.

    Raises:
      ValueError: if the page does not show its picture, or its code draws none, or one
        of more than 40 kB.
    """
    names, start, path = {"__name__": "__main__"}, Path.cwd(), out / f"{page.stem}.svg"
    plt.close("all")
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(STYLE):
        os.chdir(folder)
        try:
            for code in blocks(page):
                exec(compile(code, page.name, "exec"), names)
        finally:
            os.chdir(start)
        if not plt.get_fignums():
            raise ValueError(
                f"expected a figure of the blocks of {page.name}, got none"
            )
        path.parent.mkdir(exist_ok=True)
        plt.gcf().savefig(path, metadata={"Date": None}, transparent=True)
    plt.close("all")
    if (size := path.stat().st_size) > MOST:
        raise ValueError(f"expected {path.name} of at most {MOST} bytes, got {size}")
    return path


def main() -> None:
    """Draws the pictures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [
        p.stem for p in sorted(PAGES.glob("*.md")) if shown(p.stem) in p.read_text()
    ]
    parser.add_argument("names", nargs="*", default=known, metavar="NAME")
    matplotlib.use("agg")
    for name in parser.parse_args().names:
        path = draw((PAGES / f"{name}.md").resolve())
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
