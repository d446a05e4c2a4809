"""Names and ids at every door: two are one where Python says that they are equal.

Each kind has four names, ascending where they have an order, in one or more spellings.
At every door they have the results of the codes that a dict of Python makes.
"""

import enum
import functools
import runpy
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import (
    conditional,
    frames,
    learners,
    metrics,
    online,
    predictive,
    resampling,
    risk,
    scores,
)
from jaxcp._names import Names, as_names, equal_places, on_host, places
from jaxcp.sets import LabelSet
from rows import ABSOLUTE, KEY, RIDGE

CODES = np.array([0, 1, 2, 3, 3, 2, 1, 0] * 3)
N, K = len(CODES), 4
X = np.linspace(0.0, 3.0, N).astype("f")
Y = (X + (1 + CODES) * np.sin(9 * X)).astype("f")
X2 = np.stack([X, X**2], axis=1)
P = np.random.default_rng(0).dirichlet(np.ones(K), N).astype("f")
INTERVALS = jaxcp.calibrate(ABSOLUTE, X, Y)(X, 0.3)
CELLS = jaxcp.calibrate(scores.LAC(), P, CODES)(P, 0.3)
DAY = datetime(2026, 1, 1)


class Color(enum.Enum):
    RED, GREEN, BLUE, WHITE = range(4)


class Mixed(enum.IntEnum):
    ONE, TWO = 1, 2


def zoned(hour, zone):
    return pd.Timestamp(2026, 1, 1, hour, tz="UTC").tz_convert(zone)


# The spellings of each name.
SPELLED = {
    "words": [["a"], ["b"], ["c"], ["d"]],
    "numbers of three types": [[True, 1, 1.0], [2, 2.0], [3.0], [4]],
    "every kind of number": [
        [Fraction(1, 2), 0.5, Decimal("0.50")],
        [1, Decimal(1), np.float32(1), Mixed.ONE],
        [np.int8(2), Mixed.TWO, 2 + 0j],
        [np.uint64(2**63), 2**63, float(2**63)],
    ],
    "integers and floats beyond 2^53": [
        [2**53, float(2**53)],
        [2**53 + 1],
        [2**53 + 2, float(2**53 + 2)],
        [2**53 + 3],
    ],
    "integers beyond 64 bits": [[-1], [2**63], [2**63 + 1], [2**70]],
    "flags and words": [[False, 0], [True, 1], ["0"], ["True"]],
    "text and bytes": [["1"], [b"1"], [1], ["b'1'"]],
    "enums": [[v] for v in Color],
    "tuples": [[("a", 1), ("a", True)], [("a", 2)], [("b", 1)], [("b", 2)]],
    "tuples of several kinds": [[("a",)], [("a", 1)], [(1, "a")], [((1, 2), None)]],
    "flags in tuples": [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)]],
    "nanoseconds": [[np.datetime64(10**18 + i, "ns")] for i in range(K)],
    "attoseconds": [[np.datetime64(i, "as")] for i in range(K)],
    "distant years": [[np.datetime64(300000 + i, "Y")] for i in range(K)],
    "spans": [[np.timedelta64(i, "ns")] for i in range(K)],
    "stamps in zones": [
        [zoned(h, zone) for zone in ("UTC", "Asia/Tokyo")] for h in range(K)
    ],
    "stamps with nanoseconds": [[pd.Timestamp(10**18 + i)] for i in range(K)],
    "periods of several lengths": [
        [pd.Period("2026", "Y")],
        [pd.Period("2026-01", "M")],
        [pd.Period("2026-02", "M")],
        [pd.Period("2026-02-01", "D")],
    ],
    "decimals": [[Decimal("0.1"), Decimal("0.10")], [0.1], [0.3], [Decimal("0.3")]],
    "sets": [[frozenset({i}), frozenset({i, float(i)})] for i in range(K)],
}
# One instant is one name, whatever has it: for Python a date is no datetime.
INSTANTS = [
    [
        day,
        day.date(),
        pd.Timestamp(day),
        *(np.datetime64(day.date()).astype(f"M8[{unit}]") for unit in ("D", "s", "ns")),
    ]
    for day in (DAY + timedelta(days=i) for i in range(K))
]


