"""What losses, levels and targets of risk control are refused, or taken in any form."""

from decimal import Decimal
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import online, outliers, pvalues, risk, scores

P = np.array([[0.9, 0.6], [0.8, 0.3], [0.7, 0.4], [0.2, 0.9]])
Y = np.array([[1, 1], [1, 0], [1, 1], [0, 1]])
LOSSES = np.arange(120).reshape(60, 2) % np.array([30, 7]) == 0


def _calibrate(loss=risk.false_negative_rate, y=Y, **options):
    return risk.calibrate_risk(loss, scores.MultiLabel(), P, y, **options)


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        (None, "NoneType"),
        ("0.5", "str"),
        ((0.5, 0.5), r"\(2,\)"),
        (jnp.ones(1), r"\(1,\)"),
        (1j, "complex64"),
    ],
)
def test_a_loss_returns_one_real_number(returned, got):
    with pytest.raises(ValueError, match=rf"of shape \(\), got {got}"):
        _calibrate(lambda set, y: returned)


@pytest.mark.parametrize(
    "loss",
    [risk.false_negative_rate, (risk.miscoverage, risk.false_positive_count)],
)
@pytest.mark.parametrize("y", [2 * Y - 1, 0.5 * Y])
def test_masks_of_true_labels_are_flags(loss, y):
    with pytest.raises(ValueError, match=r"expected y as flags or 0 and 1.*at"):
        _calibrate(loss, y, bound=2.0)


def test_targets_that_do_not_count_are_anything():
    y = np.where(np.arange(4)[:, None] == 2, 7, Y)
    found = _calibrate(y=y, mask=[True, True, False, True]).quantile(0.5)
    assert_array_equal(found, _calibrate(mask=[True, True, False, True]).quantile(0.5))


@pytest.mark.parametrize("name", ["tail", "bound"])
def test_flags_are_no_numbers(name):
    with pytest.raises(ValueError, match=f"expected {name} as a number.*got True"):
        _calibrate(**{name: True})


@pytest.mark.parametrize("q", ["a", None])
def test_a_threshold_is_a_number(q):
    with pytest.raises(ValueError, match="expected q as"):
        _calibrate().risk(q)


@pytest.mark.parametrize("exact", [Fraction(1, 10), Decimal("0.1")])
@pytest.mark.parametrize(
    "verb",
    [
        lambda v: risk.learn_then_test(LOSSES, v, v),
        lambda v: risk.learn_then_test(LOSSES * 0.5, v, v, p_value="betting"),
        lambda v: risk.p_value(LOSSES, v, method="betting", delta=v),
        lambda v: risk.upper_bound(LOSSES, v),
        lambda v: risk.upper_bound(LOSSES * 0.1, 0.2, bound=v),
        lambda v: risk.pareto_test(LOSSES, LOSSES, jnp.arange(2.0), v, v),
        lambda v: pvalues.holm([0.1, 0.2], v),
        lambda v: pvalues.e_benjamini_hochberg([30.0, 2.0], v),
        lambda v: risk.selective_threshold(
            np.linspace(0, 1, 60), ~LOSSES[:, 0], v, v, grid=[0.0]
        )[1],
    ],
)
def test_levels_are_fractions_and_decimals_too(verb, exact):
    assert_array_equal(verb(exact), verb(0.1))


ROWS, PREDS = np.arange(1.0, 5.0), np.zeros(4)
MASKED = {
    "calibrate": lambda m: jaxcp.calibrate(scores.Absolute(), PREDS, ROWS, mask=m),
    "calibrate_groups": lambda m: jaxcp.calibrate_groups(
        scores.Absolute(), PREDS, ROWS, [0, 0, 1, 1], num_groups=2, mask=m
    ),
    "calibrate_risk": lambda m: _calibrate(mask=m),
    "conformal_quantile": lambda m: jaxcp.conformal_quantile(ROWS, 0.5, mask=m),
    "sharded_conformal_quantile": lambda m: jaxcp.sharded_conformal_quantile(
        ROWS, 0.5, jax.make_mesh((2,), ("rows",)), mask=m
    ),
    "kth_smallest": lambda m: jaxcp.kth_smallest(ROWS, 2, where=m),
    "is_outlier": lambda m: outliers.is_outlier(ROWS, ROWS, 0.5, mask=m),
    "upper_bound": lambda m: risk.upper_bound(ROWS / 4, 0.1, where=m),
    "learn_then_test": lambda m: risk.learn_then_test(
        np.full((4, 1), 0.1), 0.5, 0.1, where=np.reshape(m, (4, 1))
    ),
}


@pytest.mark.parametrize("mask", [np.arange(4), [0.5, 1, 1, 0], [1, np.nan, 1, 1]])
@pytest.mark.parametrize("door", MASKED)
def test_masks_are_flags(door, mask):
    """Indices of rows, weights and NaN are no masks: all but 0 would count."""
    with pytest.raises(ValueError, match=r"expected (mask|where) as flags or 0 and 1"):
        MASKED[door](mask)
    MASKED[door]([1, 1, 0, 1])


@pytest.mark.parametrize("returned", [None, jnp.ones(2)])
def test_a_loss_online_is_one_number(returned):
    pid = online.PID(scores.Absolute(), 0.5, loss=lambda set, y: returned)
    state = pid.init(ROWS, 0.2)
    with pytest.raises(ValueError, match=r"expected loss\(set, y\) of shape \(\)"):
        online.run(pid, state, PREDS, ROWS, 0.2)
