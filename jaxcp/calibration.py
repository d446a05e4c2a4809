"""Split conformal prediction: calibrate scores once, ask for sets at any level."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jaxcp import _checks
from jaxcp._batching import map_rows
from jaxcp._pytree import pytree, static
from jaxcp._types import Predict, PyTree, Score, Set
from jaxcp.quantiles import (
    conformal_p_value,
    conformal_rank,
    grouped_conformal_quantile,
    weighted_conformal_quantile,
)
from jaxcp.selection import kth_smallest


@pytree
class Calibration:
    """Calibration scores, ready for sets at every level.

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      weights: Weights >= 0 of the calibration set, shape (n,), or None.
      mask: True where a row counts, shape (n,), or None.
    """

    score: Score
    scores: Array
    weights: Array | None = None
    mask: Array | None = None

    def quantile(self, alpha: ArrayLike, *, test_weight: ArrayLike = 1.0) -> Array:
        """Returns the threshold at level alpha.

        Args:
          alpha: Miscoverage level, shape (); without components also (a,) for several
            levels. With c components a scalar is family-wise and split to alpha / c
            (Bonferroni); shape (c,) splits it otherwise.
          test_weight: Weight of the test point, shape (), if there are weights.

        Returns:
          Threshold, shape () or (c,) or (a,), in units of the score; +inf where there
          are too few scores.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1) or its shape does not fit.

        Guarantee:
          P(S_{n+1} <= q) >= 1 - alpha for exchangeable scores.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0)).quantile(0.2)
          Array(8., dtype=float32)
        """
        _checks.check_weights("test_weight", test_weight)
        return _threshold(self, self._level(alpha), test_weight)

    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        test_weights: ArrayLike | None = None,
    ) -> Set:
        """Returns the prediction sets of new predictions.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1.

        Returns:
          Sets with leading axis m, e.g. `Interval` with ends of shape (m,).

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), a concrete prediction is
            NaN or not valid for the score, or lengths differ.

        Guarantee:
          P(Y in set) >= 1 - alpha, on average over calibration and test data, if
          calibration and test points are exchangeable (with weights: see
          `weighted_conformal_quantile`).

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp(jnp.array([0.0, 1.0]), alpha=0.2).upper
          Array([8., 9.], dtype=float32)
        """
        preds, test_weights = _checks.as_arrays((preds, test_weights))
        _checks.num_rows(preds=preds, test_weights=test_weights)
        _check_preds(self.score, preds)
        if test_weights is not None and self.weights is None:
            raise ValueError("expected test_weights only with calibration weights")
        if test_weights is not None:
            _checks.check_weights("test_weights", test_weights)
        level = self._level(alpha)
        if level.ndim > self.scores.ndim - 1:
            raise ValueError(
                f"expected alpha of shape {self.scores.shape[1:]} or (), got "
                f"{level.shape}; use jax.vmap for sets at several levels"
            )
        return _sets(self, preds, level, test_weights)

    def p_values(
        self,
        preds: PyTree,
        y: ArrayLike,
        *,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is among the calibration set.

        Args:
          preds: Predictions, a pytree with leading axis m.
          y: Targets or candidate targets, shape (m, ...).
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,). Defaults to 1.

        Returns:
          p-values, shape (m,); with c components min(1, c times the smallest one).
          `y` is in the set at level alpha iff its conservative p-value exceeds alpha.

        Raises:
          ValueError: as calling the calibration, and if lengths differ.

        Guarantee:
          P(p <= alpha) <= alpha for exchangeable examples.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp.p_values(jnp.zeros(2), jnp.array([8.5, 0.0]))
          Array([0.2, 1. ], dtype=float32)
        """
        preds, y, u, test_weights = _checks.as_arrays((preds, y, u, test_weights))
        m = _checks.num_rows(preds=preds, y=y, u=u, test_weights=test_weights)
        _check_preds(self.score, preds, y)
        u = jnp.ones(m) if u is None else u
        test_weights = jnp.ones(m) if test_weights is None else test_weights
        return _p_values(self, preds, y, u, test_weights)

    def _level(self, alpha):
        """Returns what the level comes to: ranks, or floats where there are weights."""
        alpha = _split(_checks.as_alpha(alpha), self.scores)
        if self.weights is not None:
            return _checks.alpha_as_float(alpha)
        count = len(self.scores) if self.mask is None else jnp.sum(self.mask)
        return conformal_rank(count, alpha)


