"""Every score and predictor under jit, vmap, grad and in both precisions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from own import CASES, OWN

import jaxcp
from helpers import LABELS, ONE_OF_EACH, components, cut, same
from jaxcp.sets import Kept

BOUND = {"RAPS", "SAPS", "Entmax", "Custom", "CDF", "Density", "Latent", "HDPCP"}
BOUND |= {"CP2PCP", "Rectified", "Truncated", "Binned", "Interpolated", "DCP"}
BOUND |= {"PredictedQuantiles", "TwoSided"}
ENDLESS = (
    "custom",
    "multilabel",
    "claims",
    "own-labels",
)  # sets without ends of their own
EACH = [*ONE_OF_EACH, *OWN]
all_scores = pytest.mark.parametrize("name", CASES)
good_scores = pytest.mark.parametrize("name", EACH)


def pipeline(score, rows, asked, alpha):
    """Sets and p-values of other rows: those that calibrated tie with themselves."""
    cp = jaxcp.calibrate(score, *rows)
    return cp, cp(asked[0], alpha), cp.p_values(*asked)


@jax.jit
def batched(score, rows, asked, alpha):
    """A batch of calibrations leaves vmap and goes through scan."""
    together = jax.vmap(pipeline, (None, 0, 0, None))(score, rows, asked, alpha)
    quantile = lambda carry, cp: (carry, cp.quantile(alpha))  # noqa: E731
    return together, jax.lax.scan(quantile, 0, together[0])[1]


@good_scores
def test_jit_is_eager_and_vmap_is_a_loop(name):
    """A batch of 19 rows each, which are filled up where they are alone."""
    case = CASES[name]
    in_three = lambda v: v.reshape(3, 19, *v.shape[1:])  # noqa: E731
    rows = jax.tree.map(in_three, case.batch(57))
    asked = jax.tree.map(in_three, case.batch(57, start=149))  # half of the bands cross
    together, scanned = batched(case.score, rows, asked, 0.2)
    if jax.tree.leaves(case.score):  # a batch of scores comes out with hyperparameters
        assert jax.tree.leaves(together[0].score)[0].shape[0] == 3
    for i in range(3):
        alone = pipeline(case.score, cut(rows, i), cut(asked, i), 0.2)
        same(cut(together[1:], i), alone[1:], 1e-6, like=False)
        assert_allclose(scanned[i], alone[0].quantile(0.2), rtol=1e-6)


@good_scores
def test_second_call_and_new_levels_trace_nothing(name):
    case = CASES[name]
    rows, other = case.batch(20), case.batch(20, start=20)
    pipeline(case.score, rows, other, 0.1)
    with jax.no_tracing():
        pipeline(case.score, other, rows, 0.3)


@all_scores
def test_gradients_are_finite(name):
    case = CASES[name]
    pred, y = case.one()
    wrt = (0, 1) if jnp.issubdtype(y.dtype, jnp.floating) else (0,)
    total = lambda p, t: jnp.sum(case.score(p, t))  # noqa: E731
    slopes = jax.tree.leaves(jax.jit(jax.grad(total, wrt, allow_int=True))(pred, y))
    slopes = [v for v in slopes if v.dtype != jax.dtypes.float0]  # of flags
    assert slopes and all(np.all(np.isfinite(v)) for v in slopes)


@pytest.mark.parametrize(
    "name",
    [n for n in EACH if n not in LABELS and not n.startswith(ENDLESS)],
)
def test_gradients_through_calibration_and_set_are_finite(name):
    """Also where the threshold is infinite; a traced level: one program."""
    case = CASES[name]
    preds, y = case.batch(20)

    def total(preds, y, alpha):
        sets = jaxcp.calibrate(case.score, preds, y)(preds, alpha)
        ends = [
            v for v in jax.tree.leaves(sets) if jnp.issubdtype(v.dtype, jnp.floating)
        ]
        return sum(jnp.sum(jnp.where(jnp.isfinite(v), v, 0)) for v in ends)

    slopes = jax.jit(jax.grad(total, (0, 1)))
    for alpha in (0.2, 0.001):
        found = jax.tree.leaves(slopes(preds, y, alpha))
        assert all(np.all(np.isfinite(v)) for v in found)


@pytest.mark.parametrize("name", LABELS)
def test_label_gradients_are_those_of_each_label(name):
    """The sorted form of all labels differentiates like the sum for one label."""
    case = CASES[name]
    pred, _ = case.one()
    jacobian = jax.jit(jax.jacrev(case.score.labels))(pred)
    k = jax.tree.leaves(jacobian)[0].shape[0]
    each = jax.jit(jax.vmap(jax.grad(case.score), (None, 0)))(pred, jnp.arange(k))
    for a, b in zip(jax.tree.leaves(jacobian), jax.tree.leaves(each), strict=True):
        assert_allclose(a, b, atol=1e-6)


def test_aps_gradient_is_its_finite_difference():
    p, u = jnp.array([0.45, 0.3, 0.15, 0.1]), jnp.array(0.4)
    score = jax.jit(jaxcp.scores.RAPS(0.2, 1, randomized=True).__call__)
    for y in range(3):  # the mass of the last rank is 1 by definition
        dp, du = jax.grad(score)((p, u), y)
        step = 1e-2
        for j in range(4):
            shift = step * jnp.eye(4)[j]
            change = score((p + shift, u), y) - score((p - shift, u), y)
            assert_allclose(dp[j], change / (2 * step), atol=1e-4)
        change = score((p, u + step), y) - score((p, u - step), y)
        assert_allclose(du, change / (2 * step), atol=1e-4)


@all_scores
def test_values_flatten_and_come_back(name):
    case = CASES[name]
    leaves, structure = jax.tree.flatten(case.score)
    again = jax.tree.unflatten(structure, leaves)
    pred, y = case.one()
    run = jax.jit(lambda score: score(pred, y))
    assert_array_equal(run(again), run(case.score))
    assert jax.tree.structure(again) == structure
    paths = jax.tree_util.tree_flatten_with_path(case.score)[0]
    assert len(paths) == len(leaves)
    with pytest.raises(AttributeError):
        case.score.penalty = 3.0


def test_hyperparameters_batch_and_differentiate():
    preds, y = CASES["raps"].batch(50)

    def threshold(penalty):
        score = jaxcp.scores.RAPS(penalty, 2)
        return jaxcp.calibrate(score, preds, y).quantile(0.1)

    penalties = jnp.array([0.0, 0.1, 1.0])
    together = jax.jit(jax.vmap(threshold))(penalties)
    assert_allclose(together, [threshold(v) for v in penalties], rtol=1e-6)
    assert np.isfinite(jax.jit(jax.grad(threshold))(0.1))


def test_every_pair_of_scores_through_one_jitted_function():
    """Classes with equal fields must not share a compiled program."""

    @jax.jit
    def ends(score, pred, q):
        sets = score.invert(pred, q)
        return jnp.stack([jnp.max(sets.lower), jnp.max(sets.upper)])

    lower, upper = jnp.array(1.0), jnp.array(2.0)
    pairs = {
        jaxcp.scores.Normalized(): [-3.0, 5.0],
        jaxcp.scores.CQR(): [-1.0, 4.0],
        jaxcp.scores.AsymmetricCQR(): [-1.0, 4.0],
    }
    for (a, at_a), (b, at_b) in itertools.permutations(pairs.items(), 2):
        assert_allclose(ends(a, (lower, upper), 2.0), at_a, rtol=1e-6)
        assert_allclose(ends(b, (lower, upper), 2.0), at_b, rtol=1e-6)
        same = jax.tree.structure(a) == jax.tree.structure(b)
        assert not same
    names = {name for name in jaxcp.scores.__all__ if name[0].isupper()} - {"Labelwise"}
    kinds = {type(case.score).__name__ for k, case in CASES.items() if k not in OWN}
    assert kinds == names
    structures = [
        jax.tree.structure(getattr(jaxcp.scores, name)()) for name in names - BOUND
    ]
    assert len(set(structures)) == len(structures)


@pytest.mark.double
@good_scores
def test_results_follow_the_precision_of_the_input(name):
    case = CASES[name]
    preds, y = case.batch(20)
    dtypes = ["float32"] + ["float64"] * jax.config.jax_enable_x64
    for dtype in dtypes:

        def cast(v, dtype=dtype):
            is_array = isinstance(v, jax.Array | np.ndarray)  # a number has no type
            is_float = is_array and jnp.issubdtype(v.dtype, jnp.floating)
            return v.astype(dtype) if is_float else v

        score, *data = jax.tree.map(cast, (case.score, preds, y))
        cp = jaxcp.calibrate(score, *data)
        assert cp.scores.dtype == dtype
        assert cp.quantile(0.2).dtype == dtype
        found = cp(data[0], 0.2)
        found = (
            found.mask if isinstance(found, Kept) else found
        )  # its share is a setting
        for leaf in jax.tree.leaves(found):
            assert leaf.dtype in (jnp.dtype(dtype), jnp.dtype(bool))
    assert components(case) >= 1
