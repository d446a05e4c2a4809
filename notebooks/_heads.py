"""What every page says of itself: a description, a card to share, its source."""

from html import escape
from pathlib import Path
from posixpath import relpath

from docutils import nodes
from sphinx.addnodes import desc_content
from sphinx.application import Sphinx

from notebooks import _links

CARD = "experiments/pictures/social_card.png"  # where pages are shared
LANDING = "notebooks/landing.md"  # the first page
PARENTS = nodes.section | desc_content  # of what opens a page, or an entry of it


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the head and the last line of every page to Sphinx.

    Its settings are the address of the repository, and whether there is a card.
    """
    app.add_config_value("repository", "", "html", str)
    app.add_config_value("has_card", "", "html", str)
    app.connect("html-page-context", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def description(doctree: nodes.document) -> str:
    """Returns the first sentence of a page, in plain text, or ""."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        opens = isinstance(paragraph.parent, PARENTS)
        if text and opens and "used" not in paragraph["classes"]:
            return text if len(text) < 160 else text[:160].rpartition(" ")[0] + " ..."
    return ""


def _add(app: Sphinx, name: str, _: str, context: dict, doctree) -> None:
    if doctree is None:  # of search, which is no page of the repository
        return
    text = description(doctree)
    image = CARD if app.config.has_card else ""
    home = app.config.html_baseurl or relpath(".", str(Path(name).parent)) + "/"
    values = {
        "og:title": context["title"],
        "og:type": "article",
        "og:site_name": app.config.project,
        "og:description": text,
        "og:image": image and home + image,
        "twitter:card": image and "summary_large_image",
    }
    context["metatags"] += _meta("name", {"description": text})
    context["metatags"] += _meta("property", values)
    line = _source(name, app.env.doc2path(name, False), app.config)
    if "download" in line:
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)
    else:
        context["body"] += line


def _meta(key: str, values: dict[str, str]) -> str:
    return "".join(
        f'<meta {key}="{name}" content="{escape(value)}">\n'
        for name, value in values.items()
        if value
    )


def _source(name: str, path: Path | str, config) -> str:
    """Returns the line on where a page comes from, with the notebook to keep."""
    file = LANDING if name == config.root_doc else str(path)
    links = []
    if file.endswith(".ipynb"):
        links.append(f'<a href="{Path(file).name}" download>Download the notebook</a>')
    address = _links.address(config.repository, file)
    if address and not file.startswith("api/") and Path(file).stem != "gallery":
        links.append(f'<a href="{address}">Page source</a>')
    return f'<p class="used source">{" · ".join(links)}</p>' if links else ""