def calibrate(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> Calibration:
    """Returns the calibration of a score on held-out predictions and targets.

    Args:
      score: Nonconformity score of one example, from `jaxcp.scores` or of your own.
      preds: Predictions for the calibration set, a pytree with leading axis n. Arrays
        may be from jax, numpy, pandas or torch (CPU), or lists of numbers.
      y: Targets, shape (n, ...), in their own units, or labels 0, ..., k - 1.
      weights: Weights >= 0 of the rows, shape (n,): likelihood ratios of test to
        calibration inputs, or fixed weights that fade with age (NexCP).
      mask: True where a row counts, shape (n,), for padded data. Defaults to all rows.

    Returns:
      A `Calibration`: call it with predictions and alpha.

    Raises:
      ValueError: if lengths differ, a concrete prediction, target or weight is NaN or
        negative where it may not be, labels are not integers in range, or the score
        cannot use the predictions.

    Guarantee:
      Sets at level alpha cover with probability >= 1 - alpha if the calibration and
      test examples are exchangeable and the model saw neither. Zero rows, or fewer than
      1/alpha - 1, give infinite sets.

    References:
      Papadopoulos et al., Inductive Confidence Machines for Regression, 2002.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> cp = calibrate(Absolute(), jnp.zeros(4), jnp.array([0.5, 1.0, 1.5, 2.0]))
      >>> cp(jnp.array([10.0]), alpha=0.25).lower
      Array([8.], dtype=float32)
    """
    preds, y, weights, mask = _checks.as_arrays((preds, y, weights, mask))
    _checks.num_rows(preds=preds, y=y, weights=weights, mask=mask)
    mask = None if mask is None else mask.astype(bool)
    _check_preds(score, preds, y, mask)
    if weights is not None:
        _checks.check_weights("weights", weights)
        weights = weights if mask is None else jnp.where(mask, weights, 0)
    return Calibration(score, _evaluate(score, preds, y), weights, mask)


@pytree
class SplitConformal:
    """A prediction function with its calibration. Made by `split_conformal`.

    Args:
      predict: `(params, x) -> preds`, over the leading axis of x.
      params: Whatever `predict` takes, any pytree.
      calibration: The calibration of the score.
    """

    predict: Predict = static()
    params: PyTree
    calibration: Calibration

    def __call__(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> Set:
        """Returns the prediction sets at inputs `x`, a pytree with leading axis m.

        `alpha`, `test_weights`, errors and guarantee are those of calling a
        `Calibration`.
        """
        preds = self.predict(self.params, x)
        return self.calibration(preds, alpha, test_weights=test_weights)


def split_conformal(
    predict: Predict,
    params: PyTree,
    score: Score,
    x: PyTree,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
) -> SplitConformal:
    """Returns a conformal predictor from a fitted model and a calibration set.

    Args:
      predict: Prediction function `(params, x) -> preds`, over the leading axis of x;
        it need not be jax.
      params: First argument of `predict`, any pytree (also None).
      score: Nonconformity score of one example.
      x: Inputs of the calibration set, whatever `predict` takes.
      y: Targets of the calibration set, shape (n, ...).
      weights: Weights of the rows as for `calibrate`, shape (n,).
      mask: True where a row counts, shape (n,).

    Returns:
      A `SplitConformal`: call it with inputs and alpha.

    Raises:
      ValueError: as `calibrate`.

    Guarantee:
      P(Y in set) >= 1 - alpha if calibration and test examples are exchangeable and the
      model was fitted on neither.

    References:
      Papadopoulos et al., Inductive Confidence Machines for Regression, 2002.
      Lei et al., Distribution-Free Predictive Inference for Regression, 2018.

    Example:
      >>> from jaxcp.scores import Absolute
      >>> predict = lambda slope, x: slope * x
      >>> x, y = jnp.arange(9.0), 2 * jnp.arange(9.0) + 1
      >>> cp = split_conformal(predict, 2.0, Absolute(), x, y)
      >>> cp(jnp.array([3.0]), alpha=0.1).upper
      Array([7.], dtype=float32)
    """
    preds = predict(params, x)
    calibration = calibrate(score, preds, y, weights=weights, mask=mask)
    return SplitConformal(predict, params, calibration)


@pytree
class GroupCalibration:
    """Calibration scores with groups: one threshold a group (Mondrian).

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,).
      mask: True where a row counts, shape (n,), or None.
      num_groups: Number of groups g.
    """

    score: Score
    scores: Array
    groups: Array
    mask: Array | None
    num_groups: int = static()

    def quantile(self, alpha: ArrayLike) -> Array:
        """Returns the threshold of each group, shape (g,) or (g, c).

        +inf for a group with too few scores; `alpha` as for `Calibration.quantile`.
        """
        alpha = _split(_checks.as_alpha(alpha), self.scores)
        select = partial(grouped_conformal_quantile, num_groups=self.num_groups)
        if self.scores.ndim == 1:
            return select(self.scores, self.groups, alpha, mask=self.mask)
        columns = [
            select(self.scores[:, j], self.groups, alpha[j], mask=self.mask)
            for j in range(self.scores.shape[1])
        ]
        return jnp.stack(columns, axis=1)

    def __call__(
        self, preds: PyTree, alpha: ArrayLike, groups: ArrayLike | None = None
    ) -> Set:
        """Returns the prediction sets, each at the threshold of its group.

        Args:
          preds: Predictions, a pytree with leading axis m.
          alpha: Miscoverage level as for `Calibration.quantile`.
          groups: Group of each test point, int, shape (m,). Without it the groups are
            the labels: label c is kept iff its score is within class c's threshold.

        Returns:
          Sets with leading axis m.

        Raises:
          ValueError: if lengths differ, a concrete group is out of range, or `groups`
            is missing though the score is not one of labels.

        Guarantee:
          1 - alpha within every group, or for every class.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> groups = jnp.array([0, 0, 1, 1])
          >>> y = jnp.array([1.0, 2.0, 10.0, 20.0])
          >>> cp = calibrate_groups(Absolute(), jnp.zeros(4), y, groups, num_groups=2)
          >>> cp(jnp.zeros(2), 0.4, jnp.array([0, 1])).upper
          Array([ 2., 20.], dtype=float32)
        """
        preds, groups = _checks.as_arrays((preds, groups))
        _checks.num_rows(preds=preds, groups=groups)
        _check_preds(self.score, preds)
        q = self.quantile(alpha)
        if groups is not None:
            _checks.check_labels("groups", groups, self.num_groups)
            inside = (groups >= 0) & (groups < self.num_groups)
            inside = inside.reshape(-1, *(1,) * (q.ndim - 1))
            return _invert_each(
                self.score, preds, jnp.where(inside, q[groups], jnp.inf)
            )
        self._check_classes(preds)
        return _invert(self.score, preds, q)

    def _check_classes(self, preds):
        if not hasattr(self.score, "labels"):
            raise ValueError(
                "expected the group of each test point, got groups=None; only scores "
                "of labels have classes for groups"
            )
        k = jax.eval_shape(jax.vmap(self.score.labels), preds).shape[1]
        if k != self.num_groups:
            raise ValueError(
                f"expected predictions of {self.num_groups} classes (groups), got {k}"
            )


def calibrate_groups(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    groups: ArrayLike,
    *,
    num_groups: int,
    mask: ArrayLike | None = None,
) -> GroupCalibration:
    """Returns the calibration of a score with one threshold a group (Mondrian).

    With `groups=y` for labels the sets are class-conditional: ask for them without
    groups.

    Args:
      score: Nonconformity score of one example.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      groups: Group of each row in 0, ..., num_groups - 1, int, shape (n,).
      num_groups: Number of groups g (of classes k, for class-conditional sets).
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      A `GroupCalibration`: call it with predictions, alpha and groups.

    Raises:
      ValueError: as `calibrate`, and if a concrete group is out of range.

    Guarantee:
      1 - alpha within every group, if its examples are exchangeable. A group with fewer
      than 1/alpha - 1 rows has infinite sets.

    References:
      Vovk, Conditional Validity of Inductive Conformal Predictors, 2012.

    Example:
      >>> from jaxcp.scores import LAC
      >>> p = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
      >>> y = jnp.array([0, 0, 1, 1])
      >>> cp = calibrate_groups(LAC(), p, y, y, num_groups=2)
      >>> cp(jnp.array([[0.85, 0.15]]), alpha=0.4).mask
      Array([[ True, False]], dtype=bool)
    """
    preds, y, groups, mask = _checks.as_arrays((preds, y, groups, mask))
    _checks.num_rows(preds=preds, y=y, groups=groups, mask=mask)
    mask = None if mask is None else mask.astype(bool)
    _check_preds(score, preds, y, mask)
    _checks.check_labels("groups", groups, num_groups, mask)
    return GroupCalibration(score, _evaluate(score, preds, y), groups, mask, num_groups)


def _check_preds(score, preds, y=None, mask=None):
    _checks.check_not_nan("preds", preds, mask)
    _checks.check_not_nan("y", y, mask)
    if hasattr(score, "check"):
        score.check(preds, y, mask)


def _split(alpha, scores):
    """Returns the level of each component: a scalar is shared out equally."""
    if scores.ndim == 1:
        return alpha
    c = scores.shape[1]
    if alpha.shape not in ((), (c,)):
        raise ValueError(f"expected alpha of shape () or ({c},), got {alpha.shape}")
    return alpha if alpha.ndim else _checks.share_alpha(alpha, c)


@jax.jit
def _evaluate(score, preds, y):
    return jax.vmap(score)(preds, y)


@jax.jit
def _threshold(calibration, level, test_weight):
    scores, weights = calibration.scores, calibration.weights

    def select(column, level):
        if weights is None:
            return kth_smallest(column, level, where=calibration.mask)
        return weighted_conformal_quantile(
            column, weights, level, test_weight=test_weight
        )

    if scores.ndim == 1:
        return select(scores, level)
    return jax.vmap(select, (1, 0))(scores, level)


@jax.jit
def _invert(score, preds, q):
    return map_rows(lambda pred: score.invert(pred, q), preds)


@jax.jit
def _invert_each(score, preds, q):
    return map_rows(score.invert, preds, q)


@jax.jit
def _sets(calibration, preds, level, test_weights):
    if test_weights is None:
        q = _threshold(calibration, level, 1.0)
        return _invert(calibration.score, preds, q)
    q = jax.vmap(_threshold, (None, None, 0))(calibration, level, test_weights)
    return _invert_each(calibration.score, preds, q)


@jax.jit
def _p_values(calibration, preds, y, u, test_weights):
    weights = calibration.weights
    if weights is None and calibration.mask is not None:
        weights = calibration.mask.astype(int)

    def p_value(column, score, u, test_weight):
        return conformal_p_value(
            column, score, u=u, weights=weights, test_weight=test_weight
        )

    scores = jax.vmap(calibration.score)(preds, y)
    if scores.ndim == 1:
        each = jax.vmap(p_value, (None, 0, 0, 0))
        return each(calibration.scores, scores, u, test_weights)
    components = jax.vmap(p_value, (1, 0, None, None))
    each = jax.vmap(components, (None, 0, 0, 0))
    p = each(calibration.scores, scores, u, test_weights)
    return jnp.minimum(1, scores.shape[1] * jnp.min(p, axis=1))
