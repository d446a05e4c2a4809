"""The rank of a score among the scores of draws from the model: any CDF score.

Extended, the rank among draw scores W_(1) <= ... <= W_(K) is linear through (W_(i), i),
above the last finite W linear with slope 1 / spread, below the first exponential.
Infinite draw scores are not joined by lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single, just_below, with_rounding
from jaxcp._tree import keep_functions, pytree, static
from jaxcp.quantiles.selection import kth_smallest, last_score
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, HasRounding, Number, PyTree, Score


class _Piece(NamedTuple):
    """The piece of the extended rank between W_(place) and W_(place + 1)."""

    place: Array
    lower: Array  # 0 if infinite
    upper: Array
    below: Array  # whether lower is finite
    above: Array
    spread: Array

    def rank(self, score):
        """Returns the rank of a finite score of this piece."""
        gap = self.upper - self.lower
        # r(s) = i + (s - W_(i)) / (W_(i+1) - W_(i)) between W_(i) and W_(i+1),
        inside = (score - self.lower) / jnp.where(gap > 0, gap, 1)
        # K + (s - W_(K)) / spread above W_(K),
        beyond = (score - self.lower) / self.spread
        # exp((s - W_(1)) / spread) below W_(1),
        before = jnp.exp(jnp.minimum(score - self.upper, 0) / self.spread)
        anywhere = jax.nn.sigmoid(score)  # and 1 / (1 + exp(-s)) if no W is finite.
        only_below = jnp.where(self.below, beyond, anywhere)
        between = jnp.where(self.below, inside, before)
        return self.place + jnp.where(self.above, between, only_below)


def _extended_rank(draws, score):
    """Returns the extended rank of a score, shape (); +inf for +inf."""
    finite = jnp.isfinite(score)
    count = jnp.sum(draws <= score)
    value = _piece(draws, count).rank(jnp.where(finite, score, 0))
    at_infinity = jnp.where(score > 0, jnp.inf, count)
    return jnp.where(finite, value, at_infinity)


def _extended_threshold(draws, q):
    """Returns the last number whose extended rank is at most q, shape ()."""
    count = jnp.clip(jnp.floor(q), 0, jnp.sum(draws < jnp.inf)).astype(int)
    piece = _piece(draws, count)

    def rank(s, piece):
        inside = s < jnp.where(piece.above, piece.upper, jnp.inf)
        return jnp.where(inside, piece.rank(s), jnp.inf)

    return last_score(rank, piece, q, piece.lower, rounds=False)


def _rounded_up(draws, value):
    """Returns a threshold with room for rounding, but not up to the next draw score.

    Its rank is a whole number more.
    """
    following = jnp.min(jnp.where(draws > value, draws, jnp.inf))
    rounded = jnp.minimum(with_rounding(value), just_below(following))
    return jnp.maximum(value, rounded)


def _piece(draws, count):
    lower, upper = kth_smallest(draws, jnp.stack([count, count + 1]))
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    ends = jnp.where(below, lower, 0), jnp.where(above, upper, 0)
    count = count.astype(at_least_single(draws).dtype)
    return _Piece(count, *ends, below, above, _spread(draws))


def _spread(draws):
    """Returns W_(.9K) - W_(.5K), or another measure of their distance."""
    k, count = len(draws), jnp.sum(jnp.isfinite(draws))
    ranks: list[Number] = [1, count, (k + 1) // 2, (9 * k + 9) // 10]
    first, last, middle, high = kth_smallest(draws, jnp.stack(ranks))
    spread = jnp.ones_like(first)
    for candidate in (jnp.abs(first), last - first, high - middle):
        usable = jnp.isfinite(candidate) & (candidate > 0)
        spread = jnp.where(usable, candidate, spread)
    return spread


@pytree
class CDF:
    """How many draws of the model are no stranger than the target, by a base score.

    #{k : base(Y_k) <= base(y)}, an integer count as a float: conditionally adaptive
    whatever the base. `CDF(Density(log_prob))` is C-HDR, `CDF(PCP())` is C-PCP.

    `pred` is (base prediction, draws) or, randomized, (base prediction, draws, u): K
    draws of the model, shape (K, ...) with the shape of a target, independent of draws
    in the base prediction, and a uniform u. Sets are those of the base score at a
    threshold for each input, an order statistic of its K draw scores. If the calibrated
    rank is K, the set is the whole space: the model is too narrow, or K < 1 / alpha -
    1. Targets whose base score is -inf are in every set, also where their rank is too
    high.

    Where the law of the base score given the input is known no draws are needed: with
    `cdf` the score is P(base(Y) <= base(y)), in [0, 1], and `pred` is the base
    prediction alone. Targets whose probability rounds to 1 are all alike: a threshold
    of 1 gives the whole space.

    Args:
      base: The base score, with values of shape ().
      extended: Whether the rank is interpolated between the draw scores and goes on
        beyond them, linearly above and exponentially below: no ties, and sets that are
        finite where those of the base score are, whatever the model.
      randomized: Whether ties are broken by u: #{<} + u (1 + #{=}). With a perfect
        model the score is then continuous and uniform given the input, for every K.
      cdf: `(base prediction, s) -> ()`, the probability given the input that the base
        score is at most s, nondecreasing in s; or None, for draws.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`. With a perfect model the
      coverage given x and the draws has variance about alpha (1 - alpha) / (K + 2)
      around 1 - alpha: take K >= 10 / alpha. With the true `cdf`, if it is continuous,
      coverage given x is the threshold, for every x.

    Assumption:
      Exchangeable examples, a model fitted on other data, and draws that are fresh for
      every example.

    Cost:
      K + 1 base scores for a score; K base scores and one order statistic for a set.
      With `cdf` one base score, and one call of `cdf` for each bit of a float for a
      set.

    References:
      Chernozhukov, Wuthrich, Zhu, Distributional Conformal Prediction, Proceedings of
      the National Academy of Sciences, 2021.
      Dheur, Fontana, Estievenart, Desobry, Ben Taieb, A Unified Comparative Study with
      Generalized Conformity Scores for Multi-Output Conformal Regression, ICML, 2025.

    See also:
      scores.Density, scores.PCP, draw

    Example:
      >>> from jaxcp.scores import Absolute
      >>> pred = jnp.array(0.0), jnp.array([1.0, -2.0, 3.0, -4.0])
      >>> CDF(Absolute())(pred, jnp.array(2.5)).item()
      2.0
      >>> CDF(Absolute()).invert(pred, 2.0).contains(2.9).item()
      True
      >>> laplace = CDF(Absolute(), cdf=lambda pred, s: 1 - jnp.exp(-s))
      >>> laplace.invert(jnp.array(0.0), 1 - jnp.exp(-2.0)).upper.round(3).item()
      2.0
    """

    base: Score
    extended: bool = static(default=False)
    randomized: bool = static(default=False)
    cdf: Callable[[PyTree, Array], Array] | None = None

    def __post_init__(self):
        if self.extended + self.randomized + (self.cdf is not None) > 1:
            raise ValueError("expected one of extended, randomized and cdf, got more")
        _checks.check_given(base=self.base)
        keep_functions(self, "cdf")

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the rank of `y`, shape (): in 0, ..., K unless extended.

        With `cdf` the probability of scores up to that of `y`, in [0, 1].
        """
        if self.cdf is not None:
            return self._probability(pred, _worst(self.base(pred, y), 0))
        y = jnp.reshape(y, pred[1].shape[1:])
        # Beside the draws, so that a target that equals one of them has its score.
        scores = self._scores(pred[0], jnp.concatenate([y[None], pred[1]]))
        if self.extended:
            return _extended_rank(scores[1:], scores[0])
        return _rank(scores[1:], scores[0], self._uniform(pred))

    def invert(self, pred: PyTree, q: Array) -> AnySet:
        """Returns the set of the base score at the threshold of this input."""
        threshold = self.threshold(pred, q)
        if self.cdf is not None:
            return self.base.invert(pred, threshold)
        if self.extended:
            threshold = _rounded_up(self._draw_scores(pred), threshold)
        region = self.base.invert(pred[0], threshold)
        # Rounded above, or exact.
        return region.exact() if isinstance(region, HasRounding) else region

    def threshold(self, pred: PyTree, q: Array) -> Array:
        """Returns the base score's threshold for rank q, shape ().

        A count is at most m where the base score is below the (m + 1)-th smallest draw
        score: the threshold is the last number below that one, +inf from rank K on.
        With `cdf` it is the last number whose probability is at most q, but for
        rounding.
        """
        if self.cdf is not None:
            law = lambda s, given: given[0]._probability(given[1], s)  # noqa: E731
            return last_score(law, (self, pred), q, as_float(q), rounds=True)
        draws = self._draw_scores(pred)
        q = jnp.asarray(q, at_least_single(draws).dtype)
        if self.extended:
            return _extended_threshold(draws, q)
        return _threshold(draws, q, self._uniform(pred))

    @property
    def takes(self) -> inputs.Input:
        """A prediction for the base, draws, and a uniform if `randomized`."""
        uniform = {"u": inputs.uniform()} if self.randomized else {}
        base = inputs.of(self.base)
        if self.cdf is not None:
            return base
        return inputs.parts(base_prediction=base, draws=inputs.draws(), **uniform)

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for draws that are those of the base prediction."""
        if self.cdf is not None:
            return
        if any(leaf is preds[1] for leaf in jax.tree.leaves(preds[0])):
            raise ValueError(
                "expected draws independent of the base prediction, got the same ones; "
                "jaxcp.draw has roles for the two"
            )

    @property
    def exact(self) -> bool:
        """Whether sets are those of the score and no larger, as the base's are."""
        return inputs.is_exact(self.base)

    @property
    def rounds_up(self) -> bool:
        """Whether thresholds have room for rounding."""
        return self.extended or self.cdf is not None

    def _probability(self, pred, score):
        """Returns P(base(Y) <= score), 0 at -inf and 1 at +inf."""
        known = jnp.isfinite(score)
        p = self.cdf(pred, jnp.where(known, score, 0))  # type: ignore[misc]  # given
        _checks.check_shape("cdf(pred, s)", (), jnp.shape(p))
        return jnp.where(known, as_float(p), score > 0)

    def _uniform(self, pred):
        return jnp.asarray(pred[2]) if self.randomized else None

    def _draw_scores(self, pred):
        # As many as in a call, whose program rounds alike: the first one twice.
        points = jnp.concatenate([pred[1][:1], pred[1]])
        return self._scores(pred[0], points)[1:]

    def _scores(self, base_pred, points):
        return _worst(jax.vmap(self.base, (None, 0))(base_pred, points), 1)


def _worst(scores, ndim):
    """Returns scores without components as floats, NaN as the worst."""
    if scores.ndim != ndim:
        raise ValueError(
            f"expected a base score of shape (), got components {scores.shape[ndim:]}"
        )
    scores = as_float(scores)
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _rank(draws, score, u):
    """Returns #{<=}, or #{<} + u (1 + #{=})."""
    dtype = at_least_single(draws).dtype  # narrow types do not count far
    less, equal = (jnp.sum(v).astype(dtype) for v in (draws < score, draws == score))
    if u is None:
        return less + equal
    # The maximum keeps compilers from fusing product and sum, which would round apart.
    return less + jnp.maximum(u.astype(dtype) * (1 + equal), 0)


def _threshold(draws, q, u):
    """Returns the last number whose rank is at most q; ranks are monotone."""
    count = len(draws)
    q = jnp.clip(q, -1, count + 1)
    if u is None:
        rank = jnp.floor(q)
    else:  # the largest one with rank + u <= q, whatever q - u rounds to
        rank = jnp.floor(q - u)
        rank = jnp.where(rank + 1 + u <= q, rank + 1, rank)
        rank = jnp.where(rank + u > q, rank - 1, rank)
    # #{W_k <= s} <= m iff s < W_(m + 1)
    first_out = kth_smallest(draws, rank.astype(int) + 1)
    last_in = just_below(first_out)
    if u is not None:  # ties may still be in
        tied = (rank >= 0) & (_rank(draws, first_out, u) <= q)
        last_in = jnp.where(tied, first_out, last_in)
    return jnp.where(rank >= count, jnp.inf, last_in)
