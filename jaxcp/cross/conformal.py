"""Calibration on the training rows themselves, by fits that leave rows out."""

from __future__ import annotations

from typing import Any

from jax import Array

from jaxcp._pytree import pytree
from jaxcp.certificates import CrossCertificate
from jaxcp.cross import _programs
from jaxcp.cross._fits import Fits, HostFits
from jaxcp.cross.predictions import CrossCalibration
from jaxcp.online.windows import SlidingState, SlidingWindow
from jaxcp.typing import AnySet, ArrayLike, PyTree


@pytree
class CrossConformal:
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

    fits: Fits | HostFits
    calibration: CrossCalibration

    @property
    def scores(self) -> Array:
        """Held-out scores, shape (n,) or (n, c); +inf where no fit left a row out."""
        return self.calibration.scores

    @property
    def mask(self) -> Array | None:
        """True for rows that some fit left out, shape (n,); None if all rows are."""
        return self.calibration.mask

    def quantile(
        self, alpha: ArrayLike, *, test_weight: ArrayLike | None = None
    ) -> Array:
        """Returns the threshold of `naive` and `minmax`, from the held-out scores.

        The "+" sets have no single threshold.
        """
        return self.calibration.quantile(alpha, test_weight=test_weight)

    def __call__(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the "+" sets at new inputs.

        With held-out fits f_-i, scores R_i and k = n + 1 - floor(alpha (n + 1)): the
        k-th largest lower and the k-th smallest upper end of the n sets {y : s(f_-i(x),
        y) <= R_i}; for labels, all y with #{i : R_i < s(f_-i(x), y)} below k.

        Args:
          x: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c).
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1, and no weight may then be larger.

        Returns:
          Sets with leading axis m: `Interval`, `Intervals`, `Box` or `LabelSet`, as
          the score has; ends are infinite where the rank leaves 1, ..., n. For other
          scores: sets that know membership alone.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), or lengths differ.

        Guarantee:
          P(Y in set) >= 1 - 2 alpha if each row is left out by a fit of its own (K
          folds of one size: minus a term below sqrt(2 / n)); `certificate` has what is
          sure. c components pay each: 1 - 2 alpha minus c terms. About 1 - alpha for
          stable learners. `enbpi` has an asymptotic guarantee. With weights as
          `CrossCalibration.__call__`.

        Assumption:
          The rows and test examples are exchangeable, and each fit saw all rows but
          those that it left out, by one rule that treats rows alike.

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
        sets = _programs.plus(*self._check(x, alpha, test_weights))
        return self.calibration.named(sets)

    def minmax(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
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
          One threshold in O(n), and predictions of b fits for each set.

        References:
          Barber, Candes, Ramdas, Tibshirani, Predictive Inference with the Jackknife+,
          Annals of Statistics, 2021, theorem 3.
          Kim, Xu, Barber, Predictive Inference Is Free with the
          Jackknife+-after-Bootstrap, NeurIPS, 2020 (bags; with the same proof).
        """
        sets = _programs.minmax(*self._check(x, alpha, test_weights))
        return self.calibration.named(sets)

    def certificate(self, alpha: Any, *, minmax: bool = False) -> CrossCertificate:
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

    def naive(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
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
        return self.calibration.naive(preds, alpha, test_weights=test_weights)

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

    def _check(self, x, alpha, test_weights):
        """Returns what a program of sets takes, or raises ValueError."""
        source, x = self.fits.source(x)
        rows = source.rows(x)
        level = self.calibration.level_and_weights(rows, alpha, test_weights)
        return self.calibration, source, x, *level
