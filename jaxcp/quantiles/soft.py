"""Conformal quantiles with smooth gradients, to train through."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._counting import count_rows
from jaxcp._numbers import as_float, at_least_single, positive
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.quantiles.levels import conformal_rank
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike, Number


def soft_conformal_quantile(
    scores: ArrayLike, alpha: ArrayLike, *, bandwidth: ArrayLike, hard: bool = False
) -> Array:
    """Returns a smooth stand-in for the conformal quantile, for training.

    The root t of sum_i sigmoid((t - S_i) / bandwidth) = k - 1/2 with k the conformal
    rank; its limit for bandwidth -> 0 is `conformal_quantile`. The gradient is the
    kernel-weighted mean of the score gradients. With `hard=True` the value is the
    `conformal_quantile` itself, and the gradient the kernel-weighted mean around it.

    Args:
      scores: Nonconformity scores, shape (n,), finite.
      alpha: Miscoverage level, shape ().
      bandwidth: Width of the smoothing > 0, shape (), in units of the score.
      hard: Whether the value is exact and only the gradient smooth.

    Returns:
      Soft threshold, shape (), dtype of `scores`; +inf where the exact one is, with a
      gradient of zero. NaN scores and infinite ones have a gradient of zero too.

    Raises:
      ValueError: if `scores` is not of shape (n,), a concrete `bandwidth` is not
        positive, or a number `alpha` is outside (0, 1).

    Guarantee:
      None: recalibrate with `conformal_quantile` on fresh data after training.

    Assumption:
      None.

    Cost:
      O(n) for each of the 32 bits of a float; O(n) for the gradient.

    References:
      Noorani, Romero, Dal Fabbro, Hassani, Pappas, Conformal Risk Minimization with
      Variance Reduction, arXiv 2411.01696, 2024.

    See also:
      conformal_quantile, training.SizeLoss

    Example:
      >>> soft_conformal_quantile(jnp.arange(1.0, 10.0), 0.2, bandwidth=0.01).round(3)
      Array(8., dtype=float32)
    """
    scores, bandwidth = as_arrays(scores=scores, bandwidth=bandwidth)
    _checks.check_vectors(scores=scores)
    _checks.check_values(lambda h: h > 0, "bandwidth > 0", bandwidth)
    rank = conformal_rank(count_rows(scores), alpha)
    _checks.check_scalars(alpha=rank, bandwidth=bandwidth)
    return soft_order_statistic(as_float(scores), rank, bandwidth, hard)


@partial(jax.jit, static_argnames="hard")
def soft_order_statistic(
    scores: Array, rank: Array, bandwidth: Number, hard: bool = False
) -> Array:
    """Returns `soft_conformal_quantile` at a rank, of checked arguments."""
    bandwidth = positive(bandwidth, scores.dtype)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    possible = rank <= jnp.sum(scores < jnp.inf)
    # A traced alpha may ask for rank 0; half a count below the first score stands in.
    rank = jnp.clip(rank, 1, scores.size)
    scores = jnp.where(possible, scores, lax.stop_gradient(scores))
    find = _hard_root if hard else _soft_root
    return jnp.where(possible, find(scores, bandwidth, rank), jnp.inf)


@jax.custom_jvp
def _soft_root(scores, bandwidth, rank):
    def falls_short(value):
        steps = jax.nn.sigmoid(at_least_single((value - scores) / bandwidth))
        return jnp.sum(steps) < rank - 0.5

    return bisect_floats(falls_short, scores.dtype)


@_soft_root.defjvp
def _soft_root_jvp(primals, tangents):
    root = _soft_root(*primals)
    kernel, z = _kernel(root, *primals[:2])
    # Implicit differentiation of the root; z d(bandwidth) is its shift by rescaling.
    slopes = jnp.where(kernel > 0, tangents[0] + z * tangents[1], 0)
    return root, jnp.sum(kernel * slopes)


@jax.custom_jvp
def _hard_root(scores, bandwidth, rank):
    del bandwidth  # only the tangent depends on it
    return kth_smallest(scores, rank)


@_hard_root.defjvp
def _hard_root_jvp(primals, tangents):
    root = _hard_root(*primals)
    kernel, _ = _kernel(root, *primals[:2])
    return root, jnp.sum(kernel * jnp.where(kernel > 0, tangents[0], 0))


def _kernel(root, scores, bandwidth):
    """Returns weights that sum to one, largest at `root`, and distances from it."""
    z = (root - scores) / bandwidth
    known = jnp.isfinite(z)
    z = jnp.where(known, z, 0)
    # Some score is near: the root is one, or shares half a count among log(2 n) of z.
    kernel = jnp.where(known, jax.nn.sigmoid(z) * jax.nn.sigmoid(-z), 0)
    total = jnp.sum(at_least_single(kernel)).astype(kernel.dtype)
    return kernel / jnp.where(total > 0, total, 1), z
