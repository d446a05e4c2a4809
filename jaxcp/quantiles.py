"""Conformal quantiles and p-values: ranks are integers, thresholds order statistics."""

from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp.selection import (
    as_float,
    bisect_keys,
    from_keys,
    kth_smallest,
    to_keys,
    weighted_select,
)


def conformal_rank(count: ArrayLike, alpha: ArrayLike) -> Array:
    """Returns which order statistic of `count` scores is the conformal threshold.

    k = ceil((n + 1)(1 - alpha)) = n + 1 - floor(alpha (n + 1)), in [0, n + 1].

    A level that is a number (or numpy array, Fraction, Decimal) is read as the decimal
    it prints as and the rank is computed in integers; write 0.1, not `1 - 0.9`, and
    `Fraction(1, 3)` for a third. A jax array is taken with its rounding error, which
    `floor(alpha (n + 1) (1 + 3 eps))` undoes.

    Args:
      count: Number of scores n, int, any shape.
      alpha: Miscoverage level, broadcastable with `count`.

    Returns:
      Rank, counted from 1, int. n + 1 means +inf: too few scores for this level. A jax
      `alpha` >= 1 gives 0 (-inf, the empty set), <= 0 or NaN gives n + 1.

    Raises:
      ValueError: if `count` is negative or not an integer, or a number `alpha` is not
        in (0, 1).

    Example:
      >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1)
      (Array(9, dtype=int32), Array(9, dtype=int32))
    """
    alpha = _checks.as_alpha(alpha)
    count = count if isinstance(count, Array) else np.asarray(count)
    if not jnp.issubdtype(count.dtype, jnp.integer):
        raise ValueError(f"expected an integer count, got {count.dtype}")
    _checks.check_values(lambda n: n >= 0, "count >= 0", count)
    if isinstance(alpha, Array):
        return _guarded_rank(jnp.asarray(count), as_float(alpha))
    if isinstance(count, Array):
        return _integer_rank(count, *_integer_ratio(alpha))
    return jnp.asarray(np.asarray(_exact_rank(count.astype(object), alpha), int))


def conformal_quantile(
    scores: ArrayLike,
    alpha: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    axis_name: str | tuple[str, ...] | None = None,
    nearest: int = 1,
) -> Array:
    """Returns the finite-sample (1 - alpha) quantile of calibration scores.

    The k-th smallest score, k = n + 1 - floor(alpha (n + 1)); +inf when k = n + 1.

    Args:
      scores: Nonconformity scores, shape (n, ...), in units of the score.
      alpha: Miscoverage level, broadcastable with scores.shape[1:]; for scores of shape
        (n,) it may hold several levels, shape (a,).
      mask: True where a row counts, shape (n,). Defaults to all rows.
      axis_name: Mapped axis over which the rows are sharded.
      nearest: Number of scores whose tangents are averaged (see `kth_smallest`).

    Returns:
      Threshold, shape broadcast(scores.shape[1:], alpha.shape), dtype of `scores`
      (integers become floats). NaN scores count as +inf.

    Raises:
      ValueError: if `scores` has no leading axis, the mask another length, or a number
        `alpha` is outside (0, 1).

    Guarantee:
      P(S_{n+1} <= q) >= 1 - alpha if S_1, ..., S_{n+1} are exchangeable.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005.

    Example:
      >>> conformal_quantile(jnp.arange(1.0, 10.0), 0.2)
      Array(8., dtype=float32)
    """
    scores, mask = _checks.as_arrays((scores, mask))
    mask = None if mask is None else mask.astype(bool)
    n = _checks.num_rows(scores=scores, mask=mask)
    count = n if mask is None else jnp.sum(mask)
    count = count if axis_name is None else lax.psum(count, axis_name)
    rank = conformal_rank(count, alpha)
    if scores.ndim > 1:
        shape = jnp.broadcast_shapes(scores.shape[1:], rank.shape)
        pad = (1,) * (len(shape) - scores.ndim + 1)
        scores = scores.reshape(n, *pad, *scores.shape[1:])
        scores, rank = (
            jnp.broadcast_to(scores, (n, *shape)),
            jnp.broadcast_to(rank, shape),
        )
    return _columns(scores, rank, mask, axis_name, nearest)


