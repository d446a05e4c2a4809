"""Experiments on predictive distributions: small parts of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import predictive
from experiments.pictures import showcase, showcase_methods, showcase_predictive
from experiments.speed import predictive_speed


def test_every_system_is_judged():
    draw = np.random.default_rng(0)
    x = draw.uniform(size=(1200, 2))
    y = x[:, 0] + x[:, 1] * draw.normal(size=len(x))
    parts = predictive.parts_of(x, y, 0)
    assert [len(v) for _, v in parts] == [600, 300, 300]
    found = predictive.one(parts, 30, 0)
    assert {*predictive.PUBLISHED} < {*found}
    assert {*found} - {*predictive.PUBLISHED} == {"quantiles", "full conformal, ridge"}
    for way, row in found.items():
        assert 0.8 < row["coverage"] < 1 and row["PIT p"] > 1e-3, way
        # The mean distance of two targets given x, (2 / sqrt(pi)) x_2, times 1 / 2.
        assert row["CRPS"] > 0.5 / np.pi**0.5, way
    rows = predictive.table("data", [found, found])
    assert rows[0]["CRPS"] == found["plain"]["CRPS"] and rows[0]["+- CRPS"] == 0
    wide = {"plain": found["plain"] | {"width": np.inf}}
    assert predictive.table("data", [wide, wide])[0]["+- width"] is None


def test_rows_are_split_as_in_the_notebook_of_crepes():
    """Half of the rows are tests, and a quarter of the others calibrate, by a seed."""
    x, y = np.arange(40.0)[:, None], np.arange(40.0)
    parts = predictive.as_crepes(x, y)
    assert [len(v) for _, v in parts] == [15, 5, 20]
    np.testing.assert_array_equal(np.sort(np.concatenate([v for _, v in parts])), y)
    again = predictive.as_crepes(x, y)
    np.testing.assert_array_equal(again[2][1], parts[2][1])


def test_lines_of_the_showcase():
    """Every method has sets, and that of one side a finite mean bound."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (90, 3))
    mu, sigma = 150 + 50 * x[:, 0], jnp.full(90, 40.0)
    preds = {"ridge": mu, "normal": (mu, sigma), "quantiles": (mu - 60, mu + 60)}
    pool = showcase_methods.Pool(
        "diabetes", x, mu + 40 * x[:, 1], jnp.arange(90) % 2, 2, 60, preds
    )
    methods = list(showcase_predictive.all_methods(key, {"diabetes": pool}))
    assert len({m.name for m in methods}) == showcase_predictive.NUM_METHODS
    rows = jnp.arange(60)
    for method in methods:

        def judged(method=method):
            sets = method.sets(method.pool, rows, rows[:30] + 60)
            found = showcase.covered(method, sets, rows[:30] + 60)
            return found | {"size": method.size(sets)}

        found = jax.eval_shape(judged)
        assert found["by group"].shape == (2,) and found["size"].shape == ()


def test_systems_are_timed_beside_numpy():
    """Both ways say the same, as `comparisons` asserts."""
    found = predictive_speed.comparisons(300, repeats=1)
    lines = {(v["task"], v["way"]): v for v in found}
    assert {("cdf", "jaxcp"), ("cdf", "NumPy"), ("CRPS", "NumPy")} <= {*lines}
    for task in ("cdf", "CRPS"):
        own, other = (lines[task, way]["CPU s"] for way in ("jaxcp", "NumPy"))
        np.testing.assert_allclose(lines[task, "NumPy"]["jaxcp / it"], own / other)
