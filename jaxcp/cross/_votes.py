"""One set from the sets of many held-out fits, each at the score of its own row.

With C_i = {y : s(f_-i(x), y) <= R_i}, y is kept iff #{i : R_i < s(f_-i(x), y)} < k:
iff more than n - k of the C_i contain it. For intervals this is the k-th smallest upper
and the k-th largest lower end, the hull that jackknife+ and CV+ report; for unions of
intervals their exact union.

CV+ makes no (n, m) array: in one fold the ends f_-k(x) + R_i increase with R_i, so that
a binary search over its sorted scores counts those below a value, and the value itself
is found bit by bit. A source makes the predictions of the b fits, in blocks of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float, varying_like
from jaxcp._tree import jit, pytree
from jaxcp.predictive.atoms import Atoms, atoms_of
from jaxcp.quantiles import selection
from jaxcp.quantiles._keys import bisect_keys, from_keys, to_keys
from jaxcp.quantiles._rows import spare_mass
from jaxcp.quantiles.thresholds import threshold_at, thresholds
from jaxcp.scores import inputs
from jaxcp.sets import Interval, Intervals, LabelSet
from jaxcp.sets.batches import over_batch
from jaxcp.sets.regions import Region
from jaxcp.sets.unions import join, sweep
from jaxcp.typing import AnySet, HasEnds, HasLabels, HasPieces, HasShapes, PyTree, Score


@pytree
class VoteSet(Region):
    """The targets in enough of n sets, known by membership alone.

    Args:
      sets: The sets, leading axes (c, n): c components of n rows.
      weights: Weight of each row's vote, shape (n,).
      spare: Weight that the votes of each component must exceed, shape (c,).
    """

    sets: AnySet
    weights: Array
    spare: Array

    def contains(self, y: Array) -> Array:
        """Returns whether `y` has the votes, bool of shape ()."""
        return over_batch(VoteSet._contains, len(self._batch()), self, y)

    def _batch(self):
        return jnp.shape(self.spare)[:-1]

    def _contains(self, y):
        votes = jax.vmap(jax.vmap(lambda s: s.contains(y)))(self.sets)
        won = jnp.sum(jnp.where(votes, self.weights[None], 0), axis=1)
        return jnp.all(won > self.spare)

    def size(self) -> Array:
        """Raises ValueError: only membership is known."""
        raise ValueError(
            "expected a set with a closed-form size, got votes of many sets: give the "
            "score an inverse that returns an Interval, a Box or a LabelSet, or on the "
            "line a start, scores.Custom(evaluate, start=...)"
        )


@pytree
class Ballot:
    """What decides which votes suffice.

    Args:
      rank: Rank k, or alpha as a float where there are weights, shape (c,): one for
        each component.
      mask: True for the rows that vote, shape (n,), or None.
      weights: Weights of the rows, shape (n,), or None.
      test_weight: Weight of the test point, shape (), or None for 1.
    """

    rank: Array
    mask: Array | None
    weights: Array | None
    test_weight: Array | None

    def last_end(self, ends: Array) -> Array:
        """Returns the k-th smallest upper ends, (c, n, ...) to (c, ...)."""
        known, (c, n, *shape) = (self.mask, self.weights, self.test_weight), ends.shape
        columns = jnp.moveaxis(ends.reshape(c, n, math.prod(shape)), 1, 0)
        ranks = jnp.broadcast_to(self.rank[:, None], columns.shape[1:]).ravel()
        last = threshold_at(columns.reshape(n, len(ranks)), ranks, *known)
        return last.reshape(c, *shape)

    def tally(self, n: int) -> tuple[Array, Array]:
        """Returns the weight of each vote, (n,), and what must be exceeded, (c,)."""
        if self.weights is not None:
            return spare_mass(as_float(self.weights), self.rank, self.test_weight)
        votes = jnp.ones(n, int) if self.mask is None else self.mask.astype(int)
        return votes, jnp.sum(votes) - self.rank


def plus(score: Score, preds: PyTree, scores: Array, ballot: Ballot) -> AnySet:
    """Returns the "+" set of one input.

    Args:
      score: The nonconformity score.
      preds: Predictions without each row, leading axis n.
      scores: Scores of the rows, shape (n,) or (n, c).
      ballot: The ballot.

    Returns:
      The set: like those of the score where they are intervals, boxes or labels. With
      components the intersection of the sets of each.
    """
    if inputs.has_labels(score) and not inputs.is_inclusive(score):
        return count_labels(jax.vmap(score.labels)(preds), scores, ballot)
    thresholds = by_component(scores)
    sets: AnySet = jax.vmap(jax.vmap(score.invert), (None, 0))(preds, thresholds)
    if isinstance(sets, HasEnds):
        lower, upper = sets.ends()
        last = ballot.last_end(jnp.stack([-lower, upper], -1))  # one selection
        return sets.with_ends(largest(-last[..., 0]), -largest(-last[..., 1]))
    if isinstance(sets, HasPieces):
        return _union(sets, ballot)
    votes, spare = ballot.tally(len(scores))
    if isinstance(sets, HasLabels):
        won = jnp.sum(jnp.where(sets.members(), votes[None, :, None], 0), axis=1)
        return LabelSet(jnp.all(won > spare[:, None], axis=0))
    return VoteSet(sets, votes, spare)


def count_labels(labels: Array, scores: Array, ballot: Ballot) -> LabelSet:
    """Returns the "+" set from the scores of labels without each row, shape (n, k)."""
    votes, spare = ballot.tally(len(scores))
    inside = labels <= scores[:, None]
    return LabelSet(jnp.sum(jnp.where(inside, votes[:, None], 0), axis=0) > spare)


def minmax(score: Score, preds: PyTree, q: Array, votes: Array) -> AnySet:
    """Returns the hull of the sets of one input at one threshold for all voters."""
    sets: AnySet = jax.vmap(score.invert, (0, None))(preds, q)
    nothing = ~jnp.any(votes)  # nothing is known: the set is everything
    if isinstance(sets, HasEnds):
        lower, upper = sets.ends()
        known = votes.reshape(-1, *(1,) * (lower.ndim - 1))
        lower = jnp.where(jnp.isnan(lower), -jnp.inf, lower)
        upper = jnp.where(jnp.isnan(upper), jnp.inf, upper)
        lower = -largest(jnp.where(known, -lower, -jnp.inf))
        upper = largest(jnp.where(known, upper, -jnp.inf))
        return sets.with_ends(
            jnp.where(nothing, -jnp.inf, lower), jnp.where(nothing, jnp.inf, upper)
        )
    if isinstance(sets, HasLabels):
        return LabelSet(jnp.any(sets.members() & votes[:, None], axis=0) | nothing)
    # Unions of each component alone: joint ones could miss by one component here, and
    # another there. Ends are bound by one component each.
    thresholds = by_component(q[None])[:, 0]
    sets = jax.vmap(jax.vmap(score.invert, (0, None)), (None, 0))(preds, thresholds)
    c = len(thresholds)
    if isinstance(sets, HasPieces):
        rank = jnp.maximum(jnp.sum(votes), 1)  # one vote, or none of nobody
        ballot = Ballot(jnp.full(c, rank), votes, None, None)
        return _union(sets, ballot)
    return VoteSet(sets, votes.astype(int), jnp.full(c, -nothing.astype(int)))


def _union(sets, ballot):
    """Returns the union of all pieces with the votes of each component, (c, n, k)."""

    def of_component(lower, upper, rank):
        # A row has one vote for each place: its pieces do not touch.
        lower, upper = jax.vmap(join)(lower, upper)
        n, k = lower.shape
        known = ballot.mask, ballot.weights, ballot.test_weight
        words, suffice = selection.ballot(n, rank, *known)
        exists = (lower <= upper).reshape(-1)
        words = tuple(jnp.where(exists, jnp.repeat(word, k), 0) for word in words)
        return _swept(lower, upper, words, suffice)

    lower, upper = sets.pieces()
    lower, upper = jax.vmap(of_component)(lower, upper, ballot.rank)
    if len(lower) == 1:
        return Intervals(lower[0], upper[0])
    votes = (lower <= upper).astype(int).reshape(-1)
    return Intervals(*_swept(lower, upper, (votes,), lambda won: won == len(lower)))


def _swept(lower, upper, words, suffice):
    """Returns the pieces with enough votes: at most as many as there are votes."""
    lower, upper = lower.reshape(-1), upper.reshape(-1)
    between = jnp.ones(lower.shape, bool)
    return sweep(lower, upper, between, words, suffice, max(lower.size, 1))


def largest(values: Array) -> Array:
    """Returns the largest over the leading axis.

    By its place: the gradient of `jnp.max` compares values with their maximum, and is
    NaN where a compiler rounds the two differently.
    """
    if len(values) == 1:
        return values[0]
    place = jnp.argmax(lax.stop_gradient(values), axis=0)
    return jnp.take_along_axis(values, place[None], axis=0)[0]


def by_component(scores: Array) -> Array:
    """Returns thresholds that bind one component each: (c, n) or (c, n, c)."""
    if scores.ndim == 1:
        return scores[None]
    own = jnp.eye(scores.shape[1], dtype=bool)[:, None]
    return jnp.where(own, scores[None], jnp.inf)


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


def plus_interval(score, preds, folds, ranks):
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


# Rows in a fold from which a binary search beats a pass over its scores.
_LONG_FOLDS = 64


@jit
def held_out(left_out: Any, preds: PyTree) -> PyTree:
    """Returns predictions of rows without them, (b, n, ...) to (n, ...)."""
    return left_out.of_recorded(preds)


@jit
def counted(scores, held_out, mask, bags):
    """Returns scores and which rows count, where some rows are in every fit.

    Such rows score +inf, as any default prediction of theirs does at worst (Kim, Xu,
    Barber 2020), unless fits left out one fold each: then they train alone.
    """
    fits = jnp.sum(held_out, axis=0)
    known, bags = fits > 0, bags | jnp.any(fits > 1)
    mask = (known | bags) & (True if mask is None else mask)
    known = known.reshape(-1, *(1,) * (scores.ndim - 1))
    return jnp.where(known, scores, jnp.inf), mask


@jit
def plus_at(cp: Any, source: Any, x: PyTree, rank: Array, context: Any) -> AnySet:
    """Returns the "+" set at each input."""
    score, of, preds = cp.score, cp.calibration, _shapes(source, x)
    if context.group is None and _has_long_folds(cp, preds):
        return _plus_of_folds(cp, source, x, rank, preds)

    def one(preds, context):
        k, *known = of.held.at(context, rank)
        ballot = Ballot(jnp.atleast_1d(k), *known)
        preds = cp.left_out.without_each(preds)
        return plus(score, preds, _known(of.scores), ballot)

    return source.at_each(one, x, context, width=len(cp.scores) * _width(cp, preds))


@jit
def minmax_at(cp, source, x, rank, context):
    """Returns the hull of the sets of all fits that vote, at each input."""
    of, preds, everyone = cp.calibration, _shapes(source, x), cp.left_out.voting()
    given = [v for v in context if v is not None]
    axes, m = (None, *(0 for _ in given)), _num_inputs(preds)
    q = jax.vmap(of.threshold, axes, axis_size=m)(rank, *given)

    def one(preds, q, group):
        voting = everyone
        if group is not None:
            voting = cp.left_out.voting(of.held.of_group(group).mask)
        return minmax(cp.score, cp.left_out.voters(preds), q, voting)

    width = len(everyone) * _width(cp, preds)
    return source.at_each(one, x, q, context.group, width=width)


@jit
def center(cp: Any, source: Any, x: PyTree) -> PyTree:
    """Returns the aggregate of the predictions without each row, at each input."""
    width = len(cp.scores) * _width(cp, _shapes(source, x))
    return source.at_each(cp.left_out.center, x, width=width)


@jit
def upper_center(cp: Any, source: Any, x: PyTree, rank: Array) -> PyTree:
    """Returns the prediction of a rank among those without each row."""

    def one(preds):
        each = cp.left_out.without_each(preds)
        return jax.tree.map(lambda v: thresholds(v, rank, cp.mask), each)

    width = len(cp.scores) * _width(cp, _shapes(source, x))
    return source.at_each(one, x, width=width)


@jit
def atoms_at(cp: Any, source: Any, x: PyTree, context: Any) -> Atoms:
    """Returns the last target of each row's half line, NaN of other sets."""
    score, of, preds = cp.score, cp.calibration, _shapes(source, x)
    thresholds = by_component(_known(of.scores))[-1]  # of y - f for Signed

    def one(preds):
        preds = cp.left_out.without_each(preds)
        sets: AnySet = jax.vmap(score.invert)(preds, thresholds)
        if not isinstance(sets, Interval) or sets.upper.ndim > 1:
            return jnp.full(len(thresholds), jnp.nan)
        return jnp.where(sets.lower == -jnp.inf, sets.upper, jnp.nan)

    values = source.at_each(one, x, width=len(of.scores) * _width(cp, preds))
    return atoms_of(values, of.held.mass_at(context.group), context.weight)


