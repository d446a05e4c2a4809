"""Conformal quantiles: thresholds that are order statistics."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._counting import count_groups, count_rows, members_of
from jaxcp._numbers import as_float, over_shards
from jaxcp.quantiles._masses import spare_mass
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, conformal_rank, ranks
from jaxcp.quantiles.selection import kth_smallest, weighted_select
from jaxcp.typing import ArrayLike, AxisName


def conformal_quantile(
    scores: ArrayLike,
    alpha: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    axis_name: AxisName = None,
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
      P(S_{n+1} <= q) >= 1 - alpha.

    Assumption:
      S_1, ..., S_{n+1} are exchangeable.

    Cost:
      O(n) time and no sort: one count of the scores for each of the 32 bits of a float,
      or four rounds of eight bits for more than 32,768 scores on a CPU. One compilation
      serves every alpha.

    References:
      Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer, 2005.

    See also:
      calibrate, conformal_rank, weighted_conformal_quantile,
      grouped_conformal_quantile, sharded_conformal_quantile, kth_smallest

    Example:
      >>> conformal_quantile(jnp.arange(1.0, 10.0), 0.2)
      Array(8., dtype=float32)
    """
    scores, mask = _checks.rows(scores=scores, mask=_checks.mask(mask))
    count = over_shards(lax.psum, count_rows(scores, mask), axis_name)
    return thresholds(scores, conformal_rank(count, alpha), mask, axis_name, nearest)


