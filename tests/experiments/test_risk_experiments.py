"""The experiments of risk control still fit the library: traced, or on few rows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

pytest.importorskip("experiments", reason="run as `python -m pytest` from the root")
from experiments.data import risk_coco, risk_tasks
from experiments.laws import coverage_risk, risk_laws
from experiments.pictures import showcase, showcase_risk
from experiments.speed import risk_speed
from experiments.tools import risk_bars

KEY = jax.random.key(0)


def images(n=30, k=5):
    p = jax.random.uniform(KEY, (n, k))
    return risk_coco.Images(p, p > 0.6)


@pytest.mark.parametrize("delta", [None, 0.1])
def test_splits_of_images(delta):
    trial = lambda key: risk_coco.controlled(images(), 20, 0.3, delta, key)  # noqa: E731
    found = jax.eval_shape(trial, KEY)
    assert {name: v.shape for name, v in found.items()} == {"risk": (), "size": ()}


def test_the_tables_of_losses_are_those_of_each_threshold():
    data = images()
    p, y = (np.asarray(v) for v in data)
    at = [0, 50, 120, 200]
    missed = (1 - p[:, None] > risk_coco.STEPS[at][None, :, None]) & y[:, None]
    expected = missed.sum(2) / np.maximum(y.sum(1), 1)[:, None]
    found = np.asarray(risk_coco.losses_at_steps(data))[:, at]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    at = [0, 400, 1499]
    kept = p[:, None] > risk_coco.CUTS[at][None, :, None]
    false = (kept & ~y[:, None]).sum(2) / np.maximum(kept.sum(2), 1)
    found = np.asarray(risk_coco.discoveries(data))[:, at]
    np.testing.assert_allclose(found, false, rtol=1e-6)


def test_procedures_on_images(monkeypatch):
    monkeypatch.setattr(risk_coco, "NUM_ROWS", 20)
    data, table = images(), jnp.zeros((30, risk_coco.NUM_THRESHOLDS))
    found = jax.eval_shape(lambda key: risk_coco.tested(data, table, key), KEY)
    assert list(found) == list(risk_coco.LEVELS)
    assert all(set(lines) == set(risk_coco.PROCEDURES) for lines in found.values())
    steps = jnp.zeros((30, len(risk_coco.STEPS)))
    trial = lambda key: risk_coco.on_grid(data, steps, 20, 0.3, key)  # noqa: E731
    assert jax.eval_shape(trial, KEY)["risk"].shape == ()


def test_bars_of_false_discoveries_are_the_published_values():
    assert risk_bars.PROCEDURES == risk_coco.PUBLISHED
    names = {key[0] for key, *_ in risk_bars.RISK["risk_control_rcps"]}
    assert names == {risk_coco.HOEFFDING, risk_coco.BETTING}


def test_images_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="scores of labels of COCO"):
        risk_coco.coco(tmp_path)


def test_masks_are_smooth_fields_of_variance_one():
    fields = np.asarray(risk_tasks.fields(KEY, 300, (16, 12), 2.0))
    assert fields.shape == (300, 16, 12)
    assert abs(np.var(fields) - 1) < 0.05
    near = np.mean(fields[:, 1:] * fields[:, :-1])
    assert abs(near - np.exp(-1 / 16)) < 0.05  # of two pixels, exp(-d^2 / (4 width^2))
    found = jax.eval_shape(risk_tasks.thresholds, KEY)
    assert len(found) == 2 * len(risk_tasks.LEVELS) + 1


def test_answers_and_where_their_tests_begin():
    confidence = np.linspace(0, 1, 200)
    start = risk_tasks.first_start(confidence, 1000)
    above = 1000 * np.mean(confidence >= risk_tasks.GRID[start])
    assert (1 - risk_tasks.ERRORS) ** (above / 2) <= risk_tasks.DELTA
    data = risk_tasks.Answers(jnp.asarray(confidence), jnp.ones(200, bool), 10)
    found = jax.eval_shape(lambda key: risk_tasks.withheld(data, key), KEY)
    assert "oracle" in found and found["Holm"]["answered"].shape == ()


def test_losses_under_a_shift():
    found = jax.eval_shape(risk_tasks.shifted, KEY)
    assert {name: v.shape for name, v in found.items()} == {
        "weighted": (),
        "unweighted": (),
    }


def test_exact_laws():
    """37 / 397 and 0.0612, as they are derived; rows of thirds have the mean 0.15."""
    c, rest = risk_laws.crc_law(99, 4, "0.1")
    assert (c, c + rest) == (37, 397)
    assert abs(risk_laws.misses(99, 4, None) - stats.beta(37, 360).sf(0.1)) < 1e-12
    assert risk_laws.misses(99, 4, 0.1) < 1e-4
    draws = np.asarray(risk_laws.losses("thirds", 1000, KEY))
    assert abs(draws.mean() - risk_laws.MEANS["thirds"]) < 4 * draws.std() / 1000**0.5
    found = jax.eval_shape(lambda key: risk_laws.false_rejections(0.5, key), KEY)
    assert set(found) == set(risk_laws.PROCEDURES)
    cells = [key for key, *_ in risk_bars.RISK["risk_laws_betting"]]
    made = {
        f"{law}, n = {n}, delta = {d}"
        for law in risk_laws.MEANS
        for n, d in risk_laws.BETS
    }
    assert set(cells) <= made and len(cells) == 10


def test_numpy_of_the_timed_thresholds():
    """The bits, the sorted scores and jaxcp give one float; so do columns of bets."""
    p, y = risk_speed.labels_data(40, 7)
    right = float(risk_speed.calibrated(p, y).quantile(0.1))
    assert risk_speed.numpy_bisection(p, y) == risk_speed.numpy_sort(p, y) == right
    many = np.random.default_rng(0).random((5, 99, 4), dtype=np.float32)
    found = risk_speed.numpy_many(many)
    assert np.array_equal(found, risk_speed.numpy_partition(many))
    x = np.random.default_rng(0).beta(1, 9, (30, 4))
    bets = risk_speed.numpy_betting(x), risk_speed.numpy_betting_by_rows(x)
    np.testing.assert_allclose(*bets, rtol=1e-9)
    p = np.array([[0.01, 0.2, 0.01], [0.01, 0.02, 0.01]])
    assert risk_speed.numpy_fixed_sequence(p).sum(axis=1).tolist() == [1, 3]


def test_many_labels_in_the_showcase(tmp_path):
    methods = list(showcase_risk.all_methods(KEY, tmp_path))
    assert len(methods) == showcase_risk.NUM_METHODS
    rows = jnp.arange(20)
    for method in methods:
        found = jax.eval_shape(
            lambda m=method: showcase.covered(m, m.sets(m.pool, rows, rows), rows)
        )
        assert found["coverage"].shape == () and found["by group"].shape == (2,)
    hits = replace(
        methods[0], hits=lambda sets, y: 1.0 * jnp.all(sets.mask >= y, axis=1)
    )
    sets = methods[0].sets(methods[0].pool, rows, rows)
    one, other = (showcase.covered(m, sets, rows) for m in (methods[0], hits))
    np.testing.assert_allclose(one["coverage"], other["coverage"], rtol=1e-6)
    np.testing.assert_allclose(one["by group"], other["by group"], rtol=1e-6)


def test_ranks_with_delta_in_the_grid():
    deltas = {m.name: m.delta for m in coverage_risk.METHODS}
    assert deltas["split, delta"] == coverage_risk.DELTA
