"""Calibrations of risks in files: losses of the package by name, others by place."""

import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import online, risk, scores

P = jnp.array([[0.9, 0.6], [0.8, 0.3], [0.7, 0.4], [0.2, 0.9]])
Y = jnp.array([[1, 1], [1, 0], [1, 1], [0, 1]])


def half(set, y):
    return 0.5 * risk.false_negative_rate(set, y)


def other(set, y):
    return 0.25 * risk.false_negative_rate(set, y)


def _saved(path, loss):
    cp = risk.calibrate_risk(loss, scores.MultiLabel(), P, Y)
    jaxcp.save(path, cp)
    return cp


@pytest.mark.parametrize(
    "loss", [risk.false_negative_rate, (risk.false_negative_rate, risk.miscoverage)]
)
def test_losses_of_the_package_need_not_be_given(loss, tmp_path):
    cp = _saved(path := tmp_path / "cp.npz", loss)
    assert_array_equal(jaxcp.load(path).quantile(0.4), cp.quantile(0.4))


def test_a_loss_of_the_user_is_given_by_the_name_that_the_message_says(tmp_path):
    cp = _saved(path := tmp_path / "cp.npz", half)
    with pytest.raises(ValueError, match=r"function half.*load\(path, losses=\.\.\.\)"):
        jaxcp.load(path)
    loaded = jaxcp.load(path, losses=half)
    assert_array_equal(loaded.quantile(0.4), cp.quantile(0.4))
    assert_array_equal(jaxcp.load(path, **{"losses.0": half}).risk(0.3), cp.risk(0.3))


def test_several_losses_of_the_user_are_given_by_their_places(tmp_path):
    cp = _saved(path := tmp_path / "cp.npz", (half, risk.miscoverage, other))
    with pytest.raises(
        ValueError, match=r'load\(path, \*\*\{"losses\.0": \.\.\.\}, \*\*\{"lo'
    ):
        jaxcp.load(path)
    with pytest.raises(ValueError, match=r"losses\.0 .*losses\.2 .*, got losses"):
        jaxcp.load(path, losses=half)
    loaded = jaxcp.load(path, **{"losses.0": half, "losses.2": other})
    assert_array_equal(loaded.risk(0.3), cp.risk(0.3))


def test_an_online_loss_of_the_package_is_saved_by_name(tmp_path):
    method = online.PID(scores.MultiLabel(), 0.1, loss=risk.false_negative_rate)
    jaxcp.save(path := tmp_path / "pid.npz", method)
    assert jaxcp.load(path).loss.func is risk.false_negative_rate