def spelled(names):
    """One value a row; a row of one name has its spellings in turn."""
    return [names[code][row % len(names[code])] for row, code in enumerate(CODES)]


def as_objects(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


KINDS = {name: spelled(names) for name, names in SPELLED.items()} | {
    "dates of one instant": spelled(INSTANTS),
    "array of objects": as_objects(spelled(SPELLED["flags and words"])),
    "series": pd.Series(spelled(SPELLED["every kind of number"]), dtype=object),
    "series of tuples": pd.Series(spelled(SPELLED["tuples of several kinds"])),
    "index of tuples": pd.MultiIndex.from_tuples(spelled(SPELLED["tuples"])),
    "array of nanoseconds": np.array(spelled(SPELLED["nanoseconds"])),
    "array of years": np.array(spelled(SPELLED["distant years"])),
    "array of spans": np.array(spelled(SPELLED["spans"])),
    "series of nanoseconds": pd.Series(spelled(SPELLED["nanoseconds"])),
    "large unsigned integers": np.uint64(2**63) + CODES.astype("uint64"),
    "nullable integers": pd.Series(CODES * 10, dtype="Int64"),
    "categories": pd.Series(pd.Categorical.from_codes(CODES, [1, "1", b"1", 1.5])),
    "single precision": (CODES / 10 + 0.1).astype("f"),
    "arrow": pd.Series(np.array(["a", "b", "c", "d"])[CODES], dtype="string"),
}


def in_python(name):
    """One value of each name, from a dict of the values as Python has them."""
    values = KINDS[name]
    values = [*values.ravel()] if isinstance(values, np.ndarray) else [*values]
    if name == "dates of one instant":
        return [DAY + timedelta(days=i) for i in range(K)]
    table = {}
    assert [table.setdefault(v, len(table)) for v in values] == CODES.tolist()
    return [*table]


def by_name(call):
    """A door of groups by name: of `call(groups, **what says which they are)`."""
    return lambda ids, names: call(ids, group_names=names)


def groups_of(verb, *rows, **options):
    """A calibration by group: its sets and p-values are those of the rows' groups."""

    @by_name
    def door(ids, **named):
        cp = verb(*rows, groups=ids, **named, **options)
        return cp(X, 0.3, groups=ids).upper, cp.quantile(0.3)

    return door


def classes(ids, names):
    cp = jaxcp.calibrate(scores.LAC(), P, ids, classes=names)
    sets = cp(P, 0.3)
    return cp.scores, cp.p_values(P, ids), sets.contains(ids), sets.mask


def classes_as_groups(ids, names):
    cp = jaxcp.calibrate_groups(scores.LAC(), P, ids, ids, classes=names)
    return cp(P, 0.3).mask, cp.p_values(P, ids)


def stream(ids, names):
    method = online.ByGroup(online.ACI(ABSOLUTE, 0.1), group_names=names)
    state = method.init(abs(Y - X), 0.3, groups=ids)
    _, sets = online.run(method, state, (ids, X), Y, 0.3)
    first = next(iter(ids))
    step, _ = method.step(state, (first, jnp.asarray(X[0])), Y[0], 0.3)
    return sets.upper, step.alpha


def forecast(by, new_series):
    def door(ids, names):
        table = {"ds": np.arange(N), "cutoff": 0, "y": Y, "m": X}
        series = pd.Series(as_objects([*ids]), dtype=object)
        frame = pd.DataFrame({"unique_id": series} | table)
        cp = frames.forecast(frame, yhat="m", by=by, new_series=new_series)
        return cp(frame, 0.5)["m-hi-50"] if by == "series" else cp.quantile(0.4)

    return door


def picture(ids, names):
    matplotlib.use("Agg")
    ax = jaxcp.plotting.plot_group_coverage(INTERVALS, Y, ids, 0.3)
    matplotlib.pyplot.close(ax.figure)
    return [label.get_text()[-3:] for label in ax.get_yticklabels()]


def flags(ids, names):
    return conditional.indicators({"x": ids}, {"x": names})


def columns(ids, **named):
    return [*metrics.by_group(INTERVALS, Y, ids, **named).columns.values()]


def page(ids, **named):
    cp = jaxcp.calibrate_groups(ABSOLUTE, X, Y, ids, **named)
    found = jaxcp.report(cp, X, Y, 0.3, groups=ids)
    return [len(found.split("<tr>"))]


DOORS = {
    "calibrate_groups": groups_of(jaxcp.calibrate_groups, ABSOLUTE, X, Y),
    "calibrate_groups, their number": lambda ids, names: (
        jaxcp.calibrate_groups(ABSOLUTE, X, Y, ids, num_groups=K)(
            X, 0.3, groups=ids
        ).upper
    ),
    "split_conformal": groups_of(
        jaxcp.split_conformal, lambda _, x: x, None, ABSOLUTE, X, Y
    ),
    "calibrate_predictive": by_name(
        lambda ids, **named: predictive.calibrate_predictive(
            scores.Residual(), X, Y, ids, **named
        ).mean(X, groups=ids)
    ),
    "calibrate_risk": lambda ids, names: (
        risk.calibrate_risk(risk.miscoverage, ABSOLUTE, X, Y, groups=ids, num_groups=K)(
            X, 0.4, groups=ids
        ).upper
    ),
    "classes": classes,
    "classes as groups": classes_as_groups,
    "label_ratio": lambda ids, names: learners.label_ratio(P, ids, P, classes=names),
    "LabelSet": lambda ids, names: LabelSet(CELLS.mask, names).contains(ids),
    "clusters": lambda ids, names: (
        jaxcp.calibrate(ABSOLUTE, X, Y, clusters=ids).weights
    ),
    "jackknife_plus, clusters": lambda ids, names: (
        jaxcp.jackknife_plus(KEY, RIDGE, ABSOLUTE, X2, Y, clusters=ids)(X2, 0.3).upper
    ),
    "cv_plus, folds": lambda ids, names: (
        jaxcp.cv_plus(KEY, RIDGE, ABSOLUTE, X2, Y, folds=ids)(X2, 0.3).upper
    ),
    "group_k_fold": lambda ids, names: resampling.group_k_fold(KEY, ids, 2),
    "forecast by series": forecast("series", False),
    "forecast of new series": forecast("all", True),
    "ByGroup": stream,
    "indicators": flags,
    "by_group": by_name(columns),
    "group_coverage": by_name(
        lambda ids, **named: metrics.group_coverage(INTERVALS, Y, ids, **named)
    ),
    "coverage_gap": by_name(
        lambda ids, **named: metrics.coverage_gap(INTERVALS, Y, ids, 0.3, **named)
    ),
    "summary": by_name(
        lambda ids, **named: [
            *metrics.summary(INTERVALS, Y, 0.3, ids, **named).tolist().values()
        ]
    ),
    "class_coverage": lambda ids, names: metrics.class_coverage(
        LabelSet(CELLS.mask, names), ids
    ),
    "report": by_name(page),
    "plot_group_coverage": picture,
}


# Where numbers are codes of themselves, whatever is given with them.
CODED = {"calibrate_groups, their number": "biuf", "calibrate_risk": "biuf"}
CODED |= {"cv_plus, folds": "biufc"}


@functools.cache
def expected(door):
    return DOORS[door](CODES, range(K))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_equal_names_are_one_and_others_are_apart(door, kind):
    ids = KINDS[kind]
    if on_host("ids", ids).dtype.kind in CODED.get(door, ""):
        pytest.skip("numbers are codes here")
    jax.tree.map(assert_array_equal, DOORS[door](ids, in_python(kind)), expected(door))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_have_names_of_their_own(kind):
    """In order where they have one, else as they appear."""
    ids = KINDS[kind]
    if on_host("ids", ids).dtype.kind in "iu":
        pytest.skip("integers are codes")
    cp = jaxcp.calibrate_groups(ABSOLUTE, X, Y, ids)
    assert_array_equal(equal_places(cp.group_names, on_host("ids", ids)), CODES)
    table = metrics.by_group(INTERVALS, Y, ids)
    assert table.names == cp.group_names
    assert_array_equal(table["n"], np.full(K, 6))
    named = metrics.by_group(INTERVALS, Y, ids, group_names=table.names)
    assert_array_equal(named["n"], table["n"])


@pytest.mark.parametrize(
    "kind",
    [
        "numbers of three types",
        "integers and floats beyond 2^53",
        "integers beyond 64 bits",
        "flags and words",
        "text and bytes",
        "tuples of several kinds",
    ],
)
def test_a_file_of_numpy_has_the_same_names(kind, tmp_path):
    ids = KINDS[kind]
    cp = jaxcp.calibrate_groups(ABSOLUTE, X, Y, ids, group_names=in_python(kind))
    cp.at(0.3).export(tmp_path)
    names = runpy.run_path(str(tmp_path / "predictor.py"))
    assert_array_equal(names["sets"](X, ids)["upper"], cp(X, 0.3, groups=ids).upper)


@pytest.mark.parametrize("kind", ["distant years", "attoseconds", "tuples", "spans"])
def test_saved_names_are_the_same(kind, tmp_path):
    ids = KINDS[kind]
    cp = jaxcp.calibrate_groups(ABSOLUTE, X, Y, ids, group_names=in_python(kind))
    jaxcp.save(tmp_path / "cp.npz", cp)
    again = jaxcp.load(tmp_path / "cp.npz")
    assert repr(again.group_names) == repr(cp.group_names)
    assert_array_equal(again(X, 0.3, groups=ids).upper, cp(X, 0.3, groups=ids).upper)


def test_a_step_of_a_stream_takes_one_name():
    """Also a tuple, which holds one name, and not two."""
    method = online.ByGroup(online.ACI(ABSOLUTE, 0.1), group_names=[("a", 1), ("a", 2)])
    ids = [("a", 1), ("a", 2)] * 6
    state = method.init(np.arange(12.0), 0.3, groups=ids)
    state, _ = method.step(state, (("a", 2), jnp.array(0.0)), 99.0, 0.3)
    assert state.alpha.tolist() == pytest.approx([0.3, 0.23])


@pytest.mark.parametrize("dtype", ["int32", "int8", "float32", "bfloat16", "bool"])
def test_programs_find_the_names_that_the_host_finds(dtype):
    """Also among text, and numbers that a type has only rounded."""
    names = as_names("classes", (2**24 + 1, "a", 0.5, 2**40, True, Decimal(3), 2**70))
    y = jnp.asarray([1, 2**24, 2**24 + 1, 0.5, 3, 0], float).astype(dtype)
    found = jax.jit(lambda y: places(names, "y", y))(y)
    assert_array_equal(found, places(names, "y", y))
    table = {name: place for place, name in enumerate(names)}
    assert found.tolist() == [table.get(v, 7) for v in y.astype(float).tolist()]


def test_programs_of_equal_names_are_kept_by_types():
    """Also of those inside of tuples: what comes out has the names that went in."""
    names = [Names([("a", v)]) for v in (1, 1.0, True)]
    assert len({*names}) == 3
    assert hash(names[0]) == hash(names[2])
    traced = jax.jit(lambda sets: sets)
    for name in names:
        sets = traced(LabelSet(jnp.ones((1, 1), bool), name))
        assert repr(sets.classes) == repr(name)
