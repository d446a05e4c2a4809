"""Rows that count, by numpy where it can read them: the same ranks as in programs."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import jaxcp
from jaxcp import _arrays
from jaxcp.scores import Absolute

SCORES = jnp.asarray(np.random.default_rng(0).normal(size=40), float)
MASK = np.arange(40) % 3 > 0
GROUPS = np.arange(40) % 5
ALPHAS = [0.1, 0.25, Fraction(1, 3), jnp.asarray(0.3), np.array([0.1, 0.5])]


@pytest.mark.parametrize("alpha", ALPHAS, ids=str)
@pytest.mark.parametrize("mask", [MASK, ~MASK, MASK & False, MASK | True])
def test_masked_thresholds_are_those_of_traced_masks(mask, alpha):
    def threshold(mask):
        return jaxcp.conformal_quantile(SCORES, alpha, mask=mask)

    found = threshold(mask)
    assert_array_equal(found, jax.jit(threshold)(mask))
    assert_array_equal(found, jaxcp.conformal_quantile(SCORES[mask], alpha))
    assert_array_equal(found, threshold(jax.device_put(mask, jax.devices()[0])))


@pytest.mark.parametrize("alpha", [0.1, jnp.asarray(0.3), np.full(6, 0.2)], ids=str)
@pytest.mark.parametrize("mask", [None, MASK, MASK & False])
def test_thresholds_of_groups_are_those_of_traced_groups(mask, alpha):
    def thresholds(groups):
        options = {"num_groups": 6, "mask": mask}  # the last group has no rows
        return jaxcp.grouped_conformal_quantile(SCORES, groups, alpha, **options)

    found = thresholds(GROUPS)
    assert_array_equal(found, jax.jit(thresholds)(GROUPS))
    assert_array_equal(found, thresholds(jax.device_put(GROUPS, jax.devices()[0])))
    levels = np.broadcast_to(alpha, (6,))
    for group in range(6):
        rows = (group == GROUPS) & (True if mask is None else mask)
        alone = jaxcp.conformal_quantile(SCORES[rows], levels[group])
        assert_array_equal(found[group], alone)


def test_groups_that_do_not_count_may_be_any():
    groups = np.where(MASK, GROUPS, -7).astype(np.int8)
    groups[0] = 100
    options = {"num_groups": 5, "mask": MASK}
    found = jaxcp.grouped_conformal_quantile(SCORES, groups, 0.3, **options)
    expected = jaxcp.grouped_conformal_quantile(SCORES, GROUPS, 0.3, **options)
    assert_array_equal(found, expected)
    counts = np.bincount(GROUPS[MASK], minlength=5)
    assert_array_equal(_arrays.count_groups(groups, 5, MASK), counts)
    traced = jax.jit(lambda g: _arrays.count_groups(g, 5, jnp.asarray(MASK)))
    assert_array_equal(traced(groups), counts)


def test_ranks_of_a_calibration_by_groups():
    y, groups = jnp.zeros(40), jnp.asarray(GROUPS)
    cp = jaxcp.calibrate_groups(
        Absolute(), SCORES, y, groups, num_groups=6, mask=jnp.asarray(MASK)
    )
    for alpha in (0.1, jnp.asarray(0.3), np.full(6, 0.2)):
        ranks = cp.rank(alpha)
        assert isinstance(ranks, jax.Array) and ranks.shape == (6,)
        assert_array_equal(ranks, jax.jit(lambda c, a=alpha: c.rank(a))(cp))
    assert [c.n for c in cp.certificate(0.1)] == [*np.bincount(GROUPS[MASK]), 0]


def test_what_lies_on_the_host_is_counted_there():
    assert _arrays.count_true(jnp.asarray(MASK)) == MASK.sum()
    assert isinstance(_arrays.count_true(jnp.asarray(MASK)), int)
    committed = jax.device_put(MASK, jax.devices()[0])
    for count in (_arrays.count_true(committed), _arrays.count_true(committed[:0])):
        assert isinstance(count, jax.Array)
    batch = jax.vmap(lambda m: jaxcp.conformal_quantile(SCORES, 0.2, mask=m))
    both = jnp.stack([MASK, ~MASK])
    alone = [jaxcp.conformal_quantile(SCORES, 0.2, mask=m) for m in both]
    assert_array_equal(batch(both), alone)


def test_a_known_mask_under_a_mapped_axis():
    def threshold(scores):
        return jaxcp.conformal_quantile(scores, 0.2, mask=MASK[:20], axis_name="rows")

    both = jax.vmap(threshold, axis_name="rows")(SCORES.reshape(2, 20))
    together = jaxcp.conformal_quantile(SCORES, 0.2, mask=np.tile(MASK[:20], 2))
    assert_array_equal(both, [together] * 2)


def test_a_mask_costs_no_programs_of_its_own(programs):
    scores = jax.device_put(np.arange(771.0, dtype=np.float32))
    mask = jax.device_put(np.arange(771) % 2 > 0)
    programs.clear()
    jaxcp.conformal_quantile(scores, 0.1, mask=mask)
    assert len(programs) <= 1  # the kernel's
