from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxcp
from helpers import CASES, cut, inside, labels_of, same
from jaxcp import scores


def toy(n=19):
    return jaxcp.calibrate(scores.Absolute(), jnp.zeros(n), jnp.arange(1.0, n + 1))


def test_models_by_vmap_and_with_weights():
    def predict(slope, x):
        return slope * x[:, 0]

    x, y = jaxcp.datasets.heteroscedastic(jax.random.key(0), 50)
    cp = jaxcp.split_conformal(predict, 0.5, scores.Absolute(), x, y)
    paths = jax.vmap(
        lambda slope: jaxcp.split_conformal(predict, slope, scores.Absolute(), x, y)
    )(jnp.array([0.0, 0.5]))
    widths = jax.vmap(lambda c: jaxcp.metrics.mean_size(c(x, 0.1)))(paths)
    assert_allclose(widths[1], jaxcp.metrics.mean_size(cp(x, 0.1)), rtol=1e-6)
    weights = {"weights": jnp.ones(50)}
    weighted = jaxcp.split_conformal(predict, 0.5, scores.Absolute(), x, y, **weights)
    heavy = weighted.p_values(x, y, test_weights=jnp.full(50, 9.0))
    assert np.all(heavy > weighted.p_values(x, y) - 1e-6) and heavy.min() > 0.15
    assert weighted.quantile(0.1) == cp.quantile(0.1)
    assert weighted.quantile(0.1, test_weight=9.0) == np.inf


def test_one_calibration_serves_every_level():
    cp = toy()
    assert_array_equal(cp.quantile([0.05, 0.1, 0.5, 0.01]), [19, 18, 10, np.inf])
    assert cp.quantile(Fraction(1, 3)) == 14
    for alpha, q in [(0.05, 19.0), (0.5, 10.0), (0.04, np.inf)]:
        sets = cp(jnp.array([1.0, 2.0]), alpha)
        assert_array_equal(sets.upper, [1 + q, 2 + q])
        assert_array_equal(sets.lower, [1 - q, 2 - q])


def test_traced_level():
    sets = jax.vmap(lambda a: toy()(jnp.zeros(1), a))(
        jnp.array([0.05, 0.5, 0.04, 1.5, -1])
    )
    assert_array_equal(sets.upper[:, 0], [19, 10, np.inf, -np.inf, np.inf])


@pytest.mark.parametrize("n", [0, 1, 8])
def test_too_few_rows_give_infinite_sets(n):
    sets = toy(n)(jnp.zeros(2), 0.1)
    assert np.all(np.isinf(sets.size()))
    assert jaxcp.metrics.coverage(sets, jnp.array([1e30, -1e30])) == 1
    labels = jaxcp.calibrate(scores.APS(), jnp.full((n, 3), 1 / 3), jnp.zeros(n, int))
    assert np.all(labels(jnp.full((2, 3), 1 / 3), 0.1).mask)


def test_one_row_is_enough_for_half():
    assert toy(1).quantile(0.5) == 1


def test_zero_test_rows():
    assert toy()(jnp.zeros(0), 0.1).lower.shape == (0,)


def test_all_scores_equal():
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros(30), jnp.full(30, 2.0))
    for alpha in [0.1, 0.5, 0.9]:
        assert cp.quantile(alpha) == 2


def test_components_share_the_level():
    y = jnp.stack([jnp.arange(1.0, 40.0), -jnp.arange(1.0, 40.0)], axis=1)
    cp = jaxcp.calibrate(scores.Absolute(), jnp.zeros((39, 2)), y)
    assert_array_equal(cp.quantile(0.1), [38, 38])  # 0.05 each
    assert_array_equal(cp.quantile([0.025, 0.075]), [39, 37])
    assert_array_equal(cp.quantile(jnp.array([0.025, 0.075])), [39, 37])
    for j in range(2):  # of delta, too
        one = jaxcp.Calibration(scores.Absolute(), cp.scores[:, j])
        assert_array_equal(
            cp.quantile(0.4, delta=0.1)[j], one.quantile(0.2, delta=0.05)
        )
        assert one.quantile(0.2, delta=0.05) > one.quantile(0.2, delta=0.1)
    sets = cp(jnp.zeros((3, 2)), 0.1)
    assert isinstance(sets, jaxcp.sets.Box)
    assert_array_equal(sets.upper, np.full((3, 2), 38))


