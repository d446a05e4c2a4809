"""Labels and groups by name: what goes in by name comes out by name."""

import copy
import pickle
from datetime import date, datetime

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import metrics, scores
from jaxcp._names import Names, as_names, codes, named, places
from jaxcp.sets import Interval, LabelSet

N, K = 60, 3
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(K), N).astype("f")
Y = np.array([RNG.choice(K, p=p / p.sum()) for p in P.astype(float)])
P, U = jnp.asarray(P), jnp.asarray(np.linspace(0.0, 1.0, N))
PETS = ("dog", "cat", "eel")
BASE = jaxcp.calibrate(scores.LAC(), P, Y)

NAMES = {
    "text": PETS,
    "integers that are no codes": (3, 1, 2),
    "integers beyond those of jax": (10**12, 5, -(10**12)),
    "floats": (0.5, 0.1, 7.0),
    "integers and floats": (1, 0.5, 3),
    "dates": (date(2026, 1, 2), date(2026, 1, 1), date(2025, 7, 7)),
    "times": tuple(np.array(["2026-01-02", "2026-01-01", "2020-02-02"], "M8[ns]")),
    "stamps": tuple(pd.to_datetime(["2026-01-02", "2026-01-01", "2020-02-02"])),
    "pairs": (("a", 1), ("a", 2), ("b", 1)),
    "of several kinds": ("a", 1.5, None.__class__),
}
KINDS = {
    "list": list,
    "tuple": tuple,
    "objects": lambda y: pd.Series(y, dtype=object).to_numpy(),
    "series": lambda y: pd.Series(y, index=np.arange(len(y)) + 7),
    "categorical": pd.Categorical,
    "series of categories": lambda y: pd.Series(pd.Categorical(y)),
    "index": lambda y: pd.Index(y, tupleize_cols=False),
}
CLASSIFIERS = {
    "LAC": (scores.LAC(), P),
    "APS": (scores.APS(), P),
    "APS, randomized": (scores.APS(randomized=True), (P, U)),
    "APS, inclusive": (scores.APS(inclusive=True), P),
    "RAPS": (scores.RAPS(0.1, 1), P),
    "SAPS": (scores.SAPS(0.1), P),
    "TopK": (scores.TopK(), P),
    "LogLAC": (scores.LogLAC(), jnp.asarray(np.log(P))),
}


def by_name(names, y=Y):
    return [names[code] for code in y]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", NAMES)
def test_every_kind_of_label_is_its_place(names, kind):
    names = NAMES[names]
    found = codes(as_names("classes", names), "y", KINDS[kind](by_name(names)), "all")
    assert_array_equal(found, Y)
    assert isinstance(found, np.ndarray)


@pytest.mark.parametrize("names", NAMES)
def test_sets_by_name_are_those_of_codes(names):
    names = NAMES[names]
    y = by_name(names)
    cp = jaxcp.calibrate(scores.LAC(), P, y, classes=names)
    assert_array_equal(cp.scores, BASE.scores)
    sets, plain = cp(P, 0.2), BASE(P, 0.2)
    assert_array_equal(sets.mask, plain.mask)
    assert sets.classes == cp.classes == names
    assert sets.labels() == [by_name(names, row) for row in plain.labels()]
    assert_array_equal(cp.p_values(P, y), BASE.p_values(P, Y))
    assert_array_equal(sets.contains(y), plain.contains(Y))
    assert_array_equal(metrics.covered(sets, y), metrics.covered(plain, Y))
    assert_array_equal(
        metrics.class_coverage(sets, y), metrics.class_coverage(plain, Y)
    )
    summary = metrics.summary(sets, y, 0.2)
    same = metrics.summary(plain, Y, 0.2).tolist()
    assert [*summary.tolist().values()] == [*same.values()]
    told = [name for name in summary if name.startswith("class_coverage")]
    assert told == [f"class_coverage[{name}]" for name in cp.classes]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_score_of_labels_takes_names(name):
    score, preds = CLASSIFIERS[name]
    plain = jaxcp.calibrate(score, preds, Y)
    cp = jaxcp.calibrate(score, preds, by_name(PETS), classes=PETS)
    assert_array_equal(cp(preds, 0.3).mask, plain(preds, 0.3).mask)
    assert cp(preds, 0.3).labels()[0] == [
        PETS[i] for i in np.nonzero(plain(preds, 0.3).mask[0])[0]
    ]


