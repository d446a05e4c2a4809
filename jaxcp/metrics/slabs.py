"""Coverage in the worst slab of inputs."""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Real

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import as_array
from jaxcp._batching import map_evenly
from jaxcp._geometry import norm
from jaxcp._tracing import jit
from jaxcp.metrics import _sets
from jaxcp.metrics.conditional import inputs_of, standardized
from jaxcp.typing import ArrayLike, Set


def worst_slab_coverage(
    key: Array,
    sets: Set | ArrayLike,
    y: ArrayLike,
    x: ArrayLike,
    *,
    share: float = 0.1,
    num_directions: int = 500,
    directions: ArrayLike | None = None,
    holdout: bool = True,
) -> Array:
    """Returns the coverage in the worst slab of inputs, on rows it was not found on.

    A slab is {x : a <= v'x <= b} with at least a `share` of the rows. A random half of
    the rows finds the slab of least coverage among random directions v; the other half
    measures its coverage. Measured on the rows that found it, coverage would be too
    low. It is that of the slab found: on average above that of the truly worst one.

    Args:
      key: Random key of the halves and the directions.
      sets: Sets with leading axis m.
      y: Targets, shape (m, ...), or labels.
      x: Inputs, shape (m, p) or (m,); columns are put on one scale.
      share: Least share of rows in a slab, in (0, 1].
      num_directions: Number of directions.
      directions: Directions to search, shape (v, p), in place of random ones; x is then
        taken as it is, not put on one scale.
      holdout: Whether other rows measure than those that find. False is as in older
        work.

    Returns:
      Coverage in the slab, shape (); NaN if no row of the second half is in it.

    Raises:
      ValueError: as `coverage`, if a concrete input is NaN, `share` is outside (0, 1],
        `num_directions` is not a positive int, or directions do not fit x.

    Cost:
      O(m log m) time for each direction, 32 of them at a time.

    References:
      Cauchois, Gupta, Duchi, Knowing What You Know: Valid and Validated Confidence Sets
      in Multiclass and Multilabel Prediction, JMLR, 2021.

    See also:
      metrics.conditional_coverage_error, metrics.group_coverage

    Example:
      >>> from jaxcp.sets import Interval
      >>> x = jnp.linspace(0.0, 1.0, 200)
      >>> never_right_of_half = Interval(jnp.zeros(200), jnp.where(x < 0.5, 9.0, -1.0))
      >>> worst_slab_coverage(jax.random.key(0), never_right_of_half, x, x).item()
      0.0
    """
    sets, y = _sets.check_sets(sets, y)
    x = inputs_of(x, y)
    _checks.check_key(key)
    _checks.check_count("num_directions", num_directions, 1)
    share = _as_fraction(share)
    num_found = len(x) // 2 if holdout else len(x)
    if num_found == 0:
        return jnp.full((), jnp.nan)
    key_order, key_directions = jax.random.split(key)
    if directions is None:
        x = standardized(x)
        directions = _directions(key_directions, x, num_directions)
    directions = _check_directions(directions, x)
    shortest = math.ceil(share * num_found)
    return _worst_slab(key_order, sets, y, x, directions, num_found, shortest, holdout)


def _as_fraction(share: float) -> Fraction:
    _checks.check_kind("share as a number", share, Real)
    _checks.check_values(lambda s: (s > 0) & (s <= 1), "share in (0, 1]", share)
    return Fraction(str(share))


def _check_directions(directions, x):
    directions = as_array("directions", directions).astype(x.dtype)
    shape, p = directions.shape, x.shape[1]
    if shape[1:] != (p,) or not shape[0]:
        raise ValueError(f"expected directions of shape (v, {p}), v >= 1, got {shape}")
    return directions


@jit(static_argnames="num_directions")
def _directions(key, x, num_directions):
    directions = jax.random.normal(key, (num_directions, x.shape[1]), x.dtype)
    return directions / jax.vmap(norm)(directions)[:, None]


@jit(static_argnames=("num_found", "holdout"))
def _worst_slab(key, sets, y, x, directions, num_found, shortest, holdout):
    hits = _sets.is_covered(sets, y)
    order = jax.random.permutation(key, len(x))
    found, told = order[:num_found], order[num_found:] if holdout else order

    def search(direction):
        along = jnp.sum(x * direction[None], axis=1)
        places = jnp.argsort(along[found])
        ordered = along[found][places]
        mean, first, last = _worst_run(hits[found][places], ordered, shortest)
        inside = (along[told] >= ordered[first]) & (along[told] <= ordered[last])
        return mean, jnp.sum(jnp.where(inside, hits[told], 0)) / jnp.sum(inside)

    means, rates = map_evenly(search, directions, at_a_time=32)
    return rates[jnp.argmin(means)] + 0 * jnp.sum(hits)  # NaN if any is unknown


def _worst_run(hits, places, shortest):
    """Returns mean, first and last row of the worst run of at least `shortest` rows.

    Rows at one place are in a run together. A run has a mean below some rate if the sum
    of (rate - hit) over it is positive: the run of the largest sum is found by running
    minima, and its mean is the next rate, until nothing is gained (Dinkelbach).
    """
    n, edge = len(hits), jnp.diff(places) > 0
    starts, ends = jnp.append(True, edge), jnp.append(edge, True)
    sums = jnp.append(0, jnp.cumsum(hits))
    none = jnp.full(n, jnp.inf, sums.dtype)  # no run starts before the first row

    def worst_below(rate):
        gain = rate * jnp.arange(n + 1) - sums
        before = jnp.where(starts, gain[:-1], jnp.inf)
        least = jnp.append(none, lax.cummin(before))
        least = lax.dynamic_slice_in_dim(least, n + 1 - shortest, n)  # of each last row
        last = jnp.argmax(jnp.where(ends, gain[1:] - least, -jnp.inf))
        allowed = jnp.arange(n) <= last + 1 - shortest
        first = jnp.argmin(jnp.where(allowed, before, jnp.inf))
        return (sums[last + 1] - sums[first]) / (last + 1 - first), first, last

    def step(carry):
        _, best = carry
        new = worst_below(best[0])
        better = new[0] < best[0]
        return better, jax.tree.map(lambda a, b: jnp.where(better, a, b), new, best)

    whole = sums[-1] / n, jnp.zeros((), int), jnp.full((), n - 1)
    return lax.while_loop(lambda carry: carry[0], step, (jnp.array(True), whole))[1]