def weighted_conformal_quantile(
    scores: ArrayLike,
    weights: ArrayLike,
    alpha: ArrayLike,
    *,
    test_weight: ArrayLike = 1.0,
) -> Array:
    """Returns the (1 - alpha) quantile of weighted scores with the test point's atom.

    min{v : sum_{i : S_i > v} w_i + w_{n+1} <= alpha (w_1 + ... + w_{n+1})}: the test
    point's weight lies at +inf. Unit weights give exactly `conformal_quantile`.

    Args:
      scores: Nonconformity scores, shape (n,). NaN counts as +inf.
      weights: Weights >= 0 on any common scale, shape (n,); 0 leaves a score out.
      alpha: Miscoverage level, shape ().
      test_weight: Weight of the test point on the same scale, shape ().

    Returns:
      Threshold, shape (), dtype of `scores`; +inf where the scores below +inf do not
      weigh enough.

    Raises:
      ValueError: if `scores` and `weights` are not of one shape (n,), a concrete weight
        is negative or not finite, or a number `alpha` is outside (0, 1).

    Guarantee:
      1 - alpha if the weights are the likelihood ratio of test to calibration inputs
      (covariate shift); with fixed weights and test weight 1 at least 1 - alpha minus
      the weighted total variation distance from exchangeability (NexCP).

    References:
      Tibshirani et al., Conformal Prediction Under Covariate Shift, 2019.
      Barber et al., Conformal Prediction Beyond Exchangeability, 2023.

    Example:
      >>> weighted_conformal_quantile(jnp.arange(1.0, 5.0), jnp.ones(4), 0.4)
      Array(3., dtype=float32)
    """
    scores, weights, test_weight = _checks.as_arrays((scores, weights, test_weight))
    if scores.ndim != 1 or scores.shape != weights.shape:
        raise ValueError(
            "expected scores and weights of one shape (n,), "
            f"got {scores.shape} and {weights.shape}"
        )
    _checks.check_weights("weights", weights)
    _checks.check_weights("test_weight", test_weight)
    alpha = _checks.alpha_as_float(_checks.as_alpha(alpha))
    if alpha.shape:
        raise ValueError(f"expected alpha of shape (), got {alpha.shape}; use jax.vmap")
    return _weighted(as_float(scores), as_float(weights), alpha, as_float(test_weight))


def grouped_conformal_quantile(
    scores: ArrayLike,
    groups: ArrayLike,
    alpha: ArrayLike,
    *,
    num_groups: int,
    mask: ArrayLike | None = None,
) -> Array:
    """Returns one conformal quantile for each group of scores.

    Args:
      scores: Nonconformity scores, shape (n,). NaN counts as +inf.
      groups: Group of each score in 0, ..., num_groups - 1, int, shape (n,).
      alpha: Miscoverage level, shape () or (num_groups,).
      num_groups: Number of groups g.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      Thresholds, shape (num_groups,), +inf for a group with too few scores.

    Raises:
      ValueError: if lengths differ, a concrete group is out of range, groups are not
        integers, or a number `alpha` is outside (0, 1).

    Guarantee:
      1 - alpha within every group if its scores are exchangeable (Mondrian).

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, 2012.

    Example:
      >>> groups = jnp.array([0, 0, 0, 1])
      >>> grouped_conformal_quantile(jnp.arange(4.0), groups, 0.4, num_groups=2)
      Array([ 2., inf], dtype=float32)
    """
    scores, groups, mask = _checks.as_arrays((scores, groups, mask))
    _checks.num_rows(scores=scores, groups=groups, mask=mask)
    _checks.check_labels("groups", groups, num_groups, mask)
    if scores.ndim != 1:
        raise ValueError(f"expected scores of shape (n,), got {scores.shape}")
    members = groups[None] == jnp.arange(num_groups)[:, None]
    members = members if mask is None else members & mask.astype(bool)[None]
    rank = conformal_rank(jnp.sum(members, axis=1), alpha)
    return _grouped(scores, rank, members)


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
    return _soft_quantile(scores, rank, bandwidth.astype(scores.dtype))


def conformal_p_value(
    scores: ArrayLike,
    score: ArrayLike,
    *,
    u: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
    test_weight: ArrayLike = 1.0,
) -> Array:
    """Returns how exceptional a score is among calibration scores.

    p = (#{S_i > s} + u (1 + #{S_i = s})) / (n + 1); with weights, the counts are masses
    and the 1 is the weight of the test point.

    Args:
      scores: Nonconformity scores, shape (n,). NaN counts as +inf.
      score: Score of the test point, shape (). NaN counts as +inf.
      u: 1 for the conservative p-value, a uniform number in [0, 1] for the smoothed
        one, shape ().
      weights: Weights >= 0 of the calibration scores, shape (n,). Defaults to ones.
      test_weight: Weight of the test point, shape ().

    Returns:
      p-value in [0, 1], shape (), a float.

    Raises:
      ValueError: if `scores` is not of shape (n,), `weights` has another shape, or a
        concrete `u` or weight is out of range.

    Guarantee:
      P(p <= alpha) <= alpha if all n + 1 scores are exchangeable; uniform on [0, 1]
      with a uniform `u`, ties or not.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005.

    Example:
      >>> round(conformal_p_value(jnp.arange(1.0, 10.0), 8.5).item(), 6)
      0.2
    """
    scores, score, u, weights, test_weight = _checks.as_arrays(
        (scores, score, u, weights, test_weight)
    )
    if scores.ndim != 1 or (weights is not None and weights.shape != scores.shape):
        shapes = scores.shape, None if weights is None else weights.shape
        raise ValueError(
            f"expected scores, and weights if any, of shape (n,), got {shapes}"
        )
    _checks.check_values(lambda v: (v >= 0) & (v <= 1), "u in [0, 1]", u)
    if weights is not None:
        _checks.check_weights("weights", weights)
    return _p_value(as_float(scores), as_float(score), u, weights, test_weight)


