"""Coverage given the input, as far as a test set can tell."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._geometry import norm, square_distances
from jaxcp._types import Set
from jaxcp.metrics.average import check_sets, is_covered
from jaxcp.selection import as_float

_KMEANS_STEPS = 25


def conditional_coverage_error(
    key: Array,
    sets: Set,
    y: ArrayLike,
    x: ArrayLike,
    alpha: ArrayLike,
    *,
    num_cells: int = 20,
) -> tuple[Array, Array]:
    """Returns the squared error of coverage in cells of inputs, and its noise floor.

    CEC-X = sum_j (m_j / m) (coverage_j - (1 - alpha))^2 over cells of k-means on x,
    each column on the scale of its standard deviation. Sets that cover each x with
    probability 1 - alpha have an expected CEC-X equal to the noise floor, J alpha
    (1 - alpha) / m with J the cells that have rows; above it, coverage depends on x.

    Args:
      key: Random key of the cells.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,).
      alpha: Miscoverage level of the sets, shape ().
      num_cells: Number of cells.

    Returns:
      (error, noise floor), each of shape (); NaN for no rows.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, or `num_cells` is not a
        positive int.

    References:
      Dheur et al., A Unified Comparative Study with Generalized Conformity Scores for
      Multi-Output Conformal Regression, 2025.

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 100)
      >>> never_right_of_half = Interval(jnp.zeros(100), jnp.where(x < 0.5, 9.0, -1.0))
      >>> error, floor = conditional_coverage_error(
      ...     jax.random.key(0), never_right_of_half, x, x, 0.5, num_cells=2
      ... )
      >>> round(error.item(), 3), round(floor.item(), 3)
      (0.25, 0.005)
    """
    sets, y = check_sets(sets, y)
    x = _inputs(x, y)
    alpha = _checks.as_alpha(alpha)
    _checks.check_scalars(alpha=alpha)
    _checks.check_key(key)
    _checks.check_count("num_cells", num_cells, 1)
    if len(x) == 0:
        return jnp.full((), jnp.nan), jnp.full((), jnp.nan)
    alpha = _checks.alpha_as_float(alpha)
    return _cell_error(key, sets, y, x, alpha, min(num_cells, len(x)))


def worst_slab_coverage(
    key: Array,
    sets: Set,
    y: ArrayLike,
    x: ArrayLike,
    *,
    share: float = 0.1,
    num_directions: int = 500,
) -> Array:
    """Returns the coverage in the worst slab of inputs, on rows it was not found on.

    A slab is {x : a <= v'x <= b} with at least a `share` of the rows. Half of the rows,
    at random, find the slab of least coverage among random directions v; the other half
    tells its coverage. Found and told on the same rows it would be too low.

    Args:
      key: Random key of the halves and the directions.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,); columns are put on one scale.
      share: Least share of rows in a slab, in (0, 1].
      num_directions: Number of directions.

    Returns:
      Coverage in the slab, shape (); NaN if no row of the second half is in it.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, `share` is outside (0, 1],
        or `num_directions` is not a positive int.

    References:
      Cauchois, Gupta, Duchi, Knowing what You Know: valid and validated confidence sets
      in multiclass and multilabel prediction, 2021.

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 200)
      >>> never_right_of_half = Interval(jnp.zeros(200), jnp.where(x < 0.5, 9.0, -1.0))
      >>> worst_slab_coverage(jax.random.key(0), never_right_of_half, x, x).item()
      0.0
    """
    sets, y = check_sets(sets, y)
    x = _inputs(x, y)
    _checks.check_key(key)
    _checks.check_values(lambda s: (s > 0) & (s <= 1), "share in (0, 1]", share)
    share = Fraction(str(share))
    _checks.check_count("num_directions", num_directions, 1)
    num_found = len(x) // 2
    if num_found == 0:
        return jnp.full((), jnp.nan)
    shortest = math.ceil(share * num_found)
    return _worst_slab(key, sets, y, x, num_found, shortest, num_directions)


def _inputs(x, y):
    x = as_float(_checks.as_arrays(x))
    _checks.num_rows(y=y, x=x)
    _checks.check_not_nan("x", x)
    return x.reshape(len(x), math.prod(x.shape[1:]))


@partial(jax.jit, static_argnames="num_cells")
def _cell_error(key, sets, y, x, alpha, num_cells):
    cells = _cells(key, _scaled(x), num_cells)
    members = cells[None] == jnp.arange(num_cells)[:, None]
    counts = jnp.sum(members, axis=1)
    hits = jnp.sum(jnp.where(members, is_covered(sets, y)[None], 0), axis=1)
    rates = hits / jnp.where(counts > 0, counts, 1)
    error = jnp.sum(counts / len(x) * (rates - (1 - alpha)) ** 2)
    floor = jnp.sum(counts > 0) * alpha * (1 - alpha) / len(x)
    return error, floor


def _cells(key, x, num_cells):
    """Returns the cell of each row, by Lloyd's algorithm from random rows."""
    start = jax.random.choice(key, x, (num_cells,), replace=False)

    def nearest(centers):
        return jnp.argmin(square_distances(x, centers), axis=1)

    def step(_, centers):
        members = nearest(centers)[None] == jnp.arange(num_cells)[:, None]
        counts = jnp.sum(members, axis=1)[:, None]
        sums = jnp.matmul(members.astype(x.dtype), x, precision="highest")
        return jnp.where(counts > 0, sums / jnp.where(counts > 0, counts, 1), centers)

    return nearest(lax.fori_loop(0, _KMEANS_STEPS, step, start))


