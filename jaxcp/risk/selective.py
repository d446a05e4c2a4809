"""Answers given or withheld: the lowest confidence at which errors stay rare."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, is_rounded
from jaxcp._numbers import as_float
from jaxcp.pvalues.familywise import as_starts, runs
from jaxcp.quantiles._binomial import critical_counts
from jaxcp.quantiles.levels import as_delta, one_alpha
from jaxcp.typing import ArrayLike

_ON_HOST = "; counts that pass are found on the host: write alpha=0.1"


def selective_threshold(
    confidence: ArrayLike,
    correct: ArrayLike,
    alpha: float,
    delta: float,
    *,
    grid: ArrayLike,
    starts: Sequence[int] | ArrayLike = (0,),
) -> tuple[Array, Array]:
    """Returns the confidence from which to answer: at most alpha of answers are wrong.

    At a threshold t the rows with confidence >= t are answered, m of them, k wrongly;
    it passes if P(Bin(m, alpha) <= k) <= delta / j. From each of the j starts on the
    grid is gone down while thresholds pass. In integers: k against the largest count
    that passes among m answers.

    Begin where there is data. A start with m answers fails for sure unless (1 -
    alpha)^m <= delta / j, 22 answers for alpha = delta = 0.1, and at the highest
    thresholds nobody is answered. On other rows, such as those that the model was
    fitted on or a first part of these, find the highest threshold with, say, three
    times as many answers, scaled to n rows, and begin there: `grid` may end above it.
    Several starts, each with delta / j, are for when there are no such rows.

    Args:
      confidence: Confidence in an answer, shape (n,). NaN is not answered.
      correct: Whether the answer is right, bool of shape (n,).
      alpha: Share of errors among answers, a number in (0, 1).
      delta: Probability of a threshold that errs more often, a number in (0, 1).
      grid: Thresholds in decreasing order, shape (g,), chosen without these rows.
      starts: Indices of the grid to begin at, chosen without these rows, shape (j,).

    Returns:
      The smallest valid threshold, shape (), +inf if there is none: answer nobody; and
      the valid thresholds of the grid, bool of shape (g,). Where confidences or the
      grid have digits of double precision that are rounded here, the threshold is the
      float below the number on the grid: confidence >= threshold then means the same
      before rounding, as in numpy, and after, and is the rule that was tested.

    Raises:
      ValueError: if lengths differ, `grid` is empty or does not decrease, starts are no
        distinct indices of it, or `alpha` or `delta` are no numbers in (0, 1).

    Guarantee:
      P(P(wrong, given answered) <= alpha) >= 1 - delta over the rows, for all valid
      thresholds at once.

    Assumption:
      I.i.d. rows, and a grid and starts that do not depend on them, which no check can
      see: quantiles of `confidence` would be chosen by these rows.

    Cost:
      O(n log g) time, and a table of n counts on the host.

    References:
      Geifman, El-Yaniv, Selective Classification for Deep Neural Networks, Advances in
      Neural Information Processing Systems, 2017.
      Angelopoulos, Bates, Candes, Jordan, Lei, Learn then Test: Calibrating Predictive
      Algorithms to Achieve Risk Control, Annals of Applied Statistics, 2025.

    See also:
      risk.learn_then_test, risk.critical_count, pvalues.fixed_sequence

    Example:
      >>> confidence = jnp.linspace(0.5, 1.0, 500)
      >>> correct = (jnp.arange(500) % 10 > 0) | (confidence > 0.8)
      >>> grid = jnp.array([1.0, 0.9, 0.8, 0.7, 0.6])
      >>> threshold, valid = selective_threshold(
      ...     confidence, correct, alpha=0.05, delta=0.1, grid=grid, starts=(1,)
      ... )
      >>> round(threshold.item(), 2), valid.tolist()
      (0.8, [False, True, True, False, False])
    """
    right = _checks.required(_checks.vector(correct))
    sure = _checks.required(_checks.vector(confidence))
    sure, correct = _checks.rows(confidence=sure, correct=right)
    if jnp.issubdtype(correct.dtype, jnp.inexact):
        raise ValueError(f"expected correct as bool, got {correct.dtype}")
    _checks.check_flags("correct as bool", correct)
    thresholds = _check_grid(grid)
    if is_rounded("confidence", confidence) or is_rounded("grid", grid):
        # A number that rounds to one of the grid is not below it before it is rounded.
        thresholds = jnp.nextafter(thresholds, -jnp.inf)
    starts = as_starts(starts, len(thresholds))
    share = as_delta(delta) / len(starts)
    level = one_alpha(alpha, _ON_HOST)
    table = critical_counts(len(sure), level, share)
    return _threshold(sure, correct != 0, thresholds, starts, table)


def _check_grid(grid):
    grid = as_float(as_array("grid", grid))
    _checks.check_vectors(grid=grid)
    if not len(grid):
        raise ValueError("expected a grid of at least one threshold, got none")
    falls = lambda v: np.append(True, v[1:] < v[:-1]) & ~np.isnan(v)  # noqa: E731
    cure = "; numpy.unique(grid)[::-1] is in this order"
    _checks.check_values(falls, "grid in decreasing order", grid, cure=cure)
    return grid


@jax.jit
def _threshold(confidence, correct, grid, starts, table):
    answered, errors = _counts(confidence, correct, grid)
    valid = runs(errors <= jnp.asarray(table)[answered], starts)
    # The grid decreases: the smallest threshold is the last.
    return jnp.min(jnp.where(valid, grid, jnp.inf)), valid


def _counts(confidence, correct, grid):
    """Returns how many rows are answered at each threshold, and how many wrongly."""
    g, dtype = len(grid), jnp.result_type(confidence, grid)
    # The first threshold at which a row is answered: g for none, as for NaN.
    above = jnp.searchsorted(-grid.astype(dtype), -confidence.astype(dtype))
    first = jnp.where(jnp.isnan(confidence), g, above)
    zero = jnp.zeros(g + 1, int)
    rows = jnp.cumsum(zero.at[first].add(1))[:g]
    return rows, jnp.cumsum(zero.at[first].add((~correct).astype(int)))[:g]
