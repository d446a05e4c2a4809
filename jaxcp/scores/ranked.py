"""Scores of labels by rank: the most probable labels come first."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float, at_least_single
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.quantiles._keys import to_keys
from jaxcp.scores import _ranking, inputs
from jaxcp.scores.labels import in_range
from jaxcp.sets import LabelSet
from jaxcp.typing import Number, PyTree


class _Ranked:
    """A score that grows along the labels in order of falling probability.

    Equal probabilities rank by label. `_price(p, rank, mass)` is the score at a rank,
    of the mass up to there; `mass` is a function, for ranks alone need no sum.
    """

    randomized = inclusive = False

    @property
    def takes(self) -> inputs.Input:
        """What `pred` is."""
        return inputs.probabilities(randomized=self.randomized)

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,)."""
        p, u = self._parts(pred)
        return self._price(p, _ranking.ranks(p), lambda: _ranking.masses(p, u))

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        p, u = self._parts(pred)
        before = _ranking.before(p, y)
        mass = lambda: _ranking.mass_of(p, u, before, y)  # noqa: E731
        return in_range(self._price(p, 1 + jnp.sum(before), mass), y, len(p))

    def invert(self, pred: PyTree, q: Array) -> LabelSet:
        """Returns {y : score <= q}; `q` may be one threshold a label, shape (k,)."""
        if jnp.ndim(q) and self.inclusive:
            raise ValueError(
                "expected one threshold for inclusive sets, got one a label: no label "
                "crosses them all; class-wise sets need inclusive=False"
            )
        mask = self.labels(pred) <= q if jnp.ndim(q) else _first(self, pred, q)
        return LabelSet(mask)

    def _parts(self, pred):
        p, u = pred if self.randomized else (pred, 0.0)
        p = jnp.clip(at_least_single(p), 0, 1)
        return p, jnp.asarray(u, p.dtype)

    def _price(self, p, rank, mass):
        return mass()


@jit
def _first(score, pred, q):
    """Returns the labels that score at most q: the first ones by rank."""
    p, _ = score._parts(pred)
    label = jnp.arange(len(p))

    def fits(mass, members):  # all of them, before any randomization
        mass = jnp.minimum(mass, _ranking.one(mass.dtype))
        last = score._price(p, jnp.sum(members), lambda: _ranking.from_units(mass))
        return last <= q

    first_out = _ranking.crossing(p, fits)
    mask = _ranking.before(p, first_out) | (first_out == len(p))
    # With u > 0 the label that crosses may itself score q or less.
    mask |= (label == first_out) & (score(pred, first_out) <= q)
    mask &= (q >= 0) & ~jnp.any(jnp.isnan(p))
    if score.inclusive:
        mask |= label == _next(score, pred, mask, q)
    return mask


def _next(score, pred, mask, q):
    """Returns the next label if those in `mask` score less than q, else k."""
    keys = to_keys(score._parts(pred)[0])
    k, info = len(keys), jnp.iinfo(keys.dtype)
    last = k - 1 - jnp.argmin(jnp.where(mask, keys, info.max)[::-1])
    reached = jnp.any(mask) & (score(pred, last) >= q)
    following = jnp.argmax(jnp.where(mask, info.min, keys))
    return jnp.where(reached | jnp.all(mask), k, following)


@pytree
class APS(_Ranked):
    """The probability of the labels ranked before the label, plus its own.

    `pred` is p, shape (k,). With `randomized=True` it is (p, u), u uniform on [0, 1]
    and drawn by the caller for each row; the score then counts (1 - u) p_y for the
    label. The last rank's mass is exactly 1. Scores have at least single precision.

    Args:
      randomized: Whether `pred` carries a uniform: exact coverage in smaller sets.
        Without it the scores of a network that is sure of nearly every row tie at 1,
        and sets hold every label.
      inclusive: Whether sets add the label that crosses the threshold. They are then
        never empty, as in most texts and libraries; calibration is the same.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, a model fitted on other data, and, where `randomized`,
      uniforms that are fresh for every row.

    Cost:
      O(k) time for a score; a set takes some 40 passes over its k labels, without a
      sort.

    References:
      Romano, Sesia, Candes, Classification with Valid and Adaptive Coverage, NeurIPS,
      2020.

    See also:
      scores.RAPS, scores.LAC, uniforms, metrics.full_rate

    Example:
      >>> APS().invert(jnp.array([0.5, 0.3, 0.2]), 0.85).mask
      Array([ True,  True, False], dtype=bool)
    """

    randomized: bool = static(default=False)
    inclusive: bool = static(default=False)


@pytree
class RAPS(_Ranked):
    """APS plus penalty * max(rank - k_reg, 0), with ranks counted from 1.

    `pred` is p, shape (k,), or (p, u) as for `APS`.

    Args:
      penalty: Price of each rank beyond `k_reg`, >= 0, shape ().
      k_reg: Number of ranks without a price, >= 0, shape ().
      randomized: Whether `pred` is (p, u) as for `APS`.
      inclusive: Whether sets add the label that crosses the threshold, as for `APS`.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; the model was fitted on other data, and `penalty` and
      `k_reg` were chosen on other data.

    Cost:
      That of `scores.APS`.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, ICLR, 2021.

    See also:
      scores.APS, training.select_score, uniforms

    Example:
      >>> RAPS(0.1, 1).invert(jnp.array([0.5, 0.3, 0.2]), 0.95).mask
      Array([ True,  True, False], dtype=bool)
    """

    penalty: Number
    k_reg: Number
    randomized: bool = static(default=False)
    inclusive: bool = static(default=False)

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for a negative penalty or k_reg."""
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)
        _checks.check_values(lambda v: v >= 0, "k_reg >= 0", self.k_reg)

    def _price(self, p, rank, mass):
        # The choice last: between the product and the sum with the mass it keeps
        # compilers from fusing the two, which would round differently here and there.
        # Not a maximum, whose slope at a penalty of 0 is half of each side's.
        over = rank - self.k_reg
        price = self.penalty * jnp.where(over > 0, over, 0)
        price = jnp.where((over > 0) & ~jnp.less(self.penalty, 0), price, 0)
        return mass() + price


@pytree
class TopK(_Ranked):
    """The rank of the label, counted from 1: sets are the q most probable labels.

    `pred` is p, shape (k,): probabilities or other values, larger for likelier labels.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      That of `scores.APS`.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, ICLR, 2021, baseline.

    See also:
      scores.LAC, scores.APS

    Example:
      >>> TopK()(jnp.array([0.5, 0.2, 0.3]), 2)
      Array(2., dtype=float32)
    """

    takes = inputs.columns()

    def _parts(self, pred):
        return pred, None

    def _price(self, p, rank, mass):
        return rank.astype(at_least_single(as_float(p)).dtype)
