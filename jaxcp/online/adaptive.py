"""Methods that adapt alpha: ACI, and DtACI over many step sizes."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from jaxcp import _checks
from jaxcp._numbers import apart
from jaxcp._tree import pytree, static
from jaxcp.online.stream import Stream, as_floats, check_rank, component_alpha
from jaxcp.online.windows import Window, make_window, pick
from jaxcp.quantiles.levels import rank_at_any_alpha
from jaxcp.typing import ArrayLike, Number, Score


@pytree
class ACIState:
    """State of `ACI`: the window of scores and the alpha of the next set."""

    window: Window
    alpha: Array


def _split(alpha, window):
    """Returns alpha of all components together, and the share of it that each has."""
    alpha = component_alpha(alpha, window.scores.shape[1:])
    total = alpha.sum()
    return as_floats(total), as_floats(alpha / total)


def _parts(rank):
    """Returns alpha in total and its shares; ValueError for alpha by itself."""
    check_rank(isinstance(rank, tuple), rank)
    return rank


def _threshold_at(alpha, window, rank):
    """Returns the threshold of a window at an alpha that may leave (0, 1)."""
    _, shares = _parts(rank)
    # At 1 or beyond the set is empty, at 0 or below it is everything.
    k = rank_at_any_alpha(jnp.asarray(window.size), alpha * shares)
    return pick(window.ordered, jnp.where(alpha >= 1, 0, k))


class Adaptive(Stream):
    """What methods with a window, and an alpha in their state, have in common."""

    def rank(self, state, alpha):
        return _split(alpha, state.window)

    def threshold(self, state, rank):
        return _threshold_at(state.alpha, state.window, rank)


@pytree
class ACI(Adaptive):
    """Adaptive conformal inference: alpha <- alpha + step_size (target - error).

    The set is the one at the current alpha, among the window of past scores: everything
    if this alpha is <= 0, empty if it is >= 1. Alpha is not clipped.

    Args:
      score: The nonconformity score.
      step_size: How far one error moves alpha, >= 0, shape (); 0 leaves alpha as it is.
      window: Number of latest past scores that `init` keeps. Defaults to all.
      rolling: Whether new scores replace the oldest.

    Guarantee:
      On every sequence |mean error - alpha| <= (max(a, 1 - a) + step_size) / (step_size
      T), a the alpha at the start. Rounding adds at most eps (1 + 4 step_size) / (2
      step_size), eps of the type of alpha, at any T (at step_size = 0.01 it is 6e-6 in
      single precision and 1e-14 in double). Where targets come D steps late (`delay` of
      `online.run`) the mean error of the first T - D rows, those learned, is within
      (max(a, 1 - a) + (D + 1) step_size) / (step_size (T - D)) of alpha.

    Assumption:
      None on data and predictions. Sets are empty at a threshold of -inf and everything
      at +inf: true of all scores but `Normalized` and `Gamma` where the scale is not
      positive.

    Cost:
      O(w) time for a step with a window of w scores, without a sort.

    References:
      Gibbs, Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS,
      2021.

    See also:
      online.DtACI, online.PID, online.SFOGD, online.run

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.ACI(scores.Absolute(), step_size=0.05)
      >>> state = method.init(jnp.arange(1.0, 20.0), 0.1)
      >>> state, sets = method.step(state, jnp.array(0.0), jnp.array(99.0), 0.1)
      >>> round(state.alpha.item(), 3)  # a miss: the next sets are larger
      0.055
    """

    score: Score
    step_size: Number
    window: int | None = static(default=None)
    rolling: bool = static(default=True)
    state_type: ClassVar = ACIState
    promise = (
        "|mean error - {alpha}| <= (max(a, 1 - a) + step_size) / (step_size * T) after "
        "T rows of any sequence, a the alpha at the start"
    )
    assumption = "none on data and predictions"

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> ACIState:
        """Returns the state after past scores, shape (n,) or (n, c), by time.

        Rows where `mask`, shape (n,), is False are absent, as for `SlidingWindow`.
        """
        _checks.check_number("step_size", self.step_size, lambda g: g >= 0, ">= 0")
        window = make_window(scores, mask, self.window)
        return ACIState(window, jnp.asarray(_split(alpha, window)[0]))

    def learn(self, state, pred, y, rank, q):
        (total, _), window = _parts(rank), state.window
        error = 1.0 - self.score.invert(pred, q).contains(y)
        alpha = state.alpha + apart(self.step_size * (total - error))
        window = window.push(self.score(pred, y)) if self.rolling else window
        return ACIState(window, alpha.astype(state.alpha.dtype))


@pytree
class DtACIState:
    """State of `DtACI`: the window, and the alpha and weight of each expert."""

    window: Window
    alphas: Array
    weights: Array

    @property
    def alpha(self) -> Array:
        """The alpha of the next set: the weighted mean of the experts'."""
        return jnp.sum(self.weights * self.alphas) / jnp.sum(self.weights)


