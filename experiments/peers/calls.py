"""Calls of other libraries and ours, run on the same rows: the tables of a guide page.

`python -m experiments.peers.calls [NAME ...]`, of `LIBRARIES`

The pages of `notebooks/guide/coming_from/` have a table of calls each. Its third column
says how a row was seen: "equal" and "differs: ..." are run here, with the numbers of
both; "drawn" is run too, and differs by draws. Libraries that are not installed are
left out, and said so. PUNCC asks for an older numpy than jax does; what is called here
runs with a newer one. TorchCP imports torchsort for its training losses, which are not
called: an empty module of that name will do.
"""

import argparse
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.tools.reporting import print_table

PAGES = Path(__file__).parents[2] / "notebooks" / "guide" / "coming_from"
LIBRARIES = {  # the page, and the modules and distributions that it needs
    "mapie": {"mapie": "MAPIE"},
    "crepes": {"crepes": "crepes"},
    "torchcp": {"torchcp": "torchcp"},
    "puncc": {"deel": "puncc"},
    "forecasters": {
        "statsforecast": "statsforecast",
        "sktime": "sktime",
        "darts": "darts",
        "skforecast": "skforecast",
    },
}
CLOSE, DRAWN = 1e-4, 0.05  # relative and absolute; absolute, of p-values that are drawn


class Row(NamedTuple):
    """A row of a table of calls."""

    call: str  # without marks of code
    ours: str
    seen: str  # "equal", "differs: ...", "drawn", "stored" or "read"

    @property
    def runs(self) -> bool:
        """Whether both calls are run here."""
        return self.seen in ("equal", "drawn") or self.seen.startswith("differs")


def rows_of(name: str) -> list[Row]:
    """Returns the rows of the tables of a page whose third column is "seen"."""
    text = (PAGES / f"{name}.md").read_text()
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *lines = [re.split(r" *\| *", v)[1:-1] for v in table.splitlines()]
        if head[-1] == "seen":
            found += [Row(cells[0].replace("`", ""), *cells[1:]) for cells in lines]
    return found


def function_of(row: Row, calls: dict):
    """Returns the function that runs a row: the longest of the words in its call."""
    found = [words for words in calls if words in row.call]
    return calls[max(found, key=len)] if found and row.runs else None


def agreement(row: Row, values: tuple) -> bool:
    """Returns whether two calls agree as a row says, or differ as explained."""
    ours, theirs, *explained = (np.asarray(v, float) for v in values)
    close = {"rtol": CLOSE, "atol": CLOSE}
    if row.seen == "drawn":
        return bool(np.all(abs(ours - theirs) <= DRAWN))
    if row.seen == "equal":
        return ours.shape == theirs.shape and np.allclose(ours, theirs, **close)
    return not np.allclose(ours, theirs, **close) and all(
        np.allclose(theirs, v, **close) for v in explained
    )


def module_of(name: str):
    """Returns the calls of a library, or None where one that it needs is missing."""
    missing = [m for m in LIBRARIES[name] if importlib.util.find_spec(m) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}; {name} is left out")
        return None
    return importlib.import_module(f"experiments.peers.calls_{name}")


def lines_of(name: str) -> Iterator[dict]:
    """Yields a line for each row of a page, with whether it is as the page says."""
    module = module_of(name)
    if module is None:
        return
    versions = [importlib.metadata.version(v) for v in LIBRARIES[name].values()]
    for row in rows_of(name):
        call = function_of(row, module.CALLS)
        agree = agreement(row, call()) if call else None
        yield {
            "peer": name,
            "version": ", ".join(versions),
            "call": row.call,
            "ours": row.ours,
            "seen": row.seen,
            "agree": {None: "not run", True: "as said", False: "NOT as said"}[agree],
        }


def main() -> None:
    """Prints the tables of the libraries that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*LIBRARIES, []])
    for name in parser.parse_args().names or LIBRARIES:
        lines = list(lines_of(name))
        if lines:
            print_table(f"{name}: calls beside ours", lines)


if __name__ == "__main__":
    main()
