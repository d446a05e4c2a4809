"""The least threshold at which the losses of rows keep to what they may sum to."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import custom_vmap

from jaxcp._batching import map_evenly, widened
from jaxcp._numbers import (
    as_float,
    at_least_single,
    exponent_of,
    over_shards,
    times_power,
    varying_like,
)
from jaxcp._tree import Untraceable, pytree, static
from jaxcp.held.rows import Held, len_of
from jaxcp.quantiles import levels
from jaxcp.quantiles._keys import bisect_keys, first_float, from_keys, is_local, to_keys
from jaxcp.risk.bounds import one_each
from jaxcp.typing import AxisName, HasSteps, PyTree, Score


@pytree
class Rows:
    """One loss of the rows of a calibration, as a function of the threshold.

    Args:
      score: The score, whose sets the loss is of.
      loss: Function of a set and a target of one example, () in [0, bound].
      held: The rows: predictions and targets.
      grid: Thresholds in increasing order, shape (t,), or None for all floats.
      highest: Losses at the steps of each row, shape (n, k), for the running supremum.
      tail: What the loss is to stay within; then it counts how often it does not.
      bound: What the loss is at most.
      monotone: Whether the loss nowhere rises with the threshold.
    """

    score: Score
    loss: Any
    held: Held
    grid: Array | None
    highest: Array | None = None
    tail: Any = None
    bound: float = static(default=1.0)
    monotone: bool = static(default=True)

    def dtype(self) -> Any:
        """Returns the type of the thresholds, at least single precision."""
        if issubclass(type(self.score), HasSteps):
            steps = jax.eval_shape(lambda: as_float(self.steps()))
            return jnp.promote_types(steps.dtype, jnp.float32)
        leaves = jax.tree.leaves((self.score, self.held.values[0]))
        kinds = [v.dtype for v in leaves if jnp.issubdtype(v.dtype, jnp.floating)]
        default = jax.dtypes.canonicalize_dtype(float)
        return jnp.result_type(*kinds, jnp.float32) if kinds else default

    def sum_dtype(self) -> Any:
        """Returns the type of sums of losses: integers of those that are counted."""
        q = jnp.zeros(self.held.shape, self.dtype())
        return jax.eval_shape(self.total, q).dtype

    def losses(self, q: Array) -> Array:
        """Returns the loss of each row at one threshold, or at one each, shape (n,)."""
        losses = self._raw(q)
        if self.highest is None:
            return losses
        later = self.steps() > jnp.reshape(q, (-1, 1))
        lowest = jnp.zeros((), self.highest.dtype)
        later = jnp.where(later, self.highest, lowest)
        return jnp.maximum(losses, jnp.max(later, axis=1, initial=lowest))

    def steps(self) -> Array:
        """Returns where the set of each row changes, shape (n, k)."""
        score = cast(HasSteps, self.score)
        steps = jax.vmap(score.steps)(widened(self.held.values[0]))
        return steps.reshape(len(steps), math.prod(steps.shape[1:]))

    def of_rows(self, q: Array) -> Array:
        """Returns the threshold of the group of each row, or the one of all."""
        if self.held.groups is None:
            return q
        return q[jnp.clip(self.held.groups.astype(int), 0, len(q) - 1)]

    def total(self, q: Array, axis_name: AxisName = None) -> Array:
        """Returns the sum of losses at thresholds () or (g,), of the same shape."""
        return self.held.sums(self.losses(self.of_rows(q)), axis_name)

    def with_suprema(self) -> Rows:
        """Returns the loss as its supremum over larger thresholds, also on a grid."""
        if self.monotone or self.grid is not None:
            return self
        columns = lax.map(self._raw, self.steps().T)
        return dataclasses.replace(self, highest=columns.T)

    def own_losses(self, q: Array) -> Array:
        """Returns the loss of each row as the function gives it, shape (n,)."""
        axes = 0 if jnp.ndim(q) else None

        def of(pred: PyTree, y: PyTree, q: Array) -> Array:
            return one_number(self.loss(self.score.invert(pred, q), y))

        preds, y = widened(self.held.values)
        losses = jax.vmap(of, (0, 0, axes))(preds, y, q)
        return losses if losses.dtype == bool else as_float(losses)

    def _raw(self, q):
        losses = self.own_losses(q)
        if self.tail is not None:
            return ~(losses <= self.tail)
        if losses.dtype == bool:
            return losses
        return jnp.where(jnp.isnan(losses), self.bound, losses)


def one_number(loss: Any) -> Array:
    """Returns the loss of one example as an array; ValueError unless it is a number."""
    found = type(loss).__name__
    if not isinstance(loss, str | dict | None):
        loss = jnp.asarray(loss)
        found = loss.shape if loss.shape else loss.dtype
        if not loss.shape and not jnp.iscomplexobj(loss):
            return loss
    raise ValueError(f"expected loss(set, y) of shape (), got {found}")


def as_levels(alpha, bounds, several, num_groups):
    """Returns the level of each loss, shape () or (g,), in shares of its bound."""
    many = (tuple, list)
    if isinstance(alpha, many) and not several:
        raise ValueError(f"expected alpha as a number or an array, got {alpha}")
    given = one_each("alpha", alpha, len(bounds), many)
    found = [levels.share_of(*pair) for pair in zip(given, bounds, strict=True)]
    allowed = [()] if num_groups is None else [(), (num_groups,)]
    for level in found:
        if level.shape not in allowed:
            text = " or ".join(map(str, allowed))
            raise ValueError(f"expected alpha of shape {text}, got {level.shape}")
    return found


def budgets(count, shares, bounds, counted, delta):
    """Returns what each loss may sum to over so many rows, () or (g,)."""
    own = zip(shares, bounds, counted, strict=True)
    if delta is None:
        return tuple(expected_budget(count, *v) for v in own)
    delta = levels.as_delta(delta)
    return tuple(sure_budget(count, *v, delta) for v in own)


def expected_budget(count, level, bound, counted):
    """Returns alpha (n + 1) - B, what losses may sum to; below 0 where nothing fits.

    Of losses that are counted it is an integer, floor(alpha (n + 1)) - 1.
    """
    # Angelopoulos, Bates, Fisch, Lei, Schuster 2024, theorem 1, with alpha = level B.
    known = not (isinstance(level, Array) or isinstance(count, Array))
    if counted:
        if not known:
            return jnp.asarray(count) - levels.ranks(count, level)
        misses = np.frompyfunc(lambda n, a: n - levels.exact_rank(n, a), nin=2, nout=1)
        return np.asarray(misses(np.asarray(count, object), level), int)
    if not known:
        level = level if isinstance(level, Array) else np.asarray(level, float)
        level = jnp.asarray(level, float)
        exact = 1 + 3 * jnp.finfo(level.dtype).eps  # undoes the rounding of alpha
        spare = level * exact * (jnp.asarray(count) + 1) - 1
        return jnp.where(spare >= 0, bound * spare, -jnp.inf)
    spare = np.asarray(level * (np.asarray(count, object) + 1) - 1)
    return np.where(spare >= 0, bound * spare.astype(float), -np.inf)


def sure_budget(count, level, bound, counted, delta):
    """Returns what losses may sum to for a risk of alpha with probability 1 - delta."""
    if isinstance(count, Array) or isinstance(level, Array):
        raise Untraceable(
            "expected alpha as a number and rows that are known with delta, got a "
            "traced or jax array: the count of losses is computed on the host"
        )
    # Bates, Angelopoulos, Lei, Malik, Jordan 2021: p <= delta iff the mean is at most
    # a level, of losses that are counted iff their sum is at most a count.
    pairs = np.broadcast_arrays(np.asarray(count, object), level)
    if counted:
        of = lambda n, a: levels.critical_errors(int(n), a, delta)  # noqa: E731
    else:
        of = lambda n, a: bound * _sum(int(n), a, delta)  # noqa: E731
    found = np.frompyfunc(of, nin=2, nout=1)(*pairs)
    return np.asarray(found, int if counted else float)


def _sum(n, alpha, delta):
    mean = levels.critical_mean(n, alpha, delta) if n else -1
    return n * mean if mean >= 0 else -np.inf


_ROUNDINGS = 8  # of a sum, in eps of the largest one: budgets are often met exactly
_BLOCK = 2**16  # numbers of calibrations, with their flags, that stay in a cache


def threshold_of(rows, rank, test_weight, axis_name):
    """Returns the threshold of one loss, for the budget or level that is its rank."""
    rows = rows.with_suprema()
    held = rows.held
    if held.weights is None:
        if not jnp.issubdtype(rank.dtype, jnp.floating):
            return least_threshold(rows, rank, axis_name)
        ones = jnp.ones(len_of(held.values), rows.sum_dtype())
        most = (held.sums(ones, axis_name) + 1) * rows.bound
        return least_threshold(rows, _with_slack(rank, most), axis_name)
    weights = at_least_single(as_float(held.weights))
    largest = over_shards(lax.pmax, jnp.max(weights, initial=0), axis_name)
    scale = -exponent_of(largest)  # sums neither overflow nor vanish
    held = dataclasses.replace(held, weights=times_power(weights, scale))
    rows = dataclasses.replace(rows, held=held)
    weight = jnp.asarray(1.0 if test_weight is None else test_weight, weights.dtype)
    weight = times_power(weight, scale)
    total = held.sums(jnp.ones_like(weights), axis_name) + weight
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
    budget = jnp.broadcast_to(budget, rows.held.shape)
    if rows.grid is None:
        fits = lambda q: rows.total(q, axis_name) <= budget  # noqa: E731
        return first_float(fits, rows.dtype(), rows.held.shape)
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

    return bisect_keys(exceeds, int, bits=size.bit_length(), shape=rows.held.shape)


def _first_of_suprema(rows, budget, axis_name):
    """Returns the same for the largest loss at this and all later thresholds."""

    def add(highest, q):
        highest = jnp.maximum(highest, rows.losses(q))
        return highest, rows.held.sums(highest, axis_name) <= budget

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
        return jnp.zeros(rows.held.shape, q.dtype)
    distance = jnp.abs(scores - jnp.reshape(q, (-1, 1)))
    distance = jnp.where(jnp.isfinite(scores), distance, jnp.inf)
    # Not 0: XLA may compute scores anew and round them otherwise.
    nearest = distance <= jnp.min(distance, axis=1, initial=jnp.inf, keepdims=True)
    nearest &= jnp.isfinite(distance)
    count = jnp.maximum(jnp.sum(nearest, axis=1), 1)
    moved = jnp.sum(jnp.where(nearest, moves, 0), axis=1) / count
    fall = rows.held.sums(falls, axis_name)
    moved = rows.held.sums(falls * moved, axis_name)
    return moved / jnp.where(fall > 0, fall, 1)


def _own_scores(rows):
    """Returns the scores of each row at which its set may change, shape (n, k)."""
    if issubclass(type(rows.score), HasSteps):
        return as_float(rows.steps())
    scores = jax.vmap(rows.score)(*widened(rows.held.values))
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
