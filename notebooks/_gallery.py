"""The gallery: every notebook with its title, first sentence and one picture."""

import base64
import re
from pathlib import Path

from nbformat import NotebookNode

PICTURES = {"image/svg+xml": ".svg", "image/png": ".png"}
TAG = "thumbnail"  # of the cell whose picture is shown, if it is not the last one


def thumbnail(notebook: NotebookNode) -> tuple[str, bytes]:
    """Returns the suffix and the bytes of the picture that stands for a notebook.

    It is the last picture of the cell with the tag "thumbnail", or of the last cell
    that has any.

    Raises:
      ValueError: if no cell that counts has a picture.
    """
    tagged = [c for c in notebook.cells if TAG in c.metadata.get("tags", [])]
    found = [
        (suffix, output.data[kind])
        for cell in (tagged or notebook.cells)
        for output in cell.get("outputs", [])
        for kind, suffix in PICTURES.items()
        if kind in output.get("data", {})
    ]
    if not found:
        raise ValueError("expected a picture among the outputs, got none")
    suffix, data = found[-1]
    data = "".join(data)
    is_text = suffix == ".svg"
    return suffix, data.encode() if is_text else base64.b64decode(data)


def heading(notebook: NotebookNode) -> tuple[str, str]:
    """Returns the title and the first sentence of a notebook, in plain text."""
    first, _, rest = notebook.cells[0].source.strip().partition("\n")
    paragraph = " ".join(rest.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.?!](?= |$)", paragraph)
    text = sentence[0] if sentence else paragraph
    return first.lstrip("# "), re.sub(r"[*`]", "", text).rstrip(":")


def write(folder: Path, notebooks: dict[str, NotebookNode]) -> None:
    """Writes the page and the pictures of a gallery beside the notebooks.

    Args:
      folder: Of the notebooks on the site.
      notebooks: Each, by its name without a suffix.

    Raises:
      ValueError: if a notebook has no picture, with its name.
    """
    pictures = folder / "thumbnails"
    pictures.mkdir(parents=True, exist_ok=True)
    cards = []
    for name, notebook in notebooks.items():
        try:
            suffix, data = thumbnail(notebook)
        except ValueError as error:
            raise ValueError(f"{name}.ipynb: {error}") from error
        (pictures / f"{name}{suffix}").write_bytes(data)
        cards.append(_card(name, f"thumbnails/{name}{suffix}", *heading(notebook)))
    names = "\n".join(notebooks)
    (folder / "gallery.md").write_text(
        _PAGE.format(cards="\n".join(cards), names=names)
    )


def _card(name: str, picture: str, title: str, sentence: str) -> str:
    return _CARD.format(name=name, picture=picture, title=title, sentence=sentence)


_PAGE = """# Notebooks

Each tells one story: data, prediction, sets, coverage, a picture, and a claim that is
checked. They are shown with the outputs of their last run.

````{{grid}} 1 1 2 2
:gutter: 3

{cards}
````

```{{toctree}}
:hidden:

{names}
```
"""
_CARD = """```{{grid-item-card}} {title}
:img-top: {picture}
:img-alt: A picture of this notebook
:link: {name}
:link-type: doc

{sentence}
```
"""
