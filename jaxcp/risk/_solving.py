"""The least threshold at which losses are within their budget, and its gradient."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp._batching import map_evenly, widened
from jaxcp._numbers import as_float, at_least_single, over_shards, varying_like
from jaxcp.quantiles._bytes import is_local
from jaxcp.quantiles._keys import bisect_keys, first_float, from_keys, to_keys
from jaxcp.risk._rows import Rows
from jaxcp.typing import AxisName, HasSteps

_ROUNDINGS = 8  # of a sum, in eps of the largest one: budgets are often met exactly
_BLOCK = 2**16  # numbers of calibrations, with their flags, that stay in a cache


def threshold_of(
    rows: Rows, rank: Array, test_weight: Array | None, axis_name: AxisName
) -> Array:
    """Returns the threshold of one loss, for the budget or level that is its rank."""
    rows = rows.with_suprema()
    if not rows.weighted:
        if not jnp.issubdtype(rank.dtype, jnp.floating):
            return least_threshold(rows, rank, axis_name)
        ones = jnp.ones(len(jax.tree.leaves(rows.preds)[0]), rows.sum_dtype())
        most = (rows.sums(ones, axis_name) + 1) * rows.bound
        return least_threshold(rows, _with_slack(rank, most), axis_name)
    weights = at_least_single(as_float(jnp.asarray(rows.mass)))
    largest = over_shards(lax.pmax, jnp.max(weights, initial=0), axis_name)
    scale = -jnp.frexp(largest)[1]  # sums neither overflow nor vanish
    rows = dataclasses.replace(rows, mass=jnp.ldexp(weights, scale))
    weight = jnp.asarray(1.0 if test_weight is None else test_weight, weights.dtype)
    weight = jnp.ldexp(weight, scale)
    total = rows.sums(jnp.ones_like(weights), axis_name) + weight
    # sum_i w_i L_i + w B <= alpha (sum_i w_i + w)
    exact = 1 + 3 * jnp.finfo(total.dtype).eps  # undoes the rounding of alpha
    spare = rank.astype(total.dtype) * exact * total - weight
    budget = jnp.where((total > 0) & (spare >= 0), rows.bound * spare, -jnp.inf)
    budget = _with_slack(budget, rows.bound * total)
    return least_threshold(rows, lax.stop_gradient(budget), axis_name)


def _with_slack(budget, most):
    """Returns a budget with room for the rounding of sums of at most `most`."""
    return budget.astype(most.dtype) + _ROUNDINGS * jnp.finfo(most.dtype).eps * most


def least_threshold(rows: Rows, budget: Array, axis_name: AxisName = None) -> Array:
    """Returns min{q : sum_i L_i(q) <= budget}, shape () or (g,); +inf if there is none.

    The gradient is that of the scores at which losses fall there, or of the root.
    """
    # Rules are made anew, for jax may know how a function was with the same loss.
    find = lambda rows, budget: _find(rows, budget, axis_name)  # noqa: E731
    if axis_name is None:
        find = custom_vmap(find)
        find.def_vmap(_find_of_many)
    threshold = jax.custom_jvp(lambda rows, budget: find(rows, budget))
    threshold.defjvp(partial(_least_threshold_jvp, axis_name))
    return threshold(rows, budget)


def _find(rows, budget, axis_name=None):
    budget = jnp.broadcast_to(budget, rows.shape)
    if rows.grid is None:
        fits = lambda q: rows.total(q, axis_name) <= budget  # noqa: E731
        return first_float(fits, rows.dtype(), rows.shape)
    find = _first_of_grid if rows.monotone else _first_of_suprema
    index = find(rows, budget, axis_name)
    last = len(rows.grid) - 1
    return jnp.where(index > last, jnp.inf, rows.grid[jnp.minimum(index, last)])


def _find_of_many(size, batched, rows, budget):
    """Goes through calibrations in blocks that stay in a cache for all bits."""
    leaves, structure = jax.tree.flatten((rows, budget))
    flags = jax.tree.leaves(batched)
    mapped = [v for v, flag in zip(leaves, flags, strict=True) if flag]

    def find(*mapped):
        own = iter(mapped)
        pairs = zip(leaves, flags, strict=True)
        each = [next(own) if flag else v for v, flag in pairs]
        return _find(*jax.tree.unflatten(structure, each))

    numbers = sum(v.size for v in mapped) // max(size, 1)
    if not (is_local() and isinstance(size, int) and size * numbers > _BLOCK):
        return jax.vmap(find)(*mapped), True
    at_a_time = max(_BLOCK // numbers, 1)
    in_blocks = lambda *v: map_evenly(find, *v, at_a_time=at_a_time)  # noqa: E731
    found = lax.platform_dependent(*mapped, cpu=in_blocks, default=jax.vmap(find))
    return found, True


def _first_of_grid(rows, budget, axis_name):
    """Returns how many thresholds of the grid are before the first that fits."""
    size = len(rows.grid)

    def exceeds(count):
        q = rows.grid[jnp.clip(count - 1, 0, size - 1)]
        return (count <= size) & ~(rows.total(q, axis_name) <= budget)

    return bisect_keys(exceeds, int, bits=size.bit_length(), shape=rows.shape)


def _first_of_suprema(rows, budget, axis_name):
    """Returns the same for the largest loss at this and all later thresholds."""

    def add(highest, q):
        highest = jnp.maximum(highest, rows.losses(q))
        return highest, rows.sums(highest, axis_name) <= budget

    last = rows.losses(rows.grid[-1])
    _, fits = lax.scan(add, varying_like(last, last), rows.grid, reverse=True)
    return jnp.sum(~fits, axis=0)


def _least_threshold_jvp(axis_name, primals, tangents):
    rows, budget = primals
    q = least_threshold(rows, budget, axis_name)
    if rows.grid is not None:
        return q, jnp.zeros_like(q)
    stays = ~jnp.isfinite(q)
    at = jnp.where(stays, 0, q)
    moved = _tangent_of_jumps(rows, tangents[0], at, axis_name)
    if jnp.issubdtype(budget.dtype, jnp.floating):
        root, smooth = _tangent_of_root(rows, tangents, at, axis_name)
        moved = jnp.where(smooth, root, moved)
    return q, jnp.where(stays, 0, moved).astype(q.dtype)


def _tangent_of_jumps(rows, moves, q, axis_name):
    """Returns the mean tangent of the scores at which losses fall, weighted by falls.

    d q = sum_i (L_i(q-) - L_i(q)) d s_i / sum_i (L_i(q-) - L_i(q)).
    """
    q = rows.of_rows(q)
    before = from_keys(to_keys(q) - 1, q.dtype)
    falls = (as_float(v.losses(p)) for v, p in ((rows, before), (rows, q)))
    falls = jnp.maximum(next(falls) - next(falls), 0)
    try:
        scores, moves = jax.jvp(_own_scores, (rows,), (moves,))
    except (TypeError, ValueError):  # targets are not what the score is of
        return jnp.zeros(rows.shape, q.dtype)
    distance = jnp.abs(scores - jnp.reshape(q, (-1, 1)))
    distance = jnp.where(jnp.isfinite(scores), distance, jnp.inf)
    # Not 0: XLA may compute scores anew and round them otherwise.
    nearest = distance <= jnp.min(distance, axis=1, initial=jnp.inf, keepdims=True)
    nearest &= jnp.isfinite(distance)
    count = jnp.maximum(jnp.sum(nearest, axis=1), 1)
    moved = jnp.sum(jnp.where(nearest, moves, 0), axis=1) / count
    fall = rows.sums(falls, axis_name)
    moved = rows.sums(falls * moved, axis_name)
    return moved / jnp.where(fall > 0, fall, 1)


def _own_scores(rows):
    """Returns the scores of each row at which its set may change, shape (n, k)."""
    if issubclass(type(rows.score), HasSteps):
        return as_float(rows.steps())
    scores = jax.vmap(rows.score)(*widened((rows.preds, rows.y)))
    return as_float(scores.reshape(len(scores), -1))


def _tangent_of_root(rows, tangents, q, axis_name):
    """Returns d q = (d budget - d sum_i L_i) / (sum_i L_i)', and where that is so."""
    try:
        one = (jnp.ones_like(q),)
        slope = jax.jvp(lambda q: rows.total(q, axis_name), (q,), one)[1]
        total = lambda rows: rows.total(q, axis_name)  # noqa: E731
        moved = jax.jvp(total, (rows,), tangents[:1])[1]
    except ValueError:  # of functions that have no derivative, as jax.pure_callback
        return jnp.zeros_like(q), jnp.zeros(q.shape, bool)
    smooth = (slope < 0) & jnp.isfinite(slope)
    return (tangents[1] - moved) / jnp.where(smooth, slope, 1), smooth
