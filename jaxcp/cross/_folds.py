"""CV+ without an (n, m) array: bisection over the sorted scores of each fold.

For one fold the ends f_-k(x) + R_i increase with R_i, so that a binary search counts
those below a value; the value itself is found bit by bit, as by the one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import varying_like
from jaxcp._pytree import pytree
from jaxcp.cross._votes import by_component, largest
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.sets import Interval, LabelSet
from jaxcp.typing import AnySet, PyTree, Score


@pytree
class SortedFolds:
    """Scores sorted within each fold, one fold after the other.

    Args:
      thresholds: Scores, shape (n,), or thresholds that bind one component, (n, c).
      starts: Where each fold starts, and the end, int of shape (K + 1,).
    """

    thresholds: Array
    starts: Array

    def first(self, reached: Callable[[Array], Array]) -> Array:
        """Returns the first place of each fold where `reached(place)`; monotone."""

        def halve(_, bounds):
            low, high = bounds
            middle = (low + high) // 2
            right = reached(jnp.minimum(middle, len(self.thresholds) - 1))
            searching = low < high
            return (
                jnp.where(searching & ~right, middle + 1, low),
                jnp.where(searching & right, middle, high),
            )

        bounds = self.starts[:-1], self.starts[1:]
        bounds = varying_like(bounds, reached(bounds[0]))
        num_steps = len(self.thresholds).bit_length()
        return lax.fori_loop(0, num_steps, halve, bounds)[0]


def sort_folds(scores: Array, fold: Array, num_folds: int) -> SortedFolds:
    """Returns the sorted folds of each component, leading axis c."""
    sizes = jnp.zeros(num_folds, int).at[fold].add(1)
    starts = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(sizes)])

    def one(column, thresholds):
        order = jnp.lexsort((to_keys(lax.stop_gradient(column)), fold))
        return SortedFolds(thresholds[order], starts)

    columns = scores[None] if scores.ndim == 1 else scores.T
    return jax.vmap(one)(columns, by_component(scores))


def plus_interval(
    score: Score, preds: PyTree, folds: SortedFolds, ranks: Array
) -> Interval:
    """Returns the "+" interval of one input from predictions of the K fits."""

    def ends(side, folds, rank):
        def end(pred, threshold):
            interval: AnySet = score.invert(pred, threshold)
            lower, upper = interval.ends()
            return -lower if side == "lower" else upper

        each = jax.vmap(end)
        return _select(lambda at: each(preds, folds.thresholds[at]), folds, rank)

    lower = jax.vmap(lambda *of: -ends("lower", *of))(folds, ranks)
    upper = jax.vmap(lambda *of: ends("upper", *of))(folds, ranks)
    return Interval(largest(lower), -largest(-upper))


def plus_labels(labels: Array, folds: SortedFolds, rank: Array) -> LabelSet:
    """Returns the "+" set of one input from the label scores of the K fits, (K, k)."""

    def count(column):  # of scores below those of one label
        places = folds.first(lambda at: folds.thresholds[at] >= column)
        return jnp.sum(places - folds.starts[:-1])

    return LabelSet(jax.vmap(count)(labels.T) < rank)


def _select(ends, folds, rank):
    """Returns the rank-th smallest of all ends; one of them, for its gradient."""
    starts, stops = folds.starts[:-1], folds.starts[1:]
    keys = lambda at: to_keys(lax.stop_gradient(ends(at)))  # noqa: E731
    places = lambda key: folds.first(lambda at: keys(at) >= key)  # noqa: E731

    def falls_short(key):
        return jnp.sum(places(key) - starts) < rank

    shape = jax.eval_shape(lambda at: (ends(at), keys(at)), starts)
    key = bisect_keys(falls_short, shape[1].dtype)
    at = jnp.minimum(places(key), len(folds.thresholds) - 1)
    found = (places(key) < stops) & (keys(at) == key)
    fit = jnp.argmax(found)
    return jnp.where(found[fit], ends(at)[fit], from_keys(key, shape[0].dtype))