@pytest.mark.parametrize("dtype", [bool, int, float, np.int8, np.float64])
def test_flags_and_numbers_of_any_type_are_names(dtype):
    y = np.arange(8) % 2
    names = np.unique(y.astype(dtype))
    p = P[:8, :2] / P[:8, :2].sum(axis=1, keepdims=True)
    cp = jaxcp.calibrate(scores.LAC(), p, y.astype(dtype), classes=names)
    assert_array_equal(cp.scores, jaxcp.calibrate(scores.LAC(), p, y).scores)
    assert all(type(name) in (bool, int, float) for name in cp.classes)


@pytest.mark.parametrize(
    "names", [(3, 1, 2), (0.5, 0.1, 7.0), (10**12, 2, 1), (2, 1, 0)]
)
def test_numbers_are_names_in_programs_too(names):
    """Also where they look like codes: jit is eager, and no name is out of range."""
    y = jnp.asarray([names[1], names[2], 9, names[1]])
    names = as_names("classes", names)
    expected = [1, 2, 3, 1]
    assert_array_equal(places(names, "y", y), expected)
    assert_array_equal(jax.jit(lambda y: places(names, "y", y))(y), expected)
    assert_array_equal(jax.vmap(lambda y: places(names, "y", y))(y), expected)
    sets = LabelSet(jnp.eye(4, 3, 1, dtype=bool), names)
    held = jax.jit(lambda sets, y: sets.contains(y))(sets, y)
    assert_array_equal(held, [True, True, False, False])
    assert_array_equal(jax.vmap(lambda s, y: s.contains(y))(sets, y), held)


def test_calibration_by_numbers_is_the_same_under_jit():
    names = (3, 1, 2)
    y = jnp.asarray(by_name(names))

    def thresholds(p, y):
        cp = jaxcp.calibrate(scores.LAC(), p, y, classes=names)
        groups = jaxcp.calibrate_groups(scores.LAC(), p, y, y, classes=names)
        return cp.quantile(0.2), cp.p_values(p, y), groups.quantile(0.2)

    for ours, jitted in zip(thresholds(P, y), jax.jit(thresholds)(P, y), strict=True):
        assert_array_equal(ours, jitted)
    batch = jax.vmap(thresholds)(P[None], y[None])
    assert_array_equal(batch[0][0], BASE.quantile(0.2))


def test_integers_are_codes_where_names_are_no_numbers():
    cp = jaxcp.calibrate(scores.LAC(), P, Y, classes=PETS)
    assert_array_equal(cp.scores, BASE.scores)
    jitted = jax.jit(lambda y: jaxcp.calibrate(scores.LAC(), P, y, classes=PETS))(Y)
    assert_array_equal(jitted.scores, BASE.scores)
    assert jitted(P[:2], 0.2).labels() == cp(P[:2], 0.2).labels()
    assert metrics.coverage(cp(P, 0.2), Y) == metrics.coverage(BASE(P, 0.2), Y)


def test_names_survive_what_jax_does_to_sets():
    sets = LabelSet(jnp.eye(3, dtype=bool), PETS)
    same = sets.named(list(PETS))
    structures = jax.tree.structure(sets), jax.tree.structure(same)
    assert structures[0] == structures[1] != jax.tree.structure(sets.named(None))
    assert jax.jit(lambda s: s)(sets).labels() == [["dog"], ["cat"], ["eel"]]
    assert jax.vmap(lambda s: s)(sets).classes == PETS
    both = jax.tree.map(jnp.logical_or, sets, same)
    assert both.classes == PETS
    again = copy.deepcopy(pickle.loads(pickle.dumps(sets.classes)))
    assert again == sets.classes
    assert hash(again) == hash(sets.classes)
    again = jax.tree.unflatten(jax.tree.structure(sets), jax.tree.leaves(sets))
    assert again.labels() == sets.labels()


