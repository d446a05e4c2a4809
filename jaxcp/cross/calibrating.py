"""The verb that calibrates rows by recorded predictions, and what it shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp.calibration.calibrating import calibrate
from jaxcp.cross import _programs, _recorded
from jaxcp.cross._left_out import (
    Aggregation,
    Ensemble,
    OwnFit,
    left_out_by,
    rows_left_out,
)
from jaxcp.cross.predictions import CrossCalibration
from jaxcp.scores import inputs
from jaxcp.typing import ArrayLike, PyTree, Score


def cross_calibrate(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    held_out: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    aggregation: Aggregation = "mean",
    classes: Iterable[Hashable] | None = None,
) -> CrossCalibration:
    """Returns the calibration of rows by fits that leave them out, from predictions.

    For models of any library: jackknife+, CV+, jackknife+-after-bootstrap and EnbPI
    need predictions alone. Row i is predicted by the fits j with held_out[j, i], by
    their aggregate if there are several. A row that no fit left out does not count
    where fits leave out one fold each; where rows are left out by several, as by bags,
    it counts with the score +inf.

    Args:
      score: Nonconformity score of one example, from `jaxcp.scores`.
      preds: Predictions of each of b fits for the n rows, a pytree with leading axes
        (b, n), or a list with those of each fit. Predictions for rows that a fit was
        fitted on are ignored and may be NaN. A randomized score takes one uniform for
        each row, the same in all fits.
      y: Targets, shape (n, ...), or labels 0, ..., k - 1.
      held_out: True where a fit was made without a row, bool of shape (b, n).
      weights: Weights >= 0 of the rows' scores, shape (n,), as for `calibrate`: ratios,
        with `test_weights`, or fixed ones, none above 1. They are normalized once over
        all rows, with an infinite atom for the test point at both ends.
      mask: True where a row counts, shape (n,). Defaults to all rows. Libraries that
        drop rows of every bag have `mask=held_out.any(axis=0)`.
      aggregation: "mean" or "median" of the fits without a row, or a function of two
        arrays, which jax can trace: the values of all fits, (b, ...), and which of them
        left the row out, (b,).
      classes: Names of the k labels, one a column of the predictions, as for
        `calibrate`: `y` is then given by name, and sets give names back.

    Returns:
      A `CrossCalibration`: call it with predictions of the b fits at new inputs.

    Raises:
      ValueError: if shapes do not fit, every fit holds every row, a prediction of a row
        held out is NaN, or as `calibrate`. Where `held_out` is traced and no row is
        left out the sets are infinite.

    Guarantee:
      As `CrossCalibration.__call__`: 1 - 2 alpha if each row is left out by one fit of
      its own (K folds of one size: minus a term below sqrt(2 / n)), and for bags if
      their number is drawn, as in `jackknife_plus_after_bootstrap`. Other plans have
      none.

    Assumption:
      The rows and test examples are exchangeable, and each fit saw all rows but those
      that it left out, by one rule that treats rows alike.

    Cost:
      No fit: O(b n) time to combine the predictions, and n scores.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021.
      Kim, Xu, Barber, Predictive Inference Is Free with the Jackknife+-after-Bootstrap,
      NeurIPS, 2020 (bags).

    See also:
      cv_plus, cross_conformal, calibrate, learners.Estimator

    Example:
      >>> import numpy as np
      >>> from jaxcp import scores
      >>> x = np.arange(12.0)
      >>> y = 2 * x + np.where(x % 2, 1, -1)
      >>> fold = np.arange(12) % 3
      >>> held_out = fold == np.arange(3)[:, None]  # CV+ with three folds
      >>> lines = [np.polyfit(x[~held], y[~held], 1) for held in held_out]
      >>> preds = np.stack([np.polyval(line, x) for line in lines])
      >>> cp = cross_calibrate(scores.Absolute(), preds, y, held_out)
      >>> new = np.stack([np.polyval(line, [5.0]) for line in lines])
      >>> round(cp(new, alpha=0.2).upper.item(), 1)
      11.5
    """
    inputs.check_score(score)
    held_out, mask = _recorded.check_held_out(held_out, mask)
    preds = _recorded.known_preds(preds, held_out)
    left_out = left_out_by(held_out, aggregation)
    own = _programs.held_out(left_out, preds)
    return of_held_out(left_out, score, own, y, weights, classes, mask=mask)


def of_held_out(
    left_out: OwnFit | Ensemble,
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    weights: ArrayLike | None,
    classes: Iterable[Hashable] | None,
    *,
    mask: Array | None = None,
    bags: bool = False,
) -> CrossCalibration:
    """Returns the calibration of rows by their held-out predictions, (n, ...).

    `bags` says that fits are of bags: a row of the mask that is in all of them counts.
    """
    known = rows_left_out(left_out.mask)
    calibration = calibrate(
        score, preds, y, weights=weights, mask=known, classes=classes
    )
    if known is not None and isinstance(left_out, Ensemble):
        of = left_out.held_out, mask, jnp.asarray(np.asarray(bags))
        scores, counts = _programs.counted(calibration.scores, *of)
        calibration = dataclasses.replace(calibration, scores=scores, mask=counts)
    return CrossCalibration(left_out, calibration)
