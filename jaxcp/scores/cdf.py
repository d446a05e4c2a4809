"""The rank of a score among the scores of draws from the model: any CDF score."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp._pytree import pytree, static
from jaxcp.quantiles.selection import kth_smallest
from jaxcp.scores import _extended, inputs
from jaxcp.sets import Ellipsoid, LevelSet
from jaxcp.typing import AnySet, PyTree, Score


@pytree
class CDF:
    """How many draws of the model are no stranger than the target, by a base score.

    #{k : base(Y_k) <= base(y)}, an integer count as a float: conditionally adaptive
    whatever the base. `CDF(Density(log_prob))` is C-HDR, `CDF(PCP())` is C-PCP.

    `pred` is (base prediction, draws) or, randomized, (base prediction, draws, u): K
    draws of the model, shape (K, ...) with the shape of a target, independent of draws
    in the base prediction, and a uniform u. Sets are those of the base score at a
    threshold of the input's own, an order statistic of its K draw scores. A calibrated
    rank of K is the whole space: the model is too narrow, or K < 1 / alpha - 1. Targets
    whose base score is -inf are in every set, also where their rank is too high.

    Args:
      base: The base score, with values of shape ().
      extended: Whether the rank is interpolated between the draw scores and goes on
        beyond them, linearly above and exponentially below: no ties, and sets that are
        finite where those of the base score are, whatever the model.
      randomized: Whether ties are broken by u: #{<} + u (1 + #{=}). With a perfect
        model the score is then continuous and uniform given the input, for every K.

    Guarantee:
      1 - alpha for exchangeable data and draws that are fresh for every example. With
      a perfect model the coverage given x and the draws has variance about
      alpha (1 - alpha) / (K + 2) around 1 - alpha: K >= 10 / alpha is advised.

    References:
      Chernozhukov, Wuthrich, Zhu, Distributional Conformal Prediction, 2021.
      Dheur et al., A Unified Comparative Study with Generalized Conformity Scores for
      Multi-Output Conformal Regression, 2025.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> pred = jnp.array(0.0), jnp.array([1.0, -2.0, 3.0, -4.0])
      >>> CDF(Absolute())(pred, jnp.array(2.5)).item()
      2.0
      >>> CDF(Absolute()).invert(pred, 2.0).contains(2.9).item()
      True
    """

    base: Score
    extended: bool = static(default=False)
    randomized: bool = static(default=False)

    def __post_init__(self):
        if self.extended and self.randomized:
            raise ValueError("expected extended or randomized, got both; choose one")
        _checks.check_given(base=self.base)

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the rank of `y`, shape (): in 0, ..., K unless extended."""
        y = jnp.reshape(y, pred[1].shape[1:])
        # Beside the draws, so that a target that equals one of them has its score.
        scores = self._scores(pred[0], jnp.concatenate([y[None], pred[1]]))
        if self.extended:
            return _extended.rank(scores[1:], scores[0])
        return _rank(scores[1:], scores[0], self._uniform(pred))

    def invert(self, pred: PyTree, q: Array) -> AnySet:
        """Returns the set of the base score at the threshold of this input."""
        threshold = self.threshold(pred, q)
        if self.extended:
            threshold = _extended.with_rounding(self._draw_scores(pred), threshold)
        region = self.base.invert(pred[0], threshold)
        if isinstance(region, LevelSet | Ellipsoid):  # rounded above, or exact
            return dataclasses.replace(region, rounds=False)
        return region

    def threshold(self, pred: PyTree, q: Array) -> Array:
        """Returns the base score's threshold for rank q, shape ().

        A count is at most m where the base score is below the (m + 1)-th smallest draw
        score: the threshold is the last number below that one, +inf from rank K on.
        """
        draws = self._draw_scores(pred)
        q = jnp.asarray(q, at_least_single(draws).dtype)
        if self.extended:
            return _extended.threshold(draws, q)
        return _threshold(draws, q, self._uniform(pred))

    @property
    def takes(self) -> inputs.Input:
        """A prediction for the base, draws, and a uniform if `randomized`."""
        uniform = {"u": inputs.uniform()} if self.randomized else {}
        base = inputs.of(self.base)
        return inputs.parts(base_prediction=base, draws=inputs.draws(), **uniform)

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for draws that are those of the base prediction."""
        if any(leaf is preds[1] for leaf in jax.tree.leaves(preds[0])):
            raise ValueError(
                "expected draws independent of the base prediction, got the same ones "
                "twice; jaxcp.draw has roles for the two"
            )

    def _uniform(self, pred):
        return jnp.asarray(pred[2]) if self.randomized else None

    def _draw_scores(self, pred):
        # As many as in a call, whose program rounds alike: the first one twice.
        points = jnp.concatenate([pred[1][:1], pred[1]])
        return self._scores(pred[0], points)[1:]

    def _scores(self, base_pred, points):
        scores = jax.vmap(self.base, (None, 0))(base_pred, points)
        if scores.ndim != 1:
            raise ValueError(
                f"expected a base score of shape (), got components {scores.shape[1:]}"
            )
        scores = as_float(scores)
        return jnp.where(jnp.isnan(scores), jnp.inf, scores)  # NaN is the worst


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
    last_in = _extended.just_below(first_out)
    if u is not None:  # ties may still be in
        tied = (rank >= 0) & (_rank(draws, first_out, u) <= q)
        last_in = jnp.where(tied, first_out, last_in)
    return jnp.where(rank >= count, jnp.inf, last_in)
