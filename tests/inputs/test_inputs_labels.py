"""Labels of pandas: rows that belong together have the same, in any order."""

import importlib
import inspect
import pkgutil

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import _checks, metrics, scores

PREDS = pd.Series(np.arange(9.0), index=list("abcdefghi"))
Y = PREDS + np.array([1, 5, 2, 7, 3, 8, 4, 9, 6])
ABSOLUTE = scores.Absolute()
# Whose rows are not those of one table, or come as arrays inside of programs.
ELSEWHERE = {
    "Held": "its scores calibrate, other arguments are of test points",
    "sharded_conformal_quantile": "arrays on a mesh",
    "forecast": "columns of a frame",
    "conditional_outlier_p_values": "rows of two tables",
    "e_values": "rows of two tables",
    "plot_band": "ends along an axis",
    "plot_fan": "quantiles along an axis",
    "plot_boxes": "of one image",
    "plot_masks": "images",
    "plot_monitor": "steps along an axis",
    "plot_rolling_coverage": "steps along an axis",
    "pareto_test": "losses of settings, of two tables",
    "density_ratio": "rows of two tables",
    "SizeLoss": "a loss of programs",
    "conformal_training_loss": "a loss of programs",
    "soft_membership": "a loss of programs",
    "CrossCalibration.level_and_context": "a part of its calls",
}
INSIDE = "threshold", "weights_at", "check", "fit", "fit_all", "prepare", "init"
INSIDE += ("leave_one_out",)  # methods that verbs call with arrays
HOSTED = "Difficulty", "KaplanMeier", "ByGroup"  # but these are called by users


def doors():
    """Gives public functions and methods by name with more than one row argument."""
    for module in pkgutil.iter_modules(jaxcp.__path__):
        if module.name[0] == "_" or module.name in ("models", "typing"):
            continue
        home = importlib.import_module(f"jaxcp.{module.name}")
        for name in getattr(home, "__all__", ()):
            public = getattr(home, name)
            if inspect.isfunction(public):
                yield name, public
            elif inspect.isclass(public):
                for method, function in vars(public).items():
                    is_public = method == "__call__" or method[0] != "_"
                    if inspect.isfunction(function) and is_public:
                        yield f"{name}.{method}", function


def goes_by_labels(function):
    while function is not None and "by_labels" not in vars(function):
        function = getattr(function, "__wrapped__", None)
    return function is not None


def test_every_door_of_several_rows_goes_by_their_labels():
    missing = []
    for name, function in doors():
        owner, _, method = name.partition(".")
        if {name, owner} & {*ELSEWHERE} or (method in INSIDE and owner not in HOSTED):
            continue
        rows = _checks._ROWS & {*inspect.signature(function).parameters}
        if len(rows) > 1 and not goes_by_labels(function):
            missing.append(name)
    assert not missing


@pytest.mark.parametrize("changed", [Y.rename({"a": "z"}), Y.rename({"a": "b"})])
def test_other_labels_and_repeated_ones_are_refused_with_the_cure(changed):
    changed = changed.iloc[::-1]
    table = pd.DataFrame({"lower": PREDS - 1, "upper": PREDS + 1})
    for call in [
        lambda: jaxcp.calibrate(ABSOLUTE, PREDS, changed),
        lambda: jaxcp.calibrate(ABSOLUTE, (PREDS,), changed),
        lambda: jaxcp.calibrate(ABSOLUTE, batches=[(PREDS, changed)]),
        lambda: metrics.coverage(table, changed),
        lambda: jaxcp.calibrate_groups(ABSOLUTE, PREDS, Y, changed),
    ]:
        with pytest.raises(ValueError, match=r"to_numpy\(\) takes rows by position"):
            call()


def test_repeated_labels_in_one_order_and_rows_without_labels_pass():
    expected = jaxcp.calibrate(ABSOLUTE, PREDS.to_numpy(), Y.to_numpy()).scores
    again = PREDS.set_axis([0] * 9), Y.set_axis([0] * 9)
    for preds, y in [again, (PREDS.to_numpy(), Y), (PREDS, Y[::-1].to_numpy()[::-1])]:
        assert_array_equal(jaxcp.calibrate(ABSOLUTE, preds, y).scores, expected)


def test_sets_come_in_the_order_of_predictions():
    groups = pd.Series(list("xyxyxxyyy"), index=PREDS.index)
    cp = jaxcp.calibrate_groups(ABSOLUTE, PREDS, Y, groups)
    expected = cp(PREDS, 0.3, groups=groups).upper
    found = cp(groups=groups.iloc[::-1], alpha=0.3, preds=PREDS).upper
    assert_array_equal(found, expected)
    assert_array_equal(cp(PREDS, 0.3, groups=groups.iloc[::-1]).upper, expected)


def test_lengths_are_compared_before_labels():
    with pytest.raises(ValueError, match="expected y with 9 rows like preds, got 8"):
        jaxcp.calibrate(ABSOLUTE, PREDS, Y[:8])