def weighted_conformal_quantile(
    scores: ArrayLike,
    weights: ArrayLike,
    alpha: ArrayLike,
    *,
    test_weight: ArrayLike | None = None,
    axis_name: AxisName = None,
) -> Array:
    """Returns the (1 - alpha) quantile of weighted scores with the test point's atom.

    min{v : sum_{i : S_i > v} w_i + w_{n+1} <= alpha (w_1 + ... + w_{n+1})}: the test
    point's weight lies at +inf. Unit weights give `conformal_quantile` at a traced
    alpha; `conformal_rank` says where that is exact.

    Args:
      scores: Nonconformity scores, shape (n,). NaN counts as +inf.
      weights: Weights >= 0 on any common scale, shape (n,); 0 leaves a score out.
      alpha: Miscoverage level, shape ().
      test_weight: Weight of the test point on the same scale, shape (). Defaults to 1.
      axis_name: Mapped axis over which `scores` and `weights` are sharded.

    Returns:
      Threshold, shape (), dtype of `scores`; +inf where the scores below +inf do not
      weigh enough, or where nothing weighs anything. Its gradient in weights is zero.

    Raises:
      ValueError: if `scores` and `weights` are not of one shape (n,), a concrete weight
        is negative or not finite, or above 1 where `test_weight` is left out, or a
        number `alpha` is outside (0, 1).

    Guarantee:
      1 - alpha with likelihood ratios as weights (covariate shift); with estimated
      ones less by the distance in total variation of the law of inputs that they make.
      With fixed weights, none above the test weight (NexCP): at least 1 - alpha minus
      the weighted total variation distance from exchangeability. That fails for larger
      ones: a single row of weight 9 covers half of exchangeable test points at 0.1.

    Assumption:
      Independent examples, and weights that are the true likelihood ratios of test to
      calibration inputs, or estimated on other data and 1 on average; for NexCP only
      weights that do not depend on the data.

    Cost:
      O(n) time and no sort: as `conformal_quantile`, with sums of weights in place of
      counts.

    References:
      Tibshirani, Barber, Candes, Ramdas, Conformal Prediction Under Covariate Shift,
      NeurIPS, 2019.
      Lei, Candes, Conformal Inference of Counterfactuals and Individual Treatment
      Effects, Journal of the Royal Statistical Society B, 2021.
      Barber, Candes, Ramdas, Tibshirani, Conformal Prediction Beyond Exchangeability,
      Annals of Statistics, 2023.

    See also:
      calibrate, conformal_quantile, online.nexcp_weights, weighted_select

    Example:
      >>> weighted_conformal_quantile(jnp.arange(1.0, 5.0), jnp.ones(4), 0.4)
      Array(3., dtype=float32)
    """
    scores, weights = as_arrays(scores=scores, weights=weights)
    if scores.ndim != 1 or scores.shape != weights.shape:
        raise ValueError(
            "expected scores and weights of one shape (n,), "
            f"got {scores.shape} and {weights.shape}"
        )
    alpha = alpha_as_float(as_alpha(alpha))
    _checks.check_weights("weights", weights)
    _checks.check_test_weights("test_weight", test_weight, weights)
    test_weight = as_arrays(test_weight=1.0 if test_weight is None else test_weight)
    _checks.check_scalars(test_weight=test_weight, alpha=alpha)
    _checks.check_weights("test_weight", test_weight)
    scores, weights = as_float(scores), as_float(weights)
    return weighted_threshold(scores, weights, alpha, as_float(test_weight), axis_name)


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
      1 - alpha within every group (Mondrian).

    Assumption:
      The scores of a group are exchangeable.

    Cost:
      O(g n) time for g groups, without a sort.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

    See also:
      calibrate_groups, conformal_quantile

    Example:
      >>> groups = jnp.array([0, 0, 0, 1])
      >>> grouped_conformal_quantile(jnp.arange(4.0), groups, 0.4, num_groups=2)
      Array([ 2., inf], dtype=float32)
    """
    scores, groups, mask = _checks.rows(
        scores=_checks.required(_checks.vector(scores)),
        groups=_checks.groups(groups, num_groups),
        mask=_checks.mask(mask),
    )
    alpha = as_alpha(alpha)
    if alpha.shape not in ((), (num_groups,)):
        expected = f"() or ({num_groups},), one a group"
        raise ValueError(f"expected alpha of shape {expected}, got {alpha.shape}")
    rank = ranks(count_groups(groups, num_groups, mask), alpha)
    return _grouped(scores, rank, groups, mask)


@partial(jax.jit, static_argnames=("axis_name", "nearest"))
def thresholds(
    scores: Array,
    rank: Array,
    mask: Array | None = None,
    axis_name: AxisName = None,
    nearest: int = 1,
) -> Array:
    """Returns order statistics of the columns of `scores`; `rank` may add axes."""
    select = partial(kth_smallest, where=mask, axis_name=axis_name, nearest=nearest)
    if scores.ndim == 1:
        flat = select(scores, rank.reshape(-1) if rank.ndim else rank)
        return flat.reshape(rank.shape)
    n, *columns = scores.shape
    shape = jnp.broadcast_shapes(tuple(columns), rank.shape)
    pad = (1,) * (len(shape) - len(columns))
    scores = jnp.broadcast_to(scores.reshape(n, *pad, *columns), (n, *shape))
    rank = jnp.broadcast_to(rank, shape)
    return jax.vmap(select)(scores.reshape(n, rank.size).T, rank.ravel()).reshape(shape)


def threshold_at(
    scores: Array,
    rank: Array,
    mask: Array | None,
    weights: Array | None,
    test_weight: Array | None = None,
    axis_name: AxisName = None,
) -> Array:
    """Returns the threshold of scores (n,) or (n, c), shape () or (c,).

    At a rank; with weights at alpha as a float. Several of them give (a,) for scores
    (n,). The test weight defaults to 1.
    """
    if weights is None:
        return thresholds(scores, rank, mask, axis_name)
    weight = as_float(1.0 if test_weight is None else test_weight)
    weights, scores = as_float(weights), as_float(scores)

    def one(column, alpha):
        return weighted_threshold(column, weights, alpha, weight, axis_name)

    if scores.ndim > 1:
        return jax.vmap(one)(scores.T, rank)
    return jax.vmap(partial(one, scores))(rank.reshape(-1)).reshape(rank.shape)


@partial(jax.jit, static_argnames="axis_name")
def weighted_threshold(
    scores: Array,
    weights: Array,
    alpha: Array,
    test_weight: Array,
    axis_name: AxisName = None,
) -> Array:
    """Returns `weighted_conformal_quantile` of checked arguments."""
    # min{v : mass{S > v} <= spare} with spare = alpha (w_1 + ... + w_n+1) - w_n+1.
    # Nothing but the scores has a gradient: the threshold is one of them.
    weights, alpha, test_weight = lax.stop_gradient((weights, alpha, test_weight))
    weights, spare = spare_mass(weights, alpha, test_weight, axis_name)
    return least_below_mass(scores, weights, spare, axis_name)


def least_below_mass(
    scores: Array, weights: Array, spare: Array, axis_name: AxisName = None
) -> Array:
    """Returns min{v : mass{S > v} <= spare}, +inf where nothing may lie above."""
    # From above, where the masses compared are small and so are their rounding errors:
    # that v is minus the smallest u with mass{-S <= u} > spare.
    negated = -jnp.where(jnp.isnan(scores), jnp.inf, scores)
    tiny = jnp.finfo(spare.dtype).tiny
    above = jnp.maximum(jnp.nextafter(spare, jnp.inf), tiny)
    target = jnp.where(spare < 0, 0, above)
    return -weighted_select(negated, weights, target, axis_name=axis_name)


@jax.jit
def _grouped(scores, rank, groups, mask):
    select = lambda k, where: kth_smallest(scores, k, where=where)  # noqa: E731
    return jax.vmap(select)(rank, members_of(groups, len(rank), mask))
