"""Methods that move the threshold itself: quantile tracking, PID and SF-OGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import apart, as_float
from jaxcp._tree import as_callable, pytree, static
from jaxcp.online.stream import Stream, as_floats, component_alpha, known, past_scores
from jaxcp.quantiles.levels import as_bound, conformal_rank, share_of
from jaxcp.quantiles.thresholds import thresholds
from jaxcp.risk.thresholds import one_number
from jaxcp.typing import AnySet, ArrayLike, Number, PyTree, Score, Scorecaster


@pytree
class PIDState:
    """State of `PID`: the tracked quantile, summed errors, steps, and the forecast."""

    quantile: Array
    excess: Array
    steps: Array
    forecast: Array
    scorecaster: PyTree


@pytree
class PID(Stream):
    """Conformal PID control: quantile tracking, an integrator and a scorecaster.

    q_{t+1} = [q_t + step_size (error_t - alpha)] + r_t(sum of errors - alpha) + g_t in
    units of the score. The bracket alone, the default, is quantile tracking. The
    integrator is r_t(e) = integral_gain tan(e log(t + 1) / (t saturation)), infinite
    beyond a quarter turn; g_t forecasts the next quantile from the scores so far. The
    factor log(t + 1) / t differs from the paper, log(t) / t, and from its authors'
    code, log(t + 1) / (t + 1); the guarantee is the same.

    With a `loss` it takes the place of the error, and its mean comes close to alpha in
    (0, bound): any function of the set and the target that falls as the set grows.

    With a `decay` the t-th target moves it by step_size t^(-decay) (error_t - alpha):
    where nothing changes the threshold converges, and where the law of the scores jumps
    it lags behind for ever longer.

    Args:
      score: The nonconformity score.
      step_size: How far one error moves the threshold, >= 0, shape (), in units of the
        score: about a tenth of the largest recent score.
      integral_gain: Gain of the integrator, >= 0, shape (), in units of the score.
      saturation: Excess of errors (times log(t + 1) / t) at which the integrator nears
        infinity, > 0, shape ().
      scorecaster: A `Scorecaster`, or None. A pytree with `init(scores, alpha) ->
        (state, forecast)` and `step(state, score) -> (state, forecast)`. Where targets
        come D steps late the forecast has to be of the quantile D steps after the next.
      loss: Loss of one example in place of the error, `(set, y) -> ()` in [0, bound],
        such as `risk.false_negative_rate`, or None. A NaN counts as the bound.
      bound: The largest loss, > 0, a number.
      decay: Power of t by which steps fall, in [0, 1), shape (); 0.6 for a stream that
        does not change. 0, kept as None, leaves them.

    Guarantee:
      On every sequence quantile tracking has |mean error - alpha| <= (b + step_size) /
      (step_size T), and with a loss |mean loss - alpha| <= (b + step_size bound) /
      (step_size T). With a scorecaster the same holds, b being the length of a range of
      0 and all scores less their forecasts; the integrator works for unbounded scores.
      With a decay the divisor is step_T T, step_T = step_size T^(-decay) the last step.
      Rounding adds at most eps (b + 4 step_size) / (2 step_size), eps of the type of
      the threshold, at any T (at step_size = b / 10 it is 8e-7 in single precision and
      2e-15 in double); with a decay the divisor is 2 step_T. Where targets come D steps
      late (`delay` of `online.run`) the mean error of tracking over the first N = T - D
      rows, those learned, is within (b + (D + 1) step_size) / (step_N N) of alpha, with
      a decay or without. Asymptotic: at a decay in (1/2, 1) the threshold tends to the
      (1 - alpha) quantile of independent scores of one continuous law, if it has only
      one.

    Assumption:
      Scores in [0, b] for quantile tracking; nothing else about data and predictions. A
      loss is at least alpha at thresholds below 0, and at most alpha from b on.

    Cost:
      O(1) time for a step, and that of the scorecaster: no window of scores.

    References:
      Angelopoulos, Candes, Tibshirani, Conformal PID Control for Time Series
      Prediction, NeurIPS, 2023.
      Feldman, Ringel, Bates, Romano, Achieving Risk Control in Online Learning
      Settings, TMLR, 2023.
      Angelopoulos, Barber, Bates, Online Conformal Prediction with Decaying Step Sizes,
      ICML, 2024.

    See also:
      online.ACI, online.SFOGD, typing.Scorecaster, risk.false_negative_rate

    Example:
      >>> from jaxcp import online, scores
      >>> tracking = online.PID(scores.Absolute(), step_size=0.5)
      >>> state = tracking.init(jnp.arange(1.0, 10.0), 0.2)
      >>> state, sets = online.run(tracking, state, jnp.zeros(2), jnp.full(2, 9.0), 0.2)
      >>> [round(end, 2) for end in sets.upper.tolist()]
      [8.0, 8.4]
    """

    score: Score
    step_size: Number
    integral_gain: Number = 0.0
    saturation: Number = 1.0
    scorecaster: Scorecaster | None = None
    loss: Callable[[AnySet, Array], Array] | None = None
    bound: float = static(default=1.0)
    decay: Number | None = 0.0
    state_type: ClassVar = PIDState
    promise = (
        "|mean error - {alpha}| <= (b + step_size) / (step_size * T) after T rows of "
        "any sequence, step_size the last one; with a loss its mean, and (b + "
        "step_size * bound) / (step_size * T)"
    )
    assumption = (
        "quantile tracking without an integrator, of scores in [0, b], or with a "
        "scorecaster b the length of a range of 0 and all scores less their forecasts"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", as_bound(self.bound))
        if self.loss is not None:
            object.__setattr__(self, "loss", as_callable("loss", self.loss))
        if isinstance(self.decay, int | float) and self.decay == 0:
            object.__setattr__(self, "decay", None)  # the program without powers

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> PIDState:
        """Returns the state that starts at the conformal quantile of past scores.

        With a scorecaster it starts at the forecast. With too few scores for alpha it
        starts at the largest finite score, or at 0. Rows where `mask` is False are
        absent.
        """
        for name in ("step_size", "integral_gain"):
            _checks.check_number(name, getattr(self, name), lambda g: g >= 0, ">= 0")
        _checks.check_number("saturation", self.saturation, lambda c: c > 0, "> 0")
        if self.decay is not None:
            falls = lambda p: (p >= 0) & (p < 1)  # noqa: E731
            _checks.check_number("decay", self.decay, falls, "in [0, 1)")
        if self.scorecaster is not None and mask is not None:
            raise ValueError("expected no mask with a scorecaster: it reads all scores")
        scores = past_scores(scores, mask)
        quantile = _first_quantile(scores, self._level(alpha), mask is None)
        forecast, cast = jnp.zeros_like(quantile), None
        if self.scorecaster is not None:
            cast, forecast = self.scorecaster.init(scores, alpha)
            forecast = jnp.asarray(forecast, quantile.dtype)
            quantile = jnp.zeros_like(quantile)
        excess = jnp.zeros(quantile.shape)
        return PIDState(quantile, excess, jnp.zeros((), int), forecast, cast)

    def rank(self, state, alpha):
        rank = as_floats(component_alpha(self._level(alpha), state.quantile.shape))
        return rank if self.bound == 1 else rank * self.bound

    def _level(self, alpha):
        """Returns alpha as a share of the bound, in (0, 1), after checks."""
        return alpha if self.bound == 1 else share_of(alpha, self.bound)

    def threshold(self, state, rank):
        threshold = state.quantile + self._integral(state) + state.forecast
        return threshold.astype(state.quantile.dtype)

    def learn(self, state, pred, y, rank, q):
        # q + step_size (L_t - alpha): Feldman et al. 2023, for any loss
        excess, past = self._losses(pred, y, q) - rank, state.quantile
        quantile = (past + apart(self._step(state) * excess)).astype(past.dtype)
        total = (state.excess + excess).astype(state.excess.dtype)
        forecast, cast = state.forecast, state.scorecaster
        if self.scorecaster is not None:
            cast, forecast = self.scorecaster.step(cast, self.score(pred, y))
            forecast = jnp.asarray(forecast, state.forecast.dtype)
        return PIDState(quantile, total, state.steps + 1, forecast, cast)

    def _step(self, state):
        """Returns how far the error of now moves the threshold."""
        if self.decay is None:
            return self.step_size
        return self.step_size * (state.steps + 1.0) ** -as_float(self.decay)

    def _losses(self, pred, y, q):
        """Returns the loss of the set at `q`, by default 1 where it misses `y`."""
        own = self.loss
        if own is None:
            return _errors(self.score, pred, y, q)

        def loss(q):
            found = as_float(one_number(own(self.score.invert(pred, q), y)))
            return jnp.where(jnp.isnan(found), self.bound, found)

        return _of_each(loss, q)

    def _integral(self, state):
        steps = jnp.maximum(state.steps, 1)
        angle = state.excess * jnp.log(steps + 1.0) / (steps * self.saturation)
        inside = jnp.abs(angle) < jnp.pi / 2
        turn = jnp.tan(jnp.where(inside, angle, 0))
        turn = jnp.where(inside, turn, jnp.sign(angle) * jnp.inf)
        works = (jnp.asarray(self.integral_gain) > 0) & (state.excess != 0)
        return jnp.where(works, self.integral_gain * jnp.where(works, turn, 0), 0)


@pytree
class SFOGDState:
    """State of `SFOGD`: the threshold and the sum of squared gradients."""

    quantile: Array
    squares: Array


@pytree
class SFOGD(Stream):
    """Scale-free online gradient descent on the pinball loss of the threshold.

    q <- q - (step_size / sqrt(3)) g / sqrt(sum of g^2), g = alpha - error the gradient
    of the pinball loss at level 1 - alpha.

    Args:
      score: The nonconformity score.
      step_size: Size of the thresholds' range, > 0, shape (), in units of the score.

    Guarantee:
      Asymptotic: |mean error - alpha| = O(T^(-1/4) log T) on every sequence. Regret
      O(sqrt(T)) against the best fixed threshold, at every T.

    Assumption:
      Bounded scores; nothing else about data and predictions.

    Cost:
      O(1) time for a step: no window of scores.

    References:
      Bhatnagar, Wang, Xiong, Bai, Improved Online Conformal Prediction via Strongly
      Adaptive Online Learning, ICML, 2023.

    See also:
      online.PID, online.DtACI

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.SFOGD(scores.Absolute(), step_size=3.0)
      >>> state = method.init(jnp.arange(1.0, 10.0), 0.2)
      >>> state, _ = method.step(state, jnp.array(0.0), jnp.array(9.0), 0.2)
      >>> round(state.quantile.item(), 2)
      9.73
    """

    score: Score
    step_size: Number
    state_type: ClassVar = SFOGDState
    promise = "|mean error - {alpha}| = O(T^(-1/4) log T) after T rows of any sequence"
    assumption = "bounded scores"

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> SFOGDState:
        """Returns the state that starts at the conformal quantile of past scores.

        Rows where `mask`, shape (n,), is False are absent.
        """
        _checks.check_number("step_size", self.step_size, lambda g: g > 0, "> 0")
        quantile = _first_quantile(past_scores(scores, mask), alpha, mask is None)
        return SFOGDState(quantile, jnp.zeros(quantile.shape))

    def rank(self, state, alpha):
        return as_floats(component_alpha(alpha, state.quantile.shape))

    def threshold(self, state, rank):
        return state.quantile

    def learn(self, state, pred, y, rank, q):
        gradient, past = rank - _errors(self.score, pred, y, q), state.quantile
        squares = (state.squares + apart(gradient**2)).astype(state.squares.dtype)
        size = jnp.sqrt(jnp.where(squares > 0, squares, 1))
        quantile = past - self.step_size / 3**0.5 * gradient / size
        return SFOGDState(quantile.astype(past.dtype), squares)


def _first_quantile(scores, alpha, full):
    """Returns the conformal quantile, or the largest finite score where it is +inf."""
    count = len(scores) if full else jnp.sum(known(scores))
    rank = conformal_rank(count, component_alpha(alpha, scores.shape[1:]))
    return _finite_quantile(scores, rank)


@jax.jit
def _finite_quantile(scores, rank):
    quantile, finite = thresholds(scores, rank, known(scores)), jnp.isfinite(scores)
    largest = jnp.max(jnp.where(finite, scores, -jnp.inf), axis=0)
    largest = jnp.where(jnp.any(finite, axis=0), largest, 0)
    return jnp.where(jnp.isfinite(quantile), quantile, largest)


def _errors(score: Score, pred: PyTree, y: Array, q: Array) -> Array:
    """Returns 1 where the set at `q` misses `y`, else 0, shape () or (c,)."""
    return _of_each(lambda q: 1.0 - score.invert(pred, q).contains(y), q)


def _of_each(loss: Callable[[Array], Array], q: Array) -> Array:
    """Returns the loss at a threshold, or of each component.

    With components each is judged by the set that binds it alone.
    """
    if q.ndim == 0:
        return loss(q)
    return jax.vmap(loss)(jnp.where(jnp.eye(len(q), dtype=bool), q[None], jnp.inf))
