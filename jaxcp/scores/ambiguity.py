"""Scores of a label by its own probability alone."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.scores._labels import check_probabilities, check_targets, in_range
from jaxcp.sets import LabelSet


class _Alone:
    """A score of each label by itself; a class offers `labels`."""

    labels: Callable[[Array], Array]

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the score of label `y`, shape (); +inf for a label out of range."""
        labels = self.labels(pred)
        return in_range(labels[y], y, len(labels))

    def invert(self, pred: Array, q: Array) -> LabelSet:
        """Returns {y : score <= q}; `q` may be one threshold a label, shape (k,)."""
        return LabelSet(self.labels(pred) <= q)


@pytree
class LAC(_Alone):
    """One minus the probability of the label: 1 - p_y, the smallest sets on average.

    `pred` is p, shape (k,).

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers, 2019.

    Example:
      >>> LAC().invert(jnp.array([0.5, 0.3, 0.2]), 0.75).mask
      Array([ True,  True, False], dtype=bool)
    """

    def labels(self, pred: Array) -> Array:
        """Returns 1 - p of every label, shape (k,)."""
        return 1 - as_float(pred)

    def check(
        self, preds: Array, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless rows are probabilities and labels fit them."""
        check_probabilities(preds, mask)
        check_targets(preds, y, mask)


@pytree
class LogLAC(_Alone):
    """Minus the log probability of the label: -log p_y, for training.

    `pred` are logits, shape (k,), on any scale: -log softmax. The sets at a calibrated
    threshold are those of `LAC`, of which this is an increasing transform; its slope in
    the logits does not vanish for labels that are held to be unlikely.

    Guarantee:
      1 - alpha for exchangeable data.

    References:
      Sadinle, Lei, Wasserman, Least Ambiguous Set-Valued Classifiers, 2019.
      Stutz, Dvijotham, Cemgil, Doucet, Learning Optimal Conformal Classifiers, 2022.

    Example:
      >>> LogLAC().invert(jnp.log(jnp.array([0.5, 0.3, 0.2])), 1.3).mask
      Array([ True,  True, False], dtype=bool)
    """

    def labels(self, pred: Array) -> Array:
        """Returns -log p of every label, shape (k,); +inf for a logit of -inf."""
        return -jax.nn.log_softmax(as_float(pred))

    def check(
        self, preds: Array, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError unless there are logits and labels fit them."""
        check_targets(preds, y, mask)
        _checks.check_values(lambda z: z < jnp.inf, "logits below +inf", preds, mask)
