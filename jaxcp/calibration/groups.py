"""Mondrian calibration: one threshold a group, or a class."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays, is_rounded
from jaxcp._batching import evaluate, invert, invert_each
from jaxcp._pytree import pytree, static
from jaxcp._tracing import jit
from jaxcp.calibration._rows import (
    RowShapes,
    check_digits_of_targets,
    check_row_shapes,
    row_shapes,
)
from jaxcp.quantiles.conformal import grouped_conformal_quantile
from jaxcp.quantiles.levels import as_alpha, split_alpha
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, PyTree, Score


@pytree
class GroupCalibration:
    """Calibration scores with groups: one threshold a group (Mondrian).

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,).
      mask: True where a row counts, shape (n,), or None.
      num_groups: Number of groups g.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
    """

    score: Score
    scores: Array
    groups: Array
    mask: Array | None
    num_groups: int = static()
    row_shapes: RowShapes | None = static(default=None)

    def quantile(self, alpha: ArrayLike) -> Array:
        """Returns the threshold of each group, shape (g,) or (g, c).

        +inf for a group with too few scores; `alpha` as for `Calibration.quantile`.
        """
        alpha = split_alpha(as_alpha(alpha), self.scores)
        if self.scores.ndim == 1:
            return self._thresholds(self.scores, alpha)
        columns = zip(self.scores.T, alpha, strict=True)
        return jnp.stack([self._thresholds(*column) for column in columns], axis=1)

    def _thresholds(self, scores, alpha):
        return grouped_conformal_quantile(
            scores, self.groups, alpha, num_groups=self.num_groups, mask=self.mask
        )

    def __call__(
        self, preds: PyTree, alpha: ArrayLike, groups: ArrayLike | None = None
    ) -> AnySet:
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
        preds, groups = as_arrays(preds=preds, groups=groups)
        _checks.num_rows(preds=preds, groups=groups)
        check_row_shapes(self.score, preds, self.row_shapes)
        inputs.check(self.score, preds)
        q = self.quantile(alpha)
        if groups is not None:
            _checks.check_labels("groups", groups, self.num_groups)
            groups = groups.astype(int)  # a narrow type may not hold num_groups
            inside = (groups >= 0) & (groups < self.num_groups)
            inside = inside.reshape(-1, *(1,) * (q.ndim - 1))
            return invert_each(self.score, preds, jnp.where(inside, q[groups], jnp.inf))
        self._check_classes(preds)
        return invert(self.score, preds, q)

    def _check_classes(self, preds):
        if not inputs.has_labels(self.score):
            raise ValueError(
                "expected the group of each test point, got groups=None; only scores "
                "of labels have classes for groups"
            )
        k = jax.eval_shape(_labels, self.score, preds).shape[1]
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
    inputs.check_score(score)
    _checks.check_given(preds=preds, y=y)
    rounded, given = is_rounded("y", y), (preds, y)
    preds, y, groups, mask = as_arrays(preds=preds, y=y, groups=groups, mask=mask)
    _checks.num_rows(preds=preds, y=y, groups=groups, mask=mask)
    _checks.check_count("num_groups", num_groups, 1)
    _checks.check_vectors(groups=groups, mask=mask)
    mask = None if mask is None else mask.astype(bool)
    inputs.check(score, preds, y, mask)
    _checks.check_labels("groups", groups, num_groups, mask)
    scores, shapes = evaluate(score, preds, y), row_shapes(preds)
    if rounded:
        check_digits_of_targets(score, preds, y, scores, mask, given)
    return GroupCalibration(score, scores, groups, mask, num_groups, shapes)


@jit
def _labels(score, preds):
    return jax.vmap(score.labels)(preds)