def test_a_single_output_may_come_as_a_column():
    y = jnp.arange(1.0, 20.0)
    for preds, targets in [(jnp.zeros((19, 1)), y), (jnp.zeros(19), y[:, None])]:
        cp = jaxcp.calibrate(scores.Absolute(), preds, targets)
        assert cp.scores.size == 19
        assert_array_equal(cp.quantile(0.1).ravel(), [18])
        coverage = jaxcp.metrics.coverage(cp(preds, 0.1), targets)
        assert_allclose(coverage, 18 / 19, rtol=1e-6)


def test_weights():
    cp = toy()
    unit = jaxcp.calibrate(
        scores.Absolute(), jnp.zeros(19), jnp.arange(1.0, 20.0), weights=jnp.ones(19)
    )
    alphas = [0.04, 0.05, 0.1, 0.33, 0.5, 0.999]
    assert_array_equal(unit.quantile(alphas), cp.quantile(alphas))
    heavy = unit.quantile(0.1, test_weight=5.0)
    assert heavy == np.inf
    sets = unit(jnp.zeros(2), 0.1, test_weights=jnp.array([1.0, 5.0]))
    assert_array_equal(sets.upper, [18, np.inf])
    p = unit.p_values(jnp.zeros(2), jnp.array([18.5, 0.0]), test_weights=jnp.ones(2))
    assert_allclose(p, [0.1, 1.0])


def test_smoothed_p_values():
    cp = toy(9)
    p = cp.p_values(jnp.zeros(2), jnp.array([9.0, 9.0]), u=jnp.array([0.0, 0.5]))
    assert_allclose(p, [0.0, 0.1])


@pytest.mark.parametrize(
    ("name", "weighted", "masked"),
    [
        ("absolute", True, True),
        ("signed", False, True),
        pytest.param("signed", True, True, marks=pytest.mark.slow),
        pytest.param("aps-randomized", False, False, marks=pytest.mark.slow),
        pytest.param("aps-randomized", True, False, marks=pytest.mark.slow),
    ],
)
def test_a_group_is_a_calibration_of_its_own(name, weighted, masked):
    """Thresholds, sets and p-values, conservative and smoothed, to the last bit."""
    case, n = CASES[name], 150
    preds, y = case.batch(n)
    groups, rows = np.arange(n) % 3, np.arange(n)
    options = {"weights": (1.0 + rows % 7) / 8} if weighted else {}
    options |= {"mask": rows % 5 > 0} if masked else {}
    test = {"test_weights": 1.0 + rows % 2} if weighted else {}
    u = jnp.linspace(0, 1, n)
    cp = jaxcp.calibrate_groups(case.score, preds, y, groups, num_groups=4, **options)
    assert np.all(np.isinf(cp.quantile(0.2)[3]))  # none of its rows
    sets = cp(preds, 0.2, groups=groups, **test)
    p = cp.p_values(preds, y, groups=groups, **test)
    smooth = cp.p_values(preds, y, groups=groups, u=u, **test)
    for g in range(3):
        here, there, own = cut(((preds, y), test, options), groups == g)
        alone = jaxcp.calibrate(case.score, *here, **own)
        assert_array_equal(cp.quantile(0.2)[g], alone.quantile(0.2))
        same(cut(sets, groups == g), alone(here[0], 0.2, **there))
        expected = alone.p_values(*here, **there)
        assert_allclose(p[groups == g], expected, rtol=1e-6)
        expected = alone.p_values(*here, u=u[groups == g], **there)
        assert_allclose(smooth[groups == g], expected, rtol=1e-6)


def test_certificates_of_groups():
    y, groups = jnp.arange(30.0), np.repeat([0, 2], [10, 20])
    cp = jaxcp.calibrate_groups(
        scores.Absolute(), y, y, groups, num_groups=3, mask=y > 0
    )
    assert [c.n for c in cp.certificate(0.1)] == [9, 0, 20]
    assert [c.coverage for c in cp.certificate(0.1)] == [0.9, 1, 19 / 21]
    weighted = jaxcp.calibrate_groups(
        scores.Absolute(), y, y, groups, num_groups=3, weights=y
    )
    with pytest.raises(ValueError, match="without weights"):
        weighted.certificate(0.1)
    with pytest.raises(ValueError, match="traced"):
        jax.jit(lambda c: c.certificate(0.1)[0].n)(cp)
    with pytest.raises(ValueError, match="test_weights only with calibration weights"):
        cp(y, 0.1, groups=groups, test_weights=y)
    with pytest.raises(ValueError, match="group of each test point"):
        cp.p_values(y, y)


