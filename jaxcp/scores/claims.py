"""Scores of answers that make several claims, as those of language models."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import as_float
from jaxcp._tree import pytree
from jaxcp.scores import inputs
from jaxcp.sets.labels import Kept, is_share
from jaxcp.typing import Number, PyTree


@pytree
class Claims:
    """The largest confidence from which up too few claims of an answer are true.

    `pred` is (confidences, mask), each of shape (m,): how sure a model is of each claim
    of an answer, on any scale, and where there is a claim. `y` says which are true,
    shape (m,). The score is

    max {c_j : #{i : c_i >= c_j, y_i} < share #{i : c_i >= c_j}},

    -inf if there is no such claim. Claims of equal confidence enter together. The sets
    keep the claims with confidence above q, and hold y if at least the share of them
    are true. Answers are padded to one length m, which may be another after
    calibration; padded claims count nowhere, and their confidences may be NaN.

    Down from the most confident claim, the score is where the share first falls short.
    A share below 1 may be reached again further down. So the sets may hold more than
    {score <= q}: y is in {score <= q} if the share holds at q and at every threshold
    above it. P-values are about this, and certificates say "at least". At a share of 1
    the two are the same.

    Args:
      share: Least share of true claims among those that are kept, in (0, 1].

    Guarantee:
      At least 1 - alpha that a share of the claims kept are true, or that none are
      kept, at a threshold from `calibrate`.

    Assumption:
      Exchangeable answers, each with its claims, confidences and truths. The truths
      are those of the annotator: coverage is about his.

    Cost:
      O(m^2) time for the score of an answer, O(m) for a set.

    References:
      Mohri, Hashimoto, Language Models with Conformal Factuality Guarantees, ICML,
      2024. Their code breaks ties of confidences by noise, and has -1e5 for -inf.

    See also:
      sets.Kept, calibrate_conditional, risk.false_discovery_rate, scores.MultiLabel

    Example:
      >>> confidences = jnp.array([0.75, 0.5, 0.5, 0.25])
      >>> pred = confidences, jnp.array([True, True, True, False])
      >>> Claims()(pred, jnp.array([True, False, True, False])).item()
      0.5
      >>> Claims(0.6)(pred, jnp.array([True, False, True, False])).item()
      -inf
      >>> Claims().invert(pred, 0.5).labels()
      [0]
    """

    share: Number = 1.0
    takes = inputs.claims()

    @property
    def exact(self) -> bool:
        """Whether the share is 1, which is never reached again, as far as is known."""
        return is_concrete(self.share) and bool(np.all(np.asarray(self.share) == 1))

    def check(
        self, preds: PyTree, y: Array | None = None, mask: Array | None = None
    ) -> None:
        """Raises ValueError for a share outside (0, 1]."""
        valid = lambda v: (v > 0) & (v <= 1)  # noqa: E731
        _checks.check_number("share", self.share, valid, "in (0, 1]")

    def __call__(self, pred: tuple[Array, Array], y: Array) -> Array:
        """Returns the largest confidence where too few are true, shape (); or -inf."""
        steps = self.steps(pred)
        there = jnp.asarray(pred[1]) != 0
        kept = there[None] & (steps[None] >= steps[:, None])
        holds = is_share(kept & (jnp.asarray(y) != 0)[None], kept, self.share)
        return jnp.max(jnp.where(holds, -jnp.inf, steps), initial=-jnp.inf)

    def invert(self, pred: tuple[Array, Array], q: Array) -> Kept:
        """Returns the claims with confidence above q."""
        return Kept(self.steps(pred) > q, as_float(self.share))

    def steps(self, pred: tuple[Array, Array]) -> Array:
        """Returns the confidences, at which claims drop out; -inf for no claim."""
        confidences, mask = pred
        return jnp.where(jnp.asarray(mask) != 0, as_float(confidences), -jnp.inf)
