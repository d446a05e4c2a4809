"""The experiment on survival times: traced, its columns, and what it says alone."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import survival

KEY = jax.random.key(0)


@pytest.mark.parametrize("follow_up", [None, 2.0])
def test_every_method_is_traced(follow_up):
    x = jax.random.normal(KEY, (42, 3))
    data = survival.Data("normal", x, jnp.exp(x[:, 0]), follow_up)
    for trial in (survival.law_trial, lambda key: survival.split_trial(data, key)):
        found = jax.eval_shape(trial, KEY)
        assert set(found) == set(survival.METHODS)
        assert {v.shape for v in jax.tree.leaves(found)} == {()}


def test_columns_are_standardized_and_times_above_zero():
    frame = pandas.DataFrame(
        {"age": [1.0, np.nan, 3.0, 2.0], "sex": [*"abab"], "days": [0, 1, 2, 3]}
    )
    x, time = survival.columns(frame, "days")
    assert time.tolist() == [0.5, 1, 2, 3]
    np.testing.assert_allclose(x.mean(axis=0), [0, 0], atol=1e-12)
    np.testing.assert_allclose(x.std(axis=0, ddof=1), [1, 1])
    assert x[1, 0] == 0  # a missing number is the mean


def test_packages_that_are_missing_are_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lifelines", None)
    monkeypatch.setitem(sys.modules, "sksurv", None)
    assert survival.real() == []
    assert capsys.readouterr().out.count("pip install lifelines scikit-survival") == 2


def test_lines_beside_what_was_seen():
    found = {"coverage": np.array([0.8, 1.0]), "bound": np.array([1.0, 2.0])}
    row = survival.line("law", "C seen", found | {"infinite": np.zeros(2)}, 0.9)
    assert row["coverage"] == row["seen before"] == 0.9
    assert row["mean bound"] == 1.5 and row["+-"] == round(0.1 / 2**0.5, 4)
