"""One set from the sets of many held-out fits, each at the score of its own row.

With C_i = {y : s(f_-i(x), y) <= R_i}, y is kept iff #{i : R_i < s(f_-i(x), y)} < k:
iff more than n - k of the C_i contain it. For intervals this is the k-th smallest upper
and the k-th largest lower end, the hull that jackknife+ and CV+ report; for unions of
intervals their exact union.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.quantiles import _voting
from jaxcp.quantiles._masses import spare_mass
from jaxcp.quantiles.conformal import threshold_at
from jaxcp.scores import inputs
from jaxcp.sets import Intervals, LabelSet
from jaxcp.sets._arithmetic import over_batch
from jaxcp.sets._batches import Batch
from jaxcp.sets._sweeping import join, sweep
from jaxcp.typing import AnySet, HasEnds, HasLabels, HasPieces, PyTree, Score, Set


@pytree
class VoteSet(Batch):
    """The targets in enough of n sets, known by membership alone.

    Args:
      sets: The sets, leading axes (c, n): c components of n rows.
      weights: Weight of each row's vote, shape (n,).
      spare: Weight that the votes of each component must exceed, shape (c,).
    """

    sets: Set
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
      test_weight: Weight of the test point, shape (); 1 where there are no weights.
    """

    rank: Array
    mask: Array | None
    weights: Array | None
    test_weight: Array

    def last_end(self, ends: Array) -> Array:
        """Returns the k-th smallest upper ends, (c, n, ...) to (c, ...)."""
        known = self.mask, self.weights, self.test_weight

        def one(ends, rank):
            columns = ends.reshape(len(ends), -1)
            ranks = jnp.broadcast_to(rank, columns.shape[1:])
            return threshold_at(columns, ranks, *known).reshape(ends.shape[1:])

        return jax.vmap(one)(ends, self.rank)

    def tally(self, n: int) -> tuple[Array, Array]:
        """Returns the weight of each vote, (n,), and what must be exceeded, (c,)."""
        if self.weights is not None:
            return spare_mass(as_float(self.weights), self.rank, self.test_weight)
        votes = jnp.ones(n, int) if self.mask is None else self.mask.astype(int)
        return votes, jnp.sum(votes) - self.rank


def plus(score: Score, preds: PyTree, scores: Array, ballot: Ballot) -> Set:
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
        lower, upper = -ballot.last_end(-lower), ballot.last_end(upper)
        return sets.with_ends(largest(lower), -largest(-upper))
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


def minmax(score: Score, preds: PyTree, q: Array, votes: Array) -> Set:
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
        ballot = Ballot(jnp.full(c, rank), votes, None, jnp.ones(()))
        return _union(sets, ballot)
    return VoteSet(sets, votes.astype(int), jnp.full(c, -nothing.astype(int)))


def _union(sets, ballot):
    """Returns the union of all pieces with the votes of each component, (c, n, k)."""

    def of_component(lower, upper, rank):
        # A row has one vote for each place: its pieces do not touch.
        lower, upper = jax.vmap(join)(lower, upper)
        n, k = lower.shape
        known = ballot.mask, ballot.weights, ballot.test_weight
        words, suffice = _voting.ballot(n, rank, *known)
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
    place = jnp.argmax(lax.stop_gradient(values), axis=0)
    return jnp.take_along_axis(values, place[None], axis=0)[0]


def by_component(scores: Array) -> Array:
    """Returns thresholds that bind one component each: (c, n) or (c, n, c)."""
    if scores.ndim == 1:
        return scores[None]
    own = jnp.eye(scores.shape[1], dtype=bool)[:, None]
    return jnp.where(own, scores[None], jnp.inf)
