"""Calibration on the training rows themselves, by fits that leave rows out."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._arrays import as_arrays
from jaxcp._pytree import pytree
from jaxcp._tracing import jit
from jaxcp.calibration._rows import weights_for
from jaxcp.calibration.split import Calibration
from jaxcp.cross import _folds, _votes
from jaxcp.cross._fits import Fits
from jaxcp.quantiles.conformal import thresholds
from jaxcp.quantiles.levels import conformal_rank
from jaxcp.scores import inputs
from jaxcp.typing import AnySet, ArrayLike, HasEnds, HasShapes, PyTree

# Rows in a fold from which a binary search beats a pass over its scores.
_LONG_FOLDS = 64


@pytree
class CrossConformal:
    """Fits that leave rows out, with the score of every row under those without it.

    Made by `cross_conformal`, `jackknife_plus`, `cv_plus`, `enbpi` and
    `jackknife_plus_after_bootstrap`. Calling it gives the "+" sets; `minmax` and
    `naive` are the other two ways to use the same fits.

    Args:
      fits: The fits and which rows they left out.
      full: Parameters of the fit on all rows, for `naive`.
      calibration: The calibration of the held-out scores.
    """

    fits: Fits
    full: PyTree
    calibration: Calibration

    @property
    def scores(self) -> Array:
        """Held-out scores, shape (n,) or (n, c); of no use where `mask` is False."""
        return self.calibration.scores

    @property
    def mask(self) -> Array | None:
        """True for rows that some fit left out, shape (n,); None if that is all."""
        return self.calibration.mask

    def __call__(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the "+" sets at new inputs.

        With held-out fits f_-i, scores R_i and k = n + 1 - floor(alpha (n + 1)): the
        k-th largest lower and the k-th smallest upper end of the n sets
        {y : s(f_-i(x), y) <= R_i}; of labels, those y with #{i : R_i < s(f_-i(x), y)}
        below k.

        Args:
          x: Inputs, a pytree with leading axis m.
          alpha: Miscoverage level, shape (), or (c,) for scores with c components,
            whose sets are intersected (a scalar is split to alpha / c).
          test_weights: Weight of each test point, shape (m,), for calibrations with
            weights. Defaults to 1.

        Returns:
          Sets with leading axis m: `Interval`, `Box` or `LabelSet` as of the score,
          infinite ends where the rank leaves 1, ..., n. Of scores without such sets:
          sets that know membership only.

        Raises:
          ValueError: if a number `alpha` is outside (0, 1), or lengths differ.

        Guarantee:
          P(Y in set) >= 1 - 2 alpha for exchangeable rows and a learner that treats
          them alike (K folds: minus a term below sqrt(2 / n)); about 1 - alpha for
          stable learners. `enbpi` has an asymptotic guarantee.

        References:
          Barber et al., Predictive Inference with the Jackknife+, 2021.

        Example:
          >>> from jaxcp import jackknife_plus, learners, scores
          >>> x = jnp.arange(9.0)[:, None]
          >>> y = x[:, 0] + jnp.where(x[:, 0] % 2, 1.0, -1.0)
          >>> key, ridge = jax.random.key(0), learners.Ridge(1.0)
          >>> cp = jackknife_plus(key, ridge, scores.Absolute(), x, y)
          >>> round(cp(jnp.array([[4.0]]), alpha=0.2).upper.item(), 1)
          5.3
        """
        return _plus(self, *self._check(x, alpha, test_weights))

    def minmax(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the hull of all held-out fits' sets: [min f_-i - q, max f_-i + q].

        q is the conformal quantile of the held-out scores; of labels, the union of the
        sets of all fits. Arguments, errors and types of sets as for the "+" sets.

        Guarantee:
          P(Y in set) >= 1 - alpha for exchangeable rows; usually far more.

        References:
          Barber et al., Predictive Inference with the Jackknife+, 2021, theorem 2.
        """
        return _minmax(self, *self._check(x, alpha, test_weights))

    def naive(
        self, x: PyTree, alpha: ArrayLike, *, test_weights: ArrayLike | None = None
    ) -> AnySet:
        """Returns the sets of the fit on all rows: the jackknife, f(x) -/+ q.

        Arguments, errors and types of sets as for the "+" sets.

        Guarantee:
          None: coverage may be anything, and falls to a half where the number of
          features is the number of rows. About 1 - alpha for stable learners.

        References:
          Barber et al., Predictive Inference with the Jackknife+, 2021, section 1.2.
        """
        _checks.check_given(x=x)
        x = as_arrays(x=x)
        preds = _predict(self.fits.learner, self.full, x)
        return self.calibration(preds, alpha, test_weights=test_weights)

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
          Xu and Xie, Conformal Prediction for Time Series, 2021 and 2023.
        """
        x = _checks.rows(x=x)
        if alpha is None:
            return _center(self, x)
        mask, n = self.mask, len(self.scores)
        count = n if mask is None else jnp.sum(mask)
        rank = conformal_rank(count - 1, alpha)  # n - floor(alpha n)
        if rank.ndim:
            raise ValueError(f"expected alpha of shape (), got {rank.shape}")
        return _upper_center(self, x, rank)

    def _check(self, x, alpha, test_weights):
        """Returns inputs, rank and weights, or raises ValueError."""
        weights = weights_for(self.calibration.weights, test_weights)
        x, test_weights = _checks.rows(x=x, test_weights=weights)
        self.calibration._check_one_alpha(alpha)
        return x, self.calibration.rank(alpha), test_weights


@jit
def _plus(cp, x, rank, test_weights):
    score, fits, of = cp.calibration.score, cp.fits, cp.calibration
    n, m = len(of.scores), len(jax.tree.leaves(x)[0])
    if _has_long_folds(cp, x):
        return _plus_of_folds(cp, x, rank)
    test_weights = jnp.ones(m) if test_weights is None else test_weights
    ranks = jnp.atleast_1d(rank)

    def one(preds, test_weight):
        ballot = _votes.Ballot(ranks, of.mask, of.weights, test_weight)
        preds = fits.left_out.without_each(preds)
        return _votes.plus(score, preds, _known(of.scores), ballot)

    return fits.at_each(one, x, test_weights, width=n * _width(cp, x))


def _plus_of_folds(cp, x, rank):
    score, fits = cp.calibration.score, cp.fits
    folds = _folds.sort_folds(_known(cp.scores), fits.left_out.fold, fits.count)

    def one(preds):
        if inputs.has_labels(score):
            labels = jax.vmap(score.labels)(preds)
            return _folds.plus_labels(labels, jax.tree.map(lambda v: v[0], folds), rank)
        return _folds.plus_interval(score, preds, folds, jnp.atleast_1d(rank))

    width = _LONG_FOLDS * fits.count * _width(cp, x)
    return fits.at_each(one, x, width=width)


def _width(cp, x):
    """Returns how many numbers a set is made of for each fit: predictions, times c."""
    preds = jax.eval_shape(cp.fits.predict, x)
    numbers = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(preds))
    return max(numbers, 1) * math.prod(cp.scores.shape[1:])