@partial(jax.jit, static_argnames=("num_found", "shortest", "num_directions"))
def _worst_slab(key, sets, y, x, num_found, shortest, num_directions):
    key_order, key_directions = jax.random.split(key)
    hits, x = is_covered(sets, y), _scaled(x)
    order = jax.random.permutation(key_order, len(x))
    found, told = order[:num_found], order[num_found:]
    shape = num_directions, x.shape[1]
    directions = jax.random.normal(key_directions, shape, x.dtype)
    directions /= jax.vmap(norm)(directions)[:, None]

    def search(direction):
        along = jnp.sum(x * direction[None], axis=1)
        places = jnp.argsort(along[found])
        ordered = along[found][places]
        mean, first, last = _worst_run(_shared(hits[found][places], ordered), shortest)
        inside = (along[told] >= ordered[first]) & (along[told] <= ordered[last])
        return mean, jnp.sum(jnp.where(inside, hits[told], 0)) / jnp.sum(inside)

    means, rates = lax.map(search, directions, batch_size=32)
    return rates[jnp.argmin(means)] + 0 * jnp.sum(hits)  # NaN if any is unknown


def _shared(hits, ordered):
    """Returns the mean hit of rows at the same place, which no slab can tell apart."""
    group = jnp.cumsum(jnp.diff(ordered, prepend=ordered[:1]) > 0)
    sums = jnp.zeros_like(hits).at[group].add(hits)
    counts = jnp.zeros_like(hits).at[group].add(1)
    return sums[group] / counts[group]


def _worst_run(hits, shortest):
    """Returns mean, first and last place of the worst run of rows.

    Of runs of `shortest` rows or more it has fewer than twice as many: a longer one
    falls into two, one of which is no better.
    """
    n = len(hits)
    sums = jnp.concatenate([jnp.zeros(1, hits.dtype), jnp.cumsum(hits)])
    first = jnp.arange(n)

    def lengthen(length, best):
        last = first + length - 1
        means = (sums[jnp.minimum(last + 1, n)] - sums[:-1]) / length
        means = jnp.where(last < n, means, jnp.inf)
        at = jnp.argmin(means)
        return jax.tree.map(
            lambda new, old: jnp.where(means[at] < best[0], new, old),
            (means[at], at, last[at]),
            best,
        )

    start = sums[-1] / n, jnp.zeros((), int), jnp.full((), n - 1)
    return lax.fori_loop(shortest, min(2 * shortest, n + 1), lengthen, start)


def _scaled(x):
    scale = jnp.std(x, axis=0, keepdims=True)
    center = jnp.mean(x, axis=0, keepdims=True)
    return (x - center) / jnp.where(scale > 0, scale, 1)