def test_names_of_another_type_are_others():
    """1, 1.0 and True are equal in Python: programs of one are not run for others."""
    twins = [Names(v) for v in [(0, 1), (0.0, 1.0), (False, True)]]
    assert len(set(twins)) == 3
    assert all(twin == (0, 1) for twin in twins)
    traced = jax.jit(lambda s: s)
    for twin in twins:
        out = traced(LabelSet(jnp.eye(2, dtype=bool), twin)).classes
        assert list(map(type, out)) == list(map(type, twin))


def test_equal_names_share_a_program():
    count = []

    @jax.jit
    def mask(sets):
        count.append(0)
        return sets.mask

    for names in (PETS, list(PETS), np.array(PETS), pd.Index(PETS)):
        mask(LabelSet(jnp.eye(3, dtype=bool), names))
    assert len(count) == 1


def test_labels_of_one_set_of_batches_and_of_none():
    mask = jnp.array([[True, False, True], [False, False, False]])
    sets = LabelSet(mask)
    assert sets.labels() == [[0, 2], []]
    assert sets.labels(PETS) == [["dog", "eel"], []]
    assert sets.named(PETS).labels(("x", "y", "z")) == [["x", "z"], []]
    assert LabelSet(mask[0], PETS).labels() == ["dog", "eel"]
    assert LabelSet(jnp.stack([mask, mask]), PETS).labels() == 2 * [
        [["dog", "eel"], []]
    ]
    assert LabelSet(mask[:0], PETS).labels() == []
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(lambda s: jnp.ones(len(s.labels())))(sets)


def test_one_class_and_no_rows():
    cp = jaxcp.calibrate(scores.LAC(), jnp.ones((4, 1)), ["a"] * 4, classes=["a"])
    assert cp(jnp.ones((2, 1)), 0.3).labels() == [["a"], ["a"]]
    empty = jaxcp.calibrate(scores.LAC(), P[:0], [], classes=PETS)
    assert empty(P[:1], 0.1).labels() == [list(PETS)]
    assert empty(P[:0], 0.1).labels() == []
    assert cp.p_values(jnp.ones((0, 1)), []).shape == (0,)


def test_sets_of_other_kinds_stay_as_they_are():
    sets = Interval(jnp.zeros(2), jnp.ones(2))
    assert named(sets, PETS) is sets
    assert named(LabelSet(jnp.eye(3, dtype=bool)), PETS).classes == PETS


def test_a_fitted_predictor_takes_classes():
    model = lambda _, x: x  # noqa: E731
    cp = jaxcp.split_conformal(
        model, None, scores.LAC(), P, by_name(PETS), classes=PETS
    )
    assert cp(P, 0.2).labels() == cp.calibration(P, 0.2).labels()
    assert_array_equal(cp.p_values(P, by_name(PETS)), BASE.p_values(P, Y))


def test_classes_without_rows_have_infinite_thresholds_of_their_own():
    y = ["dog"] * N
    cp = jaxcp.calibrate_groups(scores.LAC(), P, y, y, classes=PETS)
    assert dict(zip(cp.group_names, cp.quantile(0.2).tolist(), strict=True)) == {
        "dog": pytest.approx(float(cp.quantile(0.2)[0])),
        "cat": np.inf,
        "eel": np.inf,
    }
    assert all({"cat", "eel"} <= set(row) for row in cp(P, 0.2).labels())
    assert jaxcp.calibrate(scores.LAC(), P, y, classes=PETS).quantile(0.2) < np.inf


