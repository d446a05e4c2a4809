"""How large sets are: sizes in closed form, volumes that are estimated, and overlap."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _arrays, _checks, _geometry, _tree
from jaxcp._batching import by_rows, map_evenly
from jaxcp._numbers import as_float, at_least_single, counting, kept, mean, quotient
from jaxcp.metrics import _sets
from jaxcp.metrics._sets import Count, metric
from jaxcp.metrics.rates import mean_of
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.typing import ArrayLike, HasEnds, HasShapes, Set
from jaxcp.volumes import volume
from jaxcp.volumes.estimate import finite_ends

_AT_A_TIME = 64  # sets whose volumes are estimated side by side


def sizes(sets: Set | ArrayLike) -> Array:
    """Returns the width, number of labels, or volume of each set.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Sizes, shape (m,), in units of the target (to the power of its dimension), or
      counts of labels; +inf for an infinite set, 0 for an empty one.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.mean_size, metrics.median_size, metrics.mean_volume

    Example:
      >>> from jaxcp.sets import Interval
      >>> sizes(Interval(jnp.zeros(2), jnp.array([1.0, 2.0])))
      Array([1., 2.], dtype=float32)
    """
    return by_rows(_sets.closed_form_sizes, rows=(_sets.as_batch(sets),))


def _of_clusters(sets, *, clusters=None):
    sets = _sets.as_batch(sets)
    return (sets, _sets.check_clusters(clusters, sets=sets)), {}


@metric(_of_clusters)
def mean_size(
    count: Count, sets: Set | ArrayLike, *, clusters: ArrayLike | None = None
) -> Array:
    """Returns the mean width, number of labels, or volume of sets.

    Where rows come in clusters, the mean over clusters of the means within, as
    `coverage` has it.

    Args:
      sets: Sets with leading axis m.
      clusters: Cluster of each row, as for `coverage`, shape (m,). Defaults to none.

    Returns:
      Mean size, shape (), in units of the target (to the power of its dimension); +inf
      if a set is infinite, NaN for no sets.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form; of clusters one sort.

    See also:
      metrics.sizes, metrics.median_size, metrics.mean_volume

    Example:
      >>> from jaxcp.sets import Interval
      >>> mean_size(Interval(jnp.zeros(2), jnp.array([1.0, 2.0])))
      Array(1.5, dtype=float32)
    """
    return mean_of(_sets.closed_form_sizes(sets), clusters, count)


@metric(_sets.of_sets)
def mean_finite_size(count: Count, sets: Set | ArrayLike) -> Array:
    """Returns the mean width, number of labels, or volume of the sets that are finite.

    Say it beside `infinite_rate` alone: sets that say nothing do not make it larger.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Mean size, shape (), in units of the target (to the power of its dimension); NaN
      where no set is finite, or if a size is NaN.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.mean_size, metrics.infinite_rate, metrics.median_size

    Example:
      >>> from jaxcp.sets import Interval
      >>> mean_finite_size(Interval(jnp.zeros(3), jnp.array([1.0, 2.0, jnp.inf])))
      Array(1.5, dtype=float32)
    """
    sizes = as_float(_sets.closed_form_sizes(sets))
    counts = kept(sizes != jnp.inf, count, False)
    total = jnp.sum(jnp.where(counts, at_least_single(sizes), 0))
    return quotient(total, jnp.sum(counts)).astype(sizes.dtype)


@metric(_sets.of_sets)
def median_size(count: Count, sets: Set | ArrayLike) -> Array:
    """Returns the median width, number of labels, or volume of sets.

    The mean of the order statistics of ranks floor((m + 1) / 2) and floor(m / 2) + 1: a
    few infinite sets hardly change it.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Median size, shape (), in units of the target (to the power of its dimension);
      +inf if half of the sets are infinite, NaN for no sets, or if a size is NaN.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form, and two order statistics, without a sort.

    See also:
      metrics.mean_size, metrics.infinite_rate

    Example:
      >>> from jaxcp.sets import Interval
      >>> median_size(Interval(jnp.zeros(3), jnp.array([1.0, 2.0, jnp.inf])))
      Array(2., dtype=float32)
    """
    sizes = as_float(_sets.closed_form_sizes(sets))
    m = len(sizes) if count is None else count
    ranks = jnp.array([(m + 1) // 2, m // 2 + 1])
    middle = kth_smallest(sizes, ranks, where=counting(len(sizes), count))
    return jnp.where(m == 0, jnp.nan, mean_of_middle(sizes, middle))


def mean_of_middle(sizes: Array, middle: Array) -> Array:
    """Returns the median of sizes by the two in the middle, NaN if one is unknown."""
    return jnp.where(jnp.any(jnp.isnan(sizes)), jnp.nan, mean(middle))


@metric(_sets.of_sets)
def infinite_rate(count: Count, sets: Set | ArrayLike) -> Array:
    """Returns the share of sets of infinite size.

    Args:
      sets: Sets with leading axis m.

    Returns:
      Share in [0, 1], shape (); NaN for no sets, or if a size is NaN.

    Raises:
      ValueError: if the sets have no size in closed form.

    Cost:
      O(m) sizes in closed form.

    See also:
      metrics.empty_rate, metrics.median_size

    Example:
      >>> from jaxcp.sets import Interval
      >>> infinite_rate(Interval(jnp.zeros(2), jnp.array([1.0, jnp.inf])))
      Array(0.5, dtype=float32)
    """
    sizes = _sets.closed_form_sizes(sets)
    return mean(_sets.where_known(sizes == jnp.inf, sizes), count)


@_tree.pytree
class MeanVolume:
    """Volumes of many sets and their averages. Made by `mean_volume`.

    Args:
      log_volumes: Log volume of each set, shape (m,).
      errors: Standard error of each log volume, shape (m,).

    See also:
      metrics.mean_volume, volume
    """

    log_volumes: Array
    errors: Array

    @property
    def mean(self) -> Array:
        """Returns the mean volume, shape (); +inf if a set is the whole space."""
        return jnp.mean(jnp.exp(self.log_volumes))

    @property
    def geometric_mean(self) -> Array:
        """Returns the geometric mean, shape (): one large set does not dominate it."""
        whole = jnp.any(self.log_volumes == jnp.inf)
        return jnp.where(whole, jnp.inf, jnp.exp(jnp.mean(self.log_volumes)))

    @property
    def standard_error(self) -> Array:
        """Returns the standard error of the mean volume over sets, shape ()."""
        finite = jnp.all(self.log_volumes < jnp.inf)
        volumes = jnp.exp(jnp.where(finite, self.log_volumes, 0))
        error = jnp.std(volumes) / jnp.sqrt(len(volumes))
        return jnp.where(finite, error, jnp.inf)


def mean_volume(
    key: Array,
    sets: Set | ArrayLike,
    num_samples: int = 1000,
    *,
    sobol: bool = False,
    within: HasEnds | None = None,
) -> MeanVolume:
    """Returns the mean and the geometric mean of the volumes of sets.

    Args:
      key: Random key; set i gets fold_in(key, i).
      sets: Sets with leading axis m, in R^d.
      num_samples: Number of points for each set that has no closed form.
      sobol: Whether these are scrambled Sobol points (see `jaxcp.volume`).
      within: A finite `Box`, or an `Interval` for targets of one number, with ends of
        shape (d,) or (), or with a leading axis m for one each: what lies in it is
        measured, also of sets known by membership alone.

    Returns:
      A `MeanVolume`: `mean`, `geometric_mean`, and `log_volumes` with their `errors`.

    Raises:
      ValueError: as `jaxcp.volume`.

    Cost:
      One `volume` for each of m sets: `num_samples` points where there is no closed
      form.

    See also:
      volume, metrics.mean_size, sets.Balls

    Example:
      >>> from jaxcp.sets import Box
      >>> boxes = Box(jnp.zeros((2, 2)), jnp.array([[1.0, 1.0], [2.0, 2.0]]))
      >>> volumes = mean_volume(jax.random.key(0), boxes)
      >>> round(volumes.mean.item(), 4), round(volumes.geometric_mean.item(), 4)
      (2.5, 2.0)
    """
    sets = _arrays.as_arrays(sets=_sets.as_sets(sets))
    m = _checks.num_rows(sets=sets)
    _checks.check_key(key)
    _checks.check_count("num_samples", num_samples, 1)
    boxes = None if within is None else _boxes(within, m)
    _checks.num_rows(sets=sets, within=boxes)
    return _mean_volume(key, sets, boxes, jnp.arange(m), num_samples, sobol)


def _boxes(within, m):
    """Returns one box for each of m sets."""
    ends = finite_ends(within)
    _checks.check_kind("within as a Box or an Interval", within, HasShapes)
    if ends[0].ndim == len(within.target_shape()):
        ends = tuple(jnp.broadcast_to(v, (m, *v.shape)) for v in ends)
    return within.with_ends(*ends)


@_tree.jit(static_argnames=("num_samples", "sobol"))
def _mean_volume(key, sets, boxes, indices, num_samples, sobol):
    def one(region, box, i):
        key_one = jax.random.fold_in(key, i)
        return volume(key_one, region, num_samples, sobol=sobol, within=box)

    return MeanVolume(*map_evenly(one, sets, boxes, indices, at_a_time=_AT_A_TIME))


def iou(a: ArrayLike, b: ArrayLike) -> Array:
    """Returns the intersection over union of every box of `a` with every one of `b`.

    Areas are those of real numbers: no pixel is added to a side.

    Args:
      a: Boxes (x_min, y_min, x_max, y_max), shape (..., 4).
      b: Boxes, shape (..., 4), e.g. `sets.corners()` of conformal boxes.

    Returns:
      IoU in [0, 1], shape a.shape[:-1] + b.shape[:-1]: (n, m) for n and m boxes, () for
      one and one; `jax.vmap(iou)` for pairs. 0 where both are flat or one is infinite.

    Raises:
      ValueError: if shapes do not end in 4, or a concrete box is NaN or crossed, x_min
        > x_max or y_min > y_max.

    Cost:
      O(n m) time for n and m boxes.

    See also:
      detection.match_boxes, sets.BoundingBox.corners

    Example:
      >>> a = jnp.array([0.0, 0.0, 2.0, 2.0])
      >>> b = jnp.array([[1.0, 0.0, 3.0, 2.0], [2.0, 2.0, 3.0, 3.0]])
      >>> iou(a, b).round(4)
      Array([0.3333, 0.    ], dtype=float32)
    """
    a, b = _arrays.as_array("a", a), _arrays.as_array("b", b)
    _geometry.check_boxes("a", a)
    _geometry.check_boxes("b", b)
    return _iou(a, b)


@jax.jit
def _iou(a, b):
    pairs = jax.vmap(jax.vmap(_geometry.overlap, (None, 0)), (0, None))
    flat = pairs(a.reshape(-1, 4), b.reshape(-1, 4))
    return flat.reshape(*a.shape[:-1], *b.shape[:-1])
