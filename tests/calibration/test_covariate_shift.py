"""The experiment on covariate shift: traced, and its parts against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import covariate_shift

KEY = jax.random.key(0)


def test_every_method_is_traced():
    """42 rows: 21 train, 21 test, of which 5 are drawn."""
    x = jax.random.normal(KEY, (42, 3))
    data = covariate_shift.Data("normal", x, x[:, 0], jnp.exp(x[:, 1]))
    found = jax.eval_shape(lambda key: covariate_shift.trial(data, key), KEY)
    assert data.num_tilted == 5
    assert set(found) == set(covariate_shift.COLORS)
    assert {v.shape for v in jax.tree.leaves(found)} == {()}
    assert set(covariate_shift.PUBLISHED) <= set(found)


def test_odds_of_two_groups_are_ratios_of_counts():
    """A model with as many parameters as groups: 2 of 8 and 12 of 16 rows are new."""
    x = jnp.repeat(jnp.array([-1.0, 1.0]), jnp.array([8, 16]))[:, None]
    is_new = jnp.r_[jnp.arange(8) < 2, jnp.arange(16) < 12]
    before, after = jnp.flatnonzero(~is_new), jnp.flatnonzero(is_new)
    odds = covariate_shift.odds(KEY, x, before, after)
    np.testing.assert_allclose(odds[jnp.array([0, -1])], [2 / 6, 12 / 4], rtol=1e-3)


def test_lines_beside_the_published_ones():
    values = {"coverage": np.array([0.8, 1.0]), "length": np.array([16.0, 18.0])}
    values |= {"infinite": np.zeros(2)}
    published = {"shift": (0.85, 20.0)}
    row = covariate_shift.line("shift", values, published)
    assert row["difference"] == 0.05 and row["difference, %"] == -15.0
    row = covariate_shift.line("other", values, published)
    assert row["published"] is None and row["difference"] is None
    assert row["coverage"] == 0.9 and row["length"] == 17.0


def test_standard_error_of_a_median():
    """sqrt(pi / 2) / sqrt(r) for a normal law."""
    values = np.asarray(jax.random.normal(KEY, (40_000,)))
    error = covariate_shift.median_error(values)
    np.testing.assert_allclose(error, (np.pi / 2) ** 0.5 / 200, rtol=0.2)


def test_airfoil_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"airfoil\.txt, airfoil self-noise"):
        covariate_shift.airfoil(tmp_path)
    rows = "800\t0\t0.3\t71.3\t0.002\t126.2\n1000\t1\t0.2\t39.6\t0.003\t125.2\n"
    (tmp_path / "airfoil.txt").write_text(rows)
    data = covariate_shift.airfoil(tmp_path)
    np.testing.assert_allclose(data.y, [126.2, 125.2])
    np.testing.assert_allclose(data.x[:, 0], [-1, 1], rtol=1e-6)
    ratio = (800 / 1000) * (0.003 / 0.002)  # of exp(-log x1 + log x5)
    np.testing.assert_allclose(data.weights[1] / data.weights[0], ratio, rtol=1e-6)