@pytest.mark.parametrize("name", ["aps", "raps-randomized", "topk"])
def test_class_wise_sets_of_ranked_scores(name):
    case = CASES[name]
    preds, y = case.batch(300)
    labels = np.asarray(labels_of(case.score, preds))
    cp = jaxcp.calibrate_groups(case.score, preds, y, y, num_groups=labels.shape[1])
    assert_array_equal(cp(preds, 0.2).mask, labels <= np.asarray(cp.quantile(0.2)))


def test_values_pass_through_jit_whole():
    cp = jax.jit(lambda c: jax.tree.map(lambda v: v + 1, c))(toy())
    assert isinstance(cp, jaxcp.Calibration)
    assert_array_equal(cp.scores, toy().scores + 1)


def test_labels_and_groups_of_narrow_types():
    p, y = jnp.full((4, 200), 1 / 200), jnp.array([0, 1, 2, 100], jnp.int8)
    for score in [scores.LAC(), scores.APS(), scores.TopK()]:
        cp = jaxcp.calibrate(score, p, y)
        assert_array_equal(cp.scores, jaxcp.calibrate(score, p, y.astype(int)).scores)
        assert np.all(np.isfinite(cp.scores))
        contained = inside(cp(p, 0.3), y)
        assert_array_equal(contained, cp.scores <= cp.quantile(0.3))
    groups = jaxcp.calibrate_groups(
        scores.Absolute(), jnp.zeros(4), jnp.arange(4.0), 0 * y, num_groups=200
    )
    assert_array_equal(groups(jnp.zeros(4), 0.5, groups=0 * y).upper, np.full(4, 2))


def test_votes_as_unsigned_integers():
    votes = jnp.array([0, 5, 3], jnp.uint8)
    assert_array_equal(scores.TopK().labels(votes), [3, 1, 2])
    assert [int(scores.TopK()(votes, y)) for y in range(3)] == [3, 1, 2]


def test_a_calibration_that_is_made_by_hand_takes_any_shape():
    draws = jnp.ones((9, 5, 2))
    unknown = jaxcp.Calibration(scores.PCP(), jnp.zeros(9))
    assert unknown(draws, 0.2).centers.shape == draws.shape


def test_large_arrays_are_shown_by_type_and_shape():
    cp = jaxcp.calibrate(
        scores.RAPS(0.1, 2), jnp.full((30, 2), 0.5), jnp.arange(30) % 2
    )
    shown = repr(cp)
    assert "RAPS(penalty=0.1, k_reg=2, randomized=False" in shown
    assert f"scores={cp.scores.dtype}[30]" in shown and "mask=None" in shown
    assert "[1., 2.]" in repr(jaxcp.sets.Interval(jnp.array([1.0, 2.0]), None))
    nested = jaxcp.SplitConformal(None, {"w": [jnp.ones((4, 9)), (1, "a")]}, None)
    wide = jnp.ones(()).dtype
    assert f"params={{'w': [{wide}[4,9], (1, 'a')]}}" in repr(nested)


@pytest.mark.parametrize("weights", [None, jnp.ones(9)])
def test_p_values_of_groups_whose_test_points_lie_on_a_mesh(weights):
    """Inside shard_map, with its default checks, where the test points alone vary."""
    groups, zeros = jnp.arange(9) % 2, jnp.zeros(9)
    cp = jaxcp.calibrate_groups(
        scores.Absolute(), zeros, zeros + 1, groups, num_groups=2, weights=weights
    )
    y, of_test = jnp.linspace(0, 2, 4), jnp.array([0, 1, 1, 0])
    spec = jax.sharding.PartitionSpec("rows")
    p_values = lambda y, g: cp.p_values(jnp.zeros_like(y), y, groups=g)  # noqa: E731
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=auto)
    sharded = jax.shard_map(p_values, mesh=mesh, in_specs=spec, out_specs=spec)
    assert_array_equal(jax.jit(sharded)(y, of_test), p_values(y, of_test))
    p_values = lambda u: cp.p_values(zeros[:2], zeros[:2], groups=groups[:2], u=u)  # noqa: E731
    sharded = jax.shard_map(p_values, mesh=mesh, in_specs=spec, out_specs=spec)
    alone = p_values(y[:2] / 2), p_values(y[2:] / 2)
    assert_array_equal(jax.jit(sharded)(y / 2), np.concatenate(alone))
