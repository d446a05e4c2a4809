"""Scores of a label by its place among the labels, from predicted probabilities."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.quantiles.selection import to_keys
from jaxcp.scores import _ranking
from jaxcp.scores._labels import check_probabilities, check_targets, in_range
from jaxcp.sets import LabelSet
from jaxcp.typing import Number, PyTree


class _Ranked:
    """A score that grows along the labels in order of falling probability.

    Equal probabilities rank by label. A class offers `__call__`, `labels`, `_parts`,
    which gives (p, u), and `_last(mass, members)`: the score of the last of the first
    labels, which have this mass together (in units), before any randomisation.
    """

    inclusive = False
    __call__: Callable[..., Array]
    labels: Callable[[PyTree], Array]
    _parts: Callable[[PyTree], tuple[Array, Array]]
    _last: Callable[[Array, Array], Array]

    def invert(self, pred: PyTree, q: Array) -> LabelSet:
        """Returns {y : score <= q}; `q` may be one threshold a label, shape (k,)."""
        if jnp.ndim(q) and self.inclusive:
            raise ValueError(
                "expected one threshold for inclusive sets, got one a label: no label "
                "crosses them all; class-wise sets need inclusive=False"
            )
        if jnp.ndim(q):
            return LabelSet(self.labels(pred) <= q)
        return _prefix(self, pred, q)

    def _next(self, pred, mask, q):
        """Returns the next label if those in `mask` score less than q, else k."""
        keys = to_keys(self._parts(pred)[0])
        k, info = len(keys), jnp.iinfo(keys.dtype)
        last = k - 1 - jnp.argmin(jnp.where(mask, keys, info.max)[::-1])
        reached = jnp.any(mask) & (self(pred, last) >= q)
        following = jnp.argmax(jnp.where(mask, info.min, keys))
        return jnp.where(reached | jnp.all(mask), k, following)


@jit
def _prefix(score, pred, q):
    """Returns the labels that score at most q: the first ones by rank."""
    p, _ = score._parts(pred)
    label = jnp.arange(len(p))
    first_out = _ranking.crossing(p, lambda *prefix: score._last(*prefix) <= q)
    mask = _ranking.before(p, first_out) | (first_out == len(p))
    # With u > 0 the label that crosses may itself score q or less.
    mask |= (label == first_out) & (score(pred, first_out) <= q)
    mask &= (q >= 0) & ~jnp.any(jnp.isnan(p))
    if score.inclusive:
        mask |= label == score._next(pred, mask, q)
    return LabelSet(mask)


class _Adaptive(_Ranked):
    """Cumulative probability, plus `_penalty(rank)`."""

    randomized: bool

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,)."""
        p, u = self._parts(pred)
        return _ranking.masses(p, u) + self._penalty(_ranking.ranks(p))

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        p, u = self._parts(pred)
        before = _ranking.before(p, y)
        score = _ranking.mass_of(p, u, before, y) + self._penalty(1 + jnp.sum(before))
        return in_range(score, y, len(p))

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless rows are probabilities and labels fit them."""
        pair = isinstance(preds, tuple | list) and len(preds) == 2
        if self.randomized and (not pair or jnp.ndim(preds[1]) != 1):
            raise ValueError(
                "expected preds as a pair (probabilities (n, k), uniforms (n,)) for a "
                f"randomised score, got {jax.tree.map(jnp.shape, preds)}"
            )
        p, u = preds if self.randomized else (preds, None)
        check_probabilities(p, mask)
        check_targets(p, y, mask)
        if u is not None:
            _checks.check_uniforms("uniforms", u, mask)

    def _parts(self, pred):
        p, u = pred if self.randomized else (pred, 0.0)
        p = jnp.clip(p.astype(jnp.promote_types(p.dtype, jnp.float32)), 0, 1)
        return p, jnp.asarray(u, p.dtype)

    def _last(self, mass, members):
        mass = jnp.minimum(mass, _ranking.one(mass.dtype))
        return _ranking.from_units(mass) + self._penalty(jnp.sum(members))

    def _penalty(self, rank):
        return 0.0


@pytree
class APS(_Adaptive):
    """The probability of the labels ranked before the label, plus its own.

    `pred` is p, shape (k,). With `randomized=True` it is (p, u), u uniform on [0, 1]
    and drawn by the caller for each row; the score then counts (1 - u) p_y for the
    label. The last rank's mass is exactly 1. Scores have at least single precision.

    Args:
      randomized: Whether `pred` carries a uniform: exact coverage in smaller sets.
      inclusive: Whether sets add the label that crosses the threshold. They are then
        never empty, and what most texts and libraries return; calibration is the same.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Romano, Sesia, Candes, Classification with Valid and Adaptive Coverage, 2020.

    Example:
      >>> APS().invert(jnp.array([0.5, 0.3, 0.2]), 0.85).mask
      Array([ True,  True, False], dtype=bool)
    """

    randomized: bool = static(default=False)
    inclusive: bool = static(default=False)


@pytree
class RAPS(_Adaptive):
    """APS plus penalty * max(rank - k_reg, 0), with ranks counted from 1.

    Args:
      penalty: Price of each rank beyond `k_reg`, >= 0, shape ().
      k_reg: Number of ranks without a price, >= 0, shape ().
      randomized: Whether `pred` is (p, u) as for `APS`.
      inclusive: Whether sets add the label that crosses the threshold, as for `APS`.

    Guarantee:
      1 - alpha for exchangeable data, if penalty and k_reg are chosen on other data.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, 2021.

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
        """Raises ValueError as for `APS`, or if penalty or k_reg are negative."""
        super().check(preds, y, mask)
        _checks.check_values(lambda v: v >= 0, "penalty >= 0", self.penalty)
        _checks.check_values(lambda v: v >= 0, "k_reg >= 0", self.k_reg)

    def _penalty(self, rank):
        # The choice last: between the product and the sum with the mass it keeps
        # compilers from fusing the two, which would round differently here and there.
        # Not a maximum, whose slope at a penalty of 0 is half of each side's.
        over = rank - self.k_reg
        price = self.penalty * jnp.where(over > 0, over, 0)
        return jnp.where((over > 0) & ~jnp.less(self.penalty, 0), price, 0)


@pytree
class TopK(_Ranked):
    """The rank of the label, counted from 1: sets are the q most probable labels.

    `pred` is p, shape (k,): probabilities or other values, larger for likelier labels.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Angelopoulos, Bates, Malik, Jordan, Uncertainty Sets for Image Classifiers Using
      Conformal Prediction, 2021, baseline.

    Example:
      >>> TopK()(jnp.array([0.5, 0.2, 0.3]), 2)
      Array(2., dtype=float32)
    """

    def labels(self, pred: Array) -> Array:
        """Returns the rank of every label, shape (k,)."""
        return _ranking.ranks(pred).astype(as_float(pred).dtype)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the rank of label `y`, shape (); +inf for a label out of range."""
        rank = 1 + jnp.sum(_ranking.before(pred, y))
        return in_range(rank.astype(as_float(pred).dtype), y, len(pred))

    def check(
        self, preds: Array, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless labels fit the predictions."""
        check_targets(preds, y, mask)

    def _parts(self, pred):
        return pred, None

    def _last(self, mass, members):
        return jnp.sum(members)
