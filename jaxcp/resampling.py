"""Resampling plans as training weights (b, n): row j fits model j, zero is held out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks, _names
from jaxcp.typing import ArrayLike

# fmt: off
__all__ = [
    "block_bootstrap", "bootstrap", "group_k_fold", "k_fold", "leave_one_out",
    "subsample",
]
# fmt: on
__dir__ = __all__.copy


def leave_one_out(n: int) -> Array:
    """Returns the weights of n fits, the i-th without row i: 1 - identity.

    Args:
      n: Number of rows, at least 2.

    Returns:
      Training weights, shape (n, n).

    Raises:
      ValueError: if n is less than 2.

    Cost:
      n^2 weights.

    See also:
      jackknife_plus, resampling.k_fold, cross_conformal

    Example:
      >>> leave_one_out(3).tolist()
      [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    _checks.check_count("n", n, 2)
    return _leave_one_out(int(n))


def k_fold(key: Array, n: int, num_folds: int) -> Array:
    """Returns the weights of K fits, each without one fold of a random partition.

    Fold sizes differ by at most one; K = n is leave-one-out in random order. The bounds
    of CV+ are for folds of one size: n a multiple of K.

    Args:
      key: Random key, from `jax.random.key`.
      n: Number of rows.
      num_folds: Number of folds K, from 2 to n.

    Returns:
      Training weights in {0, 1}, shape (num_folds, n).

    Raises:
      ValueError: if `num_folds` is not in 2, ..., n.

    Cost:
      K n weights.

    See also:
      cv_plus, cross_conformal, resampling.leave_one_out

    Example:
      >>> k_fold(jax.random.key(0), 7, 3).sum(axis=1).tolist()
      [4.0, 5.0, 5.0]
    """
    return _k_fold(key, *check_folds(n, num_folds))


def group_k_fold(key: Array, ids: ArrayLike, num_folds: int) -> Array:
    """Returns the weights of fits, each without one fold of whole clusters of rows.

    The K clusters, such as patients with several rows each, are dealt at random to
    folds whose numbers of clusters differ by at most one.

    Args:
      key: Random key, from `jax.random.key`.
      ids: Cluster of each row, hashable values with K distinct ones, shape (n,).
      num_folds: Number of folds, from 2 to K.

    Returns:
      Training weights in {0, 1}, shape (num_folds, n).

    Raises:
      ValueError: if `num_folds` is not in 2, ..., K, or ids are missing or traced.

    Guarantee:
      None of CV+ with these folds and rows that count alike: a model that ignores the
      data has pooled split conformal sets, which cover less than 1 - 2 alpha where
      large clusters are easy. Rows weigh 1 over the size of their cluster in
      `cross_calibrate(..., clusters=ids)`; a bound is proved there, and for
      `jackknife_plus(..., clusters=ids)`, if each fit is without one cluster alone.

    Cost:
      num_folds n weights; ids are numbered on the host, O(n).

    References:
      Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data, ACM
      Journal of Data Science, 2026.

    See also:
      jackknife_plus, cross_calibrate, resampling.k_fold

    Example:
      >>> weights = group_k_fold(jax.random.key(0), ["a", "a", "b", "b", "b"], 2)
      >>> sorted(weights.sum(axis=1).tolist())
      [2.0, 3.0]
    """
    codes, count = _names.clusters_in_order(ids)
    return _group_k_fold(key, codes, *check_folds(count, num_folds, "clusters"))


def check_folds(n: int, num_folds: int, name: str = "n") -> tuple[int, int]:
    """Returns the counts of rows and folds; raises ValueError for other ones."""
    _checks.check_count(name, n, 2)
    _checks.check_count("num_folds", num_folds, 2)
    if num_folds > n:
        raise ValueError(f"expected num_folds <= {name} = {n}, got {num_folds}")
    return int(n), int(num_folds)


def bootstrap(key: Array, n: int, num_resamples: int) -> Array:
    """Returns how often each row is drawn in n draws with replacement.

    A row is held out of a resample with probability (1 - 1/n)^n, about 0.37.

    Args:
      key: Random key.
      n: Number of rows, at least 1.
      num_resamples: Number of resamples b.

    Returns:
      Training weights, whole numbers that sum to n in each row, shape (b, n).

    Raises:
      ValueError: if a count is not positive.

    Cost:
      b n draws and weights.

    References:
      Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics,
      1979.

    See also:
      jackknife_plus_after_bootstrap, resampling.block_bootstrap, resampling.subsample

    Example:
      >>> bootstrap(jax.random.key(0), 5, 2).sum(axis=1).tolist()
      [5.0, 5.0]
    """
    return block_bootstrap(key, n, num_resamples, 1)


def block_bootstrap(
    key: Array, n: int, num_resamples: int, block_size: int, *, moving: bool = True
) -> Array:
    """Returns how often each row is drawn when blocks are drawn with replacement.

    Blocks of consecutive rows keep the dependence of a series. ceil(n / block_size)
    blocks make a resample.

    Args:
      key: Random key.
      n: Number of rows, in order of time.
      num_resamples: Number of resamples b.
      block_size: Rows in a block, from 1 to n.
      moving: Whether a block may start at any row from which it fits (the last block
        drawn is then cut so that each resample has n rows). Otherwise the blocks are
        rows 0 to s - 1, s to 2s - 1 and so on; the last may be shorter.

    Returns:
      Training weights, whole numbers, shape (b, n).

    Raises:
      ValueError: if a count is not positive or `block_size` exceeds n.

    Cost:
      b n weights.

    References:
      Kunsch, The Jackknife and the Bootstrap for General Stationary Observations,
      Annals of Statistics, 1989 (moving).
      Carlstein, The Use of Subseries Values for Estimating the Variance of a General
      Statistic from a Stationary Sequence, Annals of Statistics, 1986
      (non-overlapping).

    See also:
      enbpi, resampling.bootstrap

    Example:
      >>> block_bootstrap(jax.random.key(0), 6, 1, 3).sum().item()
      6.0
    """
    sizes = check_blocks(n, num_resamples, block_size)
    return _block_bootstrap(key, *sizes, bool(moving))


def check_blocks(n: int, num_resamples: int, block_size: int) -> tuple[int, int, int]:
    """Returns the sizes of a block bootstrap; raises ValueError for other counts."""
    _checks.check_count("n", n, 1)
    _checks.check_count("num_resamples", num_resamples, 1)
    _checks.check_count("block_size", block_size, 1)
    if block_size > n:
        raise ValueError(f"expected block_size <= n = {n}, got {block_size}")
    return int(n), int(num_resamples), int(block_size)


def subsample(key: Array, n: int, num_resamples: int, size: int) -> Array:
    """Returns which rows are drawn in `size` draws without replacement.

    Args:
      key: Random key.
      n: Number of rows.
      num_resamples: Number of resamples b.
      size: Rows in a resample, from 1 to n - 1.

    Returns:
      Training weights in {0, 1} that sum to `size` in each row, shape (b, n).

    Raises:
      ValueError: if a count is out of range.

    Cost:
      b random orders of n rows, and b n weights.

    See also:
      cross_conformal, resampling.bootstrap, resampling.k_fold

    Example:
      >>> subsample(jax.random.key(0), 5, 2, 3).sum(axis=1).tolist()
      [3.0, 3.0]
    """
    _checks.check_count("n", n, 2)
    _checks.check_count("num_resamples", num_resamples, 1)
    _checks.check_count("size", size, 1)
    if size >= n:
        raise ValueError(f"expected size < n = {n}, got {size}: no row is held out")
    return _subsample(key, int(n), int(num_resamples), int(size))


@jax.jit(static_argnums=0)
def _leave_one_out(n):
    return 1 - jnp.eye(n)


@jax.jit(static_argnums=(1, 2))
def _k_fold(key, n, num_folds):
    return _group_k_fold(key, jnp.arange(n), n, num_folds)


@jax.jit(static_argnums=(2, 3))
def _group_k_fold(key, codes, count, num_folds):
    return weights_of_folds(random_folds(key, count, num_folds)[codes], num_folds)


def random_folds(key: Array, n: int, num_folds: int) -> Array:
    """Returns the fold of each row of a random partition, shape (n,)."""
    return jax.random.permutation(key, jnp.arange(n) % num_folds)


def weights_of_folds(fold: Array, num_folds: int) -> Array:
    """Returns the weights of fits without one fold each, shape (num_folds, n)."""
    return (fold[None] != jnp.arange(num_folds)[:, None]).astype(float)


@jax.jit(static_argnums=(1, 2, 3, 4))
def _block_bootstrap(key, n, num_resamples, block_size, moving):
    num_blocks = -(-n // block_size)
    shape = (num_resamples, num_blocks, 1)
    if moving:
        start = _integers(key, shape, n - block_size + 1)
    else:
        start = block_size * _integers(key, shape, num_blocks)
    drawn = (start + jnp.arange(block_size)[None, None]).reshape(num_resamples, -1)
    drawn = drawn[:, :n] if moving else drawn
    # Rows past the end, of a last block that is shorter, are dropped.
    count = lambda rows: jnp.zeros(n).at[rows].add(1.0, mode="drop")  # noqa: E731
    return jax.vmap(count)(drawn)


def _integers(key: Array, shape: tuple[int, ...], bound: int) -> Array:
    """Returns `jax.random.randint(key, shape, 0, bound)`, but draws all bits at once.

    Two words of each integer by one call are half of the program.
    """
    dtype = jax.dtypes.canonicalize_dtype(int)
    word, bits = jnp.dtype(f"uint{8 * dtype.itemsize}"), 8 * dtype.itemsize
    draw = lambda key: jax.random.bits(key, shape, word)  # noqa: E731
    high, low = jax.vmap(draw)(jax.random.split(key))
    # (high 2^bits + low) mod bound, where 2^bits is squared in one word, as there.
    factor = pow(2, bits // 2, bound) ** 2 % 2**bits % bound
    drawn = (high % bound * jnp.asarray(factor, word) + low % bound) % bound
    return drawn.astype(dtype)


@jax.jit(static_argnums=(1, 2, 3))
def _subsample(key, n, num_resamples, size):
    keys = jax.random.split(key, num_resamples)
    first = (jnp.arange(n) < size).astype(float)
    return jax.vmap(jax.random.permutation, (0, None))(keys, first)
