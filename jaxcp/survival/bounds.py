"""Lower bounds of times: rows that were seen for long enough, weighted by how rare."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import by_rows
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.rule import Rule
from jaxcp.held.rows import Held, len_of
from jaxcp.held.taking import RowShapes, scored
from jaxcp.scores import Residual, inputs
from jaxcp.sets import Interval
from jaxcp.typing import ArrayLike, Number, PyTree

_ERROR = Residual("lower")


@pytree
class CappedResidual:
    """The error of a predicted time, both capped: min(pred, c) - min(time, c).

    Sets are [min(min(pred, c) - q, c), inf), c the cutoff: from c on no time is told
    from another, and all of them are in every set. Made by `calibrate_lower`.

    Args:
      cutoff: Time c up to which rows are seen, shape (); +inf of times all seen.

    See also:
      survival.calibrate_lower, scores.Residual
    """

    cutoff: Array
    takes = inputs.on_line(inputs.numbers())
    exact = False  # the cutoff is in sets that would begin later

    def __call__(self, pred: Array, y: Array) -> Array:
        """Returns min(pred, c) - min(y, c), 0 of equal infinities, shape ()."""
        pred, y = self._capped(pred), self._capped(y)
        return jnp.where(pred.reshape(y.shape) == y, 0, _ERROR(pred, y))

    def invert(self, pred: Array, q: Array) -> Interval:
        """Returns [min(min(pred, c) - q, c), inf)."""
        lower, upper = _ERROR.invert(self._capped(pred), q).ends()
        lower = jnp.minimum(lower, self.cutoff.astype(lower.dtype))
        return Interval(jnp.where(q == jnp.inf, -jnp.inf, lower), upper)

    def _capped(self, time):
        time = as_float(time)
        return jnp.minimum(time, self.cutoff.astype(time.dtype))


@pytree
class LowerCalibration(Rule):
    """Scores of rows that were seen up to a cutoff, for lower bounds of times.

    Made by `calibrate_lower`. It is called as `cp(preds, alpha, probability=...)`, with
    the probability that each new unit is seen up to the cutoff; `quantile` and
    `effective_size` take that of one unit, `p_values` those of candidate times.

    Args:
      score: min(pred, c) - min(time, c), c the cutoff.
      held: Scores of the rows, which of them count, and their weights.
      row_shapes: Shapes of one prediction, which later ones must have, or None.

    See also:
      survival.calibrate_lower, Rule, save
    """

    score: Any
    held: Held
    row_shapes: RowShapes | None = static(default=None)

    def weights_at(self, probability: Array) -> tuple[Array, Array]:
        """Returns the weights of the rows, and 1 / probability of the test unit."""
        own = jnp.where(probability > 0, 1 / probability, jnp.inf)
        return self.held.weights, own  # type: ignore[return-value]

    def _declared(self, given, lead=1):
        super()._declared(given, lead)
        return {k: _checks.Column(v, _check_probability) for k, v in given.items()}

    def _p_values_of_scores(self, scores, y, u, rounds, **context):
        # Times from the cutoff on are in every set.
        scores = jnp.where(y >= self.score.cutoff, -jnp.inf, scores)
        return super()._p_values_of_scores(scores, y, u, rounds, **context)

    def _num_held(self):
        return len_of(self.held.values) if type(self) is LowerCalibration else 0

    def _filled(self, size):
        return dataclasses.replace(self, held=self.held.filled(size))


def calibrate_lower(
    preds: PyTree,
    time: ArrayLike,
    censoring: ArrayLike | None = None,
    *,
    event: ArrayLike | None = None,
    cutoff: Number,
    probability: ArrayLike,
    mask: ArrayLike | None = None,
) -> LowerCalibration:
    """Returns the calibration of lower bounds of times until an event.

    Of a time T only min(T, C) is seen, C its censoring time. Rows with C >= c count, c
    the cutoff, since min(T, c) is known of them, and weigh 1 / P(C >= c | x), which
    undoes that they were chosen by C. With the weighted quantile q of their scores
    min(pred, c) - min(T, c) the bound is min(min(pred, c) - q, c).

    Where C is seen of censored rows alone, give it drawn (`impute_censoring`), or leave
    it out and give `event`: rows with an event, or with a time of at least c, then
    count, with weights 1 / P(C >= min(time, c) | x).

    Args:
      preds: Predicted times, shape (n,), by a model that has not seen these rows.
      time: Observed times min(T, C), shape (n,), in units of their own.
      censoring: Censoring times C, shape (n,): of all rows, those with an event too;
        not their observed times. +inf where a row could not have been censored.
      event: In place of `censoring`, True where T was observed, T <= C, shape (n,).
      cutoff: Time c, shape (), fixed or chosen on other rows. A later one allows larger
        bounds of fewer rows, which weigh more. +inf where nothing is censored.
      probability: P(C >= c | x) of the rows, in (0, 1], shape (n,): C = c counts as
        seen, so of a survival function G of C this is G(c-), the limit from the left.
        With `event` P(C >= min(time, c) | x). Rows that do not count may have any.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      A `LowerCalibration`: call it with predictions, alpha and `probability`, P(C >= c
      | x) of each new unit, shape (m,), for `Interval`s [bound, +inf). The bound is
      -inf where the weights do not reach, as where no row counts: where times are not
      negative, `sets.clip(lower=0.0)`. `p_values(preds, y, probability=...)` are those
      of candidate times y.

    Raises:
      ValueError: if lengths differ, a number is NaN, both or none of `censoring` and
        `event` are given, or the probability of a row that counts, or of a new unit, is
        outside (0, 1]. Of traced values a row of probability 0 counts nothing, and a
        new unit of probability 0 has the bound -inf.

    Guarantee:
      P(T >= bound) >= 1 - alpha, on average over calibration sets and new units, with
      the true probabilities. With estimated ones only as they come close to the true
      ones. There are no upper bounds: no time beyond the cutoff is ever seen, and all
      that is known of T may be that it is larger. They would be +inf.

    Assumption:
      Independent units of one law; T and C independent given x; a model, a cutoff and
      probabilities from other rows.

    Cost:
      n scores, which are kept; one threshold for each new unit, which share one sort.

    References:
      Candes, Lei, Ren, Conformalized Survival Analysis, Journal of the Royal
      Statistical Society B, 2023.
      Sesia, Svetnik, Doubly Robust Conformalized Survival Analysis with Right-Censored
      Data, arXiv, 2024.

    See also:
      survival.impute_censoring, survival.LowerCalibration, learners.KaplanMeier,
      calibrate, weighted_conformal_quantile, scores.Residual

    Example:
      >>> time, censoring = jnp.arange(1.0, 9.0), jnp.array([9.0, 2.0] * 4)
      >>> time, preds = jnp.minimum(time, censoring), jnp.full(8, 4.0)
      >>> half = jnp.full(8, 0.5)  # P(C >= 6)
      >>> cp = calibrate_lower(preds, time, censoring, cutoff=6.0, probability=half)
      >>> cp(jnp.array([4.0, 5.0]), 0.4, probability=half[:2]).lower.round(2)
      Array([3., 4.], dtype=float32)
    """
    _checks.check_number("cutoff", cutoff, lambda c: c == c, "without NaN")
    if (censoring is None) == (event is None):
        got = "neither" if event is None else "both"
        raise ValueError(
            "expected censoring, the times C of all rows, or event, flags of the rows "
            f"whose T is seen, got {got}"
        )
    columns = {"time": _checks.scores(time), "mask": _checks.mask(mask)}
    columns |= {"probability": _checks.vector(probability)}
    if event is None:
        columns |= {"censoring": _checks.scores(censoring)}
    else:
        columns |= {"event": _checks.mask(event)}
    _, times, mask, probability, seen = _checks.rows(preds=preds, **columns)
    score = CappedResidual(jnp.asarray(cutoff, as_float(times).dtype))
    seen = as_float(seen) if event is None else seen
    mask, weights = by_rows(_kept, score.cutoff, rows=(times, seen, probability, mask))
    _check_probability("probability", probability, mask)
    held, shapes = scored(score, preds, time, mask=mask)
    held = dataclasses.replace(held, weights=weights)
    return LowerCalibration(score, held, shapes)


@jit
def _kept(cutoff, times, seen, probability, mask):
    """Returns which rows count, by their times C or flags of events, and weights."""
    kept = seen | (times >= cutoff) if seen.dtype == bool else seen >= cutoff
    kept = kept if mask is None else kept & mask
    p = as_float(probability)
    return kept, jnp.where(kept & (p > 0), 1 / jnp.where(p > 0, p, 1), 0)


def _check_probability(name, p, mask):
    """Raises ValueError for a probability to be seen that is known, outside (0, 1]."""
    cure = "; units that are never seen up to the cutoff need an earlier one"
    _checks.check_range(
        lambda v: (v > 0) & (v <= 1), f"{name} in (0, 1]", p, mask, cure
    )
