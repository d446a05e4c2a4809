"""Coverage in the worst slab of inputs."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._geometry import norm
from jaxcp._types import Set
from jaxcp.metrics.average import check_sets, is_covered
from jaxcp.metrics.conditional import inputs_of, standardized


def worst_slab_coverage(
    key: Array,
    sets: Set,
    y: ArrayLike,
    x: ArrayLike,
    *,
    share: float = 0.1,
    num_directions: int = 500,
    directions: ArrayLike | None = None,
    holdout: bool = True,
) -> Array:
    """Returns the coverage in the worst slab of inputs, on rows it was not found on.

    A slab is {x : a <= v'x <= b} with at least a `share` of the rows. Half of the rows,
    at random, find the slab of least coverage among random directions v; the other half
    tells its coverage. Found and told on the same rows it is too low.

    Args:
      key: Random key of the halves and the directions.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,); columns are put on one scale.
      share: Least share of rows in a slab, in (0, 1].
      num_directions: Number of directions.
      directions: Directions to search, shape (v, p), in place of random ones; x is then
        taken as it is, not put on one scale.
      holdout: False finds and tells on the same rows, as in older work.

    Returns:
      Coverage in the slab, shape (); NaN if no row of the second half is in it.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, `share` is outside (0, 1],
        `num_directions` is not a positive int, or directions do not fit x.

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
    x = inputs_of(x, y)
    _checks.check_key(key)
    _checks.check_values(lambda s: (s > 0) & (s <= 1), "share in (0, 1]", share)
    share = Fraction(str(share))
    _checks.check_count("num_directions", num_directions, 1)
    num_found = len(x) // 2 if holdout else len(x)
    if num_found == 0:
        return jnp.full((), jnp.nan)
    key_order, key_directions = jax.random.split(key)
    if directions is None:
        x = standardized(x)
        directions = _directions(key_directions, x, num_directions)
    directions = _checks.as_arrays(directions).astype(x.dtype)
    if directions.ndim != 2 or directions.shape[1:] != x.shape[1:]:
        expected = f"(v, {x.shape[1]})"
        raise ValueError(
            f"expected directions of shape {expected}, got {directions.shape}"
        )
    shortest = math.ceil(share * num_found)
    return _worst_slab(key_order, sets, y, x, directions, num_found, shortest, holdout)


@partial(jax.jit, static_argnames="num_directions")
def _directions(key, x, num_directions):
    directions = jax.random.normal(key, (num_directions, x.shape[1]), x.dtype)
    return directions / jax.vmap(norm)(directions)[:, None]


@partial(jax.jit, static_argnames=("num_found", "shortest", "holdout"))
def _worst_slab(key, sets, y, x, directions, num_found, shortest, holdout):
    hits = is_covered(sets, y)
    order = jax.random.permutation(key, len(x))
    found, told = order[:num_found], order[num_found:] if holdout else order

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
