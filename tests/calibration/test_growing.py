"""Calibrations that grow, and keep their newest rows: the same bits as of all rows."""

import jax
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from helpers import CASES, cut, same
from jaxcp import scores
from rows import refuses

N, FIRST = 40, slice(25)
THEN = slice(25, None)
ABSOLUTE = scores.Absolute()
rng = np.random.default_rng(0)
MU, Y = rng.normal(size=(2, N)).astype("f")
WORDS = np.array(["ash", "bee", "cat"])
OF_ROW = np.arange(N) % 5 % 3
COLUMNS = {
    "nothing": {},
    "weights": {"weights": rng.uniform(size=N).astype("f")},
    "mask": {"mask": rng.uniform(size=N) < 0.7},
    "both": {"weights": rng.uniform(size=N), "mask": rng.uniform(size=N) < 0.7},
}


def grown(make, rows):
    """Rows one after the other, then those of the last twelve alone."""
    longer = make(**cut(rows, FIRST)).extended(**cut(rows, THEN))
    same(longer, make(**rows))
    none = cut(rows, slice(0))
    same(longer.extended(**none), longer)
    same(longer.latest(12), make(**cut(rows, slice(N - 12, None))))
    same(longer.latest(10**6), longer)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", ["absolute", "absolute-3d", "lac", "pcp"])
def test_rows_that_are_added_are_rows(name, columns):
    case = CASES[name]
    preds, y = case.batch(N)
    rows = {"preds": preds, "y": y, **COLUMNS[columns]}
    grown(lambda **rows: jaxcp.calibrate(case.score, **rows), rows)


@pytest.mark.parametrize("columns", ["nothing", "both"])
def test_rows_of_groups(columns):
    rows = {"preds": MU, "y": Y, "groups": OF_ROW, **COLUMNS[columns]}
    make = lambda **rows: jaxcp.calibrate_groups(ABSOLUTE, **rows, **own)  # noqa: E731
    own = {"num_groups": 4, "min_size": 7}
    grown(make, rows)
    parts = [cut(rows, which) for which in (FIRST, THEN)]  # sizes are of all rows
    same(make(batches=parts), make(**rows))
    own = {"group_names": WORDS}
    grown(make, rows | {"groups": WORDS[OF_ROW]})
    own, short = {"num_groups": 4}, rows | {"groups": OF_ROW.astype("int8")}
    longer = make(**cut(short, FIRST)).extended(**cut(rows, THEN))
    same(longer, make(**short))


def test_labels_by_name_and_frames():
    p = rng.dirichlet(np.ones(3), N).astype("f")
    named = {"preds": p, "y": WORDS[OF_ROW]}
    grown(lambda **v: jaxcp.calibrate(scores.LAC(), **v, classes=WORDS), named)
    by_class = lambda **v: jaxcp.calibrate_groups(scores.LAC(), **v, classes=WORDS)  # noqa: E731
    grown(by_class, named | {"groups": named["y"]})
    y, mask = named["y"].astype(object), np.arange(N) % 4 > 0
    y[~mask] = None  # names off the mask are not looked at
    grown(by_class, {"preds": p, "y": y, "groups": y, "mask": mask})
    cp = jaxcp.calibrate(ABSOLUTE, MU[FIRST], Y[FIRST])
    frame = pd.DataFrame({"mu": MU, "y": Y}, index=np.arange(N) + 7)[THEN]
    same(cp.extended(frame.mu, frame.y), jaxcp.calibrate(ABSOLUTE, MU, Y))


def test_a_group_that_has_grown_stands_alone():
    own = {"group_names": WORDS, "min_size": 4}
    data = np.zeros(6), np.arange(6.0), list(WORDS[[0, 0, 0, 0, 1, 1]])
    cp = jaxcp.calibrate_groups(ABSOLUTE, *data, **own)
    few = "fewer than 4 rows"
    assert cp.threshold_names == ("ash", few, few)
    longer = cp.extended(np.zeros(2), np.array([9.0, 8.0]), ["bee", "bee"])
    assert longer.threshold_names == ("ash", "bee", few)
    assert longer.latest(4).threshold_names == (few, "bee", few)
    # One row is the new one: of bee, or of those with at most four rows, all eight.
    assert longer.quantile(0.2).tolist() == [3, 9, 9]


def test_models():
    linear = lambda slope, x: slope * x  # noqa: E731
    data = linear, 0.5, ABSOLUTE
    cp = jaxcp.split_conformal(*data, MU[FIRST], Y[FIRST])
    whole = jaxcp.split_conformal(*data, MU, Y)
    same(cp.extended(MU[THEN], Y[THEN]), whole)
    assert_array_equal(cp.latest(3).scores, whole.scores[22:25])
    groups = WORDS[OF_ROW]
    cp = jaxcp.split_conformal(*data, MU[FIRST], Y[FIRST], groups=groups[FIRST])
    whole = jaxcp.split_conformal(*data, MU, Y, groups=groups)
    same(cp.extended(MU[THEN], Y[THEN], groups[THEN]), whole)
    same(cp.extended(MU[THEN], Y[THEN], groups=groups[THEN]), whole)


CP = jaxcp.calibrate(ABSOLUTE, MU, Y)
WEIGHTED = jaxcp.calibrate(ABSOLUTE, MU, Y, weights=np.ones(N))
BY_GROUP = jaxcp.calibrate_groups(ABSOLUTE, MU, Y, WORDS[OF_ROW])
P = np.full((3, 3), 1 / 3)
BY_LABELS = jaxcp.calibrate_groups(
    scores.LAC(), P, np.arange(3), label_groups=[0, 0, 1]
)
REFUSED = {
    "no rows": (lambda: CP.latest(0), "n as an int >= 1, got 0"),
    "a share": (lambda: CP.latest(0.5), "n as an int >= 1"),
    "weights of few": (
        lambda: CP.extended(MU, Y, weights=np.ones(N)),
        r"rows\[1\] with weights None as before",
    ),
    "no weights": (lambda: WEIGHTED.extended(MU, Y), r"rows\[1\] with weights"),
    "shapes": (
        lambda: CP.extended(np.ones((N, 2)), np.ones((N, 2))),
        r"rows\[1\] with scores float32\[n\] as before",
    ),
    "lengths": (lambda: CP.extended(MU, Y[:3]), "y with 40 rows like preds, got 3"),
    "a group that is new": (
        lambda: BY_GROUP.extended(MU[:1], Y[:1], ["dew"]),
        r"among the group_names 'ash', 'bee', 'cat', got 'dew' at 0; group_names=",
    ),
    "traced rows": (
        lambda: jax.jit(lambda y: CP.extended(MU, y))(Y),
        "rows with values, got traced ones",
    ),
    "groups of labels": (
        lambda: BY_LABELS.latest(2),
        "an order of rows where groups share no rows, without label_g",
    ),
    "and more": (
        lambda: BY_LABELS.extended(P, np.arange(3), None),
        "an order of rows",
    ),
}
test_wrong_calls = refuses(REFUSED)
