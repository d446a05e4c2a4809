"""Scores of labels, from what a model says of each: probabilities or logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp._batching import labels_of
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.scores import inputs
from jaxcp.sets import LabelSet
from jaxcp.typing import LabelScore, PyTree


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


def in_range(score, y, k):
    """Returns the score of label `y`, +inf if it is none of 0, ..., k - 1."""
    y = jnp.asarray(y).astype(int)  # narrow types cannot hold k
    return jnp.where((y >= 0) & (y < k), score, jnp.inf)
