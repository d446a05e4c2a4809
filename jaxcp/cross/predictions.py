"""Calibration on the training rows themselves, by predictions of fits without them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_array, as_arrays, count_true, is_concrete
from jaxcp._names import named
from jaxcp._tree import pytree
from jaxcp.calibration.calibrating import Calibrated, calibrate, calibrate_groups
from jaxcp.calibration.split import Calibration, GroupCalibration
from jaxcp.certificates import CrossCertificate
from jaxcp.certificates.laws import published_miss
from jaxcp.certificates.promises import ALL_ROWS, Promised
from jaxcp.cross import _votes, plans
from jaxcp.held.rows import Context
from jaxcp.held.taking import check_row_shapes, groups_of, weights_for
from jaxcp.online.windows import SlidingState, SlidingWindow
from jaxcp.predictive.atoms import Atoms
from jaxcp.quantiles.levels import conformal_rank, one_alpha
from jaxcp.scores import inputs
from jaxcp.sets import Intervals
from jaxcp.typing import AnySet, ArrayLike, PyTree, Score

# What has a row for each row or test point: predictions of fits have them second.
_ROWS = "y", "groups", "clusters", "weights", "mask", "test_weights"


def check_held_out(held_out: Any, mask: Any) -> tuple[Array, Array | None]:
    """Returns which fits are without which rows that count, (b, n), and the mask."""
    _checks.check_given(held_out=held_out)
    held_out = as_array("held_out", held_out)
    if held_out.dtype != bool:
        raise ValueError(
            f"expected held_out of bool, True where a fit is without a row, got "
            f"{held_out.dtype}; for training weights it is weights == 0"
        )
    if mask is None:
        return held_out, None
    mask = _checks.rows(mask=_checks.mask(mask))
    _checks.check_shape("mask", held_out.shape[1:], mask.shape)
    return held_out & mask[None], mask


def checked_preds(preds: PyTree, shape: tuple[int, ...], held_out: Any = None) -> Any:
    """Returns predictions of b fits, leading axes (b, n) or (b,), after checks.

    A list has those of one fit after the other. NaN may stand for rows that a fit saw.
    """
    _checks.check_given(preds=preds)
    preds = as_arrays(preds=preds)
    if isinstance(preds, list):
        to = np if is_concrete(preds) else jnp  # stacking on the host compiles nothing
        preds = jax.tree.map(lambda *v: jax.device_put(to.stack(v)), *preds)
    letters = "(b, n)" if len(shape) > 1 else "b fits"
    held = True if held_out is None or not is_concrete(held_out) else held_out
    where = "" if held_out is None else " where a fit left the row out"
    for leaf in jax.tree.leaves(preds):
        if leaf.shape[: len(shape)] != shape or leaf.ndim < 2:
            swapped = leaf.ndim > 1 and leaf.shape[1::-1][: len(shape)] == shape
            raise ValueError(
                f"expected preds with leading axes {letters} = {shape} like held_out, "
                f"got shape {leaf.shape}"
                + ("; preds.T puts the fits first" if swapped else "")
            )
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and is_concrete(leaf, held_out):
            bad = np.isnan(np.asarray(leaf)).any(axis=tuple(range(2, leaf.ndim)))
            bad &= np.asarray(held)
            if bad.any():
                fit, row = np.argwhere(bad)[0]
                raise ValueError(
                    f"expected preds without NaN{where}, got nan of fit {fit} at row "
                    f"{row}"
                )
    return preds


def new_preds(score, preds, count, row_shapes):
    """Returns predictions of b fits at new inputs, after checks."""
    preds = checked_preds(preds, (count,))
    m = {leaf.shape[1] for leaf in jax.tree.leaves(preds)}
    if len(m) > 1:
        raise ValueError(f"expected preds for one number of inputs, got {sorted(m)}")
    to = np.asarray if is_concrete(preds) else jnp.asarray  # compiles nothing
    rows = jax.tree.map(
        lambda v: jax.device_put(to(v).reshape(-1, *v.shape[2:])), preds
    )
    check_row_shapes(score, rows, row_shapes)
    inputs.of(score).check(rows, None, None)
    return preds


@pytree
class CrossCalibration(Calibrated, Promised):
    """Scores of rows under fits without them, and which fits those are.

    Made by `cross_calibrate`. Calling it with predictions of the b fits at new inputs
    gives the "+" sets; `minmax` and `naive` are the other two ways to use them.

    Args:
      left_out: Which of the b fits predict each row.
      calibration: The calibration of the held-out scores, of each group if there are
        groups.

    See also:
      cross_calibrate, CrossConformal, Calibration
    """

    left_out: plans.OwnFit | plans.Ensemble
    calibration: Calibration | GroupCalibration
    _over = "training sets"

    @property
    def promise(self) -> str:
        """What the "+" sets keep to, in words with a place for {alpha}."""
        if (term := _term(self)) is not None:
            return f"P(Y in set) >= 1 - 2 * {{alpha}}{term}"
        about = "P(Y in set) is about 1 - {alpha} for stable learners"
        if isinstance(self.left_out, plans.Ensemble):
            return f"{about}, and >= 1 - 2 * {{alpha}} for bags whose number was drawn"
        return f"{about}, without a bound"

    @property
    def assumption(self) -> str:
        """What that assumes, in words."""
        if _term(self) is None and isinstance(self.left_out, plans.Ensemble):
            return f"{ALL_ROWS}; for EnbPI errors mix strongly, and rows are many"
        return ALL_ROWS

    @property
    def score(self) -> Score:
        """The nonconformity score."""
        return self.calibration.score

    @property
    def mask(self) -> Array | None:
        """True for rows that some fit left out, shape (n,); None if all are."""
        return plans.rows_left_out(self.left_out.mask)

    def quantile(
        self, alpha: ArrayLike, *, test_weight: ArrayLike | None = None
    ) -> Array:
        """Returns the threshold of `naive` and `minmax`, from the held-out scores.

        With groups one for each, leading axis g.
        """
        return self.calibration.quantile(alpha, test_weight=test_weight)

    @partial(_checks.with_alpha, only=_ROWS)
    def __call__(
        self,
        preds: PyTree,
        alpha: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the "+" sets at new inputs.

        With f_-i the joint prediction of the fits without row i, scores R_i and k = n +
        1 - floor(alpha (n + 1)): the k-th largest lower and the k-th smallest upper end
        of the n sets {y : s(f_-i(x), y) <= R_i}; for labels, all y with #{i : R_i <
        s(f_-i(x), y)} below k. With groups i and n are the rows in the group of x.

        Args:
          preds: Predictions of the b fits at m inputs, a pytree with leading axes
            (b, m), the fits in the same order as for `cross_calibrate`.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c).
          groups: Group of each input, int or by name, shape (m,), for a calibration
            with groups.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m: `Interval`, `Intervals`, `Box` or `LabelSet`, as
          the score has; ends are infinite where the rank leaves 1, ..., n. For other
          scores: sets that know membership alone.

        Raises:
          ValueError: if there are predictions of another number of fits or of another
            shape, one is NaN, a number `alpha` is outside (0, 1), or lengths differ.

        Guarantee:
          P(Y in set) >= 1 - 2 alpha if each row is left out by a fit of its own (K
          folds of one size: minus a term below sqrt(2 / n)); `certificate` has what is
          sure. c components pay each: 1 - 2 alpha minus c terms. About 1 - alpha for
          stable learners. With weights and a fit for each row: the same for true
          likelihood ratios and their `test_weights`; for fixed weights, none above 1,
          minus the weighted total variation distance from exchangeability. With groups
          1 - 2 alpha within each. With clusters, each left out by a fit of its own:
          1 - 2 alpha + 1 / (K + 1), for a row of a new cluster.

        Assumption:
          The rows and test examples are exchangeable, and each fit saw all rows but
          those that it left out, by one rule that treats rows alike. With clusters
          these are exchangeable, and so are the rows within each.

        Cost:
          O(b + n) time for each of m sets, in blocks. Folds of 64 rows or more are
          sorted once and searched in O(log n).

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021.
          Prinster, Liu, Saria, JAWS: Auditing Predictive Uncertainty Under Covariate
          Shift, NeurIPS, 2022 (ratios).
          Barber, Candes, Ramdas, Tibshirani, Conformal Prediction Beyond
          Exchangeability, Annals of Statistics, 2023 (fixed weights).
        """
        args = self._check(preds, alpha, groups, test_weights)
        return self.named(_votes.plus_at(self, plans.Recorded(), *args))

    @partial(_checks.with_alpha, only=_ROWS)
    def minmax(self, preds: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the hull of all held-out fits' sets: [min f_-i - q, max f_-i + q].

        q is the conformal quantile of the held-out scores. For labels it is the union
        of the sets of all fits. Arguments, errors and types of sets as for the "+"
        sets.

        Guarantee:
          P(Y in set) >= 1 - alpha if each row has a fit of its own (jackknife+). K
          folds of one size: >= 1 - alpha - (1 - K/n) / (K + 1), by the same proof; c
          components pay the last term each. After bootstrap >= 1 - alpha with a
          binomial number of bags. `certificate` has what is sure; usually far more.
          With clusters, each left out by a fit of its own: 1 - alpha, for a row of a
          new cluster. Proof: take the least score of each row under the fits without
          its cluster and another. That of a missed row exceeds those of rows of weight
          (1 - alpha) (K + 1) in other clusters. For the missed row where it is least
          these rows are not missed, so that missed ones weigh alpha (K + 1) at most.

        Assumption:
          Those of the "+" sets.

        Cost:
          One threshold in O(n), and O(b) time for each set.

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, theorem 3.
          Kim, Xu, Barber, Predictive Inference Is Free with the
          Jackknife+-after-Bootstrap, NeurIPS, 2020 (bags; with the same proof).
        """
        args = self._check(preds, alpha, **context)
        return self.named(_votes.minmax_at(self, plans.Recorded(), *args))

    def certificate(self, alpha: Any, *, minmax: bool = False) -> Any:
        """Returns a lower bound of the marginal coverage of sets at alpha, by counts.

        Sharper than the published bound, which it has as a field: with m = n/K rows in
        a fold (the jackknife+: 1) and f = floor(alpha (n + 1)) >= 1 the "+" sets cover
        at least 1 - (2 (f - 1) + m) / (n + m), and at least 1 - 2 (f - 1 + K) / (n +
        K); `minmax` covers at least (n + 1 - f) / (n + m). With f = 0 sets are
        infinite. c components have alpha / c each, and each pays what it may miss (for
        `minmax` intervals and boxes: components that bind one end each).

        Args:
          alpha: Miscoverage level in (0, 1), a number.
          minmax: Whether for the sets of `minmax`.

        Returns:
          A `certificates.CrossCertificate`: `coverage` and `published`, at least 0.
          With groups a tuple of one for each of them.

        Raises:
          ValueError: if `alpha` is outside (0, 1), there are weights or clusters, fits
            or a mask are traced, folds overlap, as bags do, or have unequal sizes.

        Guarantee:
          P(Y in set) >= `coverage`. For the jackknife+ and its `minmax` some learner
          has no more.

        Assumption:
          Those of the "+" sets; for folds of several rows i.i.d. ones (or exchangeable
          with m - 1 more).

        Cost:
          O(n), on the host.

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, theorems 1, 3 and 4, whose proofs give the counts.

        Example:
          >>> from jaxcp import cross_calibrate, scores
          >>> y, held_out = jnp.arange(9.0), jnp.eye(9, dtype=bool)
          >>> cp = cross_calibrate(scores.Absolute(), jnp.zeros((9, 9)), y, held_out)
          >>> proof = cp.certificate(0.2)
          >>> proof.coverage, proof.published
          (0.7, 0.6)
        """
        self.calibration.held.check_without_clusters("a certificate", alpha)
        if self.calibration.weights is not None:
            raise ValueError(
                "expected a calibration without weights, whose coverage has a bound by "
                "counts, got one with weights; leave calibration_weights out"
            )
        if not is_concrete(self.left_out, self.calibration.held):
            raise ValueError(
                "expected fits and a mask with values, got traced ones; ask for the "
                "certificate outside of jax.jit and jax.vmap"
            )
        counts = np.ravel(self.calibration.held.counts()).tolist()
        folds = [max(n, 1) for n in counts]  # of a group, whose rows are left out alone
        if self.calibration.num_groups is None:
            folds = [plans.num_equal_folds(self.left_out, counts[0])]
        known = one_alpha(alpha), bool(minmax), math.prod(self.calibration.components)
        each = zip(counts, folds, strict=True)
        found = tuple(CrossCertificate(n, k, *known) for n, k in each)
        return found if self.calibration.held.shape else found[0]

    @_checks.with_alpha
    def naive(self, preds: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the sets of a fit on all rows: the jackknife, f(x) -/+ q.

        `preds` are those of that fit alone, a pytree with leading axis m.

        Guarantee:
          None: coverage may be anything, and falls to a half where the number of
          features is the number of rows. About 1 - alpha for stable learners.

        Assumption:
          A learner whose fit hardly depends on any one row.

        Cost:
          One threshold in O(n).

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, section 1.2.
        """
        self.calibration._given_groups(context.get("groups"))
        given = {name: v for name, v in context.items() if v is not None}
        return self.calibration(preds, alpha, **given)

    def aggregate(self, preds: PyTree, *, alpha: ArrayLike | None = None) -> PyTree:
        """Returns one prediction for each input from the fits that leave rows out.

        The mean of f_-i(x) over the rows that count (their median, or the function, if
        fits are aggregated so): the center of EnbPI, journal version.

        Args:
          preds: Predictions of the b fits, a pytree with leading axes (b, m).
          alpha: Miscoverage level, (): the ceil((1 - alpha) n)-th smallest of f_-i(x)
            instead, the center of the first version of EnbPI.

        Returns:
          Predictions with leading axis m.

        Raises:
          ValueError: as calling the calibration.

        References:
          Xu, Xie, Conformal Prediction for Time Series, IEEE Transactions on Pattern
          Analysis and Machine Intelligence, 2023.
          Xu, Xie, Conformal Prediction Interval for Dynamic Time-Series, ICML, 2021
          (with alpha).
        """
        return self.aggregate_of(plans.Recorded(), self._preds(preds), alpha)

    @partial(_checks.by_labels, only=_ROWS)
    def predictive(
        self,
        preds: PyTree,
        *,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> Atoms:
        """Returns predictive distributions at new inputs, with an atom for each row.

        C_i = f_-i(x) + r_i: where the score of row i is reached under the fits without
        it. `quantile(1 - alpha / 2, side="upper")` is the upper end of the "+" set.

        Args:
          preds: Predictions of the b fits, a pytree with leading axes (b, m). Of a
            `CrossConformal` they are `cp.fits.predict(x)`, for its `calibration`.
          groups: Group of each input, shape (m,), as for the sets.
          test_weights: Weight of each test point, shape (m,), as for the sets.

        Returns:
          `predictive.Atoms`, `values` of shape (m, n) in the order of the rows; +inf
          where the prediction has no scale (`ScaledResidual` with sigma <= 0).

        Raises:
          ValueError: as calling the calibration, and for scores whose sets are no half
            lines: atoms need residuals with their signs, as those of `scores.Residual`.

        Guarantee:
          None that is exact: the distribution is not valid as that of full conformal
          prediction is. Its quantiles have what the "+" sets have, and Q(Y) is about
          uniform for stable learners.

        Assumption:
          Those of the "+" sets.

        Cost:
          O(n) time and numbers for each input, in blocks of inputs.

        References:
          Vovk, Nouretdinov, Manokhin, Gammerman, Cross-Conformal Predictive
          Distributions, COPA, 2018.

        See also:
          predictive.Atoms, FullConformal, metrics.crps

        Example:
          >>> from jaxcp import cross_calibrate, scores
          >>> y, held_out = jnp.arange(9.0), jnp.eye(9, dtype=bool)
          >>> cp = cross_calibrate(scores.Signed(), jnp.zeros((9, 9)), y, held_out)
          >>> cp.predictive(jnp.ones((9, 1))).quantile(0.5, side="upper")
          Array([5.], dtype=float32)
        """
        preds, source = self._preds(preds), plans.Recorded()
        context = self._context(source.rows(preds), groups, test_weights)
        found = _votes.atoms_at(self, source, preds, context)
        if is_concrete(found) and np.isnan(np.asarray(found.values)).any():
            expected = "a score of one number with its sign, as scores.Residual()"
            raise ValueError(f"expected {expected}, got {type(self.score).__name__}")
        return found

    def stream(
        self, *, every: int = 1, empirical: bool = False
    ) -> tuple[SlidingWindow, SlidingState]:
        """Returns an online method and its state, after the held-out scores.

        The rolling threshold of EnbPI, for rows in order of time and predictions by
        `aggregate`. Arguments, errors and guarantee are those of
        `online.SlidingWindow`; there are no calibration weights.

        Example:
          >>> from jaxcp import cross_calibrate
          >>> held_out = jnp.arange(20)[None] % 2 == jnp.arange(2)[:, None]
          >>> score, y = jaxcp.scores.Absolute(), jnp.arange(20.0)
          >>> cp = cross_calibrate(score, jnp.zeros((2, 20)), y, held_out)
          >>> method, state = cp.stream(every=2)
          >>> preds, y = cp.aggregate(jnp.zeros((2, 4))), jnp.full(4, 30.0)
          >>> jaxcp.online.run(method, state, preds, y, alpha=0.1)[1].upper.tolist()
          [18.0, 18.0, 30.0, 30.0]
        """
        if self.calibration.weights is not None or self.calibration.num_groups:
            raise ValueError(
                "expected scores without calibration_weights or groups, which a window "
                "does not keep; online.NexCP weighs scores by their age"
            )
        method = SlidingWindow(self.score, every=every, empirical=empirical)
        # Every step is given its own alpha.
        return method, method.init(self.scores, 0.5, mask=self.mask)

    def named(self, sets):
        """Returns sets with the names of their labels, if there are any."""
        sets = sets.trimmed() if isinstance(sets, Intervals) else sets
        return named(sets, self.calibration.classes)

    def aggregate_of(self, source, x, alpha):
        """Returns one prediction from a source at each input."""
        if alpha is None:
            return _votes.center(self, source, x)
        n = len(self.scores) if self.mask is None else count_true(self.mask)
        rank = conformal_rank(n - 1, alpha)  # n - floor(alpha n)
        if rank.ndim:
            raise ValueError(f"expected alpha of shape (), got {rank.shape}")
        return _votes.upper_center(self, source, x, rank)

    def _check(self, preds, alpha, groups=None, test_weights=None):
        """Returns predictions, rank and context, or raises ValueError."""
        preds = self._preds(preds)
        rows = plans.Recorded().rows(preds)
        return preds, *self.level_and_context(rows, alpha, groups, test_weights)

    def _preds(self, preds):
        """Returns predictions of the b fits, after checks."""
        shapes = self.calibration.row_shapes
        return new_preds(self.score, preds, self.left_out.count, shapes)

    def level_and_context(self, rows, alpha, groups, test_weights):
        """Returns the rank and the context of test points, or raises ValueError."""
        context = self._context(rows, groups, test_weights)
        self.calibration._check_one_alpha(alpha)
        return self.calibration.rank(alpha), context

    def _context(self, rows, groups, test_weights):
        """Returns the groups and weights of test points, or raises ValueError."""
        groups = self.calibration._given_groups(groups)
        self.calibration.held.check_without_clusters("test weights", test_weights)
        weights = weights_for(self.calibration.weights, test_weights)
        return Context(*_checks.rows(x=rows, groups=groups, test_weights=weights)[1:])


def _term(cp: CrossCalibration) -> str | None:
    """Returns what is added to 1 - 2 alpha, in words; None where no bound is proved."""
    held, left_out = cp.calibration.held, cp.left_out
    if not (is_concrete(left_out, held) and isinstance(left_out.aggregation, str)):
        return None
    if (sizes := left_out.fold_sizes()) is None:
        return None
    num_fits, num_rows = np.sum(sizes > 0), int(np.sum(held.counts()))
    if held.clusters is not None:  # guide, "Fits on the same rows": the proof
        codes = np.asarray(held.clusters)[True if held.mask is None else held.mask]
        num_clusters = len(np.unique(codes))
        has_own_fits = num_fits == num_clusters
        return f" + 1 / ({num_clusters} + 1)" if has_own_fits else None
    if np.sum(sizes) == num_rows == num_fits:
        return ""
    if held.weights is not None or np.ptp(sizes[sizes > 0]) or np.sum(sizes) < num_rows:
        return None
    c = math.prod(cp.calibration.components)
    return f" - {c * published_miss(num_rows, int(num_fits), Fraction(0))}"


@pytree
class CrossConformal(Calibrated):
    """Fits that leave rows out, with the score of every row under those without it.

    Made by `cross_conformal`, `jackknife_plus`, `cv_plus`, `enbpi` and
    `jackknife_plus_after_bootstrap`. Calling it gives the "+" sets; `minmax` and
    `naive` are the other two ways to use the same fits.

    Args:
      fits: The fits, and one on all rows for `naive`. For an `Estimator`, `fits.models`
        has the fitted models.
      calibration: The calibration by their predictions for rows that they left out.

    See also:
      cross_conformal, jackknife_plus, cv_plus, enbpi, CrossCalibration
    """

    fits: plans.Fits | plans.HostFits
    calibration: CrossCalibration
    quantile = CrossCalibration.quantile

    @_checks.with_alpha
    def __call__(
        self,
        x: PyTree,
        alpha: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        test_weights: ArrayLike | None = None,
    ) -> AnySet:
        """Returns the "+" sets at new inputs.

        With held-out fits f_-i, scores R_i and k = n + 1 - floor(alpha (n + 1)): the
        k-th largest lower and the k-th smallest upper end of the n sets {y : s(f_-i(x),
        y) <= R_i}; for labels, all y with #{i : R_i < s(f_-i(x), y)} below k. With
        groups i and n are the rows in the group of x alone.

        Args:
          x: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c). With groups and
            one component also (g,), one for each.
          groups: Group of each input, int or by name, shape (m,), for fits with groups.
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m: `Interval`, `Intervals`, `Box` or `LabelSet`, as
          the score has; ends are infinite where the rank leaves 1, ..., n, and of
          traced groups out of range. For other scores: sets that know membership alone.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), lengths differ, or a
            concrete group is not known.

        Guarantee:
          P(Y in set) >= 1 - 2 alpha if each row is left out by a fit of its own (K
          folds of one size: minus a term below sqrt(2 / n)); `certificate` has what is
          sure. c components pay each: 1 - 2 alpha minus c terms. About 1 - alpha for
          stable learners. `enbpi` has an asymptotic guarantee. With weights as
          `CrossCalibration.__call__`. With groups 1 - 2 alpha within each group: the
          theorem for its rows, given all others. With clusters 1 - 2 alpha + 1 / (K +
          1), for a row of a new cluster.

        Assumption:
          The rows and test examples are exchangeable, and each fit saw all rows but
          those that it left out, by one rule that treats rows alike. With clusters
          these are exchangeable, and so are the rows within each.

        Cost:
          Predictions of b fits and O(n) time for each of m sets, in blocks of inputs.
          Folds of 64 rows or more are sorted once and searched in O(log n).

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021.

        Example:
          >>> from jaxcp import jackknife_plus, learners, scores
          >>> x = jnp.arange(9.0)[:, None]
          >>> y = x[:, 0] + jnp.where(x[:, 0] % 2, 1.0, -1.0)
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = jackknife_plus(key, ridge, scores.Absolute(), x, y)
          >>> round(cp(jnp.array([[4.0]]), alpha=0.2).upper.item(), 1)
          5.3
        """
        sets = _votes.plus_at(*self._check(x, alpha, groups, test_weights))
        return self.calibration.named(sets)

    @_checks.with_alpha
    def minmax(self, x: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the hull of all held-out fits' sets: [min f_-i - q, max f_-i + q].

        q is the conformal quantile of the held-out scores. For labels it is the union
        of the sets of all fits. Arguments, errors and types of sets as for the "+"
        sets.

        Guarantee:
          P(Y in set) >= 1 - alpha if each row has a fit of its own (jackknife+). K
          folds of one size: >= 1 - alpha - (1 - K/n) / (K + 1), by the same proof; c
          components pay the last term each. After bootstrap >= 1 - alpha with a
          binomial number of bags. `certificate` has what is sure; usually far more.
          With clusters 1 - alpha, for a row of a new cluster.

        Assumption:
          Those of the "+" sets.

        Cost:
          One threshold in O(n), and predictions of b fits for each set.

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, theorem 3.
          Kim, Xu, Barber, Predictive Inference Is Free with the
          Jackknife+-after-Bootstrap, NeurIPS, 2020 (bags; with the same proof).
        """
        sets = _votes.minmax_at(*self._check(x, alpha, **context))
        return self.calibration.named(sets)

    def certificate(self, alpha: Any, *, minmax: bool = False) -> Any:
        """Returns a lower bound of coverage: `CrossCalibration.certificate`.

        Guarantee:
          P(Y in set) >= `coverage` of the certificate.

        Example:
          >>> from jaxcp import cv_plus, datasets, learners, scores
          >>> x, y = datasets.linear(jax.random.key(0), 40)
          >>> key, ridge = jax.random.key(1), learners.Ridge(1.0)
          >>> cp = cv_plus(key, ridge, scores.Absolute(), x, y, num_folds=20)
          >>> cp.certificate(0.1).coverage > cp.certificate(0.1).published
          True
        """
        return self.calibration.certificate(alpha, minmax=minmax)

    @_checks.with_alpha
    def naive(self, x: PyTree, alpha: ArrayLike, **context: Any) -> AnySet:
        """Returns the sets of the fit on all rows: the jackknife, f(x) -/+ q.

        Arguments, errors and types of sets as for the "+" sets.

        Guarantee:
          None: coverage may be anything, and falls to a half where the number of
          features is the number of rows. About 1 - alpha for stable learners.

        Assumption:
          A learner whose fit hardly depends on any one row.

        Cost:
          One threshold in O(n), and predictions of one fit.

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, section 1.2.
        """
        preds = self.fits.predict_full(x)
        return self.calibration.naive(preds, alpha, **context)

    def aggregate(self, x: PyTree, *, alpha: ArrayLike | None = None) -> PyTree:
        """Returns one prediction for each input from the fits that leave rows out.

        The mean of f_-i(x) over the n rows (their median, if fits are aggregated so):
        the center of EnbPI, journal version.

        Args:
          x: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, (): the ceil((1 - alpha) n)-th smallest of f_-i(x)
            instead, the center of the first version of EnbPI.

        Returns:
          Predictions with leading axis m, like those of the learner.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1).

        References:
          Xu, Xie, Conformal Prediction for Time Series, IEEE Transactions on Pattern
          Analysis and Machine Intelligence, 2023.
          Xu, Xie, Conformal Prediction Interval for Dynamic Time-Series, ICML, 2021
          (with alpha).
        """
        source, x = self.fits.source(x)
        return self.calibration.aggregate_of(source, x, alpha)

    def stream(
        self, *, every: int = 1, empirical: bool = False
    ) -> tuple[SlidingWindow, SlidingState]:
        """Returns an online method and its state: `CrossCalibration.stream`."""
        return self.calibration.stream(every=every, empirical=empirical)

    def _check(self, x, alpha, groups=None, test_weights=None):
        """Returns what a program of sets takes, or raises ValueError."""
        source, x = self.fits.source(x)
        known = source.rows(x), alpha, groups, test_weights
        return self.calibration, source, x, *self.calibration.level_and_context(*known)


@partial(_checks.verb, only=_ROWS)
def cross_calibrate(
    score: Score,
    preds: PyTree,
    y: ArrayLike,
    held_out: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    num_groups: int | None = None,
    group_names: Iterable[Hashable] | None = None,
    clusters: ArrayLike | Iterable[Hashable] | None = None,
    weights: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    aggregation: plans.Aggregation = "mean",
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
      groups: Group of each row, shape (n,), as for `jackknife_plus`, if each fit leaves
        out one row of its own.
      num_groups: Number of groups g, needed for groups that are integers.
      group_names: Names of the g groups, as for `calibrate_groups`.
      clusters: Cluster of each row, such as the patient it is of: hashable values known
        on the host, shape (n,). The N_k rows of one cluster are left out together, and
        weigh 1/N_k each, a row of a new cluster 1.
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
        held out is NaN, there are groups and a fit leaves out several rows, or as
        `calibrate_groups`; with clusters if there are fewer than two, a fit leaves out
        some of the rows of one, or beside groups or weights. Where `held_out` is traced
        and no row is left out the sets are infinite.

    Guarantee:
      As `CrossCalibration.__call__`: 1 - 2 alpha if each row is left out by one fit of
      its own (K folds of one size: minus a term below sqrt(2 / n)), and for bags if
      their number is drawn, as in `jackknife_plus_after_bootstrap`. Other plans have
      none. With groups 1 - 2 alpha within each. With K clusters, each left out by a fit
      of its own: 1 - 2 alpha + 1 / (K + 1), and of `minmax` 1 - alpha, for a row of a
      new cluster; none is proved for fits without several clusters.

    Assumption:
      The rows and test examples are exchangeable, and each fit saw all rows but those
      that it left out, by one rule that treats rows alike. With clusters these are
      exchangeable, that of the test row included, and so are the rows within each.

    Cost:
      No fit: O(b n) time to combine the predictions, and n scores.

    References:
      Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
      Annals of Statistics, 2021.
      Kim, Xu, Barber, Predictive Inference Is Free with the Jackknife+-after-Bootstrap,
      NeurIPS, 2020 (bags).
      Lee, Barber, Willett, Distribution-Free Inference with Hierarchical Data, ACM
      Journal of Data Science, 2026 (weights of clusters).

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
    held_out, mask = check_held_out(held_out, mask)
    own = clusters, weights, groups, mask, held_out
    codes = plans.clusters_of(held_out.T, *own)
    plans.check_alone(groups, held_out)
    of = groups_of(held_out.T, groups, num_groups, group_names, mask)
    preds = checked_preds(preds, held_out.shape, held_out)
    left_out = plans.left_out_by(held_out, aggregation)
    own = _votes.held_out(left_out, preds)
    given = {"weights": weights, "classes": classes, "clusters": codes}
    return of_held_out(left_out, score, own, y, of, kept=mask, **given)


def of_held_out(left_out, score, preds, y, groups, *, kept=None, bags=False, **rows):
    """Returns the calibration of rows by their held-out predictions, (n, ...).

    `bags` says that fits are of bags: a row of `kept` that is in all of them counts.
    """
    known = plans.rows_left_out(left_out.mask)
    _checks.weights(rows["weights"])  # no bounds of them
    of = rows | {"mask": known}
    calibration: Calibration | GroupCalibration
    if groups.count is None:
        calibration = calibrate(score, preds, y, **of)
    else:
        own = groups.codes
        found = calibrate_groups(score, preds, y, own, num_groups=groups.count, **of)
        calibration = dataclasses.replace(found, group_names=groups.names)
    if known is not None and isinstance(left_out, plans.Ensemble):
        of = left_out.held_out, kept, jax.device_put(np.array(bags, bool))
        scores, counts = _votes.counted(calibration.scores, *of)
        calibration = dataclasses.replace(calibration, scores=scores, mask=counts)
    # What holds of scores of other rows does not hold of those that fits have left out.
    calibration = dataclasses.replace(calibration, promise="", assumption="")
    return CrossCalibration(left_out, calibration)