def _plus_of_folds(cp, source, x, rank, preds):
    score, fold, count = cp.score, cp.left_out.fold, cp.left_out.count
    folds = sort_folds(_known(cp.scores), fold, count)

    def one(preds):
        if inputs.has_labels(score):
            labels = jax.vmap(score.labels)(preds)
            return plus_labels(labels, jax.tree.map(lambda v: v[0], folds), rank)
        return plus_interval(score, preds, folds, jnp.atleast_1d(rank))

    return source.at_each(one, x, width=_LONG_FOLDS * count * _width(cp, preds))


def _shapes(source, x):
    """Returns the shapes of predictions, leading axes (b, m)."""
    return jax.eval_shape(source.predict, x)


def _num_inputs(preds):
    return jax.tree.leaves(preds)[0].shape[1]


def _width(cp, preds):
    """Returns how many numbers a set is made of for each fit: predictions, times c."""
    numbers = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(preds))
    return max(numbers, 1) * math.prod(cp.scores.shape[1:])


def _known(scores):
    """Returns scores with +inf for NaN: a row without a score excludes nothing."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _has_long_folds(cp, preds):
    """Returns whether the sorted scores of folds give the same sets faster."""
    score, of = cp.score, cp.calibration
    if cp.left_out.rows_per_fit < _LONG_FOLDS or of.weights is not None:
        return False
    if inputs.has_labels(score):
        return not inputs.is_inclusive(score)
    pred = jax.tree.map(lambda v: jnp.zeros(v.shape[2:], v.dtype), preds)
    kind = jax.eval_shape(score.invert, pred, of.scores[0])
    has_ends = isinstance(kind, HasEnds) and isinstance(kind, HasShapes)
    return has_ends and kind.target_shape() == ()
