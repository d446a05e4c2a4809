"""Methods that read the latest scores: as weights of like times, or by regression."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxcp import _checks
from jaxcp._arrays import is_concrete
from jaxcp._numbers import at_least_single
from jaxcp._tree import jit, pytree, static
from jaxcp.conditional.kernels import Gaussian
from jaxcp.online.stream import Stream, as_floats, component_alpha, known, past_scores
from jaxcp.online.windows import shifted
from jaxcp.quantiles._regression import coefficients
from jaxcp.quantiles.levels import rank_at_any_alpha
from jaxcp.quantiles.thresholds import threshold_at
from jaxcp.scores import Signed
from jaxcp.typing import ArrayLike, Number, Score


class Lagged(Stream):
    """What methods that read the latest scores have in common."""

    promise = "P(Y in set given the lags) tends to 1 - {alpha} as rows become many"
    assumption = (
        "stationary, strongly mixing scores, whose law given the lags is of the kind "
        "that the method fits"
    )

    lags: int
    window: int
    delay: int

    _own_delay = property(lambda self: self.delay)

    def _late(self, delay):
        if self.delay not in (0, delay):
            expected = f"the delay {self.delay} of the method"
            raise ValueError(f"expected {expected}, got {delay}; run begins with it")
        if delay >= self.window and not self.delay:  # init kept no rows for it
            raise ValueError(f"expected window > delay {delay}, got {self.window}")
        return replace(self, delay=delay)  # type: ignore[type-var]


@pytree
class Similar(Lagged):
    """The weighted conformal quantile of past scores that followed scores like now's.

    The weight of a score is exp(-d^2 / (2 bandwidth^2)), d the Euclidean distance
    between the `lags` scores before it and the latest `lags` scores; that of the test
    point is 1. With components d is over those of all lags. Two infinite scores differ
    by 0, an infinite one and a finite one by +inf: such rows weigh nothing.

    Args:
      score: The nonconformity score.
      bandwidth: Distance of lags at which a score weighs 0.61, > 0, shape (), in units
        of the score.
      lags: Number of scores before each that are compared, at least 1.
      window: Number of latest scores that are weighed, at least 1; D fewer where a
        `delay` of D is first given to `online.run`.
      delay: How many steps late targets come: the lags of a score are those that were
        known when its set was issued. A `delay` of `online.run` sets it; give it where
        targets come late by `update` or in a `Queue`. `online.run` then begins with it.

    Guarantee:
      Asymptotic: conditional coverage given the lags tends to 1 - alpha. The bound of
      `NexCP` does not apply: weights depend on the data.

    Assumption:
      Stationary, strongly mixing scores, a law that changes smoothly with the lags, and
      a bandwidth that falls to 0 while more and more scores lie within it.

    Cost:
      O(w lags) time for a step with a window of w scores, and one weighted selection.
      The set is everything where the scores weigh less than 1 / alpha - 1 together, as
      after lags that were rarely seen: with a small bandwidth that is a large share of
      all steps. The threshold has no slope in the bandwidth.

    References:
      Lee, Xu, Xie, Kernel-based Optimally Weighted Conformal Time-Series Prediction,
      ICLR, 2025 (without its step of reweighting).

    See also:
      online.NexCP, online.SPCI, calibrate_local, weighted_conformal_quantile

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.Similar(scores.Absolute(), bandwidth=0.5, window=40)
      >>> past = jnp.tile(jnp.array([1.0, 9.0]), 20)  # small ones follow large ones
      >>> state = method.init(past, 0.1)
      >>> state, sets = online.run(method, state, jnp.zeros(2), past[:2], 0.1)
      >>> sets.upper.tolist()
      [1.0, 9.0]
    """

    score: Score
    bandwidth: Number
    lags: int = static(default=1)
    window: int = static(default=300)
    delay: int = static(default=0)

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> Array:
        """Returns the latest window + lags scores, shape (n,) or (n, c): the state.

        Where there are fewer, and where `mask`, shape (n,), is False, scores are
        absent, NaN in the state: they weigh nothing, nor does a score after one.
        """
        del alpha  # every step is given its own
        _checks.check_number("bandwidth", self.bandwidth, lambda h: h > 0, "> 0")
        return _latest(self, past_scores(scores, mask))

    def rank(self, state, alpha):
        return as_floats(component_alpha(alpha, state.shape[1:]))

    def threshold(self, state, rank):
        scores, before, now = _lagged(state, self)
        far = jnp.where(before == now, 0, before - now)  # 0 also of infinite ones
        weights = jax.vmap(Gaussian(self.bandwidth).weight)(far, jnp.zeros_like(far))
        weights = jnp.where(known(scores) & ~jnp.isnan(weights), weights, 0)
        return threshold_at(scores, jnp.asarray(rank), None, weights)

    def learn(self, state, pred, y, rank, q):
        return shifted(state, self.score(pred, y))


@pytree
class SPCIState:
    """State of `SPCI`: residuals, coefficients (2, levels, 1 + lags), steps since.

    `alpha` is what the coefficients are for, NaN where rows were too few.
    """

    residuals: Array
    coefs: Array
    alpha: Array
    steps: Array


@pytree
class SPCI(Lagged):
    """Sequential predictive intervals: quantile regression of residuals on the latest.

    The ends are those quantiles of the next residual, at levels b and 1 - alpha + b,
    that linear regressions on the `lags` residuals before predict, with an intercept
    and found exactly; b is the one of a grid on [0, alpha] with the narrowest interval.
    Levels are kept within [0.001, 0.999]. Where regressions cross it is empty.

    Args:
      lags: Number of residuals before each that the regressions read, at least 1.
      window: Number of latest residuals that they are fitted to, at least 1; D fewer
        where a `delay` of D is first given to `online.run`.
      every: Steps between fits, at least 1.
      num_levels: Number of points b, at least 2.
      score: `scores.Signed()`, or `scores.TwoSided` of one number: two components, of
        which the second is the residual and the first minus that.
      delay: How many steps late targets come: the lags of a residual are those known
        when its set was issued. A `delay` of `online.run` sets it; give it where
        targets come late by `update` or in a `Queue`. `online.run` then begins with it.

    Guarantee:
      Asymptotic: conditional coverage given the lags tends to 1 - alpha. A fit to a
      finite window covers less, the more so the more lags and levels it has: with one
      lag of an autoregression, 0.88 of a promised 0.9 with 300 rows, 0.89 with 600 and
      0.895 with 1000.

    Assumption:
      Stationary, strongly mixing residuals, with quantiles that are linear in the lags.

    Cost:
      O(w lags) time for a step, and in every `every`-th 2 num_levels regressions of w
      rows: 6 ms with w = 600, 4 lags and 5 levels. Under `vmap` over states these are
      computed at every step, and thrown away but for the due ones. The first call
      compiles the regression, which takes seconds.

    References:
      Xu, Xie, Sequential Predictive Conformal Inference for Time Series, ICML, 2023
      (with quantile regression forests in place of linear regressions).

    See also:
      online.SlidingWindow, online.Similar, learners.QuantileRegression, scores.Signed

    Example:
      >>> from jaxcp import online
      >>> method = online.SPCI(lags=1, window=40)
      >>> up = jnp.arange(-1.0, 1.0, 0.05)  # each residual is the last one plus 0.05
      >>> state = method.init(up, 0.1)
      >>> state, sets = method.step(state, 5.0, 6.05, 0.1)
      >>> round(sets.lower.item(), 2), round(sets.upper.item(), 2)
      (6.0, 6.0)
    """

    lags: int = static()
    window: int = static(default=600)
    every: int = static(default=20)
    num_levels: int = static(default=5)
    score: Score = Signed()
    delay: int = static(default=0)
    state_type: ClassVar = SPCIState

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> SPCIState:
        """Returns the state after past scores (n, 2), or residuals (n,), by time.

        Where there are fewer than window + lags, and where `mask`, shape (n,), is
        False, they are absent. Rows with one that is absent or not finite are left out
        of the fits. Of at most 1 + lags rows, or fewer than 1 / alpha - 1, sets are
        everything, as where one of the latest residuals is absent or not finite.
        """
        _checks.check_count("every", self.every, 1)
        _checks.check_count("num_levels", self.num_levels, 2)
        scores = past_scores(scores, mask)
        if scores.ndim > 1:  # as of `Signed`
            _checks.check_shape("past scores", (len(scores), 2), scores.shape)
            scores = scores[:, 1]
        residuals, alpha = _latest(self, scores), _one_alpha(alpha)
        signed = lambda r: (r < 0).any() | (len(r) < 9) | ~(r > 0)  # noqa: E731
        _checks.check_values(signed, "residuals y - pred, not their sizes", scores)
        coefs, alpha = _fit(self, residuals, alpha)
        return SPCIState(residuals, coefs, alpha, jnp.zeros((), int))

    def rank(self, state, alpha):
        alpha = _one_alpha(alpha)
        known = is_concrete(own := state.alpha, alpha) and not np.isnan(own)
        if known and not np.isclose(own, alpha):
            cure = "its fits are for that; init makes a state for another alpha"
            raise ValueError(f"expected alpha {own:.6g}, got {alpha:.6g}: {cure}")
        return alpha

    def threshold(self, state, rank):
        now = state.residuals[-self.lags :]
        finite = jnp.isfinite(now)
        now = _with_one(jnp.where(finite, now, 0))
        low, high = jnp.matmul(state.coefs, now, precision="highest")
        best = jnp.argmin(high - low)
        is_known = jnp.all(finite) & jnp.isclose(state.alpha, rank)
        return jnp.where(is_known, jnp.stack([-low[best], high[best]]), jnp.inf)

    def learn(self, state, pred, y, rank, q):
        residuals = shifted(state.residuals, self.score(pred, y)[1])
        steps = (state.steps + 1) % self.every
        coefs, alpha = lax.cond(
            steps == 0,
            lambda: _fit(self, residuals, rank),
            lambda: (state.coefs, state.alpha),
        )
        return SPCIState(residuals, coefs, alpha, steps)

    def _started(self, state, rank):
        coefs, alpha = _fit(self, state.residuals, rank)
        return replace(state, coefs=coefs, alpha=alpha)


@jit
def _fit(method, residuals, alpha):
    """Returns coefficients at the levels of alpha, and alpha or NaN for few rows."""
    values, alpha = at_least_single(residuals), jnp.asarray(alpha, float)
    y, x, _ = _lagged(values, method)
    x = _with_one(x)
    counts = jnp.isfinite(y) & jnp.all(jnp.isfinite(x), axis=1)
    y, x = jnp.where(counts, y, 0), jnp.where(counts[:, None], x, 0)
    b = jnp.linspace(0, alpha, method.num_levels).astype(y.dtype)
    levels = jnp.clip(jnp.append(b, 1 - alpha.astype(y.dtype) + b), 0.001, 0.999)
    # One after the other: a map over them all at once takes as long, and compiles more.
    fit = lambda level: coefficients(y, x, level, below=False)  # noqa: E731
    coefs = lax.map(fit, levels)
    count = jnp.sum(counts)
    enough = (count > x.shape[1]) & (rank_at_any_alpha(count, alpha) <= count)
    coefs = coefs.reshape(2, -1, x.shape[1]).astype(residuals.dtype)
    return coefs, jnp.where(enough, alpha, jnp.nan)


def _one_alpha(alpha):
    """Returns alpha of both ends together as a float, after checks."""
    return as_floats(component_alpha(alpha, ()))


def _latest(method, scores):
    """Returns the latest window + lags scores, NaN in front where there are fewer."""
    for name, least in (("lags", 1), ("window", 1), ("delay", 0)):
        _checks.check_count(name, getattr(method, name), least)
    size = method.window + method.lags + method.delay
    latest = scores[-size:]
    pad = (size - len(latest), 0), *((0, 0),) * (scores.ndim - 1)
    return jnp.pad(latest, pad, constant_values=jnp.nan)


def _lagged(past, method):
    """Returns scores (w,), the lags of each (w, lags), and those of the next (1, lags).

    Those that were known `delay` steps before, the latest last.
    """
    lags, ends = method.lags, len(past) - method.lags + 1
    before = jnp.stack([past[i : i + ends] for i in range(lags)], axis=1)
    return past[lags + method.delay :], before[: -1 - method.delay], before[-1:]


def _with_one(x):
    return jnp.concatenate([jnp.ones((*x.shape[:-1], 1), x.dtype), x], axis=-1)
