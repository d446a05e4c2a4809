"""The k nearest rows, and what one more row among them changes.

Rows at the same distance share what is left of the k. Let a row have R, the distance
of the k-th nearest of the others. A new row nearer than R is one of its k nearest,
beside the k - 1 nearest of the others; a new row at the distance R shares with those
that are there; any other changes nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._batching import map_blocks
from jaxcp._geometry import UNROLLED
from jaxcp._numbers import at_least_single
from jaxcp._pytree import pytree
from jaxcp.learners._algebra import columns, dot, in_single
from jaxcp.learners.augmenting import Augmented
from jaxcp.quantiles.selection import kth_smallest, weighted_select


@pytree
class Neighborhoods:
    """Rows with the means of their nearest others, and of these and a new row.

    The new row, of target f, makes a mean of level + share * f: the first level and
    share where it is nearer than the radius, the second where it is as near.

    Args:
      x: Inputs, shape (n, p).
      y: Targets around `center`, shape (n, d).
      center: Mean of the targets, shape (d,).
      counts: One for rows that count, zero for others, shape (n,).
      radius: Distance of the k-th nearest other row, squared, shape (n,).
      levels: Nearer, as near, and farther: three arrays of shape (n, d).
      shares: Nearer and as near: two arrays of shape (n,).
      like: Targets of no rows, shape (0, ...).
    """

    x: Array
    y: Array
    center: Array
    counts: Array
    radius: Array
    levels: tuple[Array, Array, Array]
    shares: tuple[Array, Array]
    like: Array


def neighborhoods(x: Array, y: Array, mask: Array | None, k: int) -> Neighborhoods:
    """Returns the neighborhoods of n rows, each among the others."""
    counts = jnp.ones(len(x)) if mask is None else mask
    like = y[:0]
    x, y, counts = in_single(x, columns(y), counts)
    y = jnp.where(counts[:, None] > 0, y, 0)
    total = jnp.sum(counts)
    center = dot(counts, y) / jnp.where(total > 0, total, 1)
    y = y - center[None]

    rows = jnp.arange(len(x))

    def at(distances, row):
        others = jnp.where(rows == row, 0, counts)
        return _one_more(distances, y, others, k)

    def block(x_rows, index):
        return jax.vmap(at)(same_distances(x_rows, x), index)

    radius, levels, shares = map_blocks(block, x, rows, width=len(x))
    return Neighborhoods(x, y, center, counts, radius, levels, shares, like)


def augmented(of: Neighborhoods, x_new: Array, k: int) -> Augmented:
    """Returns the means of rows and test points, each a nearest other of each."""
    x_new = at_least_single(x_new)
    distances = same_distances(x_new, of.x)
    preds = jax.vmap(lambda d: _mean(d, of.y, of.counts, k))(distances)
    inside, on = distances < of.radius[None], distances == of.radius[None]
    nearer, as_near = of.shares
    shares = jnp.where(inside, nearer[None], jnp.where(on, as_near[None], 0))
    near, edge, far = (level[None] for level in of.levels)
    inside, on = inside[..., None], on[..., None]
    levels = jnp.where(inside, near, jnp.where(on, edge, far))
    residuals = of.y[None] - levels - shares[..., None] * preds[:, None]
    # The mean of no neighbors would be an answer.
    unknown = jnp.any(jnp.isnan(x_new), axis=1)[:, None]
    preds = jnp.where(unknown, jnp.nan, preds + of.center[None])
    m, n, shape = *distances.shape, of.like.shape[1:]
    residuals, preds = residuals.reshape(m, n, *shape), preds.reshape(m, *shape)
    ones = jnp.ones(m, preds.dtype)
    return Augmented(preds, ones, residuals, shares, jnp.ones((), preds.dtype))


def within(
    distances: Array, y: Array, weights: Array, k: int
) -> tuple[Array, Array, Array]:
    """Returns the radius of k rows, and counts (2,) and sums (2, d) in and on it."""
    return at_radius(weighted_select(distances, weights, k), distances, y, weights)


def at_radius(
    radius: Array, distances: Array, y: Array, weights: Array
) -> tuple[Array, Array, Array]:
    """Returns a radius, and counts (2,) and sums (2, d) in and on it."""
    parts = jnp.stack([distances < radius, distances == radius])
    parts = jnp.where(parts, weights[None], 0)
    return radius, jnp.sum(parts, axis=1), dot(parts, y)


def mean_of(radius: Array, counts: Array, sums: Array, k: int) -> Array:
    """Returns the mean of k rows: all inside of the radius and a share of those on it.

    With fewer than k rows the radius is infinite and the mean is of all.
    """
    share = (k - counts[0]) / jnp.where(counts[1] > 0, counts[1], 1)
    share = jnp.where(jnp.isfinite(radius), share, 1)
    total = counts[0] + share * counts[1]
    return (sums[0] + share * sums[1]) / jnp.where(total > 0, total, 1)


def same_distances(x: Array, z: Array) -> Array:
    """Returns the squared distances of rows, (m, n), equal ones equal in any program.

    The sum over the columns is written out, in one order.
    """
    x, z = lax.stop_gradient((x, z))  # which only decide who is near
    start = jnp.zeros((len(x), len(z)), jnp.result_type(x, z))

    def add(total, parts):
        for a, b in zip(*parts, strict=True):
            difference = a[:, None] - b[None]
            # The maximum keeps compilers from fusing product and sum.
            total = total + jnp.maximum(difference * difference, 0)
        return total, None

    blocks = [_column_blocks(v) for v in (x, z)]
    if len(blocks[0]) == 1:
        return add(start, [v[0] for v in blocks])[0]
    return lax.scan(add, start, blocks)[0]


def _column_blocks(x):
    """Returns columns (l, c, n), zeros after the last: they add nothing to a sum."""
    num_columns = x.shape[1]
    size = min(UNROLLED, max(num_columns, 1))
    num_blocks = max(-(-num_columns // size), 1)
    filled = jnp.pad(x, ((0, 0), (0, num_blocks * size - num_columns)))
    return filled.T.reshape(num_blocks, size, len(x))


def _mean(distances, y, counts, k):
    """Returns the mean of the k nearest of the rows that count."""
    radius = kth_smallest(distances, k, where=counts > 0)
    return mean_of(*at_radius(radius, distances, y, counts), k)


def _one_more(distances, y, others, k):
    """Returns radius, levels and shares of a row, as `Neighborhoods` has them."""
    some = kth_smallest(distances, jnp.array([k - 1, k]), where=others > 0)
    fewer = at_radius(some[0], distances, y, others)
    count = jnp.minimum(jnp.sum(others), k - 1)
    nearer = 1 / (count + 1)
    near = mean_of(*fewer, k - 1) * (count * nearer)
    radius, counts, sums = at_radius(some[1], distances, y, others)
    far = mean_of(radius, counts, sums, k)
    among = counts + jnp.array([0, 1], counts.dtype)
    edge = mean_of(radius, among, sums, k)
    bounded = (k - counts[0]) / (among[1] * k)
    as_near = jnp.where(jnp.isfinite(radius), bounded, 1 / jnp.sum(among))
    return radius, (near, edge, far), (nearer, as_near)
