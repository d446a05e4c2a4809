"""The one kernel: the smallest value at which a monotone mass reaches a target.

Floats are mapped to integers of the same order, and the answer is built from its
highest bit down. No sort, no copy, ties and infinities kept, and the mass can be
anything monotone: a count, a masked count, a sum of weights, a sum over shards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from jaxcp import _checks, _numbers, _tree
from jaxcp._arrays import as_arrays, as_numpy, check_countable
from jaxcp._numbers import as_float, at_least_single, over_shards, rounded_up
from jaxcp._tree import as_function
from jaxcp.quantiles import _keys, _rows
from jaxcp.quantiles._groups import first_keys
from jaxcp.quantiles._keys import bisect_keys, first_float, from_keys, to_keys
from jaxcp.typing import ArrayLike, AxisName, Number

# Bits settled by one histogram of sharded scores: wide, for a sum over processes takes
# as long for 65536 numbers as for one.
_DIGIT = 16


@_checks.by_labels
def kth_smallest(
    x: ArrayLike,
    k: ArrayLike,
    *,
    where: ArrayLike | None = None,
    axis_name: AxisName = None,
    nearest: int = 1,
) -> Array:
    """Returns the k-th smallest value of `x`, exactly.

    min{v : #{i : x_i <= v} >= k}, -inf for k < 1 and +inf for k > n. Batch with
    `jax.vmap`; `k` may be traced, so that one compilation serves every rank.

    Args:
      x: Values, shape (n,): any float or integer type. NaN counts as +inf.
      k: Rank, counted from 1, int of shape () or (a,) for several ranks of one array.
      where: True where an entry counts, shape (n,). Defaults to all.
      axis_name: Mapped axis over which `x` is sharded. The result is the order
        statistic of all shards together, the same on each.
      nearest: The tangent is the mean tangent of this many values nearest to the
        result (1: those equal to it). The value itself does not depend on it.

    Returns:
      Order statistics, the shape of `k`, the dtype of `x` (integers become floats).

    Raises:
      ValueError: if `x` is not of shape (n,) or has integers that jax has no type for,
        `where` has another shape, `k` is not an integer or `nearest` is not positive.

    Cost:
      O(n) time for each rank, and no sort: one count for each of the 32 bits of a
      float, or four rounds of eight bits for more than 32,768 values on a CPU. Up to
      512 values are sorted there, which compiles in half of the time; from 4 ranks of
      one array on (32 if it is long) one sort serves all. One compilation serves every
      rank.

    See also:
      conformal_quantile, weighted_select, empirical_quantile

    Example:
      >>> kth_smallest(jnp.array([3.0, 1.0, 2.0]), 2)
      Array(2., dtype=float32)
    """
    given = x
    x, k, where = as_arrays(x=_as_it_is(x), k=k, where=where)
    _check_exact(x, given)
    _check_vector(x, "where", where, axis_name)
    if not jnp.issubdtype(k.dtype, jnp.integer) or k.ndim > 1:
        kind = f"{k.dtype}{k.shape}"
        raise ValueError(f"expected an integer k of shape () or (a,), got {kind}")
    _checks.check_count("nearest", nearest, 1)
    where = None if where is None else _checks.flags("where", where)
    return _kth_smallest(x, k.astype(int), where, axis_name, nearest)


@_checks.by_labels
def weighted_select(
    x: ArrayLike, weights: ArrayLike, target: Number, *, axis_name: AxisName = None
) -> Array:
    """Returns the smallest value of `x` at which the weight up to it reaches `target`.

    min{v : sum_i w_i 1(x_i <= v) >= target}, -inf for target <= 0 and +inf where all
    the weight together falls short. The tangent is the weighted mean tangent of the
    values equal to the result.

    Args:
      x: Values, shape (n,), floats. NaN counts as +inf.
      weights: Weight of each value, shape (n,). Weights below 0 and NaN count as 0.
      target: Mass to reach, shape (), in units of the weights.
      axis_name: Mapped axis over which `x` and `weights` are sharded.

    Returns:
      The weighted order statistic, shape (), dtype of `x` (integers become floats).

    Raises:
      ValueError: if `x` and `weights` are not of one shape (n,).

    Cost:
      O(n) time and no sort: sums of weights in place of the counts of `kth_smallest`.

    See also:
      weighted_conformal_quantile, kth_smallest

    Example:
      >>> weighted_select(jnp.array([3.0, 1.0, 2.0]), jnp.array([0.2, 0.5, 0.3]), 0.6)
      Array(2., dtype=float32)
    """
    x, weights, target = as_arrays(x=x, weights=weights, target=target)
    x, weights = _numbers.floats_above(x), as_float(weights)
    _check_vector(x, "weights", weights, axis_name)
    _checks.check_scalars(target=target)
    return _weighted_select(x, weights, target, axis_name)


def first_within(
    total: Callable[[Array], Array], budget: Number, dtype: DTypeLike = float
) -> Array:
    """Returns the smallest float at which a falling function is within a budget.

    min{v : total(v) <= budget} over all floats, +inf if there is none that is finite.

    Args:
      total: Function of a number, shape () -> (), of jax.numpy, which nowhere rises. A
        NaN is not within the budget.
      budget: What the function may come to, shape (), in units of `total`.
      dtype: Type of the floats to look among.

    Returns:
      The number, shape (), of type `dtype`; -inf if even total(-inf) is within the
      budget. It has no gradient.

    Raises:
      ValueError: if `budget` is not one number.

    Cost:
      One call of `total` for each of the 32 bits of a float, and no grid. A function is
      compiled once; each new one, such as a lambda, compiles anew.

    See also:
      risk.calibrate_risk, weighted_select, kth_smallest

    Example:
      >>> first_within(lambda v: jnp.sum(jnp.array([3.0, 1.0, 2.0]) > v), 1)
      Array(2., dtype=float32)
    """
    budget = _checks.check_number("budget", budget)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return _first_within(as_function("total", total), budget, dtype)


@_tree.jit(static_argnames="dtype")
def _first_within(total, budget, dtype):
    return first_float(lambda v: total(v) <= budget, dtype)


def _as_it_is(x):
    """Returns integers that jax has a type for in this type, unsigned ones too."""
    if type(x) is not np.ndarray or x.dtype.kind not in "iu":
        return x
    return jnp.asarray(x) if jax.dtypes.canonicalize_dtype(x.dtype) == x.dtype else x


def _check_exact(x, given):
    """Raises ValueError for integers that have become floats."""
    if x is given or not jnp.issubdtype(x.dtype, jnp.floating):
        return
    if (given := as_numpy("x", given)).dtype.kind in "iu":
        dtype, most = jax.dtypes.canonicalize_dtype(int), abs(given.astype(float))
        raise ValueError(
            f"expected integers x that fit {dtype}, got {given[most.argmax()]}; give "
            "x.astype(float), which rounds, or switch double precision on "
            "(JAX_ENABLE_X64=1)"
        )


def _check_vector(x, name, mass, axis_name):
    if x.ndim != 1:
        raise ValueError(f"expected x of shape (n,), got {x.shape}; batch with vmap")
    check_countable(x.size * lax.psum(1, axis_name or ()))
    if mass is not None and mass.shape != x.shape:
        raise ValueError(f"expected {name} of shape {x.shape}, got {mass.shape}")


@jax.jit(static_argnames=("axis_name", "nearest"))
def _kth_smallest(x, k, where, axis_name, nearest):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _select(x, where, k, axis_name, nearest)
    # Integers have no infinite keys, so compare the rank with the count.
    x = x.astype(jnp.int8) if x.dtype == bool else x
    count = x.size if where is None else jnp.sum(where)
    count = over_shards(lax.psum, count, axis_name)
    value = rounded_up(from_keys(_find(x, where, k, axis_name), x.dtype))
    return jnp.where(k < 1, -jnp.inf, jnp.where(k > count, jnp.inf, value))


@jax.jit(static_argnames="axis_name")
def _weighted_select(x, weights, target, axis_name):
    weights = at_least_single(jnp.where(weights > 0, weights, 0))
    return first_reaching(x, weights, jnp.asarray(target, weights.dtype), axis_name)


def first_reaching(
    x: Array, weights: Array, target: Array, axis_name: AxisName = None
) -> Array:
    """Returns `weighted_select` of floats, weights >= 0 and a target of their type."""
    return _select(x, weights, target, axis_name, 1)


@partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _select(x, mass, target, axis_name, nearest):
    del nearest  # only the tangent depends on it
    return from_keys(_find(x, mass, target, axis_name), x.dtype)


@_select.defjvp
def _select_jvp(axis_name, nearest, primals, tangents):
    value = _select(*primals, axis_name, nearest)
    x, mass, _ = primals
    mean = partial(_mean_tangent, x, mass, tangents[0], axis_name, nearest)
    return value, mean(value) if value.ndim == 0 else jax.vmap(mean)(value)


def _mean_tangent(x, mass, dx, axis_name, nearest, value):
    """Returns the mean of `dx` over the `nearest` finite values around `value`."""
    x, value = lax.stop_gradient((x, value))
    counts = jnp.isfinite(x) & jnp.isfinite(value)
    counts = counts if mass is None else counts & (mass > 0)
    distance = jnp.where(counts, jnp.abs(x - value), jnp.inf)
    if nearest == 1:
        # Not 0: XLA may compute x anew and round it otherwise, and no value is equal.
        radius = jnp.min(distance, initial=jnp.inf)
        radius = over_shards(lax.pmin, radius, axis_name)
    else:
        radius = _select(distance, None, jnp.asarray(nearest), axis_name, 1)
    counts &= distance <= radius
    weights = counts if mass is None else jnp.where(counts, mass, 0)
    weights = weights.astype(at_least_single(x).dtype)
    sums = jnp.sum(weights), jnp.sum(weights * jnp.where(counts, dx, 0))
    total, moment = over_shards(lax.psum, sums, axis_name)
    return (moment / jnp.where(total > 0, total, 1)).astype(x.dtype)


def _find(x, mass, target, axis_name):
    """Returns the first key whose mass reaches `target`, the highest if none does."""
    if mass is not None and mass.dtype == bool:
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        largest = jnp.inf if is_float else jnp.iinfo(x.dtype).max
        x, mass = jnp.where(mass, x, jnp.array(largest, x.dtype)), None
    if axis_name is None:
        return _rows.select_keys(x, mass, target.reshape(-1)).reshape(target.shape)
    if mass is not None:
        return _rows.first_key(to_keys(x), mass, target, axis_name)
    keys = to_keys(x)
    width = min(jnp.iinfo(keys.dtype).bits, _DIGIT)
    find = lambda k: first_keys(keys, k[None], 0, width, axis_name)[0]  # noqa: E731
    return find(target) if target.ndim == 0 else jax.vmap(find)(target)


def last_inside(inside, start, side, stop):
    """Returns the last number that is inside, going from `start` towards `stop`.

    `start` counts as inside. `inside` holds from there up to some number before `stop`,
    which lies on the `side` 1 or -1; if it is infinite and all are inside, so is the
    result.
    """
    side = jnp.asarray(side, start.dtype)
    first, end = to_keys(side * start), to_keys(side * stop)

    def holds(key):
        y = side * from_keys(key, start.dtype)
        return (key <= first) | ((key < end) & inside(y))

    found = bisect_keys(holds, first.dtype)
    everything = jnp.isinf(stop) & (found == end - 1)
    return jnp.where(everything, stop, side * from_keys(found, start.dtype))


def moving(end: Array, value: Callable[[Array], Array], level: Array) -> Array:
    """Returns a finite `end` with the slopes of the root of value(end) = level.

    By the implicit function theorem; no slope where the value is flat.
    """
    at = lax.stop_gradient(end)
    try:
        slope = jax.jvp(lambda y: as_float(value(y)), (at,), (jnp.ones_like(at),))[1]
    except ValueError:  # of functions that have no derivative, as jax.pure_callback
        slope = jnp.full_like(at, jnp.nan)
    return _moving(at, level - value(at), lax.stop_gradient(slope))


@jax.custom_jvp
def _moving(end, gap, slope):
    del gap, slope  # only the tangent depends on them
    return end


@_moving.defjvp
def _moving_jvp(primals, tangents):
    end, _, slope = primals
    # d end = (d level - d value) / value'
    steep = slope != 0
    tangent = tangents[1] / jnp.where(steep, slope, 1)
    return end, jnp.where(steep, tangent, 0).astype(end.dtype)


def last_score(f, given, q, like, *, rounds):
    """Returns the largest s with f(s, given) <= q, with the slopes of f(s, given) = q.

    Of the type and shape of `like`, each for itself; f rises. +inf where q is, -inf
    where there is none, NaN of NaN; with room for the rounding of f if it `rounds`.
    """
    fixed, level = lax.stop_gradient((given, q))
    bound = _numbers.with_rounding(level) if rounds else level
    # Not s <= q tau, for instance, which may round to below a score that is inside.
    inside = lambda s: (f(s, fixed) <= bound) | (level == jnp.inf)  # noqa: E731
    last = _keys.bisect_floats(inside, like.dtype, like.shape)
    last = jnp.where(jnp.isnan(level), level, last)
    known = jnp.abs(last) < jnp.finfo(last.dtype).max
    start = jnp.where(known, last, 0)
    return jnp.where(known, moving(start, lambda s: f(s, given), q), last)


Words = tuple[Array, ...]


def ballot(n, rank, mask=None, weights=None, test_weight=None):
    """Returns what each of n rows weighs, and whether sums of that suffice.

    The arguments are those of `threshold_at`: the rows suffice that are at or above the
    threshold iff a test point with the score of the least of them is in the set.
    """
    if weights is None:
        votes = jnp.ones(n, int) if mask is None else mask.astype(int)
        spare = jnp.sum(votes) - rank
        return (votes,), lambda kept: kept > spare  # iff all but these are below k
    # As `weighted_threshold` decides: the sum of those kept exceeds the spare mass.
    known = lax.stop_gradient((weights, as_float(rank), test_weight))
    weights, spare = _rows.spare_mass(*known)
    masses, target = _rows.masses_of(weights), _rows.least_beyond(spare)

    def suffice(leading: Array, following: Array) -> Array:
        return ~masses.are_less(leading, following, target)

    return (masses.leading, masses.following), suffice


def empirical_quantile(values: ArrayLike, level: ArrayLike) -> Array:
    """Returns a quantile of a sample, interpolated between its order statistics.

    With h = (l - 1) level it lies between order statistics floor(h) + 1 and floor(h) +
    2, linearly: type 7 of Hyndman and Fan, the default of numpy. It describes draws of
    a model; a conformal threshold is an order statistic (`conformal_quantile`).

    Args:
      values: Sample, shape (l, ...), quantiles along the first axis. NaN counts as
        +inf.
      level: Level in [0, 1], shape ().

    Returns:
      Quantiles, shape values.shape[1:], dtype of `values` (integers become floats).

    Raises:
      ValueError: if a concrete `level` is outside [0, 1].

    Cost:
      O(l) time for each column: two order statistics, without a sort.

    References:
      Hyndman, Fan, Sample Quantiles in Statistical Packages, The American Statistician,
      1996.

    See also:
      conformal_quantile, kth_smallest, simulation.Quantiles

    Example:
      >>> empirical_quantile(jnp.array([1.0, 2.0, 4.0]), 0.75)
      Array(3., dtype=float32)
    """
    values, level = as_arrays(values=values, level=level)
    if values.ndim == 0 or values.shape[0] == 0:
        raise ValueError(f"expected values of shape (l, ...), got {values.shape}")
    level = _checks.check_number(
        "level", level, lambda v: (v >= 0) & (v <= 1), "in [0, 1]"
    )
    return _empirical_quantile(as_float(values), as_float(level))


@jax.jit
def _empirical_quantile(values, level):
    level = level.astype(at_least_single(values).dtype)
    last = jnp.asarray(values.shape[0] - 1)
    position = jnp.clip(last * level, 0, last)
    below = jnp.floor(position).astype(int)
    share = (position - below).astype(values.dtype)
    ranks = jnp.stack([below + 1, jnp.minimum(below + 2, last + 1)])

    def between(column):
        lower, upper = kth_smallest(column, ranks)
        # Equal ends stay out of the product: inf - inf and 0 * inf are NaN.
        gap = jnp.where((upper > lower) & (share > 0), upper - lower, 0)
        return lower + share * gap

    columns = values.reshape(values.shape[0], -1).T
    return jax.vmap(between)(columns).reshape(values.shape[1:])
