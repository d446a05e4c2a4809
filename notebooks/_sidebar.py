"""One sidebar for all pages of a folder that it does not list.

Sphinx makes it anew for each page, though of hundreds of names in the reference none is
in it: a third of the time of the site.
"""

from posixpath import dirname

from sphinx.application import Sphinx

BEFORE = 400  # themes read the sidebar at 500


def setup(app: Sphinx) -> dict[str, bool]:
    """Makes pages that are orphans share what `toctree` returns in their folder."""
    made: dict[str, str] = {}

    def share(app: Sphinx, name: str, _: str, context: dict, __) -> None:
        if "orphan" in app.env.metadata.get(name, {}):
            context["toctree"] = _once(context["toctree"], made, dirname(name))

    app.connect("html-page-context", share, priority=BEFORE)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _once(toctree, made: dict[str, str], folder: str):
    """Returns `toctree` with a memory: its text, by folder and options."""

    def shared(**options) -> str:
        key = f"{folder} {sorted(options.items())}"
        if key not in made:
            made[key] = toctree(**options)
        return made[key]

    return shared
