"""A smooth stand-in for the conformal quantile, to train through."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp.ranks import conformal_rank
from jaxcp.selection import (
    as_float,
    at_least_single,
    bisect_keys,
    from_keys,
    to_keys,
)


def soft_conformal_quantile(
    scores: ArrayLike, alpha: ArrayLike, *, bandwidth: ArrayLike
) -> Array:
    """Returns a smooth stand-in for the conformal quantile, for training.

    The root t of sum_i sigmoid((t - S_i) / bandwidth) = k - 1/2 with k the conformal
    rank; its limit for bandwidth -> 0 is `conformal_quantile`. The gradient is the
    kernel-weighted mean of the score gradients.

    Args:
      scores: Nonconformity scores, shape (n,), finite.
      alpha: Miscoverage level, shape ().
      bandwidth: Width of the smoothing > 0, shape (), in units of the score.

    Returns:
      Soft threshold, shape (), dtype of `scores`; +inf where k = n + 1, with a gradient
      of zero.

    Raises:
      ValueError: if `scores` is not of shape (n,), a concrete `bandwidth` is not
        positive, or a number `alpha` is outside (0, 1).

    Guarantee:
      None: recalibrate with `conformal_quantile` on fresh data after training.

    Example:
      >>> soft_conformal_quantile(jnp.arange(1.0, 10.0), 0.2, bandwidth=0.01).round(3)
      Array(8., dtype=float32)
    """
    scores, bandwidth = _checks.as_arrays((scores, bandwidth))
    if scores.ndim != 1:
        raise ValueError(f"expected scores of shape (n,), got {scores.shape}")
    _checks.check_values(lambda h: h > 0, "bandwidth > 0", bandwidth)
    scores = as_float(scores)
    rank = conformal_rank(scores.size, alpha)
    if rank.ndim or bandwidth.ndim:
        shapes = f"{rank.shape} and {bandwidth.shape}"
        raise ValueError(f"expected alpha and bandwidth of shape (), got {shapes}")
    return _soft_quantile(scores, rank, bandwidth.astype(scores.dtype))


@jax.jit
def _soft_quantile(scores, rank, bandwidth):
    possible = rank <= scores.size
    # A traced level may ask for rank 0; half a count below the first score stands in.
    target = jnp.clip(rank, 1, scores.size) - 0.5
    scores = jnp.where(possible, scores, lax.stop_gradient(scores))
    root = _soft_root(scores, bandwidth, target)
    return jnp.where(possible, root, jnp.inf)


@jax.custom_jvp
def _soft_root(scores, bandwidth, target):
    def falls_short(key):
        value = from_keys(key, scores.dtype)
        steps = jax.nn.sigmoid(at_least_single((value - scores) / bandwidth))
        return jnp.sum(steps) < target

    return from_keys(bisect_keys(falls_short, to_keys(scores).dtype), scores.dtype)


@_soft_root.defjvp
def _soft_root_jvp(primals, tangents):
    scores, bandwidth, target = primals
    root = _soft_root(scores, bandwidth, target)
    z = (root - scores) / bandwidth
    z = jnp.where(jnp.isfinite(z), z, 0)
    kernel = jax.nn.softmax(jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z))
    # Implicit differentiation of the root; z d(bandwidth) is its shift by rescaling.
    return root, jnp.sum(kernel * (tangents[0] + z * tangents[1]))
