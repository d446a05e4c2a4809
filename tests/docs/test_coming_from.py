"""The tables of calls: our names exist, and rows that say so are run beside theirs."""

import functools
import importlib
import re

import pytest

import jaxcp
import pages

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.peers import calls

FRONT = pages.GUIDE / "coming_from.md"
each = pytest.mark.parametrize("name", calls.LIBRARIES)
MODULES = [v for v in jaxcp.__all__ if v.islower() and v != "typing"]
VARIABLES = {
    "cp": [
        *(jaxcp.Calibration, jaxcp.CrossConformal, jaxcp.ConditionalCalibration),
        *(jaxcp.SplitConformal, jaxcp.risk.RiskCalibration),
    ],
    "system": [jaxcp.predictive.PredictiveSystem],
    "monitor": [jaxcp.online.RiskMonitor],
}


def names_in(text):
    """Returns the dotted names of ours in the spans of code of a text."""
    spans = re.findall(r"`([^`]+)`", text)
    found = {
        n for span in spans for n in re.findall(r"(?<![.\w\"])\w+(?:\.\w+)+", span)
    }
    return {n for n in found if n.split(".")[0] in ("jaxcp", *MODULES, *VARIABLES)}


def is_there(name):
    """Returns whether a name is one of the library, or of what its verbs return."""
    first, *rest = name.split(".")
    if first in VARIABLES:
        kinds = VARIABLES[first]
        return any(
            hasattr(kind, rest[0]) or rest[0] in kind.__dataclass_fields__
            for kind in kinds
        )
    rest = rest if first == "jaxcp" else [first, *rest]
    try:
        functools.reduce(getattr, rest, jaxcp)
    except AttributeError:
        return False
    return True


def second_columns(path):
    """Returns the second cells of the tables of calls of a page."""
    for table in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
        head, _, *lines = table.splitlines()
        if re.split(r" *\| *", head)[2] == "jaxcp":
            yield from (re.split(r" *\| *", line)[2] for line in lines)


@pytest.mark.parametrize(
    "path", [FRONT, *sorted(calls.PAGES.glob("*.md"))], ids=lambda path: path.stem
)
def test_our_names_exist(path):
    found = set().union(*map(names_in, second_columns(path)))
    assert len(found) >= 5
    assert not [name for name in sorted(found) if not is_there(name)]


def test_names_that_do_not_exist_are_noticed():
    wrong = "`jaxcp.calibrat(score)`, `scores.Absolut()`, `cp.quantiles(0.1)`"
    right = "`jaxcp.calibrate(scores.Absolute())`, `cp.quantile(0.1)`, `model.f`"
    assert [is_there(name) for name in names_in(wrong)] == [False] * 3
    assert [is_there(name) for name in names_in(right)] == [True] * 3


@each
def test_each_row_that_says_so_has_a_run(name):
    """And each run a row: the words of a call are in that row alone."""
    known = importlib.import_module(f"experiments.peers.calls_{name}").CALLS
    rows = calls.rows_of(name)
    assert all(row.runs or row.seen in ("stored", "read") for row in rows)
    found = [calls.function_of(row, known) for row in rows if row.runs]
    assert None not in found
    assert sorted(map(id, found)) == sorted(map(id, known.values()))


def test_agreement_is_what_a_row_says():
    row = lambda seen: calls.Row("call", "ours", seen)  # noqa: E731
    assert calls.agreement(row("equal"), ([1.0, 2.0], [1.0, 2.00001]))
    assert not calls.agreement(row("equal"), ([1.0, 2.0], [1.0, 2.1]))
    assert not calls.agreement(row("equal"), (1.0, [1.0, 1.0]))
    assert calls.agreement(row("drawn"), (0.50, 0.52))
    assert calls.agreement(row("differs: a rank"), (1.0, 2.0, 2.0))
    assert not calls.agreement(row("differs: a rank"), (1.0, 2.0, 3.0))
    assert not calls.agreement(row("differs: a rank"), (1.0, 1.0))


@pytest.mark.slow
@each
@pytest.mark.filterwarnings("ignore")
def test_rows_beside_the_library(name):
    """Where it is installed; the ways of both are as the page says."""
    module = calls.module_of(name)
    if module is None:
        pytest.skip(f"{name} is not installed")
    for row in calls.rows_of(name):
        call = calls.function_of(row, module.CALLS)
        assert call is None or calls.agreement(row, call()), row.call