def _known(scores):
    """Returns scores with +inf for NaN: a row without a score excludes nothing."""
    return jnp.where(jnp.isnan(scores), jnp.inf, scores)


def _has_long_folds(cp, x):
    """Returns whether the sorted scores of folds give the same sets faster."""
    score, fits, of = cp.calibration.score, cp.fits, cp.calibration
    if fits.left_out.rows_per_fit < _LONG_FOLDS or of.weights is not None:
        return False
    if inputs.has_labels(score):
        return not inputs.is_inclusive(score)
    preds = jax.eval_shape(fits.predict, x)
    pred = jax.tree.map(lambda v: jnp.zeros(v.shape[2:], v.dtype), preds)
    kind = jax.eval_shape(score.invert, pred, of.scores[0])
    has_ends = isinstance(kind, HasEnds) and isinstance(kind, HasShapes)
    return has_ends and kind.target_shape() == ()


@jit
def _minmax(cp, x, rank, test_weights):
    score, fits, of = cp.calibration.score, cp.fits, cp.calibration
    m, voting = len(jax.tree.leaves(x)[0]), fits.left_out.voting
    q = of.threshold(rank)
    q = jnp.broadcast_to(q[None], (m, *q.shape))
    if test_weights is not None:
        q = jax.vmap(of.threshold, (None, 0))(rank, test_weights)

    def one(preds, q):
        return _votes.minmax(score, fits.left_out.voters(preds), q, voting)

    return fits.at_each(one, x, q, width=len(voting) * _width(cp, x))


@jit
def _center(cp, x):
    width = len(cp.scores) * _width(cp, x)
    return cp.fits.at_each(cp.fits.left_out.center, x, width=width)


@jit
def _upper_center(cp, x, rank):
    def one(preds):
        each = cp.fits.left_out.without_each(preds)
        return jax.tree.map(lambda v: thresholds(v, rank, cp.mask), each)

    return cp.fits.at_each(one, x, width=len(cp.scores) * _width(cp, x))


@jit
def _predict(learner, params, x):
    return learner.predict(params, x)