@pytree
class DtACI(Adaptive):
    """Dynamically-tuned ACI: experts with a step size each, weighted by their losses.

    Each expert is an `ACI`; the alpha used is the weighted mean of theirs. The loss of
    an expert is the pinball loss of its alpha at beta, the largest alpha that covers
    (the p-value of the target): weights <- (1 - sigma) weights exp(-eta loss) / sum +
    sigma / K with sigma = 1 / (2 I) and eta = sqrt(3 / I) sqrt((log(K I) + 2) / ((1 -
    a)^2 a^3 + a^2 (1 - a)^3)).

    Args:
      score: The nonconformity score.
      step_sizes: Step sizes of the experts, shape (K,).
      interval: Number of steps I over which the regret is small, shape ().
      window: Number of latest past scores that `init` keeps. Defaults to all.
      rolling: Whether new scores replace the oldest.

    Guarantee:
      The regret against a sequence of alphas is bounded on every interval of the length
      I that it is tuned to; the bound grows with how far the sequence moves. Long-run
      coverage of 1 - alpha is proved where alpha is drawn from the experts by their
      weights, and eta and sigma fall to 0 along the stream. Here alpha is their mean
      and both are fixed: coverage is close to 1 - alpha, without a bound. Where targets
      come late the experts err at their alphas and scores of now, not as of the set,
      and sets cover less: on sizes of an autoregression with phi = 0.9, steps of 0.001
      to 0.1 and alpha = 0.1, 0.88 with one step of delay and 0.83 with 24, where `ACI`
      covers 0.90. Take `ACI` there.

    Assumption:
      None on data and predictions.

    Cost:
      O(w) time for a step with a window of w scores, without a sort, and K sets, one
      for each expert.

    References:
      Gibbs, Candes, Conformal Inference for Online Prediction with Arbitrary
      Distribution Shifts, JMLR, 2024.

    See also:
      online.ACI, online.SFOGD, online.run

    Example:
      >>> from jaxcp import online, scores
      >>> method = online.DtACI(scores.Absolute(), jnp.array([0.001, 0.01, 0.1]))
      >>> state = method.init(jnp.arange(1.0, 20.0), 0.1)
      >>> y = 100 * jnp.arange(1.0, 10.0)
      >>> state, sets = online.run(method, state, jnp.zeros(9), y, 0.1)
      >>> bool(state.weights[2] > state.weights[0])  # the shift favors large steps
      True
    """

    score: Score
    step_sizes: ArrayLike
    interval: Number = 500
    window: int | None = static(default=None)
    rolling: bool = static(default=True)
    state_type: ClassVar = DtACIState
    promise = "the mean error is close to {alpha}, without a bound"
    assumption = "none on data and predictions"

    def init(
        self, scores: ArrayLike, alpha: ArrayLike, *, mask: ArrayLike | None = None
    ) -> DtACIState:
        """Returns the state after past scores, shape (n,) or (n, c), by time.

        Rows where `mask`, shape (n,), is False are absent, as for `SlidingWindow`.
        """
        _checks.check_values(lambda g: g >= 0, "step_sizes >= 0", self.step_sizes)
        _checks.check_number("interval", self.interval, lambda i: i >= 1, ">= 1")
        window = make_window(scores, mask, self.window)
        count, total = len(self._steps()), _split(alpha, window)[0]
        weights = jnp.full(count, 1 / count, total.dtype)
        return DtACIState(window, jnp.full(count, total), weights)

    def learn(self, state, pred, y, rank, q):
        window, (target, shares) = state.window, _parts(rank)

        def missed(alpha):
            q = _threshold_at(alpha, window, rank)
            return 1.0 - self.score.invert(pred, q).contains(y)

        score, dtype = self.score(pred, y), state.alphas.dtype
        moves = apart(self._steps() * (target - jax.vmap(missed)(state.alphas)))
        behind = _largest_alpha(window, score, shares) - state.alphas
        losses = target * behind - jnp.minimum(behind, 0)
        sigma, eta = self._rates(target, len(state.alphas))
        # Less the smallest loss, which cancels, so that they do not all vanish.
        weights = state.weights * jnp.exp(-eta * (losses - jnp.min(losses)))
        weights = (1 - sigma) * weights / jnp.sum(weights) + sigma / len(weights)
        alphas = (state.alphas + moves).astype(dtype)
        later = window.push(score) if self.rolling else window
        return DtACIState(later, alphas, weights.astype(dtype))

    def _steps(self):
        return jnp.atleast_1d(jnp.asarray(self.step_sizes, float))

    def _rates(self, a, count):
        length = jnp.asarray(self.interval, float)
        spread = (1 - a) ** 2 * a**3 + a**2 * (1 - a) ** 3
        eta = jnp.sqrt(3 / length * (jnp.log(count * length) + 2) / spread)
        return 1 / (2 * length), eta


def _largest_alpha(window, score, shares):
    """Returns sup{b : the set at alpha = b has the target}: its p-value."""
    score = jnp.where(jnp.isnan(score), jnp.inf, score)
    score = score if window.ordered.ndim == 1 else score[None]
    absent = len(window.ordered) - window.size  # +inf in `ordered`
    at_least = jnp.sum(window.ordered >= score, axis=0) - absent
    return jnp.minimum(jnp.min((1 + at_least) / (window.size + 1) / shares), 1)
