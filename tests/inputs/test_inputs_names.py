"""Wrong names of labels and groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxcp
from jaxcp import metrics, risk, scores
from jaxcp._names import as_names, codes
from jaxcp.sets import LabelSet
from rows import refuses

N = 60
PETS = ("dog", "cat", "eel")
P, X = jnp.full((N, 3), 1 / 3), jnp.linspace(0.0, 3.0, N)
Y = np.arange(N) % 3
SITE = np.array(["zoo", "farm", "sea"])[Y]


def by_name(names, y=Y):
    return [names[code] for code in y]


CP = jaxcp.calibrate(scores.LAC(), P, Y, classes=PETS)
NUMBERS = jaxcp.calibrate(scores.LAC(), P, Y + 1, classes=(1, 2, 3))
SETS, SITES = CP(P, 0.2), jaxcp.calibrate_groups(scores.Absolute(), X, X, SITE)
FRAME = pd.DataFrame({"site": SITE, "year": Y})
_COLUMNS = "a frame of the columns site, year; .*join, axis=1.* joins their names"
BIRDLESS = np.asarray(by_name(PETS))
BIRD = [*by_name(PETS)[:17], "bird", *by_name(PETS)[18:]]


def pets(y=Y, classes=PETS, **options):
    return lambda: jaxcp.calibrate(scores.LAC(), P, y, classes=classes, **options)


def sites(groups, **options):
    return lambda: jaxcp.calibrate_groups(scores.Absolute(), X, X, groups, **options)


WRONG = {
    "a label that is no class": (
        pets(BIRD),
        "y among the classes 'dog', 'cat', 'eel', got 'bird' at 17",
    ),
    "a label in a column": (
        lambda: codes(
            as_names("classes", PETS), "y", [["dog"], ["elk"]], "the classes"
        ),
        r"among the classes .* got 'elk' at \(1, 0\)",
    ),
    "a missing label": (
        pets([None, *BIRD[1:]]),
        "y without missing ones, got None at 0",
    ),
    "a label that is NaN": (
        lambda: NUMBERS.p_values(P, (Y + 1).astype(float) * np.nan),
        "y without missing ones, got nan at 0",
    ),
    "a number that is no class": (
        lambda: NUMBERS.p_values(P, Y),
        "y among the classes 1, 2, 3, got 0 at ",
    ),
    "a code beyond the names": (pets(Y + 1), "y among the classes .*, got 3 at "),
    "a code beyond the names, of jax": (
        pets(jnp.asarray(Y) + 1),
        "y in 0, ..., 2, got 3 at ",
    ),
    "fewer names than columns": (
        pets(by_name(PETS), (*PETS[:2], "eel", "elk")),
        "classes with 3 names, one a column, got 4",
    ),
    "more names than columns": (
        lambda: LabelSet(jnp.eye(3, dtype=bool), PETS[:2]),
        "classes with 3 names, one a column, got 2",
    ),
    "columns of a frame in another order": (
        lambda: jaxcp.calibrate(
            scores.LAC(), pd.DataFrame(P, columns=sorted(PETS)), BIRDLESS, classes=PETS
        ),
        r"order of the classes \('dog', 'cat', 'eel'\), got \('cat', 'dog', 'eel'\)",
    ),
    "columns of new rows in another order": (
        lambda: CP(pd.DataFrame(P, columns=sorted(PETS)), 0.2),
        r"order of the classes \('dog', 'cat', 'eel'\), got \('cat', 'dog', 'eel'\)",
    ),
    "columns beside uniforms in another order": (
        lambda: jaxcp.calibrate(
            scores.APS(randomized=True),
            (pd.DataFrame(P, columns=sorted(PETS)), X / 3),
            BIRDLESS,
            classes=PETS,
        ),
        r"order of the classes \('dog', 'cat', 'eel'\), got \('cat', 'dog', 'eel'\)",
    ),
    "words without classes": (
        pets(BIRDLESS, None),
        r"y as numbers, got text \(dog\); scores of labels take them by name, "
        r"calibrate\(..., classes=model.classes_\)",
    ),
    "predictions that are words": (
        lambda: jaxcp.calibrate(scores.LAC(), BIRDLESS, BIRDLESS, classes=PETS),
        r"preds as numbers, got text \(dog\); .* take model.predict_proba\(x\)",
    ),
    "labels from 1 without classes": (
        pets(Y + 1, None),
        r"y in 0, ..., 2, got 3 at 2; calibrate\(..., classes=model.classes_\) takes",
    ),
    "fewer groups by name than their number": (
        sites(SITE, num_groups=4),
        "num_groups as many as group_names, 3, got 4",
    ),
    "a name twice": (
        pets(classes=("a", "b", "a")),
        "distinct classes, got 'a'",
    ),
    "a flag and a one": (
        pets(classes=(1, 2, True)),
        "distinct classes, got True",
    ),
    "a name that is None": (
        pets(classes=("a", "b", None)),
        "classes without missing ones, got None",
    ),
    "a name that is NaN": (
        pets(classes=np.array([1, 2, np.nan])),
        "classes without missing ones, got nan",
    ),
    "a name that is NA": (
        pets(classes=("a", "b", pd.NA)),
        "classes without missing ones, got <NA>",
    ),
    "a name that is no time": (
        pets(classes=np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[D]")),
        "classes without missing ones, got .*NaT.*",
    ),
    "names in a set": (pets(classes={"a", "b", "c"}), "classes in an order, as a list"),
    "a name for names": (pets(classes="abc"), "classes in an order, .* got 'abc'"),
    "names of a regression": (
        lambda: jaxcp.calibrate(scores.Absolute(), X, X, classes=PETS),
        "classes only with scores of labels, got Absolute",
    ),
    "labels without names": (
        lambda: jaxcp.calibrate(scores.LAC(), P, by_name(PETS)),
        r"y as numbers, got text \(.*\); .*classes=model.classes_",
    ),
    "labels of unequal length": (pets(BIRD[:17]), "y with 60 rows like preds, got 17"),
    "no labels": (pets(None), "y as a value, got None"),
    "one class of no set": (lambda: SETS.contains("elk"), "y among the classes"),
    "targets of no set": (
        lambda: metrics.coverage(SETS, BIRD),
        "y among the classes 'dog', 'cat', 'eel', got 'bird' at 17",
    ),
    "names closer than single precision": (
        lambda: (
            NUMBERS(P, 0.1).named((1.0, 1 + 1e-12, 2)).contains(jnp.ones(N, "float32"))
        ),
        "classes or groups that differ in float32",
    ),
    "a group that is new": (
        lambda: SITES(X[:3], 0.1, groups=["zoo", "moon", "sea"]),
        "groups among the group_names 'farm', 'sea', 'zoo', got 'moon' at 1; "
        r"group_names=\[...\] at calibration can name it",
    ),
    "a group of calibration that has no name": (
        sites(SITE, group_names=["zoo", "sea"]),
        "groups among the group_names 'zoo', 'sea', got 'farm' at",
    ),
    "groups that are integers": (
        sites(Y),
        r"num_groups with groups 0, ..., .*; .* group_names=numpy.unique\(groups\)",
    ),
    "two numbers of groups": (
        sites(SITE, num_groups=2, group_names=("farm", "sea", "zoo")),
        "num_groups as many as group_names, 3, got 2",
    ),
    "a missing group": (
        sites([*SITE[:-1], None]),
        "groups without missing ones, got None",
    ),
    "a missing category": (
        sites(pd.Series([*SITE[:-1], None], dtype="category")),
        "groups without missing ones, got nan at 59",
    ),
    "groups in a frame": (sites(FRAME), _COLUMNS),
    "groups of test points in a frame": (
        lambda: SITES(X, 0.1, groups=FRAME),
        _COLUMNS,
    ),
    "groups of metrics in a frame": (
        lambda: metrics.group_coverage(SETS, Y, FRAME),
        _COLUMNS,
    ),
    "groups of a risk in a frame": (
        lambda: risk.calibrate_risk(
            risk.miscoverage, scores.Absolute(), X, X, groups=FRAME
        ),
        _COLUMNS,
    ),
    "groups in a column": (
        sites(Y[:, None], num_groups=3),
        r"groups of shape \(n,\), got \(60, 1\); numpy.ravel\(groups\) is one",
    ),
    "groups that are no classes": (
        lambda: jaxcp.calibrate_groups(
            scores.LAC(), P, by_name(PETS), SITE, classes=PETS
        )(P, 0.1),
        r"group of each test point, got groups=None, .* \('farm', 'sea', 'zoo'\)",
    ),
    "groups of metrics that are integers": (
        lambda: metrics.group_coverage(SETS, Y, Y),
        "num_groups with groups 0, ..., num_groups - 1, got None",
    ),
}

test_wrong_names_say_what_was_expected = refuses(WRONG)


@pytest.mark.parametrize(
    "call",
    [
        pets([{}] * N),
        pets(classes=[["a"], ["b"], ["c"]]),
        pets(classes=3),
        pets(classes=np.array(3)),
        lambda: jax.jit(lambda c: pets(classes=c)().scores)(jnp.arange(3)),
        lambda: jax.jit(lambda g: sites(g)().scores)(Y),
        sites([{}] * N),
    ],
)
def test_what_has_no_names_is_refused_by_python(call):
    with pytest.raises(TypeError):
        call()
