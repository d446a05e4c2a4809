"""Calibration scores, ready for sets at any level, of all rows or of each group."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _arrays, _checks, _names
from jaxcp._arrays import is_concrete
from jaxcp._batching import on_host
from jaxcp._numbers import floats_above
from jaxcp._tree import check_process, jit, pytree, static
from jaxcp.calibration.joining import _joined
from jaxcp.calibration.predictor import at_labels
from jaxcp.calibration.rule import Rule, blocks_of
from jaxcp.certificates import Certificate
from jaxcp.certificates.promises import COVERED, HELD_OUT
from jaxcp.held import taking
from jaxcp.held.rows import Held, at_groups
from jaxcp.quantiles._cells import FEW_SCORES, known_thresholds
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, Number, PyTree, Score


class _OfScores(Rule):
    """What calibrations with the scores of their rows share: the rows decide."""

    scores: Array
    weights: Array | tuple[Array, Array] | None
    mask: Array | None
    clusters: Array | None
    min_size: int | None = None
    _of_labels: Any
    _row_fields: ClassVar[tuple[str, ...]] = ("scores", "weights", "mask", "clusters")

    @property
    def components(self) -> tuple[int, ...]:
        """Shape of one score: () or (c,)."""
        return self.scores.shape[1:]

    def latest(self, n: int) -> Self:
        """Returns the calibration of the newest n rows, of all if there are fewer.

        Args:
          n: Number of rows to keep, an int of at least 1; the last rows are the newest,
            and masked ones are rows, too.

        Returns:
          A calibration of the same kind, of the same bits as that of these rows alone.

        Raises:
          ValueError: if n is no int >= 1, or there are `label_groups`, whose rows come
            in no order.

        Guarantee:
          That of the calibration of these rows.

        Assumption:
          They and the test examples are exchangeable, and n does not depend on scores.

        Cost:
          A copy of n rows.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(4), jnp.arange(4.0))
          >>> cp.latest(2).scores
          Array([2., 3.], dtype=float32)
        """
        _checks.check_count("n", n, 1)
        self._check_without("label_groups", "an order of rows")
        held = jax.tree.map(lambda v: v[-n:], self._each_once)
        if held.clusters is not None:  # numbers below n again, counted anew
            codes = held.clusters
            codes = jnp.unique(codes, return_inverse=True, size=codes.shape[0])[1]
            held = dataclasses.replace(held, clusters=codes).of_clusters()
        return self._of(held)

    @_checks.by_labels
    def extended(
        self,
        preds: PyTree,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Self:
        """Returns the calibration of these rows and of further ones, which come last.

        Args:
          preds: Predictions of the further rows, a pytree with leading axis n, as at
            calibration.
          y: Their targets, shape (n, ...); of a calibration with classes by name.
          groups: Their groups, int or by name, shape (n,), of a calibration with
            groups; left out where these are the labels.
          weights: Their weights, shape (n,), of a calibration with weights.
          mask: True where one counts, shape (n,), of a calibration with a mask.

        Returns:
          A calibration of the same kind, of the same bits as that of all rows at once
          (but for scores that `join` names). This one stays as it is.

        Raises:
          ValueError: as `calibrate` and `calibrate_groups`; if shapes of predictions
            differ, only one of the two has weights or a mask, or there are
            `label_groups` or clusters. Values are known: it does not run inside of
            `jax.jit`.

        Guarantee:
          That of the calibration of all rows. With `min_size` a group has a threshold
          of its own as soon as it has the rows.

        Assumption:
          Old, further and test examples are exchangeable: the further ones are added
          whatever their targets are.

        Cost:
          The scores of the further rows, and a copy of all scores.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(2), jnp.array([1.0, 2.0]))
          >>> cp.extended(jnp.zeros(1), jnp.array([3.0])).latest(2).scores
          Array([2., 3.], dtype=float32)
        """
        self._check_without("label_groups", "an order of rows")
        own = self._groups_of(preds, groups, y, mask).value, self.num_groups, None
        known = weights, mask, _names.Groups(*own), self.classes
        held, shapes = taking.scored(self.score, preds, y, *known)
        if held.groups is not None:  # numbers below g, whatever their type
            codes = held.groups.astype(self._each_once.groups.dtype)
            held = dataclasses.replace(held, groups=codes)
        return _joined([self, self._of(held, row_shapes=shapes)], "rows")

    def _of(self, held, **known):
        """Returns the same of other rows."""
        rows = vars(held) | {"scores": held.values}
        known |= {name: rows[name] for name in self._row_fields}
        return dataclasses.replace(self, **known)  # type: ignore[type-var]

    def _filled(self, size):
        return self._of(self._each_once.filled(size))

    @property
    def _each_once(self):
        known = getattr(self, "groups", None), self.num_groups
        return Held(self.scores, self.weights, self.mask, *known, self.clusters)

    def _weights_of(self, test_weights, name="test_weights", axes=2):
        """Returns weights of test points as a column; those of labels have `axes`."""
        _checks.check_test_weights(name, test_weights, self.weights)
        several = inputs.has_labels(self.score) and not isinstance(self.weights, tuple)
        return _checks.test_weights(test_weights, axes if several else None)

    def _rows(self, preds, *given, **options):
        preds, *found, context = super()._rows(preds, *given, **options)
        if np.ndim(w := context.get("test_weights")) > 1:
            k = taking.num_labels(self.score, preds)
            _checks.check_shape("test_weights", (len(w), k), w.shape)
        return preds, *found, context

    def _p_values_of_scores(self, scores, y, u, rounds, test_weights=None, groups=None):
        if np.ndim(test_weights) > 1:
            test_weights = jnp.take_along_axis(test_weights, y[:, None], 1)[:, 0]
        if groups is None and self.num_groups is not None:  # labels are the groups
            of = self._of_labels
            groups = y if of is None else at_labels(of, y)
        return self.held.p_values(scores, u, test_weights, groups, rounds=rounds)

    def _check_without(self, name, expected):
        """Raises ValueError for groups that share rows, which have no law or order."""
        if (value := getattr(self, name)) is not None:
            expected += f" where groups share no rows, without {name}"
            raise ValueError(f"expected {expected}, got {value}")

    def _num_held(self):
        # A class made of one of these may read its rows in ways of its own.
        own = type(self) in (Calibration, GroupCalibration)
        return self.scores.shape[0] if own else 0

    def _known_threshold(self, rank: Any, context: dict[str, Array]) -> Any:
        if not isinstance(self.scores.shape[0], int):  # an export leaves it open
            return None
        if not 0 < self._num_held() <= self.scores.size <= FEW_SCORES:
            return None
        if self.weights is not None or self.min_size is not None:
            return None
        held = self.held
        if held.groups is not None:
            shared = "groups" not in context and self._of_labels is not None
            if shared or self.held.shape[0] > _arrays.FEW_GROUPS:
                return None
        rows = held.values, rank, held.mask, held.groups
        one_each = np.shape(rank) == (*held.shape, *held.components)
        if not (one_each and held.values.dtype.kind == "f" and on_host(rows)):
            return None
        check_process()
        return known_thresholds(*jax.tree.map(np.asarray, rows))


@pytree
class Calibration(_OfScores):
    """Calibration scores, ready for sets at every level.

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      weights: Weights >= 0 of the calibration set, shape (n,), a tuple of two arrays
        (low, high) for bounds of them, 1 / N_k where there are clusters, or None.
      mask: True where a row counts, shape (n,), or None.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      classes: Names of the labels, used by sets and targets, or None.
      clusters: Cluster of each row in 0, ..., n - 1, shape (n,), or None.
      promise: What sets keep to, in words with a place for {alpha}.
      assumption: What that assumes, in words with a place for how {rows} compare.

    See also:
      calibrate, GroupCalibration, SplitConformal, Rule, save
    """

    score: Score
    scores: Array
    weights: Array | tuple[Array, Array] | None = None
    mask: Array | None = None
    row_shapes: taking.RowShapes | None = static(default=None)
    classes: tuple[Hashable, ...] | None = static(default=None)
    clusters: Array | None = None
    promise: str = static(default=COVERED)
    assumption: str = static(default=HELD_OUT)

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes")

    def quantile(
        self,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        u: ArrayLike | None = None,
        test_weight: ArrayLike | None = None,
    ) -> Array:
        """Returns the threshold at alpha.

        Args:
          alpha: Miscoverage level, shape (); without components also (a,) for several
            levels. With c components a scalar is family-wise and split to alpha / c
            (Bonferroni); shape (c,) splits it otherwise.
          delta: Probability of a bad calibration set, in (0, 1), a number: coverage
            then is 1 - alpha with probability 1 - delta, and not on average. With c
            components each gets delta / c, so that all hold together.
          u: Uniform in [0, 1], shape (), for the bound of a smoothed set.
          test_weight: Weight of the test point, shape (), for calibrations with
            weights; for scores of labels also one for each label, shape (k,). Defaults
            to 1, and no weight may then be larger.

        Returns:
          Threshold, shape () or (c,) or (a,), in units of the score; of each label,
          shape (k,), where these have weights. +inf where there are too few scores.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1) or its shape does not fit,
            or a concrete weight is above 1 where `test_weight` is left out; with
            `delta` also for one outside (0, 1), an alpha in a jax array, weights, or a
            traced mask; with `u` for one outside [0, 1], `delta` or several components.

        Guarantee:
          P(S_{n+1} <= q) >= 1 - alpha for exchangeable scores. With `delta`: P(S_{n+1}
          <= q | S_1, ..., S_n) >= 1 - alpha with probability 1 - delta, for independent
          scores. With a fresh uniform `u`: P(S_{n+1} <= q) = 1 - alpha.

        Cost:
          O(n) time and no sort. New values of alpha compile nothing.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp.quantile(0.2)
          Array(8., dtype=float32)
        """
        column = self._weights_of(test_weight, "test_weight", axes=1)
        context = taking.weight_for(self.weights, test_weight, column)
        return self._quantile(alpha, delta, u, context)

    @_checks.with_alpha
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets of new predictions.

        Args:
          preds: Predictions, a pytree with leading axis m, as at calibration.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components.
          delta: Probability of a bad calibration set, in (0, 1), a number, as for
            `quantile`: sets that cover 1 - alpha with probability 1 - delta.
          u: Uniforms in [0, 1] for smoothed sets {y : p(y, u) > alpha}, shape (m,), one
            drawn afresh for each point (`uniforms`). With fewer than 1/alpha - 1 rows
            they are finite with probability alpha (n + 1), and else infinite.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights; or a tuple (low, high) of bounds, of which the upper ends count.
            For scores of labels also shape (m, k), the weight of each label as if it
            were the true one (label shift: `weights` are w(y) of the rows, all rows of
            this the same w): label y is kept iff its score is within the threshold at
            w(y). It may be +inf there, as for a label that no row of calibration has:
            that label is always kept. Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m, e.g. `Interval` with ends of shape (m,).

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), a concrete prediction is
            NaN or not valid for the score, lengths differ or shapes of predictions
            from those at calibration, or a concrete weight is above 1 where
            `test_weights` is left out; with `delta` and `u` as `quantile`; with `u`, or
            weights of labels, where the weights of the rows are known by bounds; if
            single precision cannot hold the digits of predictions in double precision,
            or of integers, that sets of this width depend on.

        Guarantee:
          P(Y in set) >= 1 - alpha, on average over calibration and test data (with
          weights: see `weighted_conformal_quantile`; with bounds of weights for every
          true ratio within them, up to one factor; with weights of labels where w(y) is
          the ratio of their shares, up to one factor). With `delta`: P(Y in set |
          calibration data) >= 1 - alpha, with probability 1 - delta over these. With
          `u`: P(Y in set) = 1 - alpha, ties or not, unless weights are fixed ones; at
          least that where sets hold targets beyond the threshold (the rounding of ends
          may hold numbers that tie with it, and scores of -inf are always in).

        Assumption:
          Exchangeable calibration and test examples, and a model fitted on other data;
          with `delta`, and with ratios, bounds or weights of labels, independent
          examples; bounds that come from other rows; with `u` uniforms drawn afresh.

        Cost:
          One threshold in O(n), without a sort; with `test_weights` one for each point,
          which share one sort: O((n + m) log n), and memory for n + m numbers. With `u`
          O(n + m), with weights O(n) for each point, in blocks. New values of alpha
          compile nothing.

        References:
          Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, Springer,
          2005 (smoothed sets).
          Podkopaev, Ramdas, Distribution-Free Uncertainty Quantification for
          Classification under Label Shift, UAI, 2021 (weights of labels).
          Jin, Ren, Candes, Sensitivity Analysis of Individual Treatment Effects: A
          Robust Conformal Inference Approach, PNAS, 2023 (bounds of weights).

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp(jnp.array([0.0, 1.0]), alpha=0.2).upper
          Array([8., 9.], dtype=float32)
          >>> cp(jnp.array([0.0, 1.0]), alpha=0.3, delta=0.1).upper
          Array([ 9., 10.], dtype=float32)
          >>> cp(jnp.zeros(2), alpha=0.05, u=jnp.array([0.3, 0.7])).upper
          Array([ 9., inf], dtype=float32)
        """
        weights = self._weights_of(test_weights)
        return self._sets(preds, alpha, delta=delta, u=u, test_weights=weights)

    @_checks.with_alpha
    def all_rows(self, preds: PyTree, alpha: ArrayLike) -> AnySet:
        """Returns sets that hold the targets of all rows of a new cluster together.

        Their threshold is the conformal quantile of the K largest scores, one for each
        cluster with rows that count: of rank K + 1 - floor(alpha (K + 1)).

        Args:
          preds: Predictions for rows of new clusters, a pytree with leading axis m.
          alpha: Miscoverage level, as for calling this.

        Returns:
          Sets with leading axis m, one for each row; +inf is the threshold where K is
          below 1/alpha - 1. NaN scores count as +inf.

        Raises:
          ValueError: as calling this, and without clusters.

        Guarantee:
          P(Y_j in set_j for all rows j of a new cluster) >= 1 - alpha.

        Assumption:
          Old and new clusters are exchangeable: the number of rows of the new one, too,
          is drawn as theirs. A larger one is covered less.

        Cost:
          One pass over the rows, then as a calibration of n rows without weights.

        References:
          Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data,
          ACM Journal of Data Science, 2026.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> y, ids = jnp.arange(1.0, 9.0), ["a", "b", "a", "c", "b", "c", "b", "d"]
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(8), y, clusters=ids)
          >>> cp(jnp.zeros(1), 0.6).upper, cp.all_rows(jnp.zeros(1), 0.6).upper
          (Array([5.], dtype=float32), Array([6.], dtype=float32))
        """
        if self.clusters is None:
            raise ValueError(
                "expected a calibration with clusters, got none: calibrate(clusters=)"
            )
        scores, mask = _largest(self.scores, self.clusters, self.mask)
        rows = {"scores": scores, "weights": None, "mask": mask, "clusters": None}
        return dataclasses.replace(self, **rows)(preds, alpha)

    def certificate(self, alpha: Any, delta: Number | None = None) -> Certificate:
        """Returns the law of the coverage of sets at alpha.

        Args:
          alpha: Miscoverage level in (0, 1), a number.
          delta: Probability of a bad calibration set, as for the sets.

        Returns:
          A `certificates.Certificate` for the number of rows that count; not `exact`
          for scores whose sets may hold more than {score <= q}: with `inclusive=True`,
          a `Custom` with its own inverse, any with a false `exact`.

        Raises:
          ValueError: if `alpha` or `delta` is outside (0, 1), the mask is traced, or
            there are several components, weights or clusters, whose coverage has no
            such law.

        Guarantee:
          Exact for exchangeable scores without ties (for `law`: i.i.d.) and sets
          {score <= q}. Where scores tie or sets hold more, coverage is at least this.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp.certificate(0.2).law
          (8, 2)
        """
        return self.held.certificate(self.score, alpha, delta)

    @_checks.by_labels
    def p_values(
        self,
        preds: PyTree,
        y: ArrayLike | None = None,
        *,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is among the calibration set.

        Args:
          preds: Predictions, a pytree with leading axis m.
          y: Targets or candidate targets, shape (m, ...); of a calibration with classes
            labels by name. Left out, each label of a score of labels is a candidate.
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,), or of each label, (m, k),
            as for the sets. With bounds of weights p is the largest within them.

        Returns:
          p-values, shape (m,), or (m, k) of all k labels in the order of the classes;
          with c components min(1, c times the smallest one). `y`
          is in the set at alpha iff its conservative p-value exceeds alpha, and in that
          with `u` iff the smoothed one does, but for the rounding of ends.
          Compare arrays: 0.1 in single precision is above 0.1 as a Python float.

        Raises:
          ValueError: as calling the calibration, and if lengths differ.

        Guarantee:
          P(p <= alpha) <= alpha for each example; smoothed, p is uniform, with one
          component. Examples share the calibration rows, so that their p-values depend
          on each other: bets on them (`pvalues.watch`) may alarm far too often, for 500
          rows against 100 in a quarter of quiet streams at 5 %; take
          `online.ExchangeabilityMonitor` or `pvalues.sequential_p_values`.

        Assumption:
          The calibration and test examples are exchangeable; with weights independent,
          and the weights are their true likelihood ratios.

        Cost:
          O((n + m) log n): one sort serves all m examples, and m k candidates.

        Example:
          >>> from jaxcp.scores import Absolute
          >>> cp = jaxcp.calibrate(Absolute(), jnp.zeros(9), jnp.arange(1.0, 10.0))
          >>> cp.p_values(jnp.zeros(2), jnp.array([8.5, 0.0]))
          Array([0.2, 1. ], dtype=float32)
          >>> from jaxcp.scores import LAC
          >>> p = jnp.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])
          >>> cp = jaxcp.calibrate(LAC(), p, jnp.array([0, 0, 1]))
          >>> cp.p_values(p[:1])  # of both labels
          Array([[1.  , 0.25]], dtype=float32)
        """
        test_weights = self._weights_of(test_weights)
        return self._p_values(preds, y, u, test_weights=test_weights)

    @property
    def held(self) -> Held:
        """The rows."""
        return self._each_once

    def rank(self, alpha: ArrayLike, delta: Number | None = None) -> Array:
        """Returns the rank k = n + 1 - floor(alpha (n + 1)) of the threshold.

        One for each component, shape (c,); alpha as a float where there are weights.
        With `delta` the rank is that of `conformal_rank(n, alpha, delta)`, of c
        components at delta / c each: all of them hold with probability 1 - delta.
        """
        return self.held.rank(alpha, delta)

    def threshold(
        self, rank: Any, test_weights: Array | None = None, u: Array | None = None
    ) -> Array:
        """Returns the score of this rank, +inf beyond the last, shape () or (c,).

        With a uniform `u` the bound of a smoothed set, for a rank and alpha.
        """
        return self.held.threshold(rank, test_weights, u)

    def _at_a_time(self, context):
        alone = self.weights is not None and "u" in context
        return blocks_of(self.held) if alone else None


@jit
def _largest(scores, codes, mask):
    """Returns the largest score of each cluster, and which ones have rows."""
    n, scores = codes.shape[0], floats_above(scores)
    codes = _arrays.group_codes(codes, n, mask)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    most = jax.ops.segment_max(scores, codes, n)
    return most, _arrays.count_groups(codes, n) > 0


@pytree
class GroupCalibration(_OfScores):
    """Calibration scores with groups: one threshold a group (Mondrian).

    Args:
      score: The nonconformity score.
      scores: Scores of the calibration set, shape (n,) or (n, c).
      groups: Group of each row in 0, ..., num_groups - 1, shape (n,).
      mask: True where a row counts, shape (n,), or None.
      num_groups: Number of groups g.
      row_shapes: Shapes of one prediction, which later ones must have, or None.
      weights: Weights >= 0 of the calibration set, shape (n,), a tuple of two arrays
        (low, high) for bounds of them, 1 / N_k where there are clusters, or None.
      classes: Names of the labels, used by sets and targets, or None.
      group_names: Names of the groups, also for the groups of test points, or None.
        `dict(zip(cp.group_names, cp.quantile(alpha)))` has the threshold of each group
        by its name.
      label_groups: Groups of the k labels, shape (k,), or None.
      rare: What the last group is, "all" or "infinite", if it is that of rare labels.
      min_size: Rows that a group needs for a threshold of its own, or None.
      clusters: Cluster of each row in 0, ..., n - 1, shape (n,), or None.
      promise: What sets keep to, in words with a place for {alpha}.
      assumption: What that assumes, in words with a place for how {rows} compare.

    See also:
      calibrate_groups, Calibration, metrics.group_coverage
    """

    score: Score
    scores: Array
    groups: Array
    mask: Array | None
    num_groups: int = static()
    row_shapes: taking.RowShapes | None = static(default=None)
    weights: Array | tuple[Array, Array] | None = None
    classes: tuple[Hashable, ...] | None = static(default=None)
    group_names: tuple[Hashable, ...] | None = static(default=None)
    label_groups: Array | None = None
    rare: str | None = static(default=None)
    min_size: int | None = static(default=None)
    clusters: Array | None = None
    promise: str = static(default=COVERED)
    assumption: str = static(default=HELD_OUT)
    by_label = True
    _row_fields: ClassVar[tuple[str, ...]] = (*_OfScores._row_fields, "groups")

    def __post_init__(self) -> None:
        _names.keep_names(self, "classes", "group_names")

    def quantile(
        self,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        u: ArrayLike | None = None,
        test_weight: ArrayLike | None = None,
    ) -> Array:
        """Returns the threshold of each group, shape (g,) or (g, c), or of each label.

        With `label_groups` it is that of the group of each label, shape (k,). +inf for
        a group with too few scores. Arguments as for `Calibration.quantile`; without
        components alpha may also have shape (g,), one for each group; with `min_size`
        shape (g + 1,), the last for those that share. With `u`, shape (), they bound
        smoothed sets. With `delta` each group covers 1 - alpha with probability 1 -
        delta; for all groups together give delta / g.
        """
        context = taking.weight_for(self.weights, test_weight)
        return self._quantile(alpha, delta, u, context)

    @_checks.with_alpha
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        delta: Number | None = None,
        u: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the prediction sets, each at the threshold of its group.

        Args:
          preds: Predictions, a pytree with leading axis m.
          alpha: Miscoverage level as for `Calibration.quantile`.
          delta: Probability of a bad calibration set of a group, in (0, 1), a number.
          u: Uniforms in [0, 1] for smoothed sets, shape (m,), as for `Calibration`.
          groups: Group of each test point, int or by name, shape (m,). Without it the
            groups are the labels: label c is kept iff its score is within class c's
            threshold.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights; as for `Calibration` bounds, or where `groups` are given weights of
            labels, (m, k). Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m.

        Raises:
          ValueError: if lengths differ, a concrete group is out of range or none of the
            `group_names`, or `groups` is missing although the groups of the calibration
            are not the labels; with `delta` and `u` as `Calibration.quantile`, and with
            `delta` for traced groups of the calibration; or a concrete weight is above
            1 where `test_weights` is left out.

        Guarantee:
          1 - alpha within every group, or for every class; with `label_groups` over the
          rows with a label in each of these, and for the labels in no group nothing
          where they have the threshold of all rows (`rare="all"`). With `delta` each
          has it with probability 1 - delta over calibration sets; with `u` exactly, as
          for `Calibration`.

        Assumption:
          The calibration and test examples of a group are exchangeable; with `delta`
          independent; with weights those of `weighted_conformal_quantile`, in each
          group.

        Cost:
          O(n + g) for the thresholds of g groups, O(g n) with weights or `u`, in memory
          of O(n + g); with `test_weights` O(n) for each test point, in blocks that keep
          memory small. With `u` O(g m) more; with weights and `u` O(n) for each test
          point.

        Example:
          >>> from jaxcp import calibrate_groups
          >>> from jaxcp.scores import Absolute
          >>> groups = jnp.array([0, 0, 1, 1])
          >>> y = jnp.array([1.0, 2.0, 10.0, 20.0])
          >>> cp = calibrate_groups(Absolute(), jnp.zeros(4), y, groups, num_groups=2)
          >>> cp(jnp.zeros(2), 0.4, groups=jnp.array([0, 1])).upper
          Array([ 2., 20.], dtype=float32)
        """
        columns = self._columns(preds, groups, test_weights)
        return self._sets(preds, alpha, delta=delta, u=u, **columns)

    @_checks.by_labels
    def p_values(
        self,
        preds: PyTree,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        u: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Array:
        """Returns how exceptional each example is within its group.

        Args:
          preds: Predictions, a pytree with leading axis m.
          y: Targets or candidate targets as for `Calibration.p_values`.
          groups: Group of each test point, int or by name, shape (m,). Without it they
            are the labels `y`.
          u: Uniforms for smoothed p-values, shape (m,). Defaults to 1: conservative.
          test_weights: Weight of each test point, shape (m,) or (m, k), as for the
            sets.

        Returns:
          p-values as from `Calibration.p_values`, among the calibration scores of the
          group alone, shape (m,), or (m, k) of all labels, each in its own group where
          groups are labels; 1 for a traced group out of range.

        Raises:
          ValueError: as calling the calibration, and if lengths differ.

        Guarantee:
          P(p <= alpha) <= alpha for each example within every group, or for every
          class. Those of one group depend on each other, as from
          `Calibration.p_values`: they are not for `pvalues.watch`.

        Assumption:
          The calibration and test examples of a group are exchangeable; with weights as
          for `Calibration.p_values`, in each group.

        Cost:
          O((n + m) log(n + m)): one sort serves all groups; with weights one sort for
          each of the g groups.

        Example:
          >>> from jaxcp import calibrate_groups
          >>> from jaxcp.scores import Absolute
          >>> groups = jnp.array([0, 0, 0, 1])
          >>> y = jnp.array([1.0, 2.0, 3.0, 9.0])
          >>> cp = calibrate_groups(Absolute(), jnp.zeros(4), y, groups, num_groups=2)
          >>> cp.p_values(jnp.zeros(2), jnp.array([2.5, 2.5]), groups=jnp.array([0, 1]))
          Array([0.5, 1. ], dtype=float32)
        """
        columns = self._columns(preds, groups, test_weights, y)
        return self._p_values(preds, y, u, **columns)

    def certificate(
        self, alpha: Any, delta: Number | None = None
    ) -> tuple[Certificate, ...]:
        """Returns the law of the coverage of each of the g groups.

        Arguments, errors and guarantee as for `Calibration.certificate`. With
        `min_size` there is none: ValueError. Of rare labels with the threshold of all
        rows nothing is known, and no law is theirs.
        """
        self._check_without("min_size", "a certificate")
        laws = self.held.certificate(self.score, alpha, delta)
        return laws[:-1] if self.rare == "all" else laws

    @property
    def held(self) -> Held:
        """The rows, with the group of each; of small ones twice with `min_size`."""
        held = self._each_once
        return held if self.min_size is None else _sharing(held, self.min_size)

    @property
    def threshold_names(self) -> tuple[Hashable, ...]:
        """Name of the threshold of each of the g groups: its own, or what it shares.

        A number where groups have no names; "fewer than 20 rows" of groups that share
        one. Rates of test rows by these names are those that have a guarantee:
        `region.map(dict(zip(cp.group_names, cp.threshold_names)))`.
        """
        names = tuple(self.group_names or range(self.num_groups))
        if self.min_size is None:
            return names
        if not is_concrete(cells := self._cells()):
            raise ValueError("expected groups with values, got traced ones")
        each = (*names, f"fewer than {self.min_size} rows")
        return tuple(each[i] for i in np.asarray(cells))

    @property
    def _of_labels(self):
        """Which threshold each label has, shape (k,); None where it is its own."""
        return self.label_groups if self.min_size is None else self._cells()

    def _cells(self):
        """Returns which threshold each group has: its own, or g, which is shared.

        Among the n + 1 rows with the new one let group j have N_j. Groups with N_j <=
        min_size are small, whichever row is the new one. Given the n + 1 rows, a new
        row of a small group is each row of the small groups with the same probability,
        and its score has a uniform rank among theirs; so has that of a new row of a
        large group among the rows of this. For a new row of group h the calibration has
        N_h - 1 rows of h and N_j of others: h shares if it has fewer than min_size of
        them, with groups of at most min_size.
        """
        counts = self._each_once.counts()
        few, g = counts < self.min_size, self.num_groups
        return (np if is_concrete(counts) else jnp).where(few, g, np.arange(g))

    def _rows(self, *given, **options):
        """Has the groups of test points as those of the thresholds."""
        *found, context = super()._rows(*given, **options)
        if self.min_size is not None and "groups" in context:
            context["groups"] = at_labels(self._cells(), context["groups"])
        return *found, context

    def rank(self, alpha: ArrayLike, delta: Number | None = None) -> Array:
        """Returns the rank of the threshold of each group, shape (g,) or (g, c).

        Alpha as a float where there are weights; `delta` as for `Calibration.rank`.
        With `min_size` there is one more, of the groups that share a threshold.
        """
        if delta is not None:
            self._check_without("min_size", "delta")
        return self.held.rank(alpha, delta)

    def threshold(
        self,
        rank: Any,
        groups: Array | None = None,
        test_weights: Array | None = None,
        u: Array | None = None,
    ) -> Array:
        """Returns the threshold of one group, or of all with leading axis g.

        With a uniform `u` the bound of a smoothed set, for a rank and alpha. With
        `min_size` number g is the threshold that groups share.
        """
        held = self.held
        if groups is None or self._are_shared(test_weights, u):
            q = held.threshold(rank, test_weights, u)
            if groups is None:
                groups = self._of_labels
            return q if groups is None else at_groups(q, groups)
        last = held.shape[0] - 1
        group = jnp.clip(groups.astype(int), 0, last)
        if u is not None:
            rank = rank[0], jnp.broadcast_to(rank[1], rank[0].shape)
        own = jax.tree.map(lambda v: v[group], rank)
        q = held.of_group(group).threshold(own, test_weights, u)
        known = (groups >= 0) & (groups <= last)
        return jnp.where(known, q, jnp.inf)

    def _are_shared(self, test_weights=None, u=None, **_):
        """Returns whether all test points share the passes over the rows."""
        return test_weights is None and (u is None or self.weights is None)

    def _at_a_time(self, context):
        return None if self._are_shared(**context) else blocks_of(self.held)

    def _columns(self, preds, groups, test_weights, y=None):
        """Returns the context of test points, whose groups may be their labels."""
        # Where groups are the labels, each has rows of its own, of one weight.
        weights = self._weights_of(test_weights, axes=None if groups is None else 2)
        return {"groups": self._groups_of(preds, groups, y), "test_weights": weights}

    def _check_one_alpha(self, alpha):
        """Allows one alpha for each group: `rank` checks the shape."""


@jit(static_argnames="min_size")
def _sharing(held, min_size):
    """Returns rows of groups, and those of small ones once more in one of their own."""
    few = jnp.asarray(held.counts()) <= min_size
    again = at_groups(few, held.groups, False)
    return held.twice(again if held.mask is None else again & held.mask)
