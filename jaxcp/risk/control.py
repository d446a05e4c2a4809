"""Calibration that keeps the mean of a loss at alpha."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks, _names
from jaxcp._arrays import as_array
from jaxcp._numbers import as_float
from jaxcp._tree import jit, pytree, static
from jaxcp.calibration.rule import Thresholds, blocks_of
from jaxcp.certificates import RiskCertificate
from jaxcp.certificates.promises import HELD_OUT
from jaxcp.held.rows import Held, at_groups, check_lawful
from jaxcp.held.taking import RowShapes, weight_for, weights_for
from jaxcp.quantiles import levels
from jaxcp.risk.thresholds import Rows, as_levels, budgets, threshold_of
from jaxcp.typing import AnySet, ArrayLike, AxisName, Number, PyTree, Score


@pytree
class RiskCalibration(Thresholds):
    """Losses of calibration rows, ready for sets whose mean loss is at most alpha.

    Made by `calibrate_risk`.

    Args:
      score: The score: sets are `score.invert(pred, q)`.
      preds: Predictions of the calibration set, leading axis n.
      y: Targets of the losses, leading axis n.
      losses: The losses, one or more.
      tails: What each loss is to stay within, or None for its mean.
      mask: True where a row counts, shape (n,), or None.
      weights: Weights >= 0 of the calibration set, shape (n,), or None; 1 / N_k where
        there are clusters.
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,), or None.
      grid: Thresholds to choose from, increasing, shape (t,), or None for all floats.
      bounds: The largest value of each loss.
      counted: Whether each loss is a flag, or how often it is beyond its tail.
      several: Whether the losses came as a tuple.
      monotone: Whether losses nowhere rise with the threshold.
      num_groups: Number of groups g, or None.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels of the sets, or None.
      group_names: Names of the groups, or None.
      clusters: Cluster of each row in 0, ..., n - 1, shape (n,), or None.

    Guarantee:
      That of `calibrate_risk`.

    Assumption:
      That of `calibrate_risk`.

    Cost:
      That of `calibrate_risk`.

    See also:
      risk.calibrate_risk, Calibration, save
    """

    score: Score
    preds: PyTree
    y: PyTree
    losses: tuple[Any, ...]
    tails: tuple[Any, ...]
    mask: Array | None = None
    weights: Array | None = None
    groups: Array | None = None
    grid: Array | None = None
    bounds: tuple[float, ...] = static(default=(1.0,))
    counted: tuple[bool, ...] = static(default=(False,))
    several: bool = static(default=False)
    monotone: bool = static(default=True)
    num_groups: int | None = static(default=None)
    row_shapes: RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    group_names: tuple[Hashable, ...] | None = static(default=None)
    clusters: Array | None = None
    assumption = f"{HELD_OUT}; the largest sets lose at most alpha on average"
    _distance = "plus the bound times the weighted distance in total variation"
    _row_fields: ClassVar = ("preds", "y", "mask", "weights", "groups", "clusters")

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes", "group_names")

    def quantile(
        self,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        test_weight: ArrayLike | None = None,
        axis_name: AxisName = None,
    ) -> Array:
        """Returns the least threshold that keeps the risk at alpha.

        Args:
          alpha: Level of the risk in (0, bound), shape (); (g,) with one for each
            group, or a tuple of one for each loss. Numbers are read as decimals.
          delta: Probability of a bad calibration set, a number in (0, 1). None for a
            risk that is alpha on average over calibration sets.
          test_weight: Weight of the test point, shape (), for calibrations with
            weights. Defaults to 1, and no weight may then be larger.
          axis_name: Mapped axis over which the rows are sharded.

        Returns:
          Threshold, shape () or (g,), in units of the score: -inf where the smallest
          set will do, +inf where nothing will. Its gradient is that of the scores at
          which losses fall there, or of the root of a smooth loss.

        Raises:
          ValueError: if a number `alpha` is outside (0, bound), or `delta` comes with
            weights, traced rows or a traced alpha.

        Guarantee:
          That of `calibrate_risk`.

        Cost:
          That of `calibrate_risk`. New values of alpha compile nothing.

        References:
          Bates, Angelopoulos, Lei, Malik, Jordan, Distribution-Free, Risk-Controlling
          Prediction Sets, Journal of the ACM, 2021.
        """
        self._check()
        self.held.check_without_clusters("axis_name", axis_name)
        context = weight_for(self.weights, test_weight)
        rank = self.rank(alpha, delta, axis_name)
        return _quantile(self, rank, context, axis_name=axis_name)

    @partial(_checks.with_alpha, of_losses=True)
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets of new predictions.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          alpha: Level of the risk, as for `quantile`.
          delta: Probability of a bad calibration set, as for `quantile`.
          groups: Group of each test point, int or by name, shape (m,), for calibrations
            with groups.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m, of the kind of the score.

        Raises:
          ValueError: as `quantile`, and if predictions are NaN or of other shapes than
            at calibration, or a group is missing or out of range.

        Guarantee:
          That of `calibrate_risk`; with groups in each of them.

        Assumption:
          That of `calibrate_risk`.

        Cost:
          One threshold; with `test_weights` one for each point.

        Example:
          >>> from jaxcp import risk, scores
          >>> y = jnp.arange(1.0, 10.0)
          >>> loss = risk.miscoverage
          >>> cp = risk.calibrate_risk(loss, scores.Absolute(), jnp.zeros(9), y)
          >>> cp(jnp.zeros(1), alpha=0.2).upper
          Array([8.], dtype=float32)
        """
        context = {"test_weights": weights_for(self.weights, test_weights)}
        context["groups"] = self._groups_of(preds, groups)
        return self._sets(preds, alpha, delta=delta, **context)

    def certificate(
        self, alpha: Any, delta: Number | None = None
    ) -> RiskCertificate | tuple[RiskCertificate, ...]:
        """Returns what is proved of the mean loss of sets at alpha.

        E L <= alpha; and >= alpha - 2 B / (n + 1), of losses in [0, B] whose thresholds
        are all floats. The risk of losses of 0 and 1, such as `miscoverage` or with
        `tail`, has the law of split coverage: Beta(n + 1 - k, k) given the calibration
        set, k the conformal rank, and mean (n + 1 - k) / (n + 1).

        Args:
          alpha: Level of the risk in (0, bound), a number.
          delta: Probability of a bad calibration set, as for the sets.

        Returns:
          A `certificates.RiskCertificate`: `upper`, `lower`, and, of a loss of 0 and 1,
          `law`; a tuple with one for each group.

        Raises:
          ValueError: if `alpha` or `delta` is out of range, the mask is traced, or
            there are weights or several losses, whose risk has no such bound.

        Guarantee:
          E L <= `upper`, without a law and with `delta` instead P(risk <= `upper`) >= 1
          - delta. The law, and `lower`, are exact where no two rows jump at the same
          threshold; else the risk is at most that.

        Assumption:
          That of `calibrate_risk`. For `lower` i.i.d. rows, of which the smallest sets
          lose more than alpha; for `law` i.i.d. rows, of which the largest sets lose
          nothing.

        References:
          Angelopoulos, Bates, Fisch, Lei, Schuster, Conformal Risk Control, ICLR, 2024.
          Vovk, Conditional Validity of Inductive Conformal Predictors, ACML, 2012.

        Example:
          >>> from jaxcp import risk, scores
          >>> y, loss = jnp.arange(1.0, 100.0), risk.shortfall(1.0)
          >>> cp = risk.calibrate_risk(loss, scores.Absolute(), 0 * y, y)
          >>> print(cp.certificate(0.1))
          risk at most 0.1 on average over calibration sets, at least 0.08 without ties
        """
        self.held.check_without_clusters("a certificate", alpha)
        if self.weights is not None or len(self.losses) > 1:
            raise ValueError(
                "expected one loss without weights, whose mean has a bound by counts, "
                f"got {len(self.losses)} and weights={self.weights is not None}"
            )
        check_lawful((), None, (self.mask, self.groups))
        (top,), delta = self._tops, None if delta is None else levels.as_delta(delta)
        level = levels.one_alpha(levels.share_of(alpha, top))
        found, is_free = [], self.grid is None and self.monotone
        for n in map(int, np.ravel(self.held.counts())):
            rank, low, high = None, 0.0, float(level)
            if is_free and self.counted[0]:
                rank = levels.exact_rank(n, level, delta)
                low = high = (n + 1 - rank) / (n + 1)
            elif is_free and delta is None:
                low = max(high - 2 / (n + 1), 0.0)
            found.append(RiskCertificate(n, high * top, low * top, delta, rank))
        return tuple(found) if self.held.shape else found[0]

    def risk(self, q: ArrayLike) -> Array:
        """Returns the mean loss of the calibration rows at a threshold.

        Args:
          q: Threshold, shape (), or (g,) with one for each group.

        Returns:
          Mean loss, shape (); (g,) for groups, and (r,) or (r, g) for several losses.
          NaN where there is no row.

        Raises:
          ValueError: if `q` has another shape.

        Example:
          >>> from jaxcp import risk, scores
          >>> y, loss = jnp.arange(1.0, 6.0), risk.miscoverage
          >>> cp = risk.calibrate_risk(loss, scores.Absolute(), jnp.zeros(5), y)
          >>> cp.risk(4.0)
          Array(0.2, dtype=float32)
        """
        q = as_array("q", q)
        shapes = {(), self.held.shape}
        if q.shape not in shapes:
            expected = " or ".join(map(str, sorted(shapes)))
            raise ValueError(f"expected q of shape {expected}, got {q.shape}")
        return _risk(self, as_float(q))

    def rank(
        self, alpha: ArrayLike, delta: Number | None = None, axis_name: AxisName = None
    ) -> tuple[Array | np.ndarray, ...]:
        """Returns what the losses may sum to, one or (g,) for each loss.

        With weights the level of each, in shares of its bound.
        """
        tops = self._tops
        alphas = as_levels(alpha, tops, self.several, self.num_groups)
        if self.weights is not None:
            self.held.check_without_clusters("delta", delta)
            if delta is not None:
                raise ValueError(
                    "expected delta=None with weights, for which no bound is known, "
                    f"got {delta}"
                )
            return tuple(map(levels.alpha_as_float, alphas))
        count = self.held.counts(axis_name)
        return budgets(count, alphas, tops, self.counted, delta)

    def threshold(
        self,
        rank: tuple[Array, ...],
        groups: Array | None = None,
        test_weights: Array | None = None,
        axis_name: AxisName = None,
    ) -> Array:
        """Returns the threshold of all test points, or of one; (g,) for groups."""
        self.held.check_without_clusters("test weights", test_weights)
        found = [
            threshold_of(rows, budget, test_weights, axis_name)
            for rows, budget in zip(self.risks(), rank, strict=True)
        ]
        q = jnp.max(jnp.stack(found), axis=0) if len(found) > 1 else found[0]
        return q if groups is None else at_groups(q, groups)

    @property
    def held(self) -> Held:
        """The rows: predictions and targets."""
        known = self.weights, self.mask, self.groups, self.num_groups, self.clusters
        return Held((self.preds, self.y), *known)

    def risks(self) -> list[Rows]:
        """Returns the rows of each loss."""
        held, own = self.held, zip(self.losses, self.tails, self._tops, strict=True)
        return [
            Rows(self.score, loss, held, self.grid, None, tail, top, self.monotone)
            for loss, tail, top in own
        ]

    @property
    def promise(self) -> str:
        """What sets keep to, in words with a place for {alpha}."""
        risks = (
            "E loss" if tail is None else f"P(loss > {tail})" for tail in self.tails
        )
        return f"{', '.join(risks)} <= {{alpha}}"

    @property
    def _tops(self):
        """What each loss is at most: 1 for those that are counted."""
        pairs = zip(self.bounds, self.tails, strict=True)
        return tuple(b if tail is None else 1.0 for b, tail in pairs)

    def _at_a_time(self, context):
        return blocks_of(self.held) if "test_weights" in context else None

    def _check_one_alpha(self, alpha):
        """Allows one alpha for each loss or group: `rank` checks the shape."""


@jit(static_argnames="axis_name")
def _quantile(held, rank, context, axis_name):
    return held.threshold(rank, **context, axis_name=axis_name)


@jit
def _risk(held, q):
    found = []
    for rows in held.risks():
        losses = as_float(rows.losses(rows.of_rows(q) if q.ndim else q))
        count = rows.held.sums(jnp.ones_like(losses))
        found.append(rows.held.sums(losses) / count)
    return jnp.stack(found) if held.several else found[0]