@partial(np.frompyfunc, nin=2, nout=1)
def _exact_rank(n, alpha):
    return n + 1 - alpha.numerator * (n + 1) // alpha.denominator


def _integer_ratio(alpha):
    """Returns numerators and denominators that give the same ranks, n + 1 < 2^30."""
    exact = [_largest_below(a, 2**30) for a in alpha.ravel()]
    ratio = np.array([(a.numerator, a.denominator) for a in exact], int)
    return ratio.reshape(*alpha.shape, 2)[..., 0], ratio.reshape(*alpha.shape, 2)[
        ..., 1
    ]


def _largest_below(alpha, limit):
    """Returns the largest fraction <= `alpha` with a denominator of at most `limit`."""
    near = alpha.limit_denominator(limit)
    if near <= alpha:
        return near
    # Its left neighbour c/d in the Farey sequence: a d - b c = 1 with the largest d.
    a, b = near.numerator, near.denominator
    inverse = pow(a, -1, b) if b > 1 else 0
    d = limit - (limit - inverse) % b
    return Fraction((a * d - 1) // b, d)


@jax.jit
def _integer_rank(count, numerator, denominator):
    """Returns n + 1 - floor((n + 1) a / b), by long division in 32 bits."""
    total, a, b = jnp.broadcast_arrays(count + 1, numerator, denominator)
    total, a, b = (v.astype(jnp.uint32) for v in (total, a, b))

    def take_bit(i, carry):
        floor, rest = carry
        rest = 2 * rest + ((total >> (31 - i).astype(jnp.uint32)) & 1) * a
        return 2 * floor + rest // b, rest % b

    floor, _ = lax.fori_loop(0, 32, take_bit, (jnp.zeros_like(total),) * 2)
    return (total - floor).astype(int)


@jax.jit
def _guarded_rank(count, alpha):
    alpha = alpha.astype(jnp.promote_types(alpha.dtype, jnp.float32))
    total = (count + 1).astype(alpha.dtype)
    # The representation of alpha and the two products err by at most 1.5 eps.
    floor = jnp.floor(alpha * total * (1 + 3 * jnp.finfo(alpha.dtype).eps))
    floor = jnp.clip(jnp.where(jnp.isnan(floor), 0, floor), 0, total)
    return count + 1 - floor.astype(count.dtype)


@partial(jax.jit, static_argnames=("axis_name", "nearest"))
def _columns(scores, rank, mask, axis_name, nearest):
    def select(column, k):
        return kth_smallest(column, k, where=mask, axis_name=axis_name, nearest=nearest)

    if scores.ndim == 1:
        flat = select(scores, rank.reshape(-1) if rank.ndim else rank)
    else:
        flat = jax.vmap(select, (1, 0))(
            scores.reshape(len(scores), -1), rank.reshape(-1)
        )
    return flat.reshape(rank.shape)


@jax.jit
def _weighted(scores, weights, alpha, test_weight):
    # From above, where the masses compared are small and so are their rounding errors:
    # the smallest v with mass{S > v} <= spare is minus the smallest u with
    # mass{-S <= u} > spare.
    weights = jnp.where(weights > 0, weights, 0)
    dtype = jnp.result_type(weights.dtype, alpha.dtype, jnp.float32)
    weights, alpha = weights.astype(dtype), alpha.astype(dtype)
    test_weight = test_weight.astype(dtype)
    total = jnp.sum(weights) + test_weight
    spare = alpha * total * (1 + 3 * jnp.finfo(dtype).eps) - test_weight
    negated = -jnp.where(jnp.isnan(scores), jnp.inf, scores)
    above = jnp.maximum(jnp.nextafter(spare, jnp.inf), jnp.finfo(dtype).tiny)
    target = lax.stop_gradient(jnp.where(spare < 0, 0, above))
    return -weighted_select(negated, weights, target)


@jax.jit
def _grouped(scores, rank, members):
    select = lambda k, where: kth_smallest(scores, k, where=where)  # noqa: E731
    return jax.vmap(select)(jnp.broadcast_to(rank, len(members)), members)


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
        return jnp.sum(jax.nn.sigmoid((value - scores) / bandwidth)) < target

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


@jax.jit
def _p_value(scores, score, u, weights, test_weight):
    weights = jnp.ones(scores.shape, int) if weights is None else weights
    keys, key = to_keys(scores), to_keys(score.astype(scores.dtype))
    above = jnp.sum(jnp.where(keys > key, weights, 0))
    equal = jnp.sum(jnp.where(keys == key, weights, 0))
    u, test_weight = as_float(u), as_float(test_weight)
    return (above + u * (equal + test_weight)) / (jnp.sum(weights) + test_weight)
