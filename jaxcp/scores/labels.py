"""Scores of labels, one or several, from what a model says of each.

Scores by rank add up masses of labels in order of falling probability in fixed point:
integers, so that calibration and prediction agree to the last bit whatever the order of
the sum, the batch or the device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxcp import _checks
from jaxcp._batching import labels_of
from jaxcp._numbers import as_float, at_least_single
from jaxcp._tree import jit, pytree, static
from jaxcp.quantiles._keys import bisect_keys, to_keys
from jaxcp.scores import inputs
from jaxcp.sets import LabelMask, LabelSet
from jaxcp.typing import LabelScore, Number, PyTree


def is_before(p: Array, y: Array) -> Array:
    """Returns which labels rank before `y`: more probable, or as much and lower."""
    keys, label = to_keys(p), jnp.arange(len(p))
    return (keys > keys[y]) | ((keys == keys[y]) & (label < y))


def ranking(p: Array) -> Array:
    """Returns the labels from rank 1 to rank k, by one sort of integers."""
    return jnp.argsort(~to_keys(p), stable=True)  # ~ reverses without overflow


_FEW = 64  # labels whose pairs are compared sooner than they are sorted


def ranks(p: Array) -> Array:
    """Returns the rank of every label, counted from 1."""
    if len(p) <= _FEW:
        return jnp.sum(_are_up_to(p), axis=1)
    return 1 + jnp.argsort(ranking(p))


def _are_up_to(p: Array) -> Array:
    """Returns in row y which labels rank up to y, shape (k, k)."""
    keys, label = to_keys(p)[None], jnp.arange(len(p))[None]
    return (keys > keys.T) | ((keys == keys.T) & (label <= label.T))


@jax.custom_jvp
def mass_of(p: Array, u: Array, ranked_before: Array, y: Array) -> Array:
    """Returns the mass before `y` plus (1 - u) times its own, at most 1."""
    # sum of p_j over j before y, + (1 - u) p_y
    units = to_units(p)
    head = jnp.sum(jnp.where(ranked_before, units, 0), dtype=units.dtype)
    return _add_own(p, u, head, units[y])


@mass_of.defjvp
def _mass_of_jvp(primals, tangents):
    p, u, ranked_before, y = primals
    dp, du, *_ = tangents
    # sum of dp_j over j before y, + (1 - u) dp_y - p_y du
    slope = jnp.sum(jnp.where(ranked_before, dp, 0)) + (1 - u) * dp[y] - p[y] * du
    return mass_of(*primals), slope


@jax.custom_jvp
def masses(p: Array, u: Array, by: Array) -> Array:
    """Returns the mass of all that rank up to each in order of `by`, shape (k,).

    Without u times the last one's. By p it is `mass_of` every label, to the last bit.
    """
    units = to_units(p)
    return _add_own(p, u, _up_to(by, units) - units, units)


@masses.defjvp
def _masses_jvp(primals, tangents):
    (p, u, by), (dp, du, _) = primals, tangents
    return masses(p, u, by), _up_to(by, dp) - u * dp - p * du


def _up_to(by, values):
    """Returns for each label the sum of values of those up to it, by rank."""
    if len(by) <= _FEW and jnp.issubdtype(values.dtype, jnp.integer):  # in any order
        counted = jnp.where(_are_up_to(by), values[None], 0)
        return jnp.sum(counted, axis=1, dtype=values.dtype)
    order = ranking(by)
    return jnp.cumsum(values[order], dtype=values.dtype)[jnp.argsort(order)]


def to_units(p: Array) -> Array:
    """Returns p in units of 2^-30 (2^-60 for float64), with the last rank up to 1."""
    dtype = jnp.int64 if p.dtype == jnp.float64 else jnp.int32
    p = at_least_single(p)
    # Traced rows may be no probabilities: their sum must not overflow.
    total = jnp.sum(p)
    p = jnp.where(total > 1.5, p / total, p)
    units = jnp.round(p * one(dtype)).astype(dtype)
    # What rounding leaves of 1 goes to the last rank, whose mass is then exactly 1.
    lacking = jnp.maximum(one(dtype) - jnp.sum(units, dtype=dtype), 0)
    last = len(p) - 1 - jnp.argmin(to_keys(p)[::-1])
    return units + jnp.where(jnp.arange(len(p)) == last, lacking, 0)


def from_units(mass: Array) -> Array:
    """Returns a mass in units as a float."""
    dtype = jnp.float64 if mass.dtype == jnp.int64 else jnp.float32
    return mass.astype(dtype) / one(mass.dtype)


def one(dtype: DTypeLike) -> int:
    """Returns the number of units in a mass of 1."""
    return 2**60 if dtype == jnp.int64 else 2**30


def _add_own(p, u, head, own):
    """Returns the mass `head` plus (1 - u) `own`, capped at 1, as a float."""
    head = jnp.minimum(head, one(head.dtype))
    own = jnp.minimum(own, one(head.dtype) - head)
    part = jnp.round(u * own).astype(head.dtype)
    # A NaN anywhere is the row's, not a zero among the probabilities.
    return jnp.where(jnp.any(jnp.isnan(p)), jnp.nan, from_units(head + own - part))


class Labelwise:
    """Turns `labels(pred)`, the scores of all labels, shape (k,), into a score.

    Inherit from it. Your class says by `takes` what `pred` is: any kind of
    `scores.inputs`. The sets are {y : labels(pred)[y] <= q}.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, whatever the labels score.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      One call of `labels` for a score and for a set.

    See also:
      scores.LAC, scores.Custom, scores.check, sets.LabelSet

    Example:
      >>> from jaxcp import scores
      >>> @jaxcp.pytree
      ... class Odds(scores.Labelwise):
      ...     takes = scores.inputs.probabilities()
      ...     def labels(self, pred):
      ...         return (1 - pred) / pred
      >>> Odds().invert(jnp.array([0.5, 0.3, 0.2]), 3.0).mask
      Array([ True,  True, False], dtype=bool)
    """

    def __call__(self: LabelScore, pred: PyTree, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        labels = labels_of(self, pred)
        return in_range(labels[y], y, len(labels))

    def invert(self: LabelScore, pred: PyTree, q: Array) -> LabelSet:
        """Returns {y : score <= q}; `q` may be one threshold a label, shape (k,)."""
        return LabelSet(labels_of(self, pred) <= q)

    def steps(self: LabelScore, pred: PyTree) -> Array:
        """Returns the thresholds at which the set grows, the scores of all labels."""
        return labels_of(self, pred)


@pytree
class LAC(Labelwise):
    """One minus the probability of the label: 1 - p_y, the smallest sets on average.

    `pred` is p, shape (k,).

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data. The smallest sets need
      the true probabilities.

    Cost:
      O(k) time for a score and for a set.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers with Bounded Error
      Levels, JASA, 2019.

    See also:
      scores.APS, scores.RAPS, scores.LogLAC, calibrate_groups

    Example:
      >>> LAC().invert(jnp.array([0.5, 0.3, 0.2]), 0.75).mask
      Array([ True,  True, False], dtype=bool)
    """

    takes = inputs.probabilities()

    def labels(self, pred: Array) -> Array:
        """Returns 1 - p of every label, shape (k,)."""
        return 1 - as_float(pred)


@pytree
class LogLAC(Labelwise):
    """Minus the log probability of the label: -log p_y, for training.

    `pred` is z, shape (k,): logits on any scale; the score is -log softmax. It is an
    increasing transform of `LAC`, so that sets at a calibrated threshold are the same;
    its slope in the logits does not vanish for labels of small probability.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(k) time for a score and for a set.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers with Bounded Error
      Levels, JASA, 2019.
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, ICLR,
      2022.

    See also:
      scores.LAC, training.SizeLoss

    Example:
      >>> LogLAC().invert(jnp.log(jnp.array([0.5, 0.3, 0.2])), 1.3).mask
      Array([ True,  True, False], dtype=bool)
    """

    takes = inputs.logits()

    def labels(self, pred: Array) -> Array:
        """Returns -log p of every label, shape (k,); +inf for a logit of -inf."""
        return -jax.nn.log_softmax(as_float(pred))


@pytree
class Margin(Labelwise):
    """The largest probability of another label, less that of the label.

    max over c != y of p_c - p_y, shape (): below 0 for the likeliest label alone, -p of
    a single label. `pred` is p, shape (k,). Scores have at least single precision.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(k) time for a score and for a set.

    References:
      Johansson, Linusson, Löfström, Boström, Model-Agnostic Nonconformity Functions for
      Conformal Classification, IJCNN, 2017.

    See also:
      scores.LogMargin, scores.LAC

    Example:
      >>> Margin().labels(jnp.array([0.5, 0.25, 0.25]))
      Array([-0.25,  0.25,  0.25], dtype=float32)
    """

    takes = inputs.probabilities()

    def labels(self, pred: Array) -> Array:
        """Returns the largest other p less its own of every label, shape (k,)."""
        p = at_least_single(as_float(pred))
        best = p == jnp.max(p)
        rest = jnp.max(jnp.where(best, 0, p))
        return jnp.where(best & (jnp.sum(best) == 1), rest, jnp.max(p)) - p


@pytree
class LogMargin(Labelwise):
    """The largest logit less that of the label: max over c of z_c - z_y.

    `pred` is z, shape (k,): logits on any scale, as log probabilities. The score is 0
    for the likeliest label, and the log of how many times less likely another one is.
    Scores have at least single precision.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(k) time for a score and for a set.

    References:
      Campos, Calém, Sklaviadis, Figueiredo, Martins, Sparse Activations as Conformal
      Predictors, AISTATS, 2025.

    See also:
      scores.Entmax, scores.Margin, scores.LogLAC

    Example:
      >>> LogMargin().labels(jnp.array([2.0, -1.0, 1.5]))
      Array([0. , 3. , 0.5], dtype=float32)
    """

    takes = inputs.logits()

    def labels(self, pred: Array) -> Array:
        """Returns max z - z of every label, shape (k,); +inf for a logit of -inf."""
        z = at_least_single(as_float(pred))
        return jnp.max(z) - z


@pytree
class Entmax(Labelwise):
    """How far larger logits are from that of the label, all of them together.

    (sum over c of (z_c - z_y)_+^d)^(1/d), d = 1 / (gamma - 1): a sum for gamma = 2, the
    largest difference, `LogMargin`, for gamma = 1. Labels that score less than q are
    the support of gamma-entmax of z / ((gamma - 1) q), of sparsemax for gamma = 2.

    `pred` is z, shape (k,): logits on any scale. Scores have at least single precision.

    Args:
      gamma: Index of the entmax, >= 1, shape (); usually 1 to 2.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; the model was fitted, and `gamma` chosen, on other data.

    Cost:
      O(k) time for a score. A set takes O(k^2) powers, one for each pair of labels, and
      memory of O(k); its gradient memory of O(k^2).

    References:
      Campos, Calém, Sklaviadis, Figueiredo, Martins, Sparse Activations as Conformal
      Predictors, AISTATS, 2025.

    See also:
      scores.LogMargin, scores.LogLAC

    Example:
      >>> Entmax(2.0).labels(jnp.array([2.0, -1.0, 1.5]))
      Array([0. , 5.5, 0.5], dtype=float32)
    """

    gamma: Number
    takes = inputs.logits()

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for gamma < 1."""
        _checks.check_values(lambda v: v >= 1, "gamma >= 1", self.gamma)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        z = at_least_single(as_float(pred))
        return in_range(self._at(z, z[y]), y, len(z))

    def labels(self, pred: Array) -> Array:
        """Returns the score of every label, shape (k,); +inf for a logit of -inf."""
        z = at_least_single(as_float(pred))
        return self._at(z, z)

    def _at(self, z, levels):
        largest = jnp.max(z) - levels
        known = (largest > 0) & (largest < jnp.inf)
        # Shares of the largest difference: no power overflows, and no sum is below 1.
        scale = jax.lax.stop_gradient(jnp.where(known, largest, 1))  # cancels
        least = jnp.finfo(z.dtype).eps ** 2  # powers of all but the largest vanish
        root = jnp.maximum(jnp.asarray(self.gamma, z.dtype) - 1, least)
        root = jnp.where(known, root, 1)  # unforeseen: squares would round differently

        def add(total, logit):  # in one order, whatever the batch
            above = known & (logit > levels)
            share = jnp.where(above, logit - levels, scale) / scale
            return total + jnp.where(above, share ** (1 / root), 0), None

        total, _ = jax.lax.scan(add, jnp.zeros_like(levels), z)
        return jnp.where(known, scale * jnp.where(known, total, 1) ** root, largest)


