"""Experiments on conditional coverage: small tables, and lines of the showcase."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.laws import band_laws, conditional, conditional_classes, rectified_law
from experiments.peers import label_peers
from experiments.pictures import showcase, showcase_conditional, showcase_methods
from experiments.tools import bars

KEY = jax.random.key(0)


def test_the_surplus_of_plain_sets_is_below_its_bound():
    """At most p / (n + 1) E max f(X_i): 4 / 61 of flags that some row always has."""
    lines = conditional.group_table(2000)
    plain = [line for line in lines if line["sets"] == "plain"]
    np.testing.assert_allclose([v["at most"] for v in plain], 4 / 61, rtol=1e-3)
    for line in lines:
        slack = 4 * line["+-"]
        assert -slack < line["surplus"] < line["at most"] + slack


def test_which_sets_agree_with_published_ones():
    row = {"all x": 0.1, "+-": 0.0005, "1 to 2": 0.1, "+- ": 0.002, "3 to 4": 0.1}
    row |= {"+-  ": 0.001, "method": "conditional, randomized"}
    far = row | {"3 to 4": 0.08, "method": "conditional"}
    told = conditional.agreement([far, row, {"method": "split"}])
    first, _, other = told.partition(", of ")
    assert first == "nearer to conditional, randomized"
    plain, both = "within 3: 1 to 2)", "within 3: 1 to 2 and 3 to 4)"
    assert other == (
        f"conditional (6.0, 1.0, 21.0 errors off, {plain} and "
        f"conditional, randomized (6.0, 1.0, 1.0 errors off, {both}"
    )


def test_a_hundred_classes_with_few_rows(monkeypatch):
    """Covered with as many rows each: k / (n + 1) by class-wise sets, less by RC3P."""
    lines = conditional_classes.table(2, (10,), (20,), 1000)
    found = {(v["rows a class"], v["method"]): v for v in lines}
    assert len(found) == len(lines) == 14
    assert {v[0] for v in bars.BARS["conditional_classes"]} <= {
        *found,
        (20, lines[2]["method"]),
    }
    assert found[10, "grouped, rare as all"]["infinite"] == 0
    assert 0.2 < found[10, "class-wise"]["infinite"] < 0.5
    each = {name: v for (rows, name), v in found.items() if rows == "20 in each"}
    assert abs(each["class-wise"]["coverage"] - 19 / 21) < 0.02
    short = each["RC3P, same rows"]["coverage"]
    assert short < each["truncated, class-wise"]["coverage"] - 0.01


def test_the_rule_of_rc3p(monkeypatch):
    """One of 20 rows is beyond rank 2, so alpha is 0.05: the largest score of all."""
    monkeypatch.setattr(conditional_classes, "NUM_CLASSES", 3)
    y, score = np.zeros(20, int), np.linspace(0.1, 0.9, 20)
    rank = np.array([3] + [2] * 10 + [1] * 9)
    q, limits = conditional_classes.rc3p(y, score, rank)
    assert limits.tolist() == [2, 3, 3] and q.tolist() == [0.9, np.inf, np.inf]


def test_rectified_scores_of_a_spread_that_grows():
    lines = {line["method"]: line for line in rectified_law.table(4)}
    errors = {name: line["cell error x100"] for name, line in lines.items()}
    assert errors.pop("Absolute") > 0.8 and max(errors.values()) < 0.3
    assert {v[0] for v in bars.BARS["rectified_law"]} == set(lines)


def test_bands_and_bonferroni():
    lines = {(v["law"], v["method"]): v for v in band_laws.table(4)}
    assert lines["walk", "envelope"]["width"] < lines["walk", "constant"]["width"]
    assert lines["walk", "Bonferroni"]["width"] == np.inf
    assert lines["noise", "Bonferroni, clamped"]["coverage"] < 0.87
    assert {v[0] for v in bars.BARS["band_laws"]} <= set(lines)


def test_conditional_coverage_in_the_showcase():
    """Every method has sets; distances are those to the nearest row of each class."""
    x = jax.random.normal(KEY, (320, 10))
    p, y = jax.nn.softmax(2 * x), jnp.arange(320) % 10
    pool = showcase_methods.Pool(
        "diabetes", x, x[:, 0], y % 2, 2, 30, {"ridge": x[:, 1]}
    )
    preds = {"p": p, "p, u": (p, jnp.linspace(0, 0.9, 320))}
    digits = showcase_methods.Pool("digits", x, y, y, 10, 30, preds)
    pools = {"diabetes": pool, "digits": digits}
    methods = list(showcase_conditional.all_methods(KEY, pools))
    assert len({m.name for m in methods}) == showcase_conditional.NUM_METHODS
    rows = jnp.arange(30)
    for method in methods:
        found = jax.eval_shape(
            lambda m=method: showcase.covered(m, m.sets(m.pool, rows, rows + 30), rows)
        )
        assert found["by group"].shape == (method.pool.num_groups,)
    near = showcase_conditional.distances(x[:4], x[4:7], jnp.array([0, 1, 1]), 3)
    exact = np.linalg.norm(np.asarray(x[:4, None] - x[None, 4:7]), axis=-1)
    np.testing.assert_allclose(near[:, 0], exact[:, 0], rtol=1e-4)
    np.testing.assert_allclose(near[:, 1], exact[:, 1:].min(1), rtol=1e-4)
    assert np.isinf(near[:, 2]).all()
    assert showcase.size_error(np.array([1.0, np.inf])) is None
    np.testing.assert_allclose(showcase.size_error(np.array([1.0, 3.0])), 0.5**0.5)


def test_saps_is_timed_beside_aps():
    times = {"jaxcp": 0.1, label_peers.SAPS: 0.08, "numpy": 0.2}
    rows = label_peers.label_rows(times, 0.9)
    assert [row["times jaxcp"] for row in rows] == [1, None, 2]
    assert [row["SAPS / APS, CPU"] for row in rows] == [None, 0.9, None]
    limit = bars.limit_of("kernel_speed_labels", label_peers.SAPS, "SAPS / APS, CPU")
    assert limit == "<= 1.2"
