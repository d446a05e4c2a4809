import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxcp import resampling


def test_leave_one_out_leaves_each_row_out_once():
    assert_array_equal(resampling.leave_one_out(4), 1 - np.eye(4))


@pytest.mark.parametrize("n, num_folds", [(7, 3), (7, 7), (2, 2), (100, 9)])
def test_folds_partition_the_rows(n, num_folds, key):
    weights = np.asarray(resampling.k_fold(key, n, num_folds))
    assert weights.shape == (num_folds, n)
    assert_array_equal(np.sum(weights == 0, axis=0), np.ones(n))
    sizes = np.sum(weights == 0, axis=1)
    assert sizes.max() - sizes.min() <= 1
    other = resampling.k_fold(jax.random.key(1), 100, 9)
    assert n < 100 or np.any(np.asarray(other) != weights)


def test_bootstrap_draws_n_rows_and_leaves_out_the_right_share(key):
    n, b = 40, 5000
    weights = np.asarray(resampling.bootstrap(key, n, b))
    assert_array_equal(weights.sum(axis=1), np.full(b, n))
    share, expected = np.mean(weights == 0), (1 - 1 / n) ** n
    assert abs(share - expected) < 4 * np.sqrt(expected / (n * b))
    assert abs(np.corrcoef(weights[:, 0], weights[:, 1])[0, 1]) < 0.1


@pytest.mark.parametrize("bound", [1, 7, 500, 2**16, 2**16 + 1])
def test_rows_are_drawn_as_jax_draws_integers(bound, key):
    expected = jax.random.randint(key, (3, 5), 0, bound)
    assert_array_equal(resampling._integers(key, (3, 5), bound), expected)


@pytest.mark.parametrize("moving", [True, False])
@pytest.mark.parametrize("n, size", [(12, 4), (13, 4), (5, 5), (5, 1), (7, 6)])
def test_blocks_are_drawn_whole(n, size, moving, key):
    weights = np.asarray(
        resampling.block_bootstrap(key, n, 300, size, moving=moving)
    ).astype(int)
    if moving:  # each resample has n rows; the starts cover what they may
        assert_array_equal(weights.sum(axis=1), np.full(300, n))
        assert np.all(weights.sum(axis=0) > 0)
    else:  # all rows of a block are drawn equally often
        blocks = np.arange(n) // size
        for block in np.unique(blocks):
            rows = weights[:, blocks == block]
            assert_array_equal(rows, np.repeat(rows[:, :1], rows.shape[1], axis=1))
        first = weights[:, ::size]
        assert_array_equal(first.sum(axis=1), np.full(300, -(-n // size)))


def test_moving_blocks_keep_neighbors_together(key):
    weights = np.asarray(resampling.block_bootstrap(key, 200, 500, 20))
    near = np.mean(
        [np.corrcoef(weights[:, i], weights[:, i + 1])[0, 1] for i in range(60, 140)]
    )
    assert near > 0.8  # 19 / 20 of the blocks over one row are over the next


def test_subsamples_are_without_replacement(key):
    weights = np.asarray(resampling.subsample(key, 9, 2000, 4))
    assert set(np.unique(weights)) == {0.0, 1.0}
    assert_array_equal(weights.sum(axis=1), np.full(2000, 4))
    share = weights.mean(axis=0)
    assert np.all(abs(share - 4 / 9) < 4 * np.sqrt(4 / 9 * 5 / 9 / 2000))


def test_plans_run_under_jit_and_vmap(key):
    keys = jax.random.split(key, 3)
    plans = {
        "folds": lambda k: resampling.k_fold(k, 8, 3),
        "bootstrap": lambda k: resampling.bootstrap(k, 8, 3),
        "blocks": lambda k: resampling.block_bootstrap(k, 8, 3, 3, moving=False),
        "subsample": lambda k: resampling.subsample(k, 8, 3, 5),
    }
    each = lambda k: {name: plan(k) for name, plan in plans.items()}  # noqa: E731
    together = jax.jit(jax.vmap(each))(keys)
    alone = jax.jit(each)(keys[1])
    for name in plans:
        assert_array_equal(together[name][1], alone[name])
