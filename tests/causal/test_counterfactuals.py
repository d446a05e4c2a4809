"""The experiment on outcomes not seen: traced, and its law against closed forms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import counterfactuals

KEY = jax.random.key(0)


def test_every_method_is_traced():
    for setting in ((0.0, False), (0.9, True)):
        found = jax.eval_shape(partial(counterfactuals.trial, *setting), KEY)
        assert set(found) == set(counterfactuals.COLORS)
        assert {v.shape for v in jax.tree.leaves(found)} == {()}


def test_propensities_are_those_of_a_beta_law():
    x = jnp.linspace(0, 1, 21)[:, None]
    expected = (1 + scipy.stats.beta(2, 4).cdf(np.asarray(x[:, 0], float))) / 4
    np.testing.assert_allclose(counterfactuals.propensity(x), expected, atol=1e-6)


def test_units_are_drawn_by_the_law():
    """Mean propensity: (1 + 2/3) / 4; noise -log(x) has variance 2, even noise 1."""
    for correlation, uneven in ((0.0, False), (0.9, True)):
        x, treated, y = counterfactuals.units(KEY, 20_000, correlation, uneven)
        noise = y - counterfactuals.mean(x)
        np.testing.assert_allclose(treated.mean(), 5 / 12, atol=0.015)
        np.testing.assert_allclose(noise.var(), 1 + uneven, rtol=0.15)
        near = np.clip(np.asarray(x[:, :2], float), 1e-6, 1 - 1e-6)
        found = np.corrcoef(scipy.stats.norm.ppf(near).T)[0, 1]
        np.testing.assert_allclose(found, correlation, atol=0.03)


def test_lines_of_the_table():
    values = {"coverage": np.array([0.9, 1.0]), "length": np.array([3.0, 5.0])}
    values |= {"finite length": np.array([3.0, np.nan]), "infinite": np.array([0, 0.5])}
    row = counterfactuals.line("a law", "a method", values)
    assert row["coverage"] == 0.95 and row["length"] == 4
    assert row["finite length"] == 3 and row["infinite"] == 0.25