@pytest.mark.parametrize("names", ["text", "integers that are no codes", "dates"])
def test_class_conditional_sets_by_name(names):
    names = NAMES[names]
    y = by_name(names)
    plain = jaxcp.calibrate_groups(scores.LAC(), P, Y, Y, num_groups=K)
    # Labels are known as groups by what they are, not as one object.
    for groups in (y, list(y), pd.Series(y)):
        cp = jaxcp.calibrate_groups(scores.LAC(), P, y, groups, classes=names)
        assert cp.group_names == names
        assert_array_equal(cp(P, 0.2).mask, plain(P, 0.2).mask)
    assert cp(P, 0.2).labels() == plain(P, 0.2).labels(names)
    assert_array_equal(cp.p_values(P, y), plain.p_values(P, Y))
    assert_array_equal(cp.p_values(P, y, groups=y), plain.p_values(P, Y))
    assert_array_equal(cp(P, 0.2, groups=y).mask, plain(P, 0.2, groups=Y).mask)
    coded = jaxcp.calibrate_groups(scores.LAC(), P, y, Y, num_groups=K, classes=names)
    assert_array_equal(coded.p_values(P, y), plain.p_values(P, Y))
    assert_array_equal(coded(P, 0.2).mask, plain(P, 0.2).mask)


X, SITE = jnp.asarray(np.linspace(0.0, 3.0, N)), np.array(["zoo", "farm", "sea"])[Y]
SITE_CODES = np.array([2, 0, 1])[Y]


@pytest.mark.parametrize("kind", KINDS)
def test_groups_by_name_are_those_of_codes(kind):
    site = KINDS[kind](SITE.tolist())
    cp = jaxcp.calibrate_groups(scores.Absolute(), X, X**2, site)
    plain = jaxcp.calibrate_groups(scores.Absolute(), X, X**2, SITE_CODES, num_groups=3)
    assert cp.group_names == ("farm", "sea", "zoo")
    assert_array_equal(cp.quantile(0.2), plain.quantile(0.2))
    sets, codes = cp(X, 0.2, groups=site), plain(X, 0.2, groups=SITE_CODES)
    assert_array_equal(sets.upper, codes.upper)
    assert_array_equal(cp(X, 0.2, groups=SITE_CODES).upper, codes.upper)
    assert_array_equal(
        cp.p_values(X, X, groups=site), plain.p_values(X, X, groups=SITE_CODES)
    )
    assert_array_equal(
        metrics.group_coverage(sets, X**2, site),
        metrics.group_coverage(codes, X**2, SITE_CODES, num_groups=3),
    )
    found = metrics.summary(sets, X**2, 0.2, site)
    assert [k for k in found if k.startswith("group_coverage")] == [
        f"group_coverage[{name}]" for name in cp.group_names
    ]
    assert found["coverage_gap"] == metrics.coverage_gap(sets, X**2, site, 0.2)
    assert "'farm', 'sea', 'zoo'" in repr(cp)


def test_groups_have_the_names_that_are_given():
    names = ("zoo", "sea", "farm", "moon")
    cp = jaxcp.calibrate_groups(scores.Absolute(), X, X**2, SITE, group_names=names)
    assert cp.group_names == names
    assert cp.quantile(0.2)[3] == np.inf
    assert cp(X[:1], 0.2, groups=["moon"]).upper == np.inf
    flags = jaxcp.calibrate_groups(scores.Absolute(), X, X**2, np.ones(N, bool))
    assert flags.group_names == (False, True)
    levels = pd.Categorical(SITE, categories=["zoo", "sea", "farm", "moon"])
    kept = jaxcp.calibrate_groups(scores.Absolute(), X, X**2, pd.Series(levels))
    assert kept.group_names == names
    years = np.array([2024, 2025, 2026])[Y]
    cp = jaxcp.calibrate_groups(
        scores.Absolute(), X, X**2, years, group_names=np.unique(years)
    )
    upper = jax.jit(lambda g: cp(X, 0.2, groups=g).upper)(years)
    assert_array_equal(upper, cp(X, 0.2, groups=years).upper)
    coverage = metrics.group_coverage(
        cp(X, 0.2, groups=years), X**2, years, group_names=cp.group_names
    )
    assert coverage.shape == (3,)


