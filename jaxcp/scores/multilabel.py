"""The score of several labels, or pixels, that may hold together."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxcp._numbers import as_float
from jaxcp._pytree import pytree
from jaxcp.scores import inputs
from jaxcp.sets import LabelMask


@pytree
class MultiLabel:
    """One minus the least probability of a true label: max over y of 1 - p.

    `pred` is p, any shape: a probability for each label or pixel; they need not sum to
    one. `y` is a mask of that shape, true where a label holds; without any the score is
    -inf. The sets are {1 - p <= q}, one threshold for all labels: they hold all true
    labels together. `risk.calibrate_risk` finds a threshold that keeps the share of
    missed ones at a level instead, in smaller sets.

    Guarantee:
      At least 1 - alpha that all true labels are in the set, at a threshold from
      `calibrate`.

    Assumption:
      Exchangeable examples, and a model fitted on other data.

    Cost:
      O(k) time for a score and for a set of k labels or pixels.

    References:
      Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.

    See also:
      sets.LabelMask, risk.calibrate_risk, risk.false_negative_rate, scores.LAC

    Example:
      >>> p = jnp.array([0.875, 0.25, 0.5])
      >>> MultiLabel()(p, jnp.array([True, False, True]))
      Array(0.5, dtype=float32)
      >>> MultiLabel().invert(p, 0.5).mask
      Array([ True, False,  True], dtype=bool)
    """

    takes = inputs.multilabel()

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns the largest 1 - p of a true label, shape (); -inf without any."""
        missed = jnp.where(jnp.asarray(y) != 0, self.steps(pred), -jnp.inf)
        return jnp.max(missed, initial=-jnp.inf)

    def invert(self, pred: Array, q: Array) -> LabelMask:
        """Returns {1 - p <= q}; `q` may be one threshold a label, shaped like them."""
        steps = self.steps(pred)
        return LabelMask(~(steps > q), steps.ndim)  # a NaN leaves nothing out

    def steps(self, pred: Array) -> Array:
        """Returns 1 - p, the thresholds at which the set grows."""
        return 1 - as_float(pred)