@pytree
class Given(Labelwise):
    """The prediction itself: scores of labels that come from elsewhere.

    `pred` is p, shape (k,): the scores, larger for stranger labels. For scores that no
    function of one prediction gives: of neighbors in a graph, or of another library.
    They must not have seen the labels of the rows that calibrate, nor of those to
    predict.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Rows of scores that are exchangeable, with their labels.

    Cost:
      O(k) time for a set.

    See also:
      scores.Labelwise, conformal_quantile

    Example:
      >>> Given().invert(jnp.array([0.5, 2.0, 1.0]), 1.0).mask
      Array([ True, False,  True], dtype=bool)
    """

    takes = inputs.columns()

    def labels(self, pred: Array) -> Array:
        """Returns the scores as floats, shape (k,)."""
        return as_float(pred)


def in_range(score, y, k):
    """Returns the score of label `y`, +inf if it is none of 0, ..., k - 1."""
    y = jnp.asarray(y).astype(int)  # narrow types cannot hold k
    return jnp.where((y >= 0) & (y < k), score, jnp.inf)


@pytree
class MultiLabel:
    """One minus the least probability of a true label: max over y of 1 - p.

    `pred` is p, any shape: a probability for each label or pixel; they need not sum to
    one. `y` is a mask of that shape, true where a label holds; without any the score is
    -inf. The sets are {1 - p <= q}, one threshold for all labels: they hold all true
    labels together. `risk.calibrate_risk` finds a threshold that keeps the share of
    missed ones at a level instead, in smaller sets.

    With `bounded=False` `pred` is heat, any shape and any range: h, larger where a
    label is likelier. The score is max over y of -h, and the sets are {-h <= q} = {h >=
    -q}. Heat is not rounded on the way: thresholds are minus a heat that occurs. With h
    = -distance to a predicted mask q is a distance, and the set is that mask with a
    margin of q around it. A label of heat -inf is in no set but that of q = +inf.

    Args:
      bounded: Whether `pred` holds probabilities, whose score is 1 - p; False for heat
        of any range, infinities too, whose score is -h.

    Guarantee:
      At least 1 - alpha that all true labels are in the set, at a threshold from
      `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(k) time for a score and for a set of k labels or pixels.

    References:
      Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.
      Mossina, Friedrich, Conformal Prediction for Image Segmentation Using
      Morphological Prediction Sets, MICCAI, 2025.

    See also:
      sets.LabelMask, risk.calibrate_risk, risk.false_negative_rate, scores.LAC

    Example:
      >>> p = jnp.array([0.875, 0.25, 0.5])
      >>> MultiLabel()(p, jnp.array([True, False, True]))
      Array(0.5, dtype=float32)
      >>> MultiLabel().invert(p, 0.5).mask
      Array([ True, False,  True], dtype=bool)
      >>> distance = jnp.array([0.0, 1.0, 2.5])  # to a predicted mask
      >>> MultiLabel(bounded=False).invert(-distance, 1.0).mask  # a margin of 1
      Array([ True,  True, False], dtype=bool)
    """

    bounded: bool = static(default=True)

    @property
    def takes(self) -> inputs.Input:
        """What `pred` is."""
        return inputs.multilabel(bounded=self.bounded)

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the largest step of a true label, shape (); -inf without any."""
        missed = jnp.where(jnp.asarray(y) != 0, self.steps(pred), -jnp.inf)
        return jnp.max(missed, initial=-jnp.inf)

    def invert(self, pred: Array, q: Array) -> LabelMask:
        """Returns {step <= q}; `q` may be one threshold a label, shaped like them."""
        steps = self.steps(pred)
        return LabelMask(~(steps > q), steps.ndim)  # a NaN leaves nothing out

    def steps(self, pred: Array) -> Array:
        """Returns 1 - p, or -h, the thresholds at which the set grows."""
        return int(self.bounded) - as_float(pred)  # 0 - h is exact


class _Ranked:
    """A score that grows along the labels in order of falling probability.

    Equal probabilities rank by label. `_price(p, u, rank, mass)` is the score at a
    rank, of the mass up to there; `mass` is a function, for ranks alone need no sum.
    """

    randomized = inclusive = False

    @property
    def takes(self) -> inputs.Input:
        """What `pred` is."""
        return inputs.probabilities(randomized=self.randomized)

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,)."""
        p, u = self._parts(pred)
        return self._price(p, u, ranks(p), lambda: masses(p, u, p))

    def __call__(self, pred: PyTree, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        p, u = self._parts(pred)
        before = is_before(p, y)
        mass = lambda: mass_of(p, u, before, y)  # noqa: E731
        return in_range(self._price(p, u, 1 + jnp.sum(before), mass), y, len(p))

    def invert(self, pred: PyTree, q: Array) -> LabelSet:
        """Returns {y : score <= q}; `q` may be one threshold a label, shape (k,)."""
        if jnp.ndim(q) and self.inclusive:
            raise ValueError(
                "expected one threshold for inclusive sets, got one a label; "
                "class-wise sets need inclusive=False"
            )
        few = len(self._parts(pred)[0]) <= _FEW and not self.inclusive
        at_once = few or jnp.ndim(q)
        return LabelSet(self.labels(pred) <= q if at_once else _first(self, pred, q))

    def _parts(self, pred):
        p, u = pred if self.randomized else (pred, 0.0)
        p = jnp.clip(at_least_single(p), 0, 1)
        return p, jnp.asarray(u, p.dtype)

    def _price(self, p, u, rank, mass):
        return mass()


@jit
def _first(score, pred, q):
    """Returns the labels that score at most q: the first ones by rank."""
    p, _ = score._parts(pred)
    keys, units, k = to_keys(p), to_units(p), len(p)
    label = jnp.arange(k, dtype=jnp.int16 if k < 2**15 else int)

    def fit(members):  # all of them, before any randomization
        mass = jnp.sum(jnp.where(members, units, 0), dtype=units.dtype)
        mass = from_units(jnp.minimum(mass, one(mass.dtype)))
        return score._price(p, 0.0, jnp.sum(members), lambda: mass) <= q

    # max {v : the labels with keys >= v do not all fit}: the first one out is at v.
    level = bisect_keys(lambda key: ~fit(keys >= key), keys.dtype)
    above, tied = keys > level, keys == level
    first_out = bisect_keys(
        lambda y: fit(above | (tied & (label < y))), label.dtype, bits=k.bit_length()
    )
    first_out = jnp.minimum(first_out.astype(int), k)
    mask = is_before(p, first_out) | (first_out == k)
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
      sort, and of up to 64 labels one look at all pairs.

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

    def _price(self, p, u, rank, mass):
        # The choice last: between the product and the sum with the mass it keeps
        # compilers from fusing the two, which would round differently here and there.
        # Not a maximum, whose slope at a penalty of 0 is half of each side's.
        over = rank - self.k_reg
        price = self.penalty * jnp.where(over > 0, over, 0)
        price = jnp.where((over > 0) & ~jnp.less(self.penalty, 0), price, 0)
        return mass() + price


@pytree
class SAPS(_Ranked):
    """The largest probability, plus `weight` for each rank after the first.

    p_max + (r - 1 - u) weight at rank r >= 2, (1 - u) p_max at rank 1. Of all
    probabilities it reads the largest alone: the others only rank the labels.

    `pred` is p, shape (k,), or (p, u) as for `APS`; u is 0 without it.

    Args:
      weight: Price of each rank after the first, >= 0, shape ().
      randomized: Whether `pred` is (p, u) as for `APS`.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`.

    Assumption:
      Exchangeable examples; the model was fitted, and `weight` chosen, on other data;
      and, where `randomized`, uniforms that are fresh for every row.

    Cost:
      Less than that of `scores.APS`: it adds up no masses.

    References:
      Huang, Xi, Zhang, Yao, Qiu, Wei, Conformal Prediction for Deep Classifier via
      Label Ranking, ICML, 2024.

    See also:
      scores.APS, scores.TopK, training.select_score, uniforms

    Example:
      >>> SAPS(0.25).labels(jnp.array([0.5, 0.2, 0.3]))
      Array([0.5 , 1.  , 0.75], dtype=float32)
    """

    weight: Number
    randomized: bool = static(default=False)

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for a negative weight."""
        _checks.check_values(lambda v: v >= 0, "weight >= 0", self.weight)

    def _price(self, p, u, rank, mass):
        weight = jnp.where(jnp.less(self.weight, 0), 0, self.weight)
        # A choice between products and their sum with the rest, as in `RAPS`.
        price = jnp.where(rank > 1, (rank - 1 - u) * weight, -u * jnp.max(p))
        return jnp.where(rank > 0, jnp.max(p), 0) + price  # no labels: 0


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

    def _price(self, p, u, rank, mass):
        return rank.astype(at_least_single(as_float(p)).dtype)


@pytree
class Truncated(Labelwise):
    """A label score that is +inf for labels beyond the rank that their class has.

    Rank 1 is the label of the smallest base score, of equal ones the first label. With
    `calibrate_groups(..., groups=y)` sets lose labels of high rank, as in RC3P, and
    keep 1 - alpha in each class. `pred` is that of the base score.

    Args:
      base: A score of labels.
      limits: Largest rank of each class, int, shape (k,), chosen on rows that do not
        calibrate.

    Guarantee:
      At least 1 - alpha at a threshold from `calibrate`, in each class at thresholds
      from `calibrate_groups`, whatever the limits. (Limits and thresholds from the same
      rows have none.)

    Assumption:
      Exchangeable examples; the model was fitted, and limits chosen, on other data.

    Cost:
      One sort of the k labels for a score and for a set.

    References:
      Shi, Ghosh, Belkhouja, Doppa, Yan, Conformal Prediction for Class-wise Coverage
      via Augmented Label Rank Calibration, NeurIPS, 2024.

    See also:
      calibrate_groups, conditional.group_classes, scores.LAC, scores.TopK

    Example:
      >>> from jaxcp.scores import LAC
      >>> score = Truncated(LAC(), jnp.array([1, 2, 2]))
      >>> score.labels(jnp.array([0.25, 0.5, 0.25]))
      Array([inf, 0.5, inf], dtype=float32)
    """

    base: LabelScore
    limits: Array

    def __post_init__(self) -> None:
        _checks.check_kind("base as a score of labels", self.base, LabelScore)
        if isinstance(self.limits, list | tuple):
            object.__setattr__(self, "limits", jnp.asarray(self.limits))

    @property
    def takes(self) -> inputs.Input:
        """What `pred` is."""
        return inputs.of(self.base)

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,), +inf beyond its limit."""
        scores = labels_of(self.base, pred)
        _checks.check_shape("limits", scores.shape, jnp.shape(self.limits))
        return jnp.where(ranks(-scores) <= self.limits, scores, jnp.inf)
