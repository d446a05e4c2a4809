"""The verb that calibrates the mean of a loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcp import _checks, _names
from jaxcp._arrays import as_array, is_concrete
from jaxcp._batching import invert
from jaxcp._numbers import as_float
from jaxcp._tree import as_callable
from jaxcp.checking.losses import check_call, check_losses, check_targets, is_counted
from jaxcp.held.taking import NO_GROUPS, clustered, held_rows, row_shapes
from jaxcp.quantiles.levels import as_bound
from jaxcp.risk.bounds import one_each
from jaxcp.risk.control import RiskCalibration
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, HasSteps, PyTree, Score

_MANY = tuple, list


@_checks.verb
def calibrate_risk(
    loss: Callable | tuple[Callable, ...],
    score: Score,
    preds: PyTree,
    y: PyTree,
    *,
    bound: float | tuple[float, ...] = 1.0,
    tail: float | tuple[float, ...] | None = None,
    monotone: bool = True,
    grid: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    classes: Iterable[Hashable] | None = None,
) -> RiskCalibration:
    """Returns a calibration whose sets have a mean loss of at most alpha.

    Their threshold is min{q : sum_i L_i(q) + B <= alpha (n + 1)} over all floats, where
    L_i(q) is the loss of the set `score.invert(pred_i, q)` and B its bound.

    Args:
      loss: Loss of one example, `loss(set, y) -> ()` in [0, bound], which nowhere rises
        as the set grows: from `jaxcp.risk` or of your own, of jax.numpy. Arrays that
        are traced are bound to it by `functools.partial`. A loss of flags is counted in
        integers. A tuple of losses keeps each at its own alpha: the sets have the
        largest threshold. NaN counts as the bound.
      score: Gives the sets at a threshold: `score.invert(pred, q)`.
      preds: Predictions for the calibration set, a pytree with leading axis n.
      y: Targets of the loss, arrays with leading axis n. For losses of labels masks of
        flags, or 0 and 1, or one label a row. Rows without labels count.
      bound: The largest loss B, a finite number > 0, or a tuple of one for each loss.
      tail: Controls P(loss > tail) in place of the mean: alpha is then that
        probability. A number in [0, bound), or a tuple of one for each loss.
      monotone: False for losses that may rise with the set. Then the largest loss of
        all larger sets is controlled, max of L_i(q') over q' >= q. That is valid, and
        vacuous where a row loses much with its largest set, as false discoveries do:
        test settings by `risk.learn_then_test` instead. It needs a score that knows
        where its sets change (`typing.HasSteps`), or `grid`.
      grid: Thresholds to choose from in place of all floats, increasing, shape (t,).
      groups: Group of each row, int or its name, shape (n,), for a threshold each.
      num_groups: Number of groups g, unless they have names.
      weights: Weights >= 0 of the rows, shape (n,): likelihood ratios of test to
        calibration inputs, and the sets are asked for with `test_weights`; or fixed
        ones, none above 1, the weight of a test point. Then q is min{q : sum_i w_i
        L_i(q) + w B <= alpha (sum_i w_i + w)} for the weight w of a test point.
      clusters: Cluster of each row, such as its patient, shape (n,), as for
        `calibrate`: the loss of each of K clusters is the mean loss of its rows, and q
        = min{q : sum_k mean of L_i(q) in k + B <= alpha (K + 1)}.
      mask: True where a row counts, shape (n,). Defaults to all rows.
      classes: Names of the k labels of the sets.

    Returns:
      A `RiskCalibration`: call it with predictions and alpha.

    Raises:
      ValueError: if lengths differ, a prediction or target is NaN, targets are no flags
        or labels where the loss takes these, frames have the same columns in two
        orders, or a loss is no number, is known to leave [0, bound] or to rise with the
        threshold.

    Guarantee:
      The mean loss of a new example is at most alpha, in (0, bound): E L(q) <= alpha,
      and >= alpha - 2 B / (n + 1) for i.i.d. losses without common jumps. With `delta`
      the risk of the sets is at most alpha with probability 1 - delta over calibration
      sets. Where too few rows are left, alpha (n + 1) < B, the threshold is +inf.
      With true ratios as weights E L(q) <= alpha; with fixed ones w_i <= 1 at most
      alpha plus B times the weighted total variation distance from exchangeability.
      With clusters E L(q) <= alpha for a row of a new cluster.

    Assumption:
      Exchangeable examples (with `delta` i.i.d.; with ratios independent ones; fixed
      weights do not depend on the data; with clusters these are, and the rows in each),
      a model fitted on other data, and a loss of at most alpha of the largest set:
      `risk(jnp.inf)` of the calibration says what it is.

    Cost:
      One pass over the rows for each of the 32 bits of a float, for each alpha; with
      `grid` one for each bit of its length. With `monotone=False` and k steps a row
      O(n k^2), or one pass for each threshold of the grid.

    References:
      Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.
      Farinhas, Zerva, Ulmer, Martins, Non-Exchangeable Conformal Risk Control, ICLR,
      2024.
      Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
      Prediction Sets, Journal of the ACM, 2021.
      Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data, ACM
      Journal of Data Science, 2026.

    See also:
      risk.RiskCalibration, risk.false_negative_rate, risk.miscoverage,
      scores.MultiLabel, calibrate, first_within

    Example:
      >>> from jaxcp import risk, scores
      >>> p = jnp.array([[0.9, 0.6], [0.8, 0.3], [0.7, 0.4], [0.2, 0.9]])
      >>> y = jnp.array([[1, 1], [1, 0], [1, 1], [0, 1]])
      >>> loss = risk.false_negative_rate
      >>> cp = calibrate_risk(loss, scores.MultiLabel(), p, y, classes=["cat", "dog"])
      >>> cp(jnp.array([[0.75, 0.1]]), alpha=0.3).labels()
      [['cat']]
    """
    inputs.check_score(score)
    losses, bounds, tails = _losses(loss, bound, tail)
    if not monotone and grid is None and not issubclass(type(score), HasSteps):
        raise ValueError(
            "expected grid with monotone=False: the sets of "
            f"{type(score).__name__} may change at any threshold"
        )
    names = None if classes is None else _names.as_names("classes", classes)
    named = NO_GROUPS
    if groups is not None:
        named = _names.as_groups(groups, num_groups, None, mask)
    _checks.weights(weights)  # no bounds of them
    rows = held_rows(score, preds, y, weights, mask, named, names)
    preds, y = rows.values
    inputs.check(score, preds, None, rows.mask)
    _checks.check_not_nan("y", y, rows.mask)
    check_targets(losses, score, preds, y, rows.mask)
    held = RiskCalibration(
        score,
        preds,
        y,
        losses,
        tails,
        rows.mask,
        rows.weights,
        rows.groups,
        None if grid is None else _as_grid(grid),
        bounds,
        several=type(loss) in _MANY,
        monotone=monotone,
        num_groups=named.count,
        row_shapes=row_shapes(preds),
        classes=names,
        group_names=named.names,
    )
    return _checked(clustered(held, clusters))


def _losses(loss: Any, bound: Any, tail: Any) -> tuple[tuple, tuple, tuple]:
    """Returns losses as pytrees, with the bound and the tail of each, after checks."""
    given = loss if type(loss) in _MANY else (loss,)
    losses = tuple(
        as_callable("loss, such as risk.false_negative_rate,", one) for one in given
    )
    if not losses:
        raise ValueError("expected a loss, got an empty tuple")
    for one in losses:
        check_call(one)
    bounds = tuple(map(as_bound, one_each("bound", bound, len(losses), _MANY)))
    tails = one_each("tail", tail, len(losses), _MANY)
    return losses, bounds, tuple(map(_as_tail, tails, bounds))


def _checked(held):
    """Returns the calibration with what its losses are, after checks."""
    if held.classes is not None:  # one a label
        sets = jax.eval_shape(invert, held.score, held.preds, jnp.zeros(()))
        _names.named(sets, held.classes)
    risks = held.risks()
    flags = tuple(map(is_counted, risks))
    for flag, bound in zip(flags, held.bounds, strict=True):
        if flag and bound != 1:
            raise ValueError(f"expected bound=1 for a loss of flags, got {bound:g}")
    check_losses(risks, held.bounds, held.mask)
    pairs = zip(flags, held.tails, strict=True)
    counted = tuple(flag or tail is not None for flag, tail in pairs)
    return dataclasses.replace(held, counted=counted)


def _as_tail(tail, bound):
    """Returns what a loss is to stay within: a number below its bound, or None."""
    if isinstance(tail, bool | np.bool_):
        raise ValueError(f"expected tail as a number or None, got {tail}")
    if tail is not None:
        inside = lambda v: (v >= 0) & (v < bound)  # noqa: E731
        tail = _checks.check_number("tail", tail, inside, f"in [0, {bound:g})")
    return tail


def _as_grid(grid):
    """Returns thresholds in increasing order, shape (t,)."""
    grid = as_float(as_array("grid", grid))
    if grid.ndim != 1 or not len(grid):
        raise ValueError(f"expected grid of shape (t,), t > 0, got {grid.shape}")
    if is_concrete(grid) and not np.all(np.diff(np.asarray(grid)) > 0):
        raise ValueError("expected grid of increasing thresholds, got others")
    return grid
