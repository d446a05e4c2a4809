"""Predictions of many fits, from any library, in place of the fits themselves."""

from __future__ import annotations

import math
from typing import Any

from jax import Array

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._counting import count_true
from jaxcp._named import named
from jaxcp._pytree import pytree
from jaxcp.calibration._rows import count_rows, weights_for
from jaxcp.calibration.split import Calibration
from jaxcp.certificates import CrossCertificate
from jaxcp.cross import _programs, _recorded
from jaxcp.cross._fits import Recorded
from jaxcp.cross._left_out import Ensemble, OwnFit, num_equal_folds, rows_left_out
from jaxcp.cross._streams import sliding
from jaxcp.online.windows import SlidingState, SlidingWindow
from jaxcp.quantiles.levels import conformal_rank, one_alpha
from jaxcp.sets import Intervals
from jaxcp.typing import AnySet, ArrayLike, PyTree, Score


@pytree
class CrossCalibration:
    """Scores of rows under fits without them, and which fits those are.

    Made by `cross_calibrate`. Calling it with predictions of the b fits at new inputs
    gives the "+" sets; `minmax` and `naive` are the other two ways to use them.

    Args:
      left_out: Which of the b fits predict each row.
      calibration: The calibration of the held-out scores.

    See also:
      cross_calibrate, CrossConformal, Calibration
    """

    left_out: OwnFit | Ensemble
    calibration: Calibration

    @property
    def score(self) -> Score:
        """The nonconformity score."""
        return self.calibration.score

    @property
    def scores(self) -> Array:
        """Held-out scores, shape (n,) or (n, c); +inf where no fit left a row out."""
        return self.calibration.scores

    @property
    def mask(self) -> Array | None:
        """True for rows that some fit left out, shape (n,); None if all are."""
        return rows_left_out(self.left_out.mask)

    def quantile(
        self, alpha: ArrayLike, *, test_weight: ArrayLike | None = None
    ) -> Array:
        """Returns the threshold of `naive` and `minmax`, from the held-out scores."""
        return self.calibration.quantile(alpha, test_weight=test_weight)

    def __call__(
        self, preds: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the "+" sets at new inputs.

        With f_-i the joint prediction of the fits without row i, scores R_i and k = n +
        1 - floor(alpha (n + 1)): the k-th largest lower and the k-th smallest upper end
        of the n sets {y : s(f_-i(x), y) <= R_i}; for labels, all y with #{i : R_i <
        s(f_-i(x), y)} below k.

        Args:
          preds: Predictions of the b fits at m inputs, a pytree with leading axes
            (b, m), the fits in the same order as for `cross_calibrate`.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c).
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
          minus the weighted total variation distance from exchangeability.

        Assumption:
          The rows and test examples are exchangeable, and each fit saw all rows but
          those that it left out, by one rule that treats rows alike.

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
        args = self._check(preds, alpha, test_weights)
        return self.named(_programs.plus(self, Recorded(), *args))

    def minmax(
        self, preds: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the hull of all held-out fits' sets: [min f_-i - q, max f_-i + q].

        q is the conformal quantile of the held-out scores. For labels it is the union
        of the sets of all fits. Arguments, errors and types of sets as for the "+"
        sets.

        Guarantee:
          P(Y in set) >= 1 - alpha if each row has a fit of its own (jackknife+). K
          folds of one size: >= 1 - alpha - (1 - K/n) / (K + 1), by the same proof; c
          components pay the last term each. After bootstrap >= 1 - alpha with a
          binomial number of bags. `certificate` has what is sure; usually far more.

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
        args = self._check(preds, alpha, test_weights)
        return self.named(_programs.minmax(self, Recorded(), *args))

    def certificate(self, alpha: Any, *, minmax: bool = False) -> CrossCertificate:
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

        Raises:
          ValueError: if `alpha` is outside (0, 1), there are weights, fits or a mask
            are traced, folds overlap, as bags do, or have unequal sizes.

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
        if self.calibration.weights is not None:
            raise ValueError(
                "expected a calibration without weights, whose coverage has a bound by "
                "counts, got one with weights; leave calibration_weights out"
            )
        if not is_concrete(self.left_out, self.calibration.mask):
            raise ValueError(
                "expected fits and a mask with values, got traced ones; ask for the "
                "certificate outside of jax.jit and jax.vmap"
            )
        n = int(count_rows(self.calibration))
        num_folds = num_equal_folds(self.left_out, n)
        num_components = math.prod(self.calibration.components)
        exact = one_alpha(alpha)
        return CrossCertificate(n, num_folds, exact, bool(minmax), num_components)

    def naive(
        self, preds: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
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
        return self.calibration(preds, alpha, test_weights=test_weights)

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
        return self.aggregate_of(Recorded(), self._preds(preds), alpha)

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
        return sliding(self.calibration, self.mask, every, empirical)

    def named(self, sets):
        """Returns sets with the names of their labels, if there are any."""
        sets = sets.trimmed() if isinstance(sets, Intervals) else sets
        return named(sets, self.calibration.classes)

    def aggregate_of(self, source, x, alpha):
        """Returns one prediction from a source at each input."""
        if alpha is None:
            return _programs.center(self, source, x)
        n = len(self.scores) if self.mask is None else count_true(self.mask)
        rank = conformal_rank(n - 1, alpha)  # n - floor(alpha n)
        if rank.ndim:
            raise ValueError(f"expected alpha of shape (), got {rank.shape}")
        return _programs.upper_center(self, source, x, rank)

    def _check(self, preds, alpha, test_weights):
        """Returns predictions, rank and weights, or raises ValueError."""
        preds = self._preds(preds)
        rows = Recorded().rows(preds)
        return preds, *self.level_and_weights(rows, alpha, test_weights)

    def _preds(self, preds):
        """Returns predictions of the b fits, after checks."""
        shapes = self.calibration.row_shapes
        return _recorded.new_preds(self.score, preds, self.left_out.count, shapes)

    def level_and_weights(self, rows, alpha, test_weights):
        """Returns the rank and the weights of test points, or raises ValueError."""
        weights = weights_for(self.calibration.weights, test_weights)
        _, test_weights = _checks.rows(x=rows, test_weights=weights)
        self.calibration._check_one_alpha(alpha)
        return self.calibration.rank(alpha), test_weights
