"""Label scores up to a rank for each class."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import labels_of
from jaxcp._tree import pytree
from jaxcp.scores import inputs
from jaxcp.scores.labels import Labelwise, ranks
from jaxcp.typing import LabelScore, PyTree


@pytree
class Truncated(Labelwise):
    """A label score that is +inf for labels beyond the rank that their class has.

    Rank 1 is the label of the smallest base score, of equal ones the first label. With
    `calibrate_groups(..., groups=y)` sets lose labels of high rank, as in RC3P, and
    keep 1 - alpha in each class. `pred` is that of the base score.

    Args:
      base: A score of labels.
      limits: Largest rank of each class, shape (k,), chosen on rows that do not
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
      Array([ inf, 0.5, inf], dtype=float32)
    """

    base: LabelScore
    limits: Array

    @property
    def takes(self) -> inputs.Input:
        """What `pred` is."""
        return inputs.of(self.base)

    def labels(self, pred: PyTree) -> Array:
        """Returns the score of every label, shape (k,), +inf beyond its limit."""
        scores = labels_of(self.base, pred)
        _checks.check_shape("limits", scores.shape, jnp.shape(self.limits))
        return jnp.where(ranks(-scores) <= self.limits, scores, jnp.inf)
