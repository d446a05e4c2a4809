"""What every method prints of its promise, and the law that tests the printed number.

A method joins by the words of its promise in `WORDS`, with the law that reads them.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_docstrings import public, sections

import jaxcp
from jaxcp import detection, frames, online, scores
from jaxcp.certificates.promises import promised
from jaxcp.plotting.pages import _facts
from methods import ABSOLUTE, ALPHA, METHODS

SURE = "P(Y in set) >= 1 - {alpha}"
ON_AVERAGE = ", on average over calibration sets"
TRAINED = ", on average over training sets"
CLUSTER = " for a row of a new cluster"
HELD_OUT = (
    "rows of calibration and new ones are exchangeable, and the model saw neither"
)
ALIKE = "all rows are exchangeable, and the learner takes them in any order"
OF_CLUSTERS = "those of exchangeable clusters, exchangeable within each"
UNITS = "P(Y(1) in set) >= 1 - {alpha} over treated and untreated units"
RISKS = f"{HELD_OUT}; the largest sets lose at most alpha on average"
IN_TURN, CLUSTERED = "laws/test_in_turn.py", "calibration/test_clusters.py"
# The words of each promise: how the assumption begins, and the law that reads them.
WORDS = {
    f"{SURE}{ON_AVERAGE}": ("rows of calibration and new ones are exch", IN_TURN),
    f"{SURE}{ON_AVERAGE}, in each of 3 groups": (HELD_OUT, IN_TURN),
    f"{SURE}{ON_AVERAGE}, in each group of at least 7 rows, and in the others "
    "together": (HELD_OUT, "calibration/test_small_groups.py"),
    f"{SURE}{ON_AVERAGE}, in each of 1 group of labels, and for the labels in no group "
    "nothing": (HELD_OUT, IN_TURN),
    f"{SURE}{CLUSTER}{ON_AVERAGE}": (
        HELD_OUT.replace("exchangeable", OF_CLUSTERS),
        CLUSTERED,
    ),
    f"{SURE}{CLUSTER}, drawn at random among its rows in the group{ON_AVERAGE}, in "
    "each of 3 groups": (HELD_OUT.replace("exchangeable", OF_CLUSTERS), CLUSTERED),
    f"P(Y in set given which inputs are missing) >= 1 - {{alpha}}{ON_AVERAGE}": (
        "rows of calibration and new ones are exchangeable, the model and the imp",
        "calibration/test_masked.py",
    ),
    "E f(X) (1(Y in set) - (1 - {alpha})) >= 0 for every f >= 0 that is linear in the "
    f"features{ON_AVERAGE}": (HELD_OUT, IN_TURN),
    f"{UNITS}{ON_AVERAGE}": (
        "units are independent, each may be in either arm, ",
        "causal/test_causal.py",
    ),
    "P(the interval of the effect in set) >= 1 - {alpha}, and so of the effect 1 - "
    f"{{alpha}} - gamma{ON_AVERAGE}": (
        "rows of calibration and new ones are exchangeable, each interval holds",
        "causal/test_causal.py",
    ),
    f"P(T >= bound) >= 1 - {{alpha}}{ON_AVERAGE}": (
        "units are independent and of one law, T and C are independent given x, ",
        "survival/test_lower_bounds.py",
    ),
    f"P(Y in set given that its row is selected) >= 1 - {{alpha}}{ON_AVERAGE}": (
        "rows of calibration and test rows are exchangeable, ",
        "selection/test_selected.py",
    ),
    "P(Y in set) >= 1 - 2 * {alpha} - 4/25" + TRAINED: (ALIKE, IN_TURN),
    "P(Y in set) >= 1 - 2 * {alpha}" + TRAINED: (ALIKE, IN_TURN),
    f"P(Y in set) >= 1 - 2 * {{alpha}}{TRAINED}, in each of 3 groups": (
        ALIKE,
        IN_TURN,
    ),
    "P(Y in set) >= 1 - 2 * {alpha} + 1 / (10 + 1)" + CLUSTER + TRAINED: (
        ALIKE.replace("exchangeable", OF_CLUSTERS),
        "cross/test_cross_clusters.py",
    ),
    "P(Y in set) is about 1 - {alpha} for stable learners, and >= 1 - 2 * {alpha} for "
    "bags whose number was drawn" + TRAINED: (
        f"{ALIKE}; for EnbPI errors mix strongly",
        None,  # no number for these bags
    ),
    f"{SURE}{TRAINED}": (ALIKE, IN_TURN),
    f"{SURE}{TRAINED}, in each of 3 groups": (ALIKE, IN_TURN),
    f"E loss <= {{alpha}}{ON_AVERAGE}": (RISKS, IN_TURN),
    f"E loss <= {{alpha}}{CLUSTER}{ON_AVERAGE}": (
        RISKS.replace("exchangeable", OF_CLUSTERS, 1),
        CLUSTERED,
    ),
    f"E loss <= {{alpha}}{ON_AVERAGE}, in each of 3 groups": (RISKS, IN_TURN),
    f"E loss, E loss <= {{alpha}}{ON_AVERAGE}": (RISKS, IN_TURN),
    f"P(loss > 0.8) <= {{alpha}}{ON_AVERAGE}": (RISKS, IN_TURN),
    f"{SURE} at each step of a new path{ON_AVERAGE}": (
        "paths that calibrate and the new one are exchangeable",
        "frames/test_forecast.py",
    ),
    f"P(a path in its band) >= 1 - {{alpha}} of a series that did not "
    f"calibrate{ON_AVERAGE}": (
        "series that calibrate and the new one, each with all of its paths, are",
        "frames/test_forecast.py",
    ),
    f"{SURE} for objects that the detector finds{ON_AVERAGE}": (
        "matched objects of calibration and new images are exchangeable",
        None,  # that of `calibrate`
    ),
}
# What a method has is no calibration: rows, or the state of a stream.
STATES = {name for name in METHODS if name.startswith(("outliers", "flags of"))}
STATES |= {"Bayes", "selection", "ACI", "DtACI", "PID", "SFOGD", "NexCP", "similar"}
STATES |= {"PID, falling steps", "SPCI", "window", "ACI by group", "window by group"}
STATES |= {"ACI with a delay", "late ACI"}


def past(**options):
    rows = {"unique_id": [*"aabb"], "cutoff": 0, "ds": [1, 2, 1, 2], "y": 1.0, "m": 0.0}
    return frames.forecast(pd.DataFrame(rows), yhat="m", **options)


def boxes():
    true = [np.array([[10.0, 10.0, 30.0, 30.0]])] * 4
    return detection.calibrate_boxes(scores.BoxOffset(), true, true, min_iou=0.5)


MADE = {name: lambda m=m: m.make(m.data()[0]) for name, m in METHODS.items()}
MADE = {name: make for name, make in MADE.items() if name not in STATES}
MADE |= {"steps": past, "paths": lambda: past(by="path", new_series=True)}
MADE["boxes"] = boxes
VERBS = {case.id.rpartition(".")[2]: case.values[0] for case in public()}


@pytest.mark.parametrize("name", MADE)
def test_words_are_those_of_the_table_wherever_they_are_printed(name):
    cp = MADE[name]()
    words, assumption = promised(cp)
    begins, _ = WORDS[words]
    assert assumption.startswith(begins)
    for text in (words.replace("{alpha}", "alpha"), assumption):
        assert repr(text) in repr(cp)
    promise, facts = _facts(cp, cp, ALPHA)
    assert promise == words.replace("{alpha}", str(ALPHA))
    assert facts["If"] == assumption
    if hasattr(cp, "at") and not isinstance(cp, online.Stream):
        try:
            predictor = cp.at(ALPHA)
        except ValueError as error:
            assert "one threshold for all test points" in str(error)
        else:
            assert repr(predictor.promise) in repr(predictor)
            assert predictor.assumption == assumption


def test_words_are_read_by_a_law_and_each_is_of_a_method():
    for _, law in WORDS.values():
        path = Path(__file__).parents[1] / law if law else None
        assert path is None or "promised(" in path.read_text()
    assert {promised(make()).promise for make in MADE.values()} == set(WORDS)


@pytest.mark.parametrize("name", sorted(STATES))
def test_states_and_rows_have_no_words_of_their_own(name):
    method = METHODS[name]
    assert promised(method.make(method.data()[0])) == ("", "")


STREAMS = [
    online.ACI(ABSOLUTE, 0.1),
    online.DtACI(ABSOLUTE, np.array([0.1])),
    online.PID(ABSOLUTE, 0.1),
    online.SFOGD(ABSOLUTE, 0.1),
    online.NexCP(ABSOLUTE, 0.9),
    online.Similar(ABSOLUTE, 0.5),
    online.SPCI(1),
    online.SlidingWindow(ABSOLUTE),
    online.ByGroup(online.ACI(ABSOLUTE, 0.1), num_groups=2),
]


@pytest.mark.parametrize("method", STREAMS, ids=lambda v: type(v).__name__)
def test_streams_say_what_they_keep_to_without_calibration_sets(method):
    words, assumption = promised(method)
    assert words.startswith(method.promise) and assumption == method.assumption
    assert "{alpha}" in words and "calibration sets" not in words
    for text in (words.replace("{alpha}", "alpha"), assumption):
        assert repr(text) in repr(method)


def test_files_keep_the_words(tmp_path):
    cp = jaxcp.calibrate(ABSOLUTE, np.zeros(9), np.arange(9.0))
    jaxcp.save(tmp_path / "a", cp)
    jaxcp.save(tmp_path / "b", predictor := cp.at(0.2, delta=0.1))
    assert repr(jaxcp.load(tmp_path / "a")) == repr(cp)
    again = jaxcp.load(tmp_path / "b")
    assert again.promise == predictor.promise.replace("{alpha}", "0.2")
    assert (
        again.assumption
        == predictor.assumption
        == HELD_OUT.replace("exchangeable", "i.i.d.")
    )
    names = {}
    exec(predictor.export(tmp_path).read_text(), names)
    assert (names["PROMISE"], names["ASSUMPTION"]) == (again.promise, again.assumption)


@pytest.mark.parametrize("name", MADE)
def test_docstrings_guarantee_what_is_printed(name):
    """The formula of the words stands in what guarantees: the call, or who made it."""
    cp = MADE[name]()
    while not hasattr(cp, "promise"):
        cp = cp.calibration
    (formula,) = re.findall(r"1 - (?:2 \* )?{alpha}|<= {alpha}", cp.promise)[:1]
    formula = formula.replace("2 * ", "2 ").replace("{alpha}", "alpha")
    makers = re.findall(r"Made by `(?:\w+\.)?(\w+)`", type(cp).__doc__)
    parts = [type(cp).__call__, *(VERBS[name] for name in makers)]
    text = " ".join(sections(part).get("Guarantee", "") for part in parts)
    assert formula in re.sub(r"\s+", " ", text)