def test_dates_of_one_day_are_one_name():
    names = as_names("classes", [date(2026, 1, 1), date(2026, 1, 2)])
    days = [
        np.array(["2026-01-02"], "M8[D]"),
        np.array(["2026-01-02"], "M8[ns]"),
        pd.Series(pd.to_datetime(["2026-01-02"])),
        [pd.Timestamp("2026-01-02")],
        [datetime(2026, 1, 2)],
        [np.datetime64("2026-01-02")],
    ]
    for day in days:
        assert codes(names, "y", day, "all").tolist() == [1]


def test_many_names_are_shown_in_part():
    names = as_names("classes", [f"class {i}" for i in range(1000)])
    assert repr(names).endswith("'class 4', ... (1000))")
    assert repr(as_names("classes", PETS)) == repr(PETS)


def test_a_rule_of_your_own_may_have_classes():
    @jaxcp.pytree
    class Largest(jaxcp.Rule):
        score: jaxcp.typing.Score
        scores: jax.Array
        classes: tuple = jaxcp.static(default=None)

        def threshold(self, rank):
            return jnp.max(self.scores)

    cp = Largest(scores.LAC(), BASE.scores, PETS)
    assert cp(P, 0.2).classes == PETS
    assert_array_equal(cp.p_values(P, by_name(PETS)), cp.p_values(P, Y))


def test_a_picture_has_the_names_of_sets():
    matplotlib.use("Agg")
    sets = LabelSet(jnp.eye(3, dtype=bool), PETS)
    ax = jaxcp.plotting.plot_label_sets(sets, PETS)
    assert [label.get_text() for label in ax.get_xticklabels()] == list(PETS)


def test_groups_by_name_may_come_with_their_number():
    site, x = np.array(["zoo", "farm"])[np.arange(8) % 2], jnp.arange(8.0)
    sets = jaxcp.calibrate(scores.Absolute(), x, x + site.size)(x, 0.3)
    for groups in (site, pd.Series(site), site.astype(object)):
        cp = jaxcp.calibrate_groups(scores.Absolute(), x, x, groups, num_groups=2)
        assert cp.group_names == ("farm", "zoo")
        found = metrics.group_coverage(sets, x, groups, num_groups=2)
        assert_array_equal(found, metrics.group_coverage(sets, x, groups))
    codes = (np.arange(8) % 2).astype(object)  # numbers are numbers still
    cp = jaxcp.calibrate_groups(scores.Absolute(), x, x, codes, num_groups=2)
    assert cp.group_names is None


def test_frames_with_columns_in_order_are_arrays():
    p = P[:8, :2] / P[:8, :2].sum(axis=1, keepdims=True)
    y, classes = np.array(["b", "a"])[np.arange(8) % 2], ["b", "a"]
    cp = jaxcp.calibrate(scores.LAC(), p, y, classes=classes)
    for columns in (classes, ["left", "right"], [0, 1]):
        frame = pd.DataFrame(np.asarray(p), columns=columns)
        found = jaxcp.calibrate(scores.LAC(), frame, y, classes=classes)
        assert_array_equal(found.scores, cp.scores)
        assert found(frame, 0.3).labels() == cp(p, 0.3).labels()


@pytest.mark.parametrize(
    "classes",
    [[("a",), ("b", "c"), ("d", "e")], ["a", 1, ("x", 2)]],
    ids=["of", "mixed"],
)
def test_names_may_be_tuples_of_any_length(classes):
    codes = np.arange(12) % 3
    p = np.full((12, 3), 1 / 3, "f")
    cp = jaxcp.calibrate(scores.LAC(), p, [classes[i] for i in codes], classes=classes)
    assert_array_equal(cp.scores, jaxcp.calibrate(scores.LAC(), p, codes).scores)
    assert cp(p[:1], 0.1).labels() == [classes]
