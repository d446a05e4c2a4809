"""Folds by a splitter, or by its pairs: those of integers, or a refusal in words."""

import inspect

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn import model_selection
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import jaxcp
from jaxcp import learners
from rows import ABSOLUTE, KEY, RIDGE

N = 24
X = np.random.default_rng(0).normal(size=(N, 2)).astype("f")
Y = (X[:, 0] + np.arange(N) % 5).astype("f")
CLASSES, GROUPS = np.arange(N) % 2, np.arange(N) % 4
ESTIMATOR = learners.Estimator(LinearRegression())

_TWICE = "a partition, each row left out by one fit on all other rows"
# What each is, and why it is refused: None if its test parts are a partition.
SPLITTERS = {
    "GroupKFold": (GroupKFold(4), None),
    "GroupShuffleSplit": (model_selection.GroupShuffleSplit(3), _TWICE),
    "KFold": (KFold(4, shuffle=True, random_state=0), None),
    "LeaveOneGroupOut": (model_selection.LeaveOneGroupOut(), None),
    "LeaveOneOut": (model_selection.LeaveOneOut(), None),
    "LeavePGroupsOut": (model_selection.LeavePGroupsOut(2), _TWICE),
    "LeavePOut": (model_selection.LeavePOut(2), _TWICE),
    "PredefinedSplit": (model_selection.PredefinedSplit(GROUPS), None),
    "RepeatedKFold": (model_selection.RepeatedKFold(n_splits=3), _TWICE),
    "RepeatedStratifiedKFold": (
        model_selection.RepeatedStratifiedKFold(n_splits=3),
        _TWICE,
    ),
    "ShuffleSplit": (model_selection.ShuffleSplit(3), _TWICE),
    "StratifiedGroupKFold": (model_selection.StratifiedGroupKFold(2), None),
    "StratifiedKFold": (StratifiedKFold(3), None),
    "StratifiedShuffleSplit": (model_selection.StratifiedShuffleSplit(3), _TWICE),
    "TimeSeriesSplit": (
        model_selection.TimeSeriesSplit(3),
        "fits on the past alone, which is no cross-validation",
    ),
}


def cv(folds, learner=RIDGE, x=X, y=Y, **options):
    return jaxcp.cv_plus(KEY, learner, ABSOLUTE, x, y, folds=folds, **options)


def fold_of_row(pairs):
    folds = np.zeros(N, int)
    for fold, (_, test) in enumerate(pairs):
        folds[test] = fold
    return folds


def test_the_table_has_all_splitters_of_scikit_learn():
    exported = vars(model_selection).values()
    concrete = {
        item.__name__
        for item in exported
        if inspect.isclass(item) and hasattr(item, "split")
    }
    abstract = {name for name in concrete if name.startswith("Base")}
    assert concrete - abstract == {*SPLITTERS}


@pytest.mark.parametrize("name", SPLITTERS)
def test_every_splitter_is_a_partition_or_refused(name):
    splitter, refusal = SPLITTERS[name]
    groups = GROUPS if "Group" in name else None
    pairs = [*splitter.split(X, CLASSES, groups)]
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            cv(pairs)
        return
    expected = cv(fold_of_row(pairs))
    np.testing.assert_array_equal(cv(pairs).scores, expected.scores)


def as_lists(pairs):
    return tuple((train.tolist(), test.tolist()) for train, test in pairs)


def as_flags(pairs):
    in_test = [np.isin(np.arange(N), test) for _, test in pairs]
    return [(~held, held) for held in in_test]


PAIRS = [*KFold(3).split(X)]
FORMS = {
    "splitter": lambda: KFold(3),
    "pairs": lambda: PAIRS,
    "generator": lambda: iter(PAIRS),
    "lists": lambda: as_lists(PAIRS),
    "flags": lambda: as_flags(PAIRS),
}


@pytest.mark.parametrize("learner", [RIDGE, ESTIMATOR], ids=["jax", "host"])
@pytest.mark.parametrize("form", FORMS)
def test_sets_are_those_of_integer_folds_to_the_last_bit(form, learner):
    expected, cp = cv(fold_of_row(PAIRS), learner), cv(FORMS[form](), learner)
    np.testing.assert_array_equal(cp.scores, expected.scores)
    for end, wanted in zip(cp(X, 0.2).ends(), expected(X, 0.2).ends(), strict=True):
        np.testing.assert_array_equal(end, wanted)


def test_splitters_see_inputs_and_targets_as_they_were_given():
    class Spy(KFold):
        def split(self, X, y=None, groups=None):
            self.seen = X, y
            return super().split(X, y, groups)

    frame, targets = pd.DataFrame(X, columns=["a", "b"]), pd.Series(Y)
    cv(spy := Spy(3), ESTIMATOR, frame, targets)
    assert spy.seen[0] is frame and spy.seen[1] is targets
    cv(spy, RIDGE, jnp.asarray(X), jnp.asarray(Y))
    np.testing.assert_array_equal(spy.seen[0], X)
    np.testing.assert_array_equal(spy.seen[1], Y)
