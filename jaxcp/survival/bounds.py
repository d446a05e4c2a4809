"""Lower bounds of times: rows that were seen for long enough, weighted by how rare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._batching import by_rows
from jaxcp._numbers import as_float
from jaxcp._tree import as_callable, jit, pytree, static
from jaxcp.calibration.rule import WithSameRows
from jaxcp.held.rows import Held
from jaxcp.held.taking import RowShapes, scored
from jaxcp.quantiles._keys import bisect_floats
from jaxcp.scores import Residual, inputs
from jaxcp.sets import Interval
from jaxcp.survival.judging import by_group, check_law
from jaxcp.typing import ArrayLike, Number, PyTree


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
        """Returns min(pred, c) - min(y, c), shape ()."""
        return Residual("lower")(self._capped(pred), self._capped(y))

    def invert(self, pred: Array, q: Array) -> Interval:
        """Returns [min(min(pred, c) - q, c), inf)."""
        lower, upper = Residual("lower").invert(self._capped(pred), q).ends()
        return Interval(self._capped(lower), upper)

    def _capped(self, time):
        # At a number in any case: infinite times are not subtracted.
        most = jnp.finfo(self.cutoff.dtype).max
        return jnp.minimum(time, jnp.minimum(self.cutoff, most))


@pytree
class LowerCalibration(WithSameRows):
    """Scores of rows that were seen up to a cutoff, for lower bounds of times.

    Made by `calibrate_lower`. It is called as `cp(preds, alpha, probability=...)`, with
    the probability that each new unit is seen up to the cutoff; `quantile` and
    `effective_size` take that of one unit, `p_values` those of candidate times.

    Args:
      score: min(pred, c) - min(time, c), c the cutoff.
      held: Scores of the rows, which of them count, and their weights.
      row_shapes: Shapes of one prediction, which later ones must have, or None.

    See also:
      survival.calibrate_lower, survival.coverage, Rule, save
    """

    score: CappedResidual
    held: Held
    row_shapes: RowShapes | None = static(default=None)
    promise = "P(T >= bound) >= 1 - {alpha}"
    assumption = (
        "units are independent and of one law, T and C are independent given x, the "
        "probabilities are the true ones, and they, the model and the cutoff come from "
        "other rows"
    )
    _by_group = staticmethod(by_group)  # a report counts censored rows in this way

    def weights_at(self, probability: Array) -> tuple[Any, Array]:
        """Returns the weights of the rows, and 1 / probability of the test unit."""
        # Also where a traced one is NaN the test unit weighs all.
        return self.held.weights, 1 / jnp.where(probability > 0, probability, 0)

    def _declared(self, given, lead=1):
        super()._declared(given, lead)
        return {k: _checks.Column(v, _check_probability) for k, v in given.items()}

    def _p_values_of_scores(self, scores, y, *given, **context):
        # Times from the cutoff on are in every set.
        scores = jnp.where(y >= self.score.cutoff, -jnp.inf, scores)
        return super()._p_values_of_scores(scores, y, *given, **context)


@_checks.verb
def calibrate_lower(
    preds: PyTree,
    time: ArrayLike,
    censoring: ArrayLike,
    *,
    cutoff: Number,
    probability: ArrayLike,
    mask: ArrayLike | None = None,
) -> LowerCalibration:
    """Returns the calibration of lower bounds of times until an event.

    Of a time T only min(T, C) is seen, C its censoring time. Rows with C >= c count, c
    the cutoff, since min(T, c) is known of them, and weigh 1 / P(C >= c | x), which
    undoes that they were chosen by C. With the weighted quantile q of their scores
    min(pred, c) - min(T, c) the bound is min(min(pred, c) - q, c).

    Where C is seen of censored rows alone, there are two ways. It is drawn for the
    others: `impute_censoring`. Or no draw: rows with an event, or with a time of at
    least c, weigh 1 / P(C >= min(time, c) | x), given as `probability`, and `censoring`
    is `jnp.where(event, jnp.inf, time)`.

    Args:
      preds: Predicted times, shape (n,), by a model that has not seen these rows. Low
        quantiles, about alpha, give bounds that differ between units; many medians are
        beyond the cutoff, where all bounds are the same.
      time: Observed times min(T, C), shape (n,), in units of their own.
      censoring: Censoring times C, shape (n,): of all rows, those with an event too;
        not their observed times. +inf where a row could not have been censored.
      cutoff: Time c, shape (), fixed or chosen on other rows. A later one allows larger
        bounds of fewer rows, which weigh more. +inf where nothing is censored.
      probability: P(C >= c | x) of the rows, in (0, 1], shape (n,): C = c counts as
        seen, so of a survival function G of C this is G(c-), the limit from the left.
        Rows that do not count may have any.
      mask: True where a row counts, shape (n,). Defaults to all rows.

    Returns:
      A `LowerCalibration`: call it with predictions, alpha and `probability`, P(C >= c
      | x) of each new unit, shape (m,), for `Interval`s [bound, +inf). The bound is
      -inf where the weights do not reach, as where no row counts: where times are not
      negative, `sets.clip(lower=0.0)`. `p_values(preds, y, probability=...)` are those
      of candidate times y.

    Raises:
      ValueError: if lengths differ, a number is NaN, C is below the time (as where the
        two are swapped, or C is a flag of events), or the probability of a row that
        counts, or of a new unit, is outside (0, 1]. Of traced values a row of
        probability 0 counts nothing, and a new unit of probability 0 has the bound
        -inf.

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
      Data, ICML, 2025.

    See also:
      survival.coverage, survival.impute_censoring, survival.LowerCalibration,
      learners.KaplanMeier, calibrate, weighted_conformal_quantile, scores.Residual

    Example:
      >>> time, censoring = jnp.arange(1.0, 9.0), jnp.array([9.0, 2.0] * 4)
      >>> time, preds = jnp.minimum(time, censoring), jnp.full(8, 4.0)
      >>> half = jnp.full(8, 0.5)  # P(C >= 6)
      >>> cp = calibrate_lower(preds, time, censoring, cutoff=6.0, probability=half)
      >>> cp(jnp.array([4.0, 5.0]), 0.4, probability=half[:2]).lower.round(2)
      Array([3., 4.], dtype=float32)
    """
    cutoff = _checks.check_number("cutoff", cutoff, lambda c: c == c, "without NaN")
    columns = {"time": _checks.scores(time), "censoring": _checks.scores(censoring)}
    columns |= {"probability": _checks.vector(probability), "mask": _checks.mask(mask)}
    _, times, censoring, p, mask = _checks.rows(preds=preds, **columns)
    score = CappedResidual(jnp.asarray(cutoff, as_float(times).dtype))
    rows = times, censoring, p, mask
    kept, weights, gap = by_rows(_kept, score.cutoff, rows=rows)
    possible = "censoring - time >= 0, as time is min(T, C) and C a time"
    cure = "; of flags of events it is numpy.where(event, numpy.inf, time)"
    _checks.check_values(lambda gap: ~(gap < 0), possible, gap, mask, cure)
    _check_probability("probability", p, kept)
    held, shapes = scored(score, preds, time, mask=kept)
    return LowerCalibration(score, dataclasses.replace(held, weights=weights), shapes)


@jit
def _kept(cutoff, time, censoring, p, mask):
    """Returns which rows count, their weights, and how far C is beyond the time."""
    kept = censoring >= cutoff if mask is None else (censoring >= cutoff) & mask
    return kept, jnp.where(kept & (p > 0), 1 / p, 0), censoring - as_float(time)


def _check_probability(name, p, mask):
    """Raises ValueError for a probability to be seen that is known, outside (0, 1]."""
    cure = "; units that are never seen up to the cutoff need an earlier one"
    known = f"{name} in (0, 1]"
    _checks.check_range(lambda v: (v > 0) & (v <= 1), known, p, mask, cure)


@_checks.by_labels
def impute_censoring(
    key: Array, model: Callable, x: PyTree, time: ArrayLike, event: ArrayLike
) -> Array:
    """Returns censoring times of all rows, those of rows with an event drawn.

    A row without an event was censored at its time. Of one with an event at T, only C
    >= T is known: C is drawn from the model's law given x and C >= T, as the largest c
    with P(C >= c | x) >= u P(C >= T | x), u uniform. It is at least a cutoff c > T with
    probability P(C >= c | x) / P(C >= T | x): G(c-) / G(T-) of a survival function G.

    Args:
      key: Random key.
      model: Function (x, c) of P(C >= c | x), shape (n,), of all rows x and one time
        for each, c (n,), in jax. `learners.KaplanMeier(reverse=True).fit(time, event)`
        is one that reads no x. Of a model on the host `calibrate_lower` takes
        probabilities, without a draw.
      x: Inputs as the model takes them, leading axis n, or None.
      time: Observed times min(T, C), shape (n,).
      event: True where T was observed, T <= C, shape (n,).

    Returns:
      Censoring times for `calibrate_lower`, shape (n,), of any cutoffs; +inf where the
      model lets C be larger than all times. A row with P(C >= T | x) = 0 keeps T.

    Raises:
      ValueError: if lengths differ, a time is NaN, a flag neither 0 nor 1, or the model
        is no function, is a Kaplan-Meier curve of T, cannot be traced or returns
        another shape.

    Guarantee:
      That of `calibrate_lower`, at least 1 - alpha, where the model is the true law of
      C given x. With a fitted one asymptotic: as the fit comes close to the law.

    Assumption:
      T and C independent given x, and a model from other rows.

    Cost:
      One call of the model for each bit of a float.

    References:
      Sesia, Svetnik, Doubly Robust Conformalized Survival Analysis with Right-Censored
      Data, ICML, 2025.

    See also:
      survival.calibrate_lower, learners.KaplanMeier

    Example:
      >>> law = lambda x, c: jnp.exp(-c / x)  # exponential, of mean x
      >>> time, event = jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 0, 1])
      >>> key, x = jax.random.key(0), jnp.full(3, 10.0)
      >>> drawn = impute_censoring(key, law, x, time, event)
      >>> (drawn >= time).all().item(), drawn[1].item()
      (True, 2.0)
    """
    _checks.check_key(key)
    model = as_callable("model(x, c), P(C >= c given x),", model)
    check_law(model)
    flags = _checks.mask(event)._replace(required=True)
    columns = {"time": _checks.scores(time), "event": flags}
    x, times, event = _checks.rows(x=_checks.optional(x), **columns)
    return _imputed(key, model, x, as_float(times), event)


@jit
def _imputed(key, model, x, time, event):
    """Returns the largest c with P(C >= c) >= u P(C >= T) of rows with an event."""
    at_least = model(x, time)
    _checks.check_shape("model(x, c)", time.shape, jnp.shape(at_least))
    level = (1 - jax.random.uniform(key, time.shape, time.dtype)) * at_least  # above 0
    holds = lambda c: (model(x, c) >= level) & (level > 0)  # noqa: E731
    drawn = bisect_floats(holds, time.dtype, time.shape)
    return jnp.where(event, jnp.maximum(drawn, time), time)
