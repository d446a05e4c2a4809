"""The tests of settings beside MAPIE 1.6, where it is right, and where it is not."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom

from helpers import cases
from jaxcp import pvalues, risk

PROCEDURES = ["bonferroni", "holm", "fixed"]
P_VALUES = {k: v for k, v in cases("mapie/risk").items() if k.startswith("pv")}
BINARY = cases("mapie/risk")["bin"]
GOALS = {
    "precision_0p7": 0.3,
    "recall_0p8": 0.2,
    "accuracy_0p7": 0.3,
    "fpr_0p2": 0.2,
    "predicted_positive_fraction_0p4": 0.4,
}


def counts(goal):
    """Returns errors and trials at each threshold of a classifier of two classes."""
    y, marked = BINARY["y"].astype(bool)[:, None], BINARY["proba"][:, None]
    marked = marked >= BINARY["grid"]
    errors, trials = {
        "precision": (marked & ~y, marked),
        "recall": (~marked & y, y),
        "accuracy": (marked != y, np.ones_like(marked)),
        "fpr": (marked & ~y, ~y),
        "predicted": (marked, np.ones_like(marked)),
    }[goal.split("_")[0]]
    trials = np.broadcast_to(trials, marked.shape)
    return risk.Counts(errors.sum(axis=0), trials.sum(axis=0))


@pytest.mark.parametrize("name", P_VALUES)
def test_hoeffding_bentkus(name):
    case = P_VALUES[name]
    with jax.enable_x64(True):
        for r, row in zip(case["r_hat"], case["hb"], strict=True):
            losses = np.full(case["n_obs"], r)
            p = [risk.p_value(losses, float(alpha)) for alpha in case["alpha"]]
            assert_allclose(p, row, rtol=1e-9)


@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("name", P_VALUES)
def test_procedures(name, procedure):
    case, own = P_VALUES[name], procedure.replace("fixed", "fixed_sequence")
    valid = getattr(pvalues, own)(case["fwer_p"], float(case["fwer_delta"]))
    assert_array_equal(np.flatnonzero(valid), np.sort(case[f"fwer_{procedure}"]))


@pytest.mark.parametrize("goal", GOALS)
def test_settings_of_a_classifier(goal):
    """The same settings, although MAPIE counts one error too many in some."""
    errors, trials = counts(goal)
    for own, theirs in ("bonferroni", "bonferroni"), ("holm", "bonferroni_holm"):
        name = f"{goal}_{theirs}"
        given = risk.Counts(errors, trials), GOALS[goal], 0.1
        valid = risk.learn_then_test(*given, method=own)
        assert_array_equal(BINARY["grid"][np.asarray(valid)], BINARY[f"valid_{name}"])
    p = binom.cdf(errors, trials, GOALS[goal])[trials > 0]
    theirs = np.nan_to_num(BINARY[f"p_{name}"], nan=1)[trials > 0]
    assert np.all(theirs >= p * (1 - 1e-9))


def test_a_fixed_sequence_starts_where_it_is_told():
    """MAPIE reads the direction off the data: it finds 42, from the end that passes."""
    errors, trials = counts("fpr_0p2")
    down = risk.Counts(errors[::-1], trials[::-1])
    forward, backward = (
        risk.learn_then_test(v, 0.2, 0.1, method="fixed_sequence")
        for v in (risk.Counts(errors, trials), down)
    )
    assert forward.sum() == 0
    expected = BINARY["valid_fpr_0p2_fixed_sequence"]
    assert_array_equal(BINARY["grid"][::-1][np.asarray(backward)], expected)


def test_holm_finds_what_bonferroni_finds_beside_nan():
    """MAPIE's default rejects nothing once a p-value is NaN."""
    p = np.array([1e-9, 1e-8, 0.5, np.nan])
    assert_array_equal(pvalues.holm(p, 0.1), [True, True, False, False])
