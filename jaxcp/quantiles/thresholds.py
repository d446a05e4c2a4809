"""Thresholds of scores: conformal quantiles, exact, sharded, soft and smoothed."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcp import _arrays, _checks, _numbers
from jaxcp._numbers import as_float, at_least_single, just_below, over_shards, positive
from jaxcp.quantiles import _groups
from jaxcp.quantiles._keys import bisect_floats, common_keys
from jaxcp.quantiles._rows import least_beyond, spare_mass
from jaxcp.quantiles.levels import alpha_as_float, as_alpha, conformal_rank, ranks
from jaxcp.quantiles.selection import first_reaching, kth_smallest
from jaxcp.typing import ArrayLike, AxisName

_FEW_PAIRS = 10**4  # of rows and groups, up to which comparing all takes less time


@_checks.by_labels
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
      or four rounds of eight bits for more than 32,768 scores on a CPU, where up to 512
      are sorted. One compilation serves every alpha.

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
    count = over_shards(lax.psum, _arrays.count_rows(scores, mask), axis_name)
    return thresholds(scores, conformal_rank(count, alpha), mask, axis_name, nearest)


@_checks.by_labels
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
    _checks.check_given(weights=weights)
    scores, weights = _checks.rows(
        scores=_checks.vector(scores), weights=_checks.weights(weights)
    )
    alpha = alpha_as_float(as_alpha(alpha))
    _checks.check_scalars(alpha=alpha)
    own = weight_of_test(test_weight, weights)
    return weighted_threshold(scores, weights, alpha, own, axis_name)


def weight_of_test(test_weight, weights, mask=None):
    """Returns the weight of the test point, 1 by default, as a float, after checks."""
    _checks.check_test_weights("test_weight", test_weight, weights, mask)
    given = 1.0 if test_weight is None else test_weight
    test_weight = _arrays.as_arrays(test_weight=given)
    _checks.check_scalars(test_weight=test_weight)
    _checks.check_weights("test_weight", test_weight)
    return as_float(test_weight)


@_checks.by_labels
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
      O(n + g) time and memory for g groups, without a sort: four rounds, each of which
      counts 256 digits in every group.

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
        scores=_checks.vector(scores),
        groups=_checks.groups(groups, num_groups),
        mask=_checks.mask(mask),
    )
    alpha = as_alpha(alpha)
    if alpha.ndim:
        _checks.check_shape("alpha", (num_groups,), alpha.shape)
    rank = ranks(_arrays.count_groups(groups, num_groups, mask), alpha)
    return group_thresholds(scores, rank, groups, mask)


@jax.jit(static_argnames=("axis_name", "nearest"))
def thresholds(scores, rank, mask=None, axis_name=None, nearest=1):
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


def threshold_at(scores, rank, mask, weights, test_weight=None, axis_name=None):
    """Returns the threshold of scores (n,) or (n, c), shape () or (c,).

    At a rank; with weights, or bounds (low, high) of them, at alpha as a float. Several
    of them give (a,) for scores (n,). The test weight defaults to 1.
    """
    if weights is None:
        return thresholds(scores, rank, mask, axis_name)

    def one(column, alpha):
        return weighted_threshold(column, weights, alpha, test_weight, axis_name)

    if scores.ndim > 1:
        return jax.vmap(one)(scores.T, rank)
    return jax.vmap(partial(one, scores))(rank.reshape(-1)).reshape(rank.shape)


@jax.jit(static_argnames="axis_name")
def weighted_threshold(scores, weights, alpha, test_weight, axis_name=None):
    """Returns `weighted_conformal_quantile` of checked arguments."""
    # min{v : mass{S > v} <= spare} with spare = alpha (w_1 + ... + w_n+1) - w_n+1.
    # Nothing but the scores has a gradient: the threshold is one of them.
    weights, alpha, test_weight = lax.stop_gradient((weights, alpha, test_weight))
    weights, spare = spare_mass(weights, alpha, test_weight, axis_name)
    return least_below_mass(scores, weights, spare, axis_name)


def least_below_mass(scores, weights, spare, axis_name=None):
    """Returns min{v : mass{S > v} <= spare}, +inf where nothing may lie above."""
    # From above, where the masses compared are small and so are their rounding errors:
    # that v is minus the smallest u with mass{-S <= u} > spare.
    scores = _numbers.floats_above(scores)
    negated = -jnp.where(jnp.isnan(scores), jnp.inf, scores)
    return -first_reaching(negated, weights, least_beyond(spare), axis_name)


@jax.jit
def group_thresholds(scores, rank, groups, mask=None):
    """Returns `thresholds` of the rows of each group, at ranks with leading axis g."""
    (n, *columns), g = scores.shape, len(rank)
    codes = _arrays.group_codes(groups, g, mask)
    if g <= _arrays.FEW_GROUPS or (isinstance(n, int) and n * g <= _FEW_PAIRS):
        select = lambda group, k: thresholds(scores, k, codes == group)  # noqa: E731
        return jax.vmap(select)(jnp.arange(g), rank)
    # Each component of a group is a group of its own.
    c = math.prod(columns)
    codes = jnp.add.outer(c * codes, jnp.arange(c)).ravel()
    rank = jnp.broadcast_to(rank.reshape(g, -1), (g, c)).ravel()
    return _groups.kth_of_groups(scores.ravel(), rank, codes).reshape(g, *columns)


def sharded_conformal_quantile(
    scores: ArrayLike,
    alpha: ArrayLike,
    mesh: Mesh,
    *,
    mask: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    test_weight: ArrayLike | None = None,
) -> Array:
    """Returns the conformal quantile of scores spread over the devices of a mesh.

    It is that of all scores together, to the last bit: the k-th smallest, k = n + 1 -
    floor(alpha (n + 1)). Rows are padded to equal shards and stay where they are.

    Args:
      scores: Nonconformity scores, shape (n, ...): an array on the host (the same in
        each process of a program), or a jax array, which may be spread over processes.
      alpha: Miscoverage level, broadcastable with scores.shape[1:]; for scores of shape
        (n,) it may hold several levels, shape (a,).
      mesh: Devices, from `jax.make_mesh`; rows are spread along all of its axes.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      weights: Weights >= 0, shape (n,), for scores of shape (n,).
      test_weight: Weight of the test point, shape (), if there are weights.
        Defaults to 1.

    Returns:
      Threshold, shape broadcast(scores.shape[1:], alpha.shape), dtype of `scores`, the
      same on every device. NaN scores count as +inf.

    Raises:
      ValueError: if lengths differ, `mesh` is no mesh, a concrete weight is negative,
        or above 1 where `test_weight` is left out, or a number `alpha` is outside
        (0, 1).

    Guarantee:
      That of `conformal_quantile`, with weights that of `weighted_conformal_quantile`.

    Assumption:
      Those of `conformal_quantile` and `weighted_conformal_quantile`.

    Cost:
      O(n / devices) time on each device. A threshold of 32 bits takes two sums of
      65,536 counts over the devices; scores stay where they are.

    See also:
      conformal_quantile, weighted_conformal_quantile, distributed.initialize

    Example:
      >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",))
      >>> sharded_conformal_quantile(jnp.arange(1.0, 10.0), 0.2, mesh)
      Array(8., dtype=float32)
    """
    _checks.check_kind("mesh from jax.make_mesh", mesh, Mesh)
    mesh = Mesh(mesh.devices, mesh.axis_names)  # with Auto axes, whatever it had
    _checks.check_given(scores=scores)
    columns = {"scores": scores, "mask": mask, "weights": weights}
    scores, mask, weights = (_as_rows(*item) for item in columns.items())
    n = _checks.num_rows(scores=scores, mask=mask, weights=weights)
    _checks.check_vectors(mask=mask, weights=weights)
    if mask is not None:
        _checks.check_flags("mask as flags or 0 and 1", mask)
        mask = mask.astype(bool)
    if weights is not None:
        _checks.check_vectors(scores=scores)
        _checks.check_weights("weights", weights, mask)
    own = weight_of_test(test_weight, weights, mask)
    if weights is None:
        count = n if mask is None else _arrays.count_true(mask)
        scores, mask = _spread((scores, mask), n, mesh)
        return _sharded(mesh, scores, conformal_rank(count, alpha), mask)
    alpha = alpha_as_float(as_alpha(alpha))
    weights = weights if mask is None else jnp.where(mask, weights, 0)
    scores, weights = _spread((scores, weights), n, mesh)
    return _sharded(mesh, scores, alpha, None, weights, own)


def _as_rows(name, x):
    """Returns rows where they are: those of the host are not copied to a device."""
    is_there = x is None or isinstance(x, Array)
    return x if is_there else _arrays.narrowed(_arrays.as_numpy(name, x))


def _spread(columns, n, mesh):
    """Returns columns padded to equal shards, on their devices; masks hide the pad."""
    pad = -n % mesh.size
    scores, mass = columns
    if pad and mass is None:
        mass = np.ones(n, bool)
    rows = NamedSharding(mesh, P(mesh.axis_names))

    def place(x):
        if not _arrays.is_concrete(x):  # also rows that are spread over processes
            return _padded(x, pad, rows)
        if isinstance(x, np.ndarray):  # in the type that devices will give it
            x = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
        widths = ((0, pad),) + ((0, 0),) * (x.ndim - 1)
        x = (jnp if isinstance(x, Array) else np).pad(x, widths) if pad else x
        return jax.device_put(x, rows)

    return place(scores), None if mass is None else place(mass)


@jax.jit(static_argnames=("pad", "rows"))
def _padded(x, pad, rows):
    padded = jnp.pad(x, ((0, pad),) + ((0, 0),) * (x.ndim - 1))
    return lax.with_sharding_constraint(padded, rows)


@jax.jit(static_argnames="mesh")
def _sharded(mesh, scores, rank, mask, weights=None, test_weight=None):
    rows = P(mesh.axis_names)
    of_shard = partial(threshold_at, axis_name=mesh.axis_names)
    specs = rows, P(), rows, rows, P()
    of_all = jax.shard_map(of_shard, mesh=mesh, in_specs=specs, out_specs=P())
    return of_all(scores, rank, mask, weights, test_weight)


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
    scores, bandwidth = _arrays.as_arrays(scores=scores, bandwidth=bandwidth)
    _checks.check_vectors(scores=scores)
    _checks.check_values(lambda h: h > 0, "bandwidth > 0", bandwidth)
    rank = conformal_rank(_arrays.count_rows(scores), alpha)
    _checks.check_scalars(alpha=rank, bandwidth=bandwidth)
    return soft_order_statistic(as_float(scores), rank, bandwidth, hard)


@jax.jit(static_argnames="hard")
def soft_order_statistic(scores, rank, bandwidth, hard=False):
    """Returns `soft_conformal_quantile` at a rank, of checked arguments."""
    bandwidth = positive(bandwidth, scores.dtype)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    possible = rank <= jnp.sum(scores < jnp.inf)
    # A traced alpha may ask for rank 0; half a count below the first score stands in.
    rank = jnp.clip(rank, 1, scores.size)
    scores = jnp.where(possible, scores, lax.stop_gradient(scores))
    return jnp.where(possible, _root(scores, bandwidth, rank, hard), jnp.inf)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _root(scores, bandwidth, rank, hard):
    if hard:  # only the tangent depends on the bandwidth
        return kth_smallest(scores, rank)

    def falls_short(value):
        steps = jax.nn.sigmoid(at_least_single((value - scores) / bandwidth))
        return jnp.sum(steps) < rank - 0.5

    return bisect_floats(falls_short, scores.dtype)


@_root.defjvp
def _root_jvp(hard, primals, tangents):
    scores, bandwidth, _ = primals
    root = _root(*primals, hard)
    # Weights that sum to one, largest at the root, and distances from it.
    z = (root - scores) / bandwidth
    known = jnp.isfinite(z)
    z = jnp.where(known, z, 0)
    # Some score is near: the root is one, or shares half a count among log(2 n) of z.
    kernel = jnp.where(known, jax.nn.sigmoid(z) * jax.nn.sigmoid(-z), 0)
    total = jnp.sum(at_least_single(kernel)).astype(kernel.dtype)
    kernel = kernel / jnp.where(total > 0, total, 1)
    # Implicit differentiation of the root; z d(bandwidth) is its shift by rescaling.
    slopes = tangents[0] if hard else tangents[0] + z * tangents[1]
    return root, jnp.sum(kernel * jnp.where(kernel > 0, slopes, 0))


def smoothed_threshold(
    scores, rank, alpha, u, mask=None, weights=None, test_weight=None
):
    """Returns the largest s whose smoothed p-value exceeds alpha, shape of `rank`.

    p(s, u) = (mass{S_i > s} + u (mass{S_i = s} + w)) / (mass{all} + w) nowhere rises
    with s, so that the set is {s <= q}, q the largest float in it. Let t be the least v
    with mass{S > v} <= spare = alpha (mass{all} + w) - u w: all below t is in, and
    nothing above it; t itself is in iff (1 - u) mass{S = t} < mass{S >= t} - spare.
    Else q is the next float below.

    Of scores (n,), or (n, c) at ranks (c,). +inf where everything is in, -inf where at
    most scores of -inf are. Without weights `rank` is the conformal rank at alpha; with
    them only its shape counts. At u = 1 it is `threshold_at`.
    """
    # Nothing but the scores has a gradient: the bound is one of them, or next to it.
    scores, given = _numbers.floats_above(scores), (alpha, u, weights, test_weight)
    alpha, u, weights, test_weight = lax.stop_gradient(given)
    if weights is None:
        one = partial(_of_counts, u=u, mask=mask)
    else:
        one = partial(_of_masses, u=u, weights=weights, test_weight=test_weight)
    alpha = jnp.broadcast_to(alpha, rank.shape)
    if not rank.ndim:
        return one(scores, rank, alpha)
    return jax.vmap(one, (None if scores.ndim == 1 else 1, 0, 0))(scores, rank, alpha)


def _of_counts(scores, rank, alpha, u, mask):
    n = scores.shape[0] if mask is None else _arrays.count_true(mask)
    floor, dtype = n + 1 - rank, jnp.promote_types(alpha.dtype, u.dtype)
    rest = alpha.astype(dtype) * (n + 1) - floor.astype(dtype)
    rest = jnp.clip(rest, 0, 1 - jnp.finfo(dtype).epsneg)
    # #{S > v} <= floor + rest - u for an integer: one of two ranks, and their passes
    # over the scores serve every u.
    both = thresholds(scores, jnp.stack([rank, rank - 1]), mask)
    counts = jnp.ones(scores.shape, int) if mask is None else mask.astype(int)
    above, equal = jax.vmap(masses_at, (0, None, None))(both, scores, counts)
    excess = (above + equal - floor).astype(dtype) + (u - rest)
    return _in_or_below(both, equal, excess, u)[(u <= rest).astype(int)]


def _of_masses(scores, rank, alpha, u, weights, test_weight):
    del rank
    weights, spare = spare_mass(weights, alpha, test_weight, u=u)
    first = least_below_mass(scores, weights, spare)
    above, equal = masses_at(first, scores, weights)
    return _in_or_below(first, equal, above + equal - spare, u)


def masses_at(value, scores, masses):
    """Returns the mass of the scores above a value, and that of those equal to it."""
    keys, key = common_keys(scores, value)
    return tuple(jnp.sum(jnp.where(v, masses, 0)) for v in (keys > key, keys == key))


def _in_or_below(first, equal, excess, u):
    """Returns t if it is in, and else the next float below."""
    # There is an excess, for t is the least; rounding may not say otherwise.
    excess = jnp.maximum(excess, jnp.finfo(excess.dtype).tiny)
    is_out = (1 - u) * equal >= excess  # of NaN it is in
    return jnp.where(is_out, just_below(first), first)
